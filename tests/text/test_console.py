import pytest

from open_nvib.text.training.console import line, troubles

HEALTHY = {"kl_gaussian": 0.6, "kl_dirichlet": 0.01, "bleu": 60.0, "kept": 0.5}


@pytest.mark.parametrize(
    ("changes", "bare", "found"),
    [
        ({}, 2.0, set()),
        ({"kl_gaussian": 0.01, "bleu": 2.3}, 2.0, {"collapse"}),
        ({"kl_gaussian": 0.01}, 2.0, set()),  # little information, and well used
        ({"bleu": 2.3}, 2.0, set()),  # much information, not used yet
        ({"kl_gaussian": 0.01, "bleu": 2.3}, None, set()),
        ({"kept": 1.0}, None, {"all kept"}),
        ({"kept": 0.0}, None, {"all dropped"}),
        ({"kl_gaussian": 0.0, "bleu": 1.0, "kept": 0.0}, 1.0, {"collapse", "all dropped"}),
    ],
)
def test_troubles_are_noticed(changes, bare, found):
    assert set(troubles(HEALTHY | changes, bare, drops=True)) == found


def test_a_model_that_cannot_drop_is_not_told_to():
    assert troubles(HEALTHY | {"kept": 1.0}, None, drops=False) == {}


def test_line_shows_training_and_validation():
    assert line(5, 100, {"loss": 1.23456, "grad_norm": 3.0}) == "  5/100 training   loss 1.235"
    assert line(100, 100, {"eval_loss": 1.0, "eval_bleu": 50.0}) == "100/100 validation loss 1  BLEU 50"
    assert line(100, 100, {"train_runtime": 3.0, "train_loss": 1.0}) is None
    assert line(100, 100, {"learning_rate": 1.0}) is None
