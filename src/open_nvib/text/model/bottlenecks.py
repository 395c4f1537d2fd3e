"""What stands between encoder and decoder: T, VT, VTP, VTS and NVAE, each hidden states in, a latent out.

A latent has `mean()`, a mixture to attend to at test time, `kl()`, `kept` and `lengths`; the bottleneck draws `sample`s
of it and of its `prior`. Attention over the plain sets of vectors of all but NVAE is denoising attention with the
weights of `eq:probZ`, so that the decoder has one kind of cross-attention.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from open_nvib._records import BatchRecord, trusted
from open_nvib.gamma import Method
from open_nvib.kl import gaussian_kl
from open_nvib.layer import INITIAL_LOG_SIGMA, INITIAL_WEIGHT_STD, LOG_SIGMA_MAX, LOG_SIGMA_MIN, NVIB
from open_nvib.merging import gather
from open_nvib.mixtures import ImpulseMixture
from open_nvib.process import KL, KLForm, Posterior
from open_nvib.text.model.configuration import TextAutoencoderConfig


def plain_mixture(z: Float[Tensor, "batch n p"], mask: Bool[Tensor, "batch n"], d: int) -> ImpulseMixture:
    """The weights of `eq:probZ`, ‖z‖²/2√d as logarithms, with which denoising attention is ordinary attention."""
    log_pi = 0.5 * d**-0.5 * z.square().sum(-1)
    return trusted(ImpulseMixture, z=z, log_pi=log_pi.masked_fill(~mask, -torch.inf))


@dataclass(frozen=True, eq=False)
class VectorLatent(BatchRecord):
    """A set of vectors, each with a Gaussian of its own; `log_sigma` -inf is a vector without noise and without KL."""

    mu: Float[Tensor, "batch n p"]
    log_sigma: Float[Tensor, "batch n p"]
    mask: Bool[Tensor, "batch n"]
    lengths: Int[Tensor, " batch"]
    d: int

    @property
    def kept(self) -> Float[Tensor, " batch"]:
        """Vectors for each token of the text."""
        return self.mask.sum(-1) / self.lengths.clamp(min=1)

    def mean(self) -> ImpulseMixture:
        return plain_mixture(self.mu, self.mask, self.d)

    def kl(self) -> KL:
        gaussian = torch.where(self.mask, gaussian_kl(self.mu, self.log_sigma), 0.0).sum(-1)
        return KL(dirichlet=torch.zeros_like(gaussian), gaussian=gaussian)


class PlainBottleneck(nn.Module):
    """T: the vectors as they are. No prior, so nothing can be generated from it."""

    def __init__(self, config: TextAutoencoderConfig) -> None:
        super().__init__()
        self.d = config.d_model // config.heads
        self.project = nn.Identity() if config.p == config.d_model else nn.Linear(config.d_model, config.p)

    def forward(self, hidden: Float[Tensor, "batch n size"], mask: Bool[Tensor, "batch n"]) -> "PlainLatent":
        return PlainLatent(z=self.project(hidden), mask=mask, d=self.d)

    def sample(self, latent: "PlainLatent", generator: torch.Generator | None = None) -> ImpulseMixture:
        return latent.mean()

    def prior(self, lengths: Int[Tensor, " batch"], generator: torch.Generator | None = None) -> ImpulseMixture:
        raise ValueError(
            "bottleneck 't': a plain Transformer has no prior to sample from. Train 'vt', 'vts' or 'nvae'."
        )


@dataclass(frozen=True, eq=False)
class PlainLatent(BatchRecord):
    """The encoder's vectors, without noise."""

    z: Float[Tensor, "batch n p"]
    mask: Bool[Tensor, "batch n"]
    d: int

    @property
    def lengths(self) -> Int[Tensor, " batch"]:
        return self.mask.sum(-1)

    @property
    def kept(self) -> Float[Tensor, " batch"]:
        return torch.ones_like(self.z[:, 0, 0])

    def mean(self) -> ImpulseMixture:
        return plain_mixture(self.z, self.mask, self.d)

    def kl(self) -> KL:
        zero = torch.zeros(len(self.z), device=self.z.device)
        return KL(dirichlet=zero, gaussian=zero)


class GaussianBottleneck(nn.Module):
    """VT, VTP and VTS: a Gaussian for each vector, after pooling all into one or keeping some at a stride."""

    def __init__(self, config: TextAutoencoderConfig) -> None:
        super().__init__()
        self.d = config.d_model // config.heads
        self.pooling = config.pooling if config.bottleneck == "vtp" else None
        self.stride = config.stride if config.bottleneck == "vts" else 0.0
        self.stride_pooling = config.stride_pooling
        self.to_mu = nn.Linear(config.d_model, config.p)
        self.to_log_sigma = nn.Linear(config.d_model, config.p)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As NVIB's: less noise than the prior's to start with."""
        self.to_mu.reset_parameters()
        nn.init.normal_(self.to_log_sigma.weight, std=INITIAL_WEIGHT_STD)
        nn.init.constant_(self.to_log_sigma.bias, INITIAL_LOG_SIGMA)

    def forward(self, hidden: Float[Tensor, "batch n size"], mask: Bool[Tensor, "batch n"]) -> VectorLatent:
        lengths = mask.sum(-1)
        if self.pooling is not None:
            hidden, mask = pool(hidden, mask, self.pooling), torch.ones_like(mask[:, :1])
        elif self.stride:
            if self.stride_pooling:
                gathered = gather(mask.float(), hidden, per_component=1 / (1 - self.stride))
                hidden, mask = gathered.hidden, gathered.alpha > 0
            else:
                mask = mask & kept_at_stride(mask.shape[1], self.stride).to(mask.device)
        log_sigma = self.to_log_sigma(hidden).float().clamp(LOG_SIGMA_MIN, LOG_SIGMA_MAX)
        return VectorLatent(mu=self.to_mu(hidden).float(), log_sigma=log_sigma, mask=mask, lengths=lengths, d=self.d)

    def sample(self, latent: VectorLatent, generator: torch.Generator | None = None) -> ImpulseMixture:
        noise = torch.randn(latent.mu.shape, dtype=latent.mu.dtype, device=latent.mu.device, generator=generator)
        return plain_mixture(latent.mu + latent.log_sigma.exp() * noise, latent.mask, self.d)

    def prior(self, lengths: Int[Tensor, " batch"], generator: torch.Generator | None = None) -> ImpulseMixture:
        """Unit Gaussian vectors, as many as a text of that length has."""
        weight = self.to_mu.weight
        if self.pooling is not None:
            mask = torch.ones(len(lengths), 1, dtype=torch.bool, device=weight.device)
        else:
            n = int(lengths.max())
            real = torch.arange(n, device=weight.device) < lengths.to(weight.device).unsqueeze(-1)
            mask = real & kept_at_stride(n, self.stride).to(weight.device)
        noise = torch.randn(*mask.shape, len(weight), device=weight.device, generator=generator)
        return plain_mixture(noise, mask, self.d)


class NVIBBottleneck(nn.Module):
    """NVAE: the nonparametric bottleneck, with the choices of its configuration."""

    def __init__(self, config: TextAutoencoderConfig) -> None:
        super().__init__()
        self.nvib = NVIB(
            config.p,
            input_size=config.d_model,
            alpha0_p=config.alpha0_p,
            delta=config.delta,
            alpha_activation=config.alpha_activation,
            alpha_unit=config.alpha_unit,
            alpha_contrast=config.alpha_contrast,
            keep_share=config.keep_share,
        )
        self.kappa: int = config.kappa
        self.method: Method = config.gamma_method
        self.form: KLForm = config.kl_form

    def forward(self, hidden: Float[Tensor, "batch n size"], mask: Bool[Tensor, "batch n"]) -> Posterior:
        return self.nvib(hidden, mask)

    def sample(self, latent: Posterior, generator: torch.Generator | None = None) -> ImpulseMixture:
        return latent.sample(self.kappa, self.method, generator)

    def prior(
        self, lengths: Int[Tensor, " batch"], generator: torch.Generator | None = None, *, delta: float | None = None
    ) -> ImpulseMixture:
        """A latent for a text of each length; with another Δ than the model's, if given."""
        prior = self.nvib.prior
        if delta is not None:
            prior = replace(prior, delta=torch.full_like(prior.delta, delta))
        return prior.sample(lengths, kappa=self.kappa, method=self.method, generator=generator)


Latent = PlainLatent | VectorLatent | Posterior
Bottleneck = PlainBottleneck | GaussianBottleneck | NVIBBottleneck


def make_bottleneck(config: TextAutoencoderConfig) -> Bottleneck:
    kinds = {"t": PlainBottleneck, "nvae": NVIBBottleneck}
    return kinds.get(config.bottleneck, GaussianBottleneck)(config)


def latent_kl(bottleneck: Bottleneck, latent: Latent) -> KL:
    """The two parts of the KL, for each text."""
    if isinstance(latent, Posterior):
        assert isinstance(bottleneck, NVIBBottleneck)
        return latent.kl(bottleneck.form, kappa=bottleneck.kappa)
    return latent.kl()


def pool(
    hidden: Float[Tensor, "batch n size"], mask: Bool[Tensor, "batch n"], how: str
) -> Float[Tensor, "batch 1 size"]:
    """One vector of the real ones: their mean, their maximum in each dimension, or the first."""
    if how == "cls":
        return hidden[:, :1]
    real = mask.unsqueeze(-1)
    if how == "max":
        return hidden.masked_fill(~real, torch.finfo(hidden.dtype).min).amax(1, keepdim=True)
    return (hidden * real).sum(1, keepdim=True) / mask.sum(-1).clamp(min=1)[:, None, None]


def kept_at_stride(n: int, share_dropped: float) -> Bool[Tensor, " n"]:
    """Which of n positions stay when a share is dropped evenly; the first always does.

    0.5 drops every second, 0.25 every fourth; 0.75 keeps every fourth, 0.9 every tenth.
    """
    counts = (torch.arange(n + 1, dtype=torch.float64) * (1 - share_dropped) - 1e-9).ceil()
    return counts[1:] > counts[:-1]
