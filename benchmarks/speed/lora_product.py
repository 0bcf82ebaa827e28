"""The mean of LoRA products without the matrices themselves: `strategies.rules.lora_product` against numpy's plain way.

    python -m benchmarks.speed.lora_product [--shapes 512x512 2048x2048] [--ranks 8 32] [--clients 3 10] [--repeats 3]

One module of out x in per line. Plain: form each B_k A_k, average them, `numpy.linalg.svd` of out x in, cut to the
rank; in float64, as ours, and in float32. The ways take turns; the median of the repeats counts. "deviation" is the
largest difference between the two float64 products, as a share of the largest number.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.rules.lora_product import product_mean


def plain(a: Sequence[NDArray], b: Sequence[NDArray], weights: Sequence[float], dtype: Any) -> tuple[NDArray, NDArray]:
    """Factors (r, in) and (out, r) of the truncated mean, through matrices of out x in."""
    total = np.zeros((b[0].shape[0], a[0].shape[1]), dtype)
    for x, y, weight in zip(a, b, weights, strict=True):
        total += dtype(weight) * (y.astype(dtype) @ x.astype(dtype))
    u, s, vt = np.linalg.svd(total, full_matrices=False)
    rank = a[0].shape[0]
    return vt[:rank], u[:, :rank] * s[:rank]


def models(outputs: int, inputs: int, rank: int, clients: int) -> tuple[list[NDArray], list[NDArray], list[float]]:
    """Clients' float32 factors as after local training: those of one global model, changed a little."""
    rng = np.random.default_rng(0)
    start_a, start_b = rng.normal(size=(rank, inputs)) / np.sqrt(inputs), 0.01 * rng.normal(size=(outputs, rank))
    a = [(start_a + 1e-3 * rng.normal(size=start_a.shape)).astype(np.float32) for _ in range(clients)]
    b = [(start_b + 1e-3 * rng.normal(size=start_b.shape)).astype(np.float32) for _ in range(clients)]
    return a, b, [2 * (k + 1) / (clients * (clients + 1)) for k in range(clients)]


def seconds(function: Callable[[], Any]) -> tuple[float, Any]:
    """Wall-clock seconds of a call, and its result."""
    began = time.perf_counter()
    result = function()
    return time.perf_counter() - began, result


def compare(outputs: int, inputs: int, rank: int, clients: int, repeats: int) -> None:
    """Print one line."""
    a, b, weights = models(outputs, inputs, rank, clients)
    ways: dict[str, Callable[[], Any]] = {
        "ours": lambda: product_mean(a, b, weights),
        "plain64": lambda: plain(a, b, weights, np.float64),
        "plain32": lambda: plain(a, b, weights, np.float32),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    products: dict[str, NDArray] = {}
    for _ in range(repeats):
        for name, way in ways.items():
            took, (new_a, new_b) = seconds(way)
            times[name].append(took)
            products[name] = new_b @ new_a
    ours, plain64, plain32 = (statistics.median(values) for values in times.values())
    deviation = np.abs(products["ours"] - products["plain64"]).max() / np.abs(products["plain64"]).max()
    print(
        f"{outputs:>5} x {inputs:<5} {rank:>4} {clients:>7} {ours:>9.4f} {plain64:>10.3f} {plain32:>10.3f} "
        f"{plain64 / ours:>8.1f} {plain32 / ours:>8.1f} {deviation:>10.1e}",
        flush=True,
    )


def main() -> None:
    """Measure and print one line per setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["512x512", "2048x2048"], metavar="OUTxIN")
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--clients", type=int, nargs="+", default=[3, 10])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print("  out x in    rank clients    ours s  float64 s  float32 s  ratio64  ratio32  deviation")
    for shape in options.shapes:
        outputs, inputs = map(int, shape.split("x"))
        for rank in options.ranks:
            for clients in options.clients:
                compare(outputs, inputs, rank, clients, options.repeats)


if __name__ == "__main__":
    main()
