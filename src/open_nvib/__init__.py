"""open_nvib: the nonparametric variational information bottleneck for PyTorch.

`__init__.pyi` lists the public names. They are imported on first use, so that commands that do not need torch, such as
`nvib --help`, start without it.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
