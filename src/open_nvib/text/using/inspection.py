"""Inspect a latent: what each output token attended to, other weights, differences of texts, and pictures."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from open_nvib.attention import Mixture
from open_nvib.mixtures import ImpulseMixture
from open_nvib.process import Posterior
from open_nvib.store.files import InputError
from open_nvib.text.model.autoencoder import TextAutoencoder
from open_nvib.text.model.bottlenecks import Latent
from open_nvib.text.using.run import TextReport


@torch.no_grad()
def attention_map(model: TextAutoencoder, mixture: Mixture, ids: Sequence[int]) -> Float[Tensor, "outputs n"]:
    """The share of each vector in what the decoder read when it wrote each token of `ids`, and then its end.

    `mixture` is of one text, such as `latent.mean()`; of an NVAE the last column is the prior's component. The mean
    over layers and heads: each row sums to 1.
    """
    device, config = model.device, model.config
    written = torch.tensor([[config.decoder_start_token_id, *ids]], device=device)
    hidden = model.encoder.embedding(written)
    maps = []
    for layer, memory in zip(model.decoder.layers, model.decoder.project(mixture), strict=True):
        own = hidden + layer.attention(layer.norms[0](hidden), causal=True)  # pyright: ignore
        maps.append(layer.cross_attention.weights(layer.norms[1](own), memory)[0].mean(0))  # pyright: ignore
        hidden = layer(hidden, memory, None)
    return torch.stack(maps).mean(0)


def reweight(latent: Latent, factors: Mapping[int, float]) -> Mixture:
    """The mean of a latent of one text, the weight of some of its vectors multiplied: by 0, a vector is switched off.

    In an NVAE the pseudo-count α is multiplied. In the others, where the weights follow from the norms of the vectors,
    the weight π.
    """
    count = latent.mask.shape[-1] - isinstance(latent, Posterior)  # the prior's component is not a token's
    scale = torch.ones(latent.mask.shape[-1], device=latent.mask.device)
    for index, factor in factors.items():
        if not 0 <= index < count:
            raise InputError(f"vector {index} does not exist, wanted 0 to {count - 1}.")
        if not 0 <= factor < float("inf"):
            raise InputError(f"the weight of vector {index} is multiplied by {factor}, wanted a number of at least 0.")
        scale[index] = factor
    if isinstance(latent, Posterior):
        return replace(latent, alpha=latent.alpha * scale.to(latent.alpha.dtype)).mean()
    mean = latent.mean()
    log_pi = mean.log_pi + scale.log().to(mean.log_pi.dtype)
    if not log_pi.isfinite().any():
        raise InputError("all vectors are switched off, and this model has no prior to fall back on. Leave one on.")
    return ImpulseMixture(z=mean.z, log_pi=log_pi)


def readable(token: str) -> tuple[str, bool]:
    """A token as people write it, and whether it begins a word."""
    if token.startswith("##"):
        return token[2:], False
    for mark in ("Ġ", "▁"):
        if mark in token:
            return token.replace(mark, ""), True
    return token, True


@dataclass(frozen=True)
class Difference:
    """A run of words: what the first text has, what the second has, one of them perhaps nothing."""

    before: str
    after: str

    @property
    def same(self) -> bool:
        return self.before == self.after


def differences(before: str, after: str) -> list[Difference]:
    """The two texts as runs of words that are alike or not, in order."""
    first, second = before.split(), after.split()
    matcher = difflib.SequenceMatcher(None, first, second, autojunk=False)
    return [
        Difference(" ".join(first[low:high]), " ".join(second[start:end]))
        for _, low, high, start, end in matcher.get_opcodes()
    ]


BAR, DROPPED = "#0072B2", "#999999"


def draw_reports(reports: Sequence[TextReport], path: str | Path) -> Path:
    """Bars for each vector, over its tokens: its share of the weight, and its KL. Dropped tokens are struck out."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    path = Path(path)
    widest = max(len(report.tokens) for report in reports)
    figure, axes = plt.subplots(
        2 * len(reports), 1, figsize=(max(6.0, 0.55 * widest), 3.6 * len(reports)), layout="constrained", squeeze=False
    )
    for row, report in enumerate(reports):
        places = range(len(report.tokens))
        upper, lower = axes[2 * row, 0], axes[2 * row + 1, 0]
        firsts = [index for index, token in enumerate(report.tokens) if not token.shared]
        lasts = {token.place: index for index, token in enumerate(report.tokens) if token.present}
        ends = [lasts.get(report.tokens[index].place, index) for index in firsts]
        centres = [(first + last) / 2 for first, last in zip(firsts, ends, strict=True)]
        bars = [last - first + 0.8 for first, last in zip(firsts, ends, strict=True)]
        upper.bar(centres, [100 * report.tokens[index].weight for index in firsts], bars, color=BAR)
        upper.set_ylabel("weight (%)")
        upper.set_title(f"{report.text}\n→ {report.reconstruction}", fontsize=9, loc="left", wrap=True)
        upper.set_xticks([])
        lower.bar(centres, [report.tokens[index].kl or 0.0 for index in firsts], bars, color="#E69F00")
        lower.set_ylabel("KL (nats)")
        lower.set_xticks(
            list(places),
            [_label(token.token, token.present) for token in report.tokens],
            rotation=60,
            ha="right",
        )
        for label, token in zip(lower.get_xticklabels(), report.tokens, strict=True):
            label.set_color("black" if token.present else DROPPED)
        for one in (upper, lower):
            one.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: the picture cannot be written ({error}). Give a path that ends in .png or .svg."
        ) from error
    finally:
        plt.close(figure)
    return path


def _label(token: str, kept: bool) -> str:
    """A stroke through every letter of what was dropped."""
    text = token.replace("$", r"\$")
    return text if kept else "".join(f"{letter}\u0336" for letter in text)
