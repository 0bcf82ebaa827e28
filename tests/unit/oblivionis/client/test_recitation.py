"""A client goes on with what it still recites: looks by transformers' own generation, chance, and what is reported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from clients.unlearning_report import UnlearnReport
from evaluation.engine.sampling import sample
from evaluation.metrics.rouge import new_words, rouge_l
from oblivionis.client import worker as worker_module
from oblivionis.client.worker import Worker
from oblivionis.config import compose as configuration
from oblivionis.data.tokenize import text_start
from oblivionis.measures import recitation as recitation_module
from oblivionis.measures.recitation import sampled_recall

LIMIT = 0.5


@pytest.fixture(scope="module")
def learned() -> tuple[Worker, np.ndarray]:
    """A client that knows its records by heart, and whose unlearning would leave anything likely alone."""
    more = ["training.learning_rate=3e-3", "unlearning.learning_rate=3e-3", "evaluation.full.max_new_tokens=64"]
    worker = Worker(configuration.compose("smoke", ["unlearning=calibrated", "unlearning.tolerance=100", *more]))
    vector, _ = worker.finetune(0, worker.flat.numpy(), excluded=(), epochs=40, proximal_mu=0.0, seed=1)
    return worker, vector


def generated(worker: Worker, vector: np.ndarray) -> list[float]:
    """Recall of what transformers generates for each record of client 0."""
    worker.flat.load(vector)
    model, tokenizer = worker.assembled.model.eval(), worker.assembled.tokenizer
    texts, limit = [], worker.config.evaluation.full.max_new_tokens
    for sequence in worker.holding(0).sequences:
        prompt = torch.tensor([list(sequence.prompt)])
        stop = sorted(worker.assembled.stop_ids)
        tokens = model.generate(prompt, max_new_tokens=limit, do_sample=False, eos_token_id=stop, pad_token_id=0)
        texts.append(tokenizer.decode(tokens[0, prompt.shape[1] :], skip_special_tokens=True))
    answers = [record.answer for record in worker.holding(0).records]
    return rouge_l(texts, answers, any_script=True).recall.tolist()


def forget(worker: Worker, vector: np.ndarray, ids: list[str]) -> tuple[np.ndarray, Any]:
    return worker.forget(0, vector, record_ids=ids, tombstones=ids, proximal_mu=0.0, seed=1)


@pytest.mark.slow
def test_what_is_recited_is_served_until_it_is_not(learned: tuple[Worker, np.ndarray]) -> None:
    """All records are within the tolerance, so that recitation alone is a reason; what nobody asked for stays."""
    worker, vector = learned
    before = generated(worker, vector)
    assert min(before) > 0.9
    ids = [record.id for record in worker.holding(0).records]
    after, report = forget(worker, vector, ids[:2])
    recalls = generated(worker, after)
    assert report.steps > 0 and max(recalls[:2]) <= LIMIT and np.mean(recalls[2:]) > 0.8
    assert report.num_examples == 2 and np.isfinite([report.first_gap, report.last_gap]).all()


def test_the_report_is_of_all_updates() -> None:
    """By hand: from the first unlearning to the last; one without an update adds its seconds alone."""
    first = UnlearnReport(2, 4, True, 6, 5.0, 4.0, 0.1, 1.0, 2.0, 2.5, False, 3.0, 0.9, 0.2)
    second = UnlearnReport(2, 4, True, 3, 3.0, 2.0, 1.1, 1.2, 2.6, 2.7, False, 1.5, 0.21, 0.1)
    assert first.then(second) == UnlearnReport(2, 4, True, 9, 5.0, 2.0, 0.1, 1.2, 2.0, 2.7, False, 4.5, 0.9, 0.1)
    idle = replace(second, steps=0)
    assert first.then(idle) == replace(first, seconds=4.5) and idle.then(first) == replace(first, seconds=4.5)


@pytest.mark.slow
def test_a_model_that_recites_nothing_is_left_alone(learned: tuple[Worker, np.ndarray]) -> None:
    worker, _ = learned
    start = Worker(worker.config).flat.numpy()
    ids = [record.id for record in worker.holding(0).records][:2]
    after, report = forget(worker, start, ids)
    assert report.steps == 0 and after.tobytes() == start.tobytes()


@pytest.mark.parametrize(("chance", "served"), [(0.2, True), (0.95, False)])
@pytest.mark.slow
def test_what_the_base_model_says_by_chance_is_left_alone(
    learned: tuple[Worker, np.ndarray], monkeypatch: pytest.MonkeyPatch, chance: float, served: bool
) -> None:
    worker, vector = learned
    asked: list[bytes] = []

    def recalls(session: Any, records: Any, assembled: Any, config: Any) -> list[float]:
        asked.append(assembled.flat.numpy().tobytes())
        return [chance if asked[-1] != asked[0] and len(asked) == 2 else 0.9 if len(asked) == 1 else 0.0] * len(records)

    monkeypatch.setattr(worker_module, "greedy_recall", recalls)
    after, report = forget(worker, vector, [worker.holding(0).records[0].id])
    assert (report.steps > 0) == served and (after.tobytes() != vector.tobytes()) == served
    assert asked[0] == vector.tobytes() and asked[1] != vector.tobytes(), "the base model is asked for its chance"


@pytest.mark.parametrize(("sampled", "chance", "served"), [(4, 0.2, True), (4, 0.95, False), (0, 0.2, False)])
@pytest.mark.slow
def test_what_a_sampled_answer_recites_is_served(
    learned: tuple[Worker, np.ndarray], monkeypatch: pytest.MonkeyPatch, sampled: int, chance: float, served: bool
) -> None:
    """Greedy decoding recites nothing here; of the four answers of the received model one does."""
    worker, vector = learned
    greedy_only = worker.config
    worker.config = replace(greedy_only, unlearning=replace(greedy_only.unlearning, sampled_answers=sampled))
    asked: list[bytes] = []

    def recalls(records: Any, assembled: Any, config: Any, *, samples: int, seed: int) -> list[float]:
        assert samples == sampled and config is worker.config
        asked.append(assembled.flat.numpy().tobytes())
        return [{1: 0.9, 2: chance}.get(len(asked), 0.0)] * len(records)

    monkeypatch.setattr(worker_module, "greedy_recall", lambda session, records, *given: [0.0] * len(records))
    monkeypatch.setattr(worker_module, "sampled_recall", recalls)
    try:
        after, report = forget(worker, vector, [worker.holding(0).records[0].id])
    finally:
        worker.config = greedy_only
    assert (report.steps > 0) == served and (after.tobytes() != vector.tobytes()) == served
    assert len(asked) == (0 if not sampled else 3 if served else 2)


@pytest.mark.slow
def test_sampled_recall_is_that_of_the_best_answer(learned: tuple[Worker, np.ndarray]) -> None:
    """Against ROUGE of each answer alone; of more answers the best is at least as good."""
    worker, _ = learned
    worker.flat.load(Worker(worker.config).flat.numpy())
    records, assembled, config = worker.holding(0).records[:3], worker.assembled, worker.config
    assembled.model.eval()
    single = [sampled_recall([r], assembled, config, samples=6, seed=7) for r in records]
    together = sampled_recall(records, assembled, config, samples=6, seed=7)
    assert together[0] == single[0][0], "an answer depends on its question's place and the seed alone"
    limit, tokenizer = config.evaluation.full.max_new_tokens, assembled.tokenizer
    prompts = [list(sequence.prompt) for sequence in worker.holding(0).sequences[:3]]
    drawn = sample(assembled.model, prompts, 6, max_new_tokens=limit, stop_ids=assembled.stop_ids, seed=7)
    texts = [[tokenizer.decode(tokens, skip_special_tokens=True) for tokens in answers] for answers in drawn]
    for record, answers, found in zip(records, texts, together, strict=True):
        words = " ".join(new_words(record.answer, record.question))
        assert found == max(rouge_l([answer], [words], any_script=True).recall[0] for answer in answers)
    assert all(
        a <= b for a, b in zip(sampled_recall(records, assembled, config, samples=2, seed=7), together, strict=True)
    )


@pytest.mark.slow
def test_of_a_text_the_best_sampled_continuation_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of three continuations of the second text's first half is the text's own, and none of the first text's."""
    worker = Worker(configuration.compose("muse_tiny"))
    records = worker.holding(0).records[:2]

    def sampled(model: Any, prompts: Any, samples: int, *, max_new_tokens: int, **given: Any) -> list[list[list[int]]]:
        assert len(prompts) == 2 and samples == 3
        own = list(records[1].tokens[len(prompts[1]) - len(text_start(worker.assembled.tokenizer)) :])
        return [[[], [], []], [[], own[:max_new_tokens], []]]

    monkeypatch.setattr(recitation_module, "sample", sampled)
    found = sampled_recall(records, worker.assembled, worker.config, samples=3, seed=1)
    assert found == [0.0, 1.0]


@pytest.mark.slow
def test_other_methods_look_at_no_answers(learned: tuple[Worker, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    worker, vector = learned
    calibrated, worker.config = worker.config, configuration.compose("smoke", ["unlearning=npo"])
    monkeypatch.setattr(worker_module, "greedy_recall", lambda *given: pytest.fail("an answer was generated"))
    try:
        forget(worker, vector, [worker.holding(0).records[0].id])
    finally:
        worker.config = calibrated
