import dataclasses

import pytest
import torch

import open_nvib as nv


def test_compact_drops_vectors_of_no_weight_and_keeps_the_order():
    z = torch.arange(12.0).view(2, 3, 2)
    log_pi = torch.tensor([[-torch.inf, -1.0, -2.0], [0.0, -torch.inf, -torch.inf]])
    compact = nv.ImpulseMixture(z=z, log_pi=log_pi).compact()
    assert compact.z.shape == (2, 2, 2)
    assert torch.equal(compact.z[0], z[0, 1:])
    assert compact.log_pi[0].tolist() == [-1.0, -2.0]
    assert compact.log_pi[1].tolist() == [0.0, -torch.inf]
    gaussian = nv.GaussianMixture(mu=z, log_sigma=-z, log_alpha=log_pi).compact()
    assert torch.equal(gaussian.log_sigma[0], -z[0, 1:])
    assert torch.equal(gaussian.mu, compact.z)


def test_indexing_keeps_the_batch_axis():
    mixture = nv.ImpulseMixture(z=torch.zeros(3, 2, 5), log_pi=torch.zeros(3, 2))
    assert len(mixture) == 3
    assert mixture[1].z.shape == (1, 2, 5)
    assert mixture[-1].z.shape == (1, 2, 5)
    assert mixture[[2, 2, 0, 1]].log_pi.shape == (4, 2)


def test_a_mixture_is_frozen():
    mixture = nv.ImpulseMixture(z=torch.zeros(1, 2, 3), log_pi=torch.zeros(1, 2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        mixture.z = torch.ones(1, 2, 3)  # pyright: ignore[reportAttributeAccessIssue]
