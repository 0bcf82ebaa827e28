"""What a user sees of clients that keep their records: their folders before a simulation, their audits after a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from evaluation.metrics.rouge import NOT_READ
from oblivionis.config.schema import Config
from oblivionis.data.subjects import Subjects
from oblivionis.data.twins import find_twins
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.named_alike import as_text
from oblivionis.erasure.node_folder import NodeFolder
from oblivionis.erasure.node_record_files import counts, read_node
from oblivionis.erasure.standing_demands import Later, find_later
from oblivionis.errors import OblivionisError
from oblivionis.measures.audit_numbers import MOMENTS, read_audit
from oblivionis.naming import simulated_folder
from oblivionis.reports.format import printable
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
    nodes = _nodes(config)
    found = []
    for client in range(config.federation.clients):
        folder = simulated_folder(nodes, client)
        own = read_node(folder)
        subjects = len({record.subject for record in own.records})
        forget, kept = ([r for r in own.records if (r.id in own.marked) is marked] for marked in (True, False))
        twins = len({twin.forget for twin in find_twins(forget, kept)})
        sizes = {"records": len(own.records), "subjects": subjects, "forget": len(own.marked), "twins": twins}
        node = NodeFolder(folder)
        later = later_as_text(find_later(node, own.records))
        found.append({"client": client, **sizes, "live": counts(node, own)[1], "folder": folder, "later": later})
    return found


def subjects(config: Config) -> Subjects:
    """Whom the records in the clients' folders are about. Raises as `folders`."""
    nodes = _nodes(config)
    return Subjects(
        (client, record)
        for client in range(config.federation.clients)
        for record in read_node(simulated_folder(nodes, client)).records
    )


def later_as_text(later: Later) -> list[str]:
    """A line for each kind of record that came after requests, with ids, and what is done with it."""
    lines = []
    if later.copies:
        ids = ", ".join(f"{i} ({request})" for i, request in later.copies.items())
        lines.append(f"not trained on, copies of records that a request asked for: {ids}")
    for request, ids in later.held.items():
        lines.append(f"not trained on, request {request} about this person stands: {', '.join(ids)}")
        if alike := as_text(later.alike[request]):
            lines.append(f"{alike}: --include or --exclude says whether they are about this person")
    if later.near:
        pairs = ", ".join(f"{twin.kept} = {twin.forget}" for twin in later.near)
        lines.append(f"trained on, nearly the same as records that were asked for: {pairs}")
    return lines


def _nodes(config: Config) -> str:
    if config.data.nodes is None:
        raise OblivionisError(
            "data=node: only the clients can read their records; give data.nodes to look into folders"
        )
    return config.data.nodes


def print_nodes(config: Config, console: Console) -> None:
    """A line per client's folder, and what came into it after requests; see `folders`."""
    heads = ("client", "records", "subjects", "to forget", "also kept", "live")
    table = Table(*(Column(head, justify="right") for head in heads), "folder")
    rows = folders(config)
    for row in rows:
        table.add_row(*(str(value) for name, value in row.items() if name != "later"))
    console.print(table)
    for row in rows:
        for line in row["later"]:
            console.print(Text(f"client {row['client']}: {printable(line)}", style="yellow"), soft_wrap=True)


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
