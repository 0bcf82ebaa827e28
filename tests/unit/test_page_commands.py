"""Every `oblivionis` command on a page is one: its options, keys, choices, experiments and suites exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from typer.main import get_command

from benchmarks import suite_kinds
from oblivionis.cli.arguments import split_arguments
from oblivionis.cli.main import cli
from oblivionis.config import compose as configuration
from oblivionis.config.problems import ConfigError

PROJECT = Path(__file__).resolve().parents[2]
PAGES = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *sorted((PROJECT / "docs").rglob("*.md"))]
TREE = get_command(cli)
COMPOSED = ("simulate", "config show", "config check", "data describe", "tune")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)
PLACEHOLDER = re.compile(r"…|\b[A-Z][A-Z_]*\b")
REFUSED = ("unknown", "malformed", "not a whole number", "experiment: there is no", "suite: there is no")


def commands(text: str) -> set[str]:
    """The commands of a page's blocks, without comments and what a shell does around them."""
    found = set()
    for language, body in BLOCK.findall(text):
        if language not in ("", "sh"):
            continue
        for line in body.replace("\\\n", " ").splitlines():
            line = re.split(r"\s#|─", line)[0]
            for part in re.split(r"&&|;|\||&$|\s[<>]\s", line):
                if match := re.fullmatch(r"\s*(?:[A-Z_]+=\S+ )*(oblivionis(?: [a-z-].*)?)", part.rstrip()):
                    found.add(" ".join(match[1].split(" ")))
    return found


def named(text: str) -> set[str]:
    """The commands that a page's sentences and tables name, which may leave out arguments."""
    return {" ".join(match.split()) for match in re.findall(r"`(oblivionis [a-z][^`]*)`", BLOCK.sub("", text))}


def all_of(extract) -> list[str]:
    return sorted({command for page in PAGES for command in extract(page.read_text(encoding="utf-8"))})


def resolved(words: list[str]) -> tuple[click.Command, click.Context, str, list[str]]:
    """The command that `words` begin with, its context and name, and the words behind it."""
    node, context, name = TREE, click.Context(TREE, info_name="oblivionis"), []
    while isinstance(node, click.Group) and words and not words[0].startswith("-"):
        if words[0] not in node.commands and "run" in node.commands:
            words = ["run", *words]
        found = node.get_command(context, words[0])
        assert found is not None, f"no command {words[0]}"
        node, context = found, click.Context(found, info_name=words[0], parent=context)
        name.append(words[0])
        words = words[1:]
    return node, context, " ".join(name), words


def without_values(problem: str) -> bool:
    """Whether a problem is about something that only the reader has: a placeholder's value, or a file."""
    return not any(word in problem for word in REFUSED) or PLACEHOLDER.search(problem.partition(";")[0]) is not None


def check(command: str, *, whole: bool) -> None:
    node, context, name, words = resolved(shlex.split(command)[1:])
    if isinstance(node, click.Group):
        return
    words = [word for word in words if word not in ("…", "...")]
    try:
        node.parse_args(context, list(words))
    except (click.MissingParameter, click.BadOptionUsage):
        assert not whole, "an argument is missing"
        return
    except click.exceptions.Exit:
        return
    arguments = list(context.params.get("arguments") or [])
    try:
        if name in COMPOSED and arguments:
            experiment, overrides = split_arguments(arguments)
            known = (
                "default" if "/" in experiment or "." in experiment or PLACEHOLDER.fullmatch(experiment) else experiment
            )
            configuration.compose(known, overrides)
        if name == "bench run" and not PLACEHOLDER.fullmatch(context.params["suite"]):
            suite_kinds.find(context.params["suite"])
    except ConfigError as error:
        problems = [f"{problem.path}: {problem.message}" for problem in error.problems]
        assert not [problem for problem in problems if not without_values(problem)]


@pytest.mark.parametrize("command", all_of(commands))
def test_a_command_to_copy_is_accepted(command):
    check(command, whole=True)


@pytest.mark.parametrize("command", all_of(named))
def test_a_command_that_a_sentence_names_exists(command):
    check(command, whole=False)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("oblivionis forget", "no command forget"),
        ("oblivionis simulate unlearning=npoo", "unknown choice"),
        ("oblivionis simulate federation.round=3", "unknown"),
        ("oblivionis audit exchange", "missing"),
        ("oblivionis bench shard", "there is no"),
    ],
)
def test_what_is_no_command_is_found(command, words):
    with pytest.raises(AssertionError, match=words):
        check(command, whole=True)


def test_commands_are_found_on_a_page():
    page = "```\noblivionis simulate   # a run\nA=1 oblivionis view && oblivionis chat RUN < x\n```\n`oblivionis tune`"
    assert commands(page) == {"oblivionis simulate", "oblivionis view", "oblivionis chat RUN"}
    assert named(page) == {"oblivionis tune"}
