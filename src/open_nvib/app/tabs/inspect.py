"""Inspect: what the latent kept of a sentence, and where each word of the reconstruction was read from."""

import gradio as gr

from open_nvib.app.handlers import MAX_LETTERS, Page, checked_text, on, shown
from open_nvib.app.html import PRIOR, heat_map, joined, marked, token_strip, token_table
from open_nvib.text.model.decoding import decode
from open_nvib.text.using.inspection import attention_map
from open_nvib.text.using.run import Run, vectors_of

END, ALL = "(end)", "(all)"


def inspect(run: Run, text: str) -> tuple[str, str, str, str]:
    """The text by weight, the reconstruction against it, a table of the tokens, and the map of attention."""
    (ids,) = run.tokenize([text])
    latent, reports, prior_weight = run.look(ids)
    (output,) = decode(run.model, latent.mean(), 2 * latent.lengths)
    weights = attention_map(run.model, latent.mean(), output)
    pooled = run.model.config.bottleneck == "vtp"
    names = [report.token for report in reports]
    for place, tokens in vectors_of(reports):
        names[place] = joined(tokens)
    vectors = [ALL] if pooled else [*names, PRIOR][: weights.shape[-1]]
    outputs = [*run.tokenizer.convert_ids_to_tokens(output), END]
    return (
        token_strip(reports, prior_weight, pooled=pooled),
        marked(*run.tokenizer.batch_decode([ids, output])),
        token_table(reports),
        heat_map(outputs, vectors, weights.cpu()),
    )


def add(page: Page) -> None:
    gr.Markdown("What does the latent keep of a sentence, and what comes back out of it?")
    text = gr.Textbox(
        value=page.examples[0],
        label="Sentence",
        info="Enter sends it.",
        max_length=MAX_LETTERS,
        submit_btn="Inspect",
        elem_id="inspect-text",
    )
    gr.Examples(page.examples, text, label="Or one of these")
    with gr.Row():
        with gr.Column(min_width=280):
            gr.Markdown("#### The sentence: the stronger its colour, the more weight")
            strip = shown("inspect-strip")
        with gr.Column(min_width=280):
            gr.Markdown("#### Its reconstruction")
            reconstruction = shown("inspect-reconstruction")
    gr.Markdown("#### Where each word of it was read from")
    heat = shown("inspect-heat")
    with gr.Accordion("Token by token: α, weight, σ, KL", open=False):
        table = shown("inspect-table")

    def handle(name: str, sentence: str | None) -> tuple[str, str, str, str]:
        return inspect(page.chosen(name), checked_text(sentence))

    on([text.submit, page.run.change, page.blocks.load], handle, [page.run, text], [strip, reconstruction, table, heat])
