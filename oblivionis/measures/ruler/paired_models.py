"""The finetuned and the retrained model that RULER's Lens 1 compares with, and its diagnostic before unlearning."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from evaluation.ruler.evaluator import Embedded, References, lens_1, lens_2
from evaluation.ruler.rank_significance import RankTest, rank_test
from evaluation.ruler.statistics import signed_rank
from oblivionis.config.schema import Config
from oblivionis.errors import RunError
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.progress import Events
from oblivionis.runs.saved_representations import read_states, states_path, write_states

if TYPE_CHECKING:
    from torch import nn


class Embeds(Protocol):
    """Reads representations: an assessor."""

    @property
    def manifest_hash(self) -> str: ...

    @property
    def ruler_ids(self) -> tuple[list[str], list[str]] | None: ...

    def embed(self, vector: np.ndarray) -> Embedded: ...


PAIR = ("finetune", "retrain")
"""The stages whose representations Lens 1 compares with: the original model and the oracle."""


def keep_states(run: RunDirectory, stage: str, embedded: Embedded | None, config: Config, fingerprint: str) -> None:
    """Keep the representations of the final model of finetune or retrain; nothing where RULER was left out."""
    if stage in PAIR and embedded is not None:
        write_states(run, stage, embedded, config, config.seed, fingerprint)


def check_layer(model: nn.Module, config: Config) -> None:
    """RunError when the model does not have the decoder layer that `evaluation.ruler.layer` names."""
    settings = config.evaluation.ruler
    if settings.enabled and settings.layer is not None:
        from evaluation.engine.models import layer_index

        try:
            layer_index(model, settings.layer)
        except ValueError as error:
            raise RunError(f"evaluation.ruler.layer: {error}; null takes what enters the language-model head") from None


def check_pair(run: RunDirectory, config: Config, fingerprint: str) -> None:
    """RunError when the finetuned model and the oracle are not of one seed and one base model, or files disagree.

    Reads the stages that are finished, and those that will run with `config`.
    """
    if not config.evaluation.ruler.enabled:
        return
    origins = {stage: origin for stage in PAIR if (origin := _origin(run, stage, config, fingerprint)) is not None}
    for stage in origins:
        states = read_states(run, stage) if run.stage_summary(stage) is not None else None
        if states is not None and (states.seed, states.fingerprint) != origins[stage]:
            raise RunError(
                f"{states_path(run, stage)} belongs to {_in_words((states.seed, states.fingerprint))}, but the stage "
                f"{stage} to {_in_words(origins[stage])}; delete the file, and it is computed anew"
            )
    if len(origins) == len(PAIR) and origins["finetune"] != origins["retrain"]:
        raise RunError(
            f"{run.path}: the finetuned model has {_in_words(origins['finetune'])}, the retrained one "
            f"{_in_words(origins['retrain'])}. RULER compares the two record by record, which means nothing unless "
            "both start from the same; retrain with the same seed and base model, or set evaluation.ruler.enabled=false"
        )


def _origin(run: RunDirectory, stage: str, config: Config, fingerprint: str) -> tuple[int, str] | None:
    """Seed and base model of a stage that is finished or will be run; None for a stage that is neither."""
    summary = run.stage_summary(stage)
    if summary is not None:
        return summary.get("seed", config.seed), summary.get("fingerprint", fingerprint)
    return (config.seed, fingerprint) if stage in config.stages else None


def _in_words(origin: tuple[int, str]) -> str:
    return f"seed {origin[0]} and the base model {origin[1][:12]}"


def references(
    run: RunDirectory, config: Config, assessor: Embeds, events: Events, keep_as: str | None = None
) -> References | None:
    """What Lens 1 compares with; None without a finished finetune and retrain stage, or where RULER is left out."""
    if assessor.ruler_ids is None or any(run.stage_summary(stage) is None for stage in PAIR):
        return None
    original, oracle = (stage_states(run, stage, config, assessor, events, keep_as) for stage in PAIR)
    return References(original, oracle)


def stage_states(
    run: RunDirectory, stage: str, config: Config, assessor: Embeds, events: Events, keep_as: str | None = None
) -> Embedded:
    """The representations of the final model of a finished stage: at least of all records that either profile asks.

    Those that the stage did not keep, or took otherwise, are computed from its last checkpoint, and kept with `keep_as`
    as the fingerprint of the base model. RunError where that checkpoint does not fit the assessor's model.
    """
    states = read_states(run, stage)
    if states is None:
        why = "it kept none"
    elif not states.taken_as(config):
        why = "it took them from other tokens or another layer"
    elif assessor.ruler_ids is not None and not states.embedded.covers(*assessor.ruler_ids):
        why = "it kept none of some records that are asked here"
    else:
        return states.embedded
    if run.environment().get("manifest_hash", assessor.manifest_hash) != assessor.manifest_hash:
        raise RunError(
            f"RULER: {run.path} has no fitting representations of its stage {stage} ({why}), and other parameters than "
            "this run, so that they cannot be computed here: run that stage anew with these evaluation.ruler settings"
        )
    events.note(f"RULER: computing representations from the last checkpoint of {stage} in {run.path} ({why})")
    embedded = assessor.embed(run.load_checkpoint(stage).vector)
    if keep_as is not None:
        seed = (run.stage_summary(stage) or {}).get("seed", config.seed)
        write_states(run, stage, embedded, config, seed, keep_as)
    return embedded


def lens_1_of_pair(references: References, model: Embedded, config: Config) -> dict[str, dict[str, float]]:
    """Lens 1 of the original model and of the oracle itself, on the records of `model`, by stage.

    Where the unlearned model comes from, and what it would have if it lay where the oracle does.
    """
    ids = (model.forget_ids, model.retain_ids)
    pair = {"finetune": references.original.take(*ids), "retrain": references.oracle.take(*ids)}
    return {s: lens_1(e, references, config.evaluation.ruler.retain_sample) for s, e in pair.items()}


@dataclass(frozen=True)
class Before:
    """The forget records' mean rank in the base model and in the finetuned one; p_moved: do the two differ?

    p_moved: two-sided Wilcoxon signed-rank test of the ranks, paired by record.
    """

    base: RankTest
    finetuned: RankTest
    p_moved: float

    def facts(self) -> dict[str, Any]:
        """As plain values for the stage's summary."""
        return {"base": rank_facts(self.base), "finetuned": rank_facts(self.finetuned), "p_moved": self.p_moved}


def measure_before(assessor: Embeds, base: Embedded, finetuned: Embedded) -> Before:
    """The diagnostic before unlearning: are the forget records memorised at all? On what either profile asks."""
    assert assessor.ruler_ids is not None
    first, second = (lens_2(e.take(*assessor.ruler_ids)).ranks for e in (base, finetuned))
    return Before(rank_test(first), rank_test(second), signed_rank(second, first).p)


def rank_facts(test: RankTest) -> dict[str, Any]:
    """A rank test as plain values; what is not finite is null."""
    return {k: v if np.isfinite(v) else None for k, v in asdict(test).items()}
