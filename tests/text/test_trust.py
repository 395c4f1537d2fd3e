"""What a newcomer found: options that did nothing, advice that is refused, and what had no test."""

from copy import deepcopy
from types import SimpleNamespace

import pytest
from transformers import pipeline

from open_nvib.cli import main
from open_nvib.store.files import InputError
from open_nvib.store.settings import LossSettings, ModelSettings, OptimiserSettings, Schedule, TrainConfig
from open_nvib.text.training.trainer import find_troubles, time_left

GATE = ModelSettings(alpha_activation="gate")
IGNORED = {
    "delta is 0": TrainConfig(model=GATE, loss=LossSettings(delta=0.0)),
    r"delta is 0.* gate": TrainConfig(model=GATE, loss=LossSettings(delta=Schedule(0.0, 1.0, to_step=2))),
    "alpha_unit": TrainConfig(model=ModelSettings(alpha_activation="gate", alpha_unit="delta")),
    "shares .* gate": TrainConfig(model=GATE, loss=LossSettings(shares="log_uniform")),
    "warmup_steps": TrainConfig(optimiser=OptimiserSettings(warmup_steps=3)),
    "decay_share": TrainConfig(optimiser=OptimiserSettings(decay_share=0.5)),
}


@pytest.mark.parametrize("words", IGNORED)
def test_an_option_that_would_do_nothing_or_fail_is_refused(words):
    with pytest.raises(InputError, match=words):
        IGNORED[words].check_used()


def test_gates_are_not_told_to_set_what_they_refuse():
    metrics = {"loss": 1.0, "kept": 1.0, "bleu": 50.0}
    assert "keep_share" in find_troubles(metrics, None, drops=True)["all kept"]
    assert "keep_share" not in find_troubles(metrics, None, drops=True, gates=True)["all kept"]


def test_training_says_the_time_left():
    """At 2 s for each of 30 steps since it went on, 3,000 steps take 1:40:00; nothing is left at the end."""
    assert time_left(30, SimpleNamespace(global_step=1000, max_steps=4000), 60.0).strip() == "left 1:40:00"
    assert time_left(30, SimpleNamespace(global_step=4000, max_steps=4000), 60.0) == ""


def test_a_text_generation_pipeline_is_refused_in_one_line(trained, known):
    # of a copy: the pipeline pads on the left from then on
    generate = pipeline("text-generation", model=trained.model, tokenizer=deepcopy(trained.tokenizer))
    with pytest.raises(ValueError, match="does not continue") as refused:
        generate(known[0])
    assert "\n" not in str(refused.value)


def test_reconstruct_takes_a_sample_of_a_seed(trained, known, capsys, monkeypatch):
    """The sample differs from the mean and from that of another seed; the command passes the seed on."""
    run, asked = type(trained), []

    def reconstruct(self, texts, *, seed=None, **options):
        asked.append(seed)
        return list(texts)

    outputs = {seed: trained.reconstruct(known, seed=seed, vectors=None) for seed in (None, 0, 1)}
    assert outputs[0] == trained.reconstruct(known, seed=0)
    monkeypatch.setattr(run, "reconstruct", reconstruct)
    for options in ([], ["--sample"], ["--sample", "--seed", "7"]):
        main(["reconstruct", str(trained.path), known[0], *options])
    assert asked == [None, 0, 7]
    capsys.readouterr()
