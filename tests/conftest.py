"""Shapes and types of every annotated function of the package are checked at run time while the tests run."""

import torch
from jaxtyping import install_import_hook

install_import_hook("open_nvib", "typecheck.checked")
torch.set_num_threads(1)
