"""Load or train a tokenizer, and encode sentences with it.

A tokenizer is BERT's from a vocabulary file, any other that transformers can load, or one trained here: a WordPiece,
or a byte-level BPE, which decodes to the very text that it encoded. A sentencepiece tokenizer that would lose
characters gets an entry for each byte. Each gets pad, unknown, begin and end tokens. BERT has no begin and end tokens
of its own: [CLS] and [SEP] are used.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tqdm.auto import tqdm
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from open_nvib.store.files import InputError, in_one_line
from open_nvib.store.task_settings import TokenizerKind
from open_nvib.text.data.markup import UNKNOWN
from open_nvib.text.opening import open_saved, with_backend, without_template

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SMALLEST_OF_BYTES = 256 + len(SPECIAL_TOKENS)
"""Entries of a vocabulary of bytes alone."""

# Share of a trained vocabulary that may be single characters beyond ASCII. Without a bound, the Chinese and Arabic
# letters that occur once or twice in an English corpus would take the place of thousands of words.
_LARGEST_ALPHABET_SHARE = 1 / 40
# Sentences to train a tokenizer on, evenly spread over the training split: more take minutes and change a few rare
# entries.
_MOST_TRAINING_SENTENCES = 250_000
_BATCH_SENTENCES = 10_000
# Score of an entry for a byte: far below all others, as such an entry is for characters that no other has.
_BYTE_SCORE = -1000.0
# How sentencepiece writes a space, and a byte.
_SPACE, _BYTE = "▁", re.compile("<0x[0-9A-F]{2}>")
# Steps of sentencepiece that a text does not come back from: NFKC, and one space for several.
_LOSSY = ("Precompiled", "Replace")


def bert(vocab: dict[str, int], *, lowercase: bool) -> PreTrainedTokenizerBase:
    """Make a BERT tokenizer of this vocabulary. Uncased BERT lowers case and strips accents."""
    return without_template(BertTokenizer(vocab=vocab, do_lower_case=lowercase, bos_token="[CLS]", eos_token="[SEP]"))


def load_tokenizer(name: str, *, lowercase: bool) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a vocab.txt, a tokenizer.json, a folder or an id on the hub, with all special tokens."""
    path = Path(name).expanduser()
    tokenizer_files(path)
    if path.is_file() and path.suffix == ".txt":
        return bert(_read_vocab(path), lowercase=lowercase)
    try:
        if path.is_file():
            tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path))
        else:
            tokenizer = open_saved(AutoTokenizer, path if path.is_dir() else name)
    except Exception as error:  # the libraries raise OSError, ValueError, KeyError and bare Exception for bad files
        raise InputError(
            f"tokenizer {name!r}: cannot be loaded ({in_one_line(error)}). Give 'train', the path of a vocab.txt, of a "
            f"tokenizer.json or of a folder with a saved tokenizer, or with network the id of one on the hub."
        ) from error
    tokenizer = with_special_tokens(with_bytes(tokenizer))
    highest = max(tokenizer.get_vocab().values())
    if highest >= len(tokenizer):  # the model has a row for each entry
        raise InputError(
            f"tokenizer {name!r}: its {len(tokenizer)} entries have ids up to {highest}, expected ids without gaps."
        )
    return tokenizer


def tokenizer_files(path: Path) -> list[Path]:
    """List the files of a local tokenizer; none for an id on the hub. A pipe or a device has no end and is refused."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path] if path.exists() else []
    for file in files:
        if not file.is_file():
            raise InputError(f"tokenizer {str(file)!r}: neither a file nor a folder. Give the path of one, or 'train'.")
    return files


def _read_vocab(path: Path) -> dict[str, int]:
    try:
        entries = path.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text, expected a vocabulary with one entry a line.") from None
    twice = [entry for entry, count in Counter(entries).items() if count > 1]
    if twice:  # the ids would have gaps
        raise InputError(f"{path}: duplicate entry {twice[0]!r}, expected a vocabulary of distinct ones. Remove one.")
    missing = [token for token in SPECIAL_TOKENS if token not in entries]
    if missing:
        raise InputError(
            f"{path}: no {', '.join(missing)} among its {len(entries)} lines, expected BERT's vocab.txt: one entry a "
            f"line, special tokens included."
        )
    return {entry: index for index, entry in enumerate(entries)}


def with_special_tokens(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Give a tokenizer the begin, end, unknown and pad tokens that it lacks: its [CLS] and [SEP], or new entries."""
    has = tokenizer.special_tokens_map
    added = {"bos_token": has.get("cls_token", "[CLS]"), "eos_token": has.get("sep_token", "[SEP]")}
    added = {name: str(token) for name, token in {**added, "unk_token": "[UNK]"}.items() if name not in has}
    others = {str(token) for name, token in {**has, **added}.items() if name != "pad_token"}
    if has.get("pad_token") is None or str(has["pad_token"]) in others:
        added["pad_token"] = "[PAD]"  # a pad that is also the end would hide the end from the loss
    if added:
        tokenizer.add_special_tokens(added)  # pyright: ignore[reportArgumentType]
    return without_template(tokenizer)


def with_bytes(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Let a sentencepiece tokenizer, such as T5's, write every text as it is: unknown characters become bytes.

    Its vocabulary gets an entry for each byte, at the end, so that the others keep their ids. Its normalisation, which
    turns ² into 2 and … into three full stops, is left out. Other tokenizers stay as they are.
    """
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return tokenizer
    saved = json.loads(tokenizer.backend_tokenizer.to_str())
    model, normalizer = saved["model"], saved["normalizer"] or {}
    if model["type"] != "Unigram" or model.get("byte_fallback") or saved["decoder"]["type"] != "Metaspace":
        return tokenizer
    model["vocab"] += [[f"<0x{byte:02X}>", _BYTE_SCORE] for byte in range(256)]
    model["byte_fallback"] = True
    steps = [each for each in normalizer.get("normalizers", [normalizer]) if each.get("type") not in _LOSSY]
    saved["normalizer"] = {"type": "Sequence", "normalizers": steps} if any(steps) else None
    backend = Tokenizer.from_str(json.dumps(saved))
    space = saved["decoder"]["replacement"]
    backend.decoder = decoders.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [decoders.Replace(space, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return with_backend(tokenizer, backend)


def train_tokenizer(
    sentences: Sequence[str], *, vocab_size: int, lowercase: bool = True, kind: TokenizerKind = "wordpiece"
) -> PreTrainedTokenizerBase:
    """Train a tokenizer on these sentences. The same sentences give the same vocabulary, entry by entry."""
    if len(sentences) > _MOST_TRAINING_SENTENCES:
        spread = np.linspace(0, len(sentences) - 1, _MOST_TRAINING_SENTENCES).astype(int).tolist()
        sentences = [sentences[int(index)] for index in spread]
    if kind == "bytes":
        return _train_bytes(sentences, vocab_size=vocab_size)
    return _train_wordpiece(sentences, vocab_size=vocab_size, lowercase=lowercase)


def _train_bytes(sentences: Sequence[str], *, vocab_size: int) -> PreTrainedTokenizerBase:
    """Train a byte-level BPE: every text can be encoded, and decodes to itself, case, spaces and all.

    Special tokens are never found in a text: one that spells out [SEP] is text like any other.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "bos_token": "[CLS]", "eos_token": "[SEP]"}
    return without_template(
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, split_special_tokens=True, **names
        )
    )


def _train_wordpiece(sentences: Sequence[str], *, vocab_size: int, lowercase: bool) -> PreTrainedTokenizerBase:
    """Train a WordPiece.

    The trainer numbers the inner letters (##a, ##b, …) in the order of a hash map, which differs from run to run, and
    breaks ties between merges by these numbers. Listing the letters beforehand as special tokens fixes both.
    """
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.normalizer = normalizer  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # pyright: ignore[reportAttributeAccessIssue]
    letters = _alphabet(sentences, normalizer, max(64, int(vocab_size * _LARGEST_ALPHABET_SHARE)))
    # Letters that can be within a word; punctuation marks and Chinese characters are words of their own.
    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    inner = [f"##{letter}" for letter in letters if len(split(normalizer.normalize_str(f"a{letter}a"))) == 1]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL_TOKENS, *letters, *inner],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    known = (sentence.replace(UNKNOWN, " ") for sentence in sentences)
    tokenizer.train_from_iterator(known, trainer)
    return bert(tokenizer.get_vocab(), lowercase=lowercase)


def _alphabet(sentences: Sequence[str], normalizer: normalizers.Normalizer, most: int) -> list[str]:
    """Find the most frequent characters after normalisation, and all of ASCII that occurs, in order of code points."""
    counts: Counter[str] = Counter()
    for character, count in Counter(chain.from_iterable(sentences)).items():
        for normal in normalizer.normalize_str(character).strip():
            counts[normal] += count
    frequent = sorted(counts, key=lambda character: (-counts[character], character))
    return sorted({*frequent[:most], *filter(str.isascii, frequent)})


@dataclass(frozen=True)
class Encoded:
    """The ids of all sentences end to end, in one array: no Python object per token.

    A sentence that spells out a special token, such as [SEP], is not usable. `unknown` counts the unknown tokens.
    """

    ids: Int[np.ndarray, " tokens"]
    lengths: Int[np.ndarray, " total"]
    usable: Bool[np.ndarray, " total"]
    unknown: int


def encode(tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str]) -> Encoded:
    """Encode sentences without adding special tokens. Fast tokenizers use all cores."""
    ids: list[np.ndarray] = []
    lengths: list[np.ndarray] = []
    with tqdm(total=len(sentences), desc="tokenise", unit="", unit_scale=True, disable=None) as bar:
        for start in range(0, len(sentences), _BATCH_SENTENCES):
            batch = list(sentences[start : start + _BATCH_SENTENCES])
            if isinstance(tokenizer, PreTrainedTokenizerFast):
                encodings = tokenizer.backend_tokenizer.encode_batch_fast(batch, add_special_tokens=False)
                rows = [encoding.ids for encoding in encodings]
            else:
                rows = tokenizer(batch, add_special_tokens=False)["input_ids"]
            lengths.append(np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)))
            ids.append(np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(lengths[-1].sum())))
            bar.update(len(rows))
    flat, sizes = np.concatenate(ids), np.concatenate(lengths)
    # A text that spells out [SEP] would end in its middle.
    forbidden = [index for index in tokenizer.all_special_ids if index != tokenizer.unk_token_id]
    usable = np.ones(len(sizes), dtype=bool)
    usable[np.repeat(np.arange(len(sizes)), sizes)[np.isin(flat, forbidden)]] = False
    return Encoded(flat, sizes, usable, unknown=int((flat == tokenizer.unk_token_id).sum()))


def unknown_as(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return what replaces WikiText's `<unk>`: the tokenizer's unknown token, if texts can spell out one."""
    others = (None, tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token)
    return UNKNOWN if tokenizer.split_special_tokens or tokenizer.unk_token in others else str(tokenizer.unk_token)


def token_names(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """Return the tokens as people read them, "##" before one that goes on with the word of the token before it.

    A token of a byte-level or a sentencepiece tokenizer is shown decoded, and half of a character as �.
    """
    names = list(tokenizer.convert_ids_to_tokens(list(ids)))
    backend = tokenizer.backend_tokenizer if isinstance(tokenizer, PreTrainedTokenizerFast) else None
    if backend is not None and isinstance(backend.decoder, decoders.ByteLevel):
        decoded = [str(tokenizer.decode([index])) for index in ids]
    elif any(name.startswith(_SPACE) for name in names):
        decoded = ["�" if _BYTE.fullmatch(name) else name.replace(_SPACE, " ") for name in names]
    else:
        return names
    goes_on = [text[:1].isalnum() and before[-1:] not in ("", " ") for before, text in pairwise(["", *decoded])]
    return [f"##{text}" if on else text.strip(" ") or "␣" for text, on in zip(decoded, goes_on, strict=True)]
