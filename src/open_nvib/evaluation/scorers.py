"""Scorers: models that are trained on texts and give other texts a likelihood.

The causal scorer is a language model. The copying scorer is an autoencoder, which sees the sentence that it scores. It
is for comparison with published perplexities near 1 alone: see `docs/scorers.md`.

A judge is a pretrained language model, which is not trained here and has a tokenizer of its own, so that its
perplexities are by word.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from open_nvib.store.files import InputError, digest_of_file, in_one_line
from open_nvib.text.model.autoencoder import IGNORED, TextAutoencoder
from open_nvib.text.model.configuration import TextAutoencoderConfig
from open_nvib.text.model.decoding import Collator, LengthGroupedSampler, Texts, in_batches
from open_nvib.text.opening import open_saved, open_weights

TRAINING_BATCH = 64
SCORING_BATCH = 256
JUDGING_BATCH = 16
LEARNING_RATE = 3e-3
WARMUP_SHARE = 0.1
LARGEST_GRADIENT_NORM = 1.0
DROPOUT = 0.1
LARGEST_LOG_PERPLEXITY = 50.0

Kind = Literal["causal", "autoencoder"]
SIZES = (
    *("vocab_size", "d_model", "ffn_size", "encoder_layers", "decoder_layers"),
    *("heads", "max_positions", "positions", "tie_word_embeddings"),
)
TAKEN_OVER: dict[Kind, tuple[str, ...]] = {"causal": SIZES, "autoencoder": (*SIZES, "dropout")}
"""Settings of a model that its scorers take over: models that agree in them share a scorer."""
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")


class CausalScorer(nn.Module):
    """Language model of GPT-2's architecture: a token sees the start of the text and the tokens before it."""

    def __init__(self, config: TextAutoencoderConfig) -> None:
        super().__init__()
        assert config.decoder_start_token_id is not None
        self.start = config.decoder_start_token_id
        self.model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=config.vocab_size,
                n_positions=config.max_positions,
                n_embd=config.d_model,
                n_layer=config.encoder_layers + config.decoder_layers,
                n_head=math.gcd(config.heads, config.d_model),  # which heads of T5 need not divide
                n_inner=config.ffn_size,
                embd_pdrop=DROPOUT,
                attn_pdrop=0.0,
                resid_pdrop=DROPOUT,
                activation_function="relu",
                bos_token_id=config.bos_token_id,
                eos_token_id=config.eos_token_id,
                pad_token_id=config.pad_token_id,
            )
        )

    def forward(self, labels: Tensor) -> Tensor:
        """Sum the negative log-likelihood of `labels` over all tokens, in nats."""
        real = labels != IGNORED
        seen = labels.masked_fill(~real, self.start).roll(1, dims=-1)
        seen[:, 0] = self.start
        hidden = self.model.transformer(input_ids=seen).last_hidden_state  # padding comes last: nothing real sees it
        logits = self.model.lm_head(hidden[real])
        return F.cross_entropy(logits.float(), labels[real], reduction="sum")


class CopyingScorer(nn.Module):
    """Plain Transformer autoencoder, which encodes the text and its end."""

    def __init__(self, config: TextAutoencoderConfig) -> None:
        super().__init__()
        options: Any = {name: getattr(config, name) for name in (*TAKEN_OVER["autoencoder"], *TOKENS)}
        options |= {"bottleneck": "t", "heads": math.gcd(config.heads, config.d_model)}
        self.model = TextAutoencoder(TextAutoencoderConfig(**options))

    def forward(self, labels: Tensor) -> Tensor:
        """Sum the negative log-likelihood of `labels` given themselves over all tokens, in nats."""
        model = self.model
        real = labels != IGNORED
        texts = labels.masked_fill(~real, model.config.pad_token_id)
        mixture = model.encoder.posterior(texts, real).mean()
        hidden = model.decoder(model.embed(model.shift_right(labels)), model.decoder.project(mixture))
        return F.cross_entropy(model.head(hidden[real]).float(), labels[real], reduction="sum")


Scorer = CausalScorer | CopyingScorer
KINDS: dict[Kind, type[Scorer]] = {"causal": CausalScorer, "autoencoder": CopyingScorer}


def perplexity(nats: float, count: int) -> float:
    """Compute the perplexity of tokens, or of words, with this negative log-likelihood together."""
    return math.exp(min(nats / max(1, count), LARGEST_LOG_PERPLEXITY))


def train_scorer(
    kind: Kind,
    config: TextAutoencoderConfig,
    texts: Texts,
    *,
    steps: int,
    seed: int,
    say: Callable[[str], None],
    device: torch.device | str = "cpu",
) -> Scorer:
    """Train a scorer on texts: AdamW, a warm-up, a cosine to zero, batches of similar length.

    Its size and vocabulary are those of a text autoencoder. The number of steps does not depend on the number of texts:
    a scorer of few texts sees them more often.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        scorer = KINDS[kind](config).to(device).train()
        optimiser = torch.optim.AdamW(scorer.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
        warmup = max(1, int(WARMUP_SHARE * steps))
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _rate(step, warmup, steps))
        batches = itertools.islice(_training_batches(texts, seed), steps)
        bar = tqdm(batches, "train a scorer", total=steps, unit="step", leave=False, disable=None)
        for step, batch in enumerate(bar, 1):
            labels = _labels(scorer, batch)
            loss = scorer(labels) / (labels != IGNORED).sum()
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(scorer.parameters(), LARGEST_GRADIENT_NORM)
            optimiser.step()
            schedule.step()
            if step % max(1, steps // 4) == 0:
                say(f"  scorer: step {step} of {steps}, loss {loss.item():.3f}")
    return scorer.eval()


def _training_batches(texts: Texts, seed: int) -> Iterator[Texts]:
    """Yield batches of similar length, one pass over the texts after the other."""
    sampler = LengthGroupedSampler([len(text) for text in texts], TRAINING_BATCH, seed=seed)
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        order = list(sampler)
        for first in range(0, len(order), TRAINING_BATCH):
            yield [texts[index] for index in order[first : first + TRAINING_BATCH]]


def _rate(step: int, warmup: int, steps: int) -> float:
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def _labels(scorer: Scorer, texts: Texts) -> Tensor:
    """Pad texts, with their ends, to one batch."""
    config: Any = scorer.model.config
    collator = Collator(config.pad_token_id, config.eos_token_id)
    return collator([{"input_ids": text} for text in texts])["labels"].to(scorer.model.device)


@torch.no_grad()
def score(scorer: Scorer, texts: Texts) -> tuple[float, int]:
    """Sum the negative log-likelihood of texts in nats, and count their tokens, the end of every text included."""
    nats, tokens = 0.0, 0
    for _, chosen in in_batches(texts, SCORING_BATCH, len, "score"):
        labels = _labels(scorer, chosen)
        nats += scorer(labels).item()
        tokens += int((labels != IGNORED).sum())
    return nats, tokens


@dataclass(frozen=True)
class Judge:
    """A pretrained causal language model and its tokenizer."""

    model: Any
    tokenizer: Any

    @torch.no_grad()
    def word_perplexity(self, texts: Sequence[str]) -> float | None:
        """Perplexity of texts by word, of all words together; None if there are none.

        A text follows the token that the model starts with, and its end is not scored. Words are what spaces separate.
        """
        start = self.tokenizer.bos_token_id if self.tokenizer.bos_token_id is not None else self.tokenizer.eos_token_id
        ids = [[start, *self.tokenizer(text, add_special_tokens=False)["input_ids"]] for text in texts]
        longest = getattr(self.model.config, "max_position_embeddings", math.inf)
        if (most := max(map(len, ids), default=0)) > longest:
            raise InputError(f"judge: a text has {most} tokens of its tokenizer, and the model takes {longest}.")
        rows = self.model.get_input_embeddings().num_embeddings
        if (last := max(map(max, ids), default=0)) >= rows:
            raise InputError(f"judge: its tokenizer has a token {last}, and the model takes those below {rows}.")
        nats = 0.0
        for _, chosen in in_batches(ids, JUDGING_BATCH, len, "judge"):
            padded = nn.utils.rnn.pad_sequence([torch.tensor(text) for text in chosen], True, IGNORED)
            padded = padded.to(self.model.device)
            logits = self.model(input_ids=padded.masked_fill(padded == IGNORED, start)).logits[:, :-1]
            nats += F.cross_entropy(logits.flatten(0, 1).float(), padded[:, 1:].flatten(), reduction="sum").item()
        words = sum(len(text.split()) for text in texts)
        return perplexity(nats, words) if words else None


def open_judge(name: str, device: torch.device | str = "cpu") -> Judge:
    """Open a judge from a folder or by its id on the hub; an InputError if there is none."""
    path = Path(name).expanduser()
    where = path if path.is_dir() else name
    try:
        tokenizer = open_saved(AutoTokenizer, where)
        model = open_weights(AutoModelForCausalLM, where, dtype=torch.float32)
    except Exception as error:  # the libraries raise errors of many kinds
        raise InputError(
            f"judge {name!r}: cannot be used ({in_one_line(error)}). Give the folder of a saved causal language model "
            f"with its tokenizer, or with network the id of one on the hub."
        ) from error
    if tokenizer.bos_token_id is None and tokenizer.eos_token_id is None:
        raise InputError(f"judge {name!r}: its tokenizer has no token for the start or the end of a text.")
    with torch.no_grad():
        one, other = model.eval()(input_ids=torch.tensor([[0, 1, 2], [0, 1, 3]])).logits[:, :2]
    if not torch.allclose(one, other, rtol=1e-3, atol=1e-3):  # BERT, which transformers opens as one
        raise InputError(f"judge {name!r}: reads the tokens that it scores, expected a causal language model.")
    return Judge(model.to(device), tokenizer)


def identify_judge(name: str) -> dict[str, Any]:
    """Return what the scores of a judge depend on: of a folder, its files, as another model may replace them."""
    files = sorted(file for file in Path(name).expanduser().glob("*") if file.is_file())
    return {"judge": name, **({"judge_files": [digest_of_file(file) for file in files]} if files else {})}
