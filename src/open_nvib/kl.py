"""The two parts of the KL divergence between posterior and prior. In float64 inside, the caller's dtype outside."""

import torch
from jaxtyping import Float, Real
from torch import Tensor

from open_nvib._checks import RELU, can_read, check_axes, check_pseudo_counts
from open_nvib._numeric import at_least_float32, widen

COUNT = "It is a number of vectors."


def gaussian_kl(
    mu: Float[Tensor, "*batch n p"],
    log_sigma: Float[Tensor, "*batch n p"],
    *,
    prior_mu: Float[Tensor, " p"] | float = 0.0,
    prior_log_sigma: Float[Tensor, " p"] | float = 0.0,
) -> Float[Tensor, "*batch n"]:
    """KL(Gᵢ^q ‖ G₀^p) of each component: the inner sum of L_G in `eq:KLloss`, summed over the p dimensions.

    With s = log(σ^q/σ^p), each dimension gives ½((μ^q − μ^p)²/(σ^p)² + e^{2s} − 1 − 2s). `expm1` keeps the digits where
    posterior and prior are close.
    """
    check_axes("gaussian_kl", mu=(mu, "... n p"), log_sigma=(log_sigma, "... n p"))
    for name, value in (("prior_mu", prior_mu), ("prior_log_sigma", prior_log_sigma)):
        if isinstance(value, Tensor) and value.ndim and value.shape != mu.shape[-1:]:
            raise ValueError(
                f"gaussian_kl: {name} has shape {tuple(value.shape)}, wanted one number or (p,) = ({mu.shape[-1]},)."
            )
    prior_log = widen(prior_log_sigma, like=mu)
    shift = (widen(mu) - widen(prior_mu, like=mu)) * (-prior_log).exp()
    twice_s = 2 * (widen(log_sigma) - prior_log)
    per_dimension = shift.square() + torch.expm1(twice_s) - twice_s
    return 0.5 * per_dimension.sum(-1).to(at_least_float32(mu.dtype))


def dirichlet_kl(
    alpha0_q: Float[Tensor, "*#batch"] | float,
    alpha0_p: Float[Tensor, "*#batch"] | float,
    kappa0: Real[Tensor, "*#batch"] | float,
) -> Float[Tensor, "*batch"]:
    """L_D with expected κ, `eq:KLloss-kappa`: the KL between two symmetric Dirichlets of κ₀ categories.

    Substituting κᵢ = κ₀ αᵢ/α₀ makes every αᵢ/κᵢ in `eq:KLloss` equal to α₀/κ₀, so it is `dirichlet_kl_exact` of one
    component that holds all of the κ₀ vectors.
    """
    where = "dirichlet_kl"
    like = next((x for x in (alpha0_q, alpha0_p, kappa0) if isinstance(x, Tensor)), None)
    alpha0_q = _pseudo_counts(where, "alpha0_q", alpha0_q, like, positive=True)
    alpha0_p = _pseudo_counts(where, "alpha0_p", alpha0_p, like, positive=True)
    counts = _pseudo_counts(where, "kappa0", kappa0, like, positive=True, fix=COUNT)
    _check_broadcast(where, alpha0_q=alpha0_q, alpha0_p=alpha0_p, kappa0=counts)
    kl = bounded_dp_kl(alpha0_q.unsqueeze(-1), alpha0_p, counts.unsqueeze(-1))
    return kl.to(at_least_float32(alpha0_q.dtype))


def dirichlet_kl_exact(
    alpha: Float[Tensor, "*batch n"],
    alpha0_p: Float[Tensor, "*#batch"] | float,
    kappa: Real[Tensor, "*#batch #n"] | float = 1,
) -> Float[Tensor, "*batch"]:
    """L_D of `eq:KLloss`, component i holding κᵢ vectors; its limit where αᵢ = 0. Padding is αᵢ = 0 with κᵢ = 0."""
    where = "dirichlet_kl_exact"
    check_axes(where, alpha=(alpha, "... n"))
    check_pseudo_counts(where, "alpha", alpha)
    alpha0_p = _pseudo_counts(where, "alpha0_p", alpha0_p, alpha, positive=True)
    counts = _pseudo_counts(where, "kappa", kappa, alpha, fix=COUNT)
    check_pseudo_counts(where, "the sums over the last axis of alpha", alpha.sum(-1), positive=True)
    _check_broadcast(where, alpha=alpha, kappa=counts)
    _check_broadcast(where, alpha0_q=alpha.sum(-1), alpha0_p=alpha0_p)
    if can_read(alpha) and ((counts == 0) & (alpha > 0)).any():
        raise ValueError(f"{where}: kappa is 0 where alpha is above 0. A component with a pseudo-count has a vector.")
    return bounded_dp_kl(alpha, alpha0_p, counts).to(at_least_float32(alpha.dtype))


def bounded_dp_kl(alpha: Tensor, alpha0_p: Tensor, kappa: Tensor) -> Tensor:
    """L_D of `eq:KLloss` in float64 and unchecked.

    As printed it has poles at αᵢ = 0 that cancel. With aᵢ = αᵢ/κᵢ and x = α₀^p/α₀^q, the recurrences
    ψ(a) = ψ(1 + a) − 1/a and log Γ(a) = log Γ(1 + a) − log a take them out by hand: a component contributes
    κᵢ [(1 − x)(aᵢ ψ(1 + aᵢ) − 1) + log Γ(1 + x aᵢ) − log Γ(1 + aᵢ) − log x], smooth down to the limit
    κᵢ (x − 1 − log x) at αᵢ = 0.
    """
    alpha, alpha0_p, kappa = widen(alpha), widen(alpha0_p), widen(kappa)
    alpha0_q = alpha.sum(-1)
    x = (alpha0_p / alpha0_q).unsqueeze(-1)
    a = alpha / torch.where(kappa == 0, 1.0, kappa)
    component = (1 - x) * (a * torch.digamma(1 + a) - 1) + torch.lgamma(1 + x * a) - torch.lgamma(1 + a) - x.log()
    whole = torch.lgamma(alpha0_q) - torch.lgamma(alpha0_p) - (alpha0_q - alpha0_p) * torch.digamma(alpha0_q)
    return whole + (kappa * component).sum(-1)


def _pseudo_counts(
    where: str, name: str, value: Tensor | float, like: Tensor | None, *, positive: bool = False, fix: str = RELU
) -> Tensor:
    """A number in float64, on the device of `like`; a tensor as it is, or floating."""
    if not isinstance(value, Tensor):
        tensor = widen(value, like=like)
    else:
        tensor = value if value.is_floating_point() else value.to(torch.float32)
    check_pseudo_counts(where, name, tensor, positive=positive, fix=fix)
    return tensor


def _check_broadcast(where: str, **tensors: Tensor) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    try:
        torch.broadcast_shapes(*shapes.values())
    except RuntimeError:
        got = " and ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(
            f"{where}: the shapes of {got} do not broadcast. Give one value each or one for all."
        ) from None
