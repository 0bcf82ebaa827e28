"""Forked processes: what they are given, and how they and the fork server end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from support.processes import environment, until

from oblivionis.errors import RunError
from oblivionis.runtime.fork_server import ForkServer, fork_server

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")


@pytest.fixture(scope="module")
def forks():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        with fork_server(["json.tool", "no_such_module"], {"MINE": "usual"}) as server:
            yield server


def ended(pid: int) -> bool:
    """Whether it computes no more; who inherits it may not have noticed."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_process_has_the_libraries_and_this_ones_folder_and_environment(
    forks: ForkServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINE", "x y")
    forked = forks.fork("forked:describe", "a test's")
    said = forked.channel.receive()
    assert said["pid"] == forked.pid and said["parent"] != os.getpid()
    assert (said["cwd"], said["mine"], said["loaded"]) == (str(tmp_path), "x y", True)
    assert psutil.Process(forked.pid).name() == "a test's"
    assert said["files"] == [0, 1, 2, 3, 4], "its channel, and that folder itself"
    forked.channel.send("ab")
    assert forked.channel.receive() == "abab"
    other = forks.fork("forked:describe", "any", {"MINE": "other"})
    assert other.channel.receive()["mine"] == "other" and other.pid != forked.pid
    for one in (forked, other):
        one.channel.close()
        assert until(lambda one=one: ended(one.pid), 20) and forks.exit_code(one.pid) == 0


def test_it_is_known_how_a_process_ended(forks: ForkServer) -> None:
    killed, failed, alive = (forks.fork(f"forked:{name}", "any") for name in ("wait", "fail", "wait"))
    killed.kill()
    assert forks.exit_code(killed.pid) == -signal.SIGKILL
    assert forks.exit_code(failed.pid) == 1
    assert forks.exit_code(alive.pid, timeout_s=0.1) is None
    with pytest.raises(EOFError):
        failed.channel.receive()
    alive.kill()
    assert forks.exit_code(alive.pid) == -signal.SIGKILL


def test_who_has_the_id_of_an_ended_process_is_left_alone(forks: ForkServer) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        forked = forks.fork("forked:fail", "any")
        assert forks.exit_code(forked.pid) == 1
        forked.pid = other.pid
        forked.kill()
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.2)
        other.kill()


def test_handles_of_processes_are_given_back(forks: ForkServer) -> None:
    def one() -> None:
        forked = forks.fork("forked:wait", "any")
        forked.kill()
        forked.channel.close()

    one()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        one()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_system_that_cannot_fork_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    refused = pytest.raises(RunError, match=r"^clients are simulated on Linux and macOS")
    with refused, fork_server([], {}):
        pytest.fail("it must not begin")


def test_what_was_prepared_is_there_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    with fork_server([], {}, ("forked:prepare", "kept")) as server:
        assert [server.fork("forked:prepared", "any").channel.receive() for _ in range(2)] == ["kept", "kept"]
    with fork_server([], {}, ("forked:fail", None)) as server:
        assert server.fork("forked:prepared", "any").channel.receive() == ""


def test_several_threads_may_ask_at_once(forks: ForkServer) -> None:
    found = []

    def ask() -> None:
        for _ in range(10):
            forked = forks.fork("forked:describe", "any")
            found.append(forked.channel.receive()["pid"] == forked.pid)
            forked.kill()
            found.append(forks.exit_code(forked.pid) == -signal.SIGKILL)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80 and all(found)


def test_all_end_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    with fork_server([], {}) as server:
        pids = [server.fork("forked:wait", "any").channel.receive() for _ in range(2)]
        parent = psutil.Process(pids[0]).ppid()
    assert until(lambda: all(map(ended, [parent, *pids])), 20)
    with pytest.raises(OSError):
        server.fork("forked:wait", "any")


def test_all_end_with_who_started_them(tmp_path: Path) -> None:
    """Also where that is killed."""
    program = f"""
import sys, time
sys.path.insert(0, {str(HERE)!r})
from oblivionis.errors import RunError
from oblivionis.runtime.fork_server import fork_server
with fork_server([], {{}}) as server:
    forked = server.fork("forked:wait", "any")
    forked.channel.receive()
    print(forked.pid, flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], env=environment(), stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        pid = int(one.stdout.readline())
        parent = psutil.Process(pid).ppid()
        one.kill()
    assert until(lambda: ended(pid) and ended(parent), 20)


def test_where_the_fork_server_is_gone_nothing_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    with fork_server([], {}) as server:
        forked = server.fork("forked:wait", "any")
        forked.channel.receive()
        psutil.Process(psutil.Process(forked.pid).ppid()).kill()
        with pytest.raises(OSError, match=r"^the process that starts the others has ended"):
            while True:
                server.fork("forked:wait", "any")
        os.kill(forked.pid, signal.SIGKILL)


SCRIPT = """
from pathlib import Path
from oblivionis.errors import RunError
from oblivionis.runtime.fork_server import fork_server

def run():
    with fork_server(["script"], {}) as server:
        forked = server.fork("script:answer", "any")
        try:
            print("said", forked.channel.receive())
        except EOFError:
            print("ended", server.exit_code(forked.pid))

def answer(channel):
    channel.send(Path.cwd().name)

"""


@pytest.mark.parametrize("variables", [{}, {"PYTHONSAFEPATH": 1}], ids=["usual", "safe path"])
@pytest.mark.parametrize(
    ("how", "last", "said"),
    [
        (["script.py"], "if __name__ == '__main__': run()", "said home"),
        (["-c", "import script; script.run()"], "", "said home"),
        (["script.py"], "run()", "ended 1"),
    ],
    ids=["a script", "from a prompt", "not guarded"],
)
def test_a_script_forks_itself_once(
    tmp_path: Path, how: list[str], last: str, said: str, variables: dict[str, int]
) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT + last)
    given = environment(**variables)
    if variables:
        given["PYTHONPATH"] += os.pathsep + str(folder)
    command = [sys.executable, *how]
    done = subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{said}\n", done.stderr


def test_what_a_forked_process_has_started_ends_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    with fork_server([], {}) as server:
        started = server.fork("forked:start", "any").channel.receive()
    assert until(lambda: ended(started), 20)
