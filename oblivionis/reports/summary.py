"""What a run's reader sees: the comparison table, sample answers and requests on the terminal."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.table import Column
from rich.table import Table as RichTable
from rich.text import Text

from evaluation.metrics.catalogue import Metric
from evaluation.metrics.words import words
from oblivionis.assessment import evaluators
from oblivionis.config import compose as configuration
from oblivionis.config.schema import Config, Template
from oblivionis.data.partition import Partition, describe
from oblivionis.data.records import Corpus
from oblivionis.data.subjects import Subjects
from oblivionis.errors import OblivionisError
from oblivionis.models.corpus import corpus_of
from oblivionis.models.lengths import too_long
from oblivionis.naming import LOG_SETS, MODELS, SETS
from oblivionis.reports import membership as membership_report
from oblivionis.reports.format import bytes_text, number, printable
from oblivionis.reports.kept import kept
from oblivionis.reports.table import Marked, Table, Term
from oblivionis.requests.judgement import LEAST_UNITS, MEANING, VERIFIED
from oblivionis.requests.ledger import SERVED, Ledger, Request
from oblivionis.runs.directory import RunDirectory, list_runs
from strategies.protocol import SCOPE_CLIENT, SCOPE_RECORDS, SCOPE_SUBJECT

if TYPE_CHECKING:
    from oblivionis.models.memory import Estimate

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
TEXT_SETS = {
    ("muse", "verbmem"): "Forget",
    ("muse", "knowmem_forget"): "Forget",
    ("muse", "knowmem_retain"): "Retain",
    ("rwku", "forget_questions"): "Forget",
    ("rwku", "neighbor_questions"): "Neighbours",
}
"""By evaluator and set, those whose answers are shown of data that are texts, and what they are about."""
SHOWN_CLIENTS = 40
SHOWN_CHARACTERS = 240
SHOWN_RECORDS = 20
SHOWN_REQUESTS = 5


def stage_metrics(
    run: RunDirectory, convention: str = "geometric", confidence: float = 0.95
) -> dict[str, dict[str, float]]:
    """Final metrics of each finished stage, in the order of the table: base model, finetune, unlearn, retrain, local.

    They are those of `stages/<stage>.json`. A forget quality that a stage could not know, because it ended before
    there was a retrained model, is computed from the per-question logs with the truth ratio `convention`. The
    retrained model against itself has the p-value 1, the best there is. Likewise differences of membership AUCs (with
    intervals of that `confidence`) and PrivLeak. RULER's Lens 1 of the finetuned and the
    retrained model comes from the summary of unlearn.
    """
    return kept(run, "metrics", lambda: _stage_metrics(run, convention, confidence), convention, confidence)


def _stage_metrics(run: RunDirectory, convention: str, confidence: float) -> dict[str, dict[str, float]]:
    summaries = {stage: run.stage_summary(stage) for stage in MODELS}
    found = {stage: dict(summary["metrics"]) for stage, summary in summaries.items() if summary is not None}
    known = (summaries["unlearn"] or {}).get("ruler", {}).get("lens_1", {})
    for stage, values in known.items():
        found.get(stage, {}).update({f"ruler_{name}": value for name, value in values.items()})
    membership_report.complete(run, found, confidence)
    oracle = _forget_ratios(run, "retrain", convention)
    if oracle is None:
        return found
    from evaluation.metrics.tofu import forget_quality

    for stage, metrics in found.items():
        ratios = None if "forget_quality" in metrics else _forget_ratios(run, stage, convention)
        if ratios is not None:
            metrics["forget_quality"], metrics["forget_ks"] = forget_quality(ratios, oracle)
    return found


def _forget_ratios(run: RunDirectory, stage: str, convention: str) -> Any:
    """Truth ratios (n,) of a stage's forget questions; None when its log has none or holds a non-finite loss."""
    log = run.evaluation_log(stage)
    if log is None:
        return None
    from evaluation.metrics.tofu import truth_ratios

    try:
        return truth_ratios(log, "forget", convention)
    except ValueError:
        return None


def method(config: Config) -> str:
    """The unlearning method, with the weights of an entropy term on top of it."""
    entropy = config.unlearning.entropy
    weights = f" + entropy({entropy.forget:g}, {entropy.retain:g})" if entropy.forget or entropy.retain else ""
    return config.unlearning.method + weights


def rows(metrics: Mapping[str, Mapping[str, float]]) -> list[tuple[str, str, list[float | None]]]:
    """(question set, measure, one value per model) of the comparison; rows that no model has are left out."""
    return [
        (metric.group.title, metric.title, [m.get(key) for m in metrics.values()])
        for key, metric in _shown(metrics).items()
        if metric.group is not None
    ]


def _shown(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, Metric]:
    """The metrics of the comparison that a model has, by their keys, in the order of the rows."""
    measured = {key: None for model in metrics.values() for key, value in model.items() if value is not None}
    return {key: metric for key, metric in evaluators.among(measured).items() if metric.group is not None}


def legends(metrics: Mapping[str, Mapping[str, float]]) -> list[str]:
    """How to read the rows of the comparison that single evaluators add."""
    return evaluators.legends(_shown(metrics))


def comparison(
    metrics: Mapping[str, Mapping[str, float]], title: str = "", marks: Mapping[str, str] | None = None
) -> Table:
    """A row per question set and measure, a column per model.

    marks: metric -> what stands before the unlearned model's value.
    """
    lines: list[Sequence[str] | None] = []
    previous = ""
    for (key, _), (group, measure, values) in zip(_shown(metrics).items(), rows(metrics), strict=True):
        if previous and group != previous:
            lines.append(None)
        mark = (marks or {}).get(key, "")
        texts = [_cell(v, mark if stage == "unlearn" else "") for stage, v in zip(metrics, values, strict=True)]
        lines.append([group, measure, *texts])
        previous = group
    models = [Term(MODELS.get(stage, stage), EXPLAINED.get(stage, "")) for stage in metrics]
    return Table(title, ["questions", "measure", *models], lines, framed=True)


def _cell(value: float | None, mark: str) -> str:
    return Marked(f"{mark} {number(value)}", "alarm") if mark else number(value)


def samples(run: RunDirectory, config: Config, stages: Sequence[str]) -> list[dict[str, Any]]:
    """Answers side by side: what every model says to `evaluation.samples_shown` forget questions, evenly spread, and
    to one question of each other set.

    Each has `set`, `question`, `truth` and `answers`, a mapping from the model's name to its answer.
    """
    logs = {stage: log for stage in stages if (log := run.evaluation_log(stage)) is not None}
    count = config.evaluation.samples_shown
    questions = _chat_questions(logs, config) if config.model.template.kind == "chat" else {}
    found = []
    for key, name in LOG_SETS.items():
        base = next((log for log in logs.values() if log.get(name, {}).get("generated_text")), None)
        if base is None:
            continue
        texts, ids = base[name]["generated_text"], base.get("ids", {}).get(name, [])
        for position in _spread(len(texts), count if key == "forget" else min(count, 1)):
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
        told = {stage: log[of][name] for stage, log in logs.items() if name in log.get(of, {})}
        if not told:
            continue
        items = next(iter(told.values()))
        for position in _spread(len(items), count if name == "verbmem" else min(count, 1)):
            key = list(items)[position]
            answers = {MODELS[stage]: rows[key]["generated"] for stage, rows in told.items() if key in rows}
            item = items[key]
            found.append({"set": group, "question": item["shown"], "truth": item["truth"], "answers": answers})
    return found


def _spread(total: int, count: int) -> list[int]:
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


def samples_table(found: Sequence[Mapping[str, Any]]) -> Group:
    """Sample answers in the manner of the paper's Figure 20; long ones are cut (`report.html` has them whole)."""
    table = RichTable(show_header=False)
    table.add_column("questions", no_wrap=True)
    table.add_column("who", no_wrap=True)
    table.add_column("text", overflow="fold")
    for sample in found:
        table.add_row(sample["set"], "question", Text(_line(sample["question"]), style="bold"))
        table.add_row("", "truth", Text(_line(sample["truth"])))
        for model, answer in sample["answers"].items():
            table.add_row("", model, Text(_line(answer) or "(empty)"))
        table.add_section()
    return Group(Text("Sample answers", style="bold"), table)


def _line(text: str) -> str:
    """`text` as one printable line of at most SHOWN_CHARACTERS."""
    text = printable(text)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1].rstrip() + "…"


def requests_line(run: RunDirectory, limit: float) -> str:
    """One line on the deletion requests; empty when there were none. `limit`: the most that a verified one recalls."""
    requests = list(Ledger(run.ledger_path))
    if not requests:
        return ""
    states = Counter(r.outcome for r in requests)
    records = sum(len(r.record_ids) for r in requests)
    parts = ", ".join(f"{n} {state}" for state, n in sorted(states.items()))
    line = f"{_count(len(requests), 'deletion request')} for {_count(records, 'record')}: {parts}"
    if states[VERIFIED]:
        line += f" (recited before, now ROUGE-L recall at most {limit:g})"
    kinds = _kinds([r for r in requests if r.state in (SERVED, VERIFIED)])
    return f"{line}; served: {kinds}" if kinds else line


def unverified_lines(run: RunDirectory) -> list[str]:
    """Which served requests are not verified, and why: a line for each outcome and reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for request in Ledger(run.ledger_path):
        if request.outcome in MEANING and request.outcome != VERIFIED:
            found.setdefault((request.outcome, request.why), []).append(request.id)
    return [f"{outcome}: {_names(ids)}{f': {why}' if why else ''}" for (outcome, why), ids in sorted(found.items())]


def _names(ids: Sequence[str]) -> str:
    more = len(ids) - SHOWN_REQUESTS
    return ", ".join(ids[:SHOWN_REQUESTS]) + (f" and {more} more" if more > 0 else "")


def _kinds(served: Sequence[Request]) -> str:
    """What was served, by kind; empty where nothing but single records was asked for."""
    leaving = [r for r in served if r.scope == SCOPE_CLIENT]
    about = [r for r in served if r.scope == SCOPE_SUBJECT]
    single = [r for r in served if r.scope == SCOPE_RECORDS]
    if not leaving and not about:
        return ""
    parts = [f"{_count(len({r.client for r in leaving}), 'client')} left"] if leaving else []
    if about:
        subjects, clients = len({r.group for r in about}), len({r.client for r in about})
        parts.append(f"{_count(subjects, 'subject')} on {_count(clients, 'client')}")
    parts += [f"{_count(sum(len(r.record_ids) for r in single), 'single record')}"] if single else []
    return ", ".join(parts)


def request_kind(request: Request) -> str:
    """What a request is about, for a table."""
    if request.scope == SCOPE_CLIENT:
        return "all: the client leaves"
    return f"subject {request.subject or 'known to the client'}" if request.scope == SCOPE_SUBJECT else "records"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def summary(run: RunDirectory, config: Config) -> Group:
    """All that `simulate` prints at its end."""
    metrics = stage_metrics(run, config.evaluation.truth_ratio, config.evaluation.membership.confidence)
    if not metrics:
        return Group(_whole(f"{run.path}: no stage is finished yet"))
    title = (
        f"{run.name}: {config.model.name} · {config.data.name} · {config.strategy.name} · {method(config)}"
        f" · truth ratio {config.evaluation.truth_ratio}"
    )
    from oblivionis.reports import nodes as node_report
    from oblivionis.reports import rebound as rebound_report
    from oblivionis.reports import ruler as ruler_report
    from oblivionis.reports import verdicts

    found = verdicts.find_verdicts(run, config.evaluation.truth_ratio)
    measured = any(metrics.values())  # by the server: not where only the clients have records
    parts: list[Any] = [comparison(metrics, title, verdicts.marks(found)).rich() if measured else Text(title)]
    parts += [table] if (table := node_report.audit_table(run)) is not None else []
    parts += [
        Text(line, style="red" if line[0] in verdicts.MARKS.values() else "") for line in verdicts.sentences(found)
    ]
    parts += [Text(line) for line in (*ruler_report.sentences(run), *rebound_report.sentences(run))]
    parts += [Text(line) for line in membership_report.sentences(metrics)]
    if measured:
        parts.append(Text(LEGEND if "retrain" in metrics else NO_ORACLE, style="dim"))
    parts += [Text(line, style="dim") for line in legends(metrics)]
    shown = samples(run, config, list(metrics))
    if shown:
        parts += [Text(), samples_table(shown)]
    line = requests_line(run, config.unlearning.requests.verify_max_rouge)
    if line:
        parts.append(Text(line))
    parts += [Text(line) for line in unverified_lines(run)]
    parts.append(_whole(f"run directory: {run.path}"))
    if (run.path / "report.html").exists():
        parts.append(_whole(f"report: {run.path / 'report.html'}"))
    return Group(*parts)


def _whole(text: str) -> Text:
    """A line that is not broken, so that a path can be copied."""
    return Text(text, no_wrap=True, overflow="ignore")


def print_summary(run: RunDirectory, config: Config, console: Console) -> None:
    """Print `summary`; paths may be longer than a line."""
    console.print(summary(run, config), crop=False)


def print_runs(output: Path, console: Console) -> None:
    """A line per run of `output`; a stage shows a tick, or how far it came."""
    table = RichTable("run", "model", "data", "strategy", "unlearning", "stages", box=None)
    for run in list_runs(output):
        try:
            config = configuration.from_yaml(run.read_config(), run.config_place)
        except (configuration.ConfigError, OSError, UnicodeDecodeError):
            table.add_row(Text(run.name), Text("its config.yaml cannot be read", style="yellow"))
            continue
        choices = (config.model.name, config.data.name, config.strategy.name, method(config))
        table.add_row(*map(Text, (run.name, *choices, ", ".join(_progress(run, config, s) for s in config.stages))))
    if not table.rows:
        console.print(f"no runs in {output}", markup=False, highlight=False, soft_wrap=True)
        return
    console.print(table)


def _progress(run: RunDirectory, config: Config, stage: str) -> str:
    """How far a stage of a run came; the stage `local` counts clients."""
    if run.stage_summary(stage) is not None:
        return f"{stage} ✓"
    if stage == "local":
        clients = config.federation.clients
        done = len({r["round"] for r in run.metrics() if r["stage"] == stage})
        return f"{stage} {done}/{min(config.federation.local_clients or clients, clients)}"
    done = max(run.checkpoint_rounds(stage), default=0)
    return f"{stage} {done}/{getattr(config.federation.rounds, stage)}"


def print_data(corpus: Corpus, partition: Partition, console: Console) -> None:
    """Sizes of the corpus and of every client's share; beyond SHOWN_CLIENTS clients their spread only."""
    facts = describe(corpus, partition)
    table = RichTable(show_header=False)
    table.add_column("what")
    table.add_column("records", justify="right")
    table.add_row("training records", f"{facts['records']:,}")
    table.add_row("  of these to forget", f"{facts['forget_records']:,} ({facts['forget_share']:.1%})")
    table.add_row("subjects", f"{facts['subjects']:,}")
    for name, questions in facts["evaluation"].items():
        table.add_row(f"questions {name.replace('_', ' ')}", f"{questions:,}")
    for name, asked in corpus.choices.items():
        table.add_row(f"multiple choice {name}", f"{len(asked):,}")
    console.print(Text(f"data {corpus.name}", style="bold"), table, sep="\n")
    shares = RichTable()
    columns = {"records": "records", "subjects": "subjects", "to forget": "forget"}
    if facts["clients"] > SHOWN_CLIENTS:
        shares.add_column("per client")
        for label in ("least", "median", "most"):
            shares.add_column(label, justify="right")
        for label, key in columns.items():
            values = [row[key] for row in facts["per_client"]]
            shares.add_row(label, str(min(values)), f"{statistics.median(values):g}", str(max(values)))
    else:
        for label in ("client", *columns):
            shares.add_column(label, justify="right")
        for row in facts["per_client"]:
            shares.add_row(str(row["client"]), *(str(row[key] or "·") for key in columns.values()))
    title = f"{_count(facts['clients'], 'client')}, {facts['clients_with_forget']} of them with records to forget"
    console.print(Text(title, style="bold"), shares, sep="\n")


def print_unfit(corpus: Corpus, config: Config, console: Console) -> None:
    """What of the data cannot be trained on or verified as it is: texts too long, answers too short to be recited."""
    lines = []
    try:
        long, limit = too_long(corpus, config), config.model.max_length
    except OblivionisError as error:
        lines += [f"How long the records are in tokens is not known: {error}"]
    else:
        if long:
            what = "a run refuses them" if config.model.on_overflow == "error" else "their ends are cut off"
            lines += [f"{_count(len(long), 'text')} longer than model.max_length={limit} tokens; {what}:"]
            lines += [f"  {printable(line)}" for line in _some(long)]
    short = [record.id for record in corpus.train if len(words(record.answer)) < LEAST_UNITS]
    if short and not corpus.is_text:
        lines += [
            f"{_count(len(short), 'record')} cannot be verified by recitation, the answer has fewer than {LEAST_UNITS} "
            f"measurable units: ids {', '.join(map(printable, _some(short)))}"
        ]
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def _some(texts: Sequence[str]) -> list[str]:
    more = len(texts) - SHOWN_RECORDS
    return [*texts[:SHOWN_RECORDS], *([f"… and {more} more"] if more > 0 else [])]


def print_subjects(subjects: Subjects, console: Console) -> None:
    """A line per subject: how many records are about it, and which clients hold them."""
    table = RichTable("subject", Column("records", justify="right"), Column("clients", overflow="fold"), box=None)
    for subject in subjects:
        table.add_row(Text(_line(subject.name)), str(subject.count), ", ".join(map(str, subject.records)))
    console.print(table)


def print_subject(subjects: Subjects, name: str, console: Console) -> None:
    """The records about one subject by the client that holds them. Raises OblivionisError for an unknown name."""
    subject = subjects.find(name)
    if subject is None:
        raise OblivionisError(f"--subject: {subjects.unknown(name)}")
    table = RichTable(Column("client", justify="right"), Column("records", overflow="fold"), box=None)
    for client, record_ids in subject.records.items():
        table.add_row(str(client), Text(", ".join(record_ids)))
    title = f"{_line(subject.name)}: {_count(subject.count, 'record')} on {_count(len(subject.records), 'client')}"
    console.print(Text(title, style="bold"), table, sep="\n")


def print_model(config: Config, need: Estimate, tokens: int, fingerprint: str, console: Console) -> None:
    """Sizes and identity of the configured model, whose tokenizer has so many tokens."""
    trainable, vector = need.trainable, 4 * need.trainable
    total = need.parameters + (trainable + need.frozen if config.model.mode == "lora" else 0)
    table = RichTable(show_header=False)
    table.add_column("what", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_row("source", Text(config.model.source))
    table.add_row("base parameters", f"{need.parameters:,}")
    table.add_row("base weights", _number_format(config))
    how = f"lora, aggregation {config.model.lora.aggregation}" if config.model.mode == "lora" else config.model.mode
    table.add_row("trainable parameters", f"{trainable:,} ({trainable / total:.2%}, {how})")
    if need.frozen:
        why = "A: drawn from the seed on either side, never sent"
        table.add_row("frozen adapter parameters", f"{need.frozen:,} ({why})")
    table.add_row("sent per client and exchange", f"{bytes_text(vector)} there, {bytes_text(vector)} back (float32)")
    table.add_row("vocabulary", f"{tokens:,} tokens")
    table.add_row("fingerprint", fingerprint)
    console.print(Text(f"model {config.model.name}", style="bold"), table, sep="\n")


def _number_format(config: Config) -> str:
    """How the base weights are kept."""
    model = config.model
    if model.quantization == "none":
        return model.dtype
    double = ", double quantisation" if model.quantization == "nf4" and model.double_quantization else ""
    return f"{model.quantization}{double}; {model.dtype} where not quantised"
