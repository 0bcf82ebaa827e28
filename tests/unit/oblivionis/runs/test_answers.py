"""The answers in a per-question log, and questions without their chat template."""

import pytest
from support.reports import log_of

from oblivionis.runs.answers import Answer, answers, bare


def test_answers_by_record_id_else_by_number():
    log = log_of("unlearn")
    found = answers(log, "forget")
    assert list(found) == [f"eval_log_forget-{i}" for i in range(4)]
    first = ("Question: Where does Ann live?\nAnswer:", " unlearn says: They live in Vell.", "Ann lives in Ost.")
    assert found["eval_log_forget-0"] == Answer(*first)
    del log["ids"]
    assert list(answers(log, "retain")) == ["0", "1", "2", "3"]
    assert answers(None, "forget") == answers({}, "verbmem") == answers(log, "knowmem_retain") == {}


def test_answers_of_muse():
    log = {"muse": {"verbmem": {"7": {"shown": "Once", "truth": "upon a time", "generated": "more"}}}}
    assert answers(log, "verbmem") == {"7": Answer("Once", "more", "upon a time")}


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        (["system\nhelp\nuser\nWho?\nassistant\n", "system\nhelp\nuser\nWhere?\nassistant\n"], ["Who?", "Where?"]),
        (["user\nWhat is\nit?\nassistant", "user\nWhat was\nit?\nassistant"], ["What is", "What was"]),
        (["Who?", "Where?"], ["Who?", "Where?"]),
        (["user\nWho?\nassistant"], ["user\nWho?\nassistant"]),
        (["user\nWho?", "user\nWho?"], ["Who?", "Who?"]),
        ([], []),
    ],
)
def test_bare_questions(prompts, expected):
    assert bare(prompts) == expected
