"""Markdown extension: `$…$` and `$$…$$` become MathML while a page is built, so that it needs no script to show maths.

The syntax is the one that GitHub shows, too. A display equation stands between two lines of `$$`.
"""

import re
from typing import Any
from xml.etree.ElementTree import Element, SubElement

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.blockprocessors import BlockProcessor
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

INLINE = r"(?<![\\\w$])\$(?![\s$])([^$\n]+?)(?<![\s\\])\$(?![\w$])"
DISPLAY = re.compile(r"^\$\$\n(.+?)\n\$\$$", re.DOTALL)
BETWEEN_BACKTICK_AND_ESCAPE = 185
BEFORE_PARAGRAPHS = 15


class _Inline(InlineProcessor):
    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:  # noqa: N802 # pyright: ignore[reportIncompatibleMethodOverride]
        return self.md.htmlStash.store(convert(m[1])), m.start(0), m.end(0)


class _Display(BlockProcessor):
    def test(self, parent: Element, block: str) -> bool:
        return DISPLAY.match(block.strip()) is not None

    def run(self, parent: Element, blocks: list[str]) -> None:
        latex = DISPLAY.match(blocks.pop(0).strip())
        assert latex is not None
        box = SubElement(parent, "div", {"class": "equation"})
        box.text = self.parser.md.htmlStash.store(convert(latex[1], display="block"))


class MathML(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        md.inlinePatterns.register(_Inline(INLINE, md), "mathml", BETWEEN_BACKTICK_AND_ESCAPE)
        md.parser.blockprocessors.register(_Display(md.parser), "mathml", BEFORE_PARAGRAPHS)


def makeExtension(**options: Any) -> MathML:  # noqa: N802
    """By this name Markdown finds the extension."""
    return MathML(**options)
