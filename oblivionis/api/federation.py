"""What `oblivionis.FedTU` is given beside a Flower strategy: settings, sources of requests, listeners, who is who.

A node is addressed by its partition id. Its ClientApp answers `@app.query()` with a `MetricRecord` that has
`PARTITION_ID`, `@app.train()` as Flower's strategies want it, and `@app.train("unlearn")` in the same way: the config
of that message has the ids of the records to forget under `RECORD_IDS`, those of the requests under `REQUEST_IDS`.
"""

from __future__ import annotations

from strategies.buffered import BufferedFedTU
from strategies.durations import Durations
from strategies.errors import FederationError, NodeMapError
from strategies.listener import Listener, Listeners
from strategies.nodes import NodeMap
from strategies.options import Options
from strategies.protocol import PARTITION_ID, RECORD_IDS, REQUEST_IDS
from strategies.requests import RequestSource
from strategies.versions import Buffer

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
