"""What nobody sees of a run that lies with its owner alone: each attack is made, and succeeds."""

import contextlib
import hashlib
import json
import shutil

import numpy as np
import pytest
from support.commands import call
from support.faulty_runs import new_run, play

from oblivionis.chain import GENESIS, HASH, PREV, check_chain, linked
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.verification_rules import VERIFIED
from oblivionis.measures.assessor import Assessor
from oblivionis.reports.certificate import signing as certificates
from oblivionis.reports.certificate.evidence import RUN
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import RunDirectory

SETTINGS = ("certificate.required=[rouge]", "federation.rounds.unlearn=2", "unlearning.updates.keep=1")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run = new_run(tmp_path_factory.mktemp("whole"), "whole", *SETTINGS)
    play(run)
    return run


@pytest.fixture
def copy(whole, tmp_path):
    return RunDirectory.open(shutil.copytree(whole.path, tmp_path / "run"))


def results(run):
    """What certificates of the requests would say, and who they say measured."""
    found = [certificates.build(run, request.id) for request in Ledger(run.ledger_path)]
    return [(c["result"], *(part["evidence"]["source"] for part in c["requests"])) for c in found]


def said(run):
    shown = call("runs", "show", run.path)
    assert shown.code == 0, shown.err
    return " ".join(shown.out.split())


def flattering(judgements):
    """As of exchanges that made the model forget what it had recited."""
    for of in judgements["requests"].values():
        of |= {"outcome": VERIFIED, "why": "", "rouge": 0.0}
        for record in of["records"].values():
            record |= {"outcome": VERIFIED, "before": 1.0, "final": 0.0}
            record["exchanges"][0] |= {"before": 1.0, "after": 0.0}
    return judgements


def test_who_rewrites_files_and_ledger_of_a_simulation_together_is_not_seen(copy):
    """Every line anew, with the hashes of the forged files; where there are nodes, these hold the heads that were."""
    assert not {result for result, _ in results(copy)} & {"PASS"}
    file = copy.path / "judgements.json"
    old = hashlib.sha256(file.read_bytes()).hexdigest()
    file.write_text(json.dumps(flattering(json.loads(file.read_text()))))
    new, head, lines = hashlib.sha256(file.read_bytes()).hexdigest(), GENESIS, []
    for line in copy.ledger_path.read_text().replace(old, new).splitlines():
        entry = {key: value for key, value in json.loads(line).items() if key not in (PREV, HASH)}
        if entry["event"] == "verification_failed":
            entry |= {"event": "verified", "outcome": VERIFIED, "why": "", "rouge": 0.0, "records": {VERIFIED: 2}}
        lines.append(linked(entry, head))
        head = lines[-1][HASH]
    copy.ledger_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert (
        check_chain(copy.ledger_path).faults == () == artifact_binding.check(copy).faults
        and not artifact_binding.check(copy).missing
    )
    assert call("request", "verify", copy.path).code == 0
    assert "2 of 2 deletion requests verified" in said(copy) and "Nothing follows" not in said(copy)
    assert {result for result, _ in results(copy)} == {"PASS"}


def test_who_names_a_forged_file_in_a_further_line_is_not_seen(copy):
    """The lines that others hold the hashes of stay as they were."""
    before = copy.ledger_path.read_text()
    forged = flattering(json.loads((copy.path / "judgements.json").read_text()))
    copy.keep({"judgements.json": json.dumps(forged)})
    assert copy.ledger_path.read_text().startswith(before)
    assert artifact_binding.check(copy).faults == () and "Nothing follows" not in said(copy)
    assert {result for result, _ in results(copy)} == {"PASS"}


def test_tables_below_the_sentence_are_as_the_files_say(copy):
    file = copy.path / "stages" / "unlearn.json"
    summary = json.loads(file.read_text())
    assert "0.777" not in said(copy)
    file.write_text(json.dumps({**summary, "metrics": {**summary["metrics"], "forget_prob": 0.777}}))
    shown = said(copy)
    assert "0.777" in shown and shown.index("Nothing follows from this run") < shown.index("0.777")


def test_what_simulated_clients_keep_and_their_updates_are_named_nowhere(copy):
    edited = [*(copy.path / "nodes").glob("*/*.jsonl"), *(p for p in (copy.path / "updates").rglob("*") if p.is_file())]
    assert {path.relative_to(copy.path).parts[0] for path in edited} == {"nodes", "updates"}
    for path in edited:
        path.write_bytes(path.read_bytes()[:-2])
    assert (
        artifact_binding.check(copy).faults == ()
        and not artifact_binding.check(copy).missing
        and "Nothing follows" not in said(copy)
    )


def test_a_server_that_measures_another_model_is_seen_only_by_who_measures_again(whole, tmp_path, monkeypatch):
    """It loads the base model whatever it is to look at. The run and its certificates are whole, and say that it was
    the run that measured; `oblivionis evaluate` measures the model that lies in it."""
    session = Assessor.session

    @contextlib.contextmanager
    def other(self, vector):
        with session(self, np.zeros_like(vector)) as found:
            yield found

    run = new_run(tmp_path, "other", *SETTINGS)
    with monkeypatch.context() as patch:
        patch.setattr(Assessor, "session", other)
        play(run)
    assert (
        artifact_binding.check(run).faults == ()
        and not artifact_binding.check(run).missing
        and "Nothing follows" not in said(run)
    )
    assert {source for _, source in results(run)} == {source for _, source in results(whole)} == {RUN}
    for of, same in ((whole, True), (run, False)):
        told = of.stage_summary("unlearn")["metrics"]["forget_prob"]
        again = call("evaluate", of.path, "--json")
        assert again.code == 0, again.err
        assert (json.loads(again.out)["metrics"]["forget_prob"] == pytest.approx(told, rel=1e-5)) == same
