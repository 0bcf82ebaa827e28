"""The run directory of a node before its work begins."""

from __future__ import annotations

from pathlib import Path

from benchmarks.federated.graph import Node
from oblivionis.config import compose as configuration
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.reuse import import_updates, take_over


def prepare(node: Node, store: Path) -> RunDirectory:
    """The run directory of a node, with the stages that other runs have done for it."""
    run = node.run(store)
    if not (run.path / "config.yaml").is_file():
        run.path.mkdir(parents=True, exist_ok=True)
        run.write_config(configuration.to_yaml(node.settings(store)))
    with run.lock():
        for need in node.needs:
            source = need.run(store)
            import_updates(node.config, run, source)
            for stage in need.config.stages:
                if run.stage_summary(stage) is None:
                    take_over(run, source, stage)
    return run
