"""What clients measured of their own records, and what lies in their folders."""

from __future__ import annotations

from support.reports import make_run

from oblivionis.assessment.audit_numbers import audit_path
from oblivionis.files import write_json
from oblivionis.reports import nodes
from oblivionis.requests.ledger import Ledger, Request

BEFORE, FINAL = {"request_rouge": 1.0, "request_prob": 0.5}, {"request_rouge": 0.125, "retain_prob": 0.25}
AUDIT = {"request": "r", "client": 3, "round": 1, "before": BEFORE, "final": FINAL, "failed": {"after": "no memory"}}


def test_each_moment_has_its_own_numbers():
    assert nodes.audit_rows(AUDIT) == [
        ["before", "1.000", "0.500", "–", "–", "–", "–"],
        ["after", *["failed"] * 6],
        ["final", "0.125", "–", "–", "–", "–", "0.250"],
    ]


def test_the_table_names_request_and_client_once(tmp_path):
    run, _ = make_run(tmp_path)
    assert nodes.audit_table(run) is None
    ledger = Ledger(run.ledger_path)
    for name in ("q", "r"):
        ledger.submit(Request(name, 3, ("a",), 1))
    write_json(audit_path(run.path, "r"), AUDIT)
    table = nodes.audit_table(run)
    assert table is not None
    shown = list(zip(*([*column.cells] for column in table.columns), strict=True))
    assert [row[:5] for row in shown] == [
        ("r", "3", "before", "1.000", "0.500"),
        ("", "", "after", "failed", "failed"),
        ("", "", "final", "0.125", "–"),
    ]
