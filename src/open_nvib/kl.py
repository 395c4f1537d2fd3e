"""The two parts of the KL divergence between posterior and prior, in float64 inside and the caller's dtype outside."""

import torch
from jaxtyping import Float, Real
from torch import Tensor

from open_nvib._checks import check
from open_nvib._numeric import at_least_float32, can_read, widen


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
