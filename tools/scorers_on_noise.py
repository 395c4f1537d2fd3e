"""Measure both scorers on uniform random tokens: a language model cannot beat their entropy, one that copies does.

    python -m tools.scorers_on_noise

prints the table of docs/scorers.md.
"""

import argparse
import math
from typing import Any

import numpy as np

from open_nvib.evaluation.scorers import perplexity, score, train_scorer
from open_nvib.text.model.configuration import TextAutoencoderConfig

SHORTEST, LONGEST = 5, 20
SPECIAL = 3
"""Ids 0, 1 and 2: padding, start and end."""


def make_noise(count: int, *, tokens: int, seed: int) -> list[list[int]]:
    """Draw texts of 5 to 20 tokens, every length and every token as likely as any other."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(SHORTEST, LONGEST + 1, count)
    return [generator.integers(SPECIAL, SPECIAL + tokens, length).tolist() for length in lengths]


def entropy_of_noise(*, tokens: int) -> float:
    """Compute the least perplexity, ends of texts included, of a scorer that does not see the text it scores.

    A text of length L has L log(tokens) nats of tokens and log(number of lengths) of length, over L + 1 predictions.
    """
    lengths = LONGEST - SHORTEST + 1
    mean = (SHORTEST + LONGEST) / 2
    return math.exp((mean * math.log(tokens) + math.log(lengths)) / (mean + 1))


def noise_config(*, tokens: int, size: int) -> TextAutoencoderConfig:
    return TextAutoencoderConfig(
        vocab_size=SPECIAL + tokens,
        d_model=size,
        ffn_size=size,
        dropout=0.0,
        max_positions=LONGEST + 2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[20, 100, 500])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--size", type=int, default=64)
    given = parser.parse_args()
    options: Any = {"steps": given.steps, "seed": 0, "say": lambda text: None}
    print("| different tokens | entropy bound | causal | autoencoder |\n|---|---|---|---|")
    for tokens in given.tokens:
        training, held_out = make_noise(20_000, tokens=tokens, seed=0), make_noise(2000, tokens=tokens, seed=1)
        config = noise_config(tokens=tokens, size=given.size)
        causal, copying = (
            perplexity(*score(train_scorer(kind, config, training, **options), held_out))
            for kind in ("causal", "autoencoder")
        )
        print(f"| {tokens} | {entropy_of_noise(tokens=tokens):.2f} | {causal:.2f} | {copying:.2f} |", flush=True)


if __name__ == "__main__":
    main()
