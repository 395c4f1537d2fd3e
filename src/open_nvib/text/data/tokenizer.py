"""Tokenizers: BERT's from a vocabulary file, any other that transformers can load, or a WordPiece trained here.

All of them come out with pad, unknown, begin and end tokens. BERT has no begin and end of its own: [CLS] and
[SEP] serve.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
from jaxtyping import Int
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from open_nvib.store.files import InputError
from open_nvib.text.data.hub import first_line
from open_nvib.text.data.wikitext import UNKNOWN

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
TRAINED = "train"

# How many of the entries of a trained vocabulary may be single characters. Without a bound, the Chinese and Arabic
# letters that occur once or twice in an English corpus would take the place of thousands of words.
_ALPHABET_SHARE = 1 / 40
# How many sentences a tokenizer is trained on, evenly spread over the training split: more take minutes and move a few
# rare entries.
_MOST_SENTENCES = 250_000
_PREFIX = "##"
_BATCH = 10_000


def bert(vocab: dict[str, int], *, lowercase: bool) -> PreTrainedTokenizerBase:
    """A BERT tokenizer of this vocabulary. Uncased BERT lowers case and strips accents."""
    return BertTokenizer(
        vocab=vocab,
        do_lower_case=lowercase,
        bos_token="[CLS]",
        eos_token="[SEP]",
        model_input_names=["input_ids", "attention_mask"],
    )


def load(name: str, *, lowercase: bool) -> PreTrainedTokenizerBase:
    """The tokenizer of a vocab.txt, a tokenizer.json, a folder or an id on the hub, made fit for our use."""
    path = Path(name).expanduser()
    if path.is_file() and path.suffix == ".txt":
        return bert(_read_vocab(path), lowercase=lowercase)
    try:
        if path.is_file():
            tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path))
        else:
            tokenizer = AutoTokenizer.from_pretrained(str(path) if path.is_dir() else name)
    except Exception as error:  # the libraries raise OSError, ValueError, KeyError and bare Exception for bad files
        raise InputError(
            f"tokenizer {name!r}: cannot be loaded ({first_line(error)}). Give 'train', the path of a vocab.txt, of a "
            f"tokenizer.json or of a folder with a saved tokenizer, or with network the id of one on the hub."
        ) from error
    return with_special_tokens(tokenizer)


def _read_vocab(path: Path) -> dict[str, int]:
    try:
        entries = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text, wanted a vocabulary with one entry a line.") from None
    missing = [token for token in SPECIAL_TOKENS if token not in entries]
    if missing:
        raise InputError(
            f"{path}: no {', '.join(missing)} among its {len(entries)} lines, wanted BERT's vocab.txt: one entry a "
            f"line, special tokens included."
        )
    return {entry: index for index, entry in enumerate(entries)}


def with_special_tokens(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Give it the begin, end and pad tokens that it lacks: [CLS] and [SEP] where it has them, else new entries."""
    has = tokenizer.special_tokens_map
    wanted = {"bos_token": has.get("cls_token", "[CLS]"), "eos_token": has.get("sep_token", "[SEP]")}
    wanted = {name: str(token) for name, token in {**wanted, "unk_token": "[UNK]"}.items() if name not in has}
    others = {str(token) for name, token in {**has, **wanted}.items() if name != "pad_token"}
    if has.get("pad_token") is None or str(has["pad_token"]) in others:
        wanted["pad_token"] = "[PAD]"  # a pad that is also the end would hide the end from the loss
    if wanted:
        tokenizer.add_special_tokens(wanted)  # pyright: ignore[reportArgumentType]
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return tokenizer


def train(sentences: Sequence[str], *, vocab_size: int, lowercase: bool) -> PreTrainedTokenizerBase:
    """A WordPiece trained on these sentences. The same sentences give the same vocabulary, entry by entry.

    The trainer numbers the inner letters (##a, ##b, …) in the order of a hash map, which differs from run to run, and
    breaks ties between merges by these numbers. Listing them beforehand, as if they were special, fixes both.
    """
    if len(sentences) > _MOST_SENTENCES:
        spread = np.linspace(0, len(sentences) - 1, _MOST_SENTENCES).astype(int).tolist()
        sentences = [sentences[int(index)] for index in spread]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.normalizer = normalizer  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # pyright: ignore[reportAttributeAccessIssue]
    letters = _alphabet(sentences, normalizer, max(64, int(vocab_size * _ALPHABET_SHARE)))
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
    """The most frequent characters as the normalizer leaves them, in the order of their code points."""
    raw: Counter[str] = Counter()
    for start in range(0, len(sentences), _BATCH):
        raw.update("".join(sentences[start : start + _BATCH]))
    counts: Counter[str] = Counter()
    for character, count in raw.items():
        for normal in normalizer.normalize_str(character).strip():
            counts[normal] += count
    frequent = sorted(counts, key=lambda character: (-counts[character], character))
    return sorted(frequent[:most])


def _joins_words(letter: str, normalizer: normalizers.Normalizer) -> bool:
    """Whether it may stand within a word; punctuation and Chinese characters are words of their own."""
    return len(pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normalizer.normalize_str(f"a{letter}a"))) == 1


@dataclass(frozen=True)
class Batch:
    """The ids of some sentences end to end, and the number of ids of each."""

    ids: Int[np.ndarray, " tokens"]
    lengths: Int[np.ndarray, " sentences"]


def encode(tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str]) -> Iterator[Batch]:
    """Ids of the sentences without special tokens, batch after batch. Fast tokenizers use all cores."""
    encode_batch = _word_by_word(tokenizer) if _is_bert(tokenizer) else partial(_sentence_by_sentence, tokenizer)
    for start in range(0, len(sentences), _BATCH):
        rows = encode_batch(list(sentences[start : start + _BATCH]))
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        ids = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(lengths.sum()))
        yield Batch(ids, lengths)


def _sentence_by_sentence(tokenizer: PreTrainedTokenizerBase, batch: list[str]) -> list[list[int]]:
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        encodings = tokenizer.backend_tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]
    return list(tokenizer(batch, add_special_tokens=False)["input_ids"])  # pyright: ignore[reportArgumentType]


def _is_bert(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether spaces part the text before all else, so that no word has a say in the ids of another."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return False
    backend = tokenizer.backend_tokenizer
    return (
        isinstance(backend.normalizer, normalizers.BertNormalizer)
        and isinstance(backend.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
        and not any(" " in token.content or token.lstrip or token.rstrip for token in _added(tokenizer))
    )


def _added(tokenizer: PreTrainedTokenizerFast) -> Iterable[AddedToken]:
    return tokenizer.added_tokens_decoder.values()


def _word_by_word(tokenizer: PreTrainedTokenizerBase) -> Callable[[list[str]], list[list[int]]]:
    """The same ids several times faster: every distinct word is tokenised once, and looked up from then on."""
    known: dict[str, list[int]] = {}

    def encode_batch(batch: list[str]) -> list[list[int]]:
        split = [sentence.split(" ") for sentence in batch]
        new = list(dict.fromkeys(word for words in split for word in words if word not in known))
        known.update(zip(new, _sentence_by_sentence(tokenizer, new), strict=True))
        return [list(chain.from_iterable(map(known.__getitem__, words))) for words in split]

    return encode_batch


def unknown_as(tokenizer: PreTrainedTokenizerBase) -> str:
    """What to write for a word that the corpus itself calls unknown: the tokenizer's own token, if it has one apart."""
    apart = tokenizer.unk_token not in (None, tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token)
    return str(tokenizer.unk_token) if apart else UNKNOWN


def forbidden_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Ids that no sentence may have within it: a text that spells out [SEP] would end in its middle."""
    return {index for index in tokenizer.all_special_ids if index != tokenizer.unk_token_id}
