"""Whole runs in which the clients keep their records: what the server learns, what it measures, what never leaves."""

import hashlib
import io
import json
import logging
import threading

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from rich.console import Console
from support.inprocess import InProcessGrid
from support.nodes import records, write_lines, write_nodes
from support.privacy import Wire, found_texts, found_tokens, leaks, texts_of
from support.stages import Recorded

from oblivionis import seeds
from oblivionis.client.app import app
from oblivionis.client.error_replies import answering
from oblivionis.config import compose as configuration
from oblivionis.data.own_records import load, to_record
from oblivionis.data.tokenize import encode_all
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.node_folder import NodeFolder
from oblivionis.erasure.node_key import audit_bytes, audit_key
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.verification_evidence import ExchangeCounts, RequestCounts
from oblivionis.erasure.verification_rules import Thresholds
from oblivionis.measures.assessor import Assessor
from oblivionis.measures.audit_numbers import NAMES, audit_path, read_audit
from oblivionis.models.assembly import assemble
from oblivionis.reports.client_tables import audit_table, print_nodes
from oblivionis.reports.html import run_page as html_report
from oblivionis.reports.run_summary import print_summary
from oblivionis.row_files import Row
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.failed_evaluators import failures
from oblivionis.server.app import serve
from strategies import message_keys
from strategies.errors import NodeMapError
from strategies.rounds.nodes import NodeMap

CLIENTS = 3
BASE = (
    "data=node",
    f"federation.clients={CLIENTS}",
    "federation.fraction_train=1.0",
    "evaluation.full.questions_per_set=3",
    "unlearning.requests.policy=file",
)
DEMANDS = [
    {"id": "of-client-0", "round": 1, "client": 0, "record_ids": ["p0-home", "p0-job"]},
    {"id": "of/client 1", "round": 1, "client": 1, "record_ids": ["p1-job"]},
    {"id": "of-client-2", "round": 2, "client": 2, "record_ids": ["p2-home", "p5-home", "p8-home"]},
]


class Noted(Recorded):
    def __init__(self):
        super().__init__()
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def start(folder, name, *overrides, tamper=None, own_folders=True, demands=DEMANDS, consent=True):
    """Run it; the clients name their folders themselves, unless the configuration does."""
    schedule = folder / f"{name}.jsonl"
    write_lines(schedule, demands)
    settings = [*BASE, f"output={folder}", f"name={name}", f"unlearning.requests.file={schedule}", *overrides]
    config = configuration.compose("smoke", settings)
    run = RunDirectory.create(folder, name)
    run.write_config(configuration.to_yaml(config))
    grid = InProcessGrid(app, config.federation.clients, tamper)
    if own_folders:
        for context in grid.contexts.values():
            own = folder / "nodes" / f"node{context.node_config['partition-id']}"
            if consent:
                (own / "node.toml").write_text("[requests]\nfrom_server = true\n")  # the server has the schedule
            context.node_config["node-dir"] = str(own)
    events = Noted()
    serve(config, grid, run, events, threading.Event())
    html_report.write_html(run, config)
    return config, run, events, grid


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deployed")
    write_nodes(folder / "nodes")
    wire = Wire()
    return *start(folder, "whole", tamper=wire), wire


@pytest.fixture(scope="module")
def sequences(finished):
    config = finished[0]
    assembled = assemble(config.model, seeds.derive(config.seed, "adapter"))
    corpus = load_all()
    encoded, _ = encode_all(corpus, assembled.tokenizer, assembled.template, max_length=512)
    return [(*e.prompt, *e.answer) for e in encoded]


def load_all():
    return [to_record(Row("", row), []) for client in range(CLIENTS) for row in records(client)]


def outcome(run, request):
    """What follows from the numbers that the client told right before and after the exchange and at the end."""
    audit = read_audit(run.path, request)
    before, final = audit["before"], audit["final"]
    short, recited = final["request_short"], final["request_recited"]
    thresholds = Thresholds(0.5, 1.0, 0.5)
    after = audit["after"]["request_recited"] if "after" in audit else None
    exchange, reason = ExchangeCounts(before["request_recited"], after), thresholds.ruined({}, final, before)
    counts = RequestCounts(int(final["forget_records"]), recited, exchange, short=short, inconclusive_reason=reason)
    return thresholds.judge(counts).outcome


def test_requests_are_served_and_verified_by_the_clients_numbers(finished):
    _, run, events, grid, _ = finished
    assert {r.id: r.outcome for r in Ledger(run.ledger_path)} == {d["id"]: outcome(run, d["id"]) for d in DEMANDS}
    for demand in DEMANDS:
        audit = read_audit(run.path, demand["id"])
        assert audit["request"] == demand["id"] and audit["client"] == demand["client"]
        assert audit["round"] == demand["round"] and "failed" not in audit
        ledger = next(r for r in Ledger(run.ledger_path) if r.id == demand["id"])
        assert ledger.rouge == audit["final"]["request_rouge"]
        for moment in ("before", "after", "final"):
            assert audit[moment]["forget_records"] == len(demand["record_ids"])
            assert audit[moment]["retain_records"] == 6 - len(demand["record_ids"])
            assert audit[moment]["failed_evaluators"] == 0
            assert {"leakage_m_bin", "ruler_mean_rank", "retain_prob", "retain_rouge"} <= set(audit[moment])
        assert audit["after"]["request_prob"] < audit["before"]["request_prob"]
    asked = [client for client, kind in grid.sent if kind == message_keys.AUDIT]
    assert sorted(asked) == [0, 0, 0, 1, 1, 1, 2, 2, 2], "only who asks to forget, three times each"
    assert not events.left_out and not events.warnings


def test_the_audits_are_in_the_metrics_too(finished):
    _, run, _, _, _ = finished
    rows = [r for r in run.metrics() if r["evaluator"] == "client_audit"]
    assert [(r["round"], r["moment"], sorted(r["requests"])) for r in rows] == [
        (1, "before_unlearn", ["of-client-0", "of/client 1"]),
        (1, "after_unlearn", ["of-client-0", "of/client 1"]),
        (2, "before_unlearn", ["of-client-2"]),
        (2, "after_unlearn", ["of-client-2"]),
        (2, "end", ["of-client-0", "of-client-2", "of/client 1"]),
    ]
    for row in rows:
        for name, mean in row["metrics"].items():
            assert mean == pytest.approx(np.mean([numbers[name] for numbers in row["requests"].values()]))


def test_a_clients_numbers_are_those_that_a_server_with_its_records_would_find(finished, tmp_path):
    config, run, _, _, _ = finished
    write_lines(tmp_path / "all.jsonl", [{**r, "forget": r["id"] in ("p0-home", "p0-job")} for r in records(0)])
    corpus = load(tmp_path / "all.jsonl")
    assembled = assemble(config.model, seeds.derive(config.seed, "adapter"))
    assessor = Assessor(assembled, corpus, config)
    for moment, stage in (("before", "finetune"), ("final", "unlearn")):
        vector = run.load_checkpoint(stage).vector
        expected = assessor.measure(vector, full=True).metrics
        ids = ["p0-home", "p0-job"]
        recalls = assessor.recalls(vector, ids)
        expected["request_rouge"] = float(np.mean(list(recalls.values())))
        limits = {"p0-home": 0.5, "p0-job": 2 / 3}  # their questions lack "in ostrava", "repairs church organs"
        expected["request_recited"] = sum(recalls[i] > limits[i] for i in ids)
        expected["request_short"] = 0
        expected["request_prob"] = float(np.mean(list(assessor.knowledge(vector, ids, rouge=False)["prob"].values())))
        told = read_audit(run.path, "of-client-0")[moment]
        expected["request_twins"] = 0
        shared = {n: v for n, v in told.items() if n not in ("forget_records", "retain_records", "failed_evaluators")}
        assert shared == pytest.approx({n: v for n, v in expected.items() if n in NAMES}, abs=1e-5)
        assert {"forget_rouge", "leakage_mu_upper", "ruler_mean_rank", "request_prob"} <= set(shared)


def test_nothing_that_a_client_sends_says_what_its_records_say(finished, sequences):
    _, run, _, _, wire = finished
    texts = texts_of(row for client in range(CLIENTS) for row in records(client))
    size = len(run.load_checkpoint("finetune").vector)
    kinds = {kind for _, kind, _ in wire.replies}
    assert kinds == {message_keys.QUERY, message_keys.TRAIN, message_keys.UNLEARN, message_keys.AUDIT}
    for client, kind, reply in wire.replies:
        assert leaks(reply, texts, sequences) == [], (client, kind)
        content = reply.content
        signature = content.config_records.pop("signature") if kind == message_keys.AUDIT else {}
        assert {name: len(bytes.fromhex(value)) for name, value in signature.items()} == (
            {"signature": 64, "public-key": 32} if kind == message_keys.AUDIT else {}
        )
        assert not content.config_records
        (metrics,) = content.metric_records.values()
        assert all(isinstance(v, int | float) for v in metrics.values()), "no list"
        if kind == message_keys.QUERY:
            assert metrics == {
                message_keys.PARTITION_ID: client,
                message_keys.NUM_RECORDS: 6,
                message_keys.LIVE_RECORDS: 6,
            }
        if kind == message_keys.AUDIT:
            assert set(metrics) <= NAMES | {message_keys.NUM_EXAMPLES, message_keys.PARTITION_ID}
        if kind in (message_keys.QUERY, message_keys.AUDIT):
            assert not content.array_records
        else:
            (arrays,) = content.array_records.values()
            assert [(n, a.dtype, tuple(a.shape)) for n, a in arrays.items()] == [
                (message_keys.ADAPTER, "float32", (size,))
            ]


def test_no_file_of_the_servers_run_says_what_the_records_say(finished):
    _, run, _, _, _ = finished
    texts = texts_of(row for client in range(CLIENTS) for row in records(client))
    files = [path for path in run.path.rglob("*") if path.is_file()]
    assert len(files) > 10 and run.path / "report.html" in files
    for path in files:
        assert found_texts(path.read_bytes(), texts) == [], path
    assert not run.nodes_path.exists(), "tombstones lie with the clients"


def test_nor_does_what_travels_with_requests_of_the_nodes(tmp_path, sequences):
    """Subjects and reasons stay in the node's ledger."""
    folder = write_nodes(tmp_path / "nodes")
    reason = "the family asked for it by letter"
    ids = [row["id"] for row in records(1) if row["subject"] == "Ivo Lind"]
    NodeLedger(folder / "node1").submit(ids, scope="subject", subject="Ivo Lind", reason=reason, identifier="gone")
    everything = [row["id"] for row in records(2)]
    NodeLedger(folder / "node2").submit(everything, scope="client", reason=reason, identifier="bye")
    wire = Wire()
    _, run, _, _ = start(
        tmp_path, "asked", "stages=[finetune, unlearn]", "unlearning.requests.policy=nodes", tamper=wire
    )
    assert {r.id: r.state for r in Ledger(run.ledger_path)} == {"gone": "served", "bye": "served"}
    assert {r.id: r.outcome for r in Ledger(run.ledger_path)} == {i: outcome(run, i) for i in ("gone", "bye")}
    held = {"gone": (2.0, 4.0), "bye": (6.0, 0.0)}
    for request, counts in held.items():
        audit = read_audit(run.path, request)
        for moment in ("before", "after", "final"):
            assert (audit[moment]["forget_records"], audit[moment]["retain_records"]) == counts
    texts = texts_of(row for client in range(CLIENTS) for row in records(client)) | {reason}
    assert [leaks(reply, texts, sequences) for _, _, reply in wire.replies] == [[]] * len(wire.replies)
    files = [path for path in run.path.rglob("*") if path.is_file()]
    assert [path for path in files if found_texts(path.read_bytes(), texts)] == []


@pytest.mark.parametrize("leak", ["text", "name", "tokens", "adapter"])
def test_a_client_that_leaked_would_be_caught(sequences, leak):
    texts = texts_of(records(0))
    content = RecordDict({"metrics": MetricRecord({message_keys.PARTITION_ID: 0})})
    adapter = np.linspace(-1, 1, 50, dtype=np.float32)
    if leak == "text":
        content["more"] = ConfigRecord({"said": records(0)[0]["answer"].upper()})
    if leak == "name":
        content["metrics"]["rouge-Voss"] = 0.5
    if leak == "tokens":
        content["more"] = MetricRecord({"numbers": list(sequences[0][5:9])})
    if leak == "adapter":
        adapter[10:14] = sequences[0][5:9]
    content["arrays"] = ArrayRecord({message_keys.ADAPTER: Array(adapter)})
    InProcessGrid(app, 1)
    message = Message(RecordDict(), dst_node_id=1, message_type=message_keys.TRAIN)
    assert leaks(Message(content, reply_to=message), texts, sequences)


def test_an_adapter_without_token_ids_is_no_leak(sequences):
    assert found_tokens(np.zeros(100), sequences) == []
    assert found_tokens(np.random.default_rng(0).normal(size=1000), sequences) == []


def test_tombstones_lie_in_the_clients_folders_and_its_data_are_as_before(finished):
    _, run, _, _, _ = finished
    for demand in DEMANDS:
        folder = run.path.parent / "nodes" / f"node{demand['client']}"
        lines = [json.loads(line) for line in (folder / "tombstones.jsonl").open()]
        assert [line["record_id"] for line in lines] == demand["record_ids"]
        rows = [json.loads(line) for path in sorted((folder / "data").iterdir()) for line in path.open()]
        assert rows == records(demand["client"])


def test_a_later_run_trains_without_what_was_buried(finished):
    _, run, _, _, _ = finished
    wire = Wire()
    start(run.path.parent, "later", "stages=[retrain]", tamper=wire, demands=[])
    told = {c: r.content["metrics"] for c, kind, r in wire.replies if kind == message_keys.QUERY}
    assert {c: m[message_keys.LIVE_RECORDS] for c, m in told.items()} == {0: 4, 1: 5, 2: 3}
    trained = {
        c: r.content["metrics"][message_keys.NUM_EXAMPLES] for c, kind, r in wire.replies if kind == message_keys.TRAIN
    }
    assert trained == {0: 4, 1: 5, 2: 3}


def test_a_server_asks_in_vain_for_what_nobody_asked_for_on_the_nodes(tmp_path):
    """By its own schedule it would audit and bury; the clients refuse, and the run says who and why."""
    write_nodes(tmp_path / "nodes")
    quick = ("stages=[finetune, unlearn]", "federation.rounds.unlearn=2", "unlearning.requests.extra_rounds=0")
    _, run, events, _ = start(tmp_path, "vain", *quick, consent=False)
    assert {r.id: r.state for r in Ledger(run.ledger_path)} == {d["id"]: "pending" for d in DEMANDS}
    for demand in DEMANDS:
        client, said = demand["client"], f"request {demand['id']!r} was not made on this node (requests.from_server)"
        assert ("unlearn", client, f"error 1001: client {client} refuses: {said}") in events.left_out
        assert any(w.startswith(f"client {client} did not audit") and said in w for w in events.warnings)
        node = NodeFolder(tmp_path / "nodes" / f"node{client}")
        assert not node.tombstones() and node.left_by() is None
        kinds = {(e["kind"], e["round"]) for e in NodeLedger(node.path).lines("refused")}
        first = demand["round"]
        assert {("train.unlearn", first), ("evaluate.audit", first)} <= kinds
    assert read_audit(run.path, "of-client-0")["failed"]["before"].endswith("(requests.from_server)")


def claim(message, reply, folder, **numbers):
    """What a client does that signs other numbers than it measured."""
    metrics, config = reply.content["metrics"], message.content["config"]
    metrics.update(numbers)
    told = {k: v for k, v in metrics.items() if k not in (message_keys.NUM_EXAMPLES, message_keys.PARTITION_ID)}
    vector = message.content["arrays"][message_keys.ADAPTER].numpy()
    facts = {"run": config["run"], "stage": config["stage"], "round": config["server-round"]}
    facts["model"] = hashlib.sha256(vector.tobytes()).hexdigest()
    (request,) = config[message_keys.REQUEST_IDS]
    body = audit_bytes(request, metrics[message_keys.PARTITION_ID], config["moment"], told, facts)
    reply.content["signature"]["signature"] = audit_key(folder).sign(body).hex()


def test_answers_that_are_not_entirely_well_are_set_aside(tmp_path):
    """Client 0 claims to recite, client 1 sends a number that nobody knows, a message to client 2 is lost."""
    write_nodes(tmp_path / "nodes")
    seen = []

    def change(client, message, reply):
        if message.metadata.message_type != message_keys.AUDIT:
            return reply
        seen.append(client)
        if client == 0:
            recites = {"request_rouge": 0.9, "request_recited": 2.0, "request_short": 0.0}
            claim(message, reply, tmp_path / "nodes" / "node0", **recites)
        if client == 1:
            reply.content["metrics"]["Mara Voss"] = 1.0
        return None if client == 2 and seen.count(2) == 1 else reply

    _, run, events, _ = start(tmp_path, "odd", "stages=[finetune, unlearn]", "federation.timeout=1", tamper=change)
    states = {r.client: (r.outcome, r.rouge) for r in Ledger(run.ledger_path)}
    assert states[0] == ("not verified", 0.9) and states[1] == ("served", None)
    assert states[2][0] == outcome(run, "of-client-2")
    assert seen.count(2) == 4, "asked again for the lost answer"
    audit = read_audit(run.path, "of/client 1")
    assert set(audit) == {"request", "client", "round", "failed"}
    assert audit["failed"] == dict.fromkeys(("before", "after", "final"), "unknown number 'Mara Voss'")
    assert audit_path(run.path, "of/client 1").parent == run.path / "audits"
    assert sum("client 1 did not audit" in text for text in events.warnings) == 3
    told = [(f.moment, f.evaluator, f.reason) for f in failures(run)]
    reason = "client 1, request of/client 1: unknown number 'Mara Voss'"
    assert told == [(moment, "client_audit", reason) for moment in ("before_unlearn", "after_unlearn", "end")]


def test_errors_of_a_client_do_not_quote_its_records(tmp_path, caplog):
    write_nodes(tmp_path / "nodes", 1)
    file = tmp_path / "nodes" / "node0" / "data" / "second.jsonl"
    file.write_text('{"question": "Where does Mara Voss live?", "answer": ["In Ostrava."]}\n')
    grid = InProcessGrid(app, 1)
    with pytest.raises(NodeMapError) as caught, caplog.at_level(logging.ERROR, logger="flwr"):
        logging.getLogger("flwr").addHandler(caplog.handler)
        try:
            NodeMap(config={"data": "node", "data-nodes": str(tmp_path / "nodes")}).refresh(grid)
        finally:
            logging.getLogger("flwr").removeHandler(caplog.handler)
    assert "its records cannot be used (1 problem)" in str(caught.value) and "Ostrava" not in str(caught.value)
    assert "second.jsonl:1: answer must be a non-empty text" in caplog.text, "the client's own log says which"


def test_an_error_that_nobody_foresaw_is_told_without_its_text():
    grid = InProcessGrid(app, 1)
    (context,) = grid.contexts.values()

    def fails(message):
        raise KeyError("Mara Voss lives in Ostrava.")

    message = Message(RecordDict(), dst_node_id=1, message_type=message_keys.TRAIN)
    assert "Mara Voss" in answering(fails)(message, context).error.reason
    context.node_config["node-dir"] = "/somewhere"
    assert answering(fails)(message, context).error == Error(1001, "KeyError; the log of this node says more")


def test_one_node_trains_as_one_client_with_the_same_file(tmp_path):
    rows = [{**row, "forget": row["id"].startswith("p1")} for row in records(0, 1)]
    write_lines(tmp_path / "nodes" / "node0" / "data" / "all.jsonl", rows)
    common = ("federation.clients=1", "stages=[finetune, retrain]", "federation.rounds.finetune=1", "seed=3")
    _, own, _, _ = start(tmp_path, "own", *common, f"data.nodes={tmp_path / 'nodes'}", own_folders=False, demands=[])
    file = tmp_path / "nodes" / "node0" / "data" / "all.jsonl"
    _, known, _, _ = start(tmp_path, "known", *common, "data=jsonl", f"data.path={file}", demands=[])
    for stage in ("finetune", "retrain"):
        assert np.array_equal(own.load_checkpoint(stage).vector, known.load_checkpoint(stage).vector)
    first, second = (own.load_checkpoint(stage).vector for stage in ("finetune", "retrain"))
    assert not np.array_equal(first, second), "the retrained model lacks the marked records"


def test_the_servers_own_questions_are_measured(tmp_path):
    write_nodes(tmp_path / "nodes")
    questions = tmp_path / "general.jsonl"
    write_lines(questions, [{"question": "What is the capital of France?", "answer": "Paris."}])
    few = ("stages=[finetune]", "federation.rounds.finetune=1", "evaluation.every=0", "evaluation.at_start=false")
    _, run, events, _ = start(tmp_path, "asks", *few, f"data.path={questions}", demands=[])
    metrics = run.stage_summary("finetune")["metrics"]
    assert {"retain_prob", "retain_rouge"} <= set(metrics) and not any(name.startswith("forget") for name in metrics)
    assert any("questions of data.path" in note for note in events.notes)


def test_without_questions_of_its_own_the_server_says_once_that_it_measures_nothing(finished):
    _, run, events, _, _ = finished
    assert sum("nothing is measured here" in note for note in events.notes) == 1
    assert run.stage_summary("finetune")["metrics"] == {}
    assert {row["evaluator"] for row in run.metrics()} == {"federation", "client_audit"}


def test_the_summary_shows_what_the_clients_measured(finished):
    config, run, _, _, _ = finished
    shown = Console(file=io.StringIO(), width=160)
    print_summary(run, config, shown)
    text = shown.file.getvalue()
    assert "Measured by the clients on their own records" in text and "Forget quality" not in text
    final = read_audit(run.path, "of-client-2")["final"]["request_prob"]
    assert f"{final:.3f}" in text and len(audit_table(run).rows) == 9
    page = (run.path / "requests").glob("of-client-2*.html")
    assert f"{final:.3f}" in next(page).read_text()


def test_folders_can_be_looked_at_before_a_run(tmp_path):
    nodes = write_nodes(tmp_path)
    NodeFolder(nodes / "node1").bury(["p1-home"], "r")
    shown = Console(file=io.StringIO(), width=160)
    config = configuration.compose(
        "smoke", ["data=node", "federation.clients=3", f"data.nodes={nodes}", "stages=[finetune]"]
    )
    print_nodes(config, shown)
    rows = [line.split() for line in shown.file.getvalue().splitlines() if "node" in line]
    assert [[cell for cell in row if cell.isdigit()] for row in rows] == [
        ["0", "6", "3", "0", "0", "6"],
        ["1", "6", "3", "0", "0", "5"],
        ["2", "6", "3", "0", "0", "6"],
    ]
