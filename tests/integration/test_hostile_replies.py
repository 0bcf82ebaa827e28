"""Clients that lie: whatever a reply says, the run goes on, the ledger stays true, nobody gets another's request."""

import json
import math

import numpy as np
import pytest
from flwr.app import Error, Message, MetricRecord, RecordDict
from support.churn import QUIET
from support.hostile_replies import HARMLESS, REFUSED, SEQUENCES
from support.nodes import write_nodes
from support.stages import execute, new_run, tombstones

from oblivionis.chain import check_chain
from oblivionis.config.schema import Config
from oblivionis.data.corpora import load_partition
from oblivionis.erasure.events import line_fault
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.node_folder import NodeFolder
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.request import PENDING
from oblivionis.models.configured_corpus import corpus_of
from strategies import message_keys
from strategies.metric_schema import TRAIN, UNLEARN

CLIENTS = 9
LIARS = 8
"""So many clients lie in every round of finetuning."""
KINDS = {**REFUSED, **HARMLESS}
LINE = "event id client scope subject time round record_ids count already group reason told attempts rouge limit before"
FIELDS = frozenset(f"{LINE} after prev hash outcome why records".split())


def lies(names, clients):
    """Which lie is told by whom in which round, from 1."""
    turns = [(name, clients[n % len(clients)], n // len(clients) + 1) for n, name in enumerate(names)]
    return {(server_round, client): name for name, client, server_round in turns}


def lying(plan, message_type):
    """Tamper with the replies to such messages as `plan` says."""

    def tamper(client, message, reply):
        if message.metadata.message_type != message_type:
            return reply
        name = plan.get((message.content[message_keys.CONFIG][message_keys.SERVER_ROUND], client))
        return reply if name is None else KINDS[name](message, reply)

    return tamper


SIZES = [
    f"federation.clients={CLIENTS}",
    "federation.fraction_train=1.0",
    "data.authors=27",
    "data.questions_per_author=3",
    "data.forget_authors=9",
    "federation.timeout=0.05",  # the answers are there at once, or never
    *QUIET,
]


@pytest.fixture(scope="module")
def finetuned(tmp_path_factory):
    """Every lie once in answer to `train`."""
    plan = lies(KINDS, range(1, 1 + LIARS))
    rounds = max(server_round for server_round, _ in plan)
    settings = [*SIZES, f"federation.rounds.finetune={rounds}", "stages=[finetune]", "model.lora.rank=2"]
    config, run = new_run(tmp_path_factory.mktemp("hostile"), "finetune", *settings)
    events, _ = execute(config, run, lying(plan, message_keys.TRAIN))
    return config, run, events, plan


@pytest.fixture(scope="module")
def unlearned(finetuned, tmp_path_factory):
    """Every lie once in answer to `train.unlearn`, each about a request of its own."""
    config: Config = finetuned[0]
    base = finetuned[1]
    held = load_partition(corpus_of(config), config).ids
    rounds, trained = math.ceil(len(KINDS) / CLIENTS), config.federation.rounds.finetune
    plan, lines = lies(KINDS, range(CLIENTS)), []
    names = {name: f"r{n:02d}" for n, name in enumerate(KINDS)}
    for (server_round, client), name in plan.items():
        record = held[client][(server_round - 1) % len(held[client])]
        lines.append({"round": server_round, "client": client, "id": names[name], "record_ids": [record]})
    home = tmp_path_factory.mktemp("unlearned")
    file = home / "requests.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = [*SIZES, "stages=[unlearn]", f"start_from={base.path}", "model.lora.rank=2", "unlearning=grad_diff"]
    settings += [f"federation.rounds.{stage}={n}" for stage, n in (("unlearn", rounds), ("finetune", trained))]
    settings += ["unlearning.requests.extra_rounds=0"]
    settings += ["unlearning.requests.policy=file", f"unlearning.requests.file={file}", "unlearning.epochs=1"]
    config, run = new_run(home, "unlearn", *settings)
    events, _ = execute(config, run, lying(plan, message_keys.UNLEARN))
    return run, events, plan, names


def federation_rows(run):
    return [row for row in run.metrics() if row["evaluator"] == "federation"]


def test_there_are_enough_lies():
    assert len(KINDS) >= 40 and len(REFUSED) + len(HARMLESS) == len(KINDS)


def test_no_lie_ends_a_run(finetuned, unlearned):
    for run, stage in ((finetuned[1], "finetune"), (unlearned[0], "unlearn")):
        summary = run.stage_summary(stage)
        rows = [row for row in federation_rows(run) if row["stage"] == stage]
        assert summary is not None and summary["rounds"] == len(rows)


def test_the_liar_is_left_out_and_nobody_else(finetuned):
    _, run, events, plan = finetuned
    refused = {(turn, client) for (turn, client), name in plan.items() if name in REFUSED}
    left_out = {(row["round"], client) for row in federation_rows(run) for client in row["clients"].get("failed", [])}
    assert left_out == refused
    assert len(events.left_out) == len(refused)
    for _, _, reason in events.left_out:
        assert reason and reason.isprintable() and len(reason) <= 520


def test_only_known_numbers_are_in_a_round_s_line(finetuned):
    for row in federation_rows(finetuned[1]):
        assert row["metrics"].keys() <= TRAIN.keys() | {
            "seconds",
            "replies",
            "failures",
            "bytes_sent",
            "bytes_received",
        }
        assert row["metrics"]["replies"] + row["metrics"]["failures"] == CLIENTS and row["metrics"]["seconds"] < 1e5


def test_what_was_cut_is_in_the_round_s_line(finetuned):
    config, run, _, plan = finetuned
    ((turn, client),) = [place for place, name in plan.items() if name == "weight 1e15"]
    cut = {row["round"]: row["cut"] for row in federation_rows(run) if "cut" in row}
    records = len(load_partition(corpus_of(config), config).ids[client])
    assert cut == {turn: [{"client": client, "what": "weight", "told": 1e15, "used": records}]}


def test_the_model_is_sane(finetuned, unlearned):
    for run, stage in ((finetuned[1], "finetune"), (unlearned[0], "unlearn")):
        vector = run.load_checkpoint(stage).vector
        assert np.isfinite(vector).all() and np.abs(vector).max() < 10


def test_no_field_of_the_ledger_is_forged_and_its_chain_is_whole(unlearned):
    run, _, plan, names = unlearned
    checked = check_chain(run.ledger_path)
    assert checked.faults == () and checked.remarks == ()
    owners = {names[name]: client for (_, client), name in plan.items()}
    assert not any(map(line_fault, checked.entries))
    for entry in [entry for entry in checked.entries if "id" in entry]:
        assert entry.keys() <= FIELDS
        assert owners[entry["id"]] == entry["client"] and 1.6e9 < entry["time"] < 1e10
        assert entry["round"] <= len(federation_rows(run))
        assert "\\u001b" not in json.dumps(entry.get("reason", "")) and len(entry.get("reason", "")) <= 520
        if entry["event"] == "served":
            assert entry["told"].keys() <= UNLEARN.keys() and entry["count"] == 1
    assert Ledger(run.ledger_path).head == checked.head, "it can be read again, so the run can be resumed"


def test_a_refused_answer_serves_no_request_and_none_is_verified_by_it(unlearned):
    run, _, plan, names = unlearned
    ledger = Ledger(run.ledger_path)
    served = [entry for entry in check_chain(run.ledger_path).entries if entry["event"] == "served"]
    for (turn, _), name in plan.items():
        request = ledger.get(names[name])
        if name in REFUSED:
            assert request.attempts >= 1 and all(e["round"] != turn for e in served if e["id"] == request.id)
            assert request.failure or request.state != PENDING
        else:
            assert request.served_round == turn, name


# Whom a partition belongs to, and what nodes say of their requests


def query(**numbers):
    """Another answer to a query than the honest one: these numbers, None: not told."""

    def sent(message, reply):
        metrics = {**reply.content[message_keys.METRICS], **{k.replace("_", "-"): v for k, v in numbers.items()}}
        kept = {k: v for k, v in metrics.items() if v is not None}
        rest = {k: v for k, v in reply.content.items() if k != message_keys.METRICS}
        return Message(RecordDict({message_keys.METRICS: MetricRecord(kept), **rest}), reply_to=message)

    return sent


def requests(**changes):
    """Other values in what a node says of its requests."""

    def sent(message, reply):
        if message_keys.REQUESTS in reply.content:
            for key, value in changes.items():
                reply.content[message_keys.REQUESTS][key.replace("_", "-")] = value
        return reply

    return sent


ASKED = {"scopes": ["records"], "record_counts": [1]}
QUERIES = {
    "no answer": lambda message, reply: None,
    "error 0": lambda message, reply: Message(Error(code=0, reason="ActorDiedError"), reply_to=message),
    "escape sequences": lambda message, reply: Message(Error(code=2, reason=SEQUENCES), reply_to=message),
    "nothing": lambda message, reply: Message(RecordDict(), reply_to=message),
    "another's partition": query(partition_id=1),
    "a partition that does not exist": query(partition_id=99),
    "a negative partition": query(partition_id=-1),
    "half a partition": query(partition_id=0.5),
    "no partition": query(partition_id=None),
    "1e18 records": query(num_records=10**18, live_records=10**18),
    "negative records": query(num_records=-1, live_records=-1),
    "records that are a list": query(num_records=[1, 2], live_records=[1, 2]),
    "an id with a path": requests(**ASKED, request_ids=["../../evil"], record_ids=["p2-home"]),
    "an id with escape sequences": requests(**ASKED, request_ids=[SEQUENCES], record_ids=["p2-home"]),
    "a record with escape sequences": requests(**ASKED, request_ids=["evil"], record_ids=["p2\x1b[2J"]),
    "a record with a lone surrogate": requests(**ASKED, request_ids=["evil"], record_ids=["p2\udc80"]),
    "another scope": requests(request_ids=["evil"], scopes=["all"], record_counts=[1], record_ids=["p2-home"]),
    "counts that do not add up": requests(request_ids=["a", "b"], scopes=["records"] * 2, record_counts=[1, 9]),
    "a negative count": requests(request_ids=["evil"], scopes=["records"], record_counts=[-1], record_ids=[]),
    "an id twice": requests(
        request_ids=["e", "e"], scopes=["records"] * 2, record_counts=[1, 1], record_ids=["a", "b"]
    ),
    "no hash": requests(ledger_head="evil"),
    "lines that it was never told": requests(acknowledged=["0" * 64, "f" * 64]),
    "numbers for texts": requests(request_ids=[1], scopes=[2], record_counts=[3], record_ids=[4]),
    "a text of 1 MB": requests(**ASKED, request_ids=["e" * 1_000_000], record_ids=["p2-home"]),
}


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """Client 2 lies in every query, each round in another way, while clients 0 and 1 ask for deletion."""
    home = tmp_path_factory.mktemp("asked")
    folder = write_nodes(home / "clinics")
    for client in (0, 1):
        NodeLedger(folder / f"node{client}").submit([f"p{client}-home"], identifier="art17")
    turns = iter(QUERIES.values())
    told = []

    def tamper(client, message, reply):
        if message.metadata.message_type == message_keys.UNLEARN:
            told.append((client, list(message.content[message_keys.CONFIG][message_keys.RECORD_IDS])))
        if client != 2 or message.metadata.message_type != message_keys.QUERY:
            return reply
        return next(turns, lambda message, reply: reply)(message, reply)

    settings = ["data=node", f"data.nodes={folder}", "federation.clients=3", "stages=[finetune, unlearn]"]
    settings += ["federation.rounds.finetune=1", f"federation.rounds.unlearn={len(QUERIES)}", "unlearning=grad_diff"]
    settings += ["unlearning.requests.policy=nodes", "evaluation.audit.profile=light", "model.lora.rank=2", *QUIET]
    config, run = new_run(home, "run", *settings, "federation.fraction_train=0.34", "federation.timeout=0.05")
    events, _ = execute(config, run, tamper)
    assert next(turns, None) is None, "every lie was told"
    return config, run, events, told, folder


def test_lies_in_answer_to_queries_end_nothing(asked):
    _, run, _, _, _ = asked
    assert run.stage_summary("unlearn") is not None and run.load_checkpoint("unlearn").round == len(QUERIES)
    assert check_chain(run.ledger_path).faults == ()
    assert all(not line_fault(entry) for entry in check_chain(run.ledger_path).entries)


def test_nobody_gets_the_request_of_another(asked):
    _, run, events, told, folder = asked
    assert sorted(told) == [(0, ["p0-home"]), (1, ["p1-home"])]
    assert {r.client: r.record_ids for r in Ledger(run.ledger_path)} == {0: ("p0-home",), 1: ("p1-home",)}
    assert NodeFolder(folder / "node2").tombstones() == frozenset()
    assert any("says that it is client 1, and is set aside" in text for text in events.warnings)


def test_no_warning_obeys_a_client(asked):
    _, _, events, _, _ = asked
    assert events.warnings and all(text.isprintable() and len(text) < 2000 for text in events.warnings)


def test_the_weight_of_a_node_is_what_it_declared_first(asked):
    _, run, _, _, _ = asked
    known = json.loads((run.path / "known-nodes.json").read_text())
    assert {client: node["records"] for client, node in known.items()}.items() <= {"0": 6, "1": 6, "2": 6}.items()
    assert not tombstones(run), "the clinics keep theirs in their own folders"
