"""The scorers against sources whose entropy is known, and against likelihoods summed by hand."""

import math
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM

from open_nvib.evaluation.scorers import KINDS, Scorer, identify_judge, open_judge, perplexity, score, train_scorer
from open_nvib.store.files import InputError
from open_nvib.text.model.configuration import TextAutoencoderConfig
from tools.scorers_on_noise import entropy_of_noise, make_noise, noise_config

PAD, BOS, EOS = 0, 1, 2
FIRST = 3
VOCABULARY = 11


def small_config(**changes) -> TextAutoencoderConfig:
    given = {
        "vocab_size": VOCABULARY,
        "d_model": 32,
        "ffn_size": 32,
        "max_positions": 40,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
    }
    return TextAutoencoderConfig(**{**given, **changes})


def quiet(text: str) -> None: ...


def zeroed(scorer: Scorer) -> Scorer:
    for parameter in scorer.parameters():
        nn.init.zeros_(parameter)
    return scorer.eval()


def random_texts(*lengths: int, seed: int = 0) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(FIRST, VOCABULARY, length).tolist() for length in lengths]


@pytest.mark.parametrize("kind", ["causal", "autoencoder"])
def test_perplexity_of_a_scorer_that_knows_nothing_is_the_size_of_the_vocabulary(kind):
    texts = random_texts(7, 0, 13, 5)
    nats, tokens = score(zeroed(KINDS[kind](small_config())), texts)
    assert tokens == 7 + 0 + 13 + 5 + 4, "the end of every text counts, of an empty one, too"
    assert perplexity(nats, tokens) == pytest.approx(VOCABULARY, rel=1e-5)


def test_likelihood_is_that_of_one_token_after_another():
    """A loop over prefixes without padding, each through the whole model."""
    torch.manual_seed(0)
    scorer = KINDS["causal"](small_config()).eval()
    texts = random_texts(6, 11, 3)
    nats = 0.0
    for text in texts:
        seen = [BOS, *text]
        for position, token in enumerate([*text, EOS]):
            logits = scorer.model(input_ids=torch.tensor([seen[: position + 1]])).logits[0, -1]
            nats -= logits.log_softmax(-1)[token].item()
    result = score(scorer, texts)
    assert result[0] == pytest.approx(nats, rel=1e-5)
    assert perplexity(*result) == pytest.approx(math.exp(nats / (6 + 11 + 3 + 3)), rel=1e-5)


def markov_texts(count: int, transitions: np.ndarray, seed: int) -> list[list[int]]:
    """Texts of a bigram source: token i is followed by j with transitions[i, j]; the last column ends the text."""
    generator = np.random.default_rng(seed)
    texts = []
    for _ in range(count):
        text: list[int] = []
        state = 0
        while True:
            state = int(generator.choice(len(transitions) + 1, p=transitions[state]))
            if state == len(transitions) or len(text) == 30:
                break
            text.append(FIRST + state)
        texts.append(text)
    return texts


def test_perplexity_of_a_bigram_source_is_the_one_by_hand():
    """The source's own probabilities, multiplied by hand, are the least that a scorer reaches; a trained one nears it.

    Token i of 5 is followed by itself with 0.5, by its successor with 0.4, and by the end with 0.1; a text begins with
    token 0 or 1, as if after token 0. On 600 held-out texts the standard error of the mean loss is below 1 %.
    """
    states = 5
    transitions = np.zeros((states, states + 1))
    for state in range(states):
        transitions[state, state] += 0.5
        transitions[state, (state + 1) % states] += 0.4
        transitions[state, states] = 0.1
    training, held_out = markov_texts(2000, transitions, 0), markov_texts(600, transitions, 1)
    held_out = [text for text in held_out if len(text) < 30]
    nats = tokens = 0
    for text in held_out:
        path = [0, *(token - FIRST for token in text)]
        following = [*path[1:], states]
        nats -= sum(math.log(transitions[a, b]) for a, b in zip(path, following, strict=True))
        tokens += len(text) + 1
    by_hand = math.exp(nats / tokens)
    config = small_config()
    scorer = train_scorer("causal", config, training, steps=150, seed=0, say=quiet)
    measured = perplexity(*score(scorer, held_out))
    assert 0.99 * by_hand < measured < 1.06 * by_hand


def test_only_the_copying_scorer_beats_the_entropy_of_noise():
    """No language model can: uniform random tokens have no more to learn than their number."""
    training, held_out = make_noise(1500, tokens=20, seed=0), make_noise(200, tokens=20, seed=1)
    bound = entropy_of_noise(tokens=20)
    config = noise_config(tokens=20, size=32)
    measured = {
        kind: perplexity(*score(train_scorer(kind, config, training, steps=300, seed=0, say=quiet), held_out))
        for kind in ("causal", "autoencoder")
    }
    assert measured["causal"] > 0.98 * bound  # the standard error of the bound on 200 texts is below one percent
    assert measured["autoencoder"] < 0.5 * bound


def test_training_is_repeatable_and_leaves_the_global_random_numbers_alone():
    texts, config = random_texts(*range(3, 23)), small_config()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    scores = [
        score(train_scorer("causal", config, texts, steps=5, seed=seed, say=quiet), texts)[0] for seed in (0, 0, 1)
    ]
    assert torch.equal(torch.rand(3), expected)
    assert scores[0] == scores[1] != scores[2]


def test_a_judge_scores_one_token_after_another_and_counts_words(judge):
    """A loop over prefixes without padding, each through the whole model; the tokens are bytes."""
    opened, texts = open_judge(str(judge)), ["Two words", "", "a  longer text, of six words"]
    nats = 0.0
    for text in texts:
        start, *ids = opened.tokenizer("<s>" + text)["input_ids"]
        assert len(ids) == len(text)
        for position, token in enumerate(ids):
            logits = opened.model(input_ids=torch.tensor([[start, *ids[:position]]])).logits[0, -1]
            nats -= logits.log_softmax(-1)[token].item()
    assert opened.word_perplexity(texts) == pytest.approx(math.exp(nats / 8), rel=1e-4)
    assert opened.word_perplexity(["", " "]) is None, "there is no word to divide by"


def test_a_judge_that_reads_both_sides_is_refused(judge, tmp_path):
    """Transformers opens a BERT as a causal language model; its perplexity would be that of reading the answer."""
    shutil.copytree(judge, tmp_path / "bert")
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=257, intermediate_size=16, initializer_range=0.5, **sizes)
    BertForMaskedLM(config).save_pretrained(tmp_path / "bert")
    with pytest.raises(InputError, match="causal"):
        open_judge(str(tmp_path / "bert"))


def test_a_text_beyond_the_positions_of_a_judge_is_one_line(judge):
    opened = open_judge(str(judge))
    assert opened.word_perplexity(["x" * (opened.model.config.max_position_embeddings - 1)])
    with pytest.raises(InputError, match="judge"):
        opened.word_perplexity(["x" * opened.model.config.max_position_embeddings])


def test_scores_of_another_judge_in_the_same_folder_are_not_taken(judge, tmp_path):
    folder = shutil.copytree(judge, tmp_path / "judge")
    known = identify_judge(str(folder))
    assert identify_judge(str(folder)) == known
    model = open_judge(str(folder)).model
    torch.nn.init.zeros_(model.lm_head.weight)
    model.save_pretrained(folder)
    assert identify_judge(str(folder)) != known
    assert identify_judge("someone/on-the-hub") == {"judge": "someone/on-the-hub"}


@pytest.mark.parametrize("name", ["pytorch_model.bin", "merges.txt", "tokenizer.model"])
def test_every_file_of_a_judge_tells_it_from_another(judge, tmp_path, name):
    """Transformers also reads weights and tokenizers from files that are neither safetensors nor JSON."""
    folder = shutil.copytree(judge, tmp_path / "judge")
    found = []
    for content in ("one", "other"):
        (folder / name).write_text(content)
        found.append(identify_judge(str(folder)))
    assert found[0] != found[1]


def test_a_judge_whose_tokenizer_knows_more_tokens_is_one_line(judge, tmp_path):
    folder = shutil.copytree(judge, tmp_path / "judge")
    model = open_judge(str(folder)).model
    model.resize_token_embeddings(20)
    model.save_pretrained(folder)
    with pytest.raises(InputError, match="judge: its tokenizer"):
        open_judge(str(folder)).word_perplexity(["a word"])


@pytest.mark.parametrize("options", [{"latent_size": 4}, {"bound_queries": True}, {"alpha0_p": 2.0}], ids=str)
@pytest.mark.parametrize("kind", ["causal", "autoencoder"])
def test_models_that_share_a_scorer_make_the_same_one(kind: Any, options: dict[str, Any]):
    """It is kept under the settings of TAKEN_OVER, so nothing else may change it."""
    sizes: dict[str, Any] = {"vocab_size": 30, "d_model": 8, "ffn_size": 8, "heads": 2, "max_positions": 32}
    tokens: dict[str, Any] = {"bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}
    made = []
    for given in ({}, options):
        torch.manual_seed(0)
        made.append(KINDS[kind](TextAutoencoderConfig(**sizes, **tokens, **given)).eval())
    labels = torch.tensor([[5, 6, 7, 3]])
    assert made[0](labels) == made[1](labels)
