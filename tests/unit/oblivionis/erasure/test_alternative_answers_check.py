"""Before a run: which records will be asked for, and whether there are other answers to them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import call

from oblivionis.config import compose as configuration
from oblivionis.data.errors import DataError
from oblivionis.erasure.schedule import check_requests

LINES = (
    '{"id": "a0", "question": "Q0", "answer": "A0", "subject": "Ann", "forget": true, "perturbed_answer": ["w"]}',
    '{"id": "a1", "question": "Q1", "answer": "A1", "subject": "Ann"%s}',
    '{"id": "b0", "question": "Q2", "answer": "A2", "subject": "Bo"}',
    '{"id": "b1", "question": "Q3", "answer": "A3", "subject": "Bo"}',
)


def check(folder: Path, *overrides: str, marked: bool = False) -> None:
    """Of four records, one to each client in their order, only the first has wrong answers."""
    data = folder / "train.jsonl"
    data.write_text("\n".join(LINES) % (', "forget": true' if marked else "") + "\n")
    base = ["data=jsonl", f"data.path={data}", "federation.clients=2", "unlearning=altpo"]
    check_requests(configuration.compose("smoke", [*base, *overrides]))


def test_the_forget_split_counts(tmp_path: Path) -> None:
    check(tmp_path)
    with pytest.raises(DataError, match=r"altpo.*record 'a1' \(train\.jsonl:2\) has no perturbed_answer; add"):
        check(tmp_path, marked=True)
    check(tmp_path, "unlearning.alternatives.source=idk", marked=True)
    check(tmp_path, "unlearning=npo", marked=True)
    check(tmp_path, "stages=[finetune,retrain]", marked=True)
    with pytest.raises(DataError, match="'a1'"):
        check(tmp_path, "stages=[local]", marked=True)


def test_so_do_the_records_about_somebody(tmp_path: Path) -> None:
    policy = "unlearning.requests.policy=subjects_at_round"
    with pytest.raises(DataError, match=r"'b0' .*and 1 more"):
        check(tmp_path, policy, "unlearning.requests.subjects=[Bo]")


def test_and_those_of_a_schedule(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    settings = ["unlearning.requests.policy=file", f"unlearning.requests.file={file}", "federation.clients=1"]
    file.write_text('{"round": 1, "client": 0, "record_ids": ["a0"]}\n')
    check(tmp_path, *settings)
    file.write_text('{"round": 1, "client": 0, "record_ids": ["a0", "b1"]}\n')
    with pytest.raises(DataError, match="'b1'"):
        check(tmp_path, *settings)


def test_and_all_of_a_client_that_leaves(tmp_path: Path) -> None:
    leaving = ["unlearning.requests.scope=client", "federation.clients=1"]
    with pytest.raises(DataError, match=r"'a1' .*and 2 more"):
        check(tmp_path, *leaving)
    apart = ["data.partition.forget_placement=one_client", "unlearning.requests.policy=all_at_round"]
    with pytest.raises(DataError, match="has no perturbed_answer"):
        check(tmp_path, *apart, "unlearning.requests.scope=client", "unlearning.requests.clients=[1]")


def test_a_file_without_sentences_is_told_before_the_run(tmp_path: Path) -> None:
    file = tmp_path / "idk.txt"
    file.write_text("\n")
    with pytest.raises(DataError, match="expected at least one sentence"):
        check(tmp_path, "unlearning=idk_nll", f"unlearning.alternatives.idk={file}")


def test_the_command_says_it_without_a_traceback(tmp_path: Path) -> None:
    data = tmp_path / "train.jsonl"
    data.write_text("\n".join(LINES) % ', "forget": true' + "\n")
    settings = [f"data.path={data}", "federation.clients=2", f"output={tmp_path / 'runs'}"]
    found = call("simulate", "smoke", "data=jsonl", "unlearning=altpo", *settings)
    assert found.code == 2 and "record 'a1' (train.jsonl:2) has no perturbed_answer" in found.err
    assert "Traceback" not in found.err and not (tmp_path / "runs").exists()
