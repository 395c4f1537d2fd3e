"""Reparameterised Gamma and Dirichlet samples, as logarithms.

Two methods by name. `paper` is the paper's blend of two approximations to the inverse CDF (section "Sampling from a
Dirichlet Distribution"), differentiable to any order. `implicit` is exact, with torch's implicit gradient.

All of it runs in float64: a pseudo-count of 1e-30 has log γ near -1e30, which must be normalised before it is rounded.
"""

from collections.abc import Callable
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from open_nvib._checks import check_choice, check_floating, check_pseudo_counts
from open_nvib._numeric import at_least_float32, uniform_like, widen

Method = Literal["paper", "implicit"]
METHODS: tuple[str, ...] = get_args(Method)

SWITCH = 0.6363
"""The α at which `paper` goes from one approximation to the other, as printed. `tools/figures_of_docs/gamma.py`
computes where the two are equally far from the true inverse CDF."""

GAUSSIAN_FLOOR = 1e-6
"""Smallest γ of the Gaussian approximation, which can fall below zero and "will need to be truncated to a value greater
than zero". It also bounds the gradient of log γ, which is 1/γ."""

GRADIENT_FLOOR = 1e-12
"""Below this α the gradient of log γ, which is -log(u)/α², is taken as zero: γ is zero in any arithmetic there (log γ
is below -1e10 but for one draw in a hundred), and at α = 1e-30 the gradient would overflow float32."""


def sample_log_gamma(
    alpha: Float[Tensor, "*shape"], *, method: Method = "paper", generator: torch.Generator | None = None
) -> Float[Tensor, "*shape"]:
    """log γ with γ ~ Gamma(α, 1), one for each entry of `alpha`; -inf where α = 0. At least float32."""
    _check("sample_log_gamma", alpha, method)
    return log_gamma(alpha, method=method, generator=generator).to(at_least_float32(alpha.dtype))


def sample_log_dirichlet(
    alpha: Float[Tensor, "*batch n"], *, method: Method = "paper", generator: torch.Generator | None = None
) -> Float[Tensor, "*batch n"]:
    """log π with π ~ Dir(α), normalised over the last axis: independent Gammas over their sum. -inf where α = 0."""
    _check("sample_log_dirichlet", alpha, method)
    if alpha.ndim == 0:
        raise ValueError("sample_log_dirichlet: alpha has shape (), wanted (..., n). Add the axis of the categories.")
    check_pseudo_counts("sample_log_dirichlet", "the sums over the last axis of alpha", alpha.sum(-1), positive=True)
    return log_dirichlet(alpha, method=method, generator=generator).to(at_least_float32(alpha.dtype))


def log_dirichlet(alpha: Tensor, *, method: str, generator: torch.Generator | None) -> Tensor:
    """`sample_log_dirichlet` in float64 and unchecked."""
    log_gammas = log_gamma(alpha, method=method, generator=generator)
    return log_gammas - log_gammas.logsumexp(-1, keepdim=True)


def log_gamma(alpha: Tensor, *, method: str, generator: torch.Generator | None) -> Tensor:
    """`sample_log_gamma` in float64 and unchecked."""
    wide = widen(alpha)
    gone = wide == 0
    safe = torch.where(gone, 1.0, wide)  # masked before 1/α and lgamma see it
    quarter_ulp = torch.finfo(wide.dtype).eps / 4
    u = uniform_like(wide, generator).clamp(min=quarter_ulp)
    drawn = paper_log_quantile(safe, u) if method == "paper" else _boosted(safe, u, generator)
    return torch.where(gone, -torch.inf, drawn)


def paper_log_quantile(alpha: Float[Tensor, "*shape"], u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The paper's approximate inverse CDF of Gamma(α, 1), α > 0, at u in (0, 1), as a logarithm."""
    return torch.where(alpha < SWITCH, small_alpha_log_quantile(alpha, u), gaussian_log_quantile(alpha, u))


def small_alpha_log_quantile(alpha: Float[Tensor, "*shape"], u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """γ ≈ (u α Γ(α))^(1/α): the leading term of the CDF at 0, inverted. With α Γ(α) = Γ(1 + α)."""
    log_u = u.log()
    return _with_bounded_gradient(lambda a: (torch.lgamma(1 + a) + log_u) / a, alpha)


def gaussian_log_quantile(alpha: Float[Tensor, "*shape"], u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """`gaussian_quantile`, truncated above zero."""
    return gaussian_quantile(alpha, u).clamp(min=GAUSSIAN_FLOOR).log()


def gaussian_quantile(alpha: Float[Tensor, "*shape"], u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """γ ≈ α + √α ε with ε = Φ⁻¹(u), which can be negative."""
    return alpha + alpha.sqrt() * torch.special.ndtri(u)


def _boosted(alpha: Tensor, u: Tensor, generator: torch.Generator | None) -> Tensor:
    """Exact: γ = γ′ u^(1/α) with γ′ ~ Gamma(α + 1), which never underflows as Gamma(α) itself would at small α."""
    log_u = u.log()
    larger = torch._standard_gamma(alpha + 1, generator=generator).log()  # pyright: ignore[reportPrivateImportUsage]
    return larger + _with_bounded_gradient(lambda a: log_u / a, alpha)


def _with_bounded_gradient(function: Callable[[Tensor], Tensor], alpha: Tensor) -> Tensor:
    """function(α), with the gradient cut off below GRADIENT_FLOOR and the value left as it is."""
    floored = alpha.clamp(min=GRADIENT_FLOOR)
    at_floor = function(floored)
    return at_floor + (function(alpha) - at_floor).detach()


def _check(where: str, alpha: Tensor, method: str) -> None:
    check_choice(where, "method", method, METHODS)
    check_floating(where, "alpha", alpha)
    check_pseudo_counts(where, "alpha", alpha)
