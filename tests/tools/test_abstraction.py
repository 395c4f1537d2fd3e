"""The measurement of abstraction: boundaries of words, their scores, and a model of one step."""

import pytest
import torch

from tools.measure_abstraction import PAD, Autoencoder, Lines, boundary_scores, measure, train, with_controls

TEXTS = ["ab cde f", "g hi"]


def test_boundaries_are_spaces_or_the_first_characters_of_words():
    assert Lines(TEXTS, spaces=True).boundaries == [{2, 6}, {1}]
    joined = Lines(TEXTS, spaces=False)
    assert joined.texts == ["abcdef", "ghi"]
    assert joined.boundaries == [{2, 5}, {1}]
    assert (joined.ids != PAD).sum(1).tolist() == [6, 3]
    assert joined.rate == pytest.approx(3 / 9)


def test_too_many_boundaries_cost_precision():
    lines = Lines(TEXTS, spaces=True)
    everything = [set(range(len(text))) for text in lines.texts]
    assert boundary_scores(lines.boundaries, lines, 0) == {"precision": 1.0, "recall": 1.0, "f1": 1.0}
    found = boundary_scores(everything, lines, 0)
    assert found["recall"] == 1.0
    assert found["precision"] == pytest.approx(3 / 12)
    assert found["f1"] == pytest.approx(2 * 3 / (12 + 3))
    assert boundary_scores([set(), set()], lines, 0) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}


def test_the_place_of_a_boundary_is_chosen_and_controls_have_as_many():
    lines = Lines(["ab cde fgh ij", "klm no p qrst"] * 9, spaces=True)
    before = [{place - 1 for place in places} for places in lines.boundaries]
    found = with_controls([before, before], [lines, lines])
    assert found["kept"] == {"offset": 1, "precision": 1.0, "recall": 1.0, "f1": 1.0}
    for control in ("random", "every k-th"):
        assert found[control]["precision"] == pytest.approx(found[control]["recall"])  # as many as there are
        assert found[control]["f1"] < 1.0


def test_a_model_trains_and_is_measured():
    lines = ["the cat sat on", "a mat by the sea"] * 20
    torch.manual_seed(0)
    model = train(Autoencoder(), lines, 1, spaces=False, beta=0.1)
    found = measure(model, [Lines(lines, spaces=False)] * 2)
    assert len(found["layers"]) == len(found["KL per character"]) == 3
    kept = [layer["kept"] for layer in found["layers"]]
    assert 1.0 >= kept[0] >= kept[1] >= kept[2] > 0.0
    texts = Lines(lines, spaces=False)
    assert model.decode(texts.ids, model.encode(texts.ids, sample=True).posteriors[-1].mean()).shape == (40, 12, 97)
