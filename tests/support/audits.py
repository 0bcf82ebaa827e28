"""Shared by tests: see `test_request_from_audit`."""

from oblivionis.audits.people_outcomes import (
    PersonAudit,
    Phrasing,
)
from oblivionis.files import write_json


def phrasings(*strengths):
    """A phrasing for each z*, None where the fact is not memorised in it."""
    return tuple(Phrasing(f"t{i}", s is not None, s, 1 if s else 5, "Oslo") for i, s in enumerate(strengths))


def audit_of(run, people, stage="finetune", against=None):
    return PersonAudit(
        model=f"{stage} of a run",
        run=None if run is None else str(run.path),
        stage=stage,
        round=2,
        fingerprint="f" * 64,
        adapter="a" * 64,
        seed=0,
        settings={"phrasings": "records"},
        versions={"oblivionis": "0"},
        subjects_file=None,
        against=against,
        against_stage=None if against is None else "finetune",
        skipped=(),
        people=tuple(people),
        time=1.0,
        seconds=2.0,
    )


def write(audit, folder):
    write_json(folder / "audit.json", audit.to_json())
    return folder
