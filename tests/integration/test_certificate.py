"""Erasure certificates of whole runs: what they state, their signature, and what they refuse."""

import json
import re
import shutil
from html.parser import HTMLParser

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from support.commands import call
from support.nodes import write_nodes
from support.reports import HOSTILE
from support.stages import execute, new_run

from oblivionis.audits.audit_signatures import foreign_signatures, unknown_signer
from oblivionis.chain import GENESIS, append_linked
from oblivionis.config import compose as configuration
from oblivionis.config.identity import config_hash
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.node_key import audit_bytes, public_hex, signers
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.request import Request
from oblivionis.files import write_json
from oblivionis.measures.audit_numbers import audit_path, read_audit
from oblivionis.reports.certificate import signing as certificates
from oblivionis.reports.certificate.checks import (
    FAIL,
    INCONCLUSIVE,
    PASS,
    Check,
    of_all,
    overall,
)
from oblivionis.reports.certificate.page import certificate_page
from oblivionis.reports.html import request_pages
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import RunDirectory, vector_hash


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A simulated run whose requests are served, and a pair of keys."""
    home = tmp_path_factory.mktemp("certificates")
    config, run = new_run(
        home,
        "run",
        "evaluation.every=0",
        "federation.rounds.finetune=1",
        "federation.rounds.unlearn=2",
        "certificate.max_rouge=1.0",
        "certificate.max_leakage=1.0",
    )
    execute(config, run)
    assert call("certificate", "keygen", "--out", home / "key").code == 0
    return run, home / "key"


@pytest.fixture(scope="module")
def certified(finished, tmp_path_factory):
    run, key = finished
    request = next(iter(Ledger(run.ledger_path)))
    folder, certificate = certificates.create(run, request.id, key, tmp_path_factory.mktemp("out"))
    return folder, certificate, request


def test_what_a_certificate_states(finished, certified):
    run, _ = finished
    _, certificate, request = certified
    (part,) = certificate["requests"]
    assert certificate["demand"] == {"id": request.id, "clients": [request.client], "records": len(request.record_ids)}
    assert part["request"]["record_ids"] == list(request.record_ids)
    assert part["request"]["served_round"] == request.served_round
    models = part["evidence"]["models"]
    assert models["final"] == {"round": 2, "sha256": vector_hash(run.load_checkpoint("unlearn").vector)}
    assert models["before"] == vector_hash(run.load_checkpoint("finetune").vector) != models["after"]
    assert models["base"]["fingerprint"] == run.environment()["fingerprint"]
    assert part["evidence"]["final"]["rouge"] == request.rouge
    rounds = {row["round"]: row["clients"] for row in part["evidence"]["rounds"]}
    assert rounds[request.served_round]["unlearn"] == [request.client]
    assert certificate["run"]["config_sha256"] == config_hash(configuration.from_yaml(run.read_config()))
    (row,) = [
        row["requests"][request.id]
        for row in run.metrics()
        if row["evaluator"] == "requests" and row["moment"] == "before_unlearn" and request.id in row["requests"]
    ]
    assert part["evidence"]["before"]["prob"] == pytest.approx(sum(of["prob"] for of in row.values()) / len(row))
    assert "runs" not in certificate["replay"]["command"] and str(run.path.parent) not in json.dumps(certificate)
    assert certificate["result"] == part["result"] == overall([Check(**c) for c in part["checks"]])


def test_the_replay_command_names_a_configuration_that_is_one(finished, certified, tmp_path, monkeypatch):
    run, _ = finished
    assert certified[1]["replay"]["where"] == "in the run's own folder"
    monkeypatch.chdir(run.path)
    _, *arguments = certified[1]["replay"]["command"].split()
    assert arguments[0] == "simulate"
    assert call("config", "check", *arguments[1:]).code == 0


def edited(run, folder, change):
    """A copy of the run in which one thing was changed after it ended."""
    shutil.copytree(run.path, folder)
    change(folder)
    return RunDirectory.open(folder)


def swapped(old, new):
    def change(path):
        text = path.read_text(encoding="utf-8")
        assert old in text, path
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    return change


def swap_checkpoints(folder):
    of = {stage: sorted((folder / "checkpoints" / stage).iterdir())[-1] for stage in ("retrain", "unlearn")}
    of["unlearn"].write_bytes(of["retrain"].read_bytes())


EDITS = {
    "thresholds": (lambda f: swapped("max_leakage: 1.0", "max_leakage: 0.99")(f / "config.yaml"), "config.yaml is not"),
    "limit": (lambda f: swapped("verify_max_rouge: 0.5", "verify_max_rouge: 1.0")(f / "config.yaml"), "config.yaml is"),
    "log": (lambda f: swapped("0.", "0.0")(f / "evaluations" / "unlearn.json"), "evaluations/unlearn.json is not"),
    "oracle": (lambda f: swapped("0.", "0.0")(f / "evaluations" / "retrain.json"), "evaluations/retrain.json is not"),
    "judgement": (lambda f: swapped("not testable", "verified")(f / "judgements.json"), "judgements.json is not"),
    "figures": (lambda f: (f / "request_figures.json").write_text("{}"), "request_figures.json is not"),
    "metrics": (lambda f: swapped('"prob": 0', '"prob": 1')(f / "metrics.jsonl"), "metrics.jsonl is not"),
    "summary": (lambda f: swapped("0.", "0.0")(f / "stages" / "unlearn.json"), "stages/unlearn.json is not"),
    "gone": (lambda f: (f / "judgements.json").unlink(), "judgements.json is gone"),
    "checkpoint": (swap_checkpoints, "checkpoint of unlearn is not the model"),
    "audit": (
        lambda f: write_json(f / "audits" / "leakage-unlearn-0002" / "audit.json", {"questions": []}),
        "was added by hand",
    ),
    "client audit": (lambda f: write_json(f / "audits" / "request-x.json", {"request": "x"}), "was added by hand"),
    "attack": (lambda f: write_json(f / "attacks" / "unlearn-0002" / "results.json", {"rows": []}), "added by hand"),
}


@pytest.mark.parametrize("name", EDITS)
def test_nothing_is_certified_of_files_that_were_edited(finished, tmp_path, name):
    run, key = finished
    change, why = EDITS[name]
    request = next(iter(Ledger(run.ledger_path)))
    copy = edited(run, tmp_path / "copy", change)
    result = call("certificate", "create", copy.path, request.id, "--key", key, "--out", tmp_path / "out")
    assert result.code == 2 and why in result.err.replace("\n", " ")
    assert not (tmp_path / "out").exists(), "nothing is written"


def test_a_ledger_that_binds_nothing_passes_nothing(finished, tmp_path):
    """As of a run that an earlier version made: the lines about files are not there, the chain is whole."""
    run, _ = finished
    shutil.copytree(run.path, tmp_path / "old")
    old = RunDirectory.open(tmp_path / "old")
    lines = [json.loads(line) for line in old.ledger_path.read_text().splitlines()]
    old.ledger_path.unlink()
    head = GENESIS
    for line in lines:
        if line["event"] not in ("stage", "sealed"):
            head = append_linked(old.ledger_path, {k: v for k, v in line.items() if k not in ("prev", "hash")}, head)[
                "hash"
            ]
    found = certificates.build(old, next(iter(Ledger(old.ledger_path))).id)
    checks = {c["name"]: (c["result"], c["required"]) for c in found["requests"][0]["checks"]}
    assert checks["ledger"][0] == PASS and checks["binding"] == (INCONCLUSIVE, True) and found["result"] != PASS


def test_a_certificate_covers_all_requests_of_a_demand(finished, tmp_path):
    """Two clients that held records of one person: one certificate, whose result is the worst of both."""
    run, key = finished
    grouped = tmp_path / "grouped"
    shutil.copytree(run.path, grouped)
    path = grouped / "requests.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.unlink()
    head = GENESIS
    for line in lines:
        body = {k: v for k, v in line.items() if k not in ("prev", "hash")}
        body |= {"group": "art17-0001"} if line["event"] == "submitted" else {}
        head = append_linked(path, body, head)["hash"]
    out = tmp_path / "out"
    result = call("certificate", "create", grouped, "art17-0001", "--key", key, "--out", out)
    requests = list(Ledger(path))
    assert result.code == 0 and len(requests) == 2 and all(r.id in result.out for r in requests)
    certificate = json.loads((out / "certificate.json").read_text())
    assert certificate["demand"]["clients"] == sorted({r.client for r in requests})
    assert certificate["result"] == of_all([part["result"] for part in certificate["requests"]])
    assert call("certificate", "verify", out, "--public-key", f"{key}.pub").code == 0


def test_the_page_beside_must_say_the_same(finished, certified, tmp_path):
    _, key = finished
    shutil.copytree(certified[0], tmp_path / "copy")
    page = tmp_path / "copy" / "certificate.html"
    page.write_text(page.read_text(encoding="utf-8").replace(certified[1]["result"], "PASS AND MORE"), encoding="utf-8")
    result = call("certificate", "verify", tmp_path / "copy", "--public-key", f"{key}.pub")
    assert result.code == 2 and "does not say what certificate.json" in result.err.replace("\n", " ")


def test_without_the_signers_key_nothing_is_shown_as_valid(certified):
    result = call("certificate", "verify", certified[0])
    assert result.code == 2 and "--public-key" in result.err and certified[1]["result"] not in result.out


def test_a_key_given_twice_is_refused(finished, certified, tmp_path):
    _, key = finished
    text = (certified[0] / "certificate.json").read_text(encoding="utf-8")
    (tmp_path / "twice.json").write_text(text.replace("{", '{"result": "PASS",', 1), encoding="utf-8")
    result = call("certificate", "verify", tmp_path / "twice.json", "--public-key", f"{key}.pub")
    assert result.code == 2 and "twice" in result.err


def test_a_run_without_requests_has_no_certificate_that_later_measures_supersede(tmp_path):
    """A stage of a suite that ends with fine-tuning: it has no ledger, and is audited like any other."""
    assert certificates.mark_superseded(RunDirectory(tmp_path)) == []


def test_what_is_measured_later_supersedes(finished, tmp_path):
    run, key = finished
    shutil.copytree(run.path, tmp_path / "run")
    copy = RunDirectory.open(tmp_path / "run")
    request = next(iter(Ledger(copy.ledger_path)))
    folder, _ = certificates.create(copy, request.id, key)
    assert certificates.mark_superseded(copy) == []
    audit = copy.path / "audits" / "leakage-unlearn-0002" / "audit.json"
    artifact_binding.measured(copy, audit, {"questions": []})
    assert certificates.mark_superseded(copy) == [folder]
    result = call("certificate", "verify", folder, "--public-key", f"{key}.pub")
    assert result.code == 2 and "superseded" in result.err
    certificates.create(copy, request.id, key)
    assert call("certificate", "verify", folder, "--public-key", f"{key}.pub").code == 0


def test_a_broken_ledger_fails(finished, tmp_path):
    run, _ = finished
    request = next(iter(Ledger(run.ledger_path)))
    broken = tmp_path / "broken"
    shutil.copytree(run.path, broken)
    path = broken / "requests.jsonl"
    path.write_text(path.read_text().replace('"num-examples": ', '"num-examples": 1', 1))
    found = certificates.build(RunDirectory.open(broken), request.id)
    assert found["result"] == FAIL and found["requests"][0]["checks"][0]["name"] == "ledger"


def test_a_certificate_is_verified_and_any_change_is_found(finished, certified, tmp_path):
    _, key = finished
    folder, certificate, _ = certified
    public = key.with_name("key.pub")
    result = call("certificate", "verify", folder / "certificate.json", "--public-key", public)
    assert result.code == 0 and certificate["result"] in result.out
    load_pem_public_key(public.read_bytes()).verify(  # by the definition, without our code
        bytes.fromhex(certificate["signature"]),
        json.dumps(
            {k: v for k, v in certificate.items() if k != "signature"},
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=False,
        ).encode(),
    )
    for change in (
        {"result": "PASS!"},
        {"issued": "2020-01-01T00:00:00Z"},
        {"signature": "00" * 64},
        {"public_key": "x"},
    ):
        file = tmp_path / "changed.json"
        file.write_text(json.dumps({**certificate, **change}))
        result = call("certificate", "verify", file, "--public-key", public)
        assert result.code == 2 and "changed after it was signed" in result.err


def test_another_key_is_found(finished, certified, tmp_path):
    folder, _, _ = certified
    assert call("certificate", "keygen", "--out", tmp_path / "other").code == 0
    result = call("certificate", "verify", folder, "--public-key", tmp_path / "other.pub")
    assert result.code == 2 and "another key" in result.err


def test_a_signed_result_that_does_not_follow_from_its_checks_is_refused(finished, certified, tmp_path):
    _, key = finished
    (part,) = certified[1]["requests"]
    part = {**part, "checks": [{**c, "result": FAIL} for c in part["checks"]]}
    certificate = {**certified[1], "result": PASS, "requests": [part]}
    private = certificates.read_private_key(key)
    certificate["signature"] = private.sign(certificates.signed_bytes(certificate)).hex()
    file = tmp_path / "lie.json"
    file.write_text(json.dumps(certificate))
    assert "its checks say FAIL" in call("certificate", "verify", file).err


def test_whoever_signs_may_sign_figures_that_nobody_measured(finished, certified, tmp_path):
    """Its receiver sees whose word it is; that it is true only the run and the node's folder show."""
    _, key = finished
    certificate = json.loads(json.dumps(certified[1]))
    certificate["requests"][0]["evidence"]["final"]["rouge"] = 0.123456
    private = certificates.read_private_key(key)
    certificate["signature"] = private.sign(certificates.signed_bytes(certificate)).hex()
    write_json(tmp_path / "certificate.json", certificate)
    (tmp_path / "certificate.html").write_text(certificate_page(certificate), encoding="utf-8")
    said = call("certificate", "verify", tmp_path, "--public-key", f"{key}.pub")
    assert said.code == 0 and f"signed by {key}.pub" in said.out


def test_without_a_key_it_is_unsigned(finished, tmp_path):
    run, _ = finished
    request = next(iter(Ledger(run.ledger_path)))
    result = call("certificate", "create", run.path, request.id, "--out", tmp_path)
    assert result.code == 0 and "not signed" in result.out
    assert "is not signed" in call("certificate", "verify", tmp_path).err


def test_keys_are_private_and_nothing_is_overwritten(finished, tmp_path):
    _, key = finished
    assert key.stat().st_mode & 0o777 == 0o600
    before = key.read_bytes()
    result = call("certificate", "keygen", "--out", key)
    assert result.code == 2 and "exists already" in result.err and key.read_bytes() == before
    copy = tmp_path / "key"
    copy.write_bytes(before)
    copy.chmod(0o644)
    with pytest.raises(certificates.CertificateError, match="chmod 600"):
        certificates.read_private_key(copy)
    for text in (b"", b"-----BEGIN PRIVATE KEY-----\n", key.with_name("key.pub").read_bytes()):
        copy.write_bytes(text)
        copy.chmod(0o600)
        with pytest.raises(certificates.CertificateError, match="expected an Ed25519 private key"):
            certificates.read_private_key(copy)


def test_mistakes(finished, tmp_path):
    run, _ = finished
    assert "knows no request 'ghost'" in call("certificate", "create", run.path, "ghost").err
    assert "is no run directory" in call("certificate", "create", tmp_path, "x").err
    (tmp_path / "x.json").write_text("{}")
    assert "is no erasure certificate" in call("certificate", "verify", tmp_path / "x.json").err
    assert "cannot be read" in call("certificate", "verify", tmp_path / "y.json").err
    waiting = tmp_path / "waiting"
    shutil.copytree(run.path, waiting)
    Ledger(waiting / "requests.jsonl").submit(Request("later", 0, ("x",), 9))
    assert "is not served yet" in call("certificate", "create", waiting, "later").err


class Text(HTMLParser):
    def __init__(self, source):
        super().__init__()
        self.text, self.tags = "", []
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text += data + " "


def test_the_page_says_what_the_certificate_says_and_escapes_it(certified):
    folder, certificate, request = certified
    page = Text((folder / "certificate.html").read_text(encoding="utf-8"))
    models = certificate["requests"][0]["evidence"]["models"]
    for text in (certificate["result"], request.id, *request.record_ids, models["before"], certificate["signature"]):
        assert text in page.text
    (part,) = certificate["requests"]
    part = {**part, "request": {**part["request"], "id": HOSTILE, "record_ids": [HOSTILE]}}
    hostile = {**certificate, "requests": [part], "demand": {**certificate["demand"], "id": HOSTILE}}
    found = Text(certificate_page(hostile))
    assert HOSTILE in found.text and "script" not in found.tags and "img" not in found.tags


def test_the_requests_page_names_its_certificate(finished, tmp_path):
    run, key = finished
    shutil.copytree(run.path, tmp_path / "copy")
    request = next(iter(Ledger(run.ledger_path)))
    page = tmp_path / "copy" / request_pages.page_of(request.id)
    assert call("certificate", "create", tmp_path / "copy", request.id, "--key", key).code == 0
    text = page.read_text(encoding="utf-8")
    (link,) = set(re.findall(r'href="(\.\./certificates/[^"]*)"', text))
    result = json.loads((page.parent / link).with_name("certificate.json").read_text())["result"]
    assert f">{result}</a>" in text and (page.parent / link).is_file()


def test_the_clients_numbers_decide_where_the_clients_keep_their_records(tmp_path):
    """A request made on a node, served, audited by its client, certified: all the way."""
    write_nodes(tmp_path / "nodes")
    folder = tmp_path / "nodes" / "node1"
    asked = ("--subject", "ivo lind", "--id", "ivo", "--reason", "by letter")
    assert call("request", "submit", "--node-dir", folder, *asked).code == 0
    settings = [
        "data=node",
        f"data.nodes={tmp_path / 'nodes'}",
        "federation.clients=3",
        "federation.fraction_train=1.0",
        "unlearning.requests.policy=nodes",
        "evaluation.audit.profile=light",
        f"output={tmp_path}",
        "name=run",
        "stages=[finetune,unlearn]",
    ]
    config = configuration.compose("smoke", settings)
    run = RunDirectory.create(tmp_path, "run")
    run.write_config(configuration.to_yaml(config))
    execute(config, run)
    found = certificates.build(run, "ivo")
    audit = read_audit(run.path, "ivo")
    (part,) = found["requests"]
    told = part["evidence"]
    assert audit is not None and told["source"].startswith("the client itself")
    assert told["signed_by"] == [audit["signed_by"]]
    assert told["final"]["rouge"] == audit["final"]["request_rouge"]
    assert told["before"]["rouge"] == audit["before"]["request_rouge"]
    assert told["leakage"]["upper"] == audit["final"]["leakage_m_bin"]
    checks = {c["name"]: c["result"] for c in part["checks"]}
    assert checks["ledger"] == checks["binding"] == PASS
    assert "Lind" not in json.dumps(found)
    assert call("request", "verify", run.path, "--node-dir", folder).code == 0
    forged = json.loads(audit_path(run.path, "ivo").read_text(encoding="utf-8"))
    stranger = Ed25519PrivateKey.generate()
    signed = forged["signatures"]["final"]
    forged["final"]["request_rouge"] = 0.0
    body = audit_bytes("ivo", forged["client"], "final", forged["final"], signed)
    signed["signature"], forged["signed_by"] = stranger.sign(body).hex(), public_hex(stranger)
    write_json(audit_path(run.path, "ivo"), forged)
    assert signers(forged) == {"final": public_hex(stranger)}, "by itself the forgery fits"
    result = call("request", "verify", run.path, "--node-dir", folder)
    said = result.out.replace("\n", " ")
    assert result.code == 1 and "final: the numbers are signed with" in said and "does not know" in said
    assert "before: the numbers have no signature that fits them" in said
    NodeLedger(tmp_path / "stranger").note("key", public_key=public_hex(stranger))
    why = unknown_signer(run.path, tmp_path / "stranger")
    assert not foreign_signatures(run.path, tmp_path / "stranger")
    assert "knows no run of this configuration" in why, "another folder with the forger's key proves nothing"
    name = audit_path(run.path, "ivo").relative_to(run.path).as_posix()
    run.keep({name: json.dumps(forged)})
    (part,) = certificates.build(run, "ivo")["requests"]
    assert part["evidence"]["signed_by"] == [public_hex(stranger)], "named in the ledger, it is certified, with its key"
