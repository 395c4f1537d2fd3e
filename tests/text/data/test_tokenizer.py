from itertools import islice

import datasets
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from open_nvib.store.files import InputError
from open_nvib.text.data.prepare import save_rows
from open_nvib.text.data.tokenizer import (
    SPECIAL_TOKENS,
    encode,
    load_tokenizer,
    token_names,
    train_tokenizer,
    unknown_as,
)
from open_nvib.text.opening import open_tokenizer


def ids_of(tokenizer, texts):
    encoded = encode(tokenizer, texts)
    return [part.tolist() for part in np.split(encoded.ids, np.cumsum(encoded.lengths)[:-1])]


def test_ids_are_those_of_bert(corpora):
    """The oracle is the tokenizer of BERT's own release, in Python, which transformers still carries."""
    path = corpora / "bert-vocab" / "vocab.txt"
    tokenizer, bert = load_tokenizer(str(path), lowercase=True), BertTokenizerLegacy(str(path))
    assert len(tokenizer) == 30_522
    assert [getattr(tokenizer, f"{name}_token_id") for name in ("pad", "unk", "bos", "eos")] == [0, 100, 101, 102]
    with (corpora / "wikipedia" / "long.txt").open(encoding="utf-8") as lines:
        texts = [line.strip() for line in islice(lines, 2000)]
    texts += ["Café ÉLAN naïve œuvre", "中文 and 日本語", "don't-stop_me (now)…", "Straße İstanbul", "a\u0301b"]
    assert ids_of(tokenizer, texts) == [bert.convert_tokens_to_ids(bert.tokenize(text)) for text in texts]


def test_encoding_is_that_of_a_call_without_special_tokens(sentences):
    tokenizer = train_tokenizer(sentences, vocab_size=200, lowercase=True)
    texts = [*sentences, "A [UNK]'s—well… (thing)", "Çà, 中文x ΣΑΣ ﬁ", "x" * 150, "a [SEP]b", "‘’"]
    assert ids_of(tokenizer, texts) == tokenizer(texts, add_special_tokens=False)["input_ids"]


def test_a_vocabulary_file_gives_its_line_numbers(tmp_path):
    entries = [*SPECIAL_TOKENS, "the", "cat", "##s", "."]
    (tmp_path / "vocab.txt").write_text("\n".join(entries) + "\n")
    tokenizer = load_tokenizer(str(tmp_path / "vocab.txt"), lowercase=True)
    assert ids_of(tokenizer, ["The cats.", "The dog."]) == [[5, 6, 7, 8], [5, 1, 8]]
    assert ids_of(load_tokenizer(str(tmp_path / "vocab.txt"), lowercase=False), ["The cats."]) == [[1, 6, 7, 8]]


def test_a_vocabulary_without_an_id_for_each_entry_is_refused(tmp_path):
    """The model has as many rows as the tokenizer has entries, so an id beyond them would be an error in training."""
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "the", "the", "cat"]))
    with pytest.raises(InputError, match="duplicate entry 'the'"):
        load_tokenizer(str(tmp_path / "vocab.txt"), lowercase=True)
    gaps = Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1, "cat": 90}, unk_token="[UNK]"))
    gaps.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InputError, match="ids up to 90"):
        load_tokenizer(str(tmp_path / "tokenizer.json"), lowercase=True)


def test_training_is_deterministic_and_covers_the_text(sentences):
    first = train_tokenizer(sentences, vocab_size=200, lowercase=True)
    second = train_tokenizer(sentences, vocab_size=200, lowercase=True)
    assert first.get_vocab() == second.get_vocab()
    assert first.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == [0, 1, 2, 3, 4]
    assert len(first) <= 200
    assert sorted(first.get_vocab().values()) == list(range(len(first)))
    assert not any(first.unk_token_id in row for row in ids_of(first, sentences))
    text = sentences[0]
    assert first.decode(ids_of(first, [text])[0]) == text.lower()


def test_training_is_deterministic_with_symbols_inside_words(sentences):
    """The trainer's hash maps are seeded anew each time: 8 symbols that agree by chance in 3 runs are 1 in 8!²."""
    odd = [*sentences, *(f"a{symbol}b 5{symbol} 天地 don't" for symbol in "×°−®→£±µ" for _ in range(3))]
    vocabularies = [train_tokenizer(odd, vocab_size=300, lowercase=True).get_vocab() for _ in range(3)]
    assert all(vocabulary == vocabularies[0] for vocabulary in vocabularies)
    assert "##×" in vocabularies[0]
    assert not {"##天", "##'"} & set(vocabularies[0])


def test_rare_letters_do_not_crowd_out_words(sentences):
    rare = "".join(chr(0x4E00 + n) for n in range(3000))
    vocab = train_tokenizer([*sentences, rare], vocab_size=300, lowercase=True).get_vocab()
    assert "river" in vocab
    assert sum(entry in rare for entry in vocab) < 80


@pytest.mark.parametrize("lowercase", [True, False])
def test_a_saved_tokenizer_is_the_same_after_loading(tmp_path, sentences, lowercase):
    tokenizer = train_tokenizer(sentences, vocab_size=200, lowercase=lowercase)
    tokenizer.save_pretrained(str(tmp_path))
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert ids_of(again, sentences) == ids_of(tokenizer, sentences)
    assert again.special_tokens_map == tokenizer.special_tokens_map
    assert (again.bos_token, again.eos_token, again.pad_token) == ("[CLS]", "[SEP]", "[PAD]")
    assert set(again("The river.")) == {"input_ids", "attention_mask"}


@pytest.mark.parametrize(
    "special",
    [
        {},
        {"bos_token": "<s>", "eos_token": "</s>"},
        {"eos_token": "</s>", "pad_token": "</s>", "unk_token": "</s>"},
        {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "unk_token": "<u>"},
    ],
)
def test_other_tokenizers_get_the_tokens_they_lack(tmp_path, special):
    plain = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<u>": 2, "<s>": 3, "</s>": 4, "<pad>": 5}, unk_token="<u>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    PreTrainedTokenizerFast(tokenizer_object=plain, **special).save_pretrained(str(tmp_path))
    tokenizer = load_tokenizer(str(tmp_path), lowercase=True)
    for name in ("bos", "eos", "unk", "pad"):
        assert 0 <= getattr(tokenizer, f"{name}_token_id") < len(tokenizer)
    others = [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id]
    assert tokenizer.pad_token_id not in others
    for name, token in special.items():
        assert name == "pad_token" or getattr(tokenizer, name) == token
    if "cls_token" in special:
        assert (tokenizer.bos_token, tokenizer.eos_token, len(tokenizer)) == ("<s>", "</s>", 6)
    assert (unknown_as(tokenizer) == "<unk>") == (special.get("unk_token") == "</s>")


def test_a_sentence_that_spells_out_a_special_token_is_not_usable(sentences):
    tokenizer = train_tokenizer(sentences, vocab_size=200, lowercase=True)
    usable = encode(tokenizer, ["The river.", "The [SEP] river.", "The [UNK] river."]).usable
    assert usable.tolist() == [True, False, True]


def test_saved_rows_are_the_chosen_sentences_in_order(tmp_path, sentences):
    tokenizer = train_tokenizer(sentences, vocab_size=200, lowercase=True)
    rows = np.array([7, 3, 1199, 0])
    save_rows(encode(tokenizer, sentences), sentences, rows, tmp_path / "x")
    dataset = datasets.load_from_disk(str(tmp_path / "x"))
    assert dataset["text"][:] == [sentences[row] for row in rows]
    assert dataset["input_ids"][:] == [tokenizer(sentences[row], add_special_tokens=False)["input_ids"] for row in rows]


@pytest.mark.parametrize(("name", "content"), [("vocab.txt", "the\ncat\n"), ("tokenizer.json", "{}"), ("x.model", "?")])
def test_a_wrong_tokenizer_file_is_an_input_error(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=name) as caught:
        load_tokenizer(str(tmp_path / name), lowercase=True)
    assert "\n" not in str(caught.value)


ODD = [
    "The X-ray of Zürich cost 5 % more.",
    "  two  spaces,\ttabs\r\nand ends ",
    "naïve e\u0301 and é, İstanbul, ſtraße",
    "[SEP] [CLS][PAD]<unk> [UNK]",
    "天地玄黄 العربية हिन्दी 👩‍👩‍👧‍👦 🇨🇭 \u200d\ufeff\u2028\x00\x7f\U0010ffff",
    "don ' t . ` @ { | } ~ ^ _ \\",
    "",
]


@pytest.fixture(scope="module")
def byte_level(sentences, tmp_path_factory):
    """A byte-level tokenizer, saved and opened again as a run does it."""
    folder = tmp_path_factory.mktemp("bytes")
    train_tokenizer(sentences, vocab_size=400, kind="bytes").save_pretrained(str(folder))
    return open_tokenizer(folder, fix="")


@given(text=st.one_of(st.sampled_from(ODD), st.text(), st.text(st.characters(max_codepoint=0x250))))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_byte_level_tokenizer_gives_every_text_back(byte_level, text):
    ids = byte_level(text)["input_ids"]
    assert byte_level.decode(ids) == byte_level.decode(ids, skip_special_tokens=True) == text
    assert not set(ids) & set(byte_level.all_special_ids)
    encoded = encode(byte_level, [text])
    assert encoded.ids.tolist() == ids
    assert encoded.usable.all()


def test_training_on_bytes_is_deterministic(sentences):
    vocabularies = [train_tokenizer(sentences, vocab_size=400, kind="bytes").get_vocab() for _ in range(3)]
    assert vocabularies[0] == vocabularies[1] == vocabularies[2]
    assert sorted(vocabularies[0].values()) == list(range(400))
    assert "Ġcrossed" in vocabularies[0]


def test_names_of_tokens_are_readable_for_bytes_and_for_word_pieces(sentences, byte_level):
    names = token_names(byte_level, byte_level("No crossed, é.")["input_ids"])
    assert names == ["N", "##o", "crossed", ",", "␣", "�", "�", "."]
    pieces = train_tokenizer(sentences, vocab_size=200)
    ids = pieces("Some riverbeds")["input_ids"]
    assert token_names(pieces, ids) == pieces.convert_ids_to_tokens(ids)


def test_all_of_ascii_is_kept_however_rare(sentences):
    """Cased text with accents has more than 75 frequent characters, and had lost X, Z and %."""
    accents = "".join(map(chr, range(0xE0, 0x180))) * 9
    rare = "X Z % @ ~ Q j"
    tokenizer = train_tokenizer([*sentences, accents, rare], vocab_size=400, lowercase=False)
    (ids,) = ids_of(tokenizer, [rare])
    assert tokenizer.unk_token_id not in ids


def test_a_tokenizer_without_end_is_refused_and_a_byte_order_mark_is_no_entry(tmp_path):
    (tmp_path / "tokenizer.json").symlink_to("/dev/zero")
    for name in (tmp_path, tmp_path / "tokenizer.json", "/dev/zero"):
        with pytest.raises(InputError, match="neither a file nor a folder"):
            load_tokenizer(str(name), lowercase=True)
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "the"]), encoding="utf-8-sig")
    assert len(load_tokenizer(str(tmp_path / "vocab.txt"), lowercase=True)) == 6
