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
from oblivionis.audits.battery import Attack, Battery, Row
from oblivionis.data.records import Record
from oblivionis.naming import subject_key

LABEL = "relearn"
ORDER = 2


def make(battery: Battery) -> list[Attack]:
    """Train on retain records about nobody who is to be forgotten; train on some forget questions and ask the rest."""
    config, corpus = battery.config, battery.corpus
    settings = config.attack.relearn
    order = random.Random(seeds.derive(config.seed, "attack", "relearn"))
    about = {subject_key(r.subject) for r in corpus.train if r.id in battery.untouchable}
    unrelated = [r for r in corpus.train if r.id not in battery.untouchable and subject_key(r.subject) not in about]
    chosen = order.sample(unrelated, min(settings.records, len(unrelated)))
    retain = _relearning(battery, "retain", chosen, battery.questions, "no retain records about anybody else")
    shuffled = order.sample(list(battery.records), len(battery.records))
    count = min(max(1, round(settings.forget_share * len(shuffled))), len(shuffled) - 1)
    trained = shuffled[: max(0, count)]
    asked = [q for q in battery.questions if q.id not in {r.id for r in trained}]
    forget = _relearning(battery, "forget", trained, asked, "one forget question cannot be divided")
    return [retain, forget]


def _relearning(
    battery: Battery, name: str, trained: Sequence[Record], asked: Sequence[Question], lacking: str
) -> Attack:
    own, training, seed = battery.config.attack.relearn, battery.config.training, battery.config.seed
    whole = "" if name == "retain" else f" of {len(battery.questions)}"
    label = f"{len(trained)}{whole} records"
    settings = TrainSettings(
        batch_size=own.batch_size or training.batch_size,
        learning_rate=own.learning_rate or training.learning_rate,
        weight_decay=training.weight_decay,
        warmup_epochs=0.0,
        max_grad_norm=training.max_grad_norm,
        optimizer=training.optimizer,
        gradient_checkpointing=training.gradient_checkpointing,
    )

    def run(vector: np.ndarray) -> list[Row]:
        assembled = battery.load(vector)
        sequences = [TokenSequence(q.prompt, q.answer) for q in battery.encoded(trained)]
        order = seeds.derive(seed, "attack", "relearn", name)
        rows: list[Row] = []
        learnt = relearn(assembled.model, assembled.flat, sequences, settings, own.steps, seed=order)
        for step, after in learnt.items():
            rows += battery.ask(battery.load(after), asked, f"{name} {step} updates ({label})")
        return rows

    facts = {"train": dataclasses.asdict(settings), "steps": own.steps, "records": [r.id for r in trained]}
    facts |= {"seed": seed, "max_new_tokens": battery.max_new_tokens}
    return Attack("relearn", f"relearn-{name}", facts, run, "" if trained and asked else lacking)
