"""The conversation of `oblivionis chat`: lines in, tables out."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from oblivionis.audits.chat import SETTINGS, Chat, ChatError, Decoding, Reply
from oblivionis.cli.interrupts import stopping
from oblivionis.config.configuration_layers import parse_overrides
from oblivionis.config.problems import did_you_mean
from oblivionis.errors import OblivionisError
from oblivionis.naming import MODELS, SETS
from oblivionis.reports.format import number, printable

PROMPT = "> "
HELP = """\
Any line is a question to all models. Commands:
  /forget, /retain   ask a question of the run's forget or retain set; with the
                     true answer and each answer's ROUGE-L recall
  /set               show how answers are decoded
  /set NAME VALUE    temperature, top_p, top_k, confidence, samples,
                     max_new_tokens or seed; the value none unsets it
  /set greedy        decode greedily again
  /help              this text
  /quit              end (also Ctrl-D)
Samples of a repeated question differ. /set seed begins anew: the same seed and
the same questions in the same order give the same answers."""

Read = Callable[[], str | None]
"""The next line, None at the end of the input."""


def read_lines(lines: Iterable[str]) -> Read:
    """Lines of a file or a pipe."""
    remaining = iter(lines)
    return lambda: next(remaining, None)


def read_terminal() -> Read:
    """Lines typed after a prompt, with the history of this conversation on the arrow keys where Python has readline."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - input() uses it

    def read() -> str | None:
        try:
            return input(PROMPT)
        except EOFError:
            print()
            return None

    return read


def converse(chat: Chat, console: Console, *, stdin_is_terminal: bool) -> None:
    """Answer the lines of standard input until it ends or `/quit`."""
    if not stdin_is_terminal:
        with contextlib.suppress(AttributeError):
            sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
        answer_lines(chat, read_lines(sys.stdin), console)
        return
    models = ", ".join(MODELS[stage] for stage in chat.stages)
    line = f"{chat.run.name}: {models} · {chat.decoding.describe()} · /help for commands, Ctrl-D to end"
    console.print(Text(line, style="dim"))
    answer_lines(chat, read_terminal(), console, interruptible=True)


def answer_lines(chat: Chat, read: Read, console: Console, *, interruptible: bool = False) -> None:
    """Answer every line, a mistake in one line; `interruptible`: Ctrl-C drops a line or an answer only."""
    while True:
        try:
            line = read()
            if line is None or not _answer_line(chat, line.strip(), console):
                return
        except OblivionisError as error:
            console.print(Text(printable(str(error)), style="yellow"), soft_wrap=True)
        except KeyboardInterrupt:
            if not interruptible:
                raise
            stopping.dropped()
            console.print(Text("dropped; /quit or Ctrl-D to end", style="dim"))


def _answer_line(chat: Chat, line: str, console: Console) -> bool:
    """Do what a line says; False: it ends the conversation."""
    if not line:
        return True
    if not line.startswith("/"):
        ask(chat, line, console)
        return True
    command, *arguments = line.replace("=", " ").split()
    if command == "/set":
        _set(chat, arguments, console)
        return True
    if command not in ("/forget", "/retain", "/help", "/quit"):
        hint = did_you_mean(command, ("/forget", "/retain", "/set", "/help", "/quit"))
        raise ChatError(f"there is no command {command}; {hint or '/help lists them'}")
    if arguments:
        raise ChatError(f"{command} takes nothing behind it, got {' '.join(arguments)!r}")
    if command == "/help":
        console.print(HELP, markup=False, highlight=False)
    elif command != "/quit":
        with console.status("asking"):
            reply = chat.ask_known(command[1:])
        print_reply(reply, console)
    return command != "/quit"


def _set(chat: Chat, arguments: list[str], console: Console) -> None:
    if arguments == ["greedy"]:
        decoding = chat.decoding
        chat.decoding = Decoding(max_new_tokens=decoding.max_new_tokens, seed=decoding.seed)
    elif arguments:
        if len(arguments) != 2:
            raise ChatError("expected /set NAME VALUE, e.g. /set temperature 0.7, or /set greedy")
        name = arguments[0].replace("-", "_")
        if name not in SETTINGS:
            hint = did_you_mean(name, SETTINGS)
            raise ChatError(f"there is no setting {arguments[0]!r}; {hint or 'there are ' + ', '.join(SETTINGS)}")
        chat.decoding = dataclasses.replace(chat.decoding, **{name: _value(name, arguments[1])})
        if name == "seed":
            chat.restart()
    console.print(chat.decoding.describe(), markup=False, highlight=False)


def _value(name: str, text: str) -> Any:
    """What a setting is to be, as it stands in the line; `Decoding` checks it."""
    if text.lower() in ("none", "null", "off"):
        return 0 if name == "seed" else None
    layer, problems = parse_overrides([f"{name}={text}"], SETTINGS)
    if problems:
        raise ChatError(str(problems[0]))
    return layer.values[name][0]


def ask(chat: Chat, question: str, console: Console) -> None:
    """Ask a question and print the answers."""
    with console.status("asking"):
        reply = chat.ask(question)
    print_reply(reply, console)


def print_reply(reply: Reply, console: Console) -> None:
    """The question, the true answer where it is known, and a row for each answer."""
    table = Table(show_header=reply.truth is not None)
    table.add_column("model", no_wrap=True)
    table.add_column("answer", overflow="fold")
    if reply.truth is not None:
        table.add_column(f"ROUGE-L recall{', any script' if reply.any_script else ''}", justify="right")
        table.add_row("truth", Text(printable(reply.truth)), end_section=True)
    for model in MODELS.values():
        answers, recalls = reply.answers.get(model, []), reply.recalls.get(model, [])
        for i, answer in enumerate(answers):
            numbered = f"{i + 1}. " if len(answers) > 1 else ""
            cells = [Text(numbered + (printable(answer) or "(empty)"))] + [Text(number(r)) for r in recalls[i : i + 1]]
            table.add_row("" if i else model, *cells, end_section=i + 1 == len(answers) > 1)
        if model in reply.problems:
            table.add_row(model, Text(f"no answer: {reply.problems[model]}", style="yellow"))
    known = f"[{SETS[reply.known].lower()}] " if reply.known else ""
    console.print(Group(Text(f"{known}{printable(reply.question)}", style="bold"), table))
