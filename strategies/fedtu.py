"""FedTU: the targeted-unlearning exchange on top of any Flower strategy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from logging import INFO, WARNING
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log

from strategies import protocol
from strategies.arrays import Mean, finite, merged, view, with_dtypes_of
from strategies.errors import ActorDied, FederationError, NodeMapError
from strategies.federaser import FedEraser
from strategies.history import ClientUpdate, History, RoundUpdates, mean_of_others
from strategies.listener import Listener, Listeners
from strategies.nodes import NodeMap, OrderedGrid, seeded
from strategies.replies import Verdict, answers, judge, metrics_of
from strategies.requests import RequestList, RequestSource, UnlearnRequest

__all__ = [
    "ActorDied",
    "FedTU",
    "FederationError",
    "Listener",
    "Listeners",
    "NodeMap",
    "NodeMapError",
    "RequestList",
    "RequestSource",
    "UnlearnRequest",
]

Evaluation = Callable[[int, ArrayRecord], MetricRecord | None]


class FedTU(Strategy):
    """Rounds of FedTU, FedFT and evaluation around `inner`, which may be any Flower strategy.

    In a round with pending requests only the clients that asked are addressed first (message type `train.unlearn`).
    One answer φ_u becomes the global model bit for bit; several are merged as φ + Σ w_u (φ_u − φ), w_u being the share
    of the records that client u forgets (Oblivionis eq. 6). Then `inner` samples clients, which start from the new
    model, and aggregates. Bad answers never reach a model: see `strategies.replies.judge`. A round without a valid
    answer leaves the model and the state of `inner` as they are.

    `requests`: where deletion requests come from (None: there are none).
    `listener`: hooks for progress and checkpoints.
    `nodes`: share one `NodeMap` between all FedTU of a process, so that each node is asked for its partition once.
    `seed`, `stage`: with the round they seed the sampling, so that every run samples the same partitions; both go into
    the config of each message.
    `unlearn_config`: further settings for `train.unlearn` messages.
    `eligible`: which partitions may be sampled for FedFT.
    `evaluate_after_unlearn`: called with (round, arrays) on the model right after unlearning.
    `server_state_on_unlearn`: `reset` calls `inner.reset_state()` after each FedTU exchange that served a request.
    `extra_rounds`: at most so many rounds are added while requests are pending after the last planned round.
    `mean`: how several unlearned models are averaged with the weights w_u; None: number by number, as above.
    `history`: remembers the updates of each FedFT exchange.
    `eraser`: serves the requests by rebuilding the model instead of by the clients' unlearning; the asking clients only
    bury their records (message type `query.bury`). Needs `history`.
    `send_reference`: `train.unlearn` messages also hold the mean of the other clients' newest models. Needs `history`.

    Flower's FedAvgM computes with its own copy of the model, `current_arrays`, and would undo the unlearning; whatever
    keeps such an ArrayRecord gets the current model before each round. Strategies that change the arrays' dtype
    (Flower's FedAdam makes float64) have their result cast back.
    """

    def __init__(
        self,
        inner: Strategy,
        *,
        requests: RequestSource | None = None,
        listener: Listener | None = None,
        nodes: NodeMap | None = None,
        seed: int = 0,
        stage: str = "train",
        unlearn_config: Mapping[str, Any] | None = None,
        eligible: Callable[[int], bool] | None = None,
        evaluate_after_unlearn: Evaluation | None = None,
        server_state_on_unlearn: Literal["keep", "reset"] = "keep",
        extra_rounds: int = 0,
        mean: Mean | None = None,
        history: History | None = None,
        eraser: FedEraser | None = None,
        send_reference: bool = False,
    ) -> None:
        if server_state_on_unlearn not in ("keep", "reset"):
            raise ValueError(f"server_state_on_unlearn is {server_state_on_unlearn!r}, expected 'keep' or 'reset'")
        if server_state_on_unlearn == "reset" and not hasattr(inner, "reset_state"):
            log(WARNING, "%s has no reset_state(): its state is kept after unlearning", type(inner).__name__)
        if history is None and (eraser is not None or send_reference):
            raise ValueError("eraser and send_reference need a history")
        self.inner = inner
        self._requests = RequestList() if requests is None else requests
        self._listener = Listener() if listener is None else listener
        self._nodes = NodeMap() if nodes is None else nodes
        self._seed, self._stage = seed, stage
        self._unlearn_config = dict(unlearn_config or {})
        self._eligible = eligible
        self._evaluate_after_unlearn = evaluate_after_unlearn
        self._reset = server_state_on_unlearn == "reset"
        self._extra_rounds = extra_rounds
        self._mean = mean
        self._history, self._eraser, self._send_reference = history, eraser, send_reference
        self._arrays_key = getattr(inner, "arrayrecord_key", protocol.ARRAYS)
        self._config_key = getattr(inner, "configrecord_key", protocol.CONFIG)
        self._weight_key = getattr(inner, "weighted_by_key", protocol.NUM_EXAMPLES)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As `inner`."""
        return self.inner.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """As `inner`."""
        return self.inner.aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As `inner`."""
        return self.inner.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As `inner`."""
        return self.inner.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Log the settings."""
        state = "reset" if self._reset else "keep"
        log(INFO, "\t├──> FedTU: stage %s, seed %d, server state on unlearn: %s", self._stage, self._seed, state)
        self.inner.summary()

    def state_dict(self) -> dict[str, np.ndarray]:
        """The state of `inner`; empty for a strategy that offers none."""
        return dict(self.inner.state_dict()) if hasattr(self.inner, "state_dict") else {}  # type: ignore[attr-defined]

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from what `state_dict` gave. Raises ValueError when `inner` cannot take it."""
        if hasattr(self.inner, "load_state_dict"):
            self.inner.load_state_dict(state)  # type: ignore[attr-defined]
        elif state:
            raise ValueError(f"{type(self.inner).__name__} cannot load a state ({sorted(state)})")

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluation | None = None,
        *,
        start_round: int = 1,
    ) -> Result:
        """Run rounds `start_round` to `num_rounds` from `initial_arrays`; `timeout` in seconds per exchange.

        To resume after round t pass that checkpoint's arrays, `load_state_dict` its state, and `start_round=t + 1`; the
        initial evaluation (round 0) is then left out. Raises `ActorDied`, `NodeMapError`, Flower's AggregationError.
        """
        if start_round < 1:
            raise ValueError(f"start_round is {start_round}, expected at least 1")
        run = _Run(
            grid,
            OrderedGrid(grid, self._nodes, self._eligible),
            timeout,
            dict(train_config or {}),
            dict(evaluate_config or {}),
            initial_arrays,
            Result(arrays=initial_arrays),
        )
        self.summary()
        arrays = initial_arrays
        if evaluate_fn is not None and start_round == 1:
            self._evaluate(evaluate_fn, 0, "initial", arrays, run.result)
        round = start_round
        while round <= num_rounds + self._extra_rounds:
            waiting = list(self._requests.pending(round))
            if round > num_rounds and not waiting:
                break
            arrays = self._round(run, round, num_rounds, arrays, waiting, evaluate_fn)
            round += 1
        run.result.arrays = arrays
        return run.result

    def _round(
        self,
        run: _Run,
        round: int,
        num_rounds: int,
        arrays: ArrayRecord,
        waiting: Sequence[UnlearnRequest],
        evaluate_fn: Evaluation | None,
    ) -> ArrayRecord:
        began = time.monotonic()
        self._listener.round_started(round, max(num_rounds, round))
        run.partition_to_node = self._nodes.refresh(run.grid, retry=True)
        if waiting:
            arrays, served = self._unlearn(run, round, arrays, waiting)
            if served:
                if self._evaluate_after_unlearn is not None:
                    self._evaluate(self._evaluate_after_unlearn, round, "after_unlearn", arrays)
                self._listener.checkpoint(round, "after_unlearn", arrays, self.state_dict())
        arrays, metrics = self._train(run, round, arrays)
        self._evaluate_on_clients(run, round, arrays)
        if evaluate_fn is not None:
            self._evaluate(evaluate_fn, round, "round", arrays, run.result)
        self._listener.checkpoint(round, "round", arrays, self.state_dict())
        self._listener.round_completed(round, arrays, metrics, time.monotonic() - began)
        return arrays

    def _unlearn(
        self, run: _Run, round: int, arrays: ArrayRecord, waiting: Sequence[UnlearnRequest]
    ) -> tuple[ArrayRecord, bool]:
        """The FedTU exchange: the new arrays, and whether any request was served."""
        erasing = self._eraser is not None
        by_client: dict[int, list[UnlearnRequest]] = {}
        for request in sorted(waiting, key=lambda r: (r.node, r.request_id)):
            by_client.setdefault(request.node, []).append(request)
        records: dict[str, ArrayRecord] = {} if erasing else {self._arrays_key: arrays}
        if self._history is not None and self._send_reference:
            records[protocol.REFERENCE] = mean_of_others(self._history, by_client, self._mean)
        messages = []
        for client, asked in by_client.items():
            node = run.partition_to_node.get(client)
            if node is None:
                self._warn(round, "client %d asks to forget but is not connected", client)
                self._fail(round, client, asked, "not connected")
                continue
            named = "; ".join(f"{r.request_id} ({r.scope}, records: {r.num_records})" for r in asked)
            log(INFO, "[%s] round %d: client %d is asked to forget: %s", self._stage, round, client, named)
            config = self._config(round, {**run.train_config, **self._unlearn_config})
            config[protocol.REQUEST_IDS] = [r.request_id for r in asked]
            config[protocol.RECORD_IDS] = [i for r in asked for i in r.record_ids]
            config[protocol.RECORD_COUNTS] = [len(r.record_ids) for r in asked]
            config[protocol.SCOPES] = [r.scope for r in asked]
            content = RecordDict({**records, self._config_key: config})
            kind = protocol.BURY if erasing else protocol.UNLEARN
            messages.append(Message(content, dst_node_id=node, message_type=kind))
        verdicts = self._exchange("unlearn", run, round, messages, None if erasing else arrays)
        for verdict in verdicts:
            if verdict.reply is None:
                for request in by_client[verdict.partition]:
                    self._requests.failed(request, round, verdict.reason)
        good = {v.partition: v.reply for v in verdicts if v.reply is not None}
        if not good:
            return arrays, False
        infos = {c: {k: v for k, v in metrics_of(r).items() if not isinstance(v, list)} for c, r in good.items()}
        if self._eraser is not None:
            erasure = self._eraser.erase(round, arrays, list(good), partial(self._train_again, run, round))
            arrays = erasure.arrays
            for client, reason in erasure.refused.items():
                self._warn(round, "client %d cannot be erased: %s", client, reason)
                self._fail(round, client, by_client[client], reason)
            infos = {c: {**info, **erasure.info} for c, info in infos.items() if c not in erasure.refused}
        elif len(good) == 1:
            (reply,) = good.values()
            arrays = ArrayRecord({name: reply.content.array_records[self._arrays_key][name] for name in arrays})
        else:
            forgotten = [sum(r.num_records for r in by_client[client]) for client in good]
            models = [reply.content.array_records[self._arrays_key] for reply in good.values()]
            arrays = merged(arrays, models, [n / sum(forgotten) for n in forgotten], self._mean)
        for client, info in infos.items():
            for request in by_client[client]:
                self._requests.served(request, round, info)
        if infos and self._reset and hasattr(self.inner, "reset_state"):
            self.inner.reset_state()  # type: ignore[attr-defined]
        return arrays, bool(infos)

    def _fail(self, round: int, client: int, asked: Sequence[UnlearnRequest], reason: str) -> None:
        """Report requests that fail for another reason than the client's reply."""
        self._listener.reply(client, False, reason)
        for request in asked:
            self._requests.failed(request, round, reason)

    def _train_again(
        self, run: _Run, round: int, clients: Sequence[int], arrays: ArrayRecord, settings: Mapping[str, Any]
    ) -> list[Verdict]:
        """An exchange of ordinary training from `arrays`, with `settings` on top of the usual ones."""
        config = ConfigRecord({**self._config(round, run.train_config), **settings})
        content = RecordDict({self._arrays_key: arrays, self._config_key: config})
        nodes = self._nodes.refresh(run.grid)
        messages = [
            Message(content, dst_node_id=nodes[client], message_type=protocol.TRAIN)
            for client in clients
            if client in nodes
        ]
        return self._exchange("calibrate", run, round, messages, arrays)

    def _train(self, run: _Run, round: int, arrays: ArrayRecord) -> tuple[ArrayRecord, Mapping[str, object]]:
        """The FedFT exchange: the new arrays and the clients' averaged metrics."""
        _refresh_copies(self.inner, arrays)
        good = [(v.partition, v.reply) for v in self._trained(run, round, arrays) if v.reply is not None]
        if self._history is not None:
            updates = [
                ClientUpdate(client, float(metrics_of(reply)[self._weight_key]), reply.content[self._arrays_key])  # type: ignore[arg-type]
                for client, reply in good
            ]
            self._history.record(RoundUpdates(self._history.stage, round, arrays, self.state_dict(), updates))
        if not good:
            return arrays, {}
        replies = [reply for _, reply in good]
        new, metrics = self.inner.aggregate_train(round, replies)
        if metrics is not None:
            metrics.pop(protocol.PARTITION_ID, None)
            run.result.train_metrics_clientapp[round] = metrics
        if new is not None:
            arrays = with_dtypes_of(run.initial, new)
            if not all(finite(view(array)) for array in arrays.values()):
                raise AggregationError(f"round {round}: the aggregated model is not finite; {self._stage} diverged")
        return arrays, dict(metrics or {})

    def _trained(self, run: _Run, round: int, arrays: ArrayRecord) -> list[Verdict]:
        """Let `inner` sample clients and have them train; their judged replies."""
        able, least = len(run.eligible.get_node_ids()), max(1, getattr(self.inner, "min_train_nodes", 1))
        if able == 0:
            self._warn(round, "no client may be sampled")
            return []
        if able < least <= len(run.partition_to_node):  # Flower would wait for ever
            self._warn(round, "no training: %d clients may be sampled, at least %d must take part", able, least)
            return []
        with seeded(self._seed, self._stage, round, "train"):
            config = self._config(round, run.train_config)
            messages = list(self.inner.configure_train(round, arrays, config, run.eligible))
        verdicts = self._exchange("train", run, round, messages, arrays)
        if messages and not any(verdict.reply is not None for verdict in verdicts):
            self._warn(round, "no valid reply, the model stays as it is")
        return verdicts

    def _evaluate_on_clients(self, run: _Run, round: int, arrays: ArrayRecord) -> None:
        if getattr(self.inner, "fraction_evaluate", None) == 0.0 or not run.eligible.get_node_ids():
            return
        with seeded(self._seed, self._stage, round, "evaluate"):
            config = self._config(round, run.evaluate_config)
            messages = list(self.inner.configure_evaluate(round, arrays, config, run.eligible))
        if not messages:
            return
        replies = [v.reply for v in self._exchange("evaluate", run, round, messages, None) if v.reply is not None]
        metrics = self.inner.aggregate_evaluate(round, replies) if replies else None
        if metrics is not None:
            metrics.pop(protocol.PARTITION_ID, None)
            run.result.evaluate_metrics_clientapp[round] = metrics

    def _exchange(
        self, kind: str, run: _Run, round: int, messages: list[Message], reference: ArrayRecord | None
    ) -> list[Verdict]:
        """Send `messages`, judge the answers, tell the listener."""
        if not messages:
            return []
        began = time.monotonic()
        partitions = [self._partition(m) for m in messages]
        self._listener.exchange_started(kind, sorted(partitions))
        received = answers(messages, run.grid.send_and_receive(messages, timeout=run.timeout))
        verdicts = judge(
            [(self._partition(message), answer) for message, answer in received],
            reference=reference,
            arrays_key=self._arrays_key,
            weight_key=self._weight_key,
            timeout=run.timeout,
            same_metrics=kind != "unlearn",  # never averaged, and a client without retain records measures less
        )
        for verdict in verdicts:
            self._listener.reply(verdict.partition, verdict.reply is not None, verdict.reason)
            if verdict.reply is None:
                self._warn(round, "client %d left out of the %s exchange: %s", verdict.partition, kind, verdict.reason)
        accepted = sum(v.reply is not None for v in verdicts)
        self._listener.exchange_ended(kind, accepted, len(verdicts) - accepted, time.monotonic() - began)
        return verdicts

    def _warn(self, round: int, text: str, *args: object) -> None:
        log(WARNING, f"[%s] round %d: {text}", self._stage, round, *args)

    def _partition(self, message: Message) -> int:
        partition = self._nodes.partition(message.metadata.dst_node_id)
        return -1 if partition is None else partition

    def _config(self, round: int, settings: Mapping[str, Any]) -> ConfigRecord:
        return ConfigRecord(
            {
                **settings,
                protocol.SERVER_ROUND: round,
                protocol.STAGE: self._stage,
                protocol.RUN_SEED: self._seed,
            }
        )

    def _evaluate(
        self, evaluate: Evaluation, round: int, moment: str, arrays: ArrayRecord, result: Result | None = None
    ) -> None:
        began = time.monotonic()
        self._listener.evaluating(round, moment)
        metrics = evaluate(round, arrays)
        if metrics is not None and result is not None:
            result.evaluate_metrics_serverapp[round] = metrics
        self._listener.evaluated(round, moment, dict(metrics or {}), time.monotonic() - began)


@dataclass
class _Run:
    """What stays the same during one `start`."""

    grid: Grid
    eligible: OrderedGrid
    timeout: float
    train_config: dict[str, Any]
    evaluate_config: dict[str, Any]
    initial: ArrayRecord
    result: Result
    partition_to_node: Mapping[int, int] = field(default_factory=dict)


def _refresh_copies(strategy: object, arrays: ArrayRecord) -> None:
    """Give the current model to whatever kept an old one: `strategy` and the strategies that it wraps."""
    seen: set[int] = set()
    while strategy is not None and id(strategy) not in seen:
        seen.add(id(strategy))
        if isinstance(getattr(strategy, "current_arrays", None), ArrayRecord):
            strategy.current_arrays = arrays.copy()  # type: ignore[attr-defined]
        strategy = getattr(strategy, "strategy", None)
