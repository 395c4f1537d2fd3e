"""Edit: switch single vectors off and on, change their weight, and see the decoded sentence change."""

from collections.abc import Mapping
from typing import Any

import gradio as gr

from open_nvib.app.handlers import MAX_LETTERS, Page, checked_number, checked_text, on, shown
from open_nvib.app.html import joined, marked
from open_nvib.store.files import InputError
from open_nvib.text.model.decoding import decode
from open_nvib.text.using.inspection import reweight
from open_nvib.text.using.run import Run, vectors_of

HEAVIEST = 10.0


def editable(run: Run, text: str) -> list[tuple[str, int]]:
    """The vectors that can be edited: a name with its place and tokens, and its index."""
    (ids,) = run.tokenize([text])
    _, reports, _ = run.look(ids)
    if run.model.config.bottleneck == "vtp":
        return [("1 (all)", 0)]
    return [(f"{number} {joined(tokens)}", place) for number, (place, tokens) in enumerate(vectors_of(reports), 1)]


def edit(run: Run, text: str, factors: Mapping[int, float]) -> str:
    """What is decoded with the weights multiplied, against what is decoded without."""
    latent = run.encode([text])
    limits = 2 * latent.lengths
    (before,), (after,) = (
        run.tokenizer.batch_decode(decode(run.model, mixture, limits))
        for mixture in (latent.mean(), reweight(latent, factors))
    )
    return marked(before, after)


def add(page: Page) -> None:
    gr.Markdown("Switch vectors off, or change how much one weighs: which words did it carry?")
    text = gr.Textbox(
        value=page.examples[0],
        label="Sentence",
        info="Enter encodes it anew.",
        max_length=MAX_LETTERS,
        submit_btn="Encode",
        elem_id="edit-text",
    )
    gr.Examples(page.examples, text, label="Or one of these")
    encoded = gr.State("")
    switches = gr.CheckboxGroup([], label="Vectors, by place and token", info="Off: gone.", elem_id="edit-vectors")
    with gr.Row():
        vector = gr.Dropdown([], label="Change the weight of", min_width=200, elem_id="edit-vector")
        factor = gr.Slider(0, HEAVIEST, 1.0, step=0.1, label="multiply it by", min_width=200, elem_id="edit-factor")
    gr.Markdown("#### Decoded, against what the latent gives as it is")
    decoded = shown("edit-decoded")

    def encode(name: str, sentence: str | None) -> tuple[Any, ...]:
        run, sentence = page.chosen(name), checked_text(sentence)
        found = editable(run, sentence)
        if not found:
            raise InputError("the latent kept no vector of this sentence: there is nothing to switch. Try another.")
        indices = [index for _, index in found]
        return (
            sentence,
            gr.CheckboxGroup(found, value=indices),
            gr.Dropdown(found, value=indices[0]),
            1.0,
            edit(run, sentence, {}),
        )

    def change(name: str, sentence: str | None, on: list[int], which: int, times: float) -> str:
        run, sentence = page.chosen(name), checked_text(sentence, "the encoded sentence")
        indices = [index for _, index in editable(run, sentence)]
        factors = {index: float(index in on) for index in indices}
        if which in indices and which in on:
            factors[which] = checked_number(times, "the factor", 0, HEAVIEST, whole=False)
        return edit(run, sentence, factors)

    on(
        [text.submit, page.run.change, page.blocks.load],
        encode,
        [page.run, text],
        [encoded, switches, vector, factor, decoded],
    )
    on(
        [switches.input, vector.input, factor.input],
        change,
        [page.run, encoded, switches, vector, factor],
        [decoded],
    )
