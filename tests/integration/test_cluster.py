"""Clients simulated on a Ray cluster: two nodes of one on this machine."""

from pathlib import Path

import pytest
from support import ray_cluster as started_cluster
from support.commands import call

from oblivionis import __version__
from oblivionis.errors import RunError
from oblivionis.runs.directory import RunDirectory
from oblivionis.server import ray_cluster


@pytest.fixture(scope="module")
def two_machines():
    with started_cluster.two_machines() as (found, _):
        yield found


def clients_of(machines):
    """Where the cluster's processes write: the files of those that were client actors."""
    logs = Path(machines.head_node.get_session_dir_path()) / "logs"
    return [path for path in logs.glob("worker-*.out") if "ClientAppHost" in path.read_text(errors="replace")]


@pytest.mark.slow
def test_a_run_on_a_cluster_of_two_machines(two_machines, tmp_path):
    address = f"federation.ray_address={two_machines.address}"
    result = call("simulate", "smoke", "stages=[finetune, unlearn]", f"output={tmp_path}", "name=run", address)
    assert result.code == 0, result.err
    assert clients_of(two_machines), "the clients ran elsewhere"
    run = RunDirectory.open(tmp_path / "run")
    assert run.stage_summary("unlearn")["requests"] and not run.held_by()
    with ray_cluster.cluster(two_machines.address, run.path):
        import ray

        assert len([node for node in ray.nodes() if node["Alive"]]) == 2, "the cluster outlives the run"


@pytest.mark.slow
def test_a_machine_that_lacks_something_is_named(two_machines, tmp_path, monkeypatch):
    refused = pytest.raises(RunError, match=r"does not see .*: set output to a folder that all machines share")
    with refused, ray_cluster.cluster(two_machines.address, tmp_path / "elsewhere"):
        pytest.fail("it must not begin")
    (tmp_path / "config.yaml").write_text("")
    monkeypatch.setattr(ray_cluster, "__version__", "9.9")
    refused = pytest.raises(RunError, match=f"has oblivionis {__version__}, this one 9.9")
    with refused, ray_cluster.cluster(two_machines.address, tmp_path):
        pytest.fail("it must not begin")


@pytest.mark.parametrize(("address", "why"), [("127.0.0.1:1", "refused"), ("here", "expected host:port or auto")])
def test_no_cluster(tmp_path, address, why):
    refused = pytest.raises(RunError, match=rf"no Ray cluster answers at '{address}' .*{why}.*ray start --head")
    with refused, ray_cluster.cluster(address, tmp_path):
        pytest.fail("it must not begin")
