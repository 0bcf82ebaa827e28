"""Relearning: a few updates on other records may bring back what only seemed gone."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import numpy as np

from clients.relearning import relearn
from clients.training import TrainSettings
from evaluation.engine.packing import TokenSequence
from evaluation.metrics.tofu import Question
from oblivionis import seeds
from oblivionis.audits.attack_questions import ONE_MODEL, Attack, Battery, Row
from oblivionis.data.records import Record
from oblivionis.models.shard_merges import serves_ensemble
from oblivionis.naming import subject_key

LABEL = "relearn"
ORDER = 2
RETAIN = "retain"
"""Name of the attack that trains on records about others."""


def make(battery: Battery) -> list[Attack]:
    """Train on retain records about nobody who is to be forgotten; train on some forget questions and ask the rest."""
    settings = battery.config.attack.relearn
    order = random.Random(seeds.derive(battery.config.seed, "attack", "relearn"))
    chosen = unrelated(battery, order)
    retain = _relearning(battery, RETAIN, chosen, battery.questions, "no retain records about anybody else")
    shuffled = order.sample(list(battery.records), len(battery.records))
    count = min(max(1, round(settings.forget_share * len(shuffled))), len(shuffled) - 1)
    trained = shuffled[: max(0, count)]
    asked = [q for q in battery.questions if q.id not in {r.id for r in trained}]
    forget = _relearning(battery, "forget", trained, asked, "one forget question cannot be divided")
    return [retain, forget]


def unrelated(battery: Battery, order: random.Random) -> list[Record]:
    """`attack.relearn.records` retain records, fewer where there are fewer, about nobody who is to be forgotten."""
    train = battery.corpus.train
    about = {subject_key(r.subject) for r in train if r.id in battery.untouchable}
    others = [r for r in train if r.id not in battery.untouchable and subject_key(r.subject) not in about]
    return order.sample(others, min(battery.config.attack.relearn.records, len(others)))


def relearnt(battery: Battery, name: str, trained: Sequence[Record], vector: np.ndarray) -> dict[int, np.ndarray]:
    """A model's numbers after each number of updates of `attack.relearn.steps` on the records `trained`.

    vector: the global one that it starts from. name: of the attack, which the order of the records depends on.
    """
    assembled = battery.load(vector)
    sequences = [TokenSequence(q.prompt, q.answer) for q in battery.encoded(trained)]
    order = seeds.derive(battery.config.seed, "attack", "relearn", name)
    steps = battery.config.attack.relearn.steps
    return relearn(assembled.model, assembled.flat, sequences, _settings(battery), steps, seed=order)


def _settings(battery: Battery) -> TrainSettings:
    own, training = battery.config.attack.relearn, battery.config.training
    return TrainSettings(
        batch_size=own.batch_size or training.batch_size,
        learning_rate=own.learning_rate or training.learning_rate,
        weight_decay=training.weight_decay,
        warmup_epochs=0.0,
        max_grad_norm=training.max_grad_norm,
        optimizer=training.optimizer,
        gradient_checkpointing=training.gradient_checkpointing,
    )


def _relearning(
    battery: Battery, name: str, trained: Sequence[Record], asked: Sequence[Question], otherwise: str
) -> Attack:
    whole = "" if name == RETAIN else f" of {len(battery.questions)}"
    label = f"{len(trained)}{whole} records"

    def run(vector: np.ndarray) -> list[Row]:
        rows: list[Row] = []
        for step, after in relearnt(battery, name, trained, vector).items():
            battery.assembled.put(after)
            rows += battery.ask(battery.assembled, asked, f"{name} {step} updates ({label})")
        return rows

    steps = battery.config.attack.relearn.steps
    facts = {"train": dataclasses.asdict(_settings(battery)), "steps": steps, "records": [r.id for r in trained]}
    facts |= {"seed": battery.config.seed, "max_new_tokens": battery.max_new_tokens}
    unavailable = ONE_MODEL if serves_ensemble(battery.config) else "" if trained and asked else otherwise
    return Attack("relearn", f"relearn-{name}", facts, run, unavailable)
