"""Federated suites: those that ship, the cells of a matrix, and mistakes in a suite."""

import functools

import pytest
from support.commands import call

from benchmarks import suite_kinds as suites
from oblivionis.config.problems import ConfigError

SMALL = """
kind: federated
experiment: smoke
base:
  evaluation.at_start: false
  evaluation.every: 0
  evaluation.leakage.full_samples: 0
  evaluation.ruler.enabled: false
  evaluation.wikimem.enabled: false
stages: [finetune, unlearn]
matrix:
  strategy: [fedavg]
  unlearning: [npo, grad_diff]
  seed: [0]
tables:
  small: {rows: unlearning, columns: strategy, metrics: {MU: model_utility}}
"""


def suite(folder, text=SMALL, name="small.yaml"):
    file = folder / name
    file.write_text(text)
    return file


def cells(file, *overrides):
    return suites.load(file, overrides)[1].cells()


def test_a_choice_and_values_below_it_both_reach_every_cell(tmp_path):
    (tmp_path / "own.csv").write_text("question,answer\n" + "".join(f"what is {n},it is {n}\n" for n in range(8)))
    text = SMALL.replace("base:\n", f"base:\n  data: records\n  data.path: {tmp_path / 'own.csv'}\n")
    for config in (cell.config for cell in cells(suite(tmp_path, text), "base.federation.clients=2")):
        assert (config.data.name, config.data.path) == ("records", str(tmp_path / "own.csv"))


# -- the suites that ship ------------------------------------------------------------------------------------------

SHIPPED = sorted(file.stem for file in suites.FOLDER.glob("*.yaml"))


@functools.cache
def shipped(name):
    return suites.load(suites.find(name))


@pytest.mark.parametrize("name", SHIPPED)
def test_every_suite_that_ships_is_right(name):
    kind, settings = shipped(name)
    assert kind in suites.KINDS
    if kind == "federated":
        assert settings.title and settings.description and settings.layouts()


@pytest.mark.parametrize("name", [n for n in SHIPPED if n.endswith("_tiny")])
def test_a_tiny_twin_has_the_methods_of_its_suite_and_the_tiny_model(name):
    twin, paper = (shipped(n)[1] for n in (name, name.removesuffix("_tiny")))
    assert all(cell.config.model.source == "embedded" for cell in twin.cells())
    assert set(twin.matrix["unlearning"]) <= set(paper.matrix["unlearning"]) if name.startswith("tofu") else True


@pytest.mark.parametrize(("split", "table"), [("99", "2"), ("95", "8"), ("90", "7")])
def test_the_tofu_suites_are_the_papers_tables(split, table):
    settings = shipped(f"tofu_split{split}")[1]
    found = settings.cells()
    assert len(found) == 3 * 6 * 4 and f"paper-table-{table}" in {layout.name for layout in settings.layouts()}
    config = found[0].config
    assert config.data.forget_split == {"99": "forget01", "95": "forget05", "90": "forget10"}[split]
    assert (config.federation.clients, config.federation.fraction_train, config.federation.local_epochs) == (30, 0.1, 5)
    assert (config.training.learning_rate, config.model.lora.rank, config.model.lora.alpha) == (8e-5, 32, 64)


# -- matrix --------------------------------------------------------------------------------------------------------


def test_a_cell_has_the_values_of_its_labels_and_an_id_of_them(tmp_path):
    labelled = "[npo, {label: strong, unlearning: npo, unlearning.params.beta: 0.5}]"
    found = cells(suite(tmp_path), f"matrix.unlearning={labelled}", "matrix.seed=[0, 7]")
    assert [c.id for c in found] == [
        "fedavg/npo/seed=0",
        "fedavg/npo/seed=7",
        "fedavg/strong/seed=0",
        "fedavg/strong/seed=7",
    ]
    assert [c.config.seed for c in found] == [0, 7, 0, 7]
    assert found[2].config.unlearning.params["beta"] == 0.5 != found[0].config.unlearning.params["beta"]
    assert all(c.config.stages == ["finetune", "unlearn"] for c in found)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("matrix.strategy=fedavg", "matrix.strategy: 'fedavg' is no list of values"),
        ("matrix.seed=[0, 0]", "matrix.seed: names '0' twice"),
        ("matrix.unlearning=[{unlearning: npo}]", "has no label"),
        ("matrix.unlearning=[npoo]", "did you mean npo?"),
        ("matrix.trainin=[1]", "trainin: unknown key"),
        ("base.name=x", "name: a suite names its runs"),
        ("stages=[unlearn]", "unlearn has no finetuned model"),
        ("stages=[unlearn, finetune]", "out of order"),
        ("tables.small.rows=method", "there is no axis 'method'"),
        ("tables.small.columns=seed", "runs of several seeds are one entry"),
        ("tables.small.colums=strategy", "did you mean columns?"),
        ("tables.small.metrics={MU: {metrik: x}}", "names no metric"),
        ("tables.small.metrics={MU: {metric: x, best: high}}", "max, min or null"),
        ("tables.small.models=[finetuned]", "did you mean finetune?"),
        ("tables.small.show=[ours, paper]", "nothing to show beside ours"),
        ("tables.small.paper=table", "there is no 'table'"),
        ("extends=other", "extends"),
    ],
)
def test_mistakes_are_told_with_their_place(tmp_path, override, expected):
    result = call("bench", suite(tmp_path), override, "--dry-run")
    assert result.code == 2 and expected in result.err and "Traceback" not in result.err


def test_a_mistake_of_many_cells_is_told_once(tmp_path):
    with pytest.raises(ConfigError) as error:
        suites.load(suite(tmp_path), ["matrix.seed=[0, 1, 2]", "base.federation.clients=0"])
    (problem,) = error.value.problems
    assert problem.path == "federation.clients" and "cell fedavg/npo/seed=0" in problem.where


def test_a_suite_stands_on_what_it_extends(tmp_path):
    suite(tmp_path)
    child = suite(tmp_path, "extends: small\ntitle: Child\nmatrix: {seed: [3]}\ntables: {small: null}\n", "child.yaml")
    settings = suites.load(child)[1]
    assert settings.title == "Child" and [c.labels["seed"] for c in settings.cells()] == ["3", "3"]
    assert settings.layouts() == []
    for text in ("extends: child\n", "extends: nowhere\n"):
        with pytest.raises(ConfigError, match="extends"):
            suites.load(suite(tmp_path, text, "child.yaml"))


# -- tuned rows ----------------------------------------------------------------------------------------------------


def test_a_tuned_file_sets_the_method_and_its_keys_but_not_the_requests(tmp_path):
    file = tmp_path / "tuned.yaml"
    file.write_text(
        "extends: default\nunlearning: {method: simnpo, params: {beta: 2.5}, epochs: 3, entropy: {forget: 0.1}, "
        "requests: {policy: none}}\n"
    )
    rows = f"[npo, {{label: simnpo tuned, tuned: {file}, unlearning.epochs: 4}}]"
    untuned, tuned = cells(suite(tmp_path), f"matrix.unlearning={rows}")
    assert (untuned.labels["unlearning"], tuned.labels["unlearning"]) == ("npo", "simnpo tuned")
    found = tuned.config.unlearning
    assert (found.method, found.params["beta"], found.entropy.forget, found.epochs) == ("simnpo", 2.5, 0.1, 4)
    assert found.requests == untuned.config.unlearning.requests


def test_a_tuned_file_that_is_none(tmp_path):
    with pytest.raises(ConfigError, match=r"matrix\.unlearning\.tuned: there is no file"):
        cells(suite(tmp_path), "matrix.unlearning=[{label: a, tuned: nope.yaml}]")
    file = tmp_path / "other.yaml"
    file.write_text("unlearning: npo\n")
    with pytest.raises(ConfigError, match=r"has no unlearning\.method"):
        cells(suite(tmp_path), f"matrix.unlearning=[{{label: a, tuned: {file}}}]")
