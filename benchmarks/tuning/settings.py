"""The configurations of a tuning: of the run that it starts from, of its trials, and of what they measure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.tuning.requests import SPLIT, requests_of
from oblivionis.config import compose as configuration
from oblivionis.config import extension_traits, method_traits
from oblivionis.config.checks import cross_checks
from oblivionis.config.configuration_layers import list_choices
from oblivionis.config.problems import ConfigError, Problem, did_you_mean
from oblivionis.config.schema import Config, Evaluation, Requests, Unlearning
from oblivionis.errors import RunError
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import RunDirectory

STAGES = ("finetune", "retrain")
SAMPLES = 64
"""Answers sampled per question where the run samples none after its rounds."""


@dataclass(frozen=True)
class Source:
    """What is tuned for: a finished run, or an experiment whose stages are made first. `said`: as the user named it."""

    said: str
    config: Config
    run: RunDirectory | None = None


def source_of(said: str, overrides: Sequence[str]) -> Source:
    """The run or the experiment that `said` names. Raises RunError for a run that cannot be tuned for, ConfigError."""
    folder = Path(said).expanduser()
    if not folder.is_dir():
        return Source(said, configuration.compose(said, list(overrides)))
    run = artifact_binding.opened(folder)
    if overrides:
        raise RunError(f"{said} has its own configuration; leave out {' '.join(overrides)}")
    for stage in STAGES:
        if run.stage_summary(stage) is None:
            how = f"finish it: oblivionis simulate --resume {said}"
            config = configuration.from_yaml(run.read_config(), run.config_place)
            if stage not in config.stages:
                how = "make a run with 'stages=[finetune,retrain]', or give an experiment, such as default"
            raise RunError(
                f"{said} has no finished stage {stage}: the tuning starts from the finetuned model, and what it finds "
                f"is reported beside the retrained one; {how}"
            )
    if not run.checkpoint_rounds("finetune"):
        raise RunError(f"{said} has no checkpoint of stage finetune, where the tuning would start; make the run anew")
    return Source(said, configuration.from_yaml(run.read_config(), run.config_place), run)


def check_methods(chosen: Sequence[str]) -> None:
    """Raises ConfigError for a method that there is not, or that is named twice."""
    known, problems = list_choices()["unlearning"], []
    for method in chosen:
        if method not in known and extension_traits.own_loss(method) is None:
            hint = did_you_mean(method, known)
            problems.append(Problem("--unlearning", f"unknown choice {method!r}", f"one of {', '.join(known)}", hint))
    labels = [method_traits.label(method) for method in chosen]
    for label in {label for label in labels if labels.count(label) > 1}:
        problems.append(Problem("--unlearning", f"{label} is named twice", "each method once"))
    if problems:
        raise ConfigError(problems)


def base_config(source: Source, subjects: Sequence[str], method: str, *, prune: bool) -> Config:
    """Finetune and retrain of the tuning: the run's own, but for whom is to be forgotten and for what is measured.

    method: one that needs clients' updates of the stage finetune, if any does; without a run to start from they are
    kept for it.
    """
    config, unlearning = source.config, Unlearning()
    if source.run is None and method_traits.updates(method) is not None:
        unlearning = configuration.compose("default", [f"unlearning={method}"]).unlearning
    return replace(
        config,
        name=None,
        start_from=None,
        tracking=[],
        stages=list(STAGES),
        data=replace(config.data, forget_subjects=list(subjects)),
        unlearning=replace(unlearning, requests=requests_of(config, subjects)),
        evaluation=measured(config.evaluation, prune=prune),
    )


def measured(evaluation: Evaluation, *, prune: bool) -> Evaluation:
    """What the objective reads and no more, with as many questions and tokens as the profile `light` has.

    At a stage's end the sets of the profile `full`, from which the utility comes; after the rounds of unlearning, if
    trials are pruned, the probability and membership of the same forget records.
    """
    light, leakage = evaluation.light, evaluation.leakage
    more: dict[str, dict[str, Any]] = {name: dict(values) for name, values in evaluation.more.items()}
    for values in more.values():
        values.update({"enabled": False} if "enabled" in values else {})
    if "lm_eval" in more:
        more["lm_eval"]["tasks"] = []
    return replace(
        evaluation,
        every=1 if prune else 0,
        every_training=0,
        base=False,
        at_start=False,
        after_unlearn=False,
        light=replace(light, sets=["forget"]),
        full=replace(evaluation.full, questions_per_set=light.questions_per_set, max_new_tokens=light.max_new_tokens),
        leakage=replace(
            leakage, samples=0, full_questions=light.questions_per_set, full_samples=leakage.samples or SAMPLES
        ),
        ruler=replace(evaluation.ruler, enabled=False, oracles=[]),
        wikimem=replace(evaluation.wikimem, enabled=False),
        rebound=replace(evaluation.rebound, enabled=False),
        membership=replace(evaluation.membership, enabled=True, after_rounds=True, attacks=["loss"], bootstrap=1),
        more=more,
    )


def untuned_config(source: Source, base: Config, method: str) -> Config:
    """The stage unlearn with `method` as it comes: the run's own settings where it has that method, else its file's.

    The requests are those of `base`, but at once where the method's file wants them so. Raises ConfigError where the
    method does not go with the rest of the run.
    """
    own, requests = source.config.unlearning, base.unlearning.requests
    if own.method != method:
        own = configuration.compose("default", [f"unlearning={method}"]).unlearning
        if requests.policy in SPLIT and own.requests.policy != Requests().policy:
            requests = replace(requests, policy=own.requests.policy)
    config = replace(base, stages=[*STAGES, "unlearn"], unlearning=replace(own, requests=requests))
    if problems := cross_checks(config, set()):
        raise ConfigError([replace(problem, where=f"--unlearning {method}") for problem in problems])
    return config


def with_values(config: Config, values: Mapping[str, Any]) -> Config:
    """`config` with other values of keys of the section `unlearning`, checked as in a file. Raises ConfigError."""
    tree = configuration.to_tree(config)
    for path, value in values.items():
        *sections, name = path.split(".")
        node = tree
        for section in sections:
            node = node[section]
        node[name] = value
    return configuration.from_yaml(json.dumps(tree), "trial")


def own_keys(config: Config, run: Config) -> dict[str, Any]:
    """The section `unlearning` by dotted path, of its requests only the policy, where it is not that of `run`."""
    tree = dataclasses.asdict(config.unlearning)
    policy = tree.pop("requests")["policy"]
    found: dict[str, Any] = {"unlearning.method": tree.pop("method")}
    if policy != run.unlearning.requests.policy:
        found["unlearning.requests.policy"] = policy
    for name, value in tree.items():
        if isinstance(value, dict):
            found |= {f"unlearning.{name}.{key}": entry for key, entry in value.items()}
        else:
            found[f"unlearning.{name}"] = value
    return found
