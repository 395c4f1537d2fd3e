"""Draw which tokens of sentences have a vector of their own: python -m tools.figures_of_docs.kept CELL OUTPUT

CELL is a file of docs/results/gates/measured. Its first sentences are drawn, tokens
without a vector in grey.
"""

import json
import sys
from html import escape
from pathlib import Path

SENTENCES = 6
FONT, LETTER, LINE, GAP, MARGIN = 15, 9.1, 30, 7, 12
"""Size of the font, width of a letter, and distances, in pixels."""


def draw(sentences: list[str]) -> str:
    """Return an SVG of sentences whose tokens are separated by spaces, in brackets if they were dropped."""
    pieces, width = [], 0.0
    for row, sentence in enumerate(sentences):
        x, y = float(MARGIN), MARGIN + row * LINE
        for index, token in enumerate(sentence.split()):
            kept = not (token.startswith("[") and token.endswith("]"))
            name = token if kept else token[1:-1]
            text = name.removeprefix("##")
            x += GAP if index and text == name else 0  # a piece of a word follows without a space
            size = len(text) * LETTER + 4
            if kept:
                pieces.append(f'<rect x="{x:.1f}" y="{y}" width="{size:.1f}" height="{LINE - 8}" rx="3"/>')
            kind = "kept" if kept else "dropped"
            pieces.append(f'<text class="{kind}" x="{x + size / 2:.1f}" y="{y + FONT}">{escape(text)}</text>')
            x += size + 1
        width = max(width, x + MARGIN)
    height = 2 * MARGIN + len(sentences) * LINE - 8
    style = (
        f"rect{{fill:#0072b2}}text{{font:{FONT}px ui-monospace,Menlo,Consolas,monospace;text-anchor:middle}}"
        ".kept{fill:#fff}.dropped{fill:#767676}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" '
        f'height="{height}"><style>{style}</style><path fill="#fff" d="M0 0h{width:.0f}v{height}H0z"/>'
        f"{''.join(pieces)}</svg>\n"
    )


def main() -> None:
    cell, output = map(Path, sys.argv[1:])
    output.write_text(draw(json.loads(cell.read_text())["examples"][:SENTENCES]))


if __name__ == "__main__":
    main()
