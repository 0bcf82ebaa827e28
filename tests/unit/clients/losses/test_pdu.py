"""PDU: numbers by hand, a constrained problem that it must solve, margins by brute force, a slow loop."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny_llama
from support.slow_unlearning import FORGET, RETAIN, SEED, SETTINGS, SIZE, fast, nll, trajectory
from torch import Tensor

from clients import losses
from clients.batch_quantities import BatchQuantities
from clients.distributions import row_margins
from clients.flat_parameters import FlatParameters
from clients.losses.pdu import advance, pdu
from clients.training import TrainSettings
from clients.unlearning import unlearn
from evaluation.engine.forward import AnswerRows
from evaluation.engine.sequences import TokenSequence

STILL = {"dual_step_size": 0.5, "dual_warmup_epochs": 0, "tolerance": 0.5, "epsilon": None}


def margin(model: Any, record: TokenSequence) -> Tensor:
    """Mean over the answer tokens of the squared distance of the largest logit from the mean logit, one by one."""
    logits = model(input_ids=torch.tensor([[*record.prompt, *record.answer]])).logits[0].double()
    squares = []
    for place in range(len(record.prompt) - 1, len(record.prompt) + len(record.answer) - 1):
        row = list(logits[place])
        squares.append((max(row) - sum(row) / len(row)) ** 2)
    return torch.stack(squares).mean()


def test_by_hand() -> None:
    """Margins 4 and 1, a retain loss of 2 where the model as received has 1: bound 3/2, or 1.75 as a number."""
    known = (torch.tensor([4.0, 1.0]), torch.tensor([1.0, 3.0]), torch.tensor([0.5, 1.5]))
    assert pdu(*known, dual=10.0, tolerance=0.5).item() == pytest.approx(2.5 + 10 * (2 - 1.5))
    assert pdu(*known, dual=10.0, epsilon=1.75).item() == pytest.approx(2.5 + 10 * 0.25)
    assert pdu(*known, dual=0.0).item() == pytest.approx(2.5)


def test_a_step_of_the_dual_by_hand() -> None:
    means = {"forget_margin": 9.0, "retain_nll": 2.0, "retain_reference_nll": 1.0}
    assert advance(0, means, dual=3.0, **STILL) == {"dual": 3 + 0.5 * (2 - 1.5)}
    assert advance(4, means, dual=3.0, **{**STILL, "dual_step_size": 7.0, "epsilon": 2.25}) == {"dual": 3 - 7 * 0.25}
    assert advance(4, means, dual=3.0, **{**STILL, "dual_step_size": 70.0, "epsilon": 2.25}) == {"dual": 0.0}
    warm = {**STILL, "dual_warmup_epochs": 2}
    assert advance(1, means, dual=3.0, **warm) == {} and advance(2, means, dual=3.0, **warm) == {"dual": 3.25}


def test_it_solves_a_problem_whose_solution_is_known() -> None:
    """min (x − 3)² subject to x ≤ 1: x = 1 and, by 2(x − 3) + λ = 0, λ = 4, from either side of the bound."""
    for start, first in ((-2.0, 0.0), (5.0, 20.0)):
        x, values = torch.tensor([start], requires_grad=True), {**STILL, "epsilon": 1.0, "dual": first}
        for _ in range(400):
            loss = pdu((x - 3) ** 2, x, x.detach(), **values)  # type: ignore[arg-type]
            (gradient,) = torch.autograd.grad(loss, x)
            means = {"retain_nll": x.item(), "retain_reference_nll": math.nan}
            x = (x - 0.05 * gradient).detach().requires_grad_()
            values |= advance(0, means, **values)  # type: ignore[arg-type]
        assert x.item() == pytest.approx(1.0, abs=1e-3) and values["dual"] == pytest.approx(4.0, abs=1e-2)


@pytest.mark.parametrize("head", [False, True])
def test_margins_by_brute_force_in_pieces_and_by_finite_differences(
    head: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clients.distributions.ROWS", 4)
    monkeypatch.setattr("clients.distributions.LOGITS", 0)
    generator = torch.Generator().manual_seed(0)
    values = (2 * torch.randn(7, 5, generator=generator, dtype=torch.float64)).requires_grad_()
    matrix = torch.randn(11, 5, generator=generator, dtype=torch.float64) if head else None
    logits = values.detach() @ matrix.T if matrix is not None else values.detach()
    expected = [(max(row) - math.fsum(row) / len(row)) ** 2 for row in logits.tolist()]
    np.testing.assert_allclose(row_margins(AnswerRows(values, matrix)).detach(), expected, rtol=1e-12)
    assert torch.autograd.gradcheck(lambda x: row_margins(AnswerRows(x, matrix)), (values,))


def test_a_uniform_distribution_has_no_margin_whatever_its_logits() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        flat = torch.full((3, 50), 17.0, dtype=dtype)
        found = row_margins(AnswerRows(flat, None))
        assert found.dtype == torch.float32 and found.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("build", [tiny_llama.lora, tiny_llama.base])
def test_the_quantities_of_a_step(build: Callable[..., Any]) -> None:
    """By LoRA the frozen head makes logits of states, in full mode there are logits."""
    model = build(num_hidden_layers=3)
    step = BatchQuantities(model, FORGET, RETAIN, wanted=("forget_margin", "retain_nll"))
    with torch.no_grad():
        expected = [margin(model, record).item() for record in FORGET]
    np.testing.assert_allclose(step.forget_margin.detach(), expected, rtol=1e-4)
    plain = BatchQuantities(model, FORGET, RETAIN)
    assert step.retain_nll is not None and plain.retain_nll is not None
    torch.testing.assert_close(step.retain_nll, plain.retain_nll, rtol=0, atol=1e-4)
    torch.testing.assert_close(step.forget_nll, plain.forget_nll, rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match="forget_margin was not computed"):
        _ = plain.forget_margin
    with pytest.raises(ValueError, match="retain records were not computed"):
        _ = plain.retain_reference_nll


@pytest.mark.parametrize(
    ("warmup", "epsilon", "mode"), [(0, None, ""), (1, None, ""), (0, 3.0, ""), (0, None, "padded"), (7, None, "")]
)
def test_trajectory_equals_the_slow_loop(
    warmup: int, epsilon: float | None, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """λ moves after each update by its records; with half a batch in a pass, by their mean over both passes."""
    dual, calls, duals = 2.0, 0, []

    def loss(model: Any, received: Any, forget: list[TokenSequence], retain: list[TokenSequence]) -> Tensor:
        nonlocal dual, calls
        with torch.no_grad():
            bound = 1.2 * nll(received, retain) if epsilon is None else torch.tensor(epsilon)
        excess = nll(model, retain) - bound
        value = torch.stack([margin(model, record) for record in forget]).mean() + dual * excess
        duals.append(dual)
        if calls // (-(-len(FORGET) // SIZE)) >= warmup:
            dual = max(0.0, dual + 1.5 * excess.item())
        calls += 1
        return value

    expected_history, expected = trajectory(loss)
    if mode:
        monkeypatch.setattr("evaluation.engine.forward.resolve_mode", lambda *_: "padded")
    values = {"dual": 2.0, "dual_step_size": 1.5, "dual_warmup_epochs": warmup, "tolerance": 0.2, "epsilon": epsilon}
    history, found = fast("pdu", values)
    assert (len(set(duals)) > 1) == (warmup < 2), "the test would not see a dual variable that stands still"
    np.testing.assert_allclose(history, expected_history, rtol=1e-4, atol=2e-4)
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-4)


def test_each_unlearning_starts_with_the_first_dual_variable() -> None:
    values = {"dual": 2.0, "dual_step_size": 1.5, "dual_warmup_epochs": 0}
    (history, first), (again, second) = fast("pdu", values), fast("pdu", values)
    assert history == again and first.tobytes() == second.tobytes()


def nll_and_margin(model: Any) -> Tensor:
    with torch.no_grad():
        return torch.stack([nll(model, RETAIN), torch.stack([margin(model, record) for record in FORGET]).mean()])


@pytest.mark.slow
def test_a_tight_bound_holds_the_retain_records_where_a_loose_one_lets_them_go() -> None:
    """What a dual variable is for: without one the margins alone are flattened."""
    ends = {}
    known = TrainSettings(epochs=60, batch_size=8, learning_rate=1e-2, warmup_epochs=0)
    settings = TrainSettings(epochs=30, batch_size=8, learning_rate=5e-3, warmup_epochs=0)
    for name, values in {
        "bound": {"dual": 0.0, "dual_step_size": 50.0, "dual_warmup_epochs": 0, "tolerance": 0.1},
        "free": {"dual": 0.0, "dual_step_size": 0.0},
    }.items():
        model = tiny_llama.shallow()
        flat = FlatParameters(model)
        unlearn(model, flat, RETAIN, [*FORGET, *RETAIN], "fine_tune", {}, known, seed=0)
        with torch.no_grad():
            before = nll(model, RETAIN).item(), torch.stack([margin(model, r) for r in FORGET]).mean().item()
        unlearn(model, flat, FORGET, RETAIN, "pdu", values, settings, seed=SEED)
        with torch.no_grad():
            ends[name] = (
                nll(model, RETAIN).item() / before[0],
                torch.stack([margin(model, r) for r in FORGET]).mean() / before[1],
            )
    assert ends["free"][0] > 2 and ends["free"][1] < 0.1
    assert ends["bound"][0] < 0.7 * ends["free"][0] and ends["bound"][1] < 0.9


def test_without_retain_records_there_is_no_constraint_and_it_says_so() -> None:
    model = tiny_llama.shallow()
    with pytest.raises(ValueError, match="pdu needs retain records"):
        unlearn(model, FlatParameters(model), FORGET, [], "pdu", {}, SETTINGS, seed=0)


@pytest.mark.parametrize(("moved", "what"), [({"daul": 1.0}, "'daul'.*dual"), ({"dual": math.nan}, "dual must be")])
def test_hyperparameters_that_advance_wrongly(
    moved: dict[str, float], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = dataclasses.replace(losses.get("pdu"), advance_in=lambda epoch, means, **values: moved)
    monkeypatch.setattr(losses, "get", lambda name: method)
    model = tiny_llama.shallow()
    with pytest.raises(ValueError, match=what):
        unlearn(model, FlatParameters(model), FORGET, RETAIN, "pdu", {}, SETTINGS, seed=0)
