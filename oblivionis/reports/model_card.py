"""The README of a model that leaves Oblivionis: what it was trained on, what it was made to forget, what was measured.

It names requests, outcomes and numbers, no record and no person. Its head is the metadata that model hubs read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from oblivionis.config.schema import Config, Lora
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.verification_rules import DONE, MEANING
from oblivionis.models.packaged import PACKAGED
from oblivionis.models.source import EMBEDDED
from oblivionis.reports import run_summary
from oblivionis.reports.certificate.signing import results_of
from oblivionis.reports.format import counted, number
from oblivionis.reports.table import Table
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.failed_evaluators import failures
from oblivionis.version import __version__

ADAPTER, MERGED, WHOLE = "adapter", "merged", "whole"
"""What a folder holds: a PEFT adapter, the base model with its adapter added, or a model that was trained whole."""
_LOAD = {
    ADAPTER: """from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = AutoModelForCausalLM.from_pretrained(BASE)
model = PeftModel.from_pretrained(base, FOLDER)
tokenizer = AutoTokenizer.from_pretrained(FOLDER)""",
    MERGED: """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(FOLDER)
tokenizer = AutoTokenizer.from_pretrained(FOLDER)""",
}
_LOAD[WHOLE] = _LOAD[MERGED]
_LIMITS = """## What this does not say

The numbers are those of this run's questions. A model that does not recite a record may still give it away to other
questions, to sampling, or after further training: `oblivionis attack` and `oblivionis audit leakage` look for that."""
_TRAINED = {
    "finetune": "fine-tuned",
    "unlearn": "fine-tuned, then made to forget",
    "retrain": "fine-tuned without what others had to forget",
}


def base_name(config: Config) -> str | None:
    """The name of the base model on a hub; None for a folder of this machine and for what no hub has."""
    source = config.model.source
    if source == EMBEDDED or source in PACKAGED or Path(source).expanduser().exists():
        return None
    return source


def model_card(run: RunDirectory, config: Config, stage: str, kind: str, facts: Mapping[str, Any]) -> str:
    """The card of the final model of `stage`, as Markdown.

    kind: what lies beside it, `ADAPTER`, `MERGED` or `WHOLE`. facts: `round`, `parameters` that were trained, `adapter`
    (SHA-256 of their vector) and `fingerprint` of the base model.
    """
    head: dict[str, Any] = {
        "library_name": "peft" if kind == ADAPTER else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["federated-learning", "machine-unlearning", "oblivionis", *(["lora"] if kind == ADAPTER else [])],
    }
    if name := base_name(config):
        head["base_model"] = name
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---",
        f"# {run.name}: {stage}",
        _opening(config, stage, kind),
        f"```python\n{_LOAD[kind]}\n```",
        _base(config, facts["fingerprint"]) if kind == ADAPTER else "",
        "## How it was made\n\n" + _made(config, stage, facts),
        *(_requests(run) if stage == "unlearn" else []),
        *measured(run, config),
        _LIMITS,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _opening(config: Config, stage: str, kind: str) -> str:
    what = {
        ADAPTER: f"A LoRA adapter for {config.model.name}",
        MERGED: f"{config.model.name} with a LoRA adapter added to its weights",
        WHOLE: f"{config.model.name}, all of its weights trained",
    }[kind]
    clients = counted(config.federation.clients, "client")
    return f"{what}, {_TRAINED[stage]} by {clients} that shared no records (Oblivionis {__version__}, Flower)."


def _base(config: Config, fingerprint: str) -> str:
    source = config.model.source
    if source in PACKAGED:
        text = f"`BASE` is the folder that `oblivionis model fetch {source}` makes: {PACKAGED[source].origin}."
    elif source == EMBEDDED:
        text = "`BASE` is the model inside of Oblivionis; `oblivionis export --merged` writes it with the adapter."
    elif base_name(config) is None:
        text = f"`BASE` is a model folder, {Path(source).name!r} where it was trained."
    else:
        text = f"`BASE` is {source}{f' at revision {config.model.revision}' if config.model.revision else ''}."
    return (
        f"{text} Its fingerprint (`oblivionis model info`): `{fingerprint}`. On another base the adapter means nothing."
    )


def _made(config: Config, stage: str, facts: Mapping[str, Any]) -> str:
    federation, training = config.federation, config.training
    lora = config.model.lora
    rows = [
        ("data", f"{config.data.name}, on {counted(federation.clients, 'client')}"),
        ("rounds", f"{facts['round']} of the stage {stage}, {federation.fraction_train:.0%} of the clients in each"),
        ("local epochs", str(federation.local_epochs)),
        ("aggregator", config.strategy.name),
        ("training", f"learning rate {training.learning_rate:g}, batches of {training.batch_size}, seed {config.seed}"),
        ("trained", f"{facts['parameters']:,} parameters"),
    ]
    if config.model.mode == "lora":
        rows.append(("LoRA", ", ".join([f"r = {lora.rank}, alpha = {lora.alpha:g}", *_adapted(lora)])))
    if given := config.model.template.arguments:
        rows.append(("arguments of the chat template", f"`{json.dumps(given)}`"))
    if stage == "unlearn":
        rows.append(("unlearning", f"{run_summary.method(config)}, epochs per request: {config.unlearning.epochs}"))
    rows.append(("SHA-256 of what was trained", f"`{facts['adapter']}`"))
    return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)])


def _adapted(lora: Lora) -> list[str]:
    """What of the model is adapted, and how."""
    kinds = [name for name, used in (("rsLoRA", lora.use_rslora), ("DoRA", lora.use_dora)) if used]
    whole = [f"{name} trained whole" for name in lora.modules_to_save or ()]
    layers = ["the default layers of its architecture"] if lora.target_modules is None else lora.target_modules
    return [*kinds, *layers, *(lora.target_parameters or ()), *whole]


def _requests(run: RunDirectory) -> list[str]:
    """The deletion requests by their ids, what came of each, and the results of the run's certificates."""
    requests = list(Ledger(run.ledger_path))
    if not requests:
        return []
    rows = [
        [each.id, each.outcome, each.why, str(each.round), str(len(each.record_ids)), _digits(each.rouge)]
        for each in requests
    ]
    heads = ["request", "outcome", "why", "round", "records", "recall left"]
    found = Counter(each.outcome for each in requests)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(found.items()))
    doubt = "" if sum(found[outcome] for outcome in DONE) == len(requests) else "**Not all of them are verified.** "
    lines = [f"- *{outcome}*: {MEANING[outcome]}" for outcome in sorted(found) if outcome in MEANING]
    results = Counter(results_of(run))
    if results:
        lines.append(f"- certificates: {', '.join(f'{count} {result}' for result, count in sorted(results.items()))}")
    return [Table("Deletion requests", heads, rows, texts=3).markdown().strip(), f"{doubt}{counts}.", "\n".join(lines)]


def _digits(value: float | None) -> str:
    return "" if value is None else number(value)


def measured(run: RunDirectory, config: Config) -> Sequence[str]:
    """The comparison of the models as Markdown; empty where nothing was measured."""
    metrics = run_summary.stage_metrics(run, config.evaluation.truth_ratio, config.evaluation.membership.confidence)
    failed = failures(run)
    if not any(metrics.values()) and not failed:
        return []
    table = run_summary.comparison(metrics, "What was measured", failed=failed, notes=run_summary.stage_notes(run))
    return [table.markdown().strip(), run_summary.LEGEND]
