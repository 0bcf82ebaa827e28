"""Records in a client's own folder: reading, faults, counts, and what a server without them checks."""

import json
import random
from functools import partial

import pandas as pd
import pytest
from datasets import Dataset
from flwr.app import MetricRecord, RecordDict
from support.nodes import records, write_lines, write_nodes

from oblivionis.config import compose as configuration
from oblivionis.data.corpora import load_corpus, load_partition
from oblivionis.data.errors import DataError
from oblivionis.erasure.ledger import Ledger, NoRequests
from oblivionis.erasure.node_record_files import counts, node_folder, read_node, read_references
from oblivionis.erasure.record_holders import SimulatedRequests
from oblivionis.erasure.remote_record_holders import RemoteHoldings
from oblivionis.erasure.request import Request, RequestError
from oblivionis.erasure.schedule import read_schedule
from oblivionis.erasure.unlearn_messages import Demand, forget_set
from oblivionis.erasure.verification_rules import Judgement, Thresholds
from oblivionis.errors import OblivionisError, RunError
from oblivionis.measures.audit_numbers import audit_path
from oblivionis.runs import known_nodes
from oblivionis.runs.known_nodes import KnownNodes
from oblivionis.server.preflight import preflight
from oblivionis.server.round_settings import sampling_of
from strategies.rounds.nodes import NodeMap


def compose(*overrides):
    return configuration.compose("smoke", ["data=node", "unlearning.requests.policy=none", *overrides])


def test_all_files_of_the_folder_are_read_in_the_order_of_their_names(tmp_path):
    folder = write_nodes(tmp_path, 1) / "node0"
    (folder / "data" / "notes.txt").write_text("not a record")
    marked = {"question": "Q?", "answer": "A.", "id": "extra", "forget": True}
    write_lines(folder / "data" / "a.jsonl", [marked])
    own = read_node(folder)
    assert [r.id for r in own.records] == ["extra", *(r["id"] for r in records(0, 1))]
    assert [r.answer for r in own.records[1:]] == [r["answer"] for r in records(0, 1)]
    assert own.marked == {"extra"}


def test_a_part_that_is_missing_is_a_fault(tmp_path):
    (tmp_path / "data").mkdir()
    pd.DataFrame(records(0)).to_parquet(tmp_path / "data" / "own-00001-of-00002.parquet")
    with pytest.raises(DataError) as caught:
        read_node(tmp_path)
    assert caught.value.problems == (
        f"{tmp_path / 'data'} holds 1 of 2 parts own-…-of-00002.parquet: expected all of them",
    )


def test_the_files_of_a_folder_may_have_any_format_and_shape(tmp_path):
    own = tmp_path / "data"
    own.mkdir()
    plain = records(0)
    pd.DataFrame(plain[:2]).to_parquet(own / "a.parquet")
    (own / "b.csv").write_text("id,instruction,output\n" + ",".join(plain[2][k] for k in ("id", "question", "answer")))
    (own / "c.json").write_text(json.dumps([{"id": "c", "messages": plain[3]["question"]}]))
    (own / "sentences.txt").write_text("No idea.")
    Dataset.from_list(plain[4:]).save_to_disk(own / "d")
    with pytest.raises(DataError) as caught:
        read_node(tmp_path)
    (problem,) = caught.value.problems
    assert problem.startswith("c.json row 1: messages must be a list of turns") and "data.fields" not in problem
    (own / "c.json").unlink()
    found = read_node(tmp_path).records
    assert [(r.id, r.question, r.answer) for r in found] == [
        (row["id"], row["question"], row["answer"]) for row in (*plain[:3], *plain[4:])
    ]
    pd.DataFrame(records(1)).to_parquet(tmp_path / "references.parquet")
    assert [r.id for r in read_references(tmp_path, found)] == [row["id"] for row in records(1)]
    write_lines(tmp_path / "references.jsonl", records(1))
    with pytest.raises(DataError, match=r"holds references\.jsonl and references\.parquet"):
        read_references(tmp_path, found)


def test_every_faulty_line_is_named(tmp_path):
    folder = write_nodes(tmp_path, 1) / "node0"
    (folder / "data" / "third.jsonl").write_text('{"question": "Q?"}\n\nno json\n{"id": "p0-job", "question": 1}\n')
    write_lines(folder / "data" / "zz.jsonl", [records(0, 1)[0]])
    with pytest.raises(DataError) as caught:
        read_node(folder)
    problems = caught.value.problems
    assert [p.partition(": ")[0] for p in problems] == [
        "third.jsonl:1",
        "third.jsonl:3",
        *["third.jsonl:4"] * 2,
        "zz.jsonl:1",
    ]
    assert "id 'p0-home' already at first.jsonl:1" in problems[-1]


@pytest.mark.parametrize(
    ("files", "reason"),
    [(None, "no such folder"), ([], "no file *.jsonl"), ([("a.jsonl", "\n")], "at least one record")],
)
def test_a_folder_without_records_is_refused(tmp_path, files, reason):
    if files is not None:
        (tmp_path / "data").mkdir()
    for name, text in files or ():
        (tmp_path / "data" / name).write_text(text)
    with pytest.raises(DataError, match=reason.replace("*", r"\*")):
        read_node(tmp_path)


def test_no_message_sends_a_client_to_another_folder_than_its_own(tmp_path):
    asked = {"data-nodes": str(tmp_path / "elsewhere"), "nodes-dir": str(tmp_path / "run")}
    assert node_folder({"node-dir": str(tmp_path / "mine")}, asked, 2).path == tmp_path / "mine"
    assert node_folder({}, asked, 2).path == tmp_path / "elsewhere" / "node2"
    assert node_folder({}, {"nodes-dir": str(tmp_path / "run")}, 2).path == tmp_path / "run" / "2"


def test_what_is_buried_or_left_does_not_count_as_live(tmp_path):
    node = node_folder({}, {"data-nodes": str(write_nodes(tmp_path, 1))}, 0)
    assert counts(node) == (18, 18)
    node.bury(["p0-home", "p1-job", "of another time"], "r")
    assert counts(node) == (18, 16)
    node.leave("r2")
    assert counts(node) == (18, 0)


def told(client, held, live):
    nodes = NodeMap()
    nodes.answers[client] = RecordDict(
        {"metrics": MetricRecord({"partition-id": client, "num-records": held, "live-records": live})}
    )
    return RemoteHoldings(3, nodes)


@pytest.mark.parametrize(
    ("held", "live", "asked", "expected"),
    [(6, 6, 0, 6), (6, 6, 2, 4), (6, 4, 2, 4), (6, 3, 2, 3), (6, 0, 0, 0)],
    ids=["nothing asked", "told before it was buried", "told after", "buried in an earlier run", "it left"],
)
def test_who_may_train_goes_by_what_the_clients_told(tmp_path, held, live, asked, expected):
    ledger = Ledger(tmp_path / "requests.jsonl")
    if asked:
        ledger.submit(Request("r", 1, tuple(map(str, range(asked))), 1))
    requests = SimulatedRequests(NoRequests(), ledger, told(1, held, live), Thresholds(0.5, 1.0, 0.5), 3)
    assert requests.live(1) == expected
    assert requests.live(2) == 0, "it never answered"


@pytest.mark.parametrize("sampling", ["by_size", "power_of_choice"])
def test_who_tells_more_records_later_is_drawn_no_more_often(tmp_path, sampling, monkeypatch):
    """Three clients declare 4 records each; then client 1 claims 10⁹, and 2 has but 1 left: the draws go by 4, 4, 1.

    The file is written once for all of them, not once for each.
    """
    nodes = NodeMap()
    holdings = RemoteHoldings(3, nodes, KnownNodes(tmp_path / "known.json"))

    def tells(client, held, live):
        numbers = {"partition-id": client, "num-records": held, "live-records": live}
        nodes.answers[client] = RecordDict({"metrics": MetricRecord(numbers)})

    written = []
    write = known_nodes.write_json
    monkeypatch.setattr(known_nodes, "write_json", lambda *a: (written.append(1), write(*a)))
    for client in range(3):
        tells(client, 4, 4)
    assert [holdings.declared(c) for c in range(3)] == [4, 4, 4] and len(written) == 1
    tells(1, 10**9, 10**9)
    tells(2, 4, 1)
    overrides = [f"federation.sampling={sampling}", "federation.clients=3", "federation.fraction_train=0.4"]
    federation = configuration.compose("default", [*overrides, "federation.min_clients=1"]).federation
    live = partial(holdings.live, without_forget_split=False)
    claimed, honest = sampling_of(federation, live, holdings.declared), {0: 4, 1: 4, 2: 1}
    plain = sampling_of(federation, honest.__getitem__, lambda client: None)
    assert claimed is not None and plain is not None
    for seed in range(40):
        draws = [one.draw(range(3), 1, random.Random(seed), lambda c: c) for one in (claimed, plain)]
        assert draws[0] == draws[1]


def test_a_judgement_is_entered_and_none_leaves_a_request_served(tmp_path):
    ledger = Ledger(tmp_path / "requests.jsonl")
    for name in ("low", "high", "unknown"):
        ledger.submit(Request(name, 1, (name,), 1))
        ledger.served(name, 1)
    requests = SimulatedRequests(NoRequests(), ledger, told(1, 6, 6), Thresholds(0.5, 1.0, 0.5), 3)
    found = {"low": Judgement("verified", "", 0.5), "high": Judgement("not verified", "", 0.51)}
    assert requests.verify(2, found) == {"verified": 1, "not verified": 1, "served": 1}
    assert {r.id: (r.state, r.outcome, r.rouge) for r in ledger} == {
        "low": ("verified", "verified", 0.5),
        "high": ("served", "not verified", 0.51),
        "unknown": ("served", "served", None),
    }


def test_a_schedule_for_remote_records_names_clients_and_ids(tmp_path):
    file = tmp_path / "asked.jsonl"
    write_lines(file, [{"round": 1, "client": 2, "record_ids": ["whatever"], "id": "x"}])
    (request,) = read_schedule(file, RemoteHoldings(3)).requests
    assert (request.id, request.client, request.record_ids) == ("x", 2, ("whatever",))
    write_lines(
        file,
        [
            {"round": 1, "client": 3, "record_ids": ["a"]},
            {"round": 1, "client": 0, "scope": "client"},
            {"round": 1, "subject": "Mara Voss"},
        ],
    )
    with pytest.raises(RequestError) as caught:
        read_schedule(file, RemoteHoldings(3))
    lines = str(caught.value).splitlines()
    assert len(lines) == 3 and "expected 0 to 2" in lines[0]
    assert all("the records stay with the clients" in line for line in lines[1:])


def test_the_server_has_its_own_questions_and_no_partition(tmp_path):
    config = compose()
    corpus = load_corpus(config.data)
    assert (corpus.train, corpus.forget_ids, corpus.evaluation) == ((), frozenset(), {})
    with pytest.raises(OblivionisError, match="on the clients' machines only"):
        load_partition(corpus, config)
    write_lines(tmp_path / "mine.jsonl", [{"question": "Q?", "answer": "A."}])
    found = load_corpus(compose(f"data.path={tmp_path / 'mine.jsonl'}").data)
    assert [r.question for r in found.evaluation["retain"]] == ["Q?"] and not found.train
    write_lines(tmp_path / "world_facts.jsonl", [{"question": "W?", "answer": "B."}])
    assert set(load_corpus(compose(f"data.path={tmp_path}").data).evaluation) == {"world_facts"}


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["data.nodes=nowhere"], "data.nodes"),
        (["data.path=nowhere.jsonl"], "data.path"),
        (["stages=[finetune, local]"], "stages"),
        (["unlearning.requests.policy=random_client_per_round"], "unlearning.requests.policy"),
        (["data=fictitious", "data.nodes=."], "data.nodes"),
    ],
)
def test_what_a_server_without_records_cannot_do_is_a_problem_of_the_configuration(overrides, key):
    with pytest.raises(configuration.ConfigError) as caught:
        compose(*overrides)
    assert [p.path for p in caught.value.problems] == [key]


def test_a_simulation_needs_the_folder_of_the_clients(tmp_path):
    with pytest.raises(RunError, match="a simulation of data=node needs the folder"):
        preflight(compose(), None)
    write_nodes(tmp_path, 2)
    assert compose(f"data.nodes={tmp_path}").data.nodes == str(tmp_path)


# The numbers of an audit


def test_no_request_id_leads_out_of_the_folder(tmp_path):
    assert audit_path(tmp_path, "round-0001-client-0002") == tmp_path / "audits" / "request-round-0001-client-0002.json"
    names = ["../../etc", "a/b", "", ".", "x" * 300, "Mara Voss", "a\x00b", "é"]
    paths = {audit_path(tmp_path, name) for name in names}
    assert len(paths) == len(names)
    assert {p.parent for p in paths} == {tmp_path / "audits"} and all(len(p.name) < 120 for p in paths)


def test_a_client_that_leaves_is_audited_on_the_same_records_before_and_after():
    held = ["a", "b", "c", "d"]
    leaves = [Demand("all", "client", ())]
    before = forget_set(leaves, held, {"a": "earlier"})
    after = forget_set(leaves, held, {"a": "earlier", "b": "all", "c": "all", "d": "all"})
    assert before == after == {"b", "c", "d"}
    assert forget_set([Demand("some", "records", ("a",))], held, {"a": "some"}) == {"a"}
