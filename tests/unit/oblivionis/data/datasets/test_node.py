"""Clients' own records: the server has questions at most."""

import json
from pathlib import Path

from oblivionis.config.schema import Data, Fields
from oblivionis.data.datasets.node import configured


def test_without_a_path_there_is_nothing() -> None:
    found = configured(Data("node"))
    assert (found.train, found.forget_ids, found.evaluation) == ((), frozenset(), {})


def test_a_file_holds_the_servers_own_questions_to_retain(tmp_path: Path) -> None:
    file = tmp_path / "asked.jsonl"
    file.write_text(json.dumps({"ask": "Who?", "answer": "Ann.", "perturbed_answer": ["Bo."]}), "utf-8")
    found = configured(Data("node", path=str(file), fields=Fields(question="ask")))
    assert found.train == ()
    assert {name: [r.question for r in records] for name, records in found.evaluation.items()} == {"retain": ["Who?"]}
