"""A deployment on loopback with Flower's real processes, as `oblivionis deploy init` lays it out: for slow tests.

    with Deployed(tmp_path / "lab", clients=3) as lab:
        lab.up()                                     # SuperLink, nginx, registration, all SuperNodes
        run = lab.submit("smoke", "federation.clients=3 name=first")
        lab.kill("node1")                            # SIGKILL to the SuperNode and all that it started
        lab.restart("node1")
        assert lab.finish(run) == "finished:completed", lab.everything_said()

Names of processes: "superlink", "nginx", "node0", "node1", … Leaving the block ends all of them.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
from support.processes import FORKED, MARK, checkout, end, environment, free_ports, marked, until

START_S, STOP_S, RUN_S = 90, 60, 600
UNMEASURED = (
    "evaluation.every=0 evaluation.light.questions_per_set=1 evaluation.light.max_new_tokens=1 "
    "evaluation.full.questions_per_set=1 evaluation.full.max_new_tokens=1 evaluation.ruler.enabled=false "
    "evaluation.wikimem.enabled=false evaluation.membership.enabled=false evaluation.rebound.enabled=false "
    "evaluation.leakage.samples=0 evaluation.leakage.full_samples=0"
)
"""Overrides of a run whose measures no test looks at: next to nothing is evaluated."""
BRISK = Path(__file__).with_name("brisk_flower.py")
"""Runs first in Flower's processes, so that they wait for shorter times."""


class Deployed:
    """`folder`: where the deployment is made; `init`: more arguments of `oblivionis deploy init`."""

    def __init__(self, folder, clients=3, init=()):
        self.folder, self.clients = Path(folder), clients
        self.port, self.superlink_port, *self.node_ports = free_ports(2 + clients)
        self.processes, self.app = {}, checkout(self.folder.parent / f"{self.folder.name}-app")
        self.logs_folder = self.folder.parent / f"{self.folder.name}-logs"
        self.logs_folder.mkdir(parents=True)
        ports = ["--port", self.port, "--superlink-port", self.superlink_port]
        self.oblivionis("deploy", "init", self.folder, "--clients", clients, *ports, *init)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.down()

    @property
    def server(self):
        return self.folder / "server"

    def node(self, partition):
        """The folder of a client machine."""
        return self.folder / f"node{partition}"

    def environment(self, **more):
        """What a person in the deployment's environment has: commands on the PATH, Flower's settings of the server."""
        home = {"FLWR_HOME": self.server / "flwr-home", "OMP_NUM_THREADS": 1, "OBLIVIONIS_TEST_PATCH": BRISK}
        return environment(**{**home, MARK: self.folder, **more})

    # -- processes -----------------------------------------------------------------------------------------------

    def up(self):
        """Everything; returns once all SuperNodes are online. Without nginx on the machine they go to the SuperLink."""
        self.start_superlink()
        if shutil.which("nginx"):
            self.start_nginx()
        self.register()
        for partition in range(self.clients):
            self.start_supernode(partition)
        self.wait_online(range(self.clients))

    def start_superlink(self, **more):
        self.start("superlink", self.server / "start-superlink.sh", **more)
        self.wait_port("superlink", self.superlink_port)

    def start_nginx(self):
        """As a user of Debian, who has no `sbin` on the PATH."""
        path = [folder for folder in self.environment()["PATH"].split(os.pathsep) if not folder.endswith("sbin")]
        self.start("nginx", self.server / "start-nginx.sh", PATH=os.pathsep.join(path))
        self.wait_port("nginx", self.port)

    def register(self):
        return self._command([self.server / "register-nodes.sh"])

    def start_supernode(self, partition, **more):
        """Returns at once. It is not started again when it ends (`RESTART=never`), unless `more` says otherwise."""
        port = self.port if "nginx" in self.processes else self.superlink_port
        settings = {"RESTART": "never", "RUNTIME_PORT": self.node_ports[partition], "SUPERLINK": f"127.0.0.1:{port}"}
        settings |= more
        self.start(f"node{partition}", self.node(partition) / "start-supernode.sh", **settings)

    def start(self, name, script, **settings):
        """A process of the deployment, in its environment."""
        with (self.logs_folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [script],
                cwd="/",
                env=self.environment(**{"OBLIVIONIS_TEST_NAME": name}, **settings),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_port(self, name, port):
        """Returns once the process listens on the port."""

        def open_or_dead():
            if not self.alive(name):
                return "dead"
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0 and "open"

        if until(open_or_dead, START_S, every=0.1) != "open":
            raise RuntimeError(f"{name} does not listen on {port}\n{self.everything_said()}")

    def kill(self, name):
        """SIGKILL to the process and all that it started: a power cut."""
        family = self._family(name)
        os.killpg(self.processes[name].pid, signal.SIGKILL)
        end(family, "kill")
        self.processes.pop(name).wait()
        psutil.wait_procs(family, STOP_S)

    def stop(self, name):
        """SIGTERM to the process, and its end."""
        process = self.processes.pop(name)
        process.terminate()
        try:
            return process.wait(STOP_S)
        finally:
            end(self._family(name), "kill")

    def restart(self, name):
        """Start a process that was killed or stopped, on its old port."""
        if name.startswith("node"):
            self.start_supernode(int(name.removeprefix("node")))
        else:
            getattr(self, f"start_{name}")()

    def alive(self, name):
        return name in self.processes and self.processes[name].poll() is None

    def down(self):
        """End everything, also what a SuperLink or SuperNode left behind."""
        for process in self.processes.values():  # nginx overwrites the environment in which its mark stood
            process.terminate()
        end(marked(self.folder), "terminate")
        until(lambda: not marked(self.folder), 10, every=0.1)
        end(marked(self.folder), "kill")
        for process in self.processes.values():
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()

    def log(self, name):
        """What the process has said so far, over all its starts."""
        path = self.logs_folder / f"{name}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def everything_said(self):
        """All logs, for the message of a failed assertion."""
        return "\n".join(
            f"=== {path.name}\n{self.log(path.stem)[-6000:]}" for path in sorted(self.logs_folder.iterdir())
        )

    # -- commands ------------------------------------------------------------------------------------------------

    def oblivionis(self, *arguments):
        return self._command([sys.executable, "-m", "oblivionis.cli.main", *arguments])

    def flwr(self, *arguments):
        """Output of a `flwr` command on the server."""
        return self._command(["flwr", *arguments])

    def submit(self, config, overrides=""):
        """Start a run; its id. The run's folder is `server/runs/<name>`."""
        run_config = f'config="{config}" overrides="{overrides}"'
        told = self.flwr("run", self.app, "lab", "--run-config", run_config, "--format", "json")
        return json.loads(told[told.index("{") :])["run-id"]

    def status(self, run):
        """`pending`, `running`, `finished:completed`, `finished:failed`, …"""
        return self._list("list", "lab", "--run-id", run)["runs"][0]["status"]

    def finish(self, run, timeout=RUN_S):
        """The status of a run that has ended; RuntimeError with all logs if it does not."""

        def over():  # each `flwr list` takes a second of processor time from what it waits for
            return not self.server_apps() and (s := self.status(run)).startswith("finished") and s

        ended = until(over, timeout, every=5)
        if ended is None:
            raise RuntimeError(f"run {run} goes on after {timeout} s\n{self.everything_said()}")
        return ended

    def run(self, config, overrides="", timeout=RUN_S):
        """`submit` and `finish`: the status."""
        return self.finish(self.submit(config, overrides), timeout)

    def server_apps(self):
        """The processes in which runs are computed now."""
        named = {"OBLIVIONIS_TEST_NAME": "superlink"}
        forked = marked(self.folder, "flwr-serverapp", **named, **{FORKED: "1"})
        return forked or marked(self.folder, "flwr-serverapp", **named)

    def client_apps(self, partition):
        """The processes in which the client answers a message now: forked from one that has the libraries."""
        found = self._family(f"node{partition}", "multiprocessing.forkserver")
        return [p for p in found if p.ppid() in {other.pid for other in found}]

    def online(self):
        """How many SuperNodes are online now."""
        return sum(node["status"] == "online" for node in self._list("supernode", "list", "lab")["nodes"])

    def wait_online(self, count, timeout=START_S):
        count = count if isinstance(count, int) else len(count)
        if until(lambda: self.online() == count, timeout, every=3) is None:
            raise RuntimeError(f"{self.online()} SuperNodes are online, not {count}\n{self.everything_said()}")

    # -- inside --------------------------------------------------------------------------------------------------

    def _family(self, name, program=""):
        """The processes that were started under `name`, whoever their parent is by now."""
        return marked(self.folder, program, OBLIVIONIS_TEST_NAME=name)

    def _command(self, arguments):
        done = subprocess.run(
            [str(a) for a in arguments],
            cwd=self.logs_folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_S,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{arguments} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def _list(self, *arguments):
        told = self.flwr(*arguments, "--format", "json")
        return json.loads(told[told.index("{") :])
