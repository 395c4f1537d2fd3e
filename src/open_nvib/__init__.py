"""open_nvib: the nonparametric variational information bottleneck for PyTorch."""

from open_nvib.attention import (
    DenoisingAttention,
    ProjectedGaussians,
    ProjectedImpulses,
    attend_gaussians,
    attend_impulses,
)
from open_nvib.gamma import sample_log_dirichlet, sample_log_gamma
from open_nvib.kl import dirichlet_kl, dirichlet_kl_exact, gaussian_kl
from open_nvib.layer import NVIB
from open_nvib.mixtures import GaussianMixture, ImpulseMixture
from open_nvib.process import BDP, KL, UDP, ConditionalBDP, Posterior

__version__ = "0.1.0"

__all__ = [
    "BDP",
    "KL",
    "NVIB",
    "UDP",
    "ConditionalBDP",
    "DenoisingAttention",
    "GaussianMixture",
    "ImpulseMixture",
    "Posterior",
    "ProjectedGaussians",
    "ProjectedImpulses",
    "attend_gaussians",
    "attend_impulses",
    "dirichlet_kl",
    "dirichlet_kl_exact",
    "gaussian_kl",
    "sample_log_dirichlet",
    "sample_log_gamma",
]
