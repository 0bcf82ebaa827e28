"""Clients that come and go: nothing asked for is lost, nothing is served twice, and memory stays flat."""

import gc
import json
import random
from collections import Counter

import psutil
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from support.churn import QUIET
from support.stages import Recorded, execute, new_run

from oblivionis.data.corpora import load_partition
from oblivionis.erasure.ledger import Ledger
from oblivionis.models.configured_corpus import corpus_of
from strategies import message_keys
from strategies.rounds.grids import ChurningGrid
from strategies.rounds.memory_grid import MemoryGrid

CLIENTS, ROUNDS = 100, 50


def message(node, round):
    config = ConfigRecord({message_keys.SERVER_ROUND: round, message_keys.STAGE: "unlearn"})
    return Message(RecordDict({message_keys.CONFIG: config}), dst_node_id=node, message_type=message_keys.TRAIN)


def churning(share=0.3, seed=0, nodes=10):
    reached = Counter()

    def node(partition):
        def answer(message):
            reached[partition] += 1
            return RecordDict({message_keys.METRICS: MetricRecord({message_keys.NUM_EXAMPLES: 1})})

        return answer

    inner = MemoryGrid({p: node(p) for p in range(nodes)})
    return ChurningGrid(inner, share, seed), inner, reached


def exchange(grid, round, nodes=range(1000, 1010)):
    """Who answered, and who did not; each of them by node id."""
    messages = [message(node, round) for node in nodes]
    ids = grid.push_messages(messages)
    replies = {m.metadata.reply_to_message_id: m for m in grid.pull_messages(ids)}
    assert set(replies) == set(ids)
    failed = {m.metadata.dst_node_id for m, i in zip(messages, ids, strict=True) if replies[i].has_error()}
    assert all(replies[i].error.code == 5 for i in ids if replies[i].has_error())
    return set(nodes) - failed, failed


def test_some_vanish_in_each_round_and_return_in_the_next():
    grid, _, reached = churning()
    assert len(grid.get_node_ids()) == 10
    away, lost = [], 0
    for round in range(1, 21):
        before = sum(reached.values())
        answered, failed = exchange(grid, round)
        assert len(failed) == 3 and set(grid.get_node_ids()) == answered
        arrived = sum(reached.values()) - before
        assert 7 <= arrived <= 10
        lost += arrived - 7
        assert exchange(grid, round)[1] == failed, "they stay away for the rest of the round"
        away.append(frozenset(failed))
    assert len(set(away)) > 10, "others each time"
    assert 0 < lost < 60, "some work is done though its answer is lost, and some is not"
    assert [exchange(again, 1)[1] for again in (churning()[0], churning(seed=1)[0])] != [away[0]] * 2
    assert exchange(churning()[0], 1)[1] == away[0]


def test_without_churn_nothing_changes():
    grid, inner, _ = churning(share=0.0)
    assert exchange(grid, 1)[1] == set()
    with pytest.raises(ValueError, match="share is 1"):
        ChurningGrid(inner, 1, 0)


class Memory(Recorded):
    """The memory of this process after each round, in MiB."""

    def __init__(self):
        super().__init__()
        self.resident = []

    def round_finished(self, round, seconds):
        gc.collect()
        self.resident.append(psutil.Process().memory_info().rss / 2**20)


def arrivals(records, seed):
    """A schedule: at random rounds random clients ask for some of their records, or leave."""
    draw, lines, left = random.Random(seed), [], set()
    for number in range(80):
        client = draw.choice([c for c in range(CLIENTS) if c not in left])
        line = {"round": draw.randint(1, ROUNDS - 5), "client": client, "id": f"r{number:02d}"}
        if draw.random() < 0.15:
            lines.append({**line, "scope": "client"})
            left.add(client)
        else:
            lines.append({**line, "record_ids": draw.sample(records[client], draw.randint(1, len(records[client])))})
    return lines


@pytest.mark.slow
def test_a_hundred_clients_that_come_and_go(tmp_path):
    federation = [
        f"federation.clients={CLIENTS}",
        "federation.rounds.finetune=1",
        f"federation.rounds.unlearn={ROUNDS}",
    ]
    federation += ["federation.fraction_train=0.05", "data.authors=100", "data.questions_per_author=3"]
    base = [*federation, *QUIET, "stages=[finetune, unlearn]", "federation.churn=0.1", "unlearning=grad_diff"]
    config, _ = new_run(tmp_path, "probe", *base)
    corpus = corpus_of(config)
    partition = load_partition(corpus, config)
    file = tmp_path / "requests.jsonl"
    lines = arrivals(dict(enumerate(partition.ids)), seed=5)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    asks = (
        "unlearning.requests.policy=file",
        f"unlearning.requests.file={file}",
        "unlearning.requests.extra_rounds=20",
    )
    config, run = new_run(tmp_path, "churn", *base, *asks)
    gc.collect()
    gc.freeze()  # what was there before is not looked through after each round
    try:
        events, _ = execute(config, run, events=Memory())
    finally:
        gc.unfreeze()
    ledger = {request.id: request for request in Ledger(run.ledger_path)}
    assert set(ledger) == {line["id"] for line in lines}
    assert {r.state for r in ledger.values()} <= {"served", "verified", "covered"}, "none is lost"
    entries = [json.loads(line) for line in run.ledger_path.read_text().splitlines()]
    served = Counter(entry["id"] for entry in entries if entry["event"] == "served")
    assert set(served.values()) == {1}, "none is served twice"
    assert set(served) == {r.id for r in ledger.values() if r.state != "covered"}
    assert len(served) > 50
    failed = Counter(entry["id"] for entry in entries if entry["event"] == "failed")
    assert failed and max(failed.values()) < 10, "churn hit some requests"
    asked = {i for line in lines for i in line.get("record_ids", partition.ids[line["client"]])}
    buried = {
        json.loads(line)["record_id"]
        for path in run.nodes_path.glob("*/tombstones.jsonl")
        for line in path.read_text().splitlines()
    }
    assert buried == asked
    assert len(events.resident) >= ROUNDS
    assert max(events.resident[-10:]) - max(events.resident[10:20]) < 40, events.resident
