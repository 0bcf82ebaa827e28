"""What clients measured of their own records, and what lies in their folders."""

from __future__ import annotations

import pytest
from support.nodes import records, write_nodes
from support.reports import make_run

from oblivionis.assessment.audit_numbers import audit_path
from oblivionis.config import compose as configuration
from oblivionis.errors import OblivionisError
from oblivionis.files import write_json
from oblivionis.reports import nodes
from oblivionis.requests.ledger import Ledger, Request
from oblivionis.requests.node_folder import NodeFolder

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


def test_a_folder_tells_what_it_holds_and_what_of_it_is_live(tmp_path):
    write_nodes(tmp_path, 2)
    given = ["data=node", "unlearning.requests.policy=none", "federation.clients=2"]
    config = configuration.compose("smoke", [*given, f"data.nodes={tmp_path}"])
    NodeFolder(tmp_path / "node1").bury([records(1, 2)[0]["id"]], "r")
    first, second = nodes.folders(config)
    assert (first["client"], first["records"], first["live"], first["folder"]) == (0, 10, 10, tmp_path / "node0")
    assert (second["client"], second["records"], second["live"]) == (1, 8, 7)
    with pytest.raises(OblivionisError, match=r"give data\.nodes to look into folders"):
        nodes.folders(configuration.compose("smoke", given))
