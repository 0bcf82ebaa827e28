"""A chat template is somebody else's program: it gets a second, and some room."""

from __future__ import annotations

import re
import threading
import time

import pytest
from support.small_tokenizers import byte_level

from oblivionis.data import chat_template
from oblivionis.data.chat_template import TemplateError, render, variables_of
from oblivionis.data.tokenize import PromptTemplate, encode_prompts

MESSAGES = [{"role": "user", "content": "q"}]
SLOW = {
    "loops in loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a macro that calls itself twice": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    ),
    "blocks that are called": (
        "{% macro f() %}{{ caller() }}{% endmacro %}{% for i in range(99999) %}{% for j in range(99999) %}"
        "{% call f() %}{% endcall %}{% endfor %}{% endfor %}"
    ),
    "a loop of its own making": "{% for x in [1] recursive %}{% for y in range(99999) %}"
    "{% for z in range(99999) if z %}{% endfor %}{% endfor %}{% endfor %}",
}
LARGE = {
    "a long text": "{{ 'a' * 10**9 }}",
    "a long list": "{{ ([0] * 1000 * 1000 * 1000) | length }}",
    "a large power": "{{ 9 ** 9 ** 9 ** 9 }}",
    "squares": "{% set s = namespace(n=3) %}{% for i in range(99) %}{% set s.n = s.n * s.n %}{% endfor %}",
    "a wide text": "{{ 'a' | center(10000000000) }}",
    "many pieces": "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
    "a range": "{% for i in range(10**9) %}{% endfor %}",
    "depth": "{% for x in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "words": "{{ lipsum(n=9999999) }}",
    "a longer template than any": "x" * 100_001,
}
DOUBLED = (
    "{% set n = namespace(a=[1], b=[1]) %}{% for i in range(60) %}{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}"
)
MUCH = "{% set y = 'ab' * 400000 %}"
WIDENING = {
    "a replacement": MUCH + "{{ y.replace('a', 'c' * 999) | length }}",
    "the filter of the same name": MUCH + "{{ y | replace('a', 'c' * 999) | length }}",
    "a replacement between all letters": MUCH + "{{ y.replace('', 'c' * 9) | length }}",
    "a joined list": "{{ ('c' * 9999).join('a' * 9999) | length }}",
    "the filter joins": "{{ ('a' * 9999) | join('c' * 9999) | length }}",
    "a list of references": MUCH + "{{ [y, y] | join | length }}",
    "a width": "{{ ('%0' ~ '9999999' ~ 'd') % 1 }}",
    "a width that is given": "{{ '%*d' % (99999, 1) }}",
    "the filter formats": MUCH + "{{ '%s%s' | format(y, y) | length }}",
    "braces": "{{ '{:>9999}'.format(1) }}",
    "braces of a map": "{{ '{a:>9999}'.format_map({'a': 1}) }}",
    "a text put in its middle": "{{ 'a'.center(9999) }}",
    "tabulators": "{{ '\t'.expandtabs(9999) }}",
    "a translation": "{{ 'a'.translate({97: 'b' * 99}) }}",
    "an indented text": "{{ ('a\n' * 9999) | indent(9999) | length }}",
    "an indented object": "{{ ([[1]] * 9999) | tojson(indent=9999) | length }}",
    "lists added up": "{{ ([[1]] * 9) | sum(start=[]) }}",
    "texts added": MUCH + "{{ (y + y) | length }}",
    "lists added": "{% set y = [0] * 400000 %}{{ (y + y + y) | length }}",
    "texts side by side": MUCH + "{{ (y ~ y) | length }}",
    "doubled in a loop": "{% set n = namespace(a='a') %}{% for i in range(60) %}{% set n.a = n.a ~ n.a %}{% endfor %}",
    "a block": MUCH + "{% set x %}{% for i in range(30) %}{{ y }}{% endfor %}{% endset %}{{ x | length }}",
    "a block of its own words": "{% set x %}{% for i in range(9999) %}" + "z" * 9999 + "{% endfor %}{% endset %}",
    "references in references": DOUBLED + "{% endfor %}{{ n.a | length }}",
    "which are compared": DOUBLED + "{% endfor %}{{ n.a == n.b }}",
    "which are looked for": DOUBLED + "{% endfor %}{{ n.a in [n.b] }}",
    "which are written": DOUBLED + "{% endfor %}{{ n.a }}",
    "a map": "{{ range(9999) | map('replace', '1', 'x' * 9999) | list | length }}",
    "a thing that refers to itself": "{% set n = namespace(a=1) %}{% set n.a = n %}{{ n }}",
    "its text": "{% set n = namespace(a=1) %}{% set n.a = n %}{{ n | string }}{{ '%s' % n }}",
    "a filter of the web": "{{ ('a.com ' * 99) | urlize }}",
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "SECONDS", 0.1)


def refusal(text: str) -> str:
    begun = time.monotonic()
    with pytest.raises(TemplateError) as caught:
        render(byte_level(chat=text), MESSAGES, {}, add_generation_prompt=True)
    assert time.monotonic() - begun < 5 and "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("text", SLOW.values(), ids=SLOW)
def test_a_template_that_takes_too_long_is_refused(text: str) -> None:
    assert refusal(text) == "the chat template of the tokenizer TokenizersBackend takes longer than 0.1 s"


@pytest.mark.parametrize("text", LARGE.values(), ids=LARGE)
def test_a_template_that_makes_something_huge_is_refused(text: str) -> None:
    refusal(text)


@pytest.mark.parametrize("text", WIDENING.values(), ids=WIDENING)
def test_what_would_grow_beyond_its_room_is_refused_before_it_is_made(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template, "SECONDS", 5.0)
    ways = r"(makes more than|multiplies up|formats|writes a \w*Namespace|sums up|unsafe\.$|No filter named)"
    assert re.search(ways, told := refusal(text)), told


def test_a_long_conversation_has_room() -> None:
    text = "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] | trim ~ '\n' }}{% endfor %}"
    content = "x" * 100_000
    written = render(byte_level(chat=text), [{"role": "user", "content": content}] * 9, {}, add_generation_prompt=True)
    assert written == f"<user>{content}\n" * 9


def test_also_in_another_thread_and_from_the_first_question_on() -> None:
    found: list[str] = []

    def ask() -> None:
        try:
            encode_prompts(["q"], byte_level(chat=SLOW["loops in loops"]), PromptTemplate("chat"))
        except TemplateError as error:
            found.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(10)
    assert len(found) == 1 and "takes longer than" in found[0]


def test_a_template_that_is_slow_for_one_question_only_is_refused_there() -> None:
    text = (
        "{% for m in messages %}{{ m.content }}<|im_start|>{% if 'slow' in m.content %}{% for i in range(99999) %}"
        "{% for j in range(99999) %}{% endfor %}{% endfor %}{% endif %}{% endfor %}"
    )
    tokenizer = byte_level(chat=text)
    assert encode_prompts(["quick"], tokenizer, PromptTemplate("chat"))
    with pytest.raises(TemplateError, match="takes longer than"):
        encode_prompts(["slow"], tokenizer, PromptTemplate("chat"))


def test_a_template_that_is_slow_to_compile_is_refused_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "SECONDS", -1)
    for _ in range(2):
        assert "takes longer than" in refusal("{{ messages }} and a text of its own")


@pytest.mark.parametrize("arguments", [{}, {"x": 1}])
@pytest.mark.parametrize("text", ["{% for %}", "{% include 'a' %}", "{{ nothing.of.it }}", "{{ 1 / 0 }}"])
def test_a_template_that_fails_is_one_line(text: str, arguments: dict[str, int]) -> None:
    tokenizer = byte_level(chat=text + "{{ x }}")
    with pytest.raises(
        TemplateError, match=r"^the chat template of the tokenizer TokenizersBackend cannot be"
    ) as caught:
        encode_prompts(["q"], tokenizer, PromptTemplate("chat", arguments=arguments))
    assert "\n" not in str(caught.value)


PARTS = {
    "blanks": "{% for m in messages %}\n  {% if true %}\n {{ m.content }}\n  {% endif %}\n{%- endfor -%}\n x",
    "numbers": "{{ 3 * 4 }} {{ 2 ** 5 }} {{ 'ab' * 3 }} {{ 2 ** -1 }} {{ 1.5 * 2 }} {{ [1] * 2 }}",
    "macro": "{% macro f(a, b=2) %}{{ a * b }}{{ varargs }}{% endmacro %}{{ f(3) }}{{ f(1, 2, 3) }}",
    "call": "{% macro f() %}<{{ caller(1) }}>{% endmacro %}{% call(x) f() %}{{ x }}{% endcall %}",
    "loop": "{% for x in [1, 2, 3] if x > 1 %}{{ loop.index }}{% if x == 2 %}{% break %}{% endif %}{% endfor %}",
    "empty": "{% for x in [] %}{% else %}none{% endfor %}",
    "generation": "{% generation %}{% set x = 1 %}{{ messages[0].content }}{% endgeneration %}{{ x }}",
    "json": "{{ messages | tojson(indent=1) }}{{ '<é>' | tojson }}",
    "given": "{{ bos_token }}{{ eos_token }}{{ tools is none }}{{ documents is none }}{{ thing | default('no') }}",
    "words": "{{ 'a-b'.split('-') | join('+') }}{{ ', '.join(['a', 'b']) }}{{ 'aXa'.replace('a', 'bb') }}",
    "formats": "{{ '%3d|%s' % (1, 'x') }}{{ '**%s**' % 'x' }}{{ '%s' | format(1) }}",
    "filters": (
        "{{ [3, 1] | sort | join('-') }}{{ 'a b' | replace('a', 'c', 1) | title | indent(2) }}{{ '%s' | format(1) }}"
        "{{ messages | map(attribute='role') | list }}{{ [1, 2] | sum }}"
        "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages | tojson(indent=4) }}"
        "{{ {'b': 1, 'a': 2} | dictsort }}"
        "{{ ([1] + [2]) | reverse | list }}{{ 'q' in messages[0].content and 'x' ~ 1 ~ none ~ [1] }}{{ 1.5 | string }}"
    ),
    "a loop that is given": (
        "{% macro f(l) %}{{ l.index }}{% endmacro %}{% for x in [1, 2] %}{{ f(loop) }}{{ x }}{% endfor %}"
    ),
    "items": "{% for k, v in messages[0].items() %}{{ k }}={{ v }}{% endfor %}{{ messages[0].keys() | list }}",
    "dict": "{% set d = dict(a=1) %}{{ d.a }}{% set n = namespace(b=2) %}{% set n.b = 3 %}{{ n.b }}",
}


@pytest.mark.parametrize("text", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("generation", [True, False])
def test_else_it_is_rendered_as_transformers_does(text: str, generation: bool) -> None:
    tokenizer = byte_level(chat=text)
    ours = render(tokenizer, MESSAGES, {"thing": "yes"}, add_generation_prompt=generation)
    theirs = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=generation, thing="yes")
    assert ours == theirs


def test_the_variables_are_those_that_an_argument_may_give() -> None:
    text = (
        "{% set thinking = thinking | default(true) %}{{ bos_token }}{{ messages }}{{ tools }}{{ strftime_now('') }}"
        "{% generation %}{{ add_generation_prompt }}{% endgeneration %}{{ namespace(a=effort).a }}{{ date_string }}"
    )
    assert variables_of(byte_level(chat=text)) == {"thinking", "effort"}
