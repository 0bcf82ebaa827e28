"""Kills, a full disk, a disk that cannot be written to and two processes at once: nothing is lost, all can go on."""

import errno
import os
import random
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager

import pytest
from support import stubborn_evaluation
from support.commands import call, in_process
from support.faulty_runs import child, dies_writing, ended, new_run, outcome, play
from support.processes import IN_ONE_PROCESS, until
from support.simulations import Command

from oblivionis.chain import check_chain
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import SERVED
from oblivionis.erasure.verification_rules import VERIFIED
from oblivionis.runs.directory import RunDirectory
from oblivionis.server import simulation

EARLY_KILLS, LATER_KILLS, KILLS_OF_A_RUN, WITHIN_WRITES = 14, 20, 5, 6
STOP_S = 10
MOMENTS = ("temporary", "before", "renamed")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The run that nothing happens to, and the seconds that it takes in a child of this warm process."""
    folder = tmp_path_factory.mktemp("undisturbed")
    play(new_run(folder, "warming"))
    run = new_run(folder, "whole")
    started = time.monotonic()
    assert ended(child(run)) == 0
    return outcome(run), time.monotonic() - started


def sound(run):
    """No line of the ledger is broken, no request is lost or doubled, and no stray file counts as a checkpoint."""
    checked = check_chain(run.ledger_path)
    assert not checked.faults
    served = [e["id"] for e in checked.entries if e["event"] == "served"]
    back = [e["id"] for e in checked.entries if e["event"] == "rolled_back"]
    assert all(served.count(i) - back.count(i) == 1 for i in set(served))
    assert all(r.state in (SERVED, VERIFIED) for r in Ledger(run.ledger_path))


def goes_on(run, expected):
    assert ended(child(run)) == 0
    assert outcome(run) == expected
    sound(run)


def killed(run, rng, seconds):
    """How often a run was killed, at random moments of as many lives, at most `KILLS_OF_A_RUN`."""
    for count in range(KILLS_OF_A_RUN):
        pid = child(run)
        time.sleep(rng.uniform(0.1, 0.6) * seconds)
        os.kill(pid, signal.SIGKILL)
        if ended(pid) != -signal.SIGKILL:
            return count
    return KILLS_OF_A_RUN


@pytest.mark.parametrize("later", [False, True], ids=["from the beginning", "after the first checkpoint"])
def test_kills_at_random_moments(undisturbed, tmp_path, later):
    expected, seconds = undisturbed
    rng, kills = random.Random(19), 0
    begun = new_run(tmp_path, "begun")
    if later:
        assert ended(child(begun, dies_writing("round-", 2, "before"))) == -signal.SIGKILL
        assert begun.checkpoint_rounds("finetune") == [1]
    for number in range(10 * LATER_KILLS):
        if kills >= (LATER_KILLS if later else EARLY_KILLS):
            break
        run = RunDirectory(tmp_path / f"run-{number}")
        shutil.copytree(begun.path, run.path)
        kills += killed(run, rng, seconds)
        goes_on(run, expected)
        shutil.rmtree(run.path)
    assert kills >= (LATER_KILLS if later else EARLY_KILLS)


@pytest.mark.parametrize("number", range(WITHIN_WRITES))
def test_a_kill_within_the_write_of_a_checkpoint(undisturbed, tmp_path, number):
    expected, _ = undisturbed
    run = new_run(tmp_path, "torn")
    moment = MOMENTS[number % len(MOMENTS)]
    assert ended(child(run, dies_writing("round-", 2 + number // len(MOMENTS) * 2, moment))) == -signal.SIGKILL
    goes_on(run, expected)


@contextmanager
def small_disk(folder, size):
    """A file system of `size` bytes in memory; None where none may be mounted."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
    try:
        yield folder if done.returncode == 0 else None
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", "-l", folder], check=False)


def resumed(run, monkeypatch):
    monkeypatch.setattr(simulation, "simulate", in_process)
    return call("simulate", "--resume", run.path)


def test_a_full_disk(undisturbed, tmp_path, monkeypatch):
    """Of 30 MB; where none can be mounted, what the operating system says of one is said for it."""
    with small_disk(tmp_path / "disk", 30_000_000) as disk:
        run = new_run(disk or tmp_path / "disk", "full")
        if disk:
            free = os.statvfs(disk)
            filler = disk / "filler"
            filler.write_bytes(bytes(free.f_bavail * free.f_frsize - 2_000_000))
            done = resumed(run, monkeypatch)
            filler.unlink()
        else:
            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", full_after(12))
                done = resumed(run, patch)
        assert done.code == 1 and "No space left on device" in done.err, (done.out, done.err)
        assert "Make room" in done.err and str(run.path) in done.err and "Traceback" not in done.err
        again = resumed(run, monkeypatch)
        assert again.code == 0, again.err
        assert outcome(run) == undisturbed[0]
        sound(run)


def full_after(number):
    count, fsync = [0], os.fsync

    def full(descriptor):
        count[0] += 1
        if count[0] > number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    return full


def test_a_run_directory_that_cannot_be_written_to(undisturbed, tmp_path, monkeypatch):
    with small_disk(tmp_path / "disk", 30_000_000) as disk:
        run = new_run(disk or tmp_path / "disk", "read-only")
        if disk:
            subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
            done = resumed(run, monkeypatch)
            shown = call("runs", "show", run.path)
            subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        else:
            with monkeypatch.context() as patch:
                patch.setattr(os, "open", refusing(os.open, run.path))
                done = resumed(run, patch)
            shown = call("runs", "show", run.path)
        assert done.code == 1 and "Read-only file system" in done.err, (done.out, done.err)
        assert str(run.path) in done.err and "Traceback" not in done.err
        assert shown.code == 0
        again = resumed(run, monkeypatch)
        assert again.code == 0, again.err
        assert outcome(run) == undisturbed[0]


def refusing(opened, folder):
    def refuse(path, flags, *rest, **more):
        if str(path).startswith(str(folder)) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opened(path, flags, *rest, **more)

    return refuse


def test_two_that_resume_at_once(undisturbed, tmp_path):
    """One gets the run, the other is told so, and what comes out is what comes out of one."""
    run = new_run(tmp_path, "wanted")
    pids = [child(run) for _ in range(3)]
    codes = sorted(ended(pid) for pid in pids)
    assert codes == [0, 1, 1]
    assert outcome(run) == undisturbed[0]
    sound(run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "signals"),
    [
        ("plain", [signal.SIGINT]),
        ("plain", [signal.SIGTERM]),
        ("stubborn", [signal.SIGTERM]),
        ("stubborn", [signal.SIGINT, signal.SIGTERM]),
    ],
)
def test_a_stop_during_an_evaluation(undisturbed, tmp_path, kind, signals):
    """Also where the evaluation has threads that go on computing, and processes of its own, and hears nothing."""
    run, mark = new_run(tmp_path, "stopped"), tmp_path / "evaluating"
    patches = os.pathsep.join([str(IN_ONE_PROCESS), stubborn_evaluation.__file__])
    told = {"OBLIVIONIS_TEST_EVALUATING": mark, "OBLIVIONIS_TEST_EVALUATION": kind, "OBLIVIONIS_TEST_PATCH": patches}
    running = Command(tmp_path, "simulate", "--resume", run.path, **told)
    try:
        assert until(mark.exists, 120), running.output
        at = time.monotonic()
        for number in signals:
            os.kill(running.process.pid, number)
            time.sleep(0.3)
        assert running.finish(3 * STOP_S) == 130, running.output
        assert time.monotonic() - at < STOP_S, running.output
        assert not running.descendants(), running.descendants()
        assert f"continue with: oblivionis simulate --resume {run.path}" in running.output
        assert "Traceback" not in running.output
    finally:
        running.end()
    goes_on(run, undisturbed[0])
