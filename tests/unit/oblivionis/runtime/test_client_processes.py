"""Client processes of this machine: their GPUs, what they answer, and what is said of one that died."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from oblivionis.runtime.client_process import Raised, simulated
from oblivionis.runtime.fork_server import fork_server
from oblivionis.runtime.processes import client_processes, devices
from oblivionis.runtime.simulation_grid import ClientProcessDied
from strategies.flower_internals import identify_process, set_message_id

app = ClientApp()
LARGE = b"x" * (1 << 20)


def no_room(name: str) -> int:
    """Stands in for the system's anonymous memory, of which there is no more."""
    raise OSError(28, "No space left on device")


@app.query()
def describe(message: Message, context: Context) -> Message:
    """How often this client was asked; the message's group may ask for something else."""
    group = message.metadata.group_id
    if group == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if group == "exit":
        os._exit(3)
    if group == "child":
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    if group == "nothing":
        return None  # type: ignore[return-value]
    if group == "unpicklable":
        context.run_config["lock"] = threading.Lock()  # type: ignore[assignment]
    if group == "no room":
        os.memfd_create = no_room  # pyright: ignore[reportAttributeAccessIssue]
        context.state["large"] = ConfigRecord({"large": LARGE})
    if group == "raise":
        raise ValueError("on purpose")
    kept = context.state.config_records.setdefault("kept", ConfigRecord({"n": 0}))
    kept["n"] = int(kept["n"]) + 1  # type: ignore[arg-type]
    return Message(RecordDict({"said": ConfigRecord({**kept, "simulated": simulated()})}), reply_to=message)


@pytest.mark.parametrize(
    ("number", "gpus", "share", "visible"),
    [
        (0, 2, 1.0, "0"),
        (1, 2, 1.0, "1"),
        (0, 2, 0.5, "0"),
        (1, 2, 0.5, "0"),
        (2, 2, 0.5, "1"),
        (3, 2, 0.5, "1"),
        (2, 1, 0.3, "0"),
        (0, 4, 2.0, "0,1"),
        (1, 4, 2.0, "2,3"),
    ],
)
def test_gpus_are_dealt_out(
    monkeypatch: pytest.MonkeyPatch, number: int, gpus: int, share: float, visible: str
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert devices(number, gpus, share) == visible


def test_gpus_are_those_that_the_user_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-7")
    assert [devices(number, 2, 0.5) for number in range(4)] == ["5", "5", "GPU-7", "GPU-7"]


def asked(group: str = "") -> tuple[Message, Context]:
    """A message, and the client's state before it."""
    identify_process()
    message = Message(RecordDict(), dst_node_id=1, message_type="query", group_id=group)
    set_message_id(message, "m")
    return message, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
@pytest.mark.slow
def test_processes_answer_and_their_deaths_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    assert not simulated(), "this process is no client's"
    name = f"{Path(__file__).stem}:app"
    with fork_server((), {}) as forks, client_processes(forks, name, 3) as (first, second, third):
        message, context = asked()
        for n in (1, 2):
            reply, context = first.answer(message, context)
            assert isinstance(reply, Message) and reply.metadata.reply_to_message_id == "m"
            assert reply.content.config_records["said"] == {"n": n, "simulated": True}
        raised, _ = first.answer(*asked("raise"))
        assert isinstance(raised, Raised) and raised.text == "ValueError: on purpose" and "in describe" in raised.trace
        with pytest.raises(ClientProcessDied, match=r"^it was killed, .* GB are in use\). .*federation\.client_cpus"):
            first.answer(*asked("killed"))
        with pytest.raises(ClientProcessDied, match=r"^it ended with exit code 3$"):
            second.answer(*asked("exit"))
        assert isinstance(third.answer(*asked())[0], Message), "the others live on"


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
@pytest.mark.slow
def test_of_what_a_client_cannot_do_the_reason_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "raises_when_imported.py").write_text("raise FileNotFoundError('no data')")
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.syspath_prepend(str(tmp_path))
    own = Path(__file__).stem
    with fork_server(["raises_when_imported"], {}) as forks:
        for name, reason in {
            "raises_when_imported:app": "FileNotFoundError: no data",
            "no_such_module:app": "ModuleNotFoundError: No module named 'no_such_module'",
            f"{own}:no_such_app": f"AttributeError: module '{own}' has no attribute 'no_such_app'",
        }.items():
            with client_processes(forks, name, 1) as (process,), pytest.raises(ClientProcessDied) as raised:
                process.answer(*asked())
            assert str(raised.value) == f"the ClientApp {name} cannot be loaded: {reason}"
        with client_processes(forks, f"{own}:app", 1) as (process,):
            reply, _ = process.answer(*asked("nothing"))
            assert isinstance(reply, Raised) and "returned NoneType, expected a Message" in reply.text
            with pytest.raises(ClientProcessDied, match=r"^what the ClientApp gives cannot be sent: TypeError: .*lock"):
                process.answer(*asked("unpicklable"))


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
def test_what_finds_no_room_in_memory_is_told_and_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    with fork_server([], {}) as forks, client_processes(forks, f"{Path(__file__).stem}:app", 1) as (process,):
        message, context = asked()
        context.state["large"] = ConfigRecord({"large": LARGE})
        with monkeypatch.context() as patch, pytest.raises(OSError, match=r"No space left"):
            patch.setattr(os, "memfd_create", no_room)
            process.answer(message, context)
        assert isinstance(process.answer(message, context)[0], Message)
        with pytest.raises(ClientProcessDied, match=r"^what the ClientApp gives cannot be sent: OSError: .*No space"):
            process.answer(*asked("no room"))


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
def test_a_death_is_noticed_while_a_process_that_it_forked_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    with fork_server((), {}) as forks, client_processes(forks, f"{Path(__file__).stem}:app", 1) as (process,):
        threading.Timer(20, process.end).start()
        with pytest.raises(ClientProcessDied, match=r"^it was killed"):
            process.answer(*asked("child"))


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
def test_how_a_process_ended_is_not_made_up_where_the_fork_server_has_ended_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    before = psutil.Process().children()
    with fork_server((), {}) as forks, client_processes(forks, f"{Path(__file__).stem}:app", 1) as (process,):
        (parent,) = {*psutil.Process().children()} - {*before}
        process.answer(*asked())
        parent.kill()
        parent.wait(20)
        with pytest.raises(ClientProcessDied, match=r"^how is not known$"):
            process.answer(*asked("killed"))
