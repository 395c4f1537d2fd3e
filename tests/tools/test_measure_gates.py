"""The controls of the measurement of gates: what each rule keeps."""

import pytest
import torch

from tools import measure_gates


@pytest.fixture
def config():
    from open_nvib.text.model.configuration import TextAutoencoderConfig

    return TextAutoencoderConfig(vocab_size=9, d_model=8, bottleneck="nvae", alpha_activation="gate", delta=10.0)


def test_gates_by_frequency_drop_the_frequent_tokens(config):
    bottleneck = measure_gates.ChosenGates(config)
    bottleneck.frequent = torch.tensor([False, True, False, True, False, False, False, False, False])
    bottleneck.token_ids = torch.tensor([[1, 2, 3, 4], [1, 3, 1, 0]])
    latent = bottleneck(torch.randn(2, 4, 8), torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]).bool())
    kept = bottleneck.kept_vectors(latent)[:, :-1]
    assert kept.tolist() == [[False, True, False, True], [True, False, False, False]]  # a text keeps at least one


def test_random_gates_keep_their_share(config):
    torch.manual_seed(0)
    bottleneck = measure_gates.ChosenGates(config)
    bottleneck.share, bottleneck.frequent = 0.3, torch.zeros(0).bool()
    latent = bottleneck(torch.randn(200, 50, 8), torch.ones(200, 50).bool())
    assert latent.kept.mean().item() == pytest.approx(0.3, abs=0.03)  # six standard deviations


def test_l0drop_pays_for_the_expected_number_of_open_gates(config):
    torch.manual_seed(0)
    bottleneck = measure_gates.L0Drop(config)
    hidden, mask = torch.randn(3, 5, 8), torch.ones(3, 5).bool()
    mask[2, 3:] = False
    drawn = torch.stack([bottleneck.explore(hidden, mask).mask.sum(-1) for _ in range(4000)]).double().mean(0)
    torch.testing.assert_close(bottleneck(hidden, mask).kl().dirichlet.double(), drawn, atol=0.08, rtol=0)


def test_a_correlation_at_one_length_ignores_the_length():
    texts = [[0] * 3, [0] * 3, [0] * 9, [0] * 9]
    assert measure_gates.correlation_at_one_length(texts, [1, 2, 7, 8], [5.0, 6.0, 1.0, 2.0]) == pytest.approx(1.0)


def test_the_tables_of_the_page_are_those_of_its_cells():
    page = (measure_gates.ROOT / "docs" / "results" / "gates.md").read_text().splitlines()
    for line in measure_gates.tables(measure_gates.CELLS):
        assert line in page
