"""A second process that measures beside the server's: the same numbers, and none are lost with it."""

import contextlib
import signal
import socket
import sys
import threading

import numpy as np
import psutil
import pytest
import torch
from support.processes import until

from evaluation.hook import EvaluationError, Report, Result
from oblivionis import seeds
from oblivionis.config import compose as configuration
from oblivionis.errors import RunInterrupted
from oblivionis.measures.assessor import Assessor
from oblivionis.models.assembly import assemble
from oblivionis.models.configured_corpus import corpus_of
from oblivionis.models.hardware import Machine, server_threads
from oblivionis.runs.progress import Events
from oblivionis.runtime.fork_server import fork_server
from oblivionis.runtime.transfer import Channel
from oblivionis.server.parallel_evaluator import MOVED, SecondEvaluator, second_evaluator
from oblivionis.server.simulation import Stop, ctrl_c

forks = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
CONFIG = configuration.compose("smoke", ["federation.server_threads=2", "evaluation.processes=2"])


class Warned(Events):
    def __init__(self):
        self.warnings = []

    def warning(self, text):
        self.warnings.append(text)


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def assessor(elsewhere):
    """One with the process `elsewhere`, and the model that it begins with."""
    assembled = assemble(CONFIG.model, seeds.derive(CONFIG.seed, "adapter"))
    start = assembled.flat.numpy()
    return Assessor(assembled, corpus_of(CONFIG), CONFIG, start, remote_evaluator=elsewhere), start


@pytest.fixture(scope="module")
def beside():
    """An assessor alone, one with the second process, the warnings, and two global models."""
    events, draws = Warned(), np.random.default_rng(0)
    with (
        fork_server(["oblivionis.server.parallel_evaluator"], {}) as server,
        second_evaluator(CONFIG, server, events) as second,
    ):
        (alone, start), (together, _) = assessor(None), assessor(second)
        yield alone, together, events, [start, start + draws.normal(0, 0.02, start.size).astype(np.float32)]


def shared(found):
    """What was measured, without what takes another time each time."""
    return list(found.report.results), found.metrics, found.report.failed


@forks
@pytest.mark.parametrize("full", [False, True], ids=["after a round", "at a stage's end"])
def test_two_processes_measure_what_one_does(beside, full):
    alone, together, events, models = beside
    for vector in models:
        found, wanted = together.measure(vector, full=full), alone.measure(vector, full=full)
        assert shared(found) == shared(wanted) and repr(found.log) == repr(wanted.log)
        assert {*MOVED[full]} <= {*found.report.results}
        assert found.report.seconds.keys() == wanted.report.seconds.keys()
    assert events.warnings == []


@forks
def test_some_are_measured_there_and_not_here(beside, monkeypatch):
    _, together, _, models = beside
    here = []
    plain = Assessor.report

    def spied(self, session, built, names):
        here.extend(names)
        return plain(self, session, built, names)

    monkeypatch.setattr(Assessor, "report", spied)
    assert "leakage" in together.measure(models[0], full=False).report.results
    assert here and "leakage" not in here


@forks
def test_a_process_that_is_killed_costs_a_warning_and_no_number():
    events, others = Warned(), psutil.Process().children()
    with fork_server((), {}) as server, second_evaluator(CONFIG, server, events) as second:
        together, vector = assessor(second)
        (parent,) = {*psutil.Process().children()} - {*others}
        assert until(parent.children, 60)
        for process in parent.children():
            process.kill()
        found = [together.measure(vector, full=False) for _ in range(2)]
    wanted = assessor(None)[0].measure(vector, full=False)
    assert [shared(f) for f in found] == [shared(wanted)] * 2
    (warning,) = events.warnings
    assert "one goes on alone" in warning


@pytest.mark.parametrize(
    "overrides",
    [["evaluation.processes=1"], ["federation.server_threads=1"], ["model.device=cuda"]],
    ids=["not asked for", "one thread", "on a GPU"],
)
def test_where_there_is_none(overrides):
    given = ["evaluation.processes=2", "federation.server_threads=2", *overrides]
    config = configuration.compose("smoke", given)
    assert server_threads(config, Machine(8, 1, 0))[1] == 0
    with fork_server((), {}) as server, second_evaluator(config, server, Warned()) as second:
        assert second is None


def test_nobody_forks():
    with fork_server((), {}) as server:
        pass
    with second_evaluator(CONFIG, server, Warned()) as second:
        assert second is None


@contextlib.contextmanager
def answering(*answers):
    """A process's end whose other end has said these already."""
    mine, its = map(Channel, socket.socketpair())
    for answer in answers:
        its.send(answer)
    yield SecondEvaluator(mine, 1, 1, Warned())
    mine.close()
    its.close()


def test_the_answer_to_an_evaluation_that_was_broken_off_is_passed_over():
    old, new = (Report({"leakage": Result({"mean": m})}, {}, 0.0, {}) for m in (0.1, 0.2))
    with answering((1, old), (2, new)) as second:
        assert second.begin(np.zeros(1, np.float32), full=False) == {"leakage"}
        second.begin(np.zeros(1, np.float32), full=False)
        assert second.end() == new


def test_what_an_evaluator_raises_there_is_raised_here():
    with answering((1, EvaluationError("evaluator leakage failed: no"))) as second:
        second.begin(np.zeros(1, np.float32), full=False)
        with pytest.raises(EvaluationError, match="evaluator leakage failed"):
            second.end()


def test_a_failure_there_is_told_here(caplog):
    report = Report({}, {}, 0.0, {"leakage": "ValueError: no"})
    with answering((1, report)) as second:
        second.begin(np.zeros(1, np.float32), full=False)
        assert second.end() == report
    assert "evaluator leakage failed: ValueError: no" in caplog.text


def test_whoever_waits_for_it_can_be_stopped():
    """Even if the signal interrupts no wait: another thread took it, or the wait had not quite begun."""
    stop = Stop()
    interrupt = threading.Timer(0.2, signal.raise_signal, (signal.SIGINT,))
    with answering() as second, ctrl_c(stop, Warned()), pytest.raises(RunInterrupted), stop.broken_off():
        second.begin(np.zeros(1, np.float32), full=False)
        interrupt.start()
        second.end()
    assert stop.is_set()
