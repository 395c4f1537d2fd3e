"""Random shapes, types, masks and values: finite results or an error that names an argument, whatever the padding."""

import jaxtyping
import pytest
import torch
from amounts import FEW, MANY, examples
from hypothesis import given
from hypothesis import strategies as st

import open_nvib as nv
from open_nvib.process import KL_FORMS

SIZES = st.integers(1, 7)
NUMBERS = st.sampled_from(
    [0.0, -0.0, 1.0, -1.0, 1e-30, 1e-6, 0.5, 3.0, 30.0, 1e3, 1e6, 1e20, float("inf"), float("nan"), -7.5]
)
KINDS = st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool])


@pytest.fixture(autouse=True, scope="module")
def _no_type_checks():
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    count = int(torch.tensor(shape).prod()) if shape else 1
    found = draw(st.lists(NUMBERS, min_size=count, max_size=count))
    return (
        torch.tensor(found, dtype=torch.float64)
        .reshape(shape)
        .nan_to_num(*((0.0, 0.0, 0.0) if draw(st.booleans()) else (float("nan"), float("inf"), -float("inf"))))
        .to(draw(KINDS))
    )


FUNCTIONS = {
    "gaussian_kl": lambda a, b, c: nv.gaussian_kl(a, b),
    "dirichlet_kl": lambda a, b, c: nv.dirichlet_kl(a, b, c),
    "dirichlet_kl_exact": lambda a, b, c: nv.dirichlet_kl_exact(a, b, c),
    "sample_log_gamma": lambda a, b, c: nv.sample_log_gamma(a),
    "sample_log_dirichlet": lambda a, b, c: nv.sample_log_dirichlet(a),
    "attend_impulses": lambda a, b, c: nv.attend_impulses(a, b, c, d=4),
    "ImpulseMixture": lambda a, b, c: nv.ImpulseMixture(z=a, log_pi=b),
    "GaussianMixture": lambda a, b, c: nv.GaussianMixture(mu=a, log_sigma=b, log_alpha=c),
    "BDP": lambda a, b, c: nv.BDP(a, b, c),
    "NVIB": lambda a, b, c: nv.NVIB(4)(a, b),
}


def call(name, a, b, c):
    try:
        FUNCTIONS[name](a, b, c)
    except (ValueError, TypeError) as error:
        if "expected" not in str(error):
            raise


@examples(4 * FEW)
@given(st.sampled_from(sorted(FUNCTIONS)), tensors(), tensors(), tensors())
def test_any_tensors_are_taken_or_refused_by_name(name, a, b, c):
    call(name, a, b, c)


@pytest.mark.slow
@examples(4 * MANY)
@given(st.sampled_from(sorted(FUNCTIONS)), tensors(), tensors(), tensors())
def test_many_tensors_are_taken_or_refused_by_name(name, a, b, c):
    call(name, a, b, c)


def finite(batch, n, size, scale, delta, share, unit, activation, seed):
    torch.manual_seed(seed)
    layer = nv.NVIB(size, delta=delta, keep_share=share, alpha_unit=unit, alpha_activation=activation)
    hidden = scale * torch.randn(batch, n, size)
    lengths = torch.randint(1, n + 1, (batch,))
    mask = torch.arange(n) < lengths[:, None]
    posterior = layer(hidden, mask)
    attention = nv.DenoisingAttention(size, 1)
    query = torch.randn(batch, 3, size)
    mean = attention(query, posterior.mean())
    kl = posterior.kl()
    for name, value in {
        "mean": mean,
        "sample": attention(query, posterior.sample()),
        "kl.dirichlet": kl.dirichlet,
        "kl.gaussian": kl.gaussian,
        "exact": posterior.kl("exact").dirichlet,
        "alpha0": posterior.alpha0,
    }.items():
        assert value.isfinite().all(), name
    # Padding holds anything and changes nothing.
    more = torch.cat([hidden.masked_fill(~mask[..., None], 1e4), torch.full((batch, 2, size), -1e4)], 1)
    padded = layer(more, torch.cat([mask, torch.zeros(batch, 2, dtype=torch.bool)], 1))
    torch.testing.assert_close(attention(query, padded.mean()), mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(padded.kl().dirichlet, kl.dirichlet, rtol=1e-4, atol=1e-4)


VALID = {
    "batch": SIZES,
    "n": SIZES,
    "size": SIZES,
    "scale": st.sampled_from([0.0, 1e-6, 1.0, 30.0, 1e3]),
    "delta": st.sampled_from([1e-3, 0.1, 1.0, 10.0]),
    "share": st.sampled_from([None, 0.05, 0.5, 1.0]),
    "unit": st.sampled_from(["one", "delta"]),
    "activation": st.sampled_from(["relu", "softplus"]),
    "seed": st.integers(0, 2**31),
}


@examples(FEW)
@given(**VALID)
def test_valid_input_gives_finite_results_whatever_the_padding(**values):
    finite(**values)


@pytest.mark.slow
@examples(MANY)
@given(**VALID)
def test_much_valid_input_gives_finite_results_whatever_the_padding(**values):
    finite(**values)


# Against the paper's equations in float64, with every (queries × n × p) term written out


def naive_impulses(u, z, log_pi, d):
    """`eq:dattn`: Bayes' rule with noise of variance √d."""
    u, z, log_pi = u.double(), z.double(), log_pi.double()
    log_likelihood = -(u.unsqueeze(-2) - z.unsqueeze(-3)).square().sum(-1) / (2 * d**0.5)
    return (log_pi.unsqueeze(-2) + log_likelihood).softmax(-1) @ z


def naive_gaussians(u, mu, log_sigma, log_alpha, d):
    """`eq:TestDAttn`: the weights α N(u; μ, √d + σ²), and the mean of each component given u."""
    u, mu, log_alpha = u.double().unsqueeze(-2), mu.double().unsqueeze(-3), log_alpha.double().unsqueeze(-2)
    variance = log_sigma.double().exp().square().unsqueeze(-3)
    total = d**0.5 + variance
    log_density = -0.5 * (total.log() + (u - mu).square() / total).sum(-1)
    means = (variance * u + d**0.5 * mu) / total  # (batch, queries, n, p)
    return ((log_alpha + log_density).softmax(-1).unsqueeze(-1) * means).sum(-2)


def naive_dirichlet_kl(alpha, alpha0_p, kappa):
    """L_D of `eq:KLloss` as printed, all α above 0."""
    alpha0_q = alpha.sum(-1, keepdim=True)
    share, x = alpha / kappa, alpha0_p.unsqueeze(-1) / alpha0_q
    inner = -alpha0_q.digamma() + (alpha / alpha0_q * share.digamma()).sum(-1, keepdim=True)
    parts = (kappa * ((x * share).lgamma() - share.lgamma())).sum(-1, keepdim=True)
    found = alpha0_q.lgamma() - alpha0_p.unsqueeze(-1).lgamma() + (alpha0_q - alpha0_p.unsqueeze(-1)) * inner + parts
    return found.squeeze(-1)


def agree_with_the_equations(batch, n, p, queries, d, scale, spread, gone, dtype, seed):
    """Scales at which the rounding of the dtype is small beside 1 in the exponent of the softmax."""
    generator = torch.Generator().manual_seed(seed)
    scale = min(scale, {torch.float64: 1e3, torch.float32: 3.0}.get(dtype, 0.5))
    u, z = (scale * torch.randn(batch, k, p, generator=generator, dtype=torch.float64) for k in (queries, n))
    log_sigma = spread * torch.randn(batch, n, p, generator=generator, dtype=torch.float64)
    log_weight = (spread * torch.randn(batch, n, generator=generator, dtype=torch.float64)).clamp(-80, 80)
    lost = torch.rand(batch, n, generator=generator) < gone
    lost[:, 0] = False
    u, z, log_sigma = (x.to(dtype) for x in (u, z, log_sigma.clamp(-8 if dtype.itemsize == 2 else -40, 4)))
    log_weight = log_weight.to(dtype).masked_fill(lost, -torch.inf)
    close = {torch.float64: 1e-7, torch.float32: 2e-4}.get(dtype, 0.1)
    impulses = nv.attend_impulses(u, z, log_weight, d=d)
    gaussians = nv.attend_gaussians(u, z, log_sigma, log_weight, d=d)
    assert impulses.dtype == gaussians.dtype == dtype
    expected = naive_impulses(u, z, log_weight, d)
    torch.testing.assert_close(impulses.double(), expected, rtol=close, atol=close * (1 + scale))
    expected = naive_gaussians(u, z, log_sigma, log_weight, d)
    torch.testing.assert_close(gaussians.double(), expected, rtol=close, atol=close * (1 + scale))
    order = torch.randperm(n, generator=generator)  # a set has no order
    again = nv.attend_gaussians(u, z[:, order], log_sigma[:, order], log_weight[:, order], d=d)
    torch.testing.assert_close(again, gaussians, rtol=close, atol=close * (1 + scale))
    one = nv.attend_impulses(u[-1:], z[-1:], log_weight[-1:], d=d)
    torch.testing.assert_close(one, impulses[-1:], rtol=close, atol=close * (1 + scale))


EQUATIONS = {
    "batch": st.integers(1, 4),
    "n": st.sampled_from([1, 2, 3, 17, 130, 600]),
    "p": st.integers(1, 9),
    "queries": st.sampled_from([1, 2, 40]),
    "d": st.sampled_from([1, 2, 5, 64]),
    "scale": st.sampled_from([0.0, 1e-30, 1e-6, 0.5, 3.0, 1e3]),
    "spread": st.sampled_from([0.0, 0.3, 2.0, 30.0]),
    "gone": st.sampled_from([0.0, 0.5, 1.0]),
    "dtype": st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    "seed": st.integers(0, 2**31),
}


@examples(2 * FEW)
@given(**EQUATIONS)
def test_attention_is_the_equations(**values):
    agree_with_the_equations(**values)


@pytest.mark.slow
@examples(2 * MANY)
@given(**EQUATIONS)
def test_much_attention_is_the_equations(**values):
    agree_with_the_equations(**values)


# A posterior of any pseudo-counts, and all that is read from it


def make_posterior(alphas, p, mu, log_sigma, dtype, seed):
    """One text: its α, vectors of size about `mu`, one token of padding before the prior's component."""
    generator = torch.Generator().manual_seed(seed)
    alpha = torch.tensor([[*alphas, 0.0, 1.0]], dtype=dtype)
    vectors = torch.randn(1, alpha.shape[1], p, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[True] * len(alphas) + [False, True]])
    prior = nv.NVIB(p).prior.to(dtype=dtype)
    sigmas = torch.full_like(vectors, log_sigma).to(dtype)
    return nv.Posterior(alpha=alpha, mu=(mu * vectors).to(dtype), log_sigma=sigmas, mask=mask, prior=prior)


def readings(posterior, seed):
    """Every reading and number of a posterior, by name, with its sum of weights."""
    generator = torch.Generator().manual_seed(seed)
    dtype, p = posterior.mu.dtype, posterior.mu.shape[-1]
    attention = nv.DenoisingAttention(p, 1).to(dtype)
    query = torch.randn(1, 2, p, generator=generator, dtype=torch.float64).to(dtype)
    mixtures = {
        "mean": posterior.mean(),
        "points": posterior.points(),
        "sample": posterior.sample(generator=generator),
        "implicit": posterior.sample(3, "implicit", generator),
        "mix": posterior.mix(posterior.prune(0.5), 0.3),
        "compact": posterior.mean().compact(),
    }
    numbers = {name: attention(query, mixture) for name, mixture in mixtures.items()}
    weights = {name: attention.weights(query, mixture).sum(-1) for name, mixture in mixtures.items()}
    kls = {
        f"{form} {part}": getattr(posterior.kl(form), part) for form in KL_FORMS for part in ("dirichlet", "gaussian")
    }
    return numbers, weights, kls


def read_anything(alphas, p, mu, log_sigma, dtype, seed):
    posterior = make_posterior(alphas, p, mu, log_sigma, dtype, seed)
    torch.manual_seed(seed)
    numbers, weights, kls = readings(posterior, seed)
    for name, value in {**numbers, **kls}.items():
        assert value.isfinite().all(), name
    for name, value in weights.items():
        torch.testing.assert_close(value.double(), torch.ones_like(value).double(), rtol=0.02, atol=0.02, msg=name)
    for name, value in kls.items():
        assert (value >= -1e-4 * (1 + value.abs())).all(), (name, value)
    real = posterior.alpha[:, posterior.mask[0]].double()
    if min(alphas) > 1e-6:
        expected = naive_dirichlet_kl(real, posterior.prior.alpha0(posterior.lengths), torch.ones_like(real))
        torch.testing.assert_close(kls["exact dirichlet"].double(), expected, rtol=1e-3, atol=1e-3)


READ = {
    "alphas": st.lists(
        st.one_of(
            st.sampled_from([0.0, 1e-45, 1e-38, 1e-30, 1e-12, 0.6363, 1.0, 30.0, 1e4, 1e8]), st.floats(1e-290, 50)
        ),
        min_size=1,
        max_size=12,
    ),
    "p": st.integers(1, 9),
    "mu": st.sampled_from([0.0, 1e-30, 1e-3, 1.0, 30.0]),
    "log_sigma": st.sampled_from([-40.0, -10.0, -1.0, 0.0, 3.0]),
    "dtype": st.sampled_from([torch.float64, torch.float32]),
    "seed": st.integers(0, 2**31),
}


@examples(2 * FEW)
@given(**READ)
def test_every_reading_of_a_posterior_is_finite_and_its_kl_is_a_kl(**values):
    read_anything(**values)


@pytest.mark.slow
@examples(2 * MANY)
@given(**READ)
def test_every_reading_of_many_posteriors_is_finite_and_their_kl_is_a_kl(**values):
    read_anything(**values)


def batch_is_one_by_one(batch, n, size, scale, delta, share, unit, activation, seed):
    """Texts do not see each other, nor an empty text in the batch; a NaN stays in its text."""
    torch.manual_seed(seed)
    layer = nv.NVIB(size, delta=delta, keep_share=share, alpha_unit=unit, alpha_activation=activation).double()
    attention = nv.DenoisingAttention(size, 1).double()
    hidden, query = (
        min(scale, 30.0) * torch.randn(batch + 2, n, size).double(),
        torch.randn(batch + 2, 3, size).double(),
    )
    mask = torch.arange(n) < torch.randint(0, n + 1, (batch + 2, 1))
    mask[-2], mask[-1] = False, True
    hidden[-1, 0, 0] = torch.nan
    posterior = layer(hidden, mask)
    found = {"mean": attention(query, posterior.mean()), "points": attention(query, posterior.points())}
    found |= {"kl": posterior.kl().dirichlet + posterior.kl().gaussian, "alpha0": posterior.alpha0}
    for row in range(batch + 1):
        length = int(mask[row].sum())
        alone = layer(hidden[row : row + 1, :length])
        expected = {name: attention(query[[row]], getattr(alone, name)()) for name in ("mean", "points")}
        expected |= {"kl": alone.kl().dirichlet + alone.kl().gaussian, "alpha0": alone.alpha0}
        for name, value in expected.items():
            torch.testing.assert_close(
                found[name][[row]], value, rtol=1e-6, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}"
            )
    assert all(value[-1].isnan().any() for value in found.values())


@examples(FEW)
@given(**VALID)
def test_a_batch_is_its_texts_one_by_one(**values):
    batch_is_one_by_one(**values)


@pytest.mark.slow
@examples(MANY)
@given(**VALID)
def test_many_batches_are_their_texts_one_by_one(**values):
    batch_is_one_by_one(**values)


def gradients_are_right(n, p, d, gone, seed):
    """gradcheck in float64, also where a weight is zero."""
    torch.manual_seed(seed)
    u, z = torch.randn(1, 2, p).double().requires_grad_(), torch.randn(1, n, p).double().requires_grad_()
    log_sigma, alpha = (0.5 * torch.randn(1, n, p).double()).requires_grad_(), 0.2 + 3 * torch.rand(1, n).double()
    alpha = torch.where(torch.rand(1, n) < gone, 0.0, alpha)
    alpha[:, -1] = 1.0
    alive = (alpha > 0).double()
    alpha.requires_grad_()
    prior, mask = nv.NVIB(p).double().prior, torch.ones(1, n).bool()

    def read(alpha, mu, log_sigma):
        posterior = nv.Posterior(alpha=alpha * alive, mu=mu, log_sigma=log_sigma, mask=mask, prior=prior)
        kl, exact = posterior.kl(), posterior.kl("exact")
        mean, points = posterior.mean(), posterior.points()
        return (
            nv.attend_gaussians(u, mean.mu, mean.log_sigma, mean.log_alpha, d=d),
            nv.attend_impulses(u, points.z, points.log_pi, d=d),
            *(part for found in (kl, exact) for part in (found.dirichlet, found.gaussian)),
        )

    assert torch.autograd.gradcheck(read, (alpha, z, log_sigma), atol=1e-4, rtol=1e-3)


GRADIENTS = {
    "n": st.integers(1, 5),
    "p": st.integers(1, 4),
    "d": st.sampled_from([1, 4, 64]),
    "gone": st.sampled_from([0.0, 0.5, 1.0]),
    "seed": st.integers(0, 2**31),
}


@examples(FEW // 4)
@given(**GRADIENTS)
def test_gradients_are_those_of_finite_differences(**values):
    gradients_are_right(**values)


@pytest.mark.slow
@examples(MANY // 10)
@given(**GRADIENTS)
def test_many_gradients_are_those_of_finite_differences(**values):
    gradients_are_right(**values)
