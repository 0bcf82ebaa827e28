"""Arguments of `oblivionis.FedTU` other than a Flower strategy: settings, sources of requests, listeners, node map.

A node is addressed by its partition id. Its ClientApp answers `@app.query()` with a `MetricRecord` that has
`PARTITION_ID`, `@app.train()` as Flower's strategies want it, and `@app.train("unlearn")` in the same way: the config
of that message has the ids of the records to forget under `RECORD_IDS`, those of the requests under `REQUEST_IDS`.
"""

from __future__ import annotations

from strategies.errors import FederationError, NodeMapError
from strategies.message_keys import PARTITION_ID, RECORD_IDS, REQUEST_IDS
from strategies.rounds.buffered import BufferedFedTU
from strategies.rounds.callbacks import Listener, Listeners
from strategies.rounds.model_versions import Buffer
from strategies.rounds.nodes import NodeMap
from strategies.rounds.options import Options
from strategies.rounds.request_source import RequestSource
from strategies.rounds.simulated_durations import Durations

__all__ = [
    "PARTITION_ID",
    "RECORD_IDS",
    "REQUEST_IDS",
    "Buffer",
    "BufferedFedTU",
    "Durations",
    "FederationError",
    "Listener",
    "Listeners",
    "NodeMap",
    "NodeMapError",
    "Options",
    "RequestSource",
]
