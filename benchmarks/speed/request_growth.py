"""What deletion requests cost the server, by how many there are: ledger, batches, node map, holdings, report.

    python -m benchmarks.speed.request_growth [--requests 100 1000 10000] [--per-round 100] [--json FILE] [--figure SVG]

In this process, without a model: as many clients as requests, each of which asks for its one record at
round 1; FedTU serves them in batches of `--per-round` (`unlearning.requests.per_round`) on an in-memory federation. The
unit is processor seconds of this process. The exponent is the slope of a straight line through the logarithms: 1 is
linear, 2 quadratic.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from benchmarks.speed.supernodes import draw, exponent
from oblivionis.config import compose as configuration
from oblivionis.data.partition import partition
from oblivionis.data.records import Corpus, Record
from oblivionis.erasure.ledger import AllAtRound, Ledger
from oblivionis.erasure.record_holders import Holdings, SimulatedRequests
from oblivionis.erasure.verification_rules import VERIFIED, Judgement, Thresholds
from oblivionis.reports.html import request_pages
from oblivionis.runs.directory import RunDirectory
from strategies import message_keys
from strategies.rounds.callbacks import Listener
from strategies.rounds.fedtu import FedTU, NodeMap, Options
from strategies.rounds.memory_grid import MemoryGrid
from strategies.rules.factory import build

WANTED = 1.3
"""Largest exponent: n log n looks like that over two decades, n² like 2."""
PARTICIPANTS = 10

Parts = dict[str, float]


class Applied(Listener):
    """Notes in the ledger what each exchange served, as a stage does."""

    def __init__(self, requests: SimulatedRequests) -> None:
        self._requests = requests

    def checkpoint(self, server_round: int, moment: str, arrays: ArrayRecord, state: object) -> None:
        if moment == "after_unlearn":
            self._requests.applied(server_round, "0" * 64, "1" * 64)


def measure(count: int, per_round: int, folder: Path) -> Parts:
    """Processor seconds of each part, with `count` requests of `count` clients."""
    parts: Parts = {}
    records = tuple(Record(f"r{i}", f"q{i}", "a", f"subject {i}") for i in range(count))
    corpus = Corpus("made", records, frozenset(r.id for r in records))
    with _timed(parts, "partition"):
        division = partition(corpus, scheme="iid", clients=count)
    with _timed(parts, "holdings"):
        holdings = Holdings.of(corpus, division)
    grid = MemoryGrid({client: _answering(client) for client in range(count)})
    nodes = NodeMap(partitions=count)
    with _timed(parts, "node map"):
        nodes.refresh(grid)
    run = RunDirectory.create(folder, f"run-{count}")
    config = configuration.compose("default", [f"federation.clients={count}", f"data.authors={min(count, 5000)}"])
    run.write_config(configuration.to_yaml(config))
    rounds = -(-count // per_round)
    requests = SimulatedRequests(
        AllAtRound(1), Ledger(run.ledger_path), holdings, Thresholds(0.5, 1.0, 0.5), rounds, per_round=per_round
    )
    with _timed(parts, "served"):
        FedTU(
            build("fedavg", fraction_train=PARTICIPANTS / count),
            requests=requests,
            listener=Applied(requests),
            nodes=nodes,
            eligible=lambda client: client < PARTICIPANTS,
            options=Options(stage="unlearn"),
        ).start(grid, ArrayRecord({message_keys.ADAPTER: Array(np.zeros(4, np.float32))}), num_rounds=rounds)
    assert not requests.waiting(rounds), "all of them are served"
    with _timed(parts, "verified"):
        good = Judgement(VERIFIED, "", 0.0, {})
        requests.verify(rounds, {r.id: good for r in requests.to_verify()})
    with _timed(parts, "ledger read"):
        Ledger(run.ledger_path)
    with _timed(parts, "report pages"):
        request_pages.write_pages(run, config)
    return parts


def _answering(client: int) -> Callable[[Message], RecordDict]:
    def answer(message: Message) -> RecordDict:
        metrics = MetricRecord({message_keys.NUM_EXAMPLES: 1, message_keys.PARTITION_ID: client})
        return RecordDict({message_keys.ARRAYS: message.content[message_keys.ARRAYS], message_keys.METRICS: metrics})

    return answer


@contextmanager
def _timed(parts: Parts, name: str) -> Iterator[None]:
    began = time.process_time()
    yield
    parts[name] = time.process_time() - began


def main() -> None:
    """Measure and print a line per part, with its exponent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--per-round", type=int, default=100)
    parser.add_argument("--json", type=Path, help="write the measurements there, too")
    parser.add_argument("--figure", type=Path, help="draw the parts over the number of requests there, as SVG")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        measure(min(arguments.requests), arguments.per_round, Path(folder) / "warm")
        found = {count: measure(count, arguments.per_round, Path(folder)) for count in arguments.requests}
    print(f"{'processor seconds':<18}" + "".join(f"{count:>12}" for count in found) + f"{'exponent':>10}")
    for name in next(iter(found.values())):
        values = [(count, parts[name]) for count, parts in found.items()]
        slope = exponent(values[-2:]) if len(values) > 1 else float("nan")
        mark = "" if slope <= WANTED else f"  above {WANTED:g}"
        print(f"{name:<18}" + "".join(f"{seconds:>12.4f}" for _, seconds in values) + f"{slope:>10.2f}{mark}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1))
    if arguments.figure is not None:
        lines = {name: [(count, parts[name]) for count, parts in found.items()] for name in next(iter(found.values()))}
        draw(arguments.figure, lines, "requests, one for each client", "processor seconds")


if __name__ == "__main__":
    main()
