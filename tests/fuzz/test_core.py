"""Random shapes, types, masks and values: finite results or an error that names an argument, whatever the padding."""

import jaxtyping
import pytest
import torch
from amounts import FEW, MANY, examples
from hypothesis import given
from hypothesis import strategies as st

import open_nvib as nv

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
