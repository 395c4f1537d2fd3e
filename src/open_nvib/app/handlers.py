"""What the tabs share: the page they are on, events, mistakes as messages in place of results, and pieces of HTML.

The macros of pieces.html.j2 make the HTML. Whatever comes from a text is escaped.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import gradio as gr
from jaxtyping import Float
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from torch import Tensor

from open_nvib.store.files import InputError
from open_nvib.text.drawing import text_differences
from open_nvib.text.using.inspection import TokenReport, readable_token
from open_nvib.text.using.run import Run

MAX_LETTERS = 2_000  # of a text; the model sets the limit in tokens

MAX_MAP = 64  # rows and columns of a map of attention: more than that nobody can read, and a browser is slow to draw
MAX_NAME_LETTERS = 24  # of a vector, which can have all tokens of a text

_templates = Environment(
    loader=PackageLoader("open_nvib.app", "."),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)
_templates.filters |= {"readable": readable_token, "differences": text_differences}
pieces: Any = _templates.get_template("pieces.html.j2").module  # the macros, each a function that returns HTML

log = logging.getLogger(__name__)


class PageBlocks(gr.Blocks):
    """Blocks that answer a request with wrong types or too few values with a message, and log no traceback."""

    async def process_api(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            return await super().process_api(*args, **kwargs)
        except gr.Error as error:
            error.print_exception, error.title = False, "Invalid input"
            raise
        except Exception as error:
            log.warning("a request failed: %.200r", error)
            raise gr.Error(
                "The values are not of the expected types.", title="Invalid input", print_exception=False
            ) from None


@dataclass(frozen=True)
class Page:
    """What every tab is given: the runs by name, the list to choose one from, texts to try, and pairs of one length."""

    blocks: gr.Blocks
    runs: dict[str, Run]
    run: gr.Dropdown
    examples: list[str]
    pairs: list[tuple[str, str]]

    def chosen(self, name: Any) -> Run:
        if not isinstance(name, str) or name not in self.runs:
            raise InputError(f"there is no run {str(name)[:80]!r} on this page. Choose one from the list.")
        return self.runs[name]

    def sentence(self, tab: str, button: str) -> tuple[gr.Textbox, Any]:
        """A box for a sentence, with its button, and its examples."""
        box = textbox(self.examples[0], "Sentence", f"{tab}-text", info="Enter sends it.", submit_btn=button)
        return box, gr.Examples(self.examples, box, label="Or one of these")


def textbox(value: str, label: str, name: str, **options: Any) -> gr.Textbox:
    return gr.Textbox(value, label=label, max_length=MAX_LETTERS, min_width=240, elem_id=name, **options)


def shown(name: str) -> gr.HTML:
    """A place for HTML of ours, in the style of page.css alone."""
    return gr.HTML(elem_id=name, apply_default_css=False)


def on(
    triggers: Sequence[Any],
    handler: Callable[..., Any],
    inputs: list[Any],
    outputs: list[Any],
    examples: Any = None,
    *,
    last_only: bool = False,
) -> None:
    """Bind a handler to events, and to clicks on examples. A mistake is shown in the first HTML of the outputs.

    With `last_only`, events during a request are answered once, by the last: a slider on its way asks where it stops.
    Only for events with one handler: gradio sends a deferred event to all handlers of its trigger again, so that
    several of them, such as those of the list of runs, would defer each other without end.
    """
    options: Any = {
        "fn": _with_messages(handler, outputs),
        "inputs": inputs,
        "outputs": outputs,
        "api_visibility": "private",
        "queue": False,  # a request is open until it is answered: see network.py
        "show_progress": "minimal",
        "trigger_mode": "always_last" if last_only else "multiple",
    }
    gr.on(triggers, **options)
    if examples is not None:
        examples.load_input_event.then(**options)


def _with_messages(handler: Callable[..., Any], outputs: Sequence[Any]) -> Callable[..., Any]:
    """Clear results for a message if the user made a mistake; log any other error, and show that there was one.

    An output that a later request of the same page also writes is left to that one, whichever is computed first.
    """

    def handle(request: gr.Request, *args: Any) -> Any:
        asked = object()
        places = [(request.session_hash or asked, output) for output in outputs]
        with _latest_lock:
            _latest.update(dict.fromkeys(places, asked))
        results: list[Any] = ["" if isinstance(output, gr.HTML) else gr.skip() for output in outputs]
        first = results.index("")
        try:
            found = handler(*args)
            results = list(found) if len(outputs) > 1 else [found]
        except InputError as error:
            results[first] = pieces.message("Invalid input", str(error))
        except Exception:
            log.exception("a request failed")
            results[first] = pieces.message(
                "Internal error", "This is not a mistake in what you typed. The log of the server has it."
            )
        with _latest_lock:
            for index, place in enumerate(places):
                if _latest.get(place) is asked:
                    del _latest[place]
                else:
                    results[index] = gr.skip()
        return results if len(results) > 1 else results[0]

    return handle


_latest: dict[tuple[Any, Any], object] = {}  # for each session and output, the last request that is being answered
_latest_lock = threading.Lock()


def checked_text(text: Any, what: str = "the sentence") -> str:
    """The text without space around it; an empty or very long one is an InputError."""
    text = text.strip() if isinstance(text, str) else ""
    if not text:
        raise InputError(f"{what} is empty. Type at least a word.")
    if len(text) > MAX_LETTERS:
        raise InputError(f"{what} has {len(text):,} letters, expected at most {MAX_LETTERS:,}. Shorten it.")
    return text


def token_strip(tokens: Sequence[TokenReport], prior_weight: float = 0.0, *, pooled: bool = False) -> Markup:
    """The text as its tokens, coloured by the weight of their vector, or by its KL if most weigh the same.

    Dropped tokens are struck through. Tokens that share a vector stand on one ground; with `pooled`, all do.
    """
    if pooled:
        tokens = [replace(token, kept=True, weight=1.0) for token in tokens]
    kept = [token for token in tokens if token.kept]
    weights, nats = [token.weight for token in kept], [token.kl for token in kept if token.kl is not None]
    usual = median(weights) if weights else 0.0
    alike = pooled or sum(abs(weight - usual) < 0.01 * usual for weight in weights) > len(kept) / 2
    by_kl = bool(nats) and alike and not pooled
    most = (max(nats) if by_kl else max(weights, default=0.0)) or 1.0
    spans: list[tuple[TokenReport, TokenReport | None]] = []  # each token with the one whose vector it is in
    shades = []
    vectors = {token.place: token for token in kept}
    for token in tokens:
        vector = token if token.kept else vectors.get(token.place) if token.shared else None
        spans.append((token, vector))
        shades.append(round(8 + 62 * ((vector.kl or 0.0) if by_kl else vector.weight) / most) if vector else 0)
    line = f"{len(kept)} of {len(tokens)} vectors kept"
    if pooled:
        line = f"one vector for all {len(tokens)} tokens"
    elif any(token.shared for token in tokens):
        line = f"{len(kept)} vector{'s' * (len(kept) != 1)} for {len(tokens)} tokens; those on one ground share one"
    colour = f"KL, {min(nats):.0f} to {max(nats):.0f} nats" if by_kl else "weight"
    prior = f"; the prior has {prior_weight:.0%} of the weight" if prior_weight else ""
    lines = [line + prior, f"stronger colour: more {colour}" if len(kept) > 1 and (by_kl or not alike) else ""]
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
