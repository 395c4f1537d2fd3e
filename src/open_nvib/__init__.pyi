from .attention import (
    DenoisingAttention as DenoisingAttention,
)
from .attention import (
    ProjectedGaussians as ProjectedGaussians,
)
from .attention import (
    ProjectedImpulses as ProjectedImpulses,
)
from .attention import (
    attend_gaussians as attend_gaussians,
)
from .attention import (
    attend_impulses as attend_impulses,
)
from .gamma import sample_log_dirichlet as sample_log_dirichlet
from .gamma import sample_log_gamma as sample_log_gamma
from .identity import EmpiricalPrior as EmpiricalPrior
from .identity import IdentityNVIB as IdentityNVIB
from .kl import dirichlet_kl as dirichlet_kl
from .kl import dirichlet_kl_exact as dirichlet_kl_exact
from .kl import gaussian_kl as gaussian_kl
from .layer import NVIB as NVIB
from .mixtures import GaussianMixture as GaussianMixture
from .mixtures import ImpulseMixture as ImpulseMixture
from .process import BDP as BDP
from .process import KL as KL
from .process import UDP as UDP
from .process import ConditionalBDP as ConditionalBDP
from .process import Posterior as Posterior
from .readings import (
    ReadingComparison as ReadingComparison,
)
from .readings import (
    compare_readings as compare_readings,
)
from .readings import (
    likelihood_gap as likelihood_gap,
)
from .schedules import Schedule as Schedule
from .stack import Encoded as Encoded
from .stack import NVIBEncoder as NVIBEncoder
from .stack import NVIBEncoderLayer as NVIBEncoderLayer
from .transformer import MixtureAttention as MixtureAttention
from .transformer import MixtureDecoderLayer as MixtureDecoderLayer

__version__: str
__all__: list[str]
