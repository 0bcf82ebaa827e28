"""What clients measured of their own records, and what lies in their folders."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from support.nodes import records, write_lines, write_nodes
from support.reports import make_run

from oblivionis.config import compose as configuration
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.node_folder import NodeFolder
from oblivionis.erasure.request import Request
from oblivionis.errors import OblivionisError
from oblivionis.files import write_json
from oblivionis.measures.audit_numbers import audit_path
from oblivionis.reports import client_tables

BEFORE, FINAL = {"request_rouge": 1.0, "request_prob": 0.5}, {"request_rouge": 0.125, "retain_prob": 0.25}
AUDIT = {"request": "r", "client": 3, "round": 1, "before": BEFORE, "final": FINAL, "failed": {"after": "no memory"}}


def test_each_moment_has_its_own_numbers():
    assert client_tables.audit_rows(AUDIT) == [
        ["before", "1.000", "0.500", "–", "–", "–", "–"],
        ["after", *["failed"] * 6],
        ["final", "0.125", "–", "–", "–", "–", "0.250"],
    ]


def test_the_table_names_request_and_client_once(tmp_path):
    run, _ = make_run(tmp_path)
    assert client_tables.audit_table(run) is None
    ledger = Ledger(run.ledger_path)
    for name in ("q", "r"):
        ledger.submit(Request(name, 3, ("a",), 1))
    write_json(audit_path(run.path, "r"), AUDIT)
    table = client_tables.audit_table(run)
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
    first, second = client_tables.folders(config)
    assert (first["client"], first["records"], first["live"], first["folder"]) == (0, 10, 10, tmp_path / "node0")
    assert (second["client"], second["records"], second["live"]) == (1, 8, 7)
    with pytest.raises(OblivionisError, match=r"give data\.nodes to look into folders"):
        client_tables.folders(configuration.compose("smoke", given))


def test_the_folders_as_a_table_with_what_is_also_kept(tmp_path):
    """Of client 0 a record is marked as to forget, and another one, unmarked, says the same."""
    write_nodes(tmp_path, 2)
    rows = records(0, 2)
    twin = {**rows[0], "id": "twin"}
    write_lines(tmp_path / "node0" / "data" / "first.jsonl", [{**rows[0], "forget": True}, rows[1], twin])
    given = ["data=node", "unlearning.requests.policy=none", "federation.clients=2", f"data.nodes={tmp_path}"]
    config = configuration.compose("smoke", given)
    first, second = client_tables.folders(config)
    assert (first["records"], first["subjects"], first["forget"], first["twins"]) == (11, 5, 1, 1)
    assert (second["records"], second["subjects"], second["forget"], second["twins"]) == (8, 4, 0, 0)
    out = io.StringIO()
    client_tables.print_nodes(config, Console(file=out, width=200))
    lines = [" ".join(line.replace("│", " ").replace("┃", " ").split()) for line in out.getvalue().splitlines()]
    assert [line for line in lines if line[:1].isalnum()] == [
        "client records subjects to forget also kept live folder",
        f"0 11 5 1 1 11 {tmp_path / 'node0'}",
        f"1 8 4 0 0 8 {tmp_path / 'node1'}",
    ]


@pytest.mark.parametrize(
    ("measured", "noted"),
    [
        ({"final": {"retain_prob": 0.5}}, True),
        ({"before": {"retain_prob": 0.5, "retain_rouge": 0.5}, "final": {"retain_prob": 0.5}}, True),
        ({"final": {"retain_prob": 0.5, "retain_rouge": 0.5}}, False),
        ({"final": {"retain_rouge": 0.5}}, False),
        ({"final": {}}, False),
        ({}, False),
    ],
)
def test_a_recall_that_is_left_out_is_noted(tmp_path, measured, noted):
    assert client_tables.audit_note(measured).startswith("retain ROUGE –: ") is noted
    run, _ = make_run(tmp_path)
    Ledger(run.ledger_path).submit(Request("r", 3, ("a",), 1))
    write_json(audit_path(run.path, "r"), {"request": "r", "client": 3, "round": 1, **measured})
    table = client_tables.audit_table(run)
    assert (table is None) is (not measured)
    if table is not None:
        assert table.title == "Measured by the clients on their own records" and bool(table.caption) is noted
        assert [column.header for column in table.columns] == [
            "request",
            "client",
            "moment",
            *client_tables.SHOWN.values(),
        ]
