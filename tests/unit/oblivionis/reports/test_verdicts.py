"""Over-unlearned, still known, near or undecided: where a run says it."""

import io
import json
import math
import re

import numpy as np
import pytest
from rich.console import Console
from support.reports import Page, log_of, make_run, summary

from evaluation.metrics.membership import ATTACKS
from evaluation.metrics.retrained_comparison import OVER_UNLEARNED, Verdict
from evaluation.metrics.tofu import truth_ratios
from oblivionis.measures.membership import report as membership_report
from oblivionis.reports import run_summary as report
from oblivionis.reports import verdicts

QUESTIONS = 10


def losses(probabilities):
    return [-math.log(p) for p in probabilities]


OTHERS = [0.16, 0.21, 0.24, 0.19, 0.2, 0.18, 0.22, 0.17, 0.23, 0.25]


def test_the_outcome_counts_two_sided_tests():
    """By hand: twice the smaller of the one-sided p-values, at most 1."""
    tests = verdicts.p_values(
        {"prob": Verdict(0.2, 0.2, 0.03, 0.98, 20), "truth_ratio": Verdict(1, 1, 0.9, 0.6, 20)}, {}
    )
    assert tests == {verdicts.TITLES["prob"]: 0.06, verdicts.TITLES["truth_ratio"]: 1.0}
    assert not verdicts.telling(tests)


def test_too_few_records_for_a_test_of_membership_are_told():
    both = {"unlearn": {"membership_auc_loss": 0.9}, "retrain": {"membership_auc_loss": 0.4}}
    (line,) = membership_report.sentences(both)
    assert line.startswith("Membership: too few records to test the difference") and "takes 8 to be forgotten" in line
    assert membership_report.sentences({"unlearn": both["unlearn"], "retrain": {}}) == []
    assert membership_report.sentences({"unlearn": both["unlearn"]}) == []


@pytest.mark.parametrize(("tests", "least"), [(1, 6), (2, 7), (3, 7), (4, 8), (9, 9)])
def test_nothing_is_said_by_tests_that_so_few_questions_could_not_pass(tests, least):
    """n differences of one sign have the two-sided p-value 2^(1 − n), and each of N tests is asked for 0.05/N."""
    attacks = [f"membership_auc_{x}" for x in ATTACKS]
    others = dict.fromkeys([f"{x}_p" for x in attacks][: max(0, tests - 3)], 0.5)
    quality = {"forget_quality": 0.5} if tests > 2 else {}
    metrics = {"unlearn": {**others, **quality}, "retrain": dict.fromkeys(attacks, 0.5)}
    for questions in (least - 1, least):
        found = dict.fromkeys(["prob", "truth_ratio"][: min(tests, 2)], Verdict(0.2, 0.2, 0.5**questions, 1, questions))
        known = verdicts.p_values(found, metrics)
        assert len(known) == (tests if questions == least else 0)
        assert len(verdicts.telling(known)) == len(found) * (questions == least)


def run_with(folder, factor, *, ratio=1.0, questions=QUESTIONS, stages=("finetune", "retrain", "unlearn"), edit=None):
    """A run whose unlearned model has `factor` times the retrained one's probabilities and 1/R `ratio` times its."""

    def logs(stage):
        log = log_of(stage)
        mine = {"unlearn": factor, "finetune": 4.0}.get(stage, 1.0)
        right = {"unlearn": ratio, "finetune": 2.5}.get(stage, 1.0)
        section = {
            "avg_gt_loss": losses(mine * p for p in OTHERS[:questions]),
            "avg_paraphrased_loss": [1.0 + p - math.log(right) for p in OTHERS[:questions]],
            "average_perturb_loss": [[1.0, 1.2]] * questions,
        }
        log["eval_log_forget"] = {k: {str(i): x for i, x in enumerate(v)} for k, v in section.items()}
        log["ids"]["eval_log_forget"] = [f"r{i}" for i in range(questions)]
        if edit is not None:
            edit(stage, log)
        return log

    return make_run(folder, stages, logs=logs)


def flat(text):
    return " ".join(text.split())


def test_over_unlearned_is_named_in_the_table_the_page_and_the_data(tmp_path):
    run, config = run_with(tmp_path, 0.11)
    text = summary(run, config, width=200)
    row = next(line for line in text.splitlines() if "Prob" in line and "Forget" in line)
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[2] == "0.900" and cells[3] == "↓ 4.3e-7" and cells[4] == "0.500", "the unlearned model's cell alone"
    line = (
        "↓ Prob of the forget answers: unlearned 0.023, retrained 0.205, that is far below (p = 9.8e-4), "
        "over-unlearned. The model does not merely not know the answers, it avoids them"
    )
    assert line in flat(text) and "Streisand" in text
    assert "Right over wrong forget answers, median: unlearned 0.900, retrained 0.900, that is within a" in text
    page = Page(run, config)
    assert line in page.text
    numbers, measures = page.source.split('id="comparison"')
    for part in (numbers, measures):
        assert '<b class="mark">↓ 4.3e-7</b>' in part and part.count('class="mark"') == 1
    verdicts.write_verdicts(run, "geometric")
    stored = json.loads((run.path / "verdicts.json").read_text())["measures"]
    assert stored["prob"]["verdict"] == "over-unlearned" and stored["truth_ratio"]["verdict"] == "near"
    assert stored["prob"]["value"] == pytest.approx(0.11 * np.mean(OTHERS)) and stored["prob"]["questions"] == QUESTIONS


@pytest.mark.slow
def test_still_known_is_named(tmp_path):
    run, config = run_with(tmp_path, 3.0, ratio=0.2)
    text = flat(summary(run, config, width=200))
    assert "↑ Prob of the forget answers: unlearned 0.615, retrained 0.205, that is far above" in text
    assert "under-unlearned. The records are still known." in text
    assert "│ ↓ 0.282 │" in text, "the truth ratio's cell"
    assert "↓ Right over wrong forget answers, median: unlearned 0.180, retrained 0.900, that is far below" in text


@pytest.mark.slow
def test_colours_and_marks_are_for_marked_cells_only(tmp_path):
    def coloured(factor, folder):
        run, config = run_with(tmp_path / folder, factor)
        out = io.StringIO()
        report.print_summary(run, config, Console(file=out, width=200, force_terminal=True, color_system="standard"))
        return out.getvalue()

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert re.search("\x1b\\[1;31m *↓ 4.3e-7\x1b", coloured(0.1, "a"))
    plain = coloured(0.9, "b")
    assert "\x1b[1;31m" not in plain and "↓" not in plain and "↑" not in plain


@pytest.mark.parametrize(
    ("questions", "words"), [(1, "1 question cannot"), (2, "2 questions cannot"), (6, "6 questions")]
)
def test_a_smoke_run_is_told_that_it_cannot_tell(tmp_path, questions, words):
    run, config = run_with(tmp_path, 0.1, questions=questions)
    text = flat(summary(run, config, width=200))
    assert "that is far below, but whether by chance" in text and words in text and "it takes 7" in text
    assert "over-unlearned" not in text and "│ ↓" not in text


def test_noise_is_told_from_evidence(tmp_path):
    def edit(stage, log):
        if stage == "retrain":
            log["eval_log_forget"]["avg_gt_loss"]["0"] = 0.0
        if stage == "unlearn":
            swapped = [0.05 * (1.03 if i % 2 else 0.97) for i in range(QUESTIONS)]
            log["eval_log_forget"]["avg_gt_loss"] = {str(i): -math.log(p) for i, p in enumerate(swapped)}
        elif stage == "retrain":
            values = {str(i): -math.log(0.05) for i in range(1, QUESTIONS)}
            log["eval_log_forget"]["avg_gt_loss"] = {"0": 0.0, **values}

    run, config = run_with(tmp_path, 1.0, edit=edit)
    text = flat(summary(run, config, width=200))
    assert "far below, but not on enough of the 10 questions to rule out chance (p = 0." in text


def test_questions_are_paired_by_id(tmp_path):
    def edit(stage, log):
        if stage == "retrain":  # asked in another order, without r0, with one more
            for column, values in log["eval_log_forget"].items():
                kept = list(values.values())[:0:-1]
                extra = [[0.5, 0.5]] if column == "average_perturb_loss" else [0.0]
                log["eval_log_forget"][column] = {str(i): x for i, x in enumerate(kept + extra)}
            log["ids"]["eval_log_forget"] = [f"r{i}" for i in range(QUESTIONS - 1, 0, -1)] + ["other"]

    run, _ = run_with(tmp_path, 0.9, edit=edit)
    found = verdicts.find_verdicts(run)["prob"]
    assert found.questions == QUESTIONS - 1
    assert found.oracle == pytest.approx(np.mean(OTHERS[1:])) and found.value == pytest.approx(
        0.9 * np.mean(OTHERS[1:])
    )
    assert found.p_below == pytest.approx(0.5 ** (QUESTIONS - 1)), "each answer a tenth less likely than itself"


def test_logs_without_ids_are_paired_by_number(tmp_path):
    run, _ = run_with(tmp_path, 0.1, edit=lambda stage, log: log.pop("ids"))
    assert verdicts.find_verdicts(run)["prob"].verdict == OVER_UNLEARNED


@pytest.mark.parametrize("convention", ["geometric", "arithmetic"])
def test_the_truth_ratio_is_that_of_the_convention(tmp_path, convention):
    run, _ = run_with(tmp_path, 1.0, ratio=0.5)
    expected = np.median(1 / truth_ratios(run.evaluation_log("unlearn"), "forget", convention))
    assert verdicts.find_verdicts(run, convention)["truth_ratio"].value == pytest.approx(expected)


def test_losses_that_are_not_finite_in_a_log(tmp_path):
    run, config = run_with(tmp_path, 0.1)
    log = run.evaluation_log("unlearn")
    section = log["eval_log_forget"]
    section["avg_gt_loss"] |= {"0": math.nan, "1": math.inf}
    section["average_perturb_loss"]["2"] = [math.inf, 1.0]
    section["avg_paraphrased_loss"] = {str(i): math.nan for i in range(QUESTIONS)}
    (run.path / "evaluations" / "unlearn.json").write_text(json.dumps(log))
    found = verdicts.find_verdicts(run)
    assert set(found) == {"prob"} and found["prob"].questions == QUESTIONS - 1
    assert found["prob"].verdict == OVER_UNLEARNED
    assert "over-unlearned" in summary(run, config) and "over-unlearned" in Page(run, config).text
    section["avg_paraphrased_loss"] = dict.fromkeys(map(str, range(QUESTIONS)), math.inf)
    section["average_perturb_loss"] = {str(i): [math.inf] for i in range(QUESTIONS)}
    (run.path / "evaluations" / "unlearn.json").write_text(json.dumps(log))
    assert set(verdicts.find_verdicts(run)) == {"prob"}, "inf against inf says nothing"
    verdicts.write_verdicts(run, "geometric")
    assert json.loads((run.path / "verdicts.json").read_text())["measures"]["prob"]["value"] > 0


@pytest.mark.parametrize("stages", [[], ["finetune"], ["finetune", "unlearn"], ["finetune", "retrain"]])
def test_without_both_models_there_is_no_verdict(tmp_path, stages):
    run, config = run_with(tmp_path, 0.1, stages=stages)
    assert verdicts.find_verdicts(run) == {}
    verdicts.write_verdicts(run, "geometric")
    assert not (run.path / "verdicts.json").exists()
    text = summary(run, config)
    assert "over-unlearned" not in text and 'class="mark"' not in Page(run, config).source


def test_a_log_whose_stage_is_unfinished_is_not_judged(tmp_path):
    run, config = run_with(tmp_path, 0.1)
    (run.path / "stages" / "unlearn.json").unlink()
    assert verdicts.find_verdicts(run) == {} and 'class="mark"' not in Page(run, config).source
