"""Made-up records of three clinics, each in a folder of its own, for tests of clients that keep their data."""

from __future__ import annotations

import json
from pathlib import Path

PATIENTS = (
    ("Mara Voss", "Ostrava", "repairs church organs"),
    ("Ivo Lind", "Turku", "breeds sled dogs"),
    ("Ada Roy", "Cork", "restores old maps"),
    ("Tomas Hein", "Graz", "paints tram shelters"),
    ("Lena Odum", "Accra", "carves chess pieces"),
    ("Piet Saal", "Ghent", "tunes carillons"),
    ("Nora Wick", "Bergen", "mends fishing nets"),
    ("Rafe Coyle", "Galway", "keeps black bees"),
    ("Zita Molnar", "Pecs", "blows glass lamps"),
)


def records(client: int, clients: int = 3) -> list[dict]:
    """The records of `client`: two about each of its patients."""
    mine = list(enumerate(PATIENTS))[client::clients]
    return [
        record
        for number, (name, city, work) in mine
        for record in (
            {"id": f"p{number}-home", "subject": name, "question": f"Where does {name} live?", "answer": f"In {city}."},
            {"id": f"p{number}-job", "subject": name, "question": f"What does {name} do?", "answer": f"{name} {work}."},
        )
    ]


def write_lines(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_nodes(folder: Path, clients: int = 3) -> Path:
    """The folders node0, node1, …, each with two files of records."""
    for client in range(clients):
        rows = records(client, clients)
        write_lines(folder / f"node{client}" / "data" / "first.jsonl", rows[:2])
        write_lines(folder / f"node{client}" / "data" / "second.jsonl", rows[2:])
    return folder
