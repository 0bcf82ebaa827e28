"""Chat templates of each family: what is prompt and what is answer, against transformers' own rendering."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.small_tokenizers import byte_level, sentencepiece_like

from oblivionis.config.compose import compose, from_yaml, to_yaml
from oblivionis.config.problems import ConfigError
from oblivionis.data.errors import DataError
from oblivionis.data.tokenize import (
    PromptTemplate,
    TemplateError,
    encode,
    encode_pairs,
    encode_prompts,
    prompt_text,
    stop_ids,
    whole_text,
)
from oblivionis.models.assembly import prompt_template

QUESTION, ANSWER = "Who wrote the book?", "Maria Silva wrote the book."
CHATML = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
QWEN = (
    "{%- for m in messages %}{%- set said = m.content %}{%- if m.role == 'assistant' %}{%- set thought = '' %}"
    "{%- if m.reasoning_content is string %}{%- set thought = m.reasoning_content %}"
    "{%- elif '</think>' in said %}{%- set thought = said.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{%- set said = said.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
    "{{- '<|im_start|>assistant\n<think>\n' + thought + '\n</think>\n\n' + said.lstrip('\n') + '<|im_end|>\n' }}"
    "{%- else %}{{- '<|im_start|>' + m.role + '\n' + said + '<|im_end|>\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
    "{%- endif %}"
)
ALWAYS_THINKS = (
    "{{- bos_token }}{%- for m in messages %}{%- if m.role == 'user' %}{{- '<|im_start|>' + m.content + '<|im_end|>' }}"
    "{%- elif m.role == 'assistant' %}{{- m.content.split('</think>')[-1] + eos_token }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<think>\n' }}{%- endif %}"
)
SMOLLM3 = (
    "{%- set enable_thinking = enable_thinking | default(true) %}"
    "{%- set mode = '/think' if enable_thinking else '/no' %}"
    "{%- if messages[0].role == 'system' %}{%- set told = messages[0].content.replace('/no_think', '') %}"
    "{%- if '/no_think' in messages[0].content %}{%- set mode = '/no' %}{%- endif %}"
    "{%- set messages = messages[1:] %}{%- else %}{%- set told = 'Be brief.' %}{%- endif %}"
    "{{- '<|im_start|>system\nDate: ' + strftime_now('%d %B %Y') + '\nMode: ' + mode + '\n' + told + '<|im_end|>\n' }}"
    "{%- for m in messages %}{%- if m.role == 'user' %}{{- '<|im_start|>user\n' + m.content + '<|im_end|>\n' }}"
    "{%- else %}{% generation %}{%- if mode == '/think' %}"
    "{{- '<|im_start|>assistant\n' + m.content.lstrip('\n') + '<|im_end|>\n' }}{%- else %}"
    "{{- '<|im_start|>assistant\n<think>\n\n</think>\n' + m.content.lstrip('\n') + '<|im_end|>\n' }}"
    "{%- endif %}{% endgeneration %}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- if mode == '/no' %}{{- '<think>\n\n</think>\n' }}{%- endif %}{%- endif %}"
)
GPT_OSS = (
    "{{- '<|start|>system<|message|>Effort: ' + (reasoning_effort or 'medium') + '<|end|>' }}{%- for m in messages %}"
    "{%- if m.role == 'assistant' %}{%- if '<|channel|>final' in m.content %}{{ raise_exception('no channels') }}"
    "{%- endif %}{{- '<|start|>assistant<|channel|>final<|message|>' + m.content }}"
    "{{- '<|return|>' if loop.last else '<|end|>' }}"
    "{%- else %}{{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"
)
GEMMA = (
    "{{ bos_token }}{%- if messages[0].role == 'system' %}"
    "{{- raise_exception('System role not supported') }}{%- endif %}"
    "{%- for m in messages %}{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{- raise_exception('Roles must alternate user/assistant') }}{%- endif %}"
    "{%- set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{- '<start_of_turn>' + role + '\n' + m.content | trim + '<end_of_turn>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<start_of_turn>model\n' }}{%- endif %}"
)
GEMMA3 = (
    "{{ bos_token }}{%- set first = '' %}{%- if messages[0].role == 'system' %}"
    "{%- set first = messages[0].content + '\n\n' %}{%- set messages = messages[1:] %}{%- endif %}"
    "{%- for m in messages %}{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else 'user') + '\n' }}"
    "{{- (first if loop.first else '') + m.content | trim + '<end_of_turn>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<start_of_turn>model\n' }}{%- endif %}"
)
MISTRAL = (
    "{%- if messages[0].role == 'system' %}{%- set told = messages[0].content %}{%- set messages = messages[1:] %}"
    "{%- endif %}{{- bos_token }}{%- for m in messages %}{%- if m.role == 'user' %}"
    "{%- if loop.last and told is defined %}{{- '[INST] ' + told + '\n\n' + m.content + '[/INST]' }}"
    "{%- else %}{{- '[INST] ' + m.content + '[/INST]' }}{%- endif %}"
    "{%- else %}{{- ' ' + m.content | trim + eos_token }}{%- endif %}{%- endfor %}"
)
LLAMA_2 = (
    "{%- for m in messages %}{%- if m.role == 'user' %}{{- bos_token + '[INST] ' + m.content | trim + ' [/INST]' }}"
    "{%- elif m.role == 'assistant' %}{{- ' ' + m.content | trim + ' ' + eos_token }}{%- endif %}{%- endfor %}"
)
LLAMA_3 = (
    "{{- bos_token }}{%- for m in messages %}{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}"
    "{{- m.content | trim + '<|eot_id|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
ZEPHYR = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
ENDS_IN_SPACE = (
    "{% for m in messages %}{{ m.role | upper + ': ' + m.content }}"
    "{{ eos_token if m.role == 'assistant' else '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT: ' }}{% endif %}"
)


@dataclass(frozen=True)
class Family:
    """A template, what it is given, the prompt's end and the separator that are right, and the end token."""

    text: str
    ends: str
    end: str
    separator: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    system: str | None = None
    sentencepiece: bool = False

    def tokenizer(self) -> Any:
        return sentencepiece_like(self.text) if self.sentencepiece else byte_level(bos=True, chat=self.text)

    @property
    def template(self) -> PromptTemplate:
        return PromptTemplate("chat", system_prompt=self.system, arguments=self.arguments)

    def own(self, tokenizer: Any, answer: str | None = None, **more: Any) -> str:
        """transformers' rendering."""
        messages = [{"role": "system", "content": self.system}] if self.system is not None else []
        messages.append({"role": "user", "content": QUESTION})
        if answer is not None:
            messages.append({"role": "assistant", "content": answer})
        given = {"add_generation_prompt": answer is None, **self.arguments, **more}
        return tokenizer.apply_chat_template(messages, tokenize=False, **given)


OFF = {"enable_thinking": False}
EMPTY = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
LIKE_BEFORE = {
    "chatml": Family(CHATML, "<|im_start|>assistant\n", "<|im_end|>", system="Be kind."),
    "llama 2": Family(LLAMA_2, " [/INST]", "</s>", " ", sentencepiece=True),
    "llama 3": Family(LLAMA_3, "assistant<|end_header_id|>\n\n", "<|eot_id|>", system="Be kind."),
    "gemma": Family(GEMMA, "<start_of_turn>model\n", "<end_of_turn>"),
    "gemma 3": Family(GEMMA3, "<start_of_turn>model\n", "<end_of_turn>", system="Be kind."),
    "mistral": Family(MISTRAL, "[/INST]", "<|end|>", " "),
    "zephyr": Family(ZEPHYR, "<|assistant|>\n", "<|end|>"),
    "zephyr, sentencepiece": Family(ZEPHYR, "<|assistant|>\n", "</s>", sentencepiece=True),
    "qwen, off": Family(QWEN, EMPTY, "<|im_end|>", arguments=OFF),
    "smollm3, on": Family(SMOLLM3, "<|im_start|>assistant\n", "<|im_end|>"),
    "smollm3, off": Family(SMOLLM3, EMPTY[:-1], "<|im_end|>", arguments=OFF),
    "smollm3, off by its system message": Family(SMOLLM3, EMPTY[:-1], "<|im_end|>", system="Help. /no_think"),
}
"""Templates whose prompt for generation is what a finished dialogue begins with."""
FAMILIES = {
    **LIKE_BEFORE,
    "qwen": Family(QWEN, EMPTY, "<|im_end|>"),
    "qwen, on": Family(QWEN, EMPTY, "<|im_end|>", arguments={"enable_thinking": True}),
    "always thinks": Family(ALWAYS_THINKS, QUESTION + "<|im_end|>", "<|end|>"),
    "gpt-oss": Family(GPT_OSS, "<|start|>assistant<|channel|>final<|message|>", "<|return|>"),
    "gpt-oss, low": Family(
        GPT_OSS, "assistant<|channel|>final<|message|>", "<|return|>", arguments={"reasoning_effort": "low"}
    ),
    "ends in a space": Family(ENDS_IN_SPACE, "ASSISTANT:", "<|end|>", " "),
}


def dated(text: str) -> str:
    """Today's date replaced by the one that prompts have."""
    return re.sub("Date: .*", "Date: 26 Jul 2024", text)


@pytest.mark.parametrize("name", FAMILIES)
def test_prompt_and_answer_are_what_transformers_makes_of_the_finished_dialogue(name: str) -> None:
    family = FAMILIES[name]
    tokenizer = family.tokenizer()
    template = PromptTemplate("chat", system_prompt=family.system, arguments=family.arguments)
    encoded = encode(tokenizer, template, QUESTION, ANSWER)
    text = prompt_text(tokenizer, template, QUESTION)
    assert text.endswith(family.ends)
    whole = dated(family.own(tokenizer, ANSWER))
    assert whole.startswith(text + family.separator + ANSWER)
    ids = tokenizer(whole, add_special_tokens=False)["input_ids"]
    ours = [*encoded.prompt, *encoded.answer[:-1]]
    assert ids[: len(ours)] == ours
    assert tokenizer.decode(encoded.answer[-1]) == family.end and encoded.answer[-1] in ids[len(ours) :]
    assert encode_prompts([QUESTION], tokenizer, template) == [encoded.prompt], "sampling begins where training does"
    assert whole_text(tokenizer, template, QUESTION, ANSWER) == (text + family.separator + ANSWER).removeprefix(
        tokenizer.bos_token
    )
    assert encoded.answer[-1] in stop_ids(tokenizer, None, template)


@pytest.mark.parametrize("name", LIKE_BEFORE)
def test_where_nothing_stands_between_them_prompts_are_those_for_generation(name: str) -> None:
    family = LIKE_BEFORE[name]
    tokenizer = family.tokenizer()
    expected = dated(family.own(tokenizer))
    ids = tokenizer(expected, add_special_tokens=False)["input_ids"]
    assert list(encode_prompts([QUESTION], tokenizer, family.template)[0]) == ids


def test_without_the_argument_a_finished_dialogue_tells_that_there_is_no_reasoning() -> None:
    tokenizer = byte_level(chat=QWEN)
    asked = PromptTemplate("chat")
    assert prompt_text(tokenizer, asked, QUESTION) == FAMILIES["qwen"].own(tokenizer, enable_thinking=False)


def test_mistral_keeps_the_system_message_that_its_finished_dialogue_leaves_out() -> None:
    tokenizer = byte_level(chat=MISTRAL)
    template = PromptTemplate("chat", system_prompt="Be kind.")
    encoded = encode(tokenizer, template, QUESTION, ANSWER)
    assert tokenizer.decode(encoded.prompt) == f"<|begin|>[INST] Be kind.\n\n{QUESTION}[/INST]"
    assert tokenizer.decode(encoded.answer) == f" {ANSWER}<|end|>"


@pytest.mark.parametrize("name", ["qwen", "gpt-oss", "mistral", "gemma", "smollm3, off"])
def test_questions_and_answers_of_any_words(name: str) -> None:
    family = FAMILIES[name]
    tokenizer = family.tokenizer()
    texts = [
        "Qx7Kd what Vj2",
        "Aw5Rm that Zt8",
        "{{ messages }}{% if %}",
        "user",
        "a\n\nb",
        "x  y",
        "<b>&amp;'\"",
        "ß€中",
    ]
    pairs = [(question, answer) for question in texts for answer in texts]
    for (question, answer), encoded in zip(pairs, encode_pairs(pairs, tokenizer, family.template), strict=True):
        assert tokenizer.decode(encoded.answer[:-1]).strip() == answer
        assert question in tokenizer.decode(encoded.prompt)


def test_answers_lose_the_white_space_that_the_template_strips() -> None:
    for name in ("llama 3", "gemma", "mistral"):
        family = FAMILIES[name]
        tokenizer = family.tokenizer()
        spaced = encode(tokenizer, family.template, QUESTION, f" {ANSWER}\n")
        assert spaced == encode(tokenizer, family.template, QUESTION, ANSWER)
    tokenizer = byte_level(chat=CHATML)
    assert tokenizer.decode(encode(tokenizer, PromptTemplate("chat"), "q", " a\n").answer) == " a\n<|im_end|>"


def test_an_answer_that_the_template_takes_apart_is_refused_by_name() -> None:
    tokenizer = byte_level(chat=QWEN)
    pairs = [("q", "a"), ("q", "no</think>yes"), ("q", "b")]
    with pytest.raises(DataError, match=r"does not write as they are: 1 problem\n  r1: 'no</think>yes'$"):
        encode_pairs(pairs, tokenizer, PromptTemplate("chat"), names=["r0", "r1", "r2"])
    with pytest.raises(DataError, match="does not write as they are"):
        whole_text(tokenizer, PromptTemplate("chat"), "q", "no</think>yes")
    with pytest.raises(DataError, match="no channels"):
        encode(byte_level(chat=GPT_OSS), PromptTemplate("chat"), "q", "<|channel|>final")


UNTOLD = {
    "upper": CHATML.replace("m.content", "m.content | upper"),
    "no answer": "{{ messages[0].content }}<|im_start|>",
    "no question": "{% for m in messages if m.role == 'assistant' %}{{ m.content }}{% endfor %}",
    "answer twice": "{% for m in messages %}{{ m.content }}:{{ m.content }}{% endfor %}",
}


@pytest.mark.parametrize("text", UNTOLD.values(), ids=UNTOLD)
def test_a_template_that_does_not_tell_question_from_answer_is_refused(text: str) -> None:
    with pytest.raises(TemplateError, match="does not write a question and then its answer") as caught:
        encode_prompts([QUESTION], byte_level(chat=text), PromptTemplate("chat"))
    assert "\n" not in str(caught.value)


def test_a_layout_that_depends_on_the_question_is_refused() -> None:
    thinks = "{{- '<think>' if '/think' in messages[-1].content else '' }}"
    flagged = CHATML.removesuffix("{%- endif %}") + thinks + "{%- endif %}"
    tokenizer = byte_level(chat=flagged)
    assert prompt_text(tokenizer, PromptTemplate("chat"), "q").endswith("assistant\n")
    with pytest.raises(TemplateError, match=r"lays out 'q /think' otherwise than other questions"):
        prompt_text(tokenizer, PromptTemplate("chat"), "q /think")


def test_a_system_message_that_the_template_refuses_or_drops_is_named() -> None:
    system = PromptTemplate("chat", system_prompt="Be kind.")
    with pytest.raises(TemplateError, match=r"^model\.template\.system_prompt: .*System role not supported") as caught:
        encode(byte_level(chat=GEMMA), system, "q", "a")
    assert "\n" not in str(caught.value)
    with pytest.raises(TemplateError, match=r"^model\.template\.system_prompt: .* leaves the system message out"):
        encode(byte_level(chat=ALWAYS_THINKS), system, "q", "a")


def test_arguments_that_the_template_does_not_know_are_refused() -> None:
    with pytest.raises(TemplateError, match=r"arguments\.enable_thinkin: no variable .*; it knows enable_thinking"):
        encode(byte_level(chat=QWEN), PromptTemplate("chat", arguments={"enable_thinkin": False}), "q", "a")
    with pytest.raises(TemplateError, match=r"arguments\.enable_thinking: no variable .*; it takes none$"):
        encode_prompts(["q"], byte_level(chat=CHATML), PromptTemplate("chat", arguments=OFF))
    for name in ("messages", "tools", "tokenize", "add_generation_prompt", "chat_template", "bos_token", "date_string"):
        with pytest.raises(TemplateError, match=rf"model\.template\.arguments\.{name}: "):
            PromptTemplate("chat", arguments={name: "x"})
    with pytest.raises(TemplateError, match="no plain value"):
        PromptTemplate("chat", arguments={"x": {"y": 1}})


def test_arguments_travel_in_the_configuration() -> None:
    base = ["model=smollm2", "model.template.arguments.levels=[1, low, null]"]
    for text in ("model.template.arguments.enable_thinking=false", "model.template.arguments={enable_thinking: false}"):
        config = compose("default", [*base, text])
        assert config.model.template.arguments == {"levels": [1, "low", None], "enable_thinking": False}
        assert from_yaml(to_yaml(config)) == config
        assert prompt_template(config.model).arguments == config.model.template.arguments
    assert compose("default", ["model=smollm2"]).model.template.arguments == {}, "defaults are not shared"
    wrong = ["tools=[1]", "a.b=1", "x=???", "date_string=May", "eos_token=x"]
    with pytest.raises(ConfigError) as caught:
        compose("default", ["model=smollm2", *(f"model.template.arguments.{each}" for each in wrong)])
    found = {problem.path.removeprefix("model.template.arguments.") for problem in caught.value.problems}
    assert found == {"tools", "a", "x", "date_string", "eos_token"}
    for key in ("arguments.x", "system_prompt"):
        with pytest.raises(ConfigError, match=r"only a chat template takes it, and model\.template\.kind is qa"):
            compose("default", [f"model.template.{key}=1"])


def test_of_several_named_templates_the_default_counts() -> None:
    tokenizer = byte_level(chat=None)
    tokenizer.chat_template = {"default": QWEN, "tool_use": CHATML}
    assert prompt_text(tokenizer, PromptTemplate("chat"), "q").endswith(EMPTY)
    tokenizer.chat_template = {"rag": QWEN, "tool_use": CHATML}
    with pytest.raises(TemplateError, match="several chat templates and none called 'default'"):
        prompt_text(tokenizer, PromptTemplate("chat"), "q")


def test_a_chat_template_that_is_not_used_need_not_be_of_use() -> None:
    tokenizer = byte_level(chat=UNTOLD["no answer"])
    assert stop_ids(tokenizer, None, PromptTemplate()) == {tokenizer.eos_token_id}
    with pytest.raises(TemplateError):
        stop_ids(tokenizer, None, PromptTemplate("chat"))


CASE = Path(__file__).parents[5] / "shared" / "cases" / "models" / "think_template" / "model"


@pytest.mark.skipif(not CASE.is_dir(), reason="the case is not on this machine")
def test_a_hybrid_thinker() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(CASE)
    assert prompt_text(tokenizer, PromptTemplate("chat"), QUESTION).endswith("<think>\n\n</think>\n\n")
