"""How fast RULER's second lens is: against the machine's own matrix product, and against scikit-learn's brute force.

    python -m benchmarks.speed.ruler_lens2 [--records 20000] [--compared 5000] [--dim 768] [--repeats 3]

Records are independent normal numbers, in which no bound on a similarity ever spares a product. First `percentile_rank`
on as many forget as retain records, float32: the memory on top of the inputs (the process's `VmHWM` less its resident
memory before), and its operations per second beside those of plain large float32 products (`torch.mm` and numpy, of
which the faster counts). Operations are 2 per pair of records and dimension, as many as the definition asks for: n m
pairs of forget with retain and m m of retain with retain records; the second figure counts only the products that were
computed, of the symmetric half the blocks on or above the diagonal. Nothing but these products is counted.

Then `percentile_rank` against `sklearn.neighbors.NearestNeighbors(metric="cosine", algorithm="brute")`, which gives s_f
and, leaving each record itself out, s_r; in float32 and float64. Turns alternate, so that a busier machine slows down
both; the best turn of each counts. The exit status is 1 where similarities differ by more than 1e-6.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import torch
from sklearn.neighbors import NearestNeighbors

from benchmarks.speed.memory_estimate import peak_bytes
from evaluation.ruler.lenses import BLOCK_SIZE, percentile_rank


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def records(count: int, dim: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, dim), dtype=np.float32)


def products(dim: int) -> list[tuple[float, Callable[[], Any]]]:
    """Plain large float32 products: how many operations each takes, and the call."""
    tall, square = torch.randn(8192, dim), torch.randn(4096, 4096)
    out, flat = torch.empty(8192, 8192), torch.empty(4096, 4096)
    result = [
        (2.0 * 8192**2 * dim, lambda: torch.mm(tall, tall.T, out=out)),
        (2.0 * 4096**3, lambda: torch.mm(square, square, out=flat)),
    ]
    arrays = [(tall.numpy(), tall.numpy().T, out.numpy()), (square.numpy(), square.numpy(), flat.numpy())]
    numpy = [
        (size, lambda a=a, b=b, o=o: np.matmul(a, b, out=o))
        for (size, _), (a, b, o) in zip(result, arrays, strict=True)
    ]
    return [*result, *numpy]


def computed_pairs(count: int) -> int:
    """Pairs of records in the blocks on or above the diagonal."""
    ends = [min(start + BLOCK_SIZE, count) for start in range(0, count, BLOCK_SIZE)]
    return sum((end - start) * end for start, end in zip(range(0, count, BLOCK_SIZE), ends, strict=True))


def throughput(count: int, dim: int, repeats: int) -> None:
    forget, retain = records(count, dim, 0), records(count, dim, 1)
    before = psutil.Process().memory_info().rss
    best = seconds(lambda: percentile_rank(forget, retain))
    print(f"{count:,} x {count:,} records of dimension {dim}, float32, {torch.get_num_threads()} threads")
    print(
        f"memory above the inputs ({(forget.nbytes + retain.nbytes) / 2**20:.0f} MiB): "
        f"{(peak_bytes() - before) / 2**20:.0f} MiB"
    )
    plain = products(dim)
    rate = 0.0
    for _ in range(repeats):
        rate = max([rate, *(size / seconds(work) for size, work in plain)])
        best = min(best, seconds(lambda: percentile_rank(forget, retain)))
    rate = max([rate, *(size / seconds(work) for size, work in plain)])
    for name, pairs in (("asked for", 2.0 * count**2), ("computed", count**2 + computed_pairs(count))):
        done = 2 * dim * pairs / best
        print(f"operations {name:10} {done / 1e9:8.1f} GFLOP/s, {done / rate:6.1%} of a plain product's")
    print(f"plain product         {rate / 1e9:8.1f} GFLOP/s; percentile_rank {best:.2f} s")


def compare(count: int, dim: int, repeats: int, dtype: type) -> float:
    """Print both times and their ratio; the largest difference of a similarity."""
    forget, retain = records(count, dim, 2).astype(dtype), records(count, dim, 3).astype(dtype)

    def theirs() -> tuple[np.ndarray, np.ndarray]:
        search = NearestNeighbors(n_neighbors=1, metric="cosine", algorithm="brute").fit(retain)
        return 1 - search.kneighbors(forget)[0][:, 0], 1 - search.kneighbors()[0][:, 0]

    ours = percentile_rank(forget, retain)
    pairs = zip((ours.forget_similarity, ours.retain_similarity), theirs(), strict=True)
    difference = max(float(np.abs(mine - other).max()) for mine, other in pairs)
    times = np.array([(seconds(theirs), seconds(lambda: percentile_rank(forget, retain))) for _ in range(repeats)])
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
    options = parser.parse_args(arguments)
    if options.records:
        throughput(options.records, options.dim, options.repeats)
    if not options.compared:
        return 0
    differences = [compare(options.compared, options.dim, options.repeats, dtype) for dtype in (np.float32, np.float64)]
    return 0 if max(differences) <= 1e-6 else 1


if __name__ == "__main__":
    sys.exit(main())
