"""Chat templates, rendered within limits of time and size.

A chat template is a program that comes with a model. transformers runs it in a sandbox, which keeps it from the machine
but not from running for ever. Here it runs in the environment of transformers, with these additions: every pass of a
loop and every call of a macro looks at the clock; numbers and what `*` and `**` make have a largest size, and so has
the text.

The clock is looked at by the template itself, so that the limit holds in every thread and process, and needs no signal
(which only the main thread gets), no second thread (which cannot end the first one for certain) and no second process
(whose start takes a tenth of a second). It is the processor time of the thread: a busy machine refuses no template.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from oblivionis.config.template_arguments import RESERVED
from oblivionis.data.errors import DataError

SECONDS = 1.0
"""Processor time that a template has to be compiled, and to write one conversation."""
LARGEST = 10_000_000
"""The largest number, and how many characters or items a template may make of a text or a list."""

_limits = threading.local()


class TemplateError(DataError):
    """A prompt template that cannot be used, or not with this tokenizer."""


class _Unusable(Exception):
    """What a template did beyond its limits."""


def render(
    tokenizer: Any, messages: Sequence[Mapping[str, str]], variables: Mapping[str, Any], *, add_generation_prompt: bool
) -> str:
    """A conversation as the tokenizer's chat template writes it.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        With a chat template; of several named ones the one called "default".
    messages : sequence of mappings
        Each with `role` and `content`.
    variables : mapping
        What the template is given besides.
    add_generation_prompt : bool
        Whether the text ends where the assistant is to speak.

    Raises
    ------
    TemplateError
        If there is no template, if it raises, takes more than `SECONDS` or writes more than `LARGEST` characters.
    """
    with _errors_of(tokenizer):
        template = _compiled(template_text(tokenizer))
        _limits.end = time.thread_time() + SECONDS
        pieces = template.generate(
            **{**tokenizer.special_tokens_map, **variables},
            messages=list(messages),
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
        )
        text = "".join(_bounded(pieces))
        _look_at_clock()
        return text


def template_text(tokenizer: Any) -> str:
    """The tokenizer's chat template. Raises TemplateError without one."""
    if not getattr(tokenizer, "chat_template", None):
        raise TemplateError(f"{name_of(tokenizer)} has no chat template; use the template kind 'qa'")
    try:
        return tokenizer.get_chat_template()
    except ValueError as error:
        raise TemplateError(f"{name_of(tokenizer)} has several chat templates and none called 'default'") from error


def variables_of(tokenizer: Any) -> frozenset[str]:
    """The names that the tokenizer's chat template reads and that an argument may give."""
    with _errors_of(tokenizer):
        return _variables(template_text(tokenizer))


def name_of(tokenizer: Any) -> str:
    """The tokenizer as messages call it."""
    return f"the tokenizer {getattr(tokenizer, 'name_or_path', '') or type(tokenizer).__name__}"


@contextmanager
def _errors_of(tokenizer: Any) -> Iterator[None]:
    """Whatever a template raises as a TemplateError of one line that names the tokenizer."""
    try:
        yield
    except _Unusable as error:
        raise TemplateError(f"the chat template of {name_of(tokenizer)} {error}") from error
    except TemplateError:
        raise
    except Exception as error:
        line = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise TemplateError(f"the chat template of {name_of(tokenizer)} cannot be rendered: {line}") from error


@lru_cache(maxsize=32)
def _compiled(text: str) -> Any:
    begun = time.thread_time()
    template = _environment().from_string(text)
    if time.thread_time() - begun > SECONDS:
        raise _Unusable(f"takes longer than {SECONDS:g} s")
    return template


@lru_cache(maxsize=32)
def _variables(text: str) -> frozenset[str]:
    from jinja2 import meta

    found = meta.find_undeclared_variables(_compiled(text).environment.parse(text))
    return frozenset(name for name in found if name not in RESERVED and not name.endswith("_token"))


def _environment() -> Any:
    """A jinja environment of transformers' own making, whose templates keep to the limits."""
    from transformers.utils import chat_template_utils

    compiler: Any = chat_template_utils._compile_jinja_template
    environment = getattr(compiler, "__wrapped__", compiler)("").environment
    generate = environment._generate  # jinja's hook between parsing and the making of code

    def generate_bounded(tree: Any, *arguments: Any, **options: Any) -> str:
        _add_looks(tree)
        return generate(tree, *arguments, **options)

    environment._generate = generate_bounded
    environment.look_at_clock = _look_at_clock
    environment.intercepted_binops = frozenset({"*", "**"})
    environment.call_binop = _bounded_product
    environment.globals.pop("lipsum", None)  # makes texts of any length, and no template has a use for it
    return environment


def _add_looks(tree: Any) -> None:
    """Let every pass of a loop and every call of a macro begin with a look at the clock."""
    from jinja2 import nodes

    if any(isinstance(node.value, int) and node.value > LARGEST for node in tree.find_all(nodes.Const)):
        raise _Unusable(f"names a number beyond {LARGEST:,}")
    for node in list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
        look = nodes.Call(nodes.EnvironmentAttribute("look_at_clock"), [], [], None, None)
        node.body.insert(0, nodes.ExprStmt(look, lineno=node.lineno))


def _look_at_clock() -> None:
    if time.thread_time() > _limits.end:
        raise _Unusable(f"takes longer than {SECONDS:g} s")


def _bounded(pieces: Iterator[str]) -> Iterator[str]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > LARGEST:
            raise _Unusable(f"writes more than {LARGEST:,} characters")
        yield piece


def _bounded_product(context: Any, operator: str, left: Any, right: Any) -> Any:
    """`left * right` or `left ** right`, unless the result is huge."""
    one, other = (len(each) if hasattr(each, "__len__") else abs(each) for each in (left, right))
    if (one ** min(other, 64) if operator == "**" else one * other) > LARGEST:
        raise _Unusable(f"multiplies up to more than {LARGEST:,}")
    return left**right if operator == "**" else left * right
