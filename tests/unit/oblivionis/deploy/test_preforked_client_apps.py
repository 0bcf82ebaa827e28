"""ClientApps that are forked: what is loaded beforehand, and what is started when nothing can be forked."""

import subprocess

import pytest
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType
from flwr.supercore.superexec.executor.types import ExecutionSpec

from oblivionis.deploy import preforked_client_apps


class Broken:
    """A fork server that does not answer."""

    def set_forkserver_preload(self, modules):
        pass

    def Process(self, **_):
        return self

    def start(self):
        raise EOFError


@pytest.mark.parametrize("kind", [TaskType.CLIENT_APP, TaskType.SERVER_APP])
def test_what_cannot_be_forked_starts_as_flower_starts_it(monkeypatch, kind):
    started = []
    monkeypatch.setattr(subprocess, "Popen", started.append)
    monkeypatch.setattr(preforked_client_apps.multiprocessing, "get_context", lambda kind: Broken())
    monkeypatch.setattr(preforked_client_apps.forkserver, "ensure_running", lambda: None)
    executor = preforked_client_apps.WarmExecutor()
    spec = ExecutionSpec(kind, "127.0.0.1:1", "token", True, None, False, None, False, 1)
    assert executor.launch(spec).status == "accepted"
    assert [command[0] for command in started] == [TASK_TYPE_TO_COMMAND[kind]]
