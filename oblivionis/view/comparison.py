"""Any runs side by side: which of them, in what stage, and what they measured and said."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from oblivionis.config.schema import Config
from oblivionis.errors import OblivionisError
from oblivionis.measures import registry
from oblivionis.naming import MODELS, SETS
from oblivionis.reports import run_summary as report
from oblivionis.runs.answers import Answer, answers, bare
from oblivionis.runs.directory import RunDirectory, named_metrics
from oblivionis.runs.run_status import Glance
from oblivionis.view import shell
from oblivionis.view.differences import best_of
from oblivionis.view.library import Library
from oblivionis.view.run_pages import config_of

MOST = 12
"""Most runs that letter, colour and marker can distinguish."""
DRAWN = ("forget_prob", "forget_rouge", "retain_prob", "retain_rouge")
GROUPS = {
    **SETS,
    "verbmem": "MUSE VerbMem",
    "knowmem_forget": "MUSE KnowMem, forget",
    "knowmem_retain": "MUSE KnowMem, retain",
}
"""The sets of questions that runs answer."""
FIRST, TRUTH = "first", "truth"


@dataclass(frozen=True)
class One:
    """A run that is compared: its letter and name."""

    letter: str
    name: str
    run: RunDirectory
    glance: Glance

    @functools.cached_property
    def config(self) -> Config:
        return config_of(self.run)

    @functools.cached_property
    def metrics(self) -> Mapping[str, Mapping[str, float]]:
        """Final metrics by stage; none where nothing follows from the run."""
        if self.glance.nothing:
            return {}
        evaluation = self.config.evaluation
        return report.stage_metrics(self.run, evaluation.truth_ratio, evaluation.membership.confidence)

    @functools.cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl, their metrics by names that no two evaluators share; likewise."""
        return [
            {**row, "metrics": named_metrics(row.get("evaluator", ""), row["metrics"])}
            for row in ([] if self.glance.nothing else self.run.metrics())
            if row.get("evaluator") != "federation"
        ]

    def log(self, stage: str) -> dict[str, Any] | None:
        """The answers of its model of a stage; likewise."""
        return None if self.glance.nothing else self.run.evaluation_log(stage)

    @property
    def label(self) -> str:
        return f"{self.letter}: {self.name}"


@dataclass(frozen=True)
class Comparison:
    """What is compared, and how. set: of questions; against: what answers are compared with; different: only questions
    that are not answered alike by all."""

    runs: tuple[One, ...]
    stage: str
    set: str
    against: str
    different: bool
    page: int
    metric: str

    @classmethod
    def of(cls, request: Request) -> Comparison:
        """As the address says. NotThere for a run that is none."""
        given = request.query_params
        library: Library = request.app.state.library
        names = list(dict.fromkeys(given.getlist("run")))
        if len(names) > MOST:
            raise OblivionisError(f"{len(names)} runs are too many to be told apart: choose {MOST} at most")
        runs = tuple(
            One(chr(ord("A") + place), name, library.run(name), library.glance(name))
            for place, name in enumerate(names)
        )
        finished = [s for s in ("unlearn", *MODELS) if any(s in one.glance.metrics for one in runs)]
        going = [one.glance.current.stage for one in runs if one.glance.current is not None]
        return cls(
            runs,
            given["stage"] if given.get("stage") in MODELS else (*finished, *going, "unlearn")[0],
            given["set"] if given.get("set") in GROUPS else "",
            TRUTH if given.get("against") == TRUTH or len(runs) < 2 else FIRST,
            given.get("different") == "1",
            shell.page_number(request),
            given.get("metric", ""),
        )

    @property
    def stages(self) -> list[str]:
        """The stages that a run has begun."""
        begun = {row["stage"] for one in self.runs for row in one.rows} | {s for one in self.runs for s in one.metrics}
        return [stage for stage in MODELS if stage in begun]

    def address(self, path: str = "/compare", **changes: str) -> str:
        """A page of the same comparison with other choices."""
        own = {
            "stage": self.stage,
            "set": self.set,
            "against": TRUTH if self.against == TRUTH and len(self.runs) > 1 else "",
            "different": "1" if self.different else "",
            "page": str(self.page) if self.page > 1 else "",
            "metric": self.metric,
        }
        return shell.address(path, [*(("run", one.name) for one in self.runs), *(own | changes).items()])

    def measured(self) -> list[str]:
        """The metrics that some run has of the stage, in the order of the comparison table; then the others."""
        found = {key for one in self.runs for key, v in one.metrics.get(self.stage, {}).items() if v is not None}
        known = [key for key in registry.catalogue() if key in found]
        return [*known, *sorted(found - set(known))]

    def values(self, metric: str) -> list[float | None]:
        """A final metric of the stage, run by run."""
        return [one.metrics.get(self.stage, {}).get(metric) for one in self.runs]

    def best(self, metric: str) -> frozenset[int]:
        """Which of them are best."""
        oracles = [one.metrics.get("retrain", {}).get(metric) for one in self.runs]
        return best_of(registry.catalogue().get(metric), self.values(metric), oracles)

    def drawn(self) -> list[str]:
        """The metrics whose curves are shown: those of the address, or the four that say most, as far as measured."""
        known = self.over_rounds()
        return [self.metric] if self.metric in known else [m for m in DRAWN if m in known] or known[:4]

    def over_rounds(self) -> list[str]:
        """The metrics that were measured at more than one time of the stage."""
        found: dict[str, int] = {}
        for one in self.runs:
            rows = [row for row in one.rows if row["stage"] == self.stage]
            for key in {key for row in rows for key in row["metrics"]}:
                times = len({(row["round"], row.get("moment")) for row in rows if row["metrics"].get(key) is not None})
                found[key] = max(found.get(key, 0), times)
        known = [key for key in registry.catalogue() if found.get(key, 0) > 1]
        return [*known, *sorted(key for key, times in found.items() if times > 1 and key not in known)]

    @functools.cached_property
    def said(self) -> dict[str, dict[str, list[Answer | None]]]:
        """The answers by question set and record id, run by run; sets that no run has are left out."""
        logs = [one.log(self.stage) for one in self.runs]
        found: dict[str, dict[str, list[Answer | None]]] = {}
        for name in GROUPS:
            of = [answers(log, name) for log in logs]
            if ids := dict.fromkeys(i for some in of for i in some):
                found[name] = {i: [some.get(i) for some in of] for i in ids}
        return found

    @property
    def shown_set(self) -> str:
        """The set whose answers are shown."""
        return self.set if self.set in self.said else next(iter(self.said), "")

    @functools.cached_property
    def wording(self) -> dict[str, str]:
        """The questions of the shown set by their prompts."""
        prompts = list(dict.fromkeys(question_of_row(row).prompt for row in self.said.get(self.shown_set, {}).values()))
        template = self.runs[0].config.model.template
        shown = bare(prompts) if template.kind == "chat" else [report.question_of(p, template) for p in prompts]
        return dict(zip(prompts, shown, strict=True))

    def questions(self) -> list[tuple[str, list[Answer | None]]]:
        """The questions that are wanted, with the answers run by run."""
        rows = self.said.get(self.shown_set, {}).items()
        return [(i, row) for i, row in rows if not self.different or len({_words(answer) for answer in row}) > 1]


def question_of_row(row: Sequence[Answer | None]) -> Answer:
    """An answer of a row: all are to the same question."""
    return next(answer for answer in row if answer is not None)


def _words(answer: Answer | None) -> tuple[str, ...]:
    return () if answer is None else tuple(answer.text.split())
