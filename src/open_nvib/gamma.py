"""Reparameterised Gamma and Dirichlet samples, as logarithms.

There are two methods. `paper` is the paper's blend of two approximations to the inverse CDF (section "Sampling from a
Dirichlet Distribution"), differentiable to any order. `implicit` is exact, with torch's implicit gradient.

Both run in float64: a pseudo-count of 1e-30 has log γ near -1e30, which must be normalised before it is rounded.
"""

from collections.abc import Callable
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from open_nvib._checks import check
from open_nvib._numeric import at_least_float32, uniform_like, widen

Method = Literal["paper", "implicit"]
METHODS: tuple[str, ...] = get_args(Method)

SWITCH = 0.6363
"""The α at which `paper` changes from one approximation to the other, as printed. `tools/figures_of_docs/gamma.py`
computes where they are equally far from the true inverse CDF."""

GAUSSIAN_FLOOR = 1e-6
"""Smallest γ of the Gaussian approximation, which can be negative and "will need to be truncated to a value greater
than zero". It also bounds the gradient of log γ, which is 1/γ."""

GRADIENT_FLOOR = 1e-12
"""Below this α the gradient of log γ, which is -log(u)/α², is set to zero: γ is zero in any arithmetic there (99 of 100
draws have log γ below -1e10), and at α = 1e-30 the gradient would overflow float32."""


def sample_log_gamma(
    alpha: Float[Tensor, "*shape"], *, method: Method = "paper", generator: torch.Generator | None = None
) -> Float[Tensor, "*shape"]:
    """Draw log γ with γ ~ Gamma(α, 1) for each entry of `alpha`; -inf where α = 0. In float32 or wider."""
    check("sample_log_gamma", alpha=(alpha, "...; >= 0"), method=(method, METHODS))
    return log_gamma(alpha, method=method, generator=generator).to(at_least_float32(alpha.dtype))


def sample_log_dirichlet(
    alpha: Float[Tensor, "*batch n"], *, method: Method = "paper", generator: torch.Generator | None = None
) -> Float[Tensor, "*batch n"]:
    """Draw log π with π ~ Dir(α) over the last axis: independent Gammas divided by their sum. -inf where α = 0."""
    check("sample_log_dirichlet", alpha=(alpha, "... n; >= 0, some > 0"), method=(method, METHODS))
    return log_dirichlet(alpha, method=method, generator=generator).to(at_least_float32(alpha.dtype))


def log_dirichlet(alpha: Tensor, *, method: str, generator: torch.Generator | None) -> Tensor:
    """Draw as `sample_log_dirichlet` does, in float64 and without checks."""
    log_gammas = log_gamma(alpha, method=method, generator=generator)
    return log_gammas - log_gammas.logsumexp(-1, keepdim=True)


def log_gamma(alpha: Tensor, *, method: str, generator: torch.Generator | None) -> Tensor:
    """Draw as `sample_log_gamma` does, in float64 and without checks."""
    wide = widen(alpha)
    gone = wide == 0
    safe = torch.where(gone, 1.0, wide)  # masked before 1/α and lgamma
    quarter_ulp = torch.finfo(wide.dtype).eps / 4
    u = uniform_like(wide, generator).clamp(min=quarter_ulp)
    drawn = paper_log_quantile(safe, u) if method == "paper" else _boosted(safe, u, generator)
    return torch.where(gone, -torch.inf, drawn)


def paper_log_quantile(alpha: Float[Tensor, "*shape"], u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Compute the logarithm of the paper's approximate inverse CDF of Gamma(α, 1), α > 0, at u in (0, 1)."""
    return torch.where(alpha < SWITCH, small_alpha_log_quantile(alpha, u), gaussian_log_quantile(alpha, u))


def small_alpha_log_quantile(alpha: Float[Tensor, "*shape"], u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Compute log γ with γ ≈ (u α Γ(α))^(1/α), the inverse of the CDF's leading term at 0. α Γ(α) = Γ(1 + α)."""
    log_u = u.log()
    return _with_bounded_gradient(lambda a: (torch.lgamma(1 + a) + log_u) / a, alpha)


def gaussian_log_quantile(alpha: Float[Tensor, "*shape"], u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Compute log γ of `gaussian_quantile`, truncated at GAUSSIAN_FLOOR."""
    return gaussian_quantile(alpha, u).clamp(min=GAUSSIAN_FLOOR).log()


def gaussian_quantile(alpha: Float[Tensor, "*shape"], u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Compute γ ≈ α + √α ε with ε = Φ⁻¹(u), which can be negative."""
    return alpha + alpha.sqrt() * torch.special.ndtri(u)


def _boosted(alpha: Tensor, u: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw exactly: γ = γ′ u^(1/α) with γ′ ~ Gamma(α + 1), whose logarithm does not underflow at small α."""
    log_u = u.log()
    larger = torch._standard_gamma(alpha + 1, generator=generator).log()  # pyright: ignore[reportPrivateImportUsage]
    return larger + _with_bounded_gradient(lambda a: log_u / a, alpha)


def _with_bounded_gradient(function: Callable[[Tensor], Tensor], alpha: Tensor) -> Tensor:
    """Compute function(α), with a gradient of zero below GRADIENT_FLOOR."""
    floored = alpha.clamp(min=GRADIENT_FLOOR)
    at_floor = function(floored)
    return at_floor + (function(alpha) - at_floor).detach()
