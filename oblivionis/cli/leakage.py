"""The command `audit leakage`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from oblivionis.cli.as_json import AsJson, answering
from oblivionis.errors import OblivionisError

if TYPE_CHECKING:
    from evaluation.leakage.functions import Asked, LeakageFunction
    from evaluation.leakage.summary import Terms
    from oblivionis.audits.leakage import Audit, AuditedModel, Sampling


Target = Annotated[
    str,
    typer.Argument(
        metavar="RUN|CHECKPOINT|MODEL",
        help="A run directory, a checkpoint, a name in `conf/model`, a model or adapter folder, a name on the hub.",
    ),
]
Questions = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="JSON lines, CSV, parquet, … with `question` and `answer`, `keywords` or neither (default: a run's forget "
        "questions).",
    ),
]
Stage = Annotated[str | None, typer.Option(help="Stage of a RUN (default: the last finished one).")]
Samples = Annotated[int, typer.Option(min=1, help="Answers sampled per question.")]
Alpha = Annotated[float, typer.Option(help="Each bound fails with at most this probability, in (0, 0.5].")]
FamilyWise = Annotated[
    bool, typer.Option("--family-wise", help="Let a bound hold for all questions at once (alpha / questions each).")
]
StopAt = Annotated[
    float | None,
    typer.Option(
        metavar="LEAKAGE",
        help="Sample a question only until its expected leakage is certified below, or shown above, this value.",
    ),
]
Function = Annotated[
    str | None,
    typer.Option(
        help="Leakage of an answer: rouge_l_recall, rouge_l_f1, exact, keyword or classifier (default: classifier "
        "with --classifier, keyword where the questions have keywords and no answers, else rouge_l_recall)."
    ),
]
Classifier = Annotated[
    str | None, typer.Option(metavar="MODEL", help="Text-classification model for the function classifier.")
]
Label = Annotated[str | None, typer.Option(help="Its label, or the label's number, whose probability is the leakage.")]
ClassifierInput = Annotated[
    str, typer.Option(metavar="TEXT", help="What it reads; {question} and {answer} are filled in.")
]
LeaksFrom = Annotated[float, typer.Option(help="Leakage from which an answer counts as leaked (M_bin).")]
Limit = Annotated[float, typer.Option(help="A question leaks when its M_bin exceeds this.")]
Rho = Annotated[float, typer.Option(help="Weight of the deviation in the ED score.")]
Temperature = Annotated[float, typer.Option(help="Temperature of the samples.")]
TopP = Annotated[float, typer.Option(help="Sample from the likeliest tokens that reach this probability.")]
TopK = Annotated[int | None, typer.Option(help="Sample from so many likeliest tokens.")]
Confidence = Annotated[
    float | None,
    typer.Option(help="Adaptive temperature scaling: greedy above this mean confidence (the paper: 0.9)."),
]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the samples.")]
Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of the results (default: in the run, or ./audits).")
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override, e.g. model.template.kind=chat.")
]


def audit_leakage(
    target: Target,
    questions: Questions = None,
    stage: Stage = None,
    samples: Samples = 1024,
    alpha: Alpha = 0.01,
    family_wise: FamilyWise = False,
    stop_at: StopAt = None,
    function: Function = None,
    classifier: Classifier = None,
    label: Label = None,
    classifier_input: ClassifierInput = "{answer}",
    leaks_from: LeaksFrom = 0.5,
    limit: Limit = 0.1,
    rho: Rho = 2.0,
    temperature: Temperature = 1.0,
    top_p: TopP = 0.9,
    top_k: TopK = None,
    confidence: Confidence = None,
    max_new_tokens: MaxNewTokens = 64,
    seed: Seed = 0,
    out: Out = None,
    set_: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Sample answers and bound what the model may give away, beside what greedy decoding shows.

    Repeated into the same folder it samples only what is missing, so it may be interrupted or repeated with another
    leakage function or significance. Choose --samples beforehand; to decide by looking, use --stop-at.
    """
    from oblivionis.audits.audited_model import find_target
    from oblivionis.data.questions import read_questions

    asked = None if questions is None else read_questions(questions)
    found = find_target(target, stage, set_ or [])

    from evaluation.engine.sampling import Rule
    from evaluation.leakage.summary import Terms
    from oblivionis.audits import leakage as audit
    from oblivionis.files import read_json
    from oblivionis.runs.failed_evaluators import measuring

    try:
        terms = Terms(alpha=alpha, family_wise=family_wise, rho=rho, leaks_from=leaks_from, limit=limit)
        rule = Rule(temperature, top_p, top_k, confidence)
    except ValueError as error:
        raise OblivionisError(str(error)) from error
    with answering(as_json) as answer:
        subject = audit.load_subject(found)
        source = audit.FORGET if asked is None else audit.FROM_FILE
        asked = audit.forget_questions(subject) if asked is None else asked
        judge = audit.leakage_function(function, asked, classifier, label, classifier_input, device=subject.device)
        sampling, folder = audit.Sampling(samples, rule, max_new_tokens, seed), out or subject.folder
        with measuring(f"leakage of {subject.name}", "the same command goes on with the answers that it has"):
            result = _audit(subject, asked, judge, terms, sampling, folder, stop_at, source)
        if as_json:
            answer({"folder": folder, **read_json(folder / "audit.json", dict[str, Any])})
        else:
            _print(result, folder)


def _audit(
    subject: AuditedModel,
    asked: Sequence[Asked],
    judge: LeakageFunction,
    terms: Terms,
    sampling: Sampling,
    folder: Path,
    stop_at: float | None,
    source: str,
) -> Audit:
    """Audit with a bar that tells how far it is, and draw what was found."""
    from oblivionis.audits import leakage as audit
    from oblivionis.cli.progress_display import following
    from oblivionis.reports import leakage as leakage_report
    from oblivionis.reports.certificate.signing import mark_superseded

    with following(Console(), "sampling answers") as follow:
        result = audit.audit_leakage(
            subject,
            asked,
            judge,
            terms,
            sampling,
            folder,
            stop_at=stop_at,
            progress=lambda done, total: follow(done, total, ""),
            asked=source,
        )
    if subject.run is not None:
        mark_superseded(subject.run)
    leakage_report.figures(result, folder / "figures")
    return result


def _print(result: Audit, folder: Path) -> None:
    from oblivionis.reports import leakage as leakage_report

    console, figures = Console(), len(list((folder / "figures").iterdir()))
    leakage_report.print_audit(result, console)
    console.print(
        f"results: {folder} (audit.json, leakage.parquet, samples/, {figures} figures)",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
