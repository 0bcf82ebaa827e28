"""`flwr run`: what the ServerApp says first, the number of SuperNodes, and going on with a run that broke off."""

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from support.churn import QUIET
from support.inprocess import InProcessGrid
from support.stages import BASE

from oblivionis.client.app import app
from oblivionis.config.compose import ConfigError
from oblivionis.errors import OblivionisError, RunError
from oblivionis.runs.directory import RunDirectory
from oblivionis.server import app as server_app
from oblivionis.server import grids as server_grids
from strategies import message_keys

OVERRIDES = " ".join([*BASE, *QUIET, "federation.rounds.finetune=3", "federation.rounds.unlearn=3"])


def flwr_run(monkeypatch, home, tamper=None, nodes=4, **run_config):
    monkeypatch.setenv("OBLIVIONIS_HOME", str(home))
    settings = {"config": "smoke", "overrides": "", "resume": "", **run_config}
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=settings)
    server_app.main(InProcessGrid(app, nodes, tamper), context)


def test_a_run_that_broke_off_goes_on(monkeypatch, tmp_path, caplog):
    overrides = f"{OVERRIDES} stages=[finetune,unlearn] output=runs"

    def cut(client, message, reply):
        """The machine fails in round 3 of unlearn."""
        config = message.content.config_records[message_keys.CONFIG]
        moment = config.get(message_keys.STAGE), config.get(message_keys.SERVER_ROUND)
        if message.metadata.message_type == message_keys.TRAIN and moment == ("unlearn", 3):
            raise OSError("power cut")
        return reply

    flwr_run(monkeypatch, tmp_path, overrides=f"{overrides} name=whole")
    with pytest.raises(OSError, match="power cut"):
        flwr_run(monkeypatch, tmp_path, cut, overrides=f"{overrides} name=cut")
    runs = {name: RunDirectory.open(tmp_path / "runs" / name) for name in ("whole", "cut")}
    assert f"flwr run . CONNECTION --run-config 'resume=\"{runs['cut'].path}\"'" in caplog.text
    assert runs["cut"].stage_summary("finetune") and not runs["cut"].stage_summary("unlearn")
    flwr_run(monkeypatch, tmp_path, resume="runs/cut")
    vectors = [run.load_checkpoint("unlearn").vector for run in runs.values()]
    np.testing.assert_array_equal(*vectors)
    assert not (tmp_path / "runs" / "cut-2").exists()


def test_what_cannot_be_resumed_is_said(monkeypatch, tmp_path):
    with pytest.raises(RunError, match="is no run directory"):
        flwr_run(monkeypatch, tmp_path, resume="runs/none")
    with pytest.raises(RunError, match="leave overrides out"):
        flwr_run(monkeypatch, tmp_path, resume="runs/none", overrides="seed=1")


@pytest.fixture
def simulated(monkeypatch):
    """Flower's own engine counts as what simulates the clients."""
    for module in (server_app, server_grids):
        monkeypatch.setattr(module, "of_flowers_simulation", lambda grid: isinstance(grid, InProcessGrid))
    monkeypatch.setattr(server_app, "SETTLED_SECONDS", 0.2)


@pytest.mark.usefixtures("simulated")
def test_simulated_nodes_beyond_the_clients_change_nothing(monkeypatch, tmp_path, caplog):
    for nodes in (2, 5):
        flwr_run(monkeypatch, tmp_path, nodes=nodes, overrides=f"stages=[finetune] output=runs name=of-{nodes}")
    assert caplog.text.count("SuperNodes are left out") == 1
    assert "3 of 5 SuperNodes are left out: federation.clients=2" in caplog.text
    assert "3 nodes are left out: they claim partitions 2 to 4 of 2" in caplog.text
    runs = [RunDirectory.open(tmp_path / "runs" / f"of-{nodes}") for nodes in (2, 5)]
    np.testing.assert_array_equal(*(run.load_checkpoint("finetune").vector for run in runs))


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"overrides": "federation.clients=5 output=runs name=x"},
            "4 SuperNodes are connected, but the configuration has federation.clients=5: run it with "
            '--federation-config "num-supernodes=5", or set federation.clients=4',
        ),
        ({"overrides": "strategi=fedavg"}, "strategi: unknown key; did you mean strategy?"),
        ({"resume": "runs/none"}, "runs/none is no run directory"),
        ({"overrides": "data=jsonl data.path=FILE output=runs name=x"}, "broken.jsonl:1: field 'answer' is missing"),
    ],
)
def test_a_mistake_is_said_before_flowers_traceback_and_leaves_nothing(monkeypatch, tmp_path, caplog, settings, said):
    file = tmp_path / "broken.jsonl"
    file.write_text('{"question": "Who?"}\n' * 2)
    settings = {key: value.replace("FILE", str(file)) for key, value in settings.items()}
    with pytest.raises((OblivionisError, ConfigError)):
        flwr_run(monkeypatch, tmp_path, **settings)
    assert said in [r.getMessage() for r in caplog.records if r.levelname == "ERROR"][-1]
    assert "continue with" not in caplog.text, "the same settings would fail again"
    assert not (tmp_path / "runs" / "x").exists()


def test_real_machines_are_not_made_to_vanish(monkeypatch, tmp_path):
    with pytest.raises(RunError, match=r"federation.churn=0.1 .* real machines: set it to 0"):
        flwr_run(monkeypatch, tmp_path, overrides="federation.churn=0.1")
    assert not any(tmp_path.iterdir())
