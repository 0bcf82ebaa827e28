"""The checkpoint that a user names, by a run or by a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from oblivionis.config import compose as configuration
from oblivionis.config.schema import Config
from oblivionis.errors import RunError
from oblivionis.models.fingerprint import fingerprint_model
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import Checkpoint, RunDirectory, read_checkpoint


def find_checkpoint(
    target: Path, stage: str | None, overrides: Sequence[str]
) -> tuple[RunDirectory, Checkpoint, Config, str]:
    """A run's final model of `stage` (None: of its last finished stage), or a checkpoint file of a run.

    `overrides` change the run's own configuration, which is returned with the base model's fingerprint. Raises RunError
    when there is no such checkpoint, the base model is another one than the run's, or the run not as its ledger says.
    """
    if target.is_file():
        checkpoint = read_checkpoint(target)
        folders = target.resolve().parents
        if len(folders) < 3 or not (folders[2] / "config.yaml").is_file():
            raise RunError(f"{target} does not lie in a run directory, under checkpoints/<stage>/; expected it there")
        run = artifact_binding.opened(folders[2])
    else:
        run = artifact_binding.opened(target)
        finished = [s for s in ("finetune", "retrain", "unlearn") if run.stage_summary(s) is not None]
        if stage is None and not finished:
            raise RunError(f"{target}: no stage is finished yet; name one with --stage to measure its last checkpoint")
        checkpoint = run.load_checkpoint(stage or finished[-1])
    config = configuration.compose(run.path / "config.yaml", list(overrides), unlearns=False)
    expected = run.environment().get("fingerprint")
    actual = fingerprint_model(config.model)
    if expected and actual != expected:
        raise RunError(
            f"the base model {config.model.source!r} is not the run's: {actual[:12]}, expected {expected[:12]}"
        )
    return run, checkpoint, config, actual
