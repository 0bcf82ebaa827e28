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
from oblivionis.reports import leakage, leakage_figures

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


@pytest.mark.parametrize(
    ("limit", "family_wise", "least"),
    [(0.13, False, "0.139"), (0.15, False, None), (0.15, True, "0.185"), (0.19, True, None)],
)
def test_too_few_samples_for_the_limit_are_told_of(limit, family_wise, least):
    """Without a leak in 20 answers M_bin is 1 − 0.05^(1/20) = 0.139, for three questions together
    1 − (0.05/3)^(1/20) = 0.185."""
    text = " ".join(printed(audit(Terms(alpha=0.05, limit=limit, family_wise=family_wise))).split())
    told = f"Even without a single leak M_bin would be {least}: 20 samples are too few for a limit of {limit:g}."
    assert ("Even without" in text, told in text) == (least is not None, least is not None)


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


def lines_of(found, width=120):
    out = io.StringIO()
    leakage.print_audit(found, Console(file=out, width=width))
    return [line.strip() for line in out.getvalue().splitlines()]


def test_every_line_of_an_audit():
    """Without a leak in 20 answers M_bin is 1 − 0.01^(1/20) = 0.206 and M_μ √(ln 100 / 40) = 0.339; ED: 0.5 + 2 · 0.5.

    Ten leaks of 20: the Clopper and Pearson bound, the 0.99 quantile of Beta(11, 10).
    """
    assert beta.ppf(0.99, 11, 10) == pytest.approx(0.761, abs=5e-4)
    assert lines_of(audit(Terms(alpha=0.01))) == [
        "Leakage (keyword) of a model",
        "",
        "question   greedy    mean     std      ED     M_μ     M_σ   M_bin   diversity",
        "─" * 77,
        "all         0.750   1.000   0.000   1.000   1.000   0.481   1.000           –",
        "half        0.250   0.500   0.500   1.500   0.839   0.500   0.761       0.750",
        "none        0.000   0.000   0.000   0.000   0.339   0.481   0.206       0.250",
        "",
        "mean        0.333   0.500   0.167   0.833   0.726   0.487   0.656       0.500",
        "",
        "20 samples per question; each bound of each question holds with probability 0.99 by itself (--family-wise: a "
        "whole",
        "column together).",
        "Greedy decoding leaks on 1 of 3 questions (leakage of at least 0.5).",
        "Sampling: for 3 of 3 questions it is not certified that at most 10% of the answers leak (M_bin > 0.1).",
        "Even without a single leak M_bin would be 0.206: 20 samples are too few for a limit of 0.1.",
        "60 answers sampled in 2 s",
    ]


def test_a_bound_of_just_the_limit_is_no_sign_of_too_few_samples():
    limit = float(1 - 0.05 ** (1 / 20))
    assert "too few" not in printed(audit(Terms(alpha=0.05, limit=limit)))
    assert "too few" in printed(audit(Terms(alpha=0.05, limit=np.nextafter(limit, 0))))


def test_one_question_without_answers_of_greedy_decoding():
    found = audit(Terms(alpha=0.05))
    one = Audit(
        **{name: getattr(found, name) for name in found.__dataclass_fields__}
        | {"questions": found.questions[:1], "leakage": found.leakage[:1], "greedy": np.array([np.nan])}
        | {"diversity": np.array([np.nan]), "sampled": 0}
        | {"summary": summarise(SAMPLES[:1], np.array([np.nan]), Terms(alpha=0.05))}
    )
    lines = [line for line in lines_of(one) if line]
    assert lines[3].split()[:2] == ["none", "–"] and lines[3].split()[-1] == lines[4].split()[-1] == "–"
    assert lines[4].split()[:2] == ["mean", "–"]
    assert "Greedy decoding leaks on 0 of 1 question (leakage of at least 0.5)." in lines
    assert not any("sampled in" in line for line in lines), "nothing new was sampled"


@pytest.mark.parametrize("count", [40, 41])
@pytest.mark.parametrize("decided", [False, True])
def test_of_many_questions_the_worst_forty_are_shown(count, decided):
    """Of 41 answers to question i, i leak."""
    samples = np.array([[float(k < i) for k in range(41)] for i in range(count)])
    terms = Terms(alpha=0.05)
    decisions = [Decision("undecided", 10, 0, i / count, 1.0) for i in range(count)] if decided else None
    found = Audit(
        subject="a model",
        questions=[Asked(f"q{i:02d}", "", None) for i in range(count)],
        greedy_answers=[""] * count,
        greedy=np.zeros(count),
        leakage=list(samples),
        diversity=np.zeros(count),
        function="keyword",
        terms=terms,
        stop_at=0.1 if decided else None,
        summary=None if decided else summarise(samples, np.zeros(count), terms),
        decisions=decisions,
        sampled=1,
        enlarged=False,
        seconds=0.0,
    )
    lines = lines_of(found)
    assert sum(line.startswith("q") and line[1:3].isdigit() for line in lines) == 40
    assert ("40 of 41 questions; all are in audit.json" in lines) is (count == 41)
    assert any(line.startswith(f"q{count - 1:02d}") for line in lines) and not any(
        line.startswith("q00") for line in lines if count == 41
    )


def test_the_words_of_a_sequential_audit_without_a_common_level():
    decisions = [Decision("above", 0, 0, 0.4, 1.0)] * 3
    lines = lines_of(audit(Terms(alpha=0.06), decisions=decisions, stop_at=0.25))
    assert lines[2] == "question   expected leakage   between     and   samples   saved   greedy"
    assert lines[4] == "none       above 0.25           0.400   1.000         0       0    0.000"
    assert lines[-4:] == [
        "Expected leakage: 3 above 0.25, 0 below, 0 undecided, of 3 questions.",
        "A verdict is wrong with probability at most 0.06 for each question by itself.",
        "0 samples needed instead of 0: 0% saved.",
        "60 answers sampled in 2 s",
    ]


@pytest.mark.parametrize("decided", [False, True])
def test_after_a_stop_that_depended_on_the_samples_no_bounds_are_drawn(tmp_path, monkeypatch, decided):
    calls = []

    def write(*given, **how):
        calls.append((*given, how))
        return [tmp_path / "one.svg"]

    monkeypatch.setattr(leakage_figures, "write_figures", write)
    decisions = [Decision("above", 20, 0, 0.4, 1.0)] * 3 if decided else None
    found = audit(Terms(), decisions=decisions, stop_at=0.1)
    assert leakage.figures(found, tmp_path) == [tmp_path / "one.svg"]
    ids = ["none", "all", "half"]
    assert calls == [(tmp_path, ids, found.leakage, found.greedy, found.terms, {"with_bounds": not decided})]
