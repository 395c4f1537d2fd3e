"""Speed and peak memory of denoising attention and of self-attention over a mixture against torch's own, on one thread.

    python benchmarks/attention.py --output benchmarks/results.json

The two run in turns and the tables have ratios of medians of CPU time, which a noisy machine disturbs little. Ordinary
attention is called as a decoder would, without weights and without a mask, which is its fastest way.
`MixtureSelfAttention` is compared with the `torch.nn.TransformerEncoderLayer` of the same sizes, whose test time is
torch's fused layer.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import open_nvib as nv


@dataclass(frozen=True)
class Case:
    """A shape, and the ratios to ordinary attention that open_nvib promises to stay under."""

    batch: int
    queries: int
    n: int
    p: int
    heads: int
    train_at_most: float
    test_at_most: float


CASES = [
    Case(64, 20, 21, 256, 1, 1.10, 1.6),
    Case(16, 50, 51, 512, 8, 1.10, 3.5),
    Case(4, 512, 513, 512, 8, 1.15, 6.0),
    Case(1, 2048, 2049, 256, 4, 1.25, 5.0),
]
TRAIN_MEMORY_AT_MOST, TEST_MEMORY_AT_MOST = 1.5, 4.0


@dataclass(frozen=True)
class SelfCase:
    """A shape of a set whose vectors attend to each other, with a feed-forward layer of 4·p."""

    batch: int
    n: int
    p: int
    heads: int


SELF_CASES = [SelfCase(64, 17, 64, 4), SelfCase(16, 50, 256, 8), SelfCase(4, 257, 512, 8), SelfCase(1, 1025, 512, 8)]
SELF_AT_MOST, SELF_MEMORY_AT_MOST = 1.1, 1.5


@dataclass(frozen=True)
class Result:
    train_ms: float
    train_ratio: float
    train_memory_mib: float
    train_memory_ratio: float
    test_ms: float
    test_ratio: float
    test_memory_mib: float
    test_memory_ratio: float


def measure(case: Case, repeats: int) -> Result:
    torch.manual_seed(0)
    ordinary = torch.nn.MultiheadAttention(case.p, case.heads, batch_first=True)
    denoising = nv.DenoisingAttention(case.p, case.heads)
    query = torch.randn(case.batch, case.queries, case.p, requires_grad=True)
    z = torch.randn(case.batch, case.n, case.p, requires_grad=True)
    log_pi = torch.randn(case.batch, case.n).log_softmax(-1).requires_grad_()
    sample = nv.ImpulseMixture(z=z, log_pi=log_pi)
    log_sigma = -1 + 0.3 * torch.randn(case.batch, case.n, case.p)
    mean = nv.GaussianMixture(mu=z, log_sigma=log_sigma, log_alpha=log_pi).detach()
    return train_and_test(
        (ordinary, denoising),
        lambda: ordinary(query, z, z, need_weights=False)[0],
        lambda: denoising(query, sample if denoising.training else mean),
        (query, z, log_pi),
        repeats,
    )


def measure_self_attention(case: SelfCase, repeats: int) -> Result:
    torch.manual_seed(0)
    sizes = case.p, case.heads, 4 * case.p, 0.0
    ordinary = torch.nn.TransformerEncoderLayer(*sizes, batch_first=True, norm_first=True)
    weighted = nv.MixtureSelfAttention(*sizes)
    z = torch.randn(case.batch, case.n, case.p, requires_grad=True)
    log_pi = torch.randn(case.batch, case.n).log_softmax(-1).requires_grad_()
    mixture = nv.ImpulseMixture(z=z, log_pi=log_pi)
    return train_and_test((ordinary, weighted), lambda: ordinary(z), lambda: weighted(mixture).z, (z, log_pi), repeats)


def train_and_test(
    modules: tuple[torch.nn.Module, torch.nn.Module],
    base: Callable[[], Tensor],
    other: Callable[[], Tensor],
    inputs: tuple[Tensor, ...],
    repeats: int,
) -> Result:
    """Compare what two modules compute of their inputs, with the gradient in training mode, then without."""
    leaves = [*inputs, *modules[0].parameters(), *modules[1].parameters()]

    def forget() -> None:
        for leaf in leaves:
            leaf.grad = None

    train = compare(lambda: base().sum().backward(), lambda: other().sum().backward(), repeats, forget)
    for module in modules:
        module.eval()
    with torch.no_grad():
        test = compare(base, other, repeats)
    return Result(*train, *test)


def compare(
    base: Callable[[], object], other: Callable[[], object], repeats: int, reset: Callable[[], object] = lambda: None
) -> tuple[float, float, float, float]:
    """Milliseconds of `other`, its ratio to `base`, its peak memory in MiB, and the ratio of that."""
    times: dict[str, list[float]] = {"base": [], "other": []}
    for _ in range(repeats + 2):
        for name, function in (("base", base), ("other", other)):
            reset()
            start = time.process_time()
            function()
            times[name].append(time.process_time() - start)
    base_time, other_time = (statistics.median(times[name][2:]) for name in ("base", "other"))  # two to warm up
    base_peak, other_peak = (peak_bytes(function, reset) for function in (base, other))
    return 1e3 * other_time, other_time / base_time, other_peak / 2**20, other_peak / base_peak


@contextmanager
def silent_stderr() -> Iterator[None]:
    """The profiler, which counts the memory, writes about itself to the standard error of the process."""
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


def peak_bytes(function: Callable[[], object], reset: Callable[[], object]) -> int:
    """The most that torch has allocated at once while `function` runs, above what was there before."""
    reset()
    with silent_stderr(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = function()
    recorded: Any = profiler.profiler
    events = [event for event in recorded.kineto_results.events() if event.name() == "[memory]"]
    del result
    current = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        current += event.nbytes()
        peak = max(peak, current)
    return peak


def print_row(shape: tuple[int, ...], result: Result, *limits: float) -> None:
    """Print a row of Markdown: the ratios of `result`, each with its limit."""
    ratios = result.train_ratio, result.train_memory_ratio, result.test_ratio, result.test_memory_ratio
    cells = [f"{ratio:.2f} ({limit:g})" for ratio, limit in zip(ratios, limits, strict=True)]
    print("| " + " | ".join([", ".join(map(str, shape)), *cells]) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write the table as JSON, too")
    parser.add_argument("--repeats", type=int, default=25, help="runs of each, in turns (default: 25)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print("Time and peak memory as a ratio to torch.nn.MultiheadAttention; in brackets, at most.\n")
    print("| B, queries, n, p, heads | train step | memory | test time | memory |\n|---|---|---|---|---|", flush=True)
    for case in CASES:
        result = measure(case, arguments.repeats)
        rows.append({"case": asdict(case), "result": asdict(result)})
        shape = case.batch, case.queries, case.n, case.p, case.heads
        print_row(shape, result, case.train_at_most, TRAIN_MEMORY_AT_MOST, case.test_at_most, TEST_MEMORY_AT_MOST)
    self_rows = []
    print("\nSelf-attention over a mixture, as a ratio to torch.nn.TransformerEncoderLayer.\n")
    print("| B, n, p, heads | train step | memory | test time | memory |\n|---|---|---|---|---|", flush=True)
    for case in SELF_CASES:
        result = measure_self_attention(case, arguments.repeats)
        self_rows.append({"case": asdict(case), "result": asdict(result)})
        limits = SELF_AT_MOST, SELF_MEMORY_AT_MOST
        print_row((case.batch, case.n, case.p, case.heads), result, *limits, *limits)
    if arguments.output:
        machine = {"processor": platform.processor() or platform.machine(), "torch": torch.__version__, "threads": 1}
        arguments.output.write_text(
            json.dumps({"machine": machine, "rows": rows, "self_attention": self_rows}, indent=2) + "\n"
        )
        print(f"\nWritten to {arguments.output}.")


if __name__ == "__main__":
    main()
