"""Text models that decide which tokens get a vector."""

from dataclasses import replace

import pytest
import torch
from test_model import make_model

from open_nvib.evaluation.reconstruction import measure_number
from open_nvib.store.files import OutsideTraining
from open_nvib.text.model.autoencoder import TextAutoencoder
from open_nvib.text.model.vector_count import find_fewest, make_request
from open_nvib.text.using.inspection import inspect_latent

TEXTS = [[5, 6, 7, 8, 9, 10, 11], [12, 13, 14]]


@pytest.fixture
def model() -> TextAutoencoder:
    """A model of random weights whose gates differ from token to token: some open, some closed."""
    torch.manual_seed(3)
    model = make_model("nvae", alpha_activation="gate", gate_share=0.5, delta=10.0).eval()
    torch.nn.init.normal_(model.encoder.bottleneck.nvib.to_alpha.weight, std=1.0)
    return model


def latent_of(model, texts, **number):
    from open_nvib.text.model.decoding import encode

    return encode(model, texts, make_request(model, texts, **number))


def test_training_explores_gates_and_test_time_does_not(model):
    ids = torch.tensor(TEXTS[:1])
    torch.manual_seed(0)
    noisy = torch.stack([model.encoder.posterior(ids, explore=True).alpha for _ in range(20)])
    assert noisy.std(0)[..., :-1].max() > 1
    assert torch.equal(model.encoder.posterior(ids).alpha, model.encoder.posterior(ids).alpha)


def test_the_loss_is_that_of_explored_gates(model):
    labels = torch.tensor([[*TEXTS[0], 2]])
    torch.manual_seed(0)
    kept = {model(input_ids=labels[:, :-1], labels=labels, sample=True).kept.item() for _ in range(20)}
    assert len(kept) > 1
    assert len({model(input_ids=labels[:, :-1], labels=labels, sample=False).kept.item() for _ in range(5)}) == 1


def test_auto_is_what_the_gates_decide(model):
    own, auto = latent_of(model, TEXTS), latent_of(model, TEXTS, vectors="auto")
    assert own.alpha is not None
    assert auto.alpha is not None
    assert torch.equal(own.alpha, auto.alpha)
    assert 0 < own.kept[0] < 1


def test_a_number_that_is_asked_for_is_that_of_the_loss_too(model):
    """Noise explores how many gates to open; with a request there is nothing to explore."""
    ids = torch.tensor(TEXTS[:1])
    with pytest.warns(OutsideTraining, match="decides"):
        request = make_request(model, TEXTS[:1], vectors=2)
    for _ in range(10):
        assert (model.encoder.posterior(ids, request=request, explore=True).kept * 7).item() == 2


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_number_opens_as_many_gates(model, number):
    with pytest.warns(OutsideTraining, match="decides"):
        latent = latent_of(model, TEXTS, vectors=number)
    assert torch.equal((latent.kept * latent.lengths).round(), torch.full((2,), float(number)))


def test_a_text_without_an_exact_number_has_what_the_gates_decide(model):
    with pytest.warns(OutsideTraining):
        found = find_fewest(model, TEXTS)
    assert found.own_share.all()
    assert not found.exact.any()
    assert (found.wrong > 0).all()
    own = latent_of(model, TEXTS)
    assert torch.equal(found.vectors, (own.kept * own.lengths).round().long())


@pytest.mark.parametrize("pooled", [True, False])
def test_inspection_shows_what_is_kept_pooled_or_dropped(model, pooled):
    bottleneck = model.encoder.bottleneck
    bottleneck.nvib.gate_pooling = pooled
    ids = torch.tensor(TEXTS[:1])
    mask = torch.ones_like(ids, dtype=torch.bool)
    report = inspect_latent(bottleneck, model.encoder.hidden_states(ids, mask), mask, [str(i) for i in TEXTS[0]])
    alpha = bottleneck.nvib.pseudo_counts(model.encoder.hidden_states(ids, mask))
    kept = sum(token.kept for token in report.tokens)
    assert 0 < kept < len(report.tokens)
    assert kept == (alpha > 0).sum()
    assert all(token.shared or token.kept for token in report.tokens) == pooled


def test_numbers_have_no_agreement_without_offsets(model, trained):
    """The search finds the same numbers whatever the offset, so their correlation says nothing."""
    found = measure_number(replace(trained, model=model), [[5, 6, 7], [8, 9, 10], [11, 12, 13], [14, 15, 16]])
    assert found.agreement is None
