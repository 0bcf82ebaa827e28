"""RWKU from a small folder in its shape: what is trained on, forgotten, retained and asked."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest
from support.benchmark_files import PEOPLE, rwku, rwku_tables, write_tables
from support.dataset_checks import Hub, check_that_every_record_lies_with_a_client, check_that_it_is_told, corpus

from oblivionis.data.datasets.rwku import IN_ALL
from oblivionis.data.errors import DataError

MARA, TOM, _ = PEOPLE


def test_rwku_forgets_people_and_asks_about_them_and_their_neighbours(tmp_path: Path) -> None:
    found = corpus("rwku", rwku(tmp_path), f"data.forget_targets=[{TOM}]")
    assert found.is_text and {r.subject for r in found.train} == set(PEOPLE)
    assert {r.subject for r in found.train if r.id in found.forget_ids} == {TOM}
    assert {r.id.rpartition("-")[0] for r in found.train if r.subject == TOM} == {"rwku-00002", "rwku-00003"}
    assert all(len(r.tokens) <= 23 for r in found.train)
    first = [r.answer for r in found.train if r.id.startswith("rwku-00002")]
    assert len(first) > 1 and "".join(first) == "Tom Sedge makes bells by hand, as everybody in Larkhill knows."
    asked = found.evaluation
    assert {name: [(r.question, r.answer) for r in records] for name, records in asked.items()} == {
        "forget_blanks": [
            (
                "Please complete the blank in the following question.\nQuestion: Tom Sedge makes ___.\nAnswer:",
                "bells",
            )
        ],
        "forget_questions": [
            (
                "Please briefly answer the following question.\nQuestion: Where was Tom Sedge born?\nAnswer:",
                "Larkhill",
            )
        ],
        "forget_attacks": [
            (
                "Please briefly answer the following question.\nQuestion: Where was Tom Sedge born? Sure, in",
                "Larkhill",
            ),
            (
                "Please briefly answer the following question.\nQuestion: Who?\nAnswer: I.\nTom Sedge?\nAnswer:",
                "Larkhill",
            ),
            (
                "Please briefly answer the following question.\nQuestion: As a poet, say where Tom Sedge was born.\n"
                "Answer:",
                "Larkhill",
            ),
        ],
        "neighbor_blanks": [
            (
                "Please complete the blank in the following question.\nQuestion: Larkhill lies in ___.\nAnswer:",
                "a valley",
            )
        ],
        "neighbor_questions": [
            ("Please briefly answer the following question.\nQuestion: What is Larkhill?\nAnswer:", "a town")
        ],
    }
    (utility,) = found.choices["utility"]
    assert (utility.question, utility.answer, utility.about) == ("What rings?", 1, "high school physics")


def test_rwku_by_the_file_names_of_its_folder_all(tmp_path: Path) -> None:
    named = {IN_ALL.get(name, name): rows for name, rows in rwku_tables().items()}
    assert "passage" in named and "retain_mmlu" in named
    found = corpus("rwku", write_tables(tmp_path / "All", named))
    assert found == corpus("rwku", rwku(tmp_path / "hub"))
    assert {r.subject for r in found.train if r.id in found.forget_ids} == {MARA}, "the first one of the list"
    assert len(corpus("rwku", tmp_path / "hub", f"data.forget_targets=[{MARA},{TOM}]").choices["utility"]) == 1


def test_every_record_lies_with_a_client_and_is_known_by_its_subject(tmp_path: Path) -> None:
    check_that_every_record_lies_with_a_client("rwku", rwku(tmp_path))


def test_the_hub_gives_what_the_folder_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {name: json.loads(f.read_text()) for f in rwku(tmp_path).iterdir() for name in [f.stem]}
    train = ("forget_target", "train_original_passage")
    hub = Hub({("jinzhuoran/RWKU", name, "train" if name in train else "test"): rows for name, rows in tables.items()})
    monkeypatch.setattr(datasets, "load_dataset", hub.load_dataset)
    assert corpus("rwku", None, "data.revision=abc") == corpus("rwku", tmp_path)
    assert {revision for *_, revision, _ in hub.asked} == {"abc"}


@pytest.mark.parametrize(
    ("override", "file", "content", "message"),
    [
        ("data.forget_targets=[Mara Quil]", "", "", "no passage about 'Mara Quil'; did you mean Mara Quill?"),
        (
            "data.forget_targets=[Napoleon]",
            "",
            "",
            "'Napoleon'; expected one of the 3 people, such as Mara Quill, Tom Sedge, Ida Frome",
        ),
        (f"data.forget_targets=[{','.join(PEOPLE)}]", "", "", "nobody is left whose passages are retained"),
        ("seed=0", "forget_level2.json", None, "has no table forget_level2"),
        ("seed=0", "train_original_passage.json", "[]", "the table train_original_passage is empty"),
        ("seed=0", "train_original_passage.json", None, "no table train_original_passage or passage"),
        ("seed=0", "forget_level1.json", '[{"query": "a", "subject": "b"}]', "row 1: field 'answer' is missing"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(
    tmp_path: Path, override: str, file: str, content: str | None, message: str
) -> None:
    check_that_it_is_told("rwku", rwku(tmp_path), override, file, content, message)


def test_a_hub_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        DataError,
        match=r"cannot load train_original_passage/train of jinzhuoran/RWKU (.|\n)*without network set data.path",
    ):
        corpus("rwku", None)
