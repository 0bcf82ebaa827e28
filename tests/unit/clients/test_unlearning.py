"""The unlearning loop against a slow one that takes its formulas from the paper."""

from __future__ import annotations

import copy
import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support import slow_unlearning, tiny_llama
from torch import Tensor

from clients import batch_quantities, losses
from clients.calibrated_forgetting import Target
from clients.entropy import Entropy
from clients.flat_parameters import FlatParameters
from clients.training import NonFiniteError, TrainSettings
from clients.unlearning import UnlearnOptions, unlearn
from clients.update_plan import UpdateKind
from evaluation.engine.sequences import TokenSequence

FORGET, RETAIN = tiny_llama.sequences(7, seed=1), tiny_llama.sequences(5, seed=2)
METHODS: dict[str, dict[str, float]] = {
    "grad_ascent": {"gamma": 0.7},
    "grad_diff": {"gamma": 0.7, "alpha": 1.3},
    "npo": {"beta": 0.3, "alpha": 0.6},
    "simnpo": {"beta": 2.0, "delta": 0.4, "alpha": 0.6},
}


def settings(**changes: Any) -> TrainSettings:
    return TrainSettings(**{"epochs": 2, "batch_size": 4, "learning_rate": 2e-3, "warmup_epochs": 0, **changes})


def slow(method: str, values: dict[str, float], update: int) -> tuple[list[float], np.ndarray]:
    """Whole batches through the padded forward pass; the reference is a second model."""
    model = tiny_llama.shallow()
    received = copy.deepcopy(model).eval()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=2e-3, weight_decay=0.01, foreach=False)
    order = torch.Generator().manual_seed(9)
    draws = torch.Generator().manual_seed(10)
    cycle = itertools.chain.from_iterable(torch.randperm(5, generator=draws).tolist() for _ in itertools.count())
    history = []
    for _ in range(2):
        permutation = torch.randperm(7, generator=order).tolist()
        for start in range(0, 7, update):
            forget = [FORGET[i] for i in permutation[start : start + update]]
            retain = [RETAIN[next(cycle)] for _ in forget]
            forget_p = tiny_llama.padded_log_probs(model, forget)
            with torch.no_grad():
                reference = [x.sum() for x in tiny_llama.padded_log_probs(received, forget)]
            retain_term = sum(-x.mean() for x in tiny_llama.padded_log_probs(model, retain)) / len(retain)
            terms = []
            for logp, ref in zip(forget_p, reference, strict=True):
                if method in ("grad_ascent", "grad_diff"):
                    terms.append(values["gamma"] * logp.mean())
                elif method == "npo":
                    ratio = torch.exp(logp.sum() - ref)
                    terms.append(2 / values["beta"] * torch.log(1 + ratio ** values["beta"]))
                else:
                    exponent = values["beta"] / logp.numel() * logp.sum() + values["delta"]
                    terms.append(2 / values["beta"] * torch.log(1 + torch.exp(exponent)))
            loss = torch.stack(terms).mean() + values.get("alpha", 0.0) * retain_term
            history.append(loss.item())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return history, torch.cat([p.detach().reshape(-1) for p in parameters]).numpy()


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("batch_size", "accumulation"), [(4, 1), (3, 2)])
def test_trajectory_equals_the_slow_loop(name: str, batch_size: int, accumulation: int) -> None:
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    history: list[float] = []
    report = unlearn(
        model,
        flat,
        FORGET,
        RETAIN,
        name,
        METHODS[name],
        settings(batch_size=batch_size, gradient_accumulation=accumulation),
        seed=9,
        on_step=lambda _, loss: history.append(loss),
    )
    expected_history, expected = slow(name, METHODS[name], batch_size * accumulation)
    np.testing.assert_allclose(history, expected_history, rtol=0, atol=1e-4)
    np.testing.assert_allclose(flat.numpy(), expected, rtol=0, atol=1e-4)
    assert (report.num_examples, report.steps, report.stopped) == (7, len(history), False)
    assert report.retain_used == (name != "grad_ascent")
    assert (report.first_loss, report.last_loss) == (history[0], history[-1])
    assert 0 < report.seconds < 60 and math.isnan(report.first_gap) and math.isnan(report.last_gap)


@pytest.mark.parametrize(("name", "values"), [("grad_ascent", {}), ("grad_diff", {"alpha": 0.0})])
def test_retain_records_are_not_touched_when_not_needed(
    name: str, values: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    build = batch_quantities.PackedBatch.build
    monkeypatch.setattr(
        batch_quantities.PackedBatch, "build", lambda s, *a, **k: (seen.append(len(s)), build(s, *a, **k))[1]
    )
    model = tiny_llama.shallow()
    untouchable: Any = [None] * 5
    report = unlearn(model, FlatParameters(model), FORGET, untouchable, name, values, settings(), seed=0)
    assert seen == [4, 3, 4, 3] and not report.retain_used and report.num_retain == 5


def test_forward_passes_hold_no_more_sequences_than_the_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, bool]] = []
    build = batch_quantities.PackedBatch.build

    def counted(sequences: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append((len(sequences), torch.is_grad_enabled()))
        return build(sequences, *args, **kwargs)

    monkeypatch.setattr(batch_quantities.PackedBatch, "build", counted)
    model = tiny_llama.shallow()
    unlearn(model, FlatParameters(model), FORGET, RETAIN, "npo", {}, settings(epochs=1), seed=0)
    assert seen == [(4, False), (3, False), (4, True), (4, True), (4, True), (2, True)]


def test_neither_do_they_with_other_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two records with partner and another answer each; what no epoch takes is never looked at."""
    seen: list[tuple[int, bool]] = []
    build = batch_quantities.PackedBatch.build

    def counted(sequences: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append((len(sequences), torch.is_grad_enabled()))
        return build(sequences, *args, **kwargs)

    monkeypatch.setattr(batch_quantities.PackedBatch, "build", counted)
    model = tiny_llama.shallow()
    untouchable: Any = None
    others = [[record, untouchable] for record in FORGET]
    options: dict[str, Any] = {"seed": 0, "alternatives": others}
    unlearn(model, FlatParameters(model), FORGET, RETAIN, "idk_dpo", {}, settings(epochs=1, batch_size=6), **options)
    assert seen == [(6, False), (1, False), (6, False), (1, False), (6, True), (6, True), (6, True), (3, True)]


@pytest.mark.parametrize("others", [(), [[FORGET[0]]] * 6, [[FORGET[0]]] * 6 + [[]]])
def test_each_forget_record_needs_another_answer_where_the_method_asks_for_one(others: Any) -> None:
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    before = flat.numpy()
    with pytest.raises(ValueError, match="altpo needs at least one alternative answer"):
        unlearn(model, flat, FORGET, RETAIN, "altpo", {}, settings(), seed=0, alternatives=others)
    np.testing.assert_array_equal(flat.numpy(), before)
    unlearn(model, flat, FORGET, RETAIN, "grad_diff", {}, settings(epochs=1), seed=0, alternatives=others)


def test_what_a_step_was_not_given_is_named() -> None:
    model = tiny_llama.shallow()
    plain = batch_quantities.BatchQuantities(model, FORGET, RETAIN)
    for name in ("alternative_log_p", "alternative_nll", "alternative_reference_log_p"):
        with pytest.raises(ValueError, match="alternative answers were not"):
            getattr(plain, name)
    assert batch_quantities.BatchQuantities(model, FORGET, []).retain_reference_nll is None


def test_a_step_is_taken_against_nothing_at_temperature_one_unless_told_otherwise() -> None:
    assert batch_quantities.ReferenceModels() == (None, None, 1.0, 0.0, 0, "nll", False, None, 1.0)
    assert set(batch_quantities.References()) == {None}


def test_held_records_are_the_last_ones_and_their_term_is_the_divergence_from_the_received_model() -> None:
    """By the loop that is written out, with one retain term for records that are learned and one for those held."""
    held = slow_unlearning.RETAIN[-2:]

    def term(model: Any, received: Any, record: TokenSequence) -> Tensor:
        if record not in held:
            return slow_unlearning.nll(model, [record])
        with torch.no_grad():
            log_q = slow_unlearning.rows(received, record)
        return (log_q.exp() * (log_q - slow_unlearning.rows(model, record))).sum(-1).mean()

    def loss(model: Any, received: Any, forget: list[TokenSequence], retain: list[TokenSequence]) -> Tensor:
        terms = torch.stack([term(model, received, record) for record in retain])
        return -0.5 * slow_unlearning.nll(model, forget) + terms.mean()

    expected_history, expected = slow_unlearning.trajectory(loss)
    history, found = slow_unlearning.fast("grad_diff", {"gamma": 0.5}, options=UnlearnOptions(held=2))
    np.testing.assert_allclose(history, expected_history, rtol=0, atol=2e-4)
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-4)


def test_of_the_held_records_the_last_ones_are_held_to_the_base_model() -> None:
    """By the loop that is written out: two by the received model, two by another; no record is at its target."""
    learned, last = slow_unlearning.RETAIN[:1], slow_unlearning.RETAIN[-2:]
    base = tiny_llama.shallow()
    flat = FlatParameters(base)
    flat.load(flat.numpy() + np.random.default_rng(5).normal(0, 0.3, flat.numpy().size).astype(np.float32))
    start = flat.numpy()

    def term(model: Any, received: Any, record: TokenSequence) -> Tensor:
        if record in learned:
            return slow_unlearning.nll(model, [record])
        with torch.no_grad():
            log_q = slow_unlearning.rows(base if record in last else received, record)
        return (log_q.exp() * (log_q - slow_unlearning.rows(model, record))).sum(-1).mean()

    def loss(model: Any, received: Any, forget: list[TokenSequence], retain: list[TokenSequence]) -> Tensor:
        terms = torch.stack([term(model, received, record) for record in retain])
        return -0.5 * slow_unlearning.nll(model, forget) + terms.mean()

    expected_history, expected = slow_unlearning.trajectory(loss)
    target = Target(torch.full((len(slow_unlearning.FORGET),), 100.0), 0.1, start)
    options = UnlearnOptions(held=4, held_to_base=2, target=target)
    history, found = slow_unlearning.fast("grad_diff", {"gamma": 0.5}, options=options)
    np.testing.assert_allclose(history, expected_history, rtol=0, atol=2e-4)
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-4)
    plain, _ = slow_unlearning.fast("grad_diff", {"gamma": 0.5}, options=UnlearnOptions(held=4, target=target))
    assert np.abs(np.subtract(plain, expected_history)).max() > 0.01, "the two models say the same"


@pytest.mark.parametrize(
    ("more", "what"),
    [({"held": 1, "held_to_base": 2}, "from 0 to held=1"), ({"held": 1, "held_to_base": 1}, "takes a target")],
)
def test_what_is_held_to_the_base_model_is_held_and_has_one(more: dict[str, int], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        UnlearnOptions(**more)


@pytest.mark.parametrize(("held", "what"), [(-1, "at least 0"), (6, "6 of 5 retain records cannot be held")])
def test_more_records_than_there_are_cannot_be_held(held: int, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        slow_unlearning.fast("grad_diff", {}, options=UnlearnOptions(held=held))


def test_without_retain_records_the_term_is_absent() -> None:
    results = []
    for name, values in (("grad_diff", {"gamma": 0.5}), ("grad_ascent", {"gamma": 0.5})):
        model = tiny_llama.shallow()
        flat = FlatParameters(model)
        report = unlearn(model, flat, FORGET, [], name, values, settings(), seed=0)
        assert not report.retain_used
        results.append(flat.numpy())
    np.testing.assert_array_equal(*results)


def test_a_method_that_needs_retain_records_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    method = losses.Method("fine", lambda retain_nll: retain_nll.mean(), ("retain_nll",), (), {})
    monkeypatch.setattr(losses, "get", lambda _: method)
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    with pytest.raises(ValueError, match="fine needs retain records"):
        unlearn(model, flat, FORGET, [], "fine", {}, settings(), seed=0)
    assert unlearn(model, flat, FORGET, RETAIN, "fine", {}, settings(), seed=0).retain_used


def test_a_method_that_asks_for_something_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    method = losses.Method("odd", lambda forget_hiden: forget_hiden, ("forget_hiden",), (), {})
    monkeypatch.setattr(losses, "get", lambda _: method)
    model = tiny_llama.shallow()
    with pytest.raises(ValueError, match="'forget_hiden'"):
        unlearn(model, FlatParameters(model), FORGET, RETAIN, "odd", {}, settings(), seed=0)


def test_the_reference_is_the_model_as_received_without_dropout() -> None:
    model = tiny_llama.shallow(dropout=0.4).train()
    expected = [x.sum().item() for x in tiny_llama.padded_log_probs(model.eval(), FORGET)]
    model.train()
    got = batch_quantities.log_likelihoods(model, FORGET, 3)
    assert model.training and not got.requires_grad
    np.testing.assert_allclose(got.numpy(), expected, rtol=0, atol=1e-4)


def test_first_npo_loss_is_two_log_two_over_beta_plus_the_retain_term() -> None:
    model = tiny_llama.shallow()
    report = unlearn(
        model, FlatParameters(model), FORGET, RETAIN, "npo", {"beta": 0.5, "alpha": 0.0}, settings(), seed=0
    )
    assert report.first_loss == pytest.approx(4 * math.log(2), abs=1e-4)


def test_same_seed_same_result() -> None:
    results = []
    for seed in (3, 3, 4):
        model = tiny_llama.shallow(dropout=0.2)
        flat = FlatParameters(model)
        unlearn(model, flat, FORGET, RETAIN, "npo", {}, settings(), seed=seed)
        results.append(flat.numpy())
    np.testing.assert_array_equal(results[0], results[1])
    assert np.abs(results[0] - results[2]).max() > 0


def test_a_limit_on_the_forget_loss_bounds_gradient_ascent() -> None:
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    free = unlearn(model, flat, FORGET, [], "grad_ascent", {}, settings(epochs=8, batch_size=7), seed=0)
    limit = (free.first_forget_nll + free.last_forget_nll) / 2
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    bounded = unlearn(
        model,
        flat,
        FORGET,
        [],
        "grad_ascent",
        {},
        settings(epochs=8, batch_size=7),
        seed=0,
        options=UnlearnOptions(forget_nll_limit=limit),
    )
    assert bounded.stopped and 0 < bounded.steps < free.steps == 8
    assert bounded.last_forget_nll <= limit
    after = np.mean([-x.mean().item() for x in tiny_llama.padded_log_probs(model, FORGET)])
    assert limit < after < limit + 2 * (free.last_forget_nll - free.first_forget_nll)
    untouched = flat.numpy()
    options = UnlearnOptions(forget_nll_limit=limit)
    again = unlearn(model, flat, FORGET, [], "grad_ascent", {}, settings(batch_size=7), seed=0, options=options)
    assert again.stopped and again.steps == 0 and not flat.grad.any()
    assert again.first_loss == -again.first_forget_nll == pytest.approx(-after, abs=1e-4)
    np.testing.assert_array_equal(flat.numpy(), untouched)


def test_a_limit_stops_above_it_alone() -> None:
    assert [UnlearnOptions(forget_nll_limit=2.0).stop(x) for x in (1.9, 2.0, 2.1)] == [False, False, True]
    assert not UnlearnOptions().stop(math.inf) and not UnlearnOptions(forget_nll_limit=2.0).stop(math.nan)


def test_proximal_term_holds_the_parameters_back() -> None:
    distances = []
    for mu in (0.0, 50.0):
        model = tiny_llama.shallow()
        flat = FlatParameters(model)
        start = flat.numpy()
        unlearn(
            model, flat, FORGET, RETAIN, "grad_diff", {}, settings(), seed=0, options=UnlearnOptions(prox=(mu, start))
        )
        distances.append(np.linalg.norm(flat.numpy() - start))
    assert distances[1] < distances[0]


def test_bad_input() -> None:
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    for arguments, what in (
        (([], RETAIN, "npo", {}), "no sequence"),
        ((FORGET, RETAIN, "nop", {}), "'nop'"),
        ((FORGET, RETAIN, "npo", {"gamma": 1.0}), "'gamma'"),
    ):
        with pytest.raises(ValueError, match=what):
            unlearn(model, flat, *arguments, settings(), seed=0)
    with pytest.raises(ValueError, match="forget_nll_limit"):
        UnlearnOptions(forget_nll_limit=0.0)
    broken = flat.numpy()
    broken[-1] = np.inf
    flat.load(broken)
    with pytest.raises(NonFiniteError):
        unlearn(model, flat, FORGET, RETAIN, "npo", {}, settings(), seed=0)


def test_a_parameter_that_the_last_update_breaks_is_noticed() -> None:
    """The loss of no further update would tell."""
    model = tiny_llama.shallow()
    with pytest.raises(NonFiniteError, match="a parameter is not finite after 1 updates"):
        given = settings(epochs=1, batch_size=7, learning_rate=1e39, weight_decay=0.0)
        unlearn(model, FlatParameters(model), FORGET, [], "grad_ascent", {}, given, seed=0)


@pytest.mark.parametrize(("dtype", "refused"), [(torch.float16, True), (torch.bfloat16, False)])
def test_scaled_gradients_are_not_rectified(dtype: torch.dtype, refused: bool) -> None:
    """On CUDA in float16; the check comes before the model is touched."""
    flat: Any = SimpleNamespace(device=torch.device("cuda"), compute_dtype=dtype)
    untouchable: Any = object()
    with pytest.raises(ValueError if refused else AttributeError, match="take bfloat16" if refused else "object"):
        options = UnlearnOptions(rectify=0.5)
        unlearn(untouchable, flat, FORGET, RETAIN, "grad_ascent", {}, settings(), seed=0, options=options)


def test_a_method_that_reads_states_tells_no_likelihoods() -> None:
    model = tiny_llama.lora()
    report = unlearn(model, FlatParameters(model), FORGET, RETAIN, "rmu", {"layer": 1}, settings(epochs=1), seed=0)
    assert math.isnan(report.first_forget_nll) and math.isnan(report.last_forget_nll) and report.first_loss > 0


@pytest.mark.parametrize(
    ("names", "values", "entropy", "available", "expected"),
    [
        # (names that are left, forget, retain, regularised)
        (("forget_nll", "retain_nll"), {}, (0, 0), True, (("forget_nll", "retain_nll"), True, True, False)),
        (("forget_nll", "retain_nll"), {"alpha": 0.5}, (0, 0), True, (("forget_nll", "retain_nll"), True, True, False)),
        (("forget_nll", "retain_nll"), {"alpha": 0.0}, (0, 0), True, (("forget_nll",), True, False, False)),
        (("forget_nll", "retain_nll"), {"alpha": 0.5}, (0, 0), False, (("forget_nll",), True, False, False)),
        (("forget_nll", "retain_nll"), {"alpha": 0.0}, (0, -1), True, (("forget_nll",), True, True, True)),
        (("forget_nll", "retain_nll"), {"alpha": 0.5}, (0, -1), False, (("forget_nll",), True, False, False)),
        (("forget_nll",), {}, (1, 0), False, (("forget_nll",), True, False, True)),
        (("retain_nll",), {"alpha": 0.5}, (0, 0), True, (("retain_nll",), False, True, False)),
        (("retain_nll",), {"alpha": 0.5}, (1, 0), True, (("retain_nll",), True, True, True)),
    ],
)
def test_which_records_take_part_in_an_update(names, values, entropy, available, expected) -> None:
    """A method without `alpha` has its retain term whatever others make of that name."""
    loss = losses.Method("own", lambda: None, ("forget_nll",), ("retain_nll",), {})  # type: ignore[arg-type,return-value]
    update = UpdateKind.of(loss, names, values, Entropy(*entropy), available)
    assert (update.names, update.forget, update.retain, update.regularised) == expected
    more = {"forget_entropy", *(["retain_entropy"] if update.retain else [])} if update.regularised else set()
    assert update.wanted == {*update.names, *more}
    assert update.per_pass(8) == 8 // (update.forget + update.retain) and update.per_pass(1) == 1


def test_a_pass_leaves_room_for_a_partner_and_another_answer() -> None:
    loss = losses.get("idk_dpo")
    values = loss.parameters({})
    update = UpdateKind.of(loss, loss.names, values, Entropy(), True)
    assert (update.forget, update.retain, update.alternatives, update.unlearns) == (True, True, True, True)
    assert [update.per_pass(size) for size in (2, 3, 5, 6, 9)] == [1, 1, 1, 2, 3]
    other = UpdateKind.of(losses.get("idk_nll"), ("alternative_nll",), {}, Entropy(), False)
    assert (other.forget, other.alternatives, other.unlearns, other.has_forget_nll) == (False, True, True, False)
