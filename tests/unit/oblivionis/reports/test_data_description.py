"""What `oblivionis data` prints of the data, from small corpora made by hand."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from oblivionis.config import compose as configuration
from oblivionis.data.partition import Partition
from oblivionis.data.records import Corpus, Record
from oblivionis.data.subjects import Alike, Subjects
from oblivionis.errors import OblivionisError
from oblivionis.reports import data_description

NAMES = ("Mara", "Ivo", "Mara", "Ada", "Ada")


def corpus(answers=("one two three four",) * 5):
    train = [Record(f"r{i}", f"Q{i}?", f"{a} {i}", s) for i, (s, a) in enumerate(zip(NAMES, answers, strict=True))]
    asked = {"forget": tuple(train[:1]), "real_authors": tuple(train[:3])}
    return Corpus("made", tuple(train), frozenset({"r0", "r1"}), asked)


def shares(corpus, *clients):
    return Partition(clients, tuple(tuple(corpus.train[i].id for i in own) for own in clients))


def printed(show, *given):
    out = io.StringIO()
    show(*given, Console(file=out, width=100))
    return [" ".join(line.replace("│", " ").replace("┃", " ").split()) for line in out.getvalue().splitlines()]


def test_sizes_and_who_holds_how_much():
    made = corpus()
    lines = printed(data_description.print_data, made, shares(made, (0, 2), (1, 3), (4,)))
    for line in (
        "training records 5",
        "of these to forget 2 (40.0%)",
        "subjects 3",
        "questions forget 1",
        "questions real authors 3",
        "data made",
        "3 clients, 2 of them with records to forget",
        "client records subjects to forget",
        "0 2 1 1",
        "1 2 2 1",
        "2 1 1 ·",
    ):
        assert line in lines, line


@pytest.mark.parametrize("clients", [40, 41])
def test_of_many_clients_there_is_the_spread(monkeypatch, clients):
    train = tuple(Record(f"r{i}", f"Q{i}?", f"a b c {i}", f"S{i}") for i in range(clients + 2))
    made = Corpus("made", train, frozenset({"r0"}))
    own = [(0, 1, 2), *((i,) for i in range(3, clients + 2))]
    lines = printed(data_description.print_data, made, shares(made, *own))
    if clients == 40:
        assert "39 1 1 ·" in lines and "client records subjects to forget" in lines
    else:
        assert "per client least median most" in lines and "39 1 1 ·" not in lines
        assert "records 1 1 3" in lines and "subjects 1 1 3" in lines and "to forget 0 0 1" in lines


def test_records_that_say_what_others_say_come_first():
    made = corpus()
    twin = Record("r5", made.train[0].question, made.train[0].answer, "Zoe")
    more = Corpus("made", (*made.train, twin), made.forget_ids)
    (warned,) = data_description.repeated(more)
    assert "r0" in warned or "1 " in warned
    assert any(
        line.startswith(warned[:40])
        for line in printed(data_description.print_data, more, shares(more, tuple(range(6))))
    )
    assert data_description.repeated(corpus()) == []


@pytest.mark.parametrize(("rule", "said"), [("error", "a run refuses them"), ("truncate", "their ends are cut off")])
def test_texts_too_long_and_answers_too_short(rule, said):
    made = corpus(("one two three four", "word " * 400, "yes", "no", "."))
    config = configuration.compose("smoke", [f"model.on_overflow={rule}", "model.max_length=64"])
    lines = data_description.unfit(made, config)
    assert lines[0] == f"1 text longer than model.max_length=64 tokens; {said}:"
    assert "r1" in lines[1] and len(lines) == 3
    assert lines[2] == (
        "1 record cannot be verified by recitation, the answer has fewer than 2 measurable units: ids r4"
    )
    assert printed(lambda console: data_description.print_unfit(made, config, console)) == [
        line.strip() for line in lines
    ]
    assert data_description.unfit(corpus(), config) == []


@pytest.mark.parametrize(("count", "last"), [(20, "x19"), (21, "… and 1 more")])
def test_no_more_than_twenty_are_named(count, last):
    named = data_description.some([f"x{i}" for i in range(count)])
    assert named[:20] == [f"x{i}" for i in range(20)] and named[-1] == last


def test_subjects_and_who_holds_their_records():
    made = corpus()
    subjects = Subjects.of(made, shares(made, (0, 3), (1, 2), (4,)))
    assert printed(data_description.print_subjects, subjects) == [
        "subject records clients",
        "Mara 2 0, 1",
        "Ivo 1 1",
        "Ada 2 0, 2",
    ]
    found = data_description.find_subject(subjects, "mara")
    shown = ["Mara: 2 records on 2 clients", "client records", "0 r0", "1 r2"]
    assert printed(data_description.print_subject, found, []) == shown
    assert printed(data_description.print_subject, found, [Alike(2, "r9", "in its text")]) == [
        *shown,
        "named alike: 1 record; a request says of each whether it is about Mara",
        "client record named alike",
        "2 r9 in its text",
    ]
    ivo = data_description.find_subject(subjects, "Ivo")
    assert printed(data_description.print_subject, ivo, [])[0] == "Ivo: 1 record on 1 client"
    with pytest.raises(OblivionisError, match=r"^--subject: "):
        data_description.find_subject(subjects, "Nobody")


def test_every_line_on_the_data():
    out = io.StringIO()
    made = corpus()
    data_description.print_data(made, shares(made, (0, 2), (1, 3, 4)), Console(file=out, width=60))
    assert out.getvalue().splitlines() == [
        "data made",
        "┌────────────────────────┬───────────┐",
        "│ training records       │         5 │",
        "│   of these to forget   │ 2 (40.0%) │",
        "│ subjects               │         3 │",
        "│ questions forget       │         1 │",
        "│ questions real authors │         3 │",
        "└────────────────────────┴───────────┘",
        "2 clients, 2 of them with records to forget",
        "┏━━━━━━━━┳━━━━━━━━━┳━━━━━━━━━━┳━━━━━━━━━━━┓",
        "┃ client ┃ records ┃ subjects ┃ to forget ┃",
        "┡━━━━━━━━╇━━━━━━━━━╇━━━━━━━━━━╇━━━━━━━━━━━┩",
        "│      0 │       2 │        1 │         1 │",
        "│      1 │       3 │        2 │         1 │",
        "└────────┴─────────┴──────────┴───────────┘",
    ]


def test_questions_of_multiple_choice_are_counted_apart():
    made = replace(corpus(), choices={"facts": (1, 2, 3, 4)})
    assert "multiple choice facts 4" in printed(data_description.print_data, made, shares(made, tuple(range(5))))


def test_texts_are_not_too_short_to_be_recited():
    """Of texts there are no answers."""
    made = Corpus("made", (Record("r0", "", "one", "S"),), frozenset())
    of_text = Corpus("made", (Record("r0", "", "one", "S", tokens=(1, 2)),), frozenset())
    config = configuration.compose("smoke")
    assert [c.is_text for c in (made, of_text)] == [False, True]
    assert data_description.unfit(made, config) != [] == data_description.unfit(of_text, config)


def test_columns_of_subjects_stand_under_their_headings():
    made = corpus()
    subjects = Subjects.of(made, shares(made, (0, 3), (1, 2), (4,)))
    out = io.StringIO()
    data_description.print_subjects(subjects, Console(file=out, width=60))
    data_description.print_subject(data_description.find_subject(subjects, "Mara"), [], Console(file=out, width=60))
    assert [line.rstrip() for line in out.getvalue().splitlines()] == [
        *(" subject  records  clients", " Mara           2  0, 1", " Ivo            1  1", " Ada            2  0, 2"),
        *("Mara: 2 records on 2 clients", " client  records", "      0  r0", "      1  r2"),
    ]


def test_without_the_model_the_length_of_the_records_is_not_known():
    config = configuration.compose("smoke")
    config.model.source = "/nowhere/model"
    (line,) = data_description.unfit(corpus(("word " * 400, *["one two three four"] * 4)), config)
    assert line.startswith("How long the records are in tokens is not known: ") and "/nowhere/model" in line
