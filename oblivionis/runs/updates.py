"""The clients' updates on the server's disk: what protocols that go by them need of past rounds.

`runs/<name>/updates/<generation>/` holds one lineage (see `strategies.protocols.update_history`): `rounds.jsonl`, a
line per round with the clients that are in the model, and `<stage>/round-0007.safetensors` with the arrays `global`,
`client/<partition>` and `state/<name>`; where a method needs models only, the line has the hashes of the clients'
updates in their place. Generation 0 is what was recorded; an erasure in round t of unlearn writes
generation t, which replaces the one before. Generations share the files of rounds that an erasure leaves as they were
(hard links). In a federation in shards each has a lineage of its own, in `updates/shard-<k>/<generation>/`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

from flwr.app import Array, ArrayRecord
from msgspec import Meta

from oblivionis.array_files import read_arrays, write_arrays
from oblivionis.config import method_traits
from oblivionis.config.schema import Config
from oblivionis.errors import RunError
from oblivionis.files import append_lines, checked, link_or_copy, read_lines, sync_folder, write_atomic
from strategies import message_keys
from strategies.client_update import ClientUpdate
from strategies.protocols.update_history import PastRound, RoundUpdates, is_stored, past_round

LABELS = {"finetune": "train", "unlearn": "unlearn"}
"""The stages whose rounds lead to the model that requests are served on, with the label of their seeds and messages."""
STAGES = tuple(LABELS)
ROUNDS = "rounds.jsonl"
UPDATES = "updates"
"""Folder of a run's stores."""


def stored_rounds(config: Config) -> int | None:
    """How many rounds `config` keeps: 0 none, None all."""
    unlearning = config.unlearning
    if unlearning.updates.keep is not None:
        return unlearning.updates.keep
    return {"all": None, "models": None, "newest": config.federation.keep_checkpoints, None: 0}[
        method_traits.updates(unlearning.method)
    ]


def open_updates(config: Config, run: Path, stage: str) -> UpdateStore | None:
    """The store of the run directory `run`, of a federation in one shard; None as `open_stores` has none."""
    return next(iter(open_stores(config, run, stage)), None)


def open_stores(config: Config, run: Path, stage: str) -> list[UpdateStore]:
    """The stores of the run directory `run`, one for each shard; none where `config` or `stage` keeps nothing."""
    keep = stored_rounds(config)
    if keep == 0 or stage not in STAGES:
        return []
    models_only = method_traits.updates(config.unlearning.method) == "models"
    every, count = config.unlearning.updates.every, config.federation.shards
    folders = [run / UPDATES] if count == 1 else [run / UPDATES / f"shard-{shard}" for shard in range(count)]
    return [UpdateStore(path, stage, keep=keep, every=every, models_only=models_only) for path in folders]


def kept_on_disk(run: Path) -> tuple[int, int]:
    """How many rounds the run directory `run` keeps, and the bytes that they take; what two generations share counts
    once."""
    files = [path.stat() for path in (run / UPDATES).rglob("round-*.safetensors")]
    sizes = {(file.st_dev, file.st_ino): file.st_size for file in files}
    return len(sizes), sum(sizes.values())


class UpdateStore:
    """A `strategies.protocols.update_history.History` on disk, as of one stage.

    Files are written atomically; a generation appears whole or not at all. Nothing is deleted before `settle`: after
    any interruption of a round, `roll_back` finds what there was when it began.
    """

    def __init__(self, path: Path, stage: str, *, keep: int | None, every: int, models_only: bool = False) -> None:
        self.path, self.stage = path, stage
        self._keep, self._every, self._models_only = keep, every, models_only

    # -- strategies.protocols.update_history.History
    # ------------------------------------------------------------------------------

    def record(self, updates: RoundUpdates) -> None:
        """Add a round of FedFT to the present generation."""
        folder, stored = self._present(), is_stored(updates.round, self._every)
        append_lines(folder / ROUNDS, [_kept(folder, updates, stored=stored, models_only=self._models_only)])

    def rounds(self) -> list[PastRound]:
        """All rounds of the present generation."""
        return _rounds(self._present())

    def read(self, past: PastRound) -> RoundUpdates:
        """One stored round. Raises RunError when its file is damaged, or lacks the updates that it should hold."""
        file = _file(self._present(), past.stage, past.round)
        found = _read(file)
        if not self._models_only and {update.partition for update in found.clients} != set(past.clients):
            raise RunError(f"{file} does not hold the updates of all clients that took part in its round")
        return found

    @contextmanager
    def rewriting(self, server_round: int) -> Iterator[_Generation]:
        """Write generation `round` next to the present one, which it replaces if no error occurs."""
        temporary = self.path / f".{server_round:04d}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            new = _Generation(self._present(), temporary, self._models_only, server_round)
            yield new
            append_lines(temporary / ROUNDS, new.rows)
            for folder in (*(path for path in temporary.iterdir() if path.is_dir()), temporary):
                sync_folder(folder)
            os.replace(temporary, self.path / f"{server_round:04d}")
            sync_folder(self.path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    # -- a run's life --------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """After a checkpoint: delete what was replaced, and all but the newest rounds that are to be kept."""
        present = self._present()
        for folder in self._generations():
            if folder != present:
                shutil.rmtree(folder)
        stored = [past for past in self.rounds() if past.stored]
        for past in stored[: max(0, len(stored) - self._keep)] if self._keep is not None else []:
            _file(present, past.stage, past.round).unlink()

    def roll_back(self, server_round: int) -> None:
        """Return to the end of `round` of this stage (0: its beginning). Raises RunError when that was deleted."""
        for leftover in self.path.glob(".*.tmp"):
            shutil.rmtree(leftover)
        found = self._generations()
        last = server_round if self.stage == "unlearn" else 0
        if found and int(found[0].name) > last and self.stage == "unlearn":
            raise RunError(
                f"{self.path.parent} cannot go on from round {server_round} of unlearn: a checkpoint of a later round "
                "is damaged or gone, and the clients' updates from before it are deleted; start a new run"
            )
        for folder in found:
            if int(folder.name) > last:
                shutil.rmtree(folder)
        later = STAGES[STAGES.index(self.stage) + 1 :]
        for folder in self._generations():
            kept = [
                p
                for p in _rounds(folder)
                if p.stage not in later and (p.stage != self.stage or p.round <= server_round)
            ]
            files = {_file(folder, past.stage, past.round) for past in kept}
            for file in folder.glob("*/round-*.safetensors"):
                if file not in files:
                    file.unlink()
            rows = [row_of(past) for past in kept]
            write_atomic(folder / ROUNDS, "".join(json.dumps(row) + "\n" for row in rows))

    def missing(self) -> str:
        """What of the rounds of finetune this store should hold and does not; empty when it has all."""
        original = self.path / f"{0:04d}"
        recorded = [past for past in _rounds(original) if past.stage == "finetune"]
        if not recorded:
            return "the clients' updates of any round of finetune"
        if any(past.clients and bool(past.hashes) != self._models_only for past in recorded):
            if self._models_only:
                return "the hashes of the clients' updates of finetune (it holds the updates in their place)"
            return "the clients' updates of finetune (it holds models only)"
        wanted = [past for past in recorded if is_stored(past.round, self._every)]
        wanted = wanted if self._keep is None else wanted[len(wanted) - min(self._keep, len(wanted)) :]
        missing = [past.round for past in wanted if not past.stored]
        if not missing:
            return ""
        return f"the clients' updates of round {missing[0]} of finetune ({len(missing)} of {len(wanted)} rounds)"

    def adopt(self, source: UpdateStore) -> None:
        """Take over the finetune rounds of another run's store, which must be complete; files are linked or copied."""
        self.roll_back(0)
        target, original = self._present(), source.path / f"{0:04d}"
        recorded = [past for past in _rounds(original) if past.stage == "finetune"]
        for past in recorded:
            if past.stored and is_stored(past.round, self._every):
                link_or_copy(_file(original, past.stage, past.round), _file(target, past.stage, past.round))
        append_lines(target / ROUNDS, [row_of(past) for past in recorded])
        self.settle()

    def _generations(self) -> list[Path]:
        return sorted(p for p in self.path.glob("*") if p.name.isdigit()) if self.path.is_dir() else []

    def _present(self) -> Path:
        return max(self._generations(), default=self.path / f"{0:04d}")


class _Generation:
    """A generation in the making."""

    def __init__(self, old: Path, new: Path, models_only: bool, server_round: int) -> None:
        self._old, self._new, self._models_only, self._round = old, new, models_only, server_round
        self.rows: list[dict] = []

    def keep(self, past: PastRound) -> None:
        if past.stored:
            link_or_copy(_file(self._old, past.stage, past.round), _file(self._new, past.stage, past.round))
        self.rows.append(row_of(past))

    def write(self, updates: RoundUpdates, *, stored: bool = True) -> None:
        row = _kept(self._new, updates, stored=stored, models_only=self._models_only, replayed=self._round)
        self.rows.append(row)


class _Past(TypedDict):
    stage: str
    round: int
    clients: list[int]


_ByClient = dict[Annotated[str, Meta(pattern=r"\A[0-9]{1,9}\Z", description="a client's number")], str]


class Row(_Past, total=False):
    """A line of a lineage's file."""

    hashes: _ByClient
    replayed: int
    model: str
    entries: _ByClient


class _Recorded(TypedDict):
    stage: str
    round: int
    weights: dict[str, float]


class _Info(_Recorded, total=False):
    steps: dict[str, float | None]


def _kept(folder: Path, updates: RoundUpdates, *, stored: bool, models_only: bool, replayed: int = 0) -> dict:
    """Keep a round in `folder`; its line of the lineage."""
    if stored:
        _write(folder, replace(updates, clients=()) if models_only else updates)
    return row_of(past_round(updates, stored=stored, models_only=models_only, replayed=replayed))


def row_of(past: PastRound) -> dict[str, Any]:
    """The line of a lineage's file about a round."""
    row = {"stage": past.stage, "round": past.round, "clients": list(past.clients)}
    more = {
        "hashes": {str(client): text for client, text in past.hashes.items()},
        "replayed": past.replayed,
        "model": past.model,
        "entries": {str(client): text for client, text in past.entries.items()},
    }
    return row | {name: value for name, value in more.items() if value}


def past_of(row: Mapping[str, Any], *, stored: bool) -> PastRound:
    """The round that a line of a lineage's file is about."""
    return PastRound(
        *(row["stage"], row["round"], tuple(row["clients"])),
        stored=stored,
        hashes={int(client): text for client, text in row.get("hashes", {}).items()},
        replayed=row.get("replayed", 0),
        model=row.get("model", ""),
        entries={int(client): text for client, text in row.get("entries", {}).items()},
    )


def _file(folder: Path, stage: str, server_round: int) -> Path:
    return folder / stage / f"round-{server_round:04d}.safetensors"


def _rounds(folder: Path) -> list[PastRound]:
    rows = read_lines(folder / ROUNDS, Row)
    return [past_of(row, stored=_file(folder, row["stage"], row["round"]).exists()) for row in rows]


def _write(folder: Path, updates: RoundUpdates) -> None:
    arrays = {"global": updates.sent[message_keys.ADAPTER].numpy()}
    arrays |= {f"client/{u.partition}": u.arrays[message_keys.ADAPTER].numpy() for u in updates.clients}
    arrays |= {f"state/{name}": array for name, array in updates.state.items()}
    weights = {str(u.partition): u.weight for u in updates.clients}
    steps = {str(u.partition): u.steps for u in updates.clients}
    info = {"stage": updates.stage, "round": updates.round, "weights": weights, "steps": steps}
    write_arrays(_file(folder, updates.stage, updates.round), arrays, info)


def _read(path: Path) -> RoundUpdates:
    arrays, info = read_arrays(path, "file of client updates")

    def record(key: str) -> ArrayRecord:
        return ArrayRecord({message_keys.ADAPTER: Array(arrays.pop(key))})

    try:
        steps = checked(info, _Info).get("steps", {})
        clients = [
            ClientUpdate(int(p), weight, record(f"client/{p}"), steps.get(p)) for p, weight in info["weights"].items()
        ]
        sent = record("global")
    except (KeyError, ValueError) as error:
        raise RunError(f"{path} is no readable file of client updates: {error}") from None
    state = {key.removeprefix("state/"): array for key, array in arrays.items()}
    return RoundUpdates(info["stage"], info["round"], sent, state, clients)
