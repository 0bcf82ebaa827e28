"""The command without arguments, and as `python -m oblivionis`."""

import re
import subprocess
import sys

import pytest
from support.commands import call

from oblivionis.cli.main import FIRST_STEPS
from oblivionis.config.compose import compose
from oblivionis.version import __version__


def test_without_arguments_it_names_three_things_to_do(tmp_path):
    told = call()
    assert told.code == 0 and told.out == f"{FIRST_STEPS}\n" and not told.err
    steps = re.findall(r"^  oblivionis (\S+(?: [a-z]+)*)  ", FIRST_STEPS, re.MULTILINE)
    assert steps == ["simulate smoke", "data describe", "view"]
    for step in steps:
        assert call(*step.split(), "--help").code == 0, step
    (tmp_path / "mine.jsonl").write_text('{"question": "Who?", "answer": "She"}\n')
    assert "data=records data.path=FILE" in FIRST_STEPS and compose("smoke", [])
    assert compose("default", ["data=records", f"data.path={tmp_path / 'mine.jsonl'}"])


def test_an_unknown_command_is_still_a_mistake():
    told = call("simulte")
    assert told.code == 2 and "simulte" in told.err


@pytest.mark.slow
def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "oblivionis", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{__version__}\n"
