"""What code files declare is what their modules have, and what files of evaluators and attacks bring becomes keys."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.trees import Tree

from benchmarks.federated.tables import title
from clients import losses
from oblivionis.config import extension_traits
from oblivionis.config.compose import parameters
from oblivionis.config.configuration_layers import list_choices
from oblivionis.config.yaml_files import CONF
from strategies import protocols
from strategies.rules import factory
from strategies.rules.server_step import ServerStep

ROOT = CONF.parent
FILES = [(kind, name) for kind in extension_traits.CODE for name in extension_traits.names(kind)]


@pytest.mark.parametrize(("kind", "name"), FILES)
def test_literals_are_those_of_the_imported_module(kind: str, name: str) -> None:
    files = [file.relative_to(ROOT).with_suffix("") for file in extension_traits.code_files(kind, name)]
    modules = [importlib.import_module(".".join(file.parts)) for file in files]
    found = extension_traits.code(kind, name)
    assert found.problems == ()
    assert found.limits.keys() == set().union(*(getattr(module, "LIMITS", {}) for module in modules))
    for literal, value in found.literals.items():
        assert [getattr(module, literal) for module in modules if hasattr(module, literal)] == [value]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("strategy", n) for n in factory.names()),
        *(("unlearning", n) for n in sorted({*losses.names(), *protocols.names()})),
    ],
)
def test_tables_have_a_label_for_each(kind: str, name: str) -> None:
    assert extension_traits.code(kind, name).literals["LABEL"] == title(name) != name


@pytest.mark.parametrize("name", factory.names())
def test_parameters_of_an_aggregator_are_those_of_its_class(name: str) -> None:
    own = parameters("strategy", name)
    assert own is not None
    aggregator = factory.build(name, **own.defaults)
    sampling = inspect.signature(ServerStep).parameters
    taken = {
        p.name: p.default for p in inspect.signature(type(aggregator)).parameters.values() if p.kind != p.VAR_KEYWORD
    }
    assert {key: type(value) for key, value in own.defaults.items()} == {
        key: type(value) for key, value in taken.items() if key not in sampling
    }
    assert own.code.limits.keys() <= own.defaults.keys()


@pytest.mark.parametrize("name", protocols.names())
def test_parameters_of_a_protocol_are_those_of_its_build(name: str) -> None:
    own, taken = (
        parameters("unlearning", name),
        inspect.signature(importlib.import_module(f"strategies.protocols.{name}").build),
    )
    assert own is not None and own.defaults.keys() == set(taken.parameters) - {"context"}
    assert own.code.limits.keys() == own.defaults.keys()


@pytest.mark.parametrize("name", [name for name in list_choices()["unlearning"] if name in losses.names()])
def test_limits_of_a_loss_name_its_hyperparameters(name: str) -> None:
    own = parameters("unlearning", name)
    assert own is not None and own.code.limits.keys() == own.defaults.keys()
    assert all(limit.about.help.endswith(".") for limit in own.code.limits.values())


# A tree with an evaluator and an attack more

EVALUATOR = '''"""Counts vowels.

More about it.
"""

import a_module_that_does_not_exist

LIMITS = {
    "share": {"help": "Share of answers.", "above": 0, "at_most": 1},
    "most": {"help": "Longest.", "type": "int", "at_least": 1, "unit": "tokens"},
    "kind": {"choices": ["a", "e"]},
}


class Vowels(Measure):
    pass
'''
SETTINGS = "share: 0.5\nmost: null\nkind: a\nonly: [x]\nshout: false\n"
COMPOSED = """
import json, sys
from oblivionis.config.compose import ConfigError, compose, from_yaml, to_yaml
found = []
for overrides in json.loads(sys.argv[1]):
    try:
        config = compose("smoke", overrides)
        assert from_yaml(to_yaml(config)) == config
        found.append([config.evaluation.more, config.attack.more])
    except ConfigError as error:
        found.append([str(problem) for problem in error.problems])
print(json.dumps(found))
"""
TOLD = """
import json, sys
from oblivionis.config import reference
from oblivionis.config.compose import Config, from_yaml, to_yaml
page, text, old = reference.page(), to_yaml(Config()), from_yaml("seed: 1").evaluation.more
heavy = [name for name in ("torch", "flwr", "numpy") if name in sys.modules]
print(json.dumps({"page": page, "yaml": text, "old": old, "heavy": heavy}))
"""


def told(tree: Tree, program: str, *arguments: str) -> Any:
    """What a program in the tree prints, read as JSON."""
    done = tree.run("-c", program, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def ask(tree: Tree, *overrides: str) -> list[Any]:
    """What composing `smoke` with each of the strings of overrides gives: settings, or problems."""
    return told(tree, COMPOSED, json.dumps(overrides))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    found = Tree(tmp_path_factory.mktemp("tree"))
    found.add("oblivionis/measures/vowels.py", EVALUATOR)
    found.add("conf/evaluator/vowels.yaml", SETTINGS)
    found.add("oblivionis/audits/attacks/shout.py", '"""Shouts."""\n')
    found.add("conf/attack/shout.yaml", "loudness: 3\n")
    return found


@pytest.fixture
def tree(whole: Tree) -> Iterator[Tree]:
    """The tree, whose files are after a test what they were."""
    with whole.restored():
        yield whole


DEFAULTS = {"share": 0.5, "most": None, "kind": "a", "only": ["x"], "shout": False}


@pytest.mark.slow
def test_settings_of_an_evaluator_and_an_attack_are_keys(tree: Tree) -> None:
    found = ask(
        tree,
        "",
        "evaluation.vowels.share=1 evaluation.vowels.most=7 attack.shout.loudness=4",
        "evaluation.vowels='{kind: e, only: [y, z]}' evaluation=full",
    )
    plain, changed, mapping = found
    shown = told(tree, TOLD)
    assert plain[0]["vowels"] == DEFAULTS and plain[1]["shout"] == {"loudness": 3}
    assert changed[0]["vowels"] == {**DEFAULTS, "share": 1.0, "most": 7} and changed[1]["shout"] == {"loudness": 4}
    assert mapping[0]["vowels"] == {**DEFAULTS, "kind": "e", "only": ["y", "z"]}
    assert shown["old"]["vowels"] == DEFAULTS
    assert shown["heavy"] == []
    assert "\n  vowels:\n    share: 0.5\n" in shown["yaml"] and "more:" not in shown["yaml"]
    assert "## evaluation.vowels\n\nCounts vowels.\n" in shown["page"]
    assert "| `evaluation.vowels.most` | int or null | `null` | value >= 1 | Longest. [tokens] |" in shown["page"]
    assert "| `attack.shout.loudness` | int | `3` |" in shown["page"]


WRONG = {
    "evaluation.vowels.share=0": "evaluation.vowels.share: 0.0 is out of range; expected 0 < value <= 1",
    "evaluation.vowels.most=1.5": "evaluation.vowels.most: 1.5 is not a whole number; expected value >= 1 or null",
    "evaluation.vowels.kind=u": "evaluation.vowels.kind: unknown choice 'u'; expected one of a, e",
    "evaluation.vowels.shout=2": "evaluation.vowels.shout: 2 is not true or false",
    "evaluation.vowels.shar=1": "evaluation.vowels.shar: unknown key; did you mean evaluation.vowels.share?",
    "evaluation.vowles.share=1": "evaluation.vowles: unknown key; did you mean evaluation.vowels?",
    "evaluation.vowels=1": "evaluation.vowels: 1 is not a section; expected a mapping with kind, most, only, share",
    "evaluation.more=1": "evaluation.more: unknown key",
    "attack.shout.loudness=x": "attack.shout.loudness: 'x' is not a whole number",
}


@pytest.fixture(scope="module")
def refused(whole: Tree) -> dict[str, list[str]]:
    """What composing with each override says."""
    return dict(zip(WRONG, ask(whole, *WRONG), strict=True))


@pytest.mark.parametrize("override", WRONG)
def test_what_is_wrong_with_such_a_key(refused: dict[str, list[str]], override: str) -> None:
    (found,) = refused[override]
    assert found.startswith(WRONG[override]) and found.endswith("[override]")


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        (
            "conf/evaluator/alone.yaml",
            "a: 1\n",
            "conf/evaluator/alone.yaml: has no code file; expected oblivionis/measure",
        ),
        ("conf/evaluator/vowels.yaml", "a: [\n", "conf/evaluator/vowels.yaml: is not valid YAML"),
        (
            "conf/evaluator/vowels.yaml",
            "share: 0.5\n",
            "oblivionis/measures/vowels.py: LIMITS names 'most'",
        ),
        (
            "oblivionis/audits/attacks/shout.py",
            "LIMITS = {'loudness': {'least': 1}}",
            "oblivionis/audits/attacks/shout.py: L",
        ),
        (
            "oblivionis/audits/attacks/shout.py",
            "LIMITS = dict(a=1)",
            "oblivionis/audits/attacks/shout.py: LIMITS is no lit",
        ),
        (
            "oblivionis/audits/attacks/shout.py",
            "LIMITS = 3",
            "oblivionis/audits/attacks/shout.py: LIMITS: is no mapping",
        ),
        ("oblivionis/audits/attacks/shout.py", "LIMITS = {", "oblivionis/audits/attacks/shout.py: cannot be read: "),
    ],
)
def test_what_is_wrong_with_such_a_file(tree: Tree, file: str, text: str, problem: str) -> None:
    tree.add(file, text)
    (found,) = ask(tree, "")
    assert [line for line in found if line.startswith(problem)]


def test_an_evaluator_is_a_class_in_a_file_or_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        **dict.fromkeys(("one.py", "two/evaluator.py", "two/report.py", "_hidden.py"), "class One(Measure): ...\n"),
        **{"shared.py": "class Two(Other): ...\n", "three/evaluator.py": "x = 1\n", "faulty.py": "def\n"},
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setitem(extension_traits.CODE, "evaluator", (str(tmp_path),))
    assert extension_traits.names("evaluator") == ["faulty", "one", "two"]
    assert extension_traits.code_files("evaluator", "two") == [tmp_path / "two" / "evaluator.py"]
    assert (
        extension_traits.code("evaluator", "/one").literals == {} and extension_traits.code_files("evaluator", "") == []
    )


def test_a_default_that_its_limits_forbid_names_its_line(tree: Tree) -> None:
    tree.add("conf/evaluator/vowels.yaml", SETTINGS.replace("0.5", "2.0"))
    ((found,),) = ask(tree, "")
    assert found.startswith("evaluation.vowels.share: 2.0 is out of range")
    assert found.endswith("[conf/evaluator/vowels.yaml:1]")


def test_a_name_that_the_schema_has_is_refused(tree: Tree) -> None:
    tree.add("conf/evaluator/ruler.yaml", "a: 1\n")
    tree.add("oblivionis/measures/ruler/evaluator.py", "")
    (found,) = ask(tree, "")
    assert "conf/evaluator/ruler.yaml: evaluation.ruler is a key of the schema already; expected another name" in found
