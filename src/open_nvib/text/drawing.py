"""What pictures, pages and reports share: colours, saving a picture, differences of two texts. Imports no torch."""

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from open_nvib.store.files import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, PAPER, LINE, MUTED = "#1f2328", "#ffffff", "#dfe3e8", "#6b7480"
"""Colours of text, background, grid, and of what is less important."""

# Okabe and Ito's palette, which colour-blind eyes tell apart.
BLUE, ORANGE, GREEN, PINK, SKY, VERMILION = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"
PALETTE = (BLUE, ORANGE, GREEN, PINK, VERMILION, SKY)
"""Colours of a series, in this order."""


def save_figure(figure: "Figure", path: str | Path, **options: Any) -> Path:
    """Write a figure in the format of the ending of `path`, the same bytes for the same figure.

    `options` are those of matplotlib's `savefig`. A path that cannot be written, or a file that does not say that
    matplotlib wrote it, is an InputError.
    """
    path = Path(path)
    if path.is_dir() or not path.suffix:
        raise InputError(f"{path}: expected the file of a picture. Give a path that ends in .png or .svg.")
    if path.is_file() and (there := path.read_bytes()) and b"Matplotlib" not in there:  # it signs .png, .svg and .pdf
        raise InputError(
            f"{path}: exists and does not say that it is an earlier plot, so it is left alone. Remove it, or give "
            f"another path that ends in .png or .svg."
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, **options)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: the picture cannot be written ({error}). Give a path that ends in .png or .svg."
        ) from error
    return path


@dataclass(frozen=True)
class Difference:
    """A run of words: what the first text has, what the second has, one of them perhaps nothing."""

    before: str
    after: str

    @property
    def same(self) -> bool:
        return self.before == self.after


def text_differences(before: str, after: str) -> list[Difference]:
    """Cut two texts into runs of words that are alike or not, in order."""
    first, second = before.split(), after.split()
    matcher = difflib.SequenceMatcher(None, first, second, autojunk=False)
    return [
        Difference(" ".join(first[low:high]), " ".join(second[start:end]))
        for _, low, high, start, end in matcher.get_opcodes()
    ]
