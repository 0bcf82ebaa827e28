"""What a client sends of what it learned, by `federation.compression`."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord

from oblivionis.client.compression_residuals import Residuals
from oblivionis.config import schema
from strategies import message_keys
from strategies.rounds.compression import Compression


def packed(
    how: schema.Compression,
    received: np.ndarray,
    vector: np.ndarray,
    seed: int,
    kept: Residuals | None = None,
    server_round: int = 0,
) -> tuple[ArrayRecord, np.ndarray]:
    """The arrays of a reply, and the model that the server reads in them: both say what became of `received`.

    `received`, `vector`: the model as it came and as it is now (n,) float32; `seed`: of the rounding; `kept`: where
    what is kept back lies, None where nothing is.
    """
    before = None if kept is None else kept.before(server_round, vector.size)
    compression = Compression(how.method, how.keep, how.block)
    sent = compression.sent(message_keys.ADAPTER, received, vector, before, np.random.default_rng(seed))
    if kept is not None and not compression.whole:
        kept.keep(server_round, sent.rest)
    return sent.record, sent.model
