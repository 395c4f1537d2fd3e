"""A report's Markdown as one HTML page that needs nothing but itself: no script, no request, figures and style inside.

Of Markdown, the page understands what reports consist of and nothing else: no link, and no HTML but `SAFE_HTML`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from open_nvib import __version__
from open_nvib.report.figures.style import inline
from open_nvib.report.pages import GENERATED, Report
from open_nvib.report.tables import MARK as MARKED_ROW

GENERATOR = f"open_nvib {__version__}"
MARK = '<meta name="generator" content="open_nvib '  # in every page of ours, of whichever version
SYNTAX = ("heading", "list", "table", "image", "emphasis", "backticks", "escape", "entity", "html_inline")
SAFE_HTML = ("<sub>", "</sub>", "<br>")
DEVIATION = " ± "


@dataclass
class Section:
    """Blocks of HTML under a heading, and parts under headings of the third level, which the reader unfolds.

    The first section has no name, and the title of the page as its heading.
    """

    title: Markup
    name: str = ""
    blocks: list[Markup] = field(default_factory=list)
    parts: list["Section"] = field(default_factory=list)


def to_page(report: Report) -> str:
    """Turn a report into a page."""
    loader = PackageLoader("open_nvib.report", "templates")
    template = Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template("page.html.j2")
    head, *sections = _sections(report)
    return template.render(head=head, sections=sections, generator=GENERATOR, mark=MARKED_ROW)


def _parser() -> MarkdownIt:
    parser = MarkdownIt("zero", {"html": True}).enable(list(SYNTAX))

    def safe(_: Any, tokens: Sequence[Token], index: int, *__: Any) -> str:
        content = tokens[index].content
        return content if content in SAFE_HTML and tokens[index].type == "html_inline" else escape(content)

    parser.add_render_rule("html_inline", safe)
    parser.add_render_rule("image", safe)  # figures are blocks of their own; nothing else may be loaded
    return parser


def _sections(report: Report) -> list[Section]:
    """Render the blocks of a report: the part before the first heading of the second level, then a part for each."""
    parser, sections, tables = _parser(), [Section(Markup())], 0

    def render(tokens: Sequence[Token]) -> Markup:
        return Markup(parser.renderer.render(tokens, parser.options, {}).strip())

    blocks = _blocks(parser.parse(report.markdown.removeprefix(GENERATED)))
    for block in blocks:
        part, first = (sections[-1].parts or sections)[-1], block[0]
        if first.tag == "h1":
            sections[-1].title = render(block[1:2])
        elif first.tag == "h2":
            name = re.sub(r"[^\w]+", "-", block[1].content.lower()).strip("-")  # as code hosts name headings
            sections.append(Section(render(block[1:2]), name))
        elif first.tag == "h3":
            sections[-1].parts.append(Section(render(block[1:2])))
        elif first.tag == "table":
            tables += 1
            _arrange_table(block)
            frame = Markup(
                '<figure class="table"><div class="scroll" role="region" aria-labelledby="caption-{0}" tabindex="0">\n'
                '{1}\n</div><figcaption id="caption-{0}">{2}</figcaption></figure>'
            )
            part.blocks.append(frame.format(tables, render(block), render(next(blocks)[1:2])))
        elif figure := re.fullmatch(r"!\[.*\]\(figures/(\w+)\.svg\)", block[1].content):
            alt = (block[1].children or [block[1]])[0].content
            drawing = Markup(inline(report.figures[figure[1]], name=figure[1], alt=alt))
            frame = Markup(
                '<figure id="figure-{}"><div class="drawing">\n{}\n</div><figcaption>{}</figcaption></figure>'
            )
            part.blocks.append(frame.format(figure[1], drawing, render(next(blocks)[1:2])))
        else:
            _arrange_text(block, lead=len(sections) == 1, texts=part is not sections[-1])
            part.blocks.append(render(block))
    return sections


def _blocks(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """Split tokens where no block is open."""
    start, depth = 0, 0
    for index, token in enumerate(tokens):
        depth += token.nesting
        if depth == 0:
            yield list(tokens[start : index + 1])
            start = index + 1


def _arrange_text(block: Sequence[Token], *, lead: bool, texts: bool) -> None:
    """Give lists and paragraphs of the `lead` their style; what is bold in `texts` of models is marked."""
    if lead and block[0].type in ("paragraph_open", "bullet_list_open"):
        block[0].attrSet("class", "lead" if block[0].type == "paragraph_open" else "facts")
    for child in (child for token in block for child in token.children or []):
        if texts and child.tag == "strong":
            child.tag = "mark"


def _arrange_table(block: Sequence[Token]) -> None:
    """Name rows by their first cell, mute the paper's columns, and let the deviations of a column begin in line."""
    rows: list[tuple[Token, list[Sequence[Token]]]] = []
    for index, token in enumerate(block):
        if token.type == "tr_open":
            rows.append((token, []))
        elif token.type in ("th_open", "td_open"):
            rows[-1][1].append(block[index : index + 3])
    (_, heads), *lines = rows
    for head, *column in zip(heads, *(cells for _, cells in lines), strict=True):
        head[0].attrSet("scope", "col")
        if head[1].content.endswith(", paper"):
            for cell in (head, *column):
                cell[0].attrSet("class", "muted")
        room = max((len(cell[1].content.partition(DEVIATION)[2]) for cell in column), default=0)
        for cell in column if room and head is not heads[0] else ():
            cell[1].children = _with_deviation(*cell[1].content.split(DEVIATION), room=room)
    above = ""
    for row, (first, *_) in lines:
        first[0].tag = first[2].tag = "th"
        first[0].attrSet("scope", "row")
        name = first[1].content
        family = name.split(" ")[0]
        classes = {
            "rule": heads[0][1].content == "model" and above not in ("", family),
            "marked": name.endswith(MARKED_ROW),
            "aside": name.startswith("real text"),
        }
        row.attrSet("class", " ".join(kind for kind, there in classes.items() if there))
        above = family


def _with_deviation(number: str, deviation: str = "", *, room: int) -> list[Token]:
    """A number, and room for the longest deviation of its column."""
    opened = Token("span_open", "span", 1, attrs={"class": "deviation", "style": f"width:{room + 1.6}ch"})
    text = Token("text", "", 0, content=f" ±{deviation}" if deviation else "")
    return [Token("text", "", 0, content=number), opened, text, Token("span_close", "span", -1)]
