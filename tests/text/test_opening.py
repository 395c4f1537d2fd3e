"""Configs, tokenizers and models are opened in one place, which runs no code of theirs."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from open_nvib.text.opening import open_saved, open_weights

PACKAGE = Path(__file__).parents[2] / "src" / "open_nvib"


def test_every_call_of_from_pretrained_is_in_one_file():
    found = {
        file.relative_to(PACKAGE).as_posix()
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "from_pretrained"
    }
    assert found == {"text/opening.py"}


@pytest.mark.parametrize("kind", ["AutoConfig", "AutoTokenizer", "AutoModel"])
def test_code_of_a_stranger_does_not_run(kind, tmp_path, monkeypatch):
    """Not even after a `y`: without trust_remote_code=False, transformers asks."""
    names = dict.fromkeys(("AutoConfig", "AutoModel"), "evil.Evil") | {"AutoTokenizer": ["evil.Evil", None]}
    config = {"model_type": "evil", "architectures": ["Evil"], "auto_map": names}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": names}))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(ValueError, match=r"trust_remote_code|model.type|evil"):
        open_saved(getattr(transformers, kind), tmp_path)
    assert not (tmp_path / "ran").exists()


def test_missing_weights_and_layers_are_refused(tmp_path):
    sizes: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.BertConfig(vocab_size=11, **sizes)
    transformers.BertModel(config).save_pretrained(tmp_path)
    assert open_weights(transformers.BertModel, tmp_path)
    with pytest.raises(ValueError, match="no weights for"):
        open_weights(transformers.BertForMaskedLM, tmp_path)
    config.num_hidden_layers = 1
    config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"no layer for the weights.*layer\.1"):
        open_weights(transformers.BertModel, tmp_path)
