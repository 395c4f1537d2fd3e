"""What the tabs share: bounds on what they take, and mistakes as messages on the page."""

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any, ParamSpec, TypeVar

import gradio as gr

from open_nvib.store.files import InputError
from open_nvib.text.using.run import Run

MAX_LETTERS = 2_000
"""Of a text; the model sets the limit in tokens."""

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


class PageBlocks(gr.Blocks):
    """Blocks that answer a request with wrong types or too few values with a message, and log no traceback."""

    async def process_api(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            return await super().process_api(*args, **kwargs)
        except gr.Error as error:
            error.print_exception = False
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

    def sentence(self, tab: str, button: str) -> gr.Textbox:
        """A box for a sentence, with its button and examples."""
        text = gr.Textbox(
            value=self.examples[0],
            label="Sentence",
            info="Enter sends it.",
            max_length=MAX_LETTERS,
            submit_btn=button,
            elem_id=f"{tab}-text",
        )
        gr.Examples(self.examples, text, label="Or one of these")
        return text


def on(triggers: list[Any], handler: Callable[..., Any], inputs: list[Any], outputs: list[Any]) -> None:
    """Bind a handler to events. All that runs a model shares one place in the queue."""
    gr.on(
        triggers,
        as_message(handler),
        inputs,
        outputs,
        api_visibility="private",
        concurrency_id="model",
        concurrency_limit=2,
        show_progress="minimal",
        trigger_mode="always_last",  # of a slider on its way, only where it stops
    )


def as_message(handler: Callable[P, T]) -> Callable[P, T]:
    """Show a mistake of the user on the page; log any other error, and show that there was one."""

    @functools.wraps(handler)
    def handle(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return handler(*args, **kwargs)
        except InputError as error:
            title, text = "Invalid input", str(error)
        except Exception:
            log.exception("a request failed")
            title, text = "Internal error", "This is not a mistake in what you typed. The log of the server has it."
        raise gr.Error(escape(text), duration=20, title=title, print_exception=False)

    return handle


def shown(name: str) -> gr.HTML:
    """A place for HTML of ours, in the style of page.css alone."""
    return gr.HTML(elem_id=name, apply_default_css=False)


def checked_text(text: Any, what: str = "the sentence") -> str:
    """The text without space around it; an empty or very long one is an InputError."""
    text = text.strip() if isinstance(text, str) else ""
    if not text:
        raise InputError(f"{what} is empty. Type at least a word.")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InputError(f"{what} has half of a character. Type it anew.")
    if len(text) > MAX_LETTERS:
        raise InputError(f"{what} has {len(text):,} letters, expected at most {MAX_LETTERS:,}. Shorten it.")
    return text


def checked_number(value: Any, what: str, low: float, high: float, *, whole: bool = True) -> Any:
    """A number within bounds: a request can hold others than a slider shows."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise InputError(f"{what} is {value!s:.80}, expected a number from {low} to {high}.")
    return int(value) if whole else float(value)
