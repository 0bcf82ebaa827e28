"""How a command that compares ends."""

import pytest
import typer

from oblivionis.cli import audit_exit_codes


@pytest.mark.parametrize(
    ("differs", "untested", "code"), [(False, False, 0), (True, False, 1), (True, True, 1), (False, True, 3)]
)
def test_zero_is_for_what_was_all_tested_and_is_equal(differs, untested, code):
    try:
        audit_exit_codes.end(differs=differs, untested=untested)
        found = 0
    except typer.Exit as error:
        found = error.exit_code
    assert found == code
