"""`suite.html` of a suite, and its figure: the AUC of every metric in each state. Needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import htpy as h
import matplotlib
from matplotlib.figure import Figure

from benchmarks.meta.models import JUDGED, MODELS, STATES
from benchmarks.meta.settings import Settings
from benchmarks.meta.verdicts import Verdict
from oblivionis.files import write_atomic
from oblivionis.reports.markup import captioned, contents, facts_list, html_page, section_heading, with_code
from oblivionis.reports.svg import FIGURE_STYLE, INK, svg_figure
from oblivionis.reports.table import Table
from oblivionis.version import __version__

FILE = "suite.html"
FIGURE = Path("figures") / "auc.svg"
_COLOURS = ("tab:blue", "tab:orange", "tab:green")


def write(settings: Settings, tables: Sequence[Table], found: Sequence[Verdict], folder: Path) -> Path:
    """Write `figures/auc.svg` and `suite.html`, which needs no network; returns the latter's path."""
    buffer = io.StringIO()
    with matplotlib.rc_context({**FIGURE_STYLE, "text.color": "black"}):
        figure(found, "black").savefig(buffer, format="svg", metadata={"Date": None})
    write_atomic(folder / FIGURE, buffer.getvalue())
    title, config = settings.title or folder.name, settings.configuration(settings.seeds[0])
    count = len(settings.seeds)
    facts = {
        "Federations": f"{count}, seeds {', '.join(map(str, settings.seeds))}",
        "Models": f"{count * len(MODELS)} trained, {count * len(JUDGED)} judged in {len(STATES)} states",
        "Clients": f"{config.federation.clients}, {config.federation.rounds.finetune} rounds",
        "Records": f"{config.data.authors} authors with {config.data.questions_per_author} questions, "
        f"{config.data.forget_authors} to forget",
        "Attacks": f"{config.attack.quantisers[0]}; {config.attack.relearn.steps[0]} updates on "
        f"{config.attack.relearn.records} retain records",
        "Program": f"oblivionis {__version__}",
    }
    drawing = svg_figure(figure(found, INK), "auc", "AUC of every metric in each state", wide=True)
    parts = [
        h.h1[title],
        [h.p[with_code(text)] for text in settings.description.split("\n\n") if text],
        contents(["run", "figure", "results"]),
        section_heading("run", "What was run"),
        facts_list([*facts.items()]),
        section_heading("figure", "Figure"),
        captioned(drawing, "AUC for “knows” against all models that do not know, with its interval. Dashed: chance."),
        section_heading("results", "Results"),
        [table.html() for table in tables],
    ]
    path = folder / FILE
    write_atomic(path, html_page(title, parts))
    return path


def figure(found: Sequence[Verdict], ink: str) -> Figure:
    """A line per metric, a dot with its interval per state; families apart."""
    places, families = [], {}
    for verdict in found:
        places.append((places[-1] if places else -1) + (1 if verdict.judge.family in families else 1.8))
        families.setdefault(verdict.judge.family, places[-1])
    with matplotlib.rc_context(FIGURE_STYLE):
        drawing = Figure(figsize=(7.6, 0.6 + 0.19 * len(found)), layout="constrained")
        axes = drawing.subplots()
        for number, (state, colour) in enumerate(zip(STATES, _COLOURS, strict=True)):
            shown = [(p + 0.22 * (number - 1), v.aucs[number]) for p, v in zip(places, found, strict=True)]
            shown = [(place, e) for place, e in shown if e.value == e.value]
            ends = [[max(0.0, e.value - e.low) for _, e in shown], [max(0.0, e.high - e.value) for _, e in shown]]
            axes.errorbar(
                *([e.value for _, e in shown], [place for place, _ in shown]),
                xerr=ends, fmt="o", markersize=3, linewidth=1, color=colour, label=state,
            )  # fmt: skip
        axes.axvline(0.5, color=ink, linewidth=0.8, linestyle="--")
        axes.set_yticks(places, [verdict.judge.label for verdict in found], fontsize=7)
        axes.set_ylim(places[-1] + 0.8, places[0] - 1.2)
        for family, place in families.items():
            axes.text(0.0, place - 0.65, family, fontsize=7, weight="bold", transform=axes.get_yaxis_transform())
        axes.set_xlim(-0.03, 1.03)
        axes.set_xlabel("AUC for “knows”")
        axes.grid(axis="x", color="0.5", alpha=0.25, linewidth=0.6)
        drawing.legend(loc="outside upper right", ncols=len(STATES), frameon=False)
    return drawing
