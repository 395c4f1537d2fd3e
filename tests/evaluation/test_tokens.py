"""On which tokens vectors are spent: against counting by hand."""

import pytest
import torch

from open_nvib.evaluation.tokens import kind_of, rank_of, tokens_kept, vectors_of_tokens
from open_nvib.layer import NVIB
from open_nvib.process import Posterior
from open_nvib.text.bottlenecks import VectorLatent
from open_nvib.text.data import load_prepared
from open_nvib.text.run import load_run


def test_gathered_tokens_share_a_vector():
    """Runs of 1, 2 and 1 tokens, and of 1 and 2 before padding, from counts of 4, 1, 1, 4 and 1, 3, 1."""
    layer = NVIB(3, input_size=1, keep_share=0.5, delta=2.0)
    torch.nn.init.ones_(layer.to_alpha.weight)
    torch.nn.init.zeros_(layer.to_alpha.bias)
    hidden = torch.tensor([[4.0, 1.0, 1.0, 4.0], [3.0, 3.0, 1.0, 9.0]]).unsqueeze(-1)
    latent = layer(hidden, torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]).bool())
    shares = vectors_of_tokens(latent, 4)
    torch.testing.assert_close(shares, torch.tensor([[1.0, 0.5, 0.5, 1.0], [1.0, 0.5, 0.5, 0.0]]))
    torch.testing.assert_close(shares.sum(-1), latent.kept * latent.lengths)


def test_dropped_tokens_have_none():
    layer = NVIB(3, input_size=1)
    torch.nn.init.ones_(layer.to_alpha.weight)
    torch.nn.init.zeros_(layer.to_alpha.bias)
    latent = layer(torch.tensor([[1.0, -1.0, 2.0]]).unsqueeze(-1))
    assert vectors_of_tokens(latent, 3).tolist() == [[1.0, 0.0, 1.0]]


def test_a_pooled_latent_has_no_vectors_of_tokens():
    one = torch.zeros(2, 1, 3)
    latent = VectorLatent(mu=one, log_sigma=one, mask=torch.ones(2, 1).bool(), lengths=torch.tensor([4, 4]), d=3)
    with pytest.raises(ValueError, match="one vector for all tokens"):
        vectors_of_tokens(latent, 4)


def test_groups():
    assert [rank_of(rank) for rank in (1, 10, 11, 1000, 1001)] == [
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
    assert isinstance(latent, Posterior)
    kept = (latent.alpha[:, :-1] > 0).sum().item()
    for by in ("frequency", "kind", "place"):
        those = [group for group in groups if group.by == by]
        assert sum(group.tokens for group in those) == sum(map(len, texts))
        assert sum(group.tokens * group.vectors for group in those) == pytest.approx(kept, rel=1e-5)
    numbers = next(group for group in groups if group.name == "number")
    digits = {token for token in range(len(run.tokenizer)) if str(run.tokenizer.decode([token])).isdigit()}
    assert numbers.tokens == sum(token in digits for text in texts for token in text)
