"""Which runs a suite needs, which of them its cells share, and in which order they are best done."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from benchmarks.federated.identity import (
    ALONE,
    BASE,
    FINETUNE,
    NEVER_SAW,
    RETRAIN,
    UNLEARN,
    identity,
    stage_config,
    without_local,
)
from benchmarks.federated.matrix import SEED, Cell, identifier
from benchmarks.scheduling.tasks import Task, finished, make, prepare
from oblivionis.config.method_traits import not_with, replays
from oblivionis.config.schema import Config, Federation
from oblivionis.runs.directory import RunDirectory

ANOTHER = "finetune_of_another_run"
"""In `NOT_WITH` of a method: it cannot take over finetune."""

CHECK = "benchmarks.federated.never_saw"
"""The module that compares an exact erasure with a federation that never had the records; loading it takes time."""


@dataclass(eq=False)
class Node:
    """One run of the store, `stage` the last of its stages; `needs` are runs whose stages it takes over.

    oracles: runs whose retrained models RULER takes for its noise bands; trained: the run whose rounds are this one's,
    too, where they differ in what is served alone: this one only measures; checked: the run of an exact erasure whose
    models this one compares with those of a federation that never had the records, and does nothing else; cells: those
    that it serves, none where it is an oracle only.
    """

    stage: str
    hash: str
    config: Config
    needs: tuple[Node, ...] = ()
    oracles: tuple[Node, ...] = ()
    trained: Node | None = None
    checked: Node | None = None
    cells: list[Cell] = field(default_factory=list)

    @property
    def key(self) -> str:
        """The name of its folder in the store."""
        return f"{self.stage}-{self.hash[:20]}"

    @property
    def label(self) -> str:
        """The stage, and the labels that its cells have in common."""
        if self.checked is not None:
            return f"{self.stage} compared with {self.checked.label}"
        if not self.cells:
            return f"{self.stage} (oracle, seed={self.config.seed}, {self.hash[:6]})"
        first, *others = [cell.labels for cell in self.cells]
        common = {axis: label for axis, label in first.items() if all(other[axis] == label for other in others)}
        return f"{self.stage} {identifier(common)}".rstrip()

    @property
    def after(self) -> tuple[Node, ...]:
        """Runs that must be finished before it begins."""
        return (*self.needs, *self.oracles, *filter(None, (self.trained, self.checked)))

    @property
    def stages(self) -> Sequence[str]:
        """What it is finished with."""
        return self.config.stages if self.checked is None else (NEVER_SAW,)

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
        return finished(self.run(store), self.stages)

    def task(self, store: Path) -> Task:
        """What there is to be done of it in this store, with the stages that other runs have done for it."""
        run, after = self.run(store), tuple(need.key for need in self.after)
        if self.checked is not None:
            command = (CHECK, str(self.checked.run(store).path))
            made = partial(make, run, self.config)
            return Task(self.key, self.label, self.config, run, made, after, self.stages, command)
        stages = {stage: need.run(store) for need in self.needs for stage in need.config.stages}
        rounds = {} if self.trained is None else {self.stage: self.trained.run(store)}
        made = partial(prepare, run, self.settings(store), stages, rounds=rounds)
        return Task(self.key, self.label, self.config, run, made, after)

    def seconds(self, store: Path) -> float:
        """Seconds of the stages that this run did itself."""
        run = self.run(store)
        summaries = [run.stage_summary(stage) for stage in self.stages]
        return sum(s["seconds"] for s in summaries if s is not None and "reused_from" not in s)


@dataclass(frozen=True)
class Graph:
    """Runs in the order of work, and for each cell's id the runs with its results."""

    nodes: tuple[Node, ...]
    of_cell: dict[str, tuple[Node, ...]]


def plan(cells: Sequence[Cell], oracles: int = 0, *, against_never_saw: bool = False) -> Graph:
    """The runs of the cells: finetune, retrain and local stages that several share are one run each.

    A method that goes with no finetune of another run does finetune in the run of unlearn. Of cells that differ in what
    is served of their shards alone the first trains, and the others measure its models.

    oracles: for each cell so many further retrained models, of the seeds that follow its own; against_never_saw: each
    model of an exact erasure is compared with that of a federation that never had the records.

    In the order of work a run that others wait for comes before one that nobody waits for, and those whose dependants
    are most come first; otherwise the order of the cells is kept. Where the seed is the first axis, all runs of a seed
    come before those of the next.
    """
    runs, of_cell = _Runs(), dict[str, tuple[Node, ...]]()
    for cell in cells:
        later = _without_base(cell.config)
        stages = [stage for stage in cell.stages if stage in (*BASE, UNLEARN)]
        config = replace(without_local(later), stages=stages)
        together = UNLEARN in stages and ANOTHER in not_with(later.unlearning.method)
        first = runs.trained(config, UNLEARN) if together else None
        apart = [stage for stage in cell.stages if stage in ALONE and not (stage == FINETUNE and together)]
        alone = {
            stage: runs.add(stage_config(later if i else cell.config, stage), stage) for i, stage in enumerate(apart)
        }
        results = tuple(alone.values())
        if UNLEARN in stages:
            needs = [node for stage, node in alone.items() if stage in BASE]
            if first is not None and FINETUNE in stages:
                needs.append(runs.add(stage_config(later, FINETUNE), FINETUNE, trained=first))
            seeds = range(config.seed + 1, config.seed + 1 + oracles)
            others = [runs.add(stage_config(replace(later, seed=seed), RETRAIN), RETRAIN) for seed in seeds]
            own = runs.add(config, UNLEARN, tuple(needs), tuple(others), trained=first)
            held = [runs.check(first or own)] if against_never_saw and replays(config.unlearning.method) else []
            results = (own, *held, *(node for stage, node in alone.items() if stage not in BASE))
            alone |= {node.stage: node for node in needs}
        for node in dict.fromkeys((*alone.values(), *results)):
            node.cells.append(cell)
        of_cell[cell.id] = results
    return Graph(runs.in_order(_seeds(cells)), of_cell)


def _seeds(cells: Sequence[Cell]) -> list[int]:
    """The seeds in their order where they are the first axis, else none."""
    first = [next(iter(cell.labels), "") for cell in cells]
    return list(dict.fromkeys(cell.config.seed for cell, axis in zip(cells, first, strict=True) if axis == SEED))


def _without_base(config: Config) -> Config:
    """The base model is the same for all stages of a cell: the first one has it measured, if it is wanted."""
    return replace(config, evaluation=replace(config.evaluation, base=False))


def _measured_at_ends(config: Config) -> bool:
    """Whether no model is measured but those at the ends of stages."""
    wanted = config.evaluation
    often = (wanted.every, wanted.every_training, wanted.at_start, wanted.after_unlearn, wanted.rebound.enabled)
    return not any(often)


class _Runs:
    """The runs of a suite, by their keys."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._training: dict[tuple[str, str], Node] = {}

    def add(
        self,
        config: Config,
        stage: str,
        needs: tuple[Node, ...] = (),
        oracles: tuple[Node, ...] = (),
        trained: Node | None = None,
    ) -> Node:
        """The run of a stage with this configuration; without `trained` that of an earlier one that trains it, or it
        trains itself."""
        own = identity(config)
        if oracles:
            own = hashlib.sha256("".join([own, *(oracle.hash for oracle in oracles)]).encode()).hexdigest()
        if stage != UNLEARN and trained is None:
            trained = self.trained(config, stage)
        node = Node(stage, own, config, needs, oracles, trained)
        if node.key not in self._nodes:
            self._nodes[node.key] = node
            if trained is None:
                self._training.setdefault(_training(config, stage), node)
        return self._nodes[node.key]

    def check(self, run: Node) -> Node:
        """What compares the models of an exact erasure with those of a federation that never had the records."""
        node = Node(NEVER_SAW, run.hash, run.config, checked=run)
        return self._nodes.setdefault(node.key, node)

    def trained(self, config: Config, stage: str) -> Node | None:
        """The run that trains what one with this configuration would, and serves another model; None where it is to do
        so itself."""
        first = self._training.get(_training(config, stage)) if _measured_at_ends(config) else None
        return None if first is None or first.config == config else first

    def in_order(self, seeds: Sequence[int]) -> tuple[Node, ...]:
        """The runs in the order of work; `seeds`: those of one come before those of the next."""
        nodes = list(self._nodes.values())
        before = {node.key: set(_before(node)) for node in nodes}
        waiting = {node.key: sum(node.key in others for others in before.values()) for node in nodes}
        block = {seed: place for place, seed in enumerate(seeds)}
        return tuple(sorted(nodes, key=lambda node: (block.get(node.config.seed, 0), -waiting[node.key])))


def _before(node: Node) -> Iterator[str]:
    """The keys of all runs that must be finished before it begins."""
    for need in node.after:
        yield need.key
        yield from _before(need)


def _training(config: Config, stage: str) -> tuple[str, str]:
    """What the rounds of a stage depend on: not on which model is served of several shards."""
    if config.federation.shards > 1:
        config = replace(config, federation=replace(config.federation, shard_merge=Federation().shard_merge))
    return stage, identity(config)
