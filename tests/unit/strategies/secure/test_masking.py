"""Models that are not masked have no sum; of a sum the server makes one reply."""

from __future__ import annotations

import numpy as np
import pytest
from support.fedtu_clients import adapter, flat

from strategies import message_keys
from strategies.flower_internals import identify_process
from strategies.replies import metrics_of
from strategies.secure.agreed_parameters import SecureSettings
from strategies.secure.masking import Unmasked
from strategies.secure.secure_exchange import mean_reply
from strategies.secure.server import Summed


def test_what_is_not_masked_is_not_summed() -> None:
    assert not Unmasked().sums
    with pytest.raises(NotImplementedError, match="Unmasked makes no sums"):
        Unmasked().sum_up("train", [], adapter([0.0]), 1.0)


def test_a_sum_is_the_reply_of_all_clients_with_their_weighted_means() -> None:
    """Updates (3, 0) and (1, 4) of weights 1 and 3; losses 0.5 and 0.1."""
    identify_process()
    terms = SecureSettings(clipping=8.0).terms("train", 3, ("train-loss",), 2)
    summed = Summed(terms, update=1 * np.array([3.0, 0.0]) + 3 * np.array([1.0, 4.0]), weight=4, tallies=(0.8,))
    verdict = mean_reply(summed, adapter([1.0, 1.0]), "model", "n")
    assert verdict.partition == message_keys.TOGETHER and verdict.reply is not None
    assert flat(verdict.reply.content["model"]).tolist() == [2.5, 4.0]
    assert dict(metrics_of(verdict.reply)) == {"n": 4.0, "train-loss": pytest.approx(0.2)}
