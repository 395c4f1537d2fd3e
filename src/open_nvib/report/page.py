"""A report as one HTML page that needs nothing but itself: no script, no request, figures and style inside."""

from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined

from open_nvib import __version__
from open_nvib.report.document import Column, Document, spans
from open_nvib.report.figures.style import inline

GENERATOR = "open_nvib"
"""Every page of ours names it first in its generator."""
_HERE = "open_nvib.report"


def to_page(document: Document) -> str:
    """The whole report as HTML."""
    environment = Environment(
        loader=PackageLoader(_HERE, "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    css = (files(_HERE) / "templates" / "page.css").read_text(encoding="utf-8")
    return environment.get_template("page.html.j2").render(
        document=document,
        generator=f"{GENERATOR} {__version__}",
        css=css,
        spans=spans,
        inline=inline,
        classes=_classes,
    )


def is_ours(text: str) -> bool:
    """Whether a page was written by `to_page`."""
    return f'<meta name="generator" content="{GENERATOR} ' in text


def _classes(column: Column) -> str:
    return " ".join(name for name, there in (("numeric", column.numeric), ("muted", column.muted)) if there)
