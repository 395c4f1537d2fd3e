"""What makes pages: maths to MathML, and parsers to the page of the command line."""

from pathlib import Path

import pytest
from markdown import markdown

from tools.cli_reference import page

ROOT = Path(__file__).parents[2]


def render(text: str) -> str:
    return markdown(text, extensions=["tables", "tools.mathml"])


def test_inline_maths_becomes_mathml():
    html = render(r"The count $\alpha_i$ is _never_ below $0$.")
    assert html.startswith('<p>The count <math xmlns="http://www.w3.org/1998/Math/MathML" display="inline">')
    assert html.count("<math") == html.count("</math>") == 2
    assert "α" in html or "&#x003B1;" in html
    assert "<em>never</em>" in html
    assert "$" not in html


def test_emphasis_and_escapes_inside_maths_are_latex():
    html = render(r"$a_{i} * b_{i} * c$ and $\{x\}$")
    assert "<em>" not in html
    assert html.count("<msub>") == 2


def test_display_maths_is_a_block_of_its_own():
    html = render("Before.\n\n$$\n\\frac{a}{b}\n+ c\n$$\n\nAfter.")
    assert '<div class="equation">' in html
    assert html.count('display="block"') == html.count("<mfrac>") == 1
    assert "<p>After.</p>" in html


@pytest.mark.parametrize(
    "text", ["It costs $5 and $6 more.", r"A \$ sign\$.", "`$x$` is code.", "$ x $ is none.", "US$x$y"]
)
def test_other_dollars_stay(text):
    assert "<math" not in render(text)


def test_maths_in_a_table():
    assert render("| a | b |\n|---|---|\n| $x^2$ | y |\n").count("<msup>") == 1


def test_page_of_the_command_line_is_what_the_parsers_say():
    committed = (ROOT / "docs/reference/cli.md").read_text()
    assert committed == page(), "the command line has changed: run `make docs` and commit docs/reference/cli.md"


def test_page_of_the_command_line_has_every_command_and_setting():
    text = page()
    for name in ("## `nvib train`", "### `nvib experiment run`", "`--model.kappa`", "`RUN` | required", "`TEXTS …`"):
        assert name in text
