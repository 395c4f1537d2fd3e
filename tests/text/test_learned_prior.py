"""The prior that is fitted to latents: its density, its draws, its file, and sampling from it."""

import json
import shutil
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.stats import multivariate_normal

from open_nvib.cli import main
from open_nvib.evaluation import evaluate
from open_nvib.process import vectors_at
from open_nvib.report.summary import summarise_evaluation
from open_nvib.store.files import InputError, OutsideTraining
from open_nvib.store.runs import PRIOR, read_metrics
from open_nvib.store.task_settings import EvaluateConfig
from open_nvib.text.data import load_prepared
from open_nvib.text.model import learned_prior
from open_nvib.text.model.autoencoder import TextAutoencoder
from open_nvib.text.model.bottlenecks import GaussianBottleneck, NVIBBottleneck
from open_nvib.text.model.configuration import TextAutoencoderConfig
from open_nvib.text.model.learned_prior import LearnedPrior, PriorSettings, fit_prior, fit_to_vectors, regressors
from open_nvib.text.training.train import train
from open_nvib.text.using.run import Run, load_run

BATCH, MOST, FEATURES = 3, 5, 7
LENGTHS, COUNTS = torch.tensor([11, 4, 8]), torch.tensor([5, 2, 3])
MASK = torch.arange(MOST) < COUNTS.unsqueeze(-1)


def make_prior() -> LearnedPrior:
    """A prior with random numbers in it."""
    random = torch.Generator().manual_seed(0)
    sizes = (5 + 2 * FEATURES, FEATURES, 2)
    weight, root, starts = (torch.randn(n, FEATURES, generator=random).double() for n in sizes)
    scale, settings = torch.linspace(0.5, 2, FEATURES).double(), PriorSettings(None, ((4, 2, 1), (11, 5, 1)), "")
    noise = torch.linalg.cholesky(root @ root.T + torch.eye(FEATURES))
    start = {"starts": 9 * starts, "start_weights": torch.tensor([1.0, 3.0]).double(), "start_noise": 0.5 * noise}
    centre = torch.arange(FEATURES).double()
    return LearnedPrior(centre=centre, scale=scale, **start, weight=0.1 * weight, noise=noise, settings=settings)


@pytest.fixture
def z() -> torch.Tensor:
    return torch.randn(BATCH, MOST, FEATURES, generator=torch.Generator().manual_seed(1)).double()


@pytest.fixture(scope="module")
def fitted(trained: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A copy of the trained run with a prior."""
    path = tmp_path_factory.mktemp("fitted") / "run"
    shutil.copytree(trained.path, path)
    run = load_run(path)
    run.fit_prior(training_ids(run))
    return run


def training_ids(run: Run) -> list[list[int]]:
    return list(load_prepared(run.config.data).split("short", "train")["input_ids"])


def test_the_mean_of_a_vector_depends_on_those_before_it_alone(z):
    """Against a loop over places: the last vector, the mean of all, and what is known of the place."""
    found = regressors(z, LENGTHS, COUNTS)
    for row, length, count in zip(range(BATCH), LENGTHS.tolist(), COUNTS.tolist(), strict=True):
        for i in range(1, MOST + 1):  # of vector i, the first being 0
            known = torch.tensor([1, i == 1, count - i == 1, count - i == 2, length / 100]).double()
            expected = torch.cat([known, z[row, i - 1], z[row, :i].mean(0)])
            torch.testing.assert_close(found[row, i - 1], expected)


def standardise(prior: LearnedPrior, vectors: torch.Tensor) -> torch.Tensor:
    return (vectors - prior.centre) / prior.scale


def test_draws_have_the_moments_of_the_model():
    """Two vectors, 4,000 draws: mean and covariance within six standard errors of their largest; fails once in 10⁶."""
    prior, count, scale = make_prior(), 4000, 0.5
    lengths, two = torch.full((count,), 8), torch.full((count,), 2)
    drawn = standardise(prior, prior.draw(lengths, two, torch.Generator().manual_seed(0), noise_scale=scale))
    start = torch.cdist(drawn[:, 0], prior.starts).argmin(-1)  # they are far from each other
    assert start.double().mean().item() == pytest.approx(0.75, abs=6 * (0.75 * 0.25 / count) ** 0.5)
    second = regressors(drawn[:, :1], lengths, two)[:, -1] @ prior.weight
    parts = ((drawn[:, 0] - prior.starts[start], prior.start_noise), (drawn[:, 1] - second, prior.noise))
    for residual, noise in parts:
        covariance = scale**2 * noise @ noise.T
        largest = covariance.diagonal().max().item()
        assert residual.mean(0).abs().max() < 6 * (largest / count) ** 0.5
        assert (residual.T @ residual / count - covariance).abs().max() < 6 * largest * (2 / count) ** 0.5


def test_without_noise_the_draws_are_the_means():
    prior = make_prior()
    drawn = standardise(prior, prior.draw(LENGTHS, COUNTS, noise_scale=0.0))
    torch.testing.assert_close(torch.cdist(drawn[:, 0], prior.starts).amin(-1), torch.zeros(BATCH).double())
    torch.testing.assert_close(drawn[:, 1:], regressors(drawn[:, :-1], LENGTHS, COUNTS) @ prior.weight)


def test_fitting_finds_the_process_that_made_the_vectors(monkeypatch):
    """2,000 sets from a known prior: the density of the fit comes close to that of the truth, in nats per vector."""
    monkeypatch.setattr(learned_prior, "CLUSTERS", 2)
    truth, count = make_prior(), 2000
    lengths, counts = torch.full((count,), 11), torch.full((count,), MOST)
    mask = torch.ones(count, MOST, dtype=torch.bool)
    drawn = [truth.draw(lengths, counts, torch.Generator().manual_seed(seed), noise_scale=1.0) for seed in (0, 1)]
    found = fit_to_vectors(drawn[0], mask, lengths)
    assert found.settings.counts == ((11, MOST, count),)
    later, first = [], []
    for prior in (truth, found):
        z = standardise(prior, drawn[1])
        residual = (z[:, 1:] - regressors(z[:, :-1], lengths, counts) @ prior.weight).flatten(0, 1)
        later.append(log_density(prior, residual, prior.noise).mean())
        mixture = torch.stack([log_density(prior, z[:, 0] - start, prior.start_noise) for start in prior.starts], -1)
        weights = prior.start_weights.double() / prior.start_weights.sum()
        first.append((mixture + weights.log()).logsumexp(-1).mean())
    assert later[1].item() == pytest.approx(later[0].item(), abs=0.1)
    assert first[1].item() == pytest.approx(first[0].item(), abs=0.2)


def log_density(prior: LearnedPrior, residual: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Log-density of vectors before they were standardised, by scipy."""
    covariance: Any = (noise @ noise.T).numpy()
    density = multivariate_normal(cov=covariance).logpdf(residual.numpy())
    return torch.from_numpy(density) - prior.scale.log().sum()


def test_features_of_an_nvae_make_its_points():
    """Without the noise of vectors, which `points` adds to their norms."""
    config: Any = TextAutoencoderConfig(vocab_size=50, d_model=FEATURES, bottleneck="nvae", alpha_unit="delta")
    bottleneck = NVIBBottleneck(config)
    latent = bottleneck(torch.randn(BATCH, MOST, FEATURES), MASK)
    points = latent.points()
    mixture = bottleneck.mixture_of(bottleneck.features(latent)[:, :-1], latent.mask[:, :-1])
    torch.testing.assert_close(mixture.z[:, :-1], points.z[:, :-1])
    torch.testing.assert_close(mixture.log_pi, points.log_pi)
    torch.testing.assert_close(mixture.spread[:, -1], points.spread[:, -1])  # pyright: ignore


def test_features_of_plain_vectors_make_their_mean():
    config: Any = TextAutoencoderConfig(vocab_size=50, d_model=FEATURES, bottleneck="vt")
    bottleneck = GaussianBottleneck(config)
    latent = bottleneck(torch.randn(BATCH, MOST, FEATURES), MASK)
    mixture = bottleneck.mixture_of(bottleneck.features(latent), latent.mask)
    torch.testing.assert_close(mixture.z, latent.mean().z)
    torch.testing.assert_close(mixture.log_pi, latent.mean().log_pi)


def test_the_prior_is_fitted_once_and_sampled_by_seed(fitted, tmp_path):
    again = tmp_path / "run"
    shutil.copytree(fitted.path, again)
    other = load_run(again)
    samples = fitted.sample(4, prior="learned")
    assert other.sample(4, prior="learned") == samples
    assert other.sample(4, prior="learned", seed=1) != samples
    assert other.sample(4, prior="learned", noise_scale=0.3) == samples
    (again / PRIOR).unlink()
    other.fit_prior(training_ids(other))
    assert (again / PRIOR).read_bytes() == (fitted.path / PRIOR).read_bytes()
    assert fitted.sample(4) == other.sample(4)  # of the unit prior, as ever


@pytest.mark.parametrize("kind", ["vtp", "vts", "any"])
def test_other_kinds_of_models_can_be_fitted(kind, data):
    """Of one vector, and of any number at a share."""
    options: dict[str, Any] = {
        "vtp": {"bottleneck": "vtp"},
        "vts": {"bottleneck": "vts", "stride_pooling": True},
        "any": {"bottleneck": "nvae", "alpha_unit": "delta", "keep_share": 0.5, "delta": 10.0},
    }
    texts = list(load_prepared(data).split("short", "train")["input_ids"])[:40]
    special: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    model = TextAutoencoder(TextAutoencoderConfig(vocab_size=4000, d_model=12, **options[kind], **special)).eval()
    prior = fit_prior(model, texts, share=None if kind == "vtp" else 0.5)
    lengths = torch.tensor([4, 10])
    mixture = prior.sample(model, lengths, torch.Generator().manual_seed(0))
    extra = kind == "any"  # the prior's component
    numbers = [1, 1] if kind == "vtp" else [2, 5]
    assert (mixture.log_pi > -torch.inf).sum(-1).tolist() == [number + extra for number in numbers]
    assert mixture.z.isfinite().all()


@pytest.mark.parametrize("kind", ["gates", "one share", "any number"])
def test_unless_told_the_prior_is_fitted_to_a_number_that_the_model_was_trained_with(kind, trained, tmp_path):
    options: dict[str, Any] = {
        "gates": {"alpha_activation": "gate", "gate_share": 0.5},
        "one share": {"alpha_unit": "delta", "keep_share": 0.5},
        "any number": {"alpha_unit": "delta", "keep_share": 0.5, "shares": "log_uniform"},
    }
    shutil.copytree(trained.path, tmp_path / "run")
    size: Any = {"vocab_size": trained.model.config.vocab_size, "d_model": 12, "bottleneck": "nvae", "delta": 10.0}
    model = TextAutoencoder(TextAutoencoderConfig(**size, **options[kind])).eval()
    run, ids = replace(trained, path=tmp_path / "run", model=model), training_ids(trained)[:40]
    with warnings.catch_warnings():
        warnings.simplefilter("error", OutsideTraining)
        settings = run.fit_prior(ids).settings
    if kind == "any number":
        assert settings.share == 0.25
        return
    assert settings.share is None
    kept = model.encoder.bottleneck.kept_vectors(run.encode_ids(ids)).sum(-1).tolist()
    pairs = Counter((len(text), number) for text, number in zip(ids, kept, strict=True))
    assert {(length, number): count for length, number, count in settings.counts} == pairs
    with pytest.warns(OutsideTraining):
        assert run.fit_prior(ids, share=0.25).settings.share == 0.25


def test_a_published_run_has_its_prior(fitted, tmp_path):
    fitted.save_pretrained(tmp_path / "published")
    published = load_run(tmp_path / "published")
    assert published.sample(3, prior="learned") == fitted.sample(3, prior="learned")


def test_the_command_fits_and_samples(trained, tmp_path, capsys):
    path = tmp_path / "run"
    shutil.copytree(trained.path, path)
    main(["fit-prior", str(path), "--texts", "40"])
    main(["sample", str(path), "--prior", "learned", "--count", "3", "--length", "9"])
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_an_evaluation_measures_both_priors(fitted):
    settings = EvaluateConfig(measure=["generation"], samples=6, scorer_steps=2)
    found = evaluate(fitted.path, settings, say=lambda line: None)
    assert found.generation is not None
    assert found.generation.learned is not None
    assert found.generation.examples == tuple(fitted.sample(6))
    assert found.generation.learned.examples == tuple(fitted.sample(6, prior="learned"))
    assert found.generation.learned.real == found.generation.real
    assert "of the learned prior" in summarise_evaluation(found)
    assert read_metrics(fitted.path).evaluations[found.name] == found


def test_a_run_that_replaces_another_does_not_keep_its_prior(fitted, tmp_path):
    """The old prior would stop every evaluation of the new run."""
    path = Path(shutil.copytree(fitted.path, tmp_path / "run"))
    config = replace(fitted.config, seed=5, optimiser=replace(fitted.config.optimiser, steps=20))
    train(config, path, overwrite=True)
    settings = EvaluateConfig(measure=["generation"], samples=6, scorer_steps=2)
    found = evaluate(path, settings, say=lambda line: None).generation
    assert found is not None
    assert found.learned is None
    assert not load_run(path).has_learned_prior


def test_a_prior_that_cannot_be_used_is_found_before_the_work(fitted, tmp_path):
    path = Path(shutil.copytree(fitted.path, tmp_path / "run"))
    said: list[str] = []
    (path / "prior.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match="prior"):
        evaluate(path, EvaluateConfig(samples=6, scorer_steps=2), say=said.append)
    assert not any("reconstruction" in text for text in said)


@pytest.mark.parametrize(
    ("options", "named"),
    [({"delta": 1.0}, "delta"), ({"share": 0.5}, "share"), ({"vectors": 2}, "vectors")],
    ids=str,
)
def test_options_of_the_unit_prior_are_refused(fitted, options, named):
    with pytest.raises(InputError, match=named):
        fitted.sample(2, prior="learned", **options)


def test_the_unit_prior_has_no_noise_scale(fitted):
    with pytest.raises(InputError, match="noise_scale"):
        fitted.sample(2, noise_scale=0.5)


def test_a_run_without_a_prior_says_how_to_fit_one(trained):
    with pytest.raises(InputError, match="fit-prior"):
        trained.sample(2, prior="learned")


@pytest.mark.parametrize("options", [{"share": 0.0}, {"share": 1.5}], ids=str)
def test_bad_settings_are_refused(fitted, options):
    with pytest.raises(InputError, match=next(iter(options))):
        fitted.fit_prior(training_ids(fitted), **options)


def test_a_prior_of_other_weights_and_a_damaged_one_are_refused(fitted, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(fitted.path, path)
    file = path / PRIOR
    settings = {"settings": json.dumps(json.loads(metadata(file)) | {"model": "another"})}
    save_file(load_file(file), file, metadata=settings)
    with pytest.raises(InputError, match="other weights"):
        load_run(path).sample(2, prior="learned")
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(InputError, match=PRIOR):
        load_run(path).sample(2, prior="learned")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("noise", lambda x: x * torch.nan),
        ("centre", lambda x: x[:-1]),
        ("weight", lambda x: x[:-1]),
        ("start_weights", torch.zeros_like),
        ("scale", torch.neg),
        ("weight", lambda x: x + 1e-3),  # not what was written
        ("starts", lambda x: x.long()),
        ("settings", lambda x: x | {"counts": [[10, 2**62, 1]]}),
        ("settings", lambda x: {}),
    ],
)
def test_a_prior_with_wrong_numbers_is_refused(fitted, tmp_path, name, change):
    path = tmp_path / "run"
    shutil.copytree(fitted.path, path)
    content: dict[str, Any] = {**load_file(path / PRIOR), "settings": json.loads(metadata(path / PRIOR))}
    content[name] = change(content[name])
    settings = {"settings": json.dumps(content.pop("settings"))}
    save_file({key: value.contiguous() for key, value in content.items()}, path / PRIOR, metadata=settings)
    with pytest.raises(InputError, match=PRIOR):
        load_run(path).sample(2, prior="learned")


def test_a_prior_of_before_has_no_digest_and_is_read(fitted, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(fitted.path, path)
    settings = json.loads(metadata(path / PRIOR))
    assert settings.pop("tensors")
    save_file(load_file(path / PRIOR), path / PRIOR, metadata={"settings": json.dumps(settings)})
    assert load_run(path).sample(2, prior="learned") == fitted.sample(2, prior="learned")


def test_latents_without_vectors_are_refused():
    vectors, mask = torch.zeros(30, 5, 3), torch.zeros(30, 5, dtype=torch.bool)
    with pytest.raises(InputError, match="no vectors"):
        fit_to_vectors(vectors, mask, torch.full((30,), 5))


def test_vectors_that_overflow_are_refused(fitted):
    """A text of them would be empty."""
    prior = replace(fitted.learned_prior, scale=fitted.learned_prior.scale * 1e38)
    with pytest.raises(InputError, match="noise_scale"):
        prior.sample(fitted.model, LENGTHS, noise_scale=100.0)


@pytest.mark.parametrize(
    ("options", "own", "given"),
    [
        ({"keep_share": 0.5}, None, "one share"),
        ({"alpha_activation": "gate", "gate_share": 0.5}, None, "decides"),
        ({"keep_share": 0.5, "shares": "log_uniform"}, 0.25, None),
        ({}, None, "fixed number"),
    ],
    ids=str,
)
def test_latents_have_the_vectors_that_the_model_was_trained_with(fitted, tmp_path, options, own, given):
    """Numbers far from those may lose the text; a number that cannot be is refused."""
    torch.manual_seed(0)
    shutil.copytree(fitted.path, tmp_path / "run")
    config = TextAutoencoderConfig(**(fitted.model.config.to_dict() | {"latent_size": None} | options))
    run = replace(fitted, path=tmp_path / "run", model=TextAutoencoder(config).eval())
    ids = training_ids(run)
    prior = run.fit_prior(ids)
    lengths = torch.tensor([length for length, _, _ in prior.settings.counts])
    numbers = torch.tensor([number for _, number, _ in prior.settings.counts])
    natural = run.model.encoder.bottleneck
    if own is not None:
        assert torch.equal(numbers, vectors_at(own, lengths))
    else:
        latents = (
            natural(run.model.encoder.hidden_states(t, t > -1), t > -1) for t in map(torch.tensor, ([i] for i in ids))
        )
        kept = {
            (len(text), round((latent.kept * latent.lengths).item())) for text, latent in zip(ids, latents, strict=True)
        }
        assert kept == set(zip(lengths.tolist(), numbers.tolist(), strict=True))
    if given == "fixed number":
        with pytest.raises(InputError, match=given):
            run.fit_prior(ids, share=0.3)
    elif given:
        with pytest.warns(OutsideTraining, match=given):
            run.fit_prior(ids, share=0.3)


def test_a_fitted_prior_follows_no_link_and_has_the_mode_of_the_run(fitted, tmp_path):
    """Of a stranger's run: what its links lead to is the user's."""
    path, mine = tmp_path / "run", tmp_path / "thesis.tex"
    shutil.copytree(fitted.path, path)
    mine.write_text("years of work")
    (path / PRIOR).unlink()
    for name in (PRIOR, f"{PRIOR}.partial"):
        (path / name).symlink_to(mine)
    load_run(path).fit_prior(training_ids(fitted))
    assert mine.read_text() == "years of work"
    assert (path / PRIOR).stat().st_mode == (path / "config.yaml").stat().st_mode  # who reads the run reads the prior
    assert load_run(path).sample(2, prior="learned")


def metadata(file: Path) -> str:
    size = int.from_bytes(file.read_bytes()[:8], "little")
    return json.loads(file.read_bytes()[8 : 8 + size])["__metadata__"]["settings"]
