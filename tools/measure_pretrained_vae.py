"""Measure the text VAEs of docs/results/pretrained-vae.md, which start from flan-T5-small.

python -m tools.measure_pretrained_vae --run runs/pretrained-any --name nvae --judge smollm2 --pairs pairs.tsv.gz

The parts of a cell, CELLS/NAME.json, are written one by one, and a part that is there is not measured again; `--parts`
names some. `--tables` prints the tables of the page instead, `--examples` the page of examples.
"""

import argparse
import gzip
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM

from open_nvib.evaluation.generation import distinct_shares
from open_nvib.evaluation.interpolation import interpolate_pairs
from open_nvib.evaluation.reconstruction import by_length, given_length, kept_by_kind, kept_share, vectors_kept
from open_nvib.evaluation.references import choose
from open_nvib.evaluation.scorers import open_judge
from open_nvib.merging import VectorRequest
from open_nvib.store.files import write_json
from open_nvib.text import load_run
from open_nvib.text.data import load_prepared
from open_nvib.text.model.decoding import Collator, detokenize, encode, make_batch, reconstruct_ids
from open_nvib.text.model.vector_count import choose_auto, find_fewest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "pretrained-vae.md"
CELLS = ROOT / "docs" / "results" / "pretrained-vae" / "measured"
SENTENCES, ELSEWHERE, SAMPLES, PAIRS, POINTS, EXAMPLES = 300, 150, 500, 100, 5, 10
COST_STEPS, COST_BATCH = 11, 16
SHARES, SHARE_ELSEWHERE = (1.0, 0.5, 0.25), 0.5
Ids = list[list[int]]


class Measurement:
    """A run, its test sentences, and a judge."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.run: Any = load_run(given.run)
        self.prepared = load_prepared(given.data or self.run.config.data)
        self.any_number = self.run.model.encoder.bottleneck.any_number
        self.texts, self.ids = self.of_partition(self.run.config.partition, given.sentences)

    def of_partition(self, partition: str, count: int) -> tuple[list[str], Ids]:
        rows = self.prepared.split(partition, "test")
        return choose(list(rows["text"]), count, 0), choose(list(rows["input_ids"]), count, 0)

    def of_texts(self, texts: Sequence[str], count: int) -> tuple[list[str], Ids]:
        """Choose texts of a length that training had."""
        low, high = self.run.trained_lengths
        texts = random.Random(0).sample(sorted(set(texts)), min(10 * count, len(set(texts))))
        usable, _ = self.run.tokenize_usable(texts)
        found = [(texts[index], ids) for index, ids in usable.items() if low <= len(ids) <= high][:count]
        return [text for text, _ in found], [ids for _, ids in found]

    def score(self, texts: list[str], ids: Ids, request: VectorRequest | None) -> dict[str, Any]:
        """Reconstruct texts, and compare them with the originals character by character."""
        from sacrebleu.metrics.bleu import BLEU

        started = time.process_time()
        found = detokenize(self.run.tokenizer, reconstruct_ids(self.run.model, ids, request=request))
        return {
            "sentences": len(texts),
            "tokens": statistics.mean(map(len, ids)),
            "exact": 100 * statistics.mean(a == b for a, b in zip(texts, found, strict=True)),
            "bleu": BLEU().corpus_score(found, [texts]).score,
            "seconds": time.process_time() - started,
            "examples": [list(pair) for pair in zip(texts[:EXAMPLES], found[:EXAMPLES], strict=True)],
        }

    def request(self, share: float) -> VectorRequest | None:
        return VectorRequest(share=share) if self.any_number else None

    def shares(self) -> dict[str, Any]:
        """Reconstruction of test sentences at several shares."""
        shares = self.given.shares if self.any_number else SHARES[:1]
        return {
            str(share) if self.any_number else "one": self.score(self.texts, self.ids, self.request(share))
            for share in shares
        }

    def chosen(self) -> dict[str, Any]:
        """Reconstruction with numbers of vectors that are chosen for each text."""
        if not self.any_number:
            return {}
        found = {}
        for name, choose_number in (("fewest", find_fewest), ("auto", choose_auto)):
            counts = choose_number(self.run.model, self.ids)
            share = kept_share(self.ids, counts.vectors.tolist())
            found[name] = {"share": share, **self.score(self.texts, self.ids, counts.request)}
        return found

    def elsewhere(self) -> dict[str, Any]:
        """Reconstruction of texts of other kinds than those of training."""
        with gzip.open(self.given.pairs, "rt", encoding="utf-8") as file:
            tatoeba = [line.split("\t")[0] for line in file]
        reviews = (Path(self.given.reviews) / "movieReviewSnippets_GroundTruth.txt").read_text(errors="replace")
        films = [line.split("\t")[2].strip() for line in reviews.splitlines() if line.count("\t") >= 2]
        count = self.given.elsewhere
        sources = {
            "51 to 100 tokens": self.of_partition("long", count),
            "film reviews": self.of_texts(films, count),
            "Tatoeba": self.of_texts(tatoeba, count),
        }
        request = self.request(SHARE_ELSEWHERE)
        return {name: self.score(texts, ids, request) for name, (texts, ids) in sources.items()}

    def judged(self, texts: list[str]) -> dict[str, Any]:
        return {
            "texts": len(texts),
            "words": statistics.mean(len(text.split()) for text in texts),
            "perplexity": self.perplexity(texts),
            "distinct": distinct_shares([text.split() for text in texts])[4],
            "beginnings": len({tuple(text.split()[:3]) for text in texts}) / len(texts),
            "examples": texts[:EXAMPLES],
        }

    @cached_property
    def judge(self) -> Any:
        return open_judge(self.given.judge)

    def perplexity(self, texts: list[str]) -> float | None:
        """Perplexity by word under the judge, whose matrices are multiplied in bfloat16."""
        with torch.autocast("cpu", torch.bfloat16):
            return self.judge.word_perplexity(texts)

    def samples(self) -> dict[str, Any]:
        """Samples from both priors, the learned one with several scales of noise, beside real test sentences."""
        count = self.given.samples
        rows = self.prepared.split(self.run.config.partition, "test")
        drawn = {"real": detokenize(self.run.tokenizer, choose(list(rows["input_ids"]), count, 1))}
        if self.run.config.model.pretrained is None:  # its tokenizer lowers case
            drawn["cased"] = choose(list(rows["text"]), count, 1)
        drawn["unit"] = self.run.sample(count, seed=0)
        if self.run.has_learned_prior:
            for scale in self.given.noise_scales:
                drawn[f"learned {scale:g}"] = self.run.sample(count, seed=0, prior="learned", noise_scale=scale)
        return {name: self.judged(texts) for name, texts in drawn.items()}

    def gates(self) -> dict[str, Any]:
        """The tokens of test sentences that have a vector of their own, where the model decides, and reconstruction.

        `sd` is the standard deviation of the number of vectors among sentences of one length, `r` its correlation with
        the sentence's surprisal under the judge, also at one length.
        """
        kept, texts = vectors_kept(self.run.model, self.ids), self.texts
        found = {"share": kept_share(self.ids, kept), **self.score(texts, self.ids, None)}
        if not self.run.model.encoder.bottleneck.decides:  # a control
            return found
        lengths = by_length(self.ids, kept)
        nats = [math.log(self.perplexity([text]) or 1.0) * len(text.split()) for text in texts]
        return {
            **found,
            "kinds": kept_by_kind(self.run, self.ids),
            "sd": sum(row.sd * row.sentences for row in lengths) / len(texts),
            "r": given_length(self.ids, kept, nats),
            "marked": [mark_kept(self.run, text) for text in self.ids[:EXAMPLES]],
        }

    def interpolation(self) -> dict[str, Any]:
        """Paths between pairs of test sentences."""
        texts = self.ids[: 2 * self.given.paths]
        paths = interpolate_pairs(self.run, list(zip(texts[::2], texts[1::2], strict=True)), POINTS)
        lines = [detokenize(self.run.tokenizer, path) for path in paths]
        ends, inner = (
            [line for path in lines for line in part(path)] for part in (lambda x: x[:: POINTS - 1], lambda x: x[1:-1])
        )
        return {
            "pairs": len(lines),
            "ends": self.perplexity(ends),
            "inner": self.perplexity(inner),
            "different": statistics.mean(len(set(path)) for path in lines),
            "examples": lines[:EXAMPLES],
        }

    def cost(self) -> dict[str, Any]:
        """A training step and its memory against plain fine-tuning of the same model, in turns."""
        plain = AutoModelForSeq2SeqLM.from_pretrained(self.given.pretrained, local_files_only=True, dropout_rate=0.0)
        plain.resize_token_embeddings(len(self.run.tokenizer), mean_resizing=False)
        plain.train()
        model, end = self.run.model.train(), plain.config.eos_token_id
        collator = Collator(plain.config.pad_token_id, end)

        def plain_loss(ids: Ids) -> Any:
            batch = collator([{"input_ids": text} for text in ids])
            whole = collator([{"input_ids": [*text, end]} for text in ids])  # its encoder reads the end, as ours does
            del whole["labels"]
            return plain(**whole, labels=batch["labels"]).loss

        losses = {"plain": plain_loss, "ours": lambda ids: model(**make_batch(model, ids), sample=True).loss}
        optimisers = {name: torch.optim.AdamW(x.parameters(), 1e-6) for name, x in (("plain", plain), ("ours", model))}
        times: dict[str, list[float]] = {name: [] for name in losses}
        saved: dict[str, list[int]] = {name: [] for name in losses}
        for first in range(0, COST_STEPS * COST_BATCH, COST_BATCH):
            for name, loss in losses.items():
                kept: dict[int, int] = {}

                def keep(x: torch.Tensor, kept: dict[int, int] = kept) -> torch.Tensor:
                    kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
                    return x

                started = time.process_time()
                with (
                    torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x),
                    torch.autocast("cpu", torch.bfloat16),
                ):
                    found = loss(self.ids[first : first + COST_BATCH])
                found.backward()
                optimisers[name].step()
                optimisers[name].zero_grad()
                times[name].append(time.process_time() - started)
                saved[name].append(sum(kept.values()))
        seconds = {name: statistics.median(values[1:]) for name, values in times.items()}
        held = {name: statistics.median(values) / 2**20 for name, values in saved.items()}
        return {
            "steps": COST_STEPS - 1,
            "sentences": COST_BATCH,
            **{f"seconds_{name}": value for name, value in seconds.items()},
            **{f"saved_mib_{name}": value for name, value in held.items()},
            "time": seconds["ours"] / seconds["plain"],
            "memory": held["ours"] / held["plain"],
        }


def mark_kept(run: Any, ids: list[int]) -> str:
    """Write a text with its kept tokens in brackets, neighbours in one pair."""
    kept = run.model.encoder.bottleneck.kept_vectors(encode(run.model, [ids]))[0].tolist()
    text, before, inside = "", "", False
    for end, is_kept in zip(range(1, len(ids) + 1), kept, strict=False):
        after = detokenize(run.tokenizer, [ids[:end]])[0]
        if after.endswith("\ufffd"):  # a part of a character
            continue
        piece, before = after[len(before) :], after
        space = piece[: len(piece) - len(piece.lstrip())]
        text += "]" * (inside and not is_kept) + space + "[" * (is_kept and not inside) + piece.lstrip()
        inside = is_kept
    return text + "]" * inside


PARTS: dict[str, Callable[[Measurement], dict[str, Any]]] = {
    part.__name__: part
    for part in (
        Measurement.shares,
        Measurement.chosen,
        Measurement.elsewhere,
        Measurement.samples,
        Measurement.interpolation,
        Measurement.cost,
        Measurement.gates,
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--name", default="nvae", help="of the cell")
    parser.add_argument("--data", type=Path, help="prepared data, if it was moved")
    parser.add_argument("--judge", default="smollm2")
    parser.add_argument("--pretrained", type=Path, default=Path("flan-t5"))
    parser.add_argument("--reviews", type=Path, default=Path("reviews"))
    parser.add_argument("--pairs", type=Path, default=Path("pairs.tsv.gz"))
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES)
    parser.add_argument("--sentences", type=int, default=SENTENCES)
    parser.add_argument("--elsewhere", type=int, default=ELSEWHERE, help="texts of each other source")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--noise_scales", nargs="+", type=float, default=[0.3], help="of the learned prior")
    parser.add_argument("--paths", type=int, default=PAIRS, help="interpolations")
    parser.add_argument("--cells", type=Path, default=CELLS)
    parser.add_argument("--tables", action="store_true", help="print the tables of the page, and stop")
    parser.add_argument("--examples", action="store_true", help="print the page of examples, and stop")
    given = parser.parse_args()
    if given.tables or given.examples:
        print("\n".join((tables if given.tables else examples)(given.cells)))
        return
    torch.set_num_threads(1)
    file = given.cells / f"{given.name}.json"
    cell = json.loads(file.read_text()) if file.exists() else {}
    measurement = Measurement(given)
    for part in given.parts:
        if part not in cell:
            cell[part] = rounded(PARTS[part](measurement))
            write_json(file, cell, indent=1)
            print(f"{file.name}: {part}", flush=True)


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


NAMES = {
    "nvae": "NVAE, any number",
    "nvae-1200": "NVAE after 1,200 steps",
    "nvae-1000": "NVAE, more texts",
    "vts": "pooled VTS, any number",
    "vtp": "VTP, one vector, 1,200 steps",
    "gates": "NVAE with gates, λ′_D = 20, 840 steps",
    "gates-5": "NVAE with gates, λ′_D = 5, 700 steps",
    "gates-slow": "NVAE with gates, contrast 1, 500 steps",
    "vts-fixed": "pooled VTS, one share, 840 steps",
    "small": "small NVAE, λ′_G = 0.1",
    "small-g0.001": "small NVAE, λ′_G = 0.001",
    "small-g0.01": "small NVAE, λ′_G = 0.01",
    "small-g1": "small NVAE, λ′_G = 1",
}
"""Cells and the names of their rows, in the order of the tables."""
SOURCES = {"real": "real text", "cased": "real text, cased", "unit": "unit prior"}
SHOWN = {
    "nvae": ("real", "unit", "learned 0.3"),
    "vts": ("unit", "learned 0.3"),
    "vtp": ("unit", "learned 0.3"),
    "gates": ("unit", "learned 0.3"),
    "small": ("real", "unit", "learned 0.3"),
}
"""Rows on the page of examples, and the priors of their samples."""
INTRODUCTION = (
    "The first ten of each kind, as they come, of the models of [the results](pretrained-vae.md). *Learned 0.3* is the",
    "fitted prior with its noise times 0.3. `python -m tools.measure_pretrained_vae --examples` writes this page.",
)


def tables(cells: Path = CELLS) -> list[str]:
    """Write the tables and the examples of the page."""
    found = {
        name: json.loads((cells / f"{name}.json").read_text()) for name in NAMES if (cells / f"{name}.json").exists()
    }
    lines: list[str] = []

    def add(part: str, columns: Sequence[str], values: Callable[[dict[str, Any]], list[str]]) -> None:
        rows = {name: cell[part] for name, cell in found.items() if cell.get(part)}
        lines.extend(["", f"| model | {' | '.join(columns)} |", f"|---|{'--:|' * len(columns)}"])
        lines.extend(f"| {NAMES[name]} | {' | '.join(values(row))} |" for name, row in rows.items())

    def scores(row: dict[str, Any], *keys: str) -> list[str]:
        return [f"{row[key]['exact']:.1f} ({row[key]['bleu']:.1f})" if key in row else "" for key in keys]

    def shares(row: dict[str, Any]) -> list[str]:
        return [str(next(iter(row.values()))["sentences"]), *scores(row, *map(str, SHARES), "one")]

    def chosen(row: dict[str, Any]) -> list[str]:
        found = [f"{row[key]['exact']:.1f} at {row[key]['share']:.3f}" for key in ("fewest", "auto")]
        return [str(row["auto"]["sentences"]), *found]

    add("shares", ["sentences", *(f"share {share:g}" for share in SHARES), "one vector"], shares)
    add("chosen", ["sentences", "fewest", "auto"], chosen)
    places = ("51 to 100 tokens", "film reviews", "Tatoeba")
    add("elsewhere", ["texts of each", *places], lambda row: [str(row[places[0]]["sentences"]), *scores(row, *places)])

    lines.extend(
        ["", "| model | texts | number | words | perplexity by word | distinct 4-grams, % | distinct beginnings, % |"]
    )
    lines.append(f"|---|---|{'--:|' * 5}")
    for name, cell in found.items():
        for source, row in cell.get("samples", {}).items():
            repeated = name in ("vts", "vtp") or name.startswith("small-")  # the same real sentences as in another row
            if source in ("real", "cased") and repeated:
                continue
            numbers = f"{row['texts']} | {row['words']:.1f} | {row['perplexity']:,.0f} | {100 * row['distinct']:.1f}"
            numbers += f" | {100 * row['beginnings']:.1f}"
            lines.append(f"| {NAMES[name]} | {SOURCES.get(source, source)} | {numbers} |")
    add(
        "interpolation",
        ["pairs", "ends", "inner points", "different of five"],
        lambda row: [str(row["pairs"]), f"{row['ends']:,.0f}", f"{row['inner']:,.0f}", f"{row['different']:.2f}"],
    )
    add(
        "cost",
        ["sentences in a step", "seconds, plain", "seconds, VAE", "ratio", "memory, MiB, plain", "MiB, VAE", "ratio"],
        lambda row: [
            str(row["sentences"]),
            *(f"{row[key]:.2f}" for key in ("seconds_plain", "seconds_ours", "time")),
            *(f"{row[key]:.0f}" for key in ("saved_mib_plain", "saved_mib_ours")),
            f"{row['memory']:.2f}",
        ],
    )
    kinds = ("content", "number", "piece", "function", "punctuation")
    add(
        "gates",
        ["sentences", "vectors per token", "exact (BLEU)", "sd", "r", *(f"{kind} kept, %" for kind in kinds)],
        lambda row: [
            *(str(row["sentences"]), f"{row['share']:.3f}", *scores({"": row}, "")),
            *(f"{row[key]:.2f}" if key in row else "" for key in ("sd", "r")),
            *(f"{100 * row['kinds'][kind]:.0f}" if "kinds" in row else "" for kind in kinds),
        ],
    )
    return lines


def examples(cells: Path = CELLS) -> list[str]:
    """Write the page of the first examples of each kind, as they come."""
    found = {name: json.loads((cells / f"{name}.json").read_text()) for name in SHOWN}
    lines = ["# Examples of the VAEs around flan-T5", "", *INTRODUCTION, "", "## Reconstructions"]
    for name, cell in found.items():
        for share, row in cell.get("shares", {}).items():
            wrong = [(text, back) for text, back in row["examples"] if text != back]
            number = "one vector" if share == "one" else f"share {share}"
            lines += ["", f"**{NAMES[name]}, {number}**: {EXAMPLES - len(wrong)} of {EXAMPLES} come back exactly."]
            lines += [""] * bool(wrong) + [f"- {text} → **{back}**" for text, back in wrong]
    kept = json.loads((cells / "gates-5.json").read_text())["gates"]["marked"]
    lines += ["", "## Kept tokens", "", f"{NAMES['gates-5']}: tokens in brackets have a vector.", ""]
    lines += [f"- {text}".replace("[", r"\[").replace("]", r"\]") for text in kept]  # brackets, not links
    lines += ["", "## Samples"]
    for name, cell in found.items():
        for prior in SHOWN[name]:
            lines += ["", f"**{NAMES[name]}, {SOURCES.get(prior, prior)}**:", ""]
            lines += [f"- {text}" for text in cell["samples"][prior]["examples"]]
    lines += ["", "## Interpolations", "", "A path begins and ends with the reconstructions of two texts."]
    for name, cell in found.items():
        for index, path in enumerate(cell["interpolation"]["examples"]):
            lines += ["", f"**{NAMES[name]}, path {index + 1}**:", ""]
            lines += [f"{i + 1}. {text}" for i, text in enumerate(path)]
    return lines


if __name__ == "__main__":
    main()
