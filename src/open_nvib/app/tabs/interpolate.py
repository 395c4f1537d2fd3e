"""Interpolate: the path between two sentences, as a whole and point by point."""

import gradio as gr

from open_nvib.app.handlers import MAX_LETTERS, Page, checked_number, checked_text, on, shown
from open_nvib.app.html import marked, path_table
from open_nvib.text.using.run import Run

STEPS = 9


def path(run: Run, first: str, second: str) -> str:
    return path_table([step / (STEPS - 1) for step in range(STEPS)], run.interpolate(first, second, steps=STEPS))


def add(page: Page) -> None:
    gr.Markdown("The latents of two sentences are mixtures; between them lie mixtures of both.")
    with gr.Row():
        ends = [
            gr.Textbox(
                value=example,
                label=label,
                max_length=MAX_LETTERS,
                min_width=240,
                elem_id=f"interpolate-{label.lower()}",
            )
            for label, example in zip(("From", "To"), page.examples, strict=False)
        ]
    gr.Examples([[a, b] for a, b in zip(page.examples, page.examples[1:], strict=False)], ends, label="Or one of these")
    button = gr.Button("Interpolate", variant="primary", elem_id="interpolate-go")
    where = gr.Slider(
        0, 1, 0.5, step=0.05, label="A point on the path", info="0 is the first", elem_id="interpolate-at"
    )
    point = shown("interpolate-point")
    gr.Markdown("#### The whole path")
    table = shown("interpolate-path")

    def between(name: str, first: str | None, second: str | None, weight: float) -> str:
        return _between(page.chosen(name), *_checked(first, second), weight)

    def whole(name: str, first: str | None, second: str | None, weight: float) -> tuple[str, str]:
        run, ends = page.chosen(name), _checked(first, second)
        return _between(run, *ends, weight), path(run, *ends)

    given = [page.run, *ends, where]
    on([button.click, *(end.submit for end in ends)], whole, given, [point, table])
    on([where.input], between, given, [point])


def _checked(first: str | None, second: str | None) -> tuple[str, str]:
    return checked_text(first, "the first sentence"), checked_text(second, "the second sentence")


def _between(run: Run, first: str, second: str, weight: float) -> str:
    weight = checked_number(weight, "the point", 0, 1, whole=False)
    (before,) = run.normalise([first])
    return marked(before, run.between(first, second, weight))
