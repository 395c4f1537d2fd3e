"""The page: a list of runs and six tabs."""

import gradio as gr

from open_nvib.app.handlers import Page
from open_nvib.app.runs import example_texts
from open_nvib.app.tabs import compare, edit, generate, inspect, interpolate, report
from open_nvib.text.using.run import Run

TITLE = "open_nvib: look into the latent"
QUEUE = 64
"""Requests that may wait; who comes when it is full is told to come again."""


def make_app(runs: dict[str, Run]) -> gr.Blocks:
    """A page for these runs, by name. `serve` puts it on the network."""
    names = list(runs)
    with gr.Blocks(title=TITLE, analytics_enabled=False) as blocks:
        gr.Markdown("# open_nvib\nA text autoencoder whose latent is a set of vectors. Look at what it keeps.")
        run = gr.Dropdown(names, value=names[0], label="Run", visible=len(names) > 1, elem_id="run")
        page = Page(blocks, runs, run, example_texts(runs[names[0]]))
        with gr.Tabs():
            for name, tab in (
                ("Inspect", inspect),
                ("Edit", edit),
                ("Generate", generate),
                ("Interpolate", interpolate),
                ("Compare", compare),
            ):
                with gr.Tab(name):
                    tab.add(page)
            with gr.Tab("Report") as last:
                report.add(page, last)
    blocks.queue(max_size=QUEUE, api_open=False)
    return blocks
