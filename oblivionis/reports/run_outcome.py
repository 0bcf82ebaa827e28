"""A run's outcome in one sentence, and what to do next: what stands above all tables."""

from __future__ import annotations

import itertools
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from evaluation.metrics.retrained_comparison import NEAR, OVER_UNLEARNED, STILL_KNOWN, UNDECIDED, Verdict
from evaluation.metrics.rouge import ANY_SCRIPT
from oblivionis.config import method_traits
from oblivionis.config.schema import Config
from oblivionis.erasure.hidden_requests import seals
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.retained_twins import oracle_as_text, read_twins
from oblivionis.erasure.verification_rules import DONE, ERASED, VERIFIED
from oblivionis.reports.format import counted, number
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.failed_evaluators import failures

GOOD, DOUBTFUL, BAD = "good", "doubtful", "bad"
KEPT = 0.9
"""Share of the finetuned model's utility below which the sentence is not good news."""
COMPARED = ("finetune", "unlearn", "retrain")
_KNOWS = {
    OVER_UNLEARNED: "the unlearned model finds the forgotten answers less likely than {oracle}",
    STILL_KNOWN: "the unlearned model still knows the forgotten records",
    NEAR: "the unlearned model finds the forgotten answers about as likely as {oracle}",
    UNDECIDED: "the questions are too few to tell whether the unlearned model still knows the forgotten records",
}
_GRADE = {OVER_UNLEARNED: DOUBTFUL, STILL_KNOWN: BAD, NEAR: GOOD, UNDECIDED: DOUBTFUL}


@dataclass(frozen=True)
class Outcome:
    """sentence: what became of the requests, of the knowledge and of utility; grade: `GOOD`, `DOUBTFUL` or `BAD`;
    steps: what to do next, a command each."""

    sentence: str
    grade: str
    steps: tuple[str, ...] = ()


def of_run(run: RunDirectory, config: Config) -> Outcome | None:
    """The outcome by what lies in the run; None before it unlearned. Good news is computed anew, not taken from
    figures that were kept."""
    from oblivionis.reports import verdicts

    convention = config.evaluation.truth_ratio
    summaries = {stage: run.stage_summary(stage) for stage in COMPARED}
    metrics = {stage: summary["metrics"] for stage, summary in summaries.items() if summary is not None}
    result = outcome(run, config, metrics, verdicts.find_verdicts(run, convention))
    if result is not None and result.grade == GOOD:
        return outcome(run, config, metrics, verdicts.find_verdicts(run, convention, anew=True))
    return result


def outcome(
    run: RunDirectory, config: Config, metrics: Mapping[str, Mapping[str, float]], verdicts: Mapping[str, Verdict]
) -> Outcome | None:
    """What came out of a run with these metrics of its stages and these verdicts; None before it unlearned."""
    if nothing := artifact_binding.nothing_follows(run):
        return Outcome(nothing, BAD)
    if "unlearn" not in metrics:
        return None
    utility = _utility(metrics, config.evaluation.rouge) or _no_utility(run)
    known = knowledge(run, verdicts, metrics)
    parts = [p for p in (_requests(run, config), known, utility, _not_measured(run), _not_sealed(run)) if p is not None]
    grades = [grade for _, grade in parts]
    grade = next((g for g in (BAD, DOUBTFUL) if g in grades), GOOD)
    if grade == GOOD and (known is None or utility is None):
        grade = DOUBTFUL
    sentence = "; ".join(text for text, _ in parts)
    return Outcome(f"{sentence[:1].upper()}{sentence[1:]}." if sentence else "", grade, _steps(run, config, verdicts))


def _not_sealed(run: RunDirectory) -> tuple[str, str] | None:
    """Why the ledger does not name all files that the sentence rests on; None where it does."""
    missing = artifact_binding.check(run, with_models=False).missing
    return (f"it is not sealed: {missing}", DOUBTFUL) if missing else None


def _not_measured(run: RunDirectory) -> tuple[str, str] | None:
    """What the sentence goes without because evaluators failed on a model that it compares."""
    failed = dict.fromkeys(f.evaluator for f in failures(run) if f.final and f.stage in COMPARED)
    return (f"not measured, because it failed: {', '.join(failed)}", DOUBTFUL) if failed else None


def _requests(run: RunDirectory, config: Config) -> tuple[str, str] | None:
    requests = list(Ledger(run.ledger_path))
    if not requests:
        hidden = "requests are sealed: who asked for what is known to the clients alone"
        return hidden if seals(config) else "nobody asked to forget anything", DOUBTFUL
    states = Counter(r.outcome for r in requests)
    count, word = len(requests), ERASED if ERASED in states else VERIFIED
    grade = GOOD if sum(states[outcome] for outcome in DONE) == count else DOUBTFUL
    of_word = states.pop(word, 0)
    others = ", ".join(f"{n} {state}" for state, n in sorted(states.items()))
    return f"{of_word} of {counted(count, 'deletion request')} {word}{f' ({others})' if others else ''}", grade


def knowledge(
    run: RunDirectory, found: Mapping[str, Verdict], metrics: Mapping[str, Mapping[str, float]]
) -> tuple[str, str] | None:
    """What is left of the forgotten records; no good news against a retrained model that was trained on the like."""
    twins = read_twins(run)
    compared = _compared_with_oracle(run, found, metrics)
    if compared is None or twins is None or not twins.pairs:
        return compared
    text, grade = compared
    return text, DOUBTFUL if grade == GOOD else grade


def _compared_with_oracle(
    run: RunDirectory, found: Mapping[str, Verdict], metrics: Mapping[str, Mapping[str, float]]
) -> tuple[str, str] | None:
    from oblivionis.reports import verdicts

    verdict = found.get("prob")
    if verdict is None:
        return None
    values = f"Prob {number(verdict.value)}, {number(verdict.oracle)} there"
    if missing := _unrequested(run):
        records = "any" if missing["records"] == missing["of"] else missing["records"]
        text = (
            f"nobody asked to forget {records} of the forget split's {missing['of']} records, which the retrained "
            f"model lacks, too, so the two cannot be compared ({values})"
        )
        return text, DOUBTFUL
    text = f"{_KNOWS[verdict.verdict].format(oracle=oracle_as_text(run))} ({values})"
    grade = _GRADE[verdict.verdict]
    tests = verdicts.p_values(found, metrics)
    if verdict.verdict != NEAR or not tests:
        return text, grade
    names = verdicts.telling(tests)
    if names:
        verb = "tells" if len(names) == 1 else "tell"
        return f"{text}, but {len(names)} of {len(tests)} tests {verb} the two apart: {', '.join(names)}", DOUBTFUL
    none = f"none of {len(tests)} tests tells" if len(tests) > 1 else "one test does not tell"
    oracle = oracle_as_text(run, "one that never saw the records")
    return f"{none} the unlearned model from {oracle} ({values})", grade


def _unrequested(run: RunDirectory) -> Mapping[str, int]:
    """How many `records` of the forget split, all `of` them and of how many `clients`, nobody asked to forget; empty
    where none is left."""
    return (run.stage_summary("unlearn") or {}).get("unrequested", {})


def _utility(metrics: Mapping[str, Mapping[str, float]], rouge: str) -> tuple[str, str] | None:
    words = " (words of every script)" if rouge == ANY_SCRIPT else ""
    for key, name in (("model_utility", f"utility{words}"), ("retain_rouge", f"retain ROUGE{words}")):
        before, after = metrics.get("finetune", {}).get(key), metrics["unlearn"].get(key)
        if before and after is not None:
            share = after / before
            return f"{name} {share:.0%} of the finetuned model's", GOOD if share >= KEPT else DOUBTFUL
    if metrics.get("finetune", {}).get("retain_rouge") == 0:
        return f"nothing on utility: the finetuned model's retain ROUGE{words} is 0", DOUBTFUL
    return None


def _no_utility(run: RunDirectory) -> tuple[str, str] | None:
    """That nothing is said of the utility because what it goes by is left out for a reason."""
    summary = run.stage_summary("unlearn") or {}
    left_out = "retain_rouge" in summary.get("notes", {}) and "retain_rouge" not in summary["metrics"]
    return ("nothing on utility: retain ROUGE is left out (see the note on it)", DOUBTFUL) if left_out else None


def _steps(run: RunDirectory, config: Config, found: Mapping[str, Verdict]) -> tuple[str, ...]:
    verdict, unlearning = found.get("prob"), config.unlearning
    if config.data.on_clients:  # the server has nothing to compare
        return ()
    place = shlex.quote(str(run.path))
    exact = method_traits.replays(unlearning.method)
    start = "" if exact else f" start_from={place}"
    again = f"oblivionis simulate {shlex.quote(str(run.path / 'config.yaml'))}{start}{_name(run, config)}"
    if exact and verdict is not None:  # there is no more or less of it
        return ()
    if verdict is None:
        if "retrain" in config.stages:
            return ()
        return (f"to compare with {_to_compare(run)}: {again} 'stages=[finetune, retrain, unlearn]'",)
    if missing := _unrequested(run):
        if unlearning.requests.policy != "random_client_per_round":
            return ()
        rounds = config.federation.rounds.unlearn + missing["clients"]
        return (f"to have all of them asked for: {again} federation.rounds.unlearn={rounds}",)
    if verdict.verdict == STILL_KNOWN:
        return (f"to unlearn more: {again} unlearning.epochs={2 * unlearning.epochs}",)
    if verdict.verdict == OVER_UNLEARNED:
        less = f"unlearning.epochs={unlearning.epochs // 2}"
        if unlearning.epochs < 2:
            rate = config.training.learning_rate if unlearning.learning_rate is None else unlearning.learning_rate
            less = f"unlearning.learning_rate={rate / 2:g}"
        return (f"to unlearn less: {again} {less}",)
    return ()


def _to_compare(run: RunDirectory) -> str:
    known = read_twins(run)
    return (
        "a model that never saw the records" if known and not known.pairs else "a model retrained without the records"
    )


def _name(run: RunDirectory, config: Config) -> str:
    """Another name where this run was given one."""
    if not config.name:
        return ""
    free = (f"{config.name}-{number}" for number in itertools.count(2))
    return f" name={shlex.quote(next(name for name in free if not (run.path.parent / name).exists()))}"
