"""What a run's reader sees, on hand-made run directories: tables, samples, requests, the page."""

import io
import itertools
import json
import math
import re
import warnings

import pytest
from rich.console import Console
from scipy.stats import ks_2samp
from support.reports import HOSTILE, LOSSES, STAGES, Page, ask, log_of, make_run, metrics_of, summary

from evaluation.metrics.tofu import SECTIONS
from oblivionis.cli.as_json import plain
from oblivionis.config import compose as configuration
from oblivionis.data.partition import partition
from oblivionis.data.records import Corpus, Record
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import Request
from oblivionis.erasure.verification_rules import Judgement
from oblivionis.models.memory import Estimate, Need
from oblivionis.models.model_description import Example, ModelFacts
from oblivionis.naming import SETS
from oblivionis.reports import data_description as data_report
from oblivionis.reports import model_card
from oblivionis.reports import run_summary as report
from oblivionis.reports.format import number
from oblivionis.reports.json_documents import run_document
from oblivionis.reports.warnings import find_warnings
from oblivionis.runs.failed_evaluators import Failure


def shown(renderable, width=120):
    out = io.StringIO()
    Console(file=out, width=width).print(renderable)
    return out.getvalue()


def cells(table_text):
    """Rows of a printed table as lists of stripped cells, with the first column filled down."""
    rows, group = [], ""
    for line in table_text.splitlines():
        if line.startswith("│"):
            row = [cell.strip() for cell in line.strip("│").split("│")]
            group = row[0] or group
            rows.append([group, *row[1:]])
    return rows


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run with requests, and its page."""
    run, config = make_run(tmp_path_factory.mktemp("whole"))
    ask(run)
    return run, Page(run, config)


def test_a_stage_that_was_only_trained_is_summed_up_without_figures_of_its_model(tmp_path):
    run, config = make_run(tmp_path, (), overrides=["stages=[finetune]"])
    run.finish_stage("finetune", {"stage": "finetune", "rounds": 3, "seconds": 12.0, "metrics": {}}, None)
    told = shown(report.summary(run, config))
    assert "fedavg · no unlearning · truth ratio" in told
    assert "finetuned: 3 rounds in 12 s, not measured by the server" in told


# -- the comparison ------------------------------------------------------------------------------------------------

GROUPS = {"forget": "Forget", "retain": "Retain", "real_authors": "Real authors", "world_facts": "World facts"}
NAMES = {"prob": "Prob", "rouge": "ROUGE-L recall", "truth_ratio": "Truth ratio"}


def check_cells(rows, run):
    """Every cell is the number in `stages/<stage>.json`; all sets, measures and totals are there."""
    stored = {s: json.loads((run.path / "stages" / f"{s}.json").read_text())["metrics"] for s in STAGES}
    found = {(row[0], row[1]): row[2:] for row in rows}
    expected = {
        (group, "Forget truth ratio" if (key, m) == ("forget", "truth_ratio") else name): f"{key}_{m}"
        for key, group in GROUPS.items()
        for m, name in NAMES.items()
    } | {("All but forget", "Model utility"): "model_utility"}
    assert set(found) == {*expected, ("Forget", "Forget quality (KS p)")}
    for row, key in expected.items():
        for cell, stage in zip(found[row], ("finetune", "unlearn", "retrain"), strict=True):
            exact = stored[stage][key]
            assert float(cell) == pytest.approx(exact, abs=5e-4 if exact >= 1e-3 else 0, rel=0.05), (row, stage)
    assert found["Forget", "Forget quality (KS p)"][1] == "0.125"


def test_the_printed_table_holds_the_numbers_of_the_stages(tmp_path):
    run, config = make_run(tmp_path)
    text = summary(run, config)
    header = next(line for line in text.splitlines() if "finetuned" in line and "measure" in line)
    assert header.index("finetuned") < header.index("unlearned") < header.index("retrained")
    check_cells([row for row in cells(text) if len(row) == 5], run)


def test_the_page_holds_the_numbers_of_the_stages(whole):
    run, page = whole
    head, *rows = next(table for table in page.tables if table[0][0] == "questions")
    assert head == ["questions", "measure", "finetuned", "unlearned", "retrained"]
    groups = list(itertools.accumulate((row[0] for row in rows), lambda before, now: now or before))
    check_cells([[group, *row[1:]] for group, row in zip(groups, rows, strict=True)], run)


@pytest.mark.parametrize("convention", ["geometric", "arithmetic"])
def test_forget_quality_of_the_finetuned_model_comes_from_the_logs(tmp_path, convention):
    run, _ = make_run(tmp_path)

    def ratios(stage):
        if convention == "geometric":
            return [math.exp(right - sum(wrong) / 2) for right, wrong in LOSSES[stage]]
        return [sum(math.exp(right - w) for w in wrong) / 2 for right, wrong in LOSSES[stage]]

    metrics = report.stage_metrics(run, convention)
    expected = ks_2samp(ratios("finetune"), ratios("retrain"))
    assert metrics["finetune"]["forget_quality"] == pytest.approx(expected.pvalue, abs=1e-12)
    assert metrics["finetune"]["forget_ks"] == pytest.approx(expected.statistic, abs=1e-12)
    assert expected.pvalue == pytest.approx({"geometric": 2 / 70, "arithmetic": 54 / 70}[convention], abs=1e-9)
    assert metrics["retrain"]["forget_quality"] == 1.0
    assert metrics["unlearn"]["forget_quality"] == 0.125, "what the stage stored stays"


def test_without_a_retrained_model_there_is_no_forget_quality(tmp_path):
    run, config = make_run(tmp_path, ["finetune"])
    assert "forget_quality" not in report.stage_metrics(run)["finetune"]
    text = summary(run, config)
    assert "Forget quality (KS p)" not in text and "Add the stage retrain" in text
    assert "unlearned" not in text and "retrained │" not in text
    assert "Add the stage retrain" in Page(run, config).text


def test_a_run_without_a_finished_stage(tmp_path):
    run, config = make_run(tmp_path, [])
    assert summary(run, config) == f"{run.path}: no stage is finished yet\n"
    assert "No stage is finished" in Page(run, config).text


def test_a_collapsed_model_and_missing_metrics(tmp_path):
    def broken(stage):
        known = metrics_of(stage)
        if stage != "unlearn":
            return known
        return {"forget_prob": 3e-31, "retain_prob": None, "model_utility": 0.0}

    run, config = make_run(tmp_path, metrics=broken)
    log = log_of("unlearn")
    log["eval_log_forget"]["avg_paraphrased_loss"]["2"] = math.inf
    (run.path / "evaluations" / "unlearn.json").write_text(json.dumps(log))
    found = {(r[0], r[1]): r[2:] for r in cells(summary(run, config)) if len(r) == 5}
    assert found["Forget", "Prob"][1] == "3.0e-31"
    assert found["Retain", "Prob"][1] == "–" and found["World facts", "Prob"][1] == "–"
    assert found["All but forget", "Model utility"][1] == "0.000"
    assert found["Forget", "Forget quality (KS p)"][1] == "–", "an infinite loss has no truth ratio"
    assert "3.0e-31" in Page(run, config).text


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        *[(None, "–"), (math.nan, "–"), (0.0, "0.000"), (1.0, "1.000"), (0.12349, "0.123"), (0.001, "0.001")],
        *[(4.26e-7, "4.3e-7"), (9.99e-4, "1.0e-3"), (-2e-5, "-2.0e-5"), (1e-120, "1.0e-120")],
    ],
)
def test_numbers(value, cell):
    assert number(value) == cell


def test_the_title_is_as_wide_as_it_needs(tmp_path):
    run, config = make_run(tmp_path, ["finetune"])
    first = summary(run, config, width=120).splitlines()[0]
    assert first == "made: tiny · fictitious · fedavg · npo · truth ratio geometric"


def test_paths_are_never_broken(tmp_path):
    folder = tmp_path / ("long-" * 30)
    folder.mkdir()
    run, config = make_run(folder, ["finetune"])
    assert f"run directory: {run.path}" in summary(run, config, width=60).splitlines()


def test_sections_are_those_of_the_evaluation():
    assert report.LOG_SETS == SECTIONS and SETS == GROUPS


# -- sample answers ------------------------------------------------------------------------------------------------


def test_samples_show_question_truth_and_every_answer(tmp_path):
    run, config = make_run(tmp_path, overrides=["evaluation.samples_shown=2"])
    found = report.samples(run, config, STAGES)
    assert [s["set"] for s in found] == ["Forget", "Forget", "Retain", "Real authors", "World facts"]
    assert found[0] == {
        "set": "Forget",
        "question": "Where does Ann live?",
        "truth": "Ann lives in Ost.",
        "answers": {
            "finetuned": " finetune says: They live in Vell.",
            "retrained": " retrain says: They live in Vell.",
            "unlearned": " unlearn says: They live in Vell.",
        },
    }
    assert found[1]["question"] == "Where does Di live?", "spread from the first to the last question"
    text = summary(run, config)
    assert "Where does Ann live?" in text and "Question:" not in text and "Answer:" not in text


@pytest.mark.parametrize(("count", "positions"), [(0, []), (1, [0]), (2, [0, 3]), (4, [0, 1, 2, 3]), (9, [0, 1, 2, 3])])
def test_the_number_of_samples(tmp_path, count, positions):
    run, config = make_run(tmp_path, ["unlearn"], overrides=[f"evaluation.samples_shown={count}"])
    found = report.samples(run, config, ["unlearn"])
    names = ["Ann", "Bo", "Cy", "Di"]
    assert [s["question"] for s in found if s["set"] == "Forget"] == [f"Where does {names[i]} live?" for i in positions]
    assert len(found) == (len(positions) + 3 if count else 0)


@pytest.mark.parametrize(("count", "passages"), [(0, []), (1, ["p0"]), (3, ["p0", "p2", "p4"])])
def test_of_texts_several_passages_are_shown_and_one_question_of_each_set(tmp_path, count, passages):
    def told(name, count):
        row = {"generated": "said", "truth": "true", "score": 0.5}
        return {f"{name}{i}": row | {"shown": f"{name}{i}"} for i in range(count)}

    sets = {"verbmem": told("p", 5), "knowmem_forget": told("f", 4), "knowmem_retain": told("r", 4)}
    overrides = [f"evaluation.samples_shown={count}"]
    run, config = make_run(tmp_path, ["unlearn"], overrides=overrides, logs=lambda stage: {"muse": sets})
    found = [sample["question"] for sample in report.samples(run, config, ["unlearn"])]
    assert found == passages + (["f0", "r0"] if count else [])


def test_an_evaluator_is_missing_in_the_table_where_it_failed_at_the_end():
    failed = [Failure("unlearn", 1, "round", "ruler", "early"), Failure("unlearn", 2, "end", "muse", "late")]
    failed += [Failure("local", i, "end", "muse", "gone") for i in (0, 1)]
    metrics = {"unlearn": {"forget_prob": 0.5}, "local": {"forget_prob": 0.25}}
    table = report.comparison(metrics, failed=failed)
    assert [list(row) for row in table.rows if row and row[0] == "not measured"] == (
        [["not measured", "muse", "failed: late", "failed: gone (2 clients)"]]
    )


@pytest.mark.parametrize(
    ("mode", "frozen", "said"), [("lora", 0, "25 (20.00%"), ("lora", 25, "25 (16.67%"), ("full", 0, "25 (25.00%")]
)
def test_the_share_that_is_trained_is_one_of_all_parameters(mode, frozen, said):
    """Adapters come on top of the base model's 100."""
    rows = dict(
        report.trained(
            configuration.compose("smoke", [f"model.mode={mode}"]),
            Estimate(100, 25, frozen, Need(()), Need(()), 1, False, 0),
        )
    )
    assert rows["trainable parameters"].startswith(said)
    assert ("frozen adapter parameters" in rows) is bool(frozen)
    assert rows["sent per client and exchange"] == "100 B there, 100 B back (float32)"


def test_a_log_without_texts_or_sets_has_no_samples(tmp_path):
    def logs(stage):
        return {"eval_log": {"avg_gt_loss": {"0": 1.0}}, "ids": {"eval_log": ["x"]}}

    run, config = make_run(tmp_path, ["finetune"], logs=logs)
    assert report.samples(run, config, ["finetune"]) == []
    assert "Sample answers" not in summary(run, config)


def test_a_chat_prompt_is_replaced_by_the_question_of_its_record(tmp_path):
    data = tmp_path / "mine.jsonl"
    rows = [{"id": f"m{i}", "question": f"Who is {i}?", "answer": "Me.", "forget": i == 0} for i in range(3)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def logs(stage):
        log = log_of(stage)
        prompt = "system\n\nBe kind.user\n\nWho is 0?assistant\n\n"
        log["eval_log_forget"]["generated_text"] = {"0": [prompt, "It", "Me."]}
        log["ids"]["eval_log_forget"] = ["m0"]
        return log

    run, config = make_run(tmp_path, ["finetune"], overrides=["data=jsonl", f"data.path={data}"], logs=logs)
    config.model.template.kind = "chat"
    assert report.samples(run, config, ["finetune"])[0]["question"] == "Who is 0?"
    data.unlink()
    assert "Who is 0?" in report.samples(run, config, ["finetune"])[0]["question"], "the prompt, when the data are gone"


def test_without_looking_up_questions_are_told_from_the_prompts(tmp_path, monkeypatch):
    def logs(stage):
        log = log_of(stage)
        said = log["eval_log_forget"]["generated_text"]
        for i, (_, answer, truth) in said.items():
            said[i] = [f"system\nBe kind.\nuser\nWho is {i}?\nassistant\n", answer, truth]
        return log

    run, config = make_run(tmp_path, ["finetune"], logs=logs)
    config.model.template.kind = "chat"
    monkeypatch.setattr(report, "corpus_of", lambda config: pytest.fail("the data lie outside the run"))
    assert report.samples(run, config, ["finetune"], look_up=False)[0]["question"] == "Who is 0?"


def test_long_empty_and_unprintable_answers(tmp_path):
    long = "word " * 400
    texts = {"finetune": long, "retrain": "\x1b[31mred\x07\n\nline", "unlearn": ""}

    def logs(stage):
        log = log_of(stage)
        log["eval_log_forget"]["generated_text"]["0"][1] = texts[stage]
        return log

    run, config = make_run(tmp_path, logs=logs, overrides=["evaluation.samples_shown=1"])
    text = summary(run, config)
    assert "\x1b" not in text and "\x07" not in text and "[31mred line" in text
    assert "(empty)" in text and "…" in text
    assert text.count("word") < 60, "cut on the terminal"
    page = Page(run, config)
    assert page.text.count("word") >= 400, "whole in the page"
    assert "(empty)" in page.text


# -- requests ------------------------------------------------------------------------------------------------------


def test_the_line_on_requests(tmp_path):
    run, config = make_run(tmp_path, ["finetune"])
    assert report.requests_line(run) == ""
    ask(run)
    line = "2 deletion requests for 3 records: 1 pending, 1 verified (known before, and no more)"
    assert report.requests_line(run) == line
    assert line in summary(run, config)
    rows = next(t for t in Page(run, config).tables if t[0][0] == "request")
    assert rows[1] == ["r0", "client 0: 2 records “its share” from round 1 on", "verified served in round 1"]
    assert rows[2] == ["r1", "client 1: 1 record “its share” from round 2 on", "pending"]


@pytest.mark.parametrize(("count", "end"), [(1, "r0"), (5, "r4"), (6, "r4 and 1 more"), (9, "r4 and 4 more")])
def test_of_many_unverified_requests_five_are_named(tmp_path, count, end):
    run, _ = make_run(tmp_path)
    ledger = Ledger(run.ledger_path)
    for i in range(count + 1):
        ledger.submit(Request(f"r{i}", 0, (f"i{i}",), 1))
        ledger.served(f"r{i}", 1)
        ledger.verified(f"r{i}", 2, Judgement("inconclusive" if i < count else "verified", "why", 0.9), 0.5)
    (line,) = report.unverified_lines(run)
    assert line.startswith("inconclusive: r0") and line.endswith(f"{end}: why")


def test_the_kinds_of_requests_that_were_served(tmp_path):
    run, config = make_run(tmp_path, ["finetune"])
    ledger = Ledger(run.ledger_path)
    about = {"scope": "subject", "subject": "<b>Mara</b>", "group": "s"}
    requests = [
        *(Request(f"s-{c}", c, (f"m{c}",), 1, **about) for c in (1, 2, 3)),
        Request("s-4", 4, (), 1, already=1, **about),
        *(Request(f"l-{c}", c, (f"l{c}", f"k{c}"), 1, scope="client") for c in (5, 6, 7)),
        Request("p", 8, ("p", "q"), 1),
    ]
    for request in requests:
        ledger.submit(request)
        if request.id not in ("l-7", "s-4"):
            ledger.served(request.id, 1)
            failed = request.id == "p"
            found = Judgement("not verified" if failed else "verified", "", 0.9 if failed else 0.1)
            ledger.verified(request.id, 2, found, 0.5)
    ledger.failed("l-7", 2, "needs retain <records>")
    assert report.requests_line(run) == (
        "8 deletion requests for 11 records: 1 covered, 1 not verified, 1 pending, 5 verified (known before, "
        "and no more); served: 2 clients left, 1 subject on 3 clients, 2 single records"
    )
    page = Page(run, config)
    assert report.requests_line(run) in page.text
    rows = {row[0]: row for row in next(t for t in page.tables if t[0][0] == "request")[1:]}
    one = "one demand with all requests of s"
    assert rows["s-1"][1] == f"client 1: 1 record about <b>Mara</b> from round 1 on; {one}"
    assert rows["l-5"][1] == "client 5: leaves, with all its records (2 records) from round 1 on"
    assert rows["l-7"][2] == "pending 1 failed attempt; last failure: needs retain <records>"
    assert rows["s-4"][1:] == [
        f"client 4: 0 records about <b>Mara</b> from round 1 on; 1 more record had been asked for before; {one}",
        "covered",
    ]
    assert rows["p"][2] == "not verified served in round 1"


# -- the page ------------------------------------------------------------------------------------------------------


def test_hostile_texts_stay_texts(tmp_path):
    def logs(stage):
        log = log_of(stage, text=HOSTILE)
        log["eval_log"]["generated_text"]["0"] = [f"Question: {HOSTILE}\nAnswer:", HOSTILE, HOSTILE]
        return log

    run, config = make_run(tmp_path, logs=logs)
    config.model.name = HOSTILE
    ask(run, reason=HOSTILE)
    page = Page(run, config)
    assert not {"script", "img", "iframe", "object", "embed"} & {tag for tag, _ in page.tags}
    assert page.text.count(HOSTILE) >= 3 + 2 + 2 + 1, "answers, question and truth, requests, model"
    assert summary(run, config).count("[red]") >= 4, "markup of the terminal is text, too"


def test_the_page_needs_no_network(whole):
    run, page = whole
    assert page.source.startswith("<!doctype html>") and "<svg" in page.source
    assert not {"script", "link", "img", "iframe", "image", "base"} & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            if not name.startswith("xmlns"):
                assert "//" not in (value or ""), (tag, name, value)
            if name in ("src", "href", "xlink:href", "data", "action"):
                assert value.startswith("#") or (run.path / value).is_file(), (tag, name, value)
    style = "".join(page.source.split("<style")[1:])
    assert "@import" not in style and "url(http" not in style and "@font-face" not in style


def test_curves_mark_the_rounds_with_requests(whole):
    _, page = whole
    figures = [part.split("</svg>")[0] for part in page.source.split("<svg")[1:]]
    assert ["requests served" in f for f in figures] == [True] * 2, "one of Prob, and folded one of ROUGE-L recall"
    assert ["ROUGE-L recall" in f for f in figures] == [False, True]
    assert all("forget" in f and "retain" in f for f in figures)


def test_curves_do_without_what_was_not_measured(tmp_path):
    def few(stage):
        return {"retain_prob": 0.5} if stage == "finetune" else {"unrelated": 1.0}

    run, config = make_run(tmp_path, metrics=few, logs=lambda stage: {})
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        page = Page(run, config)
    assert page.source.count("<svg") == 1
    (run.path / "metrics.jsonl").unlink()
    assert "No curves: no forget or retain answers were measured." in Page(run, config).text


def test_every_measure_is_explained_on_hover(whole):
    _, page = whole
    titles = [attributes.get("title", "") for tag, attributes in page.tags if tag == "abbr"]
    assert len(titles) >= 14 and all(len(title) > 40 for title in titles)


# -- lists ---------------------------------------------------------------------------------------------------------


def listed(folder):
    out = io.StringIO()
    report.print_runs(folder, Console(file=out, width=160))
    return out.getvalue()


def test_runs_are_listed_with_how_far_they_came(tmp_path):
    assert listed(tmp_path) == f"no runs in {tmp_path}\n"
    run, _ = make_run(tmp_path, ["finetune"], overrides=["stages=[finetune,retrain,local]"])
    folder = run.path / "checkpoints" / "retrain"
    folder.mkdir(parents=True)
    (folder / "round-0001.safetensors").touch()
    run.append_metrics([{"stage": "local", "round": client, "metrics": {}} for client in (0, 0, 1)])
    broken = tmp_path / "runs" / "broken"
    broken.mkdir()
    (broken / "config.yaml").write_text("federation: {clients: many}\n")
    text = listed(tmp_path / "runs")
    assert "finetune ✓, retrain 1/2, local 2/2" in text
    assert "broken" in text and "cannot be read" in text


@pytest.mark.parametrize(("local", "said"), [("null", "local 2/6"), ("3", "local 2/3")])
def test_the_stage_local_counts_the_clients_that_train_alone(tmp_path, local, said):
    given = ["stages=[local]", "federation.clients=6", f"federation.local_clients={local}"]
    run, config = make_run(tmp_path, [], overrides=given)
    run.append_metrics([{"stage": "local", "round": client, "metrics": {}} for client in (0, 1)])
    assert report.progress(run, config, "local") == said


def described(clients, records=120):
    train = tuple(Record(f"r{i}", f"q{i}", "a", f"s{i % 7}") for i in range(records))
    corpus = Corpus("made", train, frozenset(f"r{i}" for i in range(0, 30, 3)), {"forget": train[:3]})
    shares = partition(corpus, scheme="iid", clients=clients)
    out = io.StringIO()
    data_report.print_data(corpus, shares, Console(file=out, width=100))
    return out.getvalue(), corpus, shares


def test_every_client_of_few_has_a_row():
    text, corpus, shares = described(30)
    rows = {row[0]: row[1:] for row in cells(text) if len(row) == 4}
    assert len(rows) == 30
    for client, ids in enumerate(shares.ids):
        forget = sum(i in corpus.forget_ids for i in ids)
        assert rows[str(client)][0] == str(len(ids)) and rows[str(client)][2] == (str(forget) if forget else "·")
    holders = sum(any(i in corpus.forget_ids for i in ids) for ids in shares.ids)
    assert f"30 clients, {holders} of them with records to forget" in text
    assert "10 (8.3%)" in text and "questions forget" in text


def test_many_clients_are_summed_up():
    text, corpus, shares = described(50)
    rows = {row[0]: row[1:] for row in cells(text) if len(row) == 4}
    assert set(rows) == {"records", "subjects", "to forget"}
    assert rows["records"] == ["2", "2", "3"]
    most = max(sum(i in corpus.forget_ids for i in ids) for ids in shares.ids)
    assert rows["to forget"] == ["0", "0", str(most)]
    assert len(text.splitlines()) < 25


# -- ROUGE of texts that it cannot read ----------------------------------------------------------------------------

WHY = "the paper's ROUGE reads Latin letters and digits alone; evaluation.rouge=any_script reads others"
UNREAD = ("forget_rouge", "retain_rouge", "model_utility")


@pytest.fixture
def unread(tmp_path):
    """A finished run whose ROUGE is left out, with the note that says why."""
    run, config = make_run(
        tmp_path, metrics=lambda stage: {k: v for k, v in metrics_of(stage).items() if k not in UNREAD}
    )
    for stage in STAGES:
        known = run.stage_summary(stage) or {}
        run.finish_stage(stage, {**known, "notes": dict.fromkeys(UNREAD, WHY)}, log_of(stage))
    return run, config


@pytest.mark.parametrize("full", [True, False])
def test_a_rouge_that_is_left_out_is_a_dash_with_its_reason_on_the_terminal(unread, full):
    text = summary(*unread, full=full)
    found = {(row[0], row[1]): row[2:] for row in cells(text)}
    assert found["Forget", "ROUGE-L recall"] == found["Retain", "ROUGE-L recall"] == ["–"] * 3
    assert found["All but forget", "Model utility"] == ["–"] * 3
    words = " ".join(text.split())
    assert f"Forget ROUGE-L recall, Retain ROUGE-L recall, Model utility: {WHY}." in words
    assert "nothing on utility: retain ROUGE is left out" in words and "utility 0%" not in words


def test_and_on_the_page(unread):
    page = Page(*unread)
    table = next(t for t in page.tables if t and t[0][:2] == ["questions", "measure"])
    dashes = [row[1] for row in table if row[2:] == ["–"] * 3]
    assert dashes == ["ROUGE-L recall", "ROUGE-L recall", "Model utility"]
    assert f"Forget ROUGE-L recall, Retain ROUGE-L recall, Model utility: {WHY}." in page.text


def test_and_null_in_the_document(unread):
    told = json.loads(json.dumps(plain(run_document(*unread)), allow_nan=False))
    assert {told["metrics"][stage][name] for stage in STAGES for name in UNREAD} == {None}
    assert told["notes"] == {stage: dict.fromkeys(UNREAD, WHY) for stage in STAGES}
    assert told["metrics"]["unlearn"]["retain_prob"] == metrics_of("unlearn")["retain_prob"]


def test_and_in_a_model_card(unread):
    run, config = unread
    lines = "\n".join(model_card.measured(run, config))
    assert "| Retain | ROUGE-L recall | – | – | – |" in lines and WHY in lines.replace("\\", "")


def test_a_run_without_notes_says_nothing_of_them(whole):
    run, _ = whole
    assert report.stage_notes(run) == {} and report.note_lines({}) == []


def test_words_of_every_script_are_named_where_rouge_is(tmp_path):
    run, config = make_run(tmp_path, overrides=["evaluation.rouge=any_script"], metrics=collapsed)
    assert "utility (words of every script) 33% of the finetuned model's" in " ".join(summary(run, config).split())
    (warning,) = [w.text for w in find_warnings(run, config) if w.kind == "collapsed utility"]
    assert warning.startswith("Model utility (words of every script) collapsed: 0.300")
    assert ["ROUGE", "words of every script"] in [[term, text] for term, text in facts_of(Page(run, config).source)]


def collapsed(stage):
    return {"forget_prob": 0.5, "model_utility": {"finetune": 0.9, "unlearn": 0.3, "retrain": 0.5}[stage]}


def facts_of(source):
    """The terms of the page's first list and what stands beside them."""
    return re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", source)


@pytest.mark.parametrize("units", [1, 2])
def test_answers_too_short_to_be_recited_are_told(units):
    """It takes two words to say that an answer was recited."""
    records = (Record("short", "Q?", " ".join(["ost"] * units), "Ann"), Record("long", "Q?", "a b c d e", "Ann"))
    lines = data_report.unfit(Corpus("made", records, frozenset()), configuration.compose("smoke"))
    assert any("cannot be verified by recitation" in line and line.endswith("ids short") for line in lines) is (
        units < 2
    )


def test_texts_longer_than_a_model_takes_are_told():
    corpus = Corpus("made", (Record("one", "Q?", "word " * 5000, "Ann"),), frozenset())
    for given, fate in ((["model.on_overflow=error"], "a run refuses them"), ([], "their ends are cut off")):
        config = configuration.compose("smoke", ["model.on_overflow=truncate", *given])
        head, line, *_ = data_report.unfit(corpus, config)
        assert (
            head == f"1 text longer than model.max_length={config.model.max_length} tokens; {fate}:" and "one" in line
        )


@pytest.mark.parametrize("odd", [False, True])
def test_a_model_is_told_in_rows(odd):
    """With what is trained and sent where the need is known; what does not apply has no row or says so."""
    template = Example("chat" if odd else "plain", "Q", "A", 1, 1, "</s>")
    facts = ModelFacts(
        name="tiny",
        source="embedded",
        fingerprint="f0",
        architecture="Llama",
        model_type="llama",
        parameters=1_000,
        dtype="float32",
        stored_dtype="bfloat16" if odd else "float32",
        vocabulary_rows=2_000,
        tokens=1_999,
        tied_head=odd,
        context=None if odd else 4_096,
        linear_layers=("q", "v"),
        template_variables=(),
        way="packed",
        way_limit=512 if odd else None,
        way_beyond="one by one",
        way_reason="it is small",
        way_cost="nothing",
        example=template,
    )
    config = configuration.compose("smoke")
    need = Estimate(1_000, 200, 40 if odd else 0, Need(()), Need(()), 1, False, 0)
    out = io.StringIO()
    report.print_model(config, facts, need, Console(file=out, width=120))
    rows = [[c.strip() for c in line.strip("│").split("│")] for line in out.getvalue().splitlines() if "│" in line]
    found = dict(rows)
    assert out.getvalue().startswith("model tiny") and next(iter(found)) == "source" and found["source"] == "embedded"
    assert found["architecture"] == "Llama (llama)" and found["base parameters"] == "1,000"
    assert found["base weights"] == f"{config.model.dtype}{', stored in bfloat16' if odd else ''}"
    assert found["embedding"] == f"2,000 rows, {'also the head' if odd else 'not the head'}"
    assert found["vocabulary"] == "1,999 tokens" and found["context"] == ("no limit" if odd else "4,096 tokens")
    assert found["run"] == f"packed{'; beyond 512 tokens one by one' if odd else ''} (it is small)"
    assert found["what that costs"] == "nothing" and found["linear layers"] == "q, v" and found["fingerprint"] == "f0"
    assert found.get("template's arguments") == ("none" if odd else None)
    share = 200 / (1_240 if odd else 1_200)
    assert found["trainable parameters"].startswith(f"200 ({share:.2%}, lora, aggregation ")
    assert found.get("frozen adapter parameters", "").startswith("40 (A") is odd
    assert found["sent per client and exchange"] == "800 B there, 800 B back (float32)"
    out = io.StringIO()
    report.print_model(config, facts, None, Console(file=out, width=36))
    assert "│ base parameters" in out.getvalue(), "what it is about stays whole on a narrow terminal"
    assert "trainable" not in out.getvalue()


def test_what_was_served_by_kind():
    def asked(client, count, scope, group=""):
        return Request(f"{client}{scope}{group}", client, tuple(map(str, range(count))), 1, scope=scope, group=group)

    single = [asked(0, 2, "records"), asked(1, 1, "records")]
    about = [asked(1, 1, "subject", "ivo"), asked(2, 1, "subject", "ivo"), asked(2, 1, "subject", "ada")]
    assert report.served_kinds(single) == ""
    assert report.served_kinds(about) == "2 subjects on 2 clients"
    leaving = [asked(3, 4, "client")]
    assert (
        report.served_kinds([*single, *about, *leaving]) == "1 client left, 2 subjects on 2 clients, 3 single records"
    )
    assert report.served_kinds(leaving) == "1 client left"


@pytest.mark.parametrize(
    ("overrides", "share"), [([], "10.00%, lora, aggregation "), (["model.mode=full"], "11.11%, full)")]
)
def test_what_is_trained_is_a_share_of_what_there_is(overrides, share):
    """Of 900 parameters of the base model and 100 beside it, or of the 900 alone."""
    config = configuration.compose("smoke", overrides)
    need = Estimate(900, 100, 0, Need(()), Need(()), 1, False, 0)
    rows = dict(report.trained(config, need))
    assert rows["trainable parameters"].startswith(f"100 ({share}") and "frozen adapter parameters" not in rows


@pytest.mark.parametrize(
    ("quantization", "double", "said"),
    [
        ("none", True, "float32"),
        ("int8", True, "int8; float32 where not quantised"),
        ("nf4", True, "nf4, double quantisation; float32 where not quantised"),
        ("nf4", False, "nf4; float32 where not quantised"),
    ],
)
def test_how_the_base_weights_are_kept(quantization, double, said):
    config = configuration.compose("smoke")
    config.model.quantization, config.model.double_quantization = quantization, double
    assert report.number_format(config) == said


@pytest.mark.parametrize(
    ("total", "count", "positions"),
    [(0, 3, []), (5, 0, []), (5, 1, [0]), (5, 2, [0, 4]), (5, 3, [0, 2, 4]), (9, 4, [0, 3, 5, 8]), (2, 9, [0, 1])],
)
def test_positions_are_spread_from_the_first_to_the_last(total, count, positions):
    assert report.spread(total, count) == positions


def test_a_prompt_loses_what_the_template_puts_around_the_question():
    template = configuration.compose("smoke").model.template
    assert report.question_of("Question: Who?\nAnswer:", template) == "Who?"
    assert report.question_of(" bare ", template) == "bare"
    template.kind = "chat"
    assert report.question_of(" Question: Who?\nAnswer: ", template) == "Question: Who?\nAnswer:"


def test_answers_of_texts_are_those_of_the_models_that_were_asked(tmp_path):
    """The finetuned model was not asked the second question, and the retrained one was asked nothing."""

    def logs(stage):
        rows = {"0": {"shown": "a", "truth": "A"}, "1": {"shown": "b", "truth": "B"}}
        told = {k: {**v, "generated": f"{stage} {k}"} for k, v in rows.items() if stage == "unlearn" or k == "0"}
        return {} if stage == "retrain" else {"rwku": {"forget_questions": told}}

    run, config = make_run(tmp_path, ["unlearn", "finetune", "retrain"], logs=logs)
    (sample,) = report.samples(run, config, ["unlearn", "finetune", "retrain"])
    answers = {"unlearned": "unlearn 0", "finetuned": "finetune 0"}
    assert sample == {"set": "Forget", "question": "a", "truth": "A", "answers": answers}


def test_a_question_that_one_model_was_not_asked_has_no_answer_of_it(tmp_path):
    def logs(stage):
        of = {"shown": "a", "truth": "A", "generated": stage}
        return {"muse": {"verbmem": {key: of for key in ("0", "1")[: 1 + (stage == "unlearn")]}}}

    overrides = ["evaluation.samples_shown=2"]
    run, config = make_run(tmp_path, ["unlearn", "finetune"], logs=logs, overrides=overrides)
    first, second = report.samples(run, config, ["unlearn", "finetune"])
    assert list(first["answers"]) == ["unlearned", "finetuned"] and list(second["answers"]) == ["unlearned"]


def test_a_log_without_ids_or_with_fewer_questions_still_has_samples(tmp_path):
    def logs(stage):
        log = log_of(stage, questions=4 if stage == "unlearn" else 1)
        return log | {"ids": {}}

    run, config = make_run(tmp_path, ["unlearn", "finetune"], logs=logs, overrides=["evaluation.samples_shown=2"])
    _, last, *_ = report.samples(run, config, ["unlearn", "finetune"])
    assert (last["question"], list(last["answers"])) == ("Where does Di live?", ["unlearned"])


def test_long_texts_are_folded_into_a_column_of_their_own():
    """What is longer than the column goes on below; no name of a set or a model is broken."""
    sample = {"set": "Real authors", "question": "word " * 20, "truth": "T", "answers": {"unlearned": ""}}
    lines = shown(report.samples_table([sample]), width=50).splitlines()
    assert lines[0] == "Sample answers" and all(len(line) == 50 for line in lines[1:-1] if "word" in line)
    assert any(line.startswith("│ Real authors │ question  │ word") for line in lines)
    assert any(line.startswith("│              │ unlearned │ (empty)") for line in lines)
    assert not any("set" in line or "who" in line for line in lines), "no headings"


def test_which_evaluators_failed_is_told_of_the_first_five(tmp_path):
    run, _ = make_run(tmp_path)
    rows = [
        {"stage": "unlearn", "round": n, "moment": "end", "evaluator": f"e{n}", "metrics": {}, "error": "no"}
        for n in range(6)
    ]
    run.append_metrics(rows[:5])
    assert len(report.failure_lines(run)) == 5 and report.failure_lines(run)[0].startswith("failed: e0 in unlearn")
    run.append_metrics(rows[5:])
    assert report.failure_lines(run)[5:] == ["and 1 more; metrics.jsonl has all"]


def test_the_comparison_marks_doubts_and_leaves_out():
    """Without a value where an evaluator failed it says so; elsewhere it is a dash."""
    metrics = {
        "finetune": {"forget_prob": 0.5, "forget_quality": 0.01, "ruler_mean_rank": 0.6},
        "unlearn": {"forget_prob": 0.25, "forget_quality": 0.5},
    }
    failed = [Failure("unlearn", 2, "end", "ruler", "late"), Failure("finetune", 1, "round", "tofu", "early")]
    table = report.comparison(
        metrics, "T", {"forget_prob": "↓", "forget_quality": ""}, doubted=["forget_quality"], failed=failed
    )
    assert [None if row is None else [str(cell) for cell in row] for row in table.rows] == [
        ["Forget", "Prob", "0.500", "↓ 0.250"],
        ["Forget", "Forget quality (KS p)", "(0.010)", "(0.500)"],
        None,
        ["Forget, RULER", "Mean rank (null 0.5)", "0.600", "failed"],
        ["not measured", "ruler", "", "failed: late"],
    ]
    styles = [getattr(row[3], "style", "") for row in table.rows if row]
    assert styles == ["alarm", "", "alarm", "alarm"] and (table.title, table.note, table.framed) == ("T", "", True)
    assert [(str(c), getattr(c, "term", None)) for c in table.columns] == [
        *(("questions", None), ("measure", None)),
        *(("finetuned", "Finetuned model"), ("unlearned", "Unlearned model")),
    ]
    few = report.comparison(metrics, headline=True)
    assert [row and row[1] for row in few.rows] == ["Prob"]


def test_notes_stand_below_and_keep_the_rows_that_they_are_about():
    notes = {"unlearn": {"forget_rouge": "odd", "muse_privleak": "unknown"}, "retrain": {"forget_rouge": "odd"}}
    metrics = {"unlearn": {"forget_prob": 0.5}, "retrain": {}}
    table = report.comparison(metrics, notes=notes)
    assert ["Forget", "ROUGE-L recall", "–", "–"] in [list(row) for row in table.rows if row]
    assert table.note.startswith("Forget ROUGE-L recall: odd.")
    assert report.note_lines(notes, ["forget_rouge"]) == ["Forget ROUGE-L recall: odd."]
    assert len(report.note_lines(notes)) == 2 and report.note_lines(notes, []) == []


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (Request("r", 0, ("a",), 1, scope="client"), "all: the client leaves"),
        (Request("r", 0, ("a",), 1, scope="subject", subject="Ivo"), "subject Ivo"),
        (Request("r", 0, ("a",), 1, scope="subject"), "subject known to the client"),
        (Request("r", 0, ("a",), 1), "records"),
    ],
)
def test_what_a_request_is_about(request_, kind):
    assert report.request_kind(request_) == kind


@pytest.mark.parametrize(("entropy", "said"), [((0.0, 0.0), "npo"), ((0.5, 0.25), "npo + entropy(0.5, 0.25)")])
def test_the_method_names_the_weights_of_its_entropy_term(entropy, said):
    config = configuration.compose("smoke")
    config.unlearning.entropy.forget, config.unlearning.entropy.retain = entropy
    assert report.method(config) == said


def test_figures_that_unlearning_knew_of_other_models_stand_beside_theirs(tmp_path):
    run, _ = make_run(tmp_path, metrics=lambda stage: {"forget_prob": 0.5})
    told = {"stage": "unlearn", "metrics": {}, "ruler": {"lens_1": {"finetune": {"gap": 0.25}, "local": {"gap": 1.0}}}}
    run.finish_stage("unlearn", told, log_of("unlearn"))
    found = report.stage_metrics(run)
    assert found["finetune"]["ruler_gap"] == 0.25 and "ruler_gap" not in found["retrain"] and "local" not in found


def test_a_whole_run_without_figures_says_no_more_than_its_name(tmp_path):
    """Of clients that keep their records the server measures nothing."""
    run, config = make_run(tmp_path, metrics=lambda stage: {}, logs=lambda stage: {})
    text = summary(run, config, full=False)
    assert "made: tiny · fictitious" in text and "measure" not in text.split("run directory")[0] and "┃" not in text
    assert "How to read it" not in summary(run, config)


def test_a_measure_that_no_model_has_has_no_row_unless_it_is_noted():
    metrics = {"finetune": {"forget_prob": 0.5, "forget_rouge": None}, "unlearn": {"retain_prob": None}}
    assert [key for key, *_ in report.rows(metrics)] == ["forget_prob"]
    assert [key for key, *_ in report.rows(metrics, noted=["retain_prob"])] == ["forget_prob", "retain_prob"]


def test_how_to_read_it_is_told_as_soon_as_one_model_was_measured(tmp_path):
    def metrics(stage):
        return {"forget_prob": 0.5} if stage == "unlearn" else {}

    run, config = make_run(tmp_path, metrics=metrics, logs=lambda stage: {})
    assert "How to read it: " in summary(run, config)


def test_a_run_whose_configuration_is_no_text_is_listed(tmp_path):
    run, _ = make_run(tmp_path, [])
    (run.path / "config.yaml").write_bytes(b"\xff")
    assert "its config.yaml cannot be read" in listed(tmp_path / "runs")


def test_a_stage_that_was_stopped_before_its_summary_is_compared_with_nothing(tmp_path):
    """Its log is written first."""
    run, _ = make_run(tmp_path)
    (run.path / "stages" / "retrain.json").unlink()
    assert "forget_quality" not in report.stage_metrics(run)["finetune"]


def test_without_logs_the_data_are_not_looked_into(tmp_path, monkeypatch):
    run, config = make_run(tmp_path, [])
    config.model.template.kind = "chat"
    monkeypatch.setattr(report, "corpus_of", lambda config: pytest.fail("there is nothing to show"))
    assert report.samples(run, config, ["unlearn"]) == []
