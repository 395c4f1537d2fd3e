"""torch.compile, torch.func, autocast and double backward.

The compiled code runs in a process of its own: the run-time type checks of the test suite are Python that cannot be
traced.
"""

import subprocess
import sys
import textwrap

import pytest
import torch

import open_nvib as nv


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_attention_and_the_paper_sampler_compile_without_a_graph_break(backend):
    program = """
    import sys
    from functools import partial
    import torch
    import open_nvib as nv

    torch.manual_seed(0)
    layer, attention, one_head = nv.NVIB(8), nv.DenoisingAttention(8, 2), nv.DenoisingAttention(8, 1)
    hidden, query = torch.randn(2, 5, 8), torch.randn(2, 3, 8)
    mask = torch.ones(2, 5, dtype=torch.bool)

    def train(hidden, query):
        posterior = layer(hidden)
        kl = posterior.kl()
        return attention(query, posterior.sample()).square().sum() + kl.dirichlet.sum() + kl.gaussian.sum()

    def test(hidden, query):
        mean = layer(hidden, mask).mean()
        return attention(query, mean) + one_head(query, mean)

    def pure(u, z, log_pi):
        return nv.attend_impulses(u, z, log_pi, d=4) + nv.attend_gaussians(u, z, -z.abs(), log_pi, d=4)

    compile_ = partial(torch.compile, fullgraph=True, backend=sys.argv[1])
    compiled = compile_(train)
    loss = compiled(hidden, query)
    loss.backward()
    assert loss.isfinite()
    assert all(x.grad.isfinite().all() for x in layer.parameters())

    # The noise is the same with and without the compiler only if it is given: compare what has none.
    torch.testing.assert_close(compile_(test)(hidden, query), test(hidden, query))
    args = query, hidden, torch.randn(2, 5)
    torch.testing.assert_close(compile_(pure)(*args), pure(*args))
    sampler = compile_(lambda a: nv.sample_log_dirichlet(a, method="paper"))
    for n in (6, 7, 9):  # the length varies, as it does in training
        torch.testing.assert_close(sampler(torch.rand(4, n)).exp().sum(-1), torch.ones(4))
        assert compiled(torch.randn(2, n, 8), query).isfinite()
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(program), backend], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_gates_and_sets_compile_without_a_graph_break(backend):
    program = """
    import sys
    from functools import partial
    import torch
    import open_nvib as nv

    torch.manual_seed(0)
    pool, attention = nv.SetPool(8), nv.DenoisingAttention(8)
    mixing = nv.MixtureSelfAttention(8, 2, 16)
    gated = nv.NVIB(8, alpha_activation="gate", gate_pooling=True)
    plain, merging = nv.NVIB(8), nv.NVIB(8, keep_share=0.5, alpha_unit="delta")
    tokens, query = torch.randn(3, 6, 8), torch.randn(3, 2, 8)
    numbers, groups = torch.tensor([1, 3, 4]), torch.randint(3, (3, 6))

    def train(tokens, query):
        pooled = pool(tokens, vectors=numbers)
        posteriors = plain(pooled.hidden, pooled.mask), gated(tokens, gate_noise=True)
        losses = [posterior.loss(lambda_g=0.1, lambda_d=1.0) for posterior in posteriors]
        return sum(losses) + sum(attention(query, mixing(x.sample())).square().sum() for x in posteriors)

    def test(tokens, query):
        mixing.eval()
        pooled = pool(tokens, vectors=2)
        posteriors = [plain(pooled.hidden, pooled.mask), gated(tokens, gate_shift=1.0)]
        posteriors += [gated(tokens, request=nv.VectorRequest(vectors=numbers))]
        posteriors += [merging(tokens, request=nv.VectorRequest(groups=groups))]
        return [attention(query, mixing(x.points())) for x in posteriors]

    compile_ = partial(torch.compile, fullgraph=True, backend=sys.argv[1])
    loss = compile_(train)(tokens, query)
    loss.backward()
    assert loss.isfinite()
    trained = [x for module in (pool, gated, plain) for x in module.parameters()]
    assert all(x.grad is not None and x.grad.isfinite().all() for x in trained)
    torch.testing.assert_close(compile_(test)(tokens, query), test(tokens, query))
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(program), backend], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]


@pytest.mark.parametrize("method", ["paper", "implicit"])
@pytest.mark.parametrize("kappa", [1, 2])
def test_vmap_over_samples(method, kappa):
    torch.manual_seed(0)
    layer, attention = nv.NVIB(6), nv.DenoisingAttention(6, 2)
    posterior, query = layer(torch.randn(2, 3, 6)), torch.randn(2, 4, 6)
    mean = posterior.mean()

    def once(_):
        return attention(query, posterior.sample(kappa, method)), attention(query, mean)

    sampled, deterministic = torch.func.vmap(once, randomness="different")(torch.arange(5))
    assert sampled.shape == (5, 2, 4, 6)
    assert sampled.isfinite().all()
    assert not torch.allclose(sampled[0], sampled[1])
    torch.testing.assert_close(deterministic[0], deterministic[4])


def test_func_grad_and_hessian_agree_with_autograd():
    u, z, log_pi = (torch.randn(*s, dtype=torch.float64) for s in ((2, 3), (4, 3), (4,)))

    def loss(z):
        return nv.attend_impulses(u, z, log_pi, d=2).square().sum()

    leaf = z.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(z), expected)
    torch.testing.assert_close(torch.func.hessian(loss)(z), torch.autograd.functional.hessian(loss, z))


def test_double_backward_through_the_whole_path():
    """A gradient penalty: the gradient's size is itself differentiated, in float32 and with the paper's sampler."""
    torch.manual_seed(0)
    layer, attention = nv.NVIB(6), nv.DenoisingAttention(6, 2)
    hidden, query = torch.randn(2, 3, 6, requires_grad=True), torch.randn(2, 4, 6)
    posterior = layer(hidden)
    kl = posterior.kl()
    loss = attention(query, posterior.sample()).square().sum() + attention(query, posterior.mean()).square().sum()
    loss = loss + kl.dirichlet.sum() + kl.gaussian.sum()
    (grad,) = torch.autograd.grad(loss, hidden, create_graph=True)
    second = torch.autograd.grad(grad.square().sum(), [hidden, layer.to_alpha.weight])
    assert all(x.isfinite().all() and x.abs().sum() > 0 for x in second)


def test_backward_can_run_twice_and_under_checkpointing():
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    attention = nv.DenoisingAttention(6, 2)
    query = torch.randn(2, 4, 6)
    z = torch.randn(2, 3, 6, requires_grad=True)
    output = attention(query, nv.ImpulseMixture(z=z, log_pi=torch.zeros(2, 3)))
    first, second = (torch.autograd.grad(output.sum(), z, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    run = lambda z: attention(query, nv.ImpulseMixture(z=z, log_pi=torch.zeros(2, 3)))  # noqa: E731
    (again,) = torch.autograd.grad(checkpoint(run, z, use_reentrant=False).sum(), z)
    torch.testing.assert_close(again, first)


def test_autocast_is_close_to_full_precision():
    torch.manual_seed(0)
    layer, attention = nv.NVIB(16), nv.DenoisingAttention(16, 2)
    hidden, query = torch.randn(4, 9, 16), torch.randn(4, 5, 16)
    posterior = layer(hidden)
    sample = posterior.sample()
    for mixture in (sample, posterior.mean()):
        full = attention(query, mixture)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = attention(query, mixture)
        assert half.dtype == torch.bfloat16
        torch.testing.assert_close(half.float(), full, atol=0.05, rtol=0.05)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(hidden).alpha.dtype == torch.float32


def test_meta_device_gives_the_shapes():
    with torch.device("meta"):
        layer, attention = nv.NVIB(6), nv.DenoisingAttention(6, 2)
        posterior = layer(torch.randn(2, 3, 6))
        assert attention(torch.randn(2, 4, 6), posterior.mean()).shape == (2, 4, 6)
        assert attention(torch.randn(2, 4, 6), posterior.sample()).shape == (2, 4, 6)


def test_records_pass_through_vmap():
    torch.manual_seed(0)
    posterior = nv.NVIB(6)(torch.randn(2, 3, 6))
    samples = torch.func.vmap(lambda _: posterior.sample(), randomness="different")(torch.arange(4))
    assert isinstance(samples, nv.ImpulseMixture)
    assert samples.z.shape == (4, 2, 4, 6)
    kept = torch.func.vmap(lambda z: nv.ImpulseMixture(z=z, log_pi=z[..., 0]).z)(samples.z)
    assert torch.equal(kept, samples.z)


def test_a_kept_loss_keeps_no_buffers():
    """After backward the tensors of the fused kernel are freed, as those of any operation are."""
    attention = nv.DenoisingAttention(6, 2)
    z = torch.randn(2, 3, 6, requires_grad=True)
    loss = attention(torch.randn(2, 4, 6), nv.ImpulseMixture(z=z, log_pi=torch.zeros(2, 3))).sum()
    nodes, waiting = [], [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        waiting.extend(following for following, _ in node.next_functions if following is not None)
    (kernel,) = {node for node in nodes if "TwiceDifferentiable" in node.name()}
    assert not [name for name in vars(kernel) if isinstance(getattr(kernel, name), (torch.Tensor, tuple, list))]
    loss.backward()
    with pytest.raises(RuntimeError, match="already been freed"):
        _ = kernel.saved_tensors
