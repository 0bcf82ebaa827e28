"""What this package takes of Flower beyond its public interface: each test says what a new Flower changed."""

from __future__ import annotations

import dataclasses
import inspect

import pytest
from flwr.server.superlink.fleet.vce import vce_api

from oblivionis.flower import grids, names, superexec


def test_flowers_simulation_tells_of_a_dead_process_by_its_code() -> None:
    assert grids.UNKNOWN_ERROR == 0 and "e_code = ErrorCode.UNKNOWN" in inspect.getsource(vce_api.worker)


def test_flowers_grids_are_known_by_their_classes() -> None:
    from flwr.superlink.grid import HttpGrid, InMemoryGrid

    deployed, simulated = object.__new__(HttpGrid), object.__new__(InMemoryGrid)
    assert grids.deployed(deployed) and not grids.deployed(simulated)
    assert grids.of_flowers_simulation(simulated) and not grids.of_flowers_simulation(deployed)


def test_flower_knows_the_variables_of_the_environment() -> None:
    from flwr.common import constant
    from flwr.supercore import constant as core
    from flwr.supercore import telemetry

    text = "".join(map(inspect.getsource, (constant, core, telemetry)))
    missing = [name for name in names.ENVIRONMENT if name not in text]
    assert missing == [], "Flower reads other names"


@pytest.mark.parametrize("name", sorted(superexec.__all__))
def test_all_names_of_the_superexec_are_there(name: str) -> None:
    assert getattr(superexec, name, None) is not None


def test_a_task_says_what_its_process_is_called_with() -> None:
    assert {f.name for f in dataclasses.fields(superexec.ExecutionSpec)} >= {
        *("task_type", "suppress_output", "runtime_api_address", "token", "insecure", "root_certificates_path"),
        *("parent_pid", "runtime_dependency_install"),
    }
    taken = inspect.signature(superexec.run_clientapp).parameters
    known = {"runtime_api_address", "token", "insecure", "certificates", "parent_pid", "runtime_dependency_install"}
    required = {n for n, p in taken.items() if p.default is inspect.Parameter.empty}
    assert required <= known <= set(taken), "run_clientapp takes other arguments"
    assert superexec.run_clientapp.__module__ == superexec.RUN_CLIENTAPP


def test_the_superexec_asks_for_its_executor_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supercore.superexec import run_superexec

    monkeypatch.setattr(run_superexec, "get_executor", run_superexec.get_executor)
    made = object()
    superexec.use_executor(lambda: made)  # type: ignore[arg-type, return-value]
    assert run_superexec.get_executor("any") is made
    assert "get_executor(" in inspect.getsource(run_superexec.run_superexec)
    assert list(inspect.signature(superexec.SubprocessExecutor.launch).parameters) == ["self", "spec"]
    assert superexec.LaunchResult.accepted() is not None
