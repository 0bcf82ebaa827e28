"""What a run was asked to do and what it did, for a reader who did not run it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import htpy as h

from evaluation.metrics.rouge import ANY_SCRIPT
from oblivionis.config.schema import Config
from oblivionis.data import datasets
from oblivionis.reports import run_summary as report
from oblivionis.reports.format import counted
from oblivionis.reports.markup import explained, facts_list, folded, html_table
from oblivionis.runs.directory import RunDirectory

MOST_ROUNDS = 150
"""Rounds of a stage of which the report says who took part; metrics.jsonl has all."""
_ORDER = ("finetune", "retrain", "unlearn", "local", "local_unlearned")
_POLICIES = {
    "random_client_per_round": "each round one client that holds records to forget, drawn at random",
    "all_at_round": "the named clients, or all that hold records to forget, at once",
    "subjects_at_round": "the people named, on all clients at once",
    "file": "a schedule in a file",
    "nodes": "whoever makes a request on a client's machine",
    "none": "nobody",
}
_SPREAD = {
    "iid": "spread evenly over the clients at random",
    "by_author": "all records of an author with one client",
    "dirichlet": "spread unevenly over the clients (Dirichlet)",
}


def in_short(config: Config) -> str:
    """One sentence that says what the run is about."""
    federation, asking = config.federation, "unlearn" in config.stages
    together = "" if set(config.stages) == {"local"} else " together"
    return (
        f"{counted(federation.clients, 'client')} fine-tune{'s' * (federation.clients == 1)} the language model "
        f"“{config.model.name}”{together} on the data “{config.data.name}” without sharing their records"
        f"{'; in the stage unlearn any of these can be deleted on request' * asking}."
    )


def asked_in_short(config: Config) -> str:
    """The stages and what is done in them."""
    return f"{', '.join(config.stages)} with {config.strategy.name}, {report.method(config)}"


def done_in_short(run: RunDirectory) -> str:
    """How many rounds were held and how many replies failed in them; empty where none was."""
    rows = [row for row in run.metrics() if row["evaluator"] == "federation"]
    failed = sum(int(row["metrics"].get("failures") or 0) for row in rows)
    replies = f"{failed} failed replies" if failed != 1 else "1 failed reply"
    return f"{counted(len(rows), 'round')}, {replies}" if rows else ""


def asked(run: RunDirectory, config: Config) -> h.Element:
    """The settings that matter, as a list."""
    federation = config.federation
    rounds = [f"{s} ({counted(getattr(federation.rounds, s), 'round')})" for s in config.stages if s != "local"]
    rounds += ["local (each client alone)"] if "local" in config.stages else []
    asking = "unlearn" in config.stages
    clients = (
        f"{federation.clients}; {federation.fraction_train:.0%} of them fine-tune in a round, "
        f"{counted(federation.local_epochs, 'epoch')} each"
    )
    return facts_list(
        [
            (explained("Stage", "Stages"), ", ".join(rounds)),
            ("Model", f"{model_line(config)}; seed {config.seed}"),
            ("Data", data_line(config)),
            ("Clients", clients),
            ("Aggregator", config.strategy.name),
            ("Unlearning", method_line(config) if asking else ""),
            (explained("FedTU", "Who asks to forget"), policy_line(config) if asking else ""),
            (explained("Truth ratio"), config.evaluation.truth_ratio),
            ("ROUGE", "words of every script" if config.evaluation.rouge == ANY_SCRIPT else ""),
            ("Software", software_line(run.environment())),
        ]
    )


def model_line(config: Config) -> str:
    """The base model and what of it is trained."""
    model = config.model
    how = f"LoRA of rank {model.lora.rank}" if model.mode == "lora" else "all weights"
    source = "the embedded one" if model.source == "embedded" else model.source
    return f"{model.name} ({source}), trained: {how}"


def data_line(config: Config) -> str:
    """The data, what of them is to be forgotten, and how they are spread over the clients."""
    data = config.data
    if data.on_clients:
        return "each client's own, which stay on its machine"
    what = datasets.in_words(data)
    if data.forget_subjects is not None:
        what += f", to forget: {', '.join(data.forget_subjects)}"
    return f"{what}; {_SPREAD[data.partition.scheme]}"


def method_line(config: Config) -> str:
    """The unlearning method and its settings in a sentence."""
    unlearning = config.unlearning
    rate = config.training.learning_rate if unlearning.learning_rate is None else unlearning.learning_rate
    values = {"epochs": unlearning.epochs, "learning rate": f"{rate:g}", **unlearning.params}
    return f"{report.method(config)} ({', '.join(f'{name} {value}' for name, value in values.items())})"


def policy_line(config: Config) -> str:
    """Who asks for what and when, in words."""
    requests = config.unlearning.requests
    text = _POLICIES[requests.policy]
    if requests.policy in ("all_at_round", "subjects_at_round"):
        text += f", in round {requests.round}"
    leaving = requests.scope == "client" and requests.policy in ("random_client_per_round", "all_at_round")
    return text + ("; who asks leaves with all its records" if leaving else "")


def software_line(environment: Mapping[str, Any]) -> str:
    """The versions that made the run; empty where they are not known."""
    if not environment:
        return ""
    packages = {name: v for name, v in environment.get("packages", {}).items() if v and name in ("flwr", "torch")}
    parts = [
        f"Oblivionis {environment.get('oblivionis', '?')}",
        *(f"{name} {version}" for name, version in packages.items()),
        f"Python {environment.get('python', '?')}",
    ]
    return f"{', '.join(parts)}; {environment.get('cpus', '?')} CPU cores, {environment.get('platform', '')}"


def done(run: RunDirectory) -> h.Node:
    """A row per stage with its rounds, seconds and clients, and who took part in each round."""
    rows = [row for row in run.metrics() if row["evaluator"] == "federation"]
    stages = [stage for stage in _ORDER if run.stage_summary(stage) or any(r["stage"] == stage for r in rows)]
    if not stages:
        return h.p["Nothing yet."]
    table = html_table(
        [
            explained("Stage", "stage"),
            explained("Round", "rounds"),
            explained("Seconds", "seconds"),
            "clients that trained",
            "of them per round",
            explained("Failed replies", "failed replies"),
            "remark",
        ],
        ["who", *["n"] * 5, ""],
        [stage_line(run, stage, [row for row in rows if row["stage"] == stage]) for stage in stages],
        "Rounds, seconds and clients of each stage",
    )
    return [table, [_took_part(stage, [row for row in rows if row["stage"] == stage]) for stage in stages]]


def stage_line(run: RunDirectory, stage: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The cells of a stage: name, rounds, seconds, clients, clients per round, failed replies, state."""
    summary = run.stage_summary(stage)
    trained = [row["clients"].get("train", []) for row in rows if "clients" in row]
    mean = sum(map(len, trained)) / len(trained) if trained else 0
    local = summary is not None and "clients" in summary
    state = "not finished" if summary is None else ""
    if summary and "reused_from" in summary:
        state = f"taken over from the run {Path(summary['reused_from']).name}"
    return [
        stage,
        str(summary.get("rounds", "–") if summary else len(rows)),
        f"{summary['seconds']:.0f}" if summary and "seconds" in summary else "–",
        str(summary["clients"]) if summary and local else _or_dash(len({c for clients in trained for c in clients})),
        f"{mean:.3g}" if trained else "–",
        str(sum(int(row["metrics"].get("failures") or 0) for row in rows)) if rows else "–",
        state,
    ]


def _or_dash(count: int) -> str:
    return str(count) if count else "–"


def _again(row: Mapping[str, Any]) -> list[int]:
    """The clients with which past rounds were held again, each once."""
    return sorted(set(row["clients"].get("replay", [])))


def _took_part(stage: str, rows: Sequence[Mapping[str, Any]]) -> h.Node:
    """Who answered in each round, in a part that can be opened; nothing where that was not written down."""
    known = [row for row in rows if "clients" in row]
    if not known:
        return None
    rows = known[-MOST_ROUNDS:]
    cells = [
        [
            str(row["round"]),
            _clients([*row["clients"].get("unlearn", []), *row["clients"].get("calibrate", []), *_again(row)]),
            _clients(row["clients"].get("train", [])),
            _clients(row["clients"].get("failed", [])),
            _clients(sorted({entry["client"] for entry in row.get("cut", ())})),
            f"{row['metrics'].get('seconds', 0):.1f}",
        ]
        for row in rows
    ]
    failed, cut = explained("Failed replies", "failed"), explained("Cut replies", "cut")
    heads = ["round", explained("FedTU", "unlearned"), "trained", failed, cut, "seconds"]
    title = f"Who took part in {stage}, round by round"
    shown = f"{title} (the last {len(rows)} of {counted(len(known), 'round')})" if len(rows) < len(known) else title
    return folded(shown, html_table(heads, ["n", "", "", "", "", "n"], cells, title))


def _clients(clients: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(set(clients)))) or "–"
