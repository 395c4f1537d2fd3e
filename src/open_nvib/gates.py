"""Hard concrete gates (Louizos, Welling and Kingma, 2018): numbers in [0, 1] that are exactly 0 or 1 much of the time.

A logit a gives g = clamp(1.2 σ((a + ℓ)/(2/3)) − 0.1, 0, 1) with logistic noise ℓ. The noise opens a gate now and then
that is closed on average, so its logit has a gradient: training can find out which tokens are worth a vector.
"""

import math

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor

from open_nvib._tensors import Hidden, Noise, PerToken, TokenMask, uniform_like, widen

TEMPERATURE = 2 / 3
LOW, HIGH = -0.1, 1.1
"""Range to which the sigmoid is stretched before it is clamped to [0, 1]."""

UNIFORM_FLOOR = 1e-6
"""Distance of the uniform noise from 0 and 1, where its logit is infinite."""


def sample_gates(logits: Float[Tensor, "*shape"], *, generator: Noise = None) -> Float[Tensor, "*shape"]:
    """Draw a gate for each logit, as in training."""
    noise = torch.logit(uniform_like(logits, generator), eps=UNIFORM_FLOOR)
    return _stretch(((logits + noise) / TEMPERATURE).sigmoid())


def noiseless_gates(logits: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Compute the gates of test time, clamp(1.2 σ(a) − 0.1, 0, 1): the paper's estimator of the mean gate."""
    return _stretch(logits.sigmoid())


def open_probability(logits: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Compute P(g > 0) = σ(a − ⅔ log(0.1/1.1)). The sum over tokens is the expected number of open gates."""
    return (logits - TEMPERATURE * math.log(-LOW / HIGH)).sigmoid()


def top_gates(logits: PerToken, mask: TokenMask, vectors: Real[Tensor, "#batch 1"]) -> PerToken:
    """Open a given number of gates for each item, those of the largest logits, and close the others.

    The logits are shifted so that the last gate that opens and the first that does not lie around a half.
    """
    if not logits.shape[-1]:
        return torch.zeros_like(logits)
    number = torch.minimum(vectors, mask.sum(-1, keepdim=True)).long()
    ordered, order = logits.masked_fill(~mask, -torch.inf).sort(dim=-1, descending=True, stable=True)
    rank = order.argsort(-1)
    # The logits on both sides of the border; with all gates open, the last one takes the place of the next.
    last = ordered.gather(-1, (number - 1).clamp(min=0))
    following = torch.where(number < mask.sum(-1, keepdim=True), number, (number - 1).clamp(min=0))
    border = (last + ordered.gather(-1, following.clamp(max=logits.shape[-1] - 1))) / 2
    border = torch.where(border.isfinite(), border, 0.0)
    return noiseless_gates(logits - border).masked_fill(~mask | (rank >= number), 0.0)


def assign_tokens(gates: PerToken) -> Float[Tensor, "batch n n"]:
    """Compute the share of token j in component i, [batch, i, j], if a dropped token joins the one kept before it.

    It is the probability of that if gate i is open with probability g_i: gᵢ Π_{i<k≤j}(1 − g_k) for i ≤ j, where i is
    the last kept token, and gᵢ Π_{k<i}(1 − g_k) for i > j, where it is the first kept token and follows j. With gates
    of 0 and 1, the shares are 0 and 1. A token's shares sum to 1 unless all gates may be closed.
    """
    wide, n = widen(gates), gates.shape[-1]
    is_one = wide >= 1
    # Logarithms of products, in which gates of 1 are left out: they are counted, as a product with one of them is 0.
    log_closed, ones = torch.where(is_one, 1.0, 1 - wide).log(), is_one.long()
    log_up_to, ones_up_to = log_closed.cumsum(-1), ones.cumsum(-1)  # of all k ≤ j
    between = log_up_to.unsqueeze(-2) - log_up_to.unsqueeze(-1)  # i < k ≤ j
    none_between = ones_up_to.unsqueeze(-2) == ones_up_to.unsqueeze(-1)
    before, none_before = (log_up_to - log_closed).unsqueeze(-1), (ones_up_to == ones).unsqueeze(-1)  # k < i
    from_i_on = torch.ones(n, n, dtype=torch.bool, device=gates.device).triu()
    possible = torch.where(from_i_on, none_between, none_before)
    closed = torch.where(possible, torch.where(from_i_on, between, before), -torch.inf).exp()
    return (wide.unsqueeze(-1) * closed).to(gates.dtype)


def pool_dropped(gates: PerToken, hidden: Hidden, mask: TokenMask) -> Hidden:
    """Mix the hidden states of dropped tokens into those of the tokens that are kept: see `assign_tokens`."""
    shares = assign_tokens(gates) * mask.unsqueeze(-2)
    total = shares.sum(-1, keepdim=True)
    return (shares / torch.where(total > 0, total, 1.0)).to(hidden.dtype) @ hidden


def component_of_gates(gates: PerToken, mask: TokenMask) -> Int[Tensor, "batch n"]:
    """Find the component with the largest share of each token by `assign_tokens`; -1 if there is none."""
    if not gates.shape[-1]:
        return torch.zeros_like(mask, dtype=torch.long)
    shares, component = assign_tokens(gates).max(-2)
    return torch.where(mask & (shares > 0), component, -1)


def _stretch(opened: Tensor) -> Tensor:
    return (LOW + (HIGH - LOW) * opened).clamp(0.0, 1.0)
