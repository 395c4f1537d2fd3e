"""Generate: texts from the prior."""

from typing import Any

import gradio as gr

from open_nvib.app.handlers import Page, checked_number, on, shown
from open_nvib.app.html import text_list
from open_nvib.store.settings import LARGEST_SEED
from open_nvib.text.model.bottlenecks import NVIBBottleneck
from open_nvib.text.using.run import Run

MOST = 20
MAX_DELTA = 2.0


def longest(run: Run) -> int:
    """The longest text to ask for: of those it was trained on."""
    return min(len(run.histogram) - 1, run.model.config.max_positions - 1)


def delta_of(run: Run) -> float | None:
    """Δ of the prior; None for a model whose prior has none."""
    bottleneck = run.model.encoder.bottleneck
    return round(bottleneck.nvib.delta.item(), 4) if isinstance(bottleneck, NVIBBottleneck) else None


def add(page: Page) -> None:
    gr.Markdown("Texts that nobody wrote: a latent is drawn from the prior, and decoded.")
    first = next(iter(page.runs.values()))
    with gr.Row():
        count = gr.Slider(1, MOST, 8, step=1, label="How many", elem_id="generate-count")
        seed = gr.Number(0, label="Seed", info="The same seed, the same texts.", precision=0, elem_id="generate-seed")
    with gr.Row():
        natural = gr.Checkbox(True, label="Lengths as in the training data", min_width=200, elem_id="generate-natural")
        length = gr.Slider(
            1, longest(first), min(12, longest(first)), step=1, label="or this many tokens", min_width=200
        )
        delta = gr.Slider(
            0,
            MAX_DELTA,
            delta_of(first),
            step=0.01,
            label="Δ of the prior",
            info="The pseudo-count it expects of each token: small ones leave the weight to few vectors.",
            visible=delta_of(first) is not None,
            min_width=200,
            elem_id="generate-delta",
        )
    button = gr.Button("Generate", variant="primary", elem_id="generate-go")
    texts = shown("generate-texts")

    def generate(name: str, many: float, number: float, as_in_data: bool, tokens: float, chosen_delta: float) -> str:
        run = page.chosen(name)
        own = delta_of(run)
        different = own is not None and checked_number(chosen_delta, "Δ", 0, MAX_DELTA, whole=False) != own
        return text_list(
            run.sample(
                checked_number(many, "the number of texts", 1, MOST),
                seed=checked_number(number, "the seed", 0, LARGEST_SEED),
                length=None if as_in_data else checked_number(tokens, "the length", 1, longest(run)),
                delta=chosen_delta if different else None,
            )
        )

    def adapt(name: str) -> tuple[Any, Any]:
        run = page.chosen(name)
        own = delta_of(run)
        most = longest(run)
        return gr.Slider(maximum=most, value=min(12, most)), gr.Slider(value=own or 0.0, visible=own is not None)

    on([button.click], generate, [page.run, count, seed, natural, length, delta], [texts])
    on([page.run.change], adapt, [page.run], [length, delta])
