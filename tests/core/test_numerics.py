"""No NaN and no infinity, wherever the true value is finite: the whole path at the edges of its domain."""

import itertools

import pytest
import torch

import open_nvib as nv

ALPHAS = [0.0, 1e-30, 1e-8, 1e-3, 0.6362, 0.6364, 1.0, 1e3, 1e6]
LOG_SIGMAS = [-40.0, -5.0, 0.0, 5.0, 20.0]
P, QUERIES = 6, 4


def posterior_of(alpha, log_sigma, size, dtype):
    """One text of one token for each α, and one text with all of them; μ of about `size`."""
    rows = [[a] + [0.0] * (len(ALPHAS) - 1) for a in alpha] + [alpha]
    mask = [[True] + [False] * (len(ALPHAS) - 1)] * len(alpha) + [[True] * len(alpha)]
    values = torch.tensor(rows, dtype=dtype, requires_grad=True)
    mu = (size * torch.randn(len(rows), len(ALPHAS), P, generator=torch.Generator().manual_seed(0))).to(dtype)
    mu.requires_grad_()
    log_sigmas = torch.full_like(mu, log_sigma, requires_grad=True)
    zero, one = torch.zeros(P, dtype=dtype), torch.tensor(1.0, dtype=dtype)
    last = zero.expand(len(rows), 1, P)
    posterior = nv.Posterior(
        alpha=torch.cat([values, torch.ones(len(rows), 1, dtype=dtype)], 1),
        mu=torch.cat([mu, last], 1),
        log_sigma=torch.cat([log_sigmas, last], 1),
        mask=torch.cat([torch.tensor(mask), torch.ones(len(rows), 1).bool()], 1),
        prior=nv.ConditionalBDP(zero, zero, one, one),
    )
    return posterior, (values, mu, log_sigmas)


def assert_finite(name, *tensors):
    for tensor in tensors:
        assert tensor is None or tensor.isfinite().all(), f"{name}: {int((~tensor.isfinite()).sum())} not finite"


@pytest.mark.parametrize("precision", ["float32", "float64", "bf16 autocast"])
@pytest.mark.parametrize("size", [1.0, 1e3])
@pytest.mark.parametrize("log_sigma", LOG_SIGMAS)
def test_everything_is_finite(log_sigma, size, precision):
    dtype = torch.float64 if precision == "float64" else torch.float32
    torch.manual_seed(0)
    posterior, leaves = posterior_of(ALPHAS, log_sigma, size, dtype)
    query = (size * torch.randn(len(posterior), QUERIES, P)).to(dtype).requires_grad_()
    modules = [nv.DenoisingAttention(P, heads).to(dtype) for heads in (1, 2)]
    leaves = [*leaves, query, *(x for module in modules for x in module.parameters())]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16 autocast"):
        samples = {(m, k): posterior.sample(k, m) for m, k in itertools.product(("paper", "implicit"), (1, 3))}
        outputs = {"mean": posterior.mean()} | samples
        for name, mixture in outputs.items():
            if isinstance(mixture, nv.ImpulseMixture):
                weighted = mixture.log_pi[mixture.log_pi > -torch.inf]
                assert_finite(f"sample {name}", mixture.z, weighted, mixture.log_pi.exp())
            for attention in modules:
                attended = attention(query, mixture)
                assert_finite(f"attention over {name}", attended)
                grads = torch.autograd.grad(attended.float().sum(), leaves, retain_graph=True, allow_unused=True)
                assert_finite(f"gradient of attention over {name}", *grads)
        for (name, mixture), part in itertools.product(samples.items(), ("z", "log_pi")):
            value = getattr(mixture, part)
            value = value[value > -torch.inf].sum()
            assert_finite(
                f"gradient of {part} of {name}",
                *torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True),
            )
        for form in ("expected", "exact"):
            kl = posterior.kl(form)
            assert_finite(f"{form} KL", kl.dirichlet, kl.gaussian)
            total = kl.dirichlet.sum() + kl.gaussian.sum()
            assert_finite(
                f"gradient of {form} KL", *torch.autograd.grad(total, leaves, retain_graph=True, allow_unused=True)
            )


@pytest.mark.parametrize("precision", ["float32", "float64", "bf16 autocast"])
@pytest.mark.parametrize("size", [0.0, 1.0, 1e3])
def test_the_layer_is_finite_on_large_hidden_states_and_empty_texts(size, precision):
    dtype = torch.float64 if precision == "float64" else torch.float32
    torch.manual_seed(0)
    layer, attention = nv.NVIB(P, input_size=5).to(dtype), nv.DenoisingAttention(P, 2).to(dtype)
    hidden = (size * torch.randn(3, 1, 5)).to(dtype).requires_grad_()  # length 1
    mask = torch.tensor([[True], [False], [True]])
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16 autocast"):
        posterior = layer(hidden, mask)
        query = torch.randn(3, 2, P, dtype=dtype)
        kl = posterior.kl()
        loss = attention(query, posterior.sample()).sum() + attention(query, posterior.mean()).sum()
        loss = loss + kl.dirichlet.sum() + kl.gaussian.sum()
    loss.backward()
    assert_finite("loss", loss)
    assert_finite("gradient", hidden.grad, *(x.grad for x in layer.parameters()))
    assert (hidden.grad[1] == 0).all()


@pytest.mark.parametrize("alpha", ALPHAS[1:])
def test_dirichlet_kl_is_finite_and_as_float64_says(alpha):
    for kappa0, alpha0_p in itertools.product((1, 2, 21, 513), (1e-3, 1.0, 50.0)):
        narrow = nv.dirichlet_kl(torch.tensor(alpha), alpha0_p, kappa0)
        wide = nv.dirichlet_kl(torch.tensor(alpha, dtype=torch.float32).double(), alpha0_p, kappa0)
        assert narrow.isfinite()
        torch.testing.assert_close(narrow.double(), wide, rtol=1e-5, atol=1e-7)
