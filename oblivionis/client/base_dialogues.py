"""Dialogues that a model writes by itself: questions that it asks after the beginning of a prompt, and its answers.

They hold what the model can do without anybody's data. A model that follows a chat template asks as people asked it
(Xu et al. 2024, Magpie); one that continues texts asks as in its template.
"""

from __future__ import annotations

from evaluation.engine.fused_lora import fused_lora
from evaluation.engine.models import evaluation_mode
from evaluation.engine.sampling import Rule, sample
from evaluation.engine.sequences import TokenSequence
from oblivionis.data.chat_template import TemplateError
from oblivionis.data.tokenize import encode_opening, encode_prompts
from oblivionis.measures.questions import context_length
from oblivionis.models.assembly import Assembled

QUESTION_TOKENS, ANSWER_TOKENS = 32, 40
"""Most tokens of a question and of an answer; a longer one is cut."""
_RULE = Rule(temperature=0.7)


def base_dialogues(assembled: Assembled, count: int, seed: int) -> list[TokenSequence]:
    """Let the model as it is now write up to `count` dialogues.

    Fewer come back where it ends a question or an answer at once, and none where its context is too short for them, or
    nothing stands before a question in its prompts.

    Parameters
    ----------
    assembled : Assembled
    count : int, at least 1
    seed : int

    Returns
    -------
    list of TokenSequence
    """
    model, tokenizer, template = assembled.model, assembled.tokenizer, assembled.template
    room = context_length(model) - QUESTION_TOKENS - ANSWER_TOKENS
    given = {"stop_ids": assembled.stop_ids, "pad_id": tokenizer.pad_token_id or 0, "rule": _RULE}
    opening = encode_opening(tokenizer, template)
    if not opening or len(opening) > room:
        return []
    with fused_lora(model), evaluation_mode(model):
        (asked,) = sample(model, [opening], count, max_new_tokens=QUESTION_TOKENS, seed=seed, **given)
        lines = [tokenizer.decode(question, skip_special_tokens=True).strip() for question in asked]
        prompts = [prompt for line in lines for prompt in _prompt(line.partition("\n")[0].strip(), assembled)]
        prompts = [prompt for prompt in prompts if len(prompt) <= room + QUESTION_TOKENS]
        answers = sample(model, prompts, 1, max_new_tokens=ANSWER_TOKENS, seed=seed + 1, **given) if prompts else []
    return [TokenSequence(p, tuple(a)) for p, (a,) in zip(prompts, answers, strict=True) if a]


def _prompt(question: str, assembled: Assembled) -> list[tuple[int, ...]]:
    """The question as a prompt; none where it is empty, or the template lays it out otherwise than others."""
    try:
        return encode_prompts([question], assembled.tokenizer, assembled.template) if question else []
    except TemplateError:
        return []
