"""Time of a local round with FedProx against one without its proximal term.

python -m benchmarks.speed.fedprox_round --tofu DIR
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import torch

from benchmarks.speed.local_training import SETTINGS, prepare
from clients.flat_parameters import FlatParameters
from clients.training import Prox, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tofu", type=Path, required=True, help="folder with TOFU's full.json")
    parser.add_argument("--records", type=int, default=133, help="records of the client: 4000 over 30")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model, sequences = prepare("embedded", arguments.tofu, arguments.records)
    flat = FlatParameters(model)
    initial = flat.numpy()
    seconds: dict[str, list[float]] = {"FedAvg": [], "FedProx": []}
    for repeat in range(arguments.repeats + 1):
        for name, prox in (("FedAvg", None), ("FedProx", Prox(0.01, initial))):
            flat.load(initial)
            report = train(model, flat, sequences, SETTINGS, prox=prox, seed=0)
            if repeat:
                seconds[name].append(report.seconds)
    for name, values in seconds.items():
        print(f"{name:8s} median {statistics.median(values):.3f} s, fastest {min(values):.3f} s")
    pairs = [b / a for a, b in zip(seconds["FedAvg"], seconds["FedProx"], strict=True)]
    print(f"FedProx / FedAvg: median of {len(pairs)} paired ratios {statistics.median(pairs):.3f}")


if __name__ == "__main__":
    main()
