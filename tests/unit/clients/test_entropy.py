"""Entropy optimisation: numbers by hand, a slow reference, and what it does to a model."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny_llama
from torch import Tensor

from clients import batch_quantities, distributions, losses, unlearning
from clients.batch_quantities import BatchQuantities
from clients.distributions import statistics
from clients.entropy import Entropy
from clients.flat_parameters import FlatParameters
from clients.training import TrainSettings
from clients.unlearning import UnlearnOptions, UnlearnReport, unlearn
from evaluation.engine.forward import AnswerRows, answer_logits
from evaluation.engine.packing import PackedBatch, sequence_nll
from evaluation.engine.sequences import TokenSequence

FORGET, RETAIN = tiny_llama.sequences(7, seed=1), tiny_llama.sequences(5, seed=2)
METHODS: dict[str, dict[str, float]] = {
    "grad_ascent": {"gamma": 0.7},
    "grad_diff": {"gamma": 0.7, "alpha": 1.3},
    "npo": {"beta": 0.3, "alpha": 0.6},
    "simnpo": {"beta": 2.0, "delta": 0.4, "alpha": 0.6},
}
BOTH = Entropy(forget=1.5, retain=-0.5)
QUARTER = 2 * math.log(2) - 0.75 * math.log(3)
"""Entropy of (1/4, 3/4)."""


def settings(**changes: Any) -> TrainSettings:
    return TrainSettings(**{"epochs": 2, "batch_size": 4, "learning_rate": 2e-3, "warmup_epochs": 0, **changes})


def slow(model: Any, record: TokenSequence) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy at each answer token by the model's own forward pass of this sequence alone."""
    logits = model(input_ids=torch.tensor([[*record.prompt, *record.answer]])).logits[0]
    log_q = torch.log_softmax(logits.double(), -1)[len(record.prompt) - 1 : -1]
    return log_q[torch.arange(len(record.answer)), torch.tensor(record.answer)], -(log_q.exp() * log_q).sum(-1)


def mean_entropy(model: Any, records: list[TokenSequence]) -> float:
    with torch.no_grad():
        return float(np.mean([slow(model, record)[1].mean().item() for record in records]))


def trainable(model: Any) -> list[Any]:
    return [p for p in model.parameters() if p.requires_grad]


def run(
    method: str, entropy: Entropy | None, retain: list[TokenSequence] = RETAIN, values: Any = None, **changes: Any
) -> tuple[Any, UnlearnReport, np.ndarray]:
    model = tiny_llama.lora()
    flat = FlatParameters(model)
    values = METHODS[method] if values is None else values
    options = None if entropy is None else UnlearnOptions(entropy=entropy)
    report = unlearn(model, flat, FORGET, retain, method, values, settings(**changes), seed=9, options=options)
    return model, report, flat.numpy()


# One distribution


def log_probs_and_entropies(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return statistics(logits, labels)[:2]


def test_numbers_on_a_vocabulary_of_two_tokens() -> None:
    logits = torch.tensor([[0.0, 0.0], [0.0, math.log(3)], [5.0, -math.inf], [-2000.0, 2000.0]], dtype=torch.float64)
    logp, entropy = log_probs_and_entropies(logits, torch.tensor([0, 1, 0, 1]))
    np.testing.assert_allclose(logp, [-math.log(2), math.log(0.75), 0.0, 0.0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(entropy, [math.log(2), QUARTER, 0.0, 0.0], rtol=0, atol=1e-12)


def test_gradient_on_a_vocabulary_of_two_tokens() -> None:
    """dH/dz_i = −p_i (log p_i + H): with p = (1/4, 3/4), ∓ 3/16 log 3, as −p₀ p₁ log(p₁/p₀) is the slope of H in z₁."""
    logits = torch.tensor([[0.0, math.log(3)], [5.0, -math.inf]], dtype=torch.float64, requires_grad=True)
    log_probs_and_entropies(logits, torch.tensor([0, 0]))[1].sum().backward()
    slope = 3 / 16 * math.log(3)
    assert logits.grad is not None
    np.testing.assert_allclose(logits.grad, [[slope, -slope], [0.0, 0.0]], rtol=0, atol=1e-12)


def test_gradients_by_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(5, 7, generator=generator, dtype=torch.float64)).requires_grad_()
    labels = torch.tensor([0, 3, 6, 6, 2])
    assert torch.autograd.gradcheck(lambda x: log_probs_and_entropies(x, labels), (logits,))


def test_the_mean_entropy_and_its_slope_over_the_logarithm_of_the_logits_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum by its definition, the slope by finite differences; tokens that cannot come count for nothing."""
    generator = torch.Generator().manual_seed(2)
    states, head = (torch.randn(n, 6, generator=generator, dtype=torch.float64) for n in (37, 11))
    logits = 2 * states @ head.T
    logits[3:30, 4] = -math.inf
    p = logits.softmax(-1)
    entropy, slope = distributions.mean_entropy(AnswerRows(logits, None))
    assert entropy == pytest.approx(-torch.xlogy(p, p).sum(-1).mean().item(), rel=1e-12)
    around = [distributions.mean_entropy(AnswerRows(logits * math.exp(by), None))[0] for by in (-1e-5, 1e-5)]
    assert slope == pytest.approx((around[1] - around[0]) / 2e-5, rel=1e-6)
    at_once = distributions.mean_entropy(AnswerRows(states @ head.T, None))
    monkeypatch.setattr("clients.distributions.ROWS", 16)
    monkeypatch.setattr("clients.distributions.LOGITS", 0)
    assert distributions.mean_entropy(AnswerRows(states, head)) == pytest.approx(at_once, rel=1e-12)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5), (torch.bfloat16, 8e-3)]
)
def test_many_rows_against_autograd_in_float64(dtype: torch.dtype, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = (4 * torch.randn(300, 50, generator=generator)).to(dtype).requires_grad_()
    labels = torch.randint(50, (300,), generator=generator)
    up = torch.randn(2, 300, generator=generator, dtype=torch.float64)
    exact = logits.detach().double().requires_grad_()
    log_q = exact.log_softmax(-1)
    expected = log_q[torch.arange(300), labels], -(log_q.exp() * log_q).sum(-1)
    (up[0] @ expected[0] + up[1] @ expected[1]).backward()
    logp, entropy = log_probs_and_entropies(logits, labels)
    assert logp.dtype == entropy.dtype == torch.promote_types(dtype, torch.float32)
    (up[0] @ logp.double() + up[1] @ entropy.double()).backward()
    assert exact.grad is not None and logits.grad is not None and logits.grad.dtype == dtype
    for got, reference in ((logp, expected[0]), (entropy, expected[1])):
        torch.testing.assert_close(got.double(), reference, rtol=0, atol=min(tolerance, 1e-5))
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=tolerance, atol=tolerance)


# A record


@pytest.mark.parametrize(
    ("mode", "share"),
    [(mode, share) for mode in ("auto", "fused", "packed", "padded") for share in (False, True)],
)
def test_records_against_one_at_a_time(mode: str, share: bool) -> None:
    model = tiny_llama.lora()
    prompt = FORGET[0].prompt
    records = [*FORGET, TokenSequence(prompt, (5, 6, 7, 2)), TokenSequence(prompt, (5, 6, 9)), RETAIN[0]]
    batch = PackedBatch.build(records, share=share)
    with torch.set_grad_enabled(not (mode == "fused" and share)):
        logp, entropy = log_probs_and_entropies(answer_logits(model, batch, mode=mode), batch.labels)
        mean = sequence_nll(-entropy, batch)[1]
        if mean.requires_grad:
            weights = torch.arange(1.0, len(records) + 1)
            got = torch.autograd.grad(weights @ mean, trainable(model))
            expected = torch.autograd.grad(
                sum(w * slow(model, r)[1].mean() for w, r in zip(weights, records, strict=True)), trainable(model)
            )
            for g, e in zip(got, expected, strict=True):
                torch.testing.assert_close(g, e, rtol=1e-3, atol=2e-4)
    with torch.no_grad():
        rows = [slow(model, record) for record in records]
    np.testing.assert_allclose(logp.detach(), torch.cat([r[0] for r in rows]), rtol=0, atol=1e-4)
    np.testing.assert_allclose(mean.detach(), [r[1].mean() for r in rows], rtol=0, atol=1e-5)


def test_quantities_come_from_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[str] = []
    for name in ("answer_rows", "token_log_probs"):
        original = getattr(batch_quantities, name)
        monkeypatch.setattr(batch_quantities, name, lambda *a, f=original, n=name: (passes.append(n), f(*a))[1])
    model = tiny_llama.lora()
    plain = BatchQuantities(model, FORGET, RETAIN)
    both = BatchQuantities(model, FORGET, RETAIN, wanted=("forget_entropy", "retain_entropy"))
    for name in ("forget_log_p", "forget_nll", "retain_log_p", "retain_nll"):
        torch.testing.assert_close(getattr(both, name), getattr(plain, name), rtol=0, atol=1e-4)
    assert both.retain_entropy is not None and both.retain_entropy.shape == (5,)
    np.testing.assert_allclose(
        both.forget_entropy.detach(), [mean_entropy(model, [r]) for r in FORGET], rtol=0, atol=1e-5
    )
    assert sorted(passes) == ["answer_rows", "token_log_probs"]
    assert BatchQuantities(model, FORGET, [], wanted=("forget_entropy",)).retain_entropy is None
    with pytest.raises(ValueError, match="forget_entropy was not computed"):
        _ = plain.forget_entropy


# Unlearning


def test_the_term() -> None:
    forget, retain = torch.tensor([math.log(2), 0.0]), torch.tensor([1.0, 3.0])
    entropy = Entropy(2.0, -0.25)
    assert entropy.term(forget, retain).item() == pytest.approx(math.log(2) - 0.5)
    assert entropy.term(forget, None).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"forget": -0.1}, "forget must be >= 0"),
        ({"retain": 0.1}, "retain must be <= 0"),
        ({"forget": math.nan}, "forget must be a finite number"),
        ({"forget": math.inf}, "forget must be a finite number"),
        ({"retain": -math.inf}, "retain must be a finite number"),
        ({"retain": "0"}, "retain must be a finite number"),
        ({"forget": True}, "forget must be a finite number"),
    ],
)
def test_bad_weights(values: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        Entropy(**values)


def slow_loop(method: str, entropy: Entropy, retain: list[TokenSequence]) -> tuple[list[float], np.ndarray]:
    """Every record by itself and whole updates of four; the first loss is a plain function of plain tensors."""
    model = tiny_llama.lora()
    loss = losses.get(method)
    with torch.no_grad():
        reference = [slow(model, record)[0].sum() for record in FORGET]
    optimiser = torch.optim.AdamW(trainable(model), lr=2e-3, weight_decay=0.01, foreach=False)
    order, draws = torch.Generator().manual_seed(9), torch.Generator().manual_seed(10)
    if retain:
        cycle = itertools.chain.from_iterable(torch.randperm(5, generator=draws).tolist() for _ in itertools.count())
    history = []
    for _ in range(2):
        permutation = torch.randperm(7, generator=order).tolist()
        for chosen in (permutation[:4], permutation[4:]):
            forget = [slow(model, FORGET[i]) for i in chosen]
            kept = [slow(model, retain[next(cycle)]) for _ in chosen] if retain else []
            known = {
                "forget_log_p": torch.stack([p.sum() for p, _ in forget]),
                "forget_nll": torch.stack([-p.mean() for p, _ in forget]),
                "forget_reference_log_p": torch.stack([reference[i] for i in chosen]),
                "retain_loss": torch.stack([-p.mean() for p, _ in kept]) if kept else None,
            }
            arguments = {name: known[name] for name in (*loss.required, *loss.optional)}
            value = loss.function(**arguments, **METHODS[method])
            value = value + entropy.forget * sum(h.mean() for _, h in forget) / len(forget)
            if kept:
                value = value + entropy.retain * sum(h.mean() for _, h in kept) / len(kept)
            history.append(value.item())
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
    return history, torch.cat([p.detach().reshape(-1) for p in trainable(model)]).numpy()


@pytest.mark.parametrize("retain", [RETAIN, []], ids=["retain", "no-retain"])
@pytest.mark.parametrize("method", METHODS)
def test_trajectory_equals_the_slow_loop(method: str, retain: list[TokenSequence]) -> None:
    model = tiny_llama.lora()
    flat = FlatParameters(model)
    history: list[float] = []
    report = unlearn(
        model,
        flat,
        FORGET,
        retain,
        method,
        METHODS[method],
        settings(),
        seed=9,
        options=UnlearnOptions(entropy=BOTH),
        on_step=lambda _, loss: history.append(loss),
    )
    expected_history, expected = slow_loop(method, BOTH, retain)
    np.testing.assert_allclose(history, expected_history, rtol=0, atol=1e-4)
    np.testing.assert_allclose(flat.numpy(), expected, rtol=0, atol=1e-4)
    assert report.retain_used == bool(retain) and report.steps == 4


def test_a_retain_weight_without_retain_records_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_quantities, "answer_rows", None)
    _, report, vector = run("npo", Entropy(retain=-1.0), [])
    np.testing.assert_array_equal(vector, run("npo", None, [])[2])
    assert not report.retain_used and math.isnan(report.first_forget_entropy)


@pytest.mark.parametrize("method", METHODS)
def test_a_forget_weight_lowers_the_entropy_on_the_forget_records(method: str) -> None:
    plain, _, _ = run(method, None, epochs=5, learning_rate=1e-2)
    model, report, _ = run(method, Entropy(forget=3.0), epochs=5, learning_rate=1e-2)
    before, after, without = (mean_entropy(m, FORGET) for m in (tiny_llama.lora(), model, plain))
    assert after < before - 0.1 and after < without - 0.1
    assert report.last_forget_entropy < report.first_forget_entropy


@pytest.mark.parametrize("method", METHODS)
def test_a_retain_weight_keeps_the_entropy_on_the_retain_records_up(method: str) -> None:
    only_forget, _, _ = run(method, Entropy(forget=1.0), epochs=5, learning_rate=1e-2)
    model, report, _ = run(method, Entropy(forget=1.0, retain=-2.0), epochs=5, learning_rate=1e-2)
    assert report.retain_used
    assert mean_entropy(model, RETAIN) > mean_entropy(only_forget, RETAIN) + 0.05


@pytest.mark.parametrize(("retain", "expected"), [(0.0, [4, 3]), (-0.1, [4, 4, 4, 2])])
def test_retain_records_take_part_when_their_weight_asks_for_them(
    retain: float, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    build = batch_quantities.PackedBatch.build
    monkeypatch.setattr(
        batch_quantities.PackedBatch, "build", lambda s, *a, **k: (seen.append(len(s)), build(s, *a, **k))[1]
    )
    _, report, _ = run("grad_ascent", Entropy(1.0, retain), epochs=1)
    assert seen == expected and report.retain_used == (retain != 0)


def test_the_report_tells_the_entropy_before_the_first_and_the_last_update() -> None:
    _, report, _ = run("npo", BOTH, epochs=1, batch_size=7)
    assert report.steps == 1
    assert report.first_forget_entropy == pytest.approx(mean_entropy(tiny_llama.lora(), FORGET), abs=1e-5)
    assert report.last_forget_entropy == report.first_forget_entropy


def test_a_method_may_ask_for_entropies_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    method = losses.Method("sure", lambda forget_entropy: forget_entropy.mean(), ("forget_entropy",), (), {})
    monkeypatch.setattr(unlearning.losses, "get", lambda _: method)
    _, report, _ = run("sure", None, values={})
    assert not report.retain_used and report.first_loss == report.first_forget_entropy
    assert report.last_forget_entropy < report.first_forget_entropy


def test_full_parameters() -> None:
    """All weights train, the head among them."""
    model = tiny_llama.base()
    before = mean_entropy(model, FORGET)
    rate = settings(learning_rate=1e-2)
    options = UnlearnOptions(entropy=Entropy(3.0))
    unlearn(model, FlatParameters(model), FORGET, RETAIN, "npo", {}, rate, seed=0, options=options)
    assert mean_entropy(model, FORGET) < before - 0.1


@pytest.mark.parametrize("retained", [0, 7])
@pytest.mark.parametrize(("forget", "retain"), [(1.5, 0.0), (0.0, -0.5), (1.5, -0.5)])
def test_each_term_is_there_with_the_records_that_it_is_about(forget: float, retain: float, retained: int) -> None:
    """Of an update that takes all records: ascent, and what each weight by itself adds to it."""
    kept = tiny_llama.sequences(retained, seed=4)
    given = settings(epochs=1, batch_size=28)
    found = []
    for entropy in (Entropy(), Entropy(forget, retain)):
        model = tiny_llama.lora()
        flat = FlatParameters(model)
        options = UnlearnOptions(entropy=entropy)
        report = unlearn(model, flat, FORGET, kept, "grad_ascent", {}, given, seed=0, options=options)
        found.append(report.first_loss)
        assert report.retain_used == bool(entropy.retain and kept)
    model = tiny_llama.lora()
    with torch.no_grad():
        terms = [
            weight * mean_entropy(model, records) for weight, records in ((forget, FORGET), (retain, kept)) if records
        ]
    assert found[1] - found[0] == pytest.approx(sum(terms), abs=1e-4)
