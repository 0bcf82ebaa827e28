"""Ray's workers that are forked: what they are given, and how they, their stand-ins and the fork server end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.processes import environment, until

from oblivionis.server import forked_workers
from oblivionis.server.forked_workers import ADDRESS, fork_server, forked

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
WORKER = """
import json, os, signal, sys
masked = sorted(int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, []))
said = {"loaded": "json.tool" in sys.modules, "argv": sys.argv, "cwd": os.getcwd(), "mine": os.environ.get("MINE")}
said |= {"forks": os.environ.get("OMP_NUM_THREADS"), "masked": masked, "pid": os.getpid(), "read": sys.stdin.read()}
print(json.dumps(said | {"files": len(os.listdir("/proc/self/fd"))}))
print("oh", file=sys.stderr)
sys.exit(7)
"""
WAITS = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"


@pytest.fixture(scope="module")
def forks():
    """The environment in which Ray's processes would start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OMP_NUM_THREADS", raising=False)
        with fork_server(1, ["json.tool", "no_such_module"]) as address, forked(address):
            yield environment(MINE="x y")


@pytest.fixture
def begun(monkeypatch):
    """The processes that are begun, the fork server first."""
    found, begin = [], subprocess.Popen

    def recorded(*arguments, **settings):
        found.append(begin(*arguments, **settings))
        return found[-1]

    monkeypatch.setattr(forked_workers.subprocess, "Popen", recorded)
    return found


def command(folder: Path, text: str, *arguments: str) -> list[str]:
    script = folder / "worker.py"
    script.write_text(text)
    return [sys.executable, forked_workers.__file__, str(script), *arguments, "--language=PYTHON"]


def test_a_worker_has_all_that_its_stand_in_was_given(forks, tmp_path):
    given = {"cwd": "/", "env": forks, "input": "line", "capture_output": True, "text": True}
    blocked = {**given, "preexec_fn": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})}
    asked = command(tmp_path, WORKER, "--worker-id=a b")
    for how, masked in ((given, []), (blocked, [signal.SIGINT])):
        done = subprocess.run(asked, **how)
        assert (done.returncode, done.stderr) == (7, "oh\n")
        told = json.loads(done.stdout)
        assert told["loaded"] and told["argv"] == [str(tmp_path / "worker.py"), "--worker-id=a b"]
        assert (told["cwd"], told["mine"], told["read"], told["masked"]) == ("/", "x y", "line", masked)
        assert told["files"] == 4, "0, 1, 2 and that folder itself"
        assert told["forks"] is None, "Ray says how many threads a worker has"


def ended(process: psutil.Process) -> bool:
    """Whether it computes no more; who inherits it may not have noticed."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def started(forks, tmp_path):
    process = subprocess.Popen(command(tmp_path, WAITS), env=forks, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, psutil.Process(int(process.stdout.readline()))


def test_a_killed_worker_ends_its_stand_in(forks, tmp_path):
    process, worker = started(forks, tmp_path)
    assert worker.pid != process.pid
    worker.kill()
    assert process.wait(20) == 128 + signal.SIGKILL


def test_a_worker_may_end_before_its_stand_in_goes_on(monkeypatch):
    """All is sent and answered, and the connection closed, before the stand-in gets the processor again."""
    mine, theirs = socket.socketpair()
    send = socket.send_fds

    def then_it_ends(*asked):
        sent = send(*asked)
        request, files = forked_workers.received(theirs)
        assert request is not None and len(files) == 1
        os.close(files[0])
        theirs.sendall(b"\n137\n")
        theirs.close()
        return sent

    monkeypatch.setattr(forked_workers.socket, "send_fds", then_it_ends)
    with mine, mine.makefile("r") as told, open(os.devnull, "rb") as nothing:
        forked_workers.ask(mine, ["worker.py"], [nothing.fileno()])
        assert told.read() == "\n137\n"


def test_a_killed_stand_in_ends_its_worker(forks, tmp_path):
    process, worker = started(forks, tmp_path)
    process.kill()
    process.wait(20)
    assert until(lambda: ended(worker), 20)


def test_one_that_goes_before_it_is_answered_ends_its_worker_alone(forks, tmp_path):
    """What it did not read makes its end a broken connection."""
    read, write = os.pipe()
    with open(os.devnull, "rb") as nothing, open(read) as told:
        with forked_workers.connection_to(forks[ADDRESS]) as connection:
            forked_workers.ask(connection, command(tmp_path, WAITS)[2:-1], [nothing.fileno(), write, write])
            worker = psutil.Process(int(told.readline()))
        os.close(write)
        assert until(lambda: ended(worker), 20)
    process, another = started(forks, tmp_path)
    with process:
        assert another.pid != process.pid, "the fork server is there no more"
        process.kill()


def test_the_fork_server_ends_with_who_started_it(tmp_path):
    """Also where that is killed; and with it the workers."""
    program = f"""
import os, subprocess, sys, time
from oblivionis.server.forked_workers import fork_server, forked
with fork_server(1, ()) as address, forked(address):
    worker = subprocess.Popen({command(tmp_path, WAITS)!r})
    time.sleep(60)
"""
    owner = subprocess.Popen([sys.executable, "-c", program], env=environment(), stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    worker = psutil.Process(int(owner.stdout.readline()))
    server = worker.parent()
    assert server is not None and server.ppid() == owner.pid
    owner.kill()
    owner.wait(20)
    assert until(lambda: ended(worker) and ended(server), 20)


@pytest.mark.parametrize(
    ("address", "more"),
    [("/nowhere", ()), (None, ()), ("", ('--serialized-runtime-env-context={"env_vars": {"MINE": "other"}}',))],
    ids=["no server", "no address", "a special worker"],
)
def test_what_cannot_be_forked_starts_as_ray_starts_it(forks, tmp_path, address, more):
    given = {**forks, ADDRESS: forks[ADDRESS] if address == "" else str(address)}
    if address is None:
        del given[ADDRESS]
    done = subprocess.run(
        command(tmp_path, WORKER, *more), env=given, input="line", capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 7, done.stderr
    told = json.loads(done.stdout)
    assert not told["loaded"] and told["mine"] == ("other" if more else "x y")


def test_nothing_is_left_of_it():
    from ray._private import ray_constants

    def state():
        return ray_constants.SETUP_WORKER_FILENAME, os.environ.get(ADDRESS)

    before = state()
    with fork_server(1, ()) as asked, forked(asked):
        script, address = state()
        assert script == forked_workers.__file__ and Path(str(address)).is_socket()
    assert state() == before and not Path(str(address)).parent.exists()


def test_one_that_still_imports_ends_at_once(tmp_path, monkeypatch, begun):
    (tmp_path / "slow.py").write_text(f"open({str(tmp_path / 'began')!r}, 'w').close()\nimport time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with fork_server(1, ["slow"]):
        assert until((tmp_path / "began").exists, 60)
    assert begun[0].returncode == -signal.SIGTERM, "not killed after a while"


def test_a_signal_to_end_is_left_to_who_started_it(forks, tmp_path):
    process, worker = started(forks, tmp_path)
    server = worker.parent()
    assert server is not None and server.pid != os.getpid()
    server.terminate()
    assert until(lambda: ended(server), 0.5) is None
    worker.terminate()
    assert process.wait(20) == 128 + signal.SIGTERM, "a worker heeds it"


def test_one_that_forks_ends_in_order(begun, tmp_path):
    """It is not killed: what it forked is ended by it before."""
    with fork_server(1, ()) as address, forked(address):
        process, worker = started(environment(), tmp_path)
    assert begun[0].returncode == 0
    assert until(lambda: ended(worker), 20) and process.wait(20) != 0


def test_where_nothing_can_be_forked_the_stand_in_hears_of_it(monkeypatch):
    """Without memory or process ids; no file of it stays open in the fork server."""

    def no_more():
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", no_more)
    mine, its = socket.socketpair()
    children = {}
    with mine:
        forked_workers.ask(mine, ["worker.py"], forked_workers.STREAMS)
        before = len(os.listdir("/proc/self/fd"))
        forked_workers.fork(its, children)
        assert mine.makefile("r").readline() == "" and children == {}
        assert len(os.listdir("/proc/self/fd")) == before - 1, "its end of the connection"
