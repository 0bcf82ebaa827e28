"""Attacks by hand and by formula; AUC against scikit-learn and counted pairs; DeLong's test against its matrices."""

from __future__ import annotations

import itertools
import zlib

import numpy as np
import pytest
import torch
from scipy.stats import norm
from scipy.stats import t as student
from sklearn.metrics import roc_auc_score
from support import tiny_llama

from evaluation.engine.likelihood import Scores, score
from evaluation.engine.sequences import TokenSequence
from evaluation.hook import EvaluationSession, Hook
from evaluation.metrics import membership
from evaluation.metrics.membership import Candidate, MembershipEvaluator, auc, auc_difference, auc_interval


def pairs(x, y) -> float:
    return float(np.mean([(a > b) + 0.5 * (a == b) for a in x for b in y]))


def scores_of(log_probs, moments=None) -> Scores:
    logs = tuple(np.array(x, np.float32) for x in log_probs)
    total = np.array([-x.sum(dtype=np.float64) for x in logs])
    count = np.array([len(x) for x in logs])
    return Scores(total, total / count, count, logs, tuple(x > -1 for x in logs), None, moments)


def test_attacks_by_hand() -> None:
    logs = [-0.5, -1.0, -4.0, -2.5, -2.0]
    moments = (np.array([[-1.0, 0.5], [-1.0, 2.0], [-2.0, 1.0], [-2.5, 1.0], [-1.0, 0.0]]),)
    found = membership.attack_scores(scores_of([logs], moments), ["aaaa"], [-3.0])
    assert list(found) == list(membership.ATTACKS)
    values = {name: x.item() for name, x in found.items()}
    # Mean of five; the floor(0.2·5) = 1 and floor(0.4·5) = 2 lowest.
    assert values["loss"] == -2.0
    assert values["zlib"] == -2.0 / len(zlib.compress(b"aaaa"))
    assert (values["min_k_20"], values["min_k_40"]) == (-4.0, -3.25)
    # z: 1, 0, -2, 0, and (-2 + 1) / 1e-6 where the model was certain of something else.
    assert values["min_k_plus_plus"] == pytest.approx(-1e6)
    assert values["reference"] == 1.0
    assert set(membership.attack_scores(scores_of([logs]), ["a"], None)) == {"loss", "zlib", "min_k_20", "min_k_40"}


@pytest.mark.parametrize(
    ("size", "share", "count"),
    [
        (1, 0.2, 1),
        (4, 0.2, 1),
        (10, 0.2, 2),
        (9, 0.4, 3),
        (5, 1.0, 5),
        (333, 0.2, 66),
        (400, 0.4, 160),
        (100, 0.29, 29),
    ],
)
def test_lowest_mean_takes_the_floor_and_one_at_least(size: int, share: float, count: int) -> None:
    values = np.random.default_rng(size).normal(size=size)
    assert membership.lowest_mean(values, share) == pytest.approx(np.sort(values)[:count].mean())


def test_the_length_of_a_text_is_that_of_its_bytes_at_the_default_level() -> None:
    text = " ".join(f"Ä{i}" for i in np.random.default_rng(0).integers(0, 400, 2500))
    lengths = [len(zlib.compress(text.encode("utf-8"), level)) for level in (1, 6, 9)]
    assert len({*lengths, len(zlib.compress(text.encode("latin-1")))}) == 4
    assert membership.zlib_length(text) == lengths[1]


@pytest.mark.parametrize(("texts", "reference"), [(["a", "b"], None), (["a"], [1.0, 2.0]), ([], [1.0])])
def test_scores_of_other_texts_are_refused(texts, reference) -> None:
    with pytest.raises(ValueError, match="1 scored sequences do not fit"):
        membership.attack_scores(scores_of([[-1.0, -2.0]]), texts, reference)


@pytest.mark.parametrize(("values", "share"), [([], 0.2), ([1.0], 0.0), ([1.0], 1.1)])
def test_lowest_mean_of_nothing(values, share) -> None:
    with pytest.raises(ValueError, match="share"):
        membership.lowest_mean(np.array(values), share)


@pytest.mark.parametrize("mode", ["fused", "packed", "padded"])
def test_moments_are_those_of_the_predictive_distributions(mode: str) -> None:
    model, sequences = tiny_llama.base(), tiny_llama.sequences(12)
    with torch.no_grad():
        model.lm_head.weight[5] *= 40  # some positions are nearly certain
    wanted = sequences[::2]
    found = score(model, sequences, moments=wanted, token_budget=40, mode=mode)
    assert found.moments is not None
    np.testing.assert_allclose(found.sum_nll, score(model, sequences, mode=mode).sum_nll, rtol=1e-6)
    for i, (prompt, answer) in enumerate(sequences):
        if sequences[i] not in wanted:
            assert found.moments[i].shape == (0, 2)
            continue
        with torch.no_grad():
            logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1].double()
        logp = logits.log_softmax(-1)
        mean = (logp.exp() * logp).sum(-1)
        deviation = (logp.exp() * (logp - mean[:, None]) ** 2).sum(-1).sqrt()
        np.testing.assert_allclose(found.moments[i], torch.stack([mean, deviation], -1), atol=2e-5)


def test_moments_of_forbidden_tokens_are_numbers() -> None:
    from evaluation.engine.packing import PackedBatch
    from evaluation.engine.token_statistics import read_answers

    batch = PackedBatch.build([TokenSequence((1,), (0, 2))])
    logits = torch.tensor([[0.0, 0.0, -torch.inf, -torch.inf], [np.log(3.0), -torch.inf, 0.0, -torch.inf]])
    logp, _, moments = read_answers(iter([logits]), batch, moments=True)
    half, many, few = np.log(0.5), np.log(0.75), np.log(0.25)
    torch.testing.assert_close(logp, torch.tensor([half, few], dtype=torch.float32))
    assert moments is not None
    mean = 0.75 * many + 0.25 * few
    deviation = np.sqrt(0.75 * (many - mean) ** 2 + 0.25 * (few - mean) ** 2)
    np.testing.assert_allclose(moments, [[half, 0.0], [mean, deviation]], atol=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_auc_is_that_of_scikit_learn_and_of_counting_pairs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    # Whole numbers: many ties.
    x, y = rng.integers(0, 8, rng.integers(1, 30)), rng.integers(-2, 7, rng.integers(1, 30))
    labels = [1] * len(x) + [0] * len(y)
    assert auc(x, y) == pytest.approx(roc_auc_score(labels, np.concatenate([x, y])))
    assert auc(x, y) == pytest.approx(pairs(x, y))
    assert auc(x, y) + auc(y, x) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("x", "y", "expected"), [([2, 3], [0, 1], 1.0), ([0], [1], 0.0), ([1, 1], [1], 0.5), ([0, 2], [1], 0.5)]
)
def test_auc_by_hand(x, y, expected) -> None:
    assert auc(x, y) == expected


@pytest.mark.parametrize("x", [[], [np.nan], [[1.0]]])
def test_auc_of_what_is_no_group(x) -> None:
    for call in (auc, auc_interval):
        with pytest.raises(ValueError):
            call(x, [1.0])


def test_interval_is_that_of_resampling_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    x, y = rng.integers(2, 12, 15).astype(float), np.sort(rng.integers(0, 10, 9).astype(float))
    draws = np.random.default_rng(7)
    of_x, of_y = draws.integers(0, 15, (300, 15)), draws.integers(0, 9, (300, 9))
    by_hand = [pairs(x[i], y[j]) for i, j in zip(of_x, of_y, strict=True)]
    expected = np.quantile(by_hand, [0.05, 0.95])
    assert auc_interval(x, y, resamples=300, confidence=0.9, seed=7) == pytest.approx(tuple(expected))
    monkeypatch.setattr(membership, "BLOCK", 24 * 70)
    draws, by_hand = np.random.default_rng(7), []
    for count in (70, 70, 70, 70, 20):
        of_x, of_y = draws.integers(0, 15, (count, 15)), draws.integers(0, 9, (count, 9))
        by_hand += [pairs(x[i], y[j]) for i, j in zip(of_x, of_y, strict=True)]
    blocks = auc_interval(x, y, resamples=300, confidence=0.9, seed=7)
    assert blocks == pytest.approx(tuple(np.quantile(by_hand, [0.05, 0.95])))
    assert auc_interval([1, 2], [0], resamples=10) == (1.0, 1.0)


def test_an_interval_is_of_a_thousand_resamples_at_95_percent_unless_told_otherwise() -> None:
    x, y = np.random.default_rng(4).normal(size=(2, 30))
    told = {"resamples": 1000, "confidence": 0.95, "seed": 0}
    assert auc_interval(x, y) == auc_interval(x, y, **told)
    for key, other in (("resamples", 999), ("confidence", 0.9), ("seed", 1)):
        assert auc_interval(x, y) != auc_interval(x, y, **{**told, key: other})


def test_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    truth = norm.cdf(1 / np.sqrt(2))
    inside = 0
    for trial in range(200):
        low, high = auc_interval(rng.normal(1, 1, 40), rng.normal(0, 1, 40), resamples=200, seed=trial)
        inside += low <= truth <= high
    assert 0.88 <= inside / 200 <= 0.99


@pytest.mark.parametrize("options", [{"resamples": 0}, {"confidence": 1.0}])
def test_interval_with_bad_options(options) -> None:
    with pytest.raises(ValueError, match="resamples >= 1"):
        auc_interval([1.0], [0.0], **options)


def delong(x, y, u, v) -> tuple[float, float]:
    """Difference and its variance by the covariance matrices of the structural components, pair by pair."""
    n, m = len(x), len(y)

    def kernel(a, b):
        return np.array([[(i > j) + 0.5 * (i == j) for j in b] for i in a])

    first, second = kernel(x, y), kernel(u, v)
    ten, one = np.cov(first.mean(1), second.mean(1)) / n, np.cov(first.mean(0), second.mean(0)) / m
    covariance, contrast = ten + one, np.array([1.0, -1.0])
    return first.mean() - second.mean(), float(contrast @ covariance @ contrast)


@pytest.mark.parametrize("seed", range(4))
def test_difference_is_delongs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 9, 25), rng.integers(0, 7, 17)
    u, v = x + rng.integers(-2, 3, 25), y + rng.integers(-2, 5, 17)
    value, variance = delong(x, y, u, v)
    found = auc_difference((x, y), (u, v))
    assert found is not None and found.value == pytest.approx(value)
    assert found.p_value == pytest.approx(2 * (1 - student.cdf(abs(value) / np.sqrt(variance), 16)))
    assert found.high - found.low == pytest.approx(2 * student.ppf(0.975, 16) * np.sqrt(variance))
    other = auc_difference((u, v), (x, y))
    assert other is not None and other.value == pytest.approx(-value) and other.p_value == pytest.approx(found.p_value)


def test_differences_without_variance() -> None:
    high, low = np.arange(8.0) + 10, np.arange(9.0)
    same = auc_difference((high, low), (2 * high, -low))
    assert same is not None and (same.value, same.p_value) == (0.0, 1.0)
    turned = auc_difference((high, low), (-high, low))
    assert turned is not None and (turned.value, turned.high) == (1.0, 1.0)
    assert turned.p_value == 2.0**-7, "that of eight differences of one sign"


def test_an_interval_ends_where_no_difference_can_be() -> None:
    x, y = np.arange(8.0) + 10, np.arange(9.0)
    worse = np.where(x == 10, 20, -x)
    value, variance = delong(x, y, worse, y)
    assert value < 1 < value + student.ppf(0.975, 7) * np.sqrt(variance)
    found, other = auc_difference((x, y), (worse, y)), auc_difference((worse, y), (x, y))
    assert found is not None and other is not None
    assert (found.high, other.low) == (1.0, -1.0)
    assert (-other.high, other.p_value) == pytest.approx((found.low, found.p_value))


@pytest.mark.parametrize(("members", "others"), [(2, 40), (7, 8), (40, 7)])
def test_with_few_records_in_a_group_nothing_is_tested(members: int, others: int) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=members) + 9, rng.normal(size=others)
    assert auc_difference((x, y), (-x, y)) is None
    ids = {f"{i}": float(v) for i, v in enumerate(x)}, {f"{i}": float(v) for i, v in enumerate(y)}
    model = dict(zip(("members", "others"), ids, strict=True))
    assert membership.compared("loss", model, model, 0.95) == {}


def test_differences_of_other_records() -> None:
    with pytest.raises(ValueError, match="of the other"):
        auc_difference(([1.0, 2.0], [0.0, 1.0]), ([1.0], [0.0, 1.0]))


def candidates(prefix: str, sequences) -> list[Candidate]:
    return [Candidate(f"{prefix}{i}", s, " ".join(map(str, s.answer))) for i, s in enumerate(sequences)]


def run(model, **options):
    sequences = tiny_llama.sequences(16)
    evaluator = MembershipEvaluator(candidates("m", sequences[:8]), candidates("h", sequences[8:]), **options)
    hook = Hook([evaluator], strict=True)
    return hook.run(EvaluationSession(model, stop_ids=[2])).results["membership"]


def test_the_evaluator_by_definition() -> None:
    model, sequences = tiny_llama.base(), tiny_llama.sequences(16)
    reference = {f"{p}{i}": -float(i) for p in "mh" for i in range(8)}
    result = run(model, reference=reference, resamples=50, confidence=0.7, seed=4)
    scored = score(model, sequences, moments=sequences)
    texts = [" ".join(map(str, s.answer)) for s in sequences]
    expected = membership.attack_scores(scored, texts, [-i for i in (*range(8), *range(8))])
    assert list(result.details) == list(membership.ATTACKS)
    for name, values in expected.items():
        assert result.details[name]["members"]["m3"] == pytest.approx(values[3])
        assert result.details[name]["others"]["h5"] == pytest.approx(values[13])
        assert result.metrics[f"auc_{name}"] == pytest.approx(roc_auc_score([1] * 8 + [0] * 8, values))
        low, high = auc_interval(values[:8], values[8:], resamples=50, confidence=0.7, seed=4)
        assert (result.metrics[f"auc_{name}_low"], result.metrics[f"auc_{name}_high"]) == pytest.approx((low, high))
    assert len(result.metrics) == 3 * 6


def test_attacks_that_are_asked_for() -> None:
    result = run(tiny_llama.base(), attacks=["min_k_40", "reference"])
    assert list(result.details) == ["min_k_40"], "there is no reference model"
    some = {f"m{i}": -1.0 for i in range(8)}
    assert "reference" not in run(tiny_llama.base(), reference=some, resamples=1).details, "nor of the other group"
    with pytest.raises(ValueError, match="unknown attacks"):
        MembershipEvaluator([], [], attacks=["lira"])
    empty = MembershipEvaluator(candidates("m", tiny_llama.sequences(2)), [])
    assert not Hook([empty], strict=True).run(EvaluationSession(tiny_llama.base(), stop_ids=[2])).metrics


def test_beside_a_retrained_model() -> None:
    oracle = run(tiny_llama.base(1)).details
    given = {"oracle": {k: v for k, v in oracle.items() if k != "zlib"}, "attacks": ["loss", "zlib"]}
    result = run(tiny_llama.base(), confidence=0.5, **given)
    mine, theirs = result.details["loss"], oracle["loss"]
    expected = auc_difference(
        tuple(list(mine[k].values()) for k in ("members", "others")),
        tuple(list(theirs[k].values()) for k in ("members", "others")),
        confidence=0.5,
    )
    assert expected is not None
    names = ("_difference", "_difference_low", "_difference_high", "_p")
    assert [result.metrics[f"auc_loss{x}"] for x in names] == pytest.approx(
        [expected.value, expected.low, expected.high, expected.p_value]
    )
    assert not any(k.startswith("auc_zlib_") and k.endswith("_p") for k in result.metrics)


def test_only_the_records_that_both_models_have_are_compared() -> None:
    rng = np.random.default_rng(0)
    mine = {g: {f"{g}{i}": v for i, v in enumerate(rng.normal(size=10))} for g in ("members", "others")}
    fewer = {g: {i: rng.normal() for i in itertools.islice(mine[g], 1, 9)} for g in mine}
    found = membership.compared("loss", mine, fewer, 0.95)
    part = [[mine[g][i] for i in fewer[g]] for g in ("members", "others")]
    other = [list(fewer[g].values()) for g in ("members", "others")]
    assert found["auc_loss_difference"] == pytest.approx(auc(*part) - auc(*other))
    moved = {"members": fewer["members"], "others": {**fewer["others"], "members0": 3.0, "members9": -3.0}}
    assert membership.compared("loss", mine, moved, 0.95) == found, "a record of the other group is another one"
    for group in (("members", {}), ("others", {}), ("members", {"x": 1.0})):
        assert membership.compared("loss", mine, {**mine, **dict([group])}, 0.95) == {}


def test_moments_that_are_announced_late_cost_a_pass_and_are_kept() -> None:
    model, sequences = tiny_llama.base(), tiny_llama.sequences(4)
    session = EvaluationSession(model, stop_ids=[2])
    plain = session.scores(sequences)
    assert plain.moments is None
    with_moments = session.scores(sequences, moments=True)
    assert with_moments.moments is not None and [len(m) for m in with_moments.moments] == plain.num_tokens.tolist()
    hidden = session.scores(sequences[:2], hidden="last")
    assert hidden.hidden is not None
    again = session.scores(sequences[:1], moments=True)
    assert again.moments is not None and np.array_equal(again.moments[0], with_moments.moments[0])
    with pytest.raises(ValueError, match="one after the other"):
        session.scores(sequences, hidden="last", moments=True)


def test_moments_that_several_ask_for_take_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    session, sequences = EvaluationSession(tiny_llama.base(), stop_ids=[2]), tiny_llama.sequences(4)
    for part in (sequences[:2], sequences[1:]):
        session.request(sequences=part, moments=True)
    session.compute()
    monkeypatch.setattr("evaluation.engine.likelihood.score", None)
    found = session.scores(sequences, moments=True)
    assert found.moments is not None and [len(m) for m in found.moments] == found.num_tokens.tolist()
