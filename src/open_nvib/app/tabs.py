"""The six tabs of the page: for each, what it computes from a run, and a function that adds it to the page."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import gradio as gr

from open_nvib.app.handlers import MAX_LETTERS, Page, checked_number, checked_text, on, shown
from open_nvib.app.html import (
    cards,
    comes_back,
    framed,
    heat_map,
    joined,
    marked,
    needs,
    path_table,
    text_list,
    token_strip,
    token_table,
)
from open_nvib.report import run_page
from open_nvib.store.files import InputError
from open_nvib.store.runs import METRICS, read_config
from open_nvib.store.settings import LARGEST_SEED
from open_nvib.text.model.decoding import decode
from open_nvib.text.model.number import PLACES, check_any_number, decide_number
from open_nvib.text.using.inspection import attention_map, group_by_vector, reweight
from open_nvib.text.using.run import Run

END, ALL, PRIOR = "(end)", "(all)", "(prior)"
MAX_FACTOR = 10.0
MAX_SAMPLES = 20
PATH_POINTS = 9
RUNS_COMPARED = 4


def inspect(run: Run, text: str, number: int | None = None) -> tuple[str, str, str, str, str]:
    """The text by weight, the reconstruction against it, whether it comes back, its tokens, and the map of attention.

    With `number`, the text gets that many vectors, at a place of the cuts with which it comes back if there is one.
    """
    (ids,) = run.tokenize([text])
    shares = None if number is None else (number / len(ids),) * 2  # one to look at, which is also that of the latent
    tried = decide_number(run.model, [ids], shares=shares, hard=None, places=PLACES) if shares else None
    report = run.inspect_ids(ids, tried.cuts if tried else {})
    latent, pooled = report.latent, run.model.encoder.bottleneck.pooled
    (output,) = decode(run.model, latent.mean(), 2 * latent.lengths)
    weights = attention_map(run.model, latent.mean(), output)
    names = [token.token for token in report.tokens]
    for place, tokens in group_by_vector(report.tokens):
        names[place] = joined(tokens)
    vectors = [ALL] if pooled else [*names, PRIOR][: weights.shape[-1]]
    outputs = [*run.tokenizer.convert_ids_to_tokens(output), END]
    return (
        token_strip(report.tokens, report.prior_weight, pooled=pooled),
        marked(*run.tokenizer.batch_decode([ids, output])),
        "" if number is None else comes_back(number, len(ids), back=output == ids),
        token_table(report.tokens),
        heat_map(outputs, vectors, weights.cpu()),
    )


def number_range(run: Run, text: str) -> dict[str, Any]:
    """Value and range of the slider of the number of vectors, which shows as many as the text needs."""
    (ids,) = run.tokenize([text])
    if not run.model.encoder.bottleneck.any_number or len(ids) == 1:
        return {"visible": False}
    needed = run.find_needed([ids])
    number = int(needed.vectors)
    info = f"It needs {number}, the fewest with which it comes back." if needed.comes_back else "It needs more."
    return {"value": number, "maximum": len(ids), "info": info, "visible": True}


def add_inspect(page: Page, tab: gr.Tab) -> None:
    gr.Markdown("What does the latent keep of a sentence, and what comes back out of it?")
    text = page.sentence("inspect", "Inspect")
    encoded = gr.State("")
    number = gr.Slider(1, step=1, label="Vectors", info=" ", buttons=[], visible=False, elem_id="inspect-number")
    back = shown("inspect-back")
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

    def encode(name: Any, sentence: Any) -> tuple[Any, ...]:
        run, sentence = page.chosen(name), checked_text(sentence)
        found = number_range(run, sentence)
        return sentence, gr.Slider(**found), *inspect(run, sentence, found.get("value"))

    def change(name: Any, sentence: Any, many: Any) -> tuple[str, ...]:
        run, sentence = page.chosen(name), checked_text(sentence, "the encoded sentence")
        check_any_number(run.model)
        (ids,) = run.tokenize([sentence])
        return inspect(run, sentence, checked_number(many, "the number of vectors", 1, len(ids)))

    pieces = [strip, reconstruction, back, table, heat]
    on([text.submit, page.run.change, page.blocks.load], encode, [page.run, text], [encoded, number, *pieces])
    on([number.input], change, [page.run, encoded, number], pieces)


def editable(run: Run, text: str) -> list[tuple[str, int]]:
    """The vectors that can be edited: a name with its place and tokens, and its index."""
    if run.model.encoder.bottleneck.pooled:
        return [("1 (all)", 0)]
    (ids,) = run.tokenize([text])
    vectors = group_by_vector(run.inspect_ids(ids).tokens)
    return [(f"{number} {joined(tokens)}", place) for number, (place, tokens) in enumerate(vectors, 1)]


def edit(run: Run, text: str, factors: Mapping[int, float]) -> str:
    """The text decoded with the weights multiplied, against the text decoded without."""
    latent = run.encode([text])
    before, after = (
        run.decode(mixture, 2 * latent.lengths)[0] for mixture in (latent.mean(), reweight(latent, factors))
    )
    return marked(before, after)


def add_edit(page: Page, tab: gr.Tab) -> None:
    gr.Markdown("Switch vectors off, or change how much one weighs: which words did it carry?")
    text = page.sentence("edit", "Encode")
    encoded = gr.State("")
    switches = gr.CheckboxGroup([], label="Vectors, by place and token", info="Off: gone.", elem_id="edit-vectors")
    with gr.Row():
        vector = gr.Dropdown([], label="Change the weight of", min_width=200, elem_id="edit-vector")
        factor = gr.Slider(0, MAX_FACTOR, 1.0, step=0.1, label="multiply it by", min_width=200, elem_id="edit-factor")
    gr.Markdown("#### Decoded, against what the latent gives as it is")
    decoded = shown("edit-decoded")

    def encode(name: Any, sentence: Any) -> tuple[Any, ...]:
        run, sentence = page.chosen(name), checked_text(sentence)
        found = editable(run, sentence)
        if not found:
            raise InputError("the latent kept no vector of this sentence: there is nothing to switch. Try another.")
        indices = [index for _, index in found]
        choices = gr.CheckboxGroup(found, value=indices), gr.Dropdown(found, value=indices[0])
        return sentence, *choices, 1.0, edit(run, sentence, {})

    def change(name: Any, sentence: Any, on: Any, which: Any, times: Any) -> str:
        run, sentence = page.chosen(name), checked_text(sentence, "the encoded sentence")
        on = on if isinstance(on, list) else []
        indices = [index for _, index in editable(run, sentence)]
        factors = {index: float(index in on) for index in indices}
        if which in indices and which in on:
            factors[which] = checked_number(times, "the factor", 0, MAX_FACTOR, whole=False)
        return edit(run, sentence, factors)

    events = [text.submit, page.run.change, page.blocks.load]
    on(events, encode, [page.run, text], [encoded, switches, vector, factor, decoded])
    on(
        [switches.input, vector.input, factor.input],
        change,
        [page.run, encoded, switches, vector, factor],
        [decoded],
    )


def max_length(run: Run) -> int:
    """The longest text to ask for: the longest that the run was trained on."""
    return min(len(run.histogram) - 1, run.model.config.max_positions - 1)


def delta_of(run: Run) -> float | None:
    """Δ of the prior; None for a model whose prior has none."""
    delta = run.model.encoder.bottleneck.delta
    return None if delta is None else round(delta, 4)


def delta_range(run: Run) -> dict[str, Any]:
    """Value and range of the slider of Δ, which shows the run's own Δ and reaches to its double."""
    own = delta_of(run) or 0.0
    return {"value": own, "maximum": max(2.0, 2 * own), "visible": delta_of(run) is not None}


def add_generate(page: Page, tab: gr.Tab) -> None:
    gr.Markdown("Texts that nobody wrote: a latent is drawn from the prior, and decoded.")
    first = next(iter(page.runs.values()))
    with gr.Row():
        count = gr.Slider(1, MAX_SAMPLES, 8, step=1, label="How many", elem_id="generate-count")
        seed = gr.Number(0, label="Seed", info="The same seed, the same texts.", precision=0, elem_id="generate-seed")
    with gr.Row():
        natural = gr.Checkbox(True, label="Lengths as in the training data", min_width=200, elem_id="generate-natural")
        length = gr.Slider(
            1,
            max_length(first),
            min(12, max_length(first)),
            step=1,
            label="or this many tokens",
            min_width=200,
            elem_id="generate-length",
        )
        delta = gr.Slider(
            minimum=0,
            **delta_range(first),
            step=0.01,
            label="Δ of the prior",
            info="The pseudo-count it expects of each token: small ones leave the weight to few vectors.",
            min_width=200,
            elem_id="generate-delta",
        )
    button = gr.Button("Generate", variant="primary", elem_id="generate-go")
    texts = shown("generate-texts")

    def generate(name: Any, many: Any, number: Any, as_in_data: Any, tokens: Any, chosen_delta: Any) -> str:
        run = page.chosen(name)
        own = delta_of(run)
        if own is not None:
            chosen_delta = checked_number(chosen_delta, "Δ", 0, delta_range(run)["maximum"], whole=False)
        return text_list(
            run.sample(
                checked_number(many, "the number of texts", 1, MAX_SAMPLES),
                seed=checked_number(number, "the seed", 0, LARGEST_SEED),
                length=None if as_in_data else checked_number(tokens, "the length", 1, max_length(run)),
                delta=None if own is None or chosen_delta == own else chosen_delta,
            )
        )

    def adapt(name: Any) -> tuple[Any, Any]:
        run = page.chosen(name)
        longest = max_length(run)
        return gr.Slider(maximum=longest, value=min(12, longest)), gr.Slider(**delta_range(run))

    on([button.click], generate, [page.run, count, seed, natural, length, delta], [texts])
    on([page.run.change], adapt, [page.run], [length, delta])


def between(run: Run, first: str, second: str, weight: float) -> str:
    """The text at one point of the path between two, against the first."""
    (before,) = run.normalise([first])
    return marked(before, run.between(first, second, weight))


def add_interpolate(page: Page, tab: gr.Tab) -> None:
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

    def show_point(name: Any, first: Any, second: Any, weight: Any) -> str:
        first, second = checked_text(first, "the first sentence"), checked_text(second, "the second sentence")
        return between(page.chosen(name), first, second, checked_number(weight, "the point", 0, 1, whole=False))

    def show_all(name: Any, first: Any, second: Any, weight: Any) -> tuple[str, str]:
        at_point = show_point(name, first, second, weight)
        texts = page.chosen(name).interpolate(str(first), str(second), steps=PATH_POINTS)
        return at_point, path_table([step / (PATH_POINTS - 1) for step in range(PATH_POINTS)], texts)

    given = [page.run, *ends, where]
    on([button.click, *(end.submit for end in ends)], show_all, given, [point, table])
    on([where.input], show_point, given, [point])


def compare(runs: Mapping[str, Run], texts: Sequence[str]) -> str:
    """For each run what it kept of each text, and its reconstruction. A run that takes any number gives the needed."""
    made, errors = [], []
    for name, run in runs.items():
        bottleneck = run.model.encoder.bottleneck
        try:
            body = ""
            reports = run.inspect(texts, vectors="needed" if bottleneck.any_number else None)
            for before, report in zip(run.normalise(texts), reports, strict=True):
                kept = token_strip(report.tokens, report.prior_weight, pooled=bottleneck.pooled)
                if bottleneck.any_number:
                    number, back = sum(token.kept for token in report.tokens), report.reconstruction == before
                    kept = needs(number, len(report.tokens), back=back) + kept
                body += f"<h4>kept</h4>{kept}<h4>reconstructed</h4>{marked(before, report.reconstruction)}"
        except InputError as error:  # such as a text that is too long for this run, and not for others
            errors.append(error)
            body = f'<p class="nv-note">{escape(str(error))}</p>'
        made.append((f"{name} ({run.model.config.bottleneck.upper()})", body))
    if len(errors) == len(runs):
        raise errors[0]
    return cards(made)


def add_compare(page: Page, tab: gr.Tab) -> None:
    gr.Markdown(
        "The same sentences through several runs; `nvib app RUN RUN …` opens more of them. A run that takes any number "
        "of vectors gives each sentence as many as it needs: of two of one length, one can need several times as many."
    )
    names = list(page.runs)
    chosen = gr.CheckboxGroup(names, value=names[:RUNS_COMPARED], label="Runs", elem_id="compare-runs")
    with gr.Row():
        texts = [
            gr.Textbox(value=example, label=label, max_length=MAX_LETTERS, min_width=240, elem_id=f"compare-{which}")
            for which, label, example in zip(
                ("text", "other"), ("Sentence", "Another, or none"), page.pairs[0], strict=True
            )
        ]
    gr.Examples([list(pair) for pair in page.pairs], texts, label="Or one of these pairs")
    button = gr.Button("Compare", variant="primary", elem_id="compare-go")
    side_by_side = shown("compare-cards")

    def handle(selected: Any, first: Any, second: Any) -> str:
        if not selected:
            raise InputError("no run is chosen. Tick at least one.")
        sentences = [checked_text(first), *([checked_text(second)] if second and str(second).strip() else [])]
        return compare({name: page.chosen(name) for name in selected}, sentences)

    sent = [button.click, chosen.input, *(text.submit for text in texts)]
    on(sent, handle, [chosen, *texts], [side_by_side])


def add_report(page: Page, tab: gr.Tab) -> None:
    """The metrics and figures of a run, as `nvib report RUN` writes them."""
    made: dict[tuple[str, int], str] = {}  # a report takes seconds to draw
    frame = shown("report-frame")

    def handle(name: Any) -> str:
        run = page.chosen(name)
        metrics = run.path / METRICS
        version = name, metrics.stat().st_mtime_ns if metrics.exists() else 0  # `nvib evaluate` may have added to them
        try:
            if read_config(run.path) != run.config:
                raise InputError(f"{name}: was trained with other settings since this page started. Start it again.")
            if version not in made:
                made[version] = framed(run_page(run.path), f"report of {name}")
        except InputError as error:  # the directory of the run is not the reader's business
            raise InputError(str(error).replace(str(run.path), name)) from error
        return made[version]

    on([tab.select, page.run.change], handle, [page.run], [frame])


TABS: dict[str, Callable[[Page, gr.Tab], None]] = {
    "Inspect": add_inspect,
    "Edit": add_edit,
    "Generate": add_generate,
    "Interpolate": add_interpolate,
    "Compare": add_compare,
    "Report": add_report,
}
