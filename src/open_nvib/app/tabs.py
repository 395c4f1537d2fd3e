"""The six tabs of the page: for each, what it computes from a run, and a function that adds it to the page."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gradio as gr
from markupsafe import Markup

from open_nvib.app.handlers import Page, checked_text, heat_map, joined, on, pieces, shown, textbox, token_strip
from open_nvib.app.runs import takes_any_number, trained_share, unseen_length
from open_nvib.merging import VectorRequest
from open_nvib.report import run_page
from open_nvib.store.files import InputError
from open_nvib.store.runs import METRICS, read_config
from open_nvib.text.data.tokenizer import token_names
from open_nvib.text.model.decoding import decode, same_text
from open_nvib.text.model.vector_count import OFFSETS, choose_auto
from open_nvib.text.using.inspection import attention_map, group_by_vector, reweight
from open_nvib.text.using.run import Run

END, ALL, PRIOR = "(end)", "(all)", "(prior)"
MAX_FACTOR = 10.0
MAX_SAMPLES = 20
PATH_POINTS = 9
RUNS_COMPARED = 4
CHANGED = "struck: lost; underlined: new"


def request_for(run: Run, ids: Sequence[int], number: int | None = None) -> VectorRequest | None:
    """How every tab cuts a text: to `number` vectors, else the fewest that are exact, else as the run was trained."""
    if number is not None:  # at the first offset that is exact, if there is one
        found = choose_auto(run.model, [ids], shares=(number / len(ids),) * 2, hard=None, offsets=OFFSETS)
        return VectorRequest(found.vectors.new_full((1,), number), offset=found.offset)
    return run.find_fewest([ids]).request if takes_any_number(run) else None


def verdict(run: Run, text: str, ids: list[int], output: list[int]) -> str:
    """Whether a text comes back: as the user wrote it, as its tokens, or not."""
    if ids != output:
        return CHANGED
    if unknown := sum(token == run.tokenizer.unk_token_id for token in ids):
        return f"exact in its tokens, but {unknown} of them stand for what the tokenizer does not know"
    same = same_text(text, run.tokenizer.batch_decode([output])[0], output, run.tokenizer)
    return "the same, word for word" if same else "exact: every token comes back"


def inspect(run: Run, text: str, number: int | None = None) -> tuple[int, list[str]]:
    """The number of vectors, and as HTML: notes, the text by weight, its reconstruction, map of attention, tokens."""
    (ids,) = run.tokenize([text])
    report = run.inspect_ids(ids, request_for(run, ids, number))
    latent, pooled = report.latent, run.model.encoder.bottleneck.pooled
    (output,) = decode(run.model, latent.mean(), 2 * latent.lengths)
    weights = attention_map(run.model, latent.mean(), output)
    names = [token.token for token in report.tokens]
    for place, tokens in group_by_vector(report.tokens):
        names[place] = joined(tokens)
    vectors = [ALL] if pooled else [*names, PRIOR][: weights.shape[-1]]
    before, after = run.tokenizer.batch_decode([ids, output])
    outputs = [*token_names(run.tokenizer, output), END]
    return sum(token.kept for token in report.tokens), [
        pieces.notes([unseen_length(run, ids)]),
        token_strip(report.tokens, report.prior_weight, pooled=pooled),
        pieces.marked(before, after, verdict(run, text, ids, output)),
        heat_map(outputs, vectors, weights.cpu()),
        pieces.token_table(report.tokens),
    ]


def add_inspect(page: Page, tab: gr.Tab) -> None:
    gr.Markdown("What does the latent keep of a sentence, and what comes back out of it?")
    text, examples = page.sentence("inspect", "Inspect")
    number = gr.Slider(1, step=1, label="Vectors", info=" ", buttons=[], visible=False, elem_id="inspect-number")
    said = shown("inspect-notes")
    with gr.Row():
        with gr.Column(min_width=280):
            gr.Markdown("#### The sentence, by vector")
            strip = shown("inspect-strip")
        with gr.Column(min_width=280):
            gr.Markdown("#### Its reconstruction")
            reconstruction = shown("inspect-reconstruction")
    gr.Markdown("#### Where each word of it was read from")
    heat = shown("inspect-heat")
    with gr.Accordion("Token by token: α, weight, σ, KL", open=False):
        table = shown("inspect-table")

    def show(name: Any, sentence: Any, many: Any = None) -> list[Any]:
        run, sentence = page.chosen(name), checked_text(sentence)
        (ids,) = run.tokenize([sentence])
        if many is not None and not run.model.encoder.bottleneck.any_number:
            many = None
        chosen, found = inspect(run, sentence, None if many is None else max(1, min(int(many), len(ids))))
        return [gr.Slider(**_number_range(run, len(ids), chosen, moved=many == chosen)), *found]

    outputs = [number, said, strip, reconstruction, heat, table]
    # The answer resets the slider: if it were moved before, it would show another number than the result.
    wait: Any = {"fn": None, "js": "() => [{__type__: 'update', interactive: false}]", "outputs": [number]}
    gr.on([text.submit, page.run.change], **wait)
    examples.load_input_event.then(**wait)
    on([text.submit, page.run.change, page.blocks.load], show, [page.run, text], outputs, examples)
    on([number.input], show, [page.run, text, number], outputs, last_only=True)


def _number_range(run: Run, tokens: int, vectors: int, *, moved: bool) -> dict[str, Any]:
    """Value and range of the slider of the number of vectors; a slider that the user moves keeps its value."""
    if not run.model.encoder.bottleneck.any_number or tokens == 1:
        return {"visible": False}
    if takes_any_number(run):
        info = "Begins at the fewest with which the text is exact."
    elif run.model.encoder.bottleneck.decides:
        info = "Begins at the number that the model decides. Others may come out wrong."
    else:
        info = f"This run was trained with {trained_share(run):g} for each token. Other numbers make it worse."
    changes = {"maximum": tokens, "info": info, "visible": True, "interactive": True}
    return changes if moved else changes | {"value": vectors}


def editable(run: Run, text: str) -> tuple[Any, dict[str, int]]:
    """The latent of a text, as Inspect begins with it, and the index of each of its vectors, by number and tokens."""
    (ids,) = run.tokenize([text])
    report = run.inspect_ids(ids, request_for(run, ids))
    if run.model.encoder.bottleneck.pooled:
        return report.latent, {f"1 {ALL}": 0}
    vectors = group_by_vector(report.tokens)
    return report.latent, {f"{count} {joined(tokens)}": place for count, (place, tokens) in enumerate(vectors, 1)}


def edit(run: Run, latent: Any, factors: Mapping[int, float]) -> str:
    """The text decoded with the weights multiplied, against the text decoded without."""
    before, after = (
        run.decode(mixture, 2 * latent.lengths)[0] for mixture in (latent.mean(), reweight(latent, factors))
    )
    noted = pieces.notes([unseen_length(run, range(int(latent.lengths)))])
    return noted + pieces.marked(before, after, "as without a change" if before == after else CHANGED)


def add_edit(page: Page, tab: gr.Tab) -> None:
    gr.Markdown("Switch vectors off, or change how much one weighs: which words did it carry?")
    text, examples = page.sentence("edit", "Encode")
    switches = gr.CheckboxGroup(
        [], label="Vectors, by number and tokens", info="As Inspect begins. Off: gone.", elem_id="edit-vectors"
    )
    with gr.Row():
        vector = gr.Dropdown([], label="Change the weight of", min_width=200, elem_id="edit-vector")
        factor = gr.Slider(0, MAX_FACTOR, 1.0, step=0.1, label="multiply it by", min_width=200, elem_id="edit-factor")
    gr.Markdown("#### Decoded, against what the latent gives as it is")
    decoded = shown("edit-decoded")

    def encode(name: Any, sentence: Any) -> list[Any]:
        run = page.chosen(name)
        latent, found = editable(run, checked_text(sentence))
        if not found:
            raise InputError("the latent kept no vector of this sentence: there is nothing to switch. Try another.")
        names = list(found)
        choices = gr.CheckboxGroup(names, value=names), gr.Dropdown(names, value=names[0])
        return [*choices, 1.0, edit(run, latent, {})]

    def change(name: Any, sentence: Any, on: Any, which: Any, times: Any) -> list[Any]:
        run = page.chosen(name)
        latent, found = editable(run, checked_text(sentence))
        on = on if isinstance(on, list) else []
        if not {*on, which} <= found.keys():  # the sentence was changed and not sent
            return encode(name, sentence)
        factors = {index: float(label in on) for label, index in found.items()}
        if which in on:
            factors[found[which]] = times
        return [gr.skip(), gr.skip(), gr.skip(), edit(run, latent, factors)]

    outputs = [switches, vector, factor, decoded]
    on([text.submit, page.run.change, page.blocks.load], encode, [page.run, text], outputs, examples)
    changed = [page.run, text, switches, vector, factor]
    on([switches.input, vector.input, factor.input], change, changed, outputs, last_only=True)


def length_range(run: Run) -> dict[str, Any]:
    """Value and range of the slider of the length: the lengths that the run was trained on."""
    low, high = run.trained_lengths or (1, run.longest)
    return {"minimum": low, "maximum": high, "value": min(max(12, low), high)}


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
        learned = gr.Checkbox(
            first.has_learned_prior,
            label="From the learned prior",
            visible=first.has_learned_prior,
            min_width=200,
            elem_id="generate-learned",
        )
    with gr.Row():
        natural = gr.Checkbox(True, label="Lengths as in the training data", min_width=200, elem_id="generate-natural")
        length = gr.Slider(
            **length_range(first), step=1, label="or this many tokens", min_width=200, elem_id="generate-length"
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

    def generate(name: Any, many: Any, number: Any, as_in_data: Any, tokens: Any, delta: Any, is_learned: Any) -> str:
        run = page.chosen(name)
        options: dict[str, Any] = {"prior": "learned"} if is_learned else {}
        if not is_learned and delta_of(run) not in (None, delta):
            options["delta"] = delta
        length = None if as_in_data else int(tokens)
        return pieces.text_list(run.sample(int(many), seed=number, length=length, **options))

    def adapt(name: Any, many: Any, number: Any) -> list[Any]:
        run = page.chosen(name)
        found, fitted = delta_range(run), run.has_learned_prior
        texts = generate(name, many, number, True, None, found["value"], fitted)
        sliders = gr.Slider(**length_range(run)), gr.Slider(**found)
        return [True, *sliders, gr.Checkbox(value=fitted, visible=fitted), texts]

    on([button.click, tab.select], generate, [page.run, count, seed, natural, length, delta, learned], [texts])
    on([page.run.change], adapt, [page.run, count, seed], [natural, length, delta, learned, texts])


def add_interpolate(page: Page, tab: gr.Tab) -> None:
    gr.Markdown("The latents of two sentences are mixtures; between them lie mixtures of both.")
    with gr.Row():
        ends = [
            textbox(example, label, f"interpolate-{label.lower()}")
            for label, example in zip(("From", "To"), page.examples, strict=False)
        ]
    neighbours = [list(pair) for pair in zip(page.examples, page.examples[1:], strict=False)]
    examples = gr.Examples(neighbours, ends, label="Or one of these")
    button = gr.Button("Interpolate", variant="primary", elem_id="interpolate-go")
    where = gr.Slider(
        0, 1, 0.5, step=0.05, label="A point on the path", info="0 is the first", elem_id="interpolate-at"
    )
    point = shown("interpolate-point")
    gr.Markdown("#### The whole path")
    table = shown("interpolate-path")

    def show_point(name: Any, first: Any, second: Any, weight: Any) -> str:
        run, first, second = page.chosen(name), checked_text(first), checked_text(second, "the second sentence")
        ((before,), text) = run.normalise([first]), run.between(first, second, weight)
        noted = pieces.notes([unseen_length(run, ids) for ids in run.tokenize([first, second])])
        return noted + pieces.marked(before, text, "the first sentence" if before == text else CHANGED)

    def show_all(name: Any, first: Any, second: Any, weight: Any) -> list[str]:
        at_point = show_point(name, first, second, weight)
        texts = page.chosen(name).interpolate(first, second, steps=PATH_POINTS)
        return [at_point, pieces.path_table([step / (PATH_POINTS - 1) for step in range(PATH_POINTS)], texts)]

    given = [page.run, *ends, where]
    events = [button.click, tab.select, page.run.change, *(end.submit for end in ends)]
    on(events, show_all, given, [point, table], examples)
    on([where.input], show_point, given, [point], last_only=True)


def compare(runs: Mapping[str, Run], texts: Sequence[str]) -> str:
    """For each run what it kept of each text, and its reconstruction. A run for any number of vectors takes fewest."""
    made, errors = [], []
    for name, run in runs.items():
        try:
            body = Markup().join(pieces.compared(*inspect(run, text)[1][:3]) for text in texts)
        except InputError as error:  # such as a text that is too long for this run, and not for others
            errors.append(error)
            body = pieces.notes([error])
        made.append((f"{name} ({run.model.config.bottleneck.upper()})", body))
    if len(errors) == len(runs):
        raise errors[0]
    return pieces.cards(made)


def add_compare(page: Page, tab: gr.Tab) -> None:
    gr.Markdown(
        "The same sentences through several runs; `nvib app RUN RUN …` opens more of them. A run trained for any "
        "number of vectors takes the fewest with which a sentence is exact: of two of one length, one can need several "
        "times as many."
    )
    names = list(page.runs)
    chosen = gr.CheckboxGroup(names, value=names[:RUNS_COMPARED], label="Runs", elem_id="compare-runs")
    first, second = page.pairs[0]
    with gr.Row():
        texts = [textbox(first, "Sentence", "compare-text"), textbox(second, "Another, or none", "compare-other")]
    examples = gr.Examples([list(pair) for pair in page.pairs], texts, label="Or one of these pairs")
    button = gr.Button("Compare", variant="primary", elem_id="compare-go")
    side_by_side = shown("compare-cards")

    def handle(selected: Any, first: Any, second: Any) -> str:
        if not selected:
            raise InputError("no run is chosen. Tick at least one.")
        sentences = [checked_text(first), *([checked_text(second)] if second and str(second).strip() else [])]
        return compare({name: page.chosen(name) for name in selected}, sentences)

    sent = [button.click, tab.select, chosen.input, *(text.submit for text in texts)]
    on(sent, handle, [chosen, *texts], [side_by_side], examples)


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
                made[version] = pieces.framed(run_page(run.path), f"report of {name}")
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
