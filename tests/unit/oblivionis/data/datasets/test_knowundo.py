"""KnowUnDo from small folders in its shape: what is trained on, forgotten, retained and asked."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest
from support.benchmark_files import knowundo
from support.dataset_checks import Hub, check_that_every_record_lies_with_a_client, check_that_it_is_told, corpus

from oblivionis.config.problems import ConfigError
from oblivionis.data.errors import DataError


@pytest.mark.parametrize("domain", ["copyright", "privacy"])
def test_knowundo_trains_on_all_and_asks_the_parts_that_were_held_for_it(tmp_path: Path, domain: str) -> None:
    found = corpus(f"knowundo_{domain}", knowundo(tmp_path, domain))
    assert not found.is_text and len(found.train) == 10
    assert found.train[0].question == "unlearn train question 0?" and found.train[0].answer == "unlearn train answer 0."
    assert found.forget_ids == {r.id for r in found.train if r.question.startswith("unlearn")}
    for asked, table in (("forget", "unlearn"), ("retain", "retention")):
        assert [r.question for r in found.evaluation[asked]] == [f"{table} val question {i}?" for i in range(2)]
        assert set(found.evaluation[asked]) <= set(found.train)


def test_every_record_lies_with_a_client_and_is_known_by_its_subject(tmp_path: Path) -> None:
    check_that_every_record_lies_with_a_client("knowundo_privacy", knowundo(tmp_path))


def test_the_hub_gives_what_the_folder_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    knowundo(tmp_path)
    served = {}
    for table in ("unlearn", "retention"):
        value = json.loads((tmp_path / f"privacy/{table}.json").read_text())
        served["zjunlp/KnowUnDo", "privacy", table] = value if isinstance(value, list) else [value]
    monkeypatch.setattr(datasets, "load_dataset", Hub(served).load_dataset)
    assert corpus("knowundo_privacy", None) == corpus("knowundo_privacy", tmp_path)


@pytest.mark.parametrize(
    ("override", "file", "content", "message"),
    [
        ("seed=0", "privacy/unlearn.json", '{"train": []}', "train must be a list with at least one"),
        (
            "seed=0",
            "privacy/unlearn.json",
            '{"train": [{"text": "a"}], "val": [3]}',
            "privacy/unlearn.json:1, train 1: field 'labels' is missing",
        ),
        ("seed=0", "privacy/retention.json", None, "has no table privacy/retention"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(
    tmp_path: Path, override: str, file: str, content: str | None, message: str
) -> None:
    check_that_it_is_told("knowundo_privacy", knowundo(tmp_path), override, file, content, message)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    expected = r"there is no folder .*/none; expected a folder with privacy/unlearn\.json and privacy/retention\.json"
    with pytest.raises(ConfigError, match=expected):
        corpus("knowundo_privacy", tmp_path / "none")


def test_a_hub_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        DataError, match=r"cannot load copyright/unlearn of zjunlp/KnowUnDo (.|\n)*without network set data.path"
    ):
        corpus("knowundo_copyright", None)
