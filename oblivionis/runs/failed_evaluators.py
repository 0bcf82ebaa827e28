"""Evaluators that failed in a run: what was not measured, and why.

A failure is a row of metrics.jsonl with `error` in the place of metrics. A later row of the same evaluator about the
same model supersedes it, as when a resumed run repeats an evaluation.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from evaluation.hook import EvaluationError
from oblivionis.errors import NotMeasured, OblivionisError
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.progress import MOMENTS, Events

END = "end"
"""The moment of a stage's last evaluation: its figures are those of the tables."""
NAMED = 5
LONGEST = 300
logger = logging.getLogger("oblivionis")


@dataclass(frozen=True, slots=True)
class Failure:
    """An evaluator that failed.

    Parameters
    ----------
    stage : str
        Of the model that was to be measured.
    round : int
        After which it was to be measured; of the stage `local` the client.
    moment : str
        As in metrics.jsonl; `end` is the evaluation whose figures the tables show.
    evaluator : str
        Its name.
    reason : str
        Why, in one line.
    """

    stage: str
    round: int
    moment: str
    evaluator: str
    reason: str

    @property
    def final(self) -> bool:
        """Whether figures are missing from the tables because of it."""
        return self.moment == END

    def as_text(self) -> str:
        """One line that says what failed, where and why."""
        unit = "client" if self.stage.startswith("local") else "round"
        moment = MOMENTS.get(self.moment, f" ({self.moment})")
        return f"{self.evaluator} in {self.stage}, {unit} {self.round}{moment}: {self.reason}"


def failures(run: RunDirectory) -> list[Failure]:
    """The failures of a run that no later evaluation made good, in the order in which they happened."""
    latest: dict[tuple[str, int, str, str], str] = {}
    for row in run.metrics():
        key = (row["stage"], row["round"], row.get("moment", ""), row.get("evaluator", ""))
        latest.pop(key, None)
        if row.get("error"):
            latest[key] = one_line(str(row["error"]))
    return [Failure(*key, reason) for key, reason in latest.items()]


def one_line(text: str) -> str:
    """`text` as one printable line of at most LONGEST characters."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1].rstrip()}…"


def reason_of(error: Exception) -> str:
    """An exception in one line."""
    return one_line(f"{type(error).__name__}: {error}")


def check_measured(run: RunDirectory) -> None:
    """Say at the end of a command that evaluators failed.

    Raises
    ------
    NotMeasured
        With the failures of the run and what helps; not where there are none.
    """
    found = failures(run)
    if found:
        stages = dict.fromkeys(f.stage for f in found if f.final and run.stage_summary(f.stage))
        place = shlex.quote(str(run.path))
        again = " · ".join(f"oblivionis evaluate {place} --stage {s}" for s in stages if not s.startswith("local"))
        raise not_measured([f.as_text() for f in found], f"measure again: {again}" if again else "")


def not_measured(found: Sequence[str], more: str = "") -> NotMeasured:
    """The error that names what failed, a text for each."""
    head = "1 evaluation failed" if len(found) == 1 else f"{len(found)} evaluations failed"
    rest = f"; and {len(found) - NAMED} more" if len(found) > NAMED else ""
    tail = f"; {more}" if more else ""
    return NotMeasured(f"{head}, all else is kept: {'; '.join(found[:NAMED])}{rest}{tail}")


@contextmanager
def measuring(what: str, more: str) -> Iterator[None]:
    """A command that measures one thing: an exception inside becomes one line, with what helps.

    Raises
    ------
    NotMeasured
        For any exception but those that say already what to do.
    """
    try:
        yield
    except OblivionisError:
        raise
    except Exception as error:
        logger.debug("%s failed", what, exc_info=True)
        raise not_measured([f"{what}: {reason_of(error)}"], more) from error


def row_of(stage: str, server_round: int, moment: str, evaluator: str, error: str) -> dict[str, Any]:
    """A row of metrics.jsonl that tells of a failure."""
    head = {"stage": stage, "round": server_round, "moment": moment, "evaluator": evaluator}
    return {**head, "metrics": {}, "error": error, "time": time.time()}


def warn(events: Events, failed: Mapping[str, str]) -> None:
    """Tell of evaluators that failed, by name why, while the run goes on."""
    for name, reason in failed.items():
        events.warning(f"{name} failed: {one_line(reason)}")


@contextmanager
def recorded(
    run: RunDirectory, events: Events, stage: str, server_round: int, moment: str, evaluator: str, *, strict: bool
) -> Iterator[None]:
    """Inside, an exception is a failure of `evaluator`: a row says so, a warning tells it, and the run goes on.

    What the user is to mend, an interruption and, with `strict`, everything passes through.
    """
    try:
        yield
    except (OblivionisError, EvaluationError):
        raise
    except Exception as error:
        if strict:
            raise
        logger.debug("%s failed", evaluator, exc_info=True)
        run.append_metrics([row_of(stage, server_round, moment, evaluator, reason_of(error))])
        warn(events, {evaluator: reason_of(error)})
