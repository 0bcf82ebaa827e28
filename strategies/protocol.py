"""The words of the conversation between server and clients: message types, record names and keys."""

from __future__ import annotations

from typing import Final

TRAIN: Final = "train"
"""FedFT: train on the current data."""
UNLEARN: Final = "train.unlearn"
"""FedTU: forget the records named in the config; handled by `@app.train("unlearn")`."""
EVALUATE: Final = "evaluate"
"""Evaluate the global model on the client's own data."""
QUERY: Final = "query"
"""Ask a node for its partition id."""

ARRAYS: Final = "arrays"
"""The ArrayRecord with the global model, in both directions."""
CONFIG: Final = "config"
"""The ConfigRecord of a message from the server."""
METRICS: Final = "metrics"
"""The MetricRecord of a reply."""
ADAPTER: Final = "adapter"
"""The one flat float32 array inside `ARRAYS`."""

SERVER_ROUND: Final = "server-round"
STAGE: Final = "stage"
RUN_SEED: Final = "run-seed"
PROXIMAL_MU: Final = "proximal-mu"
REQUEST_IDS: Final = "request-ids"
"""list[str]: the requests that a FedTU message serves."""
RECORD_IDS: Final = "record-ids"
"""list[str]: the records to forget, request after request in the order of `REQUEST_IDS`."""
RECORD_COUNTS: Final = "record-counts"
"""list[int]: how many of `RECORD_IDS` belong to each of `REQUEST_IDS`."""

NUM_EXAMPLES: Final = "num-examples"
"""Weight of a reply: records trained on. Must be in every reply and above 0."""
PARTITION_ID: Final = "partition-id"
"""The name of a client that outlives a run; in the reply to `QUERY`, optional in other replies."""
