"""Certificates of a hand-made run: of which requests, what they bind, their signature, and every change to them."""

from __future__ import annotations

import hashlib
import json
import shutil

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from support.reports import bind, make_run

from oblivionis.chain import check_chain
from oblivionis.config.identity import config_hash
from oblivionis.erasure.ledger import EXCHANGE, Ledger
from oblivionis.erasure.request import Request
from oblivionis.erasure.verification_rules import Judgement
from oblivionis.files import write_json
from oblivionis.reports.certificate import signing
from oblivionis.reports.certificate.checks import FAIL, INCONCLUSIVE, PASS
from oblivionis.reports.certificate.signing import CertificateError
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import Checkpoint, RunDirectory

REQUESTS = (
    Request("plain", 2, ("a", "b"), 1, scope="records"),
    Request("group-1", 4, ("c",), 1, scope="subject", group="ivo"),
    Request("group-0", 0, ("d", "e", "f"), 1, scope="subject", group="ivo"),
    Request("group-2", 1, (), 1, scope="subject", group="ivo"),
    Request("again", 2, (), 1),
    Request("waiting", 3, ("g",), 2),
    Request("refused", 3, ("h",), 1),
)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    home = tmp_path_factory.mktemp("signing")
    run, config = make_run(home, overrides=["federation.clients=5", "strategy=fedadam", "seed=7"])
    run.write_environment(packages={}, base_model="tiny", fingerprint="f" * 64)
    ledger = Ledger(run.ledger_path)
    ledger.submit(*REQUESTS)
    for name in ("plain", "group-0", "group-1"):
        ledger.served(name, 1)
        ledger.verified(name, 2, Judgement("not testable", "short", 0.25), 0.5)
    ledger.rejected("refused", 1, "unknown")
    bind(run, config)
    signing.generate_key(home / "keys" / "key")
    return run, config, home / "keys" / "key"


@pytest.fixture
def run(template, tmp_path):
    return RunDirectory.open(shutil.copytree(template[0].path, tmp_path / "made"))


@pytest.fixture(scope="module")
def key(template):
    return template[2]


# -- what it states ----------------------------------------------------------------------------------------------


def test_a_certificate_of_one_request(template, run, key):
    folder, certificate = signing.create(run, "plain", key)
    assert folder.parent == run.path / "certificates"
    assert json.loads((folder / "certificate.json").read_text()) == certificate
    assert (folder / "certificate.html").read_text().startswith("<!doctype html>")
    assert certificate["demand"] == {"id": "plain", "clients": [2], "records": 2}
    (part,) = certificate["requests"]
    assert part["request"] == {
        "id": "plain",
        "client": 2,
        "scope": "records",
        "records": 2,
        "record_ids": ["a", "b"],
        "round": 1,
        "served_round": 1,
        "state": "not testable",
    }
    assert certificate["result"] == part["result"] == INCONCLUSIVE
    assert part["evidence"]["binding"] == "" and len(part["checks"]) > 3
    config = template[1]
    said = certificate["run"]
    assert (said["name"], said["seed"], said["aggregator"], said["clients"]) == ("made", 7, "fedadam", 5)
    assert said["config_sha256"] == config_hash(config) and said["oblivionis"] == run.environment()["oblivionis"]
    assert certificate["thresholds"]["max_rouge"] == config.certificate.max_rouge
    files = certificate["files"]
    assert {"stages/unlearn.json", "evaluations/retrain.json", "metrics.jsonl"} <= files.keys()
    assert files["metrics.jsonl"] == hashlib.sha256((run.path / "metrics.jsonl").read_bytes()).hexdigest()
    assert certificate["replay"]["command"].endswith(" name=made-replay output=..")
    assert "needs" not in certificate["replay"]


def test_the_nodes_must_ask_again_where_the_run_is_made_again(tmp_path):
    run, config = make_run(tmp_path, overrides=["data=node", "unlearning.requests.policy=nodes"])
    ledger = Ledger(run.ledger_path)
    ledger.submit(REQUESTS[0])
    ledger.served("plain", 1)
    bind(run, config)
    assert "nodes' ledgers" in signing.build(run, "plain")["replay"]["needs"]


def test_records_that_an_old_ledger_does_not_name_leave_the_demand_open(run):
    ledger = Ledger(run.ledger_path)
    ledger.submit(Request("old", 1, ("o",), 1, already=2))
    ledger.served("old", 1)
    (part,) = signing.build(run, "old")["requests"]
    assert part["evidence"]["unnamed"] == 2
    assert next(check["result"] for check in part["checks"] if check["name"] == "scope") == INCONCLUSIVE


def test_what_was_found_of_each_record_by_the_share_that_the_run_must_be_able_to_test(tmp_path):
    least = "unlearning.requests.verify_min_testable=0.5"
    run, config = make_run(tmp_path, overrides=[least])
    ledger = Ledger(run.ledger_path)
    ledger.submit(REQUESTS[0])
    ledger.served("plain", 1)
    record = {"units": 9, "final": 0.0, "before": 1.0, "oracle": None, "exchanges": [], "likelihood": None}
    records = {"a": record | {"outcome": "verified"}, "b": record | {"units": 2, "outcome": "not testable"}}
    left = {"prob": 0.1, "reference": None, "compared_with": ""}
    records["a"]["exchanges"] = [{"before": 1.0, "after": 0.0, "known": 0.9, "left": left}]
    judged = {"outcome": "verified", "why": "", "knows": "", "rouge": 0.0, "records": records, "twins": {}}
    write_json(run.path / "judgements.json", {"limit": 0.5, "doubt": "", "model": "m", "requests": {"plain": judged}})
    run.write_environment(packages={"torch": "2"}, base_model="tiny", fingerprint="f" * 64)
    run.save_checkpoint(Checkpoint("unlearn", 2, np.zeros(3, np.float32), {}, {}), keep=1)
    assert signing.build(run, "plain")["run"]["packages"] == {}, "no ledger names the file that says so"
    bind(run, config)
    certificate = signing.build(run, "plain")
    assert certificate["run"]["packages"] == {"torch": "2"}
    assert [(r["record"], r["found"]) for r in certificate["records"]] == [("a", "verified"), ("b", "not testable")]
    (part,) = certificate["requests"]
    assert {check["result"] for check in part["checks"] if check["name"] in ("rouge", "exchange")} == {PASS}


def test_a_demand_of_several_clients_is_one_certificate(run):
    """In the order of the ledger, without what earlier requests cover."""
    certificate = signing.build(run, "ivo")
    assert certificate["demand"] == {"id": "ivo", "clients": [0, 4], "records": 4}
    assert [part["request"]["id"] for part in certificate["requests"]] == ["group-1", "group-0"]


@pytest.mark.parametrize(
    ("demand", "why"),
    [
        ("waiting", "request 'waiting' is not served yet"),
        ("refused", "request 'refused' was rejected"),
        ("again", "request 'again' is covered: all its records were asked for by earlier requests"),
        ("ghost", "knows no request 'ghost'; it has plain, group-1, group-0, group-2, again, waiting, refused$"),
    ],
)
def test_what_is_not_certified(run, demand, why):
    with pytest.raises(CertificateError, match=why):
        signing.build(run, demand)


@pytest.mark.parametrize(("more", "named"), [(3, "it has plain, .*, 2"), (4, "it has 11 others")])
def test_no_more_than_ten_requests_are_named(run, more, named):
    Ledger(run.ledger_path).submit(*(Request(str(i), 0, (f"x{i}",), 9) for i in range(more)))
    with pytest.raises(CertificateError, match=named):
        signing.build(run, "ghost")


def test_where_requests_are_sealed_it_says_what_to_name(run):
    own = {"round": 1, "session": "s", "commitments": {}, "survivors": [], "before": "a" * 64, "after": "b" * 64}
    run.ledger_path.unlink()
    Ledger(run.ledger_path).note(EXCHANGE, count=0, **own)
    with pytest.raises(CertificateError, match=r"it has none; its requests are sealed: name the node's folder"):
        signing.build(run, "ghost")


def test_an_unfinished_stage_certifies_nothing(run):
    (run.path / "stages" / "unlearn.json").unlink()
    with pytest.raises(CertificateError, match="the stage unlearn is unfinished"):
        signing.build(run, "plain")


def test_nothing_is_certified_of_edited_files(run):
    (run.path / "judgements.json").write_text("{}")
    with pytest.raises(CertificateError, match=r"nothing is certified of it:\n- judgements.json is not named"):
        signing.create(run, "plain", None)
    assert not (run.path / "certificates").exists()


# -- the signature -----------------------------------------------------------------------------------------------


def test_the_signature_is_of_the_canonical_text_without_it(run, key):
    folder, certificate = signing.create(run, "plain", key)
    public = load_pem_public_key(key.with_name("key.pub").read_bytes())
    body = {k: v for k, v in certificate.items() if k != "signature"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    public.verify(bytes.fromhex(certificate["signature"]), text.encode())
    raw = public.public_bytes_raw()
    assert certificate["public_key"] == raw.hex()
    said = hashlib.sha256(raw).hexdigest()
    for path in (folder, folder / "certificate.json"):
        for given in (None, key.with_name("key.pub")):
            assert signing.verify(path, given) == (certificate, said)


def written(path, certificate, key=None):
    if key is not None:
        certificate["signature"] = signing.read_private_key(key).sign(signing.signed_bytes(certificate)).hex()
    write_json(path, certificate)
    return path


def test_every_change_after_the_signature_is_found(run, key, tmp_path):
    _, certificate = signing.create(run, "plain", key)
    (part,) = certificate["requests"]
    for change in (
        {"result": PASS},
        {"issued": "2020-01-01T00:00:00Z"},
        {"requests": [{**part, "result": PASS}]},
        {"signature": "00" * 64},
        {"public_key": "ff" * 32},
        {"public_key": 5},
    ):
        with pytest.raises(CertificateError, match="was changed after it was signed"):
            signing.verify(written(tmp_path / "c.json", {**certificate, **change}), None)
    for name in ("signature", "public_key"):
        with pytest.raises(CertificateError, match="is not signed"):
            signing.verify(written(tmp_path / "c.json", {**certificate, name: None}), None)
    signing.generate_key(tmp_path / "other")
    with pytest.raises(CertificateError, match="signed by another key"):
        signing.verify(written(tmp_path / "c.json", certificate), tmp_path / "other.pub")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda c: c | {"result": PASS}, "says PASS, but its checks say INCONCLUSIVE"),
        (
            lambda c: c | {"requests": [{**c["requests"][0], "result": PASS}]},
            "says PASS, but its checks say INCONCLUSIVE",
        ),
        (lambda c: c | {"requests": [{**c["requests"][0], "checks": [{}]}]}, "its checks cannot be read"),
        (lambda c: {k: v for k, v in c.items() if k != "requests"}, "its checks cannot be read"),
    ],
)
def test_a_signed_result_must_follow_from_its_checks(run, key, tmp_path, change, why):
    certificate = signing.create(run, "plain", key)[1]
    with pytest.raises(CertificateError, match=why):
        signing.verify(written(tmp_path / "c.json", change(certificate), key), None)
    parts = [{**part, "result": FAIL} for part in certificate["requests"]]
    with pytest.raises(CertificateError, match="says FAIL, but its checks say INCONCLUSIVE"):
        signing.verify(written(tmp_path / "c.json", certificate | {"requests": parts}, key), None)


def test_without_a_key_it_is_unsigned(run):
    folder, certificate = signing.create(run, "plain", None, run.path / "elsewhere")
    assert folder == run.path / "elsewhere" and certificate["signature"] is certificate["public_key"] is None
    with pytest.raises(CertificateError, match="is not signed"):
        signing.verify(folder, None)


def test_the_page_beside_it_must_say_the_same(run, key):
    folder, _ = signing.create(run, "plain", key)
    page = folder / "certificate.html"
    text = page.read_text()
    for damage in (text.replace("INCONCLUSIVE", "PASS").encode(), b"\xff"):
        page.write_bytes(damage)
        with pytest.raises(CertificateError, match=r"does not say what certificate\.json beside it says"):
            signing.verify(folder, None)
    certificate = json.loads((folder / "certificate.json").read_text())
    written(folder / "certificate.json", certificate | {"issued_by": "oblivionis 0.0.1"}, key)
    assert signing.verify(folder, None)[0]["issued_by"] == "oblivionis 0.0.1", "another program's page is its own"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is no erasure certificate: "),
        ("{}", "is no erasure certificate$"),
        ('{"format": "oblivionis erasure certificate", "version": 1}', "version 1, whose figures nothing bound"),
        ('{"format": "oblivionis erasure certificate", "version": 3}', "has version 3; this program reads version 2"),
        (None, "cannot be read: there is no such file"),
    ],
)
def test_what_is_no_certificate(tmp_path, text, why):
    if text is not None:
        (tmp_path / "certificate.json").write_text(text)
    for path in (tmp_path, tmp_path / "certificate.json"):
        with pytest.raises(CertificateError, match=why):
            signing.verify(path, None)


# -- what is measured later --------------------------------------------------------------------------------------


def test_a_result_counts_only_as_it_follows_from_the_run(run, key):
    folder, certificate = signing.create(run, "plain", key)
    assert signing.results_of(run) == [INCONCLUSIVE]
    for changed in ({"result": PASS}, {"demand": {"id": "nobody"}}, {"demand": None}, {"demand": 1}):
        (folder / "certificate.json").write_text(json.dumps(certificate | changed))
        assert signing.results_of(run) == []


def test_what_is_measured_later_supersedes_until_it_is_made_anew(run, key):
    assert signing.mark_superseded(run) == [] == signing.results_of(run)
    folder, certificate = signing.create(run, "plain", key)
    broken = run.path / "certificates" / "broken"
    broken.mkdir()
    (broken / "certificate.json").write_text("{}")
    assert signing.mark_superseded(run) == [] and signing.results_of(run) == [certificate["result"]]
    audit = run.path / "audits" / "leakage-unlearn-0002" / "audit.json"
    artifact_binding.measured(run, audit, {"questions": []})
    assert signing.mark_superseded(run) == [folder] and signing.results_of(run) == []
    noted = json.loads((folder / "superseded.json").read_text())
    assert noted["measured_since"] == ["audits/leakage-unlearn-0002/audit.json"]
    with pytest.raises(CertificateError, match="is superseded"):
        signing.verify(folder, None)
    assert signing.create(run, "plain", key)[0] == folder
    assert signing.verify(folder, None)[1] and not (folder / "superseded.json").exists()
    assert check_chain(run.ledger_path).faults == ()


def test_a_file_that_is_measured_anew_under_its_name_supersedes(run, key):
    audit = run.path / "audits" / "leakage-unlearn-0002" / "audit.json"
    artifact_binding.measured(run, audit, {"questions": []})
    folder, certificate = signing.create(run, "plain", key)
    name = "audits/leakage-unlearn-0002/audit.json"
    assert name in certificate["files"] and signing.mark_superseded(run) == []
    artifact_binding.measured(run, audit, {"questions": [], "asked": "names"})
    assert signing.mark_superseded(run) == [folder]
    assert json.loads((folder / "superseded.json").read_text())["measured_since"] == [name]


# -- keys --------------------------------------------------------------------------------------------------------


def test_a_key_is_private_and_overwrites_nothing(tmp_path):
    public = signing.generate_key(tmp_path / "new" / "key")
    assert public == tmp_path / "new" / "key.pub"
    assert [p.stat().st_mode & 0o777 for p in (tmp_path / "new" / "key", public)] == [0o600, 0o644]
    private = signing.read_private_key(tmp_path / "new" / "key")
    assert private.public_key().public_bytes_raw() == signing.read_public_key(public)
    for gone, named in ((tmp_path / "new" / "key", public), (public, tmp_path / "new" / "key")):
        kept = gone.read_bytes()
        gone.unlink()
        with pytest.raises(CertificateError, match=f"{named} exists already"):
            signing.generate_key(tmp_path / "new" / "key")
        assert not gone.exists()
        gone.write_bytes(kept)


def test_what_is_no_key(tmp_path):
    signing.generate_key(tmp_path / "key")
    own, public = (tmp_path / "key").read_bytes(), (tmp_path / "key.pub").read_bytes()
    other = generate_private_key(SECP256R1())
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    locked = Ed25519PrivateKey.generate().private_bytes(*plain[:2], serialization.BestAvailableEncryption(b"x"))
    shown = other.public_key().public_bytes(plain[0], serialization.PublicFormat.SubjectPublicKeyInfo)
    file = tmp_path / "file"
    file.touch(0o600)
    for data in (b"", public, other.private_bytes(*plain), locked):
        file.write_bytes(data)
        with pytest.raises(CertificateError, match="expected an Ed25519 private key"):
            signing.read_private_key(file)
    for data in (b"", own, shown):
        file.write_bytes(data)
        with pytest.raises(CertificateError, match="expected an Ed25519 public key"):
            signing.read_public_key(file)
    file.write_bytes(own)
    for mode in (0o640, 0o604, 0o610):
        file.chmod(mode)
        with pytest.raises(CertificateError, match=f"others can read this private key; chmod 600 {file}"):
            signing.read_private_key(file)
    for read in (signing.read_private_key, signing.read_public_key):
        with pytest.raises(CertificateError, match="there is no such file"):
            read(tmp_path / "gone")
