"""Report: the metrics and figures of a run, as `nvib report RUN` writes them."""

import gradio as gr

from open_nvib.app.handlers import Page, on, shown
from open_nvib.app.html import framed
from open_nvib.report import run_page
from open_nvib.text.using.run import Run


def report(run: Run, name: str) -> str:
    page = run_page(run.path).replace(str(run.path), name)  # where it lies is not the reader's business
    return framed(page, f"report of {name}")


def add(page: Page, tab: gr.Tab) -> None:
    made: dict[str, str] = {}  # a report takes seconds to draw, and a run does not change
    frame = shown("report-frame")

    def handle(name: str) -> str:
        run = page.chosen(name)
        if name not in made:
            made[name] = report(run, name)
        return made[name]

    on([tab.select, page.run.change], handle, [page.run], [frame])
