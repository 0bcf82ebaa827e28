"""The app for Flower's hub passes Flower's own checks, and is the same program."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

import oblivionis
from oblivionis.deploy import hub
from oblivionis.errors import OblivionisError
from oblivionis.models import embedded_model


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "oblivionis"
    hub.write(folder, "someone")
    return folder


def test_flower_would_publish_it(app: Path) -> None:
    importlib.import_module("flwr.cli.app_cmd.publish")
    publish = sys.modules["flwr.cli.app_cmd.publish"]  # the package has a function of that name
    config, lacking = publish.load_and_validate(app / "pyproject.toml", check_module=True)
    assert lacking == [] and config["tool"]["flwr"]["app"]["publisher"] == "someone"
    publish._validate_app_name(app.name, "name")
    publish._validate_description(config["project"]["description"])
    files = publish._collect_file_paths(app)
    assert set(files) == {file.resolve() for file in app.rglob("*") if file.is_file()}, "nothing is skipped"
    publish._validate_files(files)


def test_flower_makes_a_bundle_of_it(app: Path) -> None:
    with zipfile.ZipFile(BytesIO(build_fab_from_disk(app))) as bundle:
        names = set(bundle.namelist())
    made = {file.relative_to(app).as_posix() for file in app.rglob("*") if file.is_file()}
    assert made <= names and {"LICENSE", "README.md", "conf/smoke.yaml"} <= made
    assert not [name for name in names if name.startswith(("benchmarks/", "tests/", "docs/"))]


def test_the_readme_says_how_many_supernodes_and_where_data_come_from(app: Path) -> None:
    text = (app / "README.md").read_text(encoding="utf-8")
    assert text.startswith("---\ntags: [") and "flwr new @someone/oblivionis" in text
    assert "It needs two SuperNodes" in text and "parquet in `data/`" in text
    assert "PUBLISHER" not in text and "FLOWER" not in text


@pytest.mark.slow
def test_the_program_in_it_is_whole(app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ("oblivionis", *oblivionis.SIBLINGS) == hub.PACKAGES
    assert not (app / "oblivionis" / "models" / "tiny.json").exists()
    monkeypatch.setenv("OBLIVIONIS_CACHE", str(tmp_path / "cache"))
    model = embedded_model.folder(app / "oblivionis" / "models" / "tiny.json")
    shipped = embedded_model.folder()
    assert model == shipped, "named by what is in it"
    environment = {**os.environ, "PYTHONPATH": str(app), "OBLIVIONIS_CACHE": str(tmp_path / "other")}
    code = (
        "import oblivionis as o; from oblivionis.models import embedded_model as m; print(o.__file__, m.folder().name)"
    )
    for command, said in (
        (["-c", code], f"{app}/oblivionis/__init__.py {shipped.name}"),
        (["-m", "oblivionis.cli.main", "config", "check", "smoke"], "smoke: no problems"),
    ):
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stdout.strip()) == (0, said), done.stderr


@pytest.mark.parametrize(
    ("folder", "publisher", "message"),
    [
        ("my app", "someone", "'my app' cannot be the folder of a Flower app: a letter, then letters, digits and"),
        ("app", "some one", "'some one' is no account on Flower's hub"),
        (".", "someone", "exists and is not empty; nothing is overwritten"),
    ],
)
def test_what_the_hub_would_refuse(tmp_path: Path, folder: str, publisher: str, message: str) -> None:
    (tmp_path / "mine.txt").write_text("keep me")
    with pytest.raises(OblivionisError, match=message):
        hub.write(tmp_path / folder, publisher)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("lost", ["", '"x"', "{"])
def test_a_part_that_is_damaged_or_missing_is_told(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    monkeypatch.setenv("OBLIVIONIS_CACHE", str(tmp_path / "cache"))
    for part in (app / "oblivionis" / "models").glob("tiny-*.json"):
        text = lost if part.name == "tiny-03.json" else part.read_text()
        if text:
            (tmp_path / part.name).write_text(text)
    with pytest.raises(embedded_model.EmbeddedModelError, match="is damaged"):
        embedded_model.folder(tmp_path / "tiny.json")
    with pytest.raises(embedded_model.EmbeddedModelError, match="is missing"):
        embedded_model.folder(tmp_path / "none.json")
