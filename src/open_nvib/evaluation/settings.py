"""What an evaluation is told, on the command line and in an experiment's file."""

from dataclasses import dataclass, field
from typing import Literal

from open_nvib.text.train_config import LARGEST_SEED

Part = Literal["reconstruction", "generation", "latent", "interpolation"]
PARTS: tuple[Part, ...] = ("reconstruction", "generation", "latent", "interpolation")


@dataclass(frozen=True)
class EvaluateConfig:
    """What to measure, and on how much.

    Args:
        split: validation or test.
        measure: which of reconstruction, generation, latent and interpolation.
        sentences: sentences of the split to reconstruct, chosen by the seed; 0 for all.
        generalise: partitions the model was not trained on to reconstruct, too; by default long, where the data has it.
        samples: texts to generate from the prior.
        scorer: causal, a language model, or autoencoder, which copies the sentence it scores: its numbers can be held
            against the published ones and say nothing about a language.
        scorer_steps: training steps of every scorer.
        latent_sentences: sentences for the diagnosis of the latent; 0 for all.
        importance_samples: samples of the latent for each of them.
        interpolations: pairs of sentences to interpolate between.
        interpolation_steps: points on each path, both ends included.
        seed: of the choice of sentences, the samples and the scorers.
    """

    split: Literal["validation", "test"] = "validation"
    measure: list[Part] = field(default_factory=lambda: list(PARTS))
    sentences: int = 2000
    generalise: list[str] = field(default_factory=lambda: ["long"])
    samples: int = 20_000
    scorer: Literal["causal", "autoencoder"] = "causal"
    scorer_steps: int = 600
    latent_sentences: int = 200
    importance_samples: int = 64
    interpolations: int = 50
    interpolation_steps: int = 7
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = [part for part in self.measure if part not in PARTS]
        if unknown or not self.measure:
            raise ValueError(f"measure is {self.measure}, wanted some of {', '.join(PARTS)}.")
        least = {
            "sentences": 0,
            "samples": 2,
            "scorer_steps": 1,
            "latent_sentences": 0,
            "importance_samples": 1,
            "interpolations": 1,
            "interpolation_steps": 2,
            "seed": 0,
        }
        for name, smallest in least.items():
            value = getattr(self, name)
            if value < smallest:
                raise ValueError(f"{name} is {value}, wanted at least {smallest}.")
        if self.seed > LARGEST_SEED:
            raise ValueError(f"seed is {self.seed}, wanted at most {LARGEST_SEED}.")
