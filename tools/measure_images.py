"""Train and measure the models of docs/results/images.md, around those of examples/images.py.

python -m tools.measure_images DATA --rows any gates vt-any --seeds 0 --runs RUNS

DATA is the folder of mnist_train.csv and mnist_test.csv. A cell, docs/results/images/measured/ROW-SEED.json, is
not measured again if it is there. A model in RUNS is not trained again. The tables of the page are written anew.
"""

import argparse
import importlib.util
import json
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor, nn

import open_nvib as nv
from open_nvib.store.files import write_json
from open_nvib.text.drawing import PINK, save_figure
from tools.cells import line, mean, rounded

ROOT = Path(__file__).parents[1]
RESULTS, FIGURES = ROOT / "docs" / "results" / "images", ROOT / "docs" / "figures"
NUMBERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 49)
FIXED = (1, 2, 4, 8, 16, 49)
ROWS = ["any", "gates", "vt-any", "vt-16", "t-any", *(f"fixed-{number}" for number in FIXED)]
ROWS += ["random", "canvas", "novel", "novel-vae"]
LONG = 3  # rows "…-long" have this many times the steps
ROWS += [f"{row}-long" for row in ("any", "vt-any", "t-any", "gates", "random", *(f"fixed-{k}" for k in FIXED))]
HELD_OUT = (4, 7, 8)  # the digit that no training image of seeds 0, 1 and 2 shows
TEST, NOVELTY_VECTORS = 300, 8
GATE_SHARE, CANVAS_SHARE = 0.3, 0.2  # patches that gates may keep
SHIFTS = (-1, 0, 1, 2, 4, 8)  # of the logits of gates, at test time
UNSEEN = slice(1000, 2000)  # the first 200 test images were looked at when the model was chosen


def load_example() -> Any:
    spec = importlib.util.spec_from_file_location("images_example", ROOT / "examples" / "images.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


example = load_example()


@dataclass
class EqualWeights:
    """The vectors of a posterior without weights and without the prior's: VT's Gaussians, or T's points."""

    posterior: nv.Posterior
    noise: bool

    @property
    def mask(self) -> Tensor:
        return self.posterior.mask

    @property
    def kept(self) -> Tensor:
        return self.posterior.kept

    def __getitem__(self, rows: slice) -> "EqualWeights":
        return EqualWeights(self.posterior[rows], self.noise)

    def points(self) -> nv.ImpulseMixture:
        return self._set(self.posterior.mu)

    def sample(self) -> nv.ImpulseMixture:
        mu, sigma = self.posterior.mu, self.posterior.log_sigma.exp()
        return self._set(mu + sigma * torch.randn_like(mu) if self.noise else mu)

    def _set(self, z: Tensor) -> nv.ImpulseMixture:
        return nv.ImpulseMixture(z=z[:, :-1], log_pi=torch.where(self.mask[:, :-1], 0.0, -torch.inf))

    def gaussian_kl(self) -> Tensor:
        """L_G of each image: the sum over its vectors."""
        prior = {"prior_mu": self.posterior.prior.mu, "prior_log_sigma": self.posterior.prior.log_sigma}
        kl = nv.gaussian_kl(self.posterior.mu, self.posterior.log_sigma, **prior)
        return kl[:, :-1].masked_fill(~self.mask[:, :-1], 0.0).sum(-1)


class PlainSets(example.ImageAutoencoder):
    """The example's model without NVIB, with noise (VT) or without (T)."""

    def __init__(self, *, noise: bool) -> None:
        super().__init__()
        self.noise = noise
        self.attention.bound_queries = False
        self.mixing = nn.Sequential(self.mixing, OrdinaryWeights(self.attention.d))

    def bottleneck(self, tokens: Tensor, vectors: Tensor | int | None = None, *, train: bool = False) -> EqualWeights:
        return EqualWeights(super().bottleneck(tokens, vectors, train=train), self.noise)

    def regulariser(self, posterior: EqualWeights) -> Tensor:
        own = posterior.posterior
        return self.noise * example.LAMBDA_G * (posterior.gaussian_kl() / own.lengths / own.mu.shape[-1]).mean()


class OrdinaryWeights(nn.Module):
    """Give each vector the weight of `eq:probZ`, with which denoising attention is ordinary attention."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.d = d

    def forward(self, mixture: nv.ImpulseMixture) -> nv.ImpulseMixture:
        log_pi = mixture.log_pi + mixture.z.square().sum(-1) / (2 * math.sqrt(self.d))
        return nv.ImpulseMixture(mixture.z, log_pi)


class RandomGates(example.ImageAutoencoder):
    """The example's model with gates that open at random, in training and at test time: `share` of them."""

    def __init__(self, share: float) -> None:
        super().__init__(gates=share)
        self.share = share

    def bottleneck(self, tokens: Tensor, vectors: Tensor | int | None = None, *, train: bool = False) -> nv.Posterior:
        posterior = super().bottleneck(tokens, vectors, train=train)
        opened = torch.rand_like(posterior.alpha[:, :-1]) < self.share
        alpha = posterior.prior.delta / self.share * opened
        return replace(posterior, alpha=torch.cat([alpha, posterior.alpha[:, -1:]], 1))


def build(row: str, seed: int) -> Any:
    """Build the untrained model of a row.

    Random gates keep as many patches as the learned gates of the same seed and the same number of steps.
    """
    learned, row = row.replace("random", "gates"), row.removesuffix("-long")
    if row in ("any", "novel") or row.startswith("fixed"):
        return example.ImageAutoencoder()
    if row in ("vt-any", "vt-16", "t-any", "novel-vae"):
        return PlainSets(noise=row != "t-any")
    if row == "random":
        return RandomGates(json.loads((RESULTS / "measured" / f"{learned}-{seed}.json").read_text())["gates"]["kept"])
    return example.ImageAutoencoder(gates=CANVAS_SHARE if row == "canvas" else GATE_SHARE)


def make_canvases(images: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Put 0 to 5 shrunken digits at random cells of a 3 × 3 grid: canvases (count, 784), and the numbers of digits."""
    small = F.adaptive_avg_pool2d(images.view(-1, 28, 28), 9) > 0.35
    digits = torch.randint(6, (count,), generator=generator)
    canvases = torch.zeros(count, 28, 28)
    for canvas, number in zip(canvases, digits.tolist(), strict=True):
        cells = torch.randperm(9, generator=generator)[:number].tolist()
        for cell, image in zip(cells, torch.randint(len(small), (number,), generator=generator).tolist(), strict=True):
            row, column = 9 * (cell // 3), 9 * (cell % 3)
            canvas[row : row + 9, column : column + 9] = small[image]
    return canvases.flatten(1), digits


Scores = dict[int, tuple[Tensor, Tensor]]
"""Bits per pixel and intersection over union of each image, by the number of vectors."""


def errors_by_number(model: Any, images: Tensor, scores: Scores) -> dict[str, dict[str, float]]:
    """Average bits per pixel and intersection over union, and measure the KL in bits per pixel."""
    found = {}
    for number, (bits, overlap) in scores.items():
        with torch.no_grad():
            encoded = model.encode(images, number)
            kl = encoded.gaussian_kl() if isinstance(encoded, EqualWeights) else total_kl(encoded)
        rate = kl.mean().item() / math.log(2) / images.shape[-1]
        found[str(number)] = {"bits": bits.mean().item(), "iou": overlap.mean().item(), "kl_bits": rate}
    return found


def total_kl(posterior: nv.Posterior) -> Tensor:
    kl = posterior.kl()
    return kl.gaussian + kl.dirichlet


def measure_search(images: Tensor, scores: Scores) -> dict[str, Any]:
    """Compare four ways to choose a number of vectors for each image: the share with a small error, and the number."""
    numbers = list(scores)
    errors = torch.stack([1 - overlap for _, overlap in scores.values()], 1)  # (images, numbers)
    good, sizes = errors <= example.LARGEST_ERROR, torch.tensor(numbers)

    def outcome(index: Tensor, tries: float) -> dict[str, float]:
        reached = good.gather(1, index.unsqueeze(1)).float().mean().item()
        return {"reached": reached, "vectors": sizes[index].float().mean().item(), "tries": tries}

    last = len(numbers) - 1
    fewest = torch.where(good.any(1), good.int().argmax(1), errors.argmin(1))
    tries = torch.where(good.any(1), fewest + 1, len(numbers)).float().mean().item()
    low, high = torch.zeros_like(fewest), torch.full_like(fewest, last)
    steps = math.ceil(math.log2(len(numbers)))
    for _ in range(steps):  # binary search: as if the error fell with each vector
        middle = (low + high) // 2
        is_good = good.gather(1, middle.unsqueeze(1)).squeeze(1)
        low, high = torch.where(is_good, low, (middle + 1).clamp(max=last)), torch.where(is_good, middle, high)
    # A regression from the number of ink pixels and of patches with ink, fitted on one half, used on the other.
    features = torch.stack([torch.ones(len(images)), images.sum(-1), example.split_patches(images).any(-1).sum(-1)], 1)
    half, predicted = len(images) // 2, torch.zeros(len(images))
    for fit, use in ((slice(half), slice(half, None)), (slice(half, None), slice(half))):
        weights = torch.linalg.lstsq(features[fit], sizes[fewest[fit]].float().unsqueeze(1)).solution
        predicted[use] = (features[use] @ weights).squeeze(1)
    found = {"fewest": outcome(fewest, tries), "binary search": outcome(high, steps)}
    for margin in (0, 2, 4, 8):
        index = torch.searchsorted(sizes, (predicted + margin).round().long().clamp(1, sizes[-1].item()))
        found[f"regression + {margin}"] = outcome(index.clamp(max=last), 0)
    for number in NUMBERS:
        index = torch.full_like(fewest, min(range(len(numbers)), key=lambda i: abs(numbers[i] - number)))
        found[f"fixed {number}"] = outcome(index, 0)
    return found


@torch.no_grad()
def reconstruct_at(model: Any, images: Tensor, alpha: Tensor, posterior: nv.Posterior) -> dict[str, float]:
    """Measure the error of a posterior whose pseudo-counts are replaced."""
    logits = model.decode(replace(posterior, alpha=alpha).points())
    bits = F.binary_cross_entropy_with_logits(logits, images).item() / math.log(2)
    drawn, ink = logits > 0, images > 0
    return {"bits": bits, "iou": ((drawn & ink).sum(-1) / (drawn | ink).sum(-1).clamp(min=1)).mean().item()}


@torch.no_grad()
def measure_gates(model: Any, images: Tensor, counts: Tensor) -> dict[str, Any]:
    """Measure what gates keep: how many, whether it is ink, and the error beside other gates of the same number."""
    posterior = model.encode(images)
    kept, ink = posterior.alpha[:, :-1] > 0, example.split_patches(images).any(-1)
    order = torch.rand(kept.shape).argsort(-1)
    shuffled = torch.cat([posterior.alpha[:, :-1].gather(1, order), posterior.alpha[:, -1:]], 1)
    vectors, patches = kept.sum(-1).float(), ink.sum(-1).float()
    return {
        "kept": kept.float().mean().item(),
        "ink": ink.float().mean().item(),
        "kept_with_ink": ((kept & ink).sum() / kept.sum().clamp(min=1)).item(),
        "ink_kept": ((kept & ink).sum() / ink.sum()).item(),
        "own": reconstruct_at(model, images, posterior.alpha, posterior),
        "shuffled": reconstruct_at(model, images, shuffled, posterior),
        "vectors_by_label": {str(x): vectors[counts == x].mean().item() for x in counts.unique().tolist()},
        "ink_patches_by_label": {str(x): patches[counts == x].mean().item() for x in counts.unique().tolist()},
        "correlation_with_label": correlation(vectors, counts.float()),
        "correlation_with_ink": correlation(vectors, patches),
        "correlation_of_ink_with_label": correlation(patches, counts.float()),
    }


@torch.no_grad()
def measure_shifts(model: Any, images: Tensor) -> dict[str, dict[str, float]]:
    """Measure what gates keep, and the error, when their logits are shifted at test time."""
    tokens, ink = model.after_pool(model.encode_patches(images)), example.split_patches(images).any(-1)
    found = {}
    for shift in SHIFTS:
        posterior = model.nvib(tokens, gate_shift=float(shift))
        kept = posterior.alpha[:, :-1] > 0
        shares = {"kept": kept.float().mean().item(), "kept_with_ink": (kept & ink).sum().item() / kept.sum().item()}
        found[str(shift)] = shares | reconstruct_at(model, images, posterior.alpha, posterior)
    return found


def correlation(x: Tensor, y: Tensor) -> float:
    return torch.corrcoef(torch.stack([x, y]))[0, 1].nan_to_num().item()


@torch.no_grad()
def measure_novelty(model: Any, images: Tensor, digits: Tensor, held_out: int) -> dict[str, dict[str, float]]:
    """Measure how well scores tell images of another kind from those of the training's: areas under the ROC."""
    usual, new = images[digits != held_out], images[digits == held_out]
    shuffled = usual[:, torch.randperm(usual.shape[-1])]
    noise = (torch.rand(200, usual.shape[-1]) < usual.mean()).float()
    vectors = 1 if isinstance(model, PlainSets) else NOVELTY_VECTORS

    def scores(x: Tensor) -> dict[str, Tensor]:
        encoded = model.encode(x, vectors)
        kl = encoded.gaussian_kl() if isinstance(encoded, EqualWeights) else total_kl(encoded)
        error = example.score(model, x, vectors)[0] * math.log(2) * x.shape[-1]  # nats an image
        return {"kl": kl, "error": error, "sum": kl + error}

    base = scores(usual)
    found = {}
    for name, others in {f"digit {held_out}": new, "shuffled pixels": shuffled, "noise": noise}.items():
        theirs = scores(others)
        pairs = {key: (theirs[key].unsqueeze(1) > base[key]).float().mean().item() for key in base}
        found[name] = pairs
    return found


def measure(row: str, seed: int, data: "Data", *, steps: int, runs: Path) -> dict[str, Any]:
    """Train the model of a row, keep it in `runs`, and measure it."""
    full, row = row, row.removesuffix("-long")
    steps = steps if row == full else LONG * steps
    torch.manual_seed(seed)
    model, images, test = build(full, seed), data.images, data.test
    generator = torch.Generator().manual_seed(seed)
    if row == "canvas":
        images, _ = make_canvases(images, 4000, generator)
    elif row.startswith("novel"):
        images = images[data.digits != HELD_OUT[seed]]
    name, _, number = row.rpartition("-")
    vectors = int(number) if name in ("fixed", "vt") and number.isdigit() else 1 if row == "novel-vae" else None
    cell: dict[str, Any] = {"row": full, "seed": seed, "steps": steps}
    file = runs / f"{full}-{seed}.pt"
    if file.exists():
        model.load_state_dict(torch.load(file))
    else:
        example.train(model, images, steps, vectors=vectors)
        runs.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), file)
    model.eval()
    torch.manual_seed(0)
    if row in ("gates", "random"):
        cell["gates"] = measure_gates(model, test, data.test_digits)
        if row == "gates":
            cell["shifts"] = measure_shifts(model, test)
    elif row == "canvas":
        cell["gates"] = measure_gates(model, *make_canvases(data.test, TEST, generator))
    elif row.startswith("novel"):
        cell["novelty"] = measure_novelty(model, data.all_test, data.all_digits, HELD_OUT[seed])
    if not row.startswith(("novel", "canvas", "random", "gates")):
        numbers = (vectors,) if name == "fixed" and vectors is not None else NUMBERS
        scores = {number: example.score(model, test, number) for number in numbers}
        cell["errors"] = errors_by_number(model, test, scores)
        if row in ("any", "vt-any"):
            cell["search"] = measure_search(test, scores)
    return cell


@dataclass(frozen=True)
class Data:
    """Training images and their digits; the first test images, for errors, and more of them, for novelty."""

    images: Tensor
    digits: Tensor
    all_test: Tensor
    all_digits: Tensor

    @property
    def test(self) -> Tensor:
        return self.all_test[:TEST]

    @property
    def test_digits(self) -> Tensor:
        return self.all_digits[:TEST]


def read_cells() -> dict[str, list[dict[str, Any]]]:
    """Read the measured cells of each row."""
    cells = [json.loads(file.read_text()) for file in sorted((RESULTS / "measured").glob("*.json"))]
    return {row: [cell for cell in cells if cell["row"] == row] for row in ROWS if any(c["row"] == row for c in cells)}


def tables() -> list[list[str]]:
    """Write the rows of the page's tables, in its order: means over seeds, and the standard deviation of several."""
    rows, shown = read_cells(), (1, 2, 4, 8, 16, 49)

    def entry(values: list[float], decimals: int = 3) -> str:
        return mean(values, decimals) if values else ""

    bits, overlap, probes, gates, shifts, search, novelty = ([] for _ in range(7))
    for name, lines in (("bits", bits), ("iou", overlap)):
        for row in (row for row in ("any", "vt-any", "t-any", "any-long", "vt-any-long", "vt-16") if row in rows):
            numbers = [entry([cell["errors"][str(k)][name] for cell in rows[row]]) for k in shown]
            lines.append(line(row, len(rows[row]), *numbers))
        for suffix, row in (("", "a model for each"), ("-long", "a model for each, long")):
            own = [rows.get(f"fixed-{k}{suffix}", []) for k in shown]
            numbers = [[cell["errors"][str(k)][name] for cell in x] for k, x in zip(shown, own, strict=True)]
            lines.append(line(row, 1 if max(map(len, own)) == 1 else "1 or more", *map(entry, numbers)))
    for change, errors in json.loads((RESULTS / "probes.json").read_text()).items():
        probes.append(line(change, *(f"{errors[str(k)]:.3f}" for k in shown)))
    for cell in (x for row in ("gates", "gates-long", "random", "random-long", "canvas") for x in rows.get(row, [])):
        found = cell["gates"]
        parts = [found[key] for key in ("kept", "ink", "kept_with_ink", "ink_kept")]
        parts += [found[key]["bits"] for key in ("own", "shuffled")]
        parts += [found["correlation_with_label"], found["correlation_with_ink"]]
        gates.append(line(cell["row"], *(f"{x:.3f}" for x in parts)))
        for shift, kept in cell.get("shifts", {}).items():
            parts = (kept[key] for key in ("kept", "kept_with_ink", "bits", "iou"))
            shifts.append(line(f"{cell['row']}, seed {cell['seed']}", shift, *(f"{x:.3f}" for x in parts)))
    for row in (row for row in ("any", "vt-any", "any-long", "vt-any-long") if row in rows):
        for way in ("fewest", "binary search", "regression + 8", "fixed 8", "fixed 16", "fixed 24", "fixed 32"):
            ways = [cell["search"][way] for cell in rows[row]]
            search.append(line(row, way, entry([x["reached"] for x in ways]), entry([x["vectors"] for x in ways], 1)))
    for cell in (cell for row in ("novel", "novel-vae") for cell in rows.get(row, [])):
        for kind, scores in cell["novelty"].items():
            novelty.append(line(cell["row"], kind, *(f"{x:.3f}" for x in scores.values())))
    return [bits, overlap, probes, gates, shifts, search, novelty]


def write_tables(page: Path) -> None:
    """Put the rows of `tables` into the page's tables, those whose second line starts with `| ---`."""
    groups = iter(tables())

    def fill(separator: re.Match[str]) -> str:
        return separator[1] + "".join(f"{row}\n" for row in next(groups))

    page.write_text(re.sub(r"(?m)^(\| ---.*\n)(?:\| .*\n)*", fill, page.read_text()))


@torch.no_grad()
def draw(data: Data, runs: Path) -> None:
    """Draw what the gates keep, samples, and mixtures of two images, from the models of the first seed."""
    models = {}
    for row in ("any", "vt-any", "gates"):
        models[row] = build(row, 0)
        models[row].load_state_dict(torch.load(runs / f"{row}-0.pt"))
    first = [int((data.test_digits == digit).nonzero()[0]) for digit in range(10)]
    images = data.test[first]
    posterior = models["gates"].encode(images)
    kept = posterior.alpha[:, :-1] > 0
    titles = [f"{number} of 49" for number in kept.sum(-1).tolist()]
    grid(FIGURES / "image-gates.png", [images, ink(models["gates"], posterior.points())], {0: titles}, kept)

    torch.manual_seed(0)
    rows, names = [], []
    for row, name in (("any", "NVIB"), ("vt-any", "VT")):
        for number in (4, 16):
            prior = models[row].nvib.prior
            if row == "any":
                mixture = prior.sample([number] * 10)
            else:
                z = prior.sample([number - 1] * 10).z  # one less: the prior's own vector is a token's here
                mixture = nv.ImpulseMixture(z, torch.zeros(z.shape[:-1]))
            rows.append(ink(models[row], mixture))
            names.append(f"{name}, {number}")
    grid(FIGURES / "image-samples.png", rows, {}, names=names)

    rows, names = [], []
    for row, name in (("any", "NVIB"), ("vt-any", "VT")):
        for left, right in ((3, 8), (1, 7)):
            one, two = (models[row].encode(images[i : i + 1], 8) for i in (left, right))
            rows.append(torch.cat([ink(models[row], mixed(one, two, weight / 6)) for weight in range(7)]))
            names.append(name)
    grid(FIGURES / "image-mixtures.png", rows, {0: [f"{weight}/6" for weight in range(7)]}, names=names)


def mixed(one: Any, two: Any, weight: float) -> nv.ImpulseMixture:
    """Mix two images: the vectors of both, with new weights (NVIB), or the means of their vectors (VT)."""
    if isinstance(one, nv.Posterior):
        return one.mix(two, weight).points()
    return nv.ImpulseMixture(torch.lerp(one.points().z, two.points().z, weight), one.points().log_pi)


def ink(model: Any, mixture: nv.ImpulseMixture) -> Tensor:
    return model.decode(mixture).sigmoid()


def grid(
    path: Path,
    rows: list[Tensor],
    titles: dict[int, list[str]],
    kept: Tensor | None = None,
    names: list[str] | None = None,
) -> None:
    """Draw rows of images (images, 784), with names of rows, titles above images, and kept patches in the first row."""
    figure = Figure(figsize=(len(rows[0]), 1.15 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), len(rows[0]), squeeze=False)
    for y, row in enumerate(rows):
        for x, image in enumerate(row):
            axis = axes[y, x]
            axis.imshow(image.view(28, 28), cmap="Greys", vmin=0, vmax=1)
            if kept is not None and y == 0:
                shade = kept[x].view(7, 7).float().repeat_interleave(4, 0).repeat_interleave(4, 1)
                axis.imshow(shade, cmap=ListedColormap([PINK]), alpha=0.5 * shade)
            axis.set(xticks=[], yticks=[])
            if y in titles:
                axis.set_title(titles[y][x], fontsize=8)
            if x == 0 and names:
                axis.set_ylabel(names[y], fontsize=8)
    save_figure(figure, path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=[])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--draw", action="store_true", help="draw the page's figures from the models in RUNS")
    given = parser.parse_args()
    torch.set_num_threads(1)
    test = example.read_images(given.data / "mnist_test.csv")
    data = Data(*example.read_images(given.data / "mnist_train.csv"), *(x[UNSEEN] for x in test))
    for seed in given.seeds:
        for row in given.rows:
            file = given.output / "measured" / f"{row}-{seed}.json"
            if not file.exists():
                cell = measure(row, seed, data, steps=given.steps, runs=given.runs)
                write_json(file, rounded(cell), indent=1)
                print(file.name, json.dumps(rounded(cell)), flush=True)
    if given.output == RESULTS:
        write_tables(RESULTS.with_suffix(".md"))
    if given.draw:
        draw(data, given.runs)


if __name__ == "__main__":
    main()
