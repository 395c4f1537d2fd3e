"""The vectors kept, and the tokens that they are spent on: against counting by hand."""

import statistics
from typing import Any

import pytest
import sacrebleu
import torch

from open_nvib.cli.output import summarise_evaluation
from open_nvib.evaluation import EvaluateConfig, evaluate, reconstruction
from open_nvib.evaluation.reconstruction import by_length, kept_share, kind_of, rank_group, tokens_kept, vectors_kept
from open_nvib.evaluation.references import choose
from open_nvib.store.evaluations import KeptAtLength
from open_nvib.text.data import load_prepared
from open_nvib.text.model.bottlenecks import NVIBBottleneck, make_bottleneck
from open_nvib.text.model.configuration import TextAutoencoderConfig
from open_nvib.text.model.decoding import score_reconstruction
from open_nvib.text.using.run import load_run


def test_kept_share_is_the_mean_over_sentences_counted_by_hand(nvae):
    """A sentence at a time, without padding: tokens with α > 0."""
    loaded: Any = load_run(nvae)
    texts = list(load_prepared(loaded.config.data).split("short", "validation")["input_ids"])[:9]
    sentences = loaded.tokenizer.batch_decode(texts)

    def alphas(sentence: str) -> list[float]:
        return [token.alpha for token in loaded.inspect([sentence])[0].tokens]

    median = statistics.median(alpha for sentence in sentences for alpha in alphas(sentence))
    loaded.model.encoder.bottleneck.nvib.to_alpha.bias.data -= median  # α is a ReLU: now about half are dropped
    counts = [sum(alpha > 0 for alpha in alphas(sentence)) for sentence in sentences]
    assert vectors_kept(loaded.model, texts) == counts
    assert 0 < sum(counts) < sum(len(text) for text in texts)
    share = sum(count / len(text) for count, text in zip(counts, texts, strict=True)) / 9
    assert kept_share(texts, counts) == pytest.approx(share)


def test_bleu_is_against_the_tokens_and_against_the_text_before_them(nvae):
    """A model that gives back every token has BLEU 100, and against text with capitals what sacreBLEU says of these."""
    run = load_run(nvae)
    rows = load_prepared(run.config.data).split("short", "validation")
    texts, originals = list(rows["input_ids"]), list(rows["text"])
    scores, _ = score_reconstruction(texts, texts, run.tokenizer, originals)
    lowered = [text.lower() for text in originals]
    assert scores["bleu"] == pytest.approx(100)
    assert scores["text_bleu"] == pytest.approx(sacrebleu.corpus_bleu(lowered, [originals]).score)
    assert scores["text_bleu"] < 99


def test_an_evaluation_holds_both_and_chooses_the_same_sentences(nvae, monkeypatch):
    """A model that is replaced by a perfect one: 100, and below it by the capitals alone."""
    monkeypatch.setattr(reconstruction, "reconstruct_ids", lambda model, texts, **options: [list(t) for t in texts])
    found = evaluate(nvae, EvaluateConfig(measure=["reconstruction"], sentences=7, seed=3), say=lambda line: None)
    part = found.trained_on
    assert part is not None
    rows = load_prepared(load_run(nvae).config.data).split("short", "validation")
    originals = choose(list(rows["text"]), 7, 3)
    assert part.bleu == pytest.approx(100)
    assert part.text_bleu == pytest.approx(sacrebleu.corpus_bleu([t.lower() for t in originals], [originals]).score)
    assert "against the text" in summarise_evaluation(found)


def test_points_are_read_too(nvae, plain):
    """Of an NVAE alone: as the model has them that reads the points at test time."""
    settings = EvaluateConfig(measure=["reconstruction"], sentences=20)
    found = evaluate(nvae, settings, say=lambda line: None).trained_on
    run: Any = load_run(nvae)
    run.model.decoder.reading = "points"
    texts = choose(list(load_prepared(run.config.data).split("short", "validation")["input_ids"]), 20, settings.seed)
    read = reconstruction.measure_reconstruction(run, texts)
    assert found is not None
    assert (found.points_bleu, found.points_exact) == (read.bleu, read.exact)
    from_points = run.reconstruct([example.text for example in found.examples])
    run.model.decoder.reading = "mean"
    assert [example.reconstruction for example in found.examples] == run.reconstruct([e.text for e in found.examples])
    assert from_points != [example.reconstruction for example in found.examples]
    of_plain = evaluate(plain, settings, say=lambda line: None).trained_on
    assert of_plain is not None
    assert of_plain.bleu is not None
    assert of_plain.points_bleu is None


def test_number_kept_by_length():
    texts = [[5] * 3, [5] * 3, [5] * 7]
    assert by_length(texts, [1, 3, 6]) == (
        KeptAtLength(length=3, sentences=2, kept=2.0, sd=1.0),
        KeptAtLength(length=7, sentences=1, kept=6.0, sd=0.0),
    )


def bottleneck_of(**options):
    """One whose hidden states are the pseudo-counts themselves."""
    bottleneck = make_bottleneck(TextAutoencoderConfig(d_model=1, **options))
    if isinstance(bottleneck, NVIBBottleneck):
        torch.nn.init.ones_(bottleneck.nvib.to_alpha.weight)
        torch.nn.init.zeros_(bottleneck.nvib.to_alpha.bias)
    return bottleneck


def test_gathered_tokens_have_the_part_of_a_vector_that_they_fill():
    """A vector holds 4: the first text fills two and a half, the second, before its padding, two."""
    bottleneck = bottleneck_of(keep_share=0.5, delta=2.0)
    hidden = torch.tensor([[4.0, 1.0, 1.0, 9.0], [3.0, 4.0, 1.0, 9.0]]).unsqueeze(-1)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]).bool()
    shares = bottleneck.vectors_of_tokens(hidden, mask)
    torch.testing.assert_close(shares, torch.tensor([[1.0, 0.25, 0.25, 1.0], [0.75, 1.0, 0.25, 0.0]]))
    latent = bottleneck(hidden, mask)
    assert (latent.kept * latent.lengths).round().tolist() == shares.sum(-1).ceil().tolist() == [3.0, 2.0]


def test_dropped_tokens_have_none():
    hidden, mask = torch.tensor([[1.0, -1.0, 2.0]]).unsqueeze(-1), torch.ones(1, 3).bool()
    assert bottleneck_of().vectors_of_tokens(hidden, mask).tolist() == [[1.0, 0.0, 1.0]]
    strided = bottleneck_of(bottleneck="vts", stride=0.5)
    assert strided.vectors_of_tokens(hidden, mask).tolist() == [[1.0, 0.0, 1.0]]


def test_a_pooled_latent_has_no_vectors_of_tokens():
    with pytest.raises(ValueError, match="vectors_of_tokens"):
        bottleneck_of(bottleneck="vtp").vectors_of_tokens(torch.zeros(2, 4, 1), torch.ones(2, 4).bool())


def test_groups():
    assert [rank_group(rank) for rank in (1, 10, 11, 1000, 1001)] == [
        "the 10 most frequent",
        "the 10 most frequent",
        "to rank 100",
        "to rank 1,000",
        "rarer",
    ]
    assert [kind_of(token) for token in ("river", "##ed", "1984", ",", "–", "##1")] == [
        "word",
        "continued",
        "number",
        "punctuation",
        "punctuation",
        "continued",
    ]


def test_groups_add_up_to_all_tokens(nvae, evaluation_data):
    run, prepared = load_run(nvae), load_prepared(evaluation_data)
    texts = list(prepared.split("short", "validation")["input_ids"])
    groups = tokens_kept(run, texts, prepared.split("short", "train")["input_ids"])
    latent = run.encode_ids(texts)
    assert latent.alpha is not None
    kept = (latent.alpha[:, :-1] > 0).sum().item()
    for by in ("frequency", "kind", "place"):
        those = [group for group in groups if group.by == by]
        assert sum(group.tokens for group in those) == sum(map(len, texts))
        assert sum(group.tokens * group.vectors for group in those) == pytest.approx(kept, rel=1e-5)
    numbers = next(group for group in groups if group.name == "number")
    digits = {token for token in range(len(run.tokenizer)) if str(run.tokenizer.decode([token])).isdigit()}
    assert numbers.tokens == sum(token in digits for text in texts for token in text)
