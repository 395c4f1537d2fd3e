"""How many vectors a text needs, predicted from outside: by a regression on its mean hidden state and its length.

python -m tools.measure_predictor RUN [RUN ...] --output docs/results/number/predictor.json

The regression is fitted on training sentences, its ridge is chosen on validation sentences, and an offset makes the
mean ν on test sentences that of `auto`: the two are compared by how many of them are exact then.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from open_nvib.evaluation.reconstruction import given_length
from open_nvib.merging import VectorRequest
from open_nvib.text import Run, load_prepared, load_run
from open_nvib.text.model.decoding import BATCH, Texts, in_batches, make_batch, reconstruct_ids
from open_nvib.text.model.vector_count import choose_auto, find_fewest
from tools.cells import measure_runs

COUNTS = {"train": 4000, "validation": 1000, "test": 1000}
RIDGES = (1.0, 10.0, 100.0, 1000.0)


@torch.no_grad()
def features_of(run: Run, texts: Texts) -> np.ndarray:
    """Return the mean hidden state of each text, its length, its square, and a constant."""
    order, rows = [], []
    for indices, part in in_batches(texts, BATCH, len, None):
        inputs = make_batch(run.model, part)
        mask = inputs["attention_mask"].bool()
        hidden = run.model.encoder.hidden_states(inputs["input_ids"], mask)
        rows.append((hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True))
        order += indices
    pooled = torch.cat(rows)[torch.tensor(order).argsort()].double().numpy()
    lengths = np.array([[len(text)] for text in texts], dtype=float)
    return np.concatenate([pooled, lengths, lengths**2 / 20, np.ones_like(lengths)], 1)


def fit(x: np.ndarray, y: np.ndarray, ridge: float) -> np.ndarray:
    return np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T @ y)


def measure(path: Path) -> dict[str, Any]:
    """Compare the predicted number with the one that two looks decide, of a model for any number of vectors."""
    run = load_run(path)
    data = load_prepared(run.config.data)
    parts = {
        name: [list(t) for t in data.split(run.config.partition, name)["input_ids"][:n]] for name, n in COUNTS.items()
    }
    x = {name: features_of(run, texts) for name, texts in parts.items()}
    needed = {name: find_fewest(run.model, texts).vectors.numpy().astype(float) for name, texts in parts.items()}
    fits = [fit(x["train"], needed["train"], ridge) for ridge in RIDGES]
    best = min(fits, key=lambda w: float(np.square(x["validation"] @ w - needed["validation"]).mean()))
    texts, lengths = parts["test"], np.array([len(text) for text in parts["test"]])
    decided = choose_auto(run.model, texts).vectors.numpy()
    wanted = float((decided / lengths).mean())

    def number(offset: float) -> np.ndarray:
        return np.clip(np.rint(x["test"] @ best + offset), 1, lengths).astype(int)

    offset = min(np.linspace(-2, 6, 801), key=lambda value: abs(float((number(value) / lengths).mean()) - wanted))
    predicted = number(float(offset))

    def word_for_word(vectors: np.ndarray) -> float:
        decoded = reconstruct_ids(run.model, texts, request=VectorRequest(torch.as_tensor(vectors)))
        return float(np.mean([copy == text for copy, text in zip(decoded, texts, strict=True)]))

    return {
        "predicted": {
            "kept": float((predicted / lengths).mean()),
            "exact": word_for_word(predicted),
            "correlation": given_length(texts, predicted.tolist(), needed["test"].tolist()),
        },
        "decided": {"kept": wanted, "exact": word_for_word(decided)},
    }


if __name__ == "__main__":
    measure_runs(measure, __doc__)
