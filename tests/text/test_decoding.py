import numpy as np
import pytest
import tokenizers
import tokenizers.decoders
import tokenizers.models
import torch
import transformers

from open_nvib.text.model.decoding import Collator, detokenize, score_reconstruction


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


def word_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """A tokenizer of four word pieces: [UNK] is 0."""
    vocabulary = {"[UNK]": 0, "a": 1, "cat": 2, "##tth": 3}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.decoder = tokenizers.decoders.WordPiece()  # pyright: ignore[reportAttributeAccessIssue]
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def test_a_text_with_an_unknown_token_is_never_the_same_word_for_word():
    texts = [[1, 2], [1, 0], [1, 2]]
    scores, _ = score_reconstruction(texts, texts, word_tokenizer(), ["a  cat", "a [UNK]", "A cat"])
    assert scores["exact"] == 1.0
    assert scores["text_exact"] == pytest.approx(1 / 3)


def test_a_text_that_begins_inside_a_word_has_no_mark():
    assert detokenize(word_tokenizer(), [[3, 1], [1, 2]]) == ["tth a", "a cat"]
