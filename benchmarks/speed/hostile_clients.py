"""What clients that lie do to the model: 3 of 30 send their update turned round and ten times as long.

    python -m benchmarks.speed.hostile_clients DIR [--rounds 20] [--only NAME]

The embedded default, stage finetune, with ten clients per round so that Krum has enough; in a round none to three
of the ten lie. Every run is computed in this process, one after another, on the same partition, with the same sampling.
Prints the model utility of each aggregator at the end, honest and attacked, with and without the bound on the length of
updates, and how many updates were shortened or refused.
"""

from __future__ import annotations

import argparse
import threading
from collections import Counter
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict, UserConfig

from oblivionis.client.app import app
from oblivionis.config import compose as configuration
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.progress import Events
from oblivionis.server.app import serve
from strategies import message_keys
from strategies.rounds.memory_grid import MemoryGrid, Node

LIARS = (4, 13, 22)
FACTOR = -10.0
CLIENTS = 30
UNBOUNDED = "federation.max_update_norm=null"
CELLS = {
    "FedAvg, nobody lies": (False, ["strategy=fedavg"]),
    "FedAvg, not bounded": (True, ["strategy=fedavg", UNBOUNDED]),
    "FedAvg, at most 10 x the median": (True, ["strategy=fedavg"]),
    "FedAvg, at most 2 x the median": (True, ["strategy=fedavg", "federation.max_update_norm=2"]),
    "FedMedian, not bounded": (True, ["strategy=fedmedian", UNBOUNDED]),
    "Trimmed mean, beta 0.3, not bounded": (
        True,
        ["strategy=fedtrimmedmean", "strategy.params.beta=0.3", UNBOUNDED],
    ),
    "Krum, f = 3, not bounded": (True, ["strategy=krum", "strategy.params.num_malicious_nodes=3", UNBOUNDED]),
    "Multi-Krum, f = 3, m = 5, not bounded": (
        True,
        [
            "strategy=multikrum",
            "strategy.params.num_malicious_nodes=3",
            "strategy.params.num_nodes_to_select=5",
            UNBOUNDED,
        ],
    ),
}
SETTINGS = (
    "stages=[finetune]",
    "federation.fraction_train=0.34",
    "evaluation.every=0",
    "evaluation.at_start=false",
    "evaluation.leakage.full_samples=0",
    "evaluation.ruler.enabled=false",
    "evaluation.wikimem.enabled=false",
    "evaluation.full.questions_per_set=20",
    "evaluation.full.max_new_tokens=48",
)


def client(partition: int, lies: bool) -> Node:
    """A client of the real ClientApp in this process; one that lies moves the other way, ten times as far."""
    config: UserConfig = {"partition-id": partition, "num-partitions": CLIENTS}
    context = Context(run_id=1, node_id=partition, node_config=config, state=RecordDict(), run_config={})

    def answer(message: Message) -> RecordDict | Error:
        reply = app(message=message, context=context)
        if reply.has_error():
            return reply.error
        if lies and message.metadata.message_type == message_keys.TRAIN:
            sent = message.content.array_records[message_keys.ARRAYS][message_keys.ADAPTER].numpy()
            update = reply.content.array_records[message_keys.ARRAYS][message_keys.ADAPTER].numpy() - sent
            forged = (sent + np.float32(FACTOR) * update).astype(np.float32)
            reply.content[message_keys.ARRAYS] = ArrayRecord({message_keys.ADAPTER: Array(forged)})
        return reply.content

    return answer


def measure(folder: Path, name: str, rounds: int) -> tuple[float, Counter[str]]:
    """The model utility at the end of a run, and how many updates were refused and shortened."""
    attacked, overrides = CELLS[name]
    rounds_setting = f"federation.rounds.finetune={rounds}"
    config = configuration.compose("default", [*SETTINGS, rounds_setting, f"output={folder}", *overrides])
    run = RunDirectory.create(Path(config.output), None)
    run.write_config(configuration.to_yaml(config))
    grid = MemoryGrid({p: client(p, attacked and p in LIARS) for p in range(CLIENTS)})
    serve(config, grid, run, Events(), threading.Event())
    rows = [row for row in run.metrics() if row["evaluator"] == "federation"]
    counts = Counter(entry["what"] for row in rows for entry in row.get("cut", ()))
    counts["refused"] = sum(len(row["clients"].get("failed", ())) for row in rows)
    summary = run.stage_summary("finetune") or {}
    return float(summary["metrics"]["model_utility"]), counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", choices=CELLS)
    arguments = parser.parse_args()
    print("| aggregator | model utility | updates shortened | refused |\n| --- | ---: | ---: | ---: |", flush=True)
    for name in [arguments.only] if arguments.only else CELLS:
        utility, counts = measure(arguments.folder, name, arguments.rounds)
        print(f"| {name} | {utility:.3f} | {counts['norm']} | {counts['refused']} |", flush=True)


if __name__ == "__main__":
    main()
