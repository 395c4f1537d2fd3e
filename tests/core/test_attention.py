import math

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import Normal

import open_nvib as nv

# Distinct primes, so that no transposition hides.
BATCH, QUERIES, N, P, D = 3, 5, 7, 11, 13


def make(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def impulses():
    return make(BATCH, QUERIES, P, seed=1), make(BATCH, N, P, seed=2), make(BATCH, N, seed=3).log_softmax(-1)


@pytest.fixture
def gaussians():
    u, mu = make(BATCH, QUERIES, P, seed=1), make(BATCH, N, P, seed=2)
    return u, mu, 0.7 * make(BATCH, N, P, seed=3), make(BATCH, N, seed=4)


def test_attend_impulses_is_the_posterior_mean(impulses):
    """`eq:dattn` by Bayes' rule: E[v | u] with v ~ F and u ~ N(v, √d I)."""
    u, z, log_pi = impulses
    likelihood = Normal(z[:, None], D**0.25).log_prob(u[:, :, None]).sum(-1)
    posterior = (log_pi[:, None] + likelihood).softmax(-1)
    torch.testing.assert_close(nv.attend_impulses(u, z, log_pi, d=D), posterior @ z)


def test_attend_impulses_matches_the_loop(impulses):
    u, z, log_pi = impulses
    got = nv.attend_impulses(u, z, log_pi, d=D)
    for b in range(BATCH):
        for q in range(QUERIES):
            expected = reference.attend_impulses(u[b, q].numpy(), z[b].numpy(), log_pi[b].numpy(), D)
            np.testing.assert_allclose(got[b, q].numpy(), expected, rtol=1e-9)


def test_the_weights_of_probz_recover_ordinary_attention(impulses):
    """With log π = ‖z‖²/2√d (`eq:probZ`) denoising attention is scaled dot-product attention (`eq:attn`)."""
    u, z, _ = impulses
    log_pi = (z.square().sum(-1) / (2 * math.sqrt(D))).log_softmax(-1)
    ordinary = torch.softmax(u @ z.mT / math.sqrt(D), -1) @ z
    torch.testing.assert_close(nv.attend_impulses(u, z, log_pi, d=D), ordinary)


def test_attend_gaussians_matches_the_loop(gaussians):
    u, mu, log_sigma, log_alpha = gaussians
    got = nv.attend_gaussians(u, mu, log_sigma, log_alpha, d=D)
    for b in range(BATCH):
        for q in range(QUERIES):
            expected = reference.attend_gaussians(
                u[b, q].numpy(), mu[b].numpy(), log_sigma[b].exp().numpy(), log_alpha[b].exp().numpy(), D
            )
            np.testing.assert_allclose(got[b, q].numpy(), expected, rtol=1e-9)


@pytest.mark.parametrize("u", [-2.0, 0.3, 4.0])
@pytest.mark.parametrize("d", [1, 4, 64])
def test_attend_gaussians_is_the_integral_in_one_dimension(u, d):
    """`eq:dattn` by quadrature, f the density of a mixture of three Gaussians."""
    mu, sigma, alpha = np.array([-1.0, 0.5, 3.0]), np.array([0.3, 1.7, 0.8]), np.array([0.2, 2.0, 0.7])

    def joint(v):
        return (alpha * norm.pdf(v, mu, sigma)).sum() * norm.pdf(u, v, d**0.25)

    numerator, _ = quad(lambda v: v * joint(v), -30, 30, epsabs=0, limit=400, points=[-1, 0.5, 3, u])
    denominator, _ = quad(joint, -30, 30, epsabs=0, limit=400, points=[-1, 0.5, 3, u])
    got = nv.attend_gaussians(
        torch.tensor([[u]], dtype=torch.float64),
        torch.tensor(mu)[:, None],
        torch.tensor(sigma).log()[:, None],
        torch.tensor(alpha).log(),
        d=d,
    )
    np.testing.assert_allclose(got.item(), numerator / denominator, rtol=1e-7)


def test_attend_gaussians_with_a_wide_component_returns_the_query():
    """σ → ∞: a component that knows nothing leaves the query as it is."""
    u, mu = make(QUERIES, P), make(1, P, seed=2)
    got = nv.attend_gaussians(u, mu, torch.full((1, P), 18.0, dtype=torch.float64), torch.zeros(1).double(), d=D)
    torch.testing.assert_close(got, u)


def test_narrow_gaussians_are_impulses(gaussians):
    """σ → 0: the two attentions agree."""
    u, mu, _, log_alpha = gaussians
    narrow = torch.full_like(mu, -20.0)
    expected = nv.attend_impulses(u, mu, log_alpha.log_softmax(-1), d=D)
    torch.testing.assert_close(nv.attend_gaussians(u, mu, narrow, log_alpha, d=D), expected)


def test_many_samples_of_a_gaussian_mixture_attend_as_its_mean_does():
    """A mixture of 20,000 impulses drawn from the Gaussians approaches them. Error 5 standard errors; seed 0."""
    generator = torch.Generator().manual_seed(0)
    u, mu, log_sigma, log_alpha = make(4, 2), make(3, 2, seed=2), 0.3 * make(3, 2, seed=3), make(3, seed=4)
    count = 20_000
    which = torch.multinomial(log_alpha.softmax(-1), count, replacement=True, generator=generator)
    noise = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    z = mu[which] + log_sigma[which].exp() * noise
    sampled = nv.attend_impulses(u, z, torch.full((count,), -math.log(count)).double(), d=4)
    torch.testing.assert_close(sampled, nv.attend_gaussians(u, mu, log_sigma, log_alpha, d=4), atol=0.04, rtol=0)


def test_order_of_the_vectors_does_not_matter(impulses, gaussians):
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0))
    u, z, log_pi = impulses
    torch.testing.assert_close(
        nv.attend_impulses(u, z[:, order], log_pi[:, order], d=D), nv.attend_impulses(u, z, log_pi, d=D)
    )
    u, *rest = gaussians
    torch.testing.assert_close(
        nv.attend_gaussians(u, *(x[:, order] for x in rest), d=D), nv.attend_gaussians(u, *rest, d=D)
    )


def test_vectors_of_no_weight_are_as_if_absent(impulses, gaussians):
    u, z, log_pi = impulses
    padded = torch.cat([z, 1e3 * make(BATCH, 2, P, seed=9)], 1)
    weights = torch.nn.functional.pad(log_pi, (0, 2), value=-torch.inf)
    torch.testing.assert_close(nv.attend_impulses(u, padded, weights, d=D), nv.attend_impulses(u, z, log_pi, d=D))
    u, mu, log_sigma, log_alpha = gaussians
    args = torch.cat([mu, mu[:, :2]], 1), torch.cat([log_sigma, log_sigma[:, :2]], 1)
    weights = torch.nn.functional.pad(log_alpha, (0, 2), value=-torch.inf)
    torch.testing.assert_close(
        nv.attend_gaussians(u, *args, weights, d=D), nv.attend_gaussians(u, mu, log_sigma, log_alpha, d=D)
    )


def test_float32_is_close_to_float64(impulses, gaussians):
    for function, args in ((nv.attend_impulses, impulses), (nv.attend_gaussians, gaussians)):
        wide = function(*args, d=D)
        torch.testing.assert_close(function(*(x.float() for x in args), d=D).double(), wide, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dropped", [False, True])
def test_first_and_second_derivatives(dropped):
    """Also with a vector of no weight, whose weight gets no gradient."""
    u, z, log_pi = make(2, 3, 5, seed=1), make(2, 4, 5, seed=2), make(2, 4, seed=3)
    log_sigma = 0.5 * make(2, 4, 5, seed=4)
    gone = torch.zeros(2, 4, dtype=torch.bool)
    gone[0, 1] = dropped

    def impulses(u, z, log_pi):
        return nv.attend_impulses(u, z, log_pi.masked_fill(gone, -torch.inf), d=3)

    def gaussians(u, mu, log_sigma, log_pi):
        return nv.attend_gaussians(u, mu, log_sigma, log_pi.masked_fill(gone, -torch.inf), d=3)

    for function, args in ((impulses, (u, z, log_pi)), (gaussians, (u, z, log_sigma, log_pi))):
        args = tuple(x.clone().requires_grad_() for x in args)
        assert gradcheck(function, args)
        assert gradgradcheck(function, args)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 3), max_size=2),
    st.integers(1, 6),
    st.integers(1, 6),
    st.integers(1, 9),
    st.integers(1, 70),
)
def test_any_shape(batch, queries, n, p, d):
    u, z, log_pi = make(*batch, queries, p), make(*batch, n, p, seed=1), make(*batch, n, seed=2)
    for got in (nv.attend_impulses(u, z, log_pi, d=d), nv.attend_gaussians(u, z, 0.1 * z, log_pi, d=d)):
        assert got.shape == (*batch, queries, p)
        assert got.isfinite().all()


def test_batches_broadcast(impulses, gaussians):
    """Heads share one mixture: u (batch, heads, queries, p) against z (batch, 1, n, p)."""
    _, z, log_pi = impulses
    heads = make(BATCH, 2, QUERIES, P, seed=8)
    got = nv.attend_impulses(heads, z[:, None], log_pi[:, None], d=D)
    torch.testing.assert_close(got[:, 1], nv.attend_impulses(heads[:, 1], z, log_pi, d=D))
    _, *rest = gaussians
    got = nv.attend_gaussians(heads, *(x[:, None] for x in rest), d=D)
    torch.testing.assert_close(got[:, 1], nv.attend_gaussians(heads[:, 1], *rest, d=D))


# The module

HEADS, HEAD_SIZE, QUERY_SIZE = 3, 4, 17


def mixtures(dtype=torch.float64):
    z, log_pi = make(BATCH, N, P, seed=2), make(BATCH, N, seed=3)
    log_pi[0, 2] = -torch.inf
    return (
        nv.ImpulseMixture(z=z.to(dtype), log_pi=log_pi.log_softmax(-1).to(dtype)),
        nv.GaussianMixture(
            mu=z.to(dtype), log_sigma=(0.5 * make(BATCH, N, P, seed=4)).to(dtype), log_alpha=log_pi.to(dtype)
        ),
    )


@pytest.fixture(params=[1, HEADS])
def attention(request):
    torch.manual_seed(0)
    module = nv.DenoisingAttention(P, request.param, query_size=QUERY_SIZE, head_size=HEAD_SIZE).double()
    torch.nn.init.normal_(module.to_query.bias)
    torch.nn.init.normal_(module.to_output.bias)
    return module


def one_head_at_a_time(attention, query, mixture):
    """Each head by the pure function in the space of Z: u = u′ W^Q (W^K)ᵀ, then W^V, then the output projection."""
    q = attention.to_query(query)
    heads = []
    for h in range(attention.heads):
        rows = slice(h * attention.d, (h + 1) * attention.d)
        u = q[..., rows] @ attention.to_key.weight[rows]
        if isinstance(mixture, nv.ImpulseMixture):
            denoised = nv.attend_impulses(u, mixture.z, mixture.log_pi, d=attention.d)
        else:
            denoised = nv.attend_gaussians(u, mixture.mu, mixture.log_sigma, mixture.log_alpha, d=attention.d)
        heads.append(denoised @ attention.to_value.weight[rows].T)
    return attention.to_output(torch.cat(heads, -1))


@pytest.mark.parametrize("kind", [0, 1], ids=["impulses", "gaussians"])
class TestDenoisingAttention:
    def test_equals_one_head_at_a_time(self, attention, kind):
        query, mixture = make(BATCH, QUERIES, QUERY_SIZE, seed=5), mixtures()[kind]
        torch.testing.assert_close(attention(query, mixture), one_head_at_a_time(attention, query, mixture))

    def test_in_blocks_equals_in_one_piece(self, attention, kind, monkeypatch):
        query, mixture = make(BATCH, 71, QUERY_SIZE, seed=5), mixtures()[kind]
        whole = attention(query, mixture)
        monkeypatch.setattr("open_nvib.attention.BLOCK_ELEMENTS", {"cpu": 1})
        torch.testing.assert_close(attention(query, mixture), whole)

    def test_projected_once_is_the_same(self, attention, kind):
        query, mixture = make(BATCH, QUERIES, QUERY_SIZE, seed=5), mixtures()[kind]
        memory = attention.project(mixture)
        steps = torch.cat([attention(query[:, t : t + 1], memory) for t in range(QUERIES)], 1)
        torch.testing.assert_close(steps, attention(query, mixture))
        rows = [2, 0, 0]  # as a beam search reorders them
        torch.testing.assert_close(attention(query[rows], memory[rows]), attention(query, mixture)[rows])

    def test_weights_are_those_of_the_result(self, attention, kind):
        query, mixture = make(BATCH, QUERIES, QUERY_SIZE, seed=5), mixtures()[kind]
        weights = attention.weights(query, mixture)
        assert weights.shape == (BATCH, attention.heads, QUERIES, N)
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
        assert (weights[0, ..., 2] == 0).all()
        if kind == 0:
            by_hand = torch.einsum(
                "bhqn,bnp,hdp->bqhd", weights, mixture.z, attention.to_value.weight.view(-1, HEAD_SIZE, P)
            )
            torch.testing.assert_close(attention.to_output(by_hand.flatten(2)), attention(query, mixture))

    def test_derivatives(self, attention, kind):
        query = make(2, 2, QUERY_SIZE, seed=5).requires_grad_()
        fields = {name: x for name, x in vars(mixtures()[kind]).items() if x is not None}
        tensors = [x[:2, :3].clone().requires_grad_() for x in fields.values()]
        build = (nv.ImpulseMixture, nv.GaussianMixture)[kind]
        names = list(fields)

        def function(query, *tensors):
            return attention(query, build(**dict(zip(names, tensors, strict=True))))

        tensors[-1].data[0, 2] = 0.1  # finite differences want finite weights
        assert gradcheck(function, (query, *tensors))
        assert gradgradcheck(function, (query, *tensors))

    def test_compact_is_the_same(self, attention, kind):
        query, mixture = make(BATCH, QUERIES, QUERY_SIZE, seed=5), mixtures()[kind]
        torch.testing.assert_close(attention(query, mixture.compact()), attention(query, mixture))

    def test_half_precision_model(self, attention, kind):
        """A model converted to bfloat16 as a whole; the mixture stays in float32, as the layer makes it."""
        query, mixture = make(BATCH, QUERIES, QUERY_SIZE, seed=5), mixtures(torch.float32)[kind]
        expected = attention.float()(query.float(), mixture)
        got = attention.bfloat16()(query.bfloat16(), mixture)
        assert got.dtype == torch.bfloat16
        torch.testing.assert_close(got.float(), expected, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("kind", [0, 1], ids=["impulses", "gaussians"])
def test_nothing_in_nothing_out(attention, kind):
    """No queries, or no texts: an empty result."""
    mixture = mixtures()[kind]
    assert attention(torch.zeros(BATCH, 0, QUERY_SIZE).double(), mixture).shape == (BATCH, 0, QUERY_SIZE)
    assert attention(torch.zeros(0, 4, QUERY_SIZE).double(), mixture[:0]).shape == (0, 4, QUERY_SIZE)
    assert attention.weights(torch.zeros(BATCH, 0, QUERY_SIZE).double(), mixture).shape[-2:] == (0, N)


def test_padding_gets_no_weight_in_float16():
    """Vectors whose ‖z‖²/2√d is far below the range of float16 still outweigh what has no weight."""
    attention = nv.DenoisingAttention(64, 4).half()
    mixture = nv.ImpulseMixture(z=50 * torch.ones(1, 3, 64), log_pi=torch.tensor([[0.0, 0.0, -torch.inf]]))
    weights = attention.weights(torch.zeros(1, 1, 64).half(), mixture)
    torch.testing.assert_close(weights[0, 0, 0].float(), torch.tensor([0.5, 0.5, 0.0]))


def test_a_bias_keeps_its_digits_in_half_precision():
    """A bias of -1000.25 does not round to -1000: the remainder is carried apart."""
    from open_nvib.attention import attend_biased, bias_keys, pad_values

    bias = torch.tensor([[-1000.25, -1001.5]])
    keys, values = torch.zeros(1, 2, 6).bfloat16(), torch.eye(2, 6)[None].bfloat16()
    got = attend_biased(torch.zeros(1, 1, 6).bfloat16(), bias_keys(keys, bias), pad_values(values), scale=1.0)
    torch.testing.assert_close(got[0, 0, :2].float(), bias.softmax(-1)[0], atol=5e-3, rtol=0)


@pytest.mark.parametrize("heads", [1, 2])
def test_bounded_queries_stay_below_the_norm_of_the_noise(heads):
    """u R/√(R² + ‖u‖²) with R = √(p√d), for each head; short queries are as they were."""
    torch.manual_seed(0)
    free, bounded = nv.DenoisingAttention(8, heads), nv.DenoisingAttention(8, heads, bound_queries=True)
    bounded.load_state_dict(free.state_dict())
    query, bound = torch.randn(2, 3, 8), math.sqrt(8 * math.sqrt(8 / heads))
    for length in (1e-3, 1.0, 10.0, 1e4):
        u = free.latent_queries(length * query)
        expected = u * bound / (bound**2 + u.square().sum(-1, keepdim=True)).sqrt()
        torch.testing.assert_close(bounded.latent_queries(length * query), expected)
        assert (bounded.latent_queries(length * query).norm(dim=-1) <= bound * (1 + 1e-5)).all()
    half = bounded.bfloat16()(query.bfloat16(), nv.NVIB(8)(torch.randn(2, 4, 8)).sample())
    assert half.isfinite().all()


@pytest.mark.parametrize("heads", [1, 2])
def test_bounded_queries_attend_as_bounded_queries_do(heads):
    """Each reading of the module is the pure function of the bounded u; with derivatives."""
    torch.manual_seed(1)
    attention = nv.DenoisingAttention(6, heads, bound_queries=True).double()
    posterior, query = nv.NVIB(6)(torch.randn(2, 4, 6)).to(dtype=torch.float64), 20 * torch.randn(2, 3, 6).double()
    u = attention.latent_queries(query)
    for mixture in (posterior.sample(), posterior.points(), posterior.mean()):
        if isinstance(mixture, nv.ImpulseMixture):
            spread = 0.0 if mixture.spread is None else mixture.spread
            log_pi = mixture.log_pi - 0.5 * attention.d**-0.5 * spread
            latent = nv.attend_impulses(u, mixture.z.unsqueeze(1), log_pi.unsqueeze(1), d=attention.d)
        else:
            parts = (x.unsqueeze(1) for x in (mixture.mu, mixture.log_sigma, mixture.log_alpha))
            latent = nv.attend_gaussians(u, *parts, d=attention.d)
        w_v = attention.to_value.weight.view(heads, -1, 6)
        expected = attention.to_output(torch.einsum("bhqp,hdp->bqhd", latent, w_v).flatten(2))
        torch.testing.assert_close(attention(query, mixture), expected)
    one = posterior.detach()[0].sample()
    leaf = query[:1, :1].clone().requires_grad_()
    assert gradcheck(lambda q: attention(q, one), leaf)
    assert gradgradcheck(lambda q: attention(q, one), leaf)


def test_bounded_queries_make_the_mean_agree_with_samples():
    """Queries of norm 200, with which the mean attends to the prior's component: bounded, it does not."""
    torch.manual_seed(2)
    posterior, query = nv.NVIB(16)(torch.randn(4, 20, 16)), torch.randn(4, 3, 16)
    free, bounded = nv.DenoisingAttention(16), nv.DenoisingAttention(16, bound_queries=True)
    bounded.load_state_dict(free.state_dict())
    query *= 200 / free.latent_queries(query).norm(dim=-1)[:, 0, :, None]
    assert not nv.compare_readings(free, query, posterior).mean_agrees
    assert nv.compare_readings(bounded, query, posterior).mean_agrees
