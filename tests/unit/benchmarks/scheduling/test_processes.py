"""Runs as processes: what ends them."""

import subprocess
import sys

import psutil
from support.processes import PROJECT, until

ATTENDING = """
import subprocess, sys, time
from pathlib import Path
from benchmarks.scheduling.processes import Job, ended_with_us
run = subprocess.Popen(["sleep", "600"], start_new_session=True)
with ended_with_us(Job(run, Path("log")), Path(sys.argv[1])):
    print(run.pid, flush=True)
    time.sleep(600)
"""


def gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_run_ends_with_whoever_attends_to_it_however_that_ends(tmp_path):
    scratch = tmp_path / "its folder"
    scratch.mkdir()
    (scratch / "file").write_text("")
    command = [sys.executable, "-c", ATTENDING, str(scratch)]
    attending = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=PROJECT)
    assert attending.stdout is not None
    pid = int(attending.stdout.readline())
    assert not gone(pid)
    attending.kill()
    attending.communicate()
    assert until(lambda: gone(pid), 60)
    assert until(lambda: not scratch.exists(), 60)
