"""RULER: where forgotten records lie among the model's representations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from evaluation.engine.sequences import TokenSequence
from evaluation.metrics.catalogue import Group, Metric
from evaluation.ruler.evaluator import LEAST_RETAIN, Answered, RulerEvaluator
from oblivionis.measures.base import Measure, StageMetrics
from oblivionis.runs.directory import RunDirectory, named_metrics

if TYPE_CHECKING:
    from evaluation.hook import Evaluator
    from evaluation.ruler.evaluator import Answered, RulerEvaluator
    from oblivionis.measures.context import Context

_GROUP = Group("Forget, RULER", 20)


def of_both_profiles(context: Context) -> RulerEvaluator | None:
    """What reads the records that either profile asks, without references; None where they are too few."""
    light, full = (_records(replace(context, full=full)) for full in (False, True))
    forget, retain = (list({r.id: r for r in (*b, *a)}.values()) for a, b in zip(light, full, strict=True))
    found = _reading(replace(context, references=None), forget, retain)
    return found[0] if found else None


def _records(context: Context) -> tuple[list[Answered], list[Answered]]:
    """The forget and retain records that a profile asks, with their true answers."""

    profile = context.profile()
    forget, retain = (
        [Answered(q.id, TokenSequence(q.prompt, q.answer)) for q in profile.pick(context.questions.get(name, ()))]
        if name in profile.sets
        else []
        for name in ("forget", "retain")
    )
    return forget, retain


def _reading(context: Context, forget: list[Answered], retain: list[Answered]) -> list[RulerEvaluator]:
    """RULER on these records, none where it is switched off or they are too few."""

    settings = context.config.evaluation.ruler
    if not settings.enabled or not forget or len(retain) < LEAST_RETAIN:
        return []
    known = context.references
    return [RulerEvaluator(forget, retain, settings.pooling, settings.layer, known, settings.retain_sample)]


class Ruler(Measure):
    """Mean rank, S_gap, S_oracle and S_shift of forget records."""

    order = 20
    client_metrics = ("",)
    metrics = (
        Metric(
            "mean_rank",
            "Mean rank",
            "oracle",
            0.5,
            "RULER without an oracle: how near a forget record lies to its nearest retained record, as a percentile of "
            "how near retained records lie to their nearest other one, averaged over the forget records. 0.5: they "
            "blend in; above: residual memorisation; below: pushed too far. Compare with the retrained model: some "
            "data are not at 0.5 by themselves.",
            _GROUP,
            drawn=True,
        ),
        Metric(
            "gap",
            "S_gap",
            "oracle",
            0.0,
            "RULER beside the retrained model: mean cosine of the forget records' representations in the two models "
            "less the median cosine of the retained ones. Negative: residual memorisation; positive: over-correction.",
            _GROUP,
            needs_oracle=True,
            least=None,
            most=None,
        ),
        Metric(
            "oracle_similarity",
            "S_oracle",
            "higher",
            None,
            "Mean cosine of the forget records' representations in this model and in the retrained one. Near 1: they "
            "lie where the retrained model has them.",
            _GROUP,
            needs_oracle=True,
            least=None,
            most=None,
        ),
        Metric(
            "shift",
            "S_shift",
            "higher",
            None,
            "S_oracle less that of the finetuned model. Positive: unlearning moved the forget records towards the "
            "retrained model; in the column of the retrained model stands what there was to gain.",
            _GROUP,
            needs_oracle=True,
            least=None,
            most=None,
        ),
    )
    legend = (
        "RULER: where the forget records lie among the model's representations. Mean rank above 0.5: residual "
        "memorisation, below: pushed away. S_gap below 0: they lie less as in the retrained model than retained "
        "records do, still memorised or, with S_shift below 0, pushed elsewhere."
    )

    def prepare(self, context: Context) -> None:
        """Refuse a layer that the model does not have. Raises RunError."""
        from oblivionis.measures.ruler.paired_models import check_layer

        check_layer(context.assembled.model, context.config)

    def build(self, context: Context) -> list[Evaluator]:
        """The records of the profile, with Lens 1 where there are references; none where they are too few."""
        return list(_reading(context, *_records(context)))

    def to_log(self, details: Mapping[str, Any]) -> Mapping[str, Any]:
        """The percentile ranks of the forget records by id."""
        return {self.name: dict(zip(details["ids"], details["ranks"], strict=True))}

    def complete(self, run: RunDirectory, metrics: StageMetrics, convention: str, confidence: float) -> None:
        """Lens 1 of the finetuned and of the retrained model, from the summary of unlearn."""
        known = (run.stage_summary("unlearn") or {}).get("ruler", {}).get("lens_1", {})
        for stage in metrics.keys() & known.keys():
            metrics[stage].update(named_metrics(self.name, known[stage]))

    def warnings(self, context: Context) -> list[str]:
        """Which profiles leave RULER out for want of records; nothing where it is switched off."""
        if not context.config.evaluation.ruler.enabled or context.corpus.is_text:
            return []
        warnings = []
        for name, full in (("light", False), ("full", True)):
            forget, retain = _records(replace(context, full=full))
            if not _reading(context, forget, retain):
                asks = f"evaluation.{name} asks {len(forget)} forget and {len(retain)} retain questions"
                warnings.append(f"RULER is left out where {asks}: it takes 1 and 2 at least")
        return warnings
