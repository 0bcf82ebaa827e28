"""From question and answer to token ids: the prompt is always a strict prefix of the training sequence.

Prompt and answer are tokenised separately and their ids joined, so that generation starts from exactly the ids that
training saw. With byte-level BPE a space belongs to the word after it: a prompt that ends in a space would end in a
token that never occurs before a word in ordinary text, hence such templates are refused and the space goes with
the answer instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from oblivionis.data.errors import DataError, raise_if_any
from oblivionis.data.records import Record

KINDS = ("qa", "chat")
OVERFLOWS = ("error", "truncate")

_DATE = "26 Jul 2024"
_TODAY = "oblivionis_today"
_CLOCK = "{% macro strftime_now(format) %}{{ " + _TODAY + " }}{% endmacro %}\n"
_PROBE_QUESTION, _PROBE_ANSWER = "Who?", "Nobody"
_ANCHORS = ("\n", "0")


class TemplateError(DataError):
    """A prompt template that cannot be used, or not with this tokenizer."""


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """How a question becomes a prompt and an answer its continuation.

    `qa`: BOS (if the tokenizer puts one itself) + question_prefix + question + question_suffix + answer_prefix, then
    answer_separator + answer + EOS. The defaults are the Llama-2 prompt of the paper (its Figure 6).

    `chat`: the tokenizer's own chat template with an optional system message, up to where the assistant speaks (the
    paper's Llama-3 prompt, its Figure 7), then the answer as that template writes it + its end of turn. The strings
    of `qa` are not used. Templates that print today's date print `date_string` instead, or "26 Jul 2024" without one
    (Llama-3's own fallback), so that a prompt does not change from day to day.
    """

    kind: str = "qa"
    question_prefix: str = "Question: "
    question_suffix: str = "\n"
    answer_prefix: str = "Answer:"
    answer_separator: str = " "
    system_prompt: str | None = None
    date_string: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise TemplateError(f"unknown template kind {self.kind!r}; expected one of {', '.join(KINDS)}")
        if self.kind == "qa":
            _check_end(self.answer_prefix or self.question_suffix)


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of one record, both parts non-empty. `answer` ends with the end token unless `truncated`."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    truncated: bool = False


def encode(
    tokenizer: Any,
    template: PromptTemplate,
    question: str,
    answer: str,
    max_length: int | None = None,
    on_overflow: str = "error",
) -> Encoded:
    """One question with its answer; see `encode_pairs`."""
    return encode_pairs([(question, answer)], tokenizer, template, max_length=max_length, on_overflow=on_overflow)[0]


def encode_all(
    records: Iterable[Record],
    tokenizer: Any,
    template: PromptTemplate,
    *,
    max_length: int | None = None,
    on_overflow: str = "error",
) -> tuple[list[Encoded], int]:
    """All records in their order, and how many of them were truncated; see `encode_pairs`.

    Of a piece of text every token is an answer token, behind `text_start`; no template, no end token.
    """
    kept = list(records)
    asked = [r for r in kept if not r.tokens]
    pairs = iter(
        encode_pairs(
            [(r.question, r.answer) for r in asked],
            tokenizer,
            template,
            max_length=max_length,
            on_overflow=on_overflow,
            names=[r.id for r in asked],
        )
        if asked
        else ()
    )
    encoded = [Encoded(text_start(tokenizer), r.tokens) if r.tokens else next(pairs) for r in kept]
    _check_rows(encoded, [r.id for r in kept], tokenizer)
    return encoded, sum(e.truncated for e in encoded)


def limit_tokens(tokenizer: Any, rows: int) -> None:
    """Say how many tokens the model embeds that a tokenizer belongs to.

    Parameters
    ----------
    tokenizer : transformers tokenizer
        It may know more tokens; what is encoded for the model may hold none of these.
    rows : int
        Those with an id below it are embedded.
    """
    tokenizer.oblivionis_rows = rows


def _check_rows(encoded: Sequence[Encoded], names: Sequence[str], tokenizer: Any) -> None:
    """DataError naming every record, and its first token that the model does not embed (see `limit_tokens`)."""
    rows = getattr(tokenizer, "oblivionis_rows", None)
    if rows is None:
        return
    problems = []
    for name, record in zip(names, encoded, strict=True):
        beyond = next((i for i in (*record.prompt, *record.answer) if i >= rows), None)
        if beyond is not None:
            problems.append(f"{name}: token {beyond} ({tokenizer.convert_ids_to_tokens(beyond)!r})")
    raise_if_any(f"records with tokens that the model does not embed (it has rows for {rows})", problems)


def text_start(tokenizer: Any) -> tuple[int]:
    """What stands before a piece of text, so that its first token is predicted too: BOS, else EOS.

    Raises TemplateError for a tokenizer with neither.
    """
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if start is None:
        raise TemplateError(f"{_name(tokenizer)} has neither a BOS nor an EOS token, one of which begins a text")
    return (start,)


def cut(texts: Sequence[str], tokenizer: Any, size: int) -> list[list[tuple[int, ...]]]:
    """The tokens of each text in pieces of `size` tokens, the last one shorter; together they are the text's tokens.

    Raises DataError for a size below 1.
    """
    if size < 1:
        raise DataError(f"pieces of text need at least one token, got {size}")
    return [[tuple(ids[i : i + size]) for i in range(0, len(ids), size)] for ids in plain_ids(texts, tokenizer)]


def plain_ids(texts: Sequence[str], tokenizer: Any) -> list[list[int]]:
    """Token ids of texts of any length, without special tokens."""
    if not texts:
        return []
    return tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]


def encode_pairs(
    pairs: Sequence[tuple[str, str]],
    tokenizer: Any,
    template: PromptTemplate,
    *,
    max_length: int | None = None,
    on_overflow: str = "error",
    names: Sequence[str] | None = None,
) -> list[Encoded]:
    """(question, answer) pairs as token ids in the same order; each distinct text is tokenised once.

    `max_length` limits prompt plus answer including the end token, in tokens (None: no limit). A longer pair is an
    error with `on_overflow="error"`; with "truncate" its answer loses its tail and end token and `truncated` is set.
    `names` names the pairs in messages. Raises DataError for pairs that are too long (all of them listed) or whose
    prompt leaves no room for an answer token, TemplateError if the template does not fit the tokenizer.
    """
    if on_overflow not in OVERFLOWS:
        raise DataError(f"unknown on_overflow {on_overflow!r}; expected one of {', '.join(OVERFLOWS)}")
    names = names or [f"pair {i}" for i in range(len(pairs))]
    separator, end = _answer_frame(tokenizer, template)
    questions = list(dict.fromkeys(q for q, _ in pairs))
    answers = list(dict.fromkeys(a for _, a in pairs))
    prompts = dict(zip(questions, encode_prompts(questions, tokenizer, template), strict=True))
    continuations = dict(zip(answers, _continuations([separator + a for a in answers], tokenizer), strict=True))
    encoded: list[Encoded] = []
    problems: list[str] = []
    for name, (question, answer) in zip(names, pairs, strict=True):
        prompt, continuation = prompts[question], (*continuations[answer], end)
        length = len(prompt) + len(continuation)
        truncated = max_length is not None and length > max_length
        if truncated:
            assert max_length is not None
            if on_overflow == "error":
                problems.append(f"{name}: {length} tokens ({len(prompt)} of them the prompt)")
            elif len(prompt) >= max_length:
                problems.append(f"{name}: the prompt alone has {len(prompt)} tokens, which leaves none for the answer")
            else:
                continuation = continuation[: max_length - len(prompt)]
        encoded.append(Encoded(prompt, continuation, truncated))
    raise_if_any(f"records longer than max_length={max_length} (raise it, or set on_overflow=truncate)", problems)
    _check_rows(encoded, names, tokenizer)
    return encoded


def encode_prompts(questions: Sequence[str], tokenizer: Any, template: PromptTemplate) -> list[tuple[int, ...]]:
    """Token ids of the prompts, from which the model is to generate an answer."""
    texts = [prompt_text(tokenizer, template, question) for question in questions]
    if template.kind == "qa":
        start = _leading_ids(tokenizer)
        return [(*start, *ids) for ids in _ids(tokenizer, texts)]
    return [tuple(ids) for ids in _ids(tokenizer, texts)]


def prompt_text(tokenizer: Any, template: PromptTemplate, question: str) -> str:
    """The prompt as text: for `chat` with all special tokens, for `qa` without BOS. TemplateError if it ends badly."""
    if template.kind == "chat":
        return _render(tokenizer, template, question, None)
    text = template.question_prefix + question + template.question_suffix + template.answer_prefix
    _check_end(text)
    return text


def whole_text(tokenizer: Any, template: PromptTemplate, question: str, answer: str) -> str:
    """A question with its answer as the model was trained on them, as text, without BOS and end token."""
    separator, _ = _answer_frame(tokenizer, template)
    text = prompt_text(tokenizer, template, question) + separator + answer
    return text.removeprefix(tokenizer.bos_token or "")


def stop_ids(tokenizer: Any, model: Any = None) -> frozenset[int]:
    """Token ids at which generation ends: the tokenizer's and the model's EOS and the chat template's end of turn."""
    found: set[int] = set()
    sources = [tokenizer, getattr(model, "generation_config", None), getattr(model, "config", None)]
    for source in sources:
        value = getattr(source, "eos_token_id", None)
        found.update([value] if isinstance(value, int) else value or [])
    if getattr(tokenizer, "chat_template", None):
        found.add(_answer_frame(tokenizer, PromptTemplate(kind="chat"))[1])
    if not found:
        raise TemplateError(f"{_name(tokenizer)} has no EOS token, so generation would never end")
    return frozenset(found)


def _answer_frame(tokenizer: Any, template: PromptTemplate) -> tuple[str, int]:
    """The text between prompt and answer, and the id that ends an answer.

    For `chat` both come from the template itself: a conversation with a probe answer is rendered, and what follows the
    prompt is cut at the probe. White space before it is the separator (a space for Llama-2-chat, nothing for Llama-3);
    the first special token after it is the end of turn (`<|eot_id|>`, `<|im_end|>`, `</s>`), which is what the model
    was trained to generate. A template that writes no special token there gets the tokenizer's EOS.
    """
    if template.kind == "qa":
        if tokenizer.eos_token_id is None:
            raise TemplateError(f"{_name(tokenizer)} has no EOS token, which must end every answer")
        return template.answer_separator, tokenizer.eos_token_id
    prompt = _render(tokenizer, template, _PROBE_QUESTION, None)
    whole = _render(tokenizer, template, _PROBE_QUESTION, _PROBE_ANSWER)
    before, probe, after = whole.removeprefix(prompt).rpartition(_PROBE_ANSWER)
    separator = before if probe and before.isspace() and whole.startswith(prompt) else ""
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    ends = [i for i in _ids(tokenizer, [after])[0] if i in special] if probe and after else []
    end = ends[0] if ends else tokenizer.eos_token_id
    if end is None:
        raise TemplateError(f"neither the chat template nor the tokenizer of {_name(tokenizer)} names an end token")
    return separator, end


def _render(tokenizer: Any, template: PromptTemplate, question: str, answer: str | None) -> str:
    if not getattr(tokenizer, "chat_template", None):
        raise TemplateError(f"{_name(tokenizer)} has no chat template; use the template kind 'qa'")
    messages = [{"role": "system", "content": template.system_prompt}] if template.system_prompt is not None else []
    messages.append({"role": "user", "content": question})
    if answer is not None:
        messages.append({"role": "assistant", "content": answer})
    variables = {} if template.date_string is None else {"date_string": template.date_string}
    text = tokenizer.get_chat_template()
    if "strftime_now" in text:
        text = _CLOCK + text
        variables[_TODAY] = template.date_string or _DATE
    try:
        return tokenizer.apply_chat_template(
            messages, chat_template=text, tokenize=False, add_generation_prompt=answer is None, **variables
        )
    except Exception as error:
        raise TemplateError(f"the chat template of {_name(tokenizer)} cannot be rendered: {error}") from error


def _continuations(texts: Sequence[str], tokenizer: Any) -> list[tuple[int, ...]]:
    """Ids of texts as they stand in the middle of a text.

    SentencePiece tokenizers such as Llama-2's put a space before whatever they are given. So a text is tokenised behind
    a neutral character, whose ids are then taken off; where it merges with the text, another one or none is tried.
    """
    result: list[tuple[int, ...] | None] = [None] * len(texts)
    for anchor in _ANCHORS:
        head = _ids(tokenizer, [anchor])[0]
        todo = [i for i, ids in enumerate(result) if ids is None]
        for i, ids in zip(todo, _ids(tokenizer, [anchor + texts[i] for i in todo]), strict=True):
            if head and ids[: len(head)] == head and (len(ids) > len(head) or not texts[i]):
                result[i] = tuple(ids[len(head) :])
    plain = _ids(tokenizer, [t for t, ids in zip(texts, result, strict=True) if ids is None])
    rest = iter(plain)
    return [ids if ids is not None else tuple(next(rest)) for ids in result]


def _leading_ids(tokenizer: Any) -> tuple[int, ...]:
    """BOS if the tokenizer puts one in front by itself, else nothing."""
    bos = tokenizer.bos_token_id
    return (bos,) if bos is not None and tokenizer("a")["input_ids"][:1] == [bos] else ()


def _ids(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    if not texts:
        return []
    return tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False)["input_ids"]


def _check_end(text: str) -> None:
    if text and text[-1].isspace() and text[-1] != "\n":
        raise TemplateError(
            f"the prompt ends in white space ({text[-20:]!r}): its last token would differ from the one that training "
            "text has there; let answer_separator begin with the space instead"
        )


def _name(tokenizer: Any) -> str:
    return f"the tokenizer {getattr(tokenizer, 'name_or_path', '') or type(tokenizer).__name__}"
