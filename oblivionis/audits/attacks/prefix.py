"""Prefixes: the first tokens of the true answer are given away, and the rest is asked for."""

from __future__ import annotations

import numpy as np

from evaluation.metrics.tofu import Question
from oblivionis.audits.attack_questions import Attack, Battery, Row

LABEL = "prefix"
ORDER = 6


def make(battery: Battery) -> list[Attack]:
    """One attack per number of `attack.given_tokens`, on the questions whose answers have a rest to ask for."""
    return [_given(battery, count) for count in battery.config.attack.given_tokens]


def _given(battery: Battery, count: int) -> Attack:
    asked = [_rest(battery, q, count) for q in battery.questions if len(q.answer) > count + 1]

    def run(vector: np.ndarray) -> list[Row]:
        label = f"{count} tokens of the answer given"
        return battery.ask(battery.load(vector), asked if count else battery.questions, label)

    unavailable = "" if asked else f"no answer has more than {count} tokens"
    facts = {"tokens": count, "max_new_tokens": battery.max_new_tokens}
    return Attack("prefix", f"prefix-{count}", facts, run, unavailable)


def _rest(battery: Battery, question: Question, count: int) -> Question:
    """The question whose prompt includes the first `count` tokens of the answer, and which asks for the rest."""
    given, rest = question.answer[:count], question.answer[count:]
    return Question(question.id, (*question.prompt, *given), rest, battery.decode(rest).strip())
