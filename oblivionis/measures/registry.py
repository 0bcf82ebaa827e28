"""The measures, found by their files, and their metrics by name."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from evaluation.metrics.catalogue import Metric
from oblivionis.config import extension_traits
from oblivionis.measures.base import Measure

OF_STAGES = (
    Metric(
        "seconds",
        "Seconds",
        "lower",
        None,
        "Wall-clock seconds of the stage with its evaluations, on the machine named in the report; since the last "
        "resume, where the run was interrupted.",
        most=None,
    ),
)
"""What is known of a stage without any measure."""


@cache
def measures() -> Mapping[str, Measure]:
    """The measures by name, in the order in which they run."""
    found = [_class_of(name)(name) for name in extension_traits.names("evaluator")]
    return {measure.name: measure for measure in sorted(found, key=lambda measure: (measure.order, measure.name))}


def _class_of(name: str) -> type[Measure]:
    """The class derived from `Measure` in the file of that name, or in `evaluator.py` in the folder."""
    inside = extension_traits.code_files("evaluator", name)[0].name == extension_traits.IN_FOLDER
    module = importlib.import_module(f"{__package__}.{name}{'.evaluator' if inside else ''}")
    classes = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Measure)]
    (found,) = (value for value in classes if value.__module__ == module.__name__)
    return found


def names() -> tuple[str, ...]:
    """The names of the measures in the order in which they run."""
    return tuple(measures())


def run_by_clients() -> tuple[str, ...]:
    """The measures that a client runs in an audit: those that it may report something of."""
    return tuple(name for name, measure in measures().items() if measure.client_metrics)


@cache
def catalogue() -> Mapping[str, Metric]:
    """Every metric by the name that no two measures share, in the order of the comparison table; then the others."""
    found: dict[str, Metric] = {}
    for measure in measures().values():
        found |= measure.catalogue
    found |= {metric.key: metric for metric in OF_STAGES}
    return dict(sorted(found.items(), key=lambda item: item[1].group.place if item[1].group else 1 << 30))


def _owner(key: str) -> Measure | None:
    """The measure that declares the metric `key`, or else has others and begins its name; None where there is none."""
    declaring = [measure for measure in measures().values() if key in measure.catalogue]
    open_ended = [m for m in measures().values() if m.others is not None and key.startswith(f"{m.name}_")]
    return next(iter([*declaring, *open_ended]), None)


def evaluator_of(key: str) -> str:
    """The measure whose evaluator has the metric `key`; empty where none has."""
    owner = _owner(key)
    return "" if owner is None else owner.name


def not_measured(key: str, stage: str, failed: Collection[tuple[str, str]]) -> bool:
    """Whether a metric of the model of `stage` is missing because an evaluator failed.

    Parameters
    ----------
    key : str
        The metric.
    stage : str
        The stage whose last model it is about.
    failed : collection of (stage, evaluator)
        The evaluators that failed at the end of a stage. A metric that compares with the retrained model is missing as
        well where its evaluator failed there.
    """
    owner, metric = evaluator_of(key), catalogue().get(key)
    compares = metric is not None and metric.needs_oracle
    return (stage, owner) in failed or (compares and ("retrain", owner) in failed)


def among(measured: Collection[str]) -> dict[str, Metric]:
    """The `measured` metrics that are known: those of the catalogue in its order, then those of `Measure.others`."""
    found = {key: metric for key, metric in catalogue().items() if key in measured}
    for name, measure in measures().items():
        for key in measured if measure.others is not None else ():
            if key.startswith(f"{name}_") and key not in found:
                found[key] = Metric(key, key.removeprefix(f"{name}_"), None, None, measure.legend, measure.others)
    return found


def reader_name(key: str) -> str:
    """What readers call a metric where it stands alone: its title, after its group where others bear the same.

    A metric that is not in the catalogue keeps its key.
    """
    metric = catalogue().get(key)
    if metric is None:
        return key
    alone = sum(other.label == metric.label for other in catalogue().values()) == 1
    return metric.title if alone or metric.group is None else f"{metric.group.title} {metric.title}"


def reported_by_clients() -> frozenset[str]:
    """The metrics that a client may report of its own records."""
    return frozenset(
        key
        for measure in measures().values()
        for key, metric in measure.catalogue.items()
        if metric.key.startswith(measure.client_metrics) and not metric.needs_oracle
    )


def legends(measured: Collection[str]) -> list[str]:
    """How to read the rows of the comparison that have one of the `measured` metrics, in the order of the rows."""
    owners = [_owner(key) for key, metric in among(measured).items() if metric.group is not None]
    return [legend for legend in dict.fromkeys(owner.legend for owner in owners if owner is not None) if legend]


def to_log(name: str, details: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the per-question log keeps of the details of the evaluator `name`."""
    return measures().get(name, Measure(name)).to_log(details)
