"""A corpus is made once where it is the same each time, and read again where its files may have changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from oblivionis.config import compose as configuration
from oblivionis.data import corpora
from oblivionis.data.corpora import load_corpus
from oblivionis.models.configured_corpus import load_built_in


def test_the_last_corpus_that_comes_with_the_program_is_kept() -> None:
    data = configuration.compose("smoke", []).data
    found = load_corpus(data)
    assert load_corpus(replace(data)) is found
    data.seed += 1
    other = load_corpus(data)
    assert other.name != found.name, "settings may change after they were used"
    data.seed -= 1
    assert load_corpus(data) == found


def test_files_are_read_each_time(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.touch()
    data = configuration.compose("smoke", ["data=jsonl", f"data.path={path}"]).data
    for answer in ("In Rome.", "In Lima."):
        rows = [{"question": f"Where is {n}?", "answer": answer, "subject": f"s{n}"} for n in range(4)]
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        assert {record.answer for record in load_corpus(data).train} == {answer}


def test_a_process_keeps_what_comes_with_the_program_before_it_is_asked(tmp_path: Path, monkeypatch) -> None:
    config = configuration.compose("smoke", ["data.seed=77"])
    load_built_in(configuration.to_yaml(config))
    (tmp_path / "torn.jsonl").write_text("{", encoding="utf-8")
    of_files = configuration.compose("smoke", ["data=jsonl", f"data.path={tmp_path / 'torn.jsonl'}"])
    load_built_in(configuration.to_yaml(of_files))  # files are left to who needs them
    monkeypatch.setattr(corpora, "find_twins", None)  # none can be made any more
    assert load_corpus(config.data).name == "fictitious-77"
    assert load_corpus(config.data) is load_corpus(config.data)
