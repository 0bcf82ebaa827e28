"""What clients receive in place of the global model, and how their replies are decoded."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from support.fedtu_clients import adapter, flat

from strategies.rounds.compression import Compression
from strategies.rounds.encoding import FittedModels, FullModels


def test_full_models_go_both_ways_as_they_are() -> None:
    sent, answer = adapter([1.0]), adapter([2.0])
    assert FullModels().submodels("train", sent, [0, 1]) == {} and FullModels().read(sent, answer) is answer
    assert not FullModels().decodes


def test_who_has_a_submodel_receives_it_and_its_reply_is_decoded_by_it() -> None:
    small, asked = SimpleNamespace(sent=adapter([1.0, 1.0])), []

    def fitting(kind, model):
        asked.append((kind, flat(model).tolist()))
        return lambda client: small if client == 1 else None

    compression = Compression("topk", 0.5)
    encoding = FittedModels(fitting, compression)
    assert encoding.decodes and not FittedModels(fitting, FullModels()).decodes
    assert encoding.submodels("unlearn", adapter([1.0, 2.0, 3.0]), [0, 1]) == {1: small}
    assert asked == [("unlearn", [1.0, 2.0, 3.0])]
    received, model = np.ones(2, np.float32), np.array([1.0, 4.0], np.float32)
    record = compression.sent("adapter", received, model, None, np.random.default_rng(0)).record
    assert record.keys() != small.sent.keys(), "the update is compressed"
    assert flat(encoding.read(small.sent, record)).tolist() == [1.0, 4.0]
