"""Bottlenecks between encoder and decoder: T, VT, VTP, VTS and NVAE, each hidden states in, a latent out.

A latent is a `Posterior` (NVAE) or a `VectorLatent` (all others). Both have `mean()`, the mixture to attend to at test
time, `mix(other, weight)`, `kept`, `lengths`, `mask`, `mu`, and `log_sigma`, `alpha` and `alpha0`, which are None where
a kind has none. What else differs is a method of the bottleneck. Attention over the plain sets of vectors of all but
NVAE is denoising attention with the weights of `eq:probZ`, so that the decoder has one kind of cross-attention.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from open_nvib._tensors import BatchRecord, Hidden, Noise, TokenMask, log_weight, normal_like, unchecked
from open_nvib.distributions import Method, gaussian_kl
from open_nvib.layer import INITIAL_LOG_SIGMA, INITIAL_WEIGHT_STD, LOG_SIGMA_MAX, LOG_SIGMA_MIN, NVIB
from open_nvib.merging import VectorRequest, find_cuts, split_tokens
from open_nvib.process import KL, ImpulseMixture, KLForm, Posterior
from open_nvib.store.settings import ScheduledValues
from open_nvib.text.model.configuration import TextAutoencoderConfig

PRETRAINED_SCALE = 0.1
"""Standard deviation of NVIB's prior beside a pretrained encoder. Pretrained attention has no −‖z‖²/2√d, the term of
denoising attention that grows with the square of this scale."""
PRETRAINED_SIGMA = 0.1
"""Initial σ of a vector beside a pretrained encoder, relative to the prior's."""
MIN_RELATIVE_DEVIATION = 1e-3
"""Smallest deviation of a dimension of hidden states, relative to the root mean square of all."""
LARGEST_DRAWN_SHARE = 1.25
"""Where the distribution of shares in training ends. What is beyond 1 is clipped, so that a vector for each token,
without cuts, is not rare."""

Counts = Int[Tensor, " batch"]
PerVector = Float[Tensor, "batch n"]
VectorMask = Bool[Tensor, "batch n"]
Features = Float[Tensor, "batch n f"]
Indices = Int[Tensor, "batch n"]


def plain_mixture(z: Float[Tensor, "batch n p"], mask: Bool[Tensor, "batch n"], d: int) -> ImpulseMixture:
    """Give vectors the weights of `eq:probZ`, ‖z‖²/2√d as logarithms, so that denoising is ordinary attention."""
    log_pi = 0.5 * d**-0.5 * z.square().sum(-1)
    return unchecked(ImpulseMixture, z=z, log_pi=log_pi.masked_fill(~mask, -torch.inf))


@dataclass(frozen=True, eq=False)
class VectorLatent(BatchRecord):
    """A set of vectors for each text, each with a Gaussian of its own; without noise, `log_sigma` is None.

    `mask` is True where there is a vector, `lengths` counts the tokens of each text.
    """

    mu: Float[Tensor, "batch n p"]
    log_sigma: Float[Tensor, "batch n p"] | None
    mask: Bool[Tensor, "batch n"]
    lengths: Int[Tensor, " batch"]
    d: int

    alpha: ClassVar[None] = None
    alpha0: ClassVar[None] = None

    @property
    def kept(self) -> Float[Tensor, " batch"]:
        """Vectors for each token of the text."""
        return self.mask.sum(-1) / self.lengths.clamp(min=1)

    def mean(self) -> ImpulseMixture:
        """Return the means of the vectors, the mixture to attend to at test time."""
        return plain_mixture(self.mu, self.mask, self.d)

    points = mean

    def sample(self, generator: Noise = None) -> ImpulseMixture:
        """Draw each vector from its Gaussian."""
        if self.log_sigma is None:
            return self.mean()
        return plain_mixture(self.mu + self.log_sigma.exp() * normal_like(self.mu, generator), self.mask, self.d)

    def pad_to(self, size: int) -> "VectorLatent":
        """Pad with places without a vector."""
        extra = size - self.mask.shape[1]
        return self.map(lambda x: x if x.ndim == 1 else F.pad(x, (0, 0) * (x.ndim - 2) + (0, extra)))

    def kl(self) -> KL:
        """KL to unit Gaussians, for each text; it has no Dirichlet part."""
        none = torch.zeros(len(self.mu), device=self.mu.device)
        if self.log_sigma is None:
            return KL(dirichlet=none, gaussian=none)
        gaussian = torch.where(self.mask, gaussian_kl(self.mu, self.log_sigma), 0.0).sum(-1)
        return KL(dirichlet=torch.zeros_like(gaussian), gaussian=gaussian)

    def mix(self, other: "VectorLatent", weight: float) -> ImpulseMixture:
        """Return a point on the path between two texts of one batch: (1 − weight)·z + weight·z′, place by place.

        Where one text has no vector, that of the other fades.
        """
        z = (1 - weight) * self.mu * self.mask.unsqueeze(-1) + weight * other.mu * other.mask.unsqueeze(-1)
        present = (self.mask & (weight < 1)) | (other.mask & (weight > 0))
        return plain_mixture(z, present, self.d)


Latent = VectorLatent | Posterior


class Bottleneck(nn.Module):
    """The one part in which the models differ. The methods here are those of the kinds with a `VectorLatent`."""

    d: int  # size of a head of attention, of the kinds with a `VectorLatent`
    has_prior: bool = True  # whether there is a prior to generate from
    pooled: bool = False  # whether one vector stands for all tokens
    has_points: bool = False  # whether test time may read the points of a latent in place of its mean
    can_drop: bool = False  # whether each token has a vector that training may drop
    decides: bool = False  # whether the model itself decides how many vectors a text gets
    any_number: bool = False  # whether a call may say how many vectors a text gets, by a `VectorRequest`
    smallest_share: float | None = None  # where the shares of vectors that training draws begin; None if it draws none

    @property
    def delta(self) -> float | None:
        """Δ of the prior; None if the prior has none."""
        return None

    def _refuse(self, request: VectorRequest | None) -> None:
        if request is not None:
            raise ValueError("request is given, expected None: this bottleneck has a fixed number of vectors.")

    def reset_parameters(self) -> None:
        """Initialise what `TextAutoencoder` does not."""

    def start_as_identity(self, hidden: Hidden, mask: TokenMask) -> tuple[Tensor, Tensor]:
        """Let the latent be the hidden states x at first, up to an affine map: x = shift + factor·z.

        The map gives vectors the mean and the deviation of the prior's Gaussian. Returns shift and factor.
        """
        return hidden.new_zeros(hidden.shape[-1]), hidden.new_ones(hidden.shape[-1])

    def explore(self, hidden: Hidden, mask: TokenMask, request: VectorRequest | None = None) -> Any:
        """Compute the latent that training reads: with noise in what the bottleneck decides and `request` does not."""
        return self(hidden, mask, request)

    def set_schedule(self, values: ScheduledValues) -> None:
        """Set what the loss settings schedule inside the bottleneck."""

    def scheduled(self) -> dict[str, float]:
        """Return what `set_schedule` set, by name, in the precision of the layer."""
        return {}

    def draw_request(self, lengths: Counts) -> VectorRequest | None:
        """Draw a share of vectors for each text in training, log-uniformly, and half of the time an offset of its cuts.

        The result is None if the shares are fixed.
        """
        if self.smallest_share is None:
            return None
        level, offset = torch.rand(2, len(lengths), device=lengths.device)
        share = self.smallest_share * (LARGEST_DRAWN_SHARE / self.smallest_share) ** level
        return VectorRequest(share=share.clamp(max=1.0), offset=(2 * offset - 1).clamp(min=0.0))

    def sample(self, latent: Any, generator: Noise = None) -> ImpulseMixture:
        """Draw a sample of a latent, which training decodes."""
        return latent.sample(generator)

    def prior(
        self, lengths: Counts, generator: Noise = None, *, delta: float | None = None, vectors: Counts | None = None
    ) -> ImpulseMixture:
        """Draw a latent from the prior for a text of each length.

        `delta` replaces Δ where the prior has one, `vectors` the number of vectors where a call may say it.
        """
        raise ValueError("this bottleneck has no prior to sample from. Train 'vt', 'vtp', 'vts' or 'nvae'.")

    def kl(self, latent: Any) -> KL:
        """Return the two parts of the KL in the loss, for each text."""
        return latent.kl()

    def vector_kl(self, latent: Any) -> PerVector | None:
        """Return the KL of each vector to the prior's Gaussian; None for vectors without noise."""
        return None if latent.log_sigma is None else gaussian_kl(latent.mu, latent.log_sigma)

    def weights(self, latent: Any) -> PerVector:
        """Return the share of each vector in the weight of the latent."""
        return latent.mask.double() / latent.mask.sum(-1, keepdim=True).clamp(min=1)

    def kept_vectors(self, latent: Any) -> VectorMask:
        """Say which entries of the latent are vectors of tokens: not padding, dropped, or the prior's component."""
        return latent.mask

    def features(self, latent: Any) -> Features:
        """Return what describes each vector, for a learned prior: its mean."""
        return latent.mu

    def mixture_of(self, features: Features, mask: VectorMask) -> ImpulseMixture:
        """Return the mixture of vectors with these `features`."""
        return plain_mixture(features, mask, self.d)

    def mean_sigma(self, latent: Any) -> Float[Tensor, ""] | None:
        """Return the mean standard deviation of all vectors, the prior's component included; None without noise."""
        there = latent.mask if latent.alpha is None else latent.mask & (latent.alpha > 0)
        return None if latent.log_sigma is None else latent.log_sigma.detach()[there].exp().mean()

    def component_of_token(self, hidden: Hidden, mask: TokenMask, request: VectorRequest | None = None) -> Indices:
        """Return the index in the latent of the vector that holds most of each token; -1 for a dropped token."""
        kept = self(hidden, mask, request).mask
        kept = F.pad(kept, (0, mask.shape[1] - kept.shape[1]))
        return torch.where(kept, torch.arange(mask.shape[1], device=mask.device), -1)


class PlainBottleneck(Bottleneck):
    """T: the vectors as they are. No prior, so nothing can be generated from it."""

    has_prior = False

    def __init__(self, config: TextAutoencoderConfig) -> None:
        super().__init__()
        self.d = config.head_size
        self.project = nn.Identity() if config.p == config.d_model else nn.Linear(config.d_model, config.p)

    def forward(self, hidden: Hidden, mask: TokenMask, request: VectorRequest | None = None) -> VectorLatent:
        self._refuse(request)
        return VectorLatent(mu=self.project(hidden), log_sigma=None, mask=mask, lengths=mask.sum(-1), d=self.d)


class GaussianBottleneck(Bottleneck):
    """VT: a Gaussian for each vector. VTP and VTS change which vectors there are."""

    def __init__(self, config: TextAutoencoderConfig) -> None:
        super().__init__()
        self.d = config.head_size
        self.to_mu = nn.Linear(config.d_model, config.p)
        self.to_log_sigma = nn.Linear(config.d_model, config.p)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise as NVIB does, with less noise than the prior's."""
        self.to_mu.reset_parameters()
        nn.init.normal_(self.to_log_sigma.weight, std=INITIAL_WEIGHT_STD)
        nn.init.constant_(self.to_log_sigma.bias, INITIAL_LOG_SIGMA)

    def start_as_identity(self, hidden: Hidden, mask: TokenMask) -> tuple[Tensor, Tensor]:
        return standardise(self.to_mu, self.to_log_sigma, hidden[mask], scale=1.0)

    def select(self, hidden: Hidden, mask: TokenMask, request: VectorRequest | None) -> tuple[Tensor, Tensor]:
        """Return the hidden states that become vectors, and a mask of where there is one."""
        self._refuse(request)
        return hidden, self.select_prior(mask)

    def select_prior(self, mask: TokenMask) -> VectorMask:
        """Return the mask of `select` for texts of which only the mask is known."""
        return mask

    def forward(self, hidden: Hidden, mask: TokenMask, request: VectorRequest | None = None) -> VectorLatent:
        lengths = mask.sum(-1)
        hidden, mask = self.select(hidden, mask, request)
        log_sigma = self.to_log_sigma(hidden).float().clamp(LOG_SIGMA_MIN, LOG_SIGMA_MAX)
        return VectorLatent(mu=self.to_mu(hidden).float(), log_sigma=log_sigma, mask=mask, lengths=lengths, d=self.d)

    def prior(
        self, lengths: Counts, generator: Noise = None, *, delta: float | None = None, vectors: Counts | None = None
    ) -> ImpulseMixture:
        """Draw unit Gaussian vectors, as many as a text of each length has."""
        if delta is not None:
            raise ValueError(f"delta is {delta}, expected none: it belongs to the prior of 'nvae'.")
        weight = self.to_mu.weight
        counts = lengths if vectors is None else vectors
        mask = torch.arange(int(counts.max()), device=weight.device) < counts.to(weight.device).unsqueeze(-1)
        mask = self.select_prior(mask) if vectors is None else mask
        z = torch.randn(*mask.shape, len(weight), device=weight.device, generator=generator)
        return plain_mixture(z, mask, self.d)


class PooledBottleneck(GaussianBottleneck):
    """VTP: all vectors pooled into one."""

    pooled = True

    def __init__(self, config: TextAutoencoderConfig) -> None:
        super().__init__(config)
        self.pooling = config.pooling

    def start_as_identity(self, hidden: Hidden, mask: TokenMask) -> tuple[Tensor, Tensor]:
        return super().start_as_identity(*self.select(hidden, mask, None))

    def select(self, hidden: Hidden, mask: TokenMask, request: VectorRequest | None) -> tuple[Tensor, Tensor]:
        self._refuse(request)
        return pool(hidden, mask, self.pooling), self.select_prior(mask)

    def select_prior(self, mask: TokenMask) -> Bool[Tensor, "batch 1"]:
        return torch.ones_like(mask[:, :1])


class StridedBottleneck(GaussianBottleneck):
    """VTS: vectors dropped at a stride, or pooled, for which a call may say how many."""

    def __init__(self, config: TextAutoencoderConfig) -> None:
        super().__init__(config)
        self.stride, self.any_number = config.stride, config.stride_pooling
        self.smallest_share = config.smallest_share if config.shares is not None else None

    def select(self, hidden: Hidden, mask: TokenMask, request: VectorRequest | None) -> tuple[Tensor, Tensor]:
        if not self.any_number:
            return super().select(hidden, mask, request)
        counts = mask.float()
        cuts = find_cuts(counts, request or VectorRequest(), unit=1.0, share=1 - self.stride)
        merged = split_tokens(counts, cuts).merge(hidden)
        return merged.hidden, merged.alpha > 0

    def select_prior(self, mask: TokenMask) -> VectorMask:
        return mask & kept_at_stride(mask.shape[1], self.stride).to(mask.device)


class NVIBBottleneck(Bottleneck):
    """NVAE: the nonparametric bottleneck, with the choices of its configuration."""

    has_points = True

    def __init__(self, config: TextAutoencoderConfig) -> None:
        super().__init__()
        gates = {"gate_count": 1 / config.gate_share, "gate_share": config.gate_share}
        gates |= {"gate_pooling": config.gate_pooling}
        self.nvib = NVIB(
            config.p,
            input_size=config.d_model,
            alpha0_p=config.alpha0_p,
            delta=config.delta,
            alpha_activation=config.alpha_activation,
            **(gates if config.alpha_activation == "gate" else {}),
            alpha_unit=config.alpha_unit,
            alpha_contrast=config.alpha_contrast,
            keep_share=config.keep_share,
            prior_sigma=1.0 if config.pretrained is None else PRETRAINED_SCALE,
        )
        self.can_drop = config.keep_share is None
        self.decides = self.nvib.has_gates
        self.any_number = config.keep_share is not None or self.decides
        self.smallest_share = config.smallest_share if config.shares is not None else None
        self.kappa: int = config.kappa
        self.method: Method = config.gamma_method
        self.form: KLForm = config.kl_form

    def start_as_identity(self, hidden: Hidden, mask: TokenMask) -> tuple[Tensor, Tensor]:
        nn.init.zeros_(self.nvib.to_alpha.weight)
        return standardise(self.nvib.to_mu, self.nvib.to_log_sigma, hidden[mask], scale=PRETRAINED_SCALE)

    def forward(self, hidden: Hidden, mask: TokenMask, request: VectorRequest | None = None) -> Posterior:
        return self.nvib(hidden, mask, request)

    def explore(self, hidden: Hidden, mask: TokenMask, request: VectorRequest | None = None) -> Posterior:
        return self.nvib(hidden, mask, request, gate_noise=self.decides and request is None)

    @property
    def delta(self) -> float:
        return self.nvib.delta.item()

    def set_schedule(self, values: ScheduledValues) -> None:
        self.nvib.set_delta(values.delta)
        if values.alpha_contrast is not None:
            self.nvib.set_alpha_contrast(values.alpha_contrast)
        if values.keep_share is not None:
            self.nvib.set_keep_share(values.keep_share)

    def scheduled(self) -> dict[str, float]:
        found = {name: getattr(self.nvib, name) for name in ("delta", "keep_share", "alpha_contrast")}
        return {name: value.item() for name, value in found.items() if value is not None}

    def sample(self, latent: Posterior, generator: Noise = None) -> ImpulseMixture:
        return latent.sample(self.kappa, self.method, generator)

    def prior(
        self, lengths: Counts, generator: Noise = None, *, delta: float | None = None, vectors: Counts | None = None
    ) -> ImpulseMixture:
        prior = self.nvib.prior
        if delta is not None:
            prior = replace(prior, delta=torch.full_like(prior.delta, delta))
        return prior.sample(lengths, vectors=vectors, kappa=self.kappa, method=self.method, generator=generator)

    def kl(self, latent: Posterior) -> KL:
        return latent.kl(self.form, kappa=self.kappa)

    def vector_kl(self, latent: Posterior) -> PerVector:
        prior = latent.prior
        return gaussian_kl(latent.mu, latent.log_sigma, prior_mu=prior.mu, prior_log_sigma=prior.log_sigma)

    def weights(self, latent: Posterior) -> PerVector:
        return latent.alpha / latent.alpha0.unsqueeze(-1)

    def kept_vectors(self, latent: Posterior) -> VectorMask:
        kept = latent.mask & (latent.alpha > 0)
        return F.pad(kept[:, :-1], (0, 1))

    def features(self, latent: Posterior) -> Features:
        """Return the mean of each vector, and the logarithm of its pseudo-count."""
        return torch.cat([latent.mu, log_weight(latent.alpha).unsqueeze(-1)], -1)

    def mixture_of(self, features: Features, mask: VectorMask) -> ImpulseMixture:
        prior = self.nvib.prior
        log_pi = features[..., -1].masked_fill(~mask, -torch.inf)
        spread = (2 * prior.log_sigma).exp().sum()  # of the prior's component, which is last
        return unchecked(
            ImpulseMixture,
            z=torch.cat([features[..., :-1], prior.mu.expand(len(features), 1, -1)], 1),
            log_pi=torch.cat([log_pi, prior.alpha0_p.log().expand(len(features), 1)], 1).log_softmax(-1),
            spread=F.pad(torch.zeros_like(log_pi), (0, 1), value=spread.item()),
        )

    def component_of_token(self, hidden: Hidden, mask: TokenMask, request: VectorRequest | None = None) -> Indices:
        return self.nvib.component_of_token(hidden, mask, request)


BOTTLENECKS: dict[str, type[Bottleneck]] = {
    "t": PlainBottleneck,
    "vt": GaussianBottleneck,
    "vtp": PooledBottleneck,
    "vts": StridedBottleneck,
    "nvae": NVIBBottleneck,
}


def make_bottleneck(config: TextAutoencoderConfig) -> Bottleneck:
    """Build the bottleneck that the configuration names."""
    return BOTTLENECKS[config.bottleneck](config)


@torch.no_grad()
def standardise(
    to_mu: nn.Linear, to_log_sigma: nn.Linear, x: Float[Tensor, "vectors size"], *, scale: float
) -> tuple[Float[Tensor, " size"], Float[Tensor, " size"]]:
    """Set projections to z = (x − mean)·scale/deviation, in each dimension, with a small σ for all vectors.

    Returns the shift and the factor of x = shift + factor·z.
    """
    deviation = x.std(0)
    deviation = deviation.clamp(min=MIN_RELATIVE_DEVIATION * deviation.square().mean().sqrt())
    mean, factor = x.mean(0), deviation / scale
    to_mu.weight.copy_(torch.diag(1 / factor))
    to_mu.bias.copy_(-mean / factor)
    to_log_sigma.weight.zero_()
    to_log_sigma.bias.fill_(math.log(PRETRAINED_SIGMA * scale))
    return mean, factor


def pool(hidden: Hidden, mask: TokenMask, how: str) -> Float[Tensor, "batch 1 size"]:
    """Pool the real vectors into one: their mean, their maximum in each dimension, or the first (cls)."""
    if how == "cls":
        return hidden[:, :1]
    real = mask.unsqueeze(-1)
    if how == "max":
        return hidden.masked_fill(~real, torch.finfo(hidden.dtype).min).amax(1, keepdim=True)
    return (hidden * real).sum(1, keepdim=True) / mask.sum(-1).clamp(min=1)[:, None, None]


def kept_at_stride(n: int, share_dropped: float) -> Bool[Tensor, " n"]:
    """Say which of n positions stay when a share is dropped evenly; the first always does.

    0.5 drops every second, 0.25 every fourth; 0.75 keeps every fourth, 0.9 every tenth.
    """
    counts = (torch.arange(n + 1, dtype=torch.float64) * (1 - share_dropped) - 1e-9).ceil()
    return counts[1:] > counts[:-1]
