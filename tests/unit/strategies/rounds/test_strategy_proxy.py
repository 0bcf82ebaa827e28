"""A strategy around another, and what serves requests without remembering anything."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAvg
from support.fedtu_clients import adapter, federation

from strategies.protocols.base import ByUnlearning, UnlearningProtocol
from strategies.rounds.client_sampling import Available
from strategies.rounds.strategy_proxy import ForeignStrategy, WrappingStrategy
from strategies.rules.factory import build


class Told:
    """Gives back what it was called with."""

    def __getattr__(self, name):
        return lambda *given: (name, *given)


@pytest.mark.parametrize("name", ["configure_train", "configure_evaluate"])
def test_what_is_configured_is_what_the_inner_one_configures(name: str) -> None:
    given = (3, adapter([0.0]), ConfigRecord(), federation(1))
    assert getattr(WrappingStrategy(Told()), name)(*given) == (name, *given)


@pytest.mark.parametrize("name", ["aggregate_train", "aggregate_evaluate"])
def test_what_is_aggregated_is_what_the_inner_one_aggregates(name: str) -> None:
    assert getattr(WrappingStrategy(Told()), name)(3, ["reply"]) == (name, 3, ["reply"])


def test_a_strategy_without_a_state_takes_none() -> None:
    plain = WrappingStrategy(FedAvg())
    assert plain.state_dict() == {}
    plain.load_state_dict({})
    with pytest.raises(ValueError, match="FedAvg cannot load a state"):
        plain.load_state_dict({"m/adapter": np.zeros(1)})
    ours = WrappingStrategy(build("fedavgm"))
    ours.load_state_dict({"m/adapter": np.ones(2)})
    assert ours.state_dict()["m/adapter"].tolist() == [1, 1]


def test_a_strategy_that_names_nothing_has_defaults() -> None:
    class Bare:
        pass

    known = ForeignStrategy(Bare())  # type: ignore[arg-type]
    assert (known.arrayrecord_key, known.configrecord_key, known.weighted_by_key) == (
        FedAvg().arrayrecord_key,
        FedAvg().configrecord_key,
        FedAvg().weighted_by_key,
    )
    assert (known.needs_steps, known.can_reset, known.min_train_nodes, known.min_available_nodes) == (
        False,
        False,
        1,
        1,
    )
    known.reset_state()
    assert known.state_dict() == {}


def test_what_a_foreign_strategy_has_counts() -> None:
    class Own(FedAvg):
        needs_steps, resets = True, 0

        def reset_state(self):
            self.resets += 1

    own = Own(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=4, weighted_by_key="w", arrayrecord_key="a")
    known = ForeignStrategy(own)
    assert (known.arrayrecord_key, known.weighted_by_key, known.fraction_evaluate) == ("a", "w", 0.0)
    assert (known.needs_steps, known.can_reset, known.min_train_nodes, known.min_available_nodes) == (True, True, 3, 4)
    known.reset_state()
    assert own.resets == 1


def test_moments_belong_to_the_strategy_and_to_all_its_arrays() -> None:
    inner = build("fedadam")
    with pytest.raises(ValueError, match="FedAdam has no accumulator 'x'"):
        inner.load_state_dict({"x/adapter": np.ones(2)})
    with pytest.raises(ValueError, match="accumulators for different arrays"):
        inner.load_state_dict({"m/adapter": np.ones(2), "v/other": np.ones(2)})
    assert inner.state_dict() == {}
    assert inner.aggregate_train(1, []) == (None, None)


def test_what_remembers_nothing_takes_no_state() -> None:
    serving = ByUnlearning()
    assert serving.state_dict() == {} and serving.further_records([1]) == {}
    serving.load_state_dict({})
    with pytest.raises(ValueError, match="ByUnlearning cannot load a state"):
        serving.load_state_dict({"x": np.zeros(1)})
    after = adapter([1.0])
    assert serving.after_training(1, adapter([0.0]), after) is after
    everybody = Available()
    everybody.load_state_dict({})
    with pytest.raises(ValueError, match="Available cannot load a state"):
        everybody.load_state_dict({"x": np.zeros(1)})


def test_who_goes_by_single_models_serves_none_of_them_privately() -> None:
    class Single(UnlearningProtocol):
        message_type, models_travel = "train.unlearn", True

        def serve(self, server_round, arrays, answers, train):
            raise AssertionError

    assert Single().privately is False
    with pytest.raises(NotImplementedError, match="Single goes by single clients' models"):
        Single().serve_privately(1, adapter([0.0]), [], None, asked=1)


def test_a_copy_of_the_model_is_renewed_wherever_it_is_kept() -> None:
    """Also in a strategy within a strategy, and never as the very record that others hold."""
    within, model = FedAvg(), adapter([1.0, 2.0])
    around = FedAvg()
    within.current_arrays, around.strategy = adapter([0.0, 0.0]), within  # type: ignore[attr-defined]
    within.strategy = around  # type: ignore[attr-defined]
    WrappingStrategy(around).refresh_copies(model)
    kept = within.current_arrays  # type: ignore[attr-defined]
    assert kept is not model and kept["adapter"].numpy().tolist() == [1.0, 2.0]
    assert not hasattr(around, "current_arrays")
