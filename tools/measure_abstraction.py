"""Train a stacked NVIB encoder on characters, and measure whether the vectors that it keeps are words.

usage: python -m tools.measure_abstraction LINES.txt [--steps N] --output docs/results/pretrained/abstraction.json

The model is an autoencoder of lines of text: characters to `NVIBEncoder`, to one more NVIB at the top, which the
decoder reads. The decoder predicts each character from those before it and from the top's vectors. The loss is nats per
character + β·KL per character, where the KL of the L layers have the weights 1/L, 2/L, …, 1. A model learns with β = 0
first, and each β goes on from there.

There are texts with spaces and texts from which they were removed. A boundary is a space, or the first character of a
word. For each layer there are two readings of what it keeps: characters with α > 0, and as many characters with the
largest α as the text has boundaries. Each is taken as a boundary: at the character itself, the one before or the
one after, whichever is best on other texts. The controls choose their place in the same way.
"""

import argparse
import copy
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from open_nvib import NVIB, Encoded, MixtureDecoderLayer, NVIBEncoder
from open_nvib.store.files import write_json
from open_nvib.transformer import stack_on

CHARACTERS = [chr(code) for code in range(32, 127)]
PAD, START = len(CHARACTERS), len(CHARACTERS) + 1
SIZE, HEADS, LAYERS, LONGEST, BATCH = 64, 4, 2, 56, 32
DELTA = 0.2
"""About as much as there are words per character."""
BETAS = (0.1, 0.3, 1.0)
TEXTS = 400
"""Lines to choose the place of boundaries on, and as many to test on."""

Boundaries = Sequence[set[int]]


class Lines:
    """Texts, and where the words of each are divided."""

    def __init__(self, lines: Sequence[str], *, spaces: bool) -> None:
        self.texts = list(lines) if spaces else [line.replace(" ", "") for line in lines]
        self.boundaries: list[set[int]] = []
        for line in lines:
            places = [index for index, character in enumerate(line) if character == " "]
            self.boundaries.append({place - (0 if spaces else before) for before, place in enumerate(places)})
        self.rate = sum(map(len, self.boundaries)) / sum(map(len, self.texts))
        longest = max(map(len, self.texts))
        self.ids = torch.tensor([[ord(c) - 32 for c in text] + [PAD] * (longest - len(text)) for text in self.texts])


class Autoencoder(nn.Module):
    """Characters to stacked posteriors, and the last of them to characters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(CHARACTERS) + 2, SIZE)
        self.positions = nn.Embedding(LONGEST + 1, SIZE)
        self.encoder = NVIBEncoder(LAYERS, SIZE, HEADS, dropout=0.0, delta=DELTA)
        self.top = NVIB(SIZE, delta=DELTA)
        layer = MixtureDecoderLayer(SIZE, HEADS, 4 * SIZE, dropout=0.0, norm_first=True)
        self.decoder = nn.TransformerDecoder(layer, 1, norm=nn.LayerNorm(SIZE))
        self.to_logits = nn.Linear(SIZE, len(CHARACTERS) + 2)

    def embed(self, ids: Tensor) -> Tensor:
        return self.embedding(ids) + self.positions(torch.arange(ids.shape[1]))

    def encode(self, ids: Tensor, *, sample: bool) -> Encoded:
        """Encode to the posteriors of all layers, of which the top is the last."""
        mask = ids != PAD
        encoded = self.encoder(self.embed(ids), mask, sample=sample)
        top = stack_on(self.top(encoded.hidden, mask), encoded.posteriors[-1])
        return Encoded(encoded.hidden, (*encoded.posteriors, top))

    def decode(self, ids: Tensor, memory: Any) -> Tensor:
        """Compute logits of each character from those before it and from a mixture."""
        before = F.pad(ids[:, :-1], (1, 0), value=START)
        causal = torch.ones(ids.shape[1], ids.shape[1]).tril().log()
        return self.to_logits(self.decoder(self.embed(before), memory, tgt_mask=causal))


def read_lines(path: Path) -> list[str]:
    """Read lines of printable ASCII with several words, in random order."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    known = set(CHARACTERS)
    found = [line for line in lines if 20 <= len(line) <= LONGEST and set(line) <= known and line.count(" ") >= 3]
    random.Random(0).shuffle(found)
    return found


def train(model: Autoencoder, lines: Sequence[str], steps: int, *, spaces: bool, beta: float) -> Autoencoder:
    """Train with a β that grows from 0 in the first half."""
    start = time.process_time()
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 0.01, total_iters=100)
    weights = [(index + 1) / (LAYERS + 1) for index in range(LAYERS + 1)]
    for step in range(steps):
        ids = Lines(lines[step * BATCH : (step + 1) * BATCH], spaces=spaces).ids
        encoded = model.encode(ids, sample=True)
        logits = model.decode(ids, encoded.posteriors[-1].sample())
        nats = F.cross_entropy(logits.mT, ids, ignore_index=PAD)
        kl = encoded.kl(weights)
        per_character = ((kl.gaussian + kl.dirichlet) / (ids != PAD).sum(1)).mean()
        optimiser.zero_grad()
        (nats + beta * min(1.0, 2 * step / steps) * per_character).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            kept = [round(posterior.kept.mean().item(), 3) for posterior in encoded.posteriors]
            spent = time.process_time() - start
            print(f"{step}: nats {nats:.3f} KL {per_character:.2f} kept {kept} {spent:.0f} s", flush=True)
    return model


def boundary_scores(found: Boundaries, lines: Lines, offset: int) -> dict[str, float]:
    """Compute precision, recall and F1 of boundaries that are `offset` after the given characters."""
    pairs = zip(found, lines.boundaries, strict=True)
    right = sum(len({index + offset for index in each} & boundaries) for each, boundaries in pairs)
    precision = right / max(1, sum(map(len, found)))
    recall = right / max(1, sum(map(len, lines.boundaries)))
    f1 = 2 * precision * recall / max(1e-9, precision + recall)
    return {"precision": precision, "recall": recall, "f1": f1}


def with_controls(found: Sequence[Boundaries], parts: Sequence[Lines]) -> dict[str, Any]:
    """Score boundaries, random ones as many as each text has, and every k-th character, on the second part of texts."""
    generator = random.Random(0)

    def at_random(line: str, count: int) -> set[int]:
        return set(generator.sample(range(len(line)), count))

    def every_kth(line: str, count: int) -> set[int]:
        return {int((index + 0.5) * len(line) / count) for index in range(count)}

    kinds = {"kept": found}
    for name, control in (("random", at_random), ("every k-th", every_kth)):
        kinds[name] = [
            [control(line, len(each)) for line, each in zip(lines.texts, sets, strict=True)]
            for lines, sets in zip(parts, found, strict=True)
        ]
    results: dict[str, Any] = {}
    for name, (validation, test) in kinds.items():
        offset = max((-1, 0, 1), key=lambda offset: boundary_scores(validation, parts[0], offset)["f1"])
        results[name] = {"offset": offset, **boundary_scores(test, parts[1], offset)}
    return results


@torch.no_grad()
def measure(model: Autoencoder, parts: Sequence[Lines]) -> dict[str, Any]:
    """Measure what each layer keeps, and what the decoder makes of it."""
    encoded = [model.encode(lines.ids, sample=False).posteriors for lines in parts]
    layers = []
    for index in range(LAYERS + 1):
        alphas = [posteriors[index].alpha[:, :-1] for posteriors in encoded]

        positive = [[set(row.nonzero().flatten().tolist()) for row in alpha > 0] for alpha in alphas]
        largest = [
            [set(row.topk(len(gold)).indices.tolist()) for row, gold in zip(alpha, lines.boundaries, strict=True)]
            for alpha, lines in zip(alphas, parts, strict=True)
        ]
        alpha = alphas[1]
        layers.append(
            {
                "kept": encoded[1][index].kept.mean().item(),
                "alpha0": encoded[1][index].alpha0.mean().item(),
                "largest share": (alpha.amax(1) / alpha.sum(1).clamp(min=1e-9)).mean().item(),
                "positive": with_controls(positive, parts),
                "largest": with_controls(largest, parts),
            }
        )
    ids, top = parts[1].ids, encoded[1][-1]
    real = ids != PAD
    scores = {}
    for name, memory in (("own", top.mean()), ("of another text", top.mean()[torch.arange(len(ids)).roll(1)])):
        logits = model.decode(ids, memory)
        accuracy = (logits.argmax(-1) == ids)[real].float().mean().item()
        scores[name] = {"accuracy": accuracy, "nats": F.cross_entropy(logits.mT, ids, ignore_index=PAD).item()}
    kls = [posterior.kl() for posterior in encoded[1]]
    nats = [((kl.gaussian + kl.dirichlet) / real.sum(1)).mean().item() for kl in kls]
    return {"decoder reads the vectors": scores, "KL per character": nats, "layers": layers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", type=Path)
    parser.add_argument("--steps", type=int, default=400, help="for each β, after twice as many with β = 0")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    lines = read_lines(given.lines)
    parts, rest = (lines[:TEXTS], lines[TEXTS : 2 * TEXTS]), lines[2 * TEXTS :]
    first = 2 * given.steps * BATCH
    results: dict[str, Any] = {"steps": given.steps, "batch": BATCH, "settings": []}
    for spaces in (False, True):
        torch.manual_seed(0)
        print(f"spaces {spaces}", flush=True)
        start = train(Autoencoder(), rest[:first], 2 * given.steps, spaces=spaces, beta=0.0)
        held_out = [Lines(part, spaces=spaces) for part in parts]
        for beta in BETAS:
            print(f"spaces {spaces}, beta {beta}", flush=True)
            model = train(copy.deepcopy(start), rest[first:], given.steps, spaces=spaces, beta=beta)
            setting = {"spaces": spaces, "beta": beta, "boundary rate": held_out[1].rate}
            results["settings"].append({**setting, **measure(model, held_out)})
            write_json(given.output, results, indent=1)


if __name__ == "__main__":
    main()
