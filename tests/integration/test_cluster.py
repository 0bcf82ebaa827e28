"""Clients simulated on a Ray cluster: two nodes of one on this machine."""

from collections import Counter
from pathlib import Path

import pytest
from support import ray_cluster as started_cluster
from support.commands import call
from support.simulations import RUN, Command, computed

from oblivionis import __version__
from oblivionis.errors import RunError
from oblivionis.runs.directory import RunDirectory
from oblivionis.server import ray_cluster, ray_runtime


@pytest.fixture(scope="module")
def two_machines():
    with started_cluster.two_machines(num_cpus=2) as (found, _):
        yield found


def clients_of(machines):
    """Where the cluster's processes write: the files of those that were client actors."""
    logs = Path(machines.head_node.get_session_dir_path()) / "logs"
    return [path for path in logs.glob("worker-*.out") if "ClientAppHost" in path.read_text(errors="replace")]


@pytest.mark.slow
def test_a_run_on_a_cluster_of_two_machines_computes_what_own_processes_do(two_machines, tmp_path):
    for name, where in (("cluster", [f"federation.ray_address={two_machines.address}"]), ("processes", [])):
        result = call("simulate", *RUN, f"output={tmp_path}", f"name={name}", *where)
        assert result.code == 0, result.err
    assert clients_of(two_machines), "the clients ran elsewhere"
    assert computed(tmp_path / "cluster") == computed(tmp_path / "processes")
    run = RunDirectory.open(tmp_path / "cluster")
    assert not run.held_by()
    with ray_cluster.cluster(two_machines.address, run.path):
        import ray

        assert len([node for node in ray.nodes() if node["Alive"]]) == 2, "the cluster outlives the run"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Tip. In future versions of Ray:FutureWarning")
def test_a_run_says_that_others_have_the_cores_and_ends(two_machines, tmp_path):
    held = ray_runtime.running(address=two_machines.address, log_to_driver=False)
    settings = ["stages=[finetune]", "federation.wait_for_clients=7", f"output={tmp_path}", "name=run"]
    with held:
        import ray

        others = [ray.remote(Counter).options(num_cpus=2).remote() for _ in range(2)]
        ray.get([one.__ray_ready__.remote() for one in others])
        command = Command(tmp_path, "simulate", "smoke", f"federation.ray_address={two_machines.address}", *settings)
        try:
            assert command.finish() == 1, command.output
        finally:
            command.end()
    said = " ".join(command.output.split())
    assert "waiting up to 7 s for a machine of the Ray cluster with 1 CPU core free for a client" in said
    assert "no machine had 1 CPU core free for a client within 7 s (federation.wait_for_clients)" in said
    assert "Traceback" not in said


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
