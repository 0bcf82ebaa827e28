"""Demands follow the model: ten of them over a tree of four models, by a node's ledger and by the runs of a folder."""

import hashlib
import json
import shutil

import numpy as np
import pytest
from support.commands import call
from support.lineage import hashed, lineage_run

from oblivionis.chain import Chain, check_chain
from oblivionis.erasure.hidden_requests import demands_of
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.lineage import MADE, knowing, models_in, register, still_known
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.request import Request
from oblivionis.erasure.verification_rules import NOT_VERIFIED, VERIFIED, Judgement
from oblivionis.runs.ancestry import (
    Descent,
    begun_with,
    descent_of,
    descents,
    read_lineage,
    write_lineage,
)
from oblivionis.runs.directory import Checkpoint, RunDirectory

LEARNED = Descent(hashed("L3"), (hashed("L1"), hashed("L2"), hashed("L3")), ("learned",))
A = Descent(hashed("A2"), (*LEARNED.models, hashed("A1"), hashed("A2")), ("learned", "A"))
"""The tree: a run `learned` of three rounds; `A` and `B`, which begin with its model; `A2`, which begins with A's."""


class Node:
    """A node with ten records, and what it goes through."""

    def __init__(self, folder):
        folder.mkdir(exist_ok=True)
        self.ledger, self._lines = NodeLedger(folder), 0

    def trains(self, run, *models, stage="train"):
        for number, model in enumerate(models, start=1):
            self._exchanged("train", run, number, model, stage=stage)

    def hears(self, run, descent, *outcomes, **more):
        self.ledger.heard(run, hashed(f"ledger of {run}"), outcomes, round=1, descent=descent, **more)

    def outcome(self, event, demand, **fields):
        self._lines += 1
        return {"event": event, "id": demand, "line": hashed(f"line {self._lines}"), "round": 1, **fields}

    def serves(self, run, demand, model, *, recited=0.0, audits=True):
        """A run serves a demand and ends with `model`, which recites some of its records, or none."""
        self._exchanged("train.unlearn", run, 1, hashed(f"{run} at the exchange"), requests=[demand])
        moments = (("before", 1.0), ("after", 0.0), ("final", recited)) if audits else ()
        for moment, count in moments:
            numbers = {"request_recited": count, "request_rouge": 0.1}
            self._exchanged("evaluate.audit", run, 1, model, requests=[demand], moment=moment, numbers=numbers)
        found = "verified" if not recited else "verification_failed"
        words = {"outcome": VERIFIED if not recited else NOT_VERIFIED}
        served = self.outcome("served", demand)
        self.hears(run, None, served, self.outcome(found, demand, **words), audits=audits)

    def _exchanged(self, kind, run, number, before, **more):
        self.ledger.note("exchanged", None, kind=kind, run=run, client=0, round=number, before=before, **more)

    def told(self, run):
        return [r.id for r in self.ledger.unsettled(run)]

    def states(self, demand):
        return {of.run: of.state for of in knowing(self.ledger.states(), demand)}


@pytest.fixture
def node(tmp_path):
    """What the node did until A, B and A2 asked it for requests, in this order."""
    node = Node(tmp_path / "node")
    submit = node.ledger.submit
    node.trains("old", hashed("o0"), hashed("o1"))
    submit(["r0"], identifier="d0")
    node.serves("old", "d0", hashed("old"))
    node.trains("learned", hashed("L0"), hashed("L1"), hashed("L2"))
    for number in (1, 2, 3, 4, 5, 7, 8):
        submit([f"r{number}"], identifier=f"d{number}")
    submit(["r9"], identifier="d9", scope="client")
    node.hears("A", LEARNED)
    node.serves("A", "d1", A.model)
    node.serves("A", "d2", A.model, recited=1.0)
    node.serves("A", "d4", A.model)
    node.serves("A", "d7", A.model, audits=False)
    node.serves("A", "d8", A.model)
    node.hears("A", LEARNED, node.outcome("rolled_back", "d8"))
    node.serves("A", "d9", A.model)
    submit(["r1"], identifier="d6")
    node.hears("A", LEARNED, node.outcome("covered", "d6"))
    node.hears("B", LEARNED)
    node.told_of_b = node.told("B")
    node.serves("B", "d3", hashed("B1"))
    node.serves("B", "d4", hashed("B1"))
    node.hears("A2", A)
    return node


def test_each_run_is_told_the_demands_whose_records_its_first_model_knew(node):
    """d0 is settled, and learned was trained without it; d1, d4, d7, d9 are settled by A; d2 is not verified; d3 and
    d5 were not served before B; d6 is covered by d1; d8 was served by A and undone."""
    assert node.told_of_b == ["d1", "d2", "d3", "d4", "d5", "d7", "d8", "d9"]
    # B has served and verified two of them since.
    assert node.told("B") == ["d1", "d2", "d5", "d7", "d8", "d9"]
    # A's model has forgotten d1, d4 and d9; of d7 nobody measured that; d3 was served by B, of which A2 does not come.
    assert node.told("A2") == ["d2", "d3", "d5", "d7", "d8"]
    # What A still owes: what it did not end.
    assert node.told("A") == ["d2", "d3", "d5", "d8"]
    # A run that begins with no model that others made is told what is not settled, as ever.
    assert node.told("other") == ["d2", "d5", "d8"]


@pytest.mark.parametrize(
    ("demand", "states"),
    [
        ("d0", {"old": "verified"}),
        ("d1", {"learned": "open", "A": "verified", "B": "open", "A2": "forgotten before"}),
        ("d2", {"learned": "open", "A": "not verified", "B": "open", "A2": "open"}),
        ("d3", {"learned": "open", "A": "open", "B": "verified", "A2": "open"}),
        ("d4", {"learned": "open", "A": "verified", "B": "verified", "A2": "forgotten before"}),
        ("d5", {"learned": "open", "A": "open", "B": "open", "A2": "open"}),
        ("d7", {"learned": "open", "A": "verified", "B": "open", "A2": "open"}),
        ("d8", {"learned": "open", "A": "open", "B": "open", "A2": "open"}),
        ("d9", {"learned": "open", "A": "verified", "B": "open", "A2": "forgotten before"}),
    ],
)
def test_a_demand_has_a_state_in_each_model_that_knew_its_records(node, demand, states):
    # An old run trained on all ten records before any demand was made, and served the first.
    assert node.states(demand) == {"old": "open"} | states


def test_what_one_run_found_is_untouched_by_the_next(node):
    first = {r.id: r for r in node.ledger.requests()}
    assert (first["d1"].state, first["d1"].run, first["d1"].served_round) == ("verified", "A", 1)
    assert check_chain(node.ledger.path).faults == ()


def test_a_sealed_request_is_due_again_by_the_same_rule(node):
    due = {run: [d.request_id for d in demands_of(node.ledger.node_dir, run)] for run in ("B", "A2", "other")}
    assert due == {run: node.told(run) for run in due}


def test_the_descent_of_a_run_is_entered_once_and_a_repeated_query_owes_nothing_new(node):
    before = node.told("B")
    node.hears("B", LEARNED)
    assert sum(e["event"] == "descends" and e["run"] == "B" for e in node.ledger.entries()) == 1
    assert node.told("B") == before


def test_a_run_of_the_same_name_with_another_ledger_is_another_run(node):
    node.ledger.heard("B", hashed("another ledger"), (), round=1, descent=LEARNED)
    assert node.told("B") == ["d1", "d2", "d3", "d4", "d5", "d7", "d8", "d9"]


def test_a_copy_under_another_name_is_the_same_model(node):
    node.hears("moved", Descent(A.model, (A.model,), ("renamed",)))
    assert "d1" not in node.told("moved"), "by its hash it is A's"
    node.hears("copied", Descent(LEARNED.model, LEARNED.models, ("renamed",)))
    assert "d1" in node.told("copied"), "by the hashes of its rounds it is learned's"


def test_a_client_that_took_part_under_another_hash_is_told_by_the_name_of_the_run(node):
    node.hears("ranked", Descent(hashed("x"), (hashed("x"),), ("learned",)))
    assert "d1" in node.told("ranked")


def test_a_run_is_told_where_the_node_knows_nothing_of_the_model_it_begins_with(node):
    node.hears("foreign", Descent(hashed("f"), (hashed("f"),), ("elsewhere",)))
    assert node.told("foreign") == ["d0", "d1", "d2", "d3", "d4", "d5", "d7", "d8", "d9"], "all but the covered d6"


@pytest.fixture
def ended(tmp_path):
    """A node that trained for `learned` and `X`, then made a demand, which `A`, of learned's model, has ended."""
    node = Node(tmp_path / "node")
    node.trains("learned", hashed("L0"), hashed("L1"), hashed("L2"))
    node.trains("X", hashed("X0"), hashed("X1"))
    node.ledger.submit(["r1"], identifier="d1")
    node.hears("A", LEARNED)
    node.serves("A", "d1", A.model)
    return node


def test_a_run_that_trained_before_the_demand_is_told_though_another_run_ended_it(ended):
    assert ended.told("X") == ["d1"]
    ended.hears("X", None)
    assert ended.told("X") == ["d1"], "it has said no `descends`"
    ended.serves("X", "d1", hashed("X2"))
    assert ended.told("X") == [] == ended.told("other")


def test_a_new_run_of_an_old_name_that_trained_after_the_demand_is_not_told(ended):
    ended.serves("X", "d1", hashed("X2"))
    ended.trains("X", hashed("X0"))
    ended.ledger.heard("X", hashed("another ledger"), (), round=1)
    assert ended.told("X") == []


def test_a_model_that_fails_when_it_is_measured_again_has_not_forgotten_for_those_that_came_of_it(ended):
    ended.hears("C", A)
    assert ended.told("C") == [] and ended.states("d1")["C"] == "forgotten before"
    ended.hears("A", None, ended.outcome("verification_failed", "d1", outcome=NOT_VERIFIED))
    assert ended.told("C") == ["d1"] and ended.states("d1")["C"] == "open"


def test_a_model_that_two_runs_made_has_not_forgotten_where_one_of_them_found_so(ended):
    ended.hears("B", LEARNED)
    ended.serves("B", "d1", A.model, recited=1.0)
    ended.hears("C", A)
    assert ended.told("C") == ["d1"]


def test_what_a_run_was_spared_says_nothing_of_another_run_of_its_name(ended):
    ended.hears("C", A)
    ended.hears("A", None, ended.outcome("verification_failed", "d1", outcome=NOT_VERIFIED))
    ended.hears("B", LEARNED)
    ended.ledger.heard("C", hashed("another ledger"), (), round=1)
    assert ended.told("C") == ["d1"]


def test_a_run_that_began_with_another_model_than_its_server_says_is_told(ended):
    ended.hears("C", A)
    assert ended.told("C") == []
    ended.trains("C", LEARNED.model)
    assert ended.told("C") == ["d1"]
    ended.hears("D", A)
    ended.trains("D", A.model, hashed("D1"))
    assert ended.told("D") == []


def test_a_retired_run_is_closed_for_all_requests_once_and_a_run_that_begins_with_it_is_told(ended):
    ended.ledger.submit(["r2"], identifier="d2")
    ended.hears("B", LEARNED)
    ended.serves("B", "d2", hashed("B1"), recited=1.0)
    place = ended.ledger.node_dir
    result = call("model", "retire", "B", "--node-dir", place, "--reason", "x")
    assert "a run that begins with it all the same is told" in result.out
    assert ended.states("d1")["B"] == ended.states("d2")["B"] == "retired"
    assert "is retired already" in call("model", "retire", "B", "--node-dir", place, "--reason", "x").err
    ended.hears("Z", Descent(hashed("B1"), (hashed("B1"),), ("learned", "B")))
    assert ended.told("Z") == ["d1", "d2"]


def test_the_user_of_a_node_retires_a_model(node):
    place = node.ledger.node_dir
    result = call("model", "retire", "learned", "--node-dir", place, "--reason", "deleted")
    assert result.code == 0 and node.states("d1")["learned"] == "retired" and node.states("d1")["B"] == "open"
    assert call("model", "retire", A.model[:8], "--node-dir", place, "--reason", "deleted").code == 0
    assert node.states("d1")["A"] == "verified" and node.states("d2")["A"] == "retired"
    assert "names 0 models" in call("model", "retire", "nobody", "--node-dir", place, "--reason", "x").err
    assert "--reason" in call("model", "retire", "B", "--node-dir", place, "--reason", " ").err
    listed = call("request", "list", "--node-dir", place).out
    assert "models that knew d1: old open, learned retired, A verified, B open, A2 forgotten before" in listed
    assert "knew d6" not in listed, "d1 stands for it, which names its record"
    assert "learned" in call("model", "list", "--node-dir", place).out


# -- the same by the folder of the runs -------------------------------------------------------------------------------


class Runs:
    """Runs as they lie in a folder, by their ledgers."""

    def __init__(self, folder):
        self.folder = folder

    def run(self, name, stages, **given):
        return lineage_run(self.folder, name, stages, **given)


@pytest.fixture
def runs(tmp_path):
    """learned; A, which serves three of its demands; B, which serves another; A2, which begins with A's model."""
    runs, learned = Runs(tmp_path / "runs"), {"finetune": ("L1", "L2", "L3")}
    runs.run("learned", learned)
    taken = {"finetune": ("L3",)}
    runs.run(
        "A",
        {**taken, "unlearn": ("A1", "A2")},
        begun=LEARNED,
        requests=[("d1", VERIFIED), ("d2", NOT_VERIFIED), ("d4", VERIFIED), ("d5", "open")],
    )
    runs.run("B", {**taken, "unlearn": ("B1",)}, begun=LEARNED, requests=[("d3", VERIFIED), ("d4", VERIFIED)])
    runs.run("A2", {"finetune": ("F1",), "unlearn": ("G1",)}, begun=A, requests=[("d2", VERIFIED)])
    return runs


def by_what(folder):
    return {m.what: dict(m.demands) for m in models_in(folder).models}


KNOWN = {"d1": "open", "d2": "open", "d3": "open", "d4": "open", "d5": "open"}
OF_A = {"d1": "verified", "d2": "not verified", "d3": "open", "d4": "verified", "d5": "open"}


def test_every_model_of_a_folder_has_the_demands_whose_records_it_knew(runs):
    found = models_in(runs.folder)
    assert by_what(runs.folder) == {
        "finetuned model of learned": KNOWN,
        "unlearned model of A": OF_A,
        "unlearned model of B": {**KNOWN, "d3": "verified", "d4": "verified"},
        "finetuned model of A2": OF_A,
        "unlearned model of A2": {**OF_A, "d2": "verified"},
    }
    assert found.of(LEARNED.model).places == ("learned", "A", "B"), "A and B hold copies of it"
    assert found.of(hashed("G1")).open == ["d3", "d5"]


def test_renamed_and_copied_runs_are_the_same_models(runs):
    before = by_what(runs.folder)
    shutil.copytree(runs.folder / "A", runs.folder / "A-copy")
    (runs.folder / "learned").rename(runs.folder / "archive")
    assert by_what(runs.folder) == before
    assert set(models_in(runs.folder).of(LEARNED.model).places) == {"archive", "A", "A-copy", "B"}


def test_a_model_that_was_deleted_is_not_found_and_open_until_it_is_retired(runs):
    found = models_in(runs.folder)
    register(runs.folder, MADE, found.of(hashed("B1")).descent, stage="unlearn")
    shutil.rmtree(runs.folder / "B")
    gone = models_in(runs.folder).of(hashed("B1"))
    # d3 was B's alone: with B's ledger the folder forgets that there was such a demand; its node does not.
    assert (gone.places, dict(gone.demands)) == ((), dict.fromkeys(("d1", "d2", "d4", "d5"), "not known"))
    assert "not found" in call("model", "list", runs.folder).out
    result = call("model", "retire", gone.short, "--output", runs.folder, "--reason", "deleted by hand")
    assert result.code == 0 and "closed for d1, d2, d4, d5" in result.out
    assert models_in(runs.folder).of(hashed("B1")).open == []
    assert "is retired already" in call("model", "retire", gone.short, "--output", runs.folder, "--reason", "x").err
    shutil.rmtree(runs.folder / "A")
    assert models_in(runs.folder).of(A.model).places == (), "A2 comes of it, and it lies nowhere any more"


def test_damaged_runs_and_registers_give_one_line(runs):
    (runs.folder / "B" / "requests.jsonl").write_text("no ledger\n")
    found = models_in(runs.folder)
    assert len(found.damaged) == 1 and found.damaged[0].startswith("B: ")
    assert "not read: B: " in call("model", "list", runs.folder).out
    assert "unlearned model of B" not in by_what(runs.folder)
    (runs.folder / "models.jsonl").write_text(json.dumps({"event": "retired", "model": "x", "reason": "y"}) + "\n")
    result = call("model", "list", runs.folder)
    assert result.code == 2 and "models.jsonl" in result.err and "Traceback" not in result.err
    assert "no such folder" in call("model", "list", runs.folder / "none").err


def test_an_edited_ledger_is_not_believed(runs):
    ledger = runs.folder / "A" / "requests.jsonl"
    ledger.write_text(ledger.read_text().replace('"verification_failed"', '"verified"'))
    result = call("model", "list", runs.folder)
    assert result.code == 0 and "not read: A: requests.jsonl was changed: line" in result.out
    assert "unlearned model of A " not in result.out
    run = RunDirectory(runs.folder / "B")
    _, damaged = still_known(run, [Ledger(run.ledger_path).get("d4")], hashed("B1"))
    assert len(damaged) == 1, "a certificate says so"


def test_a_stage_that_is_not_there_is_said_so(runs):
    result = call("model", "retire", runs.folder / "learned", "--stage", "unlearn", "--reason", "x")
    assert result.code == 2 and "stage unlearn is not finished; name one with --stage" in result.err


def test_the_requests_of_one_demand_are_shown_together(tmp_path):
    runs = Runs(tmp_path / "runs")
    run = runs.run("A", {"finetune": ("L3",), "unlearn": ("A1",)}, begun=LEARNED, policy="file")
    ledger = Ledger(run.ledger_path)
    ledger.submit(*(Request(f"art17-client-{c:04d}", c, (f"r{c}",), 1, group="art17") for c in range(3)))
    for client, outcome in enumerate((VERIFIED, VERIFIED, NOT_VERIFIED)):
        ledger.served(f"art17-client-{client:04d}", 1)
        ledger.verified(f"art17-client-{client:04d}", 2, Judgement(outcome, "why", 0.1), 0.5)
    known = {"unlearned model of A": {"art17": "2 verified, 1 not verified"}}
    assert by_what(runs.folder) == {"finetuned model of learned": {"art17": "open"}, **known}
    assert models_in(runs.folder).of(hashed("A1")).open == ["art17"]
    assert json.loads(call("model", "list", runs.folder, "--json").out)["models"][1]["open"] == ["art17"]


def test_a_line_of_the_register_cannot_be_taken_away(runs):
    for name in ("A2", "B"):
        assert call("model", "retire", runs.folder / name, "--reason", "gone").code == 0
    lines = (runs.folder / "models.jsonl").read_text().splitlines()
    (runs.folder / "models.jsonl").write_text(lines[1] + "\n")
    result = call("model", "list", runs.folder)
    assert result.code == 2 and "models.jsonl was changed: line 1" in result.err


def test_demands_that_a_policy_plays_belong_to_their_run(tmp_path):
    runs = Runs(tmp_path / "runs")
    played = {"begun": LEARNED, "requests": [("p", VERIFIED)]}
    runs.run("A", {"finetune": ("L3",), "unlearn": ("A1",)}, **played, policy="all_at_round")
    assert by_what(runs.folder) == {"finetuned model of learned": {}, "unlearned model of A": {}}
    runs.run("B", {"finetune": ("L3",), "unlearn": ("B1",)}, **played, policy="file")
    assert by_what(runs.folder)["finetuned model of learned"] == {"p": "open"}


def test_a_certificate_is_told_of_the_models_that_it_does_not_cover(runs):
    run = RunDirectory(runs.folder / "A")
    request = Ledger(run.ledger_path).get("d1")
    known = [(m.what, states) for m, states in still_known(run, [request], A.model)[0]]
    assert known == [("finetuned model of learned", {"d1": "open"}), ("unlearned model of B", {"d1": "open"})]
    call("model", "retire", runs.folder / "learned", "--reason", "gone")
    assert [m.what for m, _ in still_known(run, [request], A.model)[0]] == ["unlearned model of B"]


def test_a_model_comes_of_the_rounds_before_it_and_of_none_after_it(runs):
    run = RunDirectory(runs.folder / "A2")
    assert begun_with(run) == A
    found = descents(run)
    assert found["finetune"] == Descent(hashed("F1"), (*A.models, hashed("F1")), (*A.runs, "A2"))
    assert found["unlearn"].models == (*A.models, hashed("F1"), hashed("G1"))
    assert descents(RunDirectory(runs.folder / "B"))["finetune"] == LEARNED, "what is taken over is what it was"
    vector = np.zeros(2, np.float32)
    of = descent_of(RunDirectory(runs.folder / "A"), Checkpoint("unlearn", 1, vector, {}, {}))
    own = hashlib.sha256(vector.tobytes()).hexdigest()
    assert of.models == (*LEARNED.models, hashed("A1"), own), "not that of round 2, which has forgotten more"


def test_a_retrained_model_keeps_what_the_taken_over_one_comes_of(tmp_path):
    """Its base can be an exported model that knew the records, and no hash tells that from the rounds of finetune."""
    runs = Runs(tmp_path / "runs")
    runs.run("C", {"finetune": ("L3",), "retrain": ("R1", "R2")}, begun=LEARNED)
    found = descents(RunDirectory(runs.folder / "C"))["retrain"]
    assert found.models == (*LEARNED.models, hashed("R1"), hashed("R2"))


def test_an_exported_model_says_what_it_comes_of(tmp_path):
    assert read_lineage(tmp_path) is None
    write_lineage(tmp_path, A)
    assert read_lineage(tmp_path) == A


def test_an_export_of_an_earlier_round_still_knows_the_demands(runs, tmp_path):
    second = Descent(hashed("L2"), (hashed("L1"), hashed("L2")), ("learned",))
    write_lineage(tmp_path / "exported", second)
    register(runs.folder, "exported", second, stage="finetune", folder=str(tmp_path / "exported"))
    assert dict(models_in(runs.folder).of(hashed("L2")).demands) == KNOWN


@pytest.mark.parametrize("names", [("A", "Z"), ("Z", "A")])
def test_of_two_runs_that_made_one_model_the_worse_verdict_counts(tmp_path, names):
    runs = Runs(tmp_path / "runs")
    for name, outcome in zip(names, (VERIFIED, NOT_VERIFIED), strict=True):
        runs.run(name, {"finetune": ("L3",), "unlearn": ("U",)}, begun=LEARNED, requests=[("d", outcome)])
    assert dict(models_in(runs.folder).of(hashed("U")).demands) == {"d": "not verified"}


def test_a_model_comes_of_what_any_run_that_made_it_began_with(tmp_path):
    runs, other = Runs(tmp_path / "runs"), Descent(hashed("M"), (hashed("M"),), ("m",))
    for name, begun in (("A", LEARNED), ("B", other)):
        runs.run(name, {"unlearn": ("U",)}, begun=begun)
    assert {hashed("L3"), hashed("M")} < set(models_in(runs.folder).of(hashed("U")).descent.models)


def test_who_retires_a_model_is_told_its_files_and_not_to_delete_a_run(runs):
    result = call("model", "retire", runs.folder / "learned", "--reason", "x")
    files = [
        f"{name}/checkpoints/finetune/round-{n:04d}.safetensors" for name, n in (("A", 1), ("B", 1), ("learned", 3))
    ]
    said = result.out.partition("Delete its files: ")[2].strip().rstrip(".")
    assert result.code == 0 and sorted(said.split(", ")) == files


def test_a_line_of_the_register_without_a_stage_gives_one_line(runs):
    Chain(runs.folder / "models.jsonl").append([{"event": "made", "model": "x", "models": ["x"], "runs": ["r"]}])
    result = call("model", "list", runs.folder)
    assert result.code == 2 and "stage" in result.err and "Traceback" not in result.err


def test_runs_that_cannot_be_read_are_named_where_demands_are(runs):
    assert models_in(runs.folder).unread == ""
    (runs.folder / "B" / "requests.jsonl").write_text("no ledger\n")
    assert "cannot be read: B: " in models_in(runs.folder).unread
