from .data import PrepareConfig as PrepareConfig
from .data import Prepared as Prepared
from .data import draw_lengths as draw_lengths
from .data import load_prepared as load_prepared
from .data import prepare as prepare
from .model import TextAutoencoder as TextAutoencoder
from .model import TextAutoencoderConfig as TextAutoencoderConfig
from .training import Schedule as Schedule
from .training import TrainConfig as TrainConfig
from .training import train as train
from .using import Run as Run
from .using import TextReport as TextReport
from .using import TokenReport as TokenReport
from .using import load_run as load_run

__all__: list[str]
