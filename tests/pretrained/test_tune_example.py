"""examples/tune.py on a tiny BART."""

import runpy
import sys
from pathlib import Path

from tiny import tiny, word_texts, word_tokenizer

from open_nvib.pretrained import NVIBConfig, open_model

EXAMPLE = Path(__file__).parents[2] / "examples" / "tune.py"


def test_the_example_tunes_and_saves_a_model(tmp_path, monkeypatch, capsys):
    tiny("bart", max_position_embeddings=16).save_pretrained(tmp_path / "model")
    word_tokenizer().save_pretrained(tmp_path / "model")
    texts = word_texts(60)
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in zip(texts[:30], texts[30:], strict=True)))
    arguments = [str(tmp_path / "model"), str(tmp_path / "pairs.tsv"), "--output", str(tmp_path / "tuned")]
    monkeypatch.setattr(sys, "argv", [EXAMPLE.name, *arguments, "--trials", "2"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    assert "original: chrF" in printed
    assert "tuned: chrF" in printed
    model, _ = open_model(tmp_path / "tuned")
    assert isinstance(model.config.quantization_config, NVIBConfig)
    assert 0 <= model.config.quantization_config.sections["cross"]["tau_alpha"] <= 10
