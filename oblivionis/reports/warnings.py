"""What a reader of a run must know before believing its numbers: what went wrong, and how far the claims reach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from evaluation.leakage import bounds
from evaluation.metrics.retrained_comparison import FACTOR, OVER_UNLEARNED, STILL_KNOWN
from evaluation.metrics.rouge import ANY_SCRIPT
from oblivionis.config import method_traits
from oblivionis.config.schema import Config
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import COVERED, PENDING, REJECTED, Request
from oblivionis.erasure.retained_twins import read_twins
from oblivionis.erasure.verification_rules import INCONCLUSIVE, NOT_TESTABLE, NOT_VERIFIED
from oblivionis.errors import NotMeasured, RunFailed
from oblivionis.measures.ruler import report as ruler_report
from oblivionis.measures.tofu import report as tofu_report
from oblivionis.measures.tofu.report import SIGNIFICANT
from oblivionis.naming import LOG_SETS
from oblivionis.reports import run_summary as report
from oblivionis.reports import verdicts
from oblivionis.reports.format import counted, number, printable
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.failed_evaluators import check_measured, failures

UTILITY_SHARE = 0.5
"""Model utility and retain ROUGE-L recall below this share of the finetuned model's have collapsed."""
LEAST_KS_QUESTIONS = 40
"""Forget questions of TOFU's smallest split: with fewer, a high forget quality says little."""
LARGEST_SLACK = 0.1
"""Bounds on the mean leakage that cannot be below this, whatever the model says, are called loose."""
ONE_ORACLE = "one oracle"
NAMED = 5


@dataclass(frozen=True, slots=True)
class RunWarning:
    """kind: a short name that is the same in every run; text: one sentence or two; limit: nothing is wrong, but the
    numbers say less than they seem to."""

    kind: str
    text: str
    limit: bool = False


def find_warnings(run: RunDirectory, config: Config) -> list[RunWarning]:
    """All warnings about a run, finished or not, the graver ones first. Nothing is measured anew."""
    metrics = report.stage_metrics(run, config.evaluation.truth_ratio, config.evaluation.membership.confidence)
    found = [
        *_unfinished(run, config),
        *_verdicts(run, config),
        *_utility(metrics, config.evaluation.rouge),
        *_twins(run),
        *_oracle(run, config, metrics),
        *_requests(run, config),
        *_failed_evaluators(run),
        *_failed_replies(run),
        *_clipped_replies(run),
        *_questions(run, metrics),
        *_learned_answers(config, metrics),
        *_samples(config, metrics),
    ]
    return sorted(found, key=lambda w: w.limit)


def _unfinished(run: RunDirectory, config: Config) -> Iterator[RunWarning]:
    missing = [stage for stage in config.stages if run.stage_summary(stage) is None]
    if missing:
        yield RunWarning("unfinished", f"The run is not finished: {listed(missing)} did not come to an end.")


def _verdicts(run: RunDirectory, config: Config) -> Iterator[RunWarning]:
    found = verdicts.find_verdicts(run, config.evaluation.truth_ratio)
    for line, verdict in zip(verdicts.sentences(found), found.values(), strict=True):
        if verdict.verdict in (OVER_UNLEARNED, STILL_KNOWN):
            yield RunWarning(verdict.verdict, line[2:])


def _utility(metrics: Mapping[str, Mapping[str, float]], rouge: str) -> Iterator[RunWarning]:
    before, after = metrics.get("finetune", {}), metrics.get("unlearn", {})
    words = " (words of every script)" if rouge == ANY_SCRIPT else ""
    for key, name in (("model_utility", f"Model utility{words}"), ("retain_rouge", f"Retain ROUGE-L recall{words}")):
        old, new = before.get(key), after.get(key)
        if old is None or new is None:
            continue
        if old > 0 and new < UTILITY_SHARE * old:
            yield RunWarning(
                "collapsed utility",
                f"{name} collapsed: {number(new)} after unlearning, {number(old)} before, less than "
                f"{UTILITY_SHARE:.0%} of it. What is forgotten says little of a model that knows little else.",
            )
        elif old == 0:
            yield RunWarning(
                "collapsed utility",
                f"{name} is 0 in the finetuned model already: training did not work, and there was nothing to keep.",
            )


def _oracle(run: RunDirectory, config: Config, metrics: Mapping[str, Mapping[str, float]]) -> Iterator[RunWarning]:
    if "unlearn" not in metrics:
        return
    if "retrain" not in metrics:
        yield RunWarning(
            "missing oracle",
            "There is no retrained model: nothing says how a model would look that never saw the records, so there is "
            "no forget quality and no word on over-unlearning. Add the stage retrain to `stages`.",
        )
        return
    p = metrics.get("finetune", {}).get("forget_quality")
    known, never_seen = (metrics.get(stage, {}).get("forget_prob") for stage in ("finetune", "retrain"))
    likelier = known is not None and never_seen is not None and known > FACTOR * never_seen
    if p is not None and p > SIGNIFICANT and not likelier:
        yield RunWarning(
            "nothing to forget",
            f"The finetuned model cannot be told from the retrained one on the forget questions (p = "
            f"{number(p)}): as far as these show, there was nothing to forget.",
        )
    if not ruler_report.bands(run):
        yield RunWarning(
            ONE_ORACLE,
            "One retrained model of one seed: how far retrained models of other seeds lie from it is not known, so a "
            "small difference from it may be chance. `evaluation.ruler.oracles` takes more of them.",
            limit=True,
        )


def _twins(run: RunDirectory) -> Iterator[RunWarning]:
    """Records to forget that others say as well, which nobody forgets."""
    known = read_twins(run)
    if known is not None and known.pairs:
        yield RunWarning("twins", f"{printable(known.warning())}.")


def _requests(run: RunDirectory, config: Config) -> Iterator[RunWarning]:
    if run.stage_summary("unlearn") is None:
        return
    requests = list(Ledger(run.ledger_path))
    limit = config.unlearning.requests.verify_max_rouge
    yield from _unserved(requests)
    if failed := [r for r in requests if r.outcome == NOT_VERIFIED]:
        yield RunWarning(
            "failed verification",
            f"{_count(failed)} served but not verified: the final model still knows the records (recited: ROUGE-L "
            f"recall above {limit:g}): {_named(failed)}.",
        )
    for outcome in (OVER_UNLEARNED, NOT_TESTABLE, INCONCLUSIVE):
        if doubtful := [r for r in requests if r.outcome == outcome]:
            why = Counter(r.why for r in doubtful).most_common(1)[0][0]
            yield RunWarning(outcome, f"{_count(doubtful)} served, but {outcome} ({why}): {_named(doubtful)}.")
    yield from _not_asked(run, requests)


def _unserved(requests: Sequence[Request]) -> Iterator[RunWarning]:
    if waiting := [r for r in requests if r.state == PENDING]:
        reasons = Counter(r.failure for r in waiting if r.failure)
        why = f" Most frequent reason: {printable(reasons.most_common(1)[0][0])}." if reasons else ""
        yield RunWarning("pending requests", f"{_count(waiting)} still pending: {_named(waiting)}.{why}")
    if refused := [r for r in requests if r.state == REJECTED]:
        yield RunWarning("rejected requests", f"{_count(refused)} rejected: {_named(refused)}.")


def check_done(run: RunDirectory) -> None:
    """Say at the end of a command what was asked of a run and not done.

    Raises
    ------
    RunFailed
        Where requests are pending or were rejected in its stage `unlearn`.
    NotMeasured
        Where none is, and evaluators failed.
    """
    require_done([warning.text for warning in unserved(run)], partial(check_measured, run))


def require_done(left: Sequence[str], check: Callable[[], None]) -> None:
    """RunFailed with the sentences `left` about what was not done and what `check` says was not measured; its
    NotMeasured where nothing is left."""
    try:
        check()
    except NotMeasured as error:
        if not left:
            raise
        left = [*left, str(error)]
    if left:
        raise RunFailed(" ".join(left))


def unserved(run: RunDirectory) -> list[RunWarning]:
    """Of which requests the stage `unlearn` of a run ended without having served them; empty before its end."""
    ended = run.stage_summary("unlearn") is not None
    return list(_unserved(list(Ledger(run.ledger_path)))) if ended else []


def _not_asked(run: RunDirectory, requests: Sequence[Request]) -> Iterator[RunWarning]:
    """Forget questions about records that nobody served: they pull the forget rows towards the finetuned model."""
    ids = (run.evaluation_log("unlearn") or {}).get("ids", {}).get(LOG_SETS["forget"], [])
    gone = {i for r in requests if r.state not in (PENDING, REJECTED, COVERED) for i in r.record_ids}
    named = {i for r in requests for i in r.record_ids}
    left = [i for i in ids if i not in gone]
    if left and len(left) < len(ids) and named & set(ids):
        yield RunWarning(
            "records not deleted",
            f"{len(left)} of {len(ids)} forget questions are about records whose deletion was not served (or not asked "
            "for): the forget rows are means over both.",
        )


def _failed_evaluators(run: RunDirectory) -> Iterator[RunWarning]:
    rows, found = run.metrics(), failures(run)
    for name in dict.fromkeys(f.evaluator for f in found):
        those = [f for f in found if f.evaluator == name]
        times = len({(r["stage"], r["round"], r.get("moment")) for r in rows if r["evaluator"] == name})
        first = those[0]
        yield RunWarning(
            "failed evaluator",
            f"The evaluator {name} failed in {len(those)} of {counted(times, 'evaluation')}, first in {first.stage}, "
            f"round {first.round}: {printable(first.reason)}. What it would have measured there is missing.",
        )


def _failed_replies(run: RunDirectory) -> Iterator[RunWarning]:
    rows = [row["metrics"] for row in run.metrics() if row["evaluator"] == "federation"]
    failures = [int(values.get("failures") or 0) for values in rows]
    if sum(failures):
        rounds = sum(count > 0 for count in failures)
        answers = "reply failed and its client was" if sum(failures) == 1 else "replies failed and their clients were"
        yield RunWarning(
            "failed replies",
            f"{sum(failures)} {answers} left out, in {rounds} of {counted(len(rows), 'round')}; `flower.log` says why.",
        )


def _clipped_replies(run: RunDirectory) -> Iterator[RunWarning]:
    cut = [entry for row in run.metrics() if row["evaluator"] == "federation" for entry in row.get("cut", ())]
    if cut:
        clients = sorted({entry["client"] for entry in cut})
        named = ", ".join(map(str, clients[:NAMED])) + (", …" if len(clients) > NAMED else "")
        weights = sum(entry["what"] == "weight" for entry in cut)
        yield RunWarning(
            "cut replies",
            f"What clients sent was cut: {_too(len(cut) - weights, 'update', 'long')} and "
            f"{_too(weights, 'weight', 'large')}, of client{'s' * (len(clients) > 1)} {named}; see `cut` in "
            "`metrics.jsonl`.",
        )


def _too(count: int, what: str, how: str) -> str:
    return f"{counted(count, what)} that {'was' if count == 1 else 'were'} too {how}"


def _questions(run: RunDirectory, metrics: Mapping[str, Mapping[str, float]]) -> Iterator[RunWarning]:
    if metrics.get("unlearn", {}).get("forget_quality") is None:
        return
    questions = tofu_report.questions(run)
    if 0 < questions < LEAST_KS_QUESTIONS:
        least = tofu_report.ks_p_value(questions, questions)
        text = (
            f"Forget quality compares {counted(questions, 'question')} of either model: no p-value below "
            f"{number(least)} can occur, "
        )
        steps = tofu_report.telling_steps(questions)
        text += (
            f"and a distance of less than {steps / questions:.2f} between the two distributions (of at most 1) "
            f"passes as no difference (p ≥ {SIGNIFICANT:g})."
            if steps is not None
            else f"so not even models that share nothing are told apart at {SIGNIFICANT:g}."
        )
        yield RunWarning("few questions", text, limit=True)


def _learned_answers(config: Config, metrics: Mapping[str, Mapping[str, float]]) -> Iterator[RunWarning]:
    """The truth ratio compares with the very answers that were learned in the place of the true ones."""
    unlearning, values = config.unlearning, metrics.get("unlearn", {})
    learned = method_traits.needs_alternatives(unlearning.method) and unlearning.alternatives.source == "perturbed"
    if learned and values.get("forget_truth_ratio") is not None:
        yield RunWarning(
            "learned answers",
            f"{method_traits.label(unlearning.method)} learned the perturbed answers to the records that it forgot. "
            "Truth ratio and forget quality compare the true answer with just these: they may look better, or worse, "
            "than what is forgotten.",
            limit=True,
        )


def _samples(config: Config, metrics: Mapping[str, Mapping[str, float]]) -> Iterator[RunWarning]:
    values, settings = metrics.get("unlearn") or metrics.get("finetune") or {}, config.evaluation.leakage
    samples = int(values.get("leakage_samples") or 0)
    if not samples:
        return

    least = float(bounds.binary_leakage_bound(0, samples, settings.alpha))
    if least > settings.limit:
        yield RunWarning(
            "few samples",
            f"{samples} sampled answers per question cannot certify that a question does not leak: even without a leak "
            f"M_bin is {least:.2f}, the limit {settings.limit:g}. `oblivionis audit leakage` draws more.",
            limit=True,
        )
    slack = float(bounds.expectation_upper_bound(np.zeros(samples), settings.alpha))
    if slack > LARGEST_SLACK:
        yield RunWarning(
            "few samples",
            f"The bound on the mean leakage cannot be below {slack:.2f} with {samples} sampled answers per question, "
            "whatever the model says. `oblivionis audit leakage` draws more.",
            limit=True,
        )


def _count(requests: Sequence[Request]) -> str:
    return "1 deletion request is" if len(requests) == 1 else f"{len(requests)} deletion requests are"


def _named(requests: Sequence[Request]) -> str:
    return listed([printable(r.id) for r in requests])


def listed(names: Sequence[str]) -> str:
    """The first `NAMED` names, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
