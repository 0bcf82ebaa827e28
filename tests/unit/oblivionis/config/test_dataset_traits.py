"""What datasets declare, by hand numbers; no name of one decides anything elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from support.trees import Tree

from oblivionis.config import configuration_layers, dataset_traits
from oblivionis.config.schema import Data

PROJECT = Path(__file__).resolve().parents[4]
PRODUCT = ("oblivionis", "benchmarks", "clients", "strategies", "evaluation")


def test_every_name_has_its_settings_and_every_settings_their_dataset() -> None:
    assert sorted(dataset_traits.known()) == configuration_layers.list_choices()["data"]


def test_every_key_that_is_declared_is_one_of_the_data() -> None:
    keys = {field.name for field in fields(Data)}
    for name, dataset in dataset_traits.known().items():
        compared = {key for pair, (other, _) in dataset.fewer.items() for key in (pair, other)}
        given = {*dataset.reads, *dataset.only, *compared, dataset.references} - {""}
        assert given <= keys, name


@pytest.mark.parametrize(
    ("data", "authors", "records"),
    [
        (Data("fictitious", authors=7, questions_per_author=3, holdout_authors=2), 7, 21),
        (Data("tofu"), 200, 4000),
        (Data("tofu", holdout_authors=3, reference_authors=4), 193, 3860),
        (Data("tofu", forget_split="forget05", retain_authors=20), 30, 600),
        (Data("tofu", forget_split="forget10", retain_authors=190, holdout_authors=5), 195, 3900),
        (Data("muse_tiny"), None, None),
        (Data("no such dataset"), None, None),
    ],
)
def test_authors_and_records_that_are_trained_on(data: Data, authors: int | None, records: int | None) -> None:
    dataset = dataset_traits.of(data.name)
    assert (dataset.authors(data), dataset.records(data)) == (authors, records)


def test_whose_authors_are_further_ones_and_whose_are_taken_away() -> None:
    known = dataset_traits.known()
    assert [name for name, dataset in known.items() if dataset.invents] == ["fictitious"]
    assert [name for name, dataset in known.items() if dataset.withholds] == ["tofu"]


def test_what_comes_with_the_program_is_read_from_nothing() -> None:
    built_in = [name for name, dataset in dataset_traits.known().items() if dataset.built_in]
    assert built_in == ["fictitious", "muse_tiny"]
    assert dataset_traits.built_in() == "`fictitious`, `muse_tiny`"
    assert not dataset_traits.of("no such dataset").built_in


def test_a_file_that_is_no_dataset_is_told_in_a_line(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.add("oblivionis/data/datasets/bare.py", '"""Has no function."""\n')
    tree.add("conf/data/bare.yaml", "path: null\n")
    refused = tree.run("-m", "oblivionis.cli.main", "data", "describe", "smoke", "data=bare")
    assert refused.returncode != 0 and "Traceback" not in refused.stderr
    assert "data=bare: its code file defines no function 'configured'" in refused.stderr
    tree.add("oblivionis/data/datasets/torn.py", "ABOUT = (\n")
    refused = tree.run("-m", "oblivionis.cli.main", "config", "check", "smoke")
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    assert "datasets/torn.py: cannot be read" in refused.stderr


def comparisons(file: Path) -> Iterator[ast.Compare]:
    """Comparisons of a `data.name` with something that holds a text."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Compare):
            sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
            texts = [n for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
            if any(side == "data.name" or side.endswith(".data.name") for side in sides) and texts:
                yield node


@pytest.mark.slow
def test_no_decision_goes_by_the_name_of_a_dataset() -> None:
    found = [
        f"{file.relative_to(PROJECT)}:{node.lineno}"
        for package in PRODUCT
        for file in sorted((PROJECT / package).rglob("*.py"))
        for node in comparisons(file)
    ]
    assert found == []


def test_such_a_decision_would_be_found(tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text('if config.data.name in ("tofu", *MORE) and x:\n    pass\nif data.name != "node": pass\n')
    assert {node.lineno for node in comparisons(file)} == {1, 3}
