"""Dirichlet processes: the bounded and unbounded priors, and the factorised posterior over a text's mixture."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from open_nvib._checks import can_read, check_axes, check_choice, check_count, check_mask, check_pseudo_counts
from open_nvib._numeric import log_weight, normal_like, widen
from open_nvib._records import BatchRecord, TensorRecord, trusted, values_of
from open_nvib.gamma import METHODS, Method, log_dirichlet
from open_nvib.kl import bounded_dp_kl, gaussian_kl
from open_nvib.mixtures import GaussianMixture, ImpulseMixture

KLForm = Literal["expected", "exact"]
Counts = int | Sequence[int] | Tensor

REST = 0.1803
"""Share of a vector up to which what is left of a text joins its last one, so that α₀ a little above what the prior
expects does not make one more. Odd, so that rounding does not decide for the shares that people choose."""


@dataclass(frozen=True, eq=False)
class BDP(TensorRecord):
    """Bounded Dirichlet process BDP(G₀, α₀, κ₀): κ₀ vectors from the Gaussian G₀, weights from Dir(α₀/κ₀, …)."""

    mu: Float[Tensor, " p"]
    log_sigma: Float[Tensor, " p"]
    alpha0: Float[Tensor, ""]

    def __post_init__(self) -> None:
        _check_prior("BDP", self.mu, self.log_sigma, alpha0=self.alpha0)

    def sample(
        self, kappa0: Counts, *, method: Method = "paper", generator: torch.Generator | None = None
    ) -> ImpulseMixture:
        """One mixture for each entry of `kappa0`, padded with weights of zero to the largest."""
        counts = _counts("BDP.sample", "kappa0", kappa0, self.mu, at_least=1)
        return _sample_bounded(self, counts, self.alpha0.expand(counts.shape), method, generator)


@dataclass(frozen=True, eq=False)
class UDP(TensorRecord):
    """Unbounded Dirichlet process UDP(G₀, α₀, φ): κ ~ φ, then BDP(G₀, α₀, κ).

    φ is given by `size_weights`: entry k is proportional to the probability of k vectors, as `torch.bincount` of
    observed sizes gives it. Entry 0 must be 0.
    """

    mu: Float[Tensor, " p"]
    log_sigma: Float[Tensor, " p"]
    alpha0: Float[Tensor, ""]
    size_weights: Tensor

    def __post_init__(self) -> None:
        _check_prior("UDP", self.mu, self.log_sigma, alpha0=self.alpha0)
        weights = self.size_weights
        if not isinstance(weights, Tensor):
            raise TypeError(f"UDP: size_weights is a {type(weights).__name__}, wanted a Tensor. Use torch.bincount.")
        if weights.ndim != 1 or len(weights) < 2:
            raise ValueError(
                f"UDP: size_weights has shape {tuple(weights.shape)}, wanted (largest size + 1,). Use torch.bincount."
            )
        check_pseudo_counts("UDP", "size_weights", weights, fix="Use torch.bincount of observed sizes.")
        if can_read(weights) and (weights[0] != 0 or not weights.sum() > 0):
            raise ValueError("UDP: size_weights must be 0 at size 0 and above 0 somewhere: a mixture has a vector.")

    def sample(
        self, count: int, *, method: Method = "paper", generator: torch.Generator | None = None
    ) -> ImpulseMixture:
        """`count` mixtures of various sizes, padded with weights of zero to the largest."""
        check_count("UDP.sample", "count", count)
        kappa = torch.multinomial(widen(self.size_weights), count, replacement=True, generator=generator)
        return BDP(self.mu, self.log_sigma, self.alpha0).sample(kappa, method=method, generator=generator)


@dataclass(frozen=True, eq=False)
class ConditionalBDP(TensorRecord):
    """The prior given that a text has n tokens: BDP(G₀^p, α₀^p + nΔ, n + 1). With Δ = 0 the plain bounded prior.

    With `keep_share` s, of an encoder that gathers n tokens in about sn vectors, it is BDP(G₀^p, α₀^p + nΔ, m + 1)
    with m = ⌈sn⌉, or ⌊sn⌋ where the rest is at most `REST` of a vector; at least one for a text that has tokens.
    """

    mu: Float[Tensor, " p"]
    log_sigma: Float[Tensor, " p"]
    alpha0_p: Float[Tensor, ""]
    delta: Float[Tensor, ""]
    keep_share: Float[Tensor, ""] | None = None

    def __post_init__(self) -> None:
        _check_prior("ConditionalBDP", self.mu, self.log_sigma, alpha0_p=self.alpha0_p)
        check_axes("ConditionalBDP", delta=(self.delta, ""))
        if self.keep_share is not None:
            check_axes("ConditionalBDP", keep_share=(self.keep_share, ""))
            if can_read(self.keep_share) and not 0 < self.keep_share <= 1:
                raise ValueError(f"ConditionalBDP: keep_share is {self.keep_share}, wanted above 0 and at most 1.")
        check_pseudo_counts("ConditionalBDP", "delta", self.delta, fix="Δ is what a token is expected to add.")

    def alpha0(self, lengths: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """α₀^{p′} = α₀^p + nΔ, in float64."""
        return widen(self.alpha0_p) + lengths * widen(self.delta)

    def vectors(self, lengths: Int[Tensor, "*batch"]) -> Int[Tensor, "*batch"]:
        """How many vectors a text of n tokens has beside the prior's: n, or m."""
        if self.keep_share is None:
            return lengths
        return (lengths * widen(self.keep_share) - REST).ceil().clamp(min=1).minimum(lengths).long()

    def sample(
        self,
        lengths: Counts,
        *,
        kappa: int = 1,
        method: Method = "paper",
        generator: torch.Generator | None = None,
    ) -> ImpulseMixture:
        """One mixture for each length n, of (n + 1)·kappa vectors, or (m + 1)·kappa, padded with weights of zero."""
        check_count("ConditionalBDP.sample", "kappa", kappa)
        n = _counts("ConditionalBDP.sample", "lengths", lengths, self.mu, at_least=0)
        return _sample_bounded(self, (self.vectors(n) + 1) * kappa, self.alpha0(n), method, generator)


@dataclass(frozen=True)
class KL:
    """The two parts of KL(posterior ‖ prior), for each text: L_D and L_G."""

    dirichlet: Float[Tensor, " batch"]
    gaussian: Float[Tensor, " batch"]


@dataclass(frozen=True, eq=False)
class Posterior(BatchRecord):
    """The bounded factorised Dirichlet process BFDP(G^q, α^q, κ) of a batch of texts.

    One component for each token and, last, the prior's. A token that the encoder dropped, or gathered in another's
    component, has α = 0 and is still real in `mask`; padding has α = 0 and is not.
    """

    alpha: Float[Tensor, "batch n"]
    mu: Float[Tensor, "batch n p"]
    log_sigma: Float[Tensor, "batch n p"]
    mask: Bool[Tensor, "batch n"]
    prior: ConditionalBDP

    def __post_init__(self) -> None:
        check_axes(
            "Posterior",
            alpha=(self.alpha, "batch n"),
            mu=(self.mu, "batch n p"),
            log_sigma=(self.log_sigma, "batch n p"),
            prior_mu=(self.prior.mu, "p"),
        )
        check_mask("Posterior", self.mask, self.alpha)
        check_pseudo_counts("Posterior", "alpha", self.alpha)
        check_pseudo_counts("Posterior", "the prior's component of alpha", self.alpha[:, -1], positive=True)

    @property
    def alpha0(self) -> Float[Tensor, " batch"]:
        """α₀^q = Σᵢ αᵢ: how much evidence there is in all, the prior's included."""
        return self.alpha.sum(-1)

    @property
    def lengths(self) -> Int[Tensor, " batch"]:
        """Number of real tokens, the prior's component not counted."""
        return self.mask.sum(-1) - 1

    @property
    def kept(self) -> Float[Tensor, " batch"]:
        """ν: components with α > 0 for each real token (0 for a text without tokens)."""
        alive = ((self.alpha > 0) & self.mask)[:, :-1].sum(-1)
        return alive / self.lengths.clamp(min=1)

    def sample(
        self, kappa: int = 1, method: Method = "paper", generator: torch.Generator | None = None
    ) -> ImpulseMixture:
        """The factorised sample of `eq:eq:bnd-posterior`: `kappa` vectors from each component, a component's together.

        ρ ~ Dir(α) shares the weight between components and π′ᵢ ~ Dir(αᵢ/κ, …) a component's between its vectors; no
        categorical choice is made, so that gradients reach α, μ and σ.
        """
        check_count("Posterior.sample", "kappa", kappa)
        check_choice("Posterior.sample", "method", method, METHODS)
        log_pi = log_dirichlet(self.alpha, method=method, generator=generator)
        mu, log_sigma = self.mu, self.log_sigma
        if kappa > 1:
            within = widen(torch.where(self.alpha == 0, 1.0, self.alpha)) / kappa
            within = within.unsqueeze(-1).expand(*within.shape, kappa)
            log_pi = log_pi.unsqueeze(-1) + log_dirichlet(within, method=method, generator=generator)
            log_pi = log_pi.flatten(-2)
            mu, log_sigma = (x.repeat_interleave(kappa, dim=-2) for x in (mu, log_sigma))
        z = mu + log_sigma.exp() * normal_like(mu, generator)
        return trusted(ImpulseMixture, z=z, log_pi=log_pi.to(mu.dtype))

    def mean(self) -> GaussianMixture:
        """The mean of the process, its base distribution G₀^q (`eq:inf-posterior`): what to attend to at test time."""
        return trusted(GaussianMixture, mu=self.mu, log_sigma=self.log_sigma, log_alpha=log_weight(self.alpha))

    def kl(self, form: KLForm = "expected", *, kappa: int = 1) -> KL:
        """KL to the conditional prior with `kappa` vectors for each component, κ₀ = (n + 1)·kappa in all.

        `expected` (`eq:KLloss-kappa`) shares the κ₀ vectors out in proportion to α; `exact` (`eq:KLloss`) has κᵢ =
        kappa for every token, also for one with αᵢ = 0, where it is the limit. Tokens that a layer with `keep_share`
        gathered in another's component are no components and not counted: n is then the number of components there
        are, which is the `vectors` of the prior where α₀ is what the prior expects.
        """
        check_choice("Posterior.kl", "form", form, get_args(KLForm))
        check_count("Posterior.kl", "kappa", kappa)
        alpha0_p = self.prior.alpha0(self.lengths)
        gaussian = gaussian_kl(
            self.mu, self.log_sigma, prior_mu=self.prior.mu, prior_log_sigma=self.prior.log_sigma
        )  # (batch, n)
        components = self.mask if self.prior.keep_share is None else self.mask & (self.alpha > 0)
        if form == "exact":
            kappas = components * kappa
            dirichlet = bounded_dp_kl(self.alpha, alpha0_p, kappas)
            gaussian = (kappas * gaussian).sum(-1)
        else:
            kappa0 = components.sum(-1) * kappa
            dirichlet = bounded_dp_kl(self.alpha0.unsqueeze(-1), alpha0_p, kappa0.unsqueeze(-1))
            gaussian = kappa0 * (self.alpha / self.alpha0.unsqueeze(-1) * gaussian).sum(-1)
        return KL(dirichlet=dirichlet.to(gaussian.dtype), gaussian=gaussian)

    def prune(self, threshold: float) -> "Posterior":
        """Drop tokens with α ≤ `threshold` and scale what is kept, the prior's component too, so that α₀ stays.

        The shape and the alignment with the tokens stay as well; `mean().compact()` then saves the work.
        """
        if not isinstance(threshold, (int, float)) or not threshold >= 0:
            raise ValueError(f"prune: threshold is {threshold}, wanted a pseudo-count of at least 0.")
        keep = self.alpha > threshold
        keep = torch.cat([keep[:, :-1], torch.ones_like(keep[:, -1:])], -1)
        kept = torch.where(keep, self.alpha, 0.0)
        alpha = kept * (self.alpha0 / kept.sum(-1)).unsqueeze(-1)
        return trusted(Posterior, **(values_of(self) | {"alpha": alpha}))

    def mix(self, other: "Posterior", weight: float | Float[Tensor, " batch"]) -> GaussianMixture:
        """(1 − weight)·self.mean() + weight·other.mean(): a point on the path between two texts."""
        if not isinstance(other, Posterior):
            raise TypeError(f"mix: other is a {type(other).__name__}, wanted a Posterior. Encode the other text, too.")
        return self.mean().mix(other.mean(), weight)

    @staticmethod
    def cat(posteriors: "Sequence[Posterior]") -> "Posterior":
        """One batch of all of them, the shorter ones padded. They must have the same prior."""
        posteriors = list(posteriors)
        if not posteriors:
            raise ValueError("Posterior.cat: got no posteriors, wanted at least one.")
        if not all(isinstance(posterior, Posterior) for posterior in posteriors):
            kinds = ", ".join(sorted({type(posterior).__name__ for posterior in posteriors}))
            raise TypeError(f"Posterior.cat: got {kinds}, wanted posteriors only.")
        first = posteriors[0].prior
        for other in (posterior.prior for posterior in posteriors[1:]):
            if other is not first and not _same_prior(first, other):
                raise ValueError("Posterior.cat: the posteriors have different priors. Encode with one layer.")
        longest = max(posterior.alpha.shape[-1] for posterior in posteriors)
        padded = [posterior._pad_to(longest) for posterior in posteriors]
        names = ("alpha", "mu", "log_sigma", "mask")
        joined = {name: torch.cat([getattr(posterior, name) for posterior in padded]) for name in names}
        return trusted(Posterior, **joined, prior=first)

    def _pad_to(self, size: int) -> "Posterior":
        """Padding goes between the tokens and the prior's component, which stays last."""
        extra = size - self.alpha.shape[-1]

        def pad(x: Tensor) -> Tensor:
            axes = (0, extra) if x.ndim == 2 else (0, 0, 0, extra)
            return torch.cat([F.pad(x[:, :-1], axes), x[:, -1:]], 1)

        return self.map_rows(pad) if extra else self


def _check_prior(where: str, mu: Tensor, log_sigma: Tensor, **alpha0: Tensor) -> None:
    for name, value in alpha0.items():
        check_axes(where, mu=(mu, "p"), log_sigma=(log_sigma, "p"), **{name: (value, "")})
        check_pseudo_counts(where, name, value, positive=True, fix="The paper's concentration is 1.")


def _same_prior(a: ConditionalBDP, b: ConditionalBDP) -> bool:
    if (a.keep_share is None) != (b.keep_share is None):
        return False
    pairs = zip(values_of(a).values(), values_of(b).values(), strict=True)
    return all(torch.equal(mine, theirs) for mine, theirs in pairs if mine is not None)


def _sample_bounded(
    base: BDP | ConditionalBDP, kappa0: Tensor, alpha0: Tensor, method: str, generator: torch.Generator | None
) -> ImpulseMixture:
    """Samples of BDP(G₀, alpha0, kappa0), for each entry of the (batch,) tensors."""
    check_choice("sample", "method", method, METHODS)
    largest = int(kappa0.max())
    real = torch.arange(largest, device=kappa0.device) < kappa0.unsqueeze(-1)  # (batch, largest)
    alpha = torch.where(real, (widen(alpha0) / kappa0).unsqueeze(-1), 0.0)
    log_pi = log_dirichlet(alpha, method=method, generator=generator)
    mu = base.mu.expand(*real.shape, -1)
    z = torch.where(real.unsqueeze(-1), mu + base.log_sigma.exp() * normal_like(mu, generator), 0.0)
    return trusted(ImpulseMixture, z=z, log_pi=log_pi.to(mu.dtype))


def _counts(where: str, name: str, value: Counts, like: Tensor, *, at_least: int) -> Tensor:
    """Whole numbers, (batch,), on the device of `like`."""
    counts = torch.as_tensor(value, device=like.device)
    counts = counts.unsqueeze(0) if counts.ndim == 0 else counts
    if counts.is_floating_point() or counts.dtype == torch.bool or counts.ndim != 1 or not len(counts):
        raise ValueError(
            f"{where}: {name} is {counts.dtype} of shape {tuple(counts.shape)}, wanted whole numbers of shape (batch,)."
        )
    if can_read(counts) and counts.min() < at_least:
        raise ValueError(f"{where}: {name} has {int(counts.min())}, wanted at least {at_least} everywhere.")
    return counts.long()
