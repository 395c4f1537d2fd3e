"""NVIB: hidden states in, a Dirichlet-process posterior out."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from open_nvib._deprecation import warn_renamed
from open_nvib._tensors import Hidden, Noise, PerToken, TokenMask, at_least_float32, check, unchecked
from open_nvib.gates import component_of_gates, noiseless_gates, pool_dropped, sample_gates, top_gates
from open_nvib.merging import PerText, TokenSplit, VectorRequest, find_cuts, split_groups, split_tokens
from open_nvib.process import MAX_JOINED_REMAINDER, ConditionalBDP, Posterior, vectors_at

LOG_SIGMA_MIN, LOG_SIGMA_MAX = -40.0, 20.0
"""Range of log σ, in which σ² and its reciprocal are finite in float32. Trained encoders stay far from both ends."""

ALPHA_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "softplus": F.softplus,
    "gate": noiseless_gates,
}
ALPHA_UNITS = ("one", "delta")
INITIAL_ALPHA = 1.0
INITIAL_LOG_SIGMA = -1.0
INITIAL_WEIGHT_STD = 0.02


class NVIB(nn.Module):
    """Nonparametric variational information bottleneck, between an encoder and the attention that reads it.

    Three linear projections of each hidden state give the pseudo-count α ≥ 0, the mean μ and log σ of its component.
    The last component is the prior's (section "The Transformer Encoder").

    >>> posterior = NVIB(8)(torch.randn(2, 5, 8))
    >>> posterior.sample().vectors.shape  # train on a sample, test with posterior.mean()
    torch.Size([2, 6, 8])

    Args:
        p: size of the latent vectors.
        input_size: size of the hidden states; default `p`.
        alpha0_p: α₀^p, the concentration of the prior.
        delta: Δ, the pseudo-count that the conditional prior expects of each token; 0 is the plain prior.
        alpha_activation: "relu" (the paper's: α reaches exactly 0), "softplus" (smooth, α stays above 0) or "gate":
            α is a full count or 0, by a gate that training can explore (`open_nvib.gates`). Train with
            `layer(…, gate_noise=True)`.
        gate_count: α of an open gate, in units of Δ.
        gate_share: mean of the gates at the start. 1/`gate_count` is where L_D holds the total.
        gate_pooling: whether the hidden state of a token whose gate is closed joins that of the token kept before it;
            otherwise it is lost.
        alpha_unit: unit of the projection to α: "one" (the paper's), or "delta", which multiplies it by Δ.
        alpha_contrast: how much tokens may differ in α, from 0 (all have the initial 1, whatever was learned) to 1 (as
            projected). Above 1, they learn to differ faster, which small hidden states need. None is the paper's: 1,
            and it cannot change.
        keep_share: s, the number of vectors per token. Neighbouring tokens share a vector until it holds Δ/s, which the
            prior expects of 1/s tokens (`open_nvib.merging`), so α should be about Δ: see `alpha_unit`. None is the
            paper's: each token has its own vector. With 1, tokens still share if their α is below Δ. A call can give
            another share, or a number of vectors, for each text: see `VectorRequest`.
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
        gate_count: float = 2.0,
        gate_share: float = 0.5,
        gate_pooling: bool = False,
        prior_mu: float | Float[Tensor, " p"] = 0.0,
        prior_sigma: float | Float[Tensor, " p"] = 1.0,
    ) -> None:
        super().__init__()
        self.p, self.input_size = p, p if input_size is None else input_size
        self.alpha_activation, self.alpha_unit = alpha_activation, alpha_unit
        self.gate_count, self.gate_share, self.gate_pooling = gate_count, gate_share, gate_pooling
        prior_mu, prior_sigma = (torch.as_tensor(x, dtype=torch.get_default_dtype()) for x in (prior_mu, prior_sigma))
        sizes = {"p": (p, int), "input_size": (self.input_size, int)}
        kinds = {
            "alpha_activation": (alpha_activation, tuple(ALPHA_ACTIVATIONS)),
            "alpha_unit": (alpha_unit, ALPHA_UNITS),
        }
        prior = {"prior_mu": (prior_mu, "number p; finite"), "prior_sigma": (prior_sigma, "number p; > 0", "")}
        gate = {"gate_count": (gate_count, "number; float32 > 0")}
        gate |= {"gate_share": (gate_share, "number; float32 > 0, 0 to below 1")}
        check("NVIB", **sizes, **kinds, **prior, **gate, alpha0_p=(alpha0_p, "number; float32 > 0"))
        if not self.has_gates and (gate_count, gate_share, gate_pooling) != (2.0, 0.5, False):
            raise ValueError(
                f"NVIB: gate_count, gate_share or gate_pooling is given with alpha_activation {alpha_activation!r}, "
                f"expected alpha_activation='gate' with them."
            )
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
        """Initialise: a pseudo-count of about 1 for every token, or gates at their share; less noise than the prior."""
        for linear, bias in ((self.to_alpha, self._start), (self.to_log_sigma, INITIAL_LOG_SIGMA)):
            nn.init.normal_(linear.weight, std=INITIAL_WEIGHT_STD)
            nn.init.constant_(linear.bias, bias)
        self.to_mu.reset_parameters()

    @property
    def _start(self) -> float:
        """The projection for which the activation returns INITIAL_ALPHA, or the logit of the initial share of gates."""
        if self.has_gates:
            return math.log(self.gate_share / (1 - self.gate_share))
        return math.log(math.expm1(INITIAL_ALPHA)) if self.alpha_activation == "softplus" else INITIAL_ALPHA

    @property
    def has_gates(self) -> bool:
        """Whether α comes from gates, which `gate_noise` and `gate_shift` of a call change."""
        return self.alpha_activation == "gate"

    def extra_repr(self) -> str:
        kinds = f"alpha_activation={self.alpha_activation!r}, alpha_unit={self.alpha_unit!r}"
        return f"p={self.p}, input_size={self.input_size}, {kinds}, merges_tokens={self.keep_share is not None}"

    def set_delta(self, delta: float) -> None:
        """Change Δ, as a schedule does during training."""
        counted = self.keep_share is not None or self.has_gates or self.alpha_unit == "delta"
        domain = "float32 > 0" if counted else "float32 >= 0"
        fix = "With keep_share, gates or alpha_unit 'delta', pseudo-counts are multiples of Δ: it must be above 0."
        check("NVIB", delta=(delta, f"number; {domain}", fix))
        stored = torch.tensor(float(delta), dtype=self.delta.dtype, device="cpu").item()
        if stored in (0.0, math.inf) and stored != delta:
            raise ValueError(f"NVIB: delta is {delta}, expected one in the range of its {self.delta.dtype}.")
        self.delta.fill_(delta)

    def set_keep_share(self, share: float) -> None:
        """Change the number of vectors per token of a layer with `keep_share`, as a schedule does during training."""
        check("NVIB", keep_share=(share, "number; share"))
        self._built_with("keep_share").fill_(share)

    def set_alpha_contrast(self, contrast: float) -> None:
        """Change how much tokens may differ in α, for a layer with `alpha_contrast`, as a schedule does."""
        check("NVIB", alpha_contrast=(contrast, "number; float32 >= 0"))
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
        hidden: Hidden,
        mask: TokenMask | None = None,
        request: VectorRequest | None = None,
        *,
        gate_noise: bool = False,
        gate_shift: PerText = 0.0,
        generator: Noise = None,
        **old: Any,
    ) -> Posterior:
        """Compute the posterior of n + 1 components.

        Args:
            hidden: hidden states of the tokens.
            mask: True for real tokens; without it, all are real.
            request: how many vectors each text gets, for a layer with `keep_share` or gates; its own number if not
                given. Gates have no cuts, so they ignore its `offset`, and a requested number outweighs `gate_shift`.
            gate_noise: whether to draw the gates, as training does, if the layer has any; the sample and the KL of the
                posterior are then those of one draw. Without noise, the posterior is a function of `hidden`.
            gate_shift: added to the logits of the gates, for all texts or for each: above 0, more tokens are kept.
            generator: of the gates' noise.
            old: `share`, `vectors` and `place`, the keywords before `request`, which warn.
        """
        hidden, mask = self._real(hidden, mask)
        dtype = at_least_float32(hidden.dtype)
        request = self._request(request, old)
        scores = self._scores(hidden, gate_shift)

        # α of each token, and of what it is the pseudo-count: a token, or several that share a component.
        if self.has_gates and gate_noise:
            if self.keep_share is None and (request.vectors is not None or request.share is not None):
                raise ValueError(
                    "NVIB: request and gate_noise are given, expected one: noise draws how many gates open. Use "
                    "gate_noise=False for a number of vectors."
                )
            gates = sample_gates(scores, generator=generator).masked_fill(~mask, 0.0)
        else:
            gates = self._activate(scores, mask, request)
        alpha = self._counts(gates)
        if self.has_gates and self.gate_pooling:
            hidden = pool_dropped(gates, hidden, mask)
        if self.keep_share is not None:
            merged = self._split(alpha, request).merge(hidden)
            alpha, hidden = merged.alpha.to(dtype), merged.hidden

        # The Gaussian of each component, and the prior's component as the last.
        log_sigma = self.to_log_sigma(hidden).to(dtype).clamp(LOG_SIGMA_MIN, LOG_SIGMA_MAX)
        return self.prior.posterior(alpha, self.to_mu(hidden).to(dtype), log_sigma, mask)

    def gate_logits(self, hidden: Hidden, mask: TokenMask | None = None) -> PerToken:
        """Compute the logit of each token's gate, for a layer with gates: see `open_nvib.gates.open_probability`."""
        if not self.has_gates:
            raise ValueError("NVIB: this layer has no gates, expected alpha_activation='gate'.")
        return self._scores(self._real(hidden, mask)[0], 0.0)

    def pseudo_counts(self, hidden: Hidden, mask: TokenMask | None = None) -> PerToken:
        """Compute α of each token, before tokens are merged (with `keep_share`, the posterior has α of components)."""
        hidden, mask = self._real(hidden, mask)
        return self._counts(self._activate(self._scores(hidden, 0.0), mask, None))

    def component_of_token(
        self,
        hidden: Hidden,
        mask: TokenMask | None = None,
        request: VectorRequest | None = None,
        *,
        gate_shift: PerText = 0.0,
        **old: Any,
    ) -> Int[Tensor, "batch n"]:
        """Find the index of the component that holds the largest part of each token; -1 for a dropped token."""
        (hidden, mask), request = self._real(hidden, mask), self._request(request, old)
        gates = self._activate(self._scores(hidden, gate_shift), mask, request)
        alpha = self._counts(gates)
        if self.keep_share is not None:
            return self._split(alpha, request).component_of_token()
        if self.has_gates and self.gate_pooling:
            return component_of_gates(gates, mask)
        positions = torch.arange(alpha.shape[-1], device=alpha.device).expand_as(alpha)
        return torch.where(alpha > 0, positions, -1)

    def _request(self, request: VectorRequest | None, old: dict[str, Any]) -> VectorRequest:
        """Return the request, an empty one if it is not given; an error if the layer cannot fulfil it."""
        names = {"share": "share", "vectors": "vectors", "place": "offset"}
        for name in old:
            if name not in names:
                raise TypeError(f"NVIB has no argument {name!r}.")
            warn_renamed(f"NVIB: {name}=", "request=VectorRequest(…)", stacklevel=5)
        if request is not None:
            check("NVIB", request=(request, VectorRequest, "Use VectorRequest(vectors=…) or VectorRequest(share=…)."))
        if old:
            request = VectorRequest(**{names[name]: value for name, value in old.items()})
        if request is not None and self.keep_share is None and (not self.has_gates or request.groups is not None):
            raise ValueError(
                "NVIB: request is given, expected None: in this layer each token has its own vector. Build it with "
                "keep_share."
            )
        return VectorRequest() if request is None else request

    def _split(self, alpha: Tensor, request: VectorRequest) -> TokenSplit:
        """Assign the tokens of a layer with `keep_share` to components."""
        if request.groups is not None:
            check("NVIB", alpha=(alpha, "batch n"), groups=(request.groups, "int batch n"))
            return split_groups(alpha, request.groups)
        _check_request(alpha, request)
        cuts = find_cuts(alpha, request, unit=self.delta, share=self._built_with("keep_share"))
        return split_tokens(alpha, cuts, max_joined_remainder=MAX_JOINED_REMAINDER)

    def _scores(self, hidden: Tensor, gate_shift: PerText) -> Tensor:
        """Compute what the activation turns into α: a projection of each token, (batch, n)."""
        scores = self.to_alpha(hidden).squeeze(-1).to(at_least_float32(hidden.dtype))
        if self.alpha_contrast is not None:
            scores = self._start + self.alpha_contrast * (scores - self._start)
        if isinstance(gate_shift, Tensor) or gate_shift != 0.0:
            if not self.has_gates:
                raise ValueError("NVIB: gate_shift is given, expected none: this layer has no gates.")
            check("NVIB", scores=(scores, "batch n"), gate_shift=(gate_shift, "number batch; finite"))
            scores = scores + torch.as_tensor(gate_shift, dtype=scores.dtype, device=scores.device).reshape(-1, 1)
        return scores

    def _activate(self, scores: Tensor, mask: Tensor, request: VectorRequest | None) -> Tensor:
        """Apply the activation, without noise; gates open as many as are requested if no tokens are merged."""
        if self.has_gates and self.keep_share is None and request is not None:
            _check_request(scores, request)
            number = request.vectors
            if request.share is not None:
                number = vectors_at(request.share, mask.sum(-1))
            if number is not None:
                number = torch.as_tensor(number, device=mask.device).reshape(-1, 1)
                own = noiseless_gates(scores).masked_fill(~mask, 0.0)
                return torch.where(number == 0, own, top_gates(scores, mask, number))
        return ALPHA_ACTIVATIONS[self.alpha_activation](scores).masked_fill(~mask, 0.0)

    def _counts(self, activated: Tensor) -> Tensor:
        """Scale what the activation returns to pseudo-counts."""
        if self.has_gates:
            return self.gate_count * self.delta * activated
        return activated * self.delta if self.alpha_unit == "delta" else activated

    def _real(self, hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the hidden states, 0 on padding, which may hold anything, also NaN; and the mask, default all real."""
        given = {} if mask is None else {"mask": (mask, "bool batch n", "Give one entry for each token.")}
        states = hidden, "batch n size", "Give a batch, and build the layer with the encoder's input_size."
        check("NVIB", weight=(self.to_mu.weight, "p size"), hidden=states, **given)
        mask = hidden.new_ones(hidden.shape[:2], dtype=torch.bool) if mask is None else mask
        return hidden.masked_fill(~mask.unsqueeze(-1), 0.0), mask


def _check_request(like: Tensor, request: VectorRequest) -> None:
    domains = {"share": "share", "vectors": "0 or >= 1, whole", "offset": "0 to below 1"}
    given = {name: x for name in domains if (x := getattr(request, name)) is not None}
    check("NVIB", alpha=(like, "batch n"), **{k: (x, f"number batch; {domains[k]}") for k, x in given.items()})
