"""Words on a terminal: struck through, bold, and plain where they go to a file."""

import os
import sys
import textwrap
from dataclasses import dataclass
from typing import Any

WIDTH = 96


@dataclass(frozen=True)
class Terminal:
    """Where the demo speaks. Without `style`, what is struck stands between dashes."""

    stream: Any
    style: bool

    @staticmethod
    def of(stream: Any = None) -> "Terminal":
        stream = sys.stdout if stream is None else stream
        return Terminal(stream, stream.isatty() and os.environ.get("TERM") != "dumb")

    def say(self, text: str = "") -> None:
        print(text, file=self.stream, flush=True)

    def title(self, text: str) -> None:
        self.say(f"\n{self.bold(text)}")

    def paragraph(self, text: str) -> None:
        self.say(textwrap.fill(text, WIDTH))

    def bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.style else text

    def struck(self, text: str) -> str:
        return f"\x1b[2;9m{text}\x1b[0m" if self.style else f"-{text}-"
