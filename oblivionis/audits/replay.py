"""What every replay of clients' work goes by: findings, the run's seal, and the clients' folders and ledgers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import Array, ArrayRecord

from oblivionis.audits.audited_model import AuditError
from oblivionis.client.worker import Worker
from oblivionis.config import compose as configuration
from oblivionis.config.identity import text_hash
from oblivionis.config.schema import Config
from oblivionis.erasure.node_folder import NodeFolder
from oblivionis.erasure.node_ledger import BESIDE, EXCHANGED, RECORDS, RUN_LEARNED, NodeLedger
from oblivionis.erasure.node_record_files import FACTS_FILE, left_of, other_files_hash, read_node, records_hash
from oblivionis.erasure.verification_rules import NOT_TESTABLE
from oblivionis.errors import RunError
from oblivionis.naming import REFERENCES_TABLE, simulated_folder
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import RunDirectory, package_versions
from strategies import message_keys

EQUAL, DIFFERS = "equal", "differs"
STAGE = "unlearn"

Outcome = Literal["equal", "differs", "not testable"]

PLACES = (
    *("model.device", "model.source", "model.revision", "model.adapter", "federation.client_threads"),
    *("data.path", "data.nodes", "data.forget_file", "data.holdout_file", "data.reference_file"),
    *("unlearning.alternatives.idk", "evaluation.wikimem.embedder"),
)
"""Keys that a replay may set: where things lie on this machine. Any other one would be another configuration's work."""


class NotTestable(AuditError):
    """Something that cannot be replayed. `what`: which comparison is missing."""

    def __init__(self, why: str, what: str = "exchange") -> None:
        super().__init__(why)
        self.what = what


@dataclass(frozen=True, slots=True)
class Finding:
    """One comparison: what was compared, its outcome, and why."""

    what: str
    outcome: Outcome
    why: str = ""


@dataclass(frozen=True, slots=True)
class WorkState:
    """What a client withheld when it sent something: its tombstones then, and what requests named there by then."""

    tombstones: Mapping[str, str]
    withheld: frozenset[str]
    line: Mapping[str, Any]

    @classmethod
    def at(cls, folder: Path, line: Mapping[str, Any], served: Collection[str] = ()) -> WorkState:
        """As the line of the client's ledger says; `served`: what it had to withhold by the run's ledger."""
        tombstones = dict(NodeFolder(folder).tombstone_lines()[: int(line["tombstones"])])
        return cls(tombstones, frozenset({*line["asked"], *tombstones, *served}), line)


def check_own(run: RunDirectory, stage: str, what: str) -> None:
    """NotTestable where a stage is that of another run, whose name its clients' ledgers have."""
    if source := (run.stage_summary(stage) or {}).get("reused_from"):
        raise NotTestable(f"the stage {stage} is that of the run {source}: audit it there", what)


def machine_remarks(path: Path) -> list[str]:
    """Why equal work may differ in the last bits here: other versions, or another platform, than the run's."""
    environment = artifact_binding.opened(path, with_models=False).environment()
    here = package_versions()
    other = [
        f"{name} {theirs} there, {here.get(name)} here"
        for name, theirs in (environment.get("packages") or {}).items()
        if name in ("torch", "transformers", "peft", "numpy") and theirs != here.get(name)
    ]
    return other


def collected(findings: Iterator[Finding]) -> list[Finding]:
    """All findings, up to what cannot be replayed, and that as one."""
    so_far = list[Finding]()
    try:
        for finding in findings:
            so_far.append(finding)
    except NotTestable as error:
        so_far.append(Finding(error.what, NOT_TESTABLE, str(error)))
    return so_far


def opened_run(path: Path, overrides: Sequence[str]) -> tuple[RunDirectory, Config]:
    run = artifact_binding.opened(path)
    if wrong := next((o for o in overrides if o.partition("=")[0].strip() not in PLACES), None):
        raise AuditError(
            f"--set {wrong}: a replay goes by the run's own configuration; what may be set is where things lie on this "
            f"machine: {', '.join(PLACES)}"
        )
    if overrides:
        return run, configuration.compose(run.path / "config.yaml", list(overrides))
    return run, configuration.from_yaml(run.read_config())


def seal_findings(run: RunDirectory) -> Iterator[Finding]:
    """Whether the run's ledger binds its folder, and its configuration in the form that nodes get."""
    missing, stages = artifact_binding.check(run, with_models=False).missing, run.lines(artifact_binding.STAGE)
    yield Finding("the run's seal", NOT_TESTABLE if missing else EQUAL, f"not sealed: {missing}" if missing else "")
    what = "configuration, by the run's ledger"
    if not stages:
        yield Finding(what, NOT_TESTABLE, "not sealed: no line of the ledger names it")
    for recorded in {str(entry.get("config")) for entry in stages}:
        yield compared(what, hash_of_config(run), recorded)


def hash_of_config(run: RunDirectory) -> str:
    try:
        return text_hash(run.read_config())
    except ValueError as error:
        raise AuditError(f"{run.config_place}: {error}") from None


def final_model(run: RunDirectory) -> np.ndarray | None:
    try:
        return run.load_checkpoint(STAGE).vector
    except RunError:
        return None


def client_folders(
    run: RunDirectory, config: Config, given: Sequence[Path], clients: Collection[int], also: Collection[int] = ()
) -> dict[int, Path]:
    """The folder of each of `clients`, and of those in `also` that have one here. AuditError where one is missing or
    says that it is another client's."""
    by_client: dict[int, Path] = {}
    wanted = {*clients, *also}
    for folder in given:
        if not folder.is_dir():
            raise AuditError(f"--node-dir {folder}: no such folder; expected a client's own folder, or a copy")
        ledger = NodeLedger(folder)
        lines = of_run(run, (*ledger.lines(RUN_LEARNED), *ledger.lines(EXCHANGED)))
        named = [c for c in wanted if any(e.get("client") == c for e in lines)]
        if len(named) != 1:
            raise AuditError(f"--node-dir {folder}: its ledger is of none of the clients {sorted(wanted)}")
        by_client[named[0]] = folder
    for client in wanted:
        places = [run.nodes_path / str(client)]
        places += [simulated_folder(config.data.nodes, client)] if config.data.nodes else []
        if client not in by_client and (place := next((p for p in places if p.is_dir()), None)) is not None:
            by_client[client] = place
    if missing := sorted(set(clients) - by_client.keys()):
        raise AuditError(
            f"the folders of clients {', '.join(map(str, missing))} are needed: name each, or a copy, with --node-dir "
            f"(the exchange merged the answers of {len(clients)} clients)"
        )
    return by_client


def of_run(run: RunDirectory, lines: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those lines of a node's ledger that are about a run: another one by the same seed may begin alike.

    It goes by the names that its ledger tells, of which that of an earlier version may have none, and by its folder's.
    """
    names = {e["run"] for e in run.lines("opened", artifact_binding.STAGE) if isinstance(e.get("run"), str)}
    return [e for e in lines if not names or e.get("run") in {*names, run.name}]


def exchange_lines(
    run: RunDirectory, folder: Path, kind: str, server_round: int, before: str
) -> list[Mapping[str, Any]]:
    """The lines of a node's ledger that say what it sent in answer to a model with the hash `before`."""
    lines = of_run(run, NodeLedger(folder).exchanges())
    return [e for e in lines if (e.get("kind"), e.get("round"), e.get("before")) == (kind, server_round, before)]


def newest_line(lines: Sequence[Mapping[str, Any]], client: int, what: str) -> Mapping[str, Any]:
    if not lines:
        raise NotTestable(
            f"the ledger of client {client} has no line about {what}: it is of a program that writes none, or the "
            "client did not do the work",
            what,
        )
    if lines[-1].get("again"):
        raise NotTestable(f"client {client} did this work before, for a sum under masks: now by a secret seed", what)
    return lines[-1]


def hold_records(worker: Worker, client: int, folder: Path) -> None:
    """Give `worker` the client's records as they are in its folder now; dealt ones it has by its configuration."""
    if worker.config.data.on_clients:
        worker.hold(client, read_node(folder))


def check_held(run: RunDirectory, worker: Worker, client: int, folder: Path, state: WorkState) -> Iterator[Finding]:
    """Compare the run's configuration and the client's records with those that its ledger names. NotTestable where the
    work was done with other records than `worker` holds."""
    if faults := NodeLedger(folder).verify().faults:
        yield Finding(f"ledger of client {client}", DIFFERS, f"it was altered: {faults[0]}")
    recorded, what = state.line.get("config"), f"configuration, by the ledger of client {client}"
    if recorded is None:
        yield Finding(what, NOT_TESTABLE, "the ledger does not say by which configuration the run went")
    else:
        yield compared(what, hash_of_config(run), str(recorded))
    what = f"records of client {client}"
    if other := other_records(worker, client, folder, state):
        raise NotTestable(other, what)
    yield Finding(what, EQUAL)


def other_records(worker: Worker, client: int, folder: Path, state: WorkState) -> str:
    """Why what `worker` and the folder hold is not what the client did the work of a line of its ledger with; empty
    where it is, and where only records are gone that it withheld. Lines of earlier versions bind no more than the
    records."""
    held, line = worker.holding(client).identified(), state.line
    here = {RECORDS: records_hash(held), BESIDE: other_files_hash(folder)}
    if RECORDS not in line:
        return "its ledger does not say with which records it worked"
    if line.get("trained") == left_of(held, state.withheld):
        del here[RECORDS]
    for name, found in here.items():
        what = "records" if name == RECORDS else f"{REFERENCES_TABLE} and {FACTS_FILE}"
        if (then := str(line.get(name, found))) != found:
            return (
                f"its ledger says that it worked with {what} of the hash {then[:12]}…, and those here have "
                f"{found[:12]}…: some were added, removed or reworded since, or it worked with others"
            )
    return ""


def compared(what: str, here: str, recorded: str) -> Finding:
    """Whether a hash is the one computed here."""
    if here == recorded:
        return Finding(what, EQUAL, f"{here[:12]}…")
    return Finding(what, DIFFERS, f"computed here {here[:12]}…, told {recorded[:12]}…")


def as_record(vector: np.ndarray) -> ArrayRecord:
    return ArrayRecord({message_keys.ADAPTER: Array(vector)})


def as_vector(arrays: ArrayRecord) -> np.ndarray:
    return np.array(arrays[message_keys.ADAPTER].numpy(), dtype=np.float32)
