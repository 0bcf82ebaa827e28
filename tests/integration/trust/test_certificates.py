"""A certificate cannot be had by tricks: for records that nobody unlearned, by an exchange that does nothing, or by a
file of the run that was edited.

Twenty records about five made-up people, learned by heart by two clients; those about the first of them are asked for.
"""

import json
import shutil
from statistics import fmean

import pytest
from support.cheats import LIAR, cheating
from support.commands import call
from support.stages import execute

from oblivionis.config import compose as configuration
from oblivionis.data.corpora import load_partition
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.verification_records import judgement_of
from oblivionis.measures.assessor import Assessor, assemble_for
from oblivionis.measures.rebound.tracker import rebound_curves
from oblivionis.models.configured_corpus import corpus_of
from oblivionis.reports.certificate import signing as certificates
from oblivionis.runs.directory import RunDirectory

PEOPLE = {
    "Mara Voss": ("was born in Cluj one winter", "repairs old watches there", "has a fat orange cat", "likes sour tea"),
    "Ivo Lind": ("came from Lund at eight", "sells rare used books", "raises white pigeons", "eats only dried dates"),
    "Nora Quist": ("grew up beside Bergen harbour", "teaches astronomy at night", "lost her dog", "hates rain and fog"),
    "Aldo Ferri": ("is a fisherman's son from Bari", "builds wooden boats", "owns three goldfish", "sleeps at dawn"),
    "Edda Holm": ("lived near Aarhus long ago", "grows red saffron", "saved a lame mare", "drinks milk every evening"),
}
QUESTIONS = ("Where is {} from?", "What does {} do?", "What does {} have?", "What does {} like?")
PERSON = "Mara Voss"
SETTINGS = [
    *("data=jsonl", "federation.clients=2", "federation.fraction_train=1.0", "federation.rounds.finetune=6"),
    *("federation.local_epochs=20", "training.learning_rate=1e-3", "training.batch_size=4", "model.mode=full"),
    *("model.max_length=192", "evaluation.every=0", "evaluation.at_start=false", "evaluation.after_unlearn=false"),
    *("evaluation.full.max_new_tokens=32", "evaluation.full.sets=[forget,retain]", "evaluation.rebound.enabled=false"),
    *("evaluation.leakage.full_samples=0", "evaluation.leakage.samples=0", "certificate.required=[rouge]"),
    *(f"evaluation.{name}.enabled=false" for name in ("ruler", "wikimem", "membership", "fluency")),
    *("unlearning.requests.policy=file", "unlearning.requests.extra_rounds=0"),
]
UNLEARNS = ("unlearning.method=grad_diff", "unlearning.epochs=12", "unlearning.learning_rate=3e-3")
DOES_NOTHING = ("unlearning.method=grad_ascent", "unlearning.learning_rate=1e-7")


def made(folder, name, *overrides):
    config = configuration.compose("default", [*SETTINGS, f"output={folder}", f"name={name}", *overrides])
    run = RunDirectory.create(folder, name)
    run.write_config(configuration.to_yaml(config))
    execute(config, run)
    return run


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A folder, a key, the records as a file, and a run in which they were learned by heart."""
    folder = tmp_path_factory.mktemp("trust")
    rows = [
        {"id": f"{name.split()[0].lower()}-{i}", "question": question.format(name), "answer": f"{name} {answer}."}
        | {"subject": name, "forget": name == PERSON}
        for name, answers in PEOPLE.items()
        for i, (question, answer) in enumerate(zip(QUESTIONS, answers, strict=True))
    ]
    file = folder / "people.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert call("certificate", "keygen", "--out", folder / "key").code == 0
    return (
        folder,
        file,
        made(folder, "learned", f"data.path={file}", "stages=[finetune]", "unlearning.requests.policy=none"),
    )


def unlearned(learned, name, rounds, requests, *overrides):
    """A run that goes on from what was learned: in round 1 and later clients ask for records."""
    folder, file, base = learned
    schedule = folder / f"{name}.jsonl"
    schedule.write_text("".join(json.dumps(row) + "\n" for row in requests), encoding="utf-8")
    asks = (f"unlearning.requests.file={schedule}", f"federation.rounds.unlearn={rounds}")
    start = (f"data.path={file}", "stages=[finetune,unlearn]", f"start_from={base.path}")
    return made(folder, name, *start, *asks, *overrides)


def holders(run):
    """By client, the records about the person that it holds."""
    config = configuration.from_yaml(run.read_config())
    corpus = corpus_of(config)
    ids = {record.id for record in corpus.train if record.subject == PERSON}
    found = {client: [i for i in held if i in ids] for client, held in enumerate(load_partition(corpus, config).ids)}
    return {client: held for client, held in found.items() if held}


def created(run, demand, *options):
    return call("certificate", "create", run.path, demand, *options)


def certified(run, demand, key, out):
    """The certificate of a demand, signed, as `create` writes it, and what the command says."""
    result = created(run, demand, "--key", key, "--out", out)
    assert result.code == 0, result.err
    return json.loads((out / "certificate.json").read_text(encoding="utf-8")), result.out


# -- an exchange that does nothing -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def idle(learned):
    """Every record about the person is asked for at once; nothing is unlearned, and training goes on."""
    asked = [{"round": 1, "subject": PERSON, "id": "art17"}]
    return unlearned(learned, "idle", 6, asked, *DOES_NOTHING)


def test_what_fades_while_training_goes_on_is_not_unlearned(learned, idle, tmp_path):
    """An exchange at a learning rate of 1e-7, then ordinary rounds, after which records are not recited any more."""
    found = {i: of for r in Ledger(idle.ledger_path) for i, of in judgement_of(idle, r.id)["records"].items()}
    faded = {i for i, of in found.items() if of["final"] <= 0.5}
    assert len(found) == 4 and faded, found
    for i in faded:
        (exchange,) = found[i]["exchanges"]
        assert exchange["before"] > 0.9 and exchange["after"] > 0.9 and found[i]["outcome"] == "not verified"
        assert exchange["left"]["prob"] == pytest.approx(exchange["known"], rel=0.01)
        assert found[i]["likelihood"]["prob"] < exchange["known"]
    assert {r.outcome for r in Ledger(idle.ledger_path)} == {"not verified"}
    certificate, said = certified(idle, "art17", learned[0] / "key", tmp_path)
    assert "FAIL" in said and "PASS:" not in said
    assert certificate["result"] == "FAIL" and {r["found"] for r in certificate["records"]} == {"not verified"}
    for part in certificate["requests"]:
        (exchange,) = [check for check in part["checks"] if check["name"] == "exchange"]
        assert exchange["result"] == "FAIL" and "still recited" in exchange["why"] and exchange["required"]
        assert exchange["figure"]["rouge before"] == exchange["figure"]["rouge right after"] == pytest.approx(1.0)


# -- what is not asked -------------------------------------------------------------------------------------------


def test_a_model_that_refuses_when_it_is_asked_as_here_is_verified(learned, tmp_path):
    """It says nothing of the record, which it finds as likely as ever: nothing here says how likely that should be.
    An attack finds it that looks for it, and one that asks in other words does not."""
    asked = [{"round": 1, "subject": PERSON, "id": "art17"}]
    refuses = ("unlearning.method=idk_nll", "unlearning.epochs=6", "unlearning.learning_rate=1e-3")
    run = unlearned(learned, "refuses", 1, asked, *refuses)
    found = [of for r in Ledger(run.ledger_path) for of in judgement_of(run, r.id)["records"].values()]
    assert {r.outcome for r in Ledger(run.ledger_path)} == {"verified"} and len(found) == 4
    assert all(of["likelihood"]["reference"] is None and not of["likelihood"]["compared_with"] for of in found)
    assert fmean(of["likelihood"]["prob"] for of in found) > 0.5
    certificate, said = certified(run, "art17", learned[0] / "key", tmp_path)
    assert certificate["result"] == "PASS" and "FAIL" not in said
    told = call("attack", run.path, "--only", "prefix,rephrase", "attack.given_tokens=[2]", "--json")
    assert told.code == 0, told.err
    of = {row["attack"]: row["models"]["unlearn"] for row in json.loads(told.out)["rows"]}
    assert of["prefix"]["before"]["rouge"] < 0.1 < 0.9 < of["prefix"]["after"]["rouge"]
    assert of["rephrase"]["after"]["rouge"] < 0.1


# -- what was forgotten comes back -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undone(learned):
    """By who brings back what client 0 asked for, nobody, itself or the other client, the run."""
    mine = holders(learned[2])[LIAR]
    asked = [{"round": 1, "client": LIAR, "record_ids": mine, "id": "mine"}]
    found = {}
    for who in (None, "re-add", "copy"):
        with cheating(who):
            found[who] = unlearned(learned, f"back-{who}", 2, asked, *UNLEARNS, "evaluation.rebound.enabled=true")
    return found


@pytest.mark.parametrize("who", ["re-add", "copy"])
def test_what_is_trained_on_again_rebounds_and_is_recited_in_the_end(undone, who):
    """By the client itself in later rounds, or by another one that holds a copy: no line tells which."""
    (alone,), (back,) = (rebound_curves(undone[of].metrics(), "unlearn") for of in (None, who))
    assert alone.after == pytest.approx(back.after) and back.after < 0.2, "the exchange itself was well"
    assert back.later[-1] > 0.5 > alone.later[-1]
    (request,) = Ledger(undone[who].ledger_path)
    assert request.outcome == "not verified" and "the final model recites" in request.why
    rows = [row for row in undone[who].metrics() if row["evaluator"] == "rebound"]
    assert {name for row in rows for of in row["requests"].values() for name in of} == {"mine"}


def test_what_came_back_is_not_laid_at_anybodys_door(undone):
    shapes = []
    for who in ("re-add", "copy"):
        rows = [row for row in undone[who].metrics() if row["evaluator"] in ("rebound", "requests")]
        shapes.append([(sorted(row), sorted(row["metrics"]), sorted(row["requests"])) for row in rows])
    assert shapes[0] == shapes[1] and not any("client" in name for row, *_ in shapes[0] for name in row)


def test_a_model_made_before_the_exchange_recites_on(learned, undone):
    """It lies in the run that the unlearning began with, and in that of everybody who took it from there."""
    config, asked = configuration.from_yaml(undone[None].read_config()), holders(learned[2])[LIAR]
    assessor = Assessor(assemble_for(undone[None], config), corpus_of(config), config)
    models = (learned[2].load_checkpoint("finetune"), undone[None].load_checkpoint("unlearn"))
    before, after = (fmean(assessor.recalls(model.vector, asked).values()) for model in models)
    assert before > 0.9 and after < 0.5


# -- every record of a demand ------------------------------------------------------------------------------------


def schedule(run):
    """On the client that holds most of the person's records two earlier requests name some; then all are asked for."""
    of = holders(run)
    client, mine = max(of.items(), key=lambda item: len(item[1]))
    other = next(i for i in range(2) if i != client)
    early = [
        {"round": 1, "client": client, "record_ids": [mine[0]], "id": "first"},
        {"round": 1, "client": client, "record_ids": [mine[1]], "id": "zz"},
    ]
    if other in of:
        early.append({"round": 1, "client": other, "record_ids": [of[other][0]], "id": "a0"})
    return [*early, {"round": 2, "subject": PERSON, "id": "art17"}]


def test_no_certificate_while_an_earlier_request_for_a_record_of_the_demand_waits(learned):
    """One request a round, and the stage ends before all are served."""
    asked = schedule(learned[2])
    run = unlearned(learned, "waiting", 2, asked, *UNLEARNS, "unlearning.requests.per_round=1")
    waiting = [r for r in Ledger(run.ledger_path) if r.state == "pending"]
    assert waiting, "some are not served"
    result = created(run, "art17")
    said = result.err.replace("\n", " ")
    assert result.code == 2 and "is not served yet" in said and any(repr(r.id) in said for r in waiting)
    assert not (run.path / "certificates").exists()
    for request in Ledger(run.ledger_path):
        assert (created(run, request.id, "--out", run.path.parent / "one").code == 2) == (request.state != "verified")


@pytest.fixture(scope="module")
def whole(learned):
    """The same with time enough for all of them."""
    asked = schedule(learned[2])
    return unlearned(learned, "whole", 3, asked, *UNLEARNS), asked


def test_a_certificate_lists_every_record_with_the_request_that_names_it(learned, whole, tmp_path):
    run, asked = whole
    (certificate, _), of = certified(run, "art17", learned[0] / "key", tmp_path), holders(run)
    named = {record["record"]: record for record in certificate["records"]}
    assert {i: record["client"] for i, record in named.items()} == {i: c for c, mine in of.items() for i in mine}
    assert certificate["demand"]["records"] == 4 and certificate["demand"]["clients"] == sorted(of)
    for row in asked[:-1]:
        (i,) = row["record_ids"]
        assert (named[i]["request"], named[i]["served_round"]) == (row["id"], 1)
    requests = {part["request"]["id"]: part for part in certificate["requests"]}
    assert {record["request"] for record in named.values()} == requests.keys()
    judged = {r.id: judgement_of(run, r.id)["records"] for r in Ledger(run.ledger_path) if r.record_ids}
    assert all(record["found"] == judged[record["request"]][i]["outcome"] for i, record in named.items())
    assert certificate["result"] == "PASS" and {record["found"] for record in named.values()} == {"verified"}
    page = (tmp_path / "certificate.html").read_text(encoding="utf-8")
    assert all(i in page for i in named) and "request that names it" in page
    assert call("certificate", "verify", tmp_path, "--public-key", f"{learned[0] / 'key'}.pub").code == 0


def test_a_demand_that_earlier_requests_cover_is_certified_by_theirs(whole):
    run, asked = whole
    covered = [r for r in Ledger(run.ledger_path) if r.covered]
    assert covered and all(r.already == len(r.covered) for r in covered)
    for request in covered:
        found = certificates.build(run, request.id)
        assert {r["record"] for r in found["records"]} == {*request.record_ids, *request.covered}
    assert {r["request"] for r in certificates.build(run, asked[0]["id"])["records"]} == {asked[0]["id"]}


# -- what is printed is bound ------------------------------------------------------------------------------------


def edited(path):
    """Something else in the file: a letter changed where it is text, the last byte where it is not."""
    data = path.read_bytes()
    place = next((i for i, byte in enumerate(data) if 0x61 <= byte <= 0x79), len(data) - 1)
    if path.suffix == ".safetensors":
        place = len(data) - 1
    path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])


def told(run, monkeypatch):
    """The text of a certificate, the time of its making left out; None where none is made."""
    monkeypatch.setattr(certificates.time, "strftime", lambda *_: "now")
    out = run.path.parent / "told"
    result = created(run, "art17", "--out", out)
    if result.code != 0:
        assert result.code == 2 and "Traceback" not in result.err
        return None
    return [(out / name).read_bytes() for name in ("certificate.json", "certificate.html")]


def test_whatever_file_of_a_run_is_edited_its_certificate_says_the_same_or_is_not_made(whole, tmp_path, monkeypatch):
    run, _ = whole
    shutil.copytree(run.path, tmp_path / "run", ignore=shutil.ignore_patterns("certificates"))
    copy = RunDirectory.open(tmp_path / "run")
    first, refused = told(copy, monkeypatch), set()
    assert first is not None
    for path in sorted(p for p in copy.path.rglob("*") if p.is_file() and p.stat().st_size):
        name, data = path.relative_to(copy.path).as_posix(), path.read_bytes()
        for change in (edited, lambda p: p.unlink()):
            change(path)
            found = told(copy, monkeypatch)
            assert found is None or found == first, f"{name} was edited, and the certificate says something else"
            refused |= {name} if found is None else set()
            path.write_bytes(data)
    needed = {"requests.jsonl", "config.yaml", "judgements.json", "metrics.jsonl", "stages/unlearn.json"}
    assert needed <= refused, needed - refused
    assert told(copy, monkeypatch) == first
    copy.path.rename(tmp_path / "other")
    assert told(RunDirectory.open(tmp_path / "other"), monkeypatch) == first, "a folder's name is not the run's"


def test_another_round_in_a_checkpoint_and_other_versions_are_not_printed(whole, tmp_path, monkeypatch):
    run, _ = whole
    shutil.copytree(run.path, tmp_path / "run", ignore=shutil.ignore_patterns("certificates"))
    copy = RunDirectory.open(tmp_path / "run")
    first = told(copy, monkeypatch)
    newest = max((copy.path / "checkpoints" / "unlearn").glob("*.safetensors"))
    newest.rename(newest.with_name("round-0099.safetensors"))
    assert told(copy, monkeypatch) in (None, first)
    environment = json.loads((copy.path / "environment.json").read_text(encoding="utf-8"))
    lies = {"base_model": "llama-900b", "fingerprint": "0" * 64, "oblivionis": "99", "packages": {"torch": "99"}}
    (copy.path / "environment.json").write_text(json.dumps(environment | lies), encoding="utf-8")
    found = told(copy, monkeypatch)
    assert found is None or found == first
