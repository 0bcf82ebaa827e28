"""The evaluators of a run, one file each; to add one is to add a file.

A module of this package stands for one evaluator and bears its name. It defines

- `METRICS: tuple[Metric, ...]`, what it measures: from them are made the comparison on the terminal and in
  `report.html`, the glossary, and the names and marks of suites. Elsewhere they are named `<evaluator>_<key>`, TOFU's
  by their keys alone (`runs.directory.named_metrics`);
- `build(context: Context) -> list[Evaluator]`: what runs in the hook with the configured profile, nothing where it is
  left out.

It may also define

- `ORDER`: its turn in the hook and in metrics.jsonl, the smaller the earlier (default: 100);
- `LEGEND`: how to read its rows, printed below the comparison where there are any;
- `OTHERS: Group`: where the comparison has metrics that METRICS cannot list, because settings name what is measured;
- `prepare(context) -> Any`: what it needs of the corpus, made once before any model is loaded; `build` finds it as
  `context.prepared`. None: it has nothing to ask. Raises OblivionisError for settings or data that do not fit;
- `measure_base(context, session) -> Any`: what it measures once of the base model before any training; `build` finds
  it as `context.reference`;
- `lacks(context) -> list[str]`: warnings before a run that it will be left out, and why;
- `CLIENT_METRICS: tuple[str, ...]`: beginnings of the keys that a client may tell of its own records in an audit
  (default: none, and no client runs it; `("",)`: all); what needs the retrained model never is;
- `to_log(details) -> Mapping[str, Any]`: what the per-question log of a stage keeps of its details (default: all of
  them, under the evaluator's name).

A module takes what is heavy (torch, an evaluator's class) inside these functions: commands that only print tables read
its METRICS.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from evaluation.metrics.catalogue import Metric
from oblivionis.config import extension_traits
from oblivionis.runs.directory import named_metrics

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
"""What is known of a stage without any evaluator."""


@cache
def names() -> tuple[str, ...]:
    """The evaluators in the order in which they run."""
    found = extension_traits.names("evaluator")
    return tuple(sorted(found, key=lambda name: (getattr(module(name), "ORDER", 100), name)))


def module(name: str) -> Any:
    """The module of an evaluator."""
    spec = importlib.util.find_spec(f"{__package__}.{name}")
    assert spec is not None, name
    return importlib.import_module(f"{spec.name}.evaluator" if spec.submodule_search_locations else spec.name)


def run_by_clients() -> tuple[str, ...]:
    """The evaluators that a client runs in an audit: those that it may tell something of."""
    return tuple(name for name in names() if getattr(module(name), "CLIENT_METRICS", ()))


@cache
def catalogue() -> Mapping[str, Metric]:
    """Every metric by the name that no two evaluators share, in the order of the comparison table; then the others."""
    found: dict[str, Metric] = {}
    for name in names():
        found |= named_metrics(name, {metric.key: metric for metric in module(name).METRICS})
    found |= {metric.key: metric for metric in OF_STAGES}
    return dict(sorted(found.items(), key=lambda item: item[1].group.place if item[1].group else 1 << 30))


def _owners() -> Mapping[str, str]:
    return {
        key: name for name in names() for key in named_metrics(name, {metric.key: 0 for metric in module(name).METRICS})
    }


def evaluator_of(key: str) -> str:
    """The evaluator that measures the metric `key`; empty where none does."""
    if (known := _owners().get(key)) is not None:
        return known
    return next((n for n in names() if hasattr(module(n), "OTHERS") and key.startswith(f"{n}_")), "")


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
    """The `measured` metrics that are known: those of the catalogue in its order, then evaluators' OTHERS."""
    found = {key: metric for key, metric in catalogue().items() if key in measured}
    for name in names():
        group = getattr(module(name), "OTHERS", None)
        for key in measured if group is not None else ():
            if key.startswith(f"{name}_") and key not in found:
                found[key] = Metric(key, key.removeprefix(f"{name}_"), None, None, module(name).LEGEND, group)
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
    """The metrics that a client may tell of its own records."""
    found: dict[str, Metric] = {}
    for name in names():
        starts = getattr(module(name), "CLIENT_METRICS", ())
        mine = [m for m in module(name).METRICS if m.key.startswith(starts) and not m.needs_oracle]
        found |= named_metrics(name, {metric.key: metric for metric in mine})
    return frozenset(found)


def legends(measured: Collection[str]) -> list[str]:
    """How to read the rows of the comparison that have one of the `measured` metrics, in the order of the rows."""
    shown = {key: metric for key, metric in among(measured).items() if metric.group is not None}
    owner = _owners()
    found = dict.fromkeys(
        getattr(module(owner[key]), "LEGEND", "") if key in owner else metric.meaning for key, metric in shown.items()
    )
    return [legend for legend in found if legend]


def to_log(name: str, details: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the per-question log keeps of an evaluator's details."""
    own = getattr(module(name), "to_log", None) if name in names() else None
    return own(details) if own is not None else {name: dict(details)} if details else {}
