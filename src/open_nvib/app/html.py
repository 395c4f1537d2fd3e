"""Pieces of the page as HTML. Whatever comes from a text is escaped."""

from collections.abc import Sequence
from dataclasses import replace
from html import escape

from jaxtyping import Float
from torch import Tensor

from open_nvib.text.using.inspection import TokenReport, readable_token, text_differences

MAX_MAP = 64
"""Rows and columns of a map of attention: more than that nobody can read, and a browser is slow to draw."""


def token_strip(tokens: Sequence[TokenReport], prior_weight: float = 0.0, *, pooled: bool = False) -> str:
    """The text as its tokens, the stronger coloured the more weight they have; dropped ones struck through.

    Tokens that share a vector stand on one ground. With `pooled`, all share the one vector there is.
    """
    if pooled:
        tokens = [replace(token, kept=True, weight=1.0) for token in tokens]
    ground = ""
    heaviest = max((token.weight for token in tokens), default=0.0) or 1.0
    pieces = []
    for token in tokens:
        text, begins = readable_token(token.token)
        space = " " if begins and pieces else ""
        if token.kept:
            ground = f'style="--shade:{round(8 + 62 * token.weight / heaviest)}%" title="{_facts(token)}"'
            pieces.append(f'{space}<span class="nv-token" {ground}>{escape(text)}</span>')
        elif token.shared:
            pieces.append(f'<span class="nv-token nv-shared" {ground}>{space}{escape(text)}</span>')
        else:
            pieces.append(f'{space}<del class="nv-dropped" title="no vector of its own">{escape(text)}</del>')
    kept = sum(token.kept for token in tokens)
    prior = f", the prior has {prior_weight:.0%} of the weight" if prior_weight else ""
    line = f"{kept} of {len(tokens)} vectors kept{prior}"
    if pooled:
        line = f"one vector for all {len(tokens)} tokens"
    elif any(token.shared for token in tokens):
        line = f"{kept} vector{'s' * (kept != 1)} for {len(tokens)} tokens: those on one ground share one{prior}"
    return f'<div class="nv-text">{"".join(pieces)}</div><p class="nv-note">{line}</p>'


def comes_back(number: int, tokens: int, *, back: bool) -> str:
    """A line on whether a text comes back with a number of vectors."""
    with_ = f"{number} vector{'s' * (number != 1)} for {tokens} tokens"
    return f"<p>{with_}: <strong>it {'comes' if back else 'does not come'} back</strong> word for word.</p>"


def needs(number: int, tokens: int, *, back: bool) -> str:
    """A line on how many vectors a text needs."""
    needed = f"needs {number} vector{'s' * (number != 1)}" if back else "does not come back with any number of vectors"
    return f"<p><strong>{needed}</strong>, {tokens} tokens</p>"


def joined(tokens: Sequence[TokenReport]) -> str:
    """Tokens as text, pieces of a word together."""
    read = [readable_token(token.token) for token in tokens]
    return "".join(f" {text}" if begins and place else text for place, (text, begins) in enumerate(read))


def marked(before: str, after: str) -> str:
    """The second text, with what the first does not have marked and what it lost struck through."""
    note = "the same, word for word" if before.split() == after.split() else "struck: lost; underlined: new"
    return f'<div class="nv-text">{_differences(before, after)}</div><p class="nv-note">{note}</p>'


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
    caption = "rows: tokens written; columns: vectors of the latent, in stronger colour the more was read from them"
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
    """A whole page within the page, where it can run nothing."""
    return f'<iframe class="nv-frame" sandbox title="{escape(title)}" srcdoc="{escape(page)}"></iframe>'


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
