"""What an exchange makes of a secure sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.fedtu_clients import adapter

from strategies import protocol
from strategies.exchange import Exchanges, Keys
from strategies.listener import Listener
from strategies.memory_grid import MemoryGrid
from strategies.nodes import NodeMap
from strategies.secure.server import Summed
from strategies.secure.terms import SecureSettings


def exchanges_with(summed: Summed) -> Exchanges:
    """Whose next sum is known beforehand."""

    class Known(Exchanges):
        def sum_up(self, *_: Any, **__: Any) -> Summed:
            return summed

    common = (MemoryGrid({}), NodeMap(), Listener(), Keys("arrays", "config", "num-examples"), "stage", 0, 1.0)
    return Known(*common, secure=SecureSettings(clipping=8.0, tell=False))


@pytest.mark.parametrize(
    ("summed", "together"),
    [
        (Summed(update=np.array([2.0, 4.0]), weight=2, survivors=(1, 2), left_out={3: "late"}), [2.0, 3.0]),
        (Summed(update=np.array([0.0, 0.0]), weight=0, survivors=(1, 2), left_out={3: "late"}), None),
        (Summed(fault="too few", left_out={3: "late"}), None),
    ],
)
def test_a_sum_of_no_weight_is_no_answer_as_one_that_failed(summed, together):
    *good, lost = exchanges_with(summed)._of_all("train", 1, [], adapter([1.0, 1.0]))
    assert (lost.partition, lost.reply, lost.reason) == (3, None, "late")
    if together is None:
        assert good == []
    else:
        (verdict,) = good
        assert verdict.partition == protocol.TOGETHER
        assert verdict.reply.content["arrays"]["adapter"].numpy().tolist() == together
        assert verdict.reply.content["metrics"]["num-examples"] == 2.0
