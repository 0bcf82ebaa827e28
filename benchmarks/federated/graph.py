"""Which runs a suite needs, which of them its cells share, and in which order they are best done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.federated.identity import ALONE, BASE, UNLEARN, identity, stage_config
from benchmarks.federated.matrix import Cell, identifier
from oblivionis.config.schema import Config
from oblivionis.runs.directory import RunDirectory


@dataclass(eq=False)
class Node:
    """One run of the store, `stage` the last of its stages; `needs` are runs whose stages it takes over.

    cells: those that it serves.
    """

    stage: str
    hash: str
    config: Config
    needs: tuple[Node, ...] = ()
    cells: list[Cell] = field(default_factory=list)

    @property
    def key(self) -> str:
        """The name of its folder in the store."""
        return f"{self.stage}-{self.hash[:20]}"

    @property
    def label(self) -> str:
        """The stage, and the labels that its cells have in common."""
        first, *others = [cell.labels for cell in self.cells]
        common = {axis: label for axis, label in first.items() if all(other[axis] == label for other in others)}
        return f"{self.stage} {identifier(common)}".rstrip()

    def run(self, store: Path) -> RunDirectory:
        """Its run directory, which need not exist."""
        return RunDirectory(store / self.key)

    def finished(self, store: Path) -> bool:
        """Whether all stages of its configuration are complete."""
        run = self.run(store)
        return all(run.stage_summary(stage) is not None for stage in self.config.stages)


@dataclass(frozen=True)
class Graph:
    """Runs in the order of work, and for each cell's id the runs with its results."""

    nodes: tuple[Node, ...]
    of_cell: dict[str, tuple[Node, ...]]


def plan(cells: Sequence[Cell]) -> Graph:
    """The runs of the cells: finetune, retrain and local stages that several share are one run each.

    In the order of work a run that others wait for comes before one that nobody waits for, and those whose dependants
    are most come first; otherwise the order of the cells is kept.
    """
    nodes: dict[str, Node] = {}
    of_cell: dict[str, tuple[Node, ...]] = {}
    for cell in cells:
        alone = {
            stage: _node(nodes, stage_config(cell.config, stage), stage) for stage in cell.stages if stage in ALONE
        }
        results = tuple(alone.values())
        if UNLEARN in cell.stages:
            needs = tuple(node for stage, node in alone.items() if stage in BASE)
            config = replace(cell.config, stages=[stage for stage in cell.stages if stage in (*BASE, UNLEARN)])
            own = _node(nodes, config, UNLEARN, needs)
            results = (own, *(node for stage, node in alone.items() if stage not in BASE))
        for node in dict.fromkeys((*alone.values(), *results)):
            node.cells.append(cell)
        of_cell[cell.id] = results
    waiting = {key: sum(node in other.needs for other in nodes.values()) for key, node in nodes.items()}
    order = sorted(nodes.values(), key=lambda node: -waiting[node.key])
    return Graph(tuple(order), of_cell)


def _node(nodes: dict[str, Node], config: Config, stage: str, needs: tuple[Node, ...] = ()) -> Node:
    node = Node(stage, identity(config), config, needs)
    return nodes.setdefault(node.key, node)
