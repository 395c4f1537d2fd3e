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
from .kl import dirichlet_kl as dirichlet_kl
from .kl import dirichlet_kl_exact as dirichlet_kl_exact
from .kl import gaussian_kl as gaussian_kl
from .layer import NVIB as NVIB
from .merging import VectorRequest as VectorRequest
from .merging import merge_groups as merge_groups
from .mixtures import GaussianMixture as GaussianMixture
from .mixtures import ImpulseMixture as ImpulseMixture
from .pooling import PooledSet as PooledSet
from .pooling import SetPool as SetPool
from .pretrained.identity import EmpiricalPrior as EmpiricalPrior
from .pretrained.identity import IdentityNVIB as IdentityNVIB
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
from .search import Fewest as Fewest
from .search import draw_numbers as draw_numbers
from .search import draw_shares as draw_shares
from .search import find_fewest as find_fewest
from .stack import Encoded as Encoded
from .stack import NVIBEncoder as NVIBEncoder
from .stack import NVIBEncoderLayer as NVIBEncoderLayer
from .transformer import MixtureAttention as MixtureAttention
from .transformer import MixtureDecoderLayer as MixtureDecoderLayer
from .transformer import MixtureSelfAttention as MixtureSelfAttention

__version__: str
__all__: list[str]
