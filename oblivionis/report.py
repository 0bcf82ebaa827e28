"""What a run's reader sees: the comparison table, sample answers and requests on the terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from oblivionis import config as configuration
from oblivionis.config import Config
from oblivionis.data.partition import Partition
from oblivionis.data.records import Corpus
from oblivionis.requests import Ledger
from oblivionis.runs import RunDirectory, list_runs

MODELS = {
    "finetune": "finetuned",
    "unlearn": "unlearned",
    "retrain": "retrained",
    "local": "local (mean)",
    "local_unlearned": "local, unlearned (mean)",
}
SETS = {"forget": "Forget", "retain": "Retain", "real_authors": "Real authors", "world_facts": "World facts"}
MEASURES = {"prob": "Prob", "rouge": "ROUGE-L recall", "truth_ratio": "Truth ratio"}
TOTALS = {
    "model_utility": "Model utility",
    "forget_truth_ratio": "Forget truth ratio",
    "forget_quality": "Forget quality (KS p)",
}
LOG_SETS = {
    "forget": "eval_log_forget",
    "retain": "eval_log",
    "real_authors": "eval_real_author_wo_options",
    "world_facts": "eval_real_world_wo_options",
}


def stage_metrics(run: RunDirectory) -> dict[str, dict[str, float]]:
    """Final metrics of each finished stage, in the order of the table: finetune, unlearn, retrain, local."""
    found = {}
    for stage in MODELS:
        summary = run.stage_summary(stage)
        if summary is not None:
            found[stage] = summary["metrics"]
    return found


def number(value: float | None) -> str:
    """A cell: three decimals, powers of ten where that would hide the value, a dash where there is none."""
    if value is None or math.isnan(value):
        return "–"
    if value != 0 and abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:.3f}"


def rows(metrics: Mapping[str, Mapping[str, float]]) -> list[tuple[str, str, list[float | None]]]:
    """(question set, measure, one value per model) of the comparison; rows that no model has are left out."""
    table = []
    for key, label in SETS.items():
        for measure, measure_label in MEASURES.items():
            if (key, measure) == ("forget", "truth_ratio"):
                continue
            values = [m.get(f"{key}_{measure}") for m in metrics.values()]
            table.append((label, measure_label, values))
    for key, label in TOTALS.items():
        table.append(("All", label, [m.get(key) for m in metrics.values()]))
    return [row for row in table if any(v is not None for v in row[2])]


def metrics_table(metrics: Mapping[str, Mapping[str, float]], title: str) -> Table:
    """The comparison as a table: a row per question set and measure, a column per model."""
    table = Table(title=title, title_justify="left")
    table.add_column("questions")
    table.add_column("measure")
    for stage in metrics:
        table.add_column(MODELS.get(stage, stage), justify="right")
    previous = ""
    for label, measure, values in rows(metrics):
        if previous and label != previous:
            table.add_section()
        table.add_row(label if label != previous else "", measure, *map(number, values))
        previous = label
    return table


def samples(run: RunDirectory, stages: Sequence[str], count: int) -> list[dict[str, Any]]:
    """Answers side by side: for `count` forget questions and one of each other set, what every model says."""
    logs = {stage: log for stage in stages if (log := run.evaluation_log(stage)) is not None}
    found = []
    for key, name in LOG_SETS.items():
        first = next((log[name]["generated_text"] for log in logs.values() if name in log), {})
        for index in list(first)[: count if key == "forget" else min(count, 1)]:
            answers = {s: log[name]["generated_text"][index] for s, log in logs.items() if name in log}
            prompt, _, truth = first[index]
            found.append(
                {
                    "set": SETS[key],
                    "question": prompt,
                    "truth": truth,
                    "answers": {MODELS[s]: a[1] for s, a in answers.items()},
                }
            )
    return found


def samples_table(found: Sequence[Mapping[str, Any]]) -> Table:
    """Sample answers in the manner of the paper's Figure 20."""
    table = Table(title="Sample answers", title_justify="left", show_lines=True)
    table.add_column("questions", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("text", overflow="fold")
    for sample in found:
        table.add_row(sample["set"], "question", Text(sample["question"].strip(), style="bold"))
        table.add_row("", "truth", Text(sample["truth"].strip()))
        for model, answer in sample["answers"].items():
            table.add_row("", model, Text(answer.strip() or "(empty)"))
        table.add_section()
    table.show_lines = False
    return table


def requests_line(run: RunDirectory) -> str:
    """One line on the deletion requests; empty when there were none."""
    requests = list(Ledger(run.ledger_path))
    if not requests:
        return ""
    states = Counter(r.state for r in requests)
    records = sum(len(r.record_ids) for r in requests)
    parts = ", ".join(f"{n} {state}" for state, n in sorted(states.items()))
    return f"deletion requests: {len(requests)} for {records} records ({parts})"


def summary(run: RunDirectory, config: Config) -> Group:
    """All that `simulate` prints at its end."""
    metrics = stage_metrics(run)
    if not metrics:
        return Group(Text(f"{run.path}: no stage is finished yet"))
    title = (
        f"{run.name}: {config.model.name} · {config.data.name} · {config.strategy.name} · {config.unlearning.method}"
        f" · truth ratio {config.evaluation.truth_ratio}"
    )
    parts: list[Any] = [metrics_table(metrics, title)]
    found = samples(run, list(metrics), config.evaluation.samples_shown)
    if found:
        parts.append(samples_table(found))
    for line in (requests_line(run), _oracle_hint(metrics)):
        if line:
            parts.append(Text(line))
    parts.append(Text(f"run directory: {run.path}"))
    if (run.path / "report.html").exists():
        parts.append(Text(f"report: {run.path / 'report.html'}"))
    return Group(*parts)


def _oracle_hint(metrics: Mapping[str, Mapping[str, float]]) -> str:
    if "retrain" in metrics:
        return ""
    return "no forget quality: it compares with the retrained model; add the stage retrain to `stages`"


def print_summary(run: RunDirectory, config: Config, console: Console) -> None:
    console.print(summary(run, config), soft_wrap=False)


def print_runs(output: Path, console: Console) -> None:
    """A line per run of `output`."""
    table = Table("run", "model", "data", "strategy", "unlearning", "stages", box=None)
    for run in list_runs(output):
        config = configuration.from_yaml(run.read_config())
        stages = []
        for stage in config.stages:
            done = run.checkpoint_rounds(stage)
            total = getattr(config.federation.rounds, stage)
            if run.stage_summary(stage) is not None:
                stages.append(f"{stage} ✓")
            else:
                stages.append(f"{stage} {done[-1] if done else 0}/{total}")
        table.add_row(
            run.name,
            config.model.name,
            config.data.name,
            config.strategy.name,
            config.unlearning.method,
            ", ".join(stages),
        )
    if not table.rows:
        console.print(f"no runs in {output}")
        return
    console.print(table)


def print_data(corpus: Corpus, partition: Partition, console: Console) -> None:
    """Sizes of the corpus and of every client's share."""
    table = Table(title=f"data {corpus.name}", title_justify="left")
    table.add_column("what")
    table.add_column("records", justify="right")
    table.add_row("train", str(len(corpus.train)))
    table.add_row(
        "  of these to forget", f"{len(corpus.forget_ids)} ({len(corpus.forget_ids) / len(corpus.train):.1%})"
    )
    table.add_row("  subjects", str(len({r.subject for r in corpus.train})))
    for name, questions in corpus.evaluation.items():
        table.add_row(f"questions {name}", str(len(questions)))
    console.print(table)
    shares = Table(title=f"{len(partition.clients)} clients", title_justify="left")
    for column in ("client", "records", "subjects", "to forget"):
        shares.add_column(column, justify="right")
    for client, indices in enumerate(partition.clients):
        held = [corpus.train[i] for i in indices]
        forget = sum(r.id in corpus.forget_ids for r in held)
        shares.add_row(str(client), str(len(held)), str(len({r.subject for r in held})), str(forget) if forget else "·")
    console.print(shares)


def print_model(config: Config, assembled: Any, fingerprint: str, console: Console) -> None:
    """Sizes and identity of the configured model."""
    total = sum(p.numel() for p in assembled.model.parameters())
    trainable = assembled.flat.size
    table = Table(title=f"model {config.model.name}", title_justify="left", show_header=False)
    table.add_row("source", config.model.source)
    table.add_row("base parameters", f"{total - (trainable if config.model.mode == 'lora' else 0):,}")
    table.add_row("trainable parameters", f"{trainable:,} ({trainable / total:.2%}, {config.model.mode})")
    table.add_row("bytes per exchange and client", f"{2 * 4 * trainable:,}")
    table.add_row("vocabulary", f"{len(assembled.tokenizer):,}")
    table.add_row("fingerprint", fingerprint)
    console.print(table)
