"""DP-SGD: clipped gradients of single records against a loop over them, draws and noise against their distributions."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from scipy import stats
from support import tiny_llama
from support.architectures import tiny_model, with_lora
from torch import nn

from clients import losses
from clients.entropy import Entropy
from clients.flat_parameters import FlatParameters
from clients.optimisation import Ball, NonFiniteError, Prox, Updater
from clients.per_record_gradients import clipped_sum
from clients.record_level_dp import Privacy, drawn, train_privately, unlearn_privately
from clients.reference_models import Received
from clients.training import TrainSettings, train
from clients.unlearning import UnlearnOptions, unlearn
from evaluation.engine.forward import token_log_probs
from evaluation.engine.packing import PackedBatch, sequence_nll

RECORDS = tiny_llama.sequences(9)
FORGET, RETAIN = tiny_llama.sequences(5, seed=1), tiny_llama.sequences(7, seed=2)


def settings(**changes) -> TrainSettings:
    return TrainSettings(**{"epochs": 2, "batch_size": 4, "learning_rate": 3e-3, "warmup_epochs": 0, **changes})


def own_gradients(model: nn.Module, records) -> list[torch.Tensor]:
    """Of each record alone, through the padded forward pass."""
    parameters = [p for _, p in sorted(named(model), key=lambda item: item[1].ndim < 2)]
    found = []
    for record in records:
        loss = -tiny_llama.padded_log_probs(model, [record])[0].mean()
        found.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters)]))
    return found


def named(model):
    return [(n, p) for n, p in model.named_parameters() if p.requires_grad]


def mean_losses(model, records):
    def of(numbers):
        return torch.stack([-x.mean() for x in tiny_llama.padded_log_probs(model, [records[i] for i in numbers])])

    return of


def packed_losses(model, records):
    def of(numbers):
        batch = PackedBatch.build([records[i] for i in numbers])
        return sequence_nll(token_log_probs(model, batch), batch)[1]

    return of


@pytest.mark.parametrize("exactly", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_each_gradient_is_clipped_by_itself(exactly, share):
    """A norm that so many of the records exceed."""
    model = tiny_llama.shallow()
    own = own_gradients(model, RECORDS)
    lengths = torch.stack([g.norm() for g in own])
    norm = float(lengths.quantile(1 - share)) * (1.01 if share == 0 else 0.99 if share == 1 else 1.0)
    expected = torch.stack([g * min(1.0, norm / float(g.norm())) for g in own]).sum(0)
    flat = FlatParameters(model)
    flat.zero_grad()
    norms = clipped_sum(model, flat, RECORDS, packed_losses(model, RECORDS), norm, exactly=exactly)
    torch.testing.assert_close(norms, lengths, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(flat.grad, expected, rtol=1e-4, atol=1e-5)


def test_all_weights_are_clipped_record_by_record_too():
    model = tiny_llama.base()
    own = own_gradients(model, RECORDS[:3])
    flat = FlatParameters(model)
    norms = clipped_sum(model, flat, RECORDS[:3], mean_losses(model, RECORDS[:3]), 0.5)
    expected = torch.stack([g * min(1.0, 0.5 / float(g.norm())) for g in own]).sum(0)
    torch.testing.assert_close(flat.grad, expected, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(norms, torch.stack([g.norm() for g in own]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("exactly", [False, True])
def test_a_padded_batch_gives_the_same(exactly):
    model = tiny_llama.shallow()
    own = own_gradients(model, RECORDS)
    flat = FlatParameters(model)
    clipped_sum(model, flat, RECORDS, mean_losses(model, RECORDS), 0.3, exactly=exactly)
    expected = torch.stack([g * min(1.0, 0.3 / float(g.norm())) for g in own]).sum(0)
    torch.testing.assert_close(flat.grad, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("losses_of", [packed_losses, mean_losses])
def test_factors_of_linear_layers_take_one_pass_of_all_records(losses_of):
    """Packed in a row or padded; `exactly` takes a pass for each record."""
    model = tiny_llama.shallow()
    flat, of, passes = FlatParameters(model), losses_of(model, RECORDS), []

    def counted(numbers):
        passes.append(list(numbers))
        return of(numbers)

    clipped_sum(model, flat, RECORDS, counted, 0.3)
    assert passes == [list(range(len(RECORDS)))]
    passes.clear()
    clipped_sum(model, flat, RECORDS, counted, 0.3, exactly=True)
    assert passes == [[number] for number in range(len(RECORDS))]


def test_layers_that_take_part_once_for_each_length_are_clipped_record_by_record_too():
    """As where a model is run plainly."""
    expected, found = [], []
    for exactly, into in ((True, expected), (False, found)):
        model = with_lora(tiny_model("mamba2", vocab_size=tiny_llama.VOCABULARY))
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("lora_" in name)
        flat = FlatParameters(model)
        into += [
            clipped_sum(model, flat, RECORDS, mean_losses(model, RECORDS), 0.3, exactly=exactly),
            flat.grad.clone(),
        ]
    assert len({len(r.prompt) + len(r.answer) for r in RECORDS}) > 1
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("exactly", [False, True])
def test_a_record_without_a_finite_gradient_adds_nothing(exactly):
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    plain = mean_losses(model, RECORDS)
    bad = torch.tensor([1.0] * 8 + [math.inf])
    clipped_sum(model, flat, RECORDS, lambda n: plain(n) * bad[list(n)], 0.3, exactly=exactly)
    got = flat.grad.clone()
    flat.zero_grad()
    clipped_sum(model, flat, RECORDS[:8], mean_losses(model, RECORDS[:8]), 0.3)
    torch.testing.assert_close(got, flat.grad, rtol=1e-4, atol=1e-6)


def test_fewer_records_than_an_update_takes_are_divided_by_their_own_number():
    """FedProx's term, which is not divided, tells by what the others are."""
    plain, private = tiny_llama.shallow(), tiny_llama.shallow()
    mine, yours = FlatParameters(plain), FlatParameters(private)
    options = UnlearnOptions(prox=Prox(0.3, mine.numpy() + 0.1))
    few, more = FORGET[:3], settings(batch_size=16)
    unlearn(plain, mine, few, [], "grad_ascent", {}, more, seed=1, options=options)
    unlearn_privately(private, yours, few, [], "grad_ascent", {}, more, Privacy(0.0, 1e6, 0), seed=1, options=options)
    np.testing.assert_allclose(yours.numpy(), mine.numpy(), rtol=1e-4, atol=1e-5)


def test_what_is_drawn_says_nothing_of_the_noise():
    """Each has its own source of random numbers."""
    asked = []

    class Told(Privacy):
        def generator(self, number, device="cpu"):
            asked.append(number)
            return Privacy.generator(self, number, device)

    model = tiny_llama.shallow()
    train_privately(model, FlatParameters(model), RECORDS, settings(epochs=1), Told(0.5, 0.3, 7), seed=1)
    assert len(asked) == len(set(asked)) == 2


def test_checkpointing_changes_no_clipped_gradient():
    found = []
    for checkpointing in (False, True):
        model = tiny_llama.shallow()
        flat = FlatParameters(model)
        given = settings(gradient_checkpointing=checkpointing)
        train_privately(model, flat, RECORDS, given, Privacy(0.5, 0.3, 7), seed=1)
        found.append(flat.numpy())
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)


def test_without_noise_clipping_or_drawing_it_is_plain_training():
    """One update of all records: the same as `train`, whose loss is a mean over tokens, for answers of one length."""
    records = [r for r in tiny_llama.sequences(60) if len(r.answer) == len(RECORDS[0].answer)][:4]
    assert len(records) == 4
    plain, private = tiny_llama.shallow(), tiny_llama.shallow()
    mine, yours = FlatParameters(plain), FlatParameters(private)
    prox = Prox(0.3, mine.numpy() + 0.1)
    report = train(plain, mine, records, settings(epochs=3), prox=prox, seed=1)
    told = train_privately(private, yours, records, settings(epochs=3), Privacy(0.0, 1e6, 0), prox=prox, seed=1)
    np.testing.assert_allclose(yours.numpy(), mine.numpy(), rtol=1e-4, atol=1e-5)
    assert (told.steps, told.num_examples) == (report.steps, report.num_examples)
    assert math.isnan(told.first_loss) and math.isnan(told.last_loss), "no noise covers a loss"


@pytest.mark.parametrize("method", ["grad_ascent", "grad_diff", "npo", "simnpo"])
@pytest.mark.parametrize("retain_loss", ["nll", "kl"])
def test_without_noise_clipping_or_drawing_it_is_plain_unlearning(method, retain_loss):
    options = UnlearnOptions(retain_loss=retain_loss)
    plain, private = tiny_llama.shallow(), tiny_llama.shallow()
    mine, yours = FlatParameters(plain), FlatParameters(private)
    whole = settings(epochs=3, batch_size=5)
    values = {"simnpo": {"beta": 0.5}}.get(method, {})  # by default its gradient vanishes here, and Adam hears rounding
    unlearn(plain, mine, FORGET, RETAIN[:5], method, values, whole, seed=1, options=options)
    report = unlearn_privately(
        private, yours, FORGET, RETAIN[:5], method, values, whole, Privacy(0.0, 1e6, 0), seed=1, options=options
    )
    np.testing.assert_allclose(yours.numpy(), mine.numpy(), rtol=1e-3, atol=2e-5)
    assert report.steps == 3 and report.retain_used == (method != "grad_ascent")
    assert math.isnan(report.first_loss) and math.isnan(report.last_forget_nll)


@pytest.mark.parametrize("method", ["grad_ascent", "grad_diff", "npo", "simnpo"])
def test_the_quick_way_unlearns_as_the_exact_one(method):
    found = []
    for exactly in (False, True):
        model = tiny_llama.shallow()
        flat = FlatParameters(model)
        privacy = Privacy(0.5, 0.2, 11)
        unlearn_privately(model, flat, FORGET, RETAIN, method, {}, settings(), privacy, seed=1, exactly=exactly)
        found.append(flat.numpy())
    np.testing.assert_allclose(*found, rtol=1e-3, atol=2e-5)


def test_no_record_moves_the_sum_by_more_than_the_norm(monkeypatch):
    """The sensitivity, through the whole of one update: with and without a record that screams."""

    def gradient(records):
        seen = []
        model = tiny_llama.shallow()
        flat = FlatParameters(model)
        monkeypatch.setattr(Updater, "step", lambda self: seen.append(flat.grad.clone()))
        monkeypatch.setattr("clients.record_level_dp.drawn", lambda count, rate, generator: list(range(count)))
        train_privately(
            model, flat, records, settings(epochs=1, batch_size=len(records)), Privacy(0.0, 0.25, 0), seed=1
        )
        return seen[0] * len(records)

    for out in range(3):
        moved = gradient(RECORDS) - gradient(RECORDS[:out] + RECORDS[out + 1 :])
        assert 0.05 < moved.norm() <= 0.25 * (1 + 1e-4)


def test_the_noise_deviates_by_the_multiplier_times_the_norm_over_the_batch(monkeypatch):
    seen = []
    model = tiny_llama.lora()
    flat = FlatParameters(model)
    monkeypatch.setattr(Updater, "step", lambda self: (seen.append(flat.grad.clone()), flat.zero_grad()))
    monkeypatch.setattr("clients.record_level_dp.drawn", lambda count, rate, generator: [])
    train_privately(model, flat, RECORDS, settings(epochs=1), Privacy(1.5, 0.2, 3), seed=1)
    assert len(seen) == 3
    values = torch.cat(seen).numpy() / (1.5 * 0.2 / 4)
    assert stats.kstest(values, "norm").pvalue > 1e-3
    assert stats.kstest(values / 1.05, "norm").pvalue < 1e-3
    assert abs(np.corrcoef(seen[0], seen[1])[0, 1]) < 0.1


def test_each_record_is_drawn_by_itself():
    generator = torch.Generator().manual_seed(0)
    draws = np.zeros((4000, 6))
    for row in draws:
        row[drawn(6, 0.3, generator)] = 1
    assert np.abs(draws.mean(0) - 0.3).max() < 0.03
    sizes = np.bincount(draws.sum(1).astype(int), minlength=7)
    assert stats.chisquare(sizes, stats.binom.pmf(range(7), 6, 0.3) * 4000).pvalue > 1e-3
    assert abs(np.corrcoef(draws.T) - np.eye(6)).max() < 0.06
    assert drawn(3, 1.0, generator) == [0, 1, 2]


def test_a_seed_repeats_it_and_without_one_nothing_does():
    def trained(seed):
        model = tiny_llama.shallow()
        flat = FlatParameters(model)
        train_privately(model, flat, RECORDS, settings(epochs=1), Privacy(1.0, 0.2, seed), seed=1)
        return flat.numpy().tobytes()

    assert trained(3) == trained(3)
    assert len({trained(3), trained(4), trained(None), trained(None)}) == 4
    zero = [torch.rand(1, generator=Privacy(1.0, 1.0, 0).generator(0)).item() for _ in range(2)]
    assert zero[0] == zero[1], "0 is a seed as any other"


def test_draws_and_noise_come_from_different_numbers():
    one, two = (Privacy(1.0, 1.0, 3).generator(number) for number in (0, 1))
    assert torch.rand(1, generator=one) != torch.rand(1, generator=two)


def test_the_model_is_as_before_but_for_what_was_trained():
    model = tiny_llama.shallow()
    frozen = copy.deepcopy({n: p for n, p in model.named_parameters() if not p.requires_grad})
    flat = FlatParameters(model)
    train_privately(model, flat, RECORDS, settings(epochs=1), Privacy(1.0, 0.2, 3), seed=1)
    assert all(torch.equal(p, frozen[n]) for n, p in model.named_parameters() if n in frozen)
    assert not any(m._forward_hooks for m in model.modules())
    assert Received(model, flat) is not None


@pytest.mark.parametrize(
    "options",
    [
        UnlearnOptions(entropy=Entropy(0.1, 0.0)),
        UnlearnOptions(forget_nll_limit=3.0),
        UnlearnOptions(ball=Ball(np.zeros(3), 1.0)),
    ],
)
def test_what_is_not_clipped_record_by_record_is_refused(options):
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    with pytest.raises(ValueError, match="more than clipped and noised gradients"):
        unlearn_privately(model, flat, FORGET, [], "npo", {}, settings(), Privacy(1.0, 1.0, 0), seed=1, options=options)


@pytest.mark.parametrize("method", [n for n in losses.names() if not losses.get(n).per_record])
def test_other_losses_are_refused(method):
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    with pytest.raises(ValueError, match="no sum of terms about one record each"):
        unlearn_privately(model, flat, FORGET, RETAIN, method, {}, settings(), Privacy(1.0, 1.0, 0), seed=1)


@pytest.mark.parametrize("values", [(-1.0, 1.0), (math.inf, 1.0), (1.0, 0.0), (1.0, math.nan), (1.0, math.inf)])
def test_values_out_of_range(values):
    with pytest.raises(ValueError, match=r"must be (finite|positive)"):
        Privacy(*values)


@pytest.mark.parametrize(
    ("options", "checkpointing", "expected"),
    [({}, False, False), ({"exactly": True}, False, True), ({"exactly": False}, True, True), ({}, True, True)],
)
def test_records_go_one_by_one_where_that_is_asked_for_or_hooks_would_run_twice(
    monkeypatch, options, checkpointing, expected
):
    told = []
    monkeypatch.setattr("clients.record_level_dp.clipped_sum", lambda *_, exactly: told.append(exactly))
    model = tiny_llama.shallow()
    flat, given = FlatParameters(model), settings(epochs=1, batch_size=9, gradient_checkpointing=checkpointing)
    train_privately(model, flat, RECORDS, given, Privacy(1.0, 1.0, 0), seed=1, **options)
    unlearn_privately(model, flat, FORGET, RETAIN[:5], "grad_diff", {}, given, Privacy(1.0, 1.0, 0), seed=1, **options)
    assert told == [expected] * 3


def test_nothing_to_train_on_or_to_forget():
    model = tiny_llama.shallow()
    flat, privacy = FlatParameters(model), Privacy(1.0, 1.0, 0)
    with pytest.raises(ValueError, match="no sequence to train on"):
        train_privately(model, flat, [], settings(), privacy, seed=1)
    with pytest.raises(ValueError, match="no sequence to forget"):
        unlearn_privately(model, flat, [], RETAIN, "npo", {}, settings(), privacy, seed=1)


def test_a_parameter_that_is_not_finite_is_noticed():
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    broken = flat.numpy()
    broken[-1] = np.inf
    flat.load(broken)
    with pytest.raises(NonFiniteError, match="a parameter is not finite after 3 updates"):
        train_privately(model, flat, RECORDS, settings(epochs=1), Privacy(1.0, 1.0, 0), seed=1)


def test_the_largest_seed_has_a_further_source():
    """Seeds have 63 bits; the number after the last one is 0."""
    last = Privacy(1.0, 1.0, 2**63 - 1)
    assert last.generator(0).initial_seed() == 2**63 - 1 and last.generator(1).initial_seed() == 0


@pytest.mark.parametrize("accumulation", [1, 2])
def test_updates_are_as_many_as_batches_and_each_is_told(accumulation):
    """9 records, 2 or 4 of them in an update: 5 or 3 of them in an epoch, in training and unlearning."""
    given, steps = settings(epochs=2, batch_size=2, gradient_accumulation=accumulation), []
    model = tiny_llama.shallow()
    flat, privacy, expected = FlatParameters(model), Privacy(1.0, 0.1, 0), 10 if accumulation == 1 else 6
    told = train_privately(model, flat, RECORDS, given, privacy, seed=1, on_step=steps.append)
    assert told.steps == expected and steps == list(range(1, expected + 1)) and told.num_examples == 9
    assert 0 < told.seconds < 60
    steps.clear()
    report = unlearn_privately(
        model, flat, RECORDS, RETAIN, "grad_diff", {}, given, privacy, seed=1, on_step=steps.append
    )
    assert report.steps == expected and steps == list(range(1, expected + 1)) and 0 < report.seconds < 60
    assert (report.num_examples, report.num_retain, report.stopped) == (9, 7, False)
    assert all(
        math.isnan(x) for x in (report.first_forget_entropy, report.last_forget_entropy, report.first_forget_nll)
    )


def one_update(monkeypatch, forget, retain, **changes):
    """The gradient before the only update of an epoch, and with which counts and probabilities records were drawn."""
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    seen, rates = [], []

    def all_of(count, rate, generator):
        rates.append((count, rate))
        return list(range(count))

    with monkeypatch.context() as patch:
        patch.setattr(Updater, "step", lambda self: seen.append(flat.grad.clone()))
        patch.setattr("clients.record_level_dp.drawn", all_of)
        given = settings(epochs=1, **changes)
        unlearn_privately(model, flat, forget, retain, "grad_diff", {}, given, Privacy(0.0, 1e6, 0), seed=1)
    return seen[0], rates


def mean_gradient(records):
    return torch.stack(own_gradients(tiny_llama.shallow(), records)).mean(0)


@pytest.mark.parametrize("retain", [2, 5, 12])
def test_the_retain_term_is_a_mean_over_few_retain_records_too(monkeypatch, retain):
    """With all 8 forget records in an update and 2 retain ones it counted a quarter of α; of more than 8, of which 8
    are drawn on average, each counts an eighth.
    """
    forget, kept = tiny_llama.sequences(8, seed=1), tiny_llama.sequences(retain, seed=2)
    found, _ = one_update(monkeypatch, forget, kept, batch_size=8)
    expected = mean_gradient(kept) * max(1, retain / 8) - mean_gradient(forget)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_fewer_forget_records_than_an_update_takes_are_divided_by_their_number(monkeypatch):
    found, rates = one_update(monkeypatch, FORGET[:2], RETAIN[:2], batch_size=8)
    torch.testing.assert_close(found, mean_gradient(RETAIN[:2]) - mean_gradient(FORGET[:2]), rtol=1e-3, atol=1e-5)
    assert rates == [(2, 1.0), (2, 1.0)]


def test_as_many_retain_records_as_forget_records_are_drawn_on_average(monkeypatch):
    _, rates = one_update(monkeypatch, FORGET[:3], RETAIN, batch_size=2)
    assert rates[:2] == [(3, 2 / 3), (7, 2 / 7)]


def test_a_retain_record_moves_the_sum_by_no_more_than_the_norm_however_few_they_are(monkeypatch):
    def gradient(retain):
        model = tiny_llama.shallow()
        flat, seen = FlatParameters(model), []
        monkeypatch.setattr(Updater, "step", lambda self: seen.append(flat.grad.clone()))
        given, privacy = settings(epochs=1, batch_size=5), Privacy(0.0, 0.25, 0)
        unlearn_privately(model, flat, FORGET, retain, "grad_diff", {}, given, privacy, seed=1)
        return seen[0] * len(FORGET)

    moved = gradient(RETAIN[:1]) - gradient([])
    assert 0.2 < moved.norm() <= 0.25 * (1 + 1e-4)


def test_fewer_records_to_train_on_than_an_update_takes_are_divided_by_their_number(monkeypatch):
    """Three of sixteen: their mean, in one update of each epoch, and not a step of them more."""
    model = tiny_llama.shallow()
    flat, seen = FlatParameters(model), []
    monkeypatch.setattr(Updater, "step", lambda self: (seen.append(flat.grad.clone()), flat.zero_grad()))
    train_privately(model, flat, RECORDS[:3], settings(epochs=2, batch_size=16), Privacy(0.0, 1e6, 0), seed=1)
    assert len(seen) == 2
    for found in seen:
        torch.testing.assert_close(found, mean_gradient(RECORDS[:3]), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("alpha", "used"), [(0.0, False), (0.5, True)])
def test_a_retain_term_without_weight_draws_no_retain_record(alpha, used):
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    given = (settings(epochs=1), Privacy(0.1, 1.0, 3))
    report = unlearn_privately(model, flat, FORGET, RETAIN, "grad_diff", {"alpha": alpha}, *given, seed=1)
    assert report.retain_used is used and report.num_retain == len(RETAIN)


def test_each_record_has_its_own_reference_in_whichever_part_it_is(monkeypatch):
    """NPO from the model as received, two records in a part: the gradient of each answer's log-likelihood, once."""
    model = tiny_llama.shallow()
    flat, seen = FlatParameters(model), []
    monkeypatch.setattr(Updater, "step", lambda self: (seen.append(flat.grad.clone()), flat.zero_grad()))
    monkeypatch.setattr("clients.record_level_dp.drawn", lambda count, rate, generator: list(range(count))[::-1])
    given = settings(epochs=1, batch_size=2)
    unlearn_privately(model, flat, FORGET, [], "npo", {"beta": 0.7}, given, Privacy(0.0, 1e6, 0), seed=1)
    own = zip(own_gradients(tiny_llama.shallow(), FORGET), FORGET, strict=True)
    expected = sum(-len(record.answer) * gradient for gradient, record in own) / 2
    torch.testing.assert_close(seen[0], expected, rtol=1e-3, atol=1e-4)


def test_of_no_record_nothing_is_added_and_nothing_is_asked():
    model = tiny_llama.shallow()
    flat = FlatParameters(model)
    flat.grad.fill_(0.5)
    norms = clipped_sum(model, flat, [], lambda numbers: pytest.fail("there is nothing to ask"), 1.0)
    assert norms.shape == (0,) and (flat.grad == 0.5).all()
