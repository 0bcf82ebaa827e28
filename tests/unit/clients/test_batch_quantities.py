"""What a step says of its records against one record at a time through transformers' own forward pass, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support import tiny_llama
from torch import Tensor

from clients.batch_quantities import QUANTITIES, BatchQuantities, ReferenceModels, References, log_likelihoods
from clients.calibrated_forgetting import kept_predictions
from clients.flat_parameters import FlatParameters
from clients.reference_models import Received, incompetent_teacher
from evaluation.engine.forward import AnswerRows, answer_rows, packed_batch
from evaluation.engine.sequences import TokenSequence

FORGET, RETAIN, OTHERS = (tiny_llama.sequences(n, seed=n) for n in (3, 4, 5))
OTHERS = [TokenSequence(f.prompt, o.answer) for f, o in zip(FORGET, OTHERS, strict=False)]
T, STRENGTH, SHARPNESS, LAYER = 1.7, 2.5, 1.3, 0
LOWERED = [torch.linspace(-1.5, 2.0, len(r.answer)) for r in FORGET]
RECITED = [torch.arange(len(r.answer)) % 2 == 0 for r in FORGET[:2]] + [torch.zeros(len(FORGET[2].answer)).bool()]
GIVEN = References(
    torch.tensor([-3.0, -4.0, -5.0]), torch.tensor([-6.0, -7.0, -8.0]), torch.tensor([1.0, 2.0, 3.0, 4.0])
)._replace(forget_target_nll=torch.tensor([0.5, 0.6, 0.7]), forget_target_lowered=LOWERED, forget_recited=RECITED)


class Plain:
    """Each record by itself, from logits and states that no batch has anything to do with."""

    def __init__(self, model: Any, flat: FlatParameters, received: np.ndarray, base: np.ndarray, teacher: Any) -> None:
        self.model, self.flat, self.vectors, self.teacher = model, flat, {"received": received, "base": base}, teacher

    @torch.no_grad()
    def run(self, record: TokenSequence, whose: str = "") -> Any:
        model, present = self.teacher if whose == "teacher" else self.model, self.flat.numpy()
        if whose in self.vectors:
            self.flat.load(self.vectors[whose])
        found = model(input_ids=torch.tensor([[*record.prompt, *record.answer]]), output_hidden_states=True)
        self.flat.load(present)
        return found

    def logits(self, record: TokenSequence, whose: str = "") -> Tensor:
        return self.run(record, whose).logits[0, len(record.prompt) - 1 : -1].double()

    def states(self, record: TokenSequence, whose: str = "") -> Tensor:
        return self.run(record, whose).hidden_states[LAYER + 1][0]

    def token_log_p(self, record: TokenSequence) -> Tensor:
        p = self.logits(record).softmax(-1)
        return torch.stack([p[i, token].log() for i, token in enumerate(record.answer)])

    def entropy(self, record: TokenSequence) -> Tensor:
        p = self.logits(record).softmax(-1)
        return -(p * p.log()).sum(-1).mean()

    def leads(self, record: TokenSequence) -> list[float]:
        rows = self.logits(record).softmax(-1).tolist()
        return [row.pop(token) - max(row) for row, token in zip(rows, record.answer, strict=True)]

    def lead(self, record: TokenSequence) -> Tensor:
        return torch.tensor(self.leads(record), dtype=torch.float64).mean()

    def recited_lead(self, record: TokenSequence, recited: Tensor) -> Tensor:
        found = [max(0.0, lead) for lead, counts in zip(self.leads(record), recited.tolist(), strict=True) if counts]
        return torch.tensor(sum(found) / max(1, len(found)), dtype=torch.float64)

    def kl(self, record: TokenSequence, whose: str, less: Any = 0.0, times: float = 1.0) -> Tensor:
        other = times * self.logits(record, whose)
        for i, token in enumerate(record.answer):
            other[i, token] -= less if isinstance(less, float) else less[i]
        q, p = (other / T).softmax(-1), (self.logits(record) / T).softmax(-1)
        return T**2 * (q * (q / p).log()).sum(-1).mean()

    def quantities(self) -> dict[str, list[Tensor] | Tensor]:
        found: dict[str, Any] = {}
        for name, records in (("forget", FORGET), ("alternative", OTHERS), ("retain", RETAIN)):
            logs = [self.token_log_p(r) for r in records]
            found[f"{name}_log_p"], found[f"{name}_nll"] = [x.sum() for x in logs], [-x.mean() for x in logs]
        for name, records in (("forget", FORGET), ("retain", RETAIN)):
            found[f"{name}_entropy"] = [self.entropy(r) for r in records]
            found[f"{name}_reference_kl"] = [self.kl(r, "received") for r in records]
            found[f"{name}_states"] = [self.states(r) for r in records]
        z = [self.logits(r) for r in FORGET]
        pairs = zip(FORGET, LOWERED, strict=True)
        return found | {
            "forget_token_log_p": [self.token_log_p(r) for r in FORGET],
            "forget_margin": [((x.max(-1).values - x.mean(-1)) ** 2).mean() for x in z],
            "forget_lead": [self.lead(r) for r in FORGET],
            "forget_recited_lead": [self.recited_lead(r, mask) for r, mask in zip(FORGET, RECITED, strict=True)],
            "forget_adjusted_kl": [self.kl(r, "received", STRENGTH) for r in FORGET],
            "forget_target_kl": [self.kl(r, "base", less, SHARPNESS) for r, less in pairs],
            "forget_teacher_kl": [self.kl(r, "teacher") for r in FORGET],
            "retain_reference_states": [self.states(r, "received") for r in RETAIN],
            "forget_reference_log_p": GIVEN.forget_log_p,
            "alternative_reference_log_p": GIVEN.alternative_log_p,
            "retain_reference_nll": GIVEN.retain_nll,
            "forget_target_nll": GIVEN.forget_target_nll,
        }


def stirred(seed: int, flat: FlatParameters) -> np.ndarray:
    return flat.numpy() + np.random.default_rng(seed).normal(0, 0.05, flat.size).astype(np.float32)


@pytest.fixture(scope="module")
def situation() -> tuple[Any, ReferenceModels, dict[str, Any]]:
    model = tiny_llama.lora().eval()
    flat = FlatParameters(model)
    first, base, teacher = flat.numpy(), stirred(1, flat), incompetent_teacher(model, 3)
    around = ReferenceModels(
        received=Received(model, flat),
        teacher=teacher,
        temperature=T,
        strength=STRENGTH,
        layer=LAYER,
        base=Received(model, flat, base),
        sharpness=SHARPNESS,
    )
    flat.load(stirred(2, flat))
    return model, around, Plain(model, flat, first, base, teacher).quantities()


def compared(step: BatchQuantities, expected: dict[str, Any], names: Any) -> None:
    for name, value in step.quantities(names).items():
        wanted = expected[name]
        assert value is not None and len(value) == len(wanted), name
        for one, other in zip(value, wanted, strict=True):
            torch.testing.assert_close(one.detach().double(), other.double(), rtol=2e-4, atol=2e-5, msg=name)


ALONE = {"forget_log_p", "forget_nll", "forget_token_log_p", "alternative_log_p", "alternative_nll"}
ALONE |= {"retain_log_p", "retain_nll"}


def test_every_quantity_is_that_of_each_record_alone(situation: Any) -> None:
    """All at once, with as many retain records as others there are not; and likelihoods where no logits are asked."""
    model, around, expected = situation
    assert expected.keys() == QUANTITIES - {"retain_loss"}
    whole = BatchQuantities(
        model, FORGET, RETAIN, alternatives=OTHERS, wanted=sorted(expected), references=GIVEN, around=around
    )
    compared(whole, expected, expected)
    compared(BatchQuantities(model, FORGET, RETAIN, alternatives=OTHERS), expected, ALONE)


@pytest.mark.parametrize("name", sorted(QUANTITIES - {"retain_loss"}))
def test_a_quantity_does_not_depend_on_what_else_is_asked_for(situation: Any, name: str) -> None:
    """Nor on records that it is not about."""
    model, around, expected = situation
    forget = FORGET if name.startswith("forget") else []
    retain = RETAIN if name.startswith("retain") else []
    others = OTHERS if name.startswith("alternative") else []
    step = BatchQuantities(model, forget, retain, alternatives=others, wanted=[name], references=GIVEN, around=around)
    compared(step, expected, [name])


@pytest.mark.parametrize(("kind", "same"), [("nll", "retain_nll"), ("kl", "retain_reference_kl")])
def test_the_retain_loss_is_the_one_that_was_chosen(situation: Any, kind: str, same: str) -> None:
    model, around, expected = situation
    step = BatchQuantities(model, FORGET, RETAIN, wanted=["retain_loss"], around=around._replace(retain_loss=kind))
    compared(step, {"retain_loss": expected[same]}, ["retain_loss"])
    assert (
        BatchQuantities(model, FORGET, [], wanted=["retain_loss"], around=around._replace(retain_loss=kind)).retain_loss
        is None
    )


@pytest.mark.parametrize("kind", ["nll", "kl"])
def test_held_records_are_not_learned_whatever_the_retain_loss(situation: Any, kind: str) -> None:
    model, around, expected = situation
    held = [False, True, True, False]
    step = BatchQuantities(
        model, [], RETAIN, wanted=["retain_loss"], references=GIVEN._replace(retain_held=torch.tensor(held)),
        around=around._replace(retain_loss=kind, holds=True),
    )  # fmt: skip
    own = expected["retain_nll" if kind == "nll" else "retain_reference_kl"]
    mixed = [expected["retain_reference_kl"][i] if held[i] else own[i] for i in range(4)]
    compared(step, {"retain_loss": mixed}, ["retain_loss"])


def test_what_the_received_model_says_may_be_kept(situation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its predictions give the same divergences without it, record by record, if they take little enough memory."""
    model, around, expected = situation
    assert around.received is not None
    with around.received.in_place():
        kept = [kept_predictions(model, records, 2) for records in (FORGET, RETAIN)]
        assert kept_predictions(model, [], 2) == ()
        monkeypatch.setattr("clients.calibrated_forgetting.KEPT_BYTES", 100)
        assert kept_predictions(model, RETAIN, 2) is None
    names = ["forget_reference_kl", "forget_adjusted_kl", "retain_reference_kl"]
    step = BatchQuantities(
        model, FORGET, RETAIN, wanted=names, references=GIVEN._replace(forget_rows=kept[0], retain_rows=kept[1]),
        around=around._replace(received=None),
    )  # fmt: skip
    compared(step, expected, names)


def test_a_target_whose_rows_are_known_is_the_one_that_the_base_model_gives(situation: Any) -> None:
    model, around, expected = situation
    assert around.base is not None
    with around.base.in_place():
        rows = answer_rows(model, packed_batch(model, FORGET))
    lengths = [len(r.answer) for r in FORGET]
    known = GIVEN._replace(forget_target_rows=[AnswerRows(x, rows.head) for x in rows.values.split(lengths)])
    step = BatchQuantities(
        model, FORGET, [], wanted=["forget_target_kl"], references=known, around=around._replace(base=None)
    )
    compared(step, expected, ["forget_target_kl"])


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_likelihoods_of_many_are_those_of_each_and_leave_the_models_mode(situation: Any, size: int) -> None:
    model, _, expected = situation
    model.train()
    found = log_likelihoods(model, FORGET, size)
    assert model.training and not found.requires_grad
    model.eval()
    torch.testing.assert_close(found.double(), torch.stack(expected["forget_log_p"]), rtol=2e-4, atol=2e-5)
