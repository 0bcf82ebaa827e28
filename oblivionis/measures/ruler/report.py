"""RULER in words: what a mean rank, a gap and a noise band say, for the terminal, the report and `verdicts.json`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from evaluation.ruler.rank_significance import (
    ABOVE,
    BELOW,
    LEAST_RECORDS,
    LEVEL,
    NEAR,
    NULL,
    UNDECIDED,
    RankTest,
    rank_test,
)
from evaluation.ruler.statistics import NoiseBand
from oblivionis.measures.ruler.paired_models import Before, rank_facts
from oblivionis.naming import counted
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.stored_significance_tests import kept

BANDS = {"mean_rank": "mean rank", "gap": "S_gap"}
INSIDE, OUTSIDE = "indistinguishable from retrained", "outside"
BEFORE = {
    ABOVE: "Above 0.5: they lie closer to a retained record than those do to each other, a sign of memorisation.",
    BELOW: "Below 0.5: they lie apart from the retained records.",
    NEAR: "Not to be told from 0.5: as far as these show, they blend in with the retained records (what the model "
    "recites of them, Prob and ROUGE tell).",
    UNDECIDED: f"So few records cannot tell it from 0.5 (it takes {LEAST_RECORDS}).",
}
AFTER = {
    ABOVE: "above 0.5, a sign that they are still memorised",
    BELOW: "below 0.5, they lie apart from the retained records",
    NEAR: "not to be told from 0.5, as far as these show they blend in with the retained records",
    UNDECIDED: f"which so few records cannot tell from 0.5 (it takes {LEAST_RECORDS})",
}


@dataclass(frozen=True)
class Banded:
    """A metric of the unlearned model compared with the band of retrained models (for S_gap: of pairs of them)."""

    value: float
    band: NoiseBand

    @property
    def verdict(self) -> str:
        return INSIDE if self.band.contains(self.value) else OUTSIDE


def before_unlearning(before: Before) -> str:
    """What a user reads before the stage unlearn."""
    base, finetuned = before.base, before.finetuned
    text = (
        f"RULER: mean rank of {counted(finetuned.records, 'forget record')} "
        f"{_with_error(base)} in the base model → {_with_error(finetuned)} in the finetuned one "
        f"(against 0.5: p = {p_text(finetuned.p_value)}). {BEFORE[finetuned.verdict]}"
    )
    if finetuned.verdict in (ABOVE, BELOW) and before.p_moved > LEVEL:
        text += (
            " But the base model, which never saw them, has about the same rank "
            f"(paired: p = {p_text(before.p_moved)}): that may be what they are like, not memory."
        )
    return text


def bands(run: RunDirectory) -> dict[str, Banded]:
    """The metrics of the unlearned model that have a noise band, by their short names."""
    summary = run.stage_summary("unlearn") or {}
    stored = summary.get("ruler", {}).get("bands", {})
    values = {name: summary.get("metrics", {}).get(f"ruler_{name}") for name in stored}
    return {
        name: Banded(values[name], NoiseBand(**{k: v for k, v in band.items() if k != "values"}))
        for name, band in stored.items()
        if values[name] is not None
    }


def after_unlearning(run: RunDirectory) -> RankTest | None:
    """The test of the unlearned model's ranks, None where it has none."""
    test = kept(run, "rank", lambda: _rank_test(run))
    return None if test is None else RankTest(**test)


def _rank_test(run: RunDirectory) -> dict[str, Any] | None:
    log = run.evaluation_log("unlearn") if run.stage_summary("unlearn") is not None else None
    ranks = (log or {}).get("ruler")
    return asdict(rank_test(list(ranks.values()))) if ranks else None


def sentences(run: RunDirectory) -> list[str]:
    """The lines under the comparison table: the unlearned model's rank against 0.5, and its noise bands."""
    test = after_unlearning(run)
    if test is None:
        return []
    lines = [
        f"RULER: mean rank of the forget records in the unlearned model {_with_error(test)}, {AFTER[test.verdict]} "
        f"(p = {p_text(test.p_value)}, {counted(test.records, 'record')})."
    ]
    for name, banded in bands(run).items():
        band = banded.band
        models = f"{band.n} {'pairs of ' * (name == 'gap')}retrained models"
        verdict = INSIDE if banded.verdict == INSIDE else "outside, not like a retrained model"
        lines.append(
            f"RULER: {BANDS[name]} {banded.value:.3f}, {band.confidence:.0%} band of {models} {band.low:.3f} to "
            f"{band.high:.3f}, if these vary normally: {verdict}."
        )
    return lines


def verdict_facts(run: RunDirectory) -> dict[str, Any]:
    """What `verdicts.json` says of RULER; empty where the unlearned model has no ranks."""
    test = after_unlearning(run)
    if test is None:
        return {}
    facts: dict[str, Any] = {"mean_rank": {"verdict": test.verdict, "null": NULL, **rank_facts(test)}}
    for name, banded in bands(run).items():
        facts.setdefault(name, {"value": banded.value})["band"] = {"verdict": banded.verdict, **asdict(banded.band)}
    return facts


def _with_error(test: RankTest) -> str:
    return f"{test.mean:.3f}" + (f" ± {test.error:.3f}" if test.records > 1 else "")


def p_text(value: float) -> str:
    """A p-value with three decimals, or in powers of ten below 0.001."""
    return f"{value:.3f}" if value >= 0.001 else f"{value:.1e}"
