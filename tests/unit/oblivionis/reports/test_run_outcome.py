"""The sentence above all tables, and what it tells to do next."""

import dataclasses
import hashlib
import json
import math

import pytest
from support.reports import ask, bind, make_run, metrics_of, summary

from evaluation.metrics.retrained_comparison import Verdict
from oblivionis.cli.arguments import split_arguments
from oblivionis.config import compose as configuration
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.verification_rules import Judgement
from oblivionis.reports import verdicts
from oblivionis.reports.html.request_pages import page_of, page_parts
from oblivionis.reports.run_outcome import BAD, DOUBTFUL, GOOD, knowledge, of_run, outcome

OVER = {"prob": Verdict(0.01, 0.2, 1e-6, 1.0, 40)}
UNDER = {"prob": Verdict(0.9, 0.2, 1.0, 1e-6, 40)}
LIKE = {"prob": Verdict(0.19, 0.2, 0.4, 0.6, 40)}
FEW = {"prob": Verdict(0.01, 0.2, 0.25, 1.0, 2)}
KEPT = {"finetune": {"model_utility": 0.5}, "unlearn": {"model_utility": 0.49}, "retrain": {}}


def served(tmp_path, verified=("r0", "r1"), overrides=(), rows=(), facts=None, **made):
    run, config = make_run(tmp_path, overrides=overrides, **made)
    if facts:
        run.finish_stage("unlearn", {**run.stage_summary("unlearn"), **facts}, None)
    run.append_metrics(rows)
    ask(run, serve=False)
    ledger = Ledger(run.ledger_path)
    for name in ("r0", "r1"):
        ledger.served(name, 1)
        word = "verified" if name in verified else "not testable"
        ledger.verified(name, 2, Judgement(word, "", 0.1), 0.5)
    bind(run, config)
    return run, config


def test_a_run_that_forgot_and_kept_the_rest(tmp_path):
    found = outcome(*served(tmp_path), KEPT, LIKE)
    assert found.sentence == (
        "2 of 2 deletion requests verified; one test does not tell the unlearned model from one that never saw the "
        "records (Prob 0.190, 0.200 there); utility 98% of the finetuned model's."
    )
    assert found.grade == GOOD and found.steps == ()


def attacked(p: float, others: float = 0.9) -> dict[str, dict[str, float]]:
    """Metrics with membership attacks: `p` of the one by the loss, `others` of two more, and forget quality 0.3."""
    keys = [f"membership_auc_{attack}" for attack in ("loss", "zlib", "min_k_20")]
    told = {f"{key}_p": value for key, value in zip(keys, (p, others, others), strict=True)}
    ours = {**KEPT["unlearn"], "forget_quality": 0.3, **told}
    return {**KEPT, "unlearn": ours, "retrain": dict.fromkeys(keys, 0.5)}


def test_every_test_against_the_retrained_model_counts(tmp_path):
    """Five tests: Wilcoxon, Kolmogorov and Smirnov, three attacks; Bonferroni's level of each is 0.01."""
    run = served(tmp_path)
    found = outcome(*run, attacked(0.011), LIKE)
    assert "; none of 5 tests tells the unlearned model from one that never saw the records (Prob " in found.sentence
    assert found.grade == GOOD
    found = outcome(*run, attacked(0.0099), LIKE)
    assert (
        found.grade == DOUBTFUL
        and (
            "about as likely as a model that never saw them (Prob 0.190, 0.200 there), but 1 of 5 tests tells the two "
            "apart: membership (AUC, loss); "
        )
        in found.sentence
    )
    assert "2 of 5 tests tell the two apart" in outcome(*run, attacked(0.5, 1e-9), LIKE).sentence


def test_too_few_questions_are_no_test_that_was_passed(tmp_path):
    few = {"prob": Verdict(0.19, 0.2, 0.4, 0.6, 6)}
    found = outcome(*served(tmp_path), attacked(0.5), few)
    assert "about as likely as a model that never saw them (Prob" in found.sentence and "tests" not in found.sentence


def test_an_attack_that_tells_the_models_apart_counts_however_few_the_questions(tmp_path):
    """Five tests at 0.01 each: seven questions have 2^-6 at the least, so the signed ranks could not tell."""
    found = outcome(*served(tmp_path), attacked(1e-4), {"prob": Verdict(0.19, 0.2, 0.4, 0.6, 7)})
    assert found.grade == DOUBTFUL and "but 1 of 5 tests tells the two apart: membership (" in found.sentence


def test_an_attack_without_a_value_is_none(tmp_path):
    found = outcome(*served(tmp_path), attacked(float("nan")), LIKE)
    assert "none of 4 tests tells" in found.sentence


@pytest.mark.parametrize(
    ("verdicts", "words", "grade"),
    [
        (UNDER, "still knows the forgotten records (Prob 0.900", BAD),
        (OVER, "less likely than a model that never saw them (Prob 0.010", DOUBTFUL),
        (FEW, "the questions are too few", DOUBTFUL),
        ({}, "deletion requests verified; utility", DOUBTFUL),
    ],
)
def test_it_is_no_good_news_where_one_part_is_not(tmp_path, verdicts, words, grade):
    found = outcome(*served(tmp_path), KEPT, verdicts)
    assert words in found.sentence and found.grade == grade


@pytest.mark.parametrize("found", [UNDER, OVER, LIKE, FEW])
@pytest.mark.parametrize(("policy", "tells"), [("random_client_per_round", True), ("all_at_round", False)])
def test_records_that_nobody_asked_for_are_no_failure_to_forget(tmp_path, found, policy, tells):
    """Four clients with 16 of 40 records have not asked; as many rounds more let each of them ask."""
    facts = {"unrequested": {"clients": 4, "records": 16, "of": 40}}
    overrides = [f"unlearning.requests.policy={policy}", "federation.rounds.unlearn=6"]
    said = outcome(*served(tmp_path, overrides=overrides, facts=facts), KEPT, found)
    assert "still knows" not in said.sentence and said.grade == DOUBTFUL
    assert (
        "; nobody asked to forget 16 of the forget split's 40 records, which the retrained model lacks, too, so the "
        f"two cannot be compared (Prob {found['prob'].value:.3f}, 0.200 there); "
    ) in said.sentence
    assert [step.partition(" federation.rounds")[2] for step in said.steps] == ([".unlearn=10"] if tells else [])


def test_requests_for_other_records_than_the_forget_split_are_no_failure_either(tmp_path):
    facts = {"unrequested": {"clients": 10, "records": 40, "of": 40}}
    found = outcome(*served(tmp_path, facts=facts), KEPT, UNDER)
    assert "; nobody asked to forget any of the forget split's 40 records, " in found.sentence
    assert "still knows" not in found.sentence and found.grade == DOUBTFUL


def test_who_hides_that_nobody_asked_gets_no_verdict(tmp_path):
    run, config = served(tmp_path, facts={"unrequested": {"clients": 4, "records": 16, "of": 40}})
    file = run.path / "stages" / "unlearn.json"
    file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "unrequested"}))
    found = outcome(run, config, KEPT, LIKE)
    assert found.grade == BAD and "stages/unlearn.json" in found.sentence


def test_nothing_was_kept_of_what_the_finetuned_model_had_not(tmp_path):
    metrics = {**KEPT, "finetune": {"retain_rouge": 0.0}, "unlearn": {"retain_rouge": 0.0}}
    found = outcome(*served(tmp_path), metrics, LIKE)
    assert found.sentence.endswith("; nothing on utility: the finetuned model's retain ROUGE is 0.")
    assert found.grade == DOUBTFUL


def test_without_a_word_on_utility_it_is_no_good_news(tmp_path):
    found = outcome(*served(tmp_path, metrics=lambda stage: {}), {"unlearn": {}}, LIKE)
    assert found.grade == DOUBTFUL and "utility" not in found.sentence


def edit(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda run: edit(run.ledger_path, "not testable", "verified"), "its ledger requests.jsonl was changed: line "),
        (lambda run: edit(run.path / "evaluations" / "unlearn.json", "2.5", "2.7"), "evaluations/unlearn.json is not"),
        (lambda run: edit(run.path / "stages" / "finetune.json", "model_utility", "model_utilitx"), "stages/finetune"),
        (lambda run: (run.path / "judgements.json").write_text("{}"), "judgements.json is not named"),
    ],
)
def test_nothing_follows_from_a_run_that_was_edited(tmp_path, change, said):
    run, config = served(tmp_path, verified=("r0",))
    assert outcome(run, config, KEPT, LIKE).sentence.startswith("1 of 2")
    change(run)
    found = outcome(run, config, KEPT, LIKE)
    assert (
        found.grade == BAD and found.sentence.startswith("Nothing follows from this run, ") and said in found.sentence
    )
    assert summary(run, config, full=False).startswith("Nothing follows from this run, ")


def test_the_page_of_a_request_says_so_too(tmp_path):
    run, config = served(tmp_path, verified=("r0",))

    def page():
        return "".join(str(part) for part in page_parts(run, config, page_of("r0"), "")[1])

    assert "Nothing follows" not in page()
    edit(run.path / "stages" / "finetune.json", "model_utility", "model_utilitx")
    assert "Nothing follows from this run, its files were changed: stages/finetune.json is not" in page()


def test_a_ledger_without_its_last_lines_binds_nothing(tmp_path):
    run, config = served(tmp_path)
    lines = run.ledger_path.read_text().splitlines(keepends=True)
    run.ledger_path.write_text("".join(line for line in lines if '"sealed"' not in line))
    found = outcome(run, config, KEPT, LIKE)
    assert found.grade == DOUBTFUL and "it is not sealed: its ledger does not say which files" in found.sentence


def test_good_news_does_not_rest_on_figures_that_were_kept(tmp_path):
    run, config = served(tmp_path, metrics=lambda stage: {**metrics_of(stage), "model_utility": 0.5})
    assert of_run(run, config).grade != GOOD
    kept = json.loads((run.path / "figures.json").read_text())
    entry = {"of": kept["verdicts"]["of"], "value": {"prob": dataclasses.asdict(LIKE["prob"])}}
    sha256 = hashlib.sha256(json.dumps([entry["of"], entry["value"]], sort_keys=True).encode()).hexdigest()
    (run.path / "figures.json").write_text(json.dumps({**kept, "verdicts": {**entry, "sha256": sha256}}))
    believed = outcome(run, config, KEPT, verdicts.find_verdicts(run))
    assert believed.grade == GOOD, "who edits the file and its hash is believed"
    assert of_run(run, config).grade != GOOD


@pytest.mark.parametrize(
    ("moment", "stage", "told"), [("end", "retrain", True), ("round", "retrain", False), ("end", "local", False)]
)
def test_what_failed_at_the_end_of_a_compared_model_was_not_measured(tmp_path, moment, stage, told):
    row = {"stage": stage, "round": 2, "moment": moment, "evaluator": "muse", "metrics": {}, "error": "out of memory"}
    found = outcome(*served(tmp_path, rows=[row]), KEPT, LIKE)
    assert ("not measured, because it failed: muse" in found.sentence) is told
    assert found.grade == (DOUBTFUL if told else GOOD)


def test_requests_and_utility_count_as_well(tmp_path):
    run, config = served(tmp_path, verified=("r0",))
    found = outcome(run, config, KEPT, LIKE)
    assert found.sentence.startswith("1 of 2 deletion requests verified (1 not testable); ") and found.grade == DOUBTFUL
    (tmp_path / "other").mkdir()
    ruined = {**KEPT, "unlearn": {"model_utility": 0.1}}
    assert outcome(*served(tmp_path / "other"), ruined, LIKE).grade == DOUBTFUL
    nobody = make_run(tmp_path / "nobody")
    assert outcome(*nobody, KEPT, LIKE).sentence.startswith("Nobody asked to forget anything; ")


def test_before_unlearning_there_is_no_outcome(tmp_path):
    run, config = make_run(tmp_path, ["finetune"])
    assert outcome(run, config, {"finetune": {}}, {}) is None


@pytest.mark.parametrize(
    ("verdicts", "overrides", "change"),
    [
        (UNDER, ["unlearning.epochs=3"], ("unlearning.epochs", 6)),
        (OVER, ["unlearning.epochs=5"], ("unlearning.epochs", 2)),
        (OVER, ["unlearning.epochs=1", "unlearning.learning_rate=0.002"], ("unlearning.learning_rate", 0.001)),
    ],
)
def test_the_next_step_is_a_command_that_works(tmp_path, verdicts, overrides, change):
    run, config = served(tmp_path, overrides=overrides)
    (step,) = outcome(run, config, KEPT, verdicts).steps
    words = step.split(": oblivionis simulate ")[1].split()
    experiment, chosen = split_arguments(words)
    again = configuration.compose(experiment, chosen)
    section, key = change[0].split(".")
    assert getattr(getattr(again, section), key) == change[1]
    assert again.start_from == str(run.path)
    assert dataclasses.replace(again.data) == config.data and again.seed == config.seed


def test_the_next_run_has_another_name_where_this_one_has_one(tmp_path):
    run, config = served(tmp_path, overrides=["name=made"])
    (run.path.parent / "made-2").mkdir()
    (step,) = outcome(run, config, KEPT, UNDER).steps
    assert " name=made-3 " in f"{step} "


def test_without_an_oracle_it_says_how_to_have_one(tmp_path):
    run, config = served(tmp_path, overrides=["stages=[finetune, unlearn]"])
    assert "'stages=[finetune, retrain, unlearn]'" in outcome(run, config, KEPT, {}).steps[0]


def test_the_outcome_stands_first_and_the_families_behind_full(tmp_path):
    run, config = make_run(tmp_path)
    ask(run)
    short, full = (summary(run, config, full=full) for full in (False, True))
    for text in (short, full):
        assert text.startswith("1 of 2 deletion requests verified (1 pending); ")
    rows = [line for line in short.splitlines() if line.startswith("│ ") and "0." in line]
    assert len(rows) < 6 and "Forget quality" not in short and "How to read it" not in short
    assert f"oblivionis runs show {run.path} --full" in short and "Forget quality (KS p)" in full
    page = summary(run, config, full=False)
    assert page.index("Prob") < page.index("Sample answers")


def test_a_forget_quality_that_says_nothing_stands_in_parentheses(tmp_path):
    from support.reports import log_of

    run, config = make_run(tmp_path, logs=lambda stage: log_of(stage, questions=2))
    text = summary(run, config)
    line = next(line for line in text.splitlines() if "Forget quality (KS p)" in line)
    assert "(0.125)" in line and "2 questions cannot tell any two models apart" in text
    without = {name: section.copy() for name, section in log_of("unlearn", questions=2).items()}
    for section in without.values():
        section.pop("average_perturb_loss", None)
    (tmp_path / "none").mkdir()
    run, config = make_run(tmp_path / "none", metrics=lambda stage: {"forget_prob": 0.5}, logs=lambda stage: without)
    assert "cannot tell" not in summary(run, config)
    (tmp_path / "four").mkdir()
    run, config = make_run(tmp_path / "four")
    line = next(line for line in summary(run, config).splitlines() if "Forget quality (KS p)" in line)
    assert "(0.125)" not in line and metrics_of("unlearn")["forget_quality"] == 0.125


def test_the_verdicts_file_names_what_was_not_measured_in_the_end(tmp_path):
    row = {"round": 2, "evaluator": "muse", "metrics": {}, "error": "out of memory"}
    rows = [{**row, "stage": stage, "moment": "end"} for stage in ("finetune", "unlearn", "local")]
    rows.append({**row, "stage": "retrain", "moment": "round"})
    run, _ = served(tmp_path, rows=rows)
    assert verdicts.verdict_document(run, "geometric")["failed"] == (
        {stage: {"muse": "out of memory"} for stage in ("finetune", "unlearn")}
    )


@pytest.mark.parametrize("whole", [False, True])
def test_the_file_of_verdicts_is_written_where_there_is_something_to_say(tmp_path, whole):
    run, config = make_run(tmp_path, metrics=lambda stage: {**metrics_of(stage)})
    if not whole:
        (run.path / "stages" / "retrain.json").unlink()
    verdicts.write_verdicts(run, config.evaluation.truth_ratio)
    assert (run.path / "verdicts.json").exists() is whole
    if whole:
        said = json.loads((run.path / "verdicts.json").read_text())
        assert said == verdicts.verdict_document(run, config.evaluation.truth_ratio)
        assert (said["model"], said["oracle"]) == ("unlearn", "retrain")


@pytest.mark.parametrize(("questions", "said"), [(1, "1 question cannot tell"), (2, "2 questions cannot tell")])
def test_so_few_questions_cannot_tell(questions, said):
    (line,) = verdicts.sentences({"prob": Verdict(0.01, 0.2, 0.25, 1.0, questions)})
    assert f"whether by chance {said} (it takes " in line


@pytest.mark.parametrize(
    ("p", "said"),
    [
        ((1e-6, 1.0), "far below (p = 1.0e-6), over-unlearned. The model does not merely not know the answers"),
        ((0.25, 0.9), "far below, but not on enough of the 40 questions to rule out chance (p = 0.250)."),
    ],
)
def test_a_value_far_below_the_retrained_models(p, said):
    (line,) = verdicts.sentences({"prob": Verdict(0.01, 0.2, *p, 40)})
    mark = "↓ " if "over" in said else ""
    assert line.startswith(f"{mark}Prob of the forget answers: unlearned 0.010, retrained 0.200, that is {said}")


@pytest.mark.parametrize(
    ("p", "questions", "said"),
    [
        ((1.0, 1e-6), 40, "far above (p = 1.0e-6), under-unlearned. The records are still known."),
        ((0.9, 0.25), 40, "far above, but not on enough of the 40 questions to rule out chance (p = 0.250)."),
        ((0.9, 0.25), 7, "far above, but not on enough of the 7 questions to rule out chance (p = 0.250)."),
        ((0.9, 0.25), 6, "far above, but whether by chance 6 questions cannot tell (it takes 7)."),
    ],
)
def test_a_value_far_above_the_retrained_models(p, questions, said):
    (line,) = verdicts.sentences({"truth_ratio": Verdict(0.9, 0.2, *p, questions)})
    mark = "↑ " if "under" in said else ""
    what = "Right over wrong forget answers, median"
    assert line == f"{mark}{what}: unlearned 0.900, retrained 0.200, that is {said}"


def test_a_value_near_the_retrained_models_and_the_marks_in_the_table():
    near = Verdict(0.2, 0.2, 0.5, 0.5, 40)
    (line,) = verdicts.sentences({"prob": near})
    assert line == "Prob of the forget answers: unlearned 0.200, retrained 0.200, that is within a factor of 2."
    found = {"prob": OVER["prob"], "truth_ratio": UNDER["prob"]}
    assert verdicts.marks(found) == {"forget_prob": "↓", "forget_truth_ratio": "↑"}
    assert verdicts.marks({"prob": near}) == {} == verdicts.marks(FEW)


def test_the_tests_of_an_outcome_are_two_sided_and_none_is_above_one():
    """2 · min(0.4, 0.6) = 0.8, and 2 · min(0.7, 0.6) is above 1; of attacks those on both models count."""
    found = {"prob": LIKE["prob"], "truth_ratio": Verdict(0.3, 0.3, 0.7, 0.6, 40)}
    metrics = {
        "unlearn": {"forget_quality": 0.3, "membership_auc_loss_p": 0.2, "membership_auc_zlib_p": 0.1},
        "retrain": {"membership_auc_loss": 0.5},
    }
    assert verdicts.p_values(found, metrics) == {
        "Prob of the forget answers": 0.8,
        "Right over wrong forget answers": 1.0,
        "forget quality": 0.3,
        "membership (AUC, loss)": 0.2,
    }
    assert verdicts.p_values({}, metrics) == {}


@pytest.mark.parametrize(("questions", "told"), [(5, False), (6, True)])
def test_so_many_questions_are_a_test_by_themselves(questions, told):
    """One test at 0.05: five differences of one sign have 2^-4 = 0.0625, six 2^-5 = 0.031."""
    assert bool(verdicts.p_values({"prob": Verdict(0.19, 0.2, 0.4, 0.6, questions)}, {})) is told


@pytest.mark.parametrize(("p", "told"), [(0.025, ["a"]), (0.0251, [])])
def test_a_test_tells_at_its_share_of_the_level(p, told):
    assert verdicts.telling({"a": p, "b": 0.9}) == told and verdicts.telling({}) == []


def log(ids, losses):
    section = {"avg_gt_loss": {str(i): loss for i, loss in enumerate(losses)}}
    return {"eval_log_forget": section} | ({"ids": {"eval_log_forget": ids}} if ids else {})


@pytest.mark.parametrize(
    ("mine", "theirs", "questions"),
    [
        ((["a", "b", "c"], [1.0, 2.0, 3.0]), (["c", "a"], [30.0, 10.0]), 2),
        ((None, [1.0, 2.0, 3.0]), (None, [10.0, 20.0]), 2),
        ((["a", "b"], [1.0, 2.0, 3.0]), (["a", "b"], [10.0, 20.0, 30.0]), 3),
        ((["a"], [1.0]), (["b"], [10.0]), None),
    ],
)
def test_the_questions_that_both_models_were_asked_are_compared(tmp_path, mine, theirs, questions):
    """By their ids, or by their numbers where the log does not have an id for each."""
    logs = {"unlearn": log(*mine), "retrain": log(*theirs)}
    run, _ = make_run(tmp_path, ["unlearn", "retrain"], logs=logs.__getitem__)
    found = verdicts.find_verdicts(run, anew=True)
    if questions is None:
        assert found == {}
        return
    assert found.keys() == {"prob"} and found["prob"].questions == questions
    pairs = {1.0: 10.0, 2.0: 20.0, 3.0: 30.0} if questions == 3 or mine[0] is None else {1.0: 10.0, 3.0: 30.0}
    pairs = dict(list(pairs.items())[:questions])
    assert found["prob"].value == pytest.approx(sum(math.exp(-x) for x in pairs) / questions)
    assert found["prob"].oracle == pytest.approx(sum(math.exp(-x) for x in pairs.values()) / questions)


@pytest.mark.parametrize("missing", ["unlearn", "retrain"])
def test_a_model_of_an_unfinished_stage_is_not_judged(tmp_path, missing):
    run, _ = make_run(tmp_path)
    assert verdicts.find_verdicts(run, anew=True)
    (run.path / "stages" / f"{missing}.json").unlink()
    assert verdicts.find_verdicts(run, anew=True) == {}


def test_a_number_that_is_not_finite_is_null_in_the_file(tmp_path):
    """The right answer is e^1999 times as likely as the wrong one: more than a number holds."""

    def logs(stage):
        section = {"avg_paraphrased_loss": {"0": 1.0}, "average_perturb_loss": {"0": [2000.0]}}
        return {"eval_log_forget": section}

    run, _ = make_run(tmp_path, logs=logs)
    facts = verdicts.verdict_document(run, "geometric")["measures"]["truth_ratio"]
    assert (facts["value"], facts["oracle"], facts["questions"]) == (None, None, 1)


# -- utility, and what comes next ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "said", "grade"),
    [
        ({"model_utility": 0.5}, {"model_utility": 0.45}, "utility 90% of the finetuned model's", GOOD),
        ({"model_utility": 0.5}, {"model_utility": 0.4499}, "utility 90% of the finetuned model's", DOUBTFUL),
        ({"retain_rouge": 0.4}, {"retain_rouge": 0.2}, "retain ROUGE 50% of the finetuned model's", DOUBTFUL),
        (
            {"model_utility": 0.0, "retain_rouge": 0.4},
            {"model_utility": 0.5, "retain_rouge": 0.4},
            "retain ROUGE 100% of the finetuned model's",
            GOOD,
        ),
        ({"model_utility": 0.5}, {"model_utility": 0.0}, "utility 0% of the finetuned model's", DOUBTFUL),
    ],
)
def test_what_is_left_of_the_utility(tmp_path, before, after, said, grade):
    found = outcome(*served(tmp_path), {"finetune": before, "unlearn": after, "retrain": {}}, LIKE)
    assert found.sentence.endswith(f"; {said}.") and found.grade == grade


@pytest.mark.parametrize(
    ("overrides", "verdicts", "steps"),
    [
        (["data=node", "unlearning.requests.policy=none"], UNDER, 0),
        ([], LIKE, 0),
        ([], FEW, 0),
        (["stages=[finetune, retrain, unlearn]"], {}, 0),
        (["stages=[finetune, unlearn]"], {}, 1),
    ],
)
def test_where_nothing_helps_there_is_no_next_step(tmp_path, overrides, verdicts, steps):
    run, config = make_run(tmp_path, overrides=overrides)
    assert len(outcome(run, config, KEPT, verdicts).steps) == steps


def test_the_learning_rate_to_unlearn_less_is_half_of_that_of_training(tmp_path):
    run, config = make_run(tmp_path, overrides=["unlearning.epochs=1", "training.learning_rate=0.004"])
    (step,) = outcome(run, config, KEPT, OVER).steps
    assert step.startswith("to unlearn less: ") and step.endswith(
        f" start_from={run.path} unlearning.learning_rate=0.002"
    )


@pytest.mark.parametrize(
    ("pairs", "said"), [(False, "a model that never saw the records"), (True, "a model retrained")]
)
def test_what_the_run_would_be_compared_with(tmp_path, pairs, said):
    run, config = make_run(tmp_path, overrides=["stages=[finetune, unlearn]"])
    if pairs:
        twin = {"forget": "a", "kept": "b", "how": "nearly", "similarity": 0.9}
        (run.path / "twins.json").write_text(json.dumps({"records": 2, "twins": [twin]}))
    (step,) = outcome(run, config, KEPT, {}).steps
    assert step.startswith(f"to compare with {said}") and " name=" not in step


def test_beside_a_model_that_was_trained_on_the_like_there_is_no_good_news(tmp_path):
    run, config = served(tmp_path)
    twin = {"forget": "a", "kept": "b", "how": "nearly", "similarity": 0.9}
    (run.path / "twins.json").write_text(json.dumps({"records": 2, "twins": [twin]}))
    bind(run, config)
    found = outcome(run, config, KEPT, LIKE)
    assert found.grade != GOOD
    assert knowledge(run, LIKE, KEPT)[1] == DOUBTFUL and knowledge(run, UNDER, KEPT)[1] == BAD
    assert "the retrained model, which was trained on twins of 1 of the 2 records" in knowledge(run, LIKE, KEPT)[0]
