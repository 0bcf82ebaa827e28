"""What a long command tells while it goes on."""

import io

from rich.console import Console

from evaluation.engine.progress import counter, part
from oblivionis.cli.progress_display import following
from oblivionis.runs import periodic_message


def test_lines_where_there_is_no_terminal(monkeypatch):
    told = []
    monkeypatch.setattr("oblivionis.cli.progress_display.Ticker", lambda tell: told.append(tell) or _Closed())
    out = io.StringIO()
    with following(Console(file=out, width=200), "attacking") as follow:
        (tell,) = told
        tell(5.0)
        follow(2, 7, "quantise")
        tell(20.0)
        with part("leakage"):
            counter("answers", 64)(12)
        tell(120.0)
    assert out.getvalue().splitlines() == [
        "attacking · 5 s so far",
        "attacking 2 of 7, quantise · 20 s so far",
        "attacking 2 of 7, quantise · leakage: 12 of 64 answers · 2 min so far",
    ]


def test_a_bar_on_a_terminal():
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=True, color_system=None, legacy_windows=False)
    with following(console, "sampling answers") as follow:
        follow(3, 10, "")
        counter("answers", 64)(12)
    assert "sampling answers" in out.getvalue() and "30%" in out.getvalue() and "12 of 64 answers" in out.getvalue()


def test_the_ticker_goes_slower_and_stops(monkeypatch):
    waits = []

    class Over:
        def wait(self, seconds):
            waits.append(seconds)
            return len(waits) > periodic_message.SOON + 2

        def set(self): ...

    monkeypatch.setattr(periodic_message.threading, "Event", Over)
    monkeypatch.setattr(periodic_message.threading, "Thread", lambda target, daemon: _Now(target))
    told = []
    periodic_message.Ticker(told.append).close()
    assert (
        waits == [periodic_message.SECONDS] * periodic_message.SOON + [periodic_message.LATER] * 3
        and len(told) == periodic_message.SOON + 2
    )


class _Closed:
    def close(self): ...


class _Now:
    def __init__(self, target):
        self.start = target
