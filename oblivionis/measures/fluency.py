"""Fluency: are the answers still language, or did unlearning leave gibberish behind?

Settings: `conf/evaluator/fluency.yaml`. Left out where nobody can say what the base model was: on a client whose model
is trained in full (`model.mode=full`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evaluation.metrics.catalogue import Group, Metric
from oblivionis.measures.base import Measure
from oblivionis.naming import SETS

if TYPE_CHECKING:
    from evaluation.hook import Evaluator
    from oblivionis.measures.context import Context

LIMITS = {
    "enabled": {"help": "Measure it."},
    "after_rounds": {"help": "After rounds, too, not only at a stage's end."},
    "quantile": {
        "help": "An answer is gibberish that the base model finds less likely, per token, than this share of the true "
        "answers.",
        "at_least": 0,
        "at_most": 1,
    },
}
_SETS = ("forget", "retain")


def _of_set(name: str, place: int) -> list[Metric]:
    group = Group(f"{SETS[name]}, fluency", place)
    return [
        Metric(
            f"{name}_nll",
            "NLL under the base model",
            "oracle",
            None,
            "Mean negative log-likelihood (nats per token) of the greedy answers under the base model before any "
            "training, without the end token. High: the base model does not take them for language.",
            group,
            most=None,
        ),
        Metric(
            f"{name}_gibberish",
            "Gibberish",
            "lower",
            None,
            "Share of greedy answers that the base model finds less likely, per token, than 95 % of the true answers "
            "(`evaluation.fluency.quantile`); an empty answer does not count as one. 0 to 1.",
            group,
        ),
        Metric(
            f"{name}_endless",
            "Answers without an end",
            "lower",
            None,
            "Share of greedy answers without an end token within the longest answer that was allowed. 0 to 1.",
            group,
        ),
    ]


class Fluency(Measure):
    """How likely the base model finds the greedy answers to forget and retain questions."""

    order = 70
    needs = ("as_base",)
    client_metrics = ("",)
    metrics = (
        *_of_set("forget", 60),
        *_of_set("retain", 61),
        Metric(
            *("threshold", "NLL from which an answer is gibberish", None, None),
            "The quantile `evaluation.fluency.quantile` of the true answers' negative log-likelihood under the base "
            "model, nats per token.",
            most=None,
        ),
    )
    legend = (
        "Fluency: the base model before any training judges the greedy answers. Gibberish: less likely to it, per "
        "token, than nearly all true answers; on forget rows, too, the fewer the better."
    )

    def build(self, context: Context) -> list[Evaluator]:
        """At a stage's end, after rounds where that is wanted: the forget and retain questions of the profile."""
        from evaluation.metrics.fluency import FluencyEvaluator

        settings, profile = context.settings, context.profile()
        wanted = settings["enabled"] and (context.full or settings["after_rounds"])
        asked = {name: profile.pick(context.questions.get(name, ())) for name in _SETS if name in profile.sets}
        if not wanted or not any(asked.values()):
            return []
        assert context.as_base is not None  # says `needs`
        return [FluencyEvaluator(asked, context.as_base, profile.max_new_tokens, settings["quantile"])]
