"""WMDP from small folders in its shape: what is trained on, forgotten, retained and asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from support.benchmark_files import wmdp
from support.dataset_checks import Hub, check_that_every_record_lies_with_a_client, check_that_it_is_told, corpus

from oblivionis.data.errors import DataError
from oblivionis.data.records import Choice


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


def test_every_record_lies_with_a_client_and_is_known_by_its_subject(tmp_path: Path) -> None:
    check_that_every_record_lies_with_a_client("wmdp_cyber", wmdp(tmp_path))


def test_the_hub_gives_what_the_folder_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = wmdp(tmp_path, "bio")
    lines = {f.stem: [json.loads(x) for x in f.read_text().splitlines()] for f in folder.glob("*.jsonl")}
    served: dict[tuple[str, str | None, str], Any] = {
        ("cais/wmdp-bio-forget-corpus", None, "train"): lines["bio-forget-corpus"],
        ("cais/wmdp-corpora", "bio-retain-corpus", "train"): lines["bio-retain-corpus"],
        ("cais/wmdp", "wmdp-bio", "test"): json.loads((folder / "wmdp-bio.json").read_text()),
        ("cais/mmlu", "all", "test"): json.loads((folder / "mmlu.json").read_text()),
    }
    hub = Hub(served)
    monkeypatch.setattr(datasets, "load_dataset", hub.load_dataset)
    assert corpus("wmdp_bio", None, "data.max_texts=2") == corpus("wmdp_bio", folder, "data.max_texts=2")
    assert ("cais/wmdp-corpora", "bio-retain-corpus", "train", None, True) in hub.asked, "not the whole corpus"


@pytest.mark.parametrize(
    ("override", "file", "content", "message"),
    [
        ("seed=0", "wmdp-cyber.json", '[{"question": "a", "choices": ["b"]}]', "2 to 26 choices, found 1"),
        (
            "seed=0",
            "wmdp-cyber.json",
            '[{"question": "a", "choices": ["b", "c"], "answer": "D"}]',
            "answer must be one of the choices, 0 to 1, found 'D'",
        ),
        ("seed=0", "mmlu.json", '[{"choices": 3}]', "row 1: choices must be a list of non-empty texts"),
        ("seed=0", "cyber-forget-corpus.jsonl", '{"text": "short"}', "at least one text of 50 characters"),
        ("seed=0", "cyber-retain-corpus.jsonl", "{", "cyber-retain-corpus.jsonl:1: expected a JSON"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(
    tmp_path: Path, override: str, file: str, content: str | None, message: str
) -> None:
    check_that_it_is_told("wmdp_cyber", wmdp(tmp_path), override, file, content, message)


def test_a_hub_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        DataError, match=r"cannot load train of cais/wmdp-bio-forget-corpus (.|\n)*without network set data.path"
    ):
        corpus("wmdp_bio", None)
