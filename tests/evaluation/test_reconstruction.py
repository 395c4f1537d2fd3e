"""Reconstruction and the vectors kept: against counting by hand."""

import statistics
import warnings
from typing import Any

import pytest
import sacrebleu

from open_nvib.cli import main
from open_nvib.evaluation import EvaluateConfig, evaluate, reconstruction
from open_nvib.evaluation.reconstruction import by_length, kept_by_kind, kept_share, kind_of_token, vectors_kept
from open_nvib.evaluation.references import choose
from open_nvib.report.summary import summarise_evaluation
from open_nvib.store.evaluations import KeptAtLength
from open_nvib.store.files import OutsideTraining
from open_nvib.text.data import load_prepared
from open_nvib.text.model.decoding import evaluate_losses, score_reconstruction
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


@pytest.mark.parametrize(
    ("token", "kind"),
    [("museum", "content"), ("the", "function"), ("The", "function"), ("##ing", "piece"), ("1923", "number")]
    + [(mark, "punctuation") for mark in (".", "'", "%", "—")],
)
def test_tokens_have_kinds(token, kind):
    assert kind_of_token(token) == kind


def test_kept_by_kind_is_counted_by_hand(nvae):
    """Against the rows of `inspect`, one sentence at a time."""
    loaded: Any = load_run(nvae)
    texts = list(load_prepared(loaded.config.data).split("short", "validation")["input_ids"])[:9]
    sentences = loaded.tokenizer.batch_decode(texts)
    rows = [token for sentence in sentences for token in loaded.inspect([sentence])[0].tokens]
    loaded.model.encoder.bottleneck.nvib.to_alpha.bias.data -= statistics.median(row.alpha for row in rows)
    rows = [token for sentence in sentences for token in loaded.inspect([sentence])[0].tokens]
    found = kept_by_kind(loaded, texts)
    for kind, share in found.items():
        assert share == pytest.approx(statistics.mean(row.kept for row in rows if kind_of_token(row.token) == kind))
    assert 0 < min(found.values()) + max(found.values()) < 2


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
    from_points = evaluate_losses(run.model, texts)["loss"]
    run.model.decoder.reading = "mean"
    assert [example.reconstruction for example in found.examples] == run.reconstruct([e.text for e in found.examples])
    assert from_points != evaluate_losses(run.model, texts)["loss"]
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


def test_each_line_of_a_file_has_a_score(nvae, tmp_path, capsys):
    """Against `Run.reconstruct`; a line with a capital is never the same text, as the tokenizer lowers it."""
    run, lines, file = load_run(nvae), ["The river was old.", "the river"], tmp_path / "mine.txt"
    file.write_text("\n".join(lines) + "\n")
    main(["evaluate", str(nvae), "--file", str(file)])
    printed = capsys.readouterr()
    header, *rows = [line.split("\t") for line in printed.out.splitlines()]
    assert header[:4] == ["BLEU", "exact", "text exact", "nats per token"]
    assert [row[4] for row in rows] == lines
    for row, line, copy in zip(rows, lines, run.reconstruct(lines), strict=True):
        assert row[5] == copy
        assert row[2] == ("yes" if copy == line else "no")
        assert float(row[3]) >= 0
    assert "2 lines: mean BLEU" in printed.err


def test_lines_of_a_file_are_compared_by_words_and_warned_about(nvae, tmp_path, capsys, monkeypatch):
    """A tab is a space; what the tokenizer does not know never comes back; all are shorter than training had."""
    monkeypatch.setattr("open_nvib.evaluation.reconstruction.reconstruct_ids", lambda model, ids, **_: ids)
    (tmp_path / "mine.txt").write_text("the  river\twas old\nthe river was [UNK]\nriver\n")
    with warnings.catch_warnings():
        warnings.simplefilter("always", OutsideTraining)
        main(["evaluate", str(nvae), "--file", str(tmp_path / "mine.txt")])
    printed = capsys.readouterr()
    rows = [line.split("\t")[1:] for line in printed.out.splitlines()[1:]]
    assert [row[:2] for row in rows] == [["yes", "yes"], ["yes", "no"], ["yes", "yes"]]
    assert [row[3] for row in rows] == ["the river was old", "the river was [UNK]", "river"]
    assert "8 to 20: it may come out wrong, as may 2 more texts" in printed.err


def test_lines_of_a_file_take_no_settings_of_an_evaluation(nvae, tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("the river\n")
    with pytest.raises(SystemExit) as stopped:
        main(["evaluate", str(nvae), "--file", str(tmp_path / "mine.txt"), "--sentences", "3"])
    assert stopped.value.code == 2
    assert "--file" in capsys.readouterr().err
