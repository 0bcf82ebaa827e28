"""A leakage audit in words and in its table, on figures made by hand."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import beta

from evaluation.leakage.functions import Asked
from evaluation.leakage.sequential import Decision
from evaluation.leakage.summary import Terms, summarise
from oblivionis.audits.leakage import Audit
from oblivionis.reports import leakage

SAMPLES = np.array([[0.0] * 20, [1.0] * 20, [0.0, 1.0] * 10])
GREEDY = np.array([0.0, 0.75, 0.25])


def audit(terms, *, decisions=None, stop_at=None, enlarged=False):
    return Audit(
        subject="a model",
        questions=[Asked(name, "", None) for name in ("none", "all", "half")],
        greedy_answers=["", "", ""],
        greedy=GREEDY,
        leakage=list(SAMPLES),
        diversity=np.array([0.25, np.nan, 0.75]),
        function="keyword",
        terms=terms,
        stop_at=stop_at,
        summary=None if decisions else summarise(SAMPLES, GREEDY, terms),
        decisions=decisions,
        sampled=60,
        enlarged=enlarged,
        seconds=2.4,
    )


def printed(found):
    out = io.StringIO()
    leakage.print_audit(found, Console(file=out, width=200))
    return out.getvalue()


def test_the_worst_questions_come_first_and_the_means_last():
    terms = Terms(alpha=0.05)
    rows = [line.split() for line in printed(audit(terms)).splitlines()]
    table = {row[0]: row[1:] for row in rows if row and row[0] in ("none", "all", "half", "mean")}
    assert list(table) == ["all", "half", "none", "mean"]
    summary = summarise(SAMPLES, GREEDY, terms)
    for place, name in ((0, "none"), (1, "all"), (2, "half")):
        assert table[name][:-1] == [f"{summary.columns[column][place]:.3f}" for column in leakage.HEADS]
    assert [table[name][-1] for name in table] == ["–", "0.750", "0.250", "0.500"], "diversity, where there is any"
    assert table["mean"][:-1] == [f"{summary.overall[column]:.3f}" for column in leakage.HEADS]


@pytest.mark.parametrize("family_wise", [False, True])
def test_what_holds_with_which_probability(family_wise):
    terms = Terms(alpha=0.06, family_wise=family_wise, limit=0.2)
    text = " ".join(printed(audit(terms)).split())
    alpha = 0.02 if family_wise else 0.06
    holds = (
        "each column's bounds hold for all 3 questions together with probability 0.94."
        if family_wise
        else "each bound of each question holds with probability 0.94 by itself"
    )
    assert f"20 samples per question; {holds}" in text
    assert "Greedy decoding leaks on 1 of 3 questions (leakage of at least 0.5)." in text
    least = beta.ppf(1 - alpha, 1, 20)
    leaking = 2 if least <= 0.2 else 3
    assert f"for {leaking} of 3 questions it is not certified that at most 20% of the answers leak" in text
    assert "60 answers sampled in 2 s" in text


@pytest.mark.parametrize(("limit", "too_few"), [(0.13, True), (0.15, False)])
def test_too_few_samples_for_the_limit_are_told_of(limit, too_few):
    """Without a leak in 20 answers M_bin is 1 − 0.05^(1/20) = 0.139."""
    text = " ".join(printed(audit(Terms(alpha=0.05, limit=limit))).split())
    assert (
        f"Even without a single leak M_bin would be 0.139: 20 samples are too few for a limit of {limit:g}." in text
    ) is (too_few)


@pytest.mark.parametrize("enlarged", [False, True])
def test_further_samples_are_told_of(enlarged):
    text = " ".join(printed(audit(Terms(), enlarged=enlarged)).split())
    assert ("There were fewer samples here before." in text) is enlarged


def test_the_decisions_of_a_sequential_audit():
    decisions = [
        Decision("below", 10, 30, 0.0, 0.09),
        Decision("above", 5, 35, 0.4, 1.0),
        Decision("undecided", 60, -20, 0.05, 0.2),
    ]
    text = printed(audit(Terms(alpha=0.06, family_wise=True), decisions=decisions, stop_at=0.1))
    rows = [line.split() for line in text.splitlines()]
    table = {row[0]: row[1:] for row in rows if row and row[0] in ("none", "all", "half")}
    assert list(table.items()) == [
        ("all", ["above", "0.1", "0.400", "1.000", "5", "35", "0.750"]),
        ("half", ["undecided", "0.050", "0.200", "60", "-20", "0.250"]),
        ("none", ["below", "0.1", "0.000", "0.090", "10", "30", "0.000"]),
    ]
    assert "Expected leakage: 1 above 0.1, 1 below, 1 undecided, of 3 questions." in text
    assert "A verdict is wrong with probability at most 0.02 (0.06 for all together)." in text
    assert "75 samples needed instead of 120: 38% saved." in text
