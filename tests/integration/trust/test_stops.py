"""Ctrl-C in each phase of a run, one after another in one run: it goes on each time, and ends with the same."""

import inspect
import threading

import pytest
from support.faulty_runs import new_run, outcome
from support.inprocess import InProcessGrid

from oblivionis.chain import check_chain
from oblivionis.client.app import app
from oblivionis.config import compose as configuration
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import SERVED
from oblivionis.erasure.verification_rules import VERIFIED
from oblivionis.runs.progress import Events
from oblivionis.server.app import serve

PHASES = [
    *(("planned", ""), ("stage_started", "finetune"), ("round_started", "finetune"), ("exchange_started", "finetune")),
    *(("arrived", "finetune"), ("reply", "finetune"), ("round_finished", "finetune"), ("evaluating", "finetune")),
    *(("measuring", "finetune"), ("evaluated", "finetune"), ("stage_finished", "finetune")),
    *(("stage_started", "unlearn"), ("round_started", "unlearn"), ("requests", "unlearn")),
    *(("exchange_started", "unlearn"), ("arrived", "unlearn"), ("reply", "unlearn"), ("round_finished", "unlearn")),
    *(("evaluating", "unlearn"), ("measuring", "unlearn"), ("evaluated", "unlearn"), ("stage_finished", "unlearn")),
]
"""Events of a run, with the stage; `evaluated` comes between a stage's last evaluation and its mark."""


class Pressed(Events):
    """Ctrl-C is pressed in the first event of one kind in a stage."""

    def __init__(self, kind, stage):
        self.wanted, self.stage = (kind, stage), ""

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name.startswith("_") or not inspect.ismethod(found) or not hasattr(Events, name):
            return found

        def told(*arguments, **named):
            if name == "stage_started":
                self.stage = arguments[0]
            if (name, self.stage) == self.wanted:
                raise KeyboardInterrupt
            return found(*arguments, **named)

        return told


def play(run, events):
    config = configuration.from_yaml(run.read_config())
    with run.lock():
        serve(config, InProcessGrid(app, config.federation.clients), run, events, threading.Event())


def rows(run):
    """The metrics' rows, once each, without seconds."""
    return [(r["stage"], r["round"], r["moment"], r["evaluator"]) for r in run.metrics()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    run = new_run(tmp_path_factory.mktemp("undisturbed"), "whole")
    play(run, Events())
    return run


def test_a_run_that_is_stopped_in_every_phase_ends_as_one_that_is_not(undisturbed, tmp_path):
    run, stops = new_run(tmp_path, "stopped"), []
    for kind, stage in PHASES:
        try:
            play(run, Pressed(kind, stage))
        except KeyboardInterrupt:
            stops.append((kind, stage))
        assert not check_chain(run.ledger_path).faults if run.ledger_path.exists() else stage != "unlearn"
    play(run, Events())
    print(stops)
    assert stops == PHASES
    assert outcome(run) == outcome(undisturbed)
    assert rows(run) == rows(undisturbed), "no row is lost or doubled"
    assert all(r.state in (SERVED, VERIFIED) for r in Ledger(run.ledger_path))
