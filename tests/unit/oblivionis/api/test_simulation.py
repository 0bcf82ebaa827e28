"""Simulated clients of any ClientApp."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from flwr.app import Message, RecordDict

from oblivionis import simulated_clients

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")

COMPUTES = """
import torch
from flwr.app import MetricRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
x = torch.ones(1000, 1000)
first = float((x @ x).sum())

@app.query()
def again(message, context):
    value = float((x @ x).sum()) / first + float(torch.relu(x).sum())
    return Message(RecordDict({"said": MetricRecord({"value": value})}), reply_to=message)
"""


@pytest.mark.slow
def test_a_module_that_computes_when_it_is_imported_does_not_hang(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Forked processes lack the threads that computed; only with several cores would there be any."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "computes.py").write_text(COMPUTES)
    with simulated_clients("computes:app", 2, processes=1) as grid:
        asked = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in grid.get_node_ids()]
        replies = list(grid.send_and_receive(asked, timeout=40))
    assert [reply.content.metric_records["said"]["value"] for reply in replies] == [1e6 + 1] * 2
