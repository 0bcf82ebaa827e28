"""Your own records in every shape and format: the same corpus from each, and one line for what is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest

from oblivionis.data import own_records
from oblivionis.data.errors import DataError
from oblivionis.data.row_shapes import summed_up

PLAIN = [
    {"question": "Where does Mara live?", "answer": "In Ostrava.", "id": "7", "subject": "Mara", "forget": True},
    {"question": "What does Ivo do?\n\nIn winter.", "answer": "1990", "id": "8", "subject": "Ivo", "forget": False},
]
WRONG = [["In Turku.", "In Cork."], ["2001", "NA"]]


def dialogue(*turns: tuple[str, Any], **more: Any) -> list[dict]:
    return [{"role": role, "content": text, **more} for role, text in turns]


def rest(row: dict) -> dict:
    return {name: row[name] for name in ("id", "subject", "forget")}


def asked(row: dict) -> list[dict]:
    return dialogue(("user", row["question"]), ("assistant", row["answer"]))


def alpaca(row: dict) -> dict:
    instruction, _, given = row["question"].partition("\n\n")
    return {"instruction": instruction, "input": given, "output": row["answer"], "text": "the whole prompt"}


SHAPES = {
    "question": lambda row: {"question": row["question"], "answer": row["answer"]},
    "alpaca": alpaca,
    "prompt": lambda row: {"prompt": row["question"], "completion": row["answer"]},
    "turns": lambda row: {"prompt": asked(row)[:1], "completion": asked(row)[1:]},
    "messages": lambda row: {"messages": asked(row)},
    "parts": lambda row: {
        "messages": [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in asked(row)]
    },
    "sharegpt": lambda row: {
        "conversations": [{"from": "human", "value": row["question"]}, {"from": "gpt", "value": row["answer"]}]
    },
}


def write_csv(rows: list[dict], path: Path) -> None:
    frame = pd.DataFrame(rows)
    for column in frame:
        if frame[column].map(lambda value: isinstance(value, list)).any():
            frame[column] = frame[column].map(json.dumps)
    frame.to_csv(path, index=False)


FORMATS = {
    "jsonl": lambda rows, path: path.write_text("\n".join(map(json.dumps, rows))),
    "json": lambda rows, path: path.write_text(json.dumps(rows)),
    "csv": write_csv,
    "parquet": lambda rows, path: pd.DataFrame(rows).to_parquet(path),
    "arrow": lambda rows, path: pd.DataFrame(rows).to_feather(path),
    "saved": lambda rows, path: datasets.Dataset.from_list(rows).save_to_disk(path),
}


TEXTS_ALONE = {("turns", "csv")}
"""A prompt in a cell of CSV is a text."""


@pytest.mark.parametrize(("shape", "suffix"), sorted({(s, f) for s in SHAPES for f in FORMATS} - TEXTS_ALONE))
def test_every_shape_in_every_format_is_the_same_corpus(tmp_path: Path, shape: str, suffix: str) -> None:
    rows = [
        {**SHAPES[shape](row), **rest(row), "perturbed_answer": wrong} for row, wrong in zip(PLAIN, WRONG, strict=True)
    ]
    FORMATS[suffix](rows, tmp_path / f"mine.{suffix}")
    corpus = own_records.load(tmp_path / f"mine.{suffix}")
    found = [(r.question, r.answer, r.id, r.subject, list(r.perturbed_answers)) for r in corpus.train]
    expected = [(*list(row.values())[:4], wrong) for row, wrong in zip(PLAIN, WRONG, strict=True)]
    assert found == expected and corpus.forget_ids == {"7"} and corpus.name == "mine"
    place = {"jsonl": "mine.jsonl:2", "csv": "mine.csv:3"}.get(suffix, f"mine.{suffix} row 2")
    if suffix != "csv":
        assert corpus.places["train"]["8"] == place


@pytest.mark.parametrize("suffix", ["parquet", "saved", "json"])
def test_nulls_are_absent_and_whole_numbers_are_names(tmp_path: Path, suffix: str) -> None:
    rows = [
        {"id": 1, "subject": 5, "question": "q", "answer": "a", "forget": True, "perturbed_answer": None},
        {"id": None, "subject": None, "question": "p", "answer": "b", "forget": None, "perturbed_answer": ["c"]},
    ]
    if suffix == "parquet":
        pd.DataFrame(rows, dtype="object").to_parquet(tmp_path / "a.parquet")
    else:
        FORMATS[suffix](rows, tmp_path / f"a.{suffix}")
    corpus = own_records.load(tmp_path / f"a.{suffix}")
    first, second = corpus.train
    assert (first.id, first.subject, first.perturbed_answers) == ("1", "5", ())
    assert second.id == second.subject == own_records.content_id("p", "b")
    assert second.perturbed_answers == ("c",) and corpus.forget_ids == {"1"}


@pytest.mark.parametrize(("mark", "forgets"), [("true", 1), ("True", 1), ("1", 1), ("FALSE", 0), ("0", 0), ("", 0)])
def test_marks_in_cells(tmp_path: Path, mark: str, forgets: int) -> None:
    (tmp_path / "a.csv").write_text(f"question,answer,forget\nq,a,{mark}\n")
    assert len(own_records.load(tmp_path / "a.csv").forget_ids) == forgets


def test_an_empty_cell_is_no_value(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("question,answer,id,subject\nq,a,,\np,,,\n")
    with pytest.raises(DataError) as caught:
        own_records.load(tmp_path / "a.csv")
    assert caught.value.problems == ("a.csv:3: answer must be a non-empty text, found null",)


def loaded(folder: Path, rows: list, **how: Any) -> Any:
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return own_records.load(folder / "a.jsonl", **how)


def problems(folder: Path, rows: list, **how: Any) -> tuple[str, ...]:
    with pytest.raises(DataError) as caught:
        loaded(folder, rows, **how)
    return caught.value.problems


MESSAGES = dialogue(("user", "q"), ("assistant", "a"))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"messages": dialogue(("system", "Be brief."), ("user", "q"), ("assistant", "a"))}, "has no system turn"),
        (
            {"messages": MESSAGES * 2},
            "expected one turn of the user and one of the assistant, found user, assistant",
        ),
        ({"messages": MESSAGES[:1]}, "one of the assistant, found user"),
        ({"messages": []}, "one of the assistant, found none"),
        ({"messages": "hello"}, 'messages must be a list of turns, objects with role and content, found "hello"'),
        ({"messages": ["hello"]}, "messages must be a list of turns"),
        ({"messages": dialogue(("user", "q"), ("assistant", None))}, "a non-empty text, found null in turn 2"),
        (
            {"messages": dialogue(("user", "q"), ("assistant", ""))},
            'content must be a non-empty text, found "" in turn',
        ),
        (
            {"messages": dialogue(("user", [{"type": "image"}]), ("assistant", "a"))},
            '"image"}] in turn 1',
        ),
        ({"messages": dialogue(("bot", "q"), ("assistant", "a"))}, 'user or assistant, found "bot" in turn 1'),
        (
            {"messages": dialogue(("user", "q"), ("assistant", "a"), tool_calls=[1])},
            'found "tool_calls" besides',
        ),
        ({"messages": MESSAGES, "tools": [{"name": "x"}]}, "found tools "),
        ({"conversations": [{"from": "human", "value": "q"}]}, "conversations: expected one turn of the user"),
        ({"prompt": "q", "completion": MESSAGES[1:]}, "prompt and completion must be a list of turns"),
        ({"instruction": "i", "output": "o", "system": "Be brief."}, 'found system "Be brief." beside instruction and'),
        ({"instruction": "i", "output": "o", "history": [["q", "a"]]}, 'found history [["q", "a"]] beside'),
        ({"instruction": "i", "output": "o", "input": 7}, "input must be a text, found 7"),
        (
            {"instruction": "i", "output": "o", "question": "Where?"},
            'found question "Where?" beside instruction and output',
        ),
        ({"messages": MESSAGES, "question": "Where?"}, 'found question "Where?" beside messages'),
        ({"messages": MESSAGES, "Forget": True}, "unknown field 'Forget'; did you mean 'forget'?"),
        ({"question": "q", "answer": "a", "ID": 7}, "unknown field 'ID'; did you mean 'id'?"),
        ({"question": "q", "Answer": "a"}, "field 'answer' is missing (found 'Answer'); data.fields={question: …"),
        ({"chat": MESSAGES}, "the dialogue stands under 'chat', expected messages or conversations; data.fields={mess"),
        ({"instruction": "i", "output": " "}, 'output must be a non-empty text, found " "'),
        ({"instruction": "i", "outptu": "o"}, "field 'output' is missing (found 'outptu')"),
        ({"prompt": "p", "chosen": "c"}, "field 'completion' is missing; the fields are chosen, prompt; data.fields="),
        ({"a": 1, "b": 2}, "fields 'question' and 'answer' are missing; the fields are a, b; data.fields={question: …"),
        ({"version": 1, "data": [{"a": 1}]}, "an object whose 'data' is a list of objects"),
        ({"question": "q", "answer": "a", "messages": MESSAGES}, "has question and answer and also messages; name the"),
        (
            {"instruction": "q", "output": "a", "prompt": "q", "completion": "a"},
            "has instruction and output and also",
        ),
    ],
)
def test_what_is_no_record_is_one_line(tmp_path: Path, row: dict, expected: str) -> None:
    (problem,) = problems(tmp_path, [row])
    assert problem.startswith("a.jsonl:1: ") and expected in problem
    (everywhere,) = problems(tmp_path, [row] * 3)
    assert everywhere == f"{problem} (the same in all 3 records)"


def test_what_only_some_rows_have_wrong_is_told_of_each(tmp_path: Path) -> None:
    rows = [{"question": "q", "answer": 1}, {"question": "q", "answer": "a"}, {"question": "q", "answer": 2}]
    assert [p.partition(":")[2] for p in problems(tmp_path, rows)] == [
        "1: answer must be a non-empty text, found 1",
        "3: answer must be a non-empty text, found 2",
    ]
    told = summed_up(["a:1: x, found 1", "b", "a:2: x, found 2", "a:2: y", "c:1: x"], ["a:1", "a:2"])
    assert told == ["a:1: x, found 1 (the same in all 2 records)", "b", "a:2: y", "c:1: x"]


def test_a_parquet_column_of_numbers_is_one_line(tmp_path: Path) -> None:
    pd.DataFrame({"question": ["q"] * 1200, "answer": range(1200)}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError) as caught:
        own_records.load(tmp_path / "a.parquet")
    expected = "a.parquet row 1: answer must be a non-empty text, found 0 (the same in all 1,200 records)"
    assert caught.value.problems == (expected,)


# data.fields


def test_other_names_are_given_by_a_map(tmp_path: Path) -> None:
    rows = [{"q": "Q?", "a": "A.", "question": "not this", "key": 3, "about": "Mara", "bury": True}]
    fields = {"question": "q", "answer": "a", "id": "key", "subject": "about", "forget": "bury"}
    corpus = loaded(tmp_path, rows, fields=fields)
    (record,) = corpus.train
    assert (record.question, record.answer, record.id, record.subject) == ("Q?", "A.", "3", "Mara")
    assert corpus.forget_ids == {"3"}
    chat = loaded(tmp_path, [{"dialog": MESSAGES, "messages": "no"}], fields={"messages": "dialog"})
    assert [(r.question, r.answer) for r in chat.train] == [("q", "a")]


@pytest.mark.parametrize(
    "fields",
    [
        {"question": "q", "answer": "long", "id": "key", "subject": "id", "paraphrased_answer": "answer"},
        {"paraphrased_answer": "answer", "subject": "id", "id": "key", "answer": "long", "question": "q"},
    ],
)
def test_a_map_may_give_a_name_of_ours_to_another_field(tmp_path: Path, fields: dict) -> None:
    row = {"q": "Q?", "answer": "Short.", "long": "A long one.", "id": "p1", "key": "r1"}
    (record,) = loaded(tmp_path, [row], fields=fields).train
    assert (record.id, record.subject, record.answer) == ("r1", "p1", "A long one.")
    assert record.paraphrased_answer == "Short."


def test_the_input_of_an_instruction_is_read_under_a_map_too(tmp_path: Path) -> None:
    rows = [
        {"instruction": "Translate.", "input": "Hund", "response": "dog"},
        {"instruction": "Say it.", "response": "it"},
    ]
    corpus = loaded(tmp_path, rows, fields={"question": "instruction", "answer": "response"})
    assert [(r.question, r.answer) for r in corpus.train] == [("Translate.\n\nHund", "dog"), ("Say it.", "it")]


def test_a_map_decides_between_two_shapes(tmp_path: Path) -> None:
    row = {"question": "Q?", "answer": "A.", "messages": MESSAGES}
    for fields, expected in (({"question": "question"}, "Q?"), ({"messages": "messages"}, "q")):
        assert loaded(tmp_path, [row], fields=fields).train[0].question == expected
    row = {"question": "Q?", "instruction": "Answer.", "output": "A."}
    assert loaded(tmp_path, [row], fields={"answer": "output"}).train[0].question == "Q?"


def test_an_id_to_forget_is_the_one_as_it_is_written(tmp_path: Path) -> None:
    rows = [{"id": name, "question": f"q{name}", "answer": "a"} for name in ("p", " p", "r")]
    for text, expected in (("p\n", "p"), (" p\r\n", " p"), ("\t r \n", "r")):
        (tmp_path / "ids.txt").write_text(text, newline="")
        assert loaded(tmp_path, rows, forget_file=tmp_path / "ids.txt").forget_ids == {expected}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"question": "q", "answer": "z"}, "a.jsonl:1: field 'z' is missing; the fields are a, q;"),
        ({"question": "q", "answer": "a", "id": "key"}, 'data.fields.id: no row of a.jsonl has a field "key"'),
        ({"messages": "dialog"}, "field 'dialog' is missing; the fields are q, a"),
    ],
)
def test_a_map_that_does_not_fit_is_told(tmp_path: Path, monkeypatch, fields: dict, expected: str) -> None:
    monkeypatch.chdir(tmp_path)
    (problem,) = problems(Path(), [{"q": "Q?", "a": "A."}], fields=fields)
    assert expected in problem


# Files beside the training file


def test_every_file_may_have_its_own_format(tmp_path: Path) -> None:
    datasets.Dataset.from_list(PLAIN).save_to_disk(tmp_path / "train")
    pd.DataFrame([{"instruction": PLAIN[0]["question"], "output": "In Ostrava."}]).to_parquet(
        tmp_path / "forget_perturbed.parquet"
    )
    (tmp_path / "world_facts.csv").write_text("prompt;completion\nWhere?;There.\n")
    (tmp_path / "holdout.json").write_text(json.dumps([{"messages": MESSAGES}]))
    (tmp_path / "ids.csv").write_text("name,id\nIvo,8\n")
    found = own_records.load(tmp_path, forget_file=tmp_path / "ids.csv", holdout_file=tmp_path / "holdout.json")
    sets = {name: [r.id for r in records] for name, records in found.evaluation.items()}
    assert sets["forget"] == ["7"] and sets["retain"] == ["7"] and found.forget_ids == {"8"}
    assert [r.answer for r in found.evaluation["world_facts"]] == ["There."]
    assert list(found.places["world_facts"].values()) == ["world_facts.csv:2"]
    assert list(found.places["holdout"].values()) == ["holdout.json row 1"]
    (tmp_path / "world_facts.json").write_text("[]")
    with pytest.raises(DataError, match=r"holds world_facts\.json and world_facts\.csv: expected one of them"):
        own_records.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("ids.txt", "1\n\n2\n", {"1", "2"}),
        ("ids.json", '[1, "2"]', {"1", "2"}),
        ("ids.json", '[{"id": 2, "question": "x"}]', {"2"}),
        ("ids.jsonl", '{"id": 1}\n"2"\n', {"1", "2"}),
        ("ids.csv", "id;x\n2;y\n", {"2"}),
    ],
)
def test_ids_to_forget_in_any_format(tmp_path: Path, name: str, text: str, expected: set) -> None:
    (tmp_path / name).write_text(text)
    rows = [{"id": i, "question": f"q{i}", "answer": "a"} for i in (1, 2, 3)]
    assert loaded(tmp_path, rows, forget_file=tmp_path / name).forget_ids == expected
    for suffix in ("parquet", "saved", "txt"):
        write = FORMATS.get(suffix, FORMATS["parquet"])
        write([{"key": 3}], tmp_path / f"forget.{suffix}")
        mine = [{"key": row["id"], **row} for row in rows]
        corpus = loaded(tmp_path, mine, forget_file=tmp_path / f"forget.{suffix}", fields={"id": "key"})
        assert corpus.forget_ids == {"3"}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("ids.csv", "key\n1\n2\n", "field 'id' is missing; the fields are key"),
        ("ids.json", "[9]", "ids.json row 1: no training record has the id 9"),
        ("ids.json", "[]", "expected at least one id, found none"),
        ("ids.json", "[1", "cannot be read as a list of ids"),
    ],
)
def test_a_faulty_list_of_ids_is_one_line(tmp_path: Path, name: str, text: str, expected: str) -> None:
    (tmp_path / name).write_text(text)
    (problem,) = problems(tmp_path, [{"id": 1, "question": "q", "answer": "a"}], forget_file=tmp_path / name)
    assert expected in problem


# The hub


def test_a_data_set_of_the_hub_is_its_split_train(monkeypatch, tmp_path: Path) -> None:
    asked_for = []

    def load_dataset(*args: Any, **kwargs: Any) -> datasets.Dataset:
        asked_for.append((args, kwargs))
        return datasets.Dataset.from_list([alpaca(row) for row in PLAIN])

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    corpus = own_records.load(Path("owner/alpaca"), revision="abc")
    assert [(r.question, r.answer) for r in corpus.train] == [(r["question"], r["answer"]) for r in PLAIN]
    assert asked_for == [(("owner/alpaca", None), {"split": "train", "revision": "abc"})]
    assert corpus.name == "alpaca" and "owner/alpaca/train row 2" in corpus.places["train"].values()


def test_a_hub_that_cannot_be_reached_is_one_line(monkeypatch, tmp_path: Path) -> None:
    def offline(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("Couldn't reach 'mine/data' on the Hub\nmore")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(DataError) as caught:
        own_records.load(Path("mine/data"))
    assert "\n" not in str(caught.value)
    assert "Couldn't reach 'mine/data' on the Hub" in str(caught.value)
    assert "there is no path mine/data here" in str(caught.value)
