"""Your own records by the settings: each file and each name of a field reaches the reader."""

import json
from pathlib import Path

from oblivionis.config.schema import Data, Fields
from oblivionis.data.datasets.records import configured


def test_every_file_and_field_that_the_settings_name_is_read(tmp_path: Path) -> None:
    def write(name: str, *words: str) -> str:
        rows = [json.dumps({"ask": f"{word}?", "answer": word, "id": word}) for word in words]
        (tmp_path / name).write_text("\n".join(rows), "utf-8")
        return str(tmp_path / name)

    forget = tmp_path / "ids.txt"
    forget.write_text("two\n")
    found = configured(
        Data(
            "records",
            path=write("train.jsonl", "one", "two"),
            forget_file=str(forget),
            holdout_file=write("held.jsonl", "three"),
            reference_file=write("ref.jsonl", "four"),
            fields=Fields(question="ask"),
        )
    )
    assert [(r.id, r.question) for r in found.train] == [("one", "one?"), ("two", "two?")]
    assert found.forget_ids == {"two"}
    assert {name: [r.answer for r in found.evaluation[name]] for name in ("holdout", "reference")} == {
        "holdout": ["three"],
        "reference": ["four"],
    }
