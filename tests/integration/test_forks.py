"""What tests start is forked from a warm process, and is as if Python had started it."""

import json
import os
import signal
import subprocess
import sys
import time
import venv

import pytest
from support.processes import environment, until

SHOW = """
import json, os, sys
print(json.dumps({
    "loaded": [n for n in ("torch", "peft", "oblivionis") if n in sys.modules], "argv": sys.argv, "cwd": os.getcwd(),
    "umask": os.umask(0), "cores": len(os.sched_getaffinity(0)), "mine": os.environ.get("MINE"), "in": sys.stdin.read(),
    "path": sys.path[0], "files": sorted(os.listdir("/proc/self/fd")),
    "told": [open(f"/proc/self/{f}").read().split(chr(0)) for f in ("cmdline", "environ")],
}))
print("oh", file=sys.stderr)
sys.exit(7)
"""
WAIT = """
import os, sys, time
from pathlib import Path
Path(sys.argv[1]).write_text(str(os.getpid()))
try:
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(130)
"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are made on Linux only")


@pytest.fixture
def program(tmp_path):
    """Makes a script that is handed over, for its name: what starts it."""

    def made(text):
        script = tmp_path / "bin" / "flwr"
        script.parent.mkdir()
        script.write_text(text)
        return [sys.executable, str(script)]

    return made


def test_it_has_all_that_it_was_given(program, tmp_path):
    command, given = program(SHOW), environment(MINE="x y")
    done = subprocess.run(
        [*command, "a b"], input="line", env=given, cwd="/", capture_output=True, text=True, umask=0o27
    )
    assert done.returncode == 7 and done.stderr == "oh\n"
    told = json.loads(done.stdout)
    assert told["loaded"] == ["torch", "peft"], "the libraries, and nothing of the program"
    assert told["argv"] == [command[1], "a b"] and told["path"] == str(tmp_path / "bin")
    assert (told["cwd"], told["umask"], told["mine"], told["in"]) == ("/", 0o27, "x y", "line")
    assert told["cores"] == len(os.sched_getaffinity(0)) and len(told["files"]) == 4, "0, 1, 2 and that folder itself"
    (cmdline, environ) = told["told"]
    assert command[1] in cmdline and "MINE=x y" in environ


def started(command, folder):
    process = subprocess.Popen([*command, str(folder / "pid")])
    assert until(lambda: (folder / "pid").exists() and (folder / "pid").read_text(), 150)
    return process, int((folder / "pid").read_text())


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_signal_ends_both(program, tmp_path, number, code):
    process, pid = started(program(WAIT), tmp_path)
    assert pid != process.pid
    time.sleep(0.1)
    process.send_signal(number)
    assert process.wait(20) == code
    assert until(lambda: not alive(pid), 20)


def test_who_is_forked_may_be_killed_itself(program, tmp_path):
    process, pid = started(program(WAIT), tmp_path)
    os.kill(pid, signal.SIGKILL)
    assert process.wait(20) == -signal.SIGKILL


def test_another_environment_has_its_own_processes(program, tmp_path):
    """The server has the libraries of the tests' environment, not those of a new one."""
    venv.create(tmp_path / "env", symlinks=True)
    python, script = tmp_path / "env" / "bin" / "python", program("import sys; print(sys.prefix)")[1]
    for interpreter, prefix in ((python, tmp_path / "env"), (sys.executable, sys.prefix)):
        done = subprocess.run([interpreter, script], env=environment(), capture_output=True, text=True)
        assert done.stdout.strip() == str(prefix), done.stderr
