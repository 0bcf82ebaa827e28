"""How fast RULER's second lens is: against the machine's own matrix product, and against scikit-learn's brute force.

    python -m benchmarks.speed.ruler_lens2 [--records 20000] [--compared 5000] [--dim 768] [--repeats 3] [--processor]

Records are independent normal numbers. First `percentile_rank` on as many forget as retain records, float32: the memory
on top of the inputs (the process's `VmHWM` less its resident memory before), and its operations per second next to
those of plain large float64 products (`torch.mm` and numpy, of which the faster counts), in which it computes.
Operations are 2 per pair of records and dimension, as many as the definition asks for: n m pairs of forget with retain
and m m of retain with retain records; the second figure counts only the products that were computed, of the symmetric
half the blocks on or above the diagonal. Nothing but these products is counted.

Then `percentile_rank` against `sklearn.neighbors.NearestNeighbors(metric="cosine", algorithm="brute")`, which gives s_f
and, leaving each record itself out, s_r; in float32 and float64. Turns alternate, so that a busier machine slows down
both; the best turn of each counts. The exit status is 1 where similarities differ by more than 1e-6.

On a machine that does other work, set OMP_WAIT_POLICY=passive, or threads that wait for one another block the work they
wait for; --processor takes the time of the processor on one thread instead of wall time on all.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import psutil
import torch
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits

from benchmarks.speed.memory_estimate import peak_bytes
from evaluation.ruler.lenses import BLOCK_SIZE, percentile_rank

Clock: TypeAlias = Callable[[], float]


def seconds(clock: Clock, work: Callable[[], Any]) -> float:
    start = clock()
    work()
    return clock() - start


def records(count: int, dim: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, dim), dtype=np.float32)


def products(dim: int) -> list[tuple[float, Callable[[], Any]]]:
    """Plain large float64 products: how many operations each takes, and the call."""
    result: list[tuple[float, Callable[[], Any]]] = []
    for rows, inner in ((8192, dim), (4096, 4096)):
        # Of two matrices: numpy computes but half of a matrix times its own transpose.
        a, b, out = (torch.randn(shape, dtype=torch.float64) for shape in ((rows, inner), (inner, rows), (rows, rows)))
        x, y, z = a.numpy(), b.numpy(), out.numpy()
        operations = 2.0 * rows**2 * inner
        result.append((operations, partial(torch.mm, a, b, out=out)))
        result.append((operations, partial(np.matmul, x, y, out=z)))
    return result


def computed_pairs(count: int) -> int:
    """Pairs of records in the blocks on or above the diagonal."""
    ends = [min(start + BLOCK_SIZE, count) for start in range(0, count, BLOCK_SIZE)]
    return sum((end - start) * end for start, end in zip(range(0, count, BLOCK_SIZE), ends, strict=True))


def throughput(count: int, dim: int, repeats: int, clock: Clock) -> None:
    """Print the memory and the operations per second of `percentile_rank` next to those of plain products."""
    forget, retain = records(count, dim, 0), records(count, dim, 1)
    before = psutil.Process().memory_info().rss
    percentile_rank(forget, retain)
    memory, inputs = peak_bytes() - before, forget.nbytes + retain.nbytes
    print(f"{count:,} x {count:,} records of dimension {dim}, float32, {torch.get_num_threads()} threads")
    print(f"memory above the inputs ({inputs / 2**20:.0f} MiB): {memory / 2**20:.0f} MiB")
    plain = products(dim)
    rates, times = [], []
    for _ in range(repeats):
        rates.append(max(size / seconds(clock, work) for size, work in plain))
        times.append(seconds(clock, lambda: percentile_rank(forget, retain)))
    rate, best = max(rates), min(times)
    print(f"plain product         {rate / 1e9:8.1f} GFLOP/s; percentile_rank {best:.2f} s")
    for name, pairs in (("asked for", 2.0 * count**2), ("computed", count**2 + computed_pairs(count))):
        work = 2 * dim * pairs
        turns = [work / taken / plain_rate for taken, plain_rate in zip(times, rates, strict=True)]
        print(
            f"operations {name:10} {work / best / 1e9:8.1f} GFLOP/s, {work / best / rate:4.0%} of a plain product's "
            f"(turns {min(turns):.0%} to {max(turns):.0%})"
        )


def compare(count: int, dim: int, repeats: int, dtype: type, clock: Clock) -> float:
    """Print both times and their ratio; the largest difference of a similarity."""
    forget, retain = records(count, dim, 2).astype(dtype), records(count, dim, 3).astype(dtype)

    def theirs() -> tuple[np.ndarray, np.ndarray]:
        search = NearestNeighbors(n_neighbors=1, metric="cosine", algorithm="brute").fit(retain)
        return 1 - search.kneighbors(forget)[0][:, 0], 1 - search.kneighbors()[0][:, 0]

    ours = percentile_rank(forget, retain)
    pairs = zip((ours.forget_similarity, ours.retain_similarity), theirs(), strict=True)
    difference = max(float(np.abs(one - other).max()) for one, other in pairs)
    works = (theirs, lambda: percentile_rank(forget, retain))
    times = np.array([[seconds(clock, work) for work in works] for _ in range(repeats)])
    slow, fast = times.min(0)
    ratios = times[:, 0] / times[:, 1]
    print(
        f"{count:,} x {count:,}, dimension {dim}, {np.dtype(dtype).name}: scikit-learn {slow:.2f} s, percentile_rank "
        f"{fast:.2f} s, ratio {slow / fast:.1f} (turns {ratios.min():.1f} to {ratios.max():.1f}), "
        f"largest difference {difference:.1e}"
    )
    return difference


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; the exit status is 1 where a similarity differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20000, help="forget and retain records; 0: leave this part out")
    parser.add_argument("--compared", type=int, default=5000, help="records against scikit-learn; 0: leave it out")
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--repeats", type=int, default=3, help="turns, of which the best counts")
    parser.add_argument("--processor", action="store_true", help="time of the processor, one thread")
    options = parser.parse_args(arguments)
    clock = time.process_time if options.processor else time.perf_counter
    if options.processor:
        torch.set_num_threads(1)
        threadpool_limits(1, "blas")
    if options.records:
        throughput(options.records, options.dim, options.repeats, clock)
    if not options.compared:
        return 0
    differences = [
        compare(options.compared, options.dim, options.repeats, dtype, clock) for dtype in (np.float32, np.float64)
    ]
    return 0 if max(differences) <= 1e-6 else 1


if __name__ == "__main__":
    sys.exit(main())
