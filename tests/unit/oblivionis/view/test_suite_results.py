"""A suite's results as they lie in its folder, and the cells that no other beats."""

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.suite_view import cells, value

from benchmarks.federated import results as written
from oblivionis.errors import FileError
from oblivionis.view import suite_results
from oblivionis.view.suite_results import Cell, Point, frontier, points, read_results


def write(folder, frame):
    axes = ["strategy", "unlearning", "seed"]
    written.write(written.table_of(frame.astype({"seed": str}).to_dict("records"), axes), folder)


def test_it_reads_what_a_suite_writes(tmp_path):
    write(tmp_path, cells(failed="fedadam/rmu/seed=1"))
    found = read_results(tmp_path)
    assert suite_results.FIXED == written.FIXED and suite_results.RESULTS == written.FILE
    assert found.axes == ("strategy", "unlearning", "seed") and len(found.cells) == 8
    first = found.cells[0]
    assert first.labels == {"strategy": "fedavg", "unlearning": "npo", "seed": "0"}
    assert first.value("unlearn", "forget_rouge") == value("fedavg", "npo", 0, "unlearn", "forget_rouge")
    assert first.runs["unlearn"] == "stages/unlearn-fedavg-0-npo"
    (failed,) = (cell for cell in found.cells if cell.error)
    assert (failed.name, failed.error) == ("fedadam/rmu/seed=1", "client 3 <died>")
    assert failed.value("unlearn", "forget_rouge") is None


def test_no_results_and_other_results(tmp_path):
    assert read_results(tmp_path) is None
    written.write(pa.table({"dataset": ["iris"], "auc": [0.5]}), tmp_path)
    assert read_results(tmp_path) is None, "a suite of another kind"
    (tmp_path / written.FILE).write_bytes(b"nonsense")
    with pytest.raises(FileError, match="cannot be read as results of a suite"):
        read_results(tmp_path)
    fixed = {name: ["x"] for name in written.FIXED}
    written.write(pa.table({**fixed, "value": ["high"]}), tmp_path)
    with pytest.raises(FileError, match="value: expected"):
        read_results(tmp_path)


def test_points_are_distances_from_the_own_retrained_model():
    def cell(ours, oracle, useful):
        return Cell("c", {}, {"unlearn": {"f": ours, "u": useful}, "retrain": {"f": oracle}})

    found = points([cell(0.1, 0.3, 0.5), cell(0.9, math.inf, 0.5), Cell("d", {}), cell(0.5, 0.25, 0.75)], "f", "u")
    assert [(p.place, p.x, p.y) for p in found] == [(1, pytest.approx(0.2), 0.5), (4, 0.25, 0.75)]


NUMBERS = st.integers(0, 4).map(float)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=12))
def test_the_frontier_is_what_no_other_point_beats(values):
    found = [Point(n, Cell(str(n), {}), x, y) for n, (x, y) in enumerate(values)]

    def beaten(p):
        return any(q.x <= p.x and q.y >= p.y and (q.x, q.y) != (p.x, p.y) for q in found)

    assert {p.place for p in frontier(found)} == {p.place for p in found if not beaten(p)}
    xs = [p.x for p in frontier(found)]
    assert xs == sorted(xs)
