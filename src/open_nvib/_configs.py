"""The configurations that come with the package."""

from pathlib import Path


def packaged_config(name: str) -> Path | None:
    """The path of a configuration such as `configs/small/nvae.yaml`: in the installed package, or in the clone."""
    package = Path(__file__).parent
    for folder in (package, package.parents[1]):
        if name.startswith("configs/") and ".." not in name and (folder / name).is_file():
            return folder / name
    return None
