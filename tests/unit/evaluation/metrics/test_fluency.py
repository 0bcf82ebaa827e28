"""Fluency against plain `transformers`, prompt by prompt: its own generation, and its own forward pass of the base."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from support.tiny_llama import base

from evaluation.engine import decoding
from evaluation.hook import EvaluationSession, Hook
from evaluation.metrics.fluency import FluencyEvaluator, without_end
from evaluation.metrics.tofu import Profile, Question, TofuEvaluator

END, LIMIT = 2, 7
FORGET = [Question(f"f{i}", (1, 5 + i, 9), (20 + i, 31, 7 + i, END), "") for i in range(5)]
RETAIN = [Question(f"r{i}", (1, 30 + i), (40 + i, 11, END), "") for i in range(4)]
ASKED = {"forget": FORGET, "retain": RETAIN}


class Models:
    """A model whose weights are those of `now`, and those of the base model within `as_base`."""

    def __init__(self, now: int) -> None:
        self.base = base(0)
        self.now = base(now)
        self.model = copy.deepcopy(self.now)

    @contextmanager
    def as_base(self) -> Iterator[None]:
        self.model.load_state_dict(self.base.state_dict())
        yield
        self.model.load_state_dict(self.now.state_dict())

    def session(self) -> EvaluationSession:
        return EvaluationSession(self.model, stop_ids={END})


def answer_of(model: Any, prompt: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
    """What Hugging Face generates, without the end token, and whether that is missing."""
    made = model.generate(
        torch.tensor([prompt]), max_new_tokens=LIMIT, do_sample=False, eos_token_id=END, pad_token_id=0
    )[0, len(prompt) :].tolist()
    return (tuple(made[:-1]), False) if END in made else (tuple(made), True)


def mean_nll(model: Any, prompt: tuple[int, ...], answer: tuple[int, ...]) -> float:
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *answer]])).logits[0].double()
    total = 0.0
    for place, token in enumerate(answer):
        row = logits[len(prompt) + place - 1]
        total += float(torch.logsumexp(row, 0) - row[token])
    return total / len(answer)


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


@pytest.mark.parametrize(("now", "share"), [(0, 0.95), (3, 0.95), (5, 0.2)])
def test_it_is_what_transformers_says_one_by_one(now: int, share: float) -> None:
    models = Models(now)
    report = Hook([FluencyEvaluator(ASKED, models.as_base, LIMIT, share)], strict=True).run(models.session())
    found = report.results["fluency"]
    threshold = quantile([mean_nll(models.base, q.prompt, q.answer[:-1]) for q in (*FORGET, *RETAIN)], share)
    expected = {"threshold": threshold}
    for group, questions in ASKED.items():
        said = [answer_of(models.now, q.prompt) for q in questions]
        nll = [mean_nll(models.base, q.prompt, a) if a else None for q, (a, _) in zip(questions, said, strict=True)]
        known = [x for x in nll if x is not None]
        expected |= {
            f"{group}_nll": sum(known) / len(known),
            f"{group}_gibberish": sum(x > threshold for x in known) / len(questions),
            f"{group}_endless": sum(endless for _, endless in said) / len(questions),
        }
        assert found.details[group]["ids"] == [q.id for q in questions]
        assert found.details[group]["nll"] == [None if x is None else pytest.approx(x, abs=1e-4) for x in nll]
    assert found.metrics == pytest.approx(expected, abs=1e-4)


def test_the_model_is_the_same_afterwards() -> None:
    models = Models(4)
    Hook([FluencyEvaluator(ASKED, models.as_base, LIMIT)], strict=True).run(models.session())
    for name, weight in models.model.state_dict().items():
        assert torch.equal(weight, models.now.state_dict()[name]), name


def test_answers_that_others_read_are_not_generated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, plain = list[int](), decoding.greedy

    def counted(model: Any, prompts: Any, **options: Any) -> list[list[int]]:
        calls.append(len(prompts))
        return plain(model, prompts, **options)

    monkeypatch.setattr(decoding, "greedy", counted)
    models = Models(3)
    tofu = TofuEvaluator(ASKED, lambda ids: " ".join(map(str, ids)), profile=Profile(None, LIMIT, ("forget", "retain")))
    both = Hook([tofu, FluencyEvaluator(ASKED, models.as_base, LIMIT)], strict=True).run(models.session())
    assert calls == [9], "each prompt once, in one call"
    alone = Hook([tofu], strict=True).run(models.session())
    assert both.results["tofu"] == alone.results["tofu"], "to the last bit"


class Scripted(EvaluationSession):
    """A session whose greedy answers are given."""

    answers: dict[tuple[int, ...], list[int]]

    def greedy(self, prompts: Any, max_new_tokens: int) -> list[list[int]]:
        return [self.answers[tuple(p)] for p in prompts]


def scripted(models: Models, answers: list[list[int]]) -> Scripted:
    session = Scripted(models.model, stop_ids={END})
    session.answers = {q.prompt: a for q, a in zip(FORGET, answers, strict=True)}
    return session


def test_empty_answers_are_no_gibberish_and_have_no_likelihood() -> None:
    models = Models(0)
    spoken = [40, 41, 42]
    session = scripted(models, [[], [], [], spoken, [3] * LIMIT])
    found = FluencyEvaluator({"forget": FORGET, "retain": ()}, models.as_base, LIMIT, 0.0).evaluate(session)
    expected = [
        mean_nll(models.base, FORGET[3].prompt, tuple(spoken)),
        mean_nll(models.base, FORGET[4].prompt, (3,) * 7),
    ]
    assert found.metrics["forget_nll"] == pytest.approx(sum(expected) / 2, abs=1e-4)
    assert found.metrics["forget_gibberish"] == sum(x > found.metrics["threshold"] for x in expected) / 5
    assert found.metrics["forget_endless"] == 0.2 and "retain_nll" not in found.metrics
    assert found.details["forget"]["nll"][:3] == [None] * 3
    nothing = FluencyEvaluator({"forget": FORGET}, models.as_base, LIMIT).evaluate(scripted(models, [[]] * 5))
    assert set(nothing.metrics) == {"threshold", "forget_gibberish", "forget_endless"}
    assert nothing.metrics["forget_gibberish"] == nothing.metrics["forget_endless"] == 0


def test_an_answer_that_ends_right_at_the_limit_is_not_endless() -> None:
    models = Models(0)
    session = scripted(models, [[3] * (LIMIT - 1), [3] * LIMIT, [4], [3] * (LIMIT - 1), []])
    found = FluencyEvaluator({"forget": FORGET}, models.as_base, LIMIT).evaluate(session)
    assert found.details["forget"]["endless"] == [False, True, False, False, False]
    assert found.metrics["forget_endless"] == 0.2


def test_true_answers_are_gibberish_as_often_as_the_quantile_says() -> None:
    models = Models(0)
    for share, count in ((0.0, 4), (0.5, 2), (0.75, 1), (1.0, 0)):
        session = scripted(models, [list(q.answer[:-1]) for q in FORGET])
        found = FluencyEvaluator({"forget": FORGET}, models.as_base, LIMIT, share).evaluate(session)
        assert found.metrics["forget_gibberish"] == count / 5, share


def test_nothing_is_asked_without_questions() -> None:
    models = Models(0)
    none = FluencyEvaluator({"forget": ()}, models.as_base, LIMIT)
    assert not none.evaluate(models.session()).metrics and (none.quantile, none.name) == (0.95, "fluency")


@pytest.mark.parametrize(
    ("answer", "words"), [((5, END), (5,)), ((5, 6), (5, 6)), ((END, END), (END,)), ((END, 5), (END, 5)), ((), ())]
)
def test_an_end_token_is_no_part_of_an_answer(answer: tuple[int, ...], words: tuple[int, ...]) -> None:
    assert without_end(answer, Models(0).session()) == words


@pytest.mark.parametrize(("limit", "share"), [(0, 0.95), (5, -0.1), (5, 1.1)])
def test_settings_out_of_range(limit: int, share: float) -> None:
    with pytest.raises(ValueError, match="max_new_tokens >= 1 and a quantile"):
        FluencyEvaluator(ASKED, Models(0).as_base, limit, share)
