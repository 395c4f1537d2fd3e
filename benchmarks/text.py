"""Speed of the text toolkit, as ratios within one run.

    python benchmarks/text.py --output benchmarks/text_results.json

Lengths are drawn as in the data, 5 to 20 tokens. The reference for a training step is what one would write with
`torch.nn.Transformer`: padded to the longest text and with logits everywhere.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import open_nvib as nv
from open_nvib.store.settings import BottleneckKind
from open_nvib.text.data import load_prepared
from open_nvib.text.model import autoencoder
from open_nvib.text.model.autoencoder import LatentOutput, TextAutoencoder
from open_nvib.text.model.configuration import TextAutoencoderConfig
from open_nvib.text.model.decoding import Collator, LengthGroupedSampler, decode, reconstruct_ids
from open_nvib.text.model.layers import cross_entropy_of_head
from open_nvib.text.model.vector_count import choose_auto, find_fewest
from open_nvib.text.using.run import load_run

SIZES = {
    "paper": {"vocab_size": 30522, "d_model": 256, "batch": 64},
    "small": {"vocab_size": 3000, "d_model": 128, "batch": 64},
}
SPECIAL: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


def ratio(functions: dict[str, Callable[[], object]], base: str, repeats: int) -> dict[str, float]:
    """Median time of each as a multiple of `base`'s, run in turns."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values[1:]) for name, values in times.items()}  # the first warms up
    return {name: median / medians[base] for name, median in medians.items()}


def model_of(size: str, bottleneck: BottleneckKind, **options: Any) -> TextAutoencoder:
    settings: dict[str, Any] = {"vocab_size": SIZES[size]["vocab_size"], "d_model": SIZES[size]["d_model"], **options}
    config = TextAutoencoderConfig(
        **settings, ffn_size=settings["d_model"], bottleneck=bottleneck, dropout=0.0, **SPECIAL
    )
    torch.manual_seed(0)
    return TextAutoencoder(config)


def batches_of(size: str, count: int, *, grouped: bool) -> list[dict[str, Tensor]]:
    """Batches of random tokens with lengths from 5 to 20, as the trainer groups them or as they come."""
    generator = torch.Generator().manual_seed(0)
    batch, vocabulary = SIZES[size]["batch"], SIZES[size]["vocab_size"]
    lengths = torch.randint(5, 21, (batch * 50,), generator=generator)
    texts = [torch.randint(3, vocabulary, (n,), generator=generator).tolist() for n in lengths.tolist()]
    order = list(LengthGroupedSampler(lengths.tolist(), batch, seed=0)) if grouped else list(range(len(texts)))
    collator = Collator(0, 2)
    return [collator([{"input_ids": texts[i]} for i in order[k * batch : (k + 1) * batch]]) for k in range(count)]


def training_step(
    model: nn.Module, batches: list[dict[str, Tensor]], forward: Callable[[dict[str, Tensor]], Tensor]
) -> Callable[[], None]:
    """One step on each of the batches."""
    optimiser = torch.optim.AdamW(model.parameters())

    def step() -> None:
        for batch in batches:
            optimiser.zero_grad()
            forward(batch).backward()
            optimiser.step()

    return step


class PaddedTransformer(nn.Module):
    """The reference: nn.Transformer of the same sizes, everything padded, logits everywhere."""

    def __init__(self, vocabulary: int, size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size)
        self.positions = nn.Embedding(32, size)
        self.transformer = nn.Transformer(size, 1, 1, 1, size, dropout=0.0, batch_first=True)
        self.head = nn.Linear(size, vocabulary, bias=False)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        ids, labels = (
            F.pad(batch[name], (0, 21 - batch[name].shape[1]), value=fill)
            for name, fill in (("input_ids", 0), ("labels", -100))
        )
        shifted = F.pad(labels[:, :-1].clamp(min=0), (1, 0), value=1)
        where = self.positions(torch.arange(21))
        padding = ids == 0
        causal = nn.Transformer.generate_square_subsequent_mask(21)
        hidden = self.transformer(
            self.embedding(ids) + where,
            self.embedding(shifted) + where,
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return F.cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten(), ignore_index=-100)


def steps(repeats: int) -> dict[str, float]:
    """NVAE's training step against T's and, on real lengths, against the padded reference; with gates against ReLU."""
    results: dict[str, float] = {}
    for size in SIZES:
        grouped, mixed = batches_of(size, 4, grouped=True), batches_of(size, 4, grouped=False)
        functions: dict[str, Callable[[], object]] = {}
        gates = model_of(size, "nvae", alpha_activation="gate")
        models = {"t": model_of(size, "t"), "nvae": model_of(size, "nvae"), "gates": gates}
        for kind, model in models.items():
            functions[kind] = training_step(model, grouped, lambda batch, model=model: model(**batch, sample=True).loss)
        reference = PaddedTransformer(SIZES[size]["vocab_size"], SIZES[size]["d_model"])
        functions["padded"] = training_step(reference, mixed, reference)
        ratios = ratio(functions, "t", repeats)
        results[f"NVAE step / T step, {size} sizes"] = ratios["nvae"]
        results[f"step with gates / NVAE step, {size} sizes"] = ratios["gates"] / ratios["nvae"]
        results[f"NVAE step / padded nn.Transformer step, {size} sizes"] = ratios["nvae"] / ratios["padded"]
    return results


def throughput(repeats: int) -> dict[str, float]:
    """NVAE's training on one thread: with all logits at once, in chunks, and in chunks and bf16."""
    results: dict[str, float] = {}
    torch.set_num_threads(1)
    for size in SIZES:
        model, batches = model_of(size, "nvae"), batches_of(size, 4, grouped=True)

        def loss(batch: dict[str, Tensor], head: Callable[..., Tensor], bf16: bool, model: Any = model) -> Tensor:
            autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16)
            with patch.object(autoencoder, "cross_entropy_of_head", head), autocast:
                return model(**batch, sample=True).loss

        heads = {"at once": (all_logits, False), "chunks": (cross_entropy_of_head, False)}
        heads["chunks, bf16"] = cross_entropy_of_head, True
        functions: dict[str, Callable[[], object]] = {
            name: training_step(model, batches, lambda batch, how=how: loss(batch, *how)) for name, how in heads.items()
        }
        found = ratio(functions, "at once", repeats)
        for name in ("chunks", "chunks, bf16"):
            results[f"sentences per second, logits in {name} / at once, {size} sizes"] = 1 / found[name]
    torch.set_num_threads(2)
    return results


def all_logits(hidden: Tensor, weight: Tensor, labels: Tensor, bias: None = None) -> Tensor:
    """The loss of the head as one would write it."""
    return F.cross_entropy((hidden @ weight.T).float(), labels, reduction="sum")


@torch.no_grad()
def decoding(repeats: int) -> dict[str, float]:
    """Reconstructing 256 texts of 20 tokens with the cache, against decoding the whole prefix at every step."""
    model = model_of("paper", "nvae").eval()
    ids = torch.randint(3, 30522, (256, 20), generator=torch.Generator().manual_seed(0))

    def cached() -> None:
        decode(model, model.encoder.posterior(ids).mean(), torch.full((256,), 20))

    def whole_prefix() -> None:
        latent = LatentOutput.of(model.encoder.posterior(ids).mean())
        tokens = torch.full((256, 1), 1)
        for _ in range(20):
            logits = model(decoder_input_ids=tokens, encoder_outputs=latent).logits
            tokens = torch.cat([tokens, logits[:, -1:].argmax(-1)], 1)

    ratios = ratio({"cached": cached, "prefix": whole_prefix}, "cached", repeats)
    return {"whole prefix at every step / cached, 256 texts of 20 tokens": ratios["prefix"]}


@torch.no_grad()
def samples(count: int = 2048) -> dict[str, float]:
    """Prior samples at the small size: what 100,000 would take, in minutes."""
    model = model_of("small", "nvae").eval()
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(5, 21, (count,), generator=generator)
    start = time.perf_counter()
    for part in lengths.split(256):
        decode(model, model.encoder.bottleneck.prior(part, generator), 2 * part)
    return {
        "minutes for 100,000 prior samples, small sizes, untrained": (time.perf_counter() - start) / count * 1e5 / 60
    }


@torch.no_grad()
def dropped(repeats: int) -> dict[str, float]:
    """A step of cross-attention over the mean at 512 tokens: 30 % of the vectors kept, against all of them."""
    torch.manual_seed(0)
    attention = nv.DenoisingAttention(256, 4)
    posterior = nv.NVIB(256)(torch.randn(16, 512, 256))
    gone = torch.rand(16, 512) > 0.3
    fewer = nv.Posterior(
        alpha=torch.cat([posterior.alpha[:, :-1].masked_fill(gone, 0.0), posterior.alpha[:, -1:]], 1),
        mu=posterior.mu,
        log_sigma=posterior.log_sigma,
        mask=posterior.mask,
        prior=posterior.prior,
    )
    query = torch.randn(16, 1, 256)
    memories = {name: attention.project(p.mean().compact()) for name, p in (("all", posterior), ("fewer", fewer))}
    functions: dict[str, Callable[[], object]] = {
        name: lambda memory=memory: [attention(query, memory) for _ in range(20)] for name, memory in memories.items()
    }
    return {"cross-attention step with 30 % kept / all kept, 512 tokens": ratio(functions, "all", repeats)["fewer"]}


def search(path: Path, repeats: int, count: int = 1024) -> dict[str, float]:
    """The search for the vectors that texts need, and two looks, against one greedy reconstruction."""
    run = load_run(path)
    model, data = run.model, load_prepared(run.config.data)
    texts = [list(ids) for ids in data.split(run.config.partition, "validation")["input_ids"][:count]]
    functions: dict[str, Callable[[], object]] = {
        "reconstruction": lambda: reconstruct_ids(model, texts),
        "fewest": lambda: find_fewest(model, texts),
        "auto": lambda: choose_auto(model, texts),
    }
    found = ratio(functions, "reconstruction", repeats)
    return {f"{name} / greedy reconstruction, {len(texts)} texts": found[name] for name in ("fewest", "auto")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write the results as JSON, too")
    parser.add_argument("--repeats", type=int, default=7, help="runs of each, in turns (default: 7)")
    parser.add_argument("--run", type=Path, help="a run for any number of vectors, whose search is timed, too")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    results: dict[str, float] = {}
    for part in (
        lambda: steps(arguments.repeats),
        lambda: throughput(arguments.repeats),
        lambda: decoding(arguments.repeats),
        samples,
        lambda: dropped(arguments.repeats),
        lambda: search(arguments.run, arguments.repeats) if arguments.run else {},
    ):
        found = part()
        for name, value in found.items():
            print(f"{value:6.2f}  {name}", flush=True)
        results |= found
    if arguments.output:
        arguments.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
