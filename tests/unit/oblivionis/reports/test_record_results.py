"""Which of a stage's leakage audits counts."""

from __future__ import annotations

from support.reports import make_run

from oblivionis.files import write_json
from oblivionis.reports.record_results import leakage_audit


def test_the_newest_readable_audit_of_the_stage_counts(tmp_path, capsys):
    run, _ = make_run(tmp_path)
    assert leakage_audit(run, "unlearn") is None
    for name in ("leakage-unlearn-0001", "leakage-unlearn-0003", "leakage-finetune-0009"):
        write_json(run.path / "audits" / name / "audit.json", {"questions": [{"id": name}]})
    (run.path / "audits" / "leakage-unlearn-0007").mkdir()
    damaged = run.path / "audits" / "leakage-unlearn-0005" / "audit.json"
    damaged.parent.mkdir()
    damaged.write_text("{")
    assert leakage_audit(run, "unlearn") == {"questions": [{"id": "leakage-unlearn-0003"}]}
    assert "leakage-unlearn-0005" in capsys.readouterr().err
