"""Results of cells made on the spot: whole, with numbers that are told apart."""

import json
from pathlib import Path
from typing import Any

from open_nvib.report import Plan, RowPlan
from open_nvib.store.evaluations import Evaluation
from open_nvib.store.files import from_builtins

CONFIGS: dict[str, dict[str, Any]] = {
    "t": {"model": {"bottleneck": "t"}, "loss": {}},
    "vt": {"model": {"bottleneck": "vt"}, "loss": {"lambda_g": 1e-4}},
    "vtp-mean": {"model": {"bottleneck": "vtp", "pooling": "mean"}, "loss": {"lambda_g": 1e-4}},
    "vts-0.5": {"model": {"bottleneck": "vts", "stride": 0.5}, "loss": {"lambda_g": 1e-4}},
    "nvae-0.01": {"model": {"bottleneck": "nvae"}, "loss": {"lambda_g": 0.01, "lambda_d": 1.0, "delta": 0.3}},
    "nvae-1": {"model": {"bottleneck": "nvae"}, "loss": {"lambda_g": 1.0, "lambda_d": 1.0, "delta": 0.3}},
}


def make_reconstruction(bleu: float, kept: float, *, low: int, high: int) -> dict[str, Any]:
    lengths = range(low, high + 1)
    rows = [{"length": n, "sentences": 100 - n, "kept": kept * n + 0.13 * (n % 3), "sd": 0.7} for n in lengths]
    pairs = [
        {"text": f"the {word} was opened in 1923 .", "reconstruction": f"the {word} was closed in 1923 ."}
        for word in ("museum", "river", "<b>bridge</b>", "a | b", "school", "*old* `mill`", "tower")
    ]
    return {
        "sentences": sum(row["sentences"] for row in rows),
        "bleu": bleu,
        "signature": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0",
        "perplexity": 1 + (100 - bleu) / 7,
        "cross_entropy": 0.31,
        "exact": bleu / 137,
        "kept": kept,
        "by_length": rows,
        "examples": pairs,
    }


def make_generation(forward: float, reverse: float) -> dict[str, Any]:
    counts = [0, 0, 3, 11, 29, 53, 71, 83, 97, 89, 61, 41, 31, 23, 17, 13, 11, 7, 5, 3, 2]
    return {
        "samples": 1009,
        "forward_perplexity": forward,
        "reverse_perplexity": reverse,
        "distinct": {"1": 0.043, "2": 0.317, "3": 0.613, "4": 0.797},
        "self_bleu": 23.9,
        "copied": 0.0017,
        "empty": 0.0005,
        "lengths": counts[3:] + counts[:3],
        "examples": [f"in {year} , the <i>second</i> river and the game of the time ." for year in range(1901, 1911)],
        "real": {
            "forward_perplexity": 83.0,
            "reverse_perplexity": 131.0,
            "distinct": {"1": 0.047, "2": 0.331, "3": 0.643, "4": 0.811},
            "self_bleu": 19.7,
            "lengths": counts,
        },
    }


def make_number(bleu: float) -> dict[str, Any]:
    """One model with several numbers of vectors."""
    shares = [{"share": share, "kept": share, "bleu": bleu * share, "exact": 0.9 * share} for share in (1.0, 0.5, 0.25)]
    fewest = {"kept": 0.29, "vectors": 3.7, "bleu": bleu, "exact": 0.97, "sd": 1.3}
    auto = {"kept": 0.37, "vectors": 4.3, "bleu": bleu - 2, "exact": 0.83}
    texts = [{"text": "the sea .", "tokens": 17, "vectors": 1}, {"text": "<b> kiwis", "tokens": 17, "vectors": 11}]
    return {"sentences": 503, "shares": shares, "fewest": fewest, "auto": auto, "examples": texts}


def make_record(
    row: str, *, bleu: float = 61.0, kept: float = 0.47, forward: float = 107.0, reverse: float = 211.0
) -> dict[str, Any]:
    """A whole evaluation of a row; T has no generation and no latent."""
    config = CONFIGS.get(row, CONFIGS["nvae-0.01"])
    record: dict[str, Any] = {
        "settings": {"split": "validation", "scorer": "causal", "samples": 1009, "sentences": 503},
        "config": {
            **config,
            "data": "data/enwik8",
            "partition": "short",
            "optimiser": {"steps": 907, "batch_size": 64},
        },
        "recipe": {"source": {"source": "enwik8"}, "config": {"partitions": {"short": [5, 20], "long": [21, 50]}}},
        "seed": 0,
        "versions": {"open_nvib": "0.1.0", "torch": "2.13.0", "python": "3.11.9"},
        "reconstruction": {
            "short": make_reconstruction(bleu, kept, low=5, high=20),
            "long": make_reconstruction(bleu / 2, kept, low=21, high=50),
        },
    }
    if row == "t":
        return record
    dirichlet = row.startswith("nvae")
    return record | {
        "generation": make_generation(forward, reverse),
        "latent": {
            "kl_dirichlet": 2.3 if dirichlet else 0.0,
            "kl_gaussian": 179.0,
            "kl_dirichlet_scaled": 0.19,
            "kl_gaussian_scaled": 0.113,
            "alpha0": 7.9 if dirichlet else None,
            "active_units": 101,
            "units": 128,
            "mutual_information": 5.3,
            "importance_nll": 59.0,
            "importance_perplexity": 71.0,
            "elbo": -67.0,
        },
        "interpolation": {
            "pairs": 50,
            "steps": 5,
            "perplexity": [forward, forward * 1.3, forward * 1.7, forward * 1.3, forward],
            "smoothness": 0.41,
            "smoothness_sd": 0.07,
            "examples": [[f"{place} , point {step} of the path ." for step in range(5)] for place in ("rome", "oslo")],
        },
    }


def make_evaluation(row: str = "nvae-0.01", **parts: Any) -> Evaluation:
    """The record as it is read, with some of its parts replaced."""
    return from_builtins(make_record(row) | parts, Evaluation)


def make_cell(row: str, seed: int, **values: float) -> dict[str, Any]:
    return {
        "row": row,
        "seed": seed,
        "label": row,
        "paper": row,
        "train": {"step": 907, "validation": {"bleu": values.get("bleu", 61.0)}},
        "seconds": {"train": 401.0 + seed, "evaluate": 211.0},
        "evaluations": {"validation-causal": make_record(row, **values)},
    }


def write_cell(folder: Path, content: dict[str, Any]) -> Path:
    """As an experiment writes it."""
    path = folder / content["row"] / f"seed-{content['seed']}" / "result.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content))
    return path


def make_plan(**seeds: list[int]) -> Plan:
    """Rows by name with their seeds, underscores for hyphens and a point: nvae_0p01=[0, 1]."""
    names = {name.replace("_", "-").replace("0p", "0."): given for name, given in seeds.items()}
    rows = tuple(RowPlan(name, tuple(given), paper=name) for name, given in names.items())
    return Plan("table", "The table at a small scale", "small", rows)
