"""Losses that look at whole distributions or at hidden states: divergences by hand, a slow loop, what moves."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny_llama
from support.slow_unlearning import EPS
from torch import Tensor

from clients import losses
from clients.batch_quantities import BatchQuantities, ReferenceModels
from clients.distributions import row_statistics, statistics
from clients.entropy import Entropy
from clients.flat_parameters import FlatParameters
from clients.losses.rmu import control_vector
from clients.reference_models import Received, incompetent_teacher
from clients.training import TrainSettings
from clients.unlearning import UnlearnOptions, UnlearnReport, unlearn
from evaluation.engine.forward import AnswerRows, layer_states
from evaluation.engine.packing import PackedBatch
from evaluation.engine.sequences import TokenSequence

LN2, LN3 = math.log(2), math.log(3)
FORGET, RETAIN = tiny_llama.sequences(7, seed=1), tiny_llama.sequences(5, seed=2)
METHODS: dict[str, dict[str, Any]] = {
    "neg_grad": {"alpha": 0.7},
    "fine_tune": {},
    "scrub": {"alpha": 0.6, "gamma": 1.2, "temperature": 2.0, "msteps": 1},
    "bad_teacher": {"gamma": 0.8, "alpha": 1.3, "temperature": 1.5, "teacher_seed": 4},
    "rmu": {"steering_coefficient": 3.0, "alpha": 5.0, "layer": 1, "moved_layers": 2, "direction_seed": 3},
}
KL_METHODS: dict[str, dict[str, Any]] = {
    "grad_diff": {"gamma": 0.7, "alpha": 1.3},
    "npo": {"beta": 0.3, "alpha": 0.6},
    "simnpo": {"beta": 2.0, "delta": 0.4, "alpha": 0.6},
}


def settings(**changes: Any) -> TrainSettings:
    given = {"epochs": 2, "batch_size": 4, "learning_rate": 2e-3, "warmup_epochs": 0, "eps": EPS}
    return TrainSettings(**{**given, **changes})


def trainable(model: Any) -> list[Any]:
    return [p for p in model.parameters() if p.requires_grad]


# Divergences of token distributions


def test_divergence_on_a_vocabulary_of_two_tokens() -> None:
    """KL((1/2, 1/2) ‖ (1/4, 3/4)) = log 2 − (log 3)/2; its slope in the logits is p − q = ∓1/4."""
    logits = torch.tensor([[0.0, LN3], [0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    reference = torch.zeros(2, 2, dtype=torch.float64)
    kl = statistics(logits, torch.tensor([0, 0]), reference).kl
    assert kl is not None
    np.testing.assert_allclose(kl.detach(), [LN2 - LN3 / 2, 0.0], rtol=0, atol=1e-12)
    kl.sum().backward()
    assert logits.grad is not None
    np.testing.assert_allclose(logits.grad, [[-0.25, 0.25], [0.0, 0.0]], rtol=0, atol=1e-12)


def test_divergence_at_a_temperature_counts_its_square() -> None:
    """At T = 2 the logits (0, 2 log 3) give (1/4, 3/4) again."""
    logits = torch.tensor([[0.0, 2 * LN3]], dtype=torch.float64)
    kl = statistics(logits, torch.tensor([1]), torch.zeros(1, 2, dtype=torch.float64), 2.0).kl
    assert kl is not None and kl.item() == pytest.approx(4 * (LN2 - LN3 / 2))


def test_tokens_without_probability_do_not_count() -> None:
    inf = math.inf
    logits = torch.tensor([[0.0, -inf], [0.0, 0.0], [0.0, -inf]], dtype=torch.float64)
    reference = torch.tensor([[3.0, -inf], [0.0, -inf], [0.0, 0.0]], dtype=torch.float64)
    kl = statistics(logits, torch.tensor([0, 0, 0]), reference).kl
    assert kl is not None
    np.testing.assert_allclose(kl, [0.0, LN2, inf])


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_statistics_by_finite_differences_and_against_torch(temperature: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(5, 7, generator=generator, dtype=torch.float64)).requires_grad_()
    reference = 3 * torch.randn(5, 7, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 3, 6, 6, 2])
    assert torch.autograd.gradcheck(lambda x: tuple(statistics(x, labels, reference, temperature)), (logits,))
    log_p, log_q = (x.div(temperature).log_softmax(-1) for x in (logits, reference))
    expected = torch.nn.functional.kl_div(log_p, log_q, log_target=True, reduction="none").sum(-1) * temperature**2
    found = statistics(logits, labels, reference, temperature)
    assert found.kl is not None
    torch.testing.assert_close(found.kl, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.log_p, logits.log_softmax(-1)[torch.arange(5), labels])


@pytest.mark.parametrize("against", [True, False], ids=["divergence", "likelihood"])
def test_without_entropies_the_rest_is_the_same(against: bool) -> None:
    """To the last bit, with its gradient; whatever nobody asks for has none."""
    generator = torch.Generator().manual_seed(0)
    given, other = (3 * torch.randn(150, 7, generator=generator) for _ in range(2))
    labels, up = torch.randint(7, (150,), generator=generator), torch.randn(2, 150, generator=generator)
    reference = other if against else None
    results = []
    for entropies in (True, False):
        logits = given.clone().requires_grad_()
        found = statistics(logits, labels, reference, 1.5, 0.3, entropies)
        assert (found.entropy is None) != entropies and (found.kl is None) != against
        (up[0] @ found.log_p + (0 if found.kl is None else up[1] @ found.kl)).backward()
        results.append((found.log_p.detach(), found.kl if found.kl is None else found.kl.detach(), logits.grad))
    for one, same in zip(*results, strict=True):
        assert (one is None and same is None) or torch.equal(one, same)


def test_a_divergence_alone_has_a_gradient() -> None:
    logits = torch.tensor([[0.0, LN3]], dtype=torch.float64, requires_grad=True)
    kl = statistics(logits, torch.tensor([0]), torch.zeros(1, 2, dtype=torch.float64), entropies=False).kl
    assert kl is not None
    kl.sum().backward()
    assert logits.grad is not None
    np.testing.assert_allclose(logits.grad, [[-0.25, 0.25]], rtol=0, atol=1e-12)


def test_rows_in_pieces_equal_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    head, labels = torch.randn(11, 6, generator=generator), torch.randint(11, (25,), generator=generator)
    reference = AnswerRows(torch.randn(25, 6, generator=generator), head)
    up = torch.randn(3, 25, generator=generator)
    results = []
    for size in (128, 4):
        monkeypatch.setattr("clients.distributions.ROWS", 2 * size)
        monkeypatch.setattr("clients.distributions.LOGITS", 0)
        states = torch.randn(25, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()
        found = row_statistics(AnswerRows(states, head), labels, reference)
        sum((u * x).sum() for u, x in zip(up, found, strict=True)).backward()  # type: ignore[union-attr,misc]
        results.append((*[x.detach() for x in found if x is not None], states.grad))
    for whole, pieces in zip(*results, strict=True):
        torch.testing.assert_close(pieces, whole, rtol=1e-5, atol=1e-6)


# Hidden states


@pytest.mark.parametrize("mode", ["fused", "packed", "padded"])
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_states_of_a_layer_are_those_of_the_whole_model(mode: str, layer: int) -> None:
    model = tiny_llama.lora(num_hidden_layers=3)
    batch = PackedBatch.build(FORGET, last=True)
    states = layer_states(model, batch, layer, mode=mode).split(batch.lengths.tolist())
    again = layer_states(model, batch, layer, mode=mode)
    assert torch.equal(torch.cat(states), again)
    inner = model.get_base_model().model
    for record, got in zip(FORGET, states, strict=True):
        seen: list[Any] = []
        handle = inner.layers[layer].register_forward_hook(lambda m, i, o, seen=seen: seen.append(o))
        model(input_ids=torch.tensor([[*record.prompt, *record.answer]]))
        handle.remove()
        expected = seen[0][0] if isinstance(seen[0], tuple) else seen[0]
        torch.testing.assert_close(got, expected[0], rtol=1e-4, atol=1e-4)
    assert len(inner.layers) == 3


@pytest.mark.parametrize("mode", ["fused", "packed", "padded"])
def test_gradients_of_states_are_those_of_the_whole_model(mode: str) -> None:
    model = tiny_llama.lora(num_hidden_layers=3)
    batch = PackedBatch.build(FORGET[:3], last=True)
    got = torch.autograd.grad(
        layer_states(model, batch, 1, mode=mode).square().sum(), trainable(model), allow_unused=True
    )
    total = torch.zeros(())
    for record in FORGET[:3]:
        output = model(input_ids=torch.tensor([[*record.prompt, *record.answer]]), output_hidden_states=True)
        total = total + output.hidden_states[2].square().sum()
    expected = torch.autograd.grad(total, trainable(model), allow_unused=True)
    for g, e in zip(got, expected, strict=True):
        assert (g is None) == (e is None)
        if e is not None:
            torch.testing.assert_close(g, e, rtol=1e-3, atol=1e-3)


def test_there_is_no_such_layer() -> None:
    with pytest.raises(ValueError, match="layers 0 to 1"):
        layer_states(tiny_llama.lora(), PackedBatch.build(FORGET), 2)


# The models beside the one that unlearns


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_received_model_comes_and_goes(dropout: float) -> None:
    model = tiny_llama.lora(dropout=dropout).train()
    flat = FlatParameters(model)
    before = flat.numpy()
    received = Received(model, flat)
    after = before + 0.1
    flat.load(after)
    with received.in_place():
        assert not model.training and not torch.is_grad_enabled()
        np.testing.assert_array_equal(flat.numpy(), before)
    assert model.training
    np.testing.assert_array_equal(flat.numpy(), after)
    with pytest.raises(RuntimeError, match="inside"), received.in_place():
        raise RuntimeError("inside")
    np.testing.assert_array_equal(flat.numpy(), after)


def test_the_teacher_depends_on_its_seed_alone_and_knows_nothing() -> None:
    model = tiny_llama.base()
    state = torch.random.get_rng_state()
    one, same, other = (incompetent_teacher(model, seed) for seed in (1, 1, 2))
    assert not one.training and not any(p.requires_grad for p in one.parameters())
    assert torch.equal(state, torch.random.get_rng_state())
    ids = torch.tensor([FORGET[0].prompt + FORGET[0].answer])
    logits = [m(input_ids=ids).logits for m in (one, same, other)]
    assert torch.equal(logits[0], logits[1]) and not torch.equal(logits[0], logits[2])
    assert logits[0].shape[-1] == tiny_llama.VOCABULARY and not any(p.requires_grad for p in one.parameters())
    entropy = torch.special.entr(logits[0].softmax(-1)).sum(-1)
    assert entropy.min() > 0.97 * math.log(tiny_llama.VOCABULARY)


@pytest.mark.parametrize("width", [16, 128, 256])
def test_the_teacher_scatters_its_logits_as_a_fresh_model_of_the_architecture(width: int) -> None:
    torch.manual_seed(0)
    fresh = tiny_llama.base(hidden_size=width)
    with torch.no_grad():
        for p in fresh.parameters():
            p.div_(1.0 if p.ndim < 2 else 5.0)
        ids = torch.arange(3, 60)[None]
        expected = fresh(input_ids=ids).logits.std()
        found = incompetent_teacher(fresh, 0)(input_ids=ids).logits.std()
    assert 0.7 < (found / expected).item() < 1.4


# Unlearning against a slow loop


def slow_rows(model: Any, record: TokenSequence) -> tuple[Tensor, Tensor]:
    """Logits that predict each answer token of this record alone, and the states after each layer."""
    output = model(input_ids=torch.tensor([[*record.prompt, *record.answer]]), output_hidden_states=True)
    return output.logits[0, len(record.prompt) - 1 : -1].double(), output.hidden_states


def slow_kl(model: Any, reference: Any, record: TokenSequence, temperature: float = 1.0) -> Tensor:
    with torch.no_grad():
        q = (slow_rows(reference, record)[0] / temperature).softmax(-1)
    log_p = (slow_rows(model, record)[0] / temperature).log_softmax(-1)
    return temperature**2 * (q * (q.log() - log_p)).sum(-1).mean()


def slow_nll(model: Any, record: TokenSequence) -> Tensor:
    log_p = slow_rows(model, record)[0].log_softmax(-1)
    return -log_p[torch.arange(len(record.answer)), torch.tensor(record.answer)].mean()


def average(values: list[Tensor]) -> Tensor:
    return torch.stack([v.double() for v in values]).mean()


def slow_losses(
    name: str, v: Mapping[str, Any], model: Any, received: Any, teacher: Any, forget: list, retain: list, epoch: int
) -> list[Any]:
    """The loss of each update of a batch, written from the papers; functions, since a later one sees a later model."""

    def ref_kl(records: list) -> Tensor:
        return average([slow_kl(model, received, r, v.get("temperature", 1.0)) for r in records])

    def nll(records: list) -> Tensor:
        return average([slow_nll(model, r) for r in records])

    if name == "neg_grad":
        return [lambda: v["alpha"] * nll(retain) - (1 - v["alpha"]) * nll(forget)]
    if name == "fine_tune":
        return [lambda: nll(retain)]
    if name == "scrub":
        steps = [lambda: v["alpha"] * ref_kl(retain) + v["gamma"] * nll(retain)]
        return [*steps, lambda: -ref_kl(forget)] if epoch < v["msteps"] else steps
    if name == "bad_teacher":
        return [
            lambda: (
                v["gamma"] * average([slow_kl(model, teacher, r, v["temperature"]) for r in forget])
                + v["alpha"] * (ref_kl(retain) + nll(retain))
            )
        ]
    if name == "rmu":
        target = v["steering_coefficient"] * control_vector(32, v["direction_seed"])

        def states(m: Any, record: TokenSequence) -> Tensor:
            return slow_rows(m, record)[1][v["layer"] + 1][0]

        def distance() -> Tensor:
            away = [(states(model, r) - target).square().sum(-1).mean() for r in forget]
            with torch.no_grad():
                kept = [states(received, r) for r in retain]
            near = [(states(model, r) - k).square().sum(-1).mean() for r, k in zip(retain, kept, strict=True)]
            return average(away) + v["alpha"] * average(near)

        return [distance]

    def preference() -> Tensor:
        """grad_diff, npo and simnpo with the divergence as their retain term."""
        terms = []
        for record in forget:
            mean = slow_nll(model, record)
            if name == "grad_diff":
                terms.append(-v["gamma"] * mean)
            elif name == "npo":
                with torch.no_grad():
                    reference = slow_nll(received, record)
                ratio = torch.exp((reference - mean) * len(record.answer))
                terms.append(2 / v["beta"] * torch.log(1 + ratio ** v["beta"]))
            else:
                terms.append(2 / v["beta"] * torch.log(1 + torch.exp(-v["beta"] * mean + v["delta"])))
        return average(terms) + v["alpha"] * ref_kl(retain)

    return [preference]


def made(name: str) -> Any:
    """One method moves two layers of three, and divergences of one layer are so small that they hardly move it."""
    return tiny_llama.lora(num_hidden_layers=3) if name in {"rmu", "scrub", *KL_METHODS} else tiny_llama.shallow()


def slow_loop(name: str, values: Mapping[str, Any]) -> tuple[list[float], np.ndarray]:
    model = made(name)
    received, teacher = copy.deepcopy(model).eval(), incompetent_teacher(model, values.get("teacher_seed", 0))
    moving = trainable(model)
    if name == "rmu":
        moving = [p for n, p in model.named_parameters() if p.requires_grad and (".0." in n or ".1." in n)]
    optimiser = torch.optim.AdamW(moving, lr=2e-3, eps=EPS, weight_decay=0.01, foreach=False)
    order, draws = torch.Generator().manual_seed(9), torch.Generator().manual_seed(10)
    cycle = itertools.chain.from_iterable(torch.randperm(5, generator=draws).tolist() for _ in itertools.count())
    history = []
    for epoch in range(2):
        permutation = torch.randperm(7, generator=order).tolist()
        for chosen in (permutation[:4], permutation[4:]):
            forget = [FORGET[i] for i in chosen]
            retain = [RETAIN[next(cycle)] for _ in chosen]
            for loss in slow_losses(name, values, model, received, teacher, forget, retain, epoch):
                value = loss()
                history.append(value.item())
                model.zero_grad()
                value.backward()
                optimiser.step()
    return history, torch.cat([p.detach().reshape(-1) for p in trainable(model)]).numpy()


def fast_loop(name: str, values: Mapping[str, Any], **options: Any) -> tuple[list[float], np.ndarray, UnlearnReport]:
    model = made(name)
    flat = FlatParameters(model)
    history: list[float] = []
    report = unlearn(
        model, flat, FORGET, RETAIN, name, values, settings(), seed=9,
        on_step=lambda _, loss: history.append(loss), options=UnlearnOptions(**options),
    )  # fmt: skip
    return history, flat.numpy(), report


@pytest.mark.parametrize(("name", "retain_loss"), [*((n, "nll") for n in METHODS), *((n, "kl") for n in KL_METHODS)])
def test_trajectory_equals_the_slow_loop(name: str, retain_loss: str) -> None:
    values = {**METHODS, **KL_METHODS}[name]
    history, vector, report = fast_loop(name, values, retain_loss=retain_loss)
    expected_history, expected = slow_loop(name, values)
    scale = max(1.0, max(map(abs, expected_history)))
    np.testing.assert_allclose(history, expected_history, rtol=0, atol=2e-4 * scale)
    np.testing.assert_allclose(vector, expected, rtol=0, atol=3e-4)
    assert report.retain_used and report.steps == len(history) == (6 if name == "scrub" else 4)
    assert math.isnan(report.first_forget_nll) == (name in ("fine_tune", "rmu"))


@pytest.mark.parametrize("mode", ["packed", "padded"])
@pytest.mark.parametrize("name", ["scrub", "bad_teacher", "rmu"])
def test_models_without_the_fused_pass_go_the_same_way(name: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, expected, _ = fast_loop(name, METHODS[name])
    monkeypatch.setattr("evaluation.engine.architectures.llama.supports", lambda *_: False)
    if mode == "padded":
        monkeypatch.setattr("evaluation.engine.forward.resolve_mode", lambda *_: "padded")
    np.testing.assert_allclose(fast_loop(name, METHODS[name])[1], expected, rtol=0, atol=3e-4)


@pytest.mark.parametrize("name", [*METHODS, *KL_METHODS])
def test_full_mode(name: str) -> None:
    """All weights move, the head among them; the reference is then held as logits."""
    model = tiny_llama.base(num_hidden_layers=3 if name == "rmu" else 1)
    flat = FlatParameters(model)
    start = flat.numpy()
    values = {**METHODS, **KL_METHODS}[name]
    kl = "kl" if name in KL_METHODS else "nll"
    report = unlearn(
        model, flat, FORGET, RETAIN, name, values, settings(epochs=1), seed=9, options=UnlearnOptions(retain_loss=kl)
    )
    assert math.isfinite(report.last_loss) and np.abs(flat.numpy() - start).max() > 0


@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("limit", [None, 0.1])
def test_rmu_moves_its_layers_only(method: str, limit: float | None) -> None:
    model = tiny_llama.lora(num_hidden_layers=4) if method == "lora" else tiny_llama.base(num_hidden_layers=4)
    flat = FlatParameters(model)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    values = {"layer": 2, "moved_layers": 2, "steering_coefficient": 3.0, "alpha": 1.0}
    unlearn(
        model, flat, FORGET, RETAIN, "rmu", values,
        settings(weight_decay=0.3, max_grad_norm=limit), seed=0, options=UnlearnOptions(entropy=Entropy(0.5, -0.5)),
    )  # fmt: skip
    for name, p in model.named_parameters():
        moves = p.requires_grad and (".layers.1." in name or ".layers.2." in name)
        assert torch.equal(p, before[name]) != moves, name


@pytest.mark.slow
def test_rmu_leads_forget_states_to_the_target_and_keeps_the_others() -> None:
    model = tiny_llama.lora()
    target = 6.0 * control_vector(32, 0)

    def distances(records: list[TokenSequence], to: Tensor) -> float:
        with torch.no_grad():
            return (layer_states(model, PackedBatch.build(records, last=True), 1) - to).square().sum(-1).mean().item()

    with torch.no_grad():
        kept = layer_states(model, PackedBatch.build(RETAIN, last=True), 1)
    before = distances(FORGET, target)
    values = {"layer": 1, "steering_coefficient": 6.0, "alpha": 1.0}
    unlearn(
        model, FlatParameters(model), FORGET, RETAIN, "rmu", values, settings(epochs=40, learning_rate=1e-2), seed=0
    )
    assert distances(FORGET, target) < 0.7 * before
    assert distances(RETAIN, kept) < 0.5 * before


@pytest.fixture(scope="module")
def learned() -> np.ndarray:
    """The adapter of a model that has learned the records by heart."""
    model = tiny_llama.lora()
    flat, known = FlatParameters(model), [*FORGET, *RETAIN]
    unlearn(model, flat, known, known, "fine_tune", {}, settings(epochs=60, learning_rate=1e-2), seed=0)
    return flat.numpy()


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.slow
def test_unlearning_raises_the_loss_of_forget_records_or_leaves_it(name: str, learned: np.ndarray) -> None:
    """What a loss is for: the forget records get less likely relative to the retain records."""
    model = tiny_llama.lora()
    flat = FlatParameters(model)
    flat.load(learned)

    def gap() -> float:
        with torch.no_grad():
            return (
                average([slow_nll(model, r) for r in FORGET]) - average([slow_nll(model, r) for r in RETAIN])
            ).item()

    before = gap()
    values = {**METHODS[name], "alpha": 0.3} if name == "neg_grad" else METHODS[name]
    unlearn(model, flat, FORGET, RETAIN, name, values, settings(epochs=20, learning_rate=5e-3), seed=0)
    assert gap() > before + (0.0 if name == "fine_tune" else 0.2)


@pytest.mark.parametrize("name", ["neg_grad", "fine_tune", "scrub"])
def test_methods_that_need_retain_records_say_so(name: str) -> None:
    model = tiny_llama.lora()
    flat = FlatParameters(model)
    before = flat.numpy()
    with pytest.raises(ValueError, match=f"{name} needs retain records"):
        unlearn(model, flat, FORGET, [], name, {}, settings(), seed=0)
    np.testing.assert_array_equal(flat.numpy(), before)


@pytest.mark.parametrize("name", ["bad_teacher", "rmu"])
def test_methods_that_can_do_without(name: str) -> None:
    model = tiny_llama.lora()
    report = unlearn(model, FlatParameters(model), FORGET, [], name, {}, settings(), seed=0)
    assert not report.retain_used and report.steps == 4


@pytest.mark.parametrize("name", METHODS)
def test_entropy_weights_of_zero_change_nothing_and_others_do(name: str) -> None:
    _, plain, _ = fast_loop(name, METHODS[name])
    np.testing.assert_array_equal(fast_loop(name, METHODS[name], entropy=Entropy())[1], plain)
    _, other, report = fast_loop(name, METHODS[name], entropy=Entropy(1.0, -0.5))
    assert np.abs(other - plain).max() > 0 and math.isfinite(report.last_forget_entropy)


def test_the_received_model_is_the_reference_not_the_current_one() -> None:
    """KL(received‖model) is 0 before the first update and not after it."""
    model = tiny_llama.lora()
    flat = FlatParameters(model)
    around = ReferenceModels(received=Received(model, flat))
    wanted = ("retain_reference_kl", "forget_reference_kl")
    first = BatchQuantities(model, FORGET, RETAIN, wanted=wanted, around=around)
    assert first.retain_reference_kl is not None
    np.testing.assert_allclose(first.retain_reference_kl.detach(), 0, atol=1e-6)
    flat.load(flat.numpy() + 0.02)
    later = BatchQuantities(model, FORGET, RETAIN, wanted=wanted, around=around)
    assert later.retain_reference_kl is not None and (later.retain_reference_kl > 1e-3).all()
    assert (later.forget_reference_kl > 1e-3).all()
    assert BatchQuantities(model, FORGET, [], wanted=wanted, around=around).retain_reference_kl is None


def test_what_is_missing_is_named() -> None:
    model = tiny_llama.lora()
    with pytest.raises(ValueError, match="was not kept"):
        _ = BatchQuantities(model, FORGET, RETAIN, wanted=("retain_reference_kl",)).retain_reference_kl
    with pytest.raises(ValueError, match="needs a teacher"):
        _ = BatchQuantities(model, FORGET, [], wanted=("forget_teacher_kl",)).forget_teacher_kl
    with pytest.raises(ValueError, match="`wanted` does not name it"):
        _ = BatchQuantities(model, FORGET, []).forget_teacher_kl
    with pytest.raises(ValueError, match="retain_loss 'l2'"):
        UnlearnOptions(retain_loss="l2")


@pytest.mark.parametrize(("name", "value"), [("msteps", 1.5), ("msteps", True), ("temperature", "2")])
def test_bad_hyperparameters(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        losses.get("scrub").parameters({name: value})
