"""Start a run from the finished stages of another one: many unlearning runs then share one finetune and one retrain."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from oblivionis.chain import HASH, PREV, Chain
from oblivionis.config import compose as configuration
from oblivionis.config.configuration_layers import differences
from oblivionis.config.schema import Config
from oblivionis.errors import RunError
from oblivionis.files import link_or_copy, read_lines
from oblivionis.runs import artifact_binding
from oblivionis.runs.ancestry import descents, note_descent
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.progress import Events
from oblivionis.runs.saved_representations import copy_states
from oblivionis.runs.updates import UPDATES, open_stores

REUSABLE = ("finetune", "retrain")
_JUDGED = ("verified", "verification_failed")
"""Lines of a ledger that say what a model was found to know."""


def import_stages(config: Config, run: RunDirectory, fingerprint: str, events: Events) -> None:
    """Copy the final checkpoint, summary and log of finished finetune and retrain stages from `config.start_from`.

    Refuses (RunError) a source whose base model, data, seed, clients, strategy or training differ: the result would
    not be what the configuration says; or one without the clients' updates of finetune that `config` needs.
    """
    source = artifact_binding.opened(_source(config))
    missing = [stage for stage in REUSABLE if run.stage_summary(stage) is None]
    stages = [stage for stage in missing if source.stage_summary(stage) is not None]
    _require_same(config, source, stages, fingerprint)
    note_descent(run, descents(source).get("finetune"))
    import_updates(config, run, source)
    for stage in stages:
        take_over(run, source, stage)
        events.note(f"{stage}: taken from {source.path}")


def check_source(config: Config) -> None:
    """Refuse (RunError) a `start_from` that was edited, or made with other settings, before a model is loaded."""
    source = artifact_binding.opened(_source(config))
    _require_same(config, source, [stage for stage in REUSABLE if source.stage_summary(stage) is not None])


def _source(config: Config) -> Path:
    return Path(str(config.start_from)).expanduser()


def _require_same(config: Config, source: RunDirectory, stages: Sequence[str], fingerprint: str | None = None) -> None:
    """RunError where `stages` of `source` are not what `config` says; fingerprint: that of its base model, if known."""
    theirs = configuration.from_yaml(source.read_config(), source.config_place)
    different = [*differing(config, theirs), *differing_rounds(config, theirs, stages)]
    if fingerprint not in (None, source.environment().get("fingerprint")):
        different.append("the base model's fingerprint")
    if different:
        raise RunError(f"start_from: {source.path} was made with other settings: {'; '.join(different)}")


def take_over(run: RunDirectory, source: RunDirectory, stage: str) -> None:
    """Copy the final checkpoint, metrics, log and summary of a finished stage of `source` that fits `run`."""
    artifact_binding.take_over(run, source, stage)
    run.save_checkpoint(source.load_checkpoint(stage), keep=1)
    run.append_metrics([r for r in source.metrics() if r["stage"] == stage])
    summary = {**(source.stage_summary(stage) or {}), "reused_from": str(source.path)}
    copy_states(source, run, stage)
    artifact_binding.finish_stage(run, stage, summary, source.evaluation_log(stage))


def adopt_rounds(run: RunDirectory, source: RunDirectory, stage: str) -> None:
    """Take over a finished stage of a run that trains as `run` does and serves another model of its shards.

    That is its last model, its rounds and, of unlearn, its requests and what it stores of rounds. The stage is left as
    if `run` had broken off before it measured that model: it does so when it goes on.
    """
    if run.checkpoint_rounds(stage):
        return
    artifact_binding.take_over(run, source, stage)
    run.append_metrics([r for r in source.metrics() if (r["stage"], r["evaluator"]) == (stage, "federation")])
    if stage == "unlearn":
        shutil.rmtree(run.path / UPDATES, ignore_errors=True)
        shutil.copytree(source.path / UPDATES, run.path / UPDATES, copy_function=_linked)
        lines = [line for line in read_lines(source.ledger_path) if "id" in line and line["event"] not in _JUDGED]
        known = {line["id"] for line in run.lines("submitted")}
        kept = [{k: v for k, v in line.items() if k not in (HASH, PREV)} for line in lines if line["id"] not in known]
        Chain(run.ledger_path).append(kept)
    run.save_checkpoint(source.load_checkpoint(stage), keep=1)


def _linked(source: str, target: str) -> None:
    """A file that is never changed as a link, a list of them as a copy."""
    (link_or_copy if source.endswith(".safetensors") else shutil.copyfile)(Path(source), Path(target))


def import_updates(config: Config, run: RunDirectory, source: RunDirectory) -> None:
    """Take over the clients' updates of a finetune stage that is to be reused. RunError when some are missing."""
    ours, theirs = (open_stores(config, path, "finetune") for path in (run.path, source.path))
    if run.stage_summary("finetune") or not source.stage_summary("finetune"):
        return
    check_updates(config, source)
    for own, their in zip(ours, theirs, strict=True):
        own.adopt(their)


def check_updates(config: Config, source: RunDirectory) -> None:
    """Raise RunError if `source` has not all updates of its stage finetune that `config` needs for unlearning."""
    stores = open_stores(config, source.path, "finetune")
    if missing := next(filter(None, (store.missing() for store in stores)), ""):
        raise RunError(
            f"start_from: {source.path} does not hold {missing}, which this run needs. Make a "
            "run that keeps them and serves no request yet, with 'stages=[finetune,retrain]' "
            f"unlearning={config.unlearning.method} unlearning.updates.every={config.unlearning.updates.every} and "
            "otherwise the same settings, and start from that"
        )


def differing(ours: Config, theirs: Config, free: Collection[str] = ()) -> list[str]:
    """Settings that influence finetune and retrain, or their evaluation, and differ, with both values.

    free: sections that may differ.
    """
    return differences(_counted(theirs, free), _counted(ours, free))


def differing_rounds(ours: Config, theirs: Config, stages: Sequence[str]) -> list[str]:
    """Of which of these stages the numbers of rounds differ, with both."""
    was, now = (
        {f"federation.rounds.{stage}": getattr(config.federation.rounds, stage) for stage in stages}
        for config in (theirs, ours)
    )
    return differences(was, now)


def _counted(config: Config, free: Collection[str]) -> dict[str, Any]:
    """The settings of `config` by their paths, or those of their sections, that the two stages depend on."""
    drawn = ["clients", "fraction_train", "min_clients", "sampling", "candidates"]
    if config.federation.sampling == "available":
        drawn.append("available_within")
    dealt = ("shards", "shard_merge", "shard_placement", "likely_to_ask")
    waited = ("deadline", "oversample", "buffer", "simulated_seconds")
    trained = ("compression", "local_epochs", "max_update_norm", "max_weight_share")
    tree = dataclasses.asdict(config)
    tree["model"]["lora"].pop("unlearning_rank")
    tree["federation"]["compression"].pop("unlearning")
    for name in ("server_state_on_unlearn", "server_state_from_finetune"):
        tree["strategy"].pop(name)
    paths = [f"federation.{name}" for name in (*drawn, *dealt, *waited, *trained)]
    paths += ["data", "training", "seed", "model", "strategy", "privacy.level", "evaluation.full", "evaluation.rouge"]
    parts = [(path, *path.partition(".")) for path in paths if path not in free]
    return {path: tree[section][name] if name else tree[section] for path, section, _, name in parts}
