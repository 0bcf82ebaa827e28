"""What an earlier version signed stays valid, byte for byte, and what the comparison of golden runs finds.

`tests/golden/data/verified` was made once, by version 0.2.0 (the golden run `node-verified`, without pages and secret
keys), and is never made again: it stands for the runs and certificates that users have.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from golden.comparing import differences
from golden.recording import gather
from safetensors.numpy import load_file, save_file
from support.commands import call

STORED = Path(__file__).resolve().parents[1] / "golden" / "data" / "verified"
RUN, NODES = "runs/run", [f"nodes/node{client}" for client in range(4)]
LEDGERS = [f"{place}/requests.jsonl" for place in (RUN, *NODES)]
CHECKPOINT = f"{RUN}/checkpoints/unlearn/round-0002.safetensors"
OF_THE_ISSUE = ("issued", "issued_by", "public_key", "signature", "not_covered")


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A copy, and the working directory; no command has written to its ledgers and its certificate afterwards."""
    folder = shutil.copytree(STORED, tmp_path / "stored")
    monkeypatch.chdir(folder)
    yield folder
    for name in [*LEDGERS, f"{RUN}/config.yaml", "certificate/certificate.json"]:
        assert (folder / name).read_bytes() == (STORED / name).read_bytes(), name


def verify_ledgers():
    return call("request", "verify", RUN, *(argument for node in NODES for argument in ("--node-dir", node)))


def verify_certificate():
    return call("certificate", "verify", "certificate/certificate.json", "--public-key", "key.pub")


def test_a_certificate_of_an_earlier_version_is_valid(stored):
    result = verify_certificate()
    assert result.code == 0, result.err
    assert "PASS: job, 1 record of client 2" in result.out and "signed by key.pub" in result.out


def test_ledgers_of_an_earlier_version_are_unbroken_and_agree(stored):
    result = verify_ledgers()
    assert result.code == 0, result.err
    assert result.out.count("unbroken") == len(LEDGERS)


def test_a_run_of_an_earlier_version_is_shown(stored):
    result = call("runs", "show", RUN)
    assert result.code == 0, result.err
    assert "1 verified" in result.out and "not testable: art17" in result.out
    listed = call("request", "list", "--node-dir", NODES[2])
    assert listed.code == 0 and "verified" in listed.out


def test_a_certificate_made_anew_from_an_earlier_version_s_run_says_the_same(stored):
    result = call("certificate", "create", RUN, "job", "--out", "again")
    assert result.code == 0, result.err
    old, new = (json.loads(Path(f).read_text()) for f in ("certificate/certificate.json", "again/certificate.json"))
    assert {k: v for k, v in new.items() if k not in OF_THE_ISSUE} == {
        k: v for k, v in old.items() if k not in OF_THE_ISSUE
    }


@pytest.mark.parametrize(
    ("name", "old", "new", "command"),
    [
        ("certificate/certificate.json", "p2-job", "p2-jab", verify_certificate),
        (LEDGERS[0], '"time": 1767603', '"time": 1767604', verify_ledgers),
        (LEDGERS[3], '"time": 1767603', '"time": 1767604', verify_ledgers),
    ],
)
def test_what_is_altered_in_it_is_found(tmp_path, monkeypatch, name, old, new, command):
    folder = shutil.copytree(STORED, tmp_path / "stored")
    monkeypatch.chdir(folder)
    swapped(folder / name, old, new)
    assert command().code > 0


def swapped(path, old, new):
    text = path.read_text()
    assert old in text, path
    path.write_text(text.replace(old, new, 1))


def nudged(path):
    arrays = load_file(path)
    name, values = next(iter(arrays.items()))
    values = values.copy()
    values.flat[0] = np.nextafter(values.flat[0], np.inf, dtype=values.dtype)
    save_file({**arrays, name: values}, path)


PLANTED = {
    f"{RUN}/metrics.jsonl": lambda path: swapped(path, '"seconds": 0.0', '"seconds": 1e-6'),
    CHECKPOINT: nudged,
    "certificate/certificate.html": lambda path: swapped(path, "recited", "recitet"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_the_comparison_of_golden_runs_names_a_planted_difference(tmp_path, name):
    folder = shutil.copytree(STORED, tmp_path / "stored")
    gather(folder, tmp_path / "before" / "case" / "files")
    gather(folder, tmp_path / "same" / "case" / "files")
    PLANTED[name](folder / name)
    gather(folder, tmp_path / "after" / "case" / "files")
    assert not list(differences(tmp_path / "before", tmp_path / "same"))
    (found,) = differences(tmp_path / "before", tmp_path / "after")
    assert found.startswith(f"case/files/{name}"), found


def test_the_comparison_of_golden_runs_names_a_file_that_is_missing(tmp_path):
    for side, files in (("before", ("a", "b")), ("after", ("a",))):
        for name in files:
            (tmp_path / side / "case").mkdir(parents=True, exist_ok=True)
            (tmp_path / side / "case" / name).write_text("text")
    assert list(differences(tmp_path / "before", tmp_path / "after")) == [f"case/b: only in {tmp_path / 'before'}"]


def test_times_and_hashes_of_runs_with_real_processes_are_no_difference(tmp_path):
    """A hash that stands where another one stood before is one."""
    lines = {"before": ["aa" * 8, "bb" * 8, "aa" * 8], "same": ["cc" * 8, "dd" * 8, "cc" * 8], "other": ["cc" * 8] * 3}
    for side, hashes in lines.items():
        folder = tmp_path / side / "real-default"
        folder.mkdir(parents=True)
        (folder / "x.jsonl").write_text("".join(f'{{"seconds": {len(side)}.5, "hash": "{one}"}}\n' for one in hashes))
    assert not list(differences(tmp_path / "before", tmp_path / "same"))
    (found,) = differences(tmp_path / "before", tmp_path / "other")
    assert "line 2: hash" in found
