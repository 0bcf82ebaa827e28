"""Jailbreaks: words that ask for what should not be said, and words put into the model's mouth."""

from __future__ import annotations

import dataclasses

import numpy as np

from oblivionis.audits.attack_questions import Attack, Battery, Row

LABEL = "jailbreak"
WORDED = True
ORDER = 5


def make(battery: Battery) -> list[Attack]:
    """One attack per text of `attack.jailbreaks`, then one per text of `attack.answer_starts`."""
    own = battery.config.attack
    framed = [battery.reworded("jailbreak", i, text) for i, text in enumerate(own.jailbreaks, 1)]
    return [*framed, *(_started(battery, i, text) for i, text in enumerate(own.answer_starts, len(framed) + 1))]


def _started(battery: Battery, number: int, start: str) -> Attack:
    """The questions as they are, and answers that begin with `start`: it is given, what follows is measured."""

    def run(vector: np.ndarray) -> list[Row]:
        given: tuple[int, ...] = ()
        if start:
            opening = dataclasses.replace(
                battery.records[0], answer=start, paraphrased_answer=None, perturbed_answers=()
            )
            (first,) = battery.encoded([opening])
            given = first.answer[:-1]
        asked = [dataclasses.replace(q, prompt=(*q.prompt, *given)) for q in battery.questions]
        return battery.ask(battery.load(vector), asked, f"{start} …")

    facts = {"start": start, "max_new_tokens": battery.max_new_tokens}
    return Attack("jailbreak", f"jailbreak-{number}", facts, run)
