"""Dirichlet processes: mixtures, which are their samples and means, the priors, and the posterior of a text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor

from open_nvib._tensors import (
    Batch,
    BatchRecord,
    Hidden,
    Noise,
    PerToken,
    TensorRecord,
    TokenMask,
    can_read,
    check,
    join,
    log_weight,
    normal_like,
    unchecked,
    values_of,
    widen,
)
from open_nvib.distributions import METHODS, Method, bounded_dp_kl, gaussian_kl, log_dirichlet

KLForm = Literal["expected", "exact"]
KL_FORMS: tuple[str, ...] = get_args(KLForm)
Counts = int | Sequence[int] | Tensor

MAX_JOINED_REMAINDER = 0.1803
"""Largest remainder at the end of a text, as a share of a vector, that joins the text's last vector, so that α₀
slightly above what the prior expects does not add a vector. It is not a round number, so that for common values of
`keep_share` no remainder equals it and rounding does not decide."""


def vectors_at(share: Real[Tensor, "*#batch"] | float, lengths: Int[Tensor, "*batch"]) -> Int[Tensor, "*batch"]:
    """Count the vectors of texts of n tokens at a share of them, as `ConditionalBDP` does."""
    return (lengths * widen(share, like=lengths) - MAX_JOINED_REMAINDER).ceil().clamp(min=1).minimum(lengths).long()


@dataclass(frozen=True, eq=False)
class ImpulseMixture(BatchRecord):
    """F = Σᵢ πᵢ δ(zᵢ): a weighted set of vectors, such as a sample of a Dirichlet process.

    >>> mixture = ImpulseMixture(z=torch.randn(2, 5, 8), log_pi=torch.zeros(2, 5))  # two sets of five equal vectors
    >>> mixture[0].vectors.shape
    torch.Size([1, 5, 8])

    Args:
        z: the vectors.
        log_pi: logarithms of their weights, -inf for a vector that is not there; they need not be normalised.
        spread: Σ_h σ_h² of each vector that stands for draws around it (`GaussianMixture.points`). Attention adds it to
            ‖z‖², which makes the squared norm that of a draw on average. None is 0: the vectors are what they are.
    """

    z: Float[Tensor, "*batch n p"]
    log_pi: Float[Tensor, "*batch n"]
    spread: Float[Tensor, "*batch n"] | None = None

    def __post_init__(self) -> None:
        spread = {} if self.spread is None else {"spread": (self.spread, "*batch n; >= 0")}
        log_pi = self.log_pi, "*batch n; log, some > -inf"
        check("ImpulseMixture", z=(self.z, "*batch n p"), log_pi=log_pi, **spread)

    @property
    def vectors(self) -> Float[Tensor, "*batch n p"]:
        """The vectors, by the name that both kinds of mixture have."""
        return self.z

    @property
    def log_weights(self) -> Float[Tensor, "*batch n"]:
        """The logarithms of the weights, by the name that both kinds of mixture have."""
        return self.log_pi

    def compact(self) -> "ImpulseMixture":
        """Remove vectors without weight: n becomes the largest number of vectors with weight in the batch."""
        return _compacted(self, self.log_pi)


@dataclass(frozen=True, eq=False)
class GaussianMixture(BatchRecord):
    """G₀ = Σᵢ αᵢ/α₀ N(μᵢ, σᵢ²): the base distribution of a Dirichlet process. `log_alpha` need not be normalised.

    >>> mu = torch.randn(2, 5, 8)
    >>> mixture = GaussianMixture(mu=mu, log_sigma=torch.full_like(mu, -1.0), log_alpha=torch.zeros(2, 5))
    >>> mixture.points().vectors.shape
    torch.Size([2, 5, 8])
    """

    mu: Float[Tensor, "*batch n p"]
    log_sigma: Float[Tensor, "*batch n p"]
    log_alpha: Float[Tensor, "*batch n"]

    def __post_init__(self) -> None:
        mu, log_sigma = ((x, "*batch n p") for x in (self.mu, self.log_sigma))
        check("GaussianMixture", mu=mu, log_sigma=log_sigma, log_alpha=(self.log_alpha, "*batch n; log, some > -inf"))

    @property
    def vectors(self) -> Float[Tensor, "*batch n p"]:
        """The means, by the name that both kinds of mixture have."""
        return self.mu

    @property
    def log_weights(self) -> Float[Tensor, "*batch n"]:
        """The logarithms of the weights, by the name that both kinds of mixture have."""
        return self.log_alpha

    def points(self) -> ImpulseMixture:
        """Read each component as a typical draw without its noise: impulses at μᵢ of weight αᵢ/α₀, and their spread.

        A draw z has the log-likelihood u·z/√d − ‖z‖²/2√d, on average u·μ/√d − (‖μ‖² + Σ_h σ_h²)/2√d. So attention
        over the points gives each component its average log-likelihood (see `compare_readings`).
        """
        spread = (2 * self.log_sigma).exp().sum(-1)
        return unchecked(ImpulseMixture, z=self.mu, log_pi=self.log_alpha.log_softmax(-1), spread=spread)

    def compact(self) -> "GaussianMixture":
        """Remove components without weight: n becomes the largest number of components with weight in the batch."""
        return _compacted(self, self.log_alpha)

    def mix(self, other: "GaussianMixture", weight: float | Float[Tensor, "*batch"]) -> "GaussianMixture":
        """Mix the distributions (1 − weight)·self + weight·other: the components of both, with new weights."""
        check("mix", other=(other, GaussianMixture, "Call .mean() on a posterior."))
        vectors = {
            "mu": (self.mu, "*batch n p"),
            "other": (other.mu, "real *batch m p", "Select or encode as many texts."),
        }
        check("mix", **vectors, weight=(weight, "number *batch; 0 to 1", "0 is all of self, 1 all of other."))
        share = widen(weight, like=self.mu)
        mine = self.log_alpha.log_softmax(-1) + log_weight(1 - share).to(self.log_alpha.dtype).unsqueeze(-1)
        theirs = other.log_alpha.log_softmax(-1) + log_weight(share).to(other.log_alpha.dtype).unsqueeze(-1)
        return unchecked(
            GaussianMixture,
            mu=torch.cat([self.mu, other.mu], -2),
            log_sigma=torch.cat([self.log_sigma, other.log_sigma], -2),
            log_alpha=torch.cat([mine, theirs], -1),
        )


def append_component(tokens: Tensor, last: Tensor) -> Tensor:
    """Append one component, the same for all texts, to (batch, n) or (batch, n, p), in the dtype of the tokens."""
    return torch.cat([tokens, last.to(tokens.dtype).expand(len(tokens), 1, *tokens.shape[2:])], 1)


def _compacted(mixture: Batch, log_weights: Float[Tensor, "*batch n"]) -> Batch:
    """Move the components with weight to the front, in their order, and cut the others off."""
    gone = log_weights.isneginf()
    most_kept = int((~gone).sum(-1).max()) if gone.numel() else 0
    order = gone.to(torch.uint8).argsort(dim=-1, stable=True)[..., :most_kept]

    def take(x: Tensor) -> Tensor:
        if x.ndim == order.ndim:
            return x.gather(-1, order)
        return x.gather(-2, order.unsqueeze(-1).expand(*order.shape, x.shape[-1]))

    return mixture.map(take)


@dataclass(frozen=True, eq=False)
class BDP(TensorRecord):
    """Bounded Dirichlet process BDP(G₀, α₀, κ₀): κ₀ vectors from the Gaussian G₀, weights from Dir(α₀/κ₀, …).

    >>> BDP(mu=torch.zeros(8), log_sigma=torch.zeros(8), alpha0=torch.tensor(3.0)).sample([4, 2]).vectors.shape
    torch.Size([2, 4, 8])
    """

    mu: Float[Tensor, " p"]
    log_sigma: Float[Tensor, " p"]
    alpha0: Float[Tensor, ""]

    def __post_init__(self) -> None:
        check("BDP", **_prior_arguments(self, alpha0=self.alpha0))

    def sample(self, kappa0: Counts, *, method: Method = "paper", generator: Noise = None) -> ImpulseMixture:
        """Sample a mixture for each entry of `kappa0`, padded with weights of zero to the largest."""
        counts = _as_counts("BDP.sample", "kappa0", kappa0, "> 0", like=self.mu)
        return _sample_bounded(self, counts, self.alpha0.expand(counts.shape), method, generator)


@dataclass(frozen=True, eq=False)
class UDP(TensorRecord):
    """Unbounded Dirichlet process UDP(G₀, α₀, φ): κ ~ φ, then BDP(G₀, α₀, κ).

    `size_weights` defines φ: entry k is proportional to the probability of k vectors, as in `torch.bincount` of
    observed sizes. Entry 0 must be 0.

    >>> sizes = torch.bincount(torch.tensor([3, 3, 5]))
    >>> mixtures = UDP(torch.zeros(8), torch.zeros(8), torch.tensor(3.0), sizes).sample(10)
    """

    mu: Float[Tensor, " p"]
    log_sigma: Float[Tensor, " p"]
    alpha0: Float[Tensor, ""]
    size_weights: Real[Tensor, " sizes"]

    def __post_init__(self) -> None:
        weights = self.size_weights, "real sizes; >= 0, some > 0", "Use torch.bincount of observed sizes."
        check("UDP", **_prior_arguments(self, alpha0=self.alpha0), size_weights=weights)
        if can_read(self.size_weights) and self.size_weights[0] != 0:
            raise ValueError(f"UDP: size_weights[0] is {self.size_weights[0]}, expected 0: a mixture has a vector.")

    def sample(self, count: int, *, method: Method = "paper", generator: Noise = None) -> ImpulseMixture:
        """Sample `count` mixtures of various sizes, padded with weights of zero to the largest."""
        check("UDP.sample", count=(count, int))
        kappa = torch.multinomial(widen(self.size_weights), count, replacement=True, generator=generator)
        return BDP(self.mu, self.log_sigma, self.alpha0).sample(kappa, method=method, generator=generator)


@dataclass(frozen=True, eq=False)
class ConditionalBDP(TensorRecord):
    """The prior given that a text has n tokens: BDP(G₀^p, α₀^p + nΔ, n + 1). Δ = 0 is the plain bounded prior.

    With `keep_share` s, for an encoder that merges n tokens into about sn vectors, it is BDP(G₀^p, α₀^p + nΔ, m + 1)
    with m = ⌈sn⌉, or ⌊sn⌋ if the remainder is at most MAX_JOINED_REMAINDER; m ≥ 1 for a text that has tokens.

    >>> NVIB(8).prior.sample([4, 2]).vectors.shape  # the prior of a layer, for texts of 4 and 2 tokens
    torch.Size([2, 5, 8])
    """

    mu: Float[Tensor, " p"]
    log_sigma: Float[Tensor, " p"]
    alpha0_p: Float[Tensor, ""]
    delta: Float[Tensor, ""]
    keep_share: Float[Tensor, ""] | None = None

    def __post_init__(self) -> None:
        delta = self.delta, "; >= 0", "It is the pseudo-count that the prior expects of each token."
        share = {} if self.keep_share is None else {"keep_share": (self.keep_share, "; share")}
        check("ConditionalBDP", **_prior_arguments(self, alpha0_p=self.alpha0_p), delta=delta, **share)

    def alpha0(self, lengths: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """Compute α₀^{p′} = α₀^p + nΔ, in float64."""
        return widen(self.alpha0_p) + lengths * widen(self.delta)

    def vectors(self, lengths: Int[Tensor, "*batch"]) -> Int[Tensor, "*batch"]:
        """Compute the number of vectors of a text of n tokens, without the prior's: n, or m."""
        if self.keep_share is None:
            return lengths
        return vectors_at(self.keep_share, lengths)

    def posterior(self, alpha: PerToken, mu: Hidden, log_sigma: Hidden, mask: TokenMask) -> "Posterior":
        """Make the posterior of the tokens' components; the prior's component follows them as the last."""
        return unchecked(
            Posterior,
            alpha=append_component(alpha, self.alpha0_p),
            mu=append_component(mu, self.mu),
            log_sigma=append_component(log_sigma, self.log_sigma),
            mask=F.pad(mask, (0, 1), value=True),
            prior=self,
        )

    def sample(
        self,
        lengths: Counts,
        *,
        vectors: Counts | None = None,
        kappa: int = 1,
        method: Method = "paper",
        generator: Noise = None,
    ) -> ImpulseMixture:
        """Sample (n + 1)·kappa vectors, or (m + 1)·kappa, for each length n, padded with weights of zero.

        `vectors` is another m for each text.
        """
        check("ConditionalBDP.sample", kappa=(kappa, int))
        n = _as_counts("ConditionalBDP.sample", "lengths", lengths, ">= 0", like=self.mu)
        m = self.vectors(n)
        if vectors is not None:
            m = _as_counts("ConditionalBDP.sample", "vectors", vectors, ">= 0", like=self.mu)
            check("ConditionalBDP.sample", lengths=(n, "int batch"), vectors=(m, "int #batch", "Give one for each."))
            m = m.expand_as(n)
        return _sample_bounded(self, (m + 1) * kappa, self.alpha0(n), method, generator)


@dataclass(frozen=True)
class KL:
    """The two parts of KL(posterior ‖ prior) of each text: L_D and L_G.

    >>> NVIB(8)(torch.randn(2, 5, 8)).kl().dirichlet.shape
    torch.Size([2])
    """

    dirichlet: Float[Tensor, " batch"]
    gaussian: Float[Tensor, " batch"]

    def per_token(self, lengths: Int[Tensor, " batch"], p: int) -> "KL":
        """Scale the parts as the loss has them: L_D/n and L_G/(n p), with n = 1 for a text without tokens."""
        n = lengths.clamp(min=1)
        return KL(dirichlet=self.dirichlet / n, gaussian=self.gaussian / (n * p))


@dataclass(frozen=True, eq=False)
class Posterior(BatchRecord):
    """The bounded factorised Dirichlet process BFDP(G^q, α^q, κ) of a batch of texts.

    There is one component for each token, and the prior's component is the last. A token that the encoder dropped or
    merged into another component has α = 0 and is real in `mask`; padding has α = 0 and is not real.

    >>> posterior = NVIB(8)(torch.randn(2, 5, 8))
    >>> attended = DenoisingAttention(8)(torch.randn(2, 3, 8), posterior.sample())
    >>> loss = attended.square().mean() + posterior.loss(lambda_g=0.01, lambda_d=1.0)
    """

    alpha: Float[Tensor, "batch n"]
    mu: Float[Tensor, "batch n p"]
    log_sigma: Float[Tensor, "batch n p"]
    mask: Bool[Tensor, "batch n"]
    prior: ConditionalBDP

    def __post_init__(self) -> None:
        vectors = {
            "mu": (self.mu, "batch n p"),
            "log_sigma": (self.log_sigma, "batch n p"),
            "prior": (self.prior.mu, "p"),
        }
        check("Posterior", alpha=(self.alpha, "batch n; >= 0"), **vectors, mask=(self.mask, "bool batch n"))
        check("Posterior", **{"alpha[:, -1]": (self.alpha[:, -1], "batch; > 0", "It is the prior's component.")})

    @property
    def alpha0(self) -> Float[Tensor, " batch"]:
        """α₀^q = Σᵢ αᵢ, the total pseudo-count, with that of the prior's component."""
        return self.alpha.sum(-1)

    @property
    def lengths(self) -> Int[Tensor, " batch"]:
        """Number of real tokens, without the prior's component."""
        return self.mask.sum(-1) - 1

    @property
    def kept(self) -> Float[Tensor, " batch"]:
        """ν, the number of components with α > 0 per real token (0 for a text without tokens)."""
        alive = ((self.alpha > 0) & self.mask)[:, :-1].sum(-1)
        return alive / self.lengths.clamp(min=1)

    def sample(self, kappa: int = 1, method: Method = "paper", generator: Noise = None) -> ImpulseMixture:
        """Draw the factorised sample of `eq:eq:bnd-posterior`: `kappa` adjacent vectors for each component.

        ρ ~ Dir(α) divides the weight between components, and π′ᵢ ~ Dir(αᵢ/κ, …) divides a component's weight between
        its vectors. There is no categorical choice, so gradients reach α, μ and σ.
        """
        check("Posterior.sample", kappa=(kappa, int), method=(method, METHODS))
        log_pi = log_dirichlet(self.alpha, method=method, generator=generator)
        mu, log_sigma = self.mu, self.log_sigma
        if kappa > 1:
            within = widen(torch.where(self.alpha == 0, 1.0, self.alpha)) / kappa
            within = within.unsqueeze(-1).expand(*within.shape, kappa)
            log_pi = log_pi.unsqueeze(-1) + log_dirichlet(within, method=method, generator=generator)
            log_pi = log_pi.flatten(-2)
            mu, log_sigma = (x.repeat_interleave(kappa, dim=-2) for x in (mu, log_sigma))
        z = mu + log_sigma.exp() * normal_like(mu, generator)
        return unchecked(ImpulseMixture, z=z, log_pi=log_pi.to(mu.dtype))

    def mean(self) -> GaussianMixture:
        """Return the mean of the process, its base distribution G₀^q (`eq:inf-posterior`), to use at test time."""
        return unchecked(GaussianMixture, mu=self.mu, log_sigma=self.log_sigma, log_alpha=log_weight(self.alpha))

    def points(self) -> ImpulseMixture:
        """Read each component as a typical draw without its noise (`GaussianMixture.points`)."""
        return self.mean().points()

    def kl(self, form: KLForm = "expected", *, kappa: int = 1) -> KL:
        """Compute the KL to the conditional prior with `kappa` vectors per component, κ₀ = (n + 1)·kappa in total.

        `expected` (`eq:KLloss-kappa`) divides the κ₀ vectors in proportion to α. `exact` (`eq:KLloss`) has κᵢ = kappa
        for every token; for αᵢ = 0 it is the limit. Tokens that a layer with `keep_share` merged into another component
        are not components and do not count: n is then the number of components, which is `prior.vectors` if α₀ is what
        the prior expects.
        """
        check("Posterior.kl", form=(form, KL_FORMS), kappa=(kappa, int))
        alpha0_p = self.prior.alpha0(self.lengths)
        prior = {"prior_mu": self.prior.mu, "prior_log_sigma": self.prior.log_sigma}
        gaussian = gaussian_kl(self.mu, self.log_sigma, **prior)  # (batch, n)
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

    def loss(self, *, lambda_g: float, lambda_d: float, form: KLForm = "expected", kappa: int = 1) -> Float[Tensor, ""]:
        """Compute what to add to the reconstruction loss: the mean over texts of λ′_G/(n d) L_G + λ′_D/n L_D.

        Section "Loss" of the paper, with d the size of a vector. `kappa` is that of `sample`.
        """
        weights = {"lambda_g": lambda_g, "lambda_d": lambda_d}
        check("Posterior.loss", **{name: (value, "number; >= 0", "") for name, value in weights.items()})
        kl = self.kl(form, kappa=kappa).per_token(self.lengths, self.mu.shape[-1])
        return lambda_g * kl.gaussian.mean() + lambda_d * kl.dirichlet.mean()

    def prune(self, threshold: float) -> "Posterior":
        """Drop tokens with α ≤ `threshold` and scale the other components, also the prior's, so that α₀ stays the same.

        The shape and the alignment with the tokens stay the same; `mean().compact()` removes the dropped components.
        """
        check("prune", threshold=(threshold, "number; >= 0", "It is a pseudo-count."))
        keep = self.alpha > threshold
        keep = torch.cat([keep[:, :-1], torch.ones_like(keep[:, -1:])], -1)
        kept = torch.where(keep, self.alpha, 0.0)
        alpha = kept * (self.alpha0 / kept.sum(-1)).unsqueeze(-1)
        return unchecked(Posterior, **(values_of(self) | {"alpha": alpha}))

    def mix(self, other: "Posterior", weight: float | Float[Tensor, " batch"]) -> GaussianMixture:
        """Mix (1 − weight)·self.mean() + weight·other.mean(): a point on the path between two texts."""
        check("mix", other=(other, Posterior, "Encode the other text, too."))
        return self.mean().mix(other.mean(), weight)

    @staticmethod
    def cat(posteriors: "Sequence[Posterior]") -> "Posterior":
        """Join posteriors with the same prior into one batch; shorter texts are padded."""
        posteriors = list(posteriors)
        check("Posterior.cat", **{f"posteriors[{i}]": (posterior, Posterior) for i, posterior in enumerate(posteriors)})
        if not posteriors or not all(_same_prior(posteriors[0].prior, posterior.prior) for posterior in posteriors):
            raise ValueError("Posterior.cat: posteriors are none or have several priors, expected one. Use one layer.")
        longest = max(posterior.alpha.shape[-1] for posterior in posteriors)
        return join([posterior.pad_to(longest) for posterior in posteriors])

    def pad_to(self, size: int) -> "Posterior":
        """Insert padding between the tokens and the prior's component, which stays last."""
        extra = size - self.alpha.shape[-1]
        if extra < 0:
            raise ValueError(
                f"Posterior.pad_to: size is {size}, expected at least the {self.alpha.shape[-1]} there are."
            )

        def pad(x: Tensor) -> Tensor:
            axes = (0, extra) if x.ndim == 2 else (0, 0, 0, extra)
            return torch.cat([F.pad(x[:, :-1], axes), x[:, -1:]], 1)

        return self.map_rows(pad) if extra else self


def _prior_arguments(prior: BDP | UDP | ConditionalBDP, **concentration: Tensor) -> dict[str, Any]:
    """Return the arguments of `check` for the Gaussian and the concentration of a prior."""
    alpha0 = {name: (value, "; > 0", "The paper's concentration is 1.") for name, value in concentration.items()}
    return {"mu": (prior.mu, "p"), "log_sigma": (prior.log_sigma, "p"), **alpha0}


def _same_prior(a: ConditionalBDP, b: ConditionalBDP) -> bool:
    if a is b or (a.keep_share is None) != (b.keep_share is None):
        return a is b
    pairs = zip(values_of(a).values(), values_of(b).values(), strict=True)
    return all(torch.equal(mine, theirs) for mine, theirs in pairs if mine is not None)


def _sample_bounded(
    base: BDP | ConditionalBDP, kappa0: Tensor, alpha0: Tensor, method: str, generator: Noise
) -> ImpulseMixture:
    """Sample BDP(G₀, alpha0, kappa0) for each entry of the (batch,) tensors."""
    check("sample", method=(method, METHODS))
    largest = int(kappa0.max()) if len(kappa0) else 0
    real = torch.arange(largest, device=kappa0.device) < kappa0.unsqueeze(-1)  # (batch, largest)
    alpha = torch.where(real, (widen(alpha0) / kappa0).unsqueeze(-1), 0.0)
    log_pi = log_dirichlet(alpha, method=method, generator=generator)
    mu = base.mu.expand(*real.shape, -1)
    z = torch.where(real.unsqueeze(-1), mu + base.log_sigma.exp() * normal_like(mu, generator), 0.0)
    return unchecked(ImpulseMixture, z=z, log_pi=log_pi.to(mu.dtype))


def _as_counts(where: str, name: str, value: Counts, domain: str, *, like: Tensor) -> Tensor:
    """Convert to whole numbers (batch,) on the device of `like`."""
    counts = torch.as_tensor(value, device=like.device)
    counts = counts.unsqueeze(0) if counts.ndim == 0 else counts
    check(where, **{name: (counts, f"int batch; {domain}", "Count vectors or tokens.")})
    return counts.long()
