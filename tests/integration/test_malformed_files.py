"""Malformed files of every kind that the program reads, through the real commands.

None may give a traceback or hang. Either it is refused, with its name, or what the command says is what it says of the
sound file; a line that is left out is named.
"""

import json
import re
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.commands import call
from support.malformed import BYTES, PLACES, variants
from support.reports import make_run

from oblivionis import files
from oblivionis.cli import main as cli
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.request import Request
from oblivionis.erasure.verification_rules import VERIFIED, Judgement
from oblivionis.runs.directory import Checkpoint
from strategies.message_keys import SCOPE_RECORDS

SECONDS = 20


@dataclass(frozen=True)
class Kind:
    """A kind of file: where it lies, and the command that reads it; changes: how many values are changed; lines."""

    file: Path
    command: tuple
    changes: int = 0
    lines: bool = False


def rows(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(v) + "\n" for v in values), encoding="utf-8")
    return path


def questions(number, **more):
    return [
        {"id": f"r{i}", "question": f"Who is {i}?", "answer": f"It is the person {i}.", "subject": f"S{i}", **more}
        for i in range(number)
    ]


def perturbed(number, start=0):
    return [
        {
            "question": f"Who is {i}?",
            "answer": f"It is the person {i}.",
            "paraphrased_answer": f"Person {i}.",
            "perturbed_answer": ["Nobody at all.", "Someone else."],
        }
        for i in range(start, start + number)
    ]


def data_kinds(folder):
    train = rows(folder / "own" / "train.jsonl", [{**row, "forget": row["id"] < "r2"} for row in questions(6)])
    asked = rows(folder / "own" / "forget_perturbed.jsonl", perturbed(2))
    ids = folder / "own" / "forget.txt"
    ids.write_text('r0\n{"id": "r1"}\n')
    own = ("data", "describe", "smoke", "data=jsonl", f"data.path={train.parent}", "federation.clients=2")
    tofu = folder / "tofu"
    full = rows(tofu / "full.json", perturbed(80))
    for name in ("forget01", "forget01_perturbed"):
        rows(tofu / f"{name}.json", perturbed(2))
    for name in ("retain_perturbed", "real_authors_perturbed", "world_facts_perturbed"):
        rows(tofu / f"{name}.json", perturbed(2, 40))
    of_tofu = ("data", "describe", "smoke", "data=tofu", f"data.path={tofu}", "federation.clients=2")
    facts = rows(folder / "facts.jsonl", [{"subject": "Ada Orr", "property": "P19", "values": ["Ost"], "cohort": "a"}])
    asking = rows(folder / "asking.jsonl", [{"id": "a", "question": "Who?", "answer": "Nobody", "keywords": ["no"]}])
    node = rows(folder / "nodes" / "node0" / "data" / "mine.jsonl", questions(3))
    rows(folder / "nodes" / "node1" / "data" / "mine.jsonl", questions(3))
    nodes = ("data=node", f"data.nodes={folder / 'nodes'}", "unlearning.requests.policy=none")
    of_nodes = ("data", "describe", "smoke", *nodes, "federation.clients=2")
    buried = rows(folder / "nodes" / "node0" / "tombstones.jsonl", [{"record_id": "r0", "request_id": "q", "time": 1}])
    left = folder / "nodes" / "node0" / "left.json"
    left.write_text('{"request_id": "q", "time": 1.5}\n')
    ledger = NodeLedger(folder / "nodes" / "node1")
    ledger.submit(["r0"], scope=SCOPE_RECORDS, reason="mine", identifier="q1")
    return {
        "train": Kind(train, own, 6, True),
        "questions": Kind(asked, own, 6, True),
        "forget ids": Kind(ids, (*own, f"data.forget_file={ids}"), 0, True),
        "tofu full": Kind(full, of_tofu, 5, True),
        "tofu forget": Kind(tofu / "forget01.json", of_tofu, 3, True),
        "tofu perturbed": Kind(tofu / "world_facts_perturbed.json", of_tofu, 3, True),
        "facts": Kind(facts, ("audit", "person", "none/of/these", "--subjects", facts), 4, True),
        "audit questions": Kind(asking, ("audit", "leakage", "none/of/these", "--questions", asking), 4, True),
        "node data": Kind(node, of_nodes, 4, True),
        "tombstones": Kind(buried, of_nodes, 3, True),
        "left": Kind(left, of_nodes, 3),
        "node ledger": Kind(ledger.path, ("request", "list", "--node-dir", ledger.node_dir), 6, True),
    }


def configuration_kinds(folder):
    config = folder / "mine.yaml"
    config.write_text("extends: smoke\nfederation:\n  clients: 3\n  rounds: {finetune: 2}\nseed: 3\n")
    suite = folder / "suite.yaml"
    suite.write_text("kind: federated\nexperiment: smoke\nmatrix:\n  seed: [0, 1]\nstages: [finetune]\n")
    schedule = rows(
        folder / "schedule.jsonl",
        [{"round": 1, "client": 0, "scope": "client", "id": "leaves"}, {"round": 1, "subject": "S3", "reason": "x"}],
    )
    data = rows(folder / "scheduled.jsonl", questions(6))
    simulate = ("simulate", "smoke", "data=jsonl", f"data.path={data}", "federation.clients=2", f"output={folder}/out")
    asked = ("unlearning.requests.policy=file", f"unlearning.requests.file={schedule}", "unlearning=grad_ascent")
    return {
        "configuration": Kind(config, ("config", "show", config)),
        "suite": Kind(suite, ("bench", "run", suite, "--dry-run")),
        "schedule": Kind(schedule, (*simulate, *asked), 8, True),
    }


LEAKAGE = {
    "terms": {"alpha_per_question": 0.01, "leaks_from": 0.5},
    "questions": [{"id": "a", "samples": 8, "m_bin": 0.4, "mu_lower": 0.0, "greedy": 0.1, "mean": 0.1, "ed": 0.1}],
}
ATTACKS = {
    "run": "made",
    "stage": "unlearn",
    "round": 2,
    "oracle": None,
    "rows": [
        {
            "attack": "quantise",
            "variant": "8 bits (int8)",
            "questions": 4,
            "models": {"unlearn": {"before": {"rouge": 0.1}, "after": {"rouge": 0.2}}},
        }
    ],
    "membership": [],
    "left_out": {},
    "failed": {},
}


def run_kinds(folder):
    run, _ = make_run(folder)
    ledger = Ledger(run.ledger_path)
    for i, ids in enumerate((("a", "b"), ("c",))):
        ledger.submit(Request(f"r{i}", i, ids, i + 1, "its share"))
    ledger.served("r0", 1)
    ledger.verified("r0", 2, Judgement(VERIFIED, "", 0.1, {"a": VERIFIED, "b": VERIFIED}), 0.5)
    run.write_environment(seed=0, base_model="embedded", manifest_hash="x")
    for stage in ("finetune", "retrain", "unlearn"):
        run.save_checkpoint(Checkpoint(stage, 2, np.arange(64, dtype=np.float32), {}, {"seed": 0}), keep=2)
    told = {"request": "r0", "client": 0, "round": 1, "final": {"request_rouge": 0.1}}
    (run.path / "audits").mkdir()
    (run.path / "audits" / "request-r0.json").write_text(json.dumps(told))
    leakage = run.path / "audits" / "leakage-unlearn-0002" / "audit.json"
    attacks = run.path / "attacks" / "unlearn-0002" / "results.json"
    for path, value in ((leakage, LEAKAGE), (attacks, ATTACKS)):
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(value))
    show = ("runs", "show", run.path)
    find = ("attack", run.path, "--only", "nothing")
    certify = ("certificate", "create", run.path, "r0", "--out", folder / "certificate")
    return run, {
        "run configuration": Kind(run.path / "config.yaml", show),
        "metrics": Kind(run.path / "metrics.jsonl", show, 8, True),
        "summary": Kind(run.path / "stages" / "unlearn.json", show, 10),
        "finetune summary": Kind(run.path / "stages" / "finetune.json", show, 6),
        "log": Kind(run.path / "evaluations" / "unlearn.json", show, 14),
        "retrain log": Kind(run.path / "evaluations" / "retrain.json", show, 8),
        "ledger": Kind(run.ledger_path, show, 10, True),
        "checked ledger": Kind(run.ledger_path, ("request", "verify", run.path), 4, True),
        "figures": Kind(run.path / "figures.json", show, 8),
        "client audit": Kind(run.path / "audits" / "request-r0.json", show, 6),
        "leakage audit": Kind(leakage, certify, 8),
        "attacks": Kind(attacks, certify, 8),
        "environment": Kind(run.path / "environment.json", find, 8),
        "checkpoint": Kind(run.path / "checkpoints" / "unlearn" / "round-0002.safetensors", find),
    }


def certificate_kinds(folder, run):
    key = folder / "signer.key"
    assert call("certificate", "keygen", "--out", key).code == 0
    assert call("certificate", "create", run.path, "r0", "--key", key, "--out", folder / "signed").code == 0
    made, public = folder / "signed" / "certificate.json", folder / "signer.key.pub"
    create = ("certificate", "create", run.path, "r0", "--out", folder / "again", "--key", key)
    return {
        "certificate": Kind(made, ("certificate", "verify", made, "--public-key", public), 12),
        "public key": Kind(public, ("certificate", "verify", made, "--public-key", public)),
        "private key": Kind(key, create),
    }


def result_kinds(folder):
    table = folder / "results.parquet"
    columns = ["cell", "model", "strategy", "unlearning", "stage", "status", "error", "run", "metric", "value"]
    frame = pd.DataFrame(
        [["c", "tiny", "fedavg", "npo", "unlearn", "done", "", "r", "forget_rouge", 0.5]], columns=columns
    )
    frame.to_parquet(table, index=False)
    shipped = ("bench", "table", table, "--layout", "paper-table-2")
    return {"results": Kind(table, shipped)}


PLAIN = [
    "train", "questions", "forget ids", "tofu full", "tofu forget", "facts", "audit questions", "node data",
    "tombstones", "left", "node ledger", "configuration", "suite", "schedule", "run configuration", "metrics",
    "summary", "log", "ledger", "checked ledger", "figures", "client audit", "leakage audit", "attacks", "environment",
    "checkpoint", "certificate", "public key", "private key", "results",
]  # fmt: skip
ALWAYS = {
    ("ledger", "Latin-1"), ("ledger", "NaN"), ("ledger", "less its end"), ("ledger", "empty"), ("ledger", "huge line"),
    ("node ledger", "Infinity"), ("node ledger", "NaN"),   ("questions", "empty"),
    ("forget ids", "empty"), ("tofu forget", "empty"), ("schedule", "empty"),
    ("run configuration", "nested"), ("suite", "NaN"), ("client audit", "escape"), ("attacks", "symlink loop"),
    ("configuration", "pipe"), ("checkpoint", "pipe"), ("checkpoint", "truncated"), ("train", "pipe"),
}  # fmt: skip
"""What was not refused once."""
UNDEFINED = re.compile(r"metrics\.\w+ (missing|null)$")
"""A metric that a stage could not measure is left out, or null."""
SOUND = {("configuration", "empty")} | {(n, m) for n in ("summary", "log") for m in ("NaN", "Infinity", "1e999")}
"""What is no fault: a configuration without any key of its own, and what an evaluation of a ruined model writes."""
CHANGED = {
    "train": 6, "questions": 6, "tofu full": 5, "tofu forget": 3, "tofu perturbed": 3, "facts": 4, "audit questions": 4,
    "node data": 4, "tombstones": 3, "left": 3, "node ledger": 6, "schedule": 8, "metrics": 10, "summary": 10,
    "finetune summary": 6, "log": 14, "retrain log": 8, "ledger": 10, "checked ledger": 4, "figures": 8,
    "client audit": 6, "leakage audit": 8, "attacks": 8, "environment": 8, "certificate": 12,
}  # fmt: skip


def dealt(what, every):
    """Each kind of file with one in `every` of these, dealt out so that each meets many kinds."""
    pairs = [(i + j, name, one) for i, name in enumerate(PLAIN) for j, one in enumerate(what)]
    chosen = [(name, one) for number, name, one in pairs if number % every == 0 or (name, one) in ALWAYS]
    return [pair for pair in chosen if pair not in SOUND]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    run, of_run = run_kinds(folder)
    found = data_kinds(folder) | configuration_kinds(folder) | of_run
    return found | certificate_kinds(folder, run) | result_kinds(folder)


@pytest.fixture(scope="module")
def sound(kinds):
    """What each command says of the sound file; figures.json is there then."""
    found = {name: said(kind) for name, kind in kinds.items()}
    for name, (code, _, err) in found.items():
        later = "none/of/these" in err or "--only nothing" in err  # what comes once the file is read
        assert code == 0 or later, (name, err)
    return found


@pytest.fixture(scope="module", autouse=True)
def nothing_runs():
    """A simulation whose files are accepted is not run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "check_before_run", lambda config, console, new: cli_check(config))
        patch.setattr(cli, "start_simulation", lambda config, run, console, told, forks: console.print("accepted"))
        yield


def cli_check(config):
    from oblivionis.erasure.schedule import check_requests

    check_requests(config)


@pytest.fixture(autouse=True)
def in_time():
    def late(*_):
        raise TimeoutError(f"no answer within {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def said(kind):
    shutil.rmtree(kind.file.parent / "out", ignore_errors=True)
    files.warned.clear()
    done = call(*kind.command)
    told = ("run directory:", "SHA-256", "no stage is finished yet")  # the run's name is the time
    lines = [line for line in done.out.split("\n") if not any(words in line for words in told)]
    return done.code, "\n".join(lines), done.err


def judge(kind, expected, case):
    code, out, err = said(kind)
    text = f"{case}: exit code {code}\n{out}\n{err}"
    assert "Traceback" not in out + err and "fault of oblivionis" not in out + err, text
    if code != expected[0] or (code, out, err) != expected:
        told = kind.file.name in out + err or f"no row of {kind.file.stem} has" in err
        assert told, f"{text}\n--- of the sound file: exit code {expected[0]}\n{expected[1]}\n{expected[2]}"
        named = kind.file.name in (out if kind.command[1] == "verify" else out.partition("\n")[0] + err)
        assert code != 0 or named, text


@pytest.fixture
def replaced(kinds):
    aside = []

    def replace(kind, write):
        sound_file = kind.file.with_name(f"{kind.file.name}.sound")
        kind.file.rename(sound_file)
        aside.append((kind.file, sound_file))
        write(kind.file)

    yield replace
    for file, sound_file in aside:
        if file.is_dir() and not file.is_symlink():
            shutil.rmtree(file)
        else:
            file.unlink(missing_ok=True)
        file.with_name(f"{file.name}-2").unlink(missing_ok=True)
        sound_file.rename(file)


@pytest.mark.parametrize(("name", "mutation"), dealt(BYTES, 3))
def test_other_bytes(name, mutation, kinds, sound, replaced):
    kind = kinds[name]
    data = BYTES[mutation](kind.file.read_bytes())
    replaced(kind, lambda path: path.write_bytes(data))
    judge(kind, sound[name], f"{name}, {mutation}")


@pytest.mark.parametrize(("name", "place"), dealt(PLACES, 2))
def test_no_file(name, place, kinds, sound, replaced):
    kind = kinds[name]
    replaced(kind, PLACES[place])
    judge(kind, sound[name], f"{name}, {place}")


@pytest.mark.parametrize("name", CHANGED)
def test_values_of_other_types(name, kinds, sound, replaced):
    kind = kinds[name]
    text = kind.file.read_text()
    whole = [json.loads(line) for line in text.splitlines()] if kind.lines else json.loads(text)
    parts = whole if kind.lines else [whole]
    cases = [
        (number, case) for number in range(len(parts))[:2] for case in variants(parts[number], CHANGED[name], number)
    ]
    for number, (what, value) in cases:
        if UNDEFINED.match(what):
            continue
        changed = [*parts[:number], value, *parts[number + 1 :]]
        mine = "".join(json.dumps(v, ensure_ascii=False) + "\n" for v in changed)
        replaced_text(kind, mine, text, sound[name], f"{name}, {what}")


def replaced_text(kind, mine, text, expected, case):
    kind.file.write_text(mine)
    try:
        judge(kind, expected, case)
    finally:
        kind.file.write_text(text)
