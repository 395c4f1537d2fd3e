"""Inspect a latent: what it kept of each token, what each output token attended to, other weights, and pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from open_nvib.attention import Mixture
from open_nvib.merging import VectorRequest
from open_nvib.store.files import InputError
from open_nvib.text.drawing import BLUE, INK, MUTED, ORANGE, save_figure
from open_nvib.text.model.autoencoder import LatentOutput, TextAutoencoder
from open_nvib.text.model.bottlenecks import Bottleneck, Latent


@dataclass(frozen=True)
class TokenReport:
    """What the latent kept of one token.

    Args:
        token: the token.
        alpha: the pseudo-count of its vector, where the model has them.
        weight: its share of the latent's weight.
        kept: whether it has a vector in the latent, or is the first of those that share one.
        sigma: mean standard deviation of its vector.
        kl: KL of its vector to the prior, in nats.
        shared: whether it is in the vector of a token before it, whose report has the numbers.
        place: index of its vector in the latent; None if it was dropped.
    """

    token: str
    alpha: float | None = None
    weight: float = 0.0
    kept: bool = False
    sigma: float | None = None
    kl: float | None = None
    shared: bool = False
    place: int | None = None

    @property
    def present(self) -> bool:
        """Whether anything of it is in the latent."""
        return self.kept or self.shared


@dataclass(frozen=True)
class LatentReport:
    """The latent of one text, a report on each of its tokens, and the weight of the prior's component."""

    latent: Latent
    tokens: list[TokenReport]
    prior_weight: float


@dataclass(frozen=True)
class TextReport:
    """What the latent kept of one text, and what comes back out of it.

    ```python
    (report,) = load_run("runs/nvae").inspect("A sentence.")
    [token.token for token in report.tokens if token.kept]
    ```
    """

    text: str
    reconstruction: str
    tokens: list[TokenReport]
    prior_weight: float


@torch.no_grad()
def inspect_latent(
    bottleneck: Bottleneck,
    hidden: Float[Tensor, "1 n size"],
    mask: Bool[Tensor, "1 n"],
    tokens: Sequence[str],
    request: VectorRequest | None = None,
) -> LatentReport:
    """Encode the hidden states of one text and report on each of its tokens."""
    latent = bottleneck(hidden, mask, request)
    components = bottleneck.component_of_token(hidden, mask, request)[0].tolist()
    kept = bottleneck.kept_vectors(latent)[0].nonzero().flatten().tolist()
    first_tokens = _first_tokens(kept, components)
    sigma = None if latent.log_sigma is None else latent.log_sigma.exp().mean(-1)
    columns = {"alpha": latent.alpha, "weight": bottleneck.weights(latent), "sigma": sigma}
    columns["kl"] = bottleneck.vector_kl(latent)
    numbers = {name: column[0].tolist() for name, column in columns.items() if column is not None}
    reports = []
    for index, (token, component) in enumerate(zip(tokens, components, strict=False)):
        place = first_tokens.get(index)
        if place is None and component >= 0:
            reports.append(TokenReport(token, shared=True, place=component))
        elif place is None and not bottleneck.can_drop:
            reports.append(TokenReport(token, alpha=0.0 if "alpha" in numbers else None))
        else:  # the vector of a dropped token is there, with a weight of 0
            own = {name: values[index if place is None else place] for name, values in numbers.items()}
            reports.append(TokenReport(token, **own, kept=place is not None, place=place))
    return LatentReport(latent, reports, prior_weight=numbers["weight"][-1] if "alpha" in numbers else 0.0)


def _first_tokens(places: Sequence[int], components: Sequence[int]) -> dict[int, int]:
    """Map the first token of each vector to the place of the vector.

    That is the first token whose largest share lies in the vector; the token at the vector's place if there is none.
    """
    first: dict[int, int] = {}
    for index, component in enumerate(components):
        first.setdefault(component, index)
    found: dict[int, int] = {}
    for place in reversed(places):
        index = first.get(place, place)
        found[place if index in found else index] = place
    return found


def group_by_vector(tokens: Sequence[TokenReport]) -> list[tuple[int, list[TokenReport]]]:
    """Group tokens by vector: the place of each vector in the latent, and the tokens that are in it."""
    vectors: dict[int, list[TokenReport]] = {}
    for token in tokens:
        if token.place is not None:
            vectors.setdefault(token.place, []).append(token)
    return list(vectors.items())


@torch.no_grad()
def attention_map(model: TextAutoencoder, mixture: Mixture, ids: Sequence[int]) -> Float[Tensor, "outputs n"]:
    """Compute the share of each vector in what the decoder read when it wrote each token of `ids`, and then its end.

    `mixture` is of one text, such as `latent.mean()`; of an NVAE the last column is the prior's component. The mean
    over layers and heads: each row sums to 1.
    """
    written = torch.tensor([[model.config.decoder_start_token_id, *ids]], device=model.device)
    hidden = model.embed(written)
    maps = []
    for layer, memory in zip(model.decoder.layers, model.decoder.project(mixture), strict=True):
        own = layer.recall(hidden)
        maps.append(layer.weights(own, memory)[0].mean(0))
        hidden = layer.read(own, memory)
    return torch.stack(maps).mean(0)


def reweight(latent: Latent, factors: Mapping[int, float]) -> Mixture:
    """Multiply the weight of some vectors of one text, by index, and return the mean; 0 switches a vector off.

    In an NVAE that multiplies the pseudo-count α. In the others, where the weights follow from the norms of the
    vectors, it multiplies the weight π.
    """
    has_prior_component = latent.alpha is not None
    count = latent.mask.shape[-1] - has_prior_component
    mean = LatentOutput.of(latent.mean())
    log_weight = cast(Tensor, mean.log_weight)
    scale = torch.ones_like(log_weight)
    for index, factor in factors.items():
        if not 0 <= index < count:
            raise InputError(f"vector {index} does not exist, expected 0 to {count - 1}.")
        if not 0 <= factor < float("inf"):
            raise InputError(f"the factor of vector {index} is {factor}, expected a number of at least 0.")
        scale[:, index] = factor
    mean.log_weight = log_weight = log_weight + scale.log()
    if not log_weight.isfinite().any():
        raise InputError("all vectors are switched off, and this model has no prior to fall back on. Leave one on.")
    return mean.mixture()


def readable_token(token: str) -> tuple[str, bool]:
    """Return a token as people write it, and whether it begins a word."""
    if token.startswith("##"):
        return token[2:], False
    for mark in ("Ġ", "▁"):
        if mark in token:
            return token.replace(mark, ""), True
    return token, True


def _drawable(text: str) -> str:
    """Return a text for matplotlib: a dollar is no formula, and a character without a picture is U+FFFD."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text).replace("$", r"\$")


def draw_reports(reports: Sequence[TextReport], path: str | Path) -> Path:
    """Draw the share of the weight and the KL of each vector as bars over its tokens; dropped tokens are struck out."""
    from matplotlib.figure import Figure

    widest = max(len(report.tokens) for report in reports)
    figure = Figure(figsize=(max(6.0, 0.55 * widest), 3.6 * len(reports)), layout="constrained")
    axes = figure.subplots(2 * len(reports), 1, squeeze=False)
    for row, report in enumerate(reports):
        upper, lower = axes[2 * row, 0], axes[2 * row + 1, 0]
        # A bar reaches over the tokens of its vector.
        firsts = [index for index, token in enumerate(report.tokens) if not token.shared]
        lasts = {token.place: index for index, token in enumerate(report.tokens) if token.present}
        ends = [lasts.get(report.tokens[index].place, index) for index in firsts]
        centres = [(first + last) / 2 for first, last in zip(firsts, ends, strict=True)]
        widths = [last - first + 0.8 for first, last in zip(firsts, ends, strict=True)]
        upper.bar(centres, [100 * report.tokens[index].weight for index in firsts], widths, color=BLUE)
        upper.set_ylabel("weight (%)")
        title = f"{_drawable(report.text)}\n→ {_drawable(report.reconstruction)}"
        upper.set_title(title, fontsize=9, loc="left", wrap=True)
        upper.set_xticks([])
        lower.bar(centres, [report.tokens[index].kl or 0.0 for index in firsts], widths, color=ORANGE)
        lower.set_ylabel("KL (nats)")
        labels = [_label(token.token, token.present) for token in report.tokens]
        lower.set_xticks(range(len(labels)), labels, rotation=60, ha="right")
        for label, token in zip(lower.get_xticklabels(), report.tokens, strict=True):
            label.set_color(INK if token.present else MUTED)
        for one in (upper, lower):
            one.spines[["top", "right"]].set_visible(False)
    return save_figure(figure, path, dpi=150)


def _label(token: str, present: bool) -> str:
    """Strike out every letter of a dropped token."""
    text = _drawable(token)
    return text if present else "".join(f"{letter}\u0336" for letter in text)
