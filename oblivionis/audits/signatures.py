"""Are the audits of a run signed with the key of the node that is said to have measured?

Whoever owns the run's folder can replace numbers, key and signature of an audit together, and they fit each other. The
node's own ledger has its key in a line `key` of a hash chain whose heads both sides noted.
"""

from __future__ import annotations

from pathlib import Path

from oblivionis.assessment.audit_numbers import MOMENTS, audit_path, read_audit
from oblivionis.requests.ledger import Ledger
from oblivionis.requests.node_key import signers
from oblivionis.requests.node_ledger import KEY_MADE, LEDGER_FILE, RUN_LEARNED, NodeLedger
from oblivionis.runs.seal import STAGE


def foreign_signatures(run: Path, node: Path) -> list[str]:
    """What is wrong with the signatures of the audits of a node's requests, one text each; nothing without audits.

    run, node: their folders. The node's own ledger says which client it was in a run of this configuration. RunError
    and FileError for what cannot be read.
    """
    requests, ledger = Ledger(run / LEDGER_FILE), NodeLedger(node)
    audits = [(request, read_audit(run, request.id)) for request in requests]
    if all(audit is None for _, audit in audits):
        return []
    of_run = {line.get("config") for line in requests.notes(STAGE)}
    clients = {line.get("client") for line in ledger.lines(RUN_LEARNED) if line.get("config") in of_run}
    if not clients:
        return [f"{ledger.path} knows no run of this configuration: nothing says whose key signed its audits"]
    keys = {line.get("public_key") for line in ledger.lines(KEY_MADE)}
    wrong = []
    for request, audit in audits:
        if audit is None or request.client not in clients:
            continue
        signed = signers(audit)
        for moment in (m for m in MOMENTS if m in audit):
            what = f"{audit_path(run, request.id)}: {moment}: the numbers"
            if moment not in signed:
                wrong.append(f"{what} have no signature that fits them")
            elif signed[moment] not in keys:
                wrong.append(f"{what} are signed with {signed[moment][:12]}…, a key that {ledger.path} does not know")
    return wrong
