"""The proof of an exact erasure: the rounds that the model depends on, with hashes of all that they were made of.

`exact.json` of a run says who took part in which round, from which model on, and with which updates, and names of each
the line of the client's ledger that says which records it trained on. The run's ledger names the file. With the
clients' folders anybody can hold the rounds again and compare (`oblivionis.audits.exact_replay`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


class _File(TypedDict):
    machine: Machine
    rounds: list[Row]


@dataclass(frozen=True, slots=True)
class Proof:
    """The `rounds` that a model depends on, oldest first, and the `machine` of the server that aggregated them."""

    rounds: tuple[PastRound, ...]
    machine: Machine

    def missing_for(self, request: Request, applied: Sequence[Mapping[str, Any]]) -> str:
        """Why the rounds do not show that a request was erased; empty where they do.

        `applied`: the lines of the run's ledger about models before and after exchanges.
        """
        client, served = request.client, request.served_round
        applied = [e for e in applied if (e.get("id"), e.get("round")) == (request.id, served)]
        if served is None or not applied:
            return "the ledger has no hashes of the model before and after its exchange"
        for past in self.rounds:
            name = f"round {past.round} of {past.stage}"
            since = past.stage == STAGE and past.round >= served
            if client in past.clients and not since and past.replayed < served:
                return f"client {client} took part in {name}, which was not held again"
            if set(past.clients) != past.hashes.keys() or set(past.clients) != past.entries.keys() or not past.model:
                return f"{name} has no hash of its model, or of what a client did: an earlier program held it"
            begun = past.stage == STAGE and past.round == served and past.replayed <= served
            if begun and past.model != applied[-1]["after"]:
                return f"{name} begins with another model than its exchange ended with"
        return ""


def keep_proof(run: RunDirectory, machine: Machine, rounds: Sequence[PastRound]) -> None:
    """Write `exact.json`, named in the run's ledger first."""
    run.keep({FILE: json_text({"machine": machine, "rounds": [row_of(past) for past in rounds]})})


def newest_exchange(run: RunDirectory) -> tuple[int, str] | None:
    """The newest round of unlearn in which a request was served that still is, and the hash of the model after it; None
    where none was."""
    served = {request.id: request.served_round for request in Ledger(run.ledger_path)}
    lines = [e for e in run.lines("applied") if e.get("round") == served.get(str(e.get("id")))]
    if not lines:
        return None
    newest = max(lines, key=lambda e: int(e["round"]))
    return int(newest["round"]), str([e for e in lines if e["round"] == newest["round"]][-1]["after"])


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
    return Proof(tuple(past_of(row, stored=False) for row in file["rounds"]), file["machine"])


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
    lines = run.lines("applied")
    for request in requests:
        why = "its run keeps no proof" if proof is None else proof.missing_for(request, lines)
        known = measured.get(request.id)
        held = len(judgement_of(run, request.id).get("twins", {}))
        outcome, said = (INCONCLUSIVE, why) if why else (ERASED, f"{RECORDED}{f'; {of_twins(held)}' if held else ''}")
        judged[request.id] = Judgement(outcome, said, None if known is None else known.recall)
    return judged
