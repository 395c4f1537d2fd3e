"""Sets: groups, the pool, self-attention over a mixture, drawn numbers and the search for the fewest."""

import pytest
import torch
from torch import nn

import open_nvib as nv
from open_nvib.search import DIVISORS

BATCH, N, SIZE = 3, 7, 8


def test_groups_of_one_are_the_identity_and_groups_add_up():
    torch.manual_seed(0)
    alpha, hidden = torch.rand(BATCH, N), torch.randn(BATCH, N, SIZE)
    alone = nv.merge_groups(alpha, hidden, torch.arange(N).expand(BATCH, N))
    assert torch.equal(alone.alpha, alpha)
    torch.testing.assert_close(alone.hidden, hidden)
    groups = torch.tensor([[5, -2, 5, 9, -2, 5, 9]]).expand(BATCH, N)
    merged = nv.merge_groups(alpha, hidden, groups)
    for label, first in ((5, 0), (-2, 1), (9, 3)):
        inside = groups[0] == label
        torch.testing.assert_close(merged.alpha[:, first], alpha[:, inside].sum(-1))
        weighted = (alpha[:, inside, None] * hidden[:, inside]).sum(1) / alpha[:, inside].sum(-1, keepdim=True)
        torch.testing.assert_close(merged.hidden[:, first], weighted)
    assert (merged.alpha[:, [2, 4, 5, 6]] == 0).all()


def test_groups_do_not_depend_on_order_or_padding():
    torch.manual_seed(1)
    layer, attention = nv.NVIB(SIZE, keep_share=1.0), nv.DenoisingAttention(SIZE)
    hidden, query = torch.randn(BATCH, N, SIZE), torch.randn(BATCH, 2, SIZE)
    groups, order = torch.randint(3, (BATCH, N)), torch.randperm(N)
    posterior = layer(hidden, None, nv.VectorRequest(groups=groups))
    permuted = layer(hidden[:, order], None, nv.VectorRequest(groups=groups[:, order]))
    torch.testing.assert_close(attention(query, posterior.mean()), attention(query, permuted.mean()))
    torch.testing.assert_close(posterior.kl().gaussian, permuted.kl().gaussian)
    mask = torch.ones(BATCH, N + 2).bool()
    mask[:, :2] = False  # in front, where a padded token must not become the first of a group
    padded_hidden, padded_groups = (torch.cat([x[:, :2], x], 1) for x in (hidden, groups))
    padded = layer(padded_hidden, mask, nv.VectorRequest(groups=padded_groups))
    torch.testing.assert_close(attention(query, padded.mean()), attention(query, posterior.mean()))
    torch.testing.assert_close(padded.kl("exact").dirichlet, posterior.kl("exact").dirichlet)
    component = layer.component_of_token(hidden, None, nv.VectorRequest(groups=groups))
    assert torch.equal(component[:, :, None] == component[:, None], groups[:, :, None] == groups[:, None])
    with pytest.raises(ValueError, match="keep_share"):
        nv.NVIB(SIZE)(hidden, None, nv.VectorRequest(groups=groups))


def test_set_pool_does_not_depend_on_order_or_padding():
    torch.manual_seed(2)
    pool, tokens = nv.SetPool(SIZE), torch.randn(BATCH, N, SIZE)
    numbers = torch.tensor([1, 3, 5])
    pooled = pool(tokens, vectors=numbers)
    assert pooled.mask.sum(-1).tolist() == [1, 3, 5]
    torch.testing.assert_close(pool(tokens[:, torch.randperm(N)], vectors=numbers).hidden, pooled.hidden)
    mask = torch.ones(BATCH, N + 2).bool()
    mask[:, :2] = False
    padded = torch.cat([torch.full((BATCH, 2, SIZE), torch.nan), tokens], 1)
    padded_pool = pool(padded, mask, vectors=numbers)
    torch.testing.assert_close(padded_pool.hidden[:, :N], pooled.hidden)
    assert torch.equal(padded_pool.groups[:, 2:], pooled.groups)
    assert (padded_pool.groups[:, :2] == -1).all()
    # a row does not depend on how many vectors the others have
    torch.testing.assert_close(pool(tokens[1:2], vectors=3).hidden, pooled.hidden[1:2, :3])
    empty = pool(tokens, torch.zeros(BATCH, N).bool())
    assert not empty.mask.any()
    assert (empty.hidden == 0).all()


def test_set_pool_gives_each_token_its_own_vector_or_all_of_them_one():
    """With as many vectors as tokens the pool acts on each alone; with one, on the mean of all."""
    torch.manual_seed(5)
    pool, tokens = nv.SetPool(SIZE), torch.randn(BATCH, N, SIZE)
    alone = torch.cat([pool(token).hidden for token in tokens.split(1, 1)], 1)
    everything = pool(tokens)
    assert everything.mask.all()
    torch.testing.assert_close(everything.hidden.sort(1).values, alone.sort(1).values)
    torch.testing.assert_close(pool(tokens, vectors=1).hidden, alone.mean(1, keepdim=True))


def test_set_pool_merges_clusters_that_lie_apart():
    """Three clusters far from each other are three vectors, each the pool of its cluster alone."""
    torch.manual_seed(6)
    pool, tokens, label = nv.SetPool(SIZE), torch.randn(1, 12, SIZE), torch.arange(12) % 3
    places = torch.tensor([[0.0, 0.0], [50.0, 0.0], [0.0, 90.0]])[label] + torch.randn(12, 2)
    pooled = pool(tokens, vectors=3, places=places[None])
    expected = torch.cat([pool(tokens[:, label == i], vectors=1).hidden for i in range(3)], 1)
    torch.testing.assert_close(pooled.hidden.sort(1).values, expected.sort(1).values)
    # `groups` says which token is in which vector
    assert torch.equal(pooled.groups[0][:, None] == pooled.groups[0], label[:, None] == label)
    torch.testing.assert_close(pooled.hidden[:, pooled.groups[0]], expected[:, label])


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_self_attention_with_equal_weights_is_torchs(norm_first, training):
    torch.manual_seed(3)
    ours = nv.MixtureSelfAttention(SIZE, 2, 16, dropout=0.0, norm_first=norm_first).train(training)
    torchs = nn.TransformerEncoderLayer(SIZE, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first)
    torchs.load_state_dict(ours.state_dict())
    z = torch.randn(BATCH, N, SIZE)
    mixture = ours(nv.ImpulseMixture(z=z, log_pi=torch.full((BATCH, N), -2.0)))
    torch.testing.assert_close(mixture.z, torchs.train(training)(z), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("gradients", [True, False])
def test_self_attention_reads_a_vector_of_double_weight_as_two(gradients):
    torch.manual_seed(4)
    layer, z = nv.MixtureSelfAttention(SIZE, 2, 16, dropout=0.0), torch.randn(1, 3, SIZE)
    double = nv.ImpulseMixture(z=z, log_pi=torch.tensor([[2.0, 1.0, 1.0]]).log())
    twice = nv.ImpulseMixture(z=z[:, [0, 0, 1, 2]], log_pi=torch.zeros(1, 4))
    # a vector without weight changes nothing, and order does not matter
    more = nv.ImpulseMixture(torch.cat([z, 9 * z[:, :1]], 1), torch.tensor([[2.0, 1.0, 1.0, 0.0]]).log())
    order = torch.tensor([2, 0, 1])
    with torch.set_grad_enabled(gradients):
        torch.testing.assert_close(layer(double).z, layer(twice).z[:, 1:])
        torch.testing.assert_close(layer(more).z[:, :3], layer(double).z)
        torch.testing.assert_close(layer(double.map(lambda x: x[:, order])).z, layer(double).z[:, order])


def test_self_attention_has_gradients_and_keeps_the_spread():
    layer = nv.MixtureSelfAttention(SIZE, 2, 16, dropout=0.0)
    posterior = nv.NVIB(SIZE)(torch.randn(1, 4, SIZE, requires_grad=True))
    layer(posterior.sample()).z.sum().backward()
    assert layer(posterior.points()).spread is not None


@pytest.mark.parametrize("distribution", ["log_uniform", "uniform", "divisors"])
def test_drawn_shares_have_their_distribution(distribution):
    """The mean of 100,000 draws: 0.01 is over ten standard deviations."""
    shares = nv.draw_shares(100_000, distribution, smallest=0.125, generator=torch.Generator().manual_seed(0))
    expected = {
        "log_uniform": 0.875 / torch.log(torch.tensor(8.0)).item(),
        "uniform": 0.5625,
        "divisors": sum(1 / k for k in DIVISORS) / len(DIVISORS),
    }[distribution]
    assert abs(shares.mean().item() - expected) < 0.01
    assert 0.125 <= shares.min() <= shares.max() <= 1
    most = torch.tensor([6, 1, 48]).repeat(2000, 1)
    numbers = nv.draw_numbers(most.flatten(), distribution, generator=torch.Generator().manual_seed(1)).view(-1, 3)
    assert numbers.amax(0).tolist() == [6, 1, 48]
    assert numbers.amin(0).tolist() == [1, 1, 6 if distribution == "divisors" else 1]  # 48 / 8


def test_the_fewest_vectors_are_found_or_the_best_try():
    needed, most = torch.tensor([1, 3, 40, 9, 99]), torch.tensor([5, 5, 64, 4, 20])

    def error(items, vectors):
        """The distance to what is needed, and, for the fourth item, smallest at two vectors."""
        distance = (needed[items] - vectors).clamp(min=0).float()
        return torch.where(items == 3, 5 + (vectors - 2).abs(), distance)

    found = nv.find_fewest(error, most, threshold=0.0)
    assert found.vectors[:2].tolist() == [1, 3]
    assert 40 <= found.vectors[2] <= 45  # above 16, numbers grow by an eighth
    assert found.vectors[3:].tolist() == [2, 20]
    assert found.found.tolist() == [True, True, True, False, False]
    assert found.error[3:].tolist() == [5.0, 79.0]
    assert found.tries[:2].tolist() == [1, 3]


def test_both_mixtures_have_one_name_for_vectors_and_weights():
    posterior = nv.NVIB(SIZE)(torch.randn(2, 3, SIZE))
    for mixture, vectors, weights in (
        (mean := posterior.mean(), mean.mu, mean.log_alpha),
        (sample := posterior.sample(), sample.z, sample.log_pi),
    ):
        assert mixture.vectors is vectors
        assert mixture.log_weights is weights


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.float16])
def test_places_may_be_whole_numbers_or_in_half_precision(dtype):
    """The coordinates of pixels; the squared distance of those that are far apart is above float16's largest."""
    torch.manual_seed(4)
    pool, tokens = nv.SetPool(SIZE), torch.randn(BATCH, N, SIZE)
    places = torch.randint(2000, (BATCH, N, 2)).to(dtype)
    expected = pool(tokens, vectors=3, places=places.double())
    assert torch.equal(pool(tokens, vectors=3, places=places).hidden, expected.hidden)


def test_a_set_without_tokens_has_no_vectors():
    pool = nv.SetPool(SIZE)
    for vectors in (None, 1, 3):
        pooled = pool(torch.zeros(2, 0, SIZE), vectors=vectors)
        assert not pooled.mask.any()
        assert nv.NVIB(SIZE)(pooled.hidden, pooled.mask).lengths.tolist() == [0, 0]


def test_a_number_that_is_drawn_is_never_above_the_most():
    most = torch.full((64,), 2**31 - 1, dtype=torch.int32)
    for distribution in ("log_uniform", "uniform", "divisors"):
        numbers = nv.draw_numbers(most, distribution)
        assert (numbers >= 1).all()
        assert (numbers <= most).all()
        assert nv.draw_numbers(most[:0], distribution).shape == (0,)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_self_attention_reads_the_posterior_of_a_layer_of_its_precision(dtype):
    """The posterior of a layer in half precision is in float32."""
    nvib, mixing = nv.NVIB(SIZE).to(dtype), nv.MixtureSelfAttention(SIZE, 2).to(dtype).eval()
    posterior = nvib(torch.randn(2, 5, SIZE).to(dtype))
    for mixture in (posterior.sample(), posterior.points()):
        assert mixing(mixture).z.isfinite().all()


@pytest.mark.parametrize("batch", [0, 2])
def test_sets_without_tokens_have_groups(batch):
    merged = nv.merge_groups(torch.ones(batch, 0), torch.randn(batch, 0, SIZE), torch.zeros(batch, 0).long())
    assert merged.hidden.shape == (batch, 0, SIZE)
    request = nv.VectorRequest(groups=torch.zeros(batch, 0).long())
    assert nv.NVIB(SIZE, keep_share=0.5)(torch.randn(batch, 0, SIZE), request=request).lengths.tolist() == [0] * batch


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_places_that_have_no_distance_are_refused(wrong):
    """All tokens would share one vector. What padding holds does not matter."""
    pool, tokens, mask = nv.SetPool(SIZE), torch.randn(1, N, SIZE), torch.ones(1, N).bool()
    places = torch.randn(1, N, 2)
    places[0, -1] = wrong
    with pytest.raises(ValueError, match="places"):
        pool(tokens, mask, vectors=3, places=places)
    mask[0, -1] = False
    assert pool(tokens, mask, vectors=3, places=places).mask.sum() == 3
