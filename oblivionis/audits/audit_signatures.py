"""Are the audits of a run signed with the key of the node that is said to have measured?

Whoever owns the run's folder can replace numbers, key and signature of an audit together, and they fit each other. The
node's own ledger has its key in a line `key` of a hash chain whose heads both sides noted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.node_key import signers
from oblivionis.erasure.node_ledger import KEY_MADE, LEDGER_FILE, RUN_LEARNED, NodeLedger
from oblivionis.erasure.request import Request
from oblivionis.measures.audit_numbers import MOMENTS, audit_path, read_audit
from oblivionis.runs.artifact_binding import STAGE


def foreign_signatures(run: Path, node: Path) -> list[str]:
    """What is wrong with the signatures of the audits of a node's requests, one text each; nothing without audits.

    run, node: their folders. The node's own ledger says which client it was in a run of this configuration; where it
    knows none, `unknown_signer` says so. RunError and FileError for what cannot be read.
    """
    requests, ledger = Ledger(run / LEDGER_FILE), NodeLedger(node)
    audits, clients = _audits(run, requests), _clients(requests, ledger)
    keys = {line.get("public_key") for line in ledger.lines(KEY_MADE)}
    wrong = []
    for request, audit in audits:
        if request.client not in clients:
            continue
        signed = signers(audit)
        for moment in (m for m in MOMENTS if m in audit):
            what = f"{audit_path(run, request.id)}: {moment}: the numbers"
            if moment not in signed:
                wrong.append(f"{what} have no signature that fits them")
            elif signed[moment] not in keys:
                wrong.append(f"{what} are signed with {signed[moment][:12]}…, a key that {ledger.path} does not know")
    return wrong


def unknown_signer(run: Path, node: Path) -> str:
    """Why a node's folder says nothing of the signatures of a run's audits; empty where it does, and without audits."""
    requests, ledger = Ledger(run / LEDGER_FILE), NodeLedger(node)
    if not _audits(run, requests) or _clients(requests, ledger):
        return ""
    return f"{ledger.path} knows no run of this configuration: nothing says whose key signed its audits"


def _audits(run: Path, requests: Ledger) -> list[tuple[Request, Mapping[str, Any]]]:
    found = ((request, read_audit(run, request.id)) for request in requests)
    return [(request, audit) for request, audit in found if audit is not None]


def _clients(requests: Ledger, node: NodeLedger) -> set[int]:
    """Which client a node was in runs of the configuration of `requests`."""
    of_run = {line.get("config") for line in requests.notes(STAGE)}
    return {line["client"] for line in node.lines(RUN_LEARNED) if line.get("config") in of_run}
