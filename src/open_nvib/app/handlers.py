"""What the tabs have in common: bounds on what they take, and mistakes as messages on the page."""

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
"""Of a text; how many tokens it may have is the model's to say."""

Given = ParamSpec("Given")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Page:
    """What every tab is given: the runs by name, the list to choose one from, and texts to try."""

    blocks: gr.Blocks
    runs: dict[str, Run]
    run: gr.Dropdown
    examples: list[str]

    def chosen(self, name: Any) -> Run:
        if not isinstance(name, str) or name not in self.runs:
            raise InputError(f"there is no run {str(name)[:80]!r} on this page. Choose one from the list.")
        return self.runs[name]


def as_message(handler: Callable[Given, Made]) -> Callable[Given, Made]:
    """What the user got wrong is said on the page; anything else goes to the log, and the page says that it did."""

    @functools.wraps(handler)
    def handle(*given: Given.args, **named: Given.kwargs) -> Made:
        try:
            return handler(*given, **named)
        except InputError as error:
            raise message(str(error)) from None
        except gr.Error:
            raise
        except Exception:
            logging.getLogger(__name__).exception("a request failed")
            raise message("Something went wrong here, not with what you typed. The log of the server has it.") from None

    return handle


def message(text: str) -> gr.Error:
    return gr.Error(escape(text), duration=20, title="Not like this", print_exception=False)


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


def shown(name: str) -> gr.HTML:
    """A place for HTML of ours, in the style of page.css alone."""
    return gr.HTML(elem_id=name, apply_default_css=False)


def checked_text(text: Any, what: str = "the sentence") -> str:
    """The text without space around it; empty and very long ones are mistakes."""
    text = text.strip() if isinstance(text, str) else ""
    if not text:
        raise InputError(f"{what} is empty. Type at least a word.")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InputError(f"{what} has half of a character. Type it anew.")
    if len(text) > MAX_LETTERS:
        raise InputError(f"{what} has {len(text):,} letters, this page takes {MAX_LETTERS:,}. Shorten it.")
    return text


def checked_number(value: Any, what: str, low: float, high: float, *, whole: bool = True) -> Any:
    """A number within bounds: what a slider shows is not all that a request can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise InputError(f"{what} is {value}, wanted a number from {low} to {high}.")
    return int(value) if whole else float(value)
