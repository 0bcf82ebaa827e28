"""Composition of the configuration: every file, every kind of mistake, precedence, round trip, the reference page."""

from __future__ import annotations

import copy
import dataclasses
import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from clients import losses
from oblivionis.config import extension_traits
from oblivionis.config import reference as config_docs
from oblivionis.config.compose import compose, from_yaml, method_params, to_yaml, tree_of
from oblivionis.config.configuration_layers import GROUPS, list_choices, list_experiments, parse_overrides, selector
from oblivionis.config.limits import About
from oblivionis.config.problems import ConfigError, Problem, nearest, render_problems
from oblivionis.config.schema import Config
from oblivionis.config.values import KEYS, SECTIONS
from oblivionis.config.yaml_files import CONF
from oblivionis.data.datasets.fictitious import MAX_AUTHORS, MAX_QUESTIONS

ALL_CHOICES = [(group, name) for group, names in list_choices().items() for name in names]


def problems_of(experiment: str | Path = "default", overrides: list[str] | str = "") -> list[Problem]:
    """The problems that composing finds; fails when it finds none."""
    with pytest.raises(ConfigError) as caught:
        compose(experiment, overrides)
    return caught.value.problems


def only(*overrides: str) -> Problem:
    """The one problem of a wrong override on top of the default."""
    (problem,) = problems_of("default", list(overrides))
    return problem


def write(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


# Every file in conf/


@pytest.mark.parametrize("name", list_experiments())
def test_every_experiment_composes_and_survives_a_round_trip(name: str) -> None:
    config = compose(name)
    assert isinstance(config, Config)
    assert from_yaml(to_yaml(config)) == config


@pytest.mark.parametrize(("group", "name"), ALL_CHOICES)
def test_every_choice_composes_on_the_default(group: str, name: str, tmp_path: Path) -> None:
    data = write(tmp_path, "{}\n" * 40, "records.jsonl")
    own = [f"data.path={data}"]
    needs = {"records": own, "jsonl": own, "node": ["unlearning.requests.policy=none"]}
    config = compose("default", [f"{group}={name}", *needs.get(name, [])])
    section = getattr(config, group)
    if group == "unlearning":
        methods = [*losses.names(), "exact", "federaser", "fused", "rapid_retraining", "weight_negation"]
        assert section.method in methods and (section.method == name or name not in methods)
    else:
        assert getattr(section, selector(group).partition(".")[2]) == name


def test_every_yaml_file_is_an_experiment_a_choice_or_settings() -> None:
    files = {str(file.relative_to(CONF).with_suffix("")) for file in CONF.rglob("*") if file.is_file()}
    settings = {f"{kind}/{name}" for kind in ("evaluator", "attack") for name in extension_traits.settings(kind)}
    assert files == {*list_experiments(), *(f"{group}/{name}" for group, name in ALL_CHOICES), *settings}


def test_default_choice_of_each_group_exists() -> None:
    assert set(GROUPS.items()) <= set(ALL_CHOICES)


@pytest.mark.parametrize(
    ("name", "source", "template"),
    [
        ("llama_3_2_1b", "meta-llama/Llama-3.2-1B-Instruct", "chat"),
        ("llama_3_2_3b", "meta-llama/Llama-3.2-3B-Instruct", "chat"),
        ("llama_3_1_8b", "meta-llama/Llama-3.1-8B-Instruct", "chat"),
        ("llama_2_7b", "meta-llama/Llama-2-7b-hf", "qa"),
        ("llama_2_7b_chat", "meta-llama/Llama-2-7b-chat-hf", "qa"),
        ("phi_1_5", "microsoft/phi-1_5", "qa"),
    ],
)
def test_paper_experiments_hold_the_papers_setting(name: str, source: str, template: str) -> None:
    config = compose(f"paper_{name}")
    federation, training, lora = config.federation, config.training, config.model.lora
    assert (config.model.source, config.model.template.kind, config.model.dtype) == (source, template, "bfloat16")
    assert (federation.clients, federation.fraction_train, federation.local_epochs) == (30, 0.1, 5)
    assert dataclasses.asdict(federation.rounds) == {"finetune": 10, "retrain": 10, "unlearn": 10, "local": 10}
    assert (lora.rank, lora.alpha, lora.dropout) == (32, 64.0, 0.05)
    assert (training.learning_rate, training.weight_decay, training.batch_size) == (8e-5, 0.01, 32)
    assert (training.warmup_epochs, training.optimizer, config.seed) == (1.0, "paged_adamw_32bit", 0)
    assert config.unlearning.requests.policy == "random_client_per_round"
    phi = ["q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"]
    llama = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert lora.target_modules == (phi if name == "phi_1_5" else llama)


def test_strategies_hold_table_5() -> None:
    found = {name: compose("default", [f"strategy={name}"]).strategy for name in list_choices()["strategy"]}
    for name in ("fedadagrad", "fedadam", "fedyogi"):
        assert (found[name].params["eta"], found[name].params["tau"]) == (1e-3, 1e-3)
    for name in ("fedadam", "fedyogi"):
        assert (found[name].params["beta_1"], found[name].params["beta_2"]) == (0.9, 0.99)
    assert found["fedavgm"].params["server_momentum"] == 0.9
    assert {name for name, strategy in found.items() if "proximal_mu" in strategy.params} == {"fedprox"}
    assert found["fedprox"].params["proximal_mu"] == 0.01


def test_method_files_and_losses_name_the_same_hyperparameters() -> None:
    assert set(losses.names()) <= set(list_choices()["unlearning"])
    for method in losses.names():
        signature = losses.hyperparameters(method)
        stored = method_params(method)
        assert {name: type(value) for name, value in stored.items()} == {n: type(v) for n, v in signature.items()}


def test_limits_of_the_generator_are_those_of_the_schema() -> None:
    assert KEYS["data.authors"].about.at_most == MAX_AUTHORS
    assert KEYS["data.questions_per_author"].about.at_most == MAX_QUESTIONS


def test_every_key_has_help_and_a_default_that_it_allows() -> None:
    for key in KEYS.values():
        assert key.about.help.endswith("."), key.path
    assert from_yaml("") == dataclasses.replace(
        Config(), unlearning=dataclasses.replace(Config().unlearning, params=method_params("npo"))
    )


# Precedence


def test_group_file_beats_schema_and_override_beats_group_file() -> None:
    assert (Config().federation.rounds.finetune, compose("default").federation.rounds.finetune) == (10, 120)
    fedadam = compose("default", ["strategy=fedadam"]).strategy
    assert fedadam.params["eta"] == 1e-3
    assert compose("default", ["strategy.params.eta=3", "strategy=fedadam"]).strategy == dataclasses.replace(
        fedadam, params={**fedadam.params, "eta": 3.0}
    )
    assert compose("default", ["seed=1", "seed=2"]).seed == 2


def test_experiment_values_beat_the_group_file_and_count_for_their_name_only(tmp_path: Path) -> None:
    file = write(tmp_path, "strategy: {name: fedadam, params: {tau: 1e-2}}\nevaluation: {every: 7}\n")
    assert (compose(file).strategy.name, compose(file).strategy.params["tau"]) == ("fedadam", 1e-2)
    assert compose(file, ["strategy.params.tau=0.5"]).strategy.params["tau"] == 0.5
    switched = compose(file, ["strategy=fedyogi", "evaluation=full"])
    assert (switched.strategy.name, switched.strategy.params["tau"]) == ("fedyogi", 1e-3)
    assert (switched.evaluation.name, switched.evaluation.every) == ("full", 7)


def test_per_choice_values_apply_to_the_chosen_name(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "unlearning: {epochs: 3}\n"
        "per_choice:\n"
        "  unlearning:\n"
        "    npo: {learning_rate: 1e-3}\n"
        "    simnpo: {learning_rate: 2e-3, params: {beta: 2.5}}\n",
    )
    npo, simnpo, other = (compose(file, [f"unlearning={m}"]).unlearning for m in ("npo", "simnpo", "grad_diff"))
    assert (npo.learning_rate, simnpo.learning_rate, other.learning_rate) == (1e-3, 2e-3, None)
    assert (npo.epochs, simnpo.epochs, other.epochs) == (3, 3, 3)
    assert simnpo.params == {**method_params("simnpo"), "beta": 2.5}
    assert compose(file, ["unlearning=simnpo", "unlearning.params.beta=9"]).unlearning.params["beta"] == 9.0


def test_extends_by_name_and_by_path(tmp_path: Path) -> None:
    write(tmp_path, "extends: smoke\nseed: 5\ntraining: {batch_size: 3}\n", "base.yaml")
    config = compose(write(tmp_path, "extends: base.yaml\ntraining: {learning_rate: 1e-2}\nstrategy: fedadam\n"))
    assert (config.seed, config.training.batch_size, config.training.learning_rate) == (5, 3, 1e-2)
    assert (config.federation.clients, config.strategy.name) == (2, "fedadam")


def test_an_experiment_that_extends_itself_is_a_problem(tmp_path: Path) -> None:
    write(tmp_path, "extends: two.yaml\n", "one.yaml")
    write(tmp_path, "extends: one.yaml\n", "two.yaml")
    (problem,) = problems_of(tmp_path / "one.yaml")
    assert problem.path == "extends" and problem.where.endswith("two.yaml:1")


def test_a_model_of_your_own_may_carry_any_name(tmp_path: Path) -> None:
    file = write(tmp_path, "model: {name: mine, source: gpt2, max_length: 256}\n")
    config = compose(file)
    assert (config.model.name, config.model.source, config.model.max_length) == ("mine", "gpt2", 256)
    assert from_yaml(to_yaml(config)) == config
    assert compose(file, ["model=tiny"]).model == compose().model
    assert compose("default", ["model.name=mine", "model.source=gpt2"]).model.name == "mine"
    assert only("model.name=tinny").hint == "did you mean tiny?"


def test_one_string_of_overrides_is_split_like_a_shell_does() -> None:
    text = "strategy=fedadam name='my run' stages='[finetune, unlearn]' federation.clients=7"
    config = compose("default", text)
    assert (config.strategy.name, config.name) == ("fedadam", "my run")
    assert (config.stages, config.federation.clients) == (["finetune", "unlearn"], 7)
    assert compose("default", "") == compose()
    assert "cannot be split" in problems_of("default", "name='open")[0].message


def test_values_of_overrides() -> None:
    config = compose(
        "default",
        [
            "name=2024",
            "model.revision=5e10",
            "model.template.question_prefix=a: b [c",
            "model.template.answer_separator=",
            "unlearning.learning_rate=1e-3",
            "training.max_grad_norm=null",
            "model.lora={rank: 4, dropout: 0}",
            "unlearning.requests.clients=[0, 3]",
            "evaluation.after_unlearn=true",
        ],
    )
    assert (config.name, config.model.revision, config.model.template.question_prefix) == ("2024", "5e10", "a: b [c")
    assert (config.model.template.answer_separator, config.unlearning.learning_rate) == ("", 1e-3)
    assert config.training.max_grad_norm is None
    assert (config.model.lora.rank, config.model.lora.dropout, config.model.lora.alpha) == (4, 0.0, 64.0)
    assert config.unlearning.requests.clients == [0, 3]
    assert config.evaluation.after_unlearn is True


def test_interpolation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATE", "2e-4")
    text = (
        "training: {learning_rate: '${oc.decode:${oc.env:RATE}}'}\nunlearning: {epochs: '${federation.local_epochs}'}\n"
    )
    config = compose(write(tmp_path, text), ["federation.local_epochs=4"])
    assert (config.training.learning_rate, config.unlearning.epochs) == (2e-4, 4)
    problem = only("seed=${sead}")
    assert problem.path == "seed" and "sead" in problem.message


# Problems


def test_three_mistakes_in_one_file_are_three_problems_with_their_lines(tmp_path: Path) -> None:
    file = write(
        tmp_path, "strategy: fedadm\nfederation:\n  fraction_train: 1.7\nunlearning:\n  metod: npo\n", "wrong.yaml"
    )
    found = {problem.path: problem for problem in problems_of(file)}
    assert set(found) == {"strategy", "federation.fraction_train", "unlearning.metod"}
    assert found["strategy"].hint == "did you mean fedadam?"
    assert found["unlearning.metod"].hint == "did you mean unlearning.method?"
    assert found["federation.fraction_train"].expected == "0 < value <= 1"
    lines = {path: problem.where.rsplit(":", 1)[1] for path, problem in found.items()}
    assert lines == {"strategy": "1", "federation.fraction_train": "3", "unlearning.metod": "5"}


def test_render() -> None:
    with pytest.raises(ConfigError) as caught:
        compose("default", ["federation.fraction_train=1.7", "sead=1"])
    assert render_problems(caught.value).splitlines() == [
        "2 problems in the configuration:",
        "  federation.fraction_train: 1.7 is out of range; expected 0 < value <= 1  [override]",
        "  sead: unknown key; did you mean seed?  [override]",
    ]
    assert str(caught.value) == render_problems(caught.value)


@pytest.mark.parametrize(
    ("override", "path", "message"),
    [
        ("federation.clients=abc", "federation.clients", "'abc' is not a whole number"),
        ("federation.clients=2.5", "federation.clients", "2.5 is not a whole number"),
        ("federation.clients=true", "federation.clients", "True is not a whole number"),
        ("federation.clients=0", "federation.clients", "0 is out of range"),
        ("federation.clients=null", "federation.clients", "null is not allowed"),
        ("federation.clients={a: 1}", "federation.clients", "{'a': 1} is not a whole number"),
        ("training.learning_rate=.nan", "training.learning_rate", "nan is not finite"),
        ("training.learning_rate=.inf", "training.learning_rate", "inf is not finite"),
        ("training.learning_rate=fast", "training.learning_rate", "'fast' is not a number"),
        ("strategy.params=3", "strategy.params", "3 is no mapping"),
        ("strategy.params.tau=1", "strategy.params.tau", "unknown key"),
        ("strict=maybe", "strict", "'maybe' is not true or false"),
        ("model.dtype=float8", "model.dtype", "unknown choice 'float8'"),
        ("stages=finetune", "stages", "'finetune' is not a list"),
        ("stages=[]", "stages", "the list is empty"),
        ("stages=[finetune, finetune]", "stages", "['finetune', 'finetune'] names something twice"),
        ("stages=[finetun]", "stages[0]", "unknown choice 'finetun'"),
        ("model.lora.target_modules=[1]", "model.lora.target_modules[0]", "1 is not a text; put it in quotes"),
        ("unlearning.params=3", "unlearning.params", "3 is no mapping"),
        ("unlearning.params.bata=3", "unlearning.params.bata", "unknown key"),
        ("unlearning.params.gamma=0", "unlearning.params.gamma", "0.0 is out of range"),
        ("unlearning.params.gamma=x", "unlearning.params.gamma", "'x' is not a number"),
        ("output=", "output", "the text is empty"),
        ("output=???", "output", "a value must be given"),
        ("model.lora=5", "model.lora", "5 is not a section"),
        ("extends=tofu", "extends", "unknown key"),
        ("seed", "seed", "malformed override: no `=`"),
        ("=3", "=3", "malformed override: '' is no key"),
        ("a..b=3", "a..b=3", "malformed override: 'a..b' is no key"),
        ("--seed=3", "--seed=3", "malformed override: '--seed' is no key"),
        ("name=a/b", "name", "'a/b' cannot be the name of a folder"),
    ],
)
def test_each_kind_of_wrong_value(override: str, path: str, message: str) -> None:
    problem = only(override)
    assert (problem.path, problem.message) == (path, message)
    assert problem.where == "override"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("beta_1=1", "1.0 is out of range"),
        ("tau=0", "0.0 is out of range"),
        ("eta=x", "'x' is not a number"),
        ("momentum=0.5", "unknown key"),
    ],
)
def test_wrong_parameters_of_an_aggregator(override: str, message: str) -> None:
    problem = only("strategy=fedadam", f"strategy.params.{override}")
    assert (problem.path, problem.message) == (f"strategy.params.{override.partition('=')[0]}", message)


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        (
            "learning_rate=1",
            "did you mean unlearning.learning_rate or attack.relearn.learning_rate or training.learning_rate?",
        ),
        ("unlearning.gamma=1", "did you mean unlearning.params.gamma?"),
        ("federation.round.finetune=1", "did you mean federation.rounds?"),
        ("model.lora.rnk=1", "did you mean model.lora.rank?"),
        ("fraction_trian=1", "did you mean federation.fraction_train?"),
        ("strategy=FedAvgM2", "did you mean fedavgm?"),
        ("strategy.name=fedadm", "did you mean fedadam?"),
        ("unlearning.method=sim-npo", "did you mean simnpo?"),
        ("data=tofo", "did you mean tofu?"),
        ("fedadam", "did you mean strategy=fedadam?"),
        ("tofu", "an experiment comes before the keys: tofu key=value …"),
        ("model.device=gpu", "did you mean cuda?"),
        ("model.dtype=BF16", "did you mean bfloat16?"),
        ("output.name=x", "output has no keys below it; did you mean name=x?"),
        ("stages=finetune", "write stages=[finetune]"),
    ],
)
def test_hints(override: str, hint: str) -> None:
    assert only(override).hint == hint


def test_malformed_yaml_value_of_an_override() -> None:
    problem = only("stages=[finetune")
    assert problem.path == "stages=[finetune" and problem.message.startswith("malformed override: ")


def test_an_unknown_key_of_no_likeness_lists_what_there_is() -> None:
    assert only("training.zzz=1").expected.startswith("a key of training: batch_size, ")


def test_unknown_experiment_names_the_nearest() -> None:
    (problem,) = problems_of("tofuu")
    assert (problem.path, problem.hint) == ("experiment", "did you mean tofu?")
    assert problems_of("no/such.yaml")[0].message == "there is no 'no/such.yaml'"


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("seed: 1\nname: [a\n", "is not valid YAML", 3),
        ("seed: 1\nseed: 2\n", "is not valid YAML: found duplicate key seed", 2),
        ("seed: 1\n\ttraining: 2\n", "is not valid YAML", 2),
        ("- seed\n", "is no mapping", 1),
        ("just words\n", "is no mapping", 1),
    ],
)
def test_yaml_errors_name_file_and_line(tmp_path: Path, text: str, message: str, line: int) -> None:
    (problem,) = problems_of(write(tmp_path, text))
    assert problem.message.startswith(message)
    assert problem.where.endswith(f"mine.yaml:{line}")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "latin.yaml"
    file.write_bytes(b"name: \xe9\n")
    assert problems_of(file)[0].message == "cannot be read: it is not UTF-8 text"


def test_empty_file_and_empty_section_are_allowed(tmp_path: Path) -> None:
    assert compose(write(tmp_path, "")).federation.clients == 30
    assert compose(write(tmp_path, "training:\nmodel:\n")).model.name == "tiny"


def test_values_that_do_not_apply_are_checked_too(tmp_path: Path) -> None:
    text = (
        "strategy: {name: fedadam, tua: 1, params: {tua: 1}}\n"
        "per_choice:\n"
        "  unlearning:\n"
        "    simnpo: {epochs: 0, params: {bata: 1}}\n"
        "    nqo: {epochs: 1}\n"
        "  trategy: {}\n"
    )
    found = {problem.path for problem in problems_of(write(tmp_path, text), ["strategy=fedavg"])}
    assert found == {
        "strategy.tua",
        "strategy.params.tua",
        "unlearning.epochs",
        "unlearning.params.bata",
        "per_choice.unlearning.nqo",
        "per_choice.trategy",
    }


@pytest.mark.parametrize("text", ["per_choice: 3", "per_choice: {strategy: 3}", "per_choice: {strategy: {fedavg: 3}}"])
def test_per_choice_of_a_wrong_shape(tmp_path: Path, text: str) -> None:
    (problem,) = problems_of(write(tmp_path, text))
    assert problem.path.startswith("per_choice") and problem.message == "3 is no mapping"


# Between keys

SUMS = ["stages=[finetune]", "federation.min_clients=3", "federation.secure_aggregation.enabled=true"]
RECORDS_HIDDEN = ["stages=[finetune]", "privacy.level=record", "privacy.clipping_norm=1"]
CLIENTS_HIDDEN = [*RECORDS_HIDDEN, "privacy.level=client"]


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        (["stages=[unlearn, finetune]"], "stages"),
        (["stages=[retrain, unlearn]"], "stages"),
        (["start_from=nowhere"], "start_from"),
        (["federation.clients=31", "data.authors=5", "data.questions_per_author=2"], "federation.clients"),
        (["federation.clients=61", "data.partition.scheme=by_author"], "federation.clients"),
        (["federation.clients=4001", "data=tofu"], "federation.clients"),
        (["federation.clients=201", "data=tofu", "data.partition.scheme=by_author"], "federation.clients"),
        (["federation.min_clients=31"], "federation.min_clients"),
        (["federation.local_clients=31"], "federation.local_clients"),
        (["data.authors=3", "data.questions_per_author=10"], "data.forget_authors"),
        (["data=jsonl"], "data.path"),
        (["data=records"], "data.path"),
        (["data=records", "data.path=."], "data.path"),
        (["data=records", "data.path=owner/name.csv"], "data.path"),
        (["data=tofu", "data.fields={question: q}"], "data.fields"),
        (["data=records", "data.path=owner/name", "data.fields={question: q, answer: q}"], "data.fields"),
        (["data=records", "data.path=owner/name", "data.fields={question: q, messages: m}"], "data.fields"),
        (["data=jsonl", "data.path=nowhere.jsonl"], "data.path"),
        (["data.path=own.jsonl"], "data.path"),
        (["data=muse_tiny", "data.forget_file=ids.txt"], "data.forget_file"),
        (["data=tofu", "data.holdout_file=held.jsonl"], "data.holdout_file"),
        (["data.reference_file=others.jsonl"], "data.reference_file"),
        (["data=tofu", "data.path=nowhere"], "data.path"),
        (["data=tofu", "data.path=."], "data.path"),
        (["model.source=./nowhere"], "model.source"),
        (["model.max_length=513"], "model.max_length"),
        (["model.attn_implementation=kernels-community/flash-attn"], "model.attn_implementation"),
        (["model.mode=full", "model.lora.aggregation=product"], "model.lora.aggregation"),
        (["model.mode=full", "model.lora.aggregation=freeze_a"], "model.lora.aggregation"),
        (["model.template.kind=chat"], "model.template.kind"),
        (["model.template.answer_prefix=Answer: "], "model.template.answer_prefix"),
        (["model.template.answer_prefix=", "model.template.question_suffix= "], "model.template.question_suffix"),
        (["training.optimizer=paged_adamw_32bit", "model.device=cpu"], "training.optimizer"),
        (["training.warmup_epochs=6"], "training.warmup_epochs"),
        (["training.warmup_ratio=0.1"], "training.warmup_ratio"),
        (["model.quantization=nf4", "model.mode=full"], "model.quantization"),
        (["federation.client_gpus=0.5", "model.device=cpu"], "federation.client_gpus"),
        (["federation.client_gpus=1.5"], "federation.client_gpus"),
        (["unlearning.requests.clients=[30]"], "unlearning.requests.clients"),
        (["unlearning.requests.policy=all_at_round", "unlearning.requests.round=11"], "unlearning.requests.round"),
        (["unlearning.requests.policy=file"], "unlearning.requests.file"),
        (["unlearning.requests.policy=subjects_at_round"], "unlearning.requests.subjects"),
        (
            ["unlearning.requests.policy=subjects_at_round", "unlearning.requests.subjects=[Mara Voss, MARA  voss]"],
            "unlearning.requests.subjects",
        ),
        (
            [
                "unlearning.requests.policy=subjects_at_round",
                "unlearning.requests.subjects=[a]",
                "unlearning.requests.round=11",
            ],
            "unlearning.requests.round",
        ),
        (
            [
                "unlearning.requests.policy=subjects_at_round",
                "unlearning.requests.subjects=[a]",
                "unlearning.requests.scope=client",
            ],
            "unlearning.requests.scope",
        ),
        (["unlearning.requests.policy=file", "unlearning.requests.file=nowhere"], "unlearning.requests.file"),
        (["unlearning=calibrated", "data.reference_authors=0"], "data.reference_authors"),
        (["unlearning=calibrated", "unlearning.target=null", "unlearning.again=0"], "unlearning.target"),
        (["unlearning=federaser", "unlearning.target=oracle_estimate"], "unlearning.target"),
        (["data=muse_tiny", "unlearning.target=oracle_estimate"], "unlearning.target"),
        (["unlearning=npo", "unlearning.again=3"], "unlearning.again"),
        (["unlearning=npo", "unlearning.sampled_answers=8"], "unlearning.sampled_answers"),
        (["unlearning=calibrated", "unlearning.merge=mean"], "unlearning.merge"),
        (["unlearning=npo", "unlearning.target=oracle_estimate", "unlearning.again=3"], "unlearning.merge"),
        (["federation.candidates=6"], "federation.candidates"),
        (["federation.sampling=power_of_choice", "federation.candidates=2"], "federation.candidates"),
        (["federation.sampling=power_of_choice", "federation.candidates=31"], "federation.candidates"),
        (["federation.sampling=power_of_choice", *RECORDS_HIDDEN], "federation.sampling"),
        (["federation.sampling=power_of_choice", *SUMS], "federation.sampling"),
        (["federation.sampling=by_size", *SUMS], "federation.sampling"),
        (["federation.sampling=by_size", *CLIENTS_HIDDEN], "federation.sampling"),
        (["federation.sampling=available", *CLIENTS_HIDDEN], "federation.sampling"),
    ],
)
def test_each_check_between_keys(overrides: list[str], path: str, tmp_path: Path) -> None:
    base = write(tmp_path, "federation: {local_epochs: 5, rounds: {unlearn: 10}}\n")
    assert [problem.path for problem in problems_of(base, overrides)] == [path]


@pytest.mark.parametrize(
    "overrides",
    [
        ["federation.clients=10", "data.authors=5", "data.questions_per_author=2"],
        ["federation.clients=30", "data.partition.scheme=by_author"],
        ["federation.clients=200", "data=tofu", "data.partition.scheme=by_author"],
        ["federation.min_clients=30", "federation.local_clients=30"],
        ["training.warmup_ratio=0.1", "training.warmup_epochs=0"],
        ["model.quantization=int8", "federation.client_gpus=2"],
        ["data.authors=4", "data.questions_per_author=10"],
        ["model.mode=full", "model.lora.aggregation=factors"],
        ["model.attn_implementation=eager"],
        ["stages=[unlearn]", "start_from={run}"],
        ["data=jsonl", "data.path={run}/thirty.jsonl"],
        ["data=records", "data.path=owner/name", "data.fields={question: q, answer: a}", "data.fields.id=key"],
        ["unlearning.requests.policy=file", "unlearning.requests.file={run}/thirty.jsonl"],
        ["unlearning.requests.policy=all_at_round", "unlearning.requests.round=10", "unlearning.requests.clients=[29]"],
        ["unlearning.requests.policy=subjects_at_round", "unlearning.requests.subjects=[a, b]"],
        ["unlearning.requests.scope=client"],
        ["federation.sampling=power_of_choice", "federation.candidates=3"],
        ["federation.sampling=power_of_choice", "federation.candidates=30"],
        ["federation.sampling=by_size", *RECORDS_HIDDEN],
        ["federation.sampling=available", *SUMS],
    ],
)
def test_the_last_allowed_value_passes(overrides: list[str], tmp_path: Path) -> None:
    write(tmp_path, "", "config.yaml")
    write(tmp_path, "{}\n" * 30 + "\n", "thirty.jsonl")
    base = write(tmp_path, "federation: {rounds: {unlearn: 10}}\n")
    compose(base, [override.replace("{run}", str(tmp_path)) for override in overrides])


@pytest.mark.parametrize(
    ("overrides", "method"),
    [
        ([], "calibrated"),
        (["data.reference_authors=0"], "npo"),
        (["data=tofu"], "npo"),
        (["data=tofu", "data.reference_authors=2"], "calibrated"),
        (["data=jsonl", "data.path={run}/thirty.jsonl"], "npo"),
        (["data=jsonl", "data.path={run}/thirty.jsonl", "data.reference_file={run}/thirty.jsonl"], "calibrated"),
        (["data=muse_tiny"], "npo"),
        (RECORDS_HIDDEN, "npo"),
        (CLIENTS_HIDDEN, "npo"),
        (["unlearning=simnpo", "data.reference_authors=0"], "simnpo"),
    ],
)
def test_auto_is_calibrated_where_there_are_records_that_nobody_trains_on(
    overrides: list[str], method: str, tmp_path: Path
) -> None:
    write(tmp_path, "{}\n" * 30, "thirty.jsonl")
    config = compose("default", [override.replace("{run}", str(tmp_path)) for override in overrides])
    assert config.unlearning.method == method
    assert (config.unlearning.target is not None) == (method == "calibrated")


def test_clients_folders_that_lack_references_are_named(tmp_path: Path) -> None:
    for client in (0, 1):
        (tmp_path / f"node{client}" / "data").mkdir(parents=True)
    (tmp_path / "node0" / "references.jsonl").touch()
    overrides = ["data=node", f"data.nodes={tmp_path}", "federation.clients=2", "unlearning=calibrated"]
    lacking = [p for p in problems_of("default", overrides) if "nobody trains on" in p.message]
    assert [(p.path, p.hint) for p in lacking] == [("data.nodes", "or unlearning=npo, which takes none")]
    assert str(tmp_path / "node1" / "references.jsonl") in lacking[0].message


def test_who_only_asks_finished_models_needs_nothing_that_their_method_takes() -> None:
    overrides = ["unlearning=calibrated", "data.reference_authors=0"]
    assert [problem.path for problem in problems_of("default", overrides)] == ["data.reference_authors"]
    assert compose("default", overrides, unlearns=False).unlearning.method == "calibrated"


def test_records_of_a_jsonl_file_are_counted(tmp_path: Path) -> None:
    file = write(tmp_path, "{}\n\n" * 29, "records.jsonl")
    assert only("data=jsonl", f"data.path={file}").message == "30 clients cannot share 29 records"


def test_a_value_that_was_read_is_nobody_elses() -> None:
    for _ in range(2):
        layer, _ = parse_overrides(["stages=[finetune]"])
        (stages, _) = layer.values["stages"]
        assert stages == ["finetune"]
        stages.append("changed")


def test_a_check_between_keys_waits_until_its_keys_are_right() -> None:
    found = {problem.path for problem in problems_of("default", ["data.authors=x", "federation.clients=99999"])}
    assert found == {"data.authors"}


# Round trip


def test_a_resolved_configuration_is_an_experiment(tmp_path: Path) -> None:
    config = compose("tofu", ["strategy=fedadam", "strategy.params.tau=0.5", "unlearning=simnpo", "name=x"])
    assert compose(write(tmp_path, to_yaml(config))) == config


texts = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=30)
numbers = st.floats(min_value=1e-300, max_value=1e300)
default = functools.cache(compose)


@settings(max_examples=60, deadline=None)
@given(
    texts,
    texts,
    numbers,
    st.integers(0, 2**32 - 1),
    st.sampled_from(["${a}", "\\${a}", "\\\\${", "1e5", "null", "yes", "~", "007", ""]),
)
@pytest.mark.slow
def test_round_trip_of_any_text_and_number(one: str, two: str, number: float, seed: int, three: str) -> None:
    config = copy.deepcopy(default())
    config.seed, config.training.learning_rate = seed, number
    config.model.template.system_prompt, config.model.template.question_prefix = one, two
    config.model.template.question_suffix = three
    assert from_yaml(to_yaml(config)) == config


def test_from_yaml_reports_problems_but_looks_for_no_files() -> None:
    assert from_yaml("data: {name: tofu, path: /not/here}").data.path == "/not/here"
    assert from_yaml("strategy: fedadam").strategy.name == "fedadam"
    with pytest.raises(ConfigError) as caught:
        from_yaml("seed: x\nunlearning: {method: nqo}\nfoo: 1\n")
    assert {(p.path, p.where) for p in caught.value.problems} == {
        ("seed", "configuration:1"),
        ("unlearning", "configuration:2"),
        ("foo", "configuration:3"),
    }


# Small parts


@settings(max_examples=200, deadline=None)
@given(st.integers(-3, 3) | st.none(), st.integers(-3, 3) | st.none(), st.booleans(), st.booleans(), st.integers(-4, 4))
def test_words_and_test_of_a_range_agree(
    low: int | None, high: int | None, open_low: bool, open_high: bool, value: int
) -> None:
    limits: dict[str, Any] = {"above" if open_low else "at_least": low, "below" if open_high else "at_most": high}
    about = About("", **limits)
    words = about.range()
    assert about.allows(value) == (eval(words, {"value": value}) if words else True)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40))
def test_no_override_makes_the_parser_fail(item: str) -> None:
    layer, problems = parse_overrides([item])
    assert bool(layer.values) != bool(problems) or item.partition("=")[2].strip() in ("{}", "null", "~", "")


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_subnormal=False)
    | st.text(max_size=5)
    | st.sampled_from(["???", "${", "${seed}"])
)
junk = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
)
places = st.sampled_from([*sorted(KEYS), *sorted(SECTIONS - {""}), "extends", "per_choice", "unlearning.params.beta"])


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(places | st.text(max_size=4), junk, max_size=3))
@pytest.mark.slow
def test_any_content_of_a_file_gives_a_configuration_or_problems(content: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = write(Path(folder), yaml.safe_dump(content))
        try:
            config = compose(file)
        except ConfigError as error:
            assert error.problems
        else:
            assert from_yaml(to_yaml(config)) == config


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(KEYS)), st.data())
def test_one_wrong_letter_still_finds_the_key(path: str, data: st.DataObject) -> None:
    name = path.rsplit(".", 1)[-1]
    if len(name) < 5:
        return
    at = data.draw(st.integers(0, len(name) - 1))
    assert nearest(f"{name[:at]}q{name[at + 1 :]}", [name, "zzzzzz"]) == name


def test_the_reference_page_is_what_the_schema_says() -> None:
    page = (CONF.parent / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    assert page == config_docs.page(), "run: python -m oblivionis.config.reference > docs/reference/configuration.md"


@pytest.mark.parametrize("order", [1, -1])
def test_a_choice_and_values_below_it_become_a_tree_whatever_their_order(order: int) -> None:
    flat = dict([("base.data", "records"), ("base.data.path", "own.csv"), ("base.seed", 3)][::order])
    assert tree_of(flat) == {"base": {"data": "records", "data.path": "own.csv", "seed": 3}}
