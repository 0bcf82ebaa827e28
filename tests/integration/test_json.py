"""`--json` of every command that prints figures: one document, those of the table's source, and nothing else."""

import json
import math

import click
import numpy as np
import pytest
import typer
from support import wikidata_dump
from support.commands import call, in_process

from benchmarks import suite_kinds as suites
from benchmarks.federated import results
from benchmarks.tuning import tune
from oblivionis.cli import main as cli
from oblivionis.cli.as_json import plain
from oblivionis.erasure.ledger import Ledger
from oblivionis.errors import RunFailed
from oblivionis.runs.directory import RunDirectory
from oblivionis.server import simulation

WITHOUT_FIGURES = {
    *("bench keep", "bench node", "certificate keygen", "config check", "config list", "config show"),
    *("deploy hub", "deploy init", "deploy renew", "export", "model build", "model fetch", "model info"),
    *("model retire", "request open", "request repair", "request submit", "request withdraw", "view"),
}
"""Commands that make or list something, or print a document of their own (`config show`, `request open`)."""
SMALL = [
    *("data.authors=8", "data.forget_authors=2", "evaluation.full.questions_per_set=4", "evaluation.every=0"),
    *("evaluation.leakage.full_samples=2", "federation.rounds.finetune=1", "federation.rounds.retrain=1"),
]


def commands(group, *names):
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *names, name)
        else:
            yield " ".join([*names, name]), command


EVERY = dict(commands(typer.main.get_command(cli.cli)))


@pytest.mark.parametrize("name", EVERY)
def test_a_command_has_the_option_or_prints_no_figures(name):
    has = any("--json" in option.opts for option in EVERY[name].params)
    assert has or name in WITHOUT_FIGURES, "give it --json (oblivionis/cli/as_json.py), or say that it has no figures"


def test_the_list_of_commands_without_figures_names_commands():
    assert set(EVERY) >= WITHOUT_FIGURES


def test_numbers_are_whole_and_those_that_are_none_are_null():
    value = {"a": math.nan, 2: (np.float64(0.1), np.arange(2), math.inf), "c": {3}}
    assert plain(value) == {"a": None, "2": [0.1, [0, 1], None], "c": [3]}
    with pytest.raises(TypeError):
        plain(object())


def told(*arguments, code=0):
    """What a command says as JSON."""
    result = call(*arguments, "--json")
    assert result.code == code, result.err
    return json.loads(result.out)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run, what `simulate --json` printed of it, and what the command said beside it."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "simulate", in_process)
        result = call("simulate", "smoke", f"output={folder}", "name=made", *SMALL, "--json")
    assert result.code == 0, result.err
    return folder / "made", json.loads(result.out), result.err


def stored(path, stage):
    return json.loads((path / "stages" / f"{stage}.json").read_text())["metrics"]


def test_a_run(made):
    path, printed, said = made
    assert printed["run"] == str(path) and printed["failed"] == [] and "run directory" in said
    for stage in ("finetune", "retrain", "unlearn"):
        assert printed["metrics"][stage].items() >= stored(path, stage).items(), "to the last digit"
    requests = {r.id: r for r in Ledger(RunDirectory.open(path).ledger_path)}
    assert {r["id"]: (r["outcome"], r["rouge"]) for r in printed["requests"]} == {
        i: (r.outcome, r.rouge) for i, r in requests.items()
    }
    assert printed["verdicts"] == json.loads((path / "verdicts.json").read_text())
    assert told("runs", "show", path) == printed
    (one,) = told("runs", "list", path.parent)
    assert one["run"] == "made" and one["metrics"]["unlearn"] == stored(path, "unlearn")


def test_an_evaluation(made):
    path, *_ = made
    found = told("evaluate", path, "--stage", "finetune")
    kept = {k: v for k, v in stored(path, "finetune").items() if k in found["metrics"]}
    assert found["stage"] == "finetune" and len(kept) > 10
    assert {k: found["metrics"][k] for k in kept} == pytest.approx(kept, abs=1e-6)


def test_audits_and_attacks(made):
    path, *_ = made
    found = told("audit", "leakage", path, "--samples", 2)
    assert found.items() >= json.loads((path / "audits" / "leakage-unlearn-0002" / "audit.json").read_text()).items()
    found = told("attack", path, "--only", "jailbreak", "attack.questions=2")
    assert found.items() >= json.loads((path / "attacks" / "unlearn-0002" / "results.json").read_text()).items()
    found = told("audit", "person", path, "--limit", 1, "--templates", 1, "--stage", "finetune")
    audit = path / "audits" / "person-finetune-0001"
    assert found.items() >= json.loads((audit / "audit.json").read_text()).items()
    plan = told("request", "from-audit", audit, "--min-strength", 0)
    assert plan["requests"] == sum(len(d["records"]) for d in plan["demands"])
    request = next(iter(Ledger(path / "requests.jsonl"))).id
    assert {f["outcome"] for f in told("audit", "exchange", path, request)["findings"]} == {"equal"}


def test_certificates_and_ledgers(made, tmp_path):
    path, printed, _ = made
    request = printed["requests"][0]["id"]
    assert call("certificate", "keygen", "--out", tmp_path / "key").code == 0
    written = told("certificate", "create", path, request, "--key", tmp_path / "key", "--out", tmp_path / "paper")
    assert written["certificate"] == json.loads((tmp_path / "paper" / "certificate.json").read_text())
    checked = told("certificate", "verify", tmp_path / "paper", "--public-key", tmp_path / "key.pub")
    assert checked["certificate"]["result"] == written["certificate"]["result"]
    (ledger,) = told("request", "verify", path)
    assert ledger["lines"] == len((path / "requests.jsonl").read_text().splitlines()) and ledger["faults"] == []


def test_data_and_chat(made):
    path, *_ = made
    found = told("data", "describe", "smoke", *SMALL)
    assert found["records"] == sum(row["records"] for row in found["per_client"])
    subjects = told("data", "describe", "smoke", *SMALL, "--subjects")
    name = subjects[0]["name"]
    assert told("data", "describe", "smoke", *SMALL, "--subject", name) == {**subjects[0], "alike": []}
    (reply,) = told("chat", path, "--stage", "unlearn", "--question", "Who?", "--max-new-tokens", 2)
    assert reply["question"] == "Who?" and len(reply["answers"]) == 1
    refused = call("chat", path, "--json")
    assert (refused.code, refused.out) == (2, "") and "--question" in refused.err


def test_suites(tmp_path):
    axes = ["unlearning", "seed"]
    head = {"cell": "npo/seed=0", "unlearning": "npo", "seed": "0", "stage": "unlearn", "error": "", "run": "r"}
    values = {"model_utility": 1 / 3, "forget_truth_ratio": math.nan}
    rows = [{**head, "status": "done", "metric": name, "value": value} for name, value in values.items()]
    results.write(results.table_of(rows, axes), tmp_path)
    found = told("bench", "table", tmp_path)
    assert [row["value"] for row in found["rows"]] == [1 / 3, None]
    (value,) = told("bench", "compare", tmp_path, tmp_path)["values"]
    assert (value["metric"], value["mine"], value["difference"]) == ("model_utility", [1 / 3], 0.0)
    assert call("bench", "quick", "--dry-run", "--json").code == 2


def test_what_failed_in_part_is_printed_all_the_same(tmp_path, monkeypatch):
    def suite(name, overrides, output, **settings):
        settings["console"].print("a table")
        results.write(results.table_of([], []), output)
        raise RunFailed("1 of 2 cells failed")

    def tuning(wanted, console, **settings):
        console.print("a table")
        (wanted.output / "result.json").write_text('{"trials": 3}')
        raise RunFailed("no trial keeps enough")

    monkeypatch.setattr(suites, "bench", suite)
    monkeypatch.setattr(tune, "tune", tuning)
    result = call("bench", "quick", "--output", tmp_path, "--json")
    assert result.code == 1 and json.loads(result.out) == {"results": str(tmp_path), "rows": []}
    assert "a table" in result.err and "cells failed" in result.err
    result = call("tune", "smoke", "--output", tmp_path, "--json")
    assert result.code == 1 and json.loads(result.out) == {"folder": str(tmp_path), "trials": 3}


def test_the_requests_of_a_node(tmp_path):
    (tmp_path / "data").mkdir()
    record = {"id": "r1", "question": "Who?", "answer": "Ann of Ost.", "subject": "Ann"}
    (tmp_path / "data" / "train.jsonl").write_text(json.dumps(record))
    assert told("request", "list", "--node-dir", tmp_path) == []
    assert call("request", "submit", "--node-dir", tmp_path, "--ids", "r1", "--id", "x", "--reason", "y").code == 0
    (request,) = told("request", "list", "--node-dir", tmp_path)
    assert (request["id"], request["state"]) == ("x", "open")


def test_a_build_of_wikimem(tmp_path):
    (tmp_path / "dump.json").write_bytes(wikidata_dump.encoded([wikidata_dump.human("Q1", label="Ann")]))
    found = told("wikimem", "build", "--dump", tmp_path / "dump.json", "--out", tmp_path / "out")
    assert found.items() >= json.loads((tmp_path / "out" / "summary.json").read_text()).items()


def test_a_mistake_is_still_a_line_on_standard_error(tmp_path):
    result = call("runs", "show", tmp_path / "nope", "--json")
    assert (result.code, result.out) == (2, "") and "is no run directory" in result.err
