"""From question and answer to token ids: the prompt is always a strict prefix of the training sequence.

Prompt and answer are tokenised separately and their ids joined, so that generation starts from exactly the ids that
training saw. With byte-level BPE a space belongs to the word after it: a prompt that ends in a space would end in a
token that never occurs before a word in ordinary text, hence such templates are refused and the space goes with
the answer instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from oblivionis.config.template_arguments import fault_of
from oblivionis.data.chat_template import TemplateError, name_of, render, variables_of
from oblivionis.data.errors import DataError, raise_if_any
from oblivionis.data.records import Record

KINDS = ("qa", "chat")
OVERFLOWS = ("error", "truncate")

_DATE = "26 Jul 2024"
_PROBE_QUESTION, _PROBE_ANSWER = "Qx7Kd what Vj2", "Aw5Rm that Zt8"
"""Of letters and digits that no template writes by itself."""
_ANCHORS = ("\n", "0")
_SPACES = " \t\u00a0"


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """How a question becomes a prompt and an answer its continuation.

    `qa`: BOS (if the tokenizer puts one itself) + question_prefix + question + question_suffix + answer_prefix, then
    answer_separator + answer + EOS. The defaults are the Llama-2 prompt of the paper (its Figure 6).

    `chat`: the tokenizer's own chat template with an optional system message, up to where the answer stands in a
    finished dialogue (the paper's Llama-3 prompt, its Figure 7), then the answer as that template writes it + its end
    of turn. What the template writes between question and answer, such as an empty think block or the header of a
    channel, is prompt.

    Attributes
    ----------
    kind : {"qa", "chat"}
    question_prefix, question_suffix, answer_prefix, answer_separator : str
        Of `qa`; `chat` does not use them.
    system_prompt : str, optional
        The system message of `chat`.
    date_string : str, optional
        Printed by templates that print today's date; None: "26 Jul 2024" (Llama-3's own fallback), so that a prompt
        does not change from day to day.
    arguments : mapping
        Further variables of the chat template by name, such as `enable_thinking`.

    Raises
    ------
    TemplateError
        For another kind, an argument that no template can take, or a prompt of `qa` that ends in a space.
    """

    kind: str = "qa"
    question_prefix: str = "Question: "
    question_suffix: str = "\n"
    answer_prefix: str = "Answer:"
    answer_separator: str = " "
    system_prompt: str | None = None
    date_string: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise TemplateError(f"unknown template kind {self.kind!r}; expected one of {', '.join(KINDS)}")
        for name, value in self.arguments.items():
            if fault := fault_of(name, value):
                raise TemplateError(f"model.template.arguments.{name}: {fault[0]}; expected {fault[1]}")
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
    _check_fit(encoded, [r.id for r in kept], tokenizer)
    return encoded, sum(e.truncated for e in encoded)


def limit_tokens(tokenizer: Any, *, rows: int | None = None, positions: int | None = None) -> None:
    """Say what the model that a tokenizer belongs to can be given.

    Parameters
    ----------
    tokenizer : transformers tokenizer
        What is encoded for the model is held to these limits.
    rows : int, optional
        Tokens with an id below it are embedded.
    positions : int, optional
        So many positions the model learned, one by one: no record may be longer.
    """
    tokenizer.oblivionis_limits = (rows, positions)


def _check_fit(encoded: Sequence[Encoded], names: Sequence[str], tokenizer: Any) -> None:
    """DataError naming every record that the model cannot be given (see `limit_tokens`)."""
    rows, positions = getattr(tokenizer, "oblivionis_limits", (None, None))
    beyond, longer = [], []
    for name, record in zip(names, encoded, strict=True):
        ids = (*record.prompt, *record.answer)
        if rows is not None and max(ids) >= rows:
            first = next(i for i in ids if i >= rows)
            beyond.append(f"{name}: token {first} ({tokenizer.convert_ids_to_tokens(first)!r})")
        if positions is not None and len(ids) > positions:
            longer.append(f"{name}: {len(ids)} tokens")
    raise_if_any(f"records with tokens that the model does not embed (it has rows for {rows})", beyond)
    raise_if_any(
        f"records longer than the {positions} positions that the model learned (shorten them, or set model.max_length="
        f"{positions} and model.on_overflow=truncate)",
        longer,
    )


def text_start(tokenizer: Any) -> tuple[int]:
    """What stands before a piece of text, so that its first token is predicted too: BOS, else EOS.

    Raises TemplateError for a tokenizer with neither.
    """
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if start is None:
        raise TemplateError(f"{name_of(tokenizer)} has neither a BOS nor an EOS token, one of which begins a text")
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
    layout = layout_of(tokenizer, template)
    questions = list(dict.fromkeys(q for q, _ in pairs))
    prompts = dict(zip(questions, _encoded_prompts(questions, tokenizer, template, layout), strict=True))
    written = _written(pairs, names, tokenizer, template, layout)
    texts = list(dict.fromkeys(written))
    continuations = dict(zip(texts, _continuations([layout.separator + t for t in texts], tokenizer), strict=True))
    encoded: list[Encoded] = []
    problems: list[str] = []
    for name, (question, _), text in zip(names, pairs, written, strict=True):
        prompt, continuation = prompts[question], (*continuations[text], layout.end)
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
    _check_fit(encoded, names, tokenizer)
    return encoded


def encode_prompts(questions: Sequence[str], tokenizer: Any, template: PromptTemplate) -> list[tuple[int, ...]]:
    """Token ids of the prompts, from which the model is to generate an answer."""
    return _encoded_prompts(questions, tokenizer, template, layout_of(tokenizer, template))


def encode_opening(tokenizer: Any, template: PromptTemplate) -> tuple[int, ...]:
    """Token ids of what stands before every question, without white space that would be tokenised with it."""
    before, _, _ = prompt_text(tokenizer, template, _PROBE_QUESTION).rpartition(_PROBE_QUESTION)
    start = _leading_ids(tokenizer) if template.kind == "qa" else ()
    return (*start, *plain_ids([before.rstrip(_SPACES)], tokenizer)[0])


def prompt_text(tokenizer: Any, template: PromptTemplate, question: str) -> str:
    """The prompt as text: for `chat` with all special tokens, for `qa` without BOS. TemplateError if it ends badly."""
    return _prompt(tokenizer, template, layout_of(tokenizer, template), question)


def answer_text(tokenizer: Any, template: PromptTemplate, question: str, answer: str) -> str:
    """The answer as it stands behind its prompt, with what separates the two, without the end token."""
    layout = layout_of(tokenizer, template)
    (text,) = _written([(question, answer)], ["the answer"], tokenizer, template, layout)
    return layout.separator + text


def whole_text(tokenizer: Any, template: PromptTemplate, question: str, answer: str) -> str:
    """A question with its answer as the model was trained on them, as text, without BOS and end token."""
    layout = layout_of(tokenizer, template)
    (text,) = _written([(question, answer)], ["the answer"], tokenizer, template, layout)
    whole = _prompt(tokenizer, template, layout, question) + layout.separator + text
    return whole.removeprefix(tokenizer.bos_token or "")


def stop_ids(tokenizer: Any, model: Any = None, template: PromptTemplate | None = None) -> frozenset[int]:
    """Token ids at which generation ends: the tokenizer's and the model's EOS and the chat template's end of turn.

    A chat template that cannot be used is an error only where `template` is of the kind `chat`.
    """
    found: set[int] = set()
    sources = [tokenizer, getattr(model, "generation_config", None), getattr(model, "config", None)]
    for source in sources:
        value = getattr(source, "eos_token_id", None)
        found.update([value] if isinstance(value, int) else value or [])
    if getattr(tokenizer, "chat_template", None):
        chat = template if template is not None and template.kind == "chat" else PromptTemplate(kind="chat")
        try:
            found.add(layout_of(tokenizer, chat).end)
        except TemplateError:
            if chat is template:
                raise
    if not found:
        raise TemplateError(f"{name_of(tokenizer)} has no EOS token, so generation would never end")
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class Layout:
    """What a template writes around question and answer.

    asking: behind a question that waits for an answer; header: between a question and its answer, up to `separator`,
    which is tokenised with the answer; closing: behind an answer; end: the token that ends an answer.
    """

    asking: str
    header: str
    separator: str
    closing: str
    end: int


def layout_of(tokenizer: Any, template: PromptTemplate) -> Layout:
    """What of a dialogue is prompt and what is answer.

    For `chat` it is read from a dialogue of a probe question and a probe answer that the template writes. All text
    between the two belongs to the prompt, also where the prompt for generation ends before it. Only white space that
    would be tokenised with the answer belongs to the answer: a space or tab right before it, and all of the text that
    the prompt for generation does not have, if that is white space (a space for Llama-2-chat, nothing for Llama-3).
    Raises TemplateError where the template does not fit the tokenizer, or does not write question and answer as they
    are.
    """
    if template.kind == "qa":
        if tokenizer.eos_token_id is None:
            raise TemplateError(f"{name_of(tokenizer)} has no EOS token, which must end every answer")
        asking = template.question_suffix + template.answer_prefix
        return Layout(asking, asking, template.answer_separator, "", tokenizer.eos_token_id)
    asked = _asked(tokenizer, template)
    whole = _dialogue(tokenizer, template, _PROBE_QUESTION, _PROBE_ANSWER)
    _, found, asking = asked.rpartition(_PROBE_QUESTION)
    opened, answered, closing = whole.rpartition(_PROBE_ANSWER)
    _, written, header = opened.rpartition(_PROBE_QUESTION)
    if not (found and answered and written) or _PROBE_ANSWER in header:
        raise TemplateError(
            f"the chat template of {name_of(tokenizer)} does not write a question and then its answer, each once and "
            "as it is; use the template kind 'qa'"
        )
    missing = header.removeprefix(asking)
    separator = missing if missing.isspace() else header[len(header.rstrip(_SPACES)) :]
    return Layout(asking, header.removesuffix(separator), separator, closing, _end(tokenizer, closing))


def _end(tokenizer: Any, closing: str) -> int:
    """The first special token behind an answer (`<|eot_id|>`, `<|im_end|>`, `</s>`), else the tokenizer's EOS."""
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    ends = [i for i in plain_ids([closing], tokenizer)[0] if i in special] if closing else []
    end = ends[0] if ends else tokenizer.eos_token_id
    if end is None:
        raise TemplateError(f"neither the chat template nor the tokenizer of {name_of(tokenizer)} names an end token")
    return end


def _asked(tokenizer: Any, template: PromptTemplate) -> str:
    """The probe question as the chat template asks it. TemplateError where it does not use all that it is given."""
    known = variables_of(tokenizer) if template.arguments else frozenset()
    for name in template.arguments:
        if name not in known:
            names = f"it knows {', '.join(sorted(known))}" if known else "it takes none"
            raise TemplateError(
                f"model.template.arguments.{name}: no variable of the chat template of {name_of(tokenizer)}; {names}"
            )
    if template.system_prompt is None:
        return _dialogue(tokenizer, template, _PROBE_QUESTION)
    without = _dialogue(tokenizer, replace(template, system_prompt=None), _PROBE_QUESTION)
    try:
        asked = _dialogue(tokenizer, template, _PROBE_QUESTION)
    except TemplateError as error:
        raise TemplateError(f"model.template.system_prompt: {error}; without a system message it can") from error
    if asked == without and template.system_prompt.strip():
        raise TemplateError(
            f"model.template.system_prompt: the chat template of {name_of(tokenizer)} leaves the system message out"
        )
    return asked


def _dialogue(tokenizer: Any, template: PromptTemplate, question: str, answer: str | None = None) -> str:
    """What the chat template makes of a question that waits for its answer, or of both."""
    messages = [{"role": "system", "content": template.system_prompt}] if template.system_prompt is not None else []
    messages.append({"role": "user", "content": question})
    if answer is not None:
        messages.append({"role": "assistant", "content": answer})
    date = template.date_string
    variables = {**template.arguments, "strftime_now": lambda _: date or _DATE}
    variables |= {} if date is None else {"date_string": date}
    return render(tokenizer, messages, variables, add_generation_prompt=answer is None)


def _prompt(tokenizer: Any, template: PromptTemplate, layout: Layout, question: str) -> str:
    if template.kind == "qa":
        text = template.question_prefix + question + layout.header
        _check_end(text)
        return text
    text = _dialogue(tokenizer, template, question)
    if not text.endswith(layout.asking):
        raise TemplateError(
            f"the chat template of {name_of(tokenizer)} lays out {question[:40]!r} otherwise than other questions; "
            "change its words or use the template kind 'qa'"
        )
    return text.removesuffix(layout.asking) + layout.header


def _encoded_prompts(
    questions: Sequence[str], tokenizer: Any, template: PromptTemplate, layout: Layout
) -> list[tuple[int, ...]]:
    start = _leading_ids(tokenizer) if template.kind == "qa" else ()
    texts = [_prompt(tokenizer, template, layout, question) for question in questions]
    return [(*start, *ids) for ids in plain_ids(texts, tokenizer)]


def _written(
    pairs: Sequence[tuple[str, str]],
    names: Sequence[str],
    tokenizer: Any,
    template: PromptTemplate,
    layout: Layout,
) -> list[str]:
    """The answers as the template writes them behind their questions: without their outer white space, where it does.

    Raises DataError with all pairs that it changes otherwise: a template that looks for `</think>` in an answer, say.
    """
    if template.kind == "qa":
        return [answer for _, answer in pairs]
    texts: list[str] = []
    problems: list[str] = []
    for name, (question, answer) in zip(names, pairs, strict=True):
        whole = _dialogue(tokenizer, template, question, answer)
        forms = (answer, answer.strip(), answer.lstrip(), answer.rstrip(), answer.strip("\n"), answer.lstrip("\n"))
        before = layout.header + layout.separator
        text = next((form for form in forms if whole.endswith(before + form + layout.closing)), None)
        texts.append(text or "")
        if text is None:
            problems.append(f"{name}: {answer[:60]!r}")
    raise_if_any(f"answers that the chat template of {name_of(tokenizer)} does not write as they are", problems)
    return texts


def _continuations(texts: Sequence[str], tokenizer: Any) -> list[tuple[int, ...]]:
    """Ids of texts as they stand in the middle of a text.

    SentencePiece tokenizers such as Llama-2's put a space before every text. So a text is tokenised behind
    a neutral character, whose ids are then taken off; where it merges with the text, another one or none is tried.
    """
    result: list[tuple[int, ...] | None] = [None] * len(texts)
    for anchor in _ANCHORS:
        head = plain_ids([anchor], tokenizer)[0]
        todo = [i for i, ids in enumerate(result) if ids is None]
        for i, ids in zip(todo, plain_ids([anchor + texts[i] for i in todo], tokenizer), strict=True):
            if head and ids[: len(head)] == head and (len(ids) > len(head) or not texts[i]):
                result[i] = tuple(ids[len(head) :])
    plain = plain_ids([t for t, ids in zip(texts, result, strict=True) if ids is None], tokenizer)
    rest = iter(plain)
    return [ids if ids is not None else tuple(next(rest)) for ids in result]


def _leading_ids(tokenizer: Any) -> tuple[int, ...]:
    """BOS if the tokenizer puts one in front by itself, else nothing."""
    bos = tokenizer.bos_token_id
    return (bos,) if bos is not None and tokenizer("a")["input_ids"][:1] == [bos] else ()


def _check_end(text: str) -> None:
    if text and text[-1].isspace() and text[-1] != "\n":
        raise TemplateError(
            f"the prompt ends in white space ({text[-20:]!r}): its last token would differ from the one that training "
            "text has there; let answer_separator begin with the space instead"
        )
