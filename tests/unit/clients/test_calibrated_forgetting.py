"""Up to what a record is forgotten: the line by scipy and by hand, known cases, both sides, any method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import linregress
from support import tiny_llama
from torch import nn

from clients import update_gradient
from clients.batch_quantities import BatchQuantities
from clients.calibrated_forgetting import (
    LEAST_REFERENCES,
    Estimator,
    Target,
    Tokens,
    batches,
    kept_predictions,
    logit,
    never_seen_nll,
    never_seen_token_nll,
    record_nll,
    sharpness_for,
)
from clients.distributions import mean_entropy
from clients.flat_parameters import FlatParameters
from clients.forgetting_target import ForgettingTarget
from clients.training import TrainSettings, train
from clients.unlearning import UnlearnOptions, unlearn
from clients.update_plan import PlannedUpdate, UpdateKind
from evaluation.engine.forward import AnswerRows, answer_rows
from evaluation.engine.sequences import TokenSequence

FORGET, RETAIN = tiny_llama.sequences(5, seed=1), tiny_llama.sequences(4, seed=2)
REFERENCES = tiny_llama.sequences(30, seed=3)


def settings(**changes: Any) -> TrainSettings:
    return TrainSettings(**{"epochs": 25, "batch_size": 5, "learning_rate": 5e-3, "warmup_epochs": 0, **changes})


def test_the_estimate_is_the_least_squares_line() -> None:
    rng = np.random.default_rng(0)
    base = rng.uniform(0.5, 3.0, 40)
    now = 0.6 * base + 0.9 + rng.normal(0, 0.3, 40)
    found = linregress(base, now)
    asked = np.array([0.7, 1.9, 5.0])
    np.testing.assert_allclose(never_seen_nll(base, now, asked), found.intercept + found.slope * asked, rtol=1e-12)


def test_a_line_by_hand() -> None:
    """References at 1 and 3 that rose by 1 and 2: the line is 0.5 + 1.5 x."""
    base, now = np.array([1.0, 3.0] * 4), np.array([2.0, 5.0] * 4)
    np.testing.assert_allclose(never_seen_nll(base, now, np.array([1.0, 2.0, 4.0])), [2.0, 3.5, 6.5])


def test_a_line_that_falls_is_flat_and_nothing_is_below_zero() -> None:
    base = np.array([1.0, 3.0] * 4)
    np.testing.assert_allclose(never_seen_nll(base, 4 - base, np.array([0.0, 9.0])), [2.0, 2.0])
    np.testing.assert_allclose(never_seen_nll(base, base * 2 - 1.5, np.array([0.1])), [0.0])
    np.testing.assert_allclose(never_seen_nll(np.ones(8), np.full(8, 0.4), np.array([7.0])), [0.4])


def test_too_few_references_are_refused() -> None:
    few = np.ones(LEAST_REFERENCES - 1)
    with pytest.raises(ValueError, match=f"{LEAST_REFERENCES - 1} records that nobody trains on are too few"):
        never_seen_nll(few, few, few)
    with pytest.raises(ValueError, match="do not fit"):
        never_seen_nll(np.ones(60), np.ones(61), few)


def monotone(base: np.ndarray, now: np.ndarray) -> np.ndarray:
    """Isotonic regression at the sorted base values: the largest of the least means of runs, by brute force."""
    values = np.unique(base)
    runs = [[now[(base >= low) & (base <= high)].mean() for high in values if high >= low] for low in values]
    return np.array([max(min(runs[j][i - j :]) for j in range(i + 1)) for i in range(len(values))])


def test_tokens_divide_a_records_mean_by_a_monotone_curve() -> None:
    rng = np.random.default_rng(1)
    base = rng.integers(0, 9, 40) / 3
    now = np.maximum(base + rng.normal(0.5, 0.8, 40), 0)
    own = [np.array([0.0, 0.5, 2.9]), np.array([1.0]), np.array([-1.0, 9.0])]
    found = never_seen_token_nll(base, now, own, np.array([0.9, 2.0, 0.0]))
    curve = [np.interp(values, np.unique(base), monotone(base, now)) for values in own]
    for values, expected, mean in zip(found, curve, (0.9, 2.0, 0.0), strict=True):
        np.testing.assert_allclose(values, expected * mean / expected.mean(), atol=1e-12)
        assert values.mean() == pytest.approx(mean)
    flat = never_seen_token_nll(base, np.zeros(40), own[:1], np.array([0.4]))
    np.testing.assert_allclose(flat[0], [0.4] * 3)


def padded_rows(model: Any, record: Any) -> torch.Tensor:
    """(L, V) logits that predict the answer's tokens, by a plain forward pass."""
    logits = model(input_ids=torch.tensor([[*record.prompt, *record.answer]])).logits[0].float()
    return logits[len(record.prompt) - 1 : -1]


@torch.no_grad()
def test_the_true_tokens_get_their_probability_and_the_references_their_entropy() -> None:
    """In distributions made by hand of the base model's logits; the other tokens' odds are those of the base model."""
    model = tiny_llama.shallow().eval()
    flat = FlatParameters(model)
    start = flat.numpy()
    before = [padded_rows(model, r) for r in [*REFERENCES, *FORGET]]
    flat.load(start * np.float32(1.5))
    now = [padded_rows(model, r) for r in REFERENCES]
    target = Estimator(model, flat, start, REFERENCES, 4).target(FORGET, 0.1)
    assert target.lowered is not None

    def entropy(rows: list[torch.Tensor]) -> float:
        return torch.special.entr(torch.cat(rows).softmax(-1)).sum(-1).mean().item()

    sharpened = [rows * target.sharpness for rows in before]
    assert entropy(sharpened[: len(REFERENCES)]) == pytest.approx(entropy(now), abs=5e-3)

    def losses(rows: list[torch.Tensor], records: list[Any]) -> list[np.ndarray]:
        pairs = zip(rows, records, strict=True)
        return [-x.log_softmax(-1)[range(len(r.answer)), r.answer].double().numpy() for x, r in pairs]

    known = [np.concatenate(losses(rows, REFERENCES)) for rows in (before[: len(REFERENCES)], now)]
    own = losses(before[len(REFERENCES) :], FORGET)
    wanted = never_seen_token_nll(known[0], known[1], own, target.nll.double().numpy())
    made = zip(sharpened[len(REFERENCES) :], FORGET, target.lowered, wanted, strict=True)
    for rows, record, lowered, expected in made:
        places = (range(len(record.answer)), record.answer)
        rows[places] -= lowered
        np.testing.assert_allclose(-rows.log_softmax(-1)[places], np.maximum(expected, 1e-4), atol=2e-3)


@torch.no_grad()
def test_recited_tokens_are_those_that_the_target_would_not_choose() -> None:
    """By the base model's logits and plain argmax; of records that are not recited on none."""
    model = tiny_llama.shallow().eval()
    flat = FlatParameters(model)
    start = flat.numpy()
    before = [padded_rows(model, r) for r in FORGET]
    flat.load(start * np.float32(1.5))
    estimator = Estimator(model, flat, start, REFERENCES, 4)
    assert estimator.target(FORGET, 0.1).recited is None
    target = estimator.target(FORGET, 1e3, recited=[0, 3])
    assert target.recited is not None and target.lowered is not None
    for i, (rows, record, lowered) in enumerate(zip(before, FORGET, target.lowered, strict=True)):
        rows = rows * target.sharpness
        rows[range(len(record.answer)), record.answer] -= lowered
        others = rows.argmax(-1) != torch.tensor(record.answer)
        assert target.recited[i].tolist() == (others & (i in (0, 3))).tolist()
    assert target.recited[0].any() and target.recited[3].any()


@pytest.mark.slow
def test_a_recited_record_is_served_further_though_it_is_at_its_target() -> None:
    """Until its tokens no longer lead, by a quarter of the rate; where there are none, nothing is done."""
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    start = flat.numpy()
    train(model, flat, FORGET, settings(epochs=30), seed=0)
    learned, estimator = flat.numpy(), Estimator(model, flat, start, REFERENCES, 4)
    target = estimator.target(FORGET, 1e3, recited=range(len(FORGET)))
    work = (model, flat, FORGET, RETAIN, "calibrated", {"gamma": 1e-9, "kappa": 0.0, "rho": 5.0})
    for given, moved in ((replace(target, recited=None), False), (target, True)):
        flat.load(learned)
        report = unlearn(*work, settings(epochs=12, batch_size=2), seed=0, options=UnlearnOptions(target=given))
        assert (report.steps > 0) == moved
    chosen = [padded_rows(model.eval(), r).argmax(-1) for r in FORGET]
    assert target.recited is not None
    led = [(c == torch.tensor(r.answer))[m] for c, r, m in zip(chosen, FORGET, target.recited, strict=True)]
    flat.load(learned)
    chosen = [padded_rows(model.eval(), r).argmax(-1) for r in FORGET]
    had = [(c == torch.tensor(r.answer))[m] for c, r, m in zip(chosen, FORGET, target.recited, strict=True)]
    assert torch.cat(led).float().mean() < 0.1 < 0.8 < torch.cat(had).float().mean()


def test_the_target_is_what_the_base_model_says_where_nothing_was_trained() -> None:
    """And the parameters, and the mode, are as before."""
    model = tiny_llama.shallow(dropout=0.3).train()
    flat = FlatParameters(model)
    start = flat.numpy()
    target = Estimator(model, flat, start, REFERENCES, 4).target(FORGET, 0.1)
    assert model.training
    expected = [-x.mean().item() for x in tiny_llama.padded_log_probs(model.eval(), FORGET)]
    np.testing.assert_allclose(target.nll.numpy(), expected, atol=2e-4)
    moved = start + np.float32(0.05)
    flat.load(moved)
    Estimator(model, flat, start, REFERENCES, 4).target(FORGET, 0.1)
    np.testing.assert_array_equal(flat.numpy(), moved)


def test_an_estimator_says_again_what_a_new_one_says() -> None:
    """It knows the base model's part; the present model's changes."""
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    start = flat.numpy()
    asked = Estimator(model, flat, start, REFERENCES, 4)
    for factor in (1.5, 1.2, 1.5):
        flat.load(start * np.float32(factor))
        found, wanted = (e.target(FORGET, 0.01) for e in (asked, Estimator(model, flat, start, REFERENCES, 30)))
        np.testing.assert_allclose(found.nll, wanted.nll, rtol=1e-6)
        assert found.sharpness == pytest.approx(wanted.sharpness, rel=1e-3)
        assert found.lowered is not None and wanted.lowered is not None
        for one, other in zip(found.lowered, wanted.lowered, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-3)


def sharpened(rows: torch.Tensor, by: float) -> float:
    return torch.special.entr((rows * by).softmax(-1)).sum(-1).mean().item()


def test_a_sharpness_is_found_with_few_looks_at_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any entropy the cell in which it is met, or the one beside it where it is met at their border; the first or
    the last one beyond the range. What was asked is not asked again, and says the same as when it is asked anew."""
    asked: list[AnswerRows] = []

    def counted(rows: AnswerRows) -> tuple[float, float]:
        asked.append(rows)
        return mean_entropy(rows)

    monkeypatch.setattr("clients.calibrated_forgetting.mean_entropy", counted)
    cells = np.array([4 ** (2 * k / 1024 - 1) for k in range(1025)])
    for spread, raised in ((0.3, 0.0), (3.0, 0.0), (12.0, 0.0), (1.0, 8.0)):
        rows = torch.randn(200, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * spread
        rows[:, 0] += raised
        labels = torch.zeros(200, dtype=torch.long)
        kept = Tokens(AnswerRows(rows, None), labels, [200])
        for place in (0, 1, 300, 511, 512, 513, 640, 1000, 1023):
            entropy = sharpened(rows, float(np.sqrt(cells[place] * cells[place + 1])))
            new, before = Tokens(AnswerRows(rows, None), labels, [200]), len(asked)
            assert sharpness_for(new, entropy) == pytest.approx((cells[place] * cells[place + 1]) ** 0.5, rel=1e-12)
            assert len(asked) - before <= 12
            assert sharpness_for(kept, entropy) == sharpness_for(new, entropy)
        for entropy in np.linspace(sharpened(rows, 4.3), sharpened(rows, 0.23), 40):
            found = sharpness_for(kept, entropy)
            assert sharpened(rows, found * 1.0015) < entropy or found > cells[1023]
            assert sharpened(rows, found / 1.0015) > entropy or found < cells[1]
            known = len(asked)
            assert sharpness_for(kept, entropy) == found and len(asked) == known


@torch.no_grad()
def test_a_model_that_says_nothing_of_the_references_is_told() -> None:
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    start = flat.numpy()
    flat.load(np.full_like(start, np.nan))
    with pytest.raises(ValueError, match="of the reference records are not finite"):
        Estimator(model, flat, start, REFERENCES, 4).target(FORGET, 0.1)


def test_clients_of_one_round_ask_the_references_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks second gets what who asks first gets; other parameters are other answers."""
    passes: list[int] = []

    def counted(model: Any, batch: Any) -> Any:
        passes.append(len(batch.lengths))
        return answer_rows(model, batch)

    monkeypatch.setattr("clients.calibrated_forgetting.answer_rows", counted)
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    start = flat.numpy()

    def asked(estimator: Estimator, factor: float, records: list[TokenSequence]) -> tuple[Target, int]:
        flat.load(start * np.float32(factor))
        before = sum(passes)
        return estimator.target(records, 0.01), sum(passes) - before

    estimator = Estimator(model, flat, start, REFERENCES, 30)
    first, all_of = asked(estimator, 1.4, FORGET)
    assert all_of == 2 * len(REFERENCES) + 2 * len(FORGET)
    second, few = asked(estimator, 1.4, FORGET[:2])
    assert few == 2 * 2
    other, more = asked(estimator, 1.2, FORGET[:2])
    assert more == len(REFERENCES) + 2, "of the base model nothing is asked a second time"
    np.testing.assert_allclose(second.nll, first.nll[:2], rtol=1e-5)
    alone, _ = asked(Estimator(model, flat, start, REFERENCES, 30), 1.4, FORGET[:2])
    np.testing.assert_array_equal(second.nll, alone.nll)
    assert not np.allclose(other.nll, alone.nll, rtol=1e-3)


@pytest.mark.parametrize("records", [True, False])
def test_what_takes_too_much_is_made_anew(monkeypatch: pytest.MonkeyPatch, records: bool) -> None:
    """Of the records as much is kept as may be, the latest, and never in the references' place; the same targets."""
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    start = flat.numpy()
    flat.load(start * np.float32(1.4))
    asks = [FORGET[:1], FORGET[1:2], FORGET[2:3], FORGET[:1]]
    plenty = Estimator(model, flat, start, REFERENCES, 30)
    wanted = [plenty.target(ask, 0.01) for ask in asks]
    sizes = [one.rows.values.nbytes for one in plenty.kept_own.values()]
    assert len(sizes) == 3
    monkeypatch.setattr("clients.calibrated_forgetting.KEPT_BYTES", sum(sizes) - 1 if records else 1)
    scarce = Estimator(model, flat, start, REFERENCES, 30)
    for ask, expected in zip(asks, wanted, strict=True):
        found = scarce.target(ask, 0.01)
        assert (tuple(ask) in scarce.kept_own) == records
        assert len(scarce.kept_own) < 3
        np.testing.assert_array_equal(found.nll, expected.nll)
        assert found.sharpness == expected.sharpness
    for ask in (asks[2], asks[1]):
        scarce.target(ask, 0.01)
    assert list(scarce.kept_own) == ([tuple(asks[2]), tuple(asks[1])] if records else []), "the latest asked for"
    np.testing.assert_array_equal(flat.numpy(), start * np.float32(1.4))


@pytest.mark.parametrize(
    ("lengths", "size", "parts"),
    [
        ([600] * 5, 2, [2, 2, 1]),
        ([100] * 25, 2, [10, 10, 5]),
        ([512] * 4, 1, [2, 2]),
        ([512, 513], 1, [1, 1]),
        ([513] * 3, 1, [1, 1, 1]),
        ([5000, 1], 1, [1, 1]),
        ([5000, 1], 2, [2]),
        ([], 3, []),
    ],
)
def test_a_pass_holds_a_batch_or_more_records_while_they_are_short(lengths, size, parts) -> None:
    """As many as have 1024 tokens together, prompts and answers."""
    records = [TokenSequence(tuple(range(1, length)), (1,)) for length in lengths]
    found = list(batches(records, size))
    assert [len(part) for part in found] == parts and [r for part in found for r in part] == records


def test_a_logit_is_bounded_where_a_token_is_sure() -> None:
    p = np.array([0.01, 0.5, 0.9])
    np.testing.assert_allclose(logit(-np.log(p)), np.log(p / (1 - p)), rtol=1e-12, atol=1e-12)
    largest = np.log(1 / np.expm1(1e-4))
    np.testing.assert_allclose(logit(np.array([0.0, 1e-9, 1e-4])), largest, rtol=1e-12)


def test_records_near_their_target_are_left_alone() -> None:
    """Those known too well are forgotten, those avoided are pulled back; both by more than the tolerance."""
    gaps = torch.tensor([-1.0, -0.05, 0.05, 1.0, -0.11])
    target = Target(torch.zeros(5), 0.1, np.zeros(1))
    level = ForgettingTarget(
        nn.Linear(1, 1), [TokenSequence((1,), (2,))] * 5, 2, target, own=False, first=gaps, gaps=gaps
    )
    update = UpdateKind(("forget_nll",), frozenset({"forget_nll"}), True, True, False, False)
    task = PlannedUpdate(0, update, [3, 0, 1, 4], [30, 10, 11, 14])
    found = level.part(task)
    assert found is not None and (found.forget, found.retain) == ([0, 4], [10, 14])
    assert level.over_forgotten(task) == [3]
    assert level.part(PlannedUpdate(0, update, [1, 2], [1, 2])) is None


def test_each_epoch_looks_anew_at_which_records_are_there() -> None:
    model, records = tiny_llama.shallow(), FORGET[:3]
    now = record_nll(model, records, 2)
    gaps = torch.full((3,), -9.0)
    target = Target(now + torch.tensor([1.0, -1.0, 0.0]), 0.5, np.zeros(1))
    level = ForgettingTarget(model, records, 2, target, own=False, first=gaps, gaps=gaps)
    update = UpdateKind(("forget_nll",), frozenset({"forget_nll"}), True, False, False, False)
    for epoch, chosen in ((0, [0, 1, 2]), (1, [0]), (1, [0])):
        found = level.part(PlannedUpdate(epoch, update, [0, 1, 2], []))
        assert found is not None and found.forget == chosen
    assert level.over_forgotten(PlannedUpdate(1, update, [0, 1, 2], [])) == [1]
    assert level.first_and_last(moved=True) == pytest.approx((9.0, 2 / 3), rel=1e-4)


def test_records_do_not_drive_out_the_references(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    estimator = Estimator(model, flat, flat.numpy(), REFERENCES, 30)
    estimator.target(FORGET[:1], 0.01)
    known = estimator.kept_before
    assert known is not None
    monkeypatch.setattr("clients.calibrated_forgetting.KEPT_BYTES", known.rows.values.nbytes)
    for ask in (FORGET[1:], FORGET[:1], FORGET[1:]):
        estimator.target(ask, 0.01)
        assert estimator.kept_before is known


def test_what_the_estimate_found_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unlearning that has nothing to do goes by the likelihoods of the estimate; the same gap as by its own."""
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    start = flat.numpy()
    flat.load(start * np.float32(1.3))
    target = Estimator(model, flat, start, REFERENCES, 4).target(FORGET, 1e3)
    assert target.present is not None
    np.testing.assert_allclose(target.present, record_nll(model, FORGET, 5), rtol=1e-5)
    work = (model, flat, FORGET, RETAIN, "calibrated", {}, settings(epochs=3, batch_size=2))
    without = unlearn(*work, seed=0, options=UnlearnOptions(target=replace(target, present=None)))
    monkeypatch.setattr("clients.forgetting_target.record_nll", None)
    known = unlearn(*work, seed=0, options=UnlearnOptions(target=target))
    assert known.steps == without.steps == 0
    assert known.first_gap == known.last_gap == pytest.approx(without.first_gap, rel=1e-5)


def test_records_at_their_target_need_no_distribution() -> None:
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    estimator = Estimator(model, flat, flat.numpy(), REFERENCES, 4)
    flat.load(flat.numpy() * np.float32(1.3))
    gap = (record_nll(model, FORGET, 5) - estimator.target(FORGET, 1e-6).nll).abs().max().item()
    assert estimator.target(FORGET, gap * 1.2).lowered is None
    assert estimator.target(FORGET, gap * 0.99).lowered is not None
    assert estimator.target(FORGET, gap * (1 + 1e-6)).lowered is not None, "whoever rounds otherwise may unlearn it"


@pytest.mark.parametrize("lora", [True, False], ids=["states and a head", "logits"])
def test_what_the_base_model_said_is_what_it_would_say_again(lora: bool) -> None:
    """The same unlearning whether its rows are kept or made for each update."""
    moved = []
    for kept in (True, False):
        model = tiny_llama.shallow() if lora else tiny_llama.base()
        flat = FlatParameters(model)
        start = flat.numpy()
        flat.load(start * np.float32(1.3))
        target = Estimator(model, flat, start, REFERENCES, 4).target(FORGET, 0.01)
        assert target.rows is not None and (target.rows[0].head is not None) == lora
        options = UnlearnOptions(target=target if kept else replace(target, rows=None))
        unlearn(
            model, flat, FORGET, RETAIN, "calibrated", {}, settings(epochs=3, batch_size=2), seed=0, options=options
        )
        moved.append(flat.numpy())
    np.testing.assert_allclose(moved[0], moved[1], atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_copy_of_the_head_is_kept_that_takes_more_than_may_be(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32 the head is the model's own; of one in half precision a pass makes a float32 copy."""
    model = tiny_llama.shallow(dtype=dtype)
    flat = FlatParameters(model)
    start = flat.numpy()
    flat.load(start * np.float32(1.3))
    head = model.get_output_embeddings().weight
    monkeypatch.setattr("clients.calibrated_forgetting.KEPT_BYTES", 4 * head.numel() - 1)
    target = Estimator(model, flat, start, REFERENCES, 4).target(FORGET, 1e-6)
    assert target.lowered is not None and (target.rows is not None) == (dtype == torch.float32)


@pytest.mark.parametrize("seed", range(3))
def test_a_batch_at_its_target_is_passed_over_and_the_next_one_is_not(seed: int) -> None:
    """One record in an update, two of five off their target: two updates in whatever order they come."""
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    target = shifted(model, flat, [0.0, 0.9, 0.0, -0.9, 0.0])
    given = settings(epochs=1, batch_size=1, learning_rate=1e-6)
    report = unlearn(model, flat, FORGET, RETAIN, "npo", {}, given, seed=seed, options=UnlearnOptions(target=target))
    assert report.steps == 2


def shifted(model: Any, flat: FlatParameters, by: list[float]) -> Target:
    return Target(record_nll(model, FORGET, 5) + torch.tensor(by), 0.1, flat.numpy())


@pytest.mark.parametrize("method", ["calibrated", "npo", "grad_ascent"])
@pytest.mark.slow
def test_both_sides_reach_their_target_by_any_method(method: str) -> None:
    """Some records are known too well, some too little, one is where it should be."""
    model = tiny_llama.lora()
    flat = FlatParameters(model)
    target = shifted(model, flat, [0.8, 0.6, -0.5, 0.0, 0.5])
    asked = settings(epochs=40, learning_rate=4e-3, schedule="linear")
    report = unlearn(model, flat, FORGET, RETAIN, method, {}, asked, seed=0, options=UnlearnOptions(target=target))
    gaps = (record_nll(model, FORGET, 5) - target.nll).numpy()
    assert np.abs(gaps).max() < 0.3 and np.abs(gaps).mean() < 0.15
    assert report.first_gap == pytest.approx(np.mean([0.8, 0.6, 0.5, 0.0, 0.5]), abs=1e-4)
    assert report.last_gap == pytest.approx(np.abs(gaps).mean(), abs=1e-5)


@pytest.mark.parametrize("method", ["calibrated", "npo", "grad_diff"])
def test_records_at_their_target_are_left_alone(method: str) -> None:
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    before, target = flat.numpy(), shifted(model, flat, [0.05, -0.05, 0.0, 0.09, -0.09])
    report = unlearn(model, flat, FORGET, RETAIN, method, {}, settings(), seed=0, options=UnlearnOptions(target=target))
    np.testing.assert_array_equal(flat.numpy(), before)
    assert report.steps == 0 and report.first_gap == report.last_gap > 0 and not report.stopped


def test_a_method_works_on_the_records_known_too_well_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the others the gradient is that of the pull back, with the weight of their share; those within the tolerance,
    on either side, have none."""
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    target = shifted(model, flat, [0.9, -0.9, -0.05, 0.9, -0.6])
    seen: list[tuple[float, np.ndarray]] = []
    from clients import unlearning

    step = unlearning.Updater.step

    def kept(self: Any) -> None:
        seen.append((0.0, flat.grad.numpy().copy()))
        step(self)

    monkeypatch.setattr(unlearning.Updater, "step", kept)
    one = settings(epochs=1, max_grad_norm=None)
    options = UnlearnOptions(target=target)
    report = unlearn(model, flat, FORGET, RETAIN, "grad_ascent", {}, one, seed=0, options=options)
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    known, away = BatchQuantities(model, [FORGET[0], FORGET[3]], []), BatchQuantities(model, [FORGET[1], FORGET[4]], [])
    pull = ((away.forget_nll - target.nll[[1, 4]]) ** 2).sum()
    flat.zero_grad()
    loss = (known.forget_token_log_p[0].mean() + known.forget_token_log_p[1].mean() + pull) / 4
    loss.backward()
    assert len(seen) == 1 and report.first_loss == pytest.approx(loss.item(), abs=1e-5)
    nll = torch.cat([known.forget_nll, away.forget_nll]).mean().item()
    assert report.first_forget_nll == pytest.approx(nll, abs=1e-5), "of all four records of the update"
    np.testing.assert_allclose(seen[0][1], flat.grad.numpy(), atol=1e-5)


def test_steps_shorten_near_the_target() -> None:
    moved = []
    for shift in (2.0, 0.2):
        model = tiny_llama.shallow()
        flat = FlatParameters(model)
        before, target = flat.numpy(), shifted(model, flat, [shift] * 5)
        unlearn(
            model,
            flat,
            FORGET,
            RETAIN,
            "calibrated",
            {},
            settings(epochs=1),
            seed=0,
            options=UnlearnOptions(target=target),
        )
        moved.append(np.abs(flat.numpy() - before).max())
    assert moved[1] == pytest.approx(moved[0] * 0.1, rel=0.05)


@pytest.mark.parametrize(
    ("method", "gap", "asked", "made"),
    [
        ("calibrated", 3.0, 8, 8),
        ("calibrated", 0.9, 8, 4),
        ("calibrated", 0.85, 8, 4),
        ("calibrated", 0.2, 8, 3),
        ("calibrated", 0.2, 2, 2),
        ("npo", 0.9, 4, 4),
    ],
)
def test_epochs_go_by_the_way_left(method: str, gap: float, asked: int, made: int) -> None:
    """A method that asks for the target; any other one makes all epochs in which a record is off its target."""
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    options = UnlearnOptions(target=shifted(model, flat, [gap] * 5))
    given = settings(epochs=asked, learning_rate=1e-6)
    report = unlearn(model, flat, FORGET, RETAIN, method, {}, given, seed=0, options=options)
    assert report.steps == made


def test_a_record_at_the_tolerance_to_the_last_bit_is_near_enough() -> None:
    gaps = torch.tensor([-0.125, 0.125, -0.25])
    target = Target(torch.zeros(3), 0.125, np.zeros(1))
    for own in (False, True):
        level = ForgettingTarget(
            nn.Linear(1, 1), [TokenSequence((1,), (2,))] * 3, 2, target, own=own, first=gaps, gaps=gaps
        )
        update = UpdateKind(("forget_nll",), frozenset({"forget_nll"}), True, True, False, False)
        assert level.part(PlannedUpdate(0, update, [0, 1, 2], [])) == PlannedUpdate(
            0, update, [0, 1, 2] if own else [2], []
        )
        assert level.over_forgotten(PlannedUpdate(0, update, [0, 1, 2], [])) == []
        assert not level.met
        level.gaps = gaps[:2]
        assert level.met if own else level.part(PlannedUpdate(0, update, [0, 1], [])) is None


@pytest.mark.parametrize(("gap", "asked"), [(0.0, 0), (0.9, len(RETAIN))])
def test_where_every_record_is_at_its_target_nothing_is_prepared(
    monkeypatch: pytest.MonkeyPatch, gap: float, asked: int
) -> None:
    counts: list[int] = []

    def counted(model: nn.Module, records: Sequence[TokenSequence], batch_size: int) -> tuple[AnswerRows, ...] | None:
        counts.append(len(records))
        return kept_predictions(model, records, batch_size)

    monkeypatch.setattr(update_gradient, "kept_predictions", counted)
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    before, target = flat.numpy(), shifted(model, flat, [gap] * 5)
    options = UnlearnOptions(target=target, held=len(RETAIN))
    report = unlearn(model, flat, FORGET, RETAIN, "calibrated", {}, settings(epochs=8), seed=0, options=options)
    assert counts == [asked] and (report.steps > 0) == (asked > 0)
    assert (flat.numpy() == before).all() == (asked == 0)


def test_of_one_update_the_way_gone_is_told() -> None:
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    options = UnlearnOptions(target=shifted(model, flat, [0.9] * 5))
    report = unlearn(model, flat, FORGET, [], "grad_ascent", {}, settings(epochs=1), seed=0, options=options)
    assert report.steps == 1 and report.first_gap == pytest.approx(0.9, abs=1e-5)
    gaps = (record_nll(model, FORGET, 5) - options.target.nll).abs()  # type: ignore[union-attr]
    assert report.last_gap == pytest.approx(gaps.mean().item(), abs=1e-5) != pytest.approx(report.first_gap, abs=1e-3)


def test_a_target_is_asked_for_and_must_fit() -> None:
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    with pytest.raises(ValueError, match="calibrated forgets up to a target, and none was estimated"):
        unlearn(model, flat, FORGET, RETAIN, "calibrated", {}, settings(), seed=0)
    target = Target(torch.ones(2), 0.1, flat.numpy())
    with pytest.raises(ValueError, match="the target is of other records"):
        unlearn(model, flat, FORGET, RETAIN, "npo", {}, settings(), seed=0, options=UnlearnOptions(target=target))
    with pytest.raises(ValueError, match="tolerance must be positive"):
        Target(torch.ones(5), 0.0, flat.numpy())


@torch.no_grad()
def test_eight_references_are_the_fewest_that_a_line_is_fitted_to() -> None:
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    with pytest.raises(ValueError, match=r"7 records that nobody trains on are too few .* expected at least 8"):
        Estimator(model, flat, flat.numpy(), REFERENCES[:7], 4)
    assert Estimator(model, flat, flat.numpy(), REFERENCES[:8], 4).target(FORGET, 0.1).nll.shape == (5,)


def test_one_reference_of_which_nothing_is_known_is_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    monkeypatch.setattr(Tokens, "means", lambda self: np.array([1.0, np.inf, *[2.0] * 28]))
    with pytest.raises(ValueError, match="of the reference records are not finite"):
        Estimator(model, flat, flat.numpy(), REFERENCES, 4).target(FORGET, 0.1)


def test_a_target_that_takes_distributions_has_all_that_is_known_of_the_records() -> None:
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    start = flat.numpy()
    flat.load(start * np.float32(1.3))
    target = Estimator(model, flat, start, REFERENCES, 4).target(FORGET, 1e-6)
    assert target.present is not None and target.lowered is not None and target.rows is not None
    np.testing.assert_allclose(target.present, record_nll(model, FORGET, 5), rtol=1e-5)
    lengths = [len(record.answer) for record in FORGET]
    assert [len(one) for one in target.lowered] == lengths == [len(one.values) for one in target.rows]
    assert target.tolerance == 1e-6 and np.array_equal(target.base, start)


@pytest.mark.parametrize("method", ["npo", "calibrated"])
def test_likelihoods_that_are_known_already_change_nothing(method: str) -> None:
    """Records on either side of their target, by those that the estimate found and by asking anew."""
    found = []
    for known in (True, False):
        model = tiny_llama.shallow()
        flat = FlatParameters(model)
        target = shifted(model, flat, [0.9, -0.9, 0.0, 0.6, -0.4])
        target = replace(target, present=record_nll(model, FORGET, 5) if known else None)
        options = UnlearnOptions(target=target)
        report = unlearn(model, flat, FORGET, RETAIN, method, {}, settings(epochs=2), seed=0, options=options)
        found.append((flat.numpy(), report.first_gap, report.steps))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:] and found[0][1] == pytest.approx((0.9 + 0.9 + 0.6 + 0.4) / 5, abs=1e-4)


def test_the_method_forgets_what_is_known_too_well_and_what_is_avoided_comes_back_from_the_first_epoch_on() -> None:
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    now = record_nll(model, FORGET, 5)
    target = replace(shifted(model, flat, [0.9, -0.9, 0.0, 0.9, -0.9]), present=now)
    given = settings(epochs=1, learning_rate=1e-3)
    unlearn(model, flat, FORGET, [], "grad_ascent", {}, given, seed=0, options=UnlearnOptions(target=target))
    moved = record_nll(model, FORGET, 5) - now
    assert moved[[0, 3]].mean() > 0 > moved[[1, 4]].mean()
