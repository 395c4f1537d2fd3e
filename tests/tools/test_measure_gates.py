"""The controls of the measurement of gates: what each rule keeps."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from open_nvib.text.model.autoencoder import TextAutoencoder
from open_nvib.text.model.configuration import TextAutoencoderConfig
from tools import measure_gates


@pytest.fixture
def config():
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


def test_kept_by_surprisal_sorts_the_tokens_of_all_texts(config):
    """Each text through the model by itself, and the quarters by hand."""
    torch.manual_seed(0)
    model: Any = TextAutoencoder(config).eval()
    torch.nn.init.normal_(model.encoder.bottleneck.nvib.to_alpha.weight, std=3.0)
    texts = [torch.randint(3, 9, (n,)).tolist() for n in (7, 3, 6)]
    nats = [torch.rand(len(text) + 1).tolist() for text in texts]  # the last is the end's
    pairs = []
    for text, row in zip(texts, nats, strict=True):
        ids = torch.tensor([text])
        kept = model.encoder.posterior(ids, torch.ones_like(ids).bool()).alpha[0, :-1] > 0
        pairs += zip(row, kept.tolist(), strict=False)
    flags = [flag for _, flag in sorted(pairs)]
    expected = [sum(flags[i : i + 4]) / 4 for i in (0, 4, 8, 12)]
    assert len(set(flags)) == 2
    found = measure_gates.kept_by_surprisal(SimpleNamespace(model=model), texts, nats)
    assert found == pytest.approx(expected)


def test_the_tables_of_the_page_are_those_of_its_cells():
    page = (measure_gates.ROOT / "docs" / "results" / "gates.md").read_text().splitlines()
    for line in measure_gates.tables(measure_gates.CELLS):
        assert line in page
