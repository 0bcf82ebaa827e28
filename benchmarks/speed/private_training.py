"""Time of local training whose records are hidden (DP-SGD) against plain training, the quick way and record by record.

python -m benchmarks.speed.private_training
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from clients.record_level_dp import Privacy, train_privately
from clients.training import TrainSettings, train
from oblivionis.client.worker import Worker
from oblivionis.config.compose import compose


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=64, help="records of the client")
    parser.add_argument("--batch", type=int, default=16, help="records of an update")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    worker = Worker(compose("default", [f"federation.client_threads={arguments.threads}", "federation.clients=2"]))
    torch.set_num_threads(arguments.threads)
    model, flat = worker.assembled.model, worker.flat
    records = list(worker.holding(0).sequences)[: arguments.records]
    settings = TrainSettings(epochs=1, batch_size=arguments.batch, learning_rate=1e-3, warmup_epochs=0)
    privacy, initial = Privacy(1.0, 1.0, 0), flat.numpy()
    ways: dict[str, Callable[[], object]] = {
        "plain": lambda: train(model, flat, records, settings, seed=0),
        "private": lambda: train_privately(model, flat, records, settings, privacy, seed=0),
        "record by record": lambda: train_privately(model, flat, records, settings, privacy, seed=0, exactly=True),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(arguments.repeats + 1):
        for name, way in ways.items():
            flat.load(initial)
            began = time.perf_counter()
            way()
            if repeat:
                seconds[name].append(time.perf_counter() - began)
    print(f"{len(records)} records, {flat.size:,} trainable numbers, {arguments.batch} records an update")
    for name, values in seconds.items():
        ratio = statistics.median(b / a for a, b in zip(seconds["plain"], values, strict=True))
        print(f"{name:17s} median {statistics.median(values):.3f} s, {ratio:.2f} times plain training")


if __name__ == "__main__":
    main()
