"""Federated averaging in one process, with the client's own training: many small federations, cheaply."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oblivionis import seeds
from oblivionis.client.worker import Worker
from oblivionis.data.records import Record
from oblivionis.erasure.node_record_files import NodeRecords


def fedavg(worker: Worker, base: np.ndarray, records: Sequence[Record | None], sampling: str) -> np.ndarray:
    """The global vector after `federation.rounds.finetune` rounds of FedAvg from `base`.

    records: for each place of the corpus what the client trains on that holds it, None: nothing. Which clients are
    drawn, and the order of their batches, depend on the run's seed and on the label `sampling`. A client without a
    record sits out.
    """
    config, partition = worker.config, worker.partition
    assert partition is not None
    held = [[r for i in places if (r := records[i]) is not None] for places in partition.clients]
    count = len(held)
    drawn = np.random.default_rng(seeds.derive(config.seed, sampling))
    vector = base
    for number in range(config.federation.rounds.finetune):
        size = max(1, round(config.federation.fraction_train * count))
        chosen = sorted(drawn.choice(count, size, replace=False).tolist())
        updates, weights = [], []
        for client in (c for c in chosen if held[c]):
            worker.hold(client, NodeRecords(tuple(held[client]), frozenset()))
            trained, report = worker.finetune(
                client,
                vector,
                excluded=(),
                epochs=config.federation.local_epochs,
                proximal_mu=0.0,
                seed=seeds.derive(config.seed, sampling, client, number),
            )
            updates.append(trained)
            weights.append(report.num_examples)
        if updates:
            vector = np.average(updates, axis=0, weights=weights).astype(np.float32)
    return vector
