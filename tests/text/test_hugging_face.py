"""The model and the tokenizer as people use them with transformers, and a model that is published."""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from test_model import make_batch, make_model
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertTokenizer,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    pipeline,
)

from open_nvib.store.files import InputError
from open_nvib.text.data import load_prepared
from open_nvib.text.data.tokenizer import bert, load_tokenizer
from open_nvib.text.model.autoencoder import LatentOutput
from open_nvib.text.opening import open_tokenizer
from open_nvib.text.using.run import Run, load_run

PREVIOUS = Path(__file__).parents[1] / "fixtures" / "previous"
VOCAB = {token: index for index, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "war", "."])}


def test_loss_is_that_of_a_sample_in_training_mode_and_of_the_mean_otherwise():
    model, batch = make_model("nvae", dropout=0.0), make_batch(7, 4, 11)
    model.eval()
    assert model(**batch).loss == model(**batch, sample=False).loss
    assert model(**batch, sample=True).loss != model(**batch, sample=True).loss
    model.train()
    assert model(**batch).loss != model(**batch).loss
    assert model(**batch, sample=False).loss == model(**batch, sample=False).loss


def test_a_plain_trainer_trains_on_samples(tmp_path):
    """Noise reaches σ: where the mean is decoded, the cross-entropy has no gradient in it."""
    torch.manual_seed(0)
    model, batch = make_model("vt"), make_batch(7, 7, 7, 7)
    rows = [{name: values[row] for name, values in batch.items()} for row in range(4)]
    model.config.lambda_g = 0.0
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=4, report_to="none", use_cpu=True
    )
    before = model.encoder.bottleneck.to_log_sigma.weight.clone()
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows)  # pyright: ignore[reportArgumentType]
    trainer.train()
    assert not torch.equal(before, model.encoder.bottleneck.to_log_sigma.weight)
    assert trainer.evaluate()["eval_loss"] == trainer.evaluate()["eval_loss"]


def test_metrics_of_a_plain_trainer_see_the_logits(tmp_path):
    """The accuracy of a model that has learned nothing, counted from one call by hand."""
    model, batch = make_model("nvae").eval(), make_batch(7, 7, 7, 7)
    rows = [{name: values[row] for name, values in batch.items()} for row in range(4)]
    arguments = TrainingArguments(output_dir=str(tmp_path), report_to="none", use_cpu=True)

    def accuracy(found: Any) -> dict[str, float]:
        return {"accuracy": (found.predictions.argmax(-1) == found.label_ids).mean()}

    trainer = Trainer(model, arguments, eval_dataset=rows, compute_metrics=accuracy)  # pyright: ignore[reportArgumentType]
    with torch.no_grad():
        right = model(**batch).logits.argmax(-1) == batch["labels"]
    assert trainer.evaluate()["eval_accuracy"] == pytest.approx(right.float().mean().item())


def gradients(model: Any, folder: Path, batch_size: int) -> dict[str, torch.Tensor]:
    """What a plain Trainer gives an optimiser in one step on 4 texts, in batches of a size, without noise."""
    model.encoder.bottleneck.sample = lambda latent: latent.mean()
    batch = make_batch(7, 7, 7, 7)
    rows = [{name: values[row] for name, values in batch.items()} for row in range(4)]
    found: dict[str, torch.Tensor] = {}

    class Watch(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            found.update({name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None})

    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=1,
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=4 // batch_size,
        max_grad_norm=0.0,
        report_to="none",
        use_cpu=True,
    )
    Trainer(model, arguments, train_dataset=rows, callbacks=[Watch()]).train()  # pyright: ignore[reportArgumentType]
    return found


@pytest.mark.parametrize("kind", ["vt", "nvae"])
def test_a_plain_trainer_accumulates_the_gradients_of_one_large_batch(kind, tmp_path):
    options: dict[str, Any] = {"lambda_g": 10.0, "lambda_d": 10.0, "dropout": 0.0}
    whole = gradients(make_model(kind, **options), tmp_path / "whole", 4)
    for batch_size in (1, 2):
        accumulated = gradients(make_model(kind, **options), tmp_path / f"{batch_size}", batch_size)
        torch.testing.assert_close(accumulated, whole, rtol=1e-4, atol=1e-5)


def test_a_call_without_labels_returns_the_latent(trained, known):
    inputs = trained.tokenizer(known[:3], padding=True, return_tensors="pt")
    assert set(inputs) == {"input_ids", "attention_mask"}
    latent = trained.model(**inputs)
    assert isinstance(latent, LatentOutput)
    mean = trained.encode(known[:3]).mean().compact()
    torch.testing.assert_close(latent.last_hidden_state, mean.mu)


def test_feature_extraction_pipeline_gives_the_vectors(trained, known):
    extract = pipeline("feature-extraction", model=trained.model, tokenizer=trained.tokenizer)
    found = np.array(extract(known[0]))
    np.testing.assert_allclose(found, trained.encode(known[0]).mean().compact().mu.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "name"), [({}, "input_ids"), ({"labels": torch.ones(1, 2, dtype=torch.long)}, "input_ids")]
)
def test_a_call_without_text_names_what_is_missing(arguments, name):
    with pytest.raises(ValueError, match=name):
        make_model("nvae")(**arguments)


def test_no_assert_answers_a_user():
    source = Path(__file__).parents[2] / "src" / "open_nvib" / "text"
    files = [file for part in ("model", "training", "using") for file in (source / part).rglob("*.py")]
    assert [
        file.name for file in files if "\n        assert " in file.read_text() or "\n    assert " in file.read_text()
    ] == []


def test_plain_calls_of_the_tokenizer_reconstruct(trained, known):
    """At the run, at its folder model/, and at its tokenizer."""
    for folder in (trained.path, trained.path / "model", trained.path / "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert tokenizer(known)["input_ids"] == trained.tokenize(known)
    for folder in (trained.path, trained.path / "model"):
        model = AutoModel.from_pretrained(folder)
        found = [
            tokenizer.decode(
                model.generate(**tokenizer(text, return_tensors="pt"), max_new_tokens=40)[0], skip_special_tokens=True
            )
            for text in known[:8]
        ]
        assert found == trained.reconstruct(known[:8])


def save_as_before(folder: Path) -> Path:
    """A tokenizer with the template of BERT, as earlier versions saved it."""
    BertTokenizer(vocab=VOCAB, bos_token="[CLS]", eos_token="[SEP]").save_pretrained(str(folder))
    return folder


def test_templates_of_tokenizers_are_removed_and_ids_stay(tmp_path):
    old = AutoTokenizer.from_pretrained(save_as_before(tmp_path / "old"))
    assert old("a war.")["input_ids"] == [2, 5, 6, 7, 3]
    made = bert(VOCAB, lowercase=True)
    made.save_pretrained(str(tmp_path / "new"))
    pairs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "old" / "tokenizer.json"), padding_side="left")
    pairs.save_pretrained(str(tmp_path / "hub"))
    found = [
        made,
        AutoTokenizer.from_pretrained(tmp_path / "new"),
        open_tokenizer(tmp_path / "old", fix=""),
        load_tokenizer(str(tmp_path / "old"), lowercase=True),
        load_tokenizer(str(tmp_path / "hub"), lowercase=True),
        load_tokenizer(str(tmp_path / "hub" / "tokenizer.json"), lowercase=True),
    ]
    for tokenizer in found:
        assert dict(tokenizer("A war.")) == {"input_ids": [5, 6, 7], "attention_mask": [1, 1, 1]}
        assert tokenizer(["a", "a war"], padding=True)["input_ids"] == [[5, 0], [5, 6]]
        assert tokenizer.decode([2, 5, 6, 7, 3], skip_special_tokens=True) == old.decode([5, 6, 7])
        assert [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id] == [2, 3, 0]
        assert {*tokenizer.all_special_ids, 4} == {*made.all_special_ids}


def test_runs_and_data_of_earlier_versions_are_corrected():
    prepared, run = load_prepared(PREVIOUS / "data"), load_run(PREVIOUS / "finished")
    rows = prepared.split("short", "train")
    for tokenizer in (prepared.tokenizer, run.tokenizer):
        assert tokenizer(rows["text"][:20])["input_ids"] == rows["input_ids"][:20]


def published(folder: Path, run: Run) -> Run:
    run.save_pretrained(folder)
    return Run.from_pretrained(folder)


def test_a_published_model_is_the_model(trained, known, tmp_path):
    again = published(tmp_path / "published", trained)
    assert again.reconstruct(known[:4]) == trained.reconstruct(known[:4])
    assert again.sample(4, seed=1) == trained.sample(4, seed=1)
    model, tokenizer = (kind.from_pretrained(tmp_path / "published") for kind in (AutoModel, AutoTokenizer))
    assert tokenizer(known)["input_ids"] == trained.tokenize(known)
    for mine, theirs in zip(model.parameters(), trained.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    with pytest.raises(InputError, match=r"config\.yaml"):
        _ = again.config


def test_a_model_without_lengths_samples_a_given_length(trained, known, tmp_path):
    trained.model.save_pretrained(tmp_path)
    trained.tokenizer.save_pretrained(str(tmp_path))
    run = load_run(tmp_path)
    assert run.decode(run.encode(known[:2]).mean()) == trained.reconstruct(known[:2])
    assert len(run.sample(3, length=9)) == 3
    with pytest.raises(InputError, match=r"lengths\.json.*length"):
        run.sample(3)


def test_the_model_card_has_the_metrics(trained, tmp_path):
    published(tmp_path, trained)
    _, head, body = (tmp_path / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(head)["library_name"] == "open_nvib"
    bleu = json.loads((trained.path / "metrics.json").read_text())["validation"]["bleu"]
    assert f"| reconstruction BLEU | {bleu:.4g} |" in body


@pytest.mark.parametrize("call", [lambda run: Run.from_pretrained("me/none"), lambda run: run.push_to_hub("me/none")])
def test_without_a_network_the_hub_is_an_input_error(call, trained, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="me/none") as raised:
        call(trained)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("tokenizer_class", [None, "StrangerTokenizer", "TokenizersBackend"])
def test_code_that_comes_with_a_run_is_not_run(trained, tmp_path, monkeypatch, tokenizer_class):
    """Neither by the run nor by the published folder, and nobody is asked."""
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a prompt"))
    run, folder = Path(shutil.copytree(trained.path, tmp_path / "run")), tmp_path / "published"
    trained.save_pretrained(folder)
    for place in (run, run / "model", run / "tokenizer", folder):
        (place / "stranger.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass StrangerTokenizer: pass\n")
        classes = {"AutoTokenizer": ["stranger.StrangerTokenizer"] * 2, "AutoModel": "stranger.StrangerTokenizer"}
        for name in ("tokenizer_config.json", "config.json"):
            if (place / name).exists():
                settings = json.loads((place / name).read_text()) | {"auto_map": classes}
                settings["tokenizer_class"] = tokenizer_class
                (place / name).write_text(json.dumps({key: value for key, value in settings.items() if value}))
    calls = [(load_run, run), (load_run, folder), (Run.from_pretrained, folder)]
    calls += [(lambda path: load_tokenizer(str(path), lowercase=True), place) for place in (run, run / "tokenizer")]
    for open_it, place in calls:
        with suppress(InputError):
            open_it(place)
    assert not (tmp_path / "ran").exists()
