"""Once in a round: what a client trains for a sum under masks it trains once, on all of its records.

Training is seeded. A server that held the same round twice, once without one client, would learn that client's update
exactly: the difference of the two sums. So the node's ledger has a line for each time that a client takes part, before
anything is trained, and what it does again is other work: another seed, which nobody knows, and a random half of its
records, since a client with one batch trains alike under every seed. A run that is resumed can hold its round again;
a server that gives it another name gains nothing by that: by the seed it is the same round, under the name of another
run, with other records left out (the stage retrain), from another model, or without masks.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oblivionis import seeds
from oblivionis.erasure.node_ledger import EXCHANGED, TOOK_PART, NodeLedger
from oblivionis.errors import ClientError

MOST_TIMES = 3
"""So often a client does the same work for sums: more of them, each with other halves, would average to the update."""

LEAST_NOISE = 0.5
"""Noise multiplier of a client's own (DP-SGD) from which on noise takes the place of the half: whoever asks for less
asks for none."""


def hidden(level: str, multiplier: float) -> bool:
    """Whether noise that is drawn anew each time hides every record, so that a half would only spoil its account."""
    return level == "record" and multiplier >= LEAST_NOISE


@dataclass(frozen=True, slots=True)
class Turn:
    """How a client does a piece of work: `seed` of its training, and whether it did the same `again`."""

    seed: int
    again: bool = False

    def left_out(self, live: Sequence[str], least: int = 0) -> set[str]:
        """Ids of the `live` records that it goes without this time: none at first, then a random half.

        Of an odd one out a coin decides; at least `least` stay.
        """
        if not self.again:
            return set()
        kept = max(least, (len(live) + secrets.randbelow(2)) // 2)
        return set(random.SystemRandom().sample(live, max(0, len(live) - kept)))


def take_part(folder: Path, seed: int, work: Mapping[str, Any], *, masked: bool) -> Turn:
    """How the client with that folder does a piece of work, entered durably where its update goes under masks.

    seed: by the run's configuration, stage, client and round; work: `kind` of message, and for the reader `run`,
    `stage` and `round`. Raises ClientError when it did this `MOST_TIMES` times.
    """
    turns = list[Turn]()

    def make(lines: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        alike = [e for e in lines if e.get("seed") == seed and e.get("kind") == work["kind"]]
        times = sum(e["event"] == TOOK_PART or (masked and e["event"] == EXCHANGED) for e in alike)
        if masked and times >= MOST_TIMES:
            raise ClientError(
                f"round {work['round']} of {work['stage']} was held {times} times with this client, by this seed: it "
                "takes part no more; start a run with another seed"
            )
        own = seeds.derive(seed, "again", secrets.token_hex(16)) if times else seed
        turns.append(Turn(own, again=times > 0))
        if masked:
            yield {"event": TOOK_PART, **work, "seed": seed, "times": times + 1}

    NodeLedger(folder).extend(make)
    return turns[0]
