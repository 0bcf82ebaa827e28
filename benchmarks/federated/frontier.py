"""Cost against utility of a suite's methods: the points of its results, and their figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

import htpy as h
import pyarrow as pa

from benchmarks.federated import results
from benchmarks.federated.identity import FINETUNE, UNLEARN
from benchmarks.federated.matrix import SEED
from benchmarks.federated.serving import EQUAL, PROCESSOR
from benchmarks.federated.tables import title
from benchmarks.output.frontier import Point, in_words
from oblivionis.files import write_atomic
from oblivionis.measures import registry
from oblivionis.reports.markup import captioned

FILE = "frontier.svg"
VALUE = "model_utility"


def points(found: pa.Table, axes: Sequence[str]) -> list[Point]:
    """What each method's demands cost and left, means over the seeds; of methods of which all is known."""
    compared, values = [axis for axis in axes if axis != SEED], dict[str, dict[tuple[str, str], list[float]]]()
    for row in found.to_pylist():
        if row["status"] == results.DONE and row["value"] is not None:
            of = values.setdefault(" · ".join(title(row[axis]) for axis in compared), {})
            of.setdefault((row["stage"], row["metric"]), []).append(row["value"])
    all_points = []
    for label, of in values.items():
        cost, before, after = (of.get(key) for key in ((UNLEARN, PROCESSOR), (FINETUNE, VALUE), (UNLEARN, VALUE)))
        if cost and before and after:
            spread = stdev(after) if len(after) > 1 else 0.0
            all_points.append(Point(label, fmean(cost), fmean(before), fmean(after), spread, (UNLEARN, EQUAL) in of))
    return all_points


def figure(found: Sequence[Point], folder: Path) -> h.Element:
    """The figure of cost against utility, which is a file of its own, too."""
    from benchmarks.output import frontier_drawing  # matplotlib: a suite without the figure does without
    from oblivionis.reports.svg import svg_figure

    metric = registry.reader_name(VALUE)
    drawing = frontier_drawing.draw(found, "processor seconds of server and clients in a round with a demand", metric)
    write_atomic(folder / FILE, frontier_drawing.svg(drawing))
    caption = f"{in_words(found, 's')} Exact: equal, to the last bit, to a federation that never had the records."
    drawn = svg_figure(drawing, "frontier", f"{metric} against the cost of a demand", wide=True)
    return h.div[h.h3["Cost of a demand, and what is left"], captioned(drawn, caption)]
