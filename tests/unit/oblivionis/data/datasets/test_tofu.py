"""TOFU: what is read of its files, and what is said about faulty ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from oblivionis.data.datasets import tofu
from oblivionis.data.errors import DataError

TOFU = Path(os.environ.get("OBLIVIONIS_TOFU", Path(__file__).parents[6] / "shared" / "tofu"))
needs_tofu = pytest.mark.skipif(
    not (TOFU / "full.json").is_file(), reason="needs the TOFU files: set OBLIVIONIS_TOFU to their folder"
)


def write(path: Path, rows: list) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def asked(question: str, answer: str, **fields) -> dict:
    return {"question": question, "answer": answer, "perturbed_answer": ["no", "never"], **fields}


@pytest.fixture
def small_tofu(tmp_path: Path) -> Path:
    full = [{"question": f"q{i}", "answer": f"a{i}"} for i in range(60)]
    write(tmp_path / "full.json", full)
    write(tmp_path / "forget01.json", full[40:])
    write(
        tmp_path / "forget01_perturbed.json",
        [asked(**row, paraphrased_answer="p " + row["answer"]) for row in full[40:]],
    )
    write(
        tmp_path / "retain_perturbed.json",
        [asked("q3", "a3", paraphrased_answer="p"), asked("elsewhere", "x", paraphrased_answer="p")],
    )
    write(tmp_path / "real_authors_perturbed.json", [asked("who?", "she")])
    write(tmp_path / "world_facts_perturbed.json", [asked("where?", "there"), asked("when?", "then")])
    return tmp_path


def test_tofu_numbers_rows_and_authors_in_file_order(small_tofu: Path) -> None:
    corpus = tofu.load(small_tofu, "forget01")
    assert [r.id for r in corpus.train] == [f"tofu-{i:04d}" for i in range(60)]
    assert [r.subject for r in corpus.train] == ["author-000"] * 20 + ["author-001"] * 20 + ["author-002"] * 20
    assert corpus.forget_ids == {f"tofu-{i:04d}" for i in range(40, 60)}
    assert [r.id for r in corpus.evaluation["forget"]] == [f"tofu-{i:04d}" for i in range(40, 60)]
    assert corpus.evaluation["forget"][0].paraphrased_answer == "p a40"
    assert corpus.evaluation["forget"][0].subject == "author-002"
    assert corpus.evaluation["forget"][0].perturbed_answers == ("no", "never")
    assert [r.id for r in corpus.evaluation["retain"]] == ["tofu-0003", "tofu-retain-0001"]
    assert [r.id for r in corpus.evaluation["world_facts"]] == ["tofu-world-facts-0000", "tofu-world-facts-0001"]
    assert corpus.evaluation["real_authors"][0].paraphrased_answer is None


def test_tofu_forgets_every_copy_of_a_row(small_tofu: Path) -> None:
    full = [{"question": f"q{i % 59}", "answer": f"a{i % 59}"} for i in range(60)]
    write(small_tofu / "full.json", full)
    write(small_tofu / "forget01.json", full[:1])
    assert tofu.load(small_tofu, "forget01").forget_ids == {"tofu-0000", "tofu-0059"}


def test_tofu_reports_all_faults_of_all_files_with_their_lines(small_tofu: Path) -> None:
    rows = (small_tofu / "full.json").read_text().splitlines()
    rows[4] = '{"question": "q4"'
    rows[6] = json.dumps({"question": "q6", "anwser": "a6"})
    (small_tofu / "full.json").write_text("\n".join(rows))
    write(small_tofu / "forget01.json", [{"question": "q50", "answer": "not what full says"}])
    write(small_tofu / "real_authors_perturbed.json", [{"question": "who?", "answer": "she"}])
    (small_tofu / "world_facts_perturbed.json").unlink()
    with pytest.raises(DataError) as caught:
        tofu.load(small_tofu, "forget01")
    text = str(caught.value)
    assert "full.json:5: expected a JSON object" in text
    assert "full.json:7: field 'answer' is missing (found 'anwser')" in text
    assert "forget01.json:1: no row of full has this question and answer: 'q50'" in text
    assert "real_authors_perturbed.json:1: field 'perturbed_answer' is missing" in text
    assert "world_facts_perturbed.json: file not found" in text
    assert len(caught.value.problems) == 5


def test_tofu_refuses_unknown_split_and_folder(small_tofu: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"forget02.*forget01, forget05, forget10"):
        tofu.load(small_tofu, "forget02")
    with pytest.raises(DataError, match="no such folder"):
        tofu.load(tmp_path / "nowhere", "forget01")


def test_tofu_from_the_hub_equals_the_folder(small_tofu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked_for = []

    def load_dataset(name: str, config: str, *, split: str, revision: str | None):
        asked_for.append((name, config, split, revision))
        rows = [json.loads(line) for line in (small_tofu / f"{config}.json").read_text().splitlines()]
        return datasets.Dataset.from_list(rows)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert tofu.load(None, "forget01", revision="abc") == tofu.load(small_tofu, "forget01")
    assert ("locuslab/TOFU", "forget01_perturbed", "train", "abc") in asked_for
    assert len(asked_for) == 6


def test_tofu_without_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def offline(*args, **kwargs):
        raise ConnectionError("Couldn't reach 'locuslab/TOFU' on the Hub\nmore")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(DataError, match=r"Couldn't reach.*set data.path to a folder"):
        tofu.load(None, "forget01")


@needs_tofu
@pytest.mark.parametrize(("split", "size"), [("forget01", 40), ("forget05", 200), ("forget10", 400)])
def test_real_tofu(split: str, size: int) -> None:
    corpus = tofu.load(TOFU, split)
    assert len(corpus.train) == 4000
    assert {r.subject for r in corpus.train} == {f"author-{i:03d}" for i in range(200)}
    assert corpus.forget_ids == {f"tofu-{i:04d}" for i in range(4000 - size, 4000)}
    assert {k: len(v) for k, v in corpus.evaluation.items()} == {
        "forget": size,
        "retain": 400,
        "real_authors": 100,
        "world_facts": 117,
    }
    assert {r.id for r in corpus.evaluation["forget"]} == corpus.forget_ids
    assert not {r.id for r in corpus.evaluation["retain"]} & corpus.forget_ids
    retained = (TOFU / f"retain{100 - int(split[-2:])}.json").read_text(encoding="utf-8").split("\n")
    rows = [json.loads(line) for line in retained if line]
    kept = [(r.question, r.answer) for r in corpus.train if r.id not in corpus.forget_ids]
    assert kept == [(row["question"], row["answer"]) for row in rows]


def test_data_errors_are_value_errors_and_readable() -> None:
    with pytest.raises(ValueError, match="no such folder"):
        tofu.load(Path("/nonexistent"), "forget01")
