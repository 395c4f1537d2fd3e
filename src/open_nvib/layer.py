"""NVIB: hidden states in, a Dirichlet-process posterior out."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from open_nvib._checks import check
from open_nvib._numeric import at_least_float32
from open_nvib._records import unchecked
from open_nvib.merging import Cuts, PerText, component_of_token, find_cuts, merge_tokens
from open_nvib.process import MAX_JOINED_REMAINDER, ConditionalBDP, Posterior

LOG_SIGMA_MIN, LOG_SIGMA_MAX = -40.0, 20.0
"""Range of log σ, in which σ² and its reciprocal are finite in float32. Trained encoders stay far from both ends."""

ALPHA_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "softplus": F.softplus}
ALPHA_UNITS = ("one", "delta")
INITIAL_ALPHA = 1.0
INITIAL_LOG_SIGMA = -1.0
INITIAL_WEIGHT_STD = 0.02


class NVIB(nn.Module):
    """Nonparametric variational information bottleneck, between an encoder and the attention that reads it.

    Three linear projections of each hidden state give the pseudo-count α ≥ 0, the mean μ and log σ of its component.
    The last component is the prior's (section "The Transformer Encoder").

    Args:
        p: size of the latent vectors.
        input_size: size of the hidden states; default `p`.
        alpha0_p: α₀^p, the concentration of the prior.
        delta: Δ, the pseudo-count that the conditional prior expects of each token; 0 is the plain prior.
        alpha_activation: "relu" (the paper's: α reaches exactly 0) or "softplus" (smooth, α stays above 0).
        alpha_unit: unit of the projection to α: "one" (the paper's), or "delta", which multiplies it by Δ.
        alpha_contrast: how much tokens may differ in α, from 0 (all have the initial 1, whatever was learned) to 1 (as
            projected). None is the paper's: 1, and it cannot change.
        keep_share: s, the number of vectors per token. Neighbouring tokens share a vector until it holds Δ/s, which the
            prior expects of 1/s tokens (`open_nvib.merging`), so α should be about Δ: see `alpha_unit`. None is the
            paper's: each token has its own vector. With 1, tokens still share if their α is below Δ. A call can give
            another share, or a number of vectors, for each text.
        prior_mu: mean of the Gaussian G₀^p, one number or one for each dimension.
        prior_sigma: standard deviation of G₀^p, one number or one for each dimension.
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
        self.p, self.input_size = p, p if input_size is None else input_size
        self.alpha_activation, self.alpha_unit = alpha_activation, alpha_unit
        prior_mu, prior_sigma = (torch.as_tensor(x, dtype=torch.get_default_dtype()) for x in (prior_mu, prior_sigma))
        sizes = {"p": (p, int), "input_size": (self.input_size, int)}
        kinds = {
            "alpha_activation": (alpha_activation, tuple(ALPHA_ACTIVATIONS)),
            "alpha_unit": (alpha_unit, ALPHA_UNITS),
        }
        prior = {"prior_mu": (prior_mu, "number p; finite"), "prior_sigma": (prior_sigma, "number p; > 0", "")}
        check("NVIB", **sizes, **kinds, **prior, alpha0_p=(alpha0_p, "number; float32 > 0"))
        self.to_alpha = nn.Linear(self.input_size, 1)
        self.to_mu = nn.Linear(self.input_size, p)
        self.to_log_sigma = nn.Linear(self.input_size, p)
        self.register_buffer("prior_mu", prior_mu.detach().expand(p).clone())
        self.register_buffer("prior_log_sigma", prior_sigma.detach().expand(p).log())
        self.register_buffer("alpha0_p", torch.tensor(float(alpha0_p)))
        self.register_buffer("alpha_contrast", None if alpha_contrast is None else torch.ones(()))
        self.register_buffer("keep_share", None if keep_share is None else torch.ones(()))
        self.register_buffer("delta", torch.ones(()))
        if alpha_contrast is not None:
            self.set_alpha_contrast(alpha_contrast)
        if keep_share is not None:
            self.set_keep_share(keep_share)
        self.set_delta(delta)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise so that every token has a pseudo-count of about 1, and less noise than the prior."""
        for linear, bias in ((self.to_alpha, self._start), (self.to_log_sigma, INITIAL_LOG_SIGMA)):
            nn.init.normal_(linear.weight, std=INITIAL_WEIGHT_STD)
            nn.init.constant_(linear.bias, bias)
        self.to_mu.reset_parameters()

    @property
    def _start(self) -> float:
        """The projection for which the activation returns INITIAL_ALPHA."""
        return math.log(math.expm1(INITIAL_ALPHA)) if self.alpha_activation == "softplus" else INITIAL_ALPHA

    def extra_repr(self) -> str:
        kinds = f"alpha_activation={self.alpha_activation!r}, alpha_unit={self.alpha_unit!r}"
        return f"p={self.p}, input_size={self.input_size}, {kinds}, merges_tokens={self.keep_share is not None}"

    def set_delta(self, delta: float) -> None:
        """Change Δ, as a schedule does during training."""
        domain = "float32 >= 0" if self.keep_share is None else "float32 > 0"
        check("NVIB", delta=(delta, f"number; {domain}", "With keep_share, a vector holds Δ/keep_share, above 0."))
        self.delta.fill_(delta)

    def set_keep_share(self, share: float) -> None:
        """Change the number of vectors per token of a layer with `keep_share`, as a schedule does during training."""
        check("NVIB", keep_share=(share, "number; share"))
        self._built_with("keep_share").fill_(share)

    def set_alpha_contrast(self, contrast: float) -> None:
        """Change how much tokens may differ in α, for a layer with `alpha_contrast`, as a schedule does."""
        check("NVIB", alpha_contrast=(contrast, "number; 0 to 1"))
        self._built_with("alpha_contrast").fill_(contrast)

    def _built_with(self, name: str) -> Tensor:
        buffer: Tensor | None = getattr(self, name)
        if buffer is None:
            raise ValueError(f"NVIB: {name} is None in this layer, expected a number. Build the layer with {name}.")
        return buffer

    @property
    def prior(self) -> ConditionalBDP:
        """The conditional prior with a copy of Δ and `keep_share`, which later changes do not affect."""
        return unchecked(
            ConditionalBDP,
            mu=self.prior_mu,
            log_sigma=self.prior_log_sigma,
            alpha0_p=self.alpha0_p,
            delta=self.delta.clone(),
            keep_share=None if self.keep_share is None else self.keep_share.clone(),
        )

    def forward(
        self,
        hidden: Float[Tensor, "batch n size"],
        mask: Bool[Tensor, "batch n"] | None = None,
        *,
        share: PerText | None = None,
        vectors: PerText | None = None,
        place: PerText | None = None,
    ) -> Posterior:
        """Compute the posterior of n + 1 components.

        Args:
            hidden: hidden states of the tokens.
            mask: True for real tokens; without it, all are real.
            share: of a layer with `keep_share`: another share, for all texts or for each.
            vectors: likewise, the number of vectors instead, at most as many as tokens.
            place: likewise, where the first cut is: the part of the first vector that is left out, from 0 to below 1.
        """
        mask = self._mask(hidden, mask)
        hidden = hidden.masked_fill(~mask.unsqueeze(-1), 0.0)  # padding may hold anything, also NaN
        dtype = at_least_float32(hidden.dtype)
        alpha = self._counts(hidden, mask)
        if cuts := self._cuts(alpha, share, vectors, place):
            merged = merge_tokens(alpha, hidden, cuts, max_joined_remainder=MAX_JOINED_REMAINDER)
            alpha, hidden = merged.alpha, merged.hidden
        log_sigma = self.to_log_sigma(hidden).to(dtype).clamp(LOG_SIGMA_MIN, LOG_SIGMA_MAX)
        batch = len(hidden)

        def with_prior(tokens: Tensor, prior: Tensor) -> Tensor:
            last = prior.to(tokens.dtype).expand(batch, 1, *tokens.shape[2:])
            return torch.cat([tokens, last], 1)

        return unchecked(
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
        """Compute α of each token, before tokens are merged (with `keep_share`, the posterior has α of components)."""
        mask = self._mask(hidden, mask)
        return self._counts(hidden.masked_fill(~mask.unsqueeze(-1), 0.0), mask)

    def component_of_token(
        self,
        hidden: Float[Tensor, "batch n size"],
        mask: Bool[Tensor, "batch n"] | None = None,
        *,
        share: PerText | None = None,
        vectors: PerText | None = None,
        place: PerText | None = None,
    ) -> Int[Tensor, "batch n"]:
        """Find the index of the component that holds the largest part of each token; -1 for a dropped token."""
        alpha = self.pseudo_counts(hidden, mask)
        if cuts := self._cuts(alpha, share, vectors, place):
            return component_of_token(alpha, cuts, max_joined_remainder=MAX_JOINED_REMAINDER)
        positions = torch.arange(alpha.shape[-1], device=alpha.device).expand_as(alpha)
        return torch.where(alpha > 0, positions, -1)

    def _cuts(
        self, alpha: Tensor, share: PerText | None, vectors: PerText | None, place: PerText | None
    ) -> Cuts | None:
        """Find where to cut the pseudo-counts; None for a layer that does not merge tokens."""
        given = {name: x for name, x in (("share", share), ("vectors", vectors), ("place", place)) if x is not None}
        if self.keep_share is None:
            if given:
                raise ValueError(
                    f"NVIB: {' and '.join(given)} given, expected none: in this layer each token has its own vector. "
                    f"Build it with keep_share."
                )
            return None
        if share is not None and vectors is not None:
            raise ValueError("NVIB: share and vectors are given, expected one of the two.")
        domains = {"share": "share", "vectors": ">= 1", "place": "0 to below 1"}
        check("NVIB", alpha=(alpha, "batch n"), **{k: (x, f"number batch; {domains[k]}") for k, x in given.items()})
        place = 0.0 if place is None else place
        share = self.keep_share if share is None else share
        return find_cuts(alpha, unit=self.delta, share=share, vectors=vectors, place=place)

    def _counts(self, hidden: Tensor, mask: Tensor) -> Tensor:
        scores = self.to_alpha(hidden).squeeze(-1).to(at_least_float32(hidden.dtype))
        if self.alpha_contrast is not None:
            scores = self._start + self.alpha_contrast * (scores - self._start)
        alpha = ALPHA_ACTIVATIONS[self.alpha_activation](scores)
        return (alpha * self.delta if self.alpha_unit == "delta" else alpha).masked_fill(~mask, 0.0)

    def _mask(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Return the mask, True everywhere if it is not given."""
        given = {} if mask is None else {"mask": (mask, "bool batch n", "Give one entry for each token.")}
        states = hidden, "batch n size", "Give a batch, and build the layer with the encoder's input_size."
        check("NVIB", weight=(self.to_mu.weight, "p size"), hidden=states, **given)
        return hidden.new_ones(hidden.shape[:2], dtype=torch.bool) if mask is None else mask
