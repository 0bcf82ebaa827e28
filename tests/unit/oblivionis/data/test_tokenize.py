"""Tokenisation: the prompt is a strict prefix, EOS ends the answer, nothing is truncated silently."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from support.small_tokenizers import byte_level, sentencepiece_like
from transformers import PreTrainedTokenizerFast

from oblivionis.data.errors import DataError
from oblivionis.data.records import Record
from oblivionis.data.tokenize import (
    Encoded,
    PromptTemplate,
    TemplateError,
    encode,
    encode_all,
    encode_opening,
    encode_pairs,
    encode_prompts,
    prompt_text,
    stop_ids,
)

QUESTION, ANSWER = "Who wrote the book?", "Maria Silva wrote the book."

LLAMA_3 = (
    "{{- bos_token }}"
    "{%- if not date_string is defined %}{%- if strftime_now is defined %}"
    '{%- set date_string = strftime_now("%d %b %Y") %}{%- endif %}{%- endif %}'
    '{%- if messages[0]["role"] == "system" %}'
    '{%- set system = messages[0]["content"] %}{%- set messages = messages[1:] %}'
    "{%- else %}{%- set system = '' %}{%- endif %}"
    '{{- "<|start_header_id|>system<|end_header_id|>\n\nToday Date: " + date_string + "\n\n" + system + "<|eot_id|>" }}'
    "{%- for m in messages %}"
    '{{- "<|start_header_id|>" + m["role"] + "<|end_header_id|>\n\n" + m["content"] | trim + "<|eot_id|>" }}'
    "{%- endfor %}"
    '{%- if add_generation_prompt %}{{- "<|start_header_id|>assistant<|end_header_id|>\n\n" }}{%- endif %}'
)
LLAMA_2 = (
    "{%- for m in messages %}"
    '{%- if m["role"] == "user" %}{{- bos_token + "[INST] " + m["content"] + " [/INST]" }}'
    '{%- else %}{{- " " + m["content"] + " " + eos_token }}{%- endif %}{%- endfor %}'
)
CHATML = (
    '{%- for m in messages %}{{- "<|im_start|>" + m["role"] + "\n" + m["content"] + "<|im_end|>\n" }}{%- endfor %}'
    '{%- if add_generation_prompt %}{{- "<|im_start|>assistant\n" }}{%- endif %}'
)


@pytest.fixture(scope="module")
def plain() -> PreTrainedTokenizerFast:
    return byte_level()


def test_qa_is_the_natural_tokenisation_of_the_whole_text(plain) -> None:
    encoded = encode(plain, PromptTemplate(), QUESTION, ANSWER, 100)
    whole = f"Question: {QUESTION}\nAnswer: {ANSWER}"
    assert [*encoded.prompt, *encoded.answer] == [*plain(whole)["input_ids"], plain.eos_token_id]
    assert plain.decode(encoded.prompt) == f"Question: {QUESTION}\nAnswer:"
    assert plain.decode(encoded.answer[:-1]) == " " + ANSWER
    assert encoded.prompt == encode_prompts([QUESTION], plain, PromptTemplate())[0]
    assert not encoded.truncated


def test_a_prompt_that_ends_in_a_space_would_be_no_prefix_and_is_refused(plain) -> None:
    prompt = plain("Question: q\nAnswer: ")["input_ids"]
    whole = plain("Question: q\nAnswer: Maria")["input_ids"]
    assert whole[: len(prompt)] != prompt, "the tokenizer of this test must merge the space with the next word"
    for bad in ("Answer: ", "Answer:\t", "Answer:\u00a0"):
        with pytest.raises(TemplateError, match="ends in white space"):
            PromptTemplate(answer_prefix=bad)
    with pytest.raises(TemplateError, match="ends in white space"):
        PromptTemplate(question_suffix=" ", answer_prefix="")
    bare = PromptTemplate(question_prefix="", question_suffix="", answer_prefix="")
    with pytest.raises(TemplateError, match="ends in white space"):
        encode(plain, bare, "Who? ", "Maria")
    assert encode(plain, bare, "Who?", "Maria").prompt == tuple(plain("Who?")["input_ids"])


@pytest.mark.parametrize("separator", [" ", "", "\n", "\n\n", "  "])
@pytest.mark.parametrize("prefix", ["Answer:", "Answer:\n", "A", "[/INST]"])
def test_prompt_is_always_a_strict_prefix_and_text_is_kept(plain, separator: str, prefix: str) -> None:
    template = PromptTemplate(answer_prefix=prefix, answer_separator=separator)
    encoded = encode(plain, template, QUESTION, ANSWER)
    assert encoded.prompt == encode_prompts([QUESTION], plain, template)[0]
    assert encoded.answer[-1] == plain.eos_token_id and plain.eos_token_id not in encoded.answer[:-1]
    text = plain.decode([*encoded.prompt, *encoded.answer[:-1]])
    assert text == f"Question: {QUESTION}\n{prefix}{separator}{ANSWER}"


def test_bos_only_where_the_tokenizer_puts_it(plain) -> None:
    with_bos = byte_level(bos=True)
    encoded = encode(with_bos, PromptTemplate(), QUESTION, ANSWER)
    assert encoded.prompt[0] == with_bos.bos_token_id
    assert with_bos.bos_token_id not in encoded.prompt[1:] + encoded.answer
    assert plain.bos_token_id not in encode(plain, PromptTemplate(), QUESTION, ANSWER).prompt


def test_sentencepiece_answers_carry_no_second_space() -> None:
    tokenizer = sentencepiece_like()
    encoded = encode(tokenizer, PromptTemplate(), QUESTION, ANSWER)
    whole = f"Question: {QUESTION}\nAnswer: {ANSWER}"
    assert [*encoded.prompt, *encoded.answer] == [*tokenizer(whole)["input_ids"], tokenizer.eos_token_id]
    separate = tokenizer(" " + ANSWER, add_special_tokens=False)["input_ids"]
    assert list(encoded.answer[:-1]) != separate, "tokenised on its own, the text begins with two spaces"


def test_llama_3_chat() -> None:
    tokenizer = byte_level(bos=True, chat=LLAMA_3)
    template = PromptTemplate(kind="chat", system_prompt="Be brief.", date_string="10 Apr 2025")
    expected = (
        "<|begin|><|start_header_id|>system<|end_header_id|>\n\nToday Date: 10 Apr 2025\n\nBe brief.<|eot_id|>"
        f"<|start_header_id|>user<|end_header_id|>\n\n{QUESTION}<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert prompt_text(tokenizer, template, QUESTION) == expected
    encoded = encode(tokenizer, template, QUESTION, ANSWER)
    eot = tokenizer.convert_tokens_to_ids("<|eot_id|>")
    whole = tokenizer(expected + ANSWER + "<|eot_id|>", add_special_tokens=False)["input_ids"]
    assert [*encoded.prompt, *encoded.answer] == whole
    assert encoded.answer[-1] == eot != tokenizer.eos_token_id
    assert encoded.prompt.count(tokenizer.bos_token_id) == 1
    assert stop_ids(tokenizer) == {eot, tokenizer.eos_token_id}


def test_chat_prompts_do_not_change_from_day_to_day() -> None:
    tokenizer = byte_level(chat=LLAMA_3)
    assert "\n\nToday Date: 26 Jul 2024\n\n" in prompt_text(tokenizer, PromptTemplate(kind="chat"), "q")
    tokenizer.chat_template = "{{ strftime_now('%Y') }}{% for m in messages %} {{ m['content'] }}:{% endfor %}"
    assert prompt_text(tokenizer, PromptTemplate(kind="chat"), "q") == "26 Jul 2024 q:"
    assert prompt_text(tokenizer, PromptTemplate(kind="chat", date_string="May"), "q") == "May q:"


def test_llama_2_chat_puts_the_space_into_the_answer() -> None:
    tokenizer = sentencepiece_like(LLAMA_2)
    encoded = encode(tokenizer, PromptTemplate(kind="chat"), QUESTION, ANSWER)
    assert tokenizer.decode(encoded.prompt) == f"<s> [INST] {QUESTION} [/INST]"
    joint = tokenizer(f"x {ANSWER}", add_special_tokens=False)["input_ids"]
    start = len(tokenizer("x", add_special_tokens=False)["input_ids"])
    assert list(encoded.answer) == [*joint[start:], tokenizer.eos_token_id]


@pytest.mark.parametrize(
    ("tokenizer", "template", "opening"),
    [
        (byte_level(bos=True), PromptTemplate(), "<|begin|>Question:"),
        (byte_level(), PromptTemplate(question_prefix=""), ""),
        (byte_level(chat=CHATML), PromptTemplate(kind="chat"), "<|im_start|>user\n"),
        (sentencepiece_like(LLAMA_2), PromptTemplate(kind="chat"), "<s> [INST]"),
        (
            byte_level(bos=True, chat=LLAMA_3),
            PromptTemplate(kind="chat", system_prompt="Be brief.", date_string="10 Apr 2025"),
            "<|begin|><|start_header_id|>system<|end_header_id|>\n\nToday Date: 10 Apr 2025\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\n",
        ),
    ],
    ids=["qa", "empty", "chatml", "llama-2", "llama-3"],
)
def test_an_opening_is_what_stands_before_each_question(tokenizer, template, opening) -> None:
    """White space before a question belongs to it: each prompt begins with the tokens of the rest."""
    found = encode_opening(tokenizer, template)
    assert tokenizer.decode(found) == opening
    for question in (QUESTION, "2 + 2?"):
        assert encode_prompts([question], tokenizer, template)[0][: len(found)] == found


def test_chatml_end_of_turn() -> None:
    tokenizer = byte_level(chat=CHATML)
    encoded = encode(tokenizer, PromptTemplate(kind="chat"), QUESTION, ANSWER)
    assert tokenizer.decode(encoded.prompt) == f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(encoded.answer) == ANSWER + "<|im_end|>"


def test_a_chat_template_without_end_token_falls_back_to_eos() -> None:
    tokenizer = byte_level(chat="{% for m in messages %}{{ m['content'] }}:{% endfor %}")
    assert encode(tokenizer, PromptTemplate(kind="chat"), "q", "a").answer[-1] == tokenizer.eos_token_id


def test_templates_that_do_not_fit_the_tokenizer() -> None:
    with pytest.raises(TemplateError, match="unknown template kind 'alpaca'"):
        PromptTemplate(kind="alpaca")
    with pytest.raises(TemplateError, match="no chat template"):
        encode(byte_level(), PromptTemplate(kind="chat"), "q", "a")
    refusing = byte_level(chat="{{ raise_exception('System role not supported') }}")
    with pytest.raises(TemplateError, match="System role not supported"):
        encode(refusing, PromptTemplate(kind="chat", system_prompt="s"), "q", "a")
    endless = byte_level()
    endless.eos_token = None
    with pytest.raises(TemplateError, match="no EOS"):
        encode(endless, PromptTemplate(), "q", "a")
    with pytest.raises(TemplateError, match="no EOS"):
        stop_ids(endless)


def test_stop_ids_join_tokenizer_and_model(plain) -> None:
    model = SimpleNamespace(
        generation_config=SimpleNamespace(eos_token_id=[7, 9]), config=SimpleNamespace(eos_token_id=11)
    )
    assert stop_ids(plain, model) == {7, 9, 11, plain.eos_token_id}


def records() -> list[Record]:
    answers = ["Lisbon.", ANSWER, ANSWER * 6]
    return [Record(f"r{i}", QUESTION, answer, "s") for i, answer in enumerate(answers)]


def test_the_tokenizer_does_not_speak_of_its_own_limit(plain, monkeypatch) -> None:
    told: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = told.append  # type: ignore[method-assign]
    monkeypatch.setattr(plain, "model_max_length", 4)
    logging.getLogger("transformers").addHandler(handler)
    try:
        encode_all(records(), plain, PromptTemplate(), max_length=1000)
    finally:
        logging.getLogger("transformers").removeHandler(handler)
    assert not told


def test_too_long_is_an_error_that_names_every_record(plain) -> None:
    full = [encode(plain, PromptTemplate(), r.question, r.answer) for r in records()]
    lengths = [len(e.prompt) + len(e.answer) for e in full]
    assert encode_all(records(), plain, PromptTemplate(), max_length=lengths[2]) == (full, 0)
    with pytest.raises(DataError) as caught:
        encode_all(records(), plain, PromptTemplate(), max_length=lengths[1] - 1)
    prompt = len(full[0].prompt)
    assert list(caught.value.problems) == [f"r{i}: {lengths[i]} tokens ({prompt} of them the prompt)" for i in (1, 2)]


def test_truncation_is_counted_and_drops_the_end_token(plain) -> None:
    full = [encode(plain, PromptTemplate(), r.question, r.answer) for r in records()]
    limit = len(full[1].prompt) + len(full[1].answer)
    encoded, count = encode_all(records(), plain, PromptTemplate(), max_length=limit, on_overflow="truncate")
    assert count == 1 and encoded[:2] == full[:2]
    assert encoded[2] == Encoded(full[2].prompt, full[2].answer[: len(full[1].answer)], True)
    assert plain.eos_token_id not in encoded[2].answer
    with pytest.raises(DataError, match="r0: the prompt alone has"):
        encode_all(records(), plain, PromptTemplate(), max_length=len(full[0].prompt), on_overflow="truncate")
    with pytest.raises(DataError, match="unknown on_overflow 'ignore'"):
        encode(plain, PromptTemplate(), "q", "a", on_overflow="ignore")


def test_batches_equal_single_encoding(plain) -> None:
    pairs = [(r.question, r.answer) for r in records()] * 2 + [("Where?", ANSWER), ("Where?", " spaced"), ("x", "\n\n")]
    template = PromptTemplate()
    assert encode_pairs(pairs, plain, template) == [encode(plain, template, q, a) for q, a in pairs]
    assert encode_pairs([], plain, template) == []
