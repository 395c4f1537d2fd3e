"""An NVIB that starts as the identity: attention over its mean is ordinary attention, with two dials to leave it.

For attention that was trained without NVIB: μ = x, σ = τ_σ σ^p and log α = ‖x‖²/2√d + τ_α s. The quadratic term cancels
the −‖z‖²/2√d of denoising attention. With τ_σ = 0 and a large τ_α, which leaves the prior's component no weight, the
attention is the one that was trained; a lower τ_α gives the prior's component weight, and τ_σ > 0 blurs each vector
towards the query.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from open_nvib._tensors import TensorRecord, at_least_float32, check, unchecked, widen
from open_nvib.layer import LOG_SIGMA_MIN
from open_nvib.process import ConditionalBDP, GaussianMixture, Posterior, append_component

LOG_ALPHA_MAX = 60.0
"""Largest log α of a posterior, so that sums of α are finite in float32. The mean uses log α and has no such bound."""

MIN_RELATIVE_SIGMA = 1e-3
"""Smallest σ^p of a dimension, relative to the root mean square of all: a dimension that never varies has an infinite
KL otherwise."""

MIN_TAU_UNIT = 1.0
"""Smallest s, in nats. After a LayerNorm ‖x‖² hardly varies, and a τ_α in units of its spread would change nothing."""


@dataclass(frozen=True, eq=False)
class EmpiricalPrior(TensorRecord):
    """Prior of one attention, measured on the vectors x that it attends to.

    >>> prior = EmpiricalPrior.measure([torch.randn(50, 8) for _ in range(3)], d=4)
    >>> prior.mu.shape
    torch.Size([8])

    Attributes:
        mu: μ^p, the mean of x.
        sigma: σ^p, the standard deviation of each dimension of x.
        log_alpha0: log α₀^p, the mean of ‖x‖²/2√d.
        spread: s, the standard deviation of ‖x‖²/2√d.
    """

    mu: Float[Tensor, " p"]
    sigma: Float[Tensor, " p"]
    log_alpha0: Float[Tensor, ""]
    spread: Float[Tensor, ""]

    @staticmethod
    def measure(batches: Iterable[Float[Tensor, "... p"]], *, d: float) -> "EmpiricalPrior":
        """Measure the prior on batches of vectors, without padding. `d` is the size of a head's key."""
        moments = Moments(d=d)
        for x in batches:
            moments.add(x)
        return moments.prior()


class Moments:
    """Running sums for an `EmpiricalPrior`, in float64."""

    def __init__(self, *, d: float) -> None:
        self.d, self.count = d, 0
        self.sums: list[Tensor] = []

    def add(self, x: Float[Tensor, "*batch p"]) -> None:
        """Add vectors, any number of them."""
        x = widen(x.detach().flatten(0, -2))
        height = _half_square(x, self.d)
        sums = [x.sum(0), x.square().sum(0), height.sum(), height.square().sum()]
        self.sums = [a + b for a, b in zip(self.sums, sums, strict=True)] if self.sums else sums
        self.count += len(x)

    @property
    def varies(self) -> bool:
        """Whether the vectors differ, beyond rounding."""
        mean, square = (each / self.count for each in self.sums[:2])
        return bool((square - mean.square()).sum() > 1e-9 * square.sum())

    def prior(self) -> EmpiricalPrior:
        """Compute the prior of all vectors so far."""
        if self.count < 2:
            raise ValueError(f"EmpiricalPrior: batches have {self.count} vectors, expected at least 2.")
        mean, square, height, height_square = (each / self.count for each in self.sums)
        variance = (square - mean.square()).clamp(min=0)
        floor = MIN_RELATIVE_SIGMA * variance.mean().sqrt().clamp(min=torch.finfo(torch.float32).tiny)
        dtype = torch.get_default_dtype()
        return EmpiricalPrior(
            mu=mean.to(dtype),
            sigma=variance.sqrt().clamp(min=floor).to(dtype),
            log_alpha0=height.to(dtype),
            spread=(height_square - height.square()).clamp(min=0).sqrt().to(dtype),
        )


class IdentityNVIB(nn.Module):
    """An NVIB that starts as the identity, for an attention that exists already.

    α is in units of α₀^p: log α = ‖x‖²/2√d − log α₀^p + τ_α s + w·x + b, where w and b start at 0. This changes nothing
    at test time, where a factor of all α cancels. All tokens share σ = τ_σ σ^p, times a learned factor for each
    dimension, so that attention over the mean costs little more than attention (see `open_nvib.pretrained`).

    >>> x, nvib = torch.randn(2, 5, 8), IdentityNVIB(8, d=8)
    >>> nvib.set_prior(EmpiricalPrior.measure([x], d=8))
    >>> nvib.mean(x).vectors.shape  # the prior's component is last
    torch.Size([2, 6, 8])

    Args:
        p: size of the vectors.
        d: size of a head's key; more generally, 1/scale² of the attention's scale, which is 1 for T5.
        tau_alpha: τ_α; infinity switches the prior's component off.
        tau_sigma: τ_σ; 0 is no noise.
        delta: Δ of the conditional prior, in units of α₀^p.
    """

    prior_mu: Tensor
    prior_log_sigma: Tensor
    log_alpha0: Tensor
    tau_unit: Tensor
    tau_alpha: float
    tau_sigma: float
    delta: float

    def __init__(
        self, p: int, *, d: float, tau_alpha: float = 10.0, tau_sigma: float = 0.0, delta: float = 1.0
    ) -> None:
        super().__init__()
        check("IdentityNVIB", p=(p, int), d=(d, "number; > 0"))
        self.p, self.d = p, float(d)
        self.to_log_alpha = nn.Linear(p, 1)
        self.log_sigma_factor = nn.Parameter(torch.zeros(p))
        self.register_buffer("prior_mu", torch.zeros(p))
        self.register_buffer("prior_log_sigma", torch.zeros(p))
        self.register_buffer("log_alpha0", torch.zeros(()))
        self.register_buffer("tau_unit", torch.ones(()))
        self.set_tau(alpha=tau_alpha, sigma=tau_sigma, delta=delta)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start as the identity."""
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def extra_repr(self) -> str:
        return f"p={self.p}, d={self.d:g}, tau_alpha={self.tau_alpha:g}, tau_sigma={self.tau_sigma:g}"

    def set_prior(self, prior: EmpiricalPrior, *, tau_unit: float = MIN_TAU_UNIT) -> None:
        """Take a measured prior. s, the unit of τ_α, is the prior's spread, but at least `tau_unit`."""
        check("IdentityNVIB", p=(self.p, int), prior=(prior.mu, "p"))
        with torch.no_grad():
            self.prior_mu.copy_(prior.mu)
            self.prior_log_sigma.copy_(prior.sigma.log())
            self.log_alpha0.copy_(prior.log_alpha0)
            self.tau_unit.copy_(prior.spread.clamp(min=tau_unit))

    def set_tau(self, *, alpha: float | None = None, sigma: float | None = None, delta: float | None = None) -> None:
        """Change τ_α, τ_σ or Δ; what is not given stays."""
        domains = {"tau_alpha": "number; finite", "tau_sigma": "number; >= 0", "delta": "number; >= 0"}
        given = {name: x for name, x in zip(domains, (alpha, sigma, delta), strict=True) if x is not None}
        finite = {name: x for name, x in given.items() if (name, x) != ("tau_alpha", math.inf)}
        check("IdentityNVIB", **{name: (x, domains[name], "") for name, x in finite.items()})
        for name, x in given.items():
            setattr(self, name, float(x))

    @property
    def has_prior(self) -> bool:
        """Whether the prior's component takes part: τ_α is finite."""
        return self.tau_alpha < math.inf

    @property
    def shift(self) -> Float[Tensor, ""] | float:
        """τ_α s, by which log α of tokens exceeds that of the prior's component; 0 if that is off."""
        return self.tau_alpha * self.tau_unit if self.has_prior else 0.0

    @property
    def log_sigma(self) -> Float[Tensor, " p"]:
        """Log σ of every token."""
        return (
            self.prior_log_sigma + self.log_sigma_factor + (math.log(self.tau_sigma) if self.tau_sigma else -math.inf)
        )

    def height(self, x: Float[Tensor, "*batch n p"]) -> Float[Tensor, "*batch n"]:
        """Compute ‖x‖²/2√d − log α₀^p of each vector."""
        return _half_square(x, self.d) - self.log_alpha0

    def log_alpha(self, x: Float[Tensor, "*batch n p"]) -> Float[Tensor, "*batch n"]:
        """Compute log α of each vector, relative to log α₀^p."""
        return self.height(x) + self.shift + self.to_log_alpha(x).squeeze(-1)

    def mean(self, x: Float[Tensor, "batch n p"], mask: Bool[Tensor, "batch n"] | None = None) -> GaussianMixture:
        """Compute the mean of the process: a component for each vector, and the prior's, which is last."""
        log_alpha = self.log_alpha(x) if mask is None else self.log_alpha(x).masked_fill(~mask, -torch.inf)
        mu, log_sigma = self._gaussians(x)
        return unchecked(
            GaussianMixture,
            mu=append_component(mu, self.prior_mu),
            log_sigma=append_component(log_sigma, self.prior_log_sigma),
            log_alpha=append_component(log_alpha, log_alpha.new_full((), 0.0 if self.has_prior else -torch.inf)),
        )

    def posterior(self, x: Float[Tensor, "batch n p"], mask: Bool[Tensor, "batch n"] | None = None) -> Posterior:
        """Compute the posterior, of which a sample is drawn in training and whose KL is the regulariser."""
        if not self.has_prior or self.tau_sigma == 0:
            raise ValueError(
                f"IdentityNVIB: tau_alpha is {self.tau_alpha:g} and tau_sigma is {self.tau_sigma:g}, expected a finite "
                f"tau_alpha and a tau_sigma above 0: without them there is no KL."
            )
        mask = x.new_ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
        x = x.masked_fill(~mask.unsqueeze(-1), 0.0)
        log_alpha = self.log_alpha(x).to(at_least_float32(x.dtype)).clamp(max=LOG_ALPHA_MAX)
        alpha = log_alpha.exp().masked_fill(~mask, 0.0)
        prior = unchecked(
            ConditionalBDP,
            mu=self.prior_mu,
            log_sigma=self.prior_log_sigma,
            alpha0_p=torch.ones_like(self.log_alpha0),
            delta=torch.full_like(self.log_alpha0, self.delta),
            keep_share=None,
        )
        return prior.posterior(alpha, *self._gaussians(x), mask)

    def _gaussians(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return μ and log σ of the vectors, (batch, n, p), in float32 or wider."""
        dtype = at_least_float32(x.dtype)
        return x.to(dtype), self.log_sigma.to(dtype).clamp(min=LOG_SIGMA_MIN).expand(x.shape)


def _half_square(x: Tensor, d: float) -> Tensor:
    """Compute ‖x‖²/2√d of each vector."""
    return 0.5 * d**-0.5 * x.to(at_least_float32(x.dtype)).square().sum(-1)
