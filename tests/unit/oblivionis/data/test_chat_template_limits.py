"""A chat template is somebody else's program: it gets a second, and some room."""

from __future__ import annotations

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
