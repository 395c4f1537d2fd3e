"""The demo on a text of one's own, for real and in small; and what it says."""

import io
import shlex
from dataclasses import replace

import pytest
from small_text import make_sentences

from open_nvib.demo import DemoConfig, Terminal, demo, mark_tokens
from open_nvib.report.summary import summarise_evaluation
from open_nvib.store.evaluations import Evaluation, Generation, LatentDiagnosis, Reconstruction
from open_nvib.store.files import InputError
from open_nvib.store.settings import TrainConfig
from open_nvib.store.task_settings import EvaluateConfig, Recipe
from open_nvib.text.using.inspection import TokenReport


def token(text, kept):
    return TokenReport(text, float(kept), float(kept), kept, None, None)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A text of one's own, in a folder to work in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.txt").write_text(" ".join(make_sentences(400)))
    return DemoConfig(data="my.txt", steps=3, samples=8, scorer_steps=3)


def test_it_goes_from_a_text_to_a_page_and_then_on_from_what_is_there(small, tmp_path):
    first, second = io.StringIO(), io.StringIO()
    assert demo(small, Terminal(first)) == tmp_path.joinpath("demo-my/run").relative_to(tmp_path)
    said = first.getvalue()
    for piece in ("1. The text", "2. Training", "3. Measuring", "Samples", "An interpolation", "BLEU", "nvib app"):
        assert piece in said, piece
    assert "→" in said.partition("3. Measuring")[0]  # a reconstruction while it trains
    assert (tmp_path / "demo-my" / "report.html").read_text().startswith("<!doctype html>")
    weights = tmp_path / "demo-my" / "run" / "model" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    demo(small, Terminal(second))
    assert weights.stat().st_mtime_ns == before
    shown = "Reconstructions"
    assert second.getvalue().partition(shown)[2] == said.partition(shown)[2]


def test_a_text_with_less_than_a_batch_is_enough(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.txt").write_text("\n".join(make_sentences(40)))
    out = io.StringIO()
    demo(DemoConfig(data="my.txt", layout="sentences", steps=2, samples=4, scorer_steps=2), Terminal(out))
    assert "Where to go on" in out.getvalue()


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.txt"):
        demo(DemoConfig(data=str(tmp_path / "nowhere.txt")), Terminal(io.StringIO()))


@pytest.mark.parametrize(("name", "wrong"), [("steps", 0), ("samples", 1), ("scorer_steps", 0), ("seed", -1)])
def test_numbers_have_bounds(name, wrong):
    with pytest.raises(InputError, match=f"{name} is {wrong}"):
        DemoConfig(**{name: wrong})


def test_each_text_has_a_place_of_its_own():
    assert str(DemoConfig().directory) == "demo"
    assert str(DemoConfig(data="texts/my.txt").directory) == "demo-my"
    assert str(DemoConfig(data="texts/my.txt", output="there").directory) == "there"


def test_dropped_words_and_pieces_are_struck():
    tokens = [token("the", True), token("mus", False), token("##eum", False), token("open", True), token("##ed", False)]
    plain, styled = Terminal(io.StringIO(), style=False), Terminal(io.StringIO(), style=True)
    assert mark_tokens(plain, tokens) == "the -museum- open-ed-"
    assert "\x1b[2;9mmuseum\x1b[0m" in mark_tokens(styled, tokens)


def test_vectors_that_are_shared_begin_with_a_bar():
    tokens = [token("the", True), token("mus", False), token("##eum", True), token("open", False), token("##ed", True)]
    tokens = [replace(one, shared=not one.kept) for one in tokens]
    assert mark_tokens(Terminal(io.StringIO(), style=False), tokens) == "|the mus|eum open|ed"


def evaluation(**parts) -> Evaluation:
    return Evaluation(EvaluateConfig(), TrainConfig(), Recipe(source={}, config={}), **parts)


def test_numbers_are_told_as_they_are():
    found = evaluation(
        reconstruction={
            "short": Reconstruction(9, bleu=91.25, exact=0.7, kept=0.52),
            "long": Reconstruction(9, bleu=40.0, exact=0.0, kept=0.4),
        },
        latent=LatentDiagnosis(kl_gaussian=812.4),
    )
    told = summarise_evaluation(found).splitlines()
    assert "(short, validation): BLEU 91.25" in told[0]
    assert "(long, validation): BLEU 40.00" in told[2]
    assert "exact 70.0%, kept 52.0%" in told[0]
    assert not any("PPL" in line for line in told)
    assert "L_G 812.4" in told[-1]


def test_a_perplexity_that_is_not_finite_is_a_dash():
    told = summarise_evaluation(evaluation(generation=Generation(samples=2, forward_perplexity=30.2)))
    assert told.startswith("2 samples: F-PPL 30.20 (real text –), R-PPL – (real text –)")


def test_a_report_of_ones_own_is_found_before_the_work(small, tmp_path):
    (tmp_path / "demo-my").mkdir()
    (tmp_path / "demo-my" / "report.html").write_text("mine")
    with pytest.raises(InputError, match=r"report\.html"):
        demo(small, Terminal(io.StringIO()))
    assert [path.name for path in (tmp_path / "demo-my").iterdir()] == ["report.html"]


def all_files(folder):
    return sorted((str(path), path.read_bytes() if path.is_file() else b"") for path in folder.rglob("*"))


@pytest.mark.parametrize("name", ["thesis.txt", "run/notes.txt", "data/table.csv", "figures/mine.svg", "figures"])
@pytest.mark.parametrize("linked", [False, True])
def test_a_directory_of_ones_own_is_left_alone(small, tmp_path, name, linked):
    file = tmp_path / "mine" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    before = all_files(tmp_path)
    with pytest.raises(InputError, match="link" if linked else "mine"):
        demo(replace(small, output="link" if linked else "mine"), Terminal(io.StringIO()))
    assert all_files(tmp_path) == before


@pytest.mark.parametrize("output", ["", ".", "my.txt", "my.txt/below", "nowhere"])
def test_an_output_that_cannot_be_one_is_left_alone(small, tmp_path, output):
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    before = all_files(tmp_path)
    with pytest.raises(InputError, match="output"):
        demo(replace(small, output=output), Terminal(io.StringIO()))
    assert all_files(tmp_path) == before


@pytest.mark.slow
def test_a_demo_that_was_killed_while_it_prepared_goes_on(small, tmp_path):
    (tmp_path / "demo-my" / ".data.partial-elsewhere-1").mkdir(parents=True)
    assert demo(small, Terminal(io.StringIO())).is_dir()


@pytest.mark.slow
def test_what_is_printed_to_be_pasted_is_quoted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.txt").write_text("\n".join(f"{text[:-1]} `x` $HOME." for text in make_sentences(60)))
    out = io.StringIO()
    demo(
        DemoConfig(data="my.txt", layout="sentences", output="a b", steps=1, samples=2, scorer_steps=1),
        Terminal(out),
    )
    inspect = next(line for line in out.getvalue().splitlines() if "nvib inspect" in line)
    words = shlex.split(inspect, comments=True)
    assert words[:3] == ["nvib", "inspect", "a b/run"]
    assert len(words) == 4
    assert "'" in inspect
