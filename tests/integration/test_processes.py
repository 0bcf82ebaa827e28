"""The real command with Flower's real processes: kills, Ctrl-C, resume, users' mistakes, and Flower's own command."""

import hashlib
import json
import re
import signal
import subprocess

import pytest
from support.processes import (
    IN_ONE_PROCESS,
    MARK,
    checkout,
    environment,
    free_ports,
    listening,
    marked,
    reached_from_elsewhere,
    until,
)
from support.simulations import RUN, RUN_S, SMALL, START_S, STOP_S, Command, completed, computed, numbers, reach

from oblivionis.deploy import hub
from oblivionis.runtime.processes import NAME

pytestmark = pytest.mark.slow


@pytest.fixture
def command(tmp_path):
    """Starts commands and ends what is left of them after the test."""
    started = []

    def start(*arguments, **variables):
        started.append(Command(tmp_path, *arguments, **variables))
        return started[-1]

    yield start
    for one in started:
        one.end()


HERE = {"OBLIVIONIS_TEST_PATCH": IN_ONE_PROCESS}


def simulation(command, tmp_path, name, *more, **variables):
    running = command("simulate", *RUN, f"output={tmp_path}", f"name={name}", *more, **variables)
    return running, tmp_path / name


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """What an uninterrupted run computes: those of `test_whole_run` say that client processes compute the same."""
    folder = tmp_path_factory.mktemp("reference")
    running = Command(folder, "simulate", *RUN, f"output={folder}", "name=whole", **HERE)
    assert running.finish() == 0, running.output
    return computed(folder / "whole")


def a_client_dies(running, run):
    reach(running, run, "finetune", 1)
    running.descendants(NAME)[0].kill()
    assert running.finish(2 * STOP_S) == 1, running.output
    assert re.search(r"process of client \d died: it was killed", running.output), running.output
    assert f"oblivionis simulate --resume {run}" in running.output


def ctrl_c(running, run):
    reach(running, run, "unlearn", 1)
    running.interrupt()
    assert running.finish(STOP_S) == 130, running.output
    assert f"oblivionis simulate --resume {run}" in running.output
    assert not (run / "stages" / "unlearn.json").exists()


def the_server_is_killed(running, run):
    reach(running, run, "unlearn", 2)
    running.process.kill()
    assert running.finish() == -signal.SIGKILL
    assert not completed(run, "unlearn", 3), "the kill came too late to be in round 3"


def measured_by_the_newest_checkpoint(run):
    """How many bytes of rows there were, by the ledger: a round whose checkpoint is not there is held again."""
    there = {hashlib.sha256(file.read_bytes()).hexdigest() for file in (run / "checkpoints").rglob("*.safetensors")}
    lines = map(json.loads, (run / "requests.jsonl").read_text(encoding="utf-8").splitlines())
    bound = [line["rows"]["bytes"] for line in lines if line["event"] == "checkpoint" and line["file"] in there]
    assert bound[-1] > 0
    return bound[-1]


def test_a_run_that_breaks_off_thrice_ends_with_the_same_numbers(command, tmp_path, reference):
    """The first with client processes, as in `test_whole_run`, the others on the in-process grid."""
    running, run = simulation(command, tmp_path, "broken")
    before = b""
    for happens, grid in ((a_client_dies, {}), (ctrl_c, HERE), (the_server_is_killed, HERE)):
        happens(running, run)
        assert "Traceback" not in running.output
        assert running.leaves_nothing(), running.descendants()
        found = (run / "metrics.jsonl").read_bytes()
        assert found.startswith(before), "finished rounds were repeated"
        before = found[: measured_by_the_newest_checkpoint(run)]
        running = command("simulate", "--resume", run, **grid)
    assert running.finish() == 0, running.output
    assert (run / "metrics.jsonl").read_bytes().startswith(before), "finished rounds were repeated"
    assert numbers(run) == reference[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_clients_start(command, tmp_path, number):
    running, run = simulation(command, tmp_path, "early")
    assert until(lambda: running.descendants(NAME), START_S)
    running.process.send_signal(number)
    assert running.finish(2 * STOP_S) == 130, running.output
    assert f"oblivionis simulate --resume {run}" in running.output
    assert "Traceback" not in running.output
    assert running.leaves_nothing(), running.descendants()


def test_a_failing_client_fails_a_strict_run(command, tmp_path):
    running, run = simulation(command, tmp_path, "failing", "strict=true", "training.learning_rate=1e30", **HERE)
    assert running.finish() not in (0, None)
    assert "strict: client" in running.output
    assert f"oblivionis simulate --resume {run}" in running.output
    assert "Traceback" not in running.output
    assert running.leaves_nothing(), running.descendants()


THREE_MISTAKES = """\
extends: smoke
strategi: fedadam
federation:
  clients: -3
  rounds: {finetune: many}
"""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["config", "check", "mine.yaml"], ["strategi:", "federation.clients:", "federation.rounds.finetune:"]),
        (["simulate", "smoke", "strategy=fedadm"], ["fedadm", "fedadam", "fedavg"]),
        (["simulate", "smoke", "data=jsonl", "data.path=absent.jsonl"], ["data.path", "absent.jsonl"]),
        (["simulate", "absent"], ["absent", "smoke"]),
        (["simulate", "--resume", "."], ["no run directory", "config.yaml"]),
        (["simulate", "--resume", "nowhere"], ["no run directory"]),
    ],
)
def test_mistakes_of_a_user(command, tmp_path, arguments, said):
    (tmp_path / "mine.yaml").write_text(THREE_MISTAKES)
    running = command(*arguments)
    assert running.finish() == 2
    for word in said:
        assert word in running.output
    assert "Traceback" not in running.output
    assert not (tmp_path / "runs").exists()


class FlowerCommands:
    """Flower's own commands with a SuperLink of their own, which is stopped at the end."""

    def __init__(self, cwd):
        self.cwd, self.app = cwd, checkout(cwd / "checkout")
        ports = free_ports(2)
        self.environment = environment(
            FLWR_HOME=cwd / "flower-home",
            FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1,
            FLWR_LOCAL_SUPERLINK_HTTP_API_PORT=ports[0],
            FLWR_LOCAL_CONTROL_API_PORT=ports[1],
            OBLIVIONIS_HOME=cwd,
            RAY_ADDRESS="local",  # or Flower would join the cluster of another test
            RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0,
            RAY_AUTH_MODE="token",
            RAY_AUTH_TOKEN="of-the-tests",
            **{MARK: cwd},
        )

    def run(self, nodes, run_config, app=None):
        """Output of `flwr run --stream` and the run's status afterwards."""
        nodes = f"num-supernodes={nodes}"
        output = self._flwr(
            "run", app or self.app, "--stream", "--federation-config", nodes, "--run-config", run_config
        )
        runs = json.loads(self._flwr("list", "--format", "json"))["runs"]
        return output, max(runs, key=lambda run: run["pending-at"])["status"]

    def _flwr(self, *arguments):
        done = subprocess.run(
            ["flwr", *map(str, arguments)],
            cwd=self.cwd,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
            timeout=2 * RUN_S,
        )
        return done.stdout

    def stop(self):
        """Whether everything ended after SIGTERM to the SuperLink."""
        for process in marked(self.cwd, "flower-superlink"):
            process.terminate()
        ended = until(lambda: not marked(self.cwd), STOP_S)
        for process in marked(self.cwd):
            process.kill()
        return ended


@pytest.fixture(scope="module")
def flower(tmp_path_factory):
    commands = FlowerCommands(tmp_path_factory.mktemp("flower"))
    yield commands
    assert commands.stop(), "the SuperLink outlives SIGTERM"


def test_flwr_run_computes_what_simulate_does(flower, reference):
    """The app as Flower's hub takes it; two SuperNodes more than clients have nothing to do."""
    app = flower.cwd / "oblivionis"
    hub.write(app, "someone")
    experiment, *settings = RUN
    overrides = " ".join(s.replace(" ", "") for s in [*settings, "name=by-flower"])
    with listening(lambda: marked(flower.cwd)) as listeners:
        output, status = flower.run(5, f'config="{experiment}" overrides="{overrides}"', app)
    assert "raylet" in {name for name, _ in listeners} and not reached_from_elsewhere(listeners)
    assert status == "finished:completed", output
    assert "2 of 5 SuperNodes are left out: federation.clients=3" in output
    run = flower.cwd / "runs" / "by-flower"
    assert computed(run) == reference
    assert "ROUGE-L recall" in output
    (bundle,) = (flower.cwd / "flower-home" / "apps").glob("someone.oblivionis.*")
    assert sum(p.stat().st_size for p in bundle.rglob("*") if p.is_file() and p.suffix != ".pyc") < 9e6


def test_flwr_run_with_too_few_nodes(flower):
    output, status = flower.run(2, f'config="smoke" overrides="{" ".join(SMALL)} name=wrong"')
    assert status == "finished:failed"
    said = "2 SuperNodes are connected, but the configuration has federation.clients=3"
    assert output.index(said) < output.index("Traceback"), "the sentence comes first"
    assert "num-supernodes=3" in output
    assert "federation.clients=2" in output
    assert not (flower.cwd / "runs" / "wrong").exists()
