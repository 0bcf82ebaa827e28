"""The leakage audit: sample a model's answers to questions, keep them, and bound what the model may give away.

A repeated audit into the same folder samples only what is missing; see `leakage_samples`.
"""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from evaluation.leakage import functions
from evaluation.leakage.classifier import Classifier
from evaluation.leakage.diversity import diversity
from evaluation.leakage.functions import Asked, LeakageFunction
from evaluation.leakage.sequential import Decision, SequentialTest
from evaluation.leakage.summary import Summary, Terms, summarise
from oblivionis.audits.audited_model import AuditError
from oblivionis.audits.leakage_samples import Progress, SampleStore, draw, rule_of
from oblivionis.audits.loaded_model import AuditedModel
from oblivionis.config.schema import LeakageAudit
from oblivionis.files import write_atomic, write_json
from oblivionis.models.configured_corpus import corpus_of
from oblivionis.runs import artifact_binding

FORGET, FROM_FILE = "forget questions", "a file"


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit found for Q questions.

    leakage: per question an array (n,) in [0, 1]; greedy: (Q,); diversity (Q,): 1 − self-BLEU, NaN below two samples;
    summary: of a fixed number of samples, None for a sequential audit; decisions: of a sequential audit, else None;
    sampled: answers that this audit drew, the others were there already; enlarged: some question had fewer before.
    """

    subject: str
    questions: Sequence[Asked]
    greedy_answers: Sequence[str]
    greedy: np.ndarray
    leakage: Sequence[np.ndarray]
    diversity: np.ndarray
    function: str
    terms: Terms
    stop_at: float | None
    summary: Summary | None
    decisions: Sequence[Decision] | None
    sampled: int
    enlarged: bool
    seconds: float


def forget_questions(subject: AuditedModel) -> list[Asked]:
    """The forget questions of a run. Raises AuditError for a model that no run made, or a run without any."""
    if subject.run is None:
        raise AuditError(f"{subject.name} is no run: name the questions with --questions FILE")
    records = corpus_of(subject.config).evaluation.get("forget", ())
    if not records:
        raise AuditError(f"{subject.name}: the run's data have no forget questions; name some with --questions FILE")
    return [
        Asked(record.id, record.question, record.answer, tuple(triple.value for triple in record.triples))
        for record in records
    ]


def leakage_function(settings: LeakageAudit, questions: Sequence[Asked], device: Any = None) -> LeakageFunction:
    """The leakage function of the settings; without one the choice is by what is given: answers before keywords.

    Raises AuditError for a classifier that is missing, cannot be loaded or does not know the label, or that another
    function does not use.
    """
    name, classifier, label = settings.function, settings.classifier, settings.label
    if name is None:
        keywords = all(q.keywords for q in questions) and any(q.answer is None for q in questions)
        name = "classifier" if classifier is not None else "keyword" if keywords else functions.rouge_l_recall.name
    if name != "classifier":
        given = "classifier" if classifier is not None else "label" if label is not None else None
        if given is not None:
            raise AuditError(f"{given} is given, but the leakage function is {name}; leave one of them out")
        return functions.get(name)
    if classifier is None or label is None:
        raise AuditError("the leakage function classifier needs classifier=MODEL and label=LABEL")
    try:
        wanted = int(label) if label.isdigit() else label
        return Classifier.load(classifier, wanted, device=device, template=settings.classifier_input)
    except (ValueError, OSError) as error:
        raise AuditError(f"classifier {classifier}: {error}") from error


def audit_leakage(
    subject: AuditedModel,
    questions: Sequence[Asked],
    function: LeakageFunction,
    settings: LeakageAudit,
    folder: Path,
    *,
    progress: Progress | None = None,
    asked: str = FROM_FILE,
) -> Audit:
    """Audit `subject` on `questions` and write the results to `folder`; the ledger of its run names them.

    With `settings.stop_at` a question is sampled only until its expected leakage is certified below, or shown above,
    that threshold, by a test that may be evaluated at any time (Waudby-Smith & Ramdas 2023). Otherwise every question
    gets `settings.samples` answers. `function` judges them. asked: where the questions come from, `FORGET` or
    `FROM_FILE`. Raises AuditError when a question does not have what `function` needs.
    """
    start = time.perf_counter()
    try:
        result = _measured(subject, questions, function, settings, folder, progress)
        result = replace(result, seconds=time.perf_counter() - start)
        written = {"model": subject.adapter, "asked": asked, **_facts(result, settings)}
        _write_table(result, folder)
        if subject.run is not None and folder == subject.folder:
            artifact_binding.measured(subject.run, folder / "audit.json", written)
        else:
            write_json(folder / "audit.json", written)
    except (ValueError, OSError) as error:
        raise AuditError(str(error)) from error
    return result


def _measured(
    subject: AuditedModel,
    questions: Sequence[Asked],
    function: LeakageFunction,
    settings: LeakageAudit,
    folder: Path,
    progress: Progress | None,
) -> Audit:
    """What the answers give away, sampled as far as they are missing. Raises ValueError, OSError."""
    for question in questions:
        function([""], question)
    terms, tests = _terms(settings), None
    if settings.stop_at is not None:
        alpha = terms.alpha_of(len(questions))
        tests = [SequentialTest(settings.stop_at, alpha, reference=settings.samples) for _ in questions]
    store = SampleStore(subject, questions, settings, folder)
    enlarged = any(0 < len(texts) < settings.samples for texts in store.texts)
    drawn = draw(store, function, tests, progress)
    answers = store.greedy_answers
    deterministic = np.array([function([a], q)[0] for a, q in zip(answers, questions, strict=True)])
    counts = [settings.samples] * len(questions) if tests is None else [t.decision.samples for t in tests]
    texts = [store.texts[i][:count] for i, count in enumerate(counts)]
    leakage = [function(t, asked) for t, asked in zip(texts, questions, strict=True)]
    return Audit(
        subject=subject.name,
        questions=questions,
        greedy_answers=answers,
        greedy=deterministic,
        leakage=leakage,
        diversity=np.array([diversity(t) if len(t) > 1 else np.nan for t in texts]),
        function=function.name,
        terms=terms,
        stop_at=settings.stop_at,
        summary=None if tests is not None else summarise(np.stack(leakage), deterministic, terms),
        decisions=None if tests is None else [test.decision for test in tests],
        sampled=drawn,
        enlarged=enlarged and tests is None,
        seconds=0.0,
    )


def _terms(settings: LeakageAudit) -> Terms:
    """The settings by which answers are judged."""
    return Terms(settings.alpha, settings.family_wise, settings.rho, settings.leaks_from, settings.limit)


def _write_table(result: Audit, folder: Path) -> None:
    """`leakage.parquet`, one row per judged answer."""
    sizes = [len(x) for x in result.leakage]
    table = pa.table(
        {
            "question": np.repeat([q.id for q in result.questions], sizes),
            "sample": np.concatenate([np.arange(n, dtype=np.int32) for n in sizes]),
            "leakage": np.concatenate(result.leakage),
        }
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    write_atomic(folder / "leakage.parquet", buffer.getvalue())


def _facts(result: Audit, settings: LeakageAudit) -> dict[str, Any]:
    rows = []
    for i, asked in enumerate(result.questions):
        row: dict[str, Any] = {"id": asked.id, "question": asked.prompt, "greedy_answer": result.greedy_answers[i]}
        row["samples"] = len(result.leakage[i])
        row["diversity"] = None if np.isnan(result.diversity[i]) else float(result.diversity[i])
        if result.summary is not None:
            row |= {name: float(column[i]) for name, column in result.summary.columns.items()}
        if result.decisions is not None:
            row |= asdict(result.decisions[i]) | {"greedy": float(result.greedy[i])}
        rows.append(row)
    known = result.diversity[~np.isnan(result.diversity)]
    return {
        "subject": result.subject,
        "function": result.function,
        "terms": asdict(result.terms) | {"alpha_per_question": result.terms.alpha_of(len(rows))},
        "sampling": {
            "samples": settings.samples,
            "rule": asdict(rule_of(settings)),
            "max_new_tokens": settings.max_new_tokens,
            "seed": settings.seed,
        },
        "stop_at": result.stop_at,
        "overall": {
            **(result.summary.overall if result.summary is not None else {}),
            **({"diversity": float(known.mean())} if known.size and result.summary is not None else {}),
        },
        "questions": rows,
        "sampled": result.sampled,
        "seconds": result.seconds,
    }
