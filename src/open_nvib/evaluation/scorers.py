"""What scores texts: a model with a negative log-likelihood, trained the same way whatever it is trained on.

The causal one is a language model. The other one copies (see `copying.py`) and is here to show that.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from open_nvib.evaluation.copying import CopyingScorer
from open_nvib.evaluation.language_model import LanguageModel
from open_nvib.text.model.configuration import TextAutoencoderConfig
from open_nvib.text.model.decoding import Collator, LengthGroupedSampler, in_batches

BATCH = 64
LEARNING_RATE = 3e-3
WARMUP_SHARE = 0.1
CLIP = 1.0
EVALUATION_BATCH = 256

Texts = Sequence[Sequence[int]]
Kind = Literal["causal", "autoencoder"]


@dataclass(frozen=True)
class Score:
    """Negative log-likelihood in nats, and the tokens it is of, the end of every text among them."""

    nats: float
    tokens: int

    @property
    def perplexity(self) -> float:
        """Sums over all tokens, divides once."""
        return math.exp(min(self.nats / max(1, self.tokens), 50.0))


Scorer = LanguageModel | CopyingScorer


def make_scorer(kind: Kind, config: TextAutoencoderConfig) -> Scorer:
    """An untrained scorer of the size of a text autoencoder, with its vocabulary."""
    return LanguageModel(config) if kind == "causal" else CopyingScorer(config)


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
    """Train a scorer on texts: Adam, a warm-up, a cosine to zero, batches of similar length.

    The sizes of the data differ, the number of steps does not: a scorer of few texts sees them more often.
    """
    if not texts:
        raise ValueError("a scorer needs at least one text to train on, got none.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        scorer = make_scorer(kind, config).to(device)
        optimiser = torch.optim.AdamW(scorer.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
        warmup = max(1, int(WARMUP_SHARE * steps))
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _rate(step, warmup, steps))
        collator = Collator(config.pad_token_id, config.eos_token_id)  # pyright: ignore[reportArgumentType]
        sampler = LengthGroupedSampler([len(text) for text in texts], BATCH, seed=seed)
        scorer.train()
        step = epoch = 0
        while step < steps:
            sampler.set_epoch(epoch)
            order = list(sampler)
            for first in range(0, len(order), BATCH):
                batch = _batch(collator, [texts[index] for index in order[first : first + BATCH]], device)
                loss = scorer(batch) / (batch["labels"] >= 0).sum()
                optimiser.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(scorer.parameters(), CLIP)
                optimiser.step()
                schedule.step()
                step += 1
                if step % max(1, steps // 4) == 0:
                    say(f"  scorer: step {step} of {steps}, loss {loss.item():.3f}")
                if step == steps:
                    break
            epoch += 1
    return scorer.eval()


def _batch(collator: Collator, texts: Texts, device: torch.device | str) -> dict[str, Tensor]:
    return {name: x.to(device) for name, x in collator([{"input_ids": text} for text in texts]).items()}


def _rate(step: int, warmup: int, steps: int) -> float:
    """The share of the learning rate at a step."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


@torch.no_grad()
def score(scorer: Scorer, config: TextAutoencoderConfig, texts: Texts) -> Score:
    """The likelihood of texts."""
    collator = Collator(config.pad_token_id, config.eos_token_id)  # pyright: ignore[reportArgumentType]
    nats, tokens = 0.0, 0
    for _, chosen in in_batches(texts, EVALUATION_BATCH, len):
        batch = _batch(collator, chosen, scorer.model.device)
        nats += scorer(batch).item()
        tokens += int((batch["labels"] >= 0).sum())
    return Score(nats, tokens)
