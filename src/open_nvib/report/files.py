"""The files of a report: written anew each time, but never over a file of somebody else."""

from collections.abc import Iterable
from pathlib import Path

from open_nvib.report import markdown, page
from open_nvib.report.document import Document
from open_nvib.report.figures import style
from open_nvib.store.files import InputError, write_text

PAGE, MARKDOWN, FIGURES = "report.html", "report.md", "figures"


def write_document(document: Document, output: Path) -> Path:
    """Write `report.html`, `report.md` and `figures/` to `output`, and nothing if one of them is not ours.

    Returns:
        The page.
    """
    drawn = {figure.name: output / FIGURES / f"{figure.name}.svg" for figure in document.figures}
    check_is_ours(output, drawn.values())
    texts = {drawn[figure.name]: figure.svg for figure in document.figures}
    texts[output / MARKDOWN] = markdown.to_markdown(document, figures=FIGURES)
    texts[output / PAGE] = page.to_page(document)
    try:
        (output / FIGURES).mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            write_text(path, text)
        for old in (output / FIGURES).glob("*.svg"):
            if old not in texts and _is_ours(old):
                old.unlink()  # of an earlier report; nothing links to it any more
    except OSError as error:
        raise InputError(f"{output}: cannot be written ({error.strerror or error}). Give another --output.") from error
    return output / PAGE


def check_is_ours(output: Path, figures: Iterable[Path]) -> None:
    """An InputError if a file that would be written is there and was not written by a report."""
    try:
        there = output.exists()
    except OSError as error:
        raise InputError(f"{output}: cannot be written ({error.strerror}). Give another --output.") from error
    if there and not output.is_dir():
        raise InputError(f"{output}: is a file, wanted a directory for the report. Give another --output.")
    for path in (output / PAGE, output / MARKDOWN, *figures):
        if path.exists() and not _is_ours(path):
            raise InputError(
                f"{path}: exists and was not written by `nvib report`, so it is left alone. Give another --output, or "
                f"remove it first."
            )


def _is_ours(path: Path) -> bool:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    if path.name == PAGE:
        return page.is_ours(text)
    return (markdown.MARK if path.name == MARKDOWN else style.MARK) in text
