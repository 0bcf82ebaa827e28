"""Who says which of the records named alike are meant."""

import pytest

from oblivionis.data.subjects import Alike
from oblivionis.erasure.named_alike import SHOWN, Decision, as_text, decide
from oblivionis.errors import OblivionisError

ALIKE = [Alike(0, "b", "in its text"), Alike(1, "c", "subject 'Voss, Mara'"), Alike(0, "d", "in its text")]


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        (["b", "c", "d"], [], Decision(("b", "c", "d"), ())),
        (["all"], [], Decision(("b", "c", "d"), ())),
        ([], ["all"], Decision((), ("b", "c", "d"))),
        (["c"], ["all"], Decision(("c",), ("b", "d"))),
        (["all"], ["c"], Decision(("b", "d"), ("c",))),
        (["d", "b"], ["c"], Decision(("b", "d"), ("c",))),
    ],
)
def test_each_record_is_meant_or_not(include, exclude, expected):
    assert decide("Mara Voss", ALIKE, include, exclude) == expected


@pytest.mark.parametrize(
    ("include", "exclude", "said"),
    [
        ([], [], "named alike: 3 records (b, in its text; c, subject 'Voss, Mara'; d, in its text): --include or"),
        (["b"], ["d"], "named alike: 1 record (c, subject 'Voss, Mara'): --include or --exclude must say of each"),
        (["b"], ["b", "all"], "--include and --exclude both name b"),
        (["all"], ["all"], "--include and --exclude both name all"),
        (["x", "all"], [], "--include: 'x' is no record named like 'Mara Voss'; named alike: 3 records (b,"),
        ([], ["x", "all"], "--exclude: 'x' is no record named like"),
    ],
)
def test_what_is_not_said_or_said_twice_is_refused(include, exclude, said):
    with pytest.raises(OblivionisError) as refused:
        decide("Mara Voss", ALIKE, include, exclude)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_where_nothing_is_named_alike_nothing_needs_saying():
    assert decide("Mara Voss", [], [], []) == decide("Mara Voss", [], ["all"], []) == Decision()
    assert as_text([]) == ""
    with pytest.raises(OblivionisError, match="no record is"):
        decide("Mara Voss", [], ["b"], [])


def test_a_message_stays_short():
    many = [Alike(0, f"r{i}", "in its text") for i in range(SHOWN + 3)]
    assert as_text(many).endswith("; and 3 more)") and f"r{SHOWN - 1}," in as_text(many)
