"""The app in the shape that Flower's hub takes: text of at most 1 MB a file, a license file, a README of its own."""

from __future__ import annotations

import json
import re
import shutil
from importlib import metadata
from pathlib import Path

from oblivionis.config.yaml_files import CONF
from oblivionis.errors import OblivionisError
from oblivionis.models import embedded_model
from oblivionis.version import __version__

NAME = "oblivionis"
PACKAGES = (NAME, "strategies", "clients", "evaluation")
SUFFIXES = (".py", ".json", ".yaml", ".md")
README = Path(__file__).with_name("hub.md")
_FOLDER = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,31}")
_PUBLISHER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def write(folder: Path, publisher: str) -> None:
    """Lay out the app in `folder`, which must not exist or be empty; publisher: the account on Flower's hub.

    Raises OblivionisError for a folder that is in use or that the hub would refuse by its name.
    """
    folder = folder.expanduser().resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OblivionisError(f"{folder} exists and is not empty; nothing is overwritten, choose another folder")
    if not _FOLDER.fullmatch(folder.name):
        raise OblivionisError(
            f"{folder.name!r} cannot be the folder of a Flower app: a letter, then letters, digits and hyphens, 32 at "
            f"most; such as {folder.with_name(NAME)}"
        )
    if not _PUBLISHER.fullmatch(publisher):
        raise OblivionisError(f"{publisher!r} is no account on Flower's hub: letters, digits, hyphens and underscores")
    about = _distribution()
    home = Path(__file__).resolve().parents[2]
    for package in PACKAGES:
        _copy(home / package, folder / package, leave=(CONF, embedded_model.SHIPPED))
    _copy(CONF, folder / "conf")
    embedded_model.write_parts(folder / embedded_model.SHIPPED.relative_to(home))
    flower = metadata.version("flwr")
    readme = README.read_text(encoding="utf-8").replace("@PUBLISHER", f"@{publisher}")
    texts = {
        "LICENSE": _license(about, home),
        "README.md": readme.replace("Flower FLOWER", f"Flower {flower}"),
        "pyproject.toml": _project(about, publisher, flower),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def _distribution() -> metadata.Distribution:
    try:
        return metadata.distribution(NAME)
    except metadata.PackageNotFoundError:
        raise OblivionisError(f"{NAME} is not installed: its requirements are known from its installation") from None


def _copy(source: Path, target: Path, leave: tuple[Path, ...] = ()) -> None:
    """The files of the kinds that the hub takes."""
    for file in sorted(source.rglob("*")):
        inside = any(file.is_relative_to(other) for other in leave)
        if file.suffix in SUFFIXES and file.is_file() and not inside and "__pycache__" not in file.parts:
            place = target / file.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)


def _license(about: metadata.Distribution, home: Path) -> str:
    """The text of the license: in a checkout next to the package, else in the installation."""
    if (home / "LICENSE").is_file():
        return (home / "LICENSE").read_text(encoding="utf-8")
    text = next((about.locate_file(f) for f in about.files or () if f.name == "LICENSE"), None)
    if text is None:
        raise OblivionisError(f"the installation of {NAME} has no LICENSE; install it again")
    return Path(str(text)).read_text(encoding="utf-8")


def _project(about: metadata.Distribution, publisher: str, flower: str) -> str:
    """pyproject.toml: what the hub shows, what is to be installed, and where the apps are."""
    required = [r for r in about.requires or () if "extra ==" not in r]
    facts = {
        "version": __version__,
        "description": about.metadata["Summary"],
        "requires-python": about.metadata["Requires-Python"],
    }
    return "\n".join(
        [
            "[build-system]",
            'requires = ["hatchling>=1.27"]',
            'build-backend = "hatchling.build"',
            "",
            "[project]",
            f"name = {json.dumps(NAME)}",
            *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in facts.items()),
            'readme = "README.md"',
            'license = { file = "LICENSE" }',
            "dependencies = [",
            *(f"    {json.dumps(requirement)}," for requirement in sorted(required)),
            "]",
            "",
            "[project.scripts]",
            f'oblivionis = "{NAME}.cli.main:main"',
            "",
            "[tool.hatch.build.targets.wheel]",
            f"only-include = {json.dumps([*PACKAGES, 'conf'])}",
            'sources = { "conf" = "oblivionis/conf" }',
            'dev-mode-dirs = ["."]',
            "",
            "[tool.flwr.app]",
            f"publisher = {json.dumps(publisher)}",
            "fab-format-version = 1",
            f"flwr-version-target = {json.dumps(flower)}",
            "",
            "[tool.flwr.app.components]",
            'serverapp = "oblivionis.server.app:app"',
            'clientapp = "oblivionis.client.app:app"',
            "",
            "[tool.flwr.app.config]",
            'config = "smoke"',
            'overrides = ""',
            'resume = ""',
            'allow-code = ""',
            'audit = ""',
            "samples = 0",
            "",
        ]
    )
