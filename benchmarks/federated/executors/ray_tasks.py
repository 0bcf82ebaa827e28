"""Runs as tasks of a Ray cluster, whose scheduler chooses the machine by CPU cores, GPUs and memory.

A machine that sees the store works in it, so that a run goes on, on another machine, where a lost one left it. To one
that does not, the prepared run travels through Ray's object store, and its files come back with their hashes when it
has ended.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError, TaskCancelledError

from benchmarks.federated.executors import ray_worker
from benchmarks.federated.executors.file_transfer import Piece, Unpacking, pieces
from benchmarks.federated.executors.ray_worker import Begun, Ended, Order, Probe
from benchmarks.federated.graph import Node
from benchmarks.federated.options import RayCluster
from benchmarks.federated.resource_demand import Demand, Demands, check
from benchmarks.scheduling.executors import Work
from benchmarks.scheduling.processes import LOG
from benchmarks.scheduling.tasks import Task
from oblivionis.config import compose as configuration
from oblivionis.errors import OblivionisError, RunError
from oblivionis.reports.format import bytes_text
from oblivionis.server import ray_cluster

OPTION = "--ray-address"
TIMES = 3
"""How often a run is begun whose machines are lost."""
_READING_S, _CANCEL_S = 1800.0, 3.0
_AHEAD = 64
"""Pieces of a run that may wait in Ray's object store for this machine to take them."""


class RayExecutor:
    """An `Executor` on a running cluster. nodes: all that may be submitted; tell: gets news of machines."""

    def __init__(self, away: RayCluster, store: Path, nodes: Sequence[Node], tell: Callable[[str], None]) -> None:
        self._away, self._store, self.nodes, self._tell = away, store.resolve(), nodes, tell
        self.tasks: list[RayTask] = []
        self.demands: dict[str, Demand] = {}
        self._joined = ExitStack()
        self.sharing = True

    def __enter__(self) -> RayExecutor:
        """Raises RunError, with everything that is wrong with the cluster, before anything begins."""
        with ExitStack() as entered:
            entered.enter_context(ray_cluster.joined(self._away.address, OPTION))
            self._store.mkdir(parents=True, exist_ok=True)
            token = secrets.token_hex(16)
            self._probe = Probe(self._store / f".probe-{token}", token)
            self._probe.file.write_text(token, encoding="utf-8")
            entered.callback(self._probe.file.unlink, missing_ok=True)
            self._check_machines()
            self._check_demands()
            self._joined = entered.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._joined.close()

    def _check_machines(self) -> None:
        """Each has this program, and whatever the runs read; which see the store?"""
        here, faults = ray_worker.versions(), []
        for name, there in ray_cluster.on_each(ray_worker.look, self._probe):
            if isinstance(there, str):
                faults.append(there)
                continue
            sees = there.pop("sees store")
            self.sharing = self.sharing and sees
            faults += ray_cluster.other_versions(name, here, there)
            faults += [] if sees else self._only_shared(name)
        if not faults:
            faults = self._missing_files()
        if faults:
            raise RunError(f"{OPTION}: " + "; ".join(faults))

    def _only_shared(self, name: str) -> list[str]:
        """Runs that read the folders of other runs, which do not travel with them."""
        reading = [n for n in self.nodes if n.oracles or n.checked or (n.needs and n.config.privacy.level != "none")]
        if not reading:
            return []
        return [
            f"machine {name} does not see {self._store}, and {reading[0].label} reads the folders of other runs there: "
            "set --store to a folder that all machines share"
        ]

    def _missing_files(self) -> list[str]:
        """What is missing on machines of the data and models that the runs read."""
        place, texts = Path.cwd(), sorted({configuration.to_yaml(node.config) for node in self.nodes})
        here, faults = ray_worker.inputs(place, texts), []
        for name, there in ray_cluster.on_each(ray_worker.inputs, place, texts, answer_s=_READING_S):
            if isinstance(there, str):
                faults.append(there)
                continue
            faults += [
                f"machine {name} does not have {named} as this one has it: copy it there, or to a place that all share"
                for named, contents in here.items()
                if there.get(named) != contents
            ]
        return faults

    def _check_demands(self) -> None:
        """RunError where no machine has what a run asks for."""
        machines = ray_cluster.machines()
        gpus = any(machine["Resources"].get("GPU") for machine in machines)
        demands = Demands(self._away.reserve, gpus_there=gpus, tell=self._tell)
        hopeless: dict[Demand, Node] = {}
        for node in self.nodes:
            check(node.config, node.label)
            demand = self.demands[node.key] = demands.of(node.config)
            if not any(_has(machine["Resources"], demand) for machine in machines):
                hopeless.setdefault(demand, node)
        if hopeless:
            asked = "; ".join(f"{node.label} asks for {demand}" for demand, node in hopeless.items())
            there = "; ".join(_resources(machine) for machine in machines)
            raise RunError(
                f"{OPTION}: no machine has what runs ask for: {asked}. The machines have: {there}. Lower --cpus, "
                "--gpus or --memory, or name more with --num-cpus, --num-gpus and --memory in `ray start`"
            )

    @property
    def width(self) -> int:
        """Runs that machines are at."""
        return max(1, sum(task.host != "" for task in self.tasks))

    def room(self, task: Task) -> bool:
        """Whether no run with the same demand waits for a machine: Ray sees one of each kind ahead."""
        demand = self.demands[task.key]
        return not any(other.host == "" and other.demand == demand for other in self.tasks)

    def submit(self, task: Task) -> RayTask:
        """Ask Ray for a machine."""
        parcel = [] if self.sharing else [ray.put(piece) for piece in pieces(task.run.path)]
        demand = self.demands[task.key]
        method, versions = task.config.unlearning.method, ray_worker.versions()
        order = Order(task.key, self._probe, Path.cwd(), method, versions, demand.cpus, parcel, tuple(task.command))
        asked = RayTask(task.label, task.run.path, order, demand)
        asked.begin()
        self.tasks.append(asked)
        return asked

    def ended(self) -> list[RayTask]:
        """Listen to all tasks. One whose machine was lost begins anew, `TIMES` times at most."""
        over = []
        for task in self.tasks:
            lost = task.listen()
            if lost is None:
                pass
            elif task.times < TIMES:
                self._tell(f"{task.label}: {lost}; it begins anew elsewhere ({task.times + 1} of {TIMES})")
                task.begin()
            else:
                task.fail(f"{lost}, {TIMES} times")
            if task.outcome is not None:
                over.append(task)
        self.tasks = [task for task in self.tasks if task not in over]
        return over

    def stop(self, works: Sequence[Work]) -> None:
        """Cancel tasks and wait some seconds for their ends; what is left of them ends with this process."""
        stopped = [task for task in self.tasks if task in works]
        for task in stopped:
            with suppress(Exception):
                ray.cancel(task.stream)
        deadline = time.monotonic() + _CANCEL_S
        while any(task.outcome is None and task.listen() is None for task in stopped):
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        for task in stopped:
            task.drop()
            self.tasks.remove(task)


def _has(resources: Mapping[str, float], demand: Demand) -> bool:
    return (
        resources.get("CPU", 0) >= demand.cpus
        and resources.get("GPU", 0) >= demand.gpus
        and resources.get("memory", 0) >= demand.memory
    )


def _resources(machine: Mapping[str, Any]) -> str:
    found = machine["Resources"]
    gpus = f", {found['GPU']:g} GPUs" if found.get("GPU") else ""
    memory = bytes_text(found.get("memory", 0))
    return f"{machine['NodeManagerAddress']} {found.get('CPU', 0):g} CPUs{gpus}, {memory} of RAM"


class RayTask:
    """A run that Ray has been asked to do. host: the machine that is at it, "" before; times: how often it began."""

    def __init__(self, label: str, folder: Path, order: Order, demand: Demand) -> None:
        self.label, self.demand, self._folder, self._order = label, demand, folder, order
        self.stream: Any = None
        self.host, self._line = "", ""
        self.times, self._since = 0, 0.0
        self.outcome: Ended | None = None
        self._arriving: Unpacking | None = None

    def begin(self) -> None:
        """Ask for a machine, for the first time or again."""
        self.drop()
        self.host, self._line, self.times = "", "", self.times + 1
        task: Any = ray.remote(ray_worker.work).options(
            name=self.label,
            num_cpus=self.demand.cpus,
            num_gpus=self.demand.gpus,
            memory=self.demand.memory or None,
            num_returns="streaming",
            max_retries=0,
            _generator_backpressure_num_objects=_AHEAD,
        )
        self.stream = task.remote(self._order)

    @property
    def seconds(self) -> float:
        """Since a machine is at it."""
        return time.monotonic() - self._since if self.host else 0.0

    @property
    def log(self) -> Path:
        return self._folder / LOG

    def saying(self) -> str:
        """The machine, and the last line of the run there."""
        return f"on {self.host}: {self._line or 'begins'}" if self.host else "waits for a machine"

    def failure(self) -> str:
        """Why it ended without its results."""
        return self.outcome.failure if self.outcome and self.outcome.failure else "it ended without its results"

    def fail(self, reason: str) -> None:
        """It has ended without its results."""
        self.drop()
        self.outcome = Ended(reason)

    def listen(self) -> str | None:
        """Take what has come. A text where the machine was lost, None otherwise."""
        while self.outcome is None and ray.wait([self.stream], timeout=0)[0]:
            try:
                said: Any = ray.get(next(self.stream))
                self.hear(said)
            except StopIteration:
                self.fail("it ended and said nothing")
            except (RayTaskError, TaskCancelledError) as error:
                self.fail(str(error).strip().splitlines()[-1])
            except OutOfMemoryError:
                return f"{self.host or 'its machine'} ran out of memory"
            except RayError as error:
                return f"{self.host or 'its machine'} was lost ({type(error).__name__})"
            except (OblivionisError, OSError) as error:
                self.fail(str(error))
        return None

    def hear(self, said: Begun | str | Piece | Ended) -> None:
        """Take what the machine says of the run."""
        if isinstance(said, Begun):
            self.host, self._since = said.host, time.monotonic()
        elif isinstance(said, Piece):
            self._arriving = self._arriving or Unpacking(self._folder)
            self._arriving.take(said)
        elif isinstance(said, Ended):
            if self._arriving is not None:
                self._arriving.settle()
                self._arriving = None
            self.outcome = said
        else:
            self._line = said

    def drop(self) -> None:
        """Forget files that have come in part."""
        if self._arriving is not None:
            self._arriving.drop()
            self._arriving = None
