"""The stage `local`: each client alone, without a server (the baseline of the paper's Figure 5).

Every client trains from the same fresh adapter for as many epochs as it would in `federation.rounds.local` rounds, then
forgets its own share of the forget split with the configured method. The means over clients are the stage's metrics.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict

from oblivionis import seeds
from oblivionis.erasure.node_record_files import NODES_DIR
from oblivionis.measures.assessor import Measured
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import named_metrics
from oblivionis.runs.failed_evaluators import warn
from oblivionis.server.run_context import Server
from strategies import message_keys
from strategies.metric_schema import NUMBERS
from strategies.replies import answers, judge

TRAINED, FORGOTTEN = "local", "local_unlearned"


def run_local(server: Server) -> None:
    """Train, measure, unlearn and measure one client after another; clients done earlier are not repeated."""
    config, run = server.config, server.run
    started = time.perf_counter()
    if not artifact_binding.begin(run, config, "local"):
        artifact_binding.resume(run, "local", 0)
    clients = list(range(server.holdings.clients))
    if config.federation.local_clients is not None and config.federation.local_clients < len(clients):
        chosen = random.Random(seeds.derive(config.seed, "local clients"))
        clients = sorted(chosen.sample(clients, config.federation.local_clients))
    done = _measured_clients(server, clients)
    server.events.stage_started("local", len(done), len(clients))
    nodes = server.nodes.refresh(server.grid)
    width = config.federation.per_round
    todo = [c for c in clients if c not in done]
    for client in todo:
        shutil.rmtree(_nodes_path(server) / str(client), ignore_errors=True)
    for first in range(0, len(todo), width):
        group = todo[first : first + width]
        began = time.perf_counter()
        trained = _exchange(server, "train", nodes, {c: server.start_vector for c in group})
        forgetful = {c: v for c, v in trained.items() if c in server.holdings.forget}
        forgot = _exchange(server, "unlearn", nodes, forgetful) if forgetful else {}
        for client, vector in trained.items():
            rows = _row(server, TRAINED, client, vector)
            if client in forgot:
                rows += _row(server, FORGOTTEN, client, forgot[client])
            run.append_metrics(rows)
            artifact_binding.keep_rows(run, "local")
            server.events.round_finished(len(done) + 1, time.perf_counter() - began)
            done.add(client)
    for stage in (FORGOTTEN, TRAINED):
        _summarise(server, stage, time.perf_counter() - started)
    server.events.stage_finished("local", time.perf_counter() - started)


def _nodes_path(server: Server) -> Path:
    """Tombstones of this stage lie apart: a client that is repeated starts without them."""
    return server.run.path / "nodes-local"


def _measured_clients(server: Server, clients: list[int]) -> set[int]:
    """Clients with a complete set of rows. Rows of an interrupted client are dropped."""
    rows = [r for r in server.run.metrics() if r["stage"] in (TRAINED, FORGOTTEN)]
    found = {stage: {r["round"] for r in rows if r["stage"] == stage} for stage in (TRAINED, FORGOTTEN)}
    return {c for c in clients if c in found[TRAINED] and (c in found[FORGOTTEN] or c not in server.holdings.forget)}


def _exchange(
    server: Server, kind: str, nodes: Mapping[int, int], vectors: Mapping[int, np.ndarray]
) -> dict[int, np.ndarray]:
    """One exchange with the clients of `vectors`; the new vectors of those that answered well."""
    server.check_stop()
    server.events.exchange_started(kind, sorted(vectors))
    federation = server.config.federation
    messages = []
    for client, vector in vectors.items():
        config = server.message_config("local")
        config[NODES_DIR] = str(_nodes_path(server))
        config["epochs"] = federation.rounds.local * federation.local_epochs
        config[message_keys.STAGE] = "local"
        config[message_keys.SERVER_ROUND] = 1
        if kind == "unlearn":
            config[message_keys.REQUEST_IDS] = [f"local-client-{client:04d}"]
            config[message_keys.RECORD_IDS] = list(server.holdings.forget[client])
        content = RecordDict(
            {message_keys.ARRAYS: ArrayRecord({message_keys.ADAPTER: Array(vector)}), message_keys.CONFIG: config}
        )
        message_type = message_keys.TRAIN if kind == "train" else message_keys.UNLEARN
        messages.append(Message(content, dst_node_id=nodes[client], message_type=message_type))
    partition = {node: client for client, node in nodes.items()}
    received = answers(messages, server.grid.send_and_receive(messages, timeout=federation.timeout))
    verdicts = judge(
        [(partition[m.metadata.dst_node_id], answer) for m, answer in received],
        reference=ArrayRecord({message_keys.ADAPTER: Array(server.start_vector)}),
        timeout=federation.timeout,
        same_metrics=False,  # never averaged
        numbers=NUMBERS[kind],
    )
    vectors = {}
    for verdict in verdicts:
        server.events.reply(verdict.partition, verdict.reply is not None, verdict.reason)
        if verdict.reply is not None:
            array = verdict.reply.content.array_records[message_keys.ARRAYS][message_keys.ADAPTER]
            vectors[verdict.partition] = np.array(array.numpy(), dtype=np.float32)
    return vectors


def _row(server: Server, stage: str, client: int, vector: np.ndarray) -> list[dict]:
    server.events.evaluating("end")
    measured: Measured = server.assessor.measure(vector, full=True, oracle=server.run.evaluation_log("retrain"))
    server.events.evaluated(client, "end", measured.metrics, measured.seconds)
    warn(server.events, measured.report.failed)
    return measured.rows(stage, client, "end")


def _summarise(server: Server, stage: str, seconds: float) -> None:
    """The mean of each metric over the clients that have it, and its standard deviation."""
    by_client: dict[int, dict[str, float | None]] = {}
    notes: dict[str, str] = {}
    for row in server.run.metrics():
        if row["stage"] == stage:
            notes |= named_metrics(row["evaluator"], row.get("notes", {}))
            by_client.setdefault(row["round"], {}).update(named_metrics(row["evaluator"], row["metrics"]))
    rows = list(by_client.values())
    if not rows:
        return
    values: dict[str, list[float]] = {}
    for name in sorted({k for r in rows for k in r}):
        known = [value for r in rows if (value := r.get(name)) is not None]
        if known:
            values[name] = known
    artifact_binding.finish_stage(
        server.run,
        stage,
        {
            "stage": stage,
            "clients": len(rows),
            "seconds": seconds,
            "seed": server.config.seed,
            "fingerprint": server.fingerprint,
            "metrics": {k: float(np.mean(v)) for k, v in values.items()},
            "standard_deviation": {k: float(np.std(v, ddof=1)) if len(v) > 1 else None for k, v in values.items()},
            **({"notes": notes} if notes else {}),
        },
        None,
    )
