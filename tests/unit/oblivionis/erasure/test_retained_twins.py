"""What of the records to forget stays in others, by request and for the retrained model; what a node is told of it."""

from dataclasses import replace

import pytest
from support.commands import call
from support.nodes import write_lines

from oblivionis.data.datasets import fictitious
from oblivionis.data.twins import WORD_FOR_WORD, Twin
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.node_record_files import read_node, read_references
from oblivionis.erasure.request import Request
from oblivionis.erasure.retained_twins import (
    Twins,
    note_twins,
    oracle_as_text,
    read_twins,
    scheduled_in_words,
    twins_of_requests,
)
from oblivionis.erasure.verification_evidence import (
    RETRAINED,
    Exchange,
    ExchangeCounts,
    Likelihood,
    RecordEvidence,
    RequestCounts,
    RequestRecords,
)
from oblivionis.erasure.verification_rules import INCONCLUSIVE, NOT_VERIFIED, VERIFIED, Thresholds
from oblivionis.runs.directory import RunDirectory

GONE = RecordEvidence(8, 0.0, 1.0, 0.1, (Exchange(1.0, 0.0, 0.9, Likelihood(0.1)),))


@pytest.fixture
def corpus():
    """The last author is to be forgotten; one record of theirs, and one of the first author, lie there twice."""
    made = fictitious.corpus(authors=6, questions_per_author=4, forget_authors=1)
    mine, other = made.evaluation["forget"][0], made.train[0]
    copies = replace(mine, id="copy", answer=mine.answer.upper()), replace(other, id="other-copy")
    return replace(made, train=(*made.train, *copies)), mine.id, other.id


def test_what_stays_and_what_the_retrained_model_has_seen(corpus):
    data, mine, other = corpus
    assert twins_of_requests(data, data.forget_ids) == ({mine: ["copy"]}, frozenset({mine}))
    # The copy is asked for in a run whose retrained model trained on it.
    assert twins_of_requests(data, {*data.forget_ids, "copy"}) == ({}, frozenset({mine, "copy"}))
    # Nobody retrained without these.
    assert twins_of_requests(data, {other}) == ({other: ["other-copy"]}, frozenset({other}))
    assert twins_of_requests(replace(data, forget_ids=data.forget_ids | {"copy"}), data.forget_ids) == (
        {mine: ["copy"]},
        frozenset(),
    )


def test_a_schedule_says_beforehand_which_of_its_requests_leave_twins(corpus):
    data, mine, other = corpus
    asks = [
        Request("one", 0, (mine, data.train[5].id), 1),
        Request("two", 1, (other,), 1),
        Request("none", 1, ("x",), 1),
    ]
    assert scheduled_in_words(data, asks) == (
        "one: 1 of its records is also held by records that stay; two: 1 of its records is also held by records that "
        "stay, word for word or nearly: these requests cannot be verified"
    )
    asked_too = [*asks[1:], Request("copies", 0, ("copy", "other-copy", mine), 2)]
    assert scheduled_in_words(data, asked_too) == "" == scheduled_in_words(data, [])
    many = [Request(f"r{i}", i, (other,), 1) for i in range(5)]
    assert scheduled_in_words(data, many).count("1 of its records") == 3
    assert "; and 2 more, word for word or nearly" in scheduled_in_words(data, many)


def test_the_run_keeps_what_sentences_go_by(corpus, tmp_path):
    data, mine, _ = corpus
    run = RunDirectory.create(tmp_path, "one")
    assert read_twins(run) is None and oracle_as_text(run) == "the retrained model", "an earlier version's run"
    found = note_twins(run, data)
    assert read_twins(run) == found and found.pairs == (Twin(mine, "copy", WORD_FOR_WORD, 1.0),)
    assert oracle_as_text(run) == "the retrained model, which was trained on twins of 1 of the 4 records"
    note_twins(run, fictitious.corpus())
    assert oracle_as_text(run) == "a model that never saw them" and oracle_as_text(run, "one") == "one"


def test_the_sentence_counts_records_and_shows_the_first_pairs():
    pairs = tuple(Twin(f"q{i}", f"k{i}", WORD_FOR_WORD, 1.0) for i in range(5))
    assert Twins(9, pairs).sentence() == (
        "5 records to forget are also held, word for word, by records that stay (q0 = k0, q1 = k1, q2 = k2, …)"
    )
    near = (Twin("a", "b", "nearly", 0.6), Twin("a", "c", "nearly", 0.56))
    assert Twins(9, near).sentence() == (
        "1 record to forget is also held, nearly word for word, by records that stay (a = b)"
    )
    assert Twins(9, ()).sentence() == Twins(9, ()).warning() == ""


def test_a_request_with_twins_is_inconclusive_unless_it_is_recited():
    thresholds, both = Thresholds(0.5, 1.0, 0.5), {"a": GONE, "b": GONE}
    assert thresholds.judge(RequestRecords(both)).outcome == VERIFIED
    held = thresholds.judge(RequestRecords(both, twins=1))
    assert (held.outcome, held.why) == (INCONCLUSIVE, "1 of its records is also held by records that stay")
    for prob, outcome in ((0.01, INCONCLUSIVE), (0.9, NOT_VERIFIED)):
        beside = replace(GONE, likelihood=Likelihood(prob, 0.2, RETRAINED))
        assert thresholds.judge(RequestRecords(dict.fromkeys("abcdefg", beside), twins=2)).outcome == outcome
    # Whatever the retrained model says of a record that it has seen.
    recited = {"a": GONE, "b": replace(GONE, final=0.9, oracle=None)}
    assert thresholds.judge(RequestRecords(recited, twins=1)).outcome == NOT_VERIFIED
    ended = ExchangeCounts(before=2, after=0)
    assert thresholds.judge(RequestCounts(2, 0, ended)).outcome == VERIFIED
    assert thresholds.judge(RequestCounts(2, 1, ended, twins=2)).outcome == NOT_VERIFIED
    held = thresholds.judge(RequestCounts(2, 0, ended, twins=2))
    assert (held.outcome, held.why) == (INCONCLUSIVE, "2 of its records are also held by records that stay")


ROWS = [
    {
        "id": "home",
        "subject": "Ivo Lind",
        "question": "Where does Ivo Lind live?",
        "answer": "In a red house in Turku.",
    },
    {"id": "job", "subject": "Ivo Lind", "question": "What does Ivo Lind do?", "answer": "He breeds quick sled dogs."},
    {"id": "note", "subject": "file 7", "question": "where does IVO LIND live", "answer": "In a red house, in Turku!"},
    {"id": "other", "subject": "Ada Roy", "question": "What does Ada Roy do?", "answer": "She restores torn old maps."},
]


def submitted(node, *more):
    return call("request", "submit", "--node-dir", node, "--ids", "home", "--reason", "asked by letter", *more)


def test_a_node_asks_for_the_twins_too(tmp_path):
    write_lines(tmp_path / "data" / "a.jsonl", ROWS)
    found = submitted(tmp_path)
    assert found.code == 0 and "warning: 1 of its records is also held by records that stay" in found.out
    assert "--with-twins" in found.out
    again = submitted(tmp_path, "--with-twins")
    assert again.code == 0 and "warning" not in again.out and "1 of them because they say" in again.out
    assert [r.record_ids for r in NodeLedger(tmp_path).requests()] == [("home",), ("note",)]


def test_a_node_that_keeps_no_twin_is_not_warned(tmp_path):
    write_lines(tmp_path / "data" / "a.jsonl", [row for row in ROWS if row["id"] != "note"])
    assert "warning" not in submitted(tmp_path, "--with-twins").out


def test_references_that_are_trained_on_are_left_out(tmp_path, caplog):
    write_lines(tmp_path / "references.jsonl", [{**ROWS[2], "id": "known"}, {**ROWS[3], "id": "new"}])
    write_lines(tmp_path / "data" / "a.jsonl", ROWS[:2])
    trained = read_node(tmp_path).records
    assert [r.id for r in read_references(tmp_path, trained)] == ["new"]
    assert "references: 1 left out, since records that are trained on say the same" in caplog.text
