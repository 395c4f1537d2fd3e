"""Train and measure the models of docs/results/gates.md: gates, and controls that choose vectors in other ways.

python -m tools.measure_gates --data data/enwik8 --rows gates-0.55 random-0.46 --seeds 0 1 2 --runs RUNS

A row is NAME-NUMBER. Gates of a share: `gates-0.4`; with another λ′_G, λ′_D or without pooling: `gates-0.4-g0.1`,
`gates-0.4-d5`, `unpooled-0.5`; with λ′_D ramped from 1 to 10: `gates-0.4-d1to10`; with bounded queries:
`gates-0.4-bound`. The paper's ReLU at a λ′_G, trained as in experiments/table.yaml: `relu-0.1`, `relu-0.1-bound`.
Controls, trained with the same steps, learning rate, λ′_G and pooling:
  random-0.46     which tokens get a vector is drawn anew each time
  frequency-0.46  the most frequent tokens of the training data get none
  l0drop-0.1      the same gates on Gaussian vectors without a Dirichlet process (VT), at that price of an open gate;
                  l0drop-0.1-ramp: the price rises from 0 once copying is learned
  strides-0.46    pooled VTS: a vector at even distances
A cell, CELLS/ROW-SEED.json, that is there is not measured again. `--tables` prints the tables of the page instead.
"""

import argparse
import json
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from open_nvib.evaluation.reconstruction import by_length, given_length, kept_by_kind, kept_share, vectors_kept
from open_nvib.evaluation.scorers import train_scorer
from open_nvib.gates import noiseless_gates, open_probability, pool_dropped, sample_gates
from open_nvib.process import KL, ImpulseMixture
from open_nvib.store.files import read_mapping, write_json
from open_nvib.store.settings import Schedule, TrainConfig, settings_of
from open_nvib.text import load_run, train
from open_nvib.text.data import load_prepared
from open_nvib.text.data.tokenizer import token_names
from open_nvib.text.model import autoencoder, bottlenecks
from open_nvib.text.model.decoding import encode_batches, reading, reconstruct_ids, score_reconstruction
from open_nvib.text.model.vector_count import find_fewest, make_request
from tools.cells import line, mean, rounded

ROOT = Path(__file__).parents[1]
CELLS = ROOT / "docs" / "results" / "gates" / "measured"
CONFIG = ROOT / "configs" / "small" / "nvae.yaml"
SENTENCES, LONG_SENTENCES, SEARCHED, SCORER_STEPS = 1000, 300, 300, 1500
FIXED_LOGIT = 40.0
"""Logit of a gate that is surely open, or closed if negative."""
LAMBDA_D = 20.0
"""λ′_D of a row that does not say another."""
RAMP = (1500, 4000)
"""Steps between which λ′_D, or a price, is ramped."""
DIALS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


class ChosenGates(bottlenecks.NVIBBottleneck):
    """Gates that are not learned: a rule says which tokens get a vector."""

    share, frequent = 0.5, torch.zeros(0).bool()
    token_ids: Tensor

    def explore(self, hidden: Tensor, mask: Tensor, request: Any = None) -> Any:
        return self(hidden, mask, request)

    def forward(self, hidden: Tensor, mask: Tensor, request: Any = None) -> Any:
        is_open = ~self.frequent[self.token_ids] if len(self.frequent) else torch.rand(mask.shape) < self.share
        is_open[:, 0] |= ~(is_open & mask).any(-1)  # a text without any vector says nothing
        logits = torch.where(is_open, FIXED_LOGIT, -FIXED_LOGIT)
        self.nvib._scores = lambda hidden, gate_shift: logits  # pyright: ignore[reportAttributeAccessIssue]
        return self.nvib(hidden, mask)


@dataclass(frozen=True, eq=False)
class GatedVectors(bottlenecks.VectorLatent):
    """Gaussian vectors, each with a gate, and the expected number of open gates."""

    log_gate: Tensor
    expected: Tensor

    def mean(self) -> ImpulseMixture:
        return self._gated(super().mean())

    points = mean

    def sample(self, generator: torch.Generator | None = None) -> ImpulseMixture:
        return self._gated(super().sample(generator))

    def _gated(self, mixture: ImpulseMixture) -> ImpulseMixture:
        return replace(mixture, log_pi=mixture.log_pi + self.log_gate)

    def kl(self) -> KL:
        return KL(dirichlet=self.expected, gaussian=super().kl().gaussian)


class L0Drop(bottlenecks.GaussianBottleneck):
    """VT with hard concrete gates and a price for each open one (Zhang, Titov and Sennrich, 2021)."""

    can_drop = True

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.to_gate = torch.nn.Linear(config.d_model, 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "to_gate"):
            torch.nn.init.normal_(self.to_gate.weight, std=0.02)
            torch.nn.init.zeros_(self.to_gate.bias)

    def explore(self, hidden: Tensor, mask: Tensor, request: Any = None) -> Any:
        return self(hidden, mask, request, draw=sample_gates)

    def forward(self, hidden: Tensor, mask: Tensor, request: Any = None, draw: Any = noiseless_gates) -> Any:
        logits = self.to_gate(hidden).squeeze(-1).float()
        gates = draw(logits).masked_fill(~mask, 0.0)
        latent = super().forward(pool_dropped(gates, hidden, mask), mask, request)
        is_open = gates > 0
        is_open[:, 0] |= ~is_open.any(-1)  # without the prior's component, a text needs a vector
        log_gate = torch.where(gates > 0, gates, 1.0).log()
        values = {name: getattr(latent, name) for name in ("mu", "log_sigma", "lengths", "d")}
        expected = open_probability(logits).masked_fill(~mask, 0.0).sum(-1)
        return GatedVectors(**values, mask=is_open, log_gate=log_gate, expected=expected)


def configure(row: str, config: TrainConfig, prepared: Any) -> TrainConfig:
    """Return the configuration of a row, and install the bottleneck of a control."""
    name, number, *more = row.split("-")
    value, model, loss = float(number), config.model, replace(config.loss, lambda_d=LAMBDA_D)
    model = replace(model, bound_queries="bound" in more)
    bottlenecks.BOTTLENECKS["nvae"] = bottlenecks.NVIBBottleneck
    if name in ("gates", "unpooled"):
        model = replace(model, gate_share=value, gate_pooling=name == "gates")
        for each in set(more) - {"bound"}:
            low, ramped, high = each[1:].partition("to")
            weight = Schedule(float(low), float(high), from_step=RAMP[0], to_step=RAMP[1]) if ramped else float(low)
            loss = replace(loss, **{f"lambda_{each[0]}": weight})
    elif name == "relu":
        model = replace(model, alpha_activation="relu", gate_share=0.5)
        loss = replace(loss, lambda_g=value, lambda_d=1.0, delta=0.3)
        config = replace(config, optimiser=replace(config.optimiser, learning_rate=1e-3, decay_share=0.5))
    elif name == "strides":
        model = replace(
            model, bottleneck="vts", stride=1 - value, stride_pooling=True, alpha_activation="relu", gate_share=0.5
        )
        loss = replace(loss, lambda_d=1.0, delta=1.0)
    elif name == "l0drop":
        bottlenecks.BOTTLENECKS["nvae"] = L0Drop  # pyright: ignore[reportArgumentType]
        price = Schedule(0.0, value, from_step=RAMP[0], to_step=RAMP[1]) if "ramp" in more else value
        loss = replace(loss, lambda_d=price)
    else:
        ChosenGates.share, ChosenGates.frequent = value, torch.zeros(0).bool()
        if name == "frequency":
            ChosenGates.frequent = most_frequent(prepared, 1 - value)
        bottlenecks.BOTTLENECKS["nvae"] = ChosenGates
        model = replace(model, gate_share=value)
    return replace(config, model=model, loss=loss)


def most_frequent(prepared: Any, share: float) -> Tensor:
    """Find the most frequent tokens that together are a share of the training data."""
    counts = Counter(index for text in prepared.split("short", "train")["input_ids"] for index in text)
    total, seen, found = sum(counts.values()), 0, torch.zeros(len(prepared.tokenizer)).bool()
    for index, count in counts.most_common():
        if seen + count / 2 > share * total:
            break
        seen, found[index] = seen + count, True
    return found


def measure(run: Any, prepared: Any, surprisal: list[list[float]]) -> dict[str, Any]:
    """Measure a trained model on test sentences; `surprisal` is that of their tokens."""
    model, tokenizer = run.model, run.tokenizer
    texts = list(prepared.split("short", "test")["input_ids"])[:SENTENCES]
    bottleneck = model.encoder.bottleneck
    cell: dict[str, Any] = {}
    for what in ("mean", "points", "sample"):
        torch.manual_seed(0)
        if what == "sample":
            decoded = reconstruct_ids(model, texts, seed=0)
        else:
            with reading(model, what):
                decoded = reconstruct_ids(model, texts)
        scores, _ = score_reconstruction(texts, decoded, tokenizer)
        cell |= {f"bleu_{what}": scores["bleu"], f"exact_{what}": scores["exact"]}
    torch.manual_seed(0)
    long = list(prepared.split("long", "test")["input_ids"])[:LONG_SENTENCES]
    cell["bleu_long"] = score_reconstruction(long, reconstruct_ids(model, long), tokenizer)[0]["bleu"]
    kept = vectors_kept(model, texts)
    lengths = [row for row in by_length(texts, kept) if row.sentences > 5]
    cell["kept"] = kept_share(texts, kept)
    cell["sd_at_one_length"] = sum(row.sd * row.sentences for row in lengths) / sum(row.sentences for row in lengths)
    cell["correlation_with_surprisal"] = given_length(texts, kept, [sum(nats) for nats in surprisal]) or 0.0
    if bottleneck.can_drop:
        cell["kept_by_kind"] = kept_by_kind(run, texts)
        cell["kept_by_surprisal"] = kept_by_surprisal(run, texts, surprisal)
    if bottleneck.decides and not isinstance(bottleneck, ChosenGates):  # a rule takes no other number
        fewest = find_fewest(run.model, texts[:SEARCHED]).vectors.tolist()
        cell["correlation_with_fewest"] = given_length(texts[:SEARCHED], kept[:SEARCHED], fewest) or 0.0
        cell["dial"] = {str(share): at_share(run, texts[:500], share) for share in DIALS}
        cell["examples"] = [show(run, text) for text in texts[:12]]
    return cell


def at_share(run: Any, texts: list[list[int]], share: float) -> dict[str, float]:
    """Measure one model with another number of open gates."""
    request = make_request(run.model, texts, share=share)
    decoded = reconstruct_ids(run.model, texts, request=request)
    kept = kept_share(texts, vectors_kept(run.model, texts, request))
    return {"kept": kept, "bleu": score_reconstruction(texts, decoded, run.tokenizer)[0]["bleu"]}


def show(run: Any, text: list[int]) -> str:
    """Write a text with brackets around the tokens without a vector of their own."""
    ((_, latent),) = encode_batches(run.model, [text])
    kept = run.model.encoder.bottleneck.kept_vectors(latent)[0].tolist()
    pairs = zip(token_names(run.tokenizer, text), kept, strict=False)
    return " ".join(token if is_kept else f"[{token}]" for token, is_kept in pairs)


def kept_by_surprisal(run: Any, texts: list[list[int]], surprisal: list[list[float]]) -> list[float]:
    """Compute the share of tokens with a vector in each quarter of the tokens, from the least surprising on."""
    flags: list[list[bool]] = [[]] * len(texts)
    for indices, latent in encode_batches(run.model, texts):
        for index, row in zip(indices, run.model.encoder.bottleneck.kept_vectors(latent).tolist(), strict=True):
            flags[index] = row[: len(texts[index])]
    kept = torch.tensor([flag for row in flags for flag in row]).double()
    nats = torch.tensor([x for row, text in zip(surprisal, texts, strict=True) for x in row[: len(text)]])
    return [quarter.mean().item() for quarter in kept[nats.argsort(stable=True)].tensor_split(4)]


@torch.no_grad()
def surprisal_of(config: Any, prepared: Any, file: Path) -> list[list[float]]:
    """Compute −log p of each token and of the end of the test sentences, by a language model of training sentences."""
    if not file.exists():
        texts = list(prepared.split("short", "test")["input_ids"])[:SENTENCES]
        training = list(prepared.split("short", "train")["input_ids"])
        with torch.enable_grad():
            scorer = train_scorer("causal", config, training, steps=SCORER_STEPS, seed=0, say=print)
        found = []
        for text in texts:
            seen, said = [scorer.start, *text], [*text, config.eos_token_id]
            log_p = scorer.model(input_ids=torch.tensor([seen])).logits[0].log_softmax(-1)
            found.append((-log_p[range(len(said)), said]).tolist())
        write_json(file, found)
    return json.loads(file.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data/enwik8"))
    parser.add_argument("--rows", nargs="+", default=[])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=None, help="in place of those of the configuration")
    parser.add_argument("--precision", default="bf16", choices=("bf16", "float32"))
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--cells", type=Path, default=CELLS)
    parser.add_argument("--tables", action="store_true")
    given = parser.parse_args()
    if given.tables:
        print("\n".join(tables(given.cells)))
        return
    torch.set_num_threads(1)
    prepared = load_prepared(given.data)
    remember_token_ids()
    for seed in given.seeds:
        for row in given.rows:
            name = f"{row}-{seed}" if given.steps is None else f"{row}-{given.steps}-{seed}"
            file = given.cells / f"{name}.json"
            if file.exists():
                continue
            plain: TrainConfig = settings_of(TrainConfig, read_mapping(CONFIG), where=str(CONFIG))
            config = replace(configure(row, plain, prepared), data=str(given.data), seed=seed)
            steps = given.steps or config.optimiser.steps
            optimiser = replace(config.optimiser, precision=given.precision, steps=steps)
            config = replace(config, optimiser=optimiser)
            train(config, given.runs / name)
            run = load_run(given.runs / name)
            surprisal = surprisal_of(run.model.config, prepared, given.runs / "token_surprisal.json")
            cell = {"row": row, "seed": seed, "steps": optimiser.steps, **measure(run, prepared, surprisal)}
            write_json(file, rounded(cell), indent=1)
            print(file.name, {key: value for key, value in rounded(cell).items() if key not in ("examples", "dial")})


COLUMNS = {
    "ν": ("kept", 1, 3),
    "BLEU": ("bleu_mean", 1, 1),
    "points": ("bleu_points", 1, 1),
    "sample": ("bleu_sample", 1, 1),
    "exact, %": ("exact_mean", 100, 1),
    "long": ("bleu_long", 1, 1),
    "sd": ("sd_at_one_length", 1, 2),
    "r": ("correlation_with_surprisal", 1, 2),
}
"""Heading to the field of a cell, a factor and the number of decimals."""
KINDS = ("content", "number", "piece", "function", "punctuation")


def tables(cells: Path) -> list[str]:
    """Write the tables of the page: scores, what is kept of each kind of token, and the dial."""
    rows: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for file in sorted(cells.glob("*.json")):
        cell = json.loads(file.read_text())
        rows[cell["row"]].append(cell)
    found: list[str] = []

    def head(*columns: object) -> None:
        found.extend(["", line("row", *columns), line("---", *["--:"] * len(columns))])

    head("seeds", *COLUMNS)
    for name, group in rows.items():
        values = [mean([cell[key] * factor for cell in group], digits) for key, factor, digits in COLUMNS.values()]
        found.append(line(name, len(group), *values))
    head("ν", *KINDS)
    for name, group in rows.items():
        if all("kept_by_kind" in cell for cell in group):
            kinds = [mean([cell["kept_by_kind"][kind] for cell in group], 2) for kind in KINDS]
            found.append(line(name, mean([cell["kept"] for cell in group], 3), *kinds))
    head("seeds", "first quarter", "second", "third", "last", "r, fewest")
    for name, group in rows.items():
        group = [cell for cell in group if "correlation_with_fewest" in cell]  # older cells do not have it
        if group:
            values = [[*cell["kept_by_surprisal"], cell["correlation_with_fewest"]] for cell in group]
            found.append(line(name, len(group), *(mean(each, 2) for each in zip(*values, strict=True))))
    head(*DIALS)
    for name, group in rows.items():
        if name.startswith(("gates", "unpooled")) and all("dial" in cell for cell in group):
            found.append(line(name, *(mean([cell["dial"][str(x)]["bleu"] for cell in group], 1) for x in DIALS)))
    return found[1:]


def remember_token_ids() -> None:
    """Let the bottleneck of a control see the tokens."""
    posterior = autoencoder.TextEncoder.posterior

    def remembering(self: Any, input_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
        self.bottleneck.token_ids = input_ids
        return posterior(self, input_ids, *args, **kwargs)

    autoencoder.TextEncoder.posterior = remembering


if __name__ == "__main__":
    main()
