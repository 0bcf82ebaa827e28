"""Sealed requests in a whole run: what the server's files say, the node's own verdict, and certificates."""

import json
import shutil
import threading

import pytest
from support.commands import call
from support.inprocess import InProcessGrid
from support.nodes import write_nodes
from support.stages import Recorded

from oblivionis.chain import append_linked, check_chain
from oblivionis.client.app import app
from oblivionis.config import compose as configuration
from oblivionis.erasure.node_key import audit_bytes, audit_key, public_hex
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.verification_rules import OUTCOMES
from oblivionis.reports.html import run_page as html_report
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import RunDirectory, vector_hash
from oblivionis.server.app import serve
from strategies import message_keys

CLIENTS, ASKS = 4, 1
SETTINGS = (
    "data=node",
    "stages=[finetune, unlearn]",
    f"federation.clients={CLIENTS}",
    "federation.fraction_train=1.0",
    "federation.secure_aggregation.enabled=true",
    "unlearning.cover=4",
    "federation.timeout=8",
    "federation.rounds.finetune=1",
    "federation.rounds.unlearn=2",
    "unlearning.requests.policy=nodes",
    "certificate.required=[rouge]",
)


class Dropping:
    """The answer of client `ASKS` to the first FedTU exchange is lost on the way."""

    def __init__(self):
        self.lost = 0

    def __call__(self, partition, message, reply):
        if partition == ASKS and message.metadata.message_type == message_keys.UNLEARN and not self.lost:
            self.lost += 1
            return None
        return reply


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    home = tmp_path_factory.mktemp("sealed")
    write_nodes(home / "nodes", CLIENTS)
    folders = [home / "nodes" / f"node{client}" for client in range(CLIENTS)]
    config = configuration.compose("smoke", [*SETTINGS, f"output={home}", "name=clinics"])
    run = RunDirectory.create(home, "clinics")
    run.write_config(configuration.to_yaml(config))
    grid = InProcessGrid(app, CLIENTS, Dropping())
    for context in grid.contexts.values():
        folder = folders[context.node_config["partition-id"]]
        (folder / "node.toml").write_text("[requests]\nsealed = true\n")
        context.node_config["node-dir"] = str(folder)
    command = ("request", "submit", "--node-dir", folders[ASKS], "--reason", "by letter")
    assert call(*command, "--subject", "Ivo Lind", "--id", "art17").code == 0
    assert call(*command, "--ids", "p5-job", "--id", "other").code == 0
    events = Recorded()
    serve(config, grid, run, events, threading.Event())
    assert not events.warnings, events.warnings
    assert [client for _, client, _ in events.left_out] == [ASKS]
    return run, folders


@pytest.fixture
def copy(finished, tmp_path):
    """The run and the folder of the client that asked, to be tampered with."""
    run, folders = finished
    shutil.copytree(run.path, tmp_path / "clinics")
    shutil.copytree(folders[ASKS], tmp_path / "node")
    return RunDirectory.open(tmp_path / "clinics"), tmp_path / "node"


def opened(node, request="art17"):
    result = call("request", "open", "--node-dir", node, request)
    assert result.code == 0, result.err
    return json.loads(result.out)


def certify(run, body, folder):
    path = folder / "opened.json"
    path.write_text(json.dumps(body))
    return call("certificate", "create", run.path, "--opened", path, "--out", folder / "certificate")


def test_the_run_s_ledger_and_files_name_no_request(finished):
    run, folders = finished
    lines = check_chain(run.ledger_path)
    assert not lines.faults and not any("id" in e for e in lines.entries)
    exchanges = [e for e in lines.entries if e["event"] == "cover_exchange"]
    assert [(e["round"], sorted(e["commitments"]), e["survivors"]) for e in exchanges] == [
        (1, ["0", "2", "3"], [0, 2, 3]),
        (2, ["0", "1", "2", "3"], [0, 1, 2, 3]),
    ]
    assert call("request", "verify", run.path, *(x for f in folders for x in ("--node-dir", f))).code == 0
    for file in [p for p in run.path.rglob("*") if p.suffix in (".json", ".jsonl", ".html", ".yaml")]:
        text = file.read_text(encoding="utf-8")
        assert "art17" not in text and "p1-home" not in text and "Ivo Lind" not in text, file
    assert run.stage_summary("unlearn")["requests"] == {}


def test_a_user_of_the_server_can_look_at_the_run(copy):
    run, node = copy
    html_report.write_html(run, configuration.from_yaml(run.read_config()))
    result = call("runs", "show", run.path)
    assert result.code == 0 and "Traceback" not in result.err
    assert call("certificate", "create", run.path, "art17", "--node-dir", node).code == 0
    (page,) = run.path.glob("certificates/art17*/certificate.html")
    assert "the server did not see the request" in page.read_text()
    assert not artifact_binding.check(run).faults


def test_the_node_knows_what_became_of_its_requests(finished):
    _, folders = finished
    result = call("request", "list", "--node-dir", folders[ASKS])
    assert result.code == 0 and result.out.count("served, round 2 of clinics") == 2
    events = [line["event"] for line in NodeLedger(folders[ASKS]).lines() if line.get("id") == "art17"]
    assert events == ["submitted", "left_out", "served"]
    assert call("request", "list", "--node-dir", folders[0]).out.startswith("no request was made")


def test_the_node_keeps_the_models_that_it_needs_and_no_others(finished):
    _, folders = finished
    assert [len(list((f / "models").iterdir())) for f in folders] == [3] * CLIENTS, "as many whether or not it asked"


def test_a_certificate_without_measurements_says_that_it_was_served_and_no_more(copy, tmp_path):
    run, node = copy
    body = opened(node)
    assert "p5-job" not in json.dumps(body) and "by letter" not in json.dumps(body)
    result = certify(run, body, tmp_path)
    assert result.code == 0 and "INCONCLUSIVE: art17, 2 records of client 1" in result.out
    found = json.loads((tmp_path / "certificate" / "certificate.json").read_text())
    (part,) = found["requests"]
    checks = {check["name"]: check["result"] for check in part["checks"]}
    assert (checks["ledger"], checks["binding"], checks["commitment"]) == ("PASS",) * 3
    assert (checks["model"], checks["rouge"]) == ("INCONCLUSIVE",) * 2
    assert part["request"]["record_ids"] == ["p1-home", "p1-job"] and part["request"]["served_round"] == 2
    models, sealed = part["evidence"]["models"], part["evidence"]["sealed"]
    assert (
        models["before"] == vector_hash(run.load_checkpoint("unlearn", 1).vector)
        and models["after"] != models["before"]
    )
    assert sealed["commitment"] == body["commitment"] and sealed["records in the sum"] == 3
    page = (tmp_path / "certificate" / "certificate.html").read_text()
    assert "the server did not see the request" in page and body["commitment"] in page


def test_the_node_measures_by_itself_and_signs(copy, tmp_path):
    run, node = copy
    final = run.path / "checkpoints" / "unlearn" / "round-0002.safetensors"
    before = (node / "requests.jsonl").read_bytes()
    result = call("request", "audit", "--node-dir", node, "art17", "--final", final)
    assert result.out.startswith("request art17: "), result.err
    (request, _) = NodeLedger(node).requests()
    assert result.code == {"verified": 0, "not testable": 3, "inconclusive": 3}.get(request.state, 1)
    assert request.state in OUTCOMES and request.state in result.out and 0 <= request.rouge <= 1
    assert (node / "requests.jsonl").read_bytes().startswith(before)
    body = opened(node)
    assert certify(run, body, tmp_path).code == 0
    (part,) = json.loads((tmp_path / "certificate" / "certificate.json").read_text())["requests"]
    assert part["evidence"]["signed_by"] == [body["audit"]["signed_by"]]
    assert part["evidence"]["judgement"]["outcome"] == request.state == part["request"]["state"]
    assert part["evidence"]["final"]["rouge"] == request.rouge
    result = call("certificate", "create", run.path, "art17", "--node-dir", node, "--out", tmp_path / "same")
    assert result.code == 0
    body["audit"]["final"]["request_rouge"] += 0.25
    result = certify(run, body, tmp_path)
    assert result.code == 2 and "are not those that its node signed" in result.err


def test_several_requests_that_were_opened_together_are_parts_of_one_certificate(copy, tmp_path):
    """One leaves a record to the other: alone it cannot say what became of that, together they do."""
    run, node = copy
    files = [tmp_path / "art17.json", tmp_path / "other.json"]
    left = opened(node) | {"covered": ["p5-job"]}
    for file, body in zip(files, (left, opened(node, "other")), strict=True):
        file.write_text(json.dumps(body))

    def certificate(*chosen):
        given = [a for file in chosen for a in ("--opened", file)]
        result = call("certificate", "create", run.path, *given, "--out", tmp_path / "out")
        assert result.code == 0, result.err
        found = json.loads((tmp_path / "out" / "certificate.json").read_text())
        return found, [{c["name"]: c["result"] for c in part["checks"]}["scope"] for part in found["requests"]]

    alone, scopes = certificate(files[0])
    assert alone["demand"]["id"] == "art17" and scopes == ["INCONCLUSIVE"]
    both, scopes = certificate(*files)
    assert both["demand"] == {"id": "art17, other", "clients": [ASKS], "records": 3} and scopes == ["PASS", "PASS"]
    assert [(r["record"], r["request"]) for r in both["records"]] == [
        ("p1-home", "art17"),
        ("p1-job", "art17"),
        ("p5-job", "other"),
    ]
    page = (tmp_path / "out" / "certificate.html").read_text()
    assert "art17, other" in page and "p5-job" in page
    twice = call("certificate", "create", run.path, "--opened", files[0], "--opened", files[0])
    assert twice.code == 2 and "two of the opened requests are called 'art17'" in twice.err


@pytest.mark.parametrize(
    ("recited", "expected"),
    [
        ((2, 0, 0), "PASS"),
        ((2, 0, 1), "FAIL"),
        ((2, 1, 0), "FAIL"),
        ((2, None, 0), "INCONCLUSIVE"),
        ((0, 0, 0), "INCONCLUSIVE"),
    ],
)
def test_what_the_node_signed_decides(copy, tmp_path, recited, expected):
    """Numbers made by hand: the smoke model recites nothing."""
    run, node = copy
    body, key = opened(node), audit_key(node)
    (line,) = [e for e in check_chain(run.ledger_path).entries if e["hash"] == body["line"]]
    models = [line["before"], line["after"], vector_hash(run.load_checkpoint("unlearn").vector)]
    audit = {"request": "art17", "client": ASKS, "signed_by": public_hex(key), "signatures": {}}
    for moment, count, model in zip(("before", "after", "final"), recited, models, strict=True):
        if count is None:
            continue
        rouge = {0: 0.1, 1: 0.5, 2: 0.9}[count]
        numbers = {"request_rouge": rouge, "request_recited": float(count), "request_short": 0.0, "forget_records": 2.0}
        facts = {"run": run.name, "stage": "unlearn", "round": 2, "model": model}
        audit[moment] = numbers
        signature = key.sign(audit_bytes("art17", ASKS, moment, numbers, facts)).hex()
        audit["signatures"][moment] = {"signature": signature, **facts}
    result = certify(run, body | {"audit": audit}, tmp_path)
    assert result.code == 0 and result.out.startswith(f"{expected}: art17, 2 records of client 1"), result.err


def test_a_verdict_about_another_model_does_not_count(copy, tmp_path):
    run, node = copy
    assert call("request", "audit", "--node-dir", node, "art17").code == 3, "of the newest model, which recites nothing"
    assert certify(run, opened(node), tmp_path).code == 0
    (part,) = json.loads((tmp_path / "certificate" / "certificate.json").read_text())["requests"]
    assert part["result"] == "INCONCLUSIVE" and not part["evidence"]["signed_by"]
    assert part["evidence"]["judgement"]["why"] == "the node measured another model than the final one of the exchange"


OPENINGS = {
    "a salt": (lambda o: o["salts"].__setitem__(0, "0" * 64), "was not made of this"),
    "the request's salt": (lambda o: o["salts"].__setitem__(1, "0" * 64), "is not what its digest was made of"),
    "another record": (lambda o: o["demand"].update(record_ids=["p1-home", "p4-home"]), "is not what its digest"),
    "another scope": (lambda o: o["demand"].update(scope="client"), "is not what its digest"),
    "another client": (lambda o: o.update(client=0), "was not made of this"),
    "another round": (lambda o: o.update(round=1), "in round 1"),
    "a line that is none": (lambda o: o.update(line="0" * 64), "no line with the hash 000000000000…"),
    "a field that is none": (lambda o: o.update(extra=1), "is no opened request"),
}


@pytest.mark.parametrize("name", OPENINGS)
def test_a_certificate_is_refused_for_what_the_node_did_not_seal(copy, tmp_path, name):
    run, node = copy
    change, said = OPENINGS[name]
    body = opened(node)
    change(body)
    result = certify(run, body, tmp_path)
    assert result.code == 2 and said in result.err and "Traceback" not in result.err
    assert result.err.count("\n") <= 2 and not (tmp_path / "certificate").exists()


def rewritten(run, change):
    """The run's ledger written anew, with right hashes, after `change` of its entries."""
    entries = [dict(e) for e in check_chain(run.ledger_path).entries]
    change(entries)
    run.ledger_path.unlink()
    head = "0" * 64
    for entry in entries:
        body = {k: v for k, v in entry.items() if k not in ("prev", "hash")}
        head = append_linked(run.ledger_path, body, head)["hash"]


def test_an_edited_ledger_is_refused(copy, tmp_path):
    run, node = copy
    body, text = opened(node), run.ledger_path.read_text()
    assert body["commitment"] in text
    run.ledger_path.write_text(text.replace(body["commitment"], "0" * 64))
    result = certify(run, body, tmp_path)
    assert result.code == 2 and "requests.jsonl was changed: line" in result.err


def test_a_ledger_written_anew_is_refused(copy, tmp_path):
    run, node = copy
    body = opened(node)

    def change(entries):
        (line,) = [e for e in entries if e.get("session") == body["session"]]
        line["commitments"]["1"] = "0" * 64

    rewritten(run, change)
    result = certify(run, body, tmp_path)
    assert result.code == 2 and "is another ledger, or was written anew" in result.err
    line = next(e for e in check_chain(run.ledger_path).entries if e.get("session") == body["session"])
    result = certify(run, body | {"line": line["hash"]}, tmp_path)
    assert result.code == 2 and "does not hold the commitment" in result.err


def test_a_sum_without_the_client_s_part_and_one_undone_are_refused(copy, tmp_path):
    run, node = copy
    body = opened(node)

    def change(entries):
        (line,) = [e for e in entries if e.get("session") == body["session"]]
        line["survivors"] = [0, 2]

    shutil.copytree(run.path, tmp_path / "second" / "clinics")
    rewritten(run, change)
    line = next(e for e in check_chain(run.ledger_path).entries if e.get("session") == body["session"])
    result = certify(run, body | {"line": line["hash"]}, tmp_path)
    assert result.code == 2 and "the part of client 1 is not in the sum" in result.err
    second = RunDirectory.open(tmp_path / "second" / "clinics")
    checked = check_chain(second.ledger_path)
    undone = {"event": "cover_undone", "time": 1.0, "round": 2, "session": body["session"], "of": body["line"]}
    append_linked(second.ledger_path, undone, checked.head)
    result = certify(second, body, tmp_path)
    assert result.code == 2 and "was undone: the run resumed from an earlier checkpoint" in result.err


def test_mistakes_are_told(copy, tmp_path):
    run, node = copy
    for arguments in ((), ("art17", "--opened", "x"), ("--opened", "x", "--node-dir", node)):
        result = call("certificate", "create", run.path, *arguments)
        assert result.code == 2 and "name what is to be certified: DEMAND" in result.err
    result = call("certificate", "create", run.path, "art17")
    assert result.code == 2 and "knows no request 'art17'" in result.err and "--node-dir" in result.err
    result = call("request", "open", "--node-dir", node, "art18")
    assert result.code == 2 and "made no request 'art18'; it has art17, other" in result.err
    result = call("request", "audit", "--node-dir", node, "art17", "--final", tmp_path / "none")
    assert result.code == 2 and "the model to measure now is not here" in result.err
    renamed = run.path.rename(tmp_path / "renamed")
    path = tmp_path / "opened.json"
    path.write_text(json.dumps(opened(node)))
    result = call("certificate", "create", renamed, "--opened", path)
    assert result.code == 0, "its ledger says what the run is called, not its folder"
