"""What FedTU adds to Flower's bare FedAvg: seconds per round on the server, without clients and network.

    python -m benchmarks.speed.strategy_overhead [--nodes 30 300] [--floats 300000 10000000] [--rounds 5] [--samples 3]

Clients are functions that return arrays made beforehand, so that a round costs what the server does: sampling, judging
the replies, aggregating, and writing the new arrays. A tenth of the nodes is sampled. `FedAvg` is Flower's class in
Flower's own loop; `FedTU` is the loop of this project around this project's FedAvg. The best of the samples counts.
"""

from __future__ import annotations

import argparse
import gc
import logging
import time

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from flwr.serverapp.strategy import Strategy

from strategies import message_keys
from strategies.rounds.fedtu import FedTU
from strategies.rounds.memory_grid import MemoryGrid
from strategies.rules.factory import build

WANTED_SECONDS = 0.3


def federation(nodes: int, floats: int) -> MemoryGrid:
    """Nodes that answer one of four ready-made models of `floats` float32 numbers."""
    rng = np.random.default_rng(0)
    models = [ArrayRecord({message_keys.ADAPTER: Array(rng.normal(size=floats).astype(np.float32))}) for _ in range(4)]

    def client(partition: int):
        content = RecordDict(
            {
                message_keys.ARRAYS: models[partition % 4],
                message_keys.METRICS: MetricRecord({message_keys.NUM_EXAMPLES: partition + 1}),
            }
        )
        return lambda message: content

    return MemoryGrid({p: client(p) for p in range(nodes)})


def seconds_per_round(strategy: Strategy, grid: MemoryGrid, floats: int, rounds: int) -> float:
    """Wall-clock seconds per round, the mean over `rounds`."""
    initial = ArrayRecord({message_keys.ADAPTER: Array(np.zeros(floats, dtype=np.float32))})
    gc.collect()
    began = time.perf_counter()
    strategy.start(grid, initial, num_rounds=rounds)
    return (time.perf_counter() - began) / rounds


def main() -> None:
    """Measure and print one line per setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[30, 300])
    parser.add_argument("--floats", type=int, nargs="+", default=[300_000, 10_000_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=3)
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print(f"{'nodes':>6} {'floats':>10} {'FedAvg s':>10} {'FedTU s':>10} {'added s':>10}  wanted <= {WANTED_SECONDS}")
    for nodes in options.nodes:
        for floats in options.floats:
            grid = federation(nodes, floats)
            bare, ours = [], []
            for _ in range(options.samples):
                flower = FlowerFedAvg(fraction_train=0.1, fraction_evaluate=0.0, min_train_nodes=1)
                bare.append(seconds_per_round(flower, grid, floats, options.rounds))
                fedtu = FedTU(build("fedavg", fraction_train=0.1))
                ours.append(seconds_per_round(fedtu, grid, floats, options.rounds))
            added = min(ours) - min(bare)
            verdict = "ok" if added <= WANTED_SECONDS else "too slow"
            print(f"{nodes:>6} {floats:>10} {min(bare):>10.4f} {min(ours):>10.4f} {added:>+10.4f}  {verdict}")


if __name__ == "__main__":
    main()
