"""Load or train a tokenizer, and encode sentences with it.

A tokenizer is BERT's from a vocabulary file, any other that transformers can load, or a WordPiece trained here. Each
gets pad, unknown, begin and end tokens. BERT has no begin and end tokens of its own: [CLS] and [SEP] are used.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from tqdm.auto import tqdm
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from open_nvib.store.files import InputError, damaged, in_one_line
from open_nvib.text.data.markup import UNKNOWN

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# Share of a trained vocabulary that may be single characters. Without a bound, the Chinese and Arabic letters that
# occur once or twice in an English corpus would take the place of thousands of words.
_LARGEST_ALPHABET_SHARE = 1 / 40
# Sentences to train a tokenizer on, evenly spread over the training split: more take minutes and change a few rare
# entries.
_MOST_TRAINING_SENTENCES = 250_000
_PREFIX = "##"
_BATCH_SENTENCES = 10_000


def bert(vocab: dict[str, int], *, lowercase: bool) -> PreTrainedTokenizerBase:
    """Make a BERT tokenizer of this vocabulary. Uncased BERT lowers case and strips accents."""
    return without_template(BertTokenizer(vocab=vocab, do_lower_case=lowercase, bos_token="[CLS]", eos_token="[SEP]"))


def load_tokenizer(name: str, *, lowercase: bool) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a vocab.txt, a tokenizer.json, a folder or an id on the hub, with all special tokens."""
    path = Path(name).expanduser()
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(f"tokenizer {name!r}: neither a file nor a folder. Give the path of one, or 'train'.")
    if path.is_file() and path.suffix == ".txt":
        return bert(_read_vocab(path), lowercase=lowercase)
    try:
        if path.is_file():
            tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path))
        else:
            tokenizer = AutoTokenizer.from_pretrained(str(path) if path.is_dir() else name, trust_remote_code=False)
    except Exception as error:  # the libraries raise OSError, ValueError, KeyError and bare Exception for bad files
        raise InputError(
            f"tokenizer {name!r}: cannot be loaded ({in_one_line(error)}). Give 'train', the path of a vocab.txt, of a "
            f"tokenizer.json or of a folder with a saved tokenizer, or with network the id of one on the hub."
        ) from error
    tokenizer = with_special_tokens(tokenizer)
    highest = max(tokenizer.get_vocab().values())
    if highest >= len(tokenizer):  # the model has a row for each entry
        raise InputError(
            f"tokenizer {name!r}: its {len(tokenizer)} entries have ids up to {highest}, expected ids without gaps."
        )
    return tokenizer


def _read_vocab(path: Path) -> dict[str, int]:
    try:
        entries = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
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


def without_template(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return the tokenizer such that a plain call adds no special tokens, which the encoder never saw.

    A class such as BertTokenizer sets its template again whenever it is loaded, so the general class replaces it.
    """
    if not isinstance(tokenizer, PreTrainedTokenizerFast):  # a tokenizer in Python has no template to remove
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
        return tokenizer
    backend, extra = tokenizer.backend_tokenizer, getattr(tokenizer, "extra_special_tokens", [])
    backend.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        **tokenizer.special_tokens_map,
        model_max_length=tokenizer.model_max_length,
        extra_special_tokens=list(extra),
        padding_side="right",  # positions count from the left
        clean_up_tokenization_spaces=tokenizer.clean_up_tokenization_spaces,
        model_input_names=["input_ids", "attention_mask"],
    )


def open_tokenizer(folder: Path, *, fix: str) -> PreTrainedTokenizerBase:
    """Load a tokenizer that was saved in a folder; no code that comes with it is run."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a damaged file is an error of many kinds
        raise damaged(folder, error, fix=fix) from error
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # without tokenizer.json, an empty one is made up
        raise damaged(folder, "no entries but special tokens", fix=fix)
    return without_template(tokenizer)


def train_tokenizer(sentences: Sequence[str], *, vocab_size: int, lowercase: bool) -> PreTrainedTokenizerBase:
    """Train a WordPiece on these sentences. The same sentences give the same vocabulary, entry by entry.

    The trainer numbers the inner letters (##a, ##b, …) in the order of a hash map, which differs from run to run, and
    breaks ties between merges by these numbers. Listing the letters beforehand as special tokens fixes both.
    """
    if len(sentences) > _MOST_TRAINING_SENTENCES:
        spread = np.linspace(0, len(sentences) - 1, _MOST_TRAINING_SENTENCES).astype(int).tolist()
        sentences = [sentences[int(index)] for index in spread]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.normalizer = normalizer  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # pyright: ignore[reportAttributeAccessIssue]
    letters = _alphabet(sentences, normalizer, max(64, int(vocab_size * _LARGEST_ALPHABET_SHARE)))
    inner = [_PREFIX + letter for letter in letters if _joins_words(letter, normalizer)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL_TOKENS, *letters, *inner],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        continuing_subword_prefix=_PREFIX,
        show_progress=False,
    )
    known = (sentence.replace(UNKNOWN, " ") for sentence in sentences)
    tokenizer.train_from_iterator(known, trainer)
    return bert(tokenizer.get_vocab(), lowercase=lowercase)


def _alphabet(sentences: Sequence[str], normalizer: normalizers.Normalizer, most: int) -> list[str]:
    """Find the most frequent characters after normalisation, in the order of their code points."""
    raw: Counter[str] = Counter()
    for start in range(0, len(sentences), _BATCH_SENTENCES):
        raw.update("".join(sentences[start : start + _BATCH_SENTENCES]))
    counts: Counter[str] = Counter()
    for character, count in raw.items():
        for normal in normalizer.normalize_str(character).strip():
            counts[normal] += count
    frequent = sorted(counts, key=lambda character: (-counts[character], character))
    return sorted(frequent[:most])


def _joins_words(letter: str, normalizer: normalizers.Normalizer) -> bool:
    """Tell whether a letter can be within a word; punctuation marks and Chinese characters are words of their own."""
    return len(pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normalizer.normalize_str(f"a{letter}a"))) == 1


@dataclass(frozen=True)
class Encoded:
    """The ids of all sentences end to end, in one array: no Python object per token.

    A sentence that spells out a special token, such as [SEP], is not usable.
    """

    ids: Int[np.ndarray, " tokens"]
    lengths: Int[np.ndarray, " total"]
    usable: Bool[np.ndarray, " total"]


def encode(tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str]) -> Encoded:
    """Encode sentences without adding special tokens. Fast tokenizers use all cores."""
    encode_batch = _word_by_word(tokenizer) if _is_bert(tokenizer) else partial(_sentence_by_sentence, tokenizer)
    ids: list[np.ndarray] = []
    lengths: list[np.ndarray] = []
    with tqdm(total=len(sentences), desc="tokenise", unit="", unit_scale=True, disable=None) as bar:
        for start in range(0, len(sentences), _BATCH_SENTENCES):
            rows = encode_batch(list(sentences[start : start + _BATCH_SENTENCES]))
            lengths.append(np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)))
            ids.append(np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(lengths[-1].sum())))
            bar.update(len(rows))
    flat, sizes = np.concatenate(ids), np.concatenate(lengths)
    # A text that spells out [SEP] would end in its middle.
    forbidden = [index for index in tokenizer.all_special_ids if index != tokenizer.unk_token_id]
    usable = np.ones(len(sizes), dtype=bool)
    usable[np.repeat(np.arange(len(sizes)), sizes)[np.isin(flat, forbidden)]] = False
    return Encoded(flat, sizes, usable)


def _sentence_by_sentence(tokenizer: PreTrainedTokenizerBase, batch: list[str]) -> list[list[int]]:
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        encodings = tokenizer.backend_tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]
    return list(tokenizer(batch, add_special_tokens=False)["input_ids"])  # pyright: ignore[reportArgumentType]


def _is_bert(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Tell whether the text is split at spaces before all else, so that the ids of a word depend on no other word."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return False
    backend, added = tokenizer.backend_tokenizer, tokenizer.added_tokens_decoder.values()
    return (
        isinstance(backend.normalizer, normalizers.BertNormalizer)
        and isinstance(backend.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
        and not any(" " in token.content or token.lstrip or token.rstrip for token in added)
    )


def _word_by_word(tokenizer: PreTrainedTokenizerBase) -> Callable[[list[str]], list[list[int]]]:
    """Make an encoder of batches that tokenises every distinct word once: the same ids several times faster."""
    known: dict[str, list[int]] = {}

    def encode_batch(batch: list[str]) -> list[list[int]]:
        split = [sentence.split(" ") for sentence in batch]
        new = list(dict.fromkeys(word for words in split for word in words if word not in known))
        known.update(zip(new, _sentence_by_sentence(tokenizer, new), strict=True))
        return [list(chain.from_iterable(map(known.__getitem__, words))) for words in split]

    return encode_batch


def unknown_as(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return what replaces WikiText's `<unk>`: the tokenizer's own unknown token, if it has a separate one."""
    separate = tokenizer.unk_token not in (None, tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token)
    return str(tokenizer.unk_token) if separate else UNKNOWN
