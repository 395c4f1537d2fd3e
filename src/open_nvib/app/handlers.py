"""What the tabs share: the page they are on, events, and mistakes as messages in place of results."""

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from open_nvib.app.html import pieces
from open_nvib.store.files import InputError
from open_nvib.text.using.run import Run

MAX_LETTERS = 2_000
"""Of a text; the model sets the limit in tokens."""

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
    triggers: Sequence[Any], handler: Callable[..., Any], inputs: list[Any], outputs: list[Any], examples: Any = None
) -> None:
    """Bind a handler to events, and to clicks on examples. A mistake is shown in the first HTML of the outputs."""
    options: Any = {
        "fn": _with_messages(handler, outputs),
        "inputs": inputs,
        "outputs": outputs,
        "api_visibility": "private",
        "queue": False,  # a request is open until it is answered: see network.py
        "show_progress": "minimal",
        "trigger_mode": "always_last",  # of a slider on its way, only where it stops
    }
    gr.on(triggers, **options)
    if examples is not None:
        examples.load_input_event.then(**options)


def _with_messages(handler: Callable[..., Any], outputs: Sequence[Any]) -> Callable[..., Any]:
    """Clear results for a message if the user made a mistake; log any other error, and show that there was one."""

    @functools.wraps(handler)
    def handle(*args: Any) -> Any:
        try:
            return handler(*args)
        except InputError as error:
            said = pieces.message("Invalid input", str(error))
        except Exception:
            log.exception("a request failed")
            said = pieces.message(
                "Internal error", "This is not a mistake in what you typed. The log of the server has it."
            )
        results: list[Any] = ["" if isinstance(output, gr.HTML) else gr.skip() for output in outputs]
        results[results.index("")] = said
        return results if len(results) > 1 else said

    return handle


def checked_text(text: Any, what: str = "the sentence") -> str:
    """The text without space around it; an empty or very long one is an InputError."""
    text = text.strip() if isinstance(text, str) else ""
    if not text:
        raise InputError(f"{what} is empty. Type at least a word.")
    if len(text) > MAX_LETTERS:
        raise InputError(f"{what} has {len(text):,} letters, expected at most {MAX_LETTERS:,}. Shorten it.")
    return text
