"""Gamma, Dirichlet and Gaussian: reparameterised samples, as logarithms, and the two parts of the KL divergence.

There are two ways to draw a Gamma. `paper` is the paper's blend of two approximations to the inverse CDF (section
"Sampling from a Dirichlet Distribution"), differentiable to any order. `implicit` is exact, with torch's implicit
gradient.

All runs in float64, and results are in the caller's dtype: a pseudo-count of 1e-30 has log γ near -1e30, which must be
normalised before it is rounded.
"""

from collections.abc import Callable
from typing import Literal, get_args

import torch
from jaxtyping import Float, Real
from torch import Tensor

from open_nvib._tensors import Noise, at_least_float32, can_read, check, uniform_like, widen

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
    alpha: Float[Tensor, "*shape"], *, method: Method = "paper", generator: Noise = None
) -> Float[Tensor, "*shape"]:
    """Draw log γ with γ ~ Gamma(α, 1) for each entry of `alpha`; -inf where α = 0. In float32 or wider."""
    check("sample_log_gamma", alpha=(alpha, "...; >= 0"), method=(method, METHODS))
    return log_gamma(alpha, method=method, generator=generator).to(at_least_float32(alpha.dtype))


def sample_log_dirichlet(
    alpha: Float[Tensor, "*batch n"], *, method: Method = "paper", generator: Noise = None
) -> Float[Tensor, "*batch n"]:
    """Draw log π with π ~ Dir(α) over the last axis: independent Gammas divided by their sum. -inf where α = 0."""
    check("sample_log_dirichlet", alpha=(alpha, "... n; >= 0, some > 0"), method=(method, METHODS))
    return log_dirichlet(alpha, method=method, generator=generator).to(at_least_float32(alpha.dtype))


def log_dirichlet(alpha: Tensor, *, method: str, generator: Noise) -> Tensor:
    """Draw as `sample_log_dirichlet` does, in float64 and without checks."""
    log_gammas = log_gamma(alpha, method=method, generator=generator)
    return log_gammas - log_gammas.logsumexp(-1, keepdim=True)


def log_gamma(alpha: Tensor, *, method: str, generator: Noise) -> Tensor:
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


def _boosted(alpha: Tensor, u: Tensor, generator: Noise) -> Tensor:
    """Draw exactly: γ = γ′ u^(1/α) with γ′ ~ Gamma(α + 1), whose logarithm does not underflow at small α."""
    log_u = u.log()
    larger = torch._standard_gamma(alpha + 1, generator=generator).log()  # pyright: ignore[reportPrivateImportUsage]
    return larger + _with_bounded_gradient(lambda a: log_u / a, alpha)


def _with_bounded_gradient(function: Callable[[Tensor], Tensor], alpha: Tensor) -> Tensor:
    """Compute function(α), with a gradient of zero below GRADIENT_FLOOR."""
    floored = alpha.clamp(min=GRADIENT_FLOOR)
    at_floor = function(floored)
    return at_floor + (function(alpha) - at_floor).detach()


# The KL divergence between posterior and prior


def gaussian_kl(
    mu: Float[Tensor, "*#batch n p"],
    log_sigma: Float[Tensor, "*#batch n p"],
    *,
    prior_mu: Float[Tensor, " p"] | float = 0.0,
    prior_log_sigma: Float[Tensor, " p"] | float = 0.0,
) -> Float[Tensor, "*batch n"]:
    """Compute KL(Gᵢ^q ‖ G₀^p) of each component: the inner sum of L_G in `eq:KLloss`, over the p dimensions.

    With s = log(σ^q/σ^p), each dimension gives ½((μ^q − μ^p)²/(σ^p)² + e^{2s} − 1 − 2s). `expm1` keeps the digits if
    posterior and prior are close.
    """
    prior = {"prior_mu": (prior_mu, "number p"), "prior_log_sigma": (prior_log_sigma, "number p")}
    check("gaussian_kl", mu=(mu, "... n p"), log_sigma=(log_sigma, "... n p"), **prior)
    prior_log = widen(prior_log_sigma, like=mu)
    shift = (widen(mu) - widen(prior_mu, like=mu)) * (-prior_log).exp()
    twice_s = 2 * (widen(log_sigma) - prior_log)
    per_dimension = shift.square() + torch.expm1(twice_s) - twice_s
    return 0.5 * per_dimension.sum(-1).to(at_least_float32(mu.dtype))


def dirichlet_kl(
    alpha0_q: Real[Tensor, "*#batch"] | float,
    alpha0_p: Real[Tensor, "*#batch"] | float,
    kappa0: Real[Tensor, "*#batch"] | float,
) -> Float[Tensor, "*batch"]:
    """Compute L_D with expected κ, `eq:KLloss-kappa`: the KL between two symmetric Dirichlets of κ₀ categories.

    Substituting κᵢ = κ₀ αᵢ/α₀ makes every αᵢ/κᵢ in `eq:KLloss` equal to α₀/κ₀, so this is `dirichlet_kl_exact` of one
    component that holds all of the κ₀ vectors.
    """
    values = {"alpha0_q": alpha0_q, "alpha0_p": alpha0_p, "kappa0": kappa0}
    check("dirichlet_kl", **{name: (value, "number ...; > 0") for name, value in values.items()})
    like = next((x for x in values.values() if isinstance(x, Tensor)), None)
    alpha0_q, alpha0_p, kappa0 = (x if isinstance(x, Tensor) else widen(x, like=like) for x in values.values())
    kl = bounded_dp_kl(alpha0_q.unsqueeze(-1), alpha0_p, kappa0.unsqueeze(-1))
    return kl.to(at_least_float32(alpha0_q.dtype))


def dirichlet_kl_exact(
    alpha: Float[Tensor, "*#batch n"],
    alpha0_p: Real[Tensor, "*#batch"] | float,
    kappa: Real[Tensor, "*#batch #n"] | float = 1,
) -> Float[Tensor, "*batch"]:
    """Compute L_D of `eq:KLloss` with κᵢ vectors in component i, or its limit if αᵢ = 0. Padding has αᵢ = κᵢ = 0."""
    numbers = {"alpha0_p": (alpha0_p, "number ...; > 0"), "kappa": (kappa, "number ... #n; >= 0", "Count vectors.")}
    check("dirichlet_kl_exact", alpha=(alpha, "... n; >= 0, some > 0"), **numbers)
    kappa, alpha0_p = widen(kappa, like=alpha), widen(alpha0_p, like=alpha)
    if can_read(alpha) and ((kappa == 0) & (alpha > 0)).any():
        raise ValueError("dirichlet_kl_exact: kappa is 0 where alpha is above 0, expected a vector in each component.")
    return bounded_dp_kl(alpha, alpha0_p, kappa).to(at_least_float32(alpha.dtype))


def bounded_dp_kl(alpha: Tensor, alpha0_p: Tensor, kappa: Tensor) -> Tensor:
    """Compute L_D of `eq:KLloss` in float64 and without checks.

    The printed equation has poles at αᵢ = 0 that cancel. With aᵢ = αᵢ/κᵢ and x = α₀^p/α₀^q, the recurrences
    ψ(a) = ψ(1 + a) − 1/a and log Γ(a) = log Γ(1 + a) − log a remove them: a component contributes
    κᵢ [(1 − x)(aᵢ ψ(1 + aᵢ) − 1) + log Γ(1 + x aᵢ) − log Γ(1 + aᵢ) − log x], smooth down to its limit
    κᵢ (x − 1 − log x) at αᵢ = 0.
    """
    alpha, alpha0_p, kappa = widen(alpha), widen(alpha0_p), widen(kappa)
    alpha0_q = alpha.sum(-1)
    x = (alpha0_p / alpha0_q).unsqueeze(-1)
    a = alpha / torch.where(kappa == 0, 1.0, kappa)
    component = (1 - x) * (a * torch.digamma(1 + a) - 1) + torch.lgamma(1 + x * a) - torch.lgamma(1 + a) - x.log()
    whole = torch.lgamma(alpha0_q) - torch.lgamma(alpha0_p) - (alpha0_q - alpha0_p) * torch.digamma(alpha0_q)
    return whole + (kappa * component).sum(-1)
