"""Find premises of SNLI by what they entail, with some of their token vectors: those that NVIB keeps, and others.

A text has the last hidden states of MiniLM as vectors, of length 1. A query is scored by late interaction: for each of
its vectors the largest product with one of the text's, summed. Queries have all of their vectors.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.cluster.hierarchy import fcluster, linkage
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from open_nvib import EmpiricalPrior, IdentityNVIB
from open_nvib.pretrained import convert
from open_nvib.pretrained.attention import nvibs
from open_nvib.store.files import write_json
from open_nvib.text.opening import open_saved, open_weights

QUERIES, TEXTS, TRAIN, CALIBRATION = 500, 2500, 500, 300
NUMBERS = (1.5, 3.0, 5.0, 8.0)
"""Mean numbers of vectors of a text."""

D = 32
"""Size of a head's key in MiniLM."""

KL_WEIGHT = 0.1
SHARPNESS = 20.0
"""Factor of products of vectors in the loss that learns pseudo-counts."""

Vectors = list[Tensor]
Select = Callable[[float], tuple[Vectors, dict[str, float]]]


def read_pairs(file: Path) -> dict[str, tuple[str, str | None]]:
    """Read one premise of each photograph, and a hypothesis that it entails if there is one."""
    found: dict[str, tuple[str, str | None]] = {}
    for line in file.open(encoding="utf-8"):
        row = json.loads(line)
        photograph, entailed = row["captionID"].split("#")[0], row["gold_label"] == "entailment"
        premise, hypothesis = found.get(photograph, (row["sentence1"], None))
        if premise == row["sentence1"]:
            found[photograph] = premise, hypothesis or (row["sentence2"] if entailed else None)
    return found


@torch.inference_mode()
def encode(model: Any, tokenizer: Any, texts: list[str]) -> tuple[Vectors, Vectors]:
    """Compute the last hidden states of texts, and log α of the last attention for each of them."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    (_, nvib) = nvibs(model)[-1]
    hidden: dict[int, Tensor] = {}
    heights: dict[int, Tensor] = {}
    for first in range(0, len(order), 64):
        rows = order[first : first + 64]
        batch = tokenizer([texts[i] for i in rows], padding=True, truncation=True, max_length=64, return_tensors="pt")
        states = model(**batch).last_hidden_state
        assert nvib.handover.seen is not None
        log_alpha = nvib.log_alpha(nvib.handover.seen[0])
        for i, row, height, mask in zip(rows, states, log_alpha, batch["attention_mask"].bool(), strict=True):
            hidden[i], heights[i] = row[mask].clone(), height[mask].clone()
    return [hidden[i] for i in range(len(texts))], [heights[i] for i in range(len(texts))]


def recall(queries: Vectors, texts: Vectors, places: list[int], at: int = 10) -> float:
    """Compute the share of queries whose text is among the first, in percent."""
    lengths = torch.tensor([len(x) for x in texts])
    owner = torch.arange(len(texts)).repeat_interleave(lengths)
    vectors = F.normalize(torch.cat(texts), dim=-1)
    hits = 0
    for query, place in zip(queries, places, strict=True):
        products = F.normalize(query, dim=-1) @ vectors.T  # (tokens, all vectors)
        best = products.new_full((len(query), len(texts)), -2.0)
        score = best.scatter_reduce_(1, owner.expand(len(query), -1), products, "amax").sum(0)
        hits += int((score > score[place]).sum() < at)
    return 100 * hits / len(queries)


def counts(texts: Vectors, number: float) -> list[int]:
    """Compute how many vectors each text may have: the same share of each, and `number` on average."""
    low, high = 0.0, 1.0
    lengths = np.array([len(x) for x in texts])
    for _ in range(30):
        share = (low + high) / 2
        low, high = (low, share) if np.maximum(1, np.rint(share * lengths)).mean() > number else (share, high)
    return np.maximum(1, np.rint(low * lengths)).astype(int).tolist()


def largest(texts: Vectors, heights: Vectors, number: float) -> Vectors:
    """Keep the vectors with the largest pseudo-counts, the same share of each text."""
    rows = zip(texts, heights, counts(texts, number), strict=True)
    return [x[height.topk(count).indices] for x, height, count in rows]


def above_prior(texts: Vectors, heights: Vectors, number: float) -> tuple[Vectors, dict[str, float]]:
    """Keep the vectors with more than the prior's pseudo-count, at the τ_α where that is `number` on average.

    A text that would have none keeps its largest. τ_α is in units of the standard deviation of log α.
    """
    flat = torch.cat(heights)
    low, high = flat.min().item() - 1, flat.max().item() + 1
    for _ in range(40):
        threshold = (low + high) / 2
        mean = sum(max(1, int((x > threshold).sum())) for x in heights) / len(heights)
        low, high = (threshold, high) if mean > number else (low, threshold)
    kept = [x[height >= min(high, height.max().item())] for x, height in zip(texts, heights, strict=True)]
    return kept, {"tau_alpha": ((flat.mean() - high) / flat.std()).item()}


def ward(texts: Vectors, trees: list[Any], number: float) -> Vectors:
    """Merge vectors by Ward's method, and take the mean of each cluster."""
    merged = []
    for x, tree, count in zip(texts, trees, counts(texts, number), strict=True):
        cluster = torch.from_numpy(fcluster(tree, count, "maxclust")).long() - 1
        sums = x.new_zeros(int(cluster.max()) + 1, x.shape[1]).index_add_(0, cluster, F.normalize(x, dim=-1))
        merged.append(sums)
    return merged


def learn(pairs: list[tuple[Tensor, Tensor]], prior: EmpiricalPrior) -> IdentityNVIB:
    """Learn w and b of log α: a query attends to the process of its text rather than to those of others.

    MiniLM stays as it is. The score of a vector of a query is log Σᵢ πᵢ exp(s q·zᵢ), where π has the prior's
    component; a text is told from the others of its batch.
    """
    torch.manual_seed(0)
    nvib = IdentityNVIB(prior.mu.shape[0], d=D, tau_alpha=1.0, tau_sigma=0.1)
    nvib.set_prior(prior)
    optimiser = torch.optim.Adam(nvib.to_log_alpha.parameters(), lr=1e-2)
    generator = random.Random(0)
    for _ in range(200):
        queries, texts = zip(*generator.sample(pairs, 32), strict=True)
        x = torch.nn.utils.rnn.pad_sequence(list(texts), batch_first=True)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(t), dtype=torch.bool) for t in texts], batch_first=True)
        log_alpha = nvib.log_alpha(x).masked_fill(~mask, -torch.inf)
        log_pi = torch.cat([log_alpha, log_alpha.new_zeros(len(x), 1)], -1).log_softmax(-1)
        z = F.normalize(torch.cat([x, nvib.prior_mu.expand(len(x), 1, -1)], 1), dim=-1)
        flat = F.normalize(torch.cat(queries), dim=-1)
        products = SHARPNESS * torch.einsum("qp,tnp->qtn", flat, z)
        scores = (products + log_pi).logsumexp(-1)  # (query vectors, texts)
        owner = torch.arange(len(queries)).repeat_interleave(torch.tensor([len(q) for q in queries]))
        logits = scores.new_zeros(len(queries), len(texts)).index_add(0, owner, scores)
        loss = F.cross_entropy(logits, torch.arange(len(queries)))
        loss = loss + KL_WEIGHT * (nvib.posterior(x, mask).kl().dirichlet / mask.sum(-1)).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return nvib


def retrieval(arguments: Any) -> dict[str, Any]:
    """Compute recall at 10 over the mean number of vectors of a text."""
    file = Path(arguments.output) / "retrieval.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    test, train = (read_pairs(Path(arguments.snli) / f"snli_1.0_{name}.jsonl") for name in ("test", "train_subset"))
    pairs = [(premise, hypothesis) for premise, hypothesis in test.values() if hypothesis]
    random.Random(0).shuffle(pairs)
    others = [pair for photograph, pair in train.items() if photograph not in test]
    random.Random(0).shuffle(others)
    entailed = [(premise, hypothesis) for premise, hypothesis in others if hypothesis][:TRAIN]
    used = {premise for premise, _ in entailed}
    distractors = [premise for premise, _ in others if premise not in used]
    texts = [premise for premise, _ in pairs[:QUERIES]]
    texts += distractors[: TEXTS - len(texts)]

    tokenizer = open_saved(AutoTokenizer, arguments.minilm)
    model = open_weights(AutoModel, arguments.minilm)
    calibration = [premise for premise, _ in entailed[:CALIBRATION]]
    model = convert(model, calibration, tokenizer=tokenizer, tau_alpha=10.0)
    queries, _ = encode(model, tokenizer, [hypothesis for _, hypothesis in pairs[:QUERIES]])
    vectors, attended = encode(model, tokenizer, texts)
    train_texts, _ = encode(model, tokenizer, [premise for premise, _ in entailed])
    train_queries, _ = encode(model, tokenizer, [hypothesis for _, hypothesis in entailed])
    prior = EmpiricalPrior.measure(train_texts[:CALIBRATION], d=D)
    norms = [x.square().sum(-1) / (2 * D**0.5) for x in vectors]
    places = list(range(len(queries)))
    length = sum(len(x) for x in vectors) / len(vectors)
    found["data"] = {"queries": len(queries), "texts": len(texts), "vectors": length, "size": vectors[0].shape[-1]}

    generator = torch.Generator().manual_seed(0)
    shuffled = [torch.rand(len(x), generator=generator) for x in vectors]
    backwards = [-torch.arange(len(x), dtype=torch.float32) for x in vectors]
    trees = [linkage(F.normalize(x, dim=-1).numpy(), "ward") for x in vectors]
    methods: dict[str, Select] = {
        "Ward": lambda number: (ward(vectors, trees, number), {}),
        "random": lambda number: (largest(vectors, shuffled, number), {}),
        "first": lambda number: (largest(vectors, backwards, number), {}),
        "NVIB, last states, largest": lambda number: (largest(vectors, norms, number), {}),
        "NVIB, last states, above the prior": lambda number: above_prior(vectors, norms, number),
        "NVIB, last attention, above the prior": lambda number: above_prior(vectors, attended, number),
    }
    nvib = learn(list(zip(train_queries, train_texts, strict=True)), prior)
    with torch.no_grad():
        learned = [nvib.log_alpha(x[None])[0] for x in vectors]
    methods["NVIB, learned, largest"] = lambda number: (largest(vectors, learned, number), {})
    methods["NVIB, learned, above the prior"] = lambda number: above_prior(vectors, learned, number)
    found["data"]["kept by the learned"] = sum(int((x > 0).sum()) for x in learned) / len(learned)

    def measure(method: str, number: float, kept: Vectors, more: dict[str, float], asked: Vectors = queries) -> None:
        mean = sum(len(x) for x in kept) / len(kept)
        found[f"{method}, {number:g}"] = {
            "method": method,
            "vectors": mean,
            "bytes": mean * kept[0].shape[-1] * 4,
            "recall at 10": recall(asked, kept, places),
            **more,
        }
        write_json(file, found, indent=1)

    means, mean_queries = ([x.mean(0, keepdim=True) for x in some] for some in (vectors, queries))
    measure("mean of both", 1, means, {}, mean_queries)
    measure("mean", 1, means, {})
    measure("all", round(length, 1), vectors, {})
    for number in NUMBERS:
        for method, select in methods.items():
            if f"{method}, {number:g}" not in found:
                measure(method, number, *select(number))
    return found
