"""Clients simulated on a Ray cluster: two nodes of one on this machine."""

import pytest
from test_cli import call

from oblivionis import __version__, cluster
from oblivionis.errors import RunError
from oblivionis.runs import RunDirectory


@pytest.fixture(scope="module")
def two_machines():
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    found.add_node(num_cpus=1)
    found.wait_for_nodes()
    yield found.address
    found.shutdown()


@pytest.mark.slow
def test_a_run_on_a_cluster_of_two_machines(two_machines, tmp_path):
    result = call("simulate", "smoke", f"output={tmp_path}", "name=run", f"federation.ray_address={two_machines}")
    assert result.code == 0, result.err
    run = RunDirectory.open(tmp_path / "run")
    assert run.stage_summary("unlearn")["requests"] and not run.held_by()
    with cluster.cluster(two_machines, run.path):
        import ray

        assert len([node for node in ray.nodes() if node["Alive"]]) == 2, "the cluster outlives the run"


@pytest.mark.slow
def test_a_machine_that_lacks_something_is_named(two_machines, tmp_path, monkeypatch):
    refused = pytest.raises(RunError, match=r"does not see .*: set output to a folder that all machines share")
    with refused, cluster.cluster(two_machines, tmp_path / "elsewhere"):
        pytest.fail("it must not begin")
    (tmp_path / "config.yaml").write_text("")
    monkeypatch.setattr(cluster, "__version__", "9.9")
    refused = pytest.raises(RunError, match=f"has oblivionis {__version__}, this one 9.9")
    with refused, cluster.cluster(two_machines, tmp_path):
        pytest.fail("it must not begin")


@pytest.mark.parametrize(("address", "why"), [("127.0.0.1:1", "refused"), ("here", "expected host:port or auto")])
def test_no_cluster(tmp_path, address, why):
    refused = pytest.raises(RunError, match=rf"no Ray cluster answers at '{address}' .*{why}.*ray start --head")
    with refused, cluster.cluster(address, tmp_path):
        pytest.fail("it must not begin")
