"""Figures: numbers behind them by other means, light files, words on the axes, the same bytes each time."""

import re
from dataclasses import replace

import numpy as np
import pytest
from factory import make_evaluation, make_number, make_record

from open_nvib.report.figures.comparisons import SCATTER_PLOTS, draw_number, draw_points
from open_nvib.report.figures.models import (
    draw_paths,
    draw_sample_lengths,
    draw_training,
    draw_vectors,
    kept_by_length,
    sample_lengths,
)
from open_nvib.report.figures.style import LOOKS, MARK, inline
from open_nvib.report.results import RowPlan, RowResults, select_nvae
from open_nvib.store.cells import CellResult
from open_nvib.store.runs import LogEntry
from tools.dial import draw_dial

LIGHT = 150_000


def test_kept_by_length_is_that_of_all_sentences_together():
    """Two seeds of sentences made one by one, against numpy over all of them."""
    rng = np.random.default_rng(0)
    seeds, evaluations = [], []
    for _ in range(2):
        kept = {n: rng.integers(1, n + 1, size=rng.integers(2, 9)) for n in (5, 7, 11)}
        rows = [
            {"length": n, "sentences": len(x), "kept": float(x.mean()), "sd": float(x.std())} for n, x in kept.items()
        ]
        seeds.append(kept)
        evaluations.append(make_evaluation(reconstruction={"short": {"sentences": 3, "by_length": rows}}))
    found = kept_by_length(evaluations, "short")
    assert found is not None
    together = {n: np.concatenate([kept[n] for kept in seeds]) for n in (5, 7, 11)}
    np.testing.assert_allclose(found.mean, [x.mean() for x in together.values()])
    np.testing.assert_allclose(found.sd, [x.std() for x in together.values()])
    points = [(n, value) for n, x in together.items() for value in x]
    design = np.array([[n, 1.0] for n, _ in points])
    expected = np.linalg.lstsq(design, np.array([value for _, value in points]), rcond=None)[0]
    np.testing.assert_allclose(found.fit(), expected)
    assert kept_by_length(evaluations, "long") is None


def test_lengths_are_shares_over_all_seeds():
    two = [make_evaluation(generation={"lengths": [0, 3, 1], "real": {"lengths": [0, 2]}})] * 2
    found = sample_lengths([*two, make_evaluation("t")])
    assert found is not None
    np.testing.assert_allclose(found[0], [0, 75, 25])
    np.testing.assert_allclose(found[1], [0, 100])
    assert sample_lengths([make_evaluation("t")]) is None


def test_every_figure_is_light_and_labelled(results):
    selected = select_nvae(results.rows)
    evaluations = selected.row.evaluations if selected else ()
    first = LogEntry(1, {"cross_entropy": 3.0, "kl_gaussian": 1.0, "kept": 0.5})
    log = [first, LogEntry(2, {"eval_bleu": 3.0})]
    draw = {
        "bleu_perplexity": lambda: draw_points(results, selected, SCATTER_PLOTS["bleu_perplexity"]),
        "perplexity_kept": lambda: draw_points(results, selected, SCATTER_PLOTS["perplexity_kept"]),
        "bleu_kept": lambda: draw_points(results, selected, SCATTER_PLOTS["bleu_kept"]),
        "vectors": lambda: draw_vectors(evaluations, family="NVAE", name="best NVAE"),
        "lengths": lambda: draw_sample_lengths(results),
        "interpolation": lambda: draw_paths(results.measured, 83.0),
        "training": lambda: draw_training(log),
        "dial": lambda: draw_dial(results),
    }
    words = {
        "bleu_perplexity": ["reconstruction BLEU", "F-PPL", "R-PPL", "real text", "best NVAE", "VTS"],
        "perplexity_kept": ["ν, share of vectors kept", "F-PPL"],
        "bleu_kept": ["ν, share of vectors kept", "reconstruction BLEU"],
        "vectors": ["input length n (tokens)", "vectors kept", "VTS S=0.5", "y = n", "never seen in training"],
        "lengths": ["tokens in a sentence", "share of sentences (%)"],
        "interpolation": ["weight of the second text", "perplexity", "real text"],
        "training": ["nats per token", "step", "BLEU"],
        "dial": ["ν, share of vectors kept", "reconstruction BLEU", "F-PPL", "R-PPL", "NVAE", "VTS"],
    }
    for name, function in draw.items():
        svg = function()
        assert svg is not None, name
        assert svg.startswith("<svg"), name
        assert MARK in svg, name
        assert len(svg.encode()) < LIGHT, name
        text = " ".join(re.findall(r">([^<>]+)</text>", svg))
        assert [word for word in words[name] if word not in text] == [], name


def test_a_point_tells_which_cell_it_is(results):
    svg = draw_points(results, None, SCATTER_PLOTS["bleu_perplexity"])
    assert svg is not None
    titles = re.findall(r"<title>(.*?)</title>", svg)
    assert "NVAE λ′_G=0.01 λ′_D=1 Δ=0.3, seed 1: F-PPL 107, BLEU 67" in titles
    assert len(titles) == 2 * 5  # T has no samples


def test_numbers_of_vectors_are_means_over_seeds(results):
    cells = [
        CellResult("nvae", seed, {"validation-causal": make_evaluation(number={"short": make_number(bleu)})})
        for seed, bleu in enumerate((80.0, 90.0))
    ]
    row = RowResults(RowPlan("nvae", (0, 1)), tuple(cells), "validation-causal")
    svg = draw_number(replace(results, rows=(*results.rows, row)))
    assert svg is not None
    assert len(svg.encode()) < LIGHT
    titles = re.findall(r"<title>(.*?)</title>", svg)
    assert len(titles) == 2 * (3 + 2)
    assert f"{row.title}, share 0.5: ν 0.5, reconstruction BLEU 42.5" in titles
    assert f"{row.title}, fewest: ν 0.29, exact (%) 97" in titles
    assert f"{row.title}, auto: ν 0.37, reconstruction BLEU 83" in titles
    assert ">fewest<" in svg


def test_without_data_there_is_no_figure(results):
    t = [row for row in results.rows if row.name == "t"]
    empty = type(results)(results.plan, results.evaluation, tuple(t))
    assert draw_points(empty, None, SCATTER_PLOTS["bleu_perplexity"]) is None
    assert draw_sample_lengths(type(results)(results.plan, results.evaluation, ())) is None
    assert draw_paths([], None) is None
    assert draw_training([LogEntry(1, {})]) is None
    assert draw_vectors([], family="NVAE", name="x") is None
    assert draw_number(results) is None
    assert draw_dial(empty) is None
    assert draw_dial(results, without=["nvae-0.01", "vts-0.5"]) is None


@pytest.mark.parametrize("length", [1, 2])
def test_few_lengths_still_make_a_figure(length):
    record = make_record("nvae-0.01")
    rows = record["reconstruction"]["short"]["by_length"][:length]
    evaluation = make_evaluation(reconstruction={"short": {"sentences": 3, "by_length": rows}})
    assert draw_vectors([evaluation], family="NVAE", name="x")


def test_figures_in_a_page_share_no_identifier_and_follow_its_colours(results):
    svg = draw_points(results, None, SCATTER_PLOTS["bleu_kept"])
    assert svg is not None
    one, two = (inline(svg, name=name, alt='a "quoted" figure') for name in ("one", "two"))
    ids = [set(re.findall(r'\bid="([^"]+)"', text)) for text in (one, two)]
    assert ids[0]
    assert not ids[0] & ids[1]
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', one))
    assert used <= ids[0]
    assert "var(--ink)" in one
    assert 'role="img" aria-label="a &quot;quoted&quot; figure"' in one
    assert "http" not in one


def test_families_are_told_apart_without_colour():
    assert len({look.marker for look in LOOKS.values()}) == len({look.colour for look in LOOKS.values()}) == len(LOOKS)
