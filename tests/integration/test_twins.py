"""Runs in which what is to be forgotten also lies among what stays: what is told, and what is concluded."""

import io
import json

import pytest
from rich.console import Console
from support.commands import call
from support.nodes import records, write_lines, write_nodes
from support.stages import Recorded, execute

from evaluation.metrics.retrained_comparison import Verdict
from oblivionis.config import compose as configuration
from oblivionis.data.datasets import fictitious
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.retained_twins import read_twins
from oblivionis.erasure.verification_records import judgement_of
from oblivionis.erasure.verification_rules import (
    INCONCLUSIVE,
    MEANING,
    NOT_TESTABLE,
    NOT_VERIFIED,
    Thresholds,
    of_twins,
)
from oblivionis.measures.audit_numbers import read_audit
from oblivionis.models.configured_corpus import corpus_of
from oblivionis.reports.certificate import signing as certificates
from oblivionis.reports.certificate.checks import run_checks
from oblivionis.reports.certificate.evidence import gather
from oblivionis.reports.html import run_page
from oblivionis.reports.run_outcome import COMPARED, DOUBTFUL, outcome
from oblivionis.reports.run_summary import print_summary
from oblivionis.reports.warnings import find_warnings
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import RunDirectory

SAID = "2 records to forget are also held, word for word or nearly, by records that stay ("
SETTINGS = [
    *("data=jsonl", "federation.clients=3", "federation.rounds.finetune=2", "federation.rounds.retrain=2"),
    *("federation.rounds.unlearn=2", "evaluation.every=0", "evaluation.at_start=false"),
    *("unlearning.requests.policy=all_at_round", "evaluation.leakage.full_samples=0", "evaluation.leakage.samples=0"),
    *("data.partition.scheme=by_author", "evaluation.rebound.enabled=false"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Made-up authors; the records of the last one are to be forgotten, and two of them lie elsewhere, too."""
    corpus = fictitious.corpus(authors=5, questions_per_author=4, forget_authors=1)
    rows = [
        {
            "id": r.id,
            "question": r.question,
            "answer": r.answer,
            "subject": r.subject,
            "forget": r.id in corpus.forget_ids,
        }
        for r in corpus.train
    ]
    first, second = (row for row in rows if row["forget"] and row["id"].endswith(("q00", "q01")))
    rows.append({**first, "id": "copy-0", "subject": "somebody else", "forget": False})
    words = second["answer"].split()
    words[1] = "indeed"
    rows.append({**second, "id": "copy-1", "subject": "somebody else", "answer": " ".join(words), "forget": False})
    file = tmp_path_factory.mktemp("data") / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def start(folder, file, name, *overrides):
    config = configuration.compose(
        "smoke", [*SETTINGS, f"data.path={file}", f"output={folder}", f"name={name}", *overrides]
    )
    run = RunDirectory.create(folder, name)
    run.write_config(configuration.to_yaml(config))
    events = Recorded()
    execute(config, run, events=events)
    run_page.write_html(run, config)
    return run, config, events


@pytest.fixture(scope="module")
def with_twins(data, tmp_path_factory):
    return start(tmp_path_factory.mktemp("stay"), data, "stay")


@pytest.fixture(scope="module")
def without_twins(data, tmp_path_factory):
    return start(tmp_path_factory.mktemp("gone"), data, "gone", "data.forget_twins=true")


def pages(run):
    return "\n".join(file.read_text(encoding="utf-8") for file in run.path.rglob("*.html"))


def request_for_the_author(run):
    return next(r for r in Ledger(run.ledger_path) if len(r.record_ids) >= 4)


def test_it_is_told_before_the_run_and_in_the_report(with_twins, data):
    run, config, events = with_twins
    (line,) = [w for w in events.warnings if "also held" in w]
    assert line.startswith(SAID) and "q00 = copy-0" in line and "q01 = copy-1" in line
    assert "also held" in pages(run) and [w.kind for w in find_warnings(run, config)].count("twins") == 1
    described = call("data", "describe", "data=jsonl", f"data.path={data}", "federation.clients=3")
    assert described.code == 0 and SAID in " ".join(described.out.split())
    told = call("data", "describe", "data=jsonl", f"data.path={data}", "federation.clients=3", "--json")
    assert any(remark.startswith(SAID) for remark in json.loads(told.out)["remarks"])


def test_a_schedule_is_told_beforehand_which_of_its_requests_leave_twins(data, tmp_path):
    rows = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines()]
    (subject,) = {row["subject"] for row in rows if row["forget"]}
    schedule = tmp_path / "requests.jsonl"
    schedule.write_text(json.dumps({"round": 1, "subject": subject, "exclude": "all", "id": "art17"}))
    asks = ("unlearning.requests.policy=file", f"unlearning.requests.file={schedule}", "stages=[finetune,unlearn]")
    _, _, events = start(tmp_path, data, "named", *asks)
    (line,) = [w for w in events.warnings if "cannot be verified" in w]
    assert line.startswith("art17-client-") and "also held by records that stay" in line


def test_a_request_with_twins_that_stay_is_inconclusive(with_twins):
    run, _, _ = with_twins
    request = request_for_the_author(run)
    found = judgement_of(run, request.id)
    kept = {record: ids for record, ids in found["twins"].items()}
    assert {ids[0] for ids in kept.values()} == {"copy-0", "copy-1"} and set(found["seen"]) == set(kept)
    assert all(found["records"][i]["oracle"] is None for i in kept)
    assert all(of["oracle"] is not None for i, of in found["records"].items() if i not in kept)
    recited = [i for i, of in found["records"].items() if of["outcome"] == NOT_VERIFIED]
    assert request.outcome == (NOT_VERIFIED if recited else INCONCLUSIVE)
    if not recited:
        assert request.why == "2 of its records are also held by records that stay"


def test_no_sentence_calls_the_retrained_model_one_that_never_saw_them(with_twins):
    run, config, _ = with_twins
    metrics = {stage: run.stage_summary(stage)["metrics"] for stage in COMPARED}
    for verdict in (
        Verdict(0.19, 0.2, 0.4, 0.6, 40),
        Verdict(0.01, 0.2, 1e-6, 1.0, 40),
        Verdict(0.19, 0.2, 0.4, 0.6, 2),
    ):
        found = outcome(run, config, metrics, {"prob": verdict})
        assert "the retrained model, which was trained on twins of 2 of the 4 records" in found.sentence
        assert "never saw" not in found.sentence and found.grade == DOUBTFUL
    out = io.StringIO()
    print_summary(run, config, Console(file=out, width=200), full=True)
    for shown in (pages(run), out.getvalue()):
        told = " ".join(shown.split()).replace(MEANING[NOT_TESTABLE], "")  # what the words mean in any run
        assert "never saw" not in told and "also held" in told
    assert "it was trained on" in pages(run)


def test_nothing_is_certified_of_it(with_twins):
    run, config, _ = with_twins
    request = request_for_the_author(run)
    evidence = gather(run, config, request)
    assert evidence["judgement"]["twins"] == 2 and "copy-0" not in json.dumps(evidence), "the ids of others stay here"
    thresholds = Thresholds.of(config.unlearning.requests, config.certificate)
    checks = {c.name: c for c in run_checks({**evidence, "binding": "", "unnamed": 0}, config.certificate, thresholds)}
    assert checks["oracle"].result == "INCONCLUSIVE" and "trained on 2 of its records" in checks["oracle"].why
    assert checks["rouge"].required and checks["rouge"].result != "PASS"
    assert certificates.create(run, request.id, None, run.path / "out")[1]["result"] != "PASS"


def test_the_ledger_binds_what_is_said_of_twins(with_twins):
    run, _, _ = with_twins
    assert read_twins(run).held == 2 and not artifact_binding.check(run).faults
    file = run.path / "twins.json"
    before = file.read_text()
    file.write_text(before.replace("copy-0", "copy-9"))
    assert any("twins.json is not the file" in fault for fault in artifact_binding.check(run).faults)
    file.unlink()
    assert any("twins.json is gone" in fault for fault in artifact_binding.check(run).faults)
    file.write_text(before)
    assert not artifact_binding.check(run).faults


def test_where_the_twins_are_asked_for_too_there_is_an_oracle_again(without_twins):
    run, config, events = without_twins
    assert not any("also held" in w for w in events.warnings) and not read_twins(run).pairs
    asked = {i for r in Ledger(run.ledger_path) for i in r.record_ids}
    assert asked == corpus_of(config).forget_ids and {"copy-0", "copy-1"} <= asked
    for request in Ledger(run.ledger_path):
        found = judgement_of(run, request.id)
        assert not found["twins"] and not found["seen"]
        assert all(of["oracle"] is not None for of in found["records"].values())
        assert "also held" not in request.why
    assert not [w for w in find_warnings(run, config) if w.kind == "twins"]


def test_a_resumed_run_says_the_same(with_twins, data, tmp_path):
    run, config, _ = start(tmp_path, data, "again", "stages=[finetune]", f"start_from={with_twins[0].path}")
    first = (run.path / "twins.json").read_bytes()
    execute(config, run)
    assert (run.path / "twins.json").read_bytes() == first == (with_twins[0].path / "twins.json").read_bytes()


def test_a_node_looks_for_twins_among_its_own_records_and_tells_their_number(tmp_path):
    """Two clients ask for a record each; the first one keeps another that says the same."""
    nodes = write_nodes(tmp_path / "clients")
    copy = {"id": "secret-copy", "subject": "file 7", "question": "WHERE does Mara Voss live", "answer": "in Ostrava!"}
    write_lines(nodes / "node0" / "data" / "third.jsonl", [copy])
    asked = [{"id": f"of-{c}", "round": 1, "client": c, "record_ids": [f"p{c}-home"]} for c in (0, 1)]
    write_lines(tmp_path / "requests.jsonl", asked)
    place = [f"data.nodes={nodes}", f"output={tmp_path}", "name=nodes", "stages=[finetune,unlearn]"]
    policy = ["unlearning.requests.policy=file", f"unlearning.requests.file={tmp_path / 'requests.jsonl'}"]
    rounds = ["federation.rounds.finetune=1", "federation.rounds.unlearn=1", "federation.fraction_train=1.0"]
    config = configuration.compose("smoke", ["data=node", "federation.clients=3", *place, *policy, *rounds])
    run = RunDirectory.create(tmp_path, "nodes")
    run.write_config(configuration.to_yaml(config))
    execute(config, run)
    first, second = Ledger(run.ledger_path)
    assert [read_audit(run.path, r.id)["final"]["request_twins"] for r in (first, second)] == [1, 0]
    assert (first.outcome, first.why) == (INCONCLUSIVE, "1 of its records is also held by records that stay")
    assert "also held" not in second.why
    assert not (run.path / "twins.json").exists(), "the server has no records"
    told = [f for f in run.path.rglob("*") if f.is_file() and b"secret-copy" in f.read_bytes()]
    assert not told, "which record it is stays with the client"
    assert certificates.create(run, first.id, None, tmp_path / "out")[1]["result"] != "PASS"
    marked = [{**row, "forget": row["id"] == "p0-home"} for row in records(0)[:2]]
    write_lines(nodes / "node0" / "data" / "first.jsonl", marked)
    looked = [f"data.nodes={nodes}", "federation.clients=3", "unlearning.requests.policy=nodes", "--json"]
    described = json.loads(call("data", "describe", "data=node", *looked).out)
    assert [(node["forget"], node["twins"]) for node in described] == [(1, 1), (0, 0), (0, 0)]


def test_a_certificate_of_an_exact_erasure_says_that_records_that_stay_hold_the_same(data, tmp_path):
    run, _, _ = start(tmp_path, data, "exact", "unlearning=exact", "strategy=fedavg", "stages=[finetune,unlearn]")
    (request,) = [r for r in Ledger(run.ledger_path) if "q00" in " ".join(r.record_ids)]
    folder, certificate = certificates.create(RunDirectory.open(run.path), request.id, None)
    (check,) = [c for c in certificate["requests"][0]["checks"] if c["name"] == "rounds"]
    held = check["figure"]["records also held by records that stay"]
    assert held >= 1 and check["why"].endswith(of_twins(held))
    assert of_twins(held) in (folder / certificates.PAGE_FILE).read_text(encoding="utf-8")
    assert any("same text among records of other clients" in line for line in certificate["exact"]["not_said"])
