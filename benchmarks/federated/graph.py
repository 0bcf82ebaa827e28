"""Which runs a suite needs, which of them its cells share, and in which order they are best done."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.federated.identity import ALONE, BASE, FINETUNE, RETRAIN, UNLEARN, identity, stage_config, without_local
from benchmarks.federated.matrix import Cell, identifier
from benchmarks.scheduling.tasks import Task, finished, prepare
from oblivionis.config.method_traits import not_with
from oblivionis.config.schema import Config
from oblivionis.runs.directory import RunDirectory

ANOTHER = "finetune_of_another_run"
"""In `NOT_WITH` of a method: it cannot take over finetune."""


@dataclass(eq=False)
class Node:
    """One run of the store, `stage` the last of its stages; `needs` are runs whose stages it takes over.

    oracles: runs whose retrained models RULER takes for its noise bands; cells: those that it serves, none where it is
    an oracle only.
    """

    stage: str
    hash: str
    config: Config
    needs: tuple[Node, ...] = ()
    oracles: tuple[Node, ...] = ()
    cells: list[Cell] = field(default_factory=list)

    @property
    def key(self) -> str:
        """The name of its folder in the store."""
        return f"{self.stage}-{self.hash[:20]}"

    @property
    def label(self) -> str:
        """The stage, and the labels that its cells have in common."""
        if not self.cells:
            return f"{self.stage} (oracle, seed={self.config.seed}, {self.hash[:6]})"
        first, *others = [cell.labels for cell in self.cells]
        common = {axis: label for axis, label in first.items() if all(other[axis] == label for other in others)}
        return f"{self.stage} {identifier(common)}".rstrip()

    @property
    def after(self) -> tuple[Node, ...]:
        """Runs that must be finished before it begins."""
        return (*self.needs, *self.oracles)

    def settings(self, store: Path) -> Config:
        """Its configuration in this store, where its oracles have their places."""
        if not self.oracles:
            return self.config
        evaluation = self.config.evaluation
        places = [str(oracle.run(store).path.resolve()) for oracle in self.oracles]
        ruler = replace(evaluation.ruler, oracles=places)
        return replace(self.config, evaluation=replace(evaluation, ruler=ruler))

    def run(self, store: Path) -> RunDirectory:
        """Its run directory, which need not exist."""
        return RunDirectory(store / self.key)

    def finished(self, store: Path) -> bool:
        """Whether all stages of its configuration are complete."""
        return finished(self.run(store), self.config)

    def task(self, store: Path) -> Task:
        """What there is to be done of it in this store, with the stages that other runs have done for it."""
        run, after = self.run(store), tuple(need.key for need in self.after)
        stages = {stage: need.run(store) for need in self.needs for stage in need.config.stages}
        return Task(self.key, self.label, self.config, run, lambda: prepare(run, self.settings(store), stages), after)

    def seconds(self, store: Path) -> float:
        """Seconds of the stages that this run did itself."""
        run = self.run(store)
        summaries = [run.stage_summary(stage) for stage in self.config.stages]
        return sum(s["seconds"] for s in summaries if s is not None and "reused_from" not in s)


@dataclass(frozen=True)
class Graph:
    """Runs in the order of work, and for each cell's id the runs with its results."""

    nodes: tuple[Node, ...]
    of_cell: dict[str, tuple[Node, ...]]


def plan(cells: Sequence[Cell], oracles: int = 0) -> Graph:
    """The runs of the cells: finetune, retrain and local stages that several share are one run each.

    A method that goes with no finetune of another run does finetune in the run of unlearn.

    oracles: for each cell so many further retrained models, of the seeds that follow its own.

    In the order of work a run that others wait for comes before one that nobody waits for, and those whose dependants
    are most come first; otherwise the order of the cells is kept.
    """
    nodes: dict[str, Node] = {}
    of_cell: dict[str, tuple[Node, ...]] = {}
    for cell in cells:
        later = _without_base(cell.config)
        together = FINETUNE if UNLEARN in cell.stages and ANOTHER in not_with(later.unlearning.method) else None
        alone = {
            stage: _node(nodes, stage_config(later if i else cell.config, stage), stage)
            for i, stage in enumerate(stage for stage in cell.stages if stage in ALONE and stage != together)
        }
        results = tuple(alone.values())
        if UNLEARN in cell.stages:
            needs = tuple(node for stage, node in alone.items() if stage in BASE)
            config = replace(without_local(later), stages=[stage for stage in cell.stages if stage in (*BASE, UNLEARN)])
            seeds = range(config.seed + 1, config.seed + 1 + oracles)
            others = [stage_config(replace(later, seed=seed), RETRAIN) for seed in seeds]
            own = _node(nodes, config, UNLEARN, needs, tuple(_node(nodes, other, RETRAIN) for other in others))
            results = (own, *(node for stage, node in alone.items() if stage not in BASE))
        for node in dict.fromkeys((*alone.values(), *results)):
            node.cells.append(cell)
        of_cell[cell.id] = results
    waiting = {key: sum(node in other.after for other in nodes.values()) for key, node in nodes.items()}
    order = sorted(nodes.values(), key=lambda node: -waiting[node.key])
    return Graph(tuple(order), of_cell)


def _without_base(config: Config) -> Config:
    """The base model is the same for all stages of a cell: the first one has it measured, if it is wanted."""
    return replace(config, evaluation=replace(config.evaluation, base=False))


def _node(
    nodes: dict[str, Node],
    config: Config,
    stage: str,
    needs: tuple[Node, ...] = (),
    oracles: tuple[Node, ...] = (),
) -> Node:
    own = identity(config)
    if oracles:
        own = hashlib.sha256("".join([own, *(oracle.hash for oracle in oracles)]).encode()).hexdigest()
    node = Node(stage, own, config, needs, oracles)
    return nodes.setdefault(node.key, node)
