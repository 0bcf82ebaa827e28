"""What a secure sum costs each client and the server, and its masks compared with those of Flower's SecAgg+.

    python -m benchmarks.speed.secure_sum [--clients 3 10 30] [--numbers 312320] [--repeats 3]

In one process, client after client: seconds of one client in all stages (but its training), of the server, and
bytes that one client sends, next to the plain weighted mean and its bytes. Below that the same pairwise masks as Flower
makes them (`pseudo_rand_gen` and numpy's arithmetic, as in its `secaggplus_mod`), seconds for one client with so many
neighbours; medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from rich.console import Console
from rich.table import Table

from strategies import message_keys
from strategies.flower_internals import parameters_addition, parameters_mod, pseudo_rand_gen
from strategies.rounds.memory_grid import MemoryGrid
from strategies.secure import stage_keys as w
from strategies.secure.agreed_parameters import SecureSettings
from strategies.secure.client import Participant
from strategies.secure.masks import Stream
from strategies.secure.server import SecureSum

STAGES: Mapping[str, str] = {
    w.KEYS_TYPE: "keys",
    w.SHARES_TYPE: "shares",
    w.CONFIRM_TYPE: "confirm",
    w.UNMASK_TYPE: "unmask",
}


class Timed:
    """A client that adds the same update each time; `seconds` and `sent` bytes add up over its messages."""

    def __init__(self, me: int, update: np.ndarray) -> None:
        self._participant, self._update = Participant({}, me), update
        self.seconds, self.sent = 0.0, 0

    def __call__(self, message: Message) -> RecordDict:
        asked = message.content.config_records[w.RECORD]
        began = time.perf_counter()
        stage = STAGES.get(message.metadata.message_type)
        if stage is None:
            answer = self._participant.masked(asked, self._update, 100)
        else:
            answer = getattr(self._participant, stage)(asked)
        self.seconds += time.perf_counter() - began
        self.sent += sum(map(_size, answer.values()))
        return RecordDict({w.RECORD: answer})


def _size(value: Any) -> int:
    return sum(map(_size, value)) if isinstance(value, list) else len(value) if isinstance(value, bytes) else 8


def held(clients: int, numbers: int) -> tuple[float, float, float]:
    """Seconds of one client and of the server, bytes that one client sends."""
    random = np.random.default_rng(0)
    update = random.normal(0, 0.01, numbers)
    members = {c: Timed(c, update) for c in range(clients)}
    grid = MemoryGrid(members)
    names = {node: c for c, node in grid.node_ids.items()}
    messages = [
        Message(RecordDict(), dst_node_id=grid.node_ids[c], message_type=message_keys.TRAIN) for c in range(clients)
    ]
    terms = SecureSettings(clipping=1.0).terms("train", clients, (), numbers)
    began = time.perf_counter()
    summed = SecureSum(grid, lambda m: names[m.metadata.dst_node_id], terms, 60).hold(messages, numbers, 60)
    total = time.perf_counter() - began
    assert not summed.fault, summed.fault
    assert np.abs(summed.update / summed.weight - update).max() <= terms.step
    inside = sum(member.seconds for member in members.values())
    return inside / clients, total - inside, sum(member.sent for member in members.values()) / clients


def plain(clients: int, numbers: int) -> float:
    """Seconds of the weighted mean of float32 updates."""
    rows = np.random.default_rng(0).normal(0, 0.01, (clients, numbers)).astype(np.float32)
    began = time.perf_counter()
    np.average(rows, axis=0, weights=np.full(clients, 100.0))
    return time.perf_counter() - began


def our_masks(neighbours: int, numbers: int) -> float:
    """Seconds for the masks that one client adds."""
    words = np.zeros(numbers, np.uint64)
    began = time.perf_counter()
    for neighbour in range(neighbours):
        Stream(bytes([neighbour]) * 32, "session").add(words, negative=neighbour % 2 == 1)
    return time.perf_counter() - began


def flowers_masks(neighbours: int, numbers: int) -> float:
    """The same by Flower's generator, modulo 2³², as its client does it."""
    mod, words = 1 << 32, [np.zeros(numbers, np.int64)]
    began = time.perf_counter()
    for neighbour in range(neighbours):
        mask = pseudo_rand_gen(bytes([neighbour]) * 32, mod, [(numbers,)])
        words = parameters_addition(words, mask)
    parameters_mod(words, mod)
    return time.perf_counter() - began


def median(measure: Callable[..., Any], repeats: int, *arguments: int) -> Any:
    """The median of `measure(*arguments)`, number by number where it gives several."""
    found = [measure(*arguments) for _ in range(repeats)]
    if isinstance(found[0], tuple):
        return tuple(statistics.median(column) for column in zip(*found, strict=True))
    return statistics.median(found)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[3, 10, 30])
    parser.add_argument("--numbers", type=int, default=312_320)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    columns = ("clients", "a client, s", "the server, s", "plain mean, s", "a client sends, MB", "plain, MB", "ratio")
    table = Table(*columns)
    masks = Table("neighbours", "ours, s", "Flower's, s", "ratio", title="masks of one client")
    for clients in args.clients:
        member, server, sent = median(held, args.repeats, clients, args.numbers)
        bare, bytes_plain = median(plain, args.repeats, clients, args.numbers), 4 * args.numbers
        row = (member, server, bare, sent / 1e6, bytes_plain / 1e6, sent / bytes_plain)
        table.add_row(str(clients), *(f"{value:.3g}" for value in row))
        ours, theirs = (median(m, args.repeats, clients, args.numbers) for m in (our_masks, flowers_masks))
        masks.add_row(str(clients), f"{ours:.3g}", f"{theirs:.3g}", f"{theirs / ours:.2f}")
    console = Console()
    console.print(table)
    console.print(masks)


if __name__ == "__main__":
    main()
