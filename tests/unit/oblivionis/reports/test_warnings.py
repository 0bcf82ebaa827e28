"""What the report warns of, on hand-made run directories; the p-values against scipy's."""

import json
import math

import numpy as np
import pytest
from scipy.stats import ks_2samp
from support.reports import HOSTILE, Page, ask, log_of, make_run, metrics_of

from evaluation.leakage import bounds
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import Request
from oblivionis.erasure.verification_rules import Judgement
from oblivionis.errors import NotMeasured, RunFailed
from oblivionis.measures.tofu import report as tofu_report
from oblivionis.measures.tofu.report import ks_p_value, telling_steps
from oblivionis.reports import warnings as run_warnings
from oblivionis.reports.warnings import check_done, find_warnings
from oblivionis.runs.failed_evaluators import row_of


def kinds(run, config, *, limit=False):
    return [w.kind for w in find_warnings(run, config) if w.limit is limit]


def text_of(run, config, kind):
    (found,) = {w.text for w in find_warnings(run, config) if w.kind == kind}
    return found


@pytest.mark.parametrize("questions", [1, 3, 4, 12, 40])
def test_p_values_are_those_of_the_exact_test(questions):
    for steps in range(1, questions + 1):
        mine, theirs = np.arange(questions), np.arange(questions) + steps - 0.5
        expected = ks_2samp(mine, theirs, method="exact")
        assert expected.statistic == pytest.approx(steps / questions)
        assert ks_p_value(questions, steps) == pytest.approx(expected.pvalue, rel=1e-9)


def test_the_words_on_few_questions_are_right():
    """12 questions: 2 / C(24, 12) is the least p-value, and 7/12 the least distance below 0.05."""
    assert ks_p_value(12, 12) == pytest.approx(2 / math.comb(24, 12))
    assert ks_p_value(12, 6) >= 0.05 > ks_p_value(12, 7)


@pytest.mark.parametrize(("questions", "steps"), [(1, None), (3, None), (4, 4), (12, 7), (40, 13)])
def test_the_least_distance_that_tells_two_models_apart(questions, steps):
    def p(steps):
        return ks_2samp(np.arange(questions), np.arange(questions) + steps - 0.5, method="exact").pvalue

    assert telling_steps(questions) == steps == next((k for k in range(1, questions + 1) if p(k) < 0.05), None)


def test_a_whole_run_of_few_questions(tmp_path):
    run, config = make_run(tmp_path)
    assert kinds(run, config, limit=True) == ["one oracle", "few questions"]
    text = text_of(run, config, "few questions")
    assert "4 questions" in text and "0.029" in text and "less than 1.00" in text, "2 / C(8, 4) = 2/70"


@pytest.mark.parametrize(("count", "warned"), [(39, True), (40, False)])
def test_as_many_questions_as_tofus_smallest_split_are_enough(tmp_path, count, warned):
    section = {"avg_paraphrased_loss": {str(i): 1.0 + i for i in range(count)}}
    section["average_perturb_loss"] = {str(i): [2.0] for i in range(count)}
    run, config = make_run(tmp_path, logs=lambda stage: {"eval_log_forget": section})
    assert ("few questions" in kinds(run, config, limit=True)) is warned


@pytest.mark.parametrize(("utility", "warned"), [(0.46, False), (0.44, True), (0.0, True)])
def test_utility_collapses_below_half_of_the_finetuned_models(tmp_path, utility, warned):
    def metrics(stage):
        return metrics_of(stage) | {"model_utility": utility if stage == "unlearn" else 0.9, "retain_rouge": 0.8}

    run, config = make_run(tmp_path, metrics=metrics)
    assert ("collapsed utility" in kinds(run, config)) is warned


def test_the_missing_oracle_and_unfinished_stages(tmp_path):
    run, config = make_run(tmp_path, ["finetune", "unlearn"])
    assert {"missing oracle", "unfinished"} <= set(kinds(run, config))
    assert "retrain did not come to an end" in text_of(run, config, "unfinished")
    (tmp_path / "b").mkdir()
    run, config = make_run(tmp_path / "b", overrides=["stages=[finetune,retrain,unlearn]"])
    assert not {"missing oracle", "unfinished"} & set(kinds(run, config))


def test_requests_that_wait_or_fail(tmp_path):
    run, config = make_run(tmp_path)
    ledger = Ledger(run.ledger_path)
    for i in range(3):
        ledger.submit(Request(f"r{i}", i, (f"eval_log_forget-{i}",), 1))
    ledger.failed("r0", 1, "needs retain records")
    ledger.served("r1", 1)
    ledger.verified("r1", 2, Judgement("not verified", "", 0.9), 0.5)
    ledger.rejected("r2", 1, "unknown")
    found = kinds(run, config)
    assert {"pending requests", "failed verification", "rejected requests", "records not deleted"} <= set(found)
    assert "r0" in text_of(run, config, "pending requests")
    assert "needs retain records" in text_of(run, config, "pending requests")
    assert "3 of 4 forget questions" in text_of(run, config, "records not deleted"), "r1 alone was served"


def test_what_is_wrong_comes_before_what_is_a_limit(tmp_path):
    run, config = make_run(tmp_path, metrics=lambda stage: metrics_of(stage) | {"leakage_samples": 20.0})
    ask(run, serve=False)
    found = [warning.limit for warning in find_warnings(run, config)]
    assert found == sorted(found) and set(found) == {False, True}


def test_where_no_request_was_served_the_forget_rows_are_no_mixture(tmp_path):
    run, config = make_run(tmp_path)
    Ledger(run.ledger_path).submit(Request("all", 0, tuple(log_of("unlearn")["ids"]["eval_log_forget"]), 1))
    assert "records not deleted" not in kinds(run, config) and "pending requests" in kinds(run, config)


def test_requests_for_all_forget_records_leave_nothing(tmp_path):
    run, config = make_run(tmp_path)
    ledger = Ledger(run.ledger_path)
    ledger.submit(Request("all", 0, tuple(log_of("unlearn")["ids"]["eval_log_forget"]), 1))
    ledger.served("all", 1)
    assert "records not deleted" not in kinds(run, config)


def test_failed_evaluators_and_clients(tmp_path):
    run, config = make_run(tmp_path)
    row = {"stage": "unlearn", "moment": "round", "metrics": {}}
    run.append_metrics([{**row, "round": i, "evaluator": "wikimem", "error": "no\x1bfacts"} for i in (1, 2)])
    run.append_metrics([{**row, "round": 3, "evaluator": "wikimem", "metrics": {"a": 1.0}}])
    run.append_metrics([{**row, "round": i, "evaluator": "federation", "metrics": {"failures": i}} for i in (0, 2)])
    text = text_of(run, config, "failed evaluator")
    assert "wikimem failed in 2 of 3" in text and "round 1" in text and "\x1b" not in text
    assert "2 replies failed" in text_of(run, config, "failed replies")
    assert "1 of 2 rounds" in text_of(run, config, "failed replies")


@pytest.mark.parametrize(
    ("samples", "certifies", "loose"), [(20, False, True), (50, True, True), (128, True, True), (1024, True, False)]
)
def test_bounds_of_few_samples(tmp_path, samples, certifies, loose):
    run, config = make_run(tmp_path, metrics=lambda stage: metrics_of(stage) | {"leakage_samples": float(samples)})
    alpha, limit = config.evaluation.leakage.alpha, config.evaluation.leakage.limit
    assert (bounds.binary_leakage_bound(0, samples, alpha) <= limit) is certifies
    found = [w.text for w in find_warnings(run, config) if w.kind == "few samples"]
    assert any("cannot certify" in text for text in found) is not certifies
    assert any("cannot be below" in text for text in found) is loose
    if loose:
        slack = bounds.expectation_upper_bound(np.zeros(samples), alpha)
        assert slack > run_warnings.LARGEST_SLACK and any(f"{slack:.2f}" in text for text in found)


@pytest.mark.parametrize(("limit", "certifies"), [(0.003, False), (0.3, True)])
def test_what_is_loose_does_not_depend_on_the_limit_of_a_leak(tmp_path, limit, certifies):
    """With 1024 samples the bound on the mean may be 0.05, with 128 it cannot be below 0.13."""
    for samples, loose in ((1024, False), (128, True)):
        (tmp_path / str(samples)).mkdir()
        run, config = make_run(
            tmp_path / str(samples),
            overrides=[f"evaluation.leakage.limit={limit}"],
            metrics=lambda stage, samples=samples: metrics_of(stage) | {"leakage_samples": float(samples)},
        )
        found = [w.text for w in find_warnings(run, config) if w.kind == "few samples"]
        assert any("cannot be below" in text for text in found) is loose
        assert any("cannot certify" in text for text in found) is not certifies


def test_nothing_to_forget(tmp_path):
    run, config = make_run(tmp_path, logs=lambda stage: log_of("retrain"))
    assert "nothing to forget" in kinds(run, config)


@pytest.mark.parametrize(
    ("overrides", "warned"),
    [
        (["unlearning=altpo"], True),
        (["unlearning=idk_dpo", "unlearning.alternatives.source=perturbed"], True),
        (["unlearning=altpo", "unlearning.alternatives.source=idk"], False),
        (["unlearning=idk_nll"], False),
        (["unlearning=npo"], False),
    ],
)
def test_answers_that_were_learned_and_are_asked_for(tmp_path, overrides, warned):
    run, config = make_run(tmp_path, overrides=overrides)
    assert ("learned answers" in kinds(run, config, limit=True)) is warned
    if warned:
        name = overrides[0].partition("=")[2]
        assert text_of(run, config, "learned answers") == (
            f"{name} learned the perturbed answers to the records that it forgot. Truth ratio and forget quality "
            "compare the true answer with just these: they may look better, or worse, than what is forgotten."
        )


def test_the_verdict_leads_to_the_warnings_which_stand_before_the_measures(tmp_path):
    run, config = make_run(tmp_path, ["finetune", "unlearn"])
    ask(run, serve=False, reason=HOSTILE)
    Ledger(run.ledger_path).failed("r0", 1, HOSTILE)
    page = Page(run, config)
    places = [page.source.index(text) for text in ('href="#warnings"', "no forget quality", 'id="comparison"')]
    assert places == sorted(places) and places[0] < page.source.index("<table")
    assert "<script" not in page.source and page.text.count(HOSTILE) >= 3


@pytest.mark.parametrize("fewer", ["unlearn", "retrain"])
def test_as_many_questions_count_as_both_models_were_asked(tmp_path, fewer):
    run, _ = make_run(tmp_path, logs=lambda stage: log_of(stage, questions=2 if stage == fewer else 4))
    assert tofu_report.questions(run) == 2


def test_updates_and_weights_that_were_cut_are_counted_apart(tmp_path):
    run, config = make_run(tmp_path)
    row = {"stage": "unlearn", "moment": "round", "evaluator": "federation", "metrics": {}}
    cuts = [{"client": 4, "what": "norm"}, {"client": 4, "what": "norm"}, {"client": 2, "what": "weight"}]
    run.append_metrics([{**row, "round": 1, "cut": cuts}, {**row, "round": 2}])
    text = text_of(run, config, "cut replies")
    assert "2 updates that were too long and 1 weight that was too large, of clients 2, 4;" in text


def test_a_model_that_learned_nothing_has_nothing_to_keep(tmp_path):
    def metrics(stage):
        return metrics_of(stage) | {"model_utility": 0.0 if stage == "finetune" else 0.5, "retain_rouge": 0.8}

    text = text_of(*make_run(tmp_path, metrics=metrics), "collapsed utility")
    assert text.startswith("Model utility is 0 in the finetuned model already: training did not work")


def test_requests_of_each_doubtful_outcome_are_named_apart(tmp_path):
    run, config = make_run(tmp_path)
    ledger = Ledger(run.ledger_path)
    for i, (word, why) in enumerate(
        [("not testable", "short"), ("not testable", "short"), ("inconclusive", "unasked")]
    ):
        ledger.submit(Request(f"r{i}", i, (f"x{i}",), 1))
        ledger.served(f"r{i}", 1)
        ledger.verified(f"r{i}", 2, Judgement(word, why, 0.1), 0.5)
    told = "2 deletion requests are served, but not testable (short): r0, r1."
    assert text_of(run, config, "not testable") == told
    assert text_of(run, config, "inconclusive") == "1 deletion request is served, but inconclusive (unasked): r2."


def test_no_more_than_five_requests_are_named(tmp_path):
    run, config = make_run(tmp_path)
    ledger = Ledger(run.ledger_path)
    for i in range(7):
        ledger.submit(Request(f"r{i}", i, (f"x{i}",), 1))
        ledger.failed(f"r{i}", 1, "busy" if i else "away")
    text = text_of(run, config, "pending requests")
    assert text == ("7 deletion requests are still pending: r0, r1, r2, r3, r4 and 2 more. Most frequent reason: busy.")


@pytest.mark.parametrize(("clients", "named"), [(5, "of clients 0, 1, 2, 3, 4;"), (6, "of clients 0, 1, 2, 3, 4, …;")])
def test_no_more_than_five_clients_whose_replies_were_cut_are_named(tmp_path, clients, named):
    run, config = make_run(tmp_path)
    cuts = [{"client": c, "what": "norm"} for c in range(clients)]
    run.append_metrics(
        [{"stage": "unlearn", "round": 1, "evaluator": "federation", "moment": "round", "metrics": {}, "cut": cuts}]
    )
    assert named in text_of(run, config, "cut replies")


def test_one_failed_reply_is_one_client(tmp_path):
    run, config = make_run(tmp_path)
    row = {"stage": "unlearn", "moment": "round", "evaluator": "federation"}
    run.append_metrics([{**row, "round": 1, "metrics": {"failures": 1}}, {**row, "round": 2, "metrics": {}}])
    assert text_of(run, config, "failed replies") == (
        "1 reply failed and its client was left out, in 1 of 2 rounds; `flower.log` says why."
    )


def test_without_a_forget_quality_nothing_is_said_of_what_was_to_be_forgotten(tmp_path):
    def metrics(stage):
        return {key: value for key, value in metrics_of(stage).items() if key != "forget_quality"}

    run, config = make_run(tmp_path, metrics=metrics, logs=lambda stage: {"ids": {}})
    assert "nothing to forget" not in kinds(run, config) and "one oracle" in kinds(run, config, limit=True)


@pytest.mark.parametrize(
    ("utility", "rouge", "said"),
    [
        (
            (0.5, 0.249),
            (0.8, 0.8),
            [
                "Model utility collapsed: 0.249 after unlearning, 0.500 before, less than 50% of it. What is forgotten "
                "says little of a model that knows little else."
            ],
        ),
        ((0.5, 0.25), (0.8, 0.4), []),
        (
            (0.0, 0.5),
            (0.8, 0.1),
            [
                "Model utility is 0 in the finetuned model already: training did not work, and there was nothing to "
                "keep.",
                "Retain ROUGE-L recall collapsed: 0.100 after unlearning, 0.800 before, less than 50% of it. What is "
                "forgotten says little of a model that knows little else.",
            ],
        ),
        ((None, 0.1), (0.8, None), []),
    ],
)
def test_utility_of_either_kind(tmp_path, utility, rouge, said):
    def metrics(stage):
        if stage == "retrain":
            return {}
        at = stage == "unlearn"
        return {"model_utility": utility[at], "retain_rouge": rouge[at]}

    run, config = make_run(tmp_path, metrics=metrics)
    assert [w.text for w in find_warnings(run, config) if w.kind == "collapsed utility"] == said


@pytest.mark.parametrize("what", ["nothing", "the end", "too little"])
def test_a_retrained_model_is_asked_for_once_there_is_an_unlearned_one(tmp_path, what):
    stages = {"nothing": ["finetune", "retrain"], "the end": ["finetune", "unlearn"], "too little": ["finetune"]}[what]
    found = kinds(*make_run(tmp_path, stages)), kinds(*make_run(tmp_path / "b", stages), limit=True)
    assert ("missing oracle" in found[0]) is (what == "the end") and "one oracle" not in found[1]


@pytest.mark.parametrize(
    ("p", "known", "warned"), [(0.05, 0.2, False), (0.0501, 0.2, True), (0.0501, 0.21, False), (0.0501, None, True)]
)
def test_what_the_finetuned_model_had_to_forget(tmp_path, p, known, warned):
    def metrics(stage):
        prob = {} if known is None else {"forget_prob": known if stage == "finetune" else 0.1}
        return prob | ({"forget_quality": p} if stage == "finetune" else {})

    run, config = make_run(tmp_path, metrics=metrics)
    assert ("nothing to forget" in kinds(run, config)) is warned
    if warned:
        assert text_of(run, config, "nothing to forget") == (
            "The finetuned model cannot be told from the retrained one on the forget questions (p = 0.050): as far as "
            "these show, there was nothing to forget."
        )


def test_with_bands_of_retrained_models_there_is_more_than_one_oracle(tmp_path):
    run, config = make_run(tmp_path)
    assert "one oracle" in kinds(run, config, limit=True)
    band = {"low": 0.4, "high": 0.6, "mean": 0.5, "n": 3, "confidence": 0.95}
    told = {"stage": "unlearn", "metrics": {"ruler_mean_rank": 0.5}, "ruler": {"bands": {"mean_rank": band}}}
    run.finish_stage("unlearn", told, log_of("unlearn"))
    assert "one oracle" not in kinds(run, config, limit=True)


def test_twins_of_what_is_to_be_forgotten_are_told_of(tmp_path):
    run, config = make_run(tmp_path)
    assert "twins" not in kinds(run, config)
    twin = {"forget": "a", "kept": "b", "how": "word for word", "similarity": 1.0}
    (run.path / "twins.json").write_text(json.dumps({"records": 3, "twins": [twin]}))
    assert text_of(run, config, "twins").startswith(
        "1 record to forget is also held, word for word, by records that stay (a = b): the retrained model is trained"
    )
    (run.path / "twins.json").unlink()
    assert "twins" not in kinds(run, config), "not known"


def test_requests_are_warned_of_by_what_became_of_them(tmp_path):
    """Of six requests two wait, for the reason that the more of them have; each other fate has its own sentence."""
    run, config = make_run(tmp_path, overrides=["unlearning.requests.verify_max_rouge=0.375"])
    ledger = Ledger(run.ledger_path)
    for i in range(7):
        ledger.submit(Request(f"r{i}", i, (f"x{i}",), 1))
    for i, reason in ((0, "busy"), (1, "away"), (2, "away")):
        ledger.failed(f"r{i}", 1, reason)
    ledger.rejected("r3", 1, "unknown")
    for i, (outcome, why) in enumerate(
        [("not verified", "recited"), ("over-unlearned", "avoided"), ("verified", "")], start=4
    ):
        ledger.served(f"r{i}", 1)
        ledger.verified(f"r{i}", 2, Judgement(outcome, why, 0.1), 0.5)
    names = ("pending requests", "rejected requests", "failed verification", "over-unlearned")
    assert [text_of(run, config, name) for name in names] == [
        "3 deletion requests are still pending: r0, r1, r2. Most frequent reason: away.",
        "1 deletion request is rejected: r3.",
        "1 deletion request is served but not verified: the final model still knows the records (recited: ROUGE-L "
        "recall above 0.375): r4.",
        "1 deletion request is served, but over-unlearned (avoided): r5.",
    ]
    assert not {"not testable", "inconclusive"} & set(kinds(run, config))
    left = "3 deletion requests are still pending: r0, r1, r2. .* 1 deletion request is rejected: r3."
    with pytest.raises(RunFailed, match=left):
        check_done(run)
    run.append_metrics([row_of("unlearn", 2, "end", "leakage", "the disk is full")])
    with pytest.raises(RunFailed, match=f"{left} 1 evaluation failed, all else is kept: leakage in unlearn"):
        check_done(run)


def test_a_run_that_failed_to_measure_and_served_all_has_done_all_else(tmp_path):
    run, _ = make_run(tmp_path)
    check_done(run)
    run.append_metrics([row_of("unlearn", 2, "end", "leakage", "the disk is full")])
    with pytest.raises(NotMeasured, match=r"^1 evaluation failed"):
        check_done(run)


def test_requests_are_no_matter_before_the_unlearning_ends(tmp_path):
    run, config = make_run(tmp_path, ["finetune", "retrain"])
    Ledger(run.ledger_path).submit(Request("r", 0, ("a",), 1))
    assert "pending requests" not in kinds(run, config)
    check_done(run)


def test_a_request_that_waits_without_a_failure_has_no_reason(tmp_path):
    run, config = make_run(tmp_path)
    Ledger(run.ledger_path).submit(Request("r", 0, ("a",), 1))
    assert text_of(run, config, "pending requests") == "1 deletion request is still pending: r."


@pytest.mark.parametrize(
    ("served", "asked", "warned"),
    [
        ((0,), (0, 1), "3 of 4 forget questions"),
        ((0, 1, 2), (0, 1, 2), "1 of 4 forget questions"),
        ((0, 1, 2, 3), (0, 1, 2, 3), None),
        ((), (0, 1, 2, 3), None),
        ((), (), None),
    ],
)
def test_forget_questions_about_records_that_nobody_served(tmp_path, served, asked, warned):
    run, config = make_run(tmp_path)
    ledger = Ledger(run.ledger_path)
    for i in asked:
        ledger.submit(Request(f"r{i}", i, (f"eval_log_forget-{i}",), 1))
        if i in served:
            ledger.served(f"r{i}", 1)
    ledger.submit(Request("covered", 0, (), 1, already=1))
    found = [w.text for w in find_warnings(run, config) if w.kind == "records not deleted"]
    assert (found == []) if warned is None else found[0].startswith(f"{warned} are about records whose deletion")


@pytest.mark.parametrize(
    ("questions", "said"),
    [
        (3, "no p-value below 0.100 can occur, so not even models that share nothing are told apart at 0.05."),
        (4, "no p-value below 0.029 can occur, and a distance of less than 1.00 between the two distributions (of at"),
        (0, None),
    ],
)
def test_what_few_questions_can_tell(tmp_path, questions, said):
    """2 / C(6, 3) = 0.1 and 2 / C(8, 4) = 0.029."""
    run, config = make_run(tmp_path, logs=lambda stage: log_of(stage, questions=questions))
    found = [w.text for w in find_warnings(run, config) if w.kind == "few questions"]
    assert (found == []) if said is None else said in found[0]
    assert not found or found[0].startswith(f"Forget quality compares {questions} questions of either model: ")


@pytest.mark.parametrize("known", [True, False])
def test_answers_that_were_learned_matter_where_they_are_asked_for(tmp_path, known):
    given = ["unlearning=altpo"]
    metrics = metrics_of if known else lambda stage: {k: v for k, v in metrics_of(stage).items() if "truth" not in k}
    run, config = make_run(tmp_path, overrides=given, metrics=metrics)
    assert ("learned answers" in kinds(run, config, limit=True)) is known


@pytest.mark.parametrize(
    ("stages", "samples", "said"),
    [(["finetune"], 8, 8), (["finetune", "unlearn"], 8, 16), (["finetune"], 0, None), (["retrain"], 8, None)],
)
def test_samples_are_those_of_the_newest_model(tmp_path, stages, samples, said):
    def metrics(stage):
        return {"leakage_samples": float(samples * (2 if stage == "unlearn" else 1))}

    run, config = make_run(tmp_path, stages, metrics=metrics)
    found = [w.text for w in find_warnings(run, config) if w.kind == "few samples"]
    if said is None:
        assert found == []
    else:
        certify, loose = found
        least, slack = 1 - 0.01 ** (1 / said), math.sqrt(math.log(100) / (2 * said))
        assert (
            certify.startswith(f"{said} sampled answers per question cannot certify") and f"is {least:.2f}" in certify
        )
        assert certify.endswith("the limit 0.1. `oblivionis audit leakage` draws more.")
        assert loose.startswith(
            f"The bound on the mean leakage cannot be below {slack:.2f} with {said} sampled answers"
        )


@pytest.mark.parametrize(("count", "said"), [(5, "r0, r1, r2, r3, r4"), (6, "r0, r1, r2, r3, r4 and 1 more")])
def test_of_many_names_five_are_listed(count, said):
    assert run_warnings.listed([f"r{i}" for i in range(count)]) == said


def test_weights_and_updates_of_one_client(tmp_path):
    run, config = make_run(tmp_path)
    row = {"stage": "unlearn", "moment": "round", "metrics": {}, "round": 1}
    cut = [{"client": 4, "what": "weight"}]
    run.append_metrics([{**row, "evaluator": "federation", "cut": cut}, {**row, "evaluator": "tofu", "cut": cut}])
    assert text_of(run, config, "cut replies") == (
        "What clients sent was cut: 0 updates that were too long and 1 weight that was too large, of client 4; see "
        "`cut` in `metrics.jsonl`."
    )


@pytest.mark.parametrize(("questions", "doubted"), [(0, False), (3, True), (4, False)])
def test_so_few_questions_make_a_p_value_say_nothing(tmp_path, questions, doubted):
    run, _ = make_run(tmp_path, logs=lambda stage: log_of(stage, questions=questions))
    said = "In parentheses: 3 questions cannot tell any two models apart, so this p-value says nothing."
    assert tofu_report.inconclusive_reason(run) == (said if doubted else "")


def test_doubtful_outcomes_come_in_the_order_of_their_weight(tmp_path):
    run, config = make_run(tmp_path)
    ledger = Ledger(run.ledger_path)
    outcomes = ["inconclusive", "not testable", "over-unlearned"]
    for name in outcomes:
        ledger.submit(Request(name, 0, (f"of {name}",), 1))
        ledger.served(name, 1)
        ledger.verified(name, 2, Judgement(name, "so", 0.1), 0.5)
    assert [kind for kind in kinds(run, config) if kind in outcomes] == outcomes[::-1]


def test_without_a_forget_quality_the_number_of_questions_is_no_matter(tmp_path):
    run, config = make_run(tmp_path, metrics=lambda stage: {"forget_prob": 0.5})
    (run.path / "stages" / "retrain.json").unlink()
    assert "few questions" not in kinds(run, config, limit=True)


def test_each_evaluator_that_failed_is_told_of_by_itself(tmp_path):
    run, config = make_run(tmp_path)
    rows = [("unlearn", 1, "muse", "late"), ("finetune", 2, "rwku", "no facts"), ("unlearn", 2, "muse", "later")]
    for stage, server_round, name, error in rows:
        row = {"stage": stage, "round": server_round, "moment": "round", "evaluator": name, "metrics": {}}
        run.append_metrics([{**row, "error": error}])
    run.append_metrics([{"stage": "unlearn", "round": 3, "moment": "round", "evaluator": "muse", "metrics": {}}])
    assert [w.text for w in find_warnings(run, config) if w.kind == "failed evaluator"] == [
        "The evaluator muse failed in 2 of 3 evaluations, first in unlearn, round 1: late. What it would have measured "
        "there is missing.",
        "The evaluator rwku failed in 1 of 1 evaluation, first in finetune, round 2: no facts. What it would have "
        "measured there is missing.",
    ]
