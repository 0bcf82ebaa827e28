"""A loss in a file of the user's own, chosen by its path."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from clients import losses
from clients.own_code import code_hash, permit
from oblivionis.config import method_traits
from oblivionis.config.allowed_code import permit_named
from oblivionis.config.compose import ConfigError, compose, from_yaml, parameters, to_yaml
from oblivionis.errors import RunError
from oblivionis.server.preflight import preflight

LOSS = '''"""Half of gradient ascent."""

LIMITS = {"share": {"help": "How much of it.", "above": 0, "at_most": 1}}


def mine(forget_nll, retain_loss=None, *, share: float = 0.5, most: float | None = None, kind: str = "a"):
    return -share * forget_nll.mean()
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "mine.py"
    found.write_text(LOSS, encoding="utf-8")
    return found


def problems(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        compose("smoke", list(overrides))
    return [str(problem) for problem in caught.value.problems]


def test_its_keywords_are_the_keys_and_their_defaults(file: Path) -> None:
    config = compose("smoke", [f"unlearning={file}", "unlearning.params.share=1", "unlearning.params.most=2"])
    assert config.unlearning.method == str(file)
    assert config.unlearning.params == {"share": 1.0, "most": 2.0, "kind": "a"}
    assert method_traits.label(str(file)) == "mine" and method_traits.label("npo") == "npo"


def test_a_relative_path_becomes_absolute(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert compose("smoke", "unlearning=mine.py").unlearning.method == str(file)


def test_a_configuration_that_names_it_is_read_where_the_file_is_not(file: Path) -> None:
    config = compose("smoke", [f"unlearning={file}", "unlearning.params.most=2", "unlearning.retain_loss=kl"])
    text = to_yaml(config)
    file.unlink()
    assert from_yaml(text) == config


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["unlearning.params.share=2"], "unlearning.params.share: 2.0 is out of range; expected 0 < value <= 1"),
        (["unlearning.params.shar=1"], "unlearning.params.shar: unknown key; expected a parameter of"),
        (["unlearning.params.kind=1"], "unlearning.params.kind: 1 is not a text"),
    ],
)
def test_a_mistake_in_its_keys_is_told(file: Path, overrides: list[str], problem: str) -> None:
    (found,) = problems(f"unlearning={file}", *overrides)
    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "there is no such file"),
        ("def mine(forget_nll:\n", "cannot be read: '(' was never closed"),
        ("def other(forget_nll): ...\n", "has no function 'mine' of a batch; expected def mine(forget_nll, "),
        ("def mine(*, share=1.0): ...\n", "has no function 'mine' of a batch"),
        ("def mine(forget_nll, *, share): ...\n", "the hyperparameter 'share' has no default that can be read"),
        ("def mine(forget_nll, *, share=1 / 2): ...\n", "the hyperparameter 'share' has no default that can be read"),
        ("LIMITS = {'a': {}}\ndef mine(forget_nll): ...\n", "LIMITS names 'a', which is no hyperparameter of mine"),
        ("BALL = 'radius'\ndef mine(forget_nll): ...\n", "BALL names 'radius', which is no hyperparameter of mine"),
        ("SCALED_BY = ['a']\ndef mine(forget_nll): ...\n", "SCALED_BY names ['a'], which is no hyperparameter"),
        ("NOT_WITH = ['ranks']\ndef mine(forget_nll): ...\n", "NOT_WITH: is no mapping; expected {name: reason}"),
    ],
)
def test_what_is_wrong_with_the_file_is_told(file: Path, text: str | None, problem: str) -> None:
    file.unlink() if text is None else file.write_text(text, encoding="utf-8")
    (found,) = problems(f"unlearning={file}")
    assert found.startswith(f"{file}: {problem}")


def test_a_change_of_the_file_is_seen(file: Path) -> None:
    assert parameters("unlearning", str(file)).defaults["share"] == 0.5
    file.write_text(LOSS.replace("share: float = 0.5", "share: float = 0.25"), encoding="utf-8")
    assert parameters("unlearning", str(file)).defaults["share"] == 0.25


def test_clients_find_the_function_by_the_path(file: Path) -> None:
    permit(code_hash(file))
    method = losses.get(str(file))
    assert (method.name, method.required, method.optional) == ("mine", ("forget_nll",), ("retain_loss",))
    assert method.defaults == {"share": 0.5, "most": None, "kind": "a"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import nowhere\n" + LOSS, "cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
        (LOSS.replace("forget_nll", "forget_nl"), "asks for 'forget_nl', which no batch has; did you mean forget_nll"),
    ],
)
def test_a_loss_that_cannot_be_used_is_told_before_a_run(file: Path, text: str, problem: str) -> None:
    file.write_text(text, encoding="utf-8")
    with pytest.raises(RunError, match=r"^unlearning\.method: ") as caught:
        config = compose("smoke", [f"unlearning={file}"])
        permit_named(config, [f"unlearning={file}"])
        preflight(config, Console(quiet=True))
    assert problem in str(caught.value)
