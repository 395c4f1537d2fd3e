"""python examples/tune.py MODEL pairs.tsv --output tuned: search the dials of a model with forward passes, by Optuna.

MODEL is a folder or a hub name of an encoder-decoder, such as opus-mt-zh-en; pairs.tsv has a source, a tab and its
translation on each line. The first half of the pairs calibrates and scores the trials; the second half compares the
best trial with the original, in which all dials are off.
"""

import argparse
import math
from pathlib import Path

import optuna
import sacrebleu
import torch

from open_nvib.pretrained import convert, open_model
from open_nvib.pretrained.convert import encode_texts, generate_greedily

BATCH, LONGEST = 16, 128  # texts at a time, tokens of a translation


@torch.no_grad()
def score(model, tokenizer, pairs: list[list[str]]) -> float:
    """chrF of greedy translations."""
    found = []
    for first in range(0, len(pairs), BATCH):
        batch = encode_texts(model, tokenizer, [source for source, _ in pairs[first : first + BATCH]])
        found += tokenizer.batch_decode(generate_greedily(model, batch, LONGEST), skip_special_tokens=True)
    return sacrebleu.corpus_chrf(found, [[target for _, target in pairs]]).score


def set_dials(model, dials: dict[str, float]) -> None:
    for section in model.config.quantization_config.sections:
        alpha, sigma = dials.get(f"{section} tau_alpha", math.inf), dials.get(f"{section} tau_sigma", 0.0)
        model.set_tau(alpha=alpha, sigma=sigma, where=(section,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--output", type=Path, required=True, help="folder of the tuned model")
    parser.add_argument("--trials", type=int, default=20)
    arguments = parser.parse_args()
    if arguments.output.exists():
        parser.error(f"{arguments.output} exists already. Give another --output.")
    pairs = [line.split("\t") for line in arguments.pairs.read_text(encoding="utf-8").splitlines()]
    chosen_on, tested_on = pairs[::2], pairs[1::2]
    model, tokenizer = open_model(arguments.model)
    model = convert(model, [source for source, _ in chosen_on], tokenizer=tokenizer)

    def objective(trial: optuna.Trial) -> float:
        dials = {}
        for section in model.config.quantization_config.sections:
            dials[f"{section} tau_alpha"] = trial.suggest_float(f"{section} tau_alpha", 0.0, 10.0)
            dials[f"{section} tau_sigma"] = trial.suggest_float(f"{section} tau_sigma", 0.0, 0.5)
        set_dials(model, dials)
        return score(model, tokenizer, chosen_on)

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=arguments.trials)
    for name, dials in (("original", {}), ("tuned", study.best_params)):
        set_dials(model, dials)
        print(f"{name}: chrF {score(model, tokenizer, tested_on):.2f} {dials}")
    model.save_pretrained(arguments.output)
    tokenizer.save_pretrained(arguments.output)


if __name__ == "__main__":
    main()
