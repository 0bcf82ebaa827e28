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
from oblivionis.audits.exchange_replay import replay_exchange
from oblivionis.audits.replay import EQUAL
from oblivionis.client.exchange import Exchange
from oblivionis.client.worker import Worker
from oblivionis.erasure.exact_proof import judge_exact
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


ASKING = 2
IN_SHARDS = ("federation.clients=4", "federation.shards=2", f"unlearning.requests.clients=[{ASKING}]")


def shard_members(run):
    """The clients of each shard, by the proof."""
    of_client = json.loads((run.path / "exact.json").read_text())["of_client"]
    return [[client for client, of in enumerate(of_client) if of == shard] for shard in range(2)]


def only_folders_of(run, clients):
    """Take the folders of all other clients away."""
    for folder in run.nodes_path.iterdir():
        if folder.name not in map(str, clients):
            shutil.rmtree(folder)


@pytest.fixture(scope="module")
def original_in_shards(tmp_path_factory):
    """A run in two shards in which one client asks."""
    return made(tmp_path_factory.mktemp("shards"), "run", *IN_SHARDS)


@pytest.fixture
def in_shards(original_in_shards, original, tmp_path):
    """A copy of the run, its certificate's folder, the certificate, the key, the shard of who asks, and its clients."""
    shutil.copytree(original_in_shards.path, tmp_path / "run")
    run, key = RunDirectory.open(tmp_path / "run"), original[1]
    members = shard_members(run)
    shard = next(shard for shard, clients in enumerate(members) if ASKING in clients)
    return run, *certify(run, key), key, shard, members[shard]


def test_a_certificate_of_a_run_in_shards_names_the_rounds_of_the_shard_that_asks(in_shards):
    run, folder, certificate, key, shard, clients = in_shards
    (request,) = list(Ledger(run.ledger_path))
    assert (request.outcome, request.why.split(";")[0]) == (ERASED, "recorded in the ledgers")
    assert (certificate["class"], certificate["result"]) == ("exact", "PASS")
    rows = [json.loads(line) for line in (folder / ROUNDS_FILE).read_text().splitlines()]
    assert {row["shard"] for row in rows} == {shard}
    assert sorted({client for row in rows for client in row["clients"]}) == clients
    (line,), said = run.lines("applied"), certificate["exact"]["shards"]
    for number in range(2):
        assert (line["parts_before"][number] == line["parts_after"][number]) is (number != shard)
    assert [of["after"] for of in said] == line["parts_after"]
    assert [of["rounds"] for of in said] == [4 if number == shard else 0 for number in range(2)]
    vector = run.load_checkpoint("unlearn").vector
    models = certificate["requests"][0]["evidence"]["models"]
    assert models["final"]["sha256"] == sha256_of(vector)
    assert [of["final"] for of in said] == [sha256_of(part) for part in np.split(vector, 2)]
    assert all(of["final"] in (folder / certificates.PAGE_FILE).read_text() for of in said)
    assert verify(folder, key).code == 0


def sha256_of(vector):
    return hashlib.sha256(vector.tobytes()).hexdigest()


def test_its_replay_takes_the_folders_of_that_shard_alone(in_shards, tmp_path):
    run, folder, _, key, shard, clients = in_shards
    only_folders_of(run, clients)
    result = verify(folder, key, "--replay")
    assert result.code == 0, result.out + result.err
    names = ("round 2 of finetune: equal", "model after the exchange of round 1: equal", "final model: equal")
    assert all(f"\nshard {shard}: {name}" in result.out for name in names)
    assert f"shard {1 - shard}: round" not in result.out and f"shard {1 - shard}: final model: equal" in result.out
    shutil.move(run.nodes_path, tmp_path / "kept")
    given = [argument for client in clients for argument in ("--node-dir", tmp_path / "kept" / str(client))]
    assert verify(folder, key, "--replay", *given).code == 0
    result = verify(folder, key, "--replay", *given[2:])
    assert (result.code, f"the folders of clients {clients[0]} are needed" in result.err) == (2, True), result.err


@pytest.mark.parametrize("own", [True, False])
def test_another_model_of_any_shard_than_the_certificates_is_found(in_shards, own):
    _, folder, certificate, key, shard, _ = in_shards
    number = shard if own else 1 - shard
    shards = [of | ({"final": "0" * 64} if of["shard"] == number else {}) for of in certificate["exact"]["shards"]]
    signed_again(folder, merged(certificate, {"exact": {"shards": shards}}), key)
    code, lines = replayed(folder, key)
    assert code == 1
    assert lines[0].startswith(f"shard {number}: final model: differs")
    assert all(line.startswith(f"shard {number}: ") for line in lines)


@pytest.mark.parametrize("fixture", ["certified", "in_shards"])
def test_a_list_without_the_rounds_of_the_shard_that_asks_is_no_proof(fixture, request):
    """Signed again, with the hash of an empty list."""
    _, folder, certificate, key, *_ = request.getfixturevalue(fixture)
    (folder / ROUNDS_FILE).write_text("")
    signed_again(folder, merged(certificate, {"exact": {"rounds_sha256": sha256(""), "rounds": []}}), key)
    code, lines = replayed(folder, key)
    assert (code, ["not testable" in line for line in lines]) == (3, [True])


def test_a_record_that_stayed_in_a_shard_is_found(tmp_path, monkeypatch, original):
    finetune = Worker.finetune

    def keeps(self, client, vector, *, excluded, **settings):
        return finetune(self, client, vector, excluded=(), **settings)

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "finetune", keeps)
        run = made(tmp_path, "kept", *IN_SHARDS)
    folder, certificate = certify(run, original[1])
    assert certificate["result"] == "PASS", "by what is recorded"
    code, lines = replayed(folder, original[1])
    assert code == 1
    assert f"client {ASKING} gives another update in round 1 of finetune" in lines[0]


def test_a_client_that_took_part_in_another_shard_is_not_erased(in_shards):
    """A list of rounds, named by the run's ledger, in which the one who asks trained for the other shard, too."""
    run, _, _, _, shard, _ = in_shards
    proof = json.loads((run.path / "exact.json").read_text())
    row = next(row for row in proof["rounds"] if row["shard"] != shard)
    row["clients"].append(ASKING)
    row["hashes"][str(ASKING)] = row["entries"][str(ASKING)] = "0" * 64
    run.keep({"exact.json": json.dumps(proof)})
    (request,) = list(Ledger(run.ledger_path))
    judged = judge_exact(run, [request], {})[request.id]
    assert judged.outcome != ERASED
    assert (
        judged.why == f"client {ASKING} is of shard {shard}, and took part in round 1 of finetune of shard {1 - shard}"
    )


def test_demands_of_several_shards_are_judged_and_replayed_each_in_its_own(original, tmp_path):
    """One demand in each shard, in two rounds: the second exchange leaves the first shard as it is."""
    each = ("unlearning.requests.policy=random_client_per_round", "unlearning.requests.clients=null")
    run = made(tmp_path, "both", *IN_SHARDS, *each, "federation.shard_placement=by_size")
    requests = list(Ledger(run.ledger_path))
    of_client = {client: shard for shard, own in enumerate(shard_members(run)) for client in own}
    served = [(of_client[request.client], request.served_round, request.outcome) for request in requests]
    assert sorted(shard for shard, *_ in served) == [0, 1]
    assert [(number, outcome) for _, number, outcome in served] == [(1, ERASED), (2, ERASED)]
    for request in requests:
        folder, certificate = certificates.create(run, request.id, original[1])
        assert certificate["result"] == "PASS"
        assert replayed(folder, original[1]) == (0, [])
    found = replay_exchange(run.path, requests[0].id, [run.nodes_path / str(client) for client in range(4)])
    assert {finding.outcome for finding in found} == {EQUAL}, [f for f in found if f.outcome != EQUAL]


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
