"""One sealed request of a node, opened with what the node measured of it."""

from __future__ import annotations

from pathlib import Path

from oblivionis.erasure.hidden_requests import Opened, open_commitment
from oblivionis.erasure.request_submission import need_folder
from oblivionis.measures.audit_numbers import read_audit


def open_request(node_dir: Path, request_id: str) -> Opened:
    """As `oblivionis.erasure.hidden_requests.open_commitment`, with the audit in the folder, if there is one.

    Raises SealError as that does, and OblivionisError where there is no such folder.
    """
    need_folder(node_dir)
    return open_commitment(node_dir, request_id, read_audit(node_dir, request_id))
