"""The meta-evaluation as a command: several federations at once, a kill, and what Ctrl-C leaves."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from support.meta_suite import TINY, same_files


def command(folder, *more):
    suite = ["metrics_meta", *TINY, "--output", str(folder), *more]
    return [sys.executable, "-m", "oblivionis.cli.main", "bench", *suite]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The suite, a federation after the other."""
    folder = tmp_path_factory.mktemp("meta") / "whole"
    result = subprocess.run(command(folder), capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("sign", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_two_at_once_stopped_and_resumed_end_with_the_same_files(sign, code, whole, tmp_path):
    folder, own = tmp_path / "cut", dict(os.environ)
    own.pop("OBLIVIONIS_TEST_FORKS", None)  # a process with its children, not one that stands for another
    with subprocess.Popen(command(folder, "--jobs", "2"), stderr=subprocess.PIPE, text=True, env=own) as process:
        end = time.monotonic() + 200
        while len(list(folder.rglob("*.json"))) < 3 and process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(sign)
        _, errors = process.communicate(timeout=100)
    assert process.returncode == code and "Traceback" not in errors
    assert len(children) >= 2 and not psutil.wait_procs(children, timeout=20)[1]
    assert sign == signal.SIGKILL or "--jobs 2 --resume" in errors
    assert not (folder / "results.parquet").exists()
    resumed = subprocess.run(command(folder, "--jobs", "2", "--resume"), capture_output=True, text=True, timeout=300)
    assert resumed.returncode == 0, resumed.stderr
    same_files(folder, whole)


@pytest.mark.slow
def test_an_error_in_one_of_several_processes_is_the_commands(tmp_path):
    failing = command(tmp_path / "out", "base.training.learning_rate=1e30", "--jobs", "2")
    result = subprocess.run(failing, capture_output=True, text=True, timeout=300)
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert "federation" in result.stderr and result.stderr.count("error:") == 1, result.stderr
