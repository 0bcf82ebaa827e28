"""What a model says by itself: prompts as records have them, and answers that it can give."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from evaluation.engine.sequences import TokenSequence
from oblivionis.client import base_dialogues as module
from oblivionis.client.base_dialogues import ANSWER_TOKENS, QUESTION_TOKENS, base_dialogues
from oblivionis.client.worker import Worker
from oblivionis.config import compose as configuration
from oblivionis.data.tokenize import encode_opening, encode_prompts
from oblivionis.models.assembly import Assembled


@pytest.fixture(scope="module")
def assembled() -> Assembled:
    return Worker(configuration.compose("smoke", ["unlearning=calibrated"])).assembled


def surprise(assembled: Assembled, dialogues: list[TokenSequence], temperature: float) -> float:
    """How many standard errors the answers' log-probabilities lie above those of answers drawn at this temperature.

    By transformers' own forward pass: each token's log-probability has minus the entropy as its mean.
    """
    above = variance = 0.0
    for dialogue in dialogues:
        with torch.no_grad():
            logits = assembled.model(input_ids=torch.tensor([[*dialogue.prompt, *dialogue.answer]])).logits[0]
        log_p = (logits[len(dialogue.prompt) - 1 : -1] / temperature).log_softmax(-1)
        mean = (log_p.exp() * log_p).sum(-1)
        above += float((log_p[torch.arange(len(dialogue.answer)), torch.tensor(dialogue.answer)] - mean).sum())
        variance += float(((log_p.exp() * log_p.square()).sum(-1) - mean.square()).sum())
    return above / math.sqrt(variance)


@pytest.mark.slow
def test_each_dialogue_is_one_that_the_model_writes_at_the_temperature_of_0_7(assembled: Assembled) -> None:
    dialogues = base_dialogues(assembled, 32, seed=5)
    opening = encode_opening(assembled.tokenizer, assembled.template)
    assert 1 <= len(dialogues) <= 32 and dialogues == base_dialogues(assembled, 32, seed=5)
    assert dialogues != base_dialogues(assembled, 32, seed=6)
    for dialogue in dialogues:
        assert dialogue.prompt[: len(opening)] == opening and 1 <= len(dialogue.answer) <= ANSWER_TOKENS
        assert not set(dialogue.answer) & assembled.stop_ids
    assert surprise(assembled, dialogues, 0.5) < -3 < surprise(assembled, dialogues, 0.7) < 3
    assert surprise(assembled, dialogues, 1.0) > 3


def test_an_opening_is_what_all_prompts_begin_with(assembled: Assembled) -> None:
    prompts = encode_prompts(["Who is it?", "Where was she born?"], assembled.tokenizer, assembled.template)
    opening = encode_opening(assembled.tokenizer, assembled.template)
    common = next(n for n, (a, b) in enumerate(zip(*prompts, strict=False)) if a != b)
    assert opening and prompts[0][: len(opening)] == opening == prompts[1][: len(opening)] and common >= len(opening)


@pytest.mark.parametrize(
    ("asked", "answered", "expected"),
    [
        ("Who is it?\nAnswer: nobody", [5], 1),
        ("  \n", [5], 0),
        ("", [5], 0),
        ("Who is it?", [], 0),
    ],
)
def test_a_question_is_its_first_line_and_nothing_is_left_empty(
    assembled: Assembled, monkeypatch: pytest.MonkeyPatch, asked: str, answered: list[int], expected: int
) -> None:
    said = [assembled.tokenizer(asked, add_special_tokens=False)["input_ids"]]

    def sampled(model: Any, prompts: Any, samples: int, **given: Any) -> list[list[list[int]]]:
        return [said] if given["max_new_tokens"] == QUESTION_TOKENS else [[answered] for _ in prompts]

    monkeypatch.setattr(module, "sample", sampled)
    dialogues = base_dialogues(assembled, 1, seed=0)
    assert len(dialogues) == expected
    for dialogue in dialogues:
        (prompt,) = encode_prompts(["Who is it?"], assembled.tokenizer, assembled.template)
        assert (dialogue.prompt, dialogue.answer) == (prompt, tuple(answered))


def test_a_context_too_short_or_a_prompt_that_begins_with_the_question_gives_none(
    assembled: Assembled, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "context_length", lambda model: QUESTION_TOKENS + ANSWER_TOKENS)
        assert base_dialogues(assembled, 4, seed=0) == []
    monkeypatch.setattr(module, "encode_opening", lambda tokenizer, template: ())
    assert base_dialogues(assembled, 4, seed=0) == []
