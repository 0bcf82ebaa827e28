"""Whole runs over nodes with folders of their own: demands follow the model, and a served one is measured again."""

import shutil
import threading
from functools import partial

import pytest
from support.commands import call
from support.inprocess import InProcessGrid
from support.nodes import write_nodes
from support.stages import Recorded

from oblivionis.chain import check_chain
from oblivionis.client import audit as node_audit
from oblivionis.client.app import app
from oblivionis.config import compose as configuration
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.ledger_check import check_ledgers
from oblivionis.erasure.lineage import knowing, models_in
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.errors import NotMeasured, RunError
from oblivionis.measures.audit_numbers import read_audit
from oblivionis.reports.certificate.signing import build, create, generate_key, verify
from oblivionis.runs import artifact_binding
from oblivionis.runs.ancestry import LINEAGE_FILE, Descent, begun_with, read_lineage, write_lineage
from oblivionis.runs.directory import RunDirectory, vector_hash
from oblivionis.server import measuring_again
from oblivionis.server.app import serve
from oblivionis.server.measuring_again import measure_again
from oblivionis.server.stages import run_stages

CLIENTS, ASKS = 3, 1
SETTINGS = (
    "data=node",
    f"federation.clients={CLIENTS}",
    "federation.fraction_train=1.0",
    "federation.rounds.finetune=2",
    "federation.rounds.unlearn=1",
    "unlearning.requests.policy=nodes",
    "certificate.required=[rouge]",
)


class Events(Recorded):
    def __init__(self):
        super().__init__()
        self.notes = []

    def note(self, text):
        self.notes.append(text)


class Home:
    """Three nodes and their runs. What a client measures is played: it recites the records in models that `knows`."""

    def __init__(self, folder):
        self.folder, self.knows, self.samples, self.fails = folder, set(), [], False
        write_nodes(folder / "nodes", CLIENTS)
        for client in range(CLIENTS):
            (self.node(client) / "node.toml").write_text(f'[models]\nfolders = ["{folder}"]\n')

    def node(self, client=ASKS):
        return self.folder / "nodes" / f"node{client}"

    def run(self, name, *overrides, work=run_stages):
        config = configuration.compose("smoke", [*SETTINGS, f"output={self.folder}", f"name={name}", *overrides])
        run = RunDirectory.create(self.folder, name)
        run.write_config(configuration.to_yaml(config))
        return run, self.work(run, work)

    def work(self, run, work):
        config, events = configuration.from_yaml(run.read_config()), Events()
        grid = InProcessGrid(app, CLIENTS)
        for context in grid.contexts.values():
            context.node_config["node-dir"] = str(self.node(context.node_config["partition-id"]))
        serve(config, grid, run, events, threading.Event(), work=work)
        return events

    def audit(self, worker, client, vector, forget_ids, tombstones, folder, samples=None):
        if self.fails:
            raise RuntimeError("the disk is full")
        self.samples.append(samples)
        count = float(len(forget_ids))
        recited = vector_hash(vector) in self.knows
        return {
            "request_rouge": 0.9 if recited else 0.1,
            "request_recited": count if recited else 0.0,
            "request_short": 0.0,
            "forget_records": count,
            "retain_records": 5.0,
            "failed_evaluators": 0.0,
        }


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """learned; a demand; A and B, which begin with its model; C, which begins with what A left."""
    home = Home(tmp_path_factory.mktemp("models"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_audit, "audit", home.audit)
        learned, _ = home.run("learned", "stages=[finetune]")
        home.start = vector_hash(learned.load_checkpoint("finetune").vector)
        home.knows.add(home.start)
        asked = ("--ids", "p1-home", "--id", "art17", "--reason", "x")
        made = call("request", "submit", "--node-dir", home.node(), *asked)
        assert made.code == 0, made.err
        from_learned = ("stages=[unlearn]", f"start_from={learned.path}")
        home.a, home.events_a = home.run("A", *from_learned)
        home.after_a = NodeLedger(home.node()).requests()[0]
        # Another method gives another model, of which this client knows nothing yet.
        home.b, home.events_b = home.run("B", *from_learned, "unlearning=npo")
        assert call("export", home.a.path, "--out", home.folder / "exported").code == 0
        home.c, home.events_c = home.run("C", f"model.adapter={home.folder / 'exported'}")
        yield home


def test_a_demand_that_one_run_ended_is_served_again_in_the_next_from_the_same_model(home):
    assert (home.after_a.state, home.after_a.run) == ("verified", "A")
    (first,), (again,) = Ledger(home.a.ledger_path), Ledger(home.b.ledger_path)
    assert (first.id, first.state, again.id, again.state) == ("art17", "verified", "art17", "verified")
    assert again.served_round == 1 and ("unlearn", (ASKS,)) in home.events_b.unlearned
    assert [note for note in home.events_b.notes if "their nodes are told again" in note]
    assert not [note for note in home.events_a.notes if "may still know" in note], "nobody had asked a run yet"


def test_a_run_that_begins_with_the_model_that_forgot_is_not_told(home):
    assert list(Ledger(home.c.ledger_path)) == [] and home.events_c.unlearned == []
    states = {of.run: of.state for of in knowing(NodeLedger(home.node()).states(), "art17")}
    assert states == {"learned": "open", "A": "verified", "B": "verified", "C": "forgotten before"}
    final = {name: vector_hash(run.load_checkpoint("unlearn").vector) for name, run in (("A", home.a), ("C", home.c))}
    found = {m.model: m for m in models_in(home.folder).models}
    assert found[home.start].open == ["art17"] and found[final["A"]].demands == {"art17": "verified"}
    assert found[final["C"]].demands == {"art17": "verified"} and final["A"] in found[final["C"]].descent.models


def test_the_server_learns_of_no_request_in_the_answer_of_a_node_that_owes_nothing(home):
    assert all("art17" not in line for line in home.c.ledger_path.read_text().splitlines())


def test_a_certificate_names_the_living_models_that_it_does_not_cover(home, tmp_path):
    key = generate_key(tmp_path / "issuer.key")
    folder, certificate = create(home.a, "art17", tmp_path / "issuer.key", tmp_path / "certificate")
    (other,) = certificate["not_covered"]
    assert (other["model"], other["what"], other["requests"]) == (
        home.start,
        "finetuned model of learned",
        {"art17": "open"},
    )
    assert other.keys() == {"model", "what", "requests"}, "where it lies depends on the reader's folders"
    assert "Models that are not covered" in (folder / "certificate.html").read_text()
    assert verify(folder, key)[0]["not_covered"] == [other]


def test_a_served_request_is_measured_again_with_more_samples_and_keeps_its_history(home):
    final = vector_hash(home.a.load_checkpoint("unlearn").vector)
    known = NodeLedger(home.node()).states().results["art17"]
    home.knows.add(final)
    home.samples.clear()
    events = home.work(home.a, partial(measure_again, samples=64))
    assert home.samples == [64] and events.trained == events.unlearned == []
    assert "measuring the final model again, 64 answers to a question: art17" in events.notes
    (request,) = Ledger(home.a.ledger_path)
    assert (request.id, request.outcome, request.served_round) == ("art17", "not verified", 1)
    assert read_audit(home.a.path, "art17")["final"]["request_recited"] == 1.0
    states = NodeLedger(home.node()).states()
    assert states.results["art17"] == {**known, "A": "not verified"}
    assert states.requests["art17"].state == "verified", "B's model has forgotten it all the same"
    # What A's model has not forgotten is due again in the run that began with it.
    assert [r.id for r in states.due("C")] == ["art17"] and not states.forgotten_before("C", "art17")
    home.knows.remove(final)
    home.work(home.a, partial(measure_again, samples=128))
    (request,) = Ledger(home.a.ledger_path)
    assert (request.outcome, home.samples) == ("verified", [64, 128])
    events = [e["event"] for e in check_chain(home.a.ledger_path).entries if e.get("id") == "art17"]
    assert events[-3:] == ["verified", "verification_failed", "verified"], "every verdict is kept"
    rows = [r for r in home.a.metrics() if r["evaluator"] == "client_audit" and r["moment"] == "end"]
    assert [r["requests"]["art17"]["request_recited"] for r in rows] == [0.0, 1.0, 0.0]
    assert artifact_binding.check(home.a).faults == ()
    assert all(not faults for _, faults in check_ledgers([home.a.path], [home.node()]))
    assert build(home.a, "art17")["result"] == "PASS"


def test_what_a_client_cannot_measure_again_stays_as_it_was(home):
    home.fails = True
    with pytest.raises(NotMeasured, match="not measured again: art17"):
        home.work(home.a, partial(measure_again, samples=256))
    home.fails = False
    assert read_audit(home.a.path, "art17")["final"]["request_recited"] == 0.0
    assert [r.outcome for r in Ledger(home.a.ledger_path)] == ["verified"]
    assert artifact_binding.check(home.a).faults == ()


def test_a_node_that_allows_fewer_samples_refuses_to_draw_more(home):
    with pytest.raises(NotMeasured):
        home.work(home.a, partial(measure_again, samples=10**6))
    assert "limits.audit_samples" in (home.node() / "requests.jsonl").read_text()


def test_fewer_samples_than_before_are_refused(home, monkeypatch):
    known = {"final": {"leakage_samples": 64.0}}
    monkeypatch.setattr(measuring_again, "read_audit", lambda path, request_id: known)
    for samples in (8, 64):
        with pytest.raises(RunError, match=f"samples={samples}: 64 were drawn before; give more"):
            home.work(home.a, partial(measure_again, samples=samples))


def test_a_run_without_served_requests_has_nothing_to_measure(home):
    with pytest.raises(RunError, match="it has served no request"):
        home.work(home.c, partial(measure_again, samples=8))
    learned = RunDirectory(home.folder / "learned")
    with pytest.raises(RunError, match="it has no stage unlearn"):
        home.work(learned, partial(measure_again, samples=8))
    result = call("audit", "leakage", home.a.path)
    assert result.code == 2 and "give samples=N" in result.err


def test_the_records_of_other_machines_are_measured_by_flwr_run(home):
    result = call("audit", "leakage", home.a.path, "samples=64")
    assert result.code == 2 and "flwr run . CONNECTION" in result.err and "samples=64" in result.err
    result = call("audit", "leakage", home.a.path, "alpha=0.1")
    assert result.code == 2 and "give samples=N alone" in result.err


def test_nothing_is_made_of_a_retired_model(home):
    assert call("model", "retire", home.a.path, "--stage", "finetune", "--reason", "all copies deleted").code == 0
    with pytest.raises(RunError, match=r"this model is retired \(all copies deleted\)"):
        home.run("D", "stages=[unlearn]", f"start_from={home.a.path}")
    with pytest.raises(RunError, match="this model is retired"):
        home.work(home.b, run_stages)  # a resumed run
    result = call("export", home.a.path, "--stage", "finetune", "--out", home.folder / "more")
    assert result.code == 2 and "is retired" in result.err
    assert "not_covered" not in build(home.a, "art17")


def test_an_adapter_is_known_by_its_weights(home):
    """Not by the file beside them: another one's is refused, and without one the folder's models are looked up."""
    exported, copied = home.folder / "exported", home.folder / "copied"
    shutil.copytree(exported, copied)
    (copied / LINEAGE_FILE).unlink()
    run, _ = home.run("E", f"model.adapter={copied}", "stages=[finetune]")
    begun, said = begun_with(run), read_lineage(exported)
    assert begun.model == said.model and set(begun.models) >= set(said.models)
    write_lineage(copied, Descent(home.start, (home.start,), ("learned",)))
    with pytest.raises(RunError, match=f"is of another model .{home.start[:12]}"):
        home.run("F", f"model.adapter={copied}")
