"""Certificates of the class exact, and their replay: what they state, and each planted difference by its name."""

import hashlib
import json
import shutil

import numpy as np
import pytest
from support.commands import call
from support.stages import execute, new_run

from oblivionis.array_files import read_arrays, write_arrays
from oblivionis.audits import exact_replay
from oblivionis.client.exchange import Exchange
from oblivionis.client.worker import Worker
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.verification_rules import ERASED
from oblivionis.files import write_json
from oblivionis.reports.certificate import signing as certificates
from oblivionis.reports.certificate.exact import ROUNDS_FILE
from oblivionis.reports.certificate.exact_replay import replay
from oblivionis.reports.certificate.scope import CertificateError
from oblivionis.runs.directory import RunDirectory

EXACT = (
    *("unlearning=exact", "strategy=fedavg", "evaluation.every=0", "federation.clients=3", "stages=[finetune,unlearn]"),
    *("federation.rounds.finetune=2", "federation.rounds.unlearn=2", "federation.fraction_train=1"),
    "unlearning.requests.clients=[1]",
)


def made(home, name, *more):
    config, run = new_run(home, name, *EXACT, *more)
    execute(config, run)
    return run


def certify(run, key):
    (request,) = list(Ledger(run.ledger_path))
    return certificates.create(RunDirectory.open(run.path), request.id, key)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A finished run with one request, and a key."""
    home = tmp_path_factory.mktemp("exact")
    assert call("certificate", "keygen", "--out", home / "key").code == 0
    return made(home, "run"), home / "key"


@pytest.fixture
def certified(original, tmp_path):
    """A copy of the run, its certificate's folder, the certificate, and the key."""
    run, key = original
    shutil.copytree(run.path, tmp_path / "run")
    copy = RunDirectory.open(tmp_path / "run")
    folder, certificate = certify(copy, key)
    return copy, folder, certificate, key


def signed_again(folder, certificate, key):
    """Whoever has the key may say anything."""
    certificate = {**certificate, certificates.SIGNATURE: None}
    signature = certificates.read_private_key(key).sign(certificates.signed_bytes(certificate)).hex()
    write_json(folder / certificates.JSON_FILE, {**certificate, certificates.SIGNATURE: signature})
    (folder / certificates.PAGE_FILE).unlink(missing_ok=True)


def verify(folder, key, *more):
    return call("certificate", "verify", folder, "--public-key", f"{key}.pub", *more)


def replayed(folder, key, *more):
    """Exit code, and the lines of what is not equal."""
    result = verify(folder, key, "--replay", *more)
    lines = [line for line in result.out.splitlines() if ": differs" in line or ": not testable" in line]
    return result.code, lines


def test_the_verdict_rests_on_the_proof(original):
    run, _ = original
    (request,) = list(Ledger(run.ledger_path))
    assert (request.outcome, request.why.split(";")[0]) == (ERASED, "recorded in the ledgers")
    shown = call("runs", "show", run.path)
    assert "1 of 1 deletion request erased exactly" in shown.out
    assert "not testable" not in shown.out
    assert "exact erasure keeps 4 models: " in shown.out


def test_a_certificate_names_every_round_and_says_what_it_does_not_say(certified):
    run, folder, certificate, key = certified
    assert (certificate["class"], certificate["result"]) == ("exact", "PASS")
    assert "thresholds" not in certificate
    assert [check["name"] for check in certificate["requests"][0]["checks"]] == ["ledger", "binding", "scope", "rounds"]
    said = certificate["exact"]
    assert [name for *name, _ in said["rounds"]] == [["finetune", 1], ["finetune", 2], ["unlearn", 1], ["unlearn", 2]]
    rows = [json.loads(line) for line in (folder / ROUNDS_FILE).read_text().splitlines()]
    assert all(set(row["entries"]) == set(row["hashes"]) == {"0", "1", "2"} for row in rows)
    own = {line["hash"]: line for line in map(json.loads, (run.nodes_path / "1" / "requests.jsonl").open())}
    assert [own[row["entries"]["1"]]["trained"] != own[row["entries"]["1"]]["records"] for row in rows] == [True] * 4
    assert set(said["software"]) == {"oblivionis", "python", "torch", "transformers", "peft", "numpy", "flwr"}
    assert said["processor"]
    page = (folder / certificates.PAGE_FILE).read_text()
    assert "Exact erasure certificate" in page
    assert all(line in page for line in said["not_said"])
    assert verify(folder, key).code == 0


def test_all_of_it_can_be_computed_again_and_so_can_a_part(certified):
    _, folder, _, key = certified
    result = verify(folder, key, "--replay")
    assert result.code == 0, result.out
    for line in ("software: equal", "round 2 of finetune: equal", "model after the exchange of round 1: equal"):
        assert line in result.out
    assert result.out.splitlines()[-1].startswith("replayed: ")
    part = verify(folder, key, "--replay", "--pieces", 1)
    assert (part.code, part.out.count("\nround ")) == (0, 1)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"exact": {"software": {"torch": "0.0.1"}}}, "software: differs (torch 0.0.1 there, "),
        ({"exact": {"processor": "abacus"}}, "processor: differs (abacus there, "),
        ({"run": {"config_sha256": "0" * 64}}, "configuration, by the certificate: differs"),
        ({"exact": {"exchange": {"after": "0" * 64}}}, "model after the exchange of round 1: differs"),
    ],
)
def test_another_machine_configuration_or_model_is_named(certified, change, line):
    _, folder, certificate, key = certified
    signed_again(folder, merged(certificate, change), key)
    code, lines = replayed(folder, key)
    assert code == 1
    assert [found for found in lines if found.startswith(line)] == lines != []


def merged(old, new):
    return {**old, **{k: merged(old[k], v) if isinstance(v, dict) else v for k, v in new.items()}}


def test_an_altered_list_of_rounds_is_not_the_certificates(certified):
    _, folder, _, key = certified
    file = folder / ROUNDS_FILE
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[1]["clients"].remove(2)
    file.write_text("".join(json.dumps(row, sort_keys=True, separators=(",", ":")) + "\n" for row in rows))
    result = verify(folder, key)
    assert (result.code, "another line about round 2 of finetune" in result.err) == (2, True), result.err


def test_a_list_of_rounds_without_a_client_comes_out_otherwise(certified):
    """Signed again, with the hashes of the altered list."""
    run, folder, certificate, key = certified
    proof = json.loads((run.path / "exact.json").read_text())
    for name in ("hashes", "entries"):
        del proof["rounds"][1][name]["2"]
    proof["rounds"][1]["clients"] = [0, 1]
    lines = [json.dumps(row, sort_keys=True, separators=(",", ":")) for row in proof["rounds"]]
    (folder / ROUNDS_FILE).write_text("".join(f"{line}\n" for line in lines))
    named = [[row["stage"], row["round"], sha256(line)] for row, line in zip(proof["rounds"], lines, strict=True)]
    whole = sha256("".join(f"{line}\n" for line in lines))
    signed_again(folder, merged(certificate, {"exact": {"rounds_sha256": whole, "rounds": named}}), key)
    code, lines = replayed(folder, key)
    assert (code, lines[0].split(" (")[0]) == (1, "round 2 of finetune: differs")


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_record_that_stayed_in_is_found(tmp_path, monkeypatch, original):
    """A client trains on the demanded records, and says of itself that it did not."""
    finetune = Worker.finetune

    def keeps(self, client, vector, *, excluded, **settings):
        return finetune(self, client, vector, excluded=(), **settings)

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "finetune", keeps)
        run = made(tmp_path, "kept")
    folder, certificate = certify(run, original[1])
    assert certificate["result"] == "PASS", "by what is recorded"
    code, lines = replayed(folder, original[1])
    assert code == 1
    assert "client 1 gives another update in round 1 of finetune" in lines[0]


def test_a_client_whose_own_ledger_says_that_it_kept_a_record_is_named(tmp_path, monkeypatch, original):
    with monkeypatch.context() as patch:
        patch.setattr(Exchange, "withheld", lambda self: set())
        run = made(tmp_path, "open")
    folder, _ = certify(run, original[1])
    code, lines = replayed(folder, original[1])
    assert code == 1
    assert "client 1 trained on other records in round 1 of finetune than the requests leave it" in lines[0]


def test_a_run_folder_that_was_edited_does_not_launder_another_model(certified, tmp_path):
    """The stored model of a round, which no ledger names, is replaced."""
    run, folder, _, key = certified
    file = next(run.path.glob("updates/*/finetune/round-0002.safetensors"))
    arrays, info = read_arrays(file, "file")
    write_arrays(file, {**arrays, "global": arrays["global"] + np.float32(1e-3)}, info)
    code, lines = replayed(folder, key)
    assert (code, lines) == (1, [lines[0]])
    assert (
        lines[0]
        == "round 2 of finetune: differs (the stored model at the beginning of round 2 of finetune is another one)"
    )


def test_another_run_is_not_the_certificates(certified, tmp_path):
    _, folder, _, key = certified
    other = made(tmp_path, "other", "seed=1")
    code, lines = replayed(folder, key, "--run", other.path)
    assert code == 1
    assert lines[0].startswith("configuration, by the certificate: differs")


def test_a_ledger_without_the_line_that_a_round_names_is_found(certified):
    run, folder, _, key = certified
    file = run.nodes_path / "2" / "requests.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[: len(lines) - 1]))
    code, found = replayed(folder, key)
    assert code == 1
    assert [line for line in found if "the ledger of client 2 has no line" in line and "round 2 of unlearn" in line]


def test_a_client_on_another_machine_is_named(certified, monkeypatch):
    _, folder, _, key = certified
    here = exact_replay.machine_here

    def elsewhere(config):
        return {**here(config), "processor": "abacus"}

    monkeypatch.setattr(exact_replay, "machine_here", elsewhere)
    code, lines = replayed(folder, key)
    assert code == 1
    assert [line.split(":")[0] for line in lines] == [f"processor of client {client}" for client in range(3)]


def test_a_mistake_gets_one_line_and_no_traceback(certified):
    _, folder, _, key = certified
    mistakes = (
        (("--pieces", 1), "--pieces: only with --replay"),
        (("--replay", "--node-dir", folder / "nobody"), "no such folder"),
        (("--replay", "--run", folder), "is no run: name the run of the certificate with --run"),
        (("--replay", "--set", "unlearning.epochs=2"), "a replay goes by the run's own configuration"),
    )
    for arguments, text in mistakes:
        result = verify(folder, key, *arguments)
        assert result.code == 2, arguments
        assert text in result.err
        assert "Traceback" not in result.err
    (folder / ROUNDS_FILE).unlink()
    assert verify(folder, key).code == 0, "the certificate alone is as it was signed"
    result = verify(folder, key, "--replay")
    assert (result.code, "what is to be held again lies beside the certificate" in result.err) == (2, True)


def test_a_certificate_that_rests_on_measurements_cannot_be_replayed(tmp_path):
    with pytest.raises(CertificateError, match=r"only a certificate of the class exact can be replayed"):
        replay(tmp_path, {"result": "PASS"}, None, (), (), None)


def test_a_client_that_the_run_does_not_have_is_one_line(certified):
    run, _, _, _ = certified
    file = next(run.path.glob("updates/*/rounds.jsonl"))
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[0]["clients"].append(77)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (request,) = list(Ledger(run.ledger_path))
    result = call("audit", "exchange", run.path, request.id)
    assert (result.code, "its stored rounds name client 77, and the run has the clients 0 to 2" in result.err) == (
        2,
        True,
    )
