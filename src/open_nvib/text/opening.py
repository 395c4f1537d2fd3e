"""Open what was saved for transformers, configurations, tokenizers and models, and find the device to use.

All of open_nvib opens them here. Code that comes with a model is never run, whatever its `auto_map` says.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, processors
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from open_nvib.store.files import InputError, damaged, in_one_line

SHOWN = 3
"""Number of weights that a message names."""


def open_saved(kind: Any, path: str | Path, **options: Any) -> Any:
    """Call `from_pretrained` of a class of transformers, such as AutoTokenizer, without running code of the folder."""
    known = Path(path).expanduser().exists()
    if not known and (isinstance(path, Path) or path.startswith((".", "~")) or path.count("/") > 1):  # no id of the hub
        raise FileNotFoundError("no such folder")
    return kind.from_pretrained(path, trust_remote_code=False, **options)


def open_weights(kind: Any, path: str | Path, **options: Any) -> Any:
    """Open a model, and raise a ValueError unless the file and the model have the same weights.

    Transformers draws missing weights at random and drops unexpected ones. Weights of another head may be dropped, as
    the pooler of BERT is; those of a numbered layer may not.
    """
    model, found = open_saved(kind, path, output_loading_info=True, **options)
    layers = [name for name in found["unexpected_keys"] if re.search(r"\.\d+\.", name)]
    for problem, names in (("no weights for", found["missing_keys"]), ("no layer for the weights", layers)):
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            raise ValueError(f"{type(model).__name__} has {problem} {', '.join(sorted(names)[:SHOWN])}{more}")
    return model


@contextmanager
def opening(path: Path, *, fix: str) -> Iterator[None]:
    """Turn what a library raises about a damaged file, an error of many kinds, into an InputError."""
    try:
        yield
    except Exception as error:
        raise damaged(path, error, fix=fix) from error


def open_tokenizer(folder: Path, *, fix: str) -> PreTrainedTokenizerBase:
    """Load a tokenizer that was saved in a folder; no code that comes with it is run."""
    with opening(folder, fix=fix):
        tokenizer = open_saved(AutoTokenizer, folder, local_files_only=True)
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # without tokenizer.json, an empty one is made up
        raise damaged(folder, "no entries but special tokens", fix=fix)
    return without_template(tokenizer)


def without_template(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return the tokenizer such that a plain call adds no special tokens, which the encoder never saw.

    It neither pads nor cuts texts, whatever was saved with it.
    A class such as BertTokenizer sets its template again whenever it is loaded, so the general class replaces it.
    """
    if not isinstance(tokenizer, PreTrainedTokenizerFast):  # a tokenizer in Python has no template to remove
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
        return tokenizer
    backend = tokenizer.backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    backend.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])  # pyright: ignore[reportAttributeAccessIssue]
    return with_backend(tokenizer, backend)


def with_backend(tokenizer: PreTrainedTokenizerFast, backend: Tokenizer) -> PreTrainedTokenizerFast:
    """Return a tokenizer of the general class with another backend and the same special tokens."""
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        **tokenizer.special_tokens_map,
        model_max_length=tokenizer.model_max_length,
        extra_special_tokens=list(getattr(tokenizer, "extra_special_tokens", [])),
        padding_side="right",  # positions count from the left
        clean_up_tokenization_spaces=tokenizer.clean_up_tokenization_spaces,
        split_special_tokens=tokenizer.split_special_tokens,
        model_input_names=["input_ids", "attention_mask"],
    )


def find_device(name: str | None) -> torch.device:
    """Return the device of this name, the first GPU or else the CPU without one; an InputError if it cannot be used."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        if device.type == "meta":
            raise RuntimeError("it holds shapes and no numbers")
        torch.zeros(1, device=device)
    except (AssertionError, RuntimeError) as error:  # what torch raises for a device that is not there
        raise InputError(f"device {name!r} cannot be used ({in_one_line(str(error).splitlines()[0])}).") from error
    return device
