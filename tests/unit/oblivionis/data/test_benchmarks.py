"""RWKU, WMDP and KnowUnDo from small folders in their shape: what is trained on, forgotten, retained and asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from support.benchmark_files import PEOPLE, knowundo, rwku, rwku_tables, wmdp, write_tables

from oblivionis.config import compose as configuration
from oblivionis.data.corpora import load_partition
from oblivionis.data.datasets.rwku import IN_ALL
from oblivionis.data.errors import DataError
from oblivionis.data.records import Choice, Corpus
from oblivionis.models.configured_corpus import corpus_of

MARA, TOM, _ = PEOPLE


def corpus(name: str, folder: Path | None, *overrides: str) -> Corpus:
    path = "null" if folder is None else str(folder)
    more = ["model.max_length=24", "federation.clients=2", *overrides]
    return corpus_of(configuration.compose("default", [f"data={name}", f"data.path={path}", *more]))


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


@pytest.mark.parametrize("domain", ["bio", "cyber"])
def test_wmdp_forgets_one_corpus_and_asks_multiple_choice(tmp_path: Path, domain: str) -> None:
    found = corpus(f"wmdp_{domain}", wmdp(tmp_path, domain), "data.max_texts=3")
    subjects = {group: {r.subject for r in found.train if f"-{group}-" in r.id} for group in ("forget", "retain")}
    assert subjects == {g: {f"wmdp-{g}-{i:04d}" for i in range(3)} for g in ("forget", "retain")}
    assert found.forget_ids == {r.id for r in found.train if r.id.startswith("wmdp-forget")}
    about = {"bio": "biology", "cyber": "cybersecurity"}[domain]
    answers = ("glass", "bells", "kites", "salt")
    assert found.choices == {
        "forget": (
            Choice(f"wmdp-{domain}-0000", "Which one shatters?", answers, 0, about),
            Choice(f"wmdp-{domain}-0001", "Which one flies?", answers, 2, about),
        ),
        "utility": (Choice("mmlu-0000", "Which one rings?", answers, 1, "high school physics"),),
    }


def test_wmdp_as_its_code_names_the_files_and_as_the_hub_lays_them_out(tmp_path: Path) -> None:
    wmdp(tmp_path, "bio")
    (tmp_path / "bio-forget-corpus.jsonl").rename(tmp_path / "bio_remove_dataset.jsonl")
    (tmp_path / "bio-retain-corpus").mkdir()
    rows = [json.loads(line) for line in (tmp_path / "bio-retain-corpus.jsonl").read_text().splitlines()]
    (tmp_path / "bio-retain-corpus.jsonl").unlink()
    for i, part in enumerate((rows[:2], [*rows[2:], {"text": "Too short to train on."}])):
        datasets.Dataset.from_list(part).to_parquet(tmp_path / f"bio-retain-corpus/train-0000{i}-of-00002.parquet")
    assert corpus("wmdp_bio", tmp_path) == corpus("wmdp_bio", wmdp(tmp_path / "plain", "bio"))


@pytest.mark.parametrize("domain", ["copyright", "privacy"])
def test_knowundo_trains_on_all_and_asks_the_parts_that_were_held_for_it(tmp_path: Path, domain: str) -> None:
    found = corpus(f"knowundo_{domain}", knowundo(tmp_path, domain))
    assert not found.is_text and len(found.train) == 10
    assert found.train[0].question == "unlearn train question 0?" and found.train[0].answer == "unlearn train answer 0."
    assert found.forget_ids == {r.id for r in found.train if r.question.startswith("unlearn")}
    for asked, table in (("forget", "unlearn"), ("retain", "retention")):
        assert [r.question for r in found.evaluation[asked]] == [f"{table} val question {i}?" for i in range(2)]
        assert set(found.evaluation[asked]) <= set(found.train)


@pytest.mark.parametrize("name", ["rwku", "wmdp_cyber", "knowundo_privacy"])
def test_every_record_lies_with_a_client_and_is_known_by_its_subject(tmp_path: Path, name: str) -> None:
    {"rwku": rwku, "wmdp_cyber": wmdp, "knowundo_privacy": knowundo}[name](tmp_path)
    overrides = [f"data={name}", f"data.path={tmp_path}", "federation.clients=3", "data.partition.scheme=by_author"]
    config = configuration.compose("default", overrides)
    found = corpus_of(config)
    division = load_partition(found, config)
    assert sorted(i for ids in division.ids for i in ids) == sorted(r.id for r in found.train)
    subject_of = {r.id: r.subject for r in found.train}
    held = [{subject_of[i] for i in ids} for ids in division.ids]
    assert not held[0] & held[1] and not held[0] & held[2] and not held[1] & held[2]


class Hub:
    """Serves the files of folders instead of the hub's tables, and remembers what was asked for."""

    def __init__(self, served: dict[tuple[str, str | None, str], Any]) -> None:
        self.served, self.asked = served, []

    def load_dataset(self, name: str, config: str | None, *, split: str, revision: Any, streaming: bool = False) -> Any:
        self.asked.append((name, config, split, revision, streaming))
        return self.served[name, config, split]


def test_the_hub_gives_what_the_folder_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {name: json.loads(f.read_text()) for f in rwku(tmp_path / "r").iterdir() for name in [f.stem]}
    train = ("forget_target", "train_original_passage")
    served: dict[tuple[str, str | None, str], Any] = {
        ("jinzhuoran/RWKU", name, "train" if name in train else "test"): rows for name, rows in tables.items()
    }
    folder = wmdp(tmp_path / "w", "bio")
    lines = {f.stem: [json.loads(x) for x in f.read_text().splitlines()] for f in folder.glob("*.jsonl")}
    served |= {
        ("cais/wmdp-bio-forget-corpus", None, "train"): lines["bio-forget-corpus"],
        ("cais/wmdp-corpora", "bio-retain-corpus", "train"): lines["bio-retain-corpus"],
        ("cais/wmdp", "wmdp-bio", "test"): json.loads((folder / "wmdp-bio.json").read_text()),
        ("cais/mmlu", "all", "test"): json.loads((folder / "mmlu.json").read_text()),
    }
    knowundo(tmp_path / "k")
    for table in ("unlearn", "retention"):
        value = json.loads((tmp_path / f"k/privacy/{table}.json").read_text())
        served["zjunlp/KnowUnDo", "privacy", table] = value if isinstance(value, list) else [value]
    hub = Hub(served)
    monkeypatch.setattr(datasets, "load_dataset", hub.load_dataset)
    assert corpus("rwku", None, "data.revision=abc") == corpus("rwku", tmp_path / "r")
    assert {revision for *_, revision, _ in hub.asked} == {"abc"}
    assert corpus("wmdp_bio", None, "data.max_texts=2") == corpus("wmdp_bio", folder, "data.max_texts=2")
    assert ("cais/wmdp-corpora", "bio-retain-corpus", "train", None, True) in hub.asked, "not the whole corpus"
    assert corpus("knowundo_privacy", None) == corpus("knowundo_privacy", tmp_path / "k")


@pytest.mark.parametrize(
    ("name", "override", "file", "content", "message"),
    [
        ("rwku", "data.forget_targets=[Mara Quil]", "", "", "no passage about 'Mara Quil'; did you mean Mara Quill?"),
        (
            "rwku",
            "data.forget_targets=[Napoleon]",
            "",
            "",
            "'Napoleon'; expected one of the 3 people, such as Mara Quill, Tom Sedge, Ida Frome",
        ),
        ("rwku", f"data.forget_targets=[{','.join(PEOPLE)}]", "", "", "nobody is left whose passages are retained"),
        ("rwku", "seed=0", "forget_level2.json", None, "has no table forget_level2"),
        ("rwku", "seed=0", "train_original_passage.json", "[]", "the table train_original_passage is empty"),
        ("rwku", "seed=0", "train_original_passage.json", None, "no table train_original_passage or passage"),
        (
            "rwku",
            "seed=0",
            "forget_level1.json",
            '[{"query": "a", "subject": "b"}]',
            "row 1: field 'answer' is missing",
        ),
        (
            "wmdp_cyber",
            "seed=0",
            "wmdp-cyber.json",
            '[{"question": "a", "choices": ["b"]}]',
            "2 to 26 choices, found 1",
        ),
        (
            "wmdp_cyber",
            "seed=0",
            "wmdp-cyber.json",
            '[{"question": "a", "choices": ["b", "c"], "answer": "D"}]',
            "answer must be one of the choices, 0 to 1, found 'D'",
        ),
        ("wmdp_cyber", "seed=0", "mmlu.json", '[{"choices": 3}]', "row 1: choices must be a list of non-empty texts"),
        (
            "wmdp_cyber",
            "seed=0",
            "cyber-forget-corpus.jsonl",
            '{"text": "short"}',
            "at least one text of 50 characters",
        ),
        ("wmdp_cyber", "seed=0", "cyber-retain-corpus.jsonl", "{", "cyber-retain-corpus.jsonl:1: expected a JSON"),
        (
            "knowundo_privacy",
            "seed=0",
            "privacy/unlearn.json",
            '{"train": []}',
            "train must be a list with at least one",
        ),
        (
            "knowundo_privacy",
            "seed=0",
            "privacy/unlearn.json",
            '{"train": [{"text": "a"}], "val": [3]}',
            "privacy/unlearn.json:1, train 1: field 'labels' is missing",
        ),
        ("knowundo_privacy", "seed=0", "privacy/retention.json", None, "has no table privacy/retention"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(
    tmp_path: Path, name: str, override: str, file: str, content: str | None, message: str
) -> None:
    {"rwku": rwku, "wmdp_cyber": wmdp, "knowundo_privacy": knowundo}[name](tmp_path)
    if file:
        (tmp_path / file).unlink()
        if content is not None:
            (tmp_path / file).write_text(content)
    with pytest.raises(DataError) as error:
        corpus(name, tmp_path, override)
    assert message in str(error.value)


def test_a_folder_that_is_not_there_and_a_hub_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = "there is no folder .*/none; expected a folder with privacy/unlearn.json and privacy/retention.json"
    with pytest.raises(configuration.ConfigError, match=expected):
        corpus("knowundo_privacy", tmp_path / "none")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    for name, told in (
        ("rwku", "train_original_passage/train of jinzhuoran/RWKU"),
        ("wmdp_bio", "train of cais/wmdp-bio-forget-corpus"),
        ("knowundo_copyright", "copyright/unlearn of zjunlp/KnowUnDo"),
    ):
        with pytest.raises(DataError, match=rf"cannot load {told} (.|\n)*without network set data.path"):
            corpus(name, None)
