"""The kit for a machine with a GPU, on a CPU with tiny shapes: does it measure, tell failures, carry its luggage?"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest
from support import in_one_process

from benchmarks.gpu import cuda_tests, kit_parts, pack, smollm2, unpack
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.options import Options
from benchmarks.gpu.result_rows import FAILED, NEEDS_CUDA, NO_TIME, SKIPPED, Rows
from clients import losses

pytestmark = pytest.mark.slow
NAMES = [part.name for part in kit_parts.PARTS]
TINY = ["--device", "cpu", "--tiny"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a run in which only SmolLM2's place is taken by the smallest experiment, without Ray."""
    made = tmp_path_factory.mktemp("kit")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OBLIVIONIS_TEST_PATCH", in_one_process.__file__)
        assert main([*TINY, "--out", str(made)]) == 0
    return made


@pytest.fixture(scope="module")
def found(folder: Path) -> dict:
    """What is in its JSON."""
    return json.loads((folder / "gpu.json").read_text())


def test_every_part_is_there_and_every_number_finite(found: dict) -> None:
    assert list(found["parts"]) == NAMES and found["device"]["cpus"] >= 1 and found["versions"]["torch"]
    assert found["parts"]["tests"]["status"] == SKIPPED
    assert {found["parts"][name]["status"] for name in NAMES if name != "tests"} == {kit_parts.DONE}
    rows = [row for part in found["parts"].values() for row in part["rows"].values()]
    numbers = [value for row in rows for value in row.values() if isinstance(value, float)]
    assert len(numbers) > 100 and all(math.isfinite(number) for number in numbers)
    assert {row[SKIPPED] for row in rows if SKIPPED in row} == {NEEDS_CUDA}


def test_it_measures_what_it_says(found: dict) -> None:
    measured = found["parts"]["llama_1b"]["rows"]
    assert {f"unlearning: {name}" for name in losses.names()} < set(measured)
    ours, theirs = measured["an epoch, ours"], measured["an epoch, Trainer"]
    assert ours["updates"] == theirs["updates"] and ours["first_loss"] == pytest.approx(theirs["first_loss"], abs=0.01)
    kernels = [row["share"] for row in found["parts"]["profile"]["rows"].values() if "share" in row]
    assert kernels == sorted(kernels, reverse=True) and 0.3 < sum(kernels) <= 1
    stages = found["parts"]["smollm2"]["rows"]
    assert list(stages) == ["whole run", "finetune", "unlearn"] and 0 <= stages["finetune"]["forget_rouge"] <= 1
    assert stages["unlearn"]["rounds"] == 1 and stages["unlearn"]["finished"]


def test_the_tables_have_every_row(folder: Path, found: dict) -> None:
    lines = (folder / "gpu.md").read_text().splitlines()
    for part in found["parts"].values():
        assert all(any(line.startswith(f"| {name} |") for line in lines) for name in part["rows"])


def test_another_devices_values_stand_beside(folder: Path, tmp_path: Path) -> None:
    rows = Rows(tmp_path / "rows.json", time.time() + 60, on_gpu=False)
    rows.measure("finetune", lambda: {"seconds": 1.0})
    rows.measure("beside", lambda: smollm2.add_reference(folder / "gpu.json", rows))
    (name,) = [name for name in rows.rows if name.startswith("finetune, on ")]
    assert rows.rows[name]["forget_rouge"] >= 0 and FAILED not in rows.rows["beside"]


def test_a_part_that_fails_is_told_and_ends_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(options: Options, rows: Rows) -> None:
        rows.measure("breaks", lambda: {"seconds": 1 / 0})
        rows.measure("is no number", lambda: {"loss": math.nan, "seconds": 1.0})
        rows.measure("works", lambda: {"seconds": 1.0})
        raise RuntimeError("and then\nnothing")

    monkeypatch.setattr("benchmarks.gpu.checks.run", run)
    assert main([*TINY, "--parts", "checks", "tests", "--out", str(tmp_path)]) == 1
    told = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert told["checks"]["status"] == FAILED and told["checks"]["why"] == "RuntimeError: and then"
    assert told["checks"]["rows"] == {
        "breaks": {FAILED: "ZeroDivisionError: division by zero"},
        "is no number": {"seconds": 1.0, FAILED: "not finite: loss"},
        "works": {"seconds": 1.0},
    }
    assert told["tests"]["status"] == SKIPPED
    assert "division by zero" in (tmp_path / "gpu.md").read_text()


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    assert main(["--device", "cpu", "--minutes", "0", "--out", str(tmp_path)]) == 0
    told = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert {(part["status"], part["why"]) for part in told.values()} == {(SKIPPED, NO_TIME)} and list(told) == NAMES
    rows = Rows(tmp_path / "rows.json", time.time() + 5, on_gpu=False)
    rows.measure("long", dict, seconds=60)
    assert rows.rows == {"long": {SKIPPED: NO_TIME}}


def test_a_part_in_a_process_of_its_own() -> None:
    tests, options = kit_parts.PARTS[0], Options("cpu")
    told = kit_parts.outcome(tests, options, time.time() + 600, apart=True)
    assert told["status"] == SKIPPED and set(told["rows"].popitem()[1]) == {SKIPPED}
    unknown = kit_parts.Part("nothing", "nothing", "", 0, 60)
    told = kit_parts.outcome(unknown, options, time.time() + 600, apart=True)
    assert told["status"] == FAILED and told["why"].startswith("exit code 1: StopIteration")


def test_pytest_tells_what_passed_and_what_failed(tmp_path: Path) -> None:
    file = tmp_path / "test_two.py"
    file.write_text("import pytest\n\n\ndef test_one(): ...\n\n\n@pytest.mark.skip\ndef test_two(): ...\n")
    assert cuda_tests.tested(file, 60) == {"passed": 1, "not_for_a_gpu": 1}
    file.write_text("def test_one(): assert False\n")
    with pytest.raises(AssertionError, match="1 of 1 tests failed: test_one"):
        cuda_tests.tested(file, 60)


def test_the_luggage_is_whole_or_told(tmp_path: Path) -> None:
    file, pieces = tmp_path / "file", tmp_path / "pieces"
    file.write_bytes(bytes(range(256)) * 10)
    pieces.mkdir()
    names = unpack.split(file, pieces, 1000)
    packed: unpack.Packed = {"file": "file", "sha256": unpack.digest(file), "pieces": names, "model": None}
    assert [(pieces / name).stat().st_size for name in names] == [1000, 1000, 560]
    assert pack.in_loads([pieces / names[2]], pieces, 1600) == 1
    (tmp_path / "there").mkdir()
    assert unpack.joined(packed, pieces, tmp_path / "there").read_bytes() == file.read_bytes()
    (pieces / names[1]).write_bytes(b"x" * 1000)
    with pytest.raises(unpack.Damaged, match="copy its pieces again"):
        unpack.joined(packed, pieces, tmp_path / "there")
    (pieces / names[1]).unlink()
    with pytest.raises(unpack.Damaged, match="expected 3 pieces"):
        unpack.joined(packed, pieces, tmp_path / "there")


def test_no_load_is_larger_than_it_may_be(tmp_path: Path) -> None:
    files = [tmp_path / f"{size}" for size in (3, 9, 5, 7, 1)]
    for file in files:
        file.write_bytes(b"x" * int(file.name))
    assert pack.in_loads(files, tmp_path, 10) == 3
    loads = [{int(f.name) for f in folder.iterdir()} for folder in sorted(tmp_path.iterdir())]
    assert loads == [{9, 1}, {7, 3}, {5}]


def test_what_another_machine_lacks() -> None:
    have = pack.frozen("torch==2.7.0\nnumpy==1.0 # too old\ntransformers\n-e .\n")
    assert have == {"torch": "2.7.0", "numpy": "1.0", "transformers": None}
    lacking = pack.missing(have, "3.12")
    names = {line.partition("==")[0] for line in lacking}
    assert {"numpy", "flwr", "ray", "bitsandbytes", "grpcio"} < names and not {"torch", "transformers"} & names
    assert all("==" in line for line in lacking if line.startswith(("flwr", "numpy", "ray")))
