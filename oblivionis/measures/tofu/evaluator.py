"""TOFU: probability, ROUGE-L recall and truth ratio on four question sets, model utility and forget quality."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from evaluation.metrics.catalogue import Group, Metric
from evaluation.metrics.rouge import left_out
from oblivionis.measures.base import Measure, StageMetrics
from oblivionis.naming import SETS

if TYPE_CHECKING:
    from evaluation.hook import Evaluator
    from oblivionis.measures.context import Context
    from oblivionis.runs.directory import RunDirectory

_GROUPS = {name: Group(title, place) for place, (name, title) in enumerate(SETS.items())}
_PROB = (
    "Length-normalised probability of the true answer, exp(−mean NLL per answer token), end token included; on real "
    "authors and world facts its share among the true and the perturbed answers. 0 to 1."
)
_ROUGE = (
    "Longest common subsequence of the greedy and the true answer over the length of the true one, in stemmed words. "
    "0 to 1. The paper's words are runs of Latin letters and digits; of texts in other letters there is none, unless "
    "`evaluation.rouge=any_script` takes the words of every script."
)
_TRUTH_RATIO = (
    "Mean of max(0, 1 − R), R = wrong/right: how much likelier the right answer is than the perturbed ones. 0 to 1; "
    "higher: the model knows more."
)
_FORGET_TRUTH_RATIO = (
    "Mean of min(R, 1/R) on the forget questions, R = wrong/right. 1: right and wrong answers are equally likely."
)
_FORGET_QUALITY = (
    "p-value of a two-sample Kolmogorov–Smirnov test between the truth ratios of this model and of the retrained one "
    "on the forget questions. Near 0: the two can be told apart. The retrained model against itself has 1."
)
_FORGET_KS = "Statistic of the test of the forget quality: largest distance of the two distributions. 0 to 1."
_STRENGTH = (
    "Share of the true answer's tokens that need not be given for the model to say the rest greedily (extraction "
    "strength). 0 to 1."
)
_MEMORISED = "Share of the true answer's tokens that are the likeliest given those before (exact memorisation). 0 to 1."
_UTILITY = (
    "Harmonic mean of Prob, ROUGE-L recall and truth ratio on retain, real authors and world facts; 0 as soon as one "
    "of the nine is 0."
)


def _of_set(name: str) -> list[Metric]:
    """The metrics of a question set."""
    forget, group = name == "forget", _GROUPS[name]
    direction = "oracle" if forget else "higher"
    drawn = name in ("forget", "retain")
    ratio = ("Forget truth ratio", _FORGET_TRUTH_RATIO) if forget else ("Truth ratio", _TRUTH_RATIO)
    return [
        Metric(f"{name}_prob", "Prob", direction, None, _PROB, group, drawn, headline=forget),
        Metric(f"{name}_rouge", "ROUGE-L recall", direction, None, _ROUGE, group, drawn, headline=drawn),
        Metric(f"{name}_truth_ratio", ratio[0], direction, None, ratio[1], group, drawn=forget),
        Metric(f"{name}_extraction_strength", f"{group.title} extraction strength", direction, None, _STRENGTH),
        Metric(f"{name}_exact_memorization", f"{group.title} exact memorisation", direction, None, _MEMORISED),
    ]


class Tofu(Measure):
    """Probability, ROUGE-L recall and truth ratio, model utility and forget quality."""

    order = 10
    needs = ("questions",)
    client_metrics = ("forget_", "retain_")
    metrics = (
        *_of_set("forget"),
        Metric(
            *("forget_quality", "Forget quality (KS p)", "higher", None, _FORGET_QUALITY, _GROUPS["forget"]),
            drawn=True,
            needs_oracle=True,
        ),
        Metric("forget_ks", "Forget quality (KS statistic)", "lower", None, _FORGET_KS, needs_oracle=True),
        *(metric for name in SETS if name != "forget" for metric in _of_set(name)),
        Metric(
            "model_utility",
            "Model utility",
            "higher",
            None,
            _UTILITY,
            Group("All but forget", 90),
            drawn=True,
            headline=True,
        ),
    )

    def build(self, context: Context) -> list[Evaluator]:
        """The questions of the profile; with the retrained model's log also the forget quality."""
        from evaluation.metrics.tofu import TofuEvaluator, truth_ratios

        convention = context.config.evaluation.truth_ratio
        ratios = None if context.oracle is None else truth_ratios(context.oracle, "forget", convention)
        return [
            TofuEvaluator(
                questions=context.questions,
                decode=context.decode,
                convention=convention,
                oracle=None if ratios is None else ratios.tolist(),
                profile=context.profile(),
                rouge=context.config.evaluation.rouge,
            )
        ]

    def most_tokens(self, context: Context) -> int:
        """A greedy answer to each question of the profile."""
        profile = context.profile()
        questions = sum(len(profile.pick(context.questions.get(name, ()))) for name in profile.sets)
        return questions * profile.max_new_tokens

    def warnings(self, context: Context) -> list[str]:
        """Which question sets have no ROUGE-L recall, because it cannot read their true answers."""

        profile = replace(context, full=True).profile()
        asked = {name: profile.pick(context.questions.get(name, ())) for name in profile.sets}
        return left_out(
            {SETS[name]: [q.text for q in of] for name, of in asked.items()}, context.config.evaluation.rouge
        )

    def to_log(self, details: Mapping[str, Any]) -> Mapping[str, Any]:
        """The log in the shape of TOFU's own, with the question ids under `ids`."""
        return {**details["log"], "ids": details["ids"]}

    def complete(self, run: RunDirectory, metrics: StageMetrics, convention: str, confidence: float) -> None:
        """The forget quality by the truth ratios in the logs; that of the retrained model itself is 1, the best."""
        oracle = _forget_ratios(run, "retrain", convention) if "retrain" in metrics else None
        if oracle is None:
            return
        from evaluation.metrics.tofu import forget_quality

        for stage, found in metrics.items():
            ratios = None if "forget_quality" in found else _forget_ratios(run, stage, convention)
            if ratios is not None:
                found["forget_quality"], found["forget_ks"] = forget_quality(ratios, oracle)


def _forget_ratios(run: RunDirectory, stage: str, convention: str) -> Any:
    """Truth ratios (n,) of a stage's forget questions; None when its log has none or holds a non-finite loss."""
    log = run.evaluation_log(stage)
    if log is None:
        return None
    from evaluation.metrics.tofu import truth_ratios

    try:
        return truth_ratios(log, "forget", convention)
    except ValueError:
        return None
