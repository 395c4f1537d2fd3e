"""NVIB: hidden states in, a Dirichlet-process posterior out."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from open_nvib._checks import can_read, check_choice, check_count, check_floating, check_mask, check_same_dtype
from open_nvib._numeric import at_least_float32, widen
from open_nvib._records import trusted
from open_nvib.merging import gather, homes
from open_nvib.process import REST, ConditionalBDP, Posterior

LOG_SIGMA_MIN, LOG_SIGMA_MAX = -40.0, 20.0
"""Where log σ is cut off: σ² and what is made of it stay finite in float32, and no trained encoder comes near."""

ALPHA_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "softplus": F.softplus}
ALPHA_UNITS = ("one", "delta")
INITIAL_ALPHA = 1.0
INITIAL_LOG_SIGMA = -1.0
INITIAL_WEIGHT_STD = 0.02


class NVIB(nn.Module):
    """Nonparametric variational information bottleneck, to put between an encoder and anything that attends to it.

    Three linear projections of each hidden state give the pseudo-count α ≥ 0, the mean μ and log σ of its component;
    the prior's component follows as the last (section "The Transformer Encoder").

    Args:
        p: size of the latent vectors.
        input_size: size of the hidden states; `p` if not given.
        alpha0_p: α₀^p, the concentration of the prior.
        delta: Δ, the pseudo-count that the conditional prior expects of each token; 0 is the plain prior.
        alpha_activation: "relu" (the paper's: α reaches exactly 0) or "softplus" (smooth, α stays above 0).
        alpha_unit: what a count of 1 of the projection is: "one" (the paper's), or "delta", so that α follows Δ.
        alpha_contrast: by how much tokens may differ in α, from 0 (all have the 1 of the start, whatever was learned)
            to 1. None is the paper's, which is 1 and does not change.
        keep_share: s, how many vectors there are for each token. Neighbouring tokens share one until it holds Δ/s, what
            the prior expects of 1/s tokens (`open_nvib.merging`), so α should be about Δ: see `alpha_unit`. None is
            the paper's: each token has its own. With 1 they still share where α is below Δ.
        prior_mu: mean of the Gaussian G₀^p, as one number or one for each dimension.
        prior_sigma: its standard deviation, likewise.
    """

    prior_mu: Tensor
    prior_log_sigma: Tensor
    alpha0_p: Tensor
    delta: Tensor
    alpha_contrast: Tensor | None
    keep_share: Tensor | None

    def __init__(
        self,
        p: int,
        *,
        input_size: int | None = None,
        alpha0_p: float = 1.0,
        delta: float = 1.0,
        alpha_activation: str = "relu",
        alpha_unit: str = "one",
        alpha_contrast: float | None = None,
        keep_share: float | None = None,
        prior_mu: float | Float[Tensor, " p"] = 0.0,
        prior_sigma: float | Float[Tensor, " p"] = 1.0,
    ) -> None:
        super().__init__()
        check_count("NVIB", "p", p)
        self.p, self.input_size = p, p if input_size is None else input_size
        check_count("NVIB", "input_size", self.input_size)
        check_choice("NVIB", "alpha_activation", alpha_activation, tuple(ALPHA_ACTIVATIONS))
        check_choice("NVIB", "alpha_unit", alpha_unit, ALPHA_UNITS)
        self.alpha_activation, self.alpha_unit = alpha_activation, alpha_unit
        self.to_alpha = nn.Linear(self.input_size, 1)
        self.to_mu = nn.Linear(self.input_size, p)
        self.to_log_sigma = nn.Linear(self.input_size, p)
        self.register_buffer("prior_mu", _vector("prior_mu", prior_mu, p))
        self.register_buffer("prior_log_sigma", _vector("prior_sigma", prior_sigma, p, positive=True).log())
        self.register_buffer("alpha0_p", torch.tensor(_number("alpha0_p", alpha0_p, positive=True)))
        contrast = None if alpha_contrast is None else torch.tensor(_share("alpha_contrast", alpha_contrast, zero=True))
        self.register_buffer("alpha_contrast", contrast)
        share = None if keep_share is None else torch.tensor(_share("keep_share", keep_share))
        self.register_buffer("keep_share", share)
        self.register_buffer("delta", torch.tensor(self._delta(delta)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start with every token kept at a count of about 1, and with less noise than the prior's."""
        for linear, bias in ((self.to_alpha, self._start), (self.to_log_sigma, INITIAL_LOG_SIGMA)):
            nn.init.normal_(linear.weight, std=INITIAL_WEIGHT_STD)
            nn.init.constant_(linear.bias, bias)
        self.to_mu.reset_parameters()

    @property
    def _start(self) -> float:
        """What the activation makes INITIAL_ALPHA of."""
        return math.log(math.expm1(INITIAL_ALPHA)) if self.alpha_activation == "softplus" else INITIAL_ALPHA

    def extra_repr(self) -> str:
        kinds = f"alpha_activation={self.alpha_activation!r}, alpha_unit={self.alpha_unit!r}"
        return f"p={self.p}, input_size={self.input_size}, {kinds}, gathers={self.keep_share is not None}"

    def set_delta(self, delta: float) -> None:
        """Change Δ, as a schedule does while training."""
        self.delta.fill_(self._delta(delta))

    def _delta(self, delta: float) -> float:
        if self.keep_share is not None and delta == 0:
            raise ValueError("NVIB: delta is 0, wanted more with keep_share: vectors hold Δ/keep_share. Raise delta.")
        return _number("delta", delta, positive=self.keep_share is not None)

    def set_keep_share(self, share: float) -> None:
        """Change the share of vectors of a layer that gathers, as a schedule does while training."""
        if self.keep_share is None:
            raise ValueError("NVIB: this layer keeps a vector for each token. Build it with keep_share to change it.")
        self.keep_share.fill_(_share("keep_share", share))

    def set_alpha_contrast(self, contrast: float) -> None:
        """Change by how much tokens may differ in α, as a schedule does while training."""
        if self.alpha_contrast is None:
            raise ValueError(
                "NVIB: this layer has the contrast of the paper. Build it with alpha_contrast to change it."
            )
        self.alpha_contrast.fill_(_share("alpha_contrast", contrast, zero=True))

    @property
    def per_vector(self) -> Float[Tensor, ""]:
        """Δ/s, the pseudo-count that a shared vector holds; in float64, as the prior counts its vectors."""
        if self.keep_share is None:
            raise ValueError("NVIB: this layer keeps a vector for each token. Build it with keep_share to share them.")
        return widen(self.delta) / widen(self.keep_share)

    @property
    def prior(self) -> ConditionalBDP:
        """The conditional prior as it is now; a later `set_delta` or `set_keep_share` does not change it."""
        return trusted(
            ConditionalBDP,
            mu=self.prior_mu,
            log_sigma=self.prior_log_sigma,
            alpha0_p=self.alpha0_p,
            delta=self.delta.clone(),
            keep_share=None if self.keep_share is None else self.keep_share.clone(),
        )

    def forward(self, hidden: Float[Tensor, "batch n size"], mask: Bool[Tensor, "batch n"] | None = None) -> Posterior:
        """Posterior of n + 1 components. `mask` is True where a token is real; without it, all are."""
        mask = self._check(hidden, mask)
        hidden = hidden.masked_fill(~mask.unsqueeze(-1), 0.0)  # whatever stands on padding, NaN too, goes no further
        dtype = at_least_float32(hidden.dtype)
        alpha = self._counts(hidden, mask)
        if self.keep_share is not None:
            gathered = gather(alpha, hidden, per_component=self.per_vector, rest=REST)
            alpha, hidden = gathered.alpha, gathered.hidden
        log_sigma = self.to_log_sigma(hidden).to(dtype).clamp(LOG_SIGMA_MIN, LOG_SIGMA_MAX)
        batch = len(hidden)

        def with_prior(tokens: Tensor, prior: Tensor) -> Tensor:
            last = prior.to(tokens.dtype).expand(batch, 1, *tokens.shape[2:])
            return torch.cat([tokens, last], 1)

        return trusted(
            Posterior,
            alpha=with_prior(alpha, self.alpha0_p),
            mu=with_prior(self.to_mu(hidden).to(dtype), self.prior_mu),
            log_sigma=with_prior(log_sigma, self.prior_log_sigma),
            mask=F.pad(mask, (0, 1), value=True),
            prior=self.prior,
        )

    def pseudo_counts(
        self, hidden: Float[Tensor, "batch n size"], mask: Bool[Tensor, "batch n"] | None = None
    ) -> Float[Tensor, "batch n"]:
        """α of each token, before neighbours are gathered: with `keep_share` the posterior has that of components."""
        mask = self._check(hidden, mask)
        return self._counts(hidden.masked_fill(~mask.unsqueeze(-1), 0.0), mask)

    def homes(
        self, hidden: Float[Tensor, "batch n size"], mask: Bool[Tensor, "batch n"] | None = None
    ) -> Int[Tensor, "batch n"]:
        """For each token, the place in the posterior of the vector that most of it is in; -1 if it is dropped."""
        alpha = self.pseudo_counts(hidden, mask)
        if self.keep_share is not None:
            return homes(alpha, per_component=self.per_vector, rest=REST)
        places = torch.arange(alpha.shape[-1], device=alpha.device).expand_as(alpha)
        return torch.where(alpha > 0, places, -1)

    def _counts(self, hidden: Tensor, mask: Tensor) -> Tensor:
        scores = self.to_alpha(hidden).squeeze(-1).to(at_least_float32(hidden.dtype))
        if self.alpha_contrast is not None:
            scores = self._start + self.alpha_contrast * (scores - self._start)
        alpha = ALPHA_ACTIVATIONS[self.alpha_activation](scores)
        return (alpha * self.delta if self.alpha_unit == "delta" else alpha).masked_fill(~mask, 0.0)

    def _check(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        check_floating("NVIB", "hidden", hidden)
        shape = tuple(hidden.shape)
        if len(shape) != 3 or shape[-1] != self.input_size:
            raise ValueError(
                f"NVIB: hidden has shape {shape}, wanted (batch, n, size) with size = {self.input_size}. "
                f"Build the layer with input_size of the encoder."
            )
        check_same_dtype("NVIB", "hidden", hidden, self.to_mu.weight)
        if mask is None:
            return torch.ones(shape[:2], dtype=torch.bool, device=hidden.device)
        check_mask("NVIB", mask, hidden)
        return mask


def _number(name: str, value: float, *, positive: bool = False) -> float:
    wanted = f"a number {'above' if positive else 'of at least'} 0 that float32 can hold"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"NVIB: {name} is {value!r}, wanted {wanted}.")
    tiny, huge = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
    if not ((tiny if positive else 0) <= value <= huge):
        raise ValueError(f"NVIB: {name} is {value}, wanted {wanted}.")
    return float(value)


def _share(name: str, share: float, *, zero: bool = False) -> float:
    wanted = f"a number {'from' if zero else 'above'} 0 {'' if zero else 'and '}{'to' if zero else 'at most'} 1"
    if isinstance(share, bool) or not isinstance(share, (int, float)):
        raise TypeError(f"NVIB: {name} is {share!r}, wanted {wanted}.")
    if not (torch.finfo(torch.float32).tiny <= share <= 1 or (zero and share == 0)):
        raise ValueError(f"NVIB: {name} is {share}, wanted {wanted}.")
    return float(share)


def _vector(name: str, value: float | Tensor, p: int, *, positive: bool = False) -> Tensor:
    vector = torch.as_tensor(value, dtype=torch.get_default_dtype()).detach().clone()
    if vector.ndim == 0:
        vector = vector.expand(p).clone()
    if vector.shape != (p,):
        raise ValueError(f"NVIB: {name} has shape {tuple(vector.shape)}, wanted one number or ({p},).")
    if can_read(vector) and not (vector.isfinite().all() and (not positive or (vector > 0).all())):
        raise ValueError(f"NVIB: {name} must be finite{' and above 0' if positive else ''} in every dimension.")
    return vector
