"""Compare: one sentence through several runs, side by side."""

from collections.abc import Mapping

import gradio as gr

from open_nvib.app.handlers import MAX_LETTERS, Page, checked_text, on, shown
from open_nvib.app.html import cards, marked, token_strip
from open_nvib.store.files import InputError
from open_nvib.text.using.run import Run

SHOWN = 4


def compare(runs: Mapping[str, Run], text: str) -> str:
    """For each run what it kept of the text, and its reconstruction."""
    made = []
    for name, run in runs.items():
        (report,) = run.inspect([text])
        (before,) = run.normalise([text])
        pooled = run.model.config.bottleneck == "vtp"
        kept = token_strip(report.tokens, report.prior_weight, pooled=pooled)
        back = marked(before, report.reconstruction)
        title = f"{name} ({run.model.config.bottleneck.upper()})"
        made.append((title, f"<h4>kept</h4>{kept}<h4>reconstructed</h4>{back}"))
    return cards(made)


def add(page: Page) -> None:
    gr.Markdown("The same sentence through several runs. `nvib app RUN RUN …` opens more of them.")
    names = list(page.runs)
    chosen = gr.CheckboxGroup(names, value=names[:SHOWN], label="Runs", elem_id="compare-runs")
    text = gr.Textbox(
        value=page.examples[0], label="Sentence", max_length=MAX_LETTERS, submit_btn="Compare", elem_id="compare-text"
    )
    gr.Examples(page.examples, text, label="Or one of these")
    side_by_side = shown("compare-cards")

    def handle(selected: list[str], sentence: str | None) -> str:
        if not selected:
            raise InputError("no run is chosen. Tick at least one.")
        return compare({name: page.chosen(name) for name in selected}, checked_text(sentence))

    on([text.submit, chosen.input], handle, [chosen, text], [side_by_side])
