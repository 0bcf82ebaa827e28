"""What a run tells while it goes on, on a terminal and elsewhere."""

import io

from rich.console import Console

from oblivionis.runs import progress
from oblivionis.runs.duration_forecast import Plan
from oblivionis.runs.progress import LineEvents, LiveEvents, for_console

METRICS = {"forget_rouge": 0.25, "retain_rouge": 0.5, "forget_prob": 0.75, "model_utility": 0.125}


def play(events):
    """Two rounds of unlearn, of which the second one is an extra round with a failed client."""
    events.note("a [note]")
    events.stage_started("unlearn", 0, 1)
    events.evaluated(0, "start", METRICS, 0.1)
    for round in (1, 2):
        events.round_started(round)
        events.exchange_started("unlearn", [3])
        events.arrived(1, 1)
        events.reply(3, round == 1, "OutOfMemoryError: [bold]no room")
        events.exchange_started("train", [1, 2])
        events.reply(1, True, "")
        events.reply(2, True, "")
        events.evaluating("round")
        events.evaluated(round, "round", METRICS, 0.1)
        events.round_finished(round, 0.5)
    events.stage_finished("unlearn", 2.0)
    events.close()


NUMBERS = "forget ROUGE 0.250 Prob 0.750 · retain ROUGE 0.500 · model utility 0.125"


def test_a_line_for_every_event():
    out = io.StringIO()
    events = for_console(Console(file=out, width=40, force_terminal=True, color_system=None), {"unlearn": 1}, "verbose")
    assert isinstance(events, LineEvents)
    play(events)
    numbers = NUMBERS
    assert out.getvalue().splitlines() == [
        "a [note]",
        "[unlearn] 1 round",
        f"[unlearn] round 0/1 (before): {numbers}",
        "[unlearn] FedTU: client 3 asks to forget",
        f"[unlearn] round 1/1: {numbers}",
        "[unlearn] round 1/1 done: 2 of 2 clients answered, 0.5 s",
        "[unlearn] FedTU: client 3 asks to forget",
        "[unlearn] client 3 left out: OutOfMemoryError: [bold]no room",
        f"[unlearn] round 2/2: {numbers}",
        "[unlearn] round 2/2 done: 2 of 2 clients answered, 0.5 s",
        "[unlearn] finished in 2 s",
    ]


def test_what_matters_and_where_the_run_is():
    out = io.StringIO()
    events = for_console(Console(file=out, width=40), {"unlearn": 1})
    assert isinstance(events, LineEvents)
    play(events)
    assert out.getvalue().splitlines() == [
        "a [note]",
        "[unlearn] 1 round",
        f"[unlearn] round 0/1 (before): {NUMBERS}",
        "[unlearn] client 3 left out: OutOfMemoryError: [bold]no room",
        "[unlearn] finished in 2 s",
    ]


def test_where_the_run_is(monkeypatch):
    monkeypatch.setattr(progress.time, "monotonic", lambda: 0.0)
    out = io.StringIO()
    events = LineEvents(Console(file=out, width=200))
    events.close()
    told = []

    def say(seconds):
        events.tell(seconds)
        told.append(out.getvalue().splitlines()[-1])

    say(20.0)
    events.planned(Plan({"finetune": 4, "unlearn": 2}, {"finetune": 1, "unlearn": 1}, 10.0))
    events.evaluating("base model")
    events.measuring("", "likelihoods", 3, 9)
    say(25.0)
    events.stage_started("finetune", 0, 4)
    events.round_started(1)
    events.exchange_started("train", [1, 2])
    events.arrived(1, 2)
    say(30.0)
    events.round_finished(1, 60.0)
    events.measuring("leakage", "answers", 12, 64)
    say(100.0)
    events.evaluated(1, "start", METRICS, 30.0)
    events.measuring("", "likelihoods", 5, 9)
    say(7200.0)
    assert told == [
        "starting · 20 s so far",
        "base model: evaluating: 3 of 9 likelihoods · 25 s so far",
        "[finetune] round 1/4: FedFT, 1/2 replies · 30 s so far",
        "[finetune] round 1/4: evaluating, leakage: 12 of 64 answers · 2 min so far (rounds 60 s) · about 5 min left, "
        "evaluations not counted",
        "[finetune] round 1/4: evaluating: 5 of 9 likelihoods · 2.0 h so far (rounds 60 s, evaluations 30 s) · about "
        "16 min left, 10 min of them evaluations",
    ]


def test_time_that_passes_is_no_longer_left(monkeypatch):
    out, now = io.StringIO(), [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    console = Console(file=out, width=200, force_terminal=True, color_system=None, legacy_windows=False)
    for events in (LineEvents(Console(file=out, width=200), verbose=True), LiveEvents(console, {"finetune": 2})):
        events.planned(Plan({"finetune": 2}, {"finetune": 0}, None))
        events.stage_started("finetune", 0, 2)
        events.round_finished(1, 40.0)
        assert events.left() == "about 40 s left"
        now[0] += 30.0
        assert events.left() == "about 10 s left"
        now[0] += 60.0
        assert events.left() == "longer than foretold"
        events.close()
    assert "longer than foretold · so far: rounds 40 s" in out.getvalue()


def test_an_evaluation_without_metrics_has_no_line_and_unusual_metrics_have_one():
    out = io.StringIO()
    events = LineEvents(Console(file=out, width=200), verbose=True)
    events.stage_started("finetune", 0, 2)
    events.evaluated(0, "start", {}, 0.1)
    events.evaluated(1, "round", {"lm_eval_arc_easy_acc": 0.25}, 0.1)
    assert out.getvalue().splitlines()[1:] == ["[finetune] round 1/2: lm_eval_arc_easy_acc 0.250"]


def test_a_quiet_run_tells_of_warnings_alone():
    out = io.StringIO()
    play(for_console(Console(file=out, width=200), {"unlearn": 1}, "quiet"))
    assert out.getvalue() == "warning: client 3 left out: OutOfMemoryError: [bold]no room\n"


def test_the_whole_is_foretold_once_the_processes_are_there():
    out = io.StringIO()
    events = LineEvents(Console(file=out, width=300), verbose=True)
    events.planned(Plan({"finetune": 3}, {"finetune": 1}, 40.0))
    events.stage_started("finetune", 0, 3)
    events.evaluated(0, "start", METRICS, 30.0)
    events.round_finished(1, 90.0)
    assert "left" not in out.getvalue()
    events.round_finished(2, 60.0)
    events.round_finished(3, 60.0)
    said = out.getvalue().splitlines()[4:6]
    assert said[0] == "about 21 min left, 20 min of them evaluations"
    assert said[1].startswith("warning: evaluations will take 20 min, longer than training (60 s): shorter with")
    assert "evaluation.full.questions_per_set" in said[1] and out.getvalue().count("about") == 1


def test_progress_on_a_terminal():
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system=None, legacy_windows=False)
    events = for_console(console, {"unlearn": 1})
    assert isinstance(events, LiveEvents)
    play(events)
    text = out.getvalue()
    assert "warning: client 3 left out: OutOfMemoryError: [bold]no room" in text and "a [note]" in text
    last = text[text.rindex("whole run") :]
    assert "2/2" in last.splitlines()[0] and "2/2" in last.splitlines()[1], "the extra round counts"
    assert "done" in last and "unlearn, round 2/2: forget ROUGE 0.250" in last


def test_who_asks_for_what_is_told_once():
    out = io.StringIO()
    events = LineEvents(Console(file=out, width=200), verbose=True)
    events.stage_started("unlearn", 0, 2)
    events.requests("client 3 leaves with 7 records")
    events.exchange_started("unlearn", [3])
    events.exchange_started("unlearn", [4])
    assert out.getvalue().splitlines()[1:] == [
        "[unlearn] FedTU: client 3 leaves with 7 records",
        "[unlearn] FedTU: client 4 asks to forget",
    ]


def test_the_stage_local_counts_clients():
    out = io.StringIO()
    events = LineEvents(Console(file=out, width=200), verbose=True)
    events.stage_started("local", 1, 3)
    events.evaluated(17, "end", METRICS, 0.1)
    events.round_finished(2, 0.5)
    first, second, third = out.getvalue().splitlines()
    assert first == "[local] 3 clients, continuing after client 1"
    assert second.startswith("[local] client 17: forget ROUGE") and third == "[local] 2 of 3 clients done"
