"""A suite's results held against earlier ones of the same suite, value by value."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
import pyarrow as pa

from benchmarks.federated import results
from benchmarks.federated.matrix import SEED
from benchmarks.federated.tables import OF_METHOD, title
from oblivionis.errors import RunError
from oblivionis.measures import registry
from oblivionis.reports.format import counted, fixed, number
from oblivionis.reports.table import Marked, Table

LEVEL = 0.05
Place = tuple[str, ...]
"""Labels of the axes, stage and metric; labels that a stage does not depend on are empty."""


@dataclass(frozen=True)
class Pair:
    """One measured value: means and sample variances over the seeds of both sides."""

    place: Place
    ours: np.ndarray
    theirs: np.ndarray

    @property
    def difference(self) -> float:
        return float(self.ours.mean() - self.theirs.mean())

    @property
    def same(self) -> bool:
        """Whether both sides have the same values."""
        return np.array_equal(np.sort(self.ours), np.sort(self.theirs))

    def margin(self) -> float:
        """Half the width of the 95 % interval around no difference; NaN where nothing says how far apart seeds lie.

        Student's for values of one distribution. Where both have several seeds, Welch's with the degrees of freedom of
        the smaller side, if that is wider: also for normal values of unequal variances it is too narrow in 5 % of the
        cases at most, which with Welch's own degrees of freedom are up to 12 % (2 and 20 seeds). Without any spread: 0
        where so many seeds divide that way in less than 5 % of all their divisions, else NaN.
        """
        from scipy.special import stdtrit  # Student's quantiles

        n, m = len(self.ours), len(self.theirs)
        if max(n, m) < 2:
            return math.nan
        if np.ptp(self.ours) == np.ptp(self.theirs) == 0:
            return 0.0 if LEVEL * math.comb(n + m, n) >= 2 else math.nan
        squares = [float(((side - side.mean()) ** 2).sum()) for side in (self.ours, self.theirs)]
        common = -float(stdtrit(n + m - 2, LEVEL / 2)) * math.sqrt(sum(squares) / (n + m - 2) * (1 / n + 1 / m))
        if min(n, m) < 2:
            return common
        error = math.sqrt(squares[0] / (n * (n - 1)) + squares[1] / (m * (m - 1)))
        return max(common, -float(stdtrit(min(n, m) - 1, LEVEL / 2)) * error)


@dataclass(frozen=True)
class Comparison:
    """The values that both have; `missing`, `extra`: how many only the reference, only the new results have; `failed`:
    what evaluators failed to measure, on either side."""

    axes: Sequence[str]
    pairs: Sequence[Pair]
    missing: int
    extra: int
    failed: Sequence[str] = ()

    def summary(self) -> str:
        """How many values differ, in one line."""
        differing = [pair for pair in self.pairs if not pair.same]
        count = counted(len(self.pairs), "value")
        parts = [f"{len(differing):,} of {count} differ" if differing else f"no difference in {count}"]
        if outside := self.outside(self.pairs):
            parts.append(f"{len(outside):,} of them by more than their margin")
        if self.missing or self.extra:
            parts.append(f"only the reference has {self.missing:,} values, only the new results {self.extra:,}")
        if self.failed:
            parts.append(f"not measured, the evaluator failed: {', '.join(self.failed)}")
        return "; ".join(parts)

    def table(self, *, full: bool = False) -> Table:
        """A row per stage and metric of which a value differs (full: of all): how far apart the values are, and how
        many lie outside their interval."""
        rows: list[Sequence[str] | None] = []
        by_metric: dict[tuple[str, str], list[Pair]] = {}
        for pair in self.pairs:
            by_metric.setdefault((pair.place[-2], pair.place[-1]), []).append(pair)
        if not full:
            by_metric = {of: pairs for of, pairs in by_metric.items() if not all(pair.same for pair in pairs)}
        order = list(registry.catalogue())
        stages = list(dict.fromkeys(stage for stage, _ in by_metric))
        for stage in stages:
            found = sorted((m for s, m in by_metric if s == stage), key=order.index)
            rows += [self._row(stage, metric, by_metric[stage, metric]) for metric in found]
            rows.append(None)
        heads = ["model", "metric", "values", "difference", "largest", "margin", "outside"]
        return Table(f"Beside the reference: {self.summary()}", heads, rows[:-1], self._note(), texts=2)

    def _row(self, stage: str, metric: str, pairs: Sequence[Pair]) -> Sequence[str]:
        differences = [pair.difference for pair in pairs]
        margins = [m for pair in pairs if not math.isnan(m := pair.margin())]
        outside = len(self.outside(pairs))
        shown = str(outside) if margins else "–"
        return [
            title(stage),
            registry.reader_name(metric),
            str(len(pairs)),
            f"{fmean(differences):+.3f}",
            fixed(max(map(abs, differences))),
            number(median(margins)) if margins else "–",
            Marked(shown, "bold") if outside else shown,
        ]

    @staticmethod
    def outside(pairs: Sequence[Pair]) -> list[Pair]:
        """The values that differ by more than their margin."""
        return [pair for pair in pairs if abs(pair.difference) > pair.margin()]

    def apart(self) -> Iterator[str]:
        """The values outside their interval, the farthest in margins first."""
        found = sorted(self.outside(self.pairs), key=lambda p: -abs(p.difference) / (p.margin() or 1e-300))
        for pair in found:
            labels = ", ".join(title(label) for label in pair.place[:-2] if label)
            name = registry.reader_name(pair.place[-1])
            ours, theirs = number(float(pair.ours.mean())), number(float(pair.theirs.mean()))
            value = f"{ours}, reference {theirs} ± {number(pair.margin())}"
            yield f"{labels}: {title(pair.place[-2]).lower()}, {name}: {value}"

    def _note(self) -> str:
        judged = [pair for pair in self.pairs if not math.isnan(pair.margin())]
        parts = [
            "Difference: new minus reference, the mean of the values; margin: half a 95 % interval over seeds, "
            "which are taken to vary normally."
        ]
        if judged:
            outside = len(self.outside(judged))
            parts.append(
                f"{outside} of {len(judged)} values lie outside their interval; where nothing differs, about "
                f"{LEVEL * len(judged):.0f} do by chance."
            )
        if len(judged) < len(self.pairs):
            parts.append(
                f"{len(self.pairs) - len(judged)} values were measured with one seed on both sides, or are the same "
                "for each of a few: nothing says how far apart two seeds are."
            )
        return " ".join(parts)


def compare(
    ours: pa.Table, axes: Sequence[str], theirs: pa.Table, their_axes: Sequence[str], metrics: Collection[str] = ()
) -> Comparison:
    """The values of two tables of results, matched by labels, stage and metric; seconds are not compared.

    metrics: these alone, where any are named.
    An axis that only one of them has must have a single label there. Raises RunError where it has more, and where
    nothing matches.
    """
    shared = [axis for axis in axes if axis in their_axes and axis != SEED]
    new = _values(ours, axes, shared, "these results", metrics)
    old = _values(theirs, their_axes, shared, "the reference", metrics)
    both = [place for place in old if place in new]
    if not both:
        raise RunError("the two results have no value in common: no cell with the same labels, stage and metric")
    pairs = [Pair(place, _array(new[place]), _array(old[place])) for place in both]
    failed = [f"{text} ({whose})" for table, whose in ((ours, "new"), (theirs, "reference")) for text in _failed(table)]
    return Comparison(shared, pairs, len(old) - len(both), len(new) - len(both), failed)


def _failed(table: pa.Table) -> list[str]:
    rows = [row for row in table.to_pylist() if row["status"] == results.NOT_MEASURED]
    return list(dict.fromkeys(f"{row['cell']}: {row['metric']} in {row['stage']}" for row in rows))


def _values(
    table: pa.Table, axes: Sequence[str], shared: Sequence[str], whose: str, metrics: Collection[str]
) -> dict[Place, dict[str, float]]:
    """By place, the value of every seed."""
    rows = [row for row in table.to_pylist() if row["status"] == results.DONE]
    for axis in axes:
        labels = {row[axis] for row in rows}
        if axis not in (*shared, SEED) and len(labels) > 1:
            raise RunError(f"{whose} vary {axis} ({', '.join(sorted(labels))}), and the other side does not")
    known = registry.catalogue()
    found: dict[Place, dict[str, float]] = {}
    for row in rows:
        metric = row["metric"]
        if metrics and metric not in metrics:
            continue
        if metric == results.SECONDS or metric not in known or known[metric].direction is None:
            continue
        if row["value"] is None or not math.isfinite(row["value"]):
            continue
        place = (*_labels(row, shared), row["stage"], metric)
        found.setdefault(place, {}).setdefault(row.get(SEED, ""), row["value"])
    return found


def _labels(row: Mapping[str, str], axes: Sequence[str]) -> Iterator[str]:
    """The row's labels; the method's is empty for a model that is the same whatever the method."""
    for axis in axes:
        of_method = axis.partition(".")[0] == "unlearning"
        yield "" if of_method and row["stage"] not in OF_METHOD else row[axis]


def _array(by_seed: Mapping[str, float]) -> np.ndarray:
    return np.asarray(list(by_seed.values()), dtype=np.float64)
