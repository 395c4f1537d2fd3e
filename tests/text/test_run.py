"""What one does with a trained model, from Python."""

import dataclasses
from typing import Any

import pytest
import torch
from test_model import make_batch, make_model

from open_nvib.process import Posterior
from open_nvib.store.files import InputError
from open_nvib.store.settings import TrainConfig
from open_nvib.text.using.run import load_run


def test_reconstruction_of_known_sentences_is_mostly_exact(trained, known):
    reconstructed = trained.reconstruct(known)
    assert sum(a == b for a, b in zip(known, reconstructed, strict=True)) > 0.6 * len(known)


def test_reconstruction_does_not_depend_on_the_batch(trained, known):
    assert [trained.reconstruct([text])[0] for text in known[:5]] == trained.reconstruct(known)[:5]


def test_encode_then_decode_is_reconstruct(trained, known):
    latent = trained.encode(known[:3])
    assert isinstance(latent, Posterior)
    assert latent.lengths.tolist() == [len(ids) for ids in trained.tokenize(known[:3])]
    assert trained.decode(latent.mean(), 2 * latent.lengths) == trained.reconstruct(known[:3])


def test_samples_are_decided_by_the_seed(trained):
    first = trained.sample(12, seed=3)
    assert len(first) == 12
    assert trained.sample(12, seed=3) == first
    assert trained.sample(12, seed=4) != first


def test_samples_have_lengths_of_the_data_or_the_one_given(trained):
    """Generation may stop anywhere up to twice the length of the latent."""
    longest = 2 * (len(trained.histogram) - 1)
    counts = [len(ids) for ids in trained.tokenizer(trained.sample(40), add_special_tokens=False)["input_ids"]]
    assert max(counts) <= longest
    short = trained.sample(10, length=1, suppress_tokens=[trained.tokenizer.eos_token_id])
    assert all(len(ids) <= 2 for ids in trained.tokenizer(short, add_special_tokens=False)["input_ids"])


def test_interpolation_goes_from_one_reconstruction_to_the_other(trained, known):
    path = trained.interpolate(known[0], known[1], steps=5)
    assert len(path) == 5
    assert [path[0], path[-1]] == trained.reconstruct(known[:2])
    assert path[0] != path[-1]


def test_inspection_shares_out_all_the_weight(trained, known):
    reports = trained.inspect(known[:4])
    latent = trained.encode(known[:4])
    for row, (report, text) in enumerate(zip(reports, known, strict=False)):
        assert report.text == text
        assert report.reconstruction == trained.reconstruct([text])[0]
        assert [token.token for token in report.tokens] == trained.tokenizer.tokenize(text)
        alphas = [token.alpha for token in report.tokens]
        total = sum(alphas) + trained.model.config.alpha0_p
        assert [token.weight for token in report.tokens] == pytest.approx([alpha / total for alpha in alphas])
        assert sum(token.weight for token in report.tokens) + report.prior_weight == pytest.approx(1)
        assert [token.kept for token in report.tokens] == [alpha > 0 for alpha in alphas]
        assert sum(token.kept for token in report.tokens) / len(alphas) == pytest.approx(latent.kept[row].item())
        assert all(token.kl > 0 and token.sigma > 0 for token in report.tokens)


def test_latents_can_be_pruned_mixed_and_edited(trained, known):
    same_length = [text for text in known if len(trained.tokenize([text])[0]) == len(trained.tokenize([known[0]])[0])]
    texts = same_length[:2]
    expected = trained.reconstruct(texts)
    latent = trained.encode(texts)
    limits = 2 * latent.lengths
    assert trained.decode(latent.prune(0.0).mean(), limits) == expected
    nothing = trained.decode(latent.prune(1e9).mean(), limits)
    assert nothing[0] == nothing[1]  # the prior's component is left
    assert trained.decode(latent[0].mix(latent[1], 0.0), limits[:1]) == expected[:1]
    assert trained.decode(latent[0].mix(latent[1], 1.0), limits[:1]) == expected[1:]
    swapped = dataclasses.replace(latent, mu=latent.mu.flip(0), log_sigma=latent.log_sigma.flip(0))
    swapped = dataclasses.replace(swapped, alpha=latent.alpha.flip(0))
    assert trained.decode(swapped.mean(), limits) == expected[::-1]


@pytest.mark.parametrize("kind", ["t", "vt", "vts", "vtp"])
def test_path_between_plain_latents_ends_at_their_means(kind):
    model = make_model(kind)
    batch = make_batch(7, 4)
    latent = model.encoder.posterior(batch["input_ids"], batch["attention_mask"])
    for weight, row in ((0.0, 0), (1.0, 1)):
        end: Any = latent[0].mix(latent[1], weight).compact()
        mean: Any = latent.mean()[row].compact()
        torch.testing.assert_close(end.z, mean.z)
        torch.testing.assert_close(end.log_pi, mean.log_pi)
    alone = model.encoder.posterior(batch["input_ids"][:1])
    longer: Any = latent[0].mix(latent[1], 0.25)
    if kind in ("t", "vt"):  # where the shorter text has nothing, the longer one fades
        torch.testing.assert_close(longer.z[0, 4:], 0.75 * alone.mean().z[0, 4:])


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda run: run.reconstruct([""]), "tokens"),
        (lambda run: run.encode(["fine", "  "]), "tokens"),
        (lambda run: run.reconstruct(["war " * 64]), "64 tokens.* 63"),
        (lambda run: run.sample(0), "count"),
        (lambda run: run.sample(1, length=64), "length"),
        (lambda run: run.interpolate("a war", "the war", steps=1), "steps"),
    ],
)
def test_what_a_model_cannot_take_is_an_input_error(call, what, trained):
    with pytest.raises(InputError, match=what):
        call(trained)


def test_a_directory_without_a_model_is_not_a_run(tmp_path, trained):
    with pytest.raises(InputError, match=tmp_path.name):
        load_run(tmp_path)
    for name in ("config.yaml", "lengths.json"):
        (tmp_path / name).write_bytes((trained.path / name).read_bytes())
    with pytest.raises(InputError, match="no model yet"):
        load_run(tmp_path)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_that_no_generator_takes_are_errors(trained, seed):
    with pytest.raises(InputError, match="seed"):
        trained.sample(1, seed=seed)
    with pytest.raises(ValueError, match="seed"):
        TrainConfig(seed=seed)


def test_the_prior_of_an_nvae_takes_another_delta(trained):
    assert trained.sample(3, delta=None) == trained.sample(3)
    assert trained.sample(8, delta=0.0) != trained.sample(8, delta=50.0)
    with pytest.raises(InputError, match="delta"):
        trained.sample(1, delta=-1.0)


def test_a_point_of_the_path_is_what_the_path_has_there(trained, known):
    path = trained.interpolate(known[0], known[1], steps=3)
    assert path[1] == trained.between(known[0], known[1], 0.5)
    with pytest.raises(InputError, match="weight"):
        trained.between(known[0], known[1], 1.5)


@pytest.mark.parametrize("device", ["no such", "meta"])
def test_a_device_that_cannot_be_used_is_named(trained, device):
    with pytest.raises(InputError, match=rf"device '{device}'"):
        load_run(trained.path, device=device)
