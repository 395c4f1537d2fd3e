"""Pieces of the page as HTML, by the macros of pieces.html.j2. Whatever comes from a text is escaped."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from jaxtyping import Float
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from torch import Tensor

from open_nvib.text.drawing import text_differences
from open_nvib.text.using.inspection import TokenReport, readable_token

MAX_MAP = 64
"""Rows and columns of a map of attention: more than that nobody can read, and a browser is slow to draw."""
MAX_NAME_LETTERS = 24
"""Of a vector, which can have all tokens of a text."""

_templates = Environment(
    loader=PackageLoader("open_nvib.app", "."),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)
_templates.filters |= {"readable": readable_token, "differences": text_differences}
pieces: Any = _templates.get_template("pieces.html.j2").module
"""The macros, each a function that returns HTML."""


def token_strip(tokens: Sequence[TokenReport], prior_weight: float = 0.0, *, pooled: bool = False) -> Markup:
    """The text as its tokens, coloured by the weight of their vector, or by its KL if most weigh the same.

    Dropped tokens are struck through. Tokens that share a vector stand on one ground; with `pooled`, all do.
    """
    if pooled:
        tokens = [replace(token, kept=True, weight=1.0) for token in tokens]
    kept = [token for token in tokens if token.kept]
    weights, nats = [token.weight for token in kept], [token.kl for token in kept if token.kl is not None]
    usual = median(weights) if weights else 0.0
    by_kl = bool(nats) and not pooled and sum(abs(weight - usual) < 0.01 * usual for weight in weights) > len(kept) / 2
    most = (max(nats) if by_kl else max(weights, default=0.0)) or 1.0
    spans: list[tuple[TokenReport, TokenReport | None]] = []  # each token with the one whose vector it is in
    shades = []
    vector: TokenReport | None = None
    for token in tokens:
        vector = token if token.kept else vector
        spans.append((token, vector if token.present else None))
        shades.append(round(8 + 62 * ((vector.kl or 0.0) if by_kl else vector.weight) / most) if vector else 0)
    line = f"{len(kept)} of {len(tokens)} vectors kept"
    if pooled:
        line = f"one vector for all {len(tokens)} tokens"
    elif any(token.shared for token in tokens):
        line = f"{len(kept)} vector{'s' * (len(kept) != 1)} for {len(tokens)} tokens; those on one ground share one"
    colour = f"KL, {min(nats):.0f} to {max(nats):.0f} nats" if by_kl else "weight"
    prior = f"; the prior has {prior_weight:.0%} of the weight" if prior_weight else ""
    lines = [line + prior, f"stronger colour: more {colour}" if len(kept) > 1 and not pooled else ""]
    return pieces.token_strip(spans, shades, lines)


def joined(tokens: Sequence[TokenReport]) -> str:
    """Tokens as text, pieces of a word together; a long text is cut."""
    read = [readable_token(token.token) for token in tokens]
    text = "".join(f" {text}" if begins and index else text for index, (text, begins) in enumerate(read))
    return text if len(text) <= MAX_NAME_LETTERS else f"{text[: MAX_NAME_LETTERS - 1]}…"


def heat_map(outputs: Sequence[str], vectors: Sequence[str], weights: Float[Tensor, "outputs n"]) -> Markup:
    """Which vector (column) each output token (row) was read from. Columns that nothing was read from are left out."""
    weights = weights[:MAX_MAP, : len(vectors)]
    shown = (weights.amax(0) >= 0.005).nonzero().flatten().tolist()[:MAX_MAP]
    caption = "row: token written; column: vector read"
    if len(outputs) >= MAX_MAP:
        caption += f"; the first {MAX_MAP} tokens only"
    rows = zip(outputs[:MAX_MAP], weights[:, shown].tolist(), strict=True)
    return pieces.heat_map(caption, [vectors[index] for index in shown], rows)
