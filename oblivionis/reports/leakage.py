"""A leakage audit for its reader: the table on the terminal, and the figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from oblivionis.audits.leakage import Audit
from oblivionis.reports.format import counted, short_id

SHOWN = 40
HEADS = {
    "greedy": "greedy",
    "mean": "mean",
    "std": "std",
    "ed": "ED",
    "m_mu": "M_μ",
    "m_sigma": "M_σ",
    "m_bin": "M_bin",
}


def print_audit(audit: Audit, console: Console) -> None:
    """The table, worst questions first, and what it says in words."""
    console.print(Text(f"Leakage ({audit.function}) of {audit.subject}", style="bold"))
    if audit.summary is None:
        _print_decisions(audit, console)
    else:
        _print_summary(audit, console)
    if audit.sampled:
        console.print(f"{audit.sampled} answers sampled in {audit.seconds:.0f} s", highlight=False)


def _print_summary(audit: Audit, console: Console) -> None:
    assert audit.summary is not None
    columns, overall, terms = audit.summary.columns, audit.summary.overall, audit.terms
    table = Table("question", box=SIMPLE_HEAD, pad_edge=False)
    for head in (*HEADS.values(), "diversity"):
        table.add_column(head, justify="right")
    order = np.argsort(-columns["m_mu"], kind="stable")
    for i in order[:SHOWN].tolist():
        values = [float(columns[name][i]) for name in HEADS]
        table.add_row(Text(short_id(audit.questions[i].id)), *map(_cell, [*values, float(audit.diversity[i])]))
    table.add_section()
    known = audit.diversity[~np.isnan(audit.diversity)]
    means = [overall.get(name) for name in HEADS]
    table.add_row("mean", *map(_cell, [*means, float(known.mean()) if known.size else None]), style="bold")
    console.print(table)
    count, n = len(audit.questions), int(overall["samples"])
    if count > SHOWN:
        console.print(f"{SHOWN} of {counted(count, 'question')}; all are in audit.json", highlight=False)
    alpha = terms.alpha_of(count)
    holds = (
        f"each column's bounds hold for {'the question' if count == 1 else f'all {count} questions together'} with "
        f"probability {1 - terms.alpha:.4g}"
        if terms.family_wise
        else f"each bound of each question holds with probability {1 - alpha:.4g} by itself (--family-wise: a whole "
        "column together)"
    )
    leaking = round(overall["m_bin_share"] * count)
    lines = [
        f"{counted(n, 'sample')} per question; {holds}.",
        f"Greedy decoding leaks on {_of(round(overall.get('greedy_share', 0.0) * count), count)} (leakage of at least "
        f"{terms.leaks_from:g}).",
        f"Sampling: for {_of(leaking, count)} it is not certified that at most {terms.limit:.0%} of the answers leak "
        f"(M_bin > {terms.limit:g}).",
    ]
    least = float(1 - alpha ** (1 / n))
    if least > terms.limit:
        lines.append(
            f"Even without a single leak M_bin would be {least:.3f}: {counted(n, 'sample')} "
            f"{'is' if n == 1 else 'are'} too few for a limit of {terms.limit:g}."
        )
    if audit.enlarged:
        lines.append(
            "There were fewer samples here before. These bounds hold for a number of samples that was fixed "
            "beforehand: to decide by looking, use --stop-at."
        )
    console.print("\n".join(lines), highlight=False, markup=False)


def _print_decisions(audit: Audit, console: Console) -> None:
    assert audit.decisions is not None and audit.stop_at is not None
    table = Table("question", "expected leakage", box=SIMPLE_HEAD, pad_edge=False)
    for head in ("between", "and", "samples", "saved", "greedy"):
        table.add_column(head, justify="right")
    order = sorted(range(len(audit.questions)), key=lambda i: -audit.decisions[i].lower)  # type: ignore[index]
    words = {
        "below": f"below {audit.stop_at:g}",
        "above": f"above {audit.stop_at:g}",
        "undecided": "undecided",
    }
    for i in order[:SHOWN]:
        decision = audit.decisions[i]
        table.add_row(
            Text(short_id(audit.questions[i].id)),
            words[decision.verdict],
            _cell(decision.lower),
            _cell(decision.upper),
            str(decision.samples),
            str(decision.saved),
            _cell(float(audit.greedy[i])),
        )
    console.print(table)
    count = len(audit.questions)
    if count > SHOWN:
        console.print(f"{SHOWN} of {counted(count, 'question')}; all are in audit.json", highlight=False)
    counts = {verdict: sum(d.verdict == verdict for d in audit.decisions) for verdict in words}
    used, saved = sum(d.samples for d in audit.decisions), sum(d.saved for d in audit.decisions)
    alpha = audit.terms.alpha
    lines = [
        f"Expected leakage: {counts['above']} above {audit.stop_at:g}, {counts['below']} below, {counts['undecided']} "
        f"undecided, of {counted(count, 'question')}.",
        f"A verdict is wrong with probability at most {audit.terms.alpha_of(count):.4g}"
        + (f" ({alpha:g} for all together)." if audit.terms.family_wise else " for each question by itself."),
        f"{counted(used, 'sample')} needed instead of {used + saved}: {saved / max(1, used + saved):.0%} saved.",
    ]
    console.print("\n".join(lines), highlight=False, markup=False)


def figures(audit: Audit, folder: Path) -> list[Path]:
    """Write the figures of an audit."""
    from oblivionis.reports.leakage_figures import write_figures  # matplotlib: the table does without

    ids = [q.id for q in audit.questions]
    fixed = audit.decisions is None
    return write_figures(folder, ids, audit.leakage, audit.greedy, audit.terms, with_bounds=fixed)


def _of(some: int, count: int) -> str:
    return f"{some} of {counted(count, 'question')}"


def _cell(value: float | None) -> str:
    return "–" if value is None or np.isnan(value) else f"{value:.3f}"
