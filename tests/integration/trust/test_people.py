"""Whose record is it? A person's name in many spellings, records that come back, and what a reader of answers sees."""

import json
import logging
import threading

import pytest
from support.commands import call
from support.inprocess import InProcessGrid
from support.nodes import records, write_lines, write_nodes
from support.stages import Recorded

from evaluation.metrics.rouge import rouge_l
from oblivionis.client.app import app
from oblivionis.config import compose as configuration
from oblivionis.data.records import Record
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.ledger_check import check_ledgers
from oblivionis.erasure.node_folder import NodeFolder
from oblivionis.erasure.node_ledger import EXCHANGED, NodeLedger
from oblivionis.measures.recitation import recall
from oblivionis.runs.directory import RunDirectory
from oblivionis.server.app import serve
from strategies import message_keys

CERTAIN = {
    "normal forms": ("Jos\u00e9 M\u00fcller", ["Jose\u0301 Mu\u0308ller", "JOS\u00c9 M\u00dcLLER"]),
    "Greek capitals": ("\u039c\u03b1\u0390\u03bf\u03c5", ["\u039c\u0391\u03aa\u0301\u039f\u03a5"]),
    "full width": ("Mara Voss", ["\uff2d\uff41\uff52\uff41 \uff36\uff4f\uff53\uff53"]),
    "unseen": ("Mara Voss", ["Mara\u200b Voss", "Ma\u00adra Voss", "\ufeffMara Voss", "\u200eMara Voss\u200f"]),
    "apostrophes": ("O'Brien", ["O\u2019Brien", "O\u02bcBrien"]),
    "hyphens": ("Anne-Marie", ["Anne\u2011Marie", "Anne\u2013Marie"]),
    "Arabic": (
        "\u0645\u062d\u0645\u062f",
        ["\u0645\u064f\u062d\u064e\u0645\u0651\u064e\u062f", "\u0645\u062d\u0640\u0645\u062f"],
    ),
    "Hebrew": ("\u05e9\u05dc\u05d5\u05dd", ["\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd"]),
    "yeh": ("\u0639\u0644\u064a", ["\u0639\u0644\u06cc"]),
}
UNCERTAIN = {
    "dotted and dotless I": ("\u0130pek", ["IPEK", "\u0131pek"]),
    "capitals without accents": (
        "\u0393\u03b9\u03ce\u03c1\u03b3\u03bf\u03c2",
        ["\u0393\u0399\u03a9\u03a1\u0393\u039f\u03a3"],
    ),
    "other letters": ("Mara Voss", ["\u041c\u0430ra Voss"]),
    "another order": ("Mara Voss", ["Voss, Mara", "Voss Mara"]),
    "a space more or less": ("O'Brien", ["O\u02bc Brien", "OBrien"]),
    "a longer name": ("Mara Voss", ["Dr. Mara Voss"]),
}


def folder_of(tmp_path, *subjects, **texts):
    """A node's folder with a record about each subject, and one without a subject for each text."""
    rows = [
        {"id": f"r{i}", "subject": s, "question": f"Question {i}?", "answer": f"Answer number {i}."}
        for i, s in enumerate(subjects)
    ]
    rows += [{"id": name, "question": text, "answer": "It is so."} for name, text in texts.items()]
    rows.append({"id": "else", "subject": "Somebody Else", "question": "Who is it?", "answer": "Nobody that matters."})
    write_lines(tmp_path / "data" / "a.jsonl", rows)
    return tmp_path


def ask(folder, *arguments, code=0):
    result = call("request", "submit", "--node-dir", folder, "--reason", "by letter", *arguments)
    assert result.code == code, result.err
    assert "Traceback" not in result.err
    return result


@pytest.mark.parametrize("kind", CERTAIN)
def test_every_spelling_of_a_name_is_found(kind, tmp_path):
    name, spellings = CERTAIN[kind]
    folder = folder_of(tmp_path, name, *spellings)
    ask(folder, "--subject", name)
    (request,) = NodeLedger(folder).requests()
    assert request.record_ids == tuple(f"r{i}" for i in range(len(spellings) + 1))


@pytest.mark.parametrize("kind", UNCERTAIN)
def test_who_is_only_named_alike_is_never_decided_silently(kind, tmp_path):
    name, spellings = UNCERTAIN[kind]
    folder = folder_of(tmp_path, name, *spellings)
    said = ask(folder, "--subject", name, code=2).err
    assert f"named alike: {len(spellings)} record{'s' * (len(spellings) > 1)} (r1, subject" in said
    assert said.count("\n") == 1 and not NodeLedger(folder).path.exists(), "one line, and nothing asked for"
    ask(folder, "--subject", name, "--include", "r1", "--exclude", "all")
    (request,) = NodeLedger(folder).requests()
    assert (request.record_ids, request.included) == (("r0", "r1"), ("r1",))
    (line,) = NodeLedger(folder).lines("submitted")
    assert line["included"] == ["r1"] and line.get("excluded", []) == [f"r{i}" for i in range(2, len(spellings) + 1)]


def test_a_record_without_a_subject_whose_text_names_the_person_is_shown(tmp_path):
    folder = folder_of(tmp_path, "Mara Voss", t="What is Mara Voss treated for?")
    assert "t, in its text" in ask(folder, "--subject", "Mara Voss", code=2).err
    place = ["data=records", f"data.path={folder / 'data' / 'a.jsonl'}", "federation.clients=1"]
    described = call("data", "describe", *place, "--subject", "Mara Voss")
    assert described.code == 0 and "named alike: 1 record" in described.out and "in its text" in described.out


@pytest.mark.parametrize("text", ["What is she treated for?", "What is Marrie treated for?", "Is Mara Vosz ill?"])
def test_who_is_meant_by_a_pronoun_a_nickname_or_a_slip_nobody_sees(text, tmp_path):
    """And nothing says that the records named are all that there are."""
    folder = folder_of(tmp_path, "Mara Voss", t=text)
    said = ask(folder, "--subject", "Mara Voss").out
    (request,) = NodeLedger(folder).requests()
    assert request.record_ids == ("r0",) and "1 record, entered into" in said and "all" not in said.split()


def test_a_schedule_about_a_person_says_who_is_meant(tmp_path):
    file = folder_of(tmp_path, "Mara Voss", "Voss, Mara") / "data" / "a.jsonl"
    line = {"round": 1, "subject": "Mara Voss"}
    place = ["data=records", f"data.path={file}", f"output={tmp_path}", "name=x", "federation.clients=1"]
    place += ["unlearning.requests.policy=file", f"unlearning.requests.file={tmp_path / 'requests.jsonl'}"]
    write_lines(tmp_path / "requests.jsonl", [line])
    result = call("simulate", "smoke", *place)
    assert result.code == 2 and "requests.jsonl:1: named alike: 1 record (r1, subject 'Voss, Mara')" in result.err
    assert not (tmp_path / "x").exists()


# -- a run on nodes whose records change meanwhile -------------------------------------------------------------------

ROUNDS = 4
UNNAMED = {
    "subject": "Mara Voss",
    "question": "What is Mara Voss treated for?",
    "answer": "Asthma, with a blue inhaler.",
}
LATER = {"id": "later", "subject": "MARA\u200b VOSS", "question": "Who is her doctor?", "answer": "Lena Odum of Accra."}
COPY = {"id": "copy", **UNNAMED, "answer": "asthma with a blue inhaler"}
NEARLY = {
    "id": "near",
    "subject": "Lot 7",
    "question": "What is it treated for?",
    "answer": "Asthma, with a blue old inhaler.",
}


class Trained:
    """By round and client of the stage unlearn how many records a client trained on."""

    def __init__(self):
        self.round, self.counts = 0, {}

    def __call__(self, client, message, reply):
        if (
            message.metadata.message_type == message_keys.TRAIN
            and message.content.config_records[message_keys.CONFIG]["stage"] == "unlearn"
        ):
            numbers = reply.content.metric_records[message_keys.METRICS]
            self.counts[message.content.config_records[message_keys.CONFIG][message_keys.SERVER_ROUND], client] = (
                numbers[message_keys.NUM_EXAMPLES]
            )
        return reply


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """Client 0 asks for all about Mara Voss. After the first round her records come back, to it and to client 1; after
    the third the demand is withdrawn."""
    folder = tmp_path_factory.mktemp("people")
    nodes = write_nodes(folder / "nodes")
    own, other = (nodes / f"node{client}" for client in (0, 1))
    write_lines(own / "data" / "more.jsonl", [UNNAMED])
    ask(own, "--subject", "Mara Voss", "--id", "art17")

    def come_back():
        write_lines(own / "data" / "more.jsonl", [{**UNNAMED, "answer": UNNAMED["answer"] + " "}, LATER, COPY, NEARLY])
        write_lines(other / "data" / "more.jsonl", [UNNAMED])

    def withdraw():
        assert call("request", "withdraw", "--node-dir", own, "art17").code == 0

    settings = ["data=node", "federation.clients=3", f"output={folder}", "name=run", "stages=[finetune,unlearn]"]
    settings += ["unlearning.requests.policy=nodes", "federation.rounds.finetune=1", "federation.fraction_train=1.0"]
    settings += [f"federation.rounds.unlearn={ROUNDS}", "evaluation.every=0", "evaluation.rebound.enabled=false"]
    config = configuration.compose("smoke", settings)
    run = RunDirectory.create(folder, "run")
    run.write_config(configuration.to_yaml(config))
    wire, events = Trained(), Recorded()
    acts = {2: come_back, 4: withdraw}

    def round_started(number):
        if events.stage == "unlearn":
            acts.pop(number, lambda: None)()

    events.round_started = round_started
    grid = InProcessGrid(app, 3, wire)
    for context in grid.contexts.values():
        context.node_config["node-dir"] = str(nodes / f"node{context.node_config['partition-id']}")
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("flwr").addHandler(handler)
    try:
        serve(config, grid, run, events, threading.Event())
    finally:
        logging.getLogger("flwr").removeHandler(handler)
    return run, nodes, wire.counts, lines


def test_what_comes_back_is_not_trained_on_while_the_demand_stands(changed):
    _, nodes, counts, _ = changed
    of_client_0 = [counts[number, 0] for number in range(1, ROUNDS + 1)]
    live = len(records(0)) - 2
    assert of_client_0 == [live, live + 1, live + 1, live + 2], (
        "the near copy, and after the withdrawal the later record"
    )
    ledger = NodeLedger(nodes / "node0")
    (request,) = ledger.requests()
    assert len(request.record_ids) == 3 and request.withdrawn and not request.held_back
    assert NodeFolder(nodes / "node0").buried()["copy"] == "art17"
    assert set(request.record_ids) <= NodeFolder(nodes / "node0").tombstones()


def test_it_is_told_in_the_log_of_the_node_and_stands_in_its_ledger(changed):
    run, nodes, _, lines = changed
    said = "\n".join(lines)
    assert said.count("1 record (copy): buried, they say what records say that request art17 asked for") == 1
    assert said.count("1 record (later): held back from training, request art17 about this person stands") == 1
    assert said.count("1 record (near): trained on, and nearly the same as records that were asked for") == 1
    asked = [line["asked"] for line in NodeLedger(nodes / "node0").exchanges() if line["event"] == EXCHANGED]
    assert any("later" in ids for ids in asked) and "later" not in asked[-1], "an audit withholds what was withheld"
    folders = [nodes / f"node{client}" for client in range(3)]
    assert all(not faults for _, faults in check_ledgers([run.path], folders))


def test_neither_names_nor_what_is_held_back_reach_the_server(changed):
    run, *_ = changed
    text = run.ledger_path.read_text()
    assert "Voss" not in text and "later" not in json.dumps([r.record_ids for r in Ledger(run.ledger_path)])


def test_another_client_knows_nothing_of_the_demand_and_trains_on_her_record(changed):
    """That is what can be known there: nothing. The client that asked is told so when it asks."""
    _, nodes, counts, _ = changed
    before, after = counts[1, 1], counts[2, 1]
    assert after == before + 1 and not NodeLedger(nodes / "node1").requests()
    assert "other clients know nothing of it" in ask(nodes / "node1", "--subject", "Mara Voss").out


# -- what a reader sees -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", ["\u200d", "\u200b", "\u00ad", "\u2060", "\ufe0f", "\U000e0061"])
def test_an_answer_with_unseen_characters_is_recited(hidden):
    truth = "Mara Voss is treated for asthma with a blue inhaler."
    assert recall([hidden.join(truth)], [Record("r", "What?", truth, "Mara Voss")]) == [1.0]


def test_letters_of_another_script_hide_what_is_recited():
    """To a reader the answer is the record; no word of it is."""
    truth = "Mara Voss has asthma."
    said = truth.translate(str.maketrans("aoe", "\u0430\u043e\u0435"))
    assert recall([said], [Record("r", "What?", truth, "Mara Voss")]) == [0.0]


def test_the_papers_columns_see_neither():
    """ROUGE as rouge-score computes it: a word with an unseen character, or with another letter, is another word."""
    truth = "Mara Voss has asthma."
    for said in ("\u200b".join(truth), truth.translate(str.maketrans("aoe", "\u0430\u043e\u0435"))):
        assert rouge_l([said], truth).recall[0] < 0.5
