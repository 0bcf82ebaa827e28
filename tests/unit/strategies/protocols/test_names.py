"""Protocols are found by the names of their files, and losses without one are served by merging."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord

from strategies import protocols
from strategies.errors import ParameterError
from strategies.protocols.base import ByUnlearning, ProtocolContext
from strategies.protocols.exact import ExactProtocol
from strategies.protocols.federaser import FedEraserProtocol
from strategies.protocols.fedosd import FedOSDProtocol
from strategies.protocols.fused import FusedProtocol
from strategies.protocols.pga import PGAProtocol
from strategies.protocols.rapid_retraining import RapidRetrainingProtocol
from strategies.protocols.update_history import History, MemoryHistory
from strategies.protocols.weight_negation import WeightNegationProtocol
from strategies.rules.factory import build

LAYER_OF = np.repeat(np.arange(3), 4)


def first(layers: int) -> np.ndarray:
    if layers > 3:
        raise ValueError(f"there are 3, not {layers}")
    return layers > LAYER_OF


def context(history: History | None = None) -> ProtocolContext:
    return ProtocolContext(
        inner=build("fedavg"),
        history=history,
        able=lambda: [0, 1],
        per_round=2,
        local_epochs=4,
        seed=1,
        initial=ArrayRecord,
        layer_of=lambda: LAYER_OF,
        first_layers=first,
    )


PROTOCOLS: dict[str, tuple[type, dict[str, Any]]] = {
    "exact": (ExactProtocol, {}),
    "federaser": (FedEraserProtocol, {"calibration_ratio": 0.5}),
    "fedosd": (FedOSDProtocol, {"epochs": 1, "recovery": None}),
    "fused": (FusedProtocol, {"rounds": 2, "layers": 3, "share": 0.5}),
    "pga": (PGAProtocol, {"radius": None}),
    "rapid_retraining": (RapidRetrainingProtocol, {"rounds": 2}),
    "weight_negation": (WeightNegationProtocol, {"layers": 2}),
}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_each_file_with_a_build_is_a_protocol(name: str) -> None:
    kind, params = PROTOCOLS[name]
    assert type(protocols.build(name, context(MemoryHistory()), **params)) is kind


def test_helpers_and_losses_are_none() -> None:
    helpers = {"auxiliary_rounds", "base", "update_history"}
    assert set(PROTOCOLS) <= set(protocols.names()) and not helpers & set(protocols.names())
    for name in ("npo", "base", "update_history", "/a/loss/of_mine.py"):
        assert type(protocols.build(name, context(), beta=0.1)) is ByUnlearning


def test_a_parameter_that_does_not_go_with_the_model_is_named() -> None:
    with pytest.raises(ParameterError, match=r"^layers is 4, and 3 layers are trained; lower it$"):
        protocols.build("fused", context(), rounds=1, layers=4, share=0.5)
    with pytest.raises(ParameterError, match=r"^layers: there are 3, not 4$"):
        protocols.build("weight_negation", context(), layers=4)


@pytest.mark.parametrize("name", ["exact", "federaser", "pga"])
def test_what_goes_by_past_rounds_is_not_built_without(name: str) -> None:
    with pytest.raises(ValueError, match="no updates of the clients are kept"):
        protocols.build(name, context(), **PROTOCOLS[name][1])
