"""The configurations that come with the package."""

from pathlib import Path

import open_nvib
from open_nvib.errors import InputError


def find_config(name: str) -> Path:
    """The path of a configuration such as `small/nvae.yaml`: in the installed package, or in the clone it runs from."""
    package = Path(open_nvib.__file__).parent
    for folder in (package / "configs", package.parents[1] / "configs"):
        if (folder / name).is_file():
            return folder / name
    raise InputError(f"{name}: there is no such configuration in open_nvib. Look into the folder configs.")
