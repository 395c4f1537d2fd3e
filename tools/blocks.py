"""The code blocks of a Markdown page, and which of them are run. `python tools/blocks.py PAGE` runs its Python.

Python and shell blocks are run and YAML is parsed, unless the line before says `<!-- not run: why -->`. Text and
output are to read.
"""

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

RUN = ("python", "sh", "yaml")
READ = ("text", "output")
MARK = re.compile(r"<!-- not run: (?P<reason>\S.*) -->")
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>.*)$")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, where it begins, and why it is not run, if it is not."""

    language: str
    text: str
    line: int
    not_run: str | None

    @property
    def is_run(self) -> bool:
        return self.language in RUN and self.not_run is None


def blocks(page: Path) -> list[Block]:
    """All of them, in order. A mistake in how one is written is a ValueError that names the line."""
    lines = page.read_text().splitlines()
    found, start, marked = [], None, None
    for number, line in enumerate(lines, 1):
        fence = FENCE.match(line)
        if start is None:
            if mark := MARK.fullmatch(line.strip()):
                marked = (number, mark["reason"])
            elif line.lstrip().startswith("<!-- not run"):
                raise ValueError(f"{page.name}:{number}: wanted a line `<!-- not run: why -->`, got {line!r}")
        if fence and start is None:
            start = (number, fence["indent"], fence["language"])
            if marked is not None and marked[0] != number - 1:
                raise ValueError(f"{page.name}:{marked[0]}: the mark is not on the line before a block")
        elif fence and start is not None and not fence["language"]:
            first, indent, language = start
            text = "\n".join(inner.removeprefix(indent) for inner in lines[first : number - 1])
            if language not in RUN + READ:
                raise ValueError(f"{page.name}:{first}: language {language!r}, wanted one of {', '.join(RUN + READ)}")
            if marked is not None and language not in RUN:
                raise ValueError(f"{page.name}:{first}: marked as not run, and would not be: it is {language}")
            found.append(Block(language, text, first, marked[1] if marked else None))
            start = marked = None
    if start is not None or marked is not None:
        raise ValueError(f"{page.name}: a block or a mark is left open at the end")
    return found


def commands(block: Block) -> list[list[str]]:
    """The commands of a shell block as lists of words, without comments."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def run_python(page: Path, block: Block, names: dict[str, object]) -> None:
    """Run a block in the names of those before it; a traceback shows the line of the page."""
    exec(compile("\n" * block.line + block.text, str(page), "exec"), names)


if __name__ == "__main__":
    page, names = Path(sys.argv[1]), {}
    for block in blocks(page):
        if block.language == "python" and block.is_run:
            run_python(page, block, names)
