"""What a user sees of clients that keep their records: their folders before a simulation, their audits after a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from evaluation.metrics.rouge import NOT_READ
from oblivionis.assessment.audit_numbers import MOMENTS, read_audit
from oblivionis.config.schema import Config
from oblivionis.data.twins import find_twins
from oblivionis.errors import OblivionisError
from oblivionis.naming import simulated_folder
from oblivionis.requests.ledger import Ledger
from oblivionis.requests.node_folder import NodeFolder
from oblivionis.requests.node_records import counts, read_node
from oblivionis.runs.directory import RunDirectory

SHOWN = {
    "request_rouge": "ROUGE-L recall",
    "request_prob": "Prob",
    "leakage_m_bin": "M_bin",
    "ruler_mean_rank": "mean rank",
    "retain_rouge": "retain ROUGE",
    "retain_prob": "retain Prob",
}
"""Numbers of an audit that fit into a table, with their headings."""


def folders(config: Config) -> list[dict[str, Any]]:
    """What is in each client's folder under `data.nodes`.

    Raises OblivionisError without that, DataError for faulty records.
    """
    if config.data.nodes is None:
        raise OblivionisError(
            "data=node: only the clients can read their records; give data.nodes to look into folders"
        )
    found = []
    for client in range(config.federation.clients):
        folder = simulated_folder(config.data.nodes, client)
        own = read_node(folder)
        subjects = len({record.subject for record in own.records})
        forget, kept = ([r for r in own.records if (r.id in own.marked) is marked] for marked in (True, False))
        twins = len({twin.forget for twin in find_twins(forget, kept)})
        sizes = {"records": len(own.records), "subjects": subjects, "forget": len(own.marked), "twins": twins}
        found.append({"client": client, **sizes, "live": counts(NodeFolder(folder))[1], "folder": folder})
    return found


def print_nodes(config: Config, console: Console) -> None:
    """A line per client's folder; see `folders`."""
    heads = ("client", "records", "subjects", "to forget", "also kept", "live")
    table = Table(*(Column(head, justify="right") for head in heads), "folder")
    for row in folders(config):
        table.add_row(*map(str, row.values()))
    console.print(table)


def audits(run: RunDirectory) -> list[dict[str, Any]]:
    """The audits of the run's requests, in the order of the ledger."""
    found = (read_audit(run.path, request.id) for request in Ledger(run.ledger_path))
    return [audit for audit in found if audit is not None]


def audit_rows(audit: Mapping[str, Any]) -> list[list[str]]:
    """A row per moment: the moment and the numbers of `SHOWN`, a dash for one that is missing, "failed" where the
    client could not measure."""
    rows = []
    for moment in MOMENTS:
        if moment in audit:
            numbers = audit[moment]
            rows.append([moment, *(f"{numbers[name]:.3f}" if name in numbers else "–" for name in SHOWN)])
        elif moment in audit.get("failed", {}):
            rows.append([moment, *["failed"] * len(SHOWN)])
    return rows


def audit_note(audit: Mapping[str, Any]) -> str:
    """Why a client that measured its other records has no ROUGE of them; empty where it has one or measured nothing."""
    measured = [audit[moment] for moment in MOMENTS if moment in audit]
    left_out = any("retain_prob" in numbers and "retain_rouge" not in numbers for numbers in measured)
    return f"{SHOWN['retain_rouge']} –: {NOT_READ}" if left_out else ""


def audit_table(run: RunDirectory) -> Table | None:
    """What the clients measured of their requests, None where none did."""
    table = Table("request", "client", "moment", *(Column(head, justify="right") for head in SHOWN.values()))
    table.title, table.title_justify = "Measured by the clients on their own records", "left"
    for audit in audits(run):
        for number, row in enumerate(audit_rows(audit)):
            table.add_row(*((audit["request"], str(audit["client"])) if number == 0 else ("", "")), *row)
        if note := audit_note(audit):
            table.caption, table.caption_justify = note, "left"
    return table if table.rows else None
