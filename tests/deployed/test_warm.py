"""ClientApps that are forked: what such a process has of the libraries (all), and of the program (nothing)."""

import os
import subprocess
import sys
from importlib import metadata

import pytest
from support.processes import environment

from oblivionis.deploy.preforked_client_apps import libraries

STAND_IN = """
import os, sys

def run_clientapp(token, **rest):
    loaded = [name for name in ("torch", "peft", "oblivionis", "strategies") if name in sys.modules]
    import numpy, torch

    numpy.linalg.svd(numpy.random.rand(300, 300))
    product = torch.ones(600, 600, requires_grad=True) @ torch.ones(600, 600)
    product.sum().backward()
    with open(token, "w") as out:
        print(loaded, sorted(rest), os.getppid(), file=out)
    if token.endswith("fails"):
        raise RuntimeError
"""
MAIN = """
import os, signal, sys, time
from multiprocessing import forkserver
from pathlib import Path
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor.types import ExecutionSpec
from oblivionis.deploy import preforked_client_apps as warm

import stand_in
warm.run_clientapp = stand_in.run_clientapp
executor = warm.WarmExecutor()
for token in sys.argv[1:]:
    if token.endswith("killed"):
        parent = forkserver._forkserver._forkserver_pid
        os.kill(parent, signal.SIGKILL)
        os.waitid(os.P_PID, parent, os.WEXITED | os.WNOWAIT)
    spec = ExecutionSpec(TaskType.CLIENT_APP, "127.0.0.1:1", token, True, None, False, None, False, 1)
    print(executor.launch(spec).status)
    while not Path(token).exists() or not Path(token).read_text().endswith("\\n"):
        time.sleep(0.05)
"""


@pytest.mark.slow
def test_each_message_is_forked_with_the_libraries_and_without_the_program(tmp_path):
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    tokens = [tmp_path / name for name in ("first", "fails", "last", "killed")]
    settings = environment(PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    settings.pop("OBLIVIONIS_TEST_FORKS", None)  # the program's own forks, not those of the tests
    settings.pop("OMP_NUM_THREADS", None)  # several threads in the parent's BLAS, and in the children
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *map(str, tokens)], env=settings, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["accepted"] * 4
    told = [token.read_text().strip() for token in tokens]
    assert len(set(told[:3])) == 1, "of one parent, also after one that failed"
    assert told[3] != told[0], "which is started again when it was killed"
    arguments = ["certificates", "insecure", "parent_pid", "runtime_api_address", "runtime_dependency_install"]
    loaded = [name for name in ("torch", "peft") if name in libraries(metadata.version("torch"))]
    assert all(text.startswith(f"{loaded} {arguments} ") for text in told)
