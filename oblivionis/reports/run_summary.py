"""What a run's reader sees: the comparison table, sample answers and requests on the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.table import Table as RichTable
from rich.text import Text

from evaluation.metrics.catalogue import Metric
from evaluation.metrics.retrained_comparison import Verdict
from oblivionis.config import compose as configuration
from oblivionis.config import method_traits
from oblivionis.config.schema import Config, Template
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import SERVED, Request
from oblivionis.erasure.verification_rules import DONE, ERASED, MEANING, RECORDED, VERIFIED
from oblivionis.errors import OblivionisError
from oblivionis.measures import registry
from oblivionis.measures.membership import report as membership_report
from oblivionis.measures.tofu import report as tofu_report
from oblivionis.models.configured_corpus import corpus_of
from oblivionis.naming import LOG_SETS, MODELS, SETS
from oblivionis.reports import client_tables as node_report
from oblivionis.reports import privacy as privacy_report
from oblivionis.reports import run_outcome
from oblivionis.reports.format import bytes_text, counted, number, shortened
from oblivionis.reports.table import Marked, Table, Term
from oblivionis.runs.answers import answers as logged_answers
from oblivionis.runs.answers import bare
from oblivionis.runs.directory import RunDirectory, list_runs
from oblivionis.runs.duration_forecast import duration
from oblivionis.runs.failed_evaluators import Failure, failures
from oblivionis.runs.run_status import LOCAL, method_words, rounds_done
from oblivionis.runs.stored_significance_tests import kept
from oblivionis.runs.updates import kept_on_disk
from strategies.message_keys import SCOPE_CLIENT, SCOPE_RECORDS, SCOPE_SUBJECT

if TYPE_CHECKING:
    from oblivionis.models.memory import Estimate
    from oblivionis.models.model_description import ModelFacts

LEGEND = (
    "How to read it: forget rows, the nearer the retrained model the better; other rows, the higher the better. "
    "Forget quality is the p-value of telling a model from the retrained one (itself: 1)."
)
NO_ORACLE = "No forget quality: it compares with the retrained model. Add the stage retrain to `stages`."
EXPLAINED = {
    "base": "Base model",
    "finetune": "Finetuned model",
    "unlearn": "Unlearned model",
    "retrain": "Retrained model",
}
"""What the glossary calls the model that a stage ends with."""
COLOURS = {run_outcome.GOOD: "green", run_outcome.DOUBTFUL: "yellow", run_outcome.BAD: "red"}
TEXT_SETS = {
    ("muse", "verbmem"): "Forget",
    ("muse", "knowmem_forget"): "Forget",
    ("muse", "knowmem_retain"): "Retain",
    ("rwku", "forget_questions"): "Forget",
    ("rwku", "neighbor_questions"): "Neighbours",
}
"""By evaluator and set, those whose answers are shown of data that are texts, and what they are about."""
SHOWN_REQUESTS = 5
SHOWN_FAILURES = 5
SHOWN_REASON = 60
"""Characters of a reason in a cell."""
FAILED = Marked("failed", "alarm")
"""A cell whose figure is missing because an evaluator failed."""


def stage_metrics(
    run: RunDirectory, convention: str = "geometric", confidence: float = 0.95
) -> dict[str, dict[str, float]]:
    """Final metrics of each finished stage, in the order of the table: base model, finetune, unlearn, retrain, local.

    They are those of `stages/<stage>.json`, and what a stage could not know because it ended before there was a
    retrained model (`Measure.complete`), with the truth ratio `convention` and intervals of that `confidence`.
    """
    return kept(run, "metrics", lambda: _stage_metrics(run, convention, confidence), convention, confidence)


def _stage_metrics(run: RunDirectory, convention: str, confidence: float) -> dict[str, dict[str, float]]:
    summaries = {stage: run.stage_summary(stage) for stage in MODELS}
    found = {stage: dict(summary["metrics"]) for stage, summary in summaries.items() if summary is not None}
    tofu, *others = registry.measures().values()
    for measure in (*others, tofu):  # the order in which figures.json has their numbers
        measure.complete(run, found, convention, confidence)
    return found


def stage_notes(run: RunDirectory) -> dict[str, dict[str, str]]:
    """Of each finished stage, by metric, why it is left out or how its value is to be read; see `stage_metrics`."""
    summaries = {stage: run.stage_summary(stage) for stage in MODELS}
    return {stage: found["notes"] for stage, found in summaries.items() if found is not None and "notes" in found}


def note_lines(notes: Mapping[str, Mapping[str, str]], among: Collection[str] | None = None) -> list[str]:
    """What the notes on metrics say, a line each with the metrics that it is about; among: of these metrics alone."""
    found: dict[str, dict[str, None]] = {}
    for of in notes.values():
        for key, note in of.items():
            if among is None or key in among:
                found.setdefault(note, {})[registry.reader_name(key)] = None
    return [f"{', '.join(names)}: {note}." for note, names in found.items()]


def method(config: Config) -> str:
    """The unlearning method, with the weights of an entropy term on top of it."""
    entropy = config.unlearning.entropy
    return method_words(method_traits.label(config.unlearning.method), entropy.forget, entropy.retain, config.stages)


def rows(
    metrics: Mapping[str, Mapping[str, float]], *, headline: bool = False, noted: Collection[str] = ()
) -> list[tuple[str, str, str, list[float | None]]]:
    """(key, question set, measure, one value per model) of the comparison; rows that no model has are left out, but
    those of the `noted` metrics."""
    return [
        (key, metric.group.title, metric.title, [m.get(key) for m in metrics.values()])
        for key, metric in _shown(metrics, headline=headline, noted=noted).items()
        if metric.group is not None
    ]


def _shown(
    metrics: Mapping[str, Mapping[str, float]], *, headline: bool = False, noted: Collection[str] = ()
) -> dict[str, Metric]:
    """The metrics of the comparison that a model has or that are `noted`, by their keys, in the order of the rows; or
    the chief ones."""
    measured = {key: None for model in metrics.values() for key, value in model.items() if value is not None}
    measured |= dict.fromkeys(noted)
    found = {key: metric for key, metric in registry.among(measured).items() if metric.group is not None}
    few = {key: metric for key, metric in found.items() if metric.headline}
    return few if headline and few else found


def legends(metrics: Mapping[str, Mapping[str, float]]) -> list[str]:
    """How to read the rows of the comparison that single evaluators add."""
    return registry.legends(_shown(metrics))


def comparison(
    metrics: Mapping[str, Mapping[str, float]],
    title: str = "",
    marks: Mapping[str, str] | None = None,
    *,
    doubted: Collection[str] = (),
    headline: bool = False,
    failed: Sequence[Failure] = (),
    notes: Mapping[str, Mapping[str, str]] | None = None,
) -> Table:
    """A row per question set and measure, a column per model, and a row per evaluator that failed.

    marks: metric -> what stands before the unlearned model's value; doubted: metrics whose values say nothing and stand
    in parentheses; chief: the few rows that matter most alone; failed: of them those count that leave a model without
    figures; notes: by stage and metric, why one is left out or how it is to be read, which stands below the table.
    """
    noted = {key for of in (notes or {}).values() for key in of}
    shown = rows(metrics, headline=headline, noted=noted)
    lines: list[Sequence[str] | None] = []
    previous = ""
    absent = {(f.stage, f.evaluator) for f in failed if f.final}
    for key, group, measure, values in shown:
        if previous and group != previous and not headline:
            lines.append(None)
        mark = (marks or {}).get(key, "")
        texts = [_cell(v, mark if stage == "unlearn" else "") for stage, v in zip(metrics, values, strict=True)]
        texts = [f"({text})" for text in texts] if key in doubted else texts
        without = [v is None and registry.not_measured(key, s, absent) for s, v in zip(metrics, values, strict=True)]
        texts = [FAILED if missing else text for missing, text in zip(without, texts, strict=True)]
        lines.append([group, measure, *texts])
        previous = group
    lines += _failed_rows(metrics, failed)
    models = [Term(MODELS.get(stage, stage), EXPLAINED.get(stage, "")) for stage in metrics]
    below = " ".join(note_lines(notes or {}, [key for key, *_ in shown]))
    return Table(title, ["questions", "measure", *models], lines, below, framed=True)


def _failed_rows(stages: Collection[str], failed: Sequence[Failure]) -> list[Sequence[str]]:
    """A row per evaluator that failed at the end of one of the `stages`, with why in the model's column."""
    found: dict[str, dict[str, list[str]]] = {}
    for failure in failed:
        if failure.final and failure.stage in stages:
            found.setdefault(failure.evaluator, {}).setdefault(failure.stage, []).append(failure.reason)
    return [
        ["not measured", name, *(_failed_cell(of[stage]) if stage in of else "" for stage in stages)]
        for name, of in found.items()
    ]


def _failed_cell(reasons: Sequence[str]) -> str:
    """Of the stage `local` there may be several, one for each client."""
    many = f" ({len(reasons)} clients)" if len(reasons) > 1 else ""
    return Marked(f"{FAILED}: {shortened(reasons[0], SHOWN_REASON)}{many}", "alarm")


def failure_lines(run: RunDirectory) -> list[str]:
    """A line per evaluation that failed, in any round; the first `SHOWN_FAILURES`."""
    found = [f"failed: {failure.as_text()}" for failure in failures(run)]
    more = [f"and {len(found) - SHOWN_FAILURES} more; metrics.jsonl has all"] if len(found) > SHOWN_FAILURES else []
    return [*found[:SHOWN_FAILURES], *more]


def _cell(value: float | None, mark: str) -> str:
    return Marked(f"{mark} {number(value)}", "alarm") if mark else number(value)


def samples(run: RunDirectory, config: Config, stages: Sequence[str], *, look_up: bool = True) -> list[dict[str, Any]]:
    """Answers side by side: what every model says to `evaluation.samples_shown` forget questions, evenly spread, and
    to one question of each other set.

    Each has `set`, `question`, `truth` and `answers`, a mapping from the model's name to its answer. look_up: the
    questions of chat prompts are read from the data, which lie outside the run; else they are what the prompts do not
    have in common.
    """
    logs = {stage: log for stage in stages if (log := run.evaluation_log(stage)) is not None}
    count = config.evaluation.samples_shown
    questions: dict[str, str] = {}
    if config.model.template.kind == "chat":
        questions = _chat_questions(logs, config) if look_up else _logged_questions(logs)
    found = []
    for key, name in LOG_SETS.items():
        base = next((log for log in logs.values() if log.get(name, {}).get("generated_text")), None)
        if base is None:
            continue
        texts, ids = base[name]["generated_text"], base.get("ids", {}).get(name, [])
        for position in spread(len(texts), count if key == "forget" else min(count, 1)):
            index = list(texts)[position]
            prompt, _, truth = texts[index]
            identifier = ids[position] if position < len(ids) else ""
            said = {stage: log.get(name, {}).get("generated_text", {}).get(index) for stage, log in logs.items()}
            found.append(
                {
                    "set": SETS[key],
                    "question": questions.get(identifier) or question_of(prompt, config.model.template),
                    "truth": truth,
                    "answers": {MODELS[stage]: text[1] for stage, text in said.items() if text is not None},
                }
            )
    return found + _text_samples(logs, count)


def _text_samples(logs: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """The same of MUSE and RWKU: continuations of forget texts, and an answer to a question of each other set."""
    found = []
    for (of, name), group in TEXT_SETS.items():
        generated = {stage: log[of][name] for stage, log in logs.items() if name in log.get(of, {})}
        if not generated:
            continue
        items = next(iter(generated.values()))
        for position in spread(len(items), count if name == "verbmem" else min(count, 1)):
            key = list(items)[position]
            answers = {MODELS[stage]: rows[key]["generated"] for stage, rows in generated.items() if key in rows}
            item = items[key]
            found.append({"set": group, "question": item["shown"], "truth": item["truth"], "answers": answers})
    return found


def spread(total: int, count: int) -> list[int]:
    """`count` positions from 0 to `total` - 1, evenly spread, the first one always among them."""
    count = min(total, count)
    return [round(i * (total - 1) / max(1, count - 1)) for i in range(count)]


def question_of(prompt: str, template: Template) -> str:
    """The question that a prompt of a log asks; a chat prompt is given back whole."""
    if template.kind != "qa":
        return prompt.strip()
    end = template.question_suffix + template.answer_prefix
    return prompt.strip().removeprefix(template.question_prefix.strip()).removesuffix(end.strip()).strip()


def _chat_questions(logs: Mapping[str, Any], config: Config) -> dict[str, str]:
    """Questions by record id, from the data: a decoded chat prompt does not tell where its question begins."""
    if not logs:
        return {}
    try:
        corpus = corpus_of(config)
    except (OblivionisError, OSError):
        return {}
    return {record.id: record.question for records in corpus.evaluation.values() for record in records}


def _logged_questions(logs: Mapping[str, Any]) -> dict[str, str]:
    """The same from the prompts themselves."""
    found: dict[str, str] = {}
    for log in logs.values():
        for name in LOG_SETS:
            asked = logged_answers(log, name)
            found |= dict(zip(asked, bare([answer.prompt for answer in asked.values()]), strict=True))
    return found


def samples_table(found: Sequence[Mapping[str, Any]]) -> Group:
    """Sample answers in the manner of the paper's Figure 20; long ones are cut (`report.html` has them whole)."""
    table = RichTable(show_header=False)
    table.add_column("questions", no_wrap=True)
    table.add_column("who", no_wrap=True)
    table.add_column("text", overflow="fold")
    for sample in found:
        table.add_row(sample["set"], "question", Text(shortened(sample["question"]), style="bold"))
        table.add_row("", "truth", Text(shortened(sample["truth"])))
        for model, answer in sample["answers"].items():
            table.add_row("", model, Text(shortened(answer) or "(empty)"))
        table.add_section()
    return Group(Text("Sample answers", style="bold"), table)


def requests_line(run: RunDirectory) -> str:
    """One line on the deletion requests; empty when there were none."""
    requests = list(Ledger(run.ledger_path))
    if not requests:
        return ""
    states = Counter(r.outcome for r in requests)
    records = sum(len(r.record_ids) for r in requests)
    parts = ", ".join(f"{n} {state}" for state, n in sorted(states.items()))
    line = f"{counted(len(requests), 'deletion request')} for {counted(records, 'record')}: {parts}"
    if states[VERIFIED]:
        line += " (known before, and no more)"
    if states[ERASED]:
        line += f" ({RECORDED})"
    kinds = served_kinds([r for r in requests if r.state in (SERVED, VERIFIED)])
    return f"{line}; served: {kinds}" if kinds else line


def kept_line(run: RunDirectory, config: Config) -> str:
    """What an exact erasure keeps on the disk to hold rounds again; empty for other methods."""
    if not method_traits.replays(config.unlearning.method):
        return ""
    models, size = kept_on_disk(run.path)
    return f"exact erasure keeps {counted(models, 'model')}: {bytes_text(size)}"


def erased_lines(run: RunDirectory) -> list[str]:
    """What it means that requests were erased exactly; empty where none was."""
    erased = any(request.outcome == ERASED for request in Ledger(run.ledger_path))
    return [f"{ERASED}: {MEANING[ERASED]}"] if erased else []


def unverified_lines(run: RunDirectory) -> list[str]:
    """Which served requests are not verified, and why: a line for each outcome and reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for request in Ledger(run.ledger_path):
        if request.outcome in MEANING and request.outcome not in DONE:
            found.setdefault((request.outcome, request.why), []).append(request.id)
    return [f"{outcome}: {_names(ids)}{f': {why}' if why else ''}" for (outcome, why), ids in sorted(found.items())]


def _names(ids: Sequence[str]) -> str:
    more = len(ids) - SHOWN_REQUESTS
    return ", ".join(ids[:SHOWN_REQUESTS]) + (f" and {more} more" if more > 0 else "")


def served_kinds(served: Sequence[Request]) -> str:
    """What was served, by kind; empty where nothing but single records was asked for."""
    leaving = [r for r in served if r.scope == SCOPE_CLIENT]
    about = [r for r in served if r.scope == SCOPE_SUBJECT]
    single = [r for r in served if r.scope == SCOPE_RECORDS]
    if not leaving and not about:
        return ""
    parts = [f"{counted(len({r.client for r in leaving}), 'client')} left"] if leaving else []
    if about:
        subjects, clients = len({r.group for r in about}), len({r.client for r in about})
        parts.append(f"{counted(subjects, 'subject')} on {counted(clients, 'client')}")
    parts += [f"{counted(sum(len(r.record_ids) for r in single), 'single record')}"] if single else []
    return ", ".join(parts)


def request_kind(request: Request) -> str:
    """What a request is about, for a table."""
    if request.scope == SCOPE_CLIENT:
        return "all: the client leaves"
    return f"subject {request.subject or 'known to the client'}" if request.scope == SCOPE_SUBJECT else "records"


def summary(run: RunDirectory, config: Config, *, full: bool = False, answers: bool = False) -> Group:
    """All that `simulate` prints at its end: the outcome, the chief measures (full: all) and requests; answers: sample
    answers, too."""
    metrics = stage_metrics(run, config.evaluation.truth_ratio, config.evaluation.membership.confidence)
    if not metrics:
        return Group(_whole(f"{run.path}: no stage is finished yet"))
    title = (
        f"{run.name}: {config.model.name} · {config.data.name} · {config.strategy.name} · {method(config)}"
        f" · truth ratio {config.evaluation.truth_ratio}"
    )
    from oblivionis.reports import verdicts

    found = verdicts.find_verdicts(run, config.evaluation.truth_ratio)
    result = run_outcome.of_run(run, config)
    failed = failures(run)
    notes = stage_notes(run)
    measured = any(metrics.values()) or any(f.final and f.stage in metrics for f in failed)  # by the server
    marks, doubt = verdicts.marks(found), tofu_report.inconclusive_reason(run)
    doubted = ("forget_quality",) if doubt else ()
    parts: list[Any] = [Text(result.sentence, style=f"bold {COLOURS[result.grade]}")] if result else []
    table = comparison(metrics, title, marks, doubted=doubted, headline=not full, failed=failed, notes=notes)
    parts += [table.rich()] if measured else [Text(title), *map(Text, _unmeasured_lines(run, metrics))]
    parts += [Text(line, style="bold red") for line in failure_lines(run)]
    parts += [nodes] if (nodes := node_report.audit_table(run)) is not None else []
    if full:
        parts += _in_words(run, metrics, found)
        parts += [Text(doubt, style="dim")] if doubt else []
    if answers and (shown := samples(run, config, list(metrics))):
        parts += [Text(), samples_table(shown)]
    line = requests_line(run)
    if line:
        parts.append(Text(line))
    parts += [Text(line) for line in unverified_lines(run)]
    parts += [Text(line)] if (line := kept_line(run, config)) else []
    parts += [Text(line) for line in privacy_report.sentences(run)]
    parts += [_whole(f"next, {step}") for step in result.steps] if result else []
    if measured and not (full and answers):
        more = [("all measures", "--full", full), ("sample answers", "--answers", answers)]
        parts += [_whole(f"{what}: oblivionis runs show {run.path} {option}") for what, option, on in more if not on]
    parts.append(_whole(f"run directory: {run.path}"))
    if (run.path / "report.html").exists():
        parts.append(_whole(f"report: {run.path / 'report.html'}"))
    return Group(*parts)


def _unmeasured_lines(run: RunDirectory, stages: Collection[str]) -> list[str]:
    """What is known of stages whose models the server did not measure."""
    found = {stage: run.stage_summary(stage) for stage in stages}
    return [
        f"{MODELS[stage]}: {counted(s['rounds'], 'client' if stage == LOCAL else 'round')} in "
        f"{duration(s['seconds'])}, not measured by the server"
        for stage, s in found.items()
        if s is not None and "rounds" in s
    ]


def _in_words(
    run: RunDirectory, metrics: Mapping[str, Mapping[str, float]], found: Mapping[str, Verdict]
) -> list[Text]:
    """What the comparison says in words, and how to read it."""
    from oblivionis.measures.rebound import report as rebound_report
    from oblivionis.measures.ruler import report as ruler_report
    from oblivionis.reports import verdicts

    lines = [
        Text(line, style="red" if line[0] in verdicts.MARKS.values() else "") for line in verdicts.sentences(found)
    ]
    lines += [Text(line) for line in (*ruler_report.sentences(run), *rebound_report.sentences(run))]
    lines += [Text(line) for line in membership_report.sentences(metrics)]
    if any(metrics.values()):
        lines.append(Text(LEGEND if "retrain" in metrics else NO_ORACLE, style="dim"))
    return lines + [Text(line, style="dim") for line in legends(metrics)]


def _whole(text: str) -> Text:
    """A line that is not broken, so that a path can be copied."""
    return Text(text, no_wrap=True, overflow="ignore")


def print_summary(
    run: RunDirectory, config: Config, console: Console, *, full: bool = False, answers: bool = False
) -> None:
    """Print `summary`; paths may be longer than a line."""
    console.print(summary(run, config, full=full, answers=answers), crop=False)


def print_runs(output: Path, console: Console) -> None:
    """A line per run of `output`; a stage shows a tick, or how far it came."""
    table = RichTable("run", "model", "data", "strategy", "unlearning", "stages", box=None)
    for run in list_runs(output):
        try:
            config = configuration.from_yaml(run.read_config(), run.config_place)
        except (configuration.ConfigError, OblivionisError, OSError):
            table.add_row(Text(run.name), Text("its config.yaml cannot be read", style="yellow"))
            continue
        choices = (config.model.name, config.data.name, config.strategy.name, method(config))
        table.add_row(*map(Text, (run.name, *choices, ", ".join(progress(run, config, s) for s in config.stages))))
    if not table.rows:
        console.print(f"no runs in {output}", markup=False, highlight=False, soft_wrap=True)
        return
    console.print(table)


def progress(run: RunDirectory, config: Config, stage: str) -> str:
    """How far a stage of a run came; the stage `local` counts clients."""
    if run.stage_summary(stage) is not None:
        return f"{stage} ✓"
    done = rounds_done(run, stage)
    if stage == LOCAL:
        clients = config.federation.clients
        return f"{stage} {done}/{min(config.federation.local_clients or clients, clients)}"
    return f"{stage} {done}/{getattr(config.federation.rounds, stage)}"


def print_model(config: Config, facts: ModelFacts, need: Estimate | None, console: Console) -> None:
    """What the configured model is, and what of it is trained and sent, where `need` tells."""
    table = RichTable(show_header=False)
    table.add_column("what", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_row("source", Text(facts.source))
    table.add_row("architecture", Text(f"{facts.architecture} ({facts.model_type})"))
    table.add_row("base parameters", f"{facts.parameters:,}")
    stored = f", stored in {facts.stored_dtype}" if facts.stored_dtype not in (None, facts.dtype) else ""
    table.add_row("base weights", number_format(config) + stored)
    table.add_row(
        "embedding", f"{facts.vocabulary_rows:,} rows, {'also the head' if facts.tied_head else 'not the head'}"
    )
    table.add_row("vocabulary", f"{facts.tokens:,} tokens")
    table.add_row("context", "no limit" if facts.context is None else f"{facts.context:,} tokens")
    longer = "" if facts.way_limit is None else f"; beyond {facts.way_limit:,} tokens {facts.way_beyond}"
    table.add_row("run", f"{facts.way}{longer} ({facts.way_reason})")
    table.add_row("what that costs", facts.way_cost)
    table.add_row("linear layers", Text(", ".join(facts.linear_layers)))
    if facts.example.kind == "chat":
        table.add_row("template's arguments", Text(", ".join(facts.template_variables) or "none"))
    for what, value in () if need is None else trained(config, need):
        table.add_row(what, value)
    table.add_row("fingerprint", facts.fingerprint)
    console.print(Text(f"model {config.model.name}", style="bold"), table, sep="\n")


def trained(config: Config, need: Estimate) -> Iterator[tuple[str, str]]:
    """What is trained and sent, in rows of a table."""
    trainable, vector = need.trainable, bytes_text(4 * need.trainable)
    lora = config.model.mode == "lora"
    total = need.parameters + (trainable + need.frozen if lora else 0)
    how = f"lora, aggregation {config.model.lora.aggregation}" if lora else config.model.mode
    yield "trainable parameters", f"{trainable:,} ({trainable / total:.2%}, {how})"
    if need.frozen:
        yield "frozen adapter parameters", f"{need.frozen:,} (A: drawn from the seed on either side, never sent)"
    yield "sent per client and exchange", f"{vector} there, {vector} back (float32)"


def number_format(config: Config) -> str:
    """How the base weights are kept."""
    model = config.model
    if model.quantization == "none":
        return model.dtype
    double = ", double quantisation" if model.quantization == "nf4" and model.double_quantization else ""
    return f"{model.quantization}{double}; {model.dtype} where not quantised"
