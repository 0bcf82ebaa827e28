"""`Measure`: a family of metrics, what it needs, and what is made of its numbers; each measure's file derives one."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from oblivionis.runs.directory import RunDirectory, named_metrics

if TYPE_CHECKING:
    from evaluation.hook import EvaluationSession, Evaluator
    from evaluation.metrics.catalogue import Group, Metric
    from oblivionis.measures.context import Context

Part = Literal["questions", "prepared", "reference", "as_base", "oracle", "references"]
"""A field of `Context` that may be missing."""
StageMetrics = Mapping[str, MutableMapping[str, float]]
"""By stage, the metrics by their names."""


class Measure:
    """A family of metrics. A class has one instance, which keeps nothing of a run.

    What is heavy (torch, an evaluator's class) is imported inside the methods: commands that only print tables read the
    attributes.

    Parameters
    ----------
    name : str
        That of its file or folder in `oblivionis.measures`, and of its evaluator.

    Attributes
    ----------
    metrics : tuple of Metric
        What it measures: rows of the comparison, entries of the glossary, names and marks of suites. In all other
        places they are named `<name>_<key>`, TOFU's by their keys alone.
    order : int
        Its place among the measures, in the hook and in metrics.jsonl; the smaller the earlier.
    needs : tuple of Part
        Parts of the context without which (None or empty) it has nothing to evaluate.
    client_metrics : tuple of str
        How the keys begin that a client may report of its own records in an audit. Empty: none, and no client runs it;
        `("",)`: all. What compares with the retrained model is never reported.
    legend : str
        How to read its rows, printed below the comparison where there are any.
    others : Group or None
        Where the comparison has metrics that `metrics` cannot list, because settings name what is measured.
    """

    metrics: ClassVar[tuple[Metric, ...]] = ()
    order: ClassVar[int] = 100
    needs: ClassVar[tuple[Part, ...]] = ()
    client_metrics: ClassVar[tuple[str, ...]] = ()
    legend: ClassVar[str] = ""
    others: ClassVar[Group | None] = None

    def __init__(self, name: str) -> None:
        self.name = name

    @cached_property
    def catalogue(self) -> dict[str, Metric]:
        """Its metrics by the names that no two measures share."""
        return named_metrics(self.name, {metric.key: metric for metric in self.metrics})

    def prepare(self, context: Context) -> Any:
        """Make what it needs of the corpus, once before a model is loaded; afterwards it is `context.prepared`.

        Returns
        -------
        object or None
            None: it has nothing to ask.

        Raises
        ------
        OblivionisError
            For settings or data that do not fit.
        """
        return None

    def warnings(self, context: Context) -> list[str]:
        """Warn before a run, a sentence each, of what will be left out and why."""
        return []

    def measure_base(self, context: Context, session: EvaluationSession) -> Any:
        """Measure the base model, once before any training; afterwards the result is `context.reference`."""
        return None

    def evaluators(self, context: Context) -> list[Evaluator]:
        """What runs in the hook with the context's profile; nothing without what the measure needs."""
        return self.build(context) if all(getattr(context, part) for part in self.needs) else []

    def build(self, context: Context) -> list[Evaluator]:
        """As `evaluators`, where all that it needs is there; nothing where it is switched off."""
        return []

    def most_tokens(self, context: Context) -> int:
        """How many tokens its evaluators let the model generate at most, where that takes long."""
        return 0

    def to_log(self, details: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the per-question log of a stage keeps of its evaluator's details; all of them, unless overridden."""
        return {self.name: dict(details)} if details else {}

    def complete(self, run: RunDirectory, metrics: StageMetrics, convention: str, confidence: float) -> None:
        """Add to each stage's `metrics` what it could not know without the retrained model, from the logs of `run`.

        Parameters
        ----------
        run : RunDirectory
        metrics : StageMetrics
        convention : str
            Truth ratio, `evaluation.truth_ratio`.
        confidence : float in (0, 1)
            Of intervals.
        """
