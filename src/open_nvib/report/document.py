"""What a report says, apart from how it is written: sections of paragraphs, tables, figures and texts.

Words are plain text but for `code` between backticks and letters set lower, as in λ′_G; see `spans`. Texts of models
are kept as they are.
"""

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from open_nvib.text.using.inspection import differences

_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_MARKUP = re.compile(r"`([^`]+)`|(?<=[λ′Lακ])_([A-Za-z0-9])")


@dataclass(frozen=True)
class Span:
    """A run of letters: plain, code, or set lower."""

    kind: Literal["plain", "code", "sub"]
    text: str


def one_line(text: str) -> str:
    """White space is one space, and what no page, figure or file can hold is gone: control characters and halves."""
    return _UNSEEN.sub("", re.sub(r"\s+", " ", text))


def spans(text: str) -> list[Span]:
    text = one_line(text)
    found, place = [], 0
    for match in _MARKUP.finditer(text):
        if match.start() > place:
            found.append(Span("plain", text[place : match.start()]))
        code, lower = match.groups()
        found.append(Span("code", code) if code else Span("sub", lower))
        place = match.end()
    return [*found, Span("plain", text[place:])] if place < len(text) else found


@dataclass(frozen=True)
class Paragraph:
    """Words of the report itself."""

    kind: ClassVar = "paragraph"
    text: str


@dataclass(frozen=True)
class Column:
    """A column of a table: its title, what it shares a heading with, and whether it is there for comparison only."""

    title: str
    group: str = ""
    muted: bool = False
    numeric: bool = True


@dataclass(frozen=True)
class Value:
    """An entry of a table: a number with its deviation, or a name with its details."""

    text: str
    deviation: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Line:
    """A row of a table. `rule` parts it from the one above, `marked` is one the text speaks of, `aside` no model."""

    values: tuple[Value, ...]
    rule: bool = False
    marked: bool = False
    aside: bool = False


@dataclass(frozen=True)
class Table:
    """Entries in lines and columns. The first column names the line."""

    kind: ClassVar = "table"
    name: str
    caption: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]

    def groups(self) -> list[tuple[str, int, bool]]:
        """Headings above the titles: text, number of columns, muted. Empty where no column has one."""
        found: list[tuple[str, int, bool]] = []
        for column in self.columns:
            if found and found[-1][0] == column.group:
                found[-1] = (column.group, found[-1][1] + 1, column.muted)
            else:
                found.append((column.group, 1, column.muted))
        return found if any(text for text, _, _ in found) else []

    def room(self, column: int) -> int:
        """Letters of the longest deviation in a column, so that the numbers before them stand in line."""
        return max((len(line.values[column].deviation) for line in self.lines), default=0)


@dataclass(frozen=True)
class Figure:
    """A figure as the text of an SVG, with words for those who do not see it."""

    kind: ClassVar = "figure"
    name: str
    svg: str
    alt: str
    caption: str


@dataclass(frozen=True)
class Pair:
    """A text and what came back."""

    text: str
    reconstruction: str

    def differences(self) -> list[tuple[str, bool]]:
        """Runs of words of the reconstruction, and whether the text has them at that place."""
        found = differences(self.text, self.reconstruction)
        return [(piece.after, piece.same) for piece in found if piece.after]


@dataclass(frozen=True)
class Texts:
    """Texts of one model: pairs of input and output, and lists such as samples or a path."""

    kind: ClassVar = "texts"
    name: str
    title: str
    pairs: tuple[Pair, ...] = ()
    samples: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    shown: bool = False


Part = Paragraph | Table | Figure | Texts


@dataclass(frozen=True)
class Section:
    """Parts under a heading."""

    name: str
    title: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Document:
    """A report.

    Args:
        title: of the page.
        lead: one paragraph on what this is.
        facts: name and value of what a reader should know before the numbers.
        sections: the report itself.
    """

    title: str
    lead: str
    facts: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]

    @property
    def figures(self) -> tuple[Figure, ...]:
        return tuple(part for section in self.sections for part in section.parts if isinstance(part, Figure))
