"""Probabilistic leakage (Scholten et al. 2025): answers to forget questions are sampled, bounds say what they leak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evaluation.leakage import functions
from evaluation.leakage.functions import Asked
from evaluation.metrics.catalogue import Group, Metric
from oblivionis import seeds
from oblivionis.measures.base import Measure

if TYPE_CHECKING:
    from evaluation.hook import Evaluator
    from evaluation.metrics.tofu import Question
    from oblivionis.data.records import Record
    from oblivionis.measures.context import Context

KEPT = ("m_bin", "mu_lower", "mu_upper", "mean", "std", "greedy")
_GROUP = Group("Forget, sampled", 10)


def _profile(context: Context) -> tuple[int | None, int]:
    """How many questions (None: all) and samples of each the profile of the context has."""
    settings = context.config.evaluation.leakage
    return (settings.full_questions, settings.full_samples) if context.full else (settings.questions, settings.samples)


def of_records(context: Context, prompted: Sequence[tuple[Record, Question]]) -> list[Evaluator]:
    """As `Leakage.build`, of these records alone."""
    from evaluation.engine.sampling import Rule
    from evaluation.leakage.evaluator import LeakageEvaluator, Prompted
    from evaluation.leakage.summary import Terms

    settings = context.config.evaluation.leakage
    _, samples = _profile(context)
    if not samples or not prompted:
        return []
    return [
        LeakageEvaluator(
            [Prompted(Asked(r.id, r.question, r.answer), question.prompt) for r, question in prompted],
            context.decode,
            functions.get(settings.function),
            samples,
            Terms(alpha=settings.alpha, rho=settings.rho, leaks_from=settings.leaks_from, limit=settings.limit),
            Rule(settings.temperature, settings.top_p, settings.top_k, settings.confidence),
            settings.max_new_tokens,
            seeds.derive(context.config.seed, "leakage"),
        )
    ]


def by_question(details: Mapping[str, Any], samples: float) -> dict[str, dict[str, float]]:
    """By question id its leakage and bounds on it, those of `KEPT`, and the number of `samples`."""
    columns = details.get("columns", {})
    return {
        i: {**{name: columns[name][place] for name in KEPT}, "samples": samples}
        for place, i in enumerate(details.get("ids", ()))
    }


class Leakage(Measure):
    """Leakage of sampled answers to forget questions."""

    order = 30
    needs = ("questions",)
    client_metrics = ("",)
    metrics = (
        Metric(
            "mean",
            "Mean leakage",
            "oracle",
            None,
            "Mean ROUGE-L recall (or `evaluation.leakage.function`) of randomly sampled answers to forget questions. "
            "0 to 1.",
            _GROUP,
            drawn=True,
            headline=True,
        ),
        Metric(
            "ed",
            "ED score",
            "oracle",
            None,
            "Mean leakage plus rho times its standard deviation over the samples of a question, averaged over "
            "questions.",
            _GROUP,
            most=None,
        ),
        Metric(
            "m_mu",
            "Bound on mean leakage (M_μ)",
            "oracle",
            None,
            "Upper bound on the expected leakage of a question that holds with probability 1 − alpha, averaged over "
            "questions. Fewer samples make it looser.",
            _GROUP,
        ),
        Metric(
            "m_bin_share",
            "Questions that may leak (M_bin)",
            "oracle",
            None,
            "Share of forget questions for which the probability of a leaking answer (leakage of at least "
            "`leaks_from`) is not certified to be below `limit`.",
            _GROUP,
        ),
        Metric("std", "Deviation of leakage", "oracle", None, "Standard deviation over a question's samples."),
        Metric(
            "max", "Largest leakage", "oracle", None, "Largest leakage among the samples of a question, their mean."
        ),
        Metric("mu_lower", "Mean leakage at least", "oracle", None, "Lower of two bounds on the expected leakage."),
        Metric("mu_upper", "Mean leakage at most", "oracle", None, "Upper of two bounds on the expected leakage."),
        Metric(
            *("m_sigma", "Bound on the deviation (M_σ)", "oracle", None),
            "Upper bound on the deviation of a question's leakage (probability 1 − alpha), averaged over questions.",
        ),
        Metric(
            *("m_bin", "Bound on leaking answers (M_bin)", "oracle", None),
            "Upper bound on the probability that a sampled answer leaks (probability 1 − alpha), averaged over "
            "questions.",
        ),
        Metric("greedy", "Leakage of greedy answers", "oracle", None, "Mean leakage of the greedy answers. 0 to 1."),
        Metric(
            "greedy_share", "Greedy answers that leak", "oracle", None, "Share of greedy answers that leak. 0 to 1."
        ),
        Metric(
            *("diversity", "Diversity of samples", "higher", None),
            "One less the self-BLEU of a question's sampled answers, averaged over questions. 0: all alike.",
        ),
        Metric(
            "samples",
            "Samples per question",
            None,
            None,
            "Answers that were sampled for each question.",
            most=100_000.0,
            whole=True,
        ),
        Metric(
            "questions",
            "Sampled questions",
            None,
            None,
            "Forget questions that answers were sampled for.",
            most=None,
            whole=True,
        ),
    )

    def build(self, context: Context) -> list[Evaluator]:
        """The forget questions of the profile; nothing where it samples nothing."""
        from oblivionis.measures.questions import spread

        questions = context.questions.get("forget", ())
        records = context.corpus.evaluation["forget"] if questions else ()
        prompted = list(zip(records, questions, strict=True))
        return of_records(context, spread(prompted, _profile(context)[0]))

    def most_tokens(self, context: Context) -> int:
        """All samples of each question of the profile."""
        count, samples = _profile(context)
        forget = len(context.questions.get("forget", ()))
        return (
            min(forget, forget if count is None else count) * samples * context.config.evaluation.leakage.max_new_tokens
        )

    def to_log(self, details: Mapping[str, Any]) -> Mapping[str, Any]:
        """The bounds of each question, by id."""
        return {self.name: by_question(details, details["samples"])} if "samples" in details else {}
