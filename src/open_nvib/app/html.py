"""Pieces of the page as HTML. Whatever comes from a text is escaped."""

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from statistics import median

from jaxtyping import Float
from torch import Tensor

from open_nvib.text.drawing import text_differences
from open_nvib.text.using.inspection import TokenReport, readable_token

MAX_MAP = 64
"""Rows and columns of a map of attention: more than that nobody can read, and a browser is slow to draw."""
MAX_NAME_LETTERS = 24
"""Of a vector, which can have all tokens of a text."""


def message(title: str, text: str) -> str:
    return f'<p class="nv-message" role="alert"><strong>{escape(title)}</strong>: {escape(text)}</p>'


def notes(lines: Sequence[str]) -> str:
    return "".join(f'<p class="nv-note">{escape(line)}</p>' for line in lines if line)


def token_strip(tokens: Sequence[TokenReport], prior_weight: float = 0.0, *, pooled: bool = False) -> str:
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
    ground, pieces = "", []
    for token in tokens:
        text, begins = readable_token(token.token)
        space = " " if begins and pieces else ""
        if token.kept:
            shade = 8 + 62 * ((token.kl or 0.0) if by_kl else token.weight) / most
            ground = f'style="--shade:{round(shade)}%" title="{_facts(token)}"'
            pieces.append(f'{space}<span class="nv-token" {ground}>{escape(text)}</span>')
        elif token.shared:
            pieces.append(f'<span class="nv-token nv-shared" {ground}>{space}{escape(text)}</span>')
        else:
            pieces.append(f'{space}<del class="nv-dropped" title="no vector of its own">{escape(text)}</del>')
    line = f"{len(kept)} of {len(tokens)} vectors kept"
    if pooled:
        line = f"one vector for all {len(tokens)} tokens"
    elif any(token.shared for token in tokens):
        line = f"{len(kept)} vector{'s' * (len(kept) != 1)} for {len(tokens)} tokens; those on one ground share one"
    colour = f"KL, {min(nats):.0f} to {max(nats):.0f} nats" if by_kl else "weight"
    prior = f"; the prior has {prior_weight:.0%} of the weight" if prior_weight else ""
    lines = [line + prior, f"stronger colour: more {colour}" if len(kept) > 1 and not pooled else ""]
    return f'<div class="nv-text">{"".join(pieces)}</div>{notes(lines)}'


def joined(tokens: Sequence[TokenReport]) -> str:
    """Tokens as text, pieces of a word together; a long text is cut."""
    read = [readable_token(token.token) for token in tokens]
    text = "".join(f" {text}" if begins and index else text for index, (text, begins) in enumerate(read))
    return text if len(text) <= MAX_NAME_LETTERS else f"{text[: MAX_NAME_LETTERS - 1]}…"


def marked(before: str, after: str, note: str) -> str:
    """The second text, with what the first does not have marked and what it lost struck through, and a note."""
    return f'<div class="nv-text">{_differences(before, after)}</div>{notes([note])}'


def _differences(before: str, after: str, *, lost: bool = True) -> str:
    pieces = []
    for piece in text_differences(before, after):
        if piece.before and lost and not piece.same:
            pieces.append(f'<del class="nv-lost">{escape(piece.before)}</del>')
        if piece.after:
            new = escape(piece.after)
            pieces.append(new if piece.same else f'<ins class="nv-new">{new}</ins>')
    return " ".join(pieces)


def token_table(tokens: Sequence[TokenReport]) -> str:
    """A row for each token: its pseudo-count, weight, spread and information."""
    rows = "".join(
        f'<tr class="{"nv-kept" if token.present else "nv-gone"}"><th scope="row">{escape(token.token)}</th>'
        f"<td>{_number(token.alpha, 3)}</td><td>{'↑' if token.shared else f'{token.weight:.1%}'}</td>"
        f"<td>{_number(token.sigma, 3)}</td><td>{_number(token.kl, 1)}</td></tr>"
        for token in tokens
    )
    head = "".join(f'<th scope="col">{title}</th>' for title in ("token", "α", "weight", "mean σ", "KL (nats)"))
    return _scrolled(f'<table class="nv-table"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>')


def heat_map(outputs: Sequence[str], vectors: Sequence[str], weights: Float[Tensor, "outputs n"]) -> str:
    """Which vector (column) each output token (row) was read from. Columns that nothing was read from are left out."""
    outputs, weights = outputs[:MAX_MAP], weights[:MAX_MAP]
    shown = [index for index in range(len(vectors)) if weights[:, index].max().item() >= 0.005][:MAX_MAP]
    head = "".join(f'<th scope="col"><span>{escape(vectors[index])}</span></th>' for index in shown)
    rows = []
    for output, row in zip(outputs, weights.tolist(), strict=True):
        cells = "".join(
            f'<td style="--shade:{row[index]:.0%}" title="{escape(output)} from {escape(vectors[index])}: '
            f'{row[index]:.0%}"><span class="nv-hidden">{row[index]:.0%}</span></td>'
            for index in shown
        )
        rows.append(f'<tr><th scope="row">{escape(output)}</th>{cells}</tr>')
    caption = "row: token written; column: vector read"
    if len(outputs) == MAX_MAP:
        caption += f"; the first {MAX_MAP} tokens only"
    return _scrolled(
        f'<table class="nv-heat"><caption>{caption}</caption>'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def text_list(texts: Sequence[str]) -> str:
    """Texts one under the other, numbered."""
    items = "".join(f"<li>{escape(text) or '<em>(empty)</em>'}</li>" for text in texts)
    return f'<ol class="nv-list">{items}</ol>'


def path_table(weights: Sequence[float], texts: Sequence[str]) -> str:
    """The points of a path: how far along each is, and its text with what is new against the one before."""
    rows = "".join(
        f'<tr><th scope="row">{weight:.0%}</th><td>{_differences(before, text, lost=False)}</td></tr>'
        for weight, before, text in zip(weights, [texts[0], *texts], texts, strict=False)
    )
    head = '<th scope="col">along</th><th scope="col">text; underlined: new since the row above</th>'
    return f'<table class="nv-table nv-path"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def cards(pieces: Sequence[tuple[str, str]]) -> str:
    """Titled pieces side by side, one under the other where the page is narrow. The bodies are HTML already."""
    made = "".join(f'<section class="nv-card"><h3>{escape(title)}</h3>{body}</section>' for title, body in pieces)
    return f'<div class="nv-cards">{made}</div>'


def framed(page: str, title: str) -> str:
    """A whole page within the page, as high as it is. It can run nothing."""
    fit = "this.style.height = this.contentDocument.documentElement.scrollHeight + 'px'"
    observe = f"new ResizeObserver(() => {fit}).observe(this.contentDocument.body)"
    return (
        f'<iframe class="nv-frame" sandbox="allow-same-origin" onload="{observe}" title="{escape(title)}" '
        f'srcdoc="{escape(page)}"></iframe>'
    )


def _facts(token: TokenReport) -> str:
    facts = [f"{token.weight:.1%} of the weight"]
    facts += [f"α {token.alpha:.3f}"] if token.alpha is not None else []
    facts += [f"mean σ {token.sigma:.3f}"] if token.sigma is not None else []
    facts += [f"KL {token.kl:.1f} nats"] if token.kl is not None else []
    return ", ".join(facts)


def _number(value: float | None, decimals: int) -> str:
    return "–" if value is None else f"{value:.{decimals}f}"


def _scrolled(table: str) -> str:
    """Wide tables scroll within the page, by the keyboard too."""
    return f'<div class="nv-scroll" tabindex="0">{table}</div>'
