"""Speed and peak memory of denoising attention against `torch.nn.MultiheadAttention`, on one thread.

    python benchmarks/attention.py --output benchmarks/results.json

The two run in turns and the table has ratios of medians, which a noisy machine disturbs little. Ordinary attention is
called as a decoder would, without weights and without a mask, which is its fastest way.
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
    leaves = [query, z, log_pi, *ordinary.parameters(), *denoising.parameters()]

    def forget() -> None:
        for leaf in leaves:
            leaf.grad = None

    def ordinary_step() -> None:
        ordinary(query, z, z, need_weights=False)[0].sum().backward()

    def denoising_step() -> None:
        denoising(query, sample).sum().backward()

    train = compare(ordinary_step, denoising_step, repeats, forget)
    ordinary.eval()
    with torch.no_grad():
        test = compare(lambda: ordinary(query, z, z, need_weights=False), lambda: denoising(query, mean), repeats)
    return Result(*train, *test)


def compare(
    base: Callable[[], object], other: Callable[[], object], repeats: int, reset: Callable[[], object] = lambda: None
) -> tuple[float, float, float, float]:
    """Milliseconds of `other`, its ratio to `base`, its peak memory in MiB, and the ratio of that."""
    times: dict[str, list[float]] = {"base": [], "other": []}
    for _ in range(repeats + 2):
        for name, function in (("base", base), ("other", other)):
            reset()
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write the table as JSON, too")
    parser.add_argument("--repeats", type=int, default=25, help="runs of each, in turns (default: 25)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("Time and peak memory as a ratio to torch.nn.MultiheadAttention; in brackets, at most.\n")
    print("| B, queries, n, p, heads | train step | memory | test time | memory |\n|---|---|---|---|---|", flush=True)
    rows = []
    for case in CASES:
        result = measure(case, arguments.repeats)
        rows.append({"case": asdict(case), "result": asdict(result)})
        shape = f"{case.batch}, {case.queries}, {case.n}, {case.p}, {case.heads}"
        cells = (
            (result.train_ratio, case.train_at_most),
            (result.train_memory_ratio, TRAIN_MEMORY_AT_MOST),
            (result.test_ratio, case.test_at_most),
            (result.test_memory_ratio, TEST_MEMORY_AT_MOST),
        )
        print("| " + " | ".join([shape, *(f"{got:.2f} ({limit:g})" for got, limit in cells)]) + " |", flush=True)
    if arguments.output:
        machine = {"processor": platform.processor() or platform.machine(), "torch": torch.__version__, "threads": 1}
        arguments.output.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")
        print(f"\nWritten to {arguments.output}.")


if __name__ == "__main__":
    main()
