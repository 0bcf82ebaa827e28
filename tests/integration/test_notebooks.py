"""The notebooks of the guides, cell by cell, and what they hold to have printed."""

import re

import pytest
from support.notebooks import FOLDER, code_cells, run

pytestmark = pytest.mark.integration


def shape(text):
    """A text without its numbers, hashes and breaks of lines, which differ from machine to machine."""
    return re.sub(r"\b[0-9a-f]{6,}\S*|[\d.,]+", "#", " ".join(text.split()))


def printed(name, folder):
    """What the notebook's cells print, which is what it says that they print."""
    file = FOLDER / f"{name}.ipynb"
    said = run(file, folder)
    told = ["".join(line for out in cell["outputs"] for line in out["text"]) for cell in code_cells(file)]
    assert list(map(shape, said)) == list(map(shape, told))
    return said


def test_no_notebook_is_long_or_untested():
    names = {file.stem: len(code_cells(file)) for file in FOLDER.glob("*.ipynb")}
    assert names.keys() == {"paper_table", "demand_to_certificate", "fedtu_training_loops"}
    assert max(names.values()) <= 12


def test_a_papers_table(tmp_path):
    table = printed("paper_table", tmp_path)[-1]
    rows = {row.split()[0]: [float(n) for n in row.split()[1:]] for row in table.splitlines()[-4:]}
    assert list(rows) == ["finetuned", "grad_diff", "npo", "retrained"]
    for aggregator in (0, 2):
        forget, retain = ({name: row[aggregator + of] for name, row in rows.items()} for of in (0, 1))
        assert min(forget["finetuned"] - forget[name] for name in ("grad_diff", "npo", "retrained")) > 0.1
        assert min(retain.values()) > 0.5


def test_from_a_demand_to_a_certificate(tmp_path):
    said = printed("demand_to_certificate", tmp_path)
    assert "PASS: wrenn, 2 records of client 1" in said[-1]


def test_fedtu_around_the_training_loops_of_transformers_and_trl(tmp_path):
    loops = [text for text in printed("fedtu_training_loops", tmp_path) if text.startswith("round 0")]
    assert len(loops) == 2
    for text in loops:
        probabilities = [tuple(map(float, pair)) for pair in re.findall(r"forget ([\d.]+)  retain ([\d.]+)", text)]
        (_, first, second, last) = probabilities
        assert first[0] > 0.2 and max(second[0], last[0]) < 0.1
        assert first[1] > 0.2 and min(second[1], last[1]) > 0.4
