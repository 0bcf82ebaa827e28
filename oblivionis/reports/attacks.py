"""Attacks for their reader: the table on the terminal, the section of the report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

import htpy as h
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from oblivionis.config import extension_traits
from oblivionis.errors import FileError
from oblivionis.files import read_json
from oblivionis.reports.format import shortened
from oblivionis.reports.markup import html_table, paragraphs
from oblivionis.runs.directory import RunDirectory

MODELS = {"unlearn": "unlearned", "finetune": "finetuned", "retrain": "retrained"}
MEASURES = {"prob": "Prob", "rouge": "ROUGE", "truth_ratio": "Truth r."}
MEMBERSHIP = {
    "loss": "loss",
    "zlib": "zlib",
    "min_k_20": "Min-20 %",
    "min_k_40": "Min-40 %",
    "min_k_plus_plus": "Min-20 %++",
    "reference": "reference model",
}
WORDS = {
    "still known": "comes back",
    "over-unlearned": "below",
    "near": "as retrained",
    "undecided": "undecided",
}
LEGEND = (
    "before→after the attack, on the forget questions that it asks (n); Δ: after, less the retrained model after the "
    "same attack. Comes back (or still known, where no attack is needed): the answers are more than twice as probable "
    "as in the attacked retrained model, below: less than half, both on enough questions to rule out chance (one-sided "
    "Wilcoxon signed-rank test, p at most 0.01; sampled answers: by that test of their ROUGE-L recall alone). Truth "
    "r.: mean of min(R, 1/R)."
)
MEMBERSHIP_LEGEND = (
    "Membership inference: 0.5 is chance, [ ] a 95 % bootstrap interval. The goal is the retrained model's value; p: "
    "DeLong's test of the difference, – with fewer than eight records on a side."
)
NO_ORACLE = "No verdicts: they compare with the retrained model. Add the stage retrain to `stages`."
LEAST_LABEL, MOST_LABEL = 18, 44


class _BeforeAfter(TypedDict):
    before: dict[str, float]
    after: dict[str, float]


class _Attack(TypedDict):
    attack: str
    variant: str
    questions: int
    models: dict[str, _BeforeAfter]


class _Row(_Attack, total=False):
    records: dict[str, dict[str, float]]
    difference: dict[str, float]
    verdict: Literal["still known", "over-unlearned", "near", "undecided"]
    p_above: float


class _Auc(TypedDict):
    auc: float
    low: float
    high: float


class _Inference(TypedDict):
    variant: str
    members: int
    others: int
    models: dict[str, _Auc]


class _Compared(_Inference, total=False):
    difference: float
    p: float


class _Made(TypedDict):
    run: str
    stage: str
    round: int
    oracle: str | None
    rows: list[_Row]
    membership: list[_Compared]
    left_out: dict[str, str]
    failed: dict[str, str]


class _Results(_Made, total=False):
    adapters: dict[str, str]
    any_script: int


def latest(run: RunDirectory) -> list[dict[str, Any]]:
    """The newest results of each attacked stage of a run. FileError for results that are damaged."""
    newest: dict[str, dict[str, Any]] = {}
    for folder in sorted((run.path / "attacks").glob("*")):
        try:
            results = read_results(folder / "results.json")
        except FileNotFoundError:  # not finished
            continue
        if results["round"] >= newest.get(results["stage"], {"round": -1})["round"]:
            newest[results["stage"]] = results
    return [newest[stage] for stage in MODELS if stage in newest]


def read_results(path: Path) -> dict[str, Any]:
    """The results of attacks in `path`. FileError, with the key, for a damaged file."""
    results = read_json(path, _Results)
    for number, row in enumerate(results["rows"]):
        if results["stage"] not in row["models"]:
            raise FileError(f"{path}: rows[{number}].models: the attacked model, {results['stage']!r}, is missing")
    return results


def print_results(results: Mapping[str, Any], console: Console) -> None:
    """The tables and what they say in words; a narrow terminal gets no truth ratios."""
    console.print(tables(results, console.width))
    for line in words_below(results):
        console.print(line, markup=False, highlight=False)


def tables(results: Mapping[str, Any], width: int) -> Group:
    """The tables of an attack run for a terminal of this width."""
    oracle = results["oracle"]
    name = model_line(results)
    title = f"Attacks on {results['run']}, {name} model (round {results['round']})"
    each = 22 if oracle else 10
    shown = [m for m in MEASURES if m != "truth_ratio" or width >= LEAST_LABEL + 3 * each + 18]
    label = max(LEAST_LABEL, min(MOST_LABEL, width - len(shown) * each - 18))
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=0)
    table.add_column("attack", no_wrap=True)
    table.add_column("n", justify="right")
    for measure in shown:
        table.add_column(f"{MEASURES[measure]}\n{name}", justify="right", no_wrap=True)
        if oracle:
            table.add_column("\nretr.", justify="right", no_wrap=True)
            table.add_column("\nΔ", justify="right", no_wrap=True)
    if oracle:
        table.add_column("verdict", no_wrap=True)
    previous = ""
    for row in results["rows"]:
        if previous and row["attack"] != previous:
            table.add_section()
        cells = [c for m in shown for c in cells_of(row, m, results)]
        style = "red" if row.get("verdict") == "still known" else ""
        words = [_word(row, results)] if oracle else []
        table.add_row(Text(label_of(row, label)), str(row["questions"]), *cells, *words, style=style)
        previous = row["attack"]
    for name in results["failed"]:
        blanks = len(table.columns) - 3
        table.add_row(Text(shortened(name, label)), "–", "failed", *["–"] * blanks, style="red")
    parts: list[Any] = [Text(title, style="bold"), table]
    return Group(*parts, *([_membership_table(results)] if results["membership"] else []))


def model_line(results: Mapping[str, Any]) -> str:
    """How readers know the attacked model."""
    stage: str = results["stage"]
    return MODELS.get(stage, stage)


def _word(row: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    word = row.get("verdict")
    if word is None:
        return "–"
    return word if word == "still known" and still_known(results) else WORDS[word]


def still_known(results: Mapping[str, Any]) -> bool:
    """Whether the answers are still known without any attack."""
    return any(row["attack"] == "none" and row.get("verdict") == "still known" for row in results["rows"])


def label_of(row: Mapping[str, Any], width: int = 1000) -> str:
    """What an attack is called in a table, cut to `width` characters."""
    kind, variant = row["attack"], row["variant"]
    traits = extension_traits.code("attack", kind).literals
    name = "no attack" if kind == "none" else traits.get("LABEL", kind)
    text = f"{name}{': ' if traits.get('WORDED') else ' '}{variant}".strip()
    return text if len(text) <= width else text[: width - 1].rstrip() + "…"


def cells_of(row: Mapping[str, Any], measure: str, results: Mapping[str, Any], *, whole: bool = False) -> list[str]:
    """Before→after of the attacked model, after (`whole`: also before) of the retrained one, and the difference."""
    models, oracle = row["models"], results["oracle"]
    cells = [course(models[results["stage"]], measure)]
    if oracle:
        theirs = models.get(oracle, {"before": {}, "after": {}})
        cells.append(course(theirs, measure) if whole else _number(theirs["after"].get(measure)))
        difference = row.get("difference", {}).get(measure)
        cells.append("–" if difference is None else f"{difference:+.2f}")
    return cells


def course(values: Mapping[str, Mapping[str, float]], measure: str) -> str:
    """A measure before and after an attack; one number where it stays the same."""
    before, after = (values[phase].get(measure) for phase in ("before", "after"))
    if after is None:
        return "–"
    return _number(after) if before == after else f"{_number(before)}→{_number(after)}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _membership_table(results: Mapping[str, Any]) -> Group:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for i, head in enumerate(membership_head(results)):
        table.add_column(head, justify="right" if i else "left")
    for row in membership_rows(results):
        table.add_row(*row)
    return Group(Text("Membership inference: AUC of forget against holdout records", style="bold"), table)


def membership_head(results: Mapping[str, Any]) -> list[str]:
    """The columns of the table of membership attacks."""
    name = model_line(results)
    return ["inference", "n", name, *(["retrained", "Δ", "p"] if results["oracle"] else [])]


def membership_rows(results: Mapping[str, Any]) -> list[list[str]]:
    """A row per membership attack: AUC with its interval, of both models where there are two."""
    rows: list[list[str]] = []
    for row in results["membership"]:
        kind: str = row["variant"]
        cells = [MEMBERSHIP.get(kind) or kind, f"{row['members']} + {row['others']}"]
        for stage in filter(None, (results["stage"], results["oracle"])):
            of = row["models"].get(stage)
            cells.append(f"{of['auc']:.2f} [{of['low']:.2f}, {of['high']:.2f}]" if of else "–")
        if results["oracle"]:
            known = "difference" in row
            cells += [f"{row['difference']:+.2f}", f"{row['p']:.2g}"] if known else ["–", "–"]
        rows.append(cells)
    return rows


def words_below(results: Mapping[str, Any]) -> list[str]:
    """What stands below the tables."""
    lines = [outcome(results), LEGEND] if results["oracle"] else [LEGEND, NO_ORACLE]
    if others := results.get("any_script"):
        lines.append(f"ROUGE goes by words of every script for {others} of the true answers, not by the paper's.")
    lines += [MEMBERSHIP_LEGEND] if results["membership"] else []
    for row in results["rows"]:
        sampled = row["models"][results["stage"]]["after"]
        if "m_bin" in sampled:
            theirs = row["models"].get(results["oracle"], {}).get("after", {})
            lines.append(
                f"Sampling, bounds: M_μ {_with_retrained(sampled, theirs, 'm_mu')}, "
                f"M_bin {_with_retrained(sampled, theirs, 'm_bin')} (means over questions, see docs/guides/leakage.md)."
            )
    lines += [f"{name}: left out, {why}." for name, why in results["left_out"].items()]
    lines += [f"{name} failed: {why}." for name, why in results["failed"].items()]
    return lines


def outcome(results: Mapping[str, Any]) -> str:
    """Which attacks bring back more than the retrained model gives away under them."""
    attacks = [row for row in results["rows"] if row["attack"] != "none" and "verdict" in row]
    back = [row for row in attacks if row["verdict"] == "still known"]
    head = "Without any attack the answers are still known. " if still_known(results) else ""
    more = "more than the retrained model gives away"
    if not back:
        undecided = sum(row["verdict"] == "undecided" for row in attacks)
        parts = [f"{undecided} undecided"] if undecided else []
        parts += [f"{len(results['failed'])} more failed"] if results["failed"] else []
        tail = f" ({', '.join(parts)})" if parts else ""
        return f"{head}None of {len(attacks)} attacks is shown to bring back {more}{tail}."
    named = "; ".join(label_of(row, MOST_LABEL) for row in back)
    return f"{head}{len(back)} of {len(attacks)} attacks bring back {more}: {named}."


def _with_retrained(ours: Mapping[str, float], theirs: Mapping[str, float], name: str) -> str:
    return _number(ours[name]) + (f" (retrained {_number(theirs[name])})" if name in theirs else "")


def section(run: RunDirectory) -> list[h.Node]:
    """The part of `report.html`; nothing where the run was not attacked."""
    parts: list[h.Node] = []
    for results in latest(run):
        parts += [h.h3[f"{model_line(results)}, round {results['round']}"], html_rows(results)]
        if results["membership"]:
            head = membership_head(results)
            parts.append(h.p["Membership inference: AUC of forget against holdout records."])
            classes = ["who", *["n"] * (len(head) - 1)]
            parts.append(html_table(head, classes, membership_rows(results), "Membership inference"))
        parts += paragraphs(words_below(results))
    return parts


def html_rows(results: Mapping[str, Any]) -> h.Element:
    """The table; below each value of the attacked model, smaller, that of the retrained one."""
    oracle = results["oracle"]
    heads: list[h.Node] = []
    for measure in MEASURES.values():
        heads += [_above(measure, "retrained"), "Δ"] if oracle else [measure]
    rows = []
    for row in results["rows"]:
        cells: list[h.Node] = []
        for measure in MEASURES:
            attacked, *others = cells_of(row, measure, results, whole=True)
            cells += [_above(attacked, others[0]), others[1]] if others else [attacked]
        if oracle:
            word = _word(row, results)
            cells.append(h.b(".mark")[word] if row.get("verdict") == "still known" else word)
            cells.append(f"{row['p_above']:.2g}" if "p_above" in row else "–")
        rows.append([label_of(row), str(row["questions"]), *cells])
    tail = (["verdict", "p above"], ["who", "n"]) if oracle else ([], [])
    classes = ["label", "n", *["n"] * len(heads), *tail[1]]
    return html_table(["attack", "n", *heads, *tail[0]], classes, rows, f"Attacks on the {model_line(results)} model")


def _above(text: str, small: str) -> list[h.Node]:
    return [text, h.br, h.small[small]]
