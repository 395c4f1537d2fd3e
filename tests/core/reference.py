"""The paper's equations as plain loops over numpy scalars: slow, and sharing no code with the package."""

import math

import numpy as np


def attend_impulses(u, z, log_pi, d):
    """`eq:dattn` with f = Σ πᵢ δ(zᵢ): Bayes' rule with noise N(0, √d I). u (p,), z (n, p), log_pi (n,)."""
    pairs = list(zip(z, log_pi, strict=True))
    log_joint = [lp - sum((u[h] - zi[h]) ** 2 for h in range(len(u))) / (2 * math.sqrt(d)) for zi, lp in pairs]
    top = max(log_joint)
    joint = [math.exp(x - top) for x in log_joint]
    return sum(w * zi for w, zi in zip(joint, z, strict=True)) / sum(joint)


def attend_gaussians(u, mu, sigma, alpha, d):
    """`eq:TestDAttn` as printed. u (p,), mu and sigma (n, p), alpha (n,)."""
    n, p = mu.shape
    root = math.sqrt(d)
    log_weights, values = [], []
    for i in range(n):
        log_density = 0.0
        value = np.zeros(p)
        for h in range(p):
            variance = root + sigma[i, h] ** 2
            log_density += -0.5 * math.log(2 * math.pi * variance) - (u[h] - mu[i, h]) ** 2 / (2 * variance)
            precision = 1 / sigma[i, h] ** 2
            value[h] = (u[h] / root + precision * mu[i, h]) / (1 / root + precision)
        log_weights.append((math.log(alpha[i]) if alpha[i] > 0 else -math.inf) + log_density)
        values.append(value)
    top = max(log_weights)
    weights = [math.exp(x - top) for x in log_weights]
    return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)


def dirichlet_kl_as_printed(alpha, alpha0_p, kappa):
    """L_D of `eq:KLloss` term by term, alpha and kappa (n,), every alpha above 0."""
    from scipy.special import digamma, gammaln

    alpha0_q = alpha.sum()
    pairs = list(zip(alpha, kappa, strict=True))
    inner = -digamma(alpha0_q) + sum(a / alpha0_q * digamma(a / k) for a, k in pairs)
    per_component = sum(k * (gammaln(alpha0_p * a / (alpha0_q * k)) - gammaln(a / k)) for a, k in pairs)
    return gammaln(alpha0_q) - gammaln(alpha0_p) + (alpha0_q - alpha0_p) * inner + per_component


def stick_breaking(alpha0, draw_atom, rng, sticks=400):
    """One sample of the infinite DP(G₀, α₀), cut off after `sticks`: weights (sticks,) and atoms."""
    betas = rng.beta(1, alpha0, size=sticks)
    weights = betas * np.concatenate([[1.0], np.cumprod(1 - betas)[:-1]])
    return weights, draw_atom(sticks)
