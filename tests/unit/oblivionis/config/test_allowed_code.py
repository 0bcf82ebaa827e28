"""Whose code a configuration may bring: named by hand, or allowed by its file; bound by its hash."""

from dataclasses import replace
from pathlib import Path

import pytest

from clients import losses, own_code
from clients.own_code import NotPermitted, code_hash
from oblivionis.config.allowed_code import CodeError, allow_code, permit_code, permit_named, resuming
from oblivionis.config.compose import compose, from_yaml, to_yaml
from oblivionis.config.identity import config_hash, text_hash

LOSS = "def mine(forget_nll, *, share=0.5): return -share * forget_nll.mean()\n"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(own_code, "permitted", set())
    found = tmp_path / "mine.py"
    found.write_text(LOSS)
    return found


def runs(file: Path) -> bool:
    try:
        return losses.get(str(file)).name == "mine"
    except NotPermitted:
        return False


def test_a_configuration_names_the_hash_of_its_code(file: Path) -> None:
    config = compose("smoke", f"unlearning={file}")
    assert config.unlearning.code == code_hash(file)
    assert from_yaml(to_yaml(config)) == config and compose("smoke").unlearning.code is None
    first = config_hash(config)
    file.write_text(LOSS + "\n")
    assert config_hash(compose("smoke", f"unlearning={file}")) != first, "other code is another configuration"


def test_a_run_keeps_the_hash_that_it_was_made_with(file: Path, tmp_path: Path) -> None:
    run = tmp_path / "config.yaml"
    run.write_text(to_yaml(compose("smoke", f"unlearning={file}")))
    first = code_hash(file)
    file.write_text(LOSS + "\n")
    assert compose(run, "model.device=cpu").unlearning.code == first


def test_reading_a_configuration_permits_nothing(file: Path, tmp_path: Path) -> None:
    config = compose("smoke", f"unlearning={file}")
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    from_yaml(to_yaml(config))
    compose(tmp_path / "config.yaml")
    assert not runs(file)


@pytest.mark.parametrize("key", ["unlearning", "unlearning.method"])
def test_who_names_it_by_hand_permits_it(file: Path, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    permit_named(compose("smoke", f"unlearning={file}"), ["seed=1", f"{key}=mine.py"])
    assert runs(file)


def test_what_only_a_file_of_the_configuration_names_needs_to_be_allowed(file: Path, tmp_path: Path) -> None:
    """Such as the config.yaml of somebody's run, taken as an experiment."""
    (tmp_path / "config.yaml").write_text(to_yaml(compose("smoke", f"unlearning={file}")))
    config = compose(tmp_path / "config.yaml", "seed=1")
    with pytest.raises(CodeError, match=r"nothing of it is executed.*--allow-code mine\.py$"):
        permit_named(config, "seed=1")
    with pytest.raises(CodeError):
        permit_named(config, "unlearning=npo")
    assert not runs(file)
    permit_named(config, "seed=1", file)
    assert runs(file)


def test_a_copy_allows_a_run_and_takes_its_files_place(file: Path, tmp_path: Path) -> None:
    config = compose("smoke", f"unlearning={file}")
    (tmp_path / "copy").mkdir()
    copy = file.rename(tmp_path / "copy" / "mine.py")
    assert allow_code(config, copy).unlearning.method == str(copy) and runs(copy)


def test_other_code_is_not_allowed(file: Path, tmp_path: Path) -> None:
    config = compose("smoke", f"unlearning={file}")
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "mine.py"
    other.write_text(LOSS + "# another\n")
    with pytest.raises(CodeError, match=r"SHA-256 is .*the configuration names .*it is other code$"):
        allow_code(config, other)
    assert not runs(other) and not runs(file)
    with pytest.raises(CodeError, match="there is no such file"):
        allow_code(config, tmp_path / "none.py")
    with pytest.raises(CodeError, match=r"expected a file called mine\.py"):
        allow_code(config, file.rename(tmp_path / "renamed.py"))
    with pytest.raises(CodeError, match="names no code"):
        allow_code(compose("smoke"), other)


def test_a_run_of_an_earlier_version_names_no_hash(file: Path) -> None:
    text = "\n".join(
        line for line in to_yaml(compose("smoke", f"unlearning={file}")).splitlines() if "code:" not in line
    )
    config = from_yaml(text)
    assert config.unlearning.code is None
    permit_code(config)
    assert not runs(file)
    allow_code(config, file)
    assert runs(file)


def test_without_code_nothing_is_asked_for() -> None:
    config = compose("smoke")
    assert allow_code(config, None) == config
    permit_named(config, [])
    assert resuming(Path("runs/x"), config) == "oblivionis simulate --resume runs/x"


def test_the_command_to_go_on_names_it(file: Path) -> None:
    config = compose("smoke", f"unlearning={file}")
    assert resuming(Path("runs/x"), config) == f"oblivionis simulate --resume runs/x --allow-code {file}"


def test_the_hash_of_a_text_is_that_of_the_configuration_that_wrote_it(file: Path) -> None:
    for config in (
        compose("smoke"),
        replace(compose("smoke", "training.learning_rate=1e-5"), name="a ${b} \\${c}", tracking=["null", "1", "1e-5"]),
        compose("smoke", [f"unlearning={file}"]),
    ):
        assert text_hash(to_yaml(config)) == config_hash(config)
    assert text_hash("a: 1\n") == text_hash("# of a version with other keys\na: 1\n") != text_hash("a: 2\n")
    with pytest.raises(ValueError, match="no configuration"):
        text_hash("a: [")
