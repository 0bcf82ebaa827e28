"""The session computes each thing once; the hook isolates failures and leaves the model as it was."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from evaluation import hook
from evaluation.engine.decoding import greedy
from evaluation.engine.likelihood import score
from evaluation.engine.progress import watched
from evaluation.engine.sequences import TokenSequence
from evaluation.hook import EvaluationSession, Hook, Requesting, Result
from evaluation.leakage.evaluator import LeakageEvaluator
from evaluation.metrics.fluency import FluencyEvaluator
from evaluation.metrics.membership import Candidate, MembershipEvaluator
from evaluation.metrics.muse import Item, MuseEvaluator
from evaluation.metrics.tofu import Question, TofuEvaluator
from evaluation.ruler.evaluator import Answered, RulerEvaluator

SEQUENCES = [TokenSequence((1, 2), (3, 4)), TokenSequence((1, 2), (5,)), TokenSequence((6,), (7, 8, 9))]
PROMPTS = [(1, 2), (6, 7, 8)]
STOPS = ()


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, vocab_size=30
    )
    return LlamaForCausalLM(config)


@pytest.fixture
def passes(model: LlamaForCausalLM) -> list[int]:
    """Sizes of all forward passes."""
    sizes: list[int] = []
    model.model.embed_tokens.register_forward_hook(lambda _m, args, _o: sizes.append(args[0].numel()))
    return sizes


@dataclass
class Reader:
    name: str
    sequences: list[TokenSequence]
    prompts: list[tuple[int, ...]]
    limit: int = 4

    def request(self, session: EvaluationSession) -> None:
        session.request(sequences=self.sequences, prompts=self.prompts, max_new_tokens=self.limit)

    def evaluate(self, session: EvaluationSession) -> Result:
        assert not session.model.training and torch.is_inference_mode_enabled()
        nll = session.scores(self.sequences).mean_nll
        return Result({"nll": float(nll.mean())}, {"produced": session.greedy(self.prompts, self.limit)})


@dataclass
class Broken:
    name: str = "broken"

    def evaluate(self, session: EvaluationSession) -> Result:
        session.request(sequences=[TokenSequence((), (1,))])
        raise KeyError("nothing here")


def test_evaluators_share_one_pass(model: LlamaForCausalLM, passes: list[int]) -> None:
    readers = [Reader("a", SEQUENCES[:2], PROMPTS), Reader("b", SEQUENCES[1:], PROMPTS[1:], limit=3)]
    report = Hook(readers).run(EvaluationSession(model, stop_ids=STOPS))
    # One scoring pass (rows 1 2 3 | 6 7 8: the last answer tokens are labels), one prefill, three single-token steps.
    assert passes == [6, 5, 2, 2, 2]
    expected = score(model, SEQUENCES).mean_nll
    assert report.metrics == pytest.approx({"a/nll": expected[:2].mean(), "b/nll": expected[1:].mean()}, abs=1e-6)
    produced = greedy(model, PROMPTS, max_new_tokens=4, stop_ids=STOPS)
    assert report.results["a"].details["produced"] == produced
    assert report.results["b"].details["produced"] == [produced[1][:3]]
    assert not report.failed and set(report.seconds) == {"a", "b"} and report.shared_seconds > 0


def test_session_remembers(model: LlamaForCausalLM, passes: list[int]) -> None:
    session = EvaluationSession(model, stop_ids=STOPS)
    first = session.scores([SEQUENCES[0], SEQUENCES[2], SEQUENCES[0]], hidden="last")
    again = session.scores(SEQUENCES[2:])
    assert len(passes) == 1 and again.mean_nll[0] == first.mean_nll[1]
    assert first.hidden is not None and len(first.hidden) == 3 and again.hidden is None
    session.greedy(PROMPTS, 3)
    count = len(passes)
    assert session.greedy(PROMPTS, 2) == [x[:2] for x in session.greedy(PROMPTS, 3)]
    assert len(passes) == count
    longer = session.greedy(PROMPTS[:1], 5)
    assert longer == greedy(model, PROMPTS[:1], max_new_tokens=5, stop_ids=STOPS)
    with pytest.raises(ValueError, match="no sequences"):
        session.scores([])
    with pytest.raises(ValueError, match="max_new_tokens >= 1"):
        session.request(prompts=PROMPTS)


@pytest.mark.parametrize("states_first", [False, True])
@pytest.mark.parametrize("layer", [None, 0])
def test_sequences_wanted_with_states_are_scored_once_whoever_asks_first(
    model: LlamaForCausalLM, passes: list[int], states_first: bool, layer: int | None
) -> None:
    session = EvaluationSession(model, stop_ids=STOPS)
    requests = [{"sequences": SEQUENCES}, {"sequences": SEQUENCES[1:2], "hidden": "last", "layer": layer}]
    for request in reversed(requests) if states_first else requests:
        session.request(**request)
    plain = session.scores(SEQUENCES)
    with_states = session.scores(SEQUENCES[1:2], hidden="last", layer=layer)
    # One row: 1 2 3 | 1 2 5, the prompt once and the last answer token where its state is wanted | 6 7 8.
    assert passes == [7]
    assert plain.hidden is None and with_states.mean_nll[0] == plain.mean_nll[1]
    expected = score(model, SEQUENCES[1:2], hidden="last", layer=layer)
    assert expected.hidden is not None and with_states.hidden is not None
    np.testing.assert_allclose(with_states.hidden[0], expected.hidden[0], atol=1e-6)


def test_states_that_nobody_announced_and_of_a_second_kind_cost_a_pass_of_their_own(
    model: LlamaForCausalLM, passes: list[int]
) -> None:
    session = EvaluationSession(model, stop_ids=STOPS)
    session.scores(SEQUENCES)
    session.request(sequences=SEQUENCES[2:], hidden="last")
    session.request(sequences=SEQUENCES[2:], hidden="mean", layer=0)
    session.compute()
    assert passes == [6, 4, 4], "6 7 8 9 alone, for each kind of states"
    session.scores(SEQUENCES, hidden="mean", layer=0)
    assert passes[3:] == [5], "1 2 3 4 5: those of the third are known"


def test_each_prompt_begins_by_its_own_answer_alone(model: LlamaForCausalLM) -> None:
    """One prompt's answer is what the model says, another's is nothing like it."""
    expected = greedy(model, PROMPTS, max_new_tokens=5, stop_ids=STOPS)
    for known in range(2):
        session = EvaluationSession(model, stop_ids=STOPS)
        answers = [tuple(e) if i == known else tuple((t + 1) % 30 for t in e) for i, e in enumerate(expected)]
        session.request(sequences=[TokenSequence(p, a) for p, a in zip(PROMPTS, answers, strict=True)])
        session.compute()
        assert session.greedy(PROMPTS, 5) == expected


def test_continuations_begin_where_a_scored_answer_agrees(model: LlamaForCausalLM, passes: list[int]) -> None:
    prompt = PROMPTS[0]
    (expected,) = greedy(model, [prompt], max_new_tokens=6, stop_ids=STOPS)
    wrong = (expected[3] + 1) % 30
    answers = [(*expected[:3], wrong, 4), (*expected[:2], wrong), (wrong,)]
    session = EvaluationSession(model, stop_ids=STOPS)
    session.request(sequences=[TokenSequence(prompt, answer) for answer in answers], prompts=[prompt], max_new_tokens=6)
    passes.clear()
    assert session.greedy([prompt], 6) == [expected]
    # After the scoring pass one prefill of the prompt and three known tokens, and two steps.
    assert passes[1:] == [len(prompt) + 3, 1, 1]


@pytest.mark.parametrize(
    "bad",
    [
        Broken(),
        Reader("broken", [TokenSequence((), (1,))], []),
        Reader("broken", [], PROMPTS, 0),
        Reader("broken", SEQUENCES[:1], [()]),
    ],
)
def test_a_failing_evaluator_is_reported_and_the_others_run(model: LlamaForCausalLM, bad: hook.Evaluator) -> None:
    good = Reader("good", SEQUENCES, PROMPTS)
    for evaluators in ([bad, good], [good, bad]):
        report = Hook(evaluators).run(EvaluationSession(model, stop_ids=STOPS))
        assert set(report.failed) == {"broken"} and set(report.results) == {"good"}
        assert any(word in report.failed["broken"] for word in ("nothing here", "empty prompt", "max_new_tokens"))
        assert report.metrics["good/nll"] == pytest.approx(score(model, SEQUENCES).mean_nll.mean(), abs=1e-6)
    with pytest.raises(hook.EvaluationError, match="evaluator broken failed"):
        Hook([good, bad], strict=True).run(EvaluationSession(model, stop_ids=STOPS))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """With which options sequences are scored and prompts continued."""
    options: list[dict[str, Any]] = []

    def noted(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **given: (options.append(given), call(*args, **given))[1]

    monkeypatch.setattr("evaluation.engine.likelihood.score", noted(score))
    monkeypatch.setattr("evaluation.engine.decoding.greedy", noted(greedy))
    return options


def test_a_session_computes_as_it_was_told(model: LlamaForCausalLM, told: list[dict[str, Any]]) -> None:
    session = EvaluationSession(model, stop_ids=[4, 2], pad_id=9, token_budget=77, mode="plain")
    for each in (session, session.fresh()):
        told.clear()
        assert (each.model, each.stop_ids, each.pad_id, each.token_budget) == (model, {2, 4}, 9, 77)
        each.request(sequences=SEQUENCES[:1], hidden="mean", layer=0)
        each.request(sequences=SEQUENCES[1:2], moments=True)
        each.greedy(PROMPTS, 3)
        as_told = {"token_budget": 77, "mode": "plain", "hidden": "mean", "layer": 0}
        assert told[0] == as_told | {"only": {SEQUENCES[0]: None}, "moments": {SEQUENCES[1]}}
        starts = told[1].pop("starts")
        assert told[1:] == [{"max_new_tokens": 3, "stop_ids": {2, 4}, "pad_id": 9, "mode": "plain"}]
        assert set(starts) <= {SEQUENCES[0].prompt}


def test_moments_of_others_in_the_pass_are_not_ones_own(model: LlamaForCausalLM, told: list[dict[str, Any]]) -> None:
    session = EvaluationSession(model, stop_ids=STOPS)
    session.request(sequences=SEQUENCES)
    session.request(sequences=SEQUENCES[:1], moments=True)
    session.compute()
    late = session.scores(SEQUENCES, moments=True)
    assert [t["moments"] for t in told] == [{SEQUENCES[0]}, set(SEQUENCES[1:])]
    assert late.moments is not None and [len(m) for m in late.moments] == late.num_tokens.tolist()


def test_what_was_announced_is_forgotten_when_asked_to(model: LlamaForCausalLM, told: list[dict[str, Any]]) -> None:
    session = EvaluationSession(model, stop_ids=STOPS)
    session.request(sequences=SEQUENCES, moments=True, prompts=PROMPTS, max_new_tokens=9)
    session.request(sequences=SEQUENCES, hidden="last")
    session.forget_requests()
    session.scores(SEQUENCES[:1])
    session.greedy(PROMPTS[:1], 2)
    assert [(t.get("moments"), t.get("hidden"), t.get("max_new_tokens")) for t in told] == [
        (set(), None, None),
        (None, None, 2),
    ]
    assert len(session.scored) == len(session.continued) == 1


def test_who_watches_is_told_which_evaluator_computes(model: LlamaForCausalLM) -> None:
    @dataclass
    class Late:
        name: str
        sequences: list[TokenSequence]

        def evaluate(self, session: EvaluationSession) -> Result:
            return Result({"nll": float(session.scores(self.sequences).mean_nll.sum())})

    seen: list[tuple[Any, ...]] = []
    with watched(lambda *progress: seen.append(progress)):
        evaluators = [Late("late", SEQUENCES[1:2]), Reader("soon", SEQUENCES[:1], []), Late("last", SEQUENCES[2:])]
        Hook(evaluators, strict=True).run(EvaluationSession(model, stop_ids=STOPS))
    assert seen == [(name, "likelihoods", done, 1) for name in ("", "late", "last") for done in (0, 1)]


def test_the_model_is_left_as_it_was(model: LlamaForCausalLM) -> None:
    model.train()
    model.model.norm.eval()
    Hook([Broken(), Reader("good", SEQUENCES, PROMPTS)]).run(EvaluationSession(model, stop_ids=STOPS))
    assert model.training and model.lm_head.training and not model.model.norm.training
    assert not torch.is_inference_mode_enabled()


def test_undefined_metrics_and_equal_names_are_refused() -> None:
    with pytest.raises(ValueError, match="metric loss is nan"):
        Result({"loss": float("nan")})
    with pytest.raises(ValueError, match="names must differ"):
        Hook([Broken(), Broken()])


def test_continuations_need_a_length(model: LlamaForCausalLM) -> None:
    session = EvaluationSession(model, stop_ids=STOPS)
    for options in ({}, {"max_new_tokens": 0}):
        with pytest.raises(ValueError, match="needs max_new_tokens >= 1"):
            session.request(prompts=PROMPTS, **options)
    session.request(sequences=SEQUENCES)


def test_the_report_tells_what_each_evaluator_and_the_shared_pass_took(model: LlamaForCausalLM) -> None:
    report = Hook([Reader("a", SEQUENCES, PROMPTS), Broken()]).run(EvaluationSession(model, stop_ids=STOPS))
    assert set(report.seconds) == {"a", "broken"} and set(report.results) == {"a"}
    assert all(0 <= seconds < 60 for seconds in (*report.seconds.values(), report.shared_seconds))
    assert report.shared_seconds > 0


def text(ids: Any) -> str:
    return " ".join(f"w{i}" for i in ids)


ITEM, KNOWN = Item("v", (1, 2), "", "w1 w2"), Item("k", (6,), "", "w3")
MEMBERS, OTHERS = [Candidate("m", SEQUENCES[0], "a")], [Candidate("h", SEQUENCES[1], "b")]
QUESTION = Question("q", (1, 2), (3, 4), "w3 w4", (5, 4), ((6, 4),))
RECORDS = [Answered(f"r{i}", s) for i, s in enumerate(SEQUENCES)]
READERS: dict[str, Callable[[], Any]] = {
    "muse": lambda: MuseEvaluator([ITEM], {"forget": [KNOWN]}, text, MEMBERS, OTHERS, continuation=5, answer=3),
    "passages": lambda: MuseEvaluator([ITEM], {}, text, MEMBERS, continuation=5),
    "members": lambda: MuseEvaluator([], {}, text, MEMBERS, OTHERS),
    "others": lambda: MuseEvaluator([], {}, text, (), OTHERS),
    "membership": lambda: MembershipEvaluator(MEMBERS, OTHERS),
    "no moments": lambda: MembershipEvaluator(MEMBERS, OTHERS, ["loss"]),
    "nobody": lambda: MembershipEvaluator(MEMBERS, []),
    "tofu": lambda: TofuEvaluator({"forget": [QUESTION], "retain": []}, text),
    "fluency": lambda: FluencyEvaluator({"forget": [QUESTION], "retain": []}, nullcontext, 4),
    "ruler": lambda: RulerEvaluator(RECORDS[:1], RECORDS[1:], "mean", 0),
}


@pytest.mark.parametrize("kind", READERS)
def test_evaluators_announce_what_they_read_and_nothing_else(model: LlamaForCausalLM, kind: str) -> None:
    """The model goes over no token that was not announced, and no announcement is left unread."""
    announced: list[Any] = []
    read: list[Any] = []

    class Told(EvaluationSession):
        reading = False

        def request(self, **told: Any) -> None:
            kept = {"max_new_tokens": 0, "hidden": None, "layer": None, "moments": False, **told}
            of_states = (kept["hidden"], kept["layer"], kept["moments"])
            where = read if self.reading else announced
            where += [(s, *of_states) for s in kept.get("sequences", ())]
            where += [(tuple(p), kept["max_new_tokens"]) for p in kept.get("prompts", ())]
            super().request(**told)

    assert isinstance(READERS[kind](), Requesting)
    session, evaluator = Told(model, stop_ids=STOPS), READERS[kind]()
    evaluator.request(session)
    session.reading = True
    evaluator.evaluate(session)
    assert set(read) == set(announced)


def test_leakage_announces_its_greedy_answers_alone() -> None:
    asked: list[dict[str, Any]] = []

    class Told:
        def request(self, **told: Any) -> None:
            asked.append(told)

    questions: Any = [type("Q", (), {"prompt": (1, i)}) for i in range(3)]
    unused: Any = None
    LeakageEvaluator(questions, text, unused, 4, unused, unused, 7).request(Told())  # type: ignore[arg-type]
    assert asked == [{"prompts": [(1, 0), (1, 1), (1, 2)], "max_new_tokens": 7}]
