"""A prior that is fitted to the latents of training texts, to sample from.

The prior of the loss draws each vector on its own. If λ′_G is small, the vectors of texts are a small part of what it
draws, and its samples are no sentences. Here the numbers of tokens and of vectors are drawn first, then the vectors in
the order of the text: the first from a mixture of Gaussians, each other one from a Gaussian whose mean depends linearly
on the vectors before it and on its place. k-means and least squares fit it.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from jaxtyping import Bool, Float, Int
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from open_nvib._tensors import Noise, check, widen
from open_nvib.merging import VectorRequest
from open_nvib.process import ImpulseMixture, vectors_at
from open_nvib.store.files import InputError, as_builtins, write_bytes
from open_nvib.store.runs import Numbers
from open_nvib.text.model.autoencoder import TextAutoencoder
from open_nvib.text.model.decoding import Texts, encode_batches
from open_nvib.text.opening import opening

RIDGES = (10.0, 100.0, 1000.0, 10_000.0)
"""Penalties of the regression that are tried: each counts as that many vectors that say nothing."""
HELD_OUT = 10
"""One text in so many is not fitted: the penalty is chosen on these."""
CLUSTERS, CLUSTERING_STEPS = 100, 20
"""Gaussians of the first vector, and steps of k-means."""
SHRINKAGE = 0.02
"""How far the covariance is drawn to a multiple of the identity: that of fewer vectors than entries has no inverse."""
NOISE_SCALE = 0.3
"""Factor of the noise of a sample unless told: docs/results/pretrained-vae.md compares some."""
PRIOR_SHARE = 0.25
"""Vectors per token of the latents that a prior is fitted to unless told, of a model trained for any number."""
SMALLEST_SCALE = 1e-6
"""Deviation of an entry that does not vary, which is divided by it."""
SETTINGS, TENSORS = "settings", ("centre", "scale", "starts", "start_weights", "start_noise", "weight", "noise")
"""The entries of a prior's file."""
PLACE_REGRESSORS = 5
"""Columns of `regressors` besides the two vectors."""
FEWEST_TEXTS = 20
"""Texts to which a prior can be fitted."""

Rows = Float[Tensor, "batch n f"]
Counts = Int[Tensor, " batch"]


@dataclass(frozen=True)
class PriorSettings:
    """What a learned prior was fitted to."""

    share: float | None  # vectors per token, of a model that takes any number
    counts: tuple[tuple[int, int, int], ...]  # as in `Numbers`
    model: str  # digest of its weights
    tensors: str = ""  # digest of its own numbers; empty in files that were written before there was one

    def __post_init__(self) -> None:
        Numbers(self.counts)  # which checks them


@dataclass(frozen=True, eq=False)
class LearnedPrior:
    """p(z₁) = Σₖ wₖ N(z₁; startₖ, S) and p(zᵢ | z₁, …, zᵢ₋₁, n, m) = N(zᵢ; xᵢ·weight, N), with xᵢ the `regressors`.

    `start_noise` and `noise` are square roots of S and N. Vectors z are standardised: an entry is centre + scale·z.
    """

    centre: Float[Tensor, " f"]
    scale: Float[Tensor, " f"]
    starts: Float[Tensor, "k f"]
    start_weights: Float[Tensor, " k"]
    start_noise: Float[Tensor, "f f"]
    weight: Float[Tensor, "x f"]
    noise: Float[Tensor, "f f"]
    settings: PriorSettings

    def __post_init__(self) -> None:
        patterns = {"centre": "f", "scale": "f", "starts": "k f", "start_noise": "f f", "weight": "x f", "noise": "f f"}
        check(
            "LearnedPrior",
            start_weights=(self.start_weights, "k; >= 0, some > 0"),
            **{name: (getattr(self, name), f"{pattern}; finite") for name, pattern in patterns.items()},
        )
        check("LearnedPrior", scale=(self.scale, "f; > 0", ""))
        size, expected = len(self.weight), 2 * len(self.centre) + PLACE_REGRESSORS
        if size != expected:
            raise ValueError(f"LearnedPrior: weight has {size} rows, expected {expected}.")

    def draw(
        self, lengths: Counts, counts: Counts, generator: Noise = None, *, noise_scale: float = NOISE_SCALE
    ) -> Rows:
        """Draw the vectors of latents, one after the other."""

        def noise(root: Tensor) -> Tensor:
            drawn = torch.randn(len(lengths), len(root), dtype=root.dtype, generator=generator)
            return noise_scale * drawn @ root.T

        chosen = torch.multinomial(self.start_weights, len(lengths), replacement=True, generator=generator)
        z = (self.starts[chosen] + noise(self.start_noise)).unsqueeze(1)
        for _ in range(1, int(counts.max())):
            mean = regressors(z, lengths, counts)[:, -1] @ self.weight
            z = torch.cat([z, (mean + noise(self.noise)).unsqueeze(1)], 1)
        return self.centre + self.scale * z

    def sample(
        self, model: TextAutoencoder, lengths: Counts, generator: Noise = None, *, noise_scale: float = NOISE_SCALE
    ) -> ImpulseMixture:
        """Draw the latent of a text of each length, for the decoder."""
        counts = draw_numbers(Numbers(self.settings.counts), lengths, generator)
        vectors = self.draw(lengths, counts, generator, noise_scale=noise_scale).float()
        if not vectors.isfinite().all():
            raise InputError(
                f"the learned prior draws numbers that are not finite at noise_scale {noise_scale}: lower it."
            )
        mask = torch.arange(vectors.shape[1]) < counts.unsqueeze(-1)
        bottleneck, device = model.encoder.bottleneck, model.device
        return bottleneck.mixture_of(vectors.to(device), mask.to(device))


def regressors(z: Rows, lengths: Counts, counts: Counts) -> Float[Tensor, "batch n x"]:
    """Return what the mean of the vector after each of `z` depends on.

    This is the vector before, the mean of all before, the place from the start and from the end, and the length.
    """
    before = torch.arange(1, z.shape[1] + 1)
    left = counts.unsqueeze(-1) - before  # vectors still to come, this one included
    known = [torch.ones_like(left), (before == 1).expand_as(left), left == 1, left == 2]
    known += [lengths.unsqueeze(-1).expand_as(left) / 100]
    return torch.cat([torch.stack(known, -1).to(z), z, z.cumsum(1) / before.unsqueeze(-1)], -1)


def draw_numbers(numbers: Numbers, lengths: Counts, generator: Noise) -> Counts:
    """Draw the number of vectors of each text from those of the nearest length that was counted, in proportion."""
    known, number, count = torch.tensor(numbers.counts).T
    distance = (lengths.unsqueeze(-1) - known).abs()
    weights = torch.where(distance == distance.amin(-1, keepdim=True), count, 0).double()
    chosen = torch.multinomial(weights, 1, generator=generator).squeeze(-1)
    scaled = (number[chosen] * lengths / known[chosen]).round().long()
    return scaled.clamp(min=1).minimum(lengths)


def fit_prior(model: TextAutoencoder, texts: Texts, *, share: float | None, model_digest: str = "") -> LearnedPrior:
    """Fit a prior to the means of the vectors of training texts.

    `share` is the number of vectors per token, None for the number that the model gives a text.
    """
    bottleneck, lengths = model.encoder.bottleneck, torch.tensor([len(text) for text in texts])
    request = None if share is None else VectorRequest(vectors=vectors_at(share, lengths))
    found: list[Any] = [None] * len(texts)
    for indices, latent in encode_batches(model, texts, request):
        vectors, kept = bottleneck.features(latent), bottleneck.kept_vectors(latent)
        for row, index in enumerate(indices):
            found[index] = vectors[row][kept[row]].cpu()
    counts = torch.tensor([len(rows) for rows in found])
    vectors = torch.nn.utils.rnn.pad_sequence(found, batch_first=True)
    mask = torch.arange(vectors.shape[1]) < counts.unsqueeze(-1)
    return fit_to_vectors(vectors, mask, lengths, share=share, model_digest=model_digest)


def fit_to_vectors(
    vectors: Rows, mask: Bool[Tensor, "batch n"], lengths: Counts, *, share: float | None = None, model_digest: str = ""
) -> LearnedPrior:
    """Fit a prior to sets of vectors in the order of their texts; the penalty is the best one on held-out texts."""
    if mask.sum() < 2:
        raise InputError("the latents of the texts have no vectors: the model drops every token. Train it longer.")
    # What occurs: numbers of vectors at each length, and the mean and deviation of each entry.
    counts = mask.sum(-1)
    occurring = sorted(Counter(zip(lengths.tolist(), counts.tolist(), strict=True)).items())
    table = tuple((length, number, count) for (length, number), count in occurring if number)
    settings = PriorSettings(share, table, model_digest)
    centre, scale = vectors[mask].mean(0), vectors[mask].std(0).clamp(min=SMALLEST_SCALE)
    z = torch.where(mask.unsqueeze(-1), (vectors - centre) / scale, 0.0)

    # The first vector of a text from a mixture; each later one from a regression on those before it.
    starts, sizes, start_noise = _cluster(z[counts > 0, 0])
    later = mask[:, 1:]
    x, y = regressors(z[:, :-1], lengths, counts)[later], z[:, 1:][later]
    held_out = (torch.arange(len(mask)) % HELD_OUT == 0).unsqueeze(-1).expand_as(later)[later]
    fitted = ~held_out
    gram, moment = widen(x[fitted].T @ x[fitted]), widen(x[fitted].T @ y[fitted])

    # The penalty with the smallest loss on texts that are not fitted.
    tried: list[tuple[float, LearnedPrior]] = []
    for ridge in RIDGES:
        weight = torch.linalg.solve(gram + ridge * torch.eye(len(gram), dtype=gram.dtype), moment).to(y)
        residual = y - x @ weight
        noise = _root_covariance(residual[fitted])
        white = torch.linalg.solve_triangular(noise, residual[held_out].T, upper=False)
        loss = (0.5 * white.square().sum(0).mean() + noise.diagonal().log().sum()).item()  # −log p, less a constant
        tried.append((loss, LearnedPrior(centre, scale, starts, sizes, start_noise, weight, noise, settings)))
    return min(tried, key=lambda pair: pair[0])[1]


def _cluster(vectors: Float[Tensor, "n f"]) -> tuple[Float[Tensor, "k f"], Float[Tensor, " k"], Float[Tensor, "f f"]]:
    """Return the centres of k-means, their numbers of vectors, and a square root of the covariance inside clusters."""
    generator = torch.Generator().manual_seed(0)
    count = max(1, min(CLUSTERS, len(vectors) // 10))
    centres = vectors[torch.randperm(len(vectors), generator=generator)[:count]]
    for _ in range(CLUSTERING_STEPS):
        nearest = torch.cdist(vectors, centres).argmin(-1)
        sizes = torch.bincount(nearest, minlength=count)
        sums = torch.zeros_like(centres).index_add(0, nearest, vectors)
        centres = torch.where(sizes.unsqueeze(-1) > 0, sums / sizes.clamp(min=1).unsqueeze(-1), centres)
    nearest = torch.cdist(vectors, centres).argmin(-1)
    sizes = torch.bincount(nearest, minlength=count)
    return centres, sizes.to(vectors), _root_covariance(vectors - centres[nearest])


def _root_covariance(residual: Float[Tensor, "n f"]) -> Float[Tensor, "f f"]:
    """Return a square root of the covariance of vectors with mean 0, a little shrunk."""
    covariance = widen(residual.T @ residual) / max(1, len(residual))
    spread = covariance.diagonal().mean().clamp(min=SMALLEST_SCALE)
    shrunk = (1 - SHRINKAGE) * covariance + SHRINKAGE * spread * torch.eye(len(covariance), dtype=covariance.dtype)
    return torch.linalg.cholesky(shrunk).to(residual)


def save_prior(prior: LearnedPrior, path: Path) -> None:
    """Write a prior in float32, all of it or nothing."""
    tensors = {name: getattr(prior, name).float().contiguous() for name in TENSORS}
    settings = replace(prior.settings, tensors=_digest(tensors))
    write_bytes(path, save(tensors, metadata={SETTINGS: json.dumps(as_builtins(settings))}))


def load_prior(path: Path, *, fix: str) -> LearnedPrior:
    """Read what `save_prior` wrote; an InputError if it is damaged."""
    with opening(path, fix=fix), safe_open(path, "pt") as file:
        settings = msgspec.json.decode((file.metadata() or {}).get(SETTINGS, "{}"), type=PriorSettings)
        tensors = {name: file.get_tensor(name) for name in TENSORS}
        if settings.tensors not in ("", _digest(tensors)):
            raise ValueError("its numbers are not those that were written")
        return LearnedPrior(**tensors, settings=settings)


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of all numbers, in the order of TENSORS."""
    return hashlib.sha256(b"".join(tensors[name].numpy().tobytes() for name in TENSORS)).hexdigest()
