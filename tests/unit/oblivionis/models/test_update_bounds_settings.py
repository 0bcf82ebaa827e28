"""An honest client can never be refused, whatever its records; a dead worker is Ray's to tell."""

import numpy as np
import pytest
import torch

from oblivionis.config.compose import compose
from oblivionis.models.update_bounds_settings import bounds_of, longest_step, longest_update


@pytest.mark.parametrize(
    ("beta_1", "quiet", "growth"),
    [
        *[(0.9, 0, 1.0), (0.9, 0, 1.11), (0.9, 0, 3.0), (0.9, 6000, 1.0), (0.9, 6000, 1.11), (0.9, 6000, 3.0)],
        *[(0.5, 0, 2.0), (0.5, 6000, 1.11), (0.5, 6000, 2.0), (0.0, 6000, 3.0)],
    ],
)
def test_no_step_of_adam_is_longer_than_the_bound(beta_1, quiet, growth):
    """Gradients that grow by β₂/β₁ after a long quiet are the worst: the first moment outruns the second."""
    value = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.AdamW([value], lr=1e-3, betas=(beta_1, 0.999), weight_decay=0.0, eps=1e-30)
    longest = 0.0
    for step in range(quiet + 120):
        before = value.item()
        value.grad = torch.tensor([1e-10 * growth ** (step - quiet) if step >= quiet else 0.0], dtype=torch.float64)
        optimiser.step()
        longest = max(longest, abs(value.item() - before) / 1e-3)
    assert 0.99 < longest <= longest_step(beta_1)
    if (beta_1, quiet, growth) in ((0.9, 6000, 1.11), (0.5, 6000, 2.0)):
        assert longest > 0.98 * longest_step(beta_1), "the bound can be reached"


def test_the_longest_update_by_hand():
    given = ["training.learning_rate=0.01", "training.weight_decay=0.1", "training.batch_size=4"]
    config = compose("default", ["unlearning=npo", *given])
    config.federation.local_epochs, config.unlearning.epochs = 3, 2
    steps = 3 * 3  # epochs x batches of 9 records
    reach = 7.2703 * 0.01 * steps * 10
    drift = 0.01 * 0.1 * steps
    assert longest_update(config, "train", 9, 100, 5.0) == pytest.approx(1.01 * (reach + drift * (5 + reach)), 1e-4)
    reach, drift = 7.2703 * 0.01 * 4 * 2 * 3 * 10, 0.01 * 0.1 * 4 * 2 * 3
    config.unlearning.learning_rate = config.unlearning.batch_size = config.unlearning.weight_decay = None
    assert longest_update(config, "unlearn", 9, 100, 5.0) == pytest.approx(1.01 * (reach + drift * (5 + reach)), 1e-4)
    config.unlearning.beta_1 = 0.5
    reach *= 18.2605 / 7.2703
    assert longest_update(config, "unlearn", 9, 100, 5.0) == pytest.approx(1.01 * (reach + drift * (5 + reach)), 1e-4)


def test_what_was_kept_back_may_come_in_one_update_of_training():
    """Of 1000 numbers 100 are sent: each waits ten rounds at most, and √100 · 10 is √10 times √1000."""
    plain = compose("default", [])
    packed = compose("default", ["federation.compression.method=topk", "federation.compression.keep=0.1"])
    alone = compose("default", ["federation.compression.method=topk", "federation.compression.error_feedback=false"])
    for kind, factor in (("train", 10**0.5), ("unlearn", 1.0), ("calibrate", 1.0)):
        usual = longest_update(plain, kind, 9, 1000, 5.0)
        assert longest_update(packed, kind, 9, 1000, 5.0) == pytest.approx(factor * usual)
        assert longest_update(alone, kind, 9, 1000, 5.0) == usual


@pytest.mark.parametrize(("told", "given", "share"), [(False, None, 1.0), (True, None, 0.5), (True, 0.9, 0.9)])
def test_where_clients_count_themselves_their_share_is_limited(told, given, share):
    config = compose("default", [] if given is None else [f"federation.max_weight_share={given}"])
    bounds = bounds_of(config, {0: 4, 1: None}.get, 100, reported=told)
    assert bounds.max_weight_share == share and bounds.max_update_norm == 10.0
    assert bounds.longest("train", 1, 1.0) == np.inf > bounds.longest("train", 0, 1.0)


def test_the_bound_grows_with_the_factor_of_a_task_vector() -> None:
    found = []
    for alpha in (1, 5):
        config = compose("default", ["unlearning=task_vector", f"unlearning.params.alpha={alpha}"])
        found.append(longest_update(config, "unlearn", 10, 100, 1.0))
        assert longest_update(config, "train", 10, 100, 1.0) == longest_update(
            compose("default"), "train", 10, 100, 1.0
        )
    assert found[1] == pytest.approx(5 * found[0])
