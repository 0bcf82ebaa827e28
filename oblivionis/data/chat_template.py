"""Chat templates, rendered within limits of time and size.

A chat template is a program that comes with a model. transformers runs it in a sandbox, which keeps it from the machine
but neither from running for ever nor from filling the memory. Here it runs in the environment of transformers, with
these additions. Every pass of a loop, every call of a macro and every operation checks the clock; what an operation
is given has a largest size, with all that it refers to; what can be larger than what it is made of (a product, a
replacement, a joined list, a formatted text) is counted before it is made; and so is all that is written or put
together, up to a largest sum. Ways to widen a text that no template needs are not there.

The template itself checks the clock, so that the limits hold in every thread and process, and need no signal (which
only the main thread gets), no second thread (which cannot end the first one for certain) and no second process (whose
start takes a tenth of a second). The clock is the processor time of the thread: a busy machine refuses no template.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set, Sized, ValuesView
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import Any

from oblivionis.config.template_arguments import RESERVED
from oblivionis.data.errors import DataError

SECONDS = 1.0
"""Processor time that a template has to be compiled, and to write one conversation."""
LARGEST = 1_000_000
"""The largest number, and how many characters and items a value may have, with all that it refers to."""
LONGEST = 100_000
"""How many characters a template may have."""
ROOM = 10 * LARGEST
"""How many characters and items may be made for one conversation."""
_WIDENING_METHODS = frozenset({"center", "expandtabs", "format", "format_map", "ljust", "rjust", "translate", "zfill"})
_WIDENING_FILTERS = ("batch", "center", "pprint", "slice", "urlize", "wordwrap")
_STAR = re.compile(r"%[^%a-zA-Z]*\*")

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
        If there is no template, if it raises, takes more than `SECONDS`, or makes more than `ROOM` characters or a
        value of more than `LARGEST`.
    """
    with _errors_of(tokenizer):
        template = _compiled(template_text(tokenizer))
        _limits.end, _limits.room = time.thread_time() + SECONDS, ROOM
        pieces = template.generate(
            **{**tokenizer.special_tokens_map, **variables},
            messages=list(messages),
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
        )
        text = "".join(pieces)
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
    if len(text) > LONGEST:
        raise _Unusable(f"has more than {LONGEST:,} characters")
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
        _add_clock_checks(tree)
        return generate(tree, *arguments, **options)

    environment._generate = generate_bounded
    environment.look_at_clock = _look_at_clock
    environment.weighed, environment.spent = _weighed, _spent
    environment.intercepted_binops = frozenset({"+", "*", "**", "%"})
    environment.call_binop = _bounded_operation
    call, safe = environment.call, environment.is_safe_attribute

    def call_bounded(context: Any, function: Any, /, *arguments: Any, **named: Any) -> Any:
        of, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        if isinstance(of, str) and name in _SIZES:
            _spend(_SIZES[name](of, *arguments, **named))
        return call(context, function, *arguments, **named)

    environment.call = call_bounded
    environment.wrap_str_format = lambda value: None
    environment.is_safe_attribute = lambda of, name, value: (
        not (isinstance(of, str) and name in _WIDENING_METHODS) and safe(of, name, value)
    )
    environment.globals.pop("lipsum", None)  # makes texts of any length, and no template has a use for it
    for name in _WIDENING_FILTERS:
        environment.filters.pop(name, None)
    sizes = {**_SIZES, "format": _formatted, "indent": _indented, "string": _text, "sum": _sum, "tojson": _as_json}
    for name, size in sizes.items():
        environment.filters[name] = _counted(environment.filters[name], size)
    return environment


def _add_clock_checks(tree: Any) -> None:
    """Let every pass of a loop and every call of a macro begin with a check of the clock, and weigh what operations are
    given: what `LARGEST` and `ROOM` are about."""
    from jinja2 import nodes

    if any(isinstance(node.value, int) and node.value > LARGEST for node in tree.find_all(nodes.Const)):
        raise _Unusable(f"names a number beyond {LARGEST:,}")

    def calling(name: str, *arguments: Any) -> Any:
        return nodes.Call(nodes.EnvironmentAttribute(name), list(arguments), [], None, None)

    kinds = (nodes.Filter, nodes.Test, nodes.Call, nodes.Compare, nodes.Concat, nodes.Output)
    operations, bodies = list(tree.find_all(kinds)), list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)))
    for node in operations:
        if isinstance(node, nodes.Concat | nodes.Output):
            kept = [n for n in node.nodes if isinstance(n, nodes.TemplateData)]
            node.nodes = [n if n in kept else calling("spent", n) for n in node.nodes]
            continue
        if isinstance(node, nodes.Compare):
            node.expr = calling("weighed", node.expr)
            for operand in node.ops:
                operand.expr = calling("weighed", operand.expr)
            continue
        if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr):
            node.node.node = calling("weighed", node.node.node)
        elif not isinstance(node, nodes.Call) and node.node is not None:
            node.node = calling("weighed", node.node)
        node.args = [calling("weighed", argument) for argument in node.args or []]
        for named in node.kwargs or []:
            named.value = calling("weighed", named.value)
    for node in bodies:
        written = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
        look = calling("look_at_clock", nodes.Const(written))
        node.body.insert(0, nodes.ExprStmt(look, lineno=node.lineno))


def _look_at_clock(written: int = 0) -> None:
    """Refuse what takes too long; `written`: characters of the template itself that follow."""
    if time.thread_time() > _limits.end:
        raise _Unusable(f"takes longer than {SECONDS:g} s")
    if written:
        _spend(written)


def _spend(size: int) -> None:
    """Refuse what is too large, or too much together with what was made before, ahead of its making."""
    _limits.room -= size
    if size > LARGEST or _limits.room < 0:
        raise _Unusable(f"makes more than {LARGEST:,} characters at once, or {ROOM:,} in all")


def _weighed(value: Any) -> Any:
    """`value`, unless it is too large. What comes piece by piece is put into a list first."""
    _look_at_clock()
    if isinstance(value, Iterator) and not type(value).__module__.startswith("jinja2"):  # which has loops that are such
        value = list(value)
    _weight(value)
    return value


def _spent(value: Any) -> Any:
    """The same of what becomes part of a text."""
    value = _weighed(value)
    _spend(_weight(value, written=True))
    return value


def _weight(value: Any, *, written: bool = False) -> int:
    """Characters and items of a value, with those of what is in it as often as it is there.

    written: it becomes part of a text, which is refused of what is neither a text nor a number nor a list of such.
    """
    if isinstance(value, str) and len(value) < LARGEST:
        return len(value) + 1
    weight, left = 0, [value]
    while left:
        one = left.pop()
        if isinstance(one, str | bytes):
            weight += len(one)
        elif isinstance(one, Mapping):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | Set | ValuesView):
            left += one if len(one) <= LARGEST else ()
            weight += len(one)
        elif isinstance(one, range):
            weight += len(one)
        elif written and not (one is None or isinstance(one, int | float) or _is_undefined(one)):
            raise _Unusable(f"writes a {type(one).__name__}")
        weight += 1
        if weight + len(left) > LARGEST:
            raise _Unusable(f"makes more than {LARGEST:,} characters or items")
    return weight


def _is_undefined(value: Any) -> bool:
    from jinja2 import Undefined

    return isinstance(value, Undefined)


def _bounded_operation(context: Any, operator: str, left: Any, right: Any) -> Any:
    """`left + right`, `left * right`, `left ** right` or `left % right`, unless the result is huge."""
    _look_at_clock()
    if operator == "%":
        if isinstance(left, str):
            _spend(_formatted(left, right))
        return left % right
    if operator == "+":
        if isinstance(left, str | list | tuple):
            _spend(_weight(left) + _weight(right))
        return left + right
    one, other = (_weight(each) if isinstance(each, Sized) else abs(each) for each in (left, right))
    size = one ** min(other, 64) if operator == "**" else one * other
    if size > LARGEST:
        raise _Unusable(f"multiplies up to more than {LARGEST:,}")
    if any(isinstance(each, Sized) for each in (left, right)):
        _spend(int(size))
    return left**right if operator == "**" else left * right


def _replaced(text: Any, old: Any, new: Any, *_: Any, **__: Any) -> int:
    text = str(text)
    return len(text) + (text.count(str(old)) if old else len(text) + 1) * len(str(new))


def _joined(first: Any, second: Any = "", *_: Any, **__: Any) -> int:
    """Of the method (of the text between, with the list) and of the filter (of the list, with the text)."""
    between, items = (first, second) if isinstance(first, str) and not isinstance(second, str) else (second, first)
    return _weight(items, written=True) + len(items) * len(str(between))


def _formatted(text: Any, *values: Any, **named: Any) -> int:
    if _STAR.search(str(text)):
        raise _Unusable("formats a text with a width of its own making")
    widths = [int(number) for number in re.findall(r"\d{1,9}", str(text))]
    return len(str(text)) + str(text).count("%") * (
        max(widths, default=0) + 32 + _weight([*values, *named.values()], written=True)
    )


def _indented(text: Any, width: Any = 4, *_: Any, **__: Any) -> int:
    return len(str(text)) + (str(text).count("\n") + 1) * (len(width) if isinstance(width, str) else width)


def _text(value: Any) -> int:
    return _weight(value, written=True)


def _as_json(value: Any, *arguments: Any, indent: Any = None, **named: Any) -> int:
    given = [each for each in (*arguments, indent, *named.values()) if isinstance(each, int | str)]
    widest = max((len(each) if isinstance(each, str) else int(each) for each in given), default=0)
    return _weight(value) * (1 + widest)


def _sum(values: Any, attribute: Any = None, start: Any = 0) -> int:
    if not isinstance(start, int | float):
        raise _Unusable("sums up something else than numbers")
    return 0


_SIZES: dict[str, Callable[..., int]] = {"replace": _replaced, "join": _joined}
"""How long at most is what methods of texts, and the filters of the same names, make of what they are given."""


def _counted(filter_: Callable[..., Any], size: Callable[..., int]) -> Callable[..., Any]:
    """The filter, which is refused beforehand where its result is too large."""
    skipped = 1 if hasattr(filter_, "jinja_pass_arg") else 0  # what jinja itself passes first

    @wraps(filter_)
    def run(*given: Any, **named: Any) -> Any:
        _spend(size(*given[skipped:], **named))
        return filter_(*given, **named)

    return run
