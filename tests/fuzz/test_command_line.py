"""Random options and values for every command: exit code 0 or 2, one line on standard error, never a traceback."""

import contextlib
import io

import pytest
from amounts import FEW, MANY, examples
from hypothesis import given
from hypothesis import strategies as st

from open_nvib.cli import main
from open_nvib.cli.commands import NVIB
from open_nvib.cli.parser import Group, make_parser

COMMANDS = [
    ["experiment", "run"],
    ["experiment", "status"],
    *([name] for name in NVIB.commands if name != "experiment"),
]
HARMLESS = [command for command in COMMANDS if command not in (["demo"], ["prepare"])]
"""Those that do nothing on paths that do not exist; the others are only parsed, by --print_config or a wrong option."""


def options_of(command: list[str]) -> list[str]:
    inner = NVIB
    for name in command:
        assert isinstance(inner, Group)
        inner = inner.commands[name]
    actions = make_parser("nvib", inner)._actions
    return [text for action in actions for text in action.option_strings if text.startswith("--")]


OPTIONS = {" ".join(command): options_of(command) for command in COMMANDS}
NASTY = [
    *(
        "",
        "-1",
        "0",
        "1",
        "nan",
        "inf",
        "-inf",
        "1e300",
        "1e-300",
        "1" * 400,
        "0x10",
        "null",
        "true",
        "~",
        "-",
        "--",
        "\0",
    ),
    *(
        "{}",
        "[]",
        "[" * 3000,
        "{a: 1, a: 2}",
        "{start: 1}",
        "{start: .nan, end: 1}",
        "{start: 0, end: -1}",
        "a: b",
        "*a",
    ),
    *("&a [*a]", "!!python/object:os.system x", "\ud800", "é", "../../x", "/dev/null", "/proc/self/mem", "x" * 5000),
]
values = st.sampled_from(NASTY) | st.text(max_size=12) | st.integers().map(str) | st.floats().map(str)


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    command = draw(st.sampled_from(COMMANDS))
    line = list(command)
    for name in draw(st.lists(st.sampled_from(OPTIONS[" ".join(command)]), max_size=3)):
        line += draw(st.sampled_from([[name, draw(values)], [f"{name}={draw(values)}"], [name]]))
    if command in HARMLESS:
        line += ["no-such-path"] * draw(st.integers(0, 3))
    else:
        line += ["--no-such-option"]
    return line


def run(line: list[str]) -> tuple[object, str]:
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        try:
            main(line)
        except SystemExit as stopped:
            return stopped.code, errors.getvalue()
    return 0, errors.getvalue()


def check(line: list[str]) -> None:
    code, said = run(line)
    assert code in (0, None, 2), (line, code)
    if code == 2:
        assert said.startswith("nvib: "), (line, said)
        assert said.count("\n") == 1, (line, said)
        assert len(said) < 2000, line


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not any(tmp_path.iterdir()), "nothing is written"


@examples(FEW)
@given(command_lines())
def test_any_command_line_is_answered_in_one_line(line):
    check(line)


@pytest.mark.slow
@examples(MANY)
@given(command_lines())
def test_any_of_many_command_lines_is_answered_in_one_line(line):
    check(line)


@examples(FEW)
@given(st.text(max_size=200) | st.sampled_from(NASTY))
def test_any_config_is_answered_in_one_line(tmp_path_factory, text):
    file = tmp_path_factory.mktemp("config") / "config.yaml"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    check(["train", "--config", str(file), "--data", "no-such-path", "--output", "run"])
