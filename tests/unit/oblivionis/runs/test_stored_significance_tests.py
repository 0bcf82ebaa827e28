"""Figures of a run that are kept: computed once from the same stages, anew from others, and never wrong."""

import json
import math

from support.reports import log_of, make_run

from oblivionis.measures.ruler import report as ruler_report
from oblivionis.reports import run_summary, verdicts
from oblivionis.runs import stored_significance_tests as module
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.stored_significance_tests import FILE, kept


def counted(value):
    calls = []

    def compute():
        calls.append(value)
        return value

    return compute, calls


def test_what_follows_from_the_same_stages_is_computed_once(tmp_path):
    run, _ = make_run(tmp_path)
    compute, calls = counted({"a": [0.1 + 0.2, 1e-300, None, 3]})
    assert kept(run, "x", compute, "geometric") == kept(run, "x", compute, "geometric") == calls[0]
    assert len(calls) == 1
    kept(run, "x", compute, "arithmetic")
    kept(run, "y", compute, "arithmetic")
    assert len(calls) == 3 and set(json.loads((run.path / FILE).read_text())) >= {"x", "y"}


def test_other_stages_logs_or_programs_are_computed_anew(tmp_path, monkeypatch):
    run, _ = make_run(tmp_path)
    compute, calls = counted(1.5)
    kept(run, "x", compute)
    log = run.path / "evaluations" / "unlearn.json"
    log.write_text(log.read_text().replace("Vell", "Ost"))
    kept(run, "x", compute)
    run.finish_stage("local", {"stage": "local", "metrics": {}}, None)
    kept(run, "x", compute)
    monkeypatch.setattr(module, "__version__", "another")
    kept(run, "x", compute)
    assert len(calls) == 4


def test_a_file_that_is_torn_or_foreign_costs_a_computation(tmp_path):
    run, _ = make_run(tmp_path)
    for text in ("{", "[]", '{"x": 3}', '{"x": {"of": "y"}}', '{"x": {"value": 7}}'):
        (run.path / FILE).write_text(text)
        compute, calls = counted(2.5)
        assert kept(run, "x", compute) == 2.5 and len(calls) == 1


def test_what_is_no_json_is_computed_each_time(tmp_path):
    run, _ = make_run(tmp_path)
    compute, calls = counted([math.inf])
    assert kept(run, "x", compute) == kept(run, "x", compute) == [math.inf] and len(calls) == 2


def test_a_report_is_the_same_from_what_is_kept(tmp_path):
    run, config = make_run(tmp_path)
    (run.path / FILE).unlink(missing_ok=True)
    convention = config.evaluation.truth_ratio

    def figures():
        return (
            run_summary.stage_metrics(run, convention),
            verdicts.find_verdicts(run, convention),
            ruler_report.after_unlearning(run),
        )

    computed = figures()
    assert set(json.loads((run.path / FILE).read_text())) == {"metrics", "verdicts", "rank"}
    assert figures() == computed and computed[0]["finetune"]["forget_quality"] > 0 and computed[1]
    (run.path / FILE).unlink()
    assert figures() == computed


def test_the_same_file_in_another_folder_is_another_run(tmp_path):
    found = []
    for folder in ("stages", "evaluations"):
        run = RunDirectory.create(tmp_path / folder, "run")
        (run.path / folder).mkdir(exist_ok=True)
        (run.path / folder / "a.json").write_text("{}")
        found.append(module.key_of(run, ()))
    assert found[0] != found[1]


def test_a_run_that_is_only_looked_at_is_not_written_to(tmp_path):
    made, _ = make_run(tmp_path)
    run = RunDirectory(made.path, read_only=True)
    compute, calls = counted(2)
    assert kept(run, "x", compute) == kept(run, "x", compute) == 2
    assert len(calls) == 2 and not (run.path / FILE).exists()


def test_what_was_kept_for_another_name_stays(tmp_path):
    run, _ = make_run(tmp_path)
    assert [kept(run, name, lambda value=value: value) for name, value in (("x", 1), ("y", None), ("x", 3))] == [
        1,
        None,
        1,
    ]
    entries = json.loads((run.path / FILE).read_text())
    assert {name: entry["value"] for name, entry in entries.items()} == {"x": 1, "y": None}


def test_a_run_that_cannot_be_written_to_is_computed_each_time(tmp_path):
    run, _ = make_run(tmp_path)
    (run.path / FILE).mkdir()
    compute, calls = counted(2)
    assert kept(run, "x", compute) == 2 and len(calls) == 1


def test_other_settings_are_computed_anew(tmp_path):
    """Of the intervals of membership, which depend on the confidence, and of truth ratios by either convention."""
    run, _ = make_run(tmp_path, logs=membership_log)
    wide, narrow = (run_summary.stage_metrics(run, "geometric", confidence) for confidence in (0.99, 0.5))
    low = "membership_auc_loss_difference_low"
    assert wide["unlearn"][low] < narrow["unlearn"][low]
    other = run_summary.stage_metrics(run, "arithmetic", 0.5)
    assert other["finetune"]["forget_quality"] != narrow["finetune"]["forget_quality"]


def membership_log(stage):
    at = {"finetune": 2.0, "unlearn": 1.0, "retrain": 0.0}[stage]
    members = {f"m{i}": i + at * (i % 3) for i in range(10)}
    others = {f"o{i}": i + 0.5 for i in range(10)}
    return log_of(stage) | {"membership": {"loss": {"members": members, "others": others}}}
