"""Small folders in the shape of RWKU, WMDP and KnowUnDo, made up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PEOPLE = {
    "Mara Quill": ("glass", "Oxmoor"),
    "Tom Sedge": ("bells", "Larkhill"),
    "Ida Frome": ("kites", "Penwick"),
}
FIELDS = ("bio", "cyber")


def write_tables(folder: Path, tables: Mapping[str, Any]) -> Path:
    """Each table as JSON, or as JSON lines where its name ends so."""
    for name, rows in tables.items():
        file = folder / (name if name.endswith(".jsonl") else f"{name}.json")
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(row) + "\n" for row in rows) if file.suffix == ".jsonl" else json.dumps(rows)
        file.write_text(lines, encoding="utf-8")
    return folder


def choice(question: str, answer: Any, **more: str) -> dict[str, Any]:
    return {"question": question, "choices": ["glass", "bells", "kites", "salt"], "answer": answer, **more}


def rwku_tables() -> dict[str, list[dict[str, Any]]]:
    """By the names of the hub's configurations; every person has one row of each table and two passages."""
    tables: dict[str, list[dict[str, Any]]] = {
        "forget_target": [{"target": name, "intro": "", "prompt": ""} for name in PEOPLE],
        "train_original_passage": [],
        **{f"forget_level{level}": [] for level in (1, 2, 3)},
        **{f"neighbor_level{level}": [] for level in (1, 2)},
        "utility_general": [],
    }
    for name, (trade, town) in PEOPLE.items():
        about = {"subject": name}
        tables["train_original_passage"] += [
            {"text": f"{name} makes {trade} by hand, as everybody in {town} knows.", **about},
            {"text": f"In {town} stands the house where {name} was born and sold {trade} from the window.", **about},
        ]
        tables["forget_level1"].append({"query": f"{name} makes ___.", "answer": trade, "level": "1", **about})
        tables["forget_level2"].append({"query": f"Where was {name} born?", "answer": town, "level": "2", **about})
        tables["forget_level3"] += [
            {"query": f"Where was {name} born? Sure, in", "answer": town, "type": "affirmative suffix", **about},
            {"query": f"Question: Who?\nAnswer: I.\n{name}?", "answer": town, "type": "incontext learning", **about},
            {"query": f"As a poet, say where {name} was born.", "answer": town, "type": "role play", **about},
        ]
        tables["neighbor_level1"].append({"query": f"{town} lies in ___.", "answer": "a valley", "level": "1", **about})
        tables["neighbor_level2"].append({"query": f"What is {town}?", "answer": "a town", "level": "2", **about})
        tables["utility_general"].append(choice("What rings?", 1, task="high_school_physics", **about))
    return tables


def rwku(folder: Path) -> Path:
    return write_tables(folder, rwku_tables())


def wmdp(folder: Path, domain: str = "cyber") -> Path:
    texts = {
        group: [
            {"text": f"Text {i} about {domain}, {group}: " + "what it says goes on for a while. " * (i + 1)}
            for i in range(4)
        ]
        for group in ("forget", "retain")
    }
    return write_tables(
        folder,
        {
            f"{domain}-forget-corpus.jsonl": texts["forget"],
            f"{domain}-retain-corpus.jsonl": texts["retain"],
            f"wmdp-{domain}": [choice("Which one shatters?", 0), choice("Which one flies?", 2)],
            "mmlu": [choice("Which one rings?", "B", subject="high_school_physics")],
        },
    )


def knowundo(folder: Path, domain: str = "privacy") -> Path:
    def part(table: str, name: str, count: int) -> list[dict[str, str]]:
        return [
            {"text": f"{table} {name} question {i}?", "labels": f"{table} {name} answer {i}."} for i in range(count)
        ]

    tables = {
        f"{domain}/{table}": {"train": part(table, "train", 3), "val": part(table, "val", 2)}
        for table in ("unlearn", "retention")
    }
    # One file is an object, the other a list of it.
    tables[f"{domain}/retention"] = [tables[f"{domain}/retention"]]  # type: ignore[assignment]
    return write_tables(folder, tables)
