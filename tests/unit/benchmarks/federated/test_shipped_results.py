"""What is kept of a suite names no folder of the machine that ran it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from benchmarks.federated.shipped_results import without_places


@pytest.mark.parametrize("answer", ["/ he said", "plain"])
def test_paths_of_other_runs_are_named_and_answers_stay(tmp_path: Path, answer: str) -> None:
    summary = {"answers": [answer], "ruler": {"oracles": [{"run": "/home/me/runs/retrain-1", "seed": 1}]}, "value": 0.1}
    (tmp_path / "unlearn.json").write_text(json.dumps(summary))
    found = json.loads(without_places(tmp_path / "unlearn.json"))
    assert found == {**summary, "ruler": {"oracles": [{"run": "retrain-1", "seed": 1}]}}


def test_a_file_without_paths_stays_as_it_is(tmp_path: Path) -> None:
    for name, text in (("a.json", '{"x":   [1.0, "/y"]}'), ("b.jsonl", '{"run": "/z"}\n')):
        (tmp_path / name).write_text(text)
        assert without_places(tmp_path / name) == text.encode()
    (tmp_path / "c.yaml").write_text("output: /home/me/runs\nname: x\n")
    assert yaml.safe_load(without_places(tmp_path / "c.yaml")) == {"output": "runs", "name": "x"}
