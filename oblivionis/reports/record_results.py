"""What a run's audits hold about single records, for pages and certificates."""

from __future__ import annotations

from typing import Any, TypedDict

from oblivionis.errors import FileError
from oblivionis.files import read_json, tell
from oblivionis.runs.directory import RunDirectory


class _Terms(TypedDict):
    alpha_per_question: float
    leaks_from: float


class _Sampled(TypedDict):
    id: str


class _Question(_Sampled, total=False):
    samples: int
    greedy: float
    mean: float
    ed: float
    m_mu: float
    m_bin: float | None
    mu_lower: float


class _Asked(TypedDict):
    questions: list[_Question]


class _LeakageAudit(_Asked, total=False):
    terms: _Terms


def leakage_audit(run: RunDirectory, stage: str) -> dict[str, Any] | None:
    """The latest readable leakage audit of a stage: its `terms` and `questions` among others; None without any.

    One that is damaged is named, with its place.
    """
    for folder in sorted((run.path / "audits").glob(f"leakage-{stage}-*"), reverse=True):
        try:
            return read_json(folder / "audit.json", _LeakageAudit)
        except FileNotFoundError:  # not finished
            continue
        except FileError as error:
            tell(f"{error}; this audit is left out")
    return None
