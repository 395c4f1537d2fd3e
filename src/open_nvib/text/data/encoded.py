"""All sentences as ids in one array, and their way to Arrow: no Python object per token."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Int
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from open_nvib.text.data.tokenizer import encode, forbidden_ids


@dataclass(frozen=True)
class Encoded:
    """The ids of all sentences end to end. A sentence that spells out a special token, such as [SEP], is not usable."""

    ids: Int[np.ndarray, " tokens"]
    lengths: Int[np.ndarray, " total"]
    usable: Bool[np.ndarray, " total"]

    def histogram(self, chosen: Int[np.ndarray, " some"] | None = None) -> list[int]:
        """Entry k is the number of (chosen) sentences of k tokens."""
        return np.bincount(self.lengths if chosen is None else self.lengths[chosen]).tolist()


def encode_all(tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str]) -> Encoded:
    ids: list[np.ndarray] = []
    lengths: list[np.ndarray] = []
    with tqdm(total=len(sentences), desc="tokenise", unit="", unit_scale=True, disable=None) as bar:
        for batch in encode(tokenizer, sentences):
            ids.append(batch.ids)
            lengths.append(batch.lengths)
            bar.update(len(batch.lengths))
    flat, sizes = np.concatenate(ids), np.concatenate(lengths)
    forbidden = np.isin(flat, list(forbidden_ids(tokenizer)))
    of_sentence = np.repeat(np.arange(len(sizes)), sizes)
    usable = np.ones(len(sizes), dtype=bool)
    usable[of_sentence[forbidden]] = False
    return Encoded(flat, sizes, usable)


def save_rows(encoded: Encoded, texts: Sequence[str], rows: Int[np.ndarray, " some"], directory: Path) -> None:
    """Write these sentences, in this order, as an Arrow dataset of `input_ids` and `text`."""
    sizes = encoded.lengths[rows]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    starts = (np.cumsum(encoded.lengths) - encoded.lengths)[rows]
    positions = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - starts, sizes)  # of every wanted id in encoded.ids
    # Offsets of 64 bits: a split of a large corpus has more than 2³¹ tokens.
    ids = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), pa.array(encoded.ids[positions], pa.int32()))
    text = pa.array([texts[row] for row in rows], pa.large_string())
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()  # six bars of a tenth of a second each say nothing
    try:
        datasets.Dataset(pa.table({"input_ids": ids, "text": text})).save_to_disk(str(directory))
    finally:
        if shown:
            datasets.enable_progress_bars()
