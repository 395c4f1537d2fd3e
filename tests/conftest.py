"""Shapes and types of every annotated function of the package are checked at run time while the tests run."""

from pathlib import Path

import torch
from jaxtyping import install_import_hook

SOURCE = Path(__file__).parent.parent / "src"
CHECKED_ELSEWHERE = {"open_nvib.text.model.configuration"}  # Hugging Face's own dataclass checks take other arguments


def modules() -> list[str]:
    files = (path for path in (SOURCE / "open_nvib").rglob("*.py") if not path.name.startswith("__"))
    names = (".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in files)
    return sorted(set(names) - CHECKED_ELSEWHERE)


install_import_hook(modules(), "typecheck.checked")
torch.set_num_threads(1)

pytest_plugins = ["browsing", "small_run"]  # fixtures that several directories share, imported after the hook
