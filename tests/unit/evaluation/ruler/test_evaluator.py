"""RULER in the evaluation hook: its metrics are the lenses on states that transformers itself gives, in one pass."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import ttest_1samp, wilcoxon
from support import tiny_llama

from evaluation.hook import EvaluationSession, Hook, Result
from evaluation.ruler import lenses
from evaluation.ruler.evaluator import Answered, Embedded, References, RulerEvaluator, lens_1
from evaluation.ruler.rank_significance import RankTest, rank_test

RECORDS = [Answered(f"r{i}", s) for i, s in enumerate(tiny_llama.sequences(17, seed=3))]
FORGET, RETAIN = RECORDS[:5], RECORDS[5:]


def plain_states(model: Any, records: list[Answered], pooling: str, layer: int | None) -> np.ndarray:
    """One record after the other through the plain model: states after a layer, or after the norm."""
    rows = []
    for record in records:
        prompt, answer = record.sequence
        with torch.no_grad():
            output = model(input_ids=torch.tensor([prompt + answer]), output_hidden_states=True)
        states = output.hidden_states[-1 if layer is None else layer + 1][0, len(prompt) :]
        rows.append(states[-1] if pooling == "last" else states.mean(0))
    return torch.stack(rows).numpy()


def embedded(model: Any, pooling: str = "last", layer: int | None = None) -> Embedded:
    return Embedded(
        tuple(r.id for r in FORGET),
        plain_states(model, FORGET, pooling, layer),
        tuple(r.id for r in RETAIN),
        plain_states(model, RETAIN, pooling, layer),
    )


class Plain:
    """An evaluator that wants the scores of the same records and of some more, without states."""

    name = "plain"

    def request(self, session: EvaluationSession) -> None:
        session.request(sequences=[r.sequence for r in RECORDS])

    def evaluate(self, session: EvaluationSession) -> Result:
        return Result({"nll": float(session.scores([r.sequence for r in RECORDS]).mean_nll.mean())})


@pytest.mark.parametrize("mode", ["fused", "packed", "padded"])
@pytest.mark.parametrize(("pooling", "layer"), [("last", None), ("mean", None), ("last", 1), ("mean", 0)])
def test_the_metrics_are_the_lenses_on_plainly_computed_states(pooling: str, layer: int | None, mode: str) -> None:
    model, original, oracle = (tiny_llama.base(seed, num_hidden_layers=3) for seed in (0, 1, 2))
    expected = plain_states(copy.deepcopy(model), RECORDS, pooling, layer)
    first, second = embedded(original, pooling, layer), embedded(oracle, pooling, layer)
    evaluator = RulerEvaluator(FORGET, RETAIN, pooling, layer, References(first, second), retain_sample=4)
    report = Hook([evaluator], strict=True).run(EvaluationSession(model, stop_ids=(), mode=mode))
    result = report.results["ruler"]
    forget, retain = expected[:5], expected[5:]
    ranks = lenses.percentile_rank(forget, retain)
    assert dict(result.metrics) == pytest.approx(
        {
            "mean_rank": ranks.mean,
            "oracle_similarity": lenses.oracle_similarity(forget, second.forget),
            "gap": lenses.calibration_gap(forget, second.forget, retain, second.retain, sample=4),
            "shift": lenses.representation_shift(first.forget, forget, second.forget),
        },
        abs=1e-5,
    )
    assert result.details["ids"] == [r.id for r in FORGET]
    assert result.details["ranks"] == pytest.approx(ranks.ranks.tolist())
    np.testing.assert_allclose(result.details["embedded"].retain, retain, atol=1e-5)


@pytest.mark.parametrize("first", [True, False])
def test_it_shares_the_pass_that_scores_the_answers(first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    lookup = torch.nn.Embedding.forward

    def watched(self: torch.nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
        sizes.append(ids.numel())
        return lookup(self, ids)

    monkeypatch.setattr(torch.nn.Embedding, "forward", watched)
    ruler = RulerEvaluator(FORGET, RETAIN)
    evaluators = [ruler, Plain()] if first else [Plain(), ruler]
    report = Hook(evaluators, strict=True).run(EvaluationSession(tiny_llama.base(), stop_ids=()))
    assert set(report.metrics) == {"plain/nll", "ruler/mean_rank"}
    tokens = {(s.prompt + s.answer)[:n] for s in (r.sequence for r in RECORDS) for n in range(1, len(sum(s, ())) + 1)}
    assert sizes == [len(tokens)], "every distinct token once, the last answer tokens among them"


def test_lens_1_pairs_records_by_id() -> None:
    rng = np.random.default_rng(0)
    model, original, oracle = (
        Embedded(("a", "b"), rng.normal(size=(2, 4)), ("c", "d", "e"), rng.normal(size=(3, 4))) for _ in range(3)
    )

    def mixed(known: Embedded) -> Embedded:
        return Embedded(
            ("x", "b", "a"),
            np.vstack([rng.normal(size=4), known.forget[::-1]]),
            ("e", "x", "c", "d"),
            np.vstack([known.retain[2], rng.normal(size=4), known.retain[:2]]),
        )

    shuffled = mixed(oracle)
    expected = lens_1(model, References(original, oracle))
    assert lens_1(model, References(original, shuffled)) == expected
    assert lens_1(model, References(mixed(original), oracle)) == expected

    def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.array([x @ y / np.sqrt((x @ x) * (y @ y)) for x, y in zip(a, b, strict=True)])

    near = cosine(model.forget, oracle.forget)
    assert expected == pytest.approx(
        {
            "oracle_similarity": near.mean(),
            "gap": near.mean() - np.median(cosine(model.retain, oracle.retain)),
            "shift": (near - cosine(original.forget, oracle.forget)).mean(),
        }
    )
    assert shuffled.covers(("a",), ("e", "c")) and not shuffled.covers(("c",), ())
    with pytest.raises(KeyError):
        lens_1(shuffled, References(original, oracle))


def test_what_does_not_fit_together_is_refused() -> None:
    rows = np.ones((2, 3), np.float32)
    with pytest.raises(ValueError, match=r"1 forget records, but representations of shape \(2, 3\)"):
        Embedded(("a", "a"), rows, ("b", "c"), rows)
    with pytest.raises(ValueError, match=r"3 retain records"):
        Embedded(("a", "b"), rows, ("b", "c", "d"), rows)
    with pytest.raises(ValueError, match="unknown pooling 'all', expected last or mean"):
        RulerEvaluator(FORGET, RETAIN, "all")
    with pytest.raises(ValueError, match="5 forget and 1 retain records, expected at least 1 and 2"):
        RulerEvaluator(FORGET, RETAIN[:1])


def test_a_layer_that_the_model_lacks_fails_this_evaluator_alone() -> None:
    evaluators = [RulerEvaluator(FORGET, RETAIN, layer=2), Plain()]
    report = Hook(evaluators).run(EvaluationSession(tiny_llama.base(), stop_ids=()))
    assert set(report.results) == {"plain"} and "decoder layers 0 to 1" in report.failed["ruler"]


def test_the_rank_test_is_wilcoxons_with_the_standard_error_of_the_mean() -> None:
    ranks = np.random.default_rng(1).beta(4, 2, size=40)
    found = rank_test(ranks)
    assert found.mean == pytest.approx(ranks.mean()) and found.records == 40
    assert found.p_value == pytest.approx(wilcoxon(ranks, np.full(40, 0.5)).pvalue)
    # The t statistic of the mean against 0.5 is the distance in standard errors.
    assert (found.mean - 0.5) / found.error == pytest.approx(ttest_1samp(ranks, 0.5).statistic)
    assert found.verdict == "above" and rank_test(1 - ranks).verdict == "below"


@pytest.mark.parametrize(
    ("ranks", "verdict"),
    [([1.0] * 5, "undecided"), ([1.0] * 6, "above"), ([0.0] * 6, "below"), ([0.5] * 6, "near"), ([0, 1] * 4, "near")],
)
def test_few_records_tell_nothing(ranks: list[float], verdict: str) -> None:
    assert rank_test(ranks).verdict == verdict


@pytest.mark.parametrize(
    ("mean", "p", "records", "verdict"),
    [
        (0.6, 0.05, 20, "above"),
        (0.4, 0.05, 20, "below"),
        (0.6, 0.0501, 20, "near"),
        (0.5, 0.01, 20, "near"),
        (0.6, 0.01, 6, "above"),
        (0.6, 0.01, 5, "undecided"),
    ],
)
def test_a_p_value_of_just_the_level_is_significant(mean: float, p: float, records: int, verdict: str) -> None:
    assert RankTest(mean, 0.1, p, records).verdict == verdict


def test_the_rank_test_at_its_borders() -> None:
    alone = rank_test([0.25])
    assert math.isnan(alone.error) and alone.p_value == 1.0
    assert rank_test([0.5] * 9).p_value == 1.0
    for bad in ([], [0.2, 1.5], [math.nan]):
        with pytest.raises(ValueError, match=r"all of them in \[0, 1\]"):
            rank_test(bad)
