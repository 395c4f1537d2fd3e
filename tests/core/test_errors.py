"""A mistake is a ValueError or TypeError that names the function and the argument, got, expected, and the fix.

A user has no run-time type checks, and the suite's would catch some of these first: they are off here.
"""

import re
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch

import open_nvib as nv

ONE = torch.tensor(1.0)
U, Z, LOG_PI = torch.zeros(2, 3, 5), torch.zeros(2, 4, 5), torch.zeros(2, 4)
attend: Any = nv.attend_impulses  # which takes what a type checker would not
gaussians: Any = nv.attend_gaussians


@pytest.fixture(autouse=True)
def no_type_checks():
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def refuses(call: Any, where: str, argument: str, error: type[Exception] = ValueError) -> str:
    """`call` raises, and the message begins with the function, names the argument and says what was expected."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert message.startswith(f"{where}: ")
    assert re.search(rf"(?<!\w){re.escape(argument)}(?!\w)", message)
    assert "expected" in message
    return message


@pytest.mark.parametrize(
    ("call", "where", "argument"),
    [
        (lambda: attend(U, torch.zeros(2, 4, 6), LOG_PI, d=5), "attend_impulses", "z"),
        (lambda: attend(U, Z, torch.zeros(2, 3), d=5), "attend_impulses", "log_pi"),
        (lambda: attend(U, torch.zeros(7, 4, 5), LOG_PI, d=5), "attend_impulses", "z"),
        (lambda: attend(torch.zeros(5), Z, LOG_PI, d=5), "attend_impulses", "u"),
        (lambda: gaussians(U, Z, torch.zeros(2, 4, 3), LOG_PI, d=5), "attend_gaussians", "log_sigma"),
        (lambda: gaussians(U, Z, Z, torch.zeros(2, 3), d=5), "attend_gaussians", "log_alpha"),
        (lambda: nv.gaussian_kl(Z, torch.zeros(2, 4, 3)), "gaussian_kl", "log_sigma"),
        (lambda: nv.gaussian_kl(Z, Z, prior_mu=torch.zeros(4, 1)), "gaussian_kl", "prior_mu"),
        (lambda: nv.gaussian_kl(Z, Z, prior_log_sigma=torch.zeros(4)), "gaussian_kl", "prior_log_sigma"),
        (lambda: nv.dirichlet_kl(torch.ones(2), torch.ones(3), 5), "dirichlet_kl", "alpha0_p"),
        (lambda: nv.dirichlet_kl(torch.ones(2), 1.0, torch.ones(3)), "dirichlet_kl", "kappa0"),
        (lambda: nv.dirichlet_kl_exact(torch.ones(2, 4), 1.0, torch.ones(3)), "dirichlet_kl_exact", "kappa"),
        (lambda: nv.dirichlet_kl_exact(torch.ones(2, 4), torch.ones(3)), "dirichlet_kl_exact", "alpha0_p"),
        (lambda: nv.sample_log_dirichlet(ONE), "sample_log_dirichlet", "alpha"),
        (lambda: nv.ImpulseMixture(z=torch.zeros(2, 5, 4), log_pi=torch.zeros(5)), "ImpulseMixture", "log_pi"),
        (lambda: nv.GaussianMixture(mu=Z, log_sigma=Z[:1], log_alpha=LOG_PI), "GaussianMixture", "log_sigma"),
        (lambda: nv.BDP(torch.zeros(3), torch.zeros(2), ONE), "BDP", "log_sigma"),
        (lambda: nv.UDP(torch.zeros(3), torch.zeros(2), ONE, torch.tensor([0, 1])), "UDP", "log_sigma"),
        (lambda: nv.UDP(torch.zeros(3), torch.zeros(3), ONE, torch.ones(2, 2)), "UDP", "size_weights"),
        (lambda: nv.ConditionalBDP(torch.zeros(3), torch.zeros(3), torch.ones(1), ONE), "ConditionalBDP", "alpha0_p"),
        (lambda: nv.ConditionalBDP(torch.zeros(3), torch.zeros(3), ONE, torch.ones(1)), "ConditionalBDP", "delta"),
        (lambda: nv.NVIB(4, input_size=6)(torch.zeros(2, 3, 4)), "NVIB", "hidden"),
        (lambda: nv.NVIB(6)(torch.zeros(3, 6)), "NVIB", "hidden"),
        (lambda: nv.NVIB(6)(torch.zeros(2, 3, 6), torch.ones(3, 2).bool()), "NVIB", "mask"),
        (lambda: nv.NVIB(4, prior_mu=torch.zeros(3)), "NVIB", "prior_mu"),
    ],
)
def test_shapes(call, where, argument):
    assert "shape" in refuses(call, where, argument)


def test_a_shape_is_explained_by_the_argument_it_disagrees_with():
    message = refuses(lambda: attend(U, torch.zeros(2, 4, 6), LOG_PI, d=5), "attend_impulses", "u")
    assert "(2, 4, 6)" in message  # got
    assert "p = 5" in message  # expected


@pytest.mark.parametrize(
    ("call", "where", "argument", "error"),
    [
        (lambda: attend(U, Z.long(), LOG_PI, d=5), "attend_impulses", "z", ValueError),
        (lambda: attend(U, Z.double(), LOG_PI, d=5), "attend_impulses", "z", ValueError),
        (lambda: attend(U, Z, [0.0], d=5), "attend_impulses", "log_pi", TypeError),
        (lambda: gaussians(U, Z, Z.double(), LOG_PI, d=5), "attend_gaussians", "log_sigma", ValueError),
        (lambda: nv.sample_log_gamma(torch.ones(3, dtype=torch.int64)), "sample_log_gamma", "alpha", ValueError),
        (lambda: nv.gaussian_kl(Z.long(), Z), "gaussian_kl", "mu", ValueError),
        (lambda: nv.dirichlet_kl("1", 1.0, 3), "dirichlet_kl", "alpha0_q", TypeError),  # pyright: ignore[reportArgumentType]
        (lambda: nv.dirichlet_kl_exact(torch.ones(2).long(), 1.0), "dirichlet_kl_exact", "alpha", ValueError),
        (lambda: nv.ImpulseMixture(z=Z, log_pi=LOG_PI.long()), "ImpulseMixture", "log_pi", ValueError),
        (
            lambda: nv.GaussianMixture(mu=Z, log_sigma=Z.long(), log_alpha=LOG_PI),
            "GaussianMixture",
            "log_sigma",
            ValueError,
        ),
        (lambda: nv.BDP(torch.zeros(3), torch.zeros(3).long(), ONE), "BDP", "log_sigma", ValueError),
        (lambda: nv.NVIB(6)(torch.zeros(2, 3, 6).double()), "NVIB", "hidden", ValueError),
        (lambda: nv.NVIB(6)(torch.zeros(2, 3, 6).long()), "NVIB", "hidden", ValueError),
        (lambda: nv.NVIB(6)(torch.zeros(2, 3, 6), torch.ones(2, 3).long()), "NVIB", "mask", ValueError),
        (lambda: nv.NVIB(6)(torch.zeros(2, 3, 6), [[True] * 3] * 2), "NVIB", "mask", TypeError),
        (lambda: nv.NVIB(6).prior.sample(torch.tensor([1.0, 2.0])), "ConditionalBDP.sample", "lengths", ValueError),
        (lambda: nv.UDP(torch.zeros(3), torch.zeros(3), ONE, [0, 1]), "UDP", "size_weights", TypeError),  # pyright: ignore[reportArgumentType]
    ],
)
def test_dtypes(call, where, argument, error):
    refuses(call, where, argument, error)


@pytest.mark.parametrize(
    ("call", "where", "argument"),
    [
        (lambda x: nv.attend_impulses(torch.zeros(3, 1, 5), torch.zeros(3, 4, 5), x, d=5), "attend_impulses", "log_pi"),
        (lambda x: gaussians(*torch.zeros(3, 3, 4, 5), x, d=5), "attend_gaussians", "log_alpha"),
        (lambda x: nv.ImpulseMixture(z=torch.zeros(3, 4, 5), log_pi=x), "ImpulseMixture", "log_pi"),
        (lambda x: nv.GaussianMixture(torch.zeros(3, 4, 5), torch.zeros(3, 4, 5), x), "GaussianMixture", "log_alpha"),
    ],
)
@pytest.mark.parametrize("bad", [-torch.inf, torch.nan, torch.inf])
def test_nothing_to_attend_to(call, where, argument, bad):
    log_weights = torch.zeros(3, 4)
    log_weights[1:] = bad
    message = refuses(lambda: call(log_weights), where, argument)
    assert "(3, 4)" in message
    assert ("rows [1, 2]" if bad == -torch.inf else "[2, 3]") in message  # which rows, or which entries


@pytest.mark.parametrize("bad", [-1.0, torch.nan, torch.inf])
def test_bad_pseudo_counts(bad):
    alpha, value = torch.tensor([1.0, bad]), torch.tensor(bad)
    p, vectors = torch.zeros(3), {"mu": torch.zeros(1, 2, 3), "log_sigma": torch.zeros(1, 2, 3)}
    prior, mask = nv.NVIB(3).prior, torch.ones(1, 2).bool()
    for call, where, argument in (
        (lambda: nv.sample_log_gamma(alpha), "sample_log_gamma", "alpha"),
        (lambda: nv.sample_log_dirichlet(alpha), "sample_log_dirichlet", "alpha"),
        (lambda: nv.dirichlet_kl_exact(alpha, 1.0, 1.0), "dirichlet_kl_exact", "alpha"),
        (lambda: nv.dirichlet_kl_exact(torch.ones(2), bad), "dirichlet_kl_exact", "alpha0_p"),
        (lambda: nv.dirichlet_kl_exact(torch.ones(2), 1.0, alpha), "dirichlet_kl_exact", "kappa"),
        (lambda: nv.dirichlet_kl(alpha, 1.0, 3), "dirichlet_kl", "alpha0_q"),
        (lambda: nv.dirichlet_kl(1.0, alpha, 3), "dirichlet_kl", "alpha0_p"),
        (lambda: nv.dirichlet_kl(1.0, 1.0, bad), "dirichlet_kl", "kappa0"),
        (lambda: nv.BDP(p, p, value), "BDP", "alpha0"),
        (lambda: nv.UDP(p, p, value, torch.tensor([0, 1])), "UDP", "alpha0"),
        (lambda: nv.UDP(p, p, ONE, torch.tensor([0.0, bad])), "UDP", "size_weights"),
        (lambda: nv.ConditionalBDP(p, p, value, ONE), "ConditionalBDP", "alpha0_p"),
        (lambda: nv.ConditionalBDP(p, p, ONE, value), "ConditionalBDP", "delta"),
        (lambda: nv.ConditionalBDP(p, p, ONE, ONE, value), "ConditionalBDP", "keep_share"),
        (lambda: nv.Posterior(alpha=alpha[None], mask=mask, prior=prior, **vectors), "Posterior", "alpha"),
        (lambda: nv.NVIB(4, alpha0_p=bad), "NVIB", "alpha0_p"),
        (lambda: nv.NVIB(4, delta=bad), "NVIB", "delta"),
        (lambda: nv.NVIB(4, prior_sigma=bad), "NVIB", "prior_sigma"),
    ):
        refuses(call, where, argument)


def test_no_pseudo_count_where_one_is_needed():
    refuses(lambda: nv.sample_log_dirichlet(torch.zeros(2, 3)), "sample_log_dirichlet", "alpha")
    refuses(lambda: nv.dirichlet_kl_exact(torch.zeros(2, 3), 1.0), "dirichlet_kl_exact", "alpha")
    refuses(lambda: nv.dirichlet_kl_exact(torch.ones(2), 1.0, torch.tensor([0.0, 1.0])), "dirichlet_kl_exact", "kappa")
    refuses(lambda: nv.dirichlet_kl(torch.zeros(2), 1.0, 3), "dirichlet_kl", "alpha0_q")
    p, good = torch.zeros(3), {"mu": torch.zeros(1, 2, 3), "log_sigma": torch.zeros(1, 2, 3)}
    refuses(lambda: nv.BDP(p, p, torch.tensor(0.0)), "BDP", "alpha0")
    refuses(lambda: nv.ConditionalBDP(p, p, torch.tensor(0.0), ONE), "ConditionalBDP", "alpha0_p")
    refuses(lambda: nv.NVIB(4, alpha0_p=0.0), "NVIB", "alpha0_p")
    refuses(lambda: nv.NVIB(4, prior_sigma=0.0), "NVIB", "prior_sigma")
    alpha, mask = torch.tensor([[1.0, 0.0]]), torch.ones(1, 2).bool()
    refuses(lambda: nv.Posterior(alpha=alpha, mask=mask, prior=nv.NVIB(3).prior, **good), "Posterior", "alpha")
    for weights in (torch.tensor([1.0, 1.0]), torch.tensor([0.0, 0.0]), torch.tensor([1.0]), torch.tensor([])):
        refuses(lambda weights=weights: nv.UDP(p, p, ONE, weights), "UDP", "size_weights")


def test_unknown_names():
    posterior: Any = nv.NVIB(4)(torch.zeros(2, 3, 4))
    sample_log_gamma: Any = nv.sample_log_gamma
    message = refuses(lambda: sample_log_gamma(torch.ones(2), method="exact"), "sample_log_gamma", "method")
    assert "'exact'" in message  # got
    assert "'paper', 'implicit'" in message  # expected
    sample_log_dirichlet: Any = nv.sample_log_dirichlet
    refuses(lambda: sample_log_dirichlet(torch.ones(2), method="x"), "sample_log_dirichlet", "method")
    refuses(lambda: posterior.sample(method="x"), "Posterior.sample", "method")
    refuses(lambda: posterior.prior.sample(3, method="x"), "sample", "method")
    refuses(lambda: posterior.kl("x"), "Posterior.kl", "form")
    refuses(lambda: nv.NVIB(4, alpha_activation="tanh"), "NVIB", "alpha_activation")
    refuses(lambda: nv.NVIB(4, alpha_unit="two"), "NVIB", "alpha_unit")


def test_numbers():
    posterior: Any = nv.NVIB(4)(torch.zeros(2, 3, 4))
    layer: Any = nv.NVIB
    refuses(lambda: attend(U, Z, LOG_PI, d=0), "attend_impulses", "d")
    refuses(lambda: attend(U, Z, LOG_PI, d=2.5), "attend_impulses", "d", TypeError)
    refuses(lambda: gaussians(U, Z, Z, LOG_PI, d=True), "attend_gaussians", "d", TypeError)
    refuses(lambda: posterior.sample(0), "Posterior.sample", "kappa")
    refuses(lambda: posterior.kl(kappa=0), "Posterior.kl", "kappa")
    refuses(lambda: posterior.prune(-1.0), "prune", "threshold")
    refuses(lambda: posterior.mix(posterior, 1.5), "mix", "weight")
    refuses(lambda: layer(0), "NVIB", "p")
    refuses(lambda: layer((4, 2)), "NVIB", "p", TypeError)
    refuses(lambda: layer(4, input_size=-1), "NVIB", "input_size")
    refuses(lambda: layer(4, delta=-0.1), "NVIB", "delta")
    refuses(lambda: layer(4, alpha0_p="1"), "NVIB", "alpha0_p", TypeError)
    refuses(lambda: posterior.prior.sample([2, -1]), "ConditionalBDP.sample", "lengths")
    refuses(lambda: posterior.prior.sample([2], kappa=0), "ConditionalBDP.sample", "kappa")
    bounded = nv.BDP(posterior.prior.mu, posterior.prior.log_sigma, ONE)
    refuses(lambda: bounded.sample([0]), "BDP.sample", "kappa0")
    unbounded = nv.UDP(bounded.mu, bounded.log_sigma, ONE, torch.tensor([0, 1]))
    refuses(lambda: unbounded.sample(0), "UDP.sample", "count")


def test_numbers_that_float32_cannot_hold():
    for value in (1e300, 1e-60):
        assert "float32" in refuses(lambda value=value: nv.NVIB(4, alpha0_p=value), "NVIB", "alpha0_p")
    assert "float32" in refuses(lambda: nv.NVIB(4, delta=1e300), "NVIB", "delta")


def test_attention_module():
    module, posterior = nv.DenoisingAttention(6, 2), nv.NVIB(6)(torch.zeros(2, 3, 6))
    forward: Any = module
    query, mean, where = torch.zeros(2, 4, 6), posterior.mean(), "DenoisingAttention"
    refuses(lambda: nv.DenoisingAttention(10, 3), where, "heads")
    for name in ("heads", "query_size", "head_size"):
        options: dict[str, Any] = {name: 0}
        refuses(lambda options=options: nv.DenoisingAttention(6, **options), where, name)
    refuses(lambda: forward(torch.zeros(5, 4, 6), mean), where, "query")
    refuses(lambda: forward(torch.zeros(2, 4, 5), mean), where, "query")
    refuses(lambda: forward(query.double(), mean), where, "query")
    refuses(lambda: forward(query.tolist(), mean), where, "query", TypeError)
    other = nv.ImpulseMixture(z=torch.zeros(2, 3, 5), log_pi=torch.zeros(2, 3))
    refuses(lambda: forward(query, other), where, "mixture")
    refuses(lambda: forward(query, nv.DenoisingAttention(6, 1).project(mean)), where, "heads")
    message = refuses(lambda: forward(query, posterior), where, "mixture", TypeError)
    assert ".mean()" in message  # the fix


def test_drop_ins_and_readings():
    attention: Any = nv.MixtureAttention
    layer: Any = nv.MixtureDecoderLayer
    refuses(lambda: attention(10, 3), "MixtureAttention", "embed_dim")
    refuses(lambda: layer(10, 3), "MixtureAttention", "embed_dim")
    refuses(lambda: attention(10, 0), "MixtureAttention", "num_heads")
    refuses(lambda: attention("10", 2), "MixtureAttention", "embed_dim", TypeError)
    refuses(lambda: attention.from_torch(torch.nn.Linear(3, 3)), "MixtureAttention", "attention", TypeError)
    gap: Any = nv.likelihood_gap
    refuses(lambda: gap(U, torch.zeros(2, 4, 6), torch.zeros(2, 4, 6), d=5), "likelihood_gap", "mu")
    refuses(lambda: gap(U, Z, Z, d=0), "likelihood_gap", "d")
    refuses(lambda: gap(U.long(), Z, Z, d=5), "likelihood_gap", "u")
    compare: Any = nv.compare_readings
    module, posterior = nv.DenoisingAttention(6, 2), nv.NVIB(6)(torch.zeros(2, 3, 6))
    query, where = torch.zeros(2, 4, 6), "compare_readings"
    refuses(lambda: compare(module, query, posterior.mean()), where, "posterior", TypeError)
    refuses(lambda: compare(torch.nn.Linear(6, 6), query, posterior), where, "attention", TypeError)
    refuses(lambda: compare(module, query, posterior, samples="3"), where, "samples", TypeError)
    refuses(lambda: compare(module, query, posterior, samples=1), where, "samples")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"kind": "cosine"}, "kind"),
        ({"start": "0"}, "start"),
        ({"end": float("nan")}, "end"),
        ({"to_step": 0}, "to_step"),
    ],
)
def test_schedules(arguments, name):
    schedule: Any = nv.Schedule
    refuses(lambda: schedule(**({"start": 0.0, "end": 1.0} | arguments)), "schedule", name)


def test_numbers_of_numpy_are_numbers():
    layer: Any = nv.NVIB(np.int64(4), delta=np.float32(0.5))  # pyright: ignore[reportArgumentType]
    layer.set_delta(np.int64(2))
    assert layer.delta == 2
    posterior = nv.NVIB(4)(torch.zeros(2, 3, 4))
    assert posterior.mix(posterior, np.float32(0.5)).mu.isfinite().all()  # pyright: ignore[reportArgumentType]


def test_records():
    posterior: Any = nv.NVIB(6)(torch.zeros(2, 3, 6))
    refuses(lambda: posterior.mix(posterior[0], 0.5), "mix", "other")
    refuses(lambda: posterior.mix(posterior, torch.tensor([[0.1]])), "mix", "weight")
    refuses(lambda: posterior.mix(posterior.mean(), 0.5), "mix", "other", TypeError)
    refuses(lambda: posterior.mean().mix(posterior, 0.5), "mix", "other", TypeError)
    refuses(lambda: nv.Posterior.cat([]), "Posterior.cat", "posteriors")
    cat: Any = nv.Posterior.cat
    refuses(lambda: cat([posterior, 3]), "Posterior.cat", "posteriors[1]", TypeError)
    refuses(lambda: posterior[0, 1], "Posterior", "index", TypeError)
    refuses(lambda: posterior.pad_to(2), "Posterior.pad_to", "size")
    for wrong in (float("nan"), float("inf"), -1.0, None, "1", torch.ones(2)):
        error = TypeError if isinstance(wrong, str | None) else ValueError
        refuses(lambda wrong=wrong: posterior.loss(lambda_g=wrong, lambda_d=1.0), "Posterior.loss", "lambda_g", error)
    prior: Any = posterior.prior
    refuses(lambda: prior.sample([4, 2], vectors=[1, 2, 3]), "ConditionalBDP.sample", "vectors")


MIXTURES = {"mean": lambda x: x.mean(), "points": lambda x: x.points(), "sample": lambda x: x.sample()}


@pytest.mark.parametrize("reading", MIXTURES)
@pytest.mark.parametrize(
    "mask", [torch.ones(2, 4).bool(), torch.ones(2, 2, 4), torch.ones(2, 2, 4).long(), torch.ones(2, 2, 3).bool()]
)
def test_a_mask_of_another_shape_or_type_is_refused(mask, reading):
    """A mask of (queries, n) would hide vectors from heads, and one of floats would be added to the scores."""
    posterior = nv.NVIB(6)(torch.zeros(2, 3, 6))
    attention: Any = nv.DenoisingAttention(6, 2)
    mixture = MIXTURES[reading](posterior)
    refuses(lambda: attention(torch.zeros(2, 2, 6), mixture, mask), "DenoisingAttention", "mask")


@pytest.mark.parametrize("options", [{"keep_share": 0.5}, {"alpha_activation": "gate"}])
@pytest.mark.parametrize("wrong", [2.5, torch.tensor([1.0, 1.5]), torch.tensor([True, False])])
def test_a_number_of_vectors_is_whole(options, wrong):
    layer: Any = nv.NVIB(6, **options)
    refuses(lambda: layer(torch.zeros(2, 3, 6), request=nv.VectorRequest(vectors=wrong)), "NVIB", "vectors")
    refuses(lambda: layer(torch.zeros(2, 3, 6), request={"vectors": 2}), "NVIB", "request", TypeError)


def test_groups_have_the_shape_of_the_tokens():
    layer, groups = nv.NVIB(6, keep_share=0.5), torch.zeros(3, dtype=torch.long)
    refuses(
        lambda: layer.component_of_token(torch.zeros(2, 3, 6), None, nv.VectorRequest(groups=groups)), "NVIB", "groups"
    )


def test_delta_fits_the_layer():
    layer = nv.NVIB(6, keep_share=0.5, alpha_unit="delta").half()
    for wrong in (1e-9, 1e6):
        refuses(lambda wrong=wrong: layer.set_delta(wrong), "NVIB", "delta")
    refuses(lambda: nv.NVIB(6, alpha_unit="delta", delta=0.0), "NVIB", "delta")


@pytest.mark.parametrize("z", [torch.zeros(5, 8), torch.zeros(3, 2, 5, 8), torch.zeros(2, 5, 6)])
@pytest.mark.parametrize("heads", [1, 2])
def test_self_attention_over_a_mixture_takes_a_batch_of_its_size(z, heads):
    """One set without a batch would be read as one of n sets."""
    mixture = nv.ImpulseMixture(z=z, log_pi=torch.zeros(z.shape[:-1]))
    refuses(lambda: nv.MixtureSelfAttention(8, heads)(mixture), "MixtureSelfAttention", "mixture")


def test_sets():
    pool: Any = nv.SetPool(8)
    refuses(lambda: pool(torch.zeros(8)), "SetPool", "tokens")
    refuses(lambda: pool(torch.zeros(2, 5, 8).double()), "SetPool", "tokens")
    refuses(lambda: pool(torch.zeros(2, 5, 8), vectors=2.5), "SetPool", "vectors")
    most = torch.tensor([3, 4])
    found: Any = nv.find_fewest
    for error, kind in ((torch.tensor(0.0), ValueError), (torch.zeros(2, 3), ValueError), ([0.0, 0.0], TypeError)):
        refuses(lambda error=error: found(lambda *_: error, most, threshold=0), "find_fewest", "error(…)", kind)


def test_options_of_gates_need_gates():
    layer: Any = nv.NVIB
    for option in ({"gate_pooling": True}, {"gate_share": 0.25}, {"gate_count": 4.0}):
        refuses(lambda option=option: layer(6, **option), "NVIB", next(iter(option)))
