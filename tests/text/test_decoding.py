import numpy as np
import torch

from open_nvib.text.model.decoding import Collator


def test_collator_pads_texts_and_ends_labels():
    batch = Collator(pad_token_id=0, eos_token_id=2)([{"input_ids": [5, 6, 7]}, {"input_ids": np.array([8])}])
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [[5, 6, 7, 2], [8, 2, -100, -100]]
    assert all(tensor.dtype == torch.int64 for tensor in batch.values())


def test_collator_keeps_a_token_that_looks_like_padding():
    """What is real is told by the length, not by the id."""
    batch = Collator(pad_token_id=0, eos_token_id=2)([{"input_ids": [5, 0]}])
    assert batch["attention_mask"].tolist() == [[1, 1]]
    assert batch["labels"].tolist() == [[5, 0, 2]]
