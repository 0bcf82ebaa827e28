"""`flwr run` with `resume`: the ServerApp goes on with a run that broke off."""

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from support.churn import QUIET
from support.inprocess import InProcessGrid
from support.stages import BASE

from oblivionis.client.app import app
from oblivionis.errors import RunError
from oblivionis.runs.directory import RunDirectory
from oblivionis.server import app as server_app
from strategies import protocol

OVERRIDES = " ".join([*BASE, *QUIET, "federation.rounds.finetune=3", "federation.rounds.unlearn=3"])


def flwr_run(monkeypatch, home, tamper=None, **run_config):
    monkeypatch.setenv("OBLIVIONIS_HOME", str(home))
    settings = {"config": "smoke", "overrides": "", "resume": "", **run_config}
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=settings)
    server_app.main(InProcessGrid(app, 4, tamper), context)


def test_a_run_that_broke_off_goes_on(monkeypatch, tmp_path, caplog):
    overrides = f"{OVERRIDES} stages=[finetune,unlearn] output=runs"

    def cut(client, message, reply):
        """The machine fails in round 3 of unlearn."""
        config = message.content.config_records[protocol.CONFIG]
        moment = config.get(protocol.STAGE), config.get(protocol.SERVER_ROUND)
        if message.metadata.message_type == protocol.TRAIN and moment == ("unlearn", 3):
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


def test_real_machines_are_not_made_to_vanish(monkeypatch, tmp_path):
    with pytest.raises(RunError, match=r"federation.churn=0.1 .* real machines: set it to 0"):
        flwr_run(monkeypatch, tmp_path, overrides="federation.churn=0.1")
    assert not any(tmp_path.iterdir())
