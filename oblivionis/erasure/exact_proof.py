"""The proof of an exact erasure: the rounds that the model depends on, with hashes of all that they were made of.

`exact.json` of a run says who took part in which round, from which model on, and with which updates, and names of each
the line of the client's ledger that says which records it trained on. The run's ledger names the file. With the
clients' folders anybody can hold the rounds again and compare (`oblivionis.audits.exact_replay`). In a federation in
shards each has rounds of its own, and a client is erased once those of its shard are without it, and it is in no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import Request
from oblivionis.erasure.verification_records import judgement_of
from oblivionis.erasure.verification_rules import ERASED, INCONCLUSIVE, RECORDED, Judgement, of_twins
from oblivionis.files import json_text, read_json
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.updates import Row, past_of, row_of
from strategies.protocols.update_history import PastRound

FILE = "exact.json"
STAGE = "unlearn"


class Machine(TypedDict):
    """What an update's last bits depend on besides its inputs."""

    software: dict[str, str | None]
    processor: str


class ShardRow(Row, total=False):
    """A round as a file tells of it, with its shard where there are several."""

    shard: int


class _Rounds(TypedDict):
    machine: Machine
    rounds: list[ShardRow]


class _File(_Rounds, total=False):
    of_client: list[int]


@dataclass(frozen=True, slots=True)
class Proof:
    """The `rounds` that a model depends on, by shard and oldest first, the `machine` of the server that aggregated
    them, and, where there are several, the shard of each client."""

    rounds: Mapping[int, Sequence[PastRound]]
    machine: Machine
    of_client: Sequence[int] = ()

    @property
    def shards(self) -> int:
        """How many shards there are."""
        return max(self.of_client, default=0) + 1

    def shard_of(self, client: int) -> int:
        """The shard of a client."""
        return self.of_client[client] if self.of_client else 0

    def rows(self, shards: Iterable[int]) -> list[dict[str, Any]]:
        """The rounds of `shards` as a file tells of them, each a `ShardRow`."""
        own = {shard: {"shard": shard} if self.of_client else {} for shard in shards}
        return [{**row_of(past), **which} for shard, which in own.items() for past in self.rounds.get(shard, ())]

    def missing_for(self, request: Request, applied: Sequence[Mapping[str, Any]]) -> str:
        """Why the rounds do not show that a request was erased; empty where they do.

        `applied`: what `exchanges` gives.
        """
        client, served, shard = request.client, request.served_round, self.shard_of(request.client)
        own = [e for e in applied if (e.get("id"), e.get("round")) == (request.id, served)]
        if served is None or not own or not model_after(own[-1], shard, self.shards):
            return "the ledger has no hashes of the model before and after its exchange"
        for other in self.rounds.keys() - {shard}:
            if past := next((past for past in self.rounds[other] if client in past.clients), None):
                name = f"round {past.round} of {past.stage}"
                return f"client {client} is of shard {shard}, and took part in {name} of shard {other}"
        return self._missing_of(client, served, shard, applied)

    def _missing_of(self, client: int, served: int, shard: int, applied: Sequence[Mapping[str, Any]]) -> str:
        """The same by the rounds of the client's own shard."""
        begun = False
        for past in self.rounds.get(shard, ()):
            name = f"round {past.round} of {past.stage}"
            since = past.stage == STAGE and past.round >= served
            if client in past.clients and not since and past.replayed < served:
                return f"client {client} took part in {name}, which was not held again"
            if set(past.clients) != past.hashes.keys() or set(past.clients) != past.entries.keys() or not past.model:
                return f"{name} has no hash of its model, or of what a client did: an earlier program held it"
            if since and not begun:
                begun, last = True, newest_exchange([e for e in applied if e["round"] <= past.round]) or {}
                if past.replayed <= last["round"] and past.model != model_after(last, shard, self.shards):
                    return f"{name} begins with another model than its exchange ended with"
        return ""


def keep_proof(run: RunDirectory, proof: Proof) -> None:
    """Write `exact.json`, named in the run's ledger first."""
    more = {"of_client": list(proof.of_client)} if proof.of_client else {}
    run.keep({FILE: json_text({"machine": proof.machine, "rounds": proof.rows(sorted(proof.rounds)), **more})})


def exchanges(run: RunDirectory) -> list[dict[str, Any]]:
    """The lines of a run's ledger about the models before and after the exchanges that served requests which still
    are; of an exchange that was made again after a resume the last one."""
    served = {request.id: request.served_round for request in Ledger(run.ledger_path)}
    lines = {str(e.get("id")): e for e in run.lines("applied") if e.get("round") == served.get(str(e.get("id")))}
    return list(lines.values())


def newest_exchange(lines: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The last of the lines about the newest round; None where there is none."""
    return max(reversed(lines), key=lambda e: int(e["round"]), default=None)


def model_after(line: Mapping[str, Any], shard: int, shards: int) -> str:
    """The hash of a shard's model after the exchange of a line; empty where the line has none."""
    parts = [line.get("after", "")] if shards == 1 else line.get("parts_after", ())
    return str(parts[shard]) if len(parts) == shards else ""


def read_proof(run: RunDirectory) -> Proof | None:
    """What `exact.json` says; None where there is none.

    Raises
    ------
    FileError
        With the key, for a damaged file.
    """
    try:
        file = read_json(run.path / FILE, _File)
    except FileNotFoundError:
        return None
    return Proof(rounds_by_shard(file["rounds"]), file["machine"], file.get("of_client", ()))


def rounds_by_shard(rows: Iterable[ShardRow]) -> dict[int, list[PastRound]]:
    """The rounds that a file tells of, by shard."""
    rounds: dict[int, list[PastRound]] = {}
    for row in rows:
        rounds.setdefault(row.get("shard", 0), []).append(past_of(row, stored=False))
    return rounds


def judge_exact(
    run: RunDirectory, requests: Sequence[Request], measured: Mapping[str, Judgement]
) -> dict[str, Judgement]:
    """Judge requests that an exact erasure served, by the proof alone.

    Parameters
    ----------
    run : RunDirectory
        With its proof.
    requests : sequence of Request
        Those that were served.
    measured : mapping of str to Judgement
        What recitation says of some of them, by id: its recall is kept, its outcome is not.

    Returns
    -------
    dict of str to Judgement
        `ERASED` where the ledger and the rounds show it, else `INCONCLUSIVE`.
    """
    proof, judged = read_proof(run), dict[str, Judgement]()
    lines = exchanges(run)
    for request in requests:
        why = "its run keeps no proof" if proof is None else proof.missing_for(request, lines)
        known = measured.get(request.id)
        held = len(judgement_of(run, request.id).get("twins", {}))
        outcome, said = (INCONCLUSIVE, why) if why else (ERASED, f"{RECORDED}{f'; {of_twins(held)}' if held else ''}")
        judged[request.id] = Judgement(outcome, said, None if known is None else known.recall)
    return judged
