"""FedTU: the targeted-unlearning exchange on top of any Flower strategy (Oblivionis eq. 6)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from logging import INFO, WARNING
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from strategies import message_keys
from strategies.arrays import fingerprint, finite, view, with_dtypes_of
from strategies.client_update import ClientUpdate
from strategies.errors import FederationError, NodeMapError
from strategies.flower_internals import AggregationError, log
from strategies.protocols.base import Answer, ByUnlearning, UnlearningProtocol
from strategies.replies import ReplyCheck, metrics_of
from strategies.rounds.callbacks import Listener, Listeners
from strategies.rounds.client_selection import Drawing, further
from strategies.rounds.collection import AllAtOnce, OneByOne
from strategies.rounds.encoding import FittedModels, FullModels
from strategies.rounds.exchange import Exchange, Keys
from strategies.rounds.grids import OrderedGrid
from strategies.rounds.nodes import NodeMap, seeded
from strategies.rounds.options import Options
from strategies.rounds.reply_stream import Arrivals, arriving
from strategies.rounds.request_source import RequestList, RequestSource, UnlearnRequest, by_client, config_of
from strategies.rounds.run_state import Evaluate, Run, keep_metrics, part_of
from strategies.rounds.strategy_proxy import WrappingStrategy
from strategies.secure import stage_keys
from strategies.secure.masking import Unmasked
from strategies.secure.secure_exchange import SecureExchange, moved
from strategies.secure.server import Summed

__all__ = [
    "FedTU",
    "FederationError",
    "Listener",
    "Listeners",
    "NodeMap",
    "NodeMapError",
    "Options",
    "RequestList",
    "RequestSource",
    "UnlearnRequest",
]

SERVING, CLOCK, SAMPLING, UNLEARNED = "serving/", "clock/", "sampling/", "unlearned/round"
"""Prefixes in a state of what the unlearning protocol, a simulated clock and the client sampling keep; where
updates are compressed, the name of the newest round with an exchange that served a request."""


class FedTU(WrappingStrategy):
    """Rounds of FedTU (unlearning), FedFT (fine-tuning) and evaluation around any Flower strategy `inner`.

    In a round with pending requests only the clients that asked are addressed first, and their requests are served by
    the unlearning protocol `serving` (Oblivionis eq. 6). Then `inner` samples clients, which start from the new model,
    and aggregates. Invalid replies never reach a model: see `strategies.replies.judge`. A round without a valid reply
    leaves the model and the state of `inner` as they are.

    Parameters
    ----------
    inner : Strategy
        Any Flower strategy.
    requests : RequestSource, optional
        Where deletion requests come from; None: there are none. With `options.secure` they need `options.cover`.
    serving : UnlearningProtocol, optional
        How requests are served; None: by the unlearning of the clients that ask, without server state.
    listener : Listener, optional
        Callbacks for progress and checkpoints.
    nodes : NodeMap, optional
        Share one between all FedTU of a process, so that each node is asked for its partition once.
    eligible : callable (partition id) -> bool, optional
        Which partitions may be sampled for FedFT; None: all.
    trains : callable (partition id) -> bool, optional
        Which of the sampled partitions train; the others sit the round out, and nobody takes their place. None: all.
    evaluate_after_unlearn : callable (round, arrays) -> MetricRecord or None, optional
        Evaluates the model right after unlearning.
    options : Options, optional
        All other settings.

    Raises
    ------
    TypeError
        If `requests` is no RequestSource.
    ValueError
        For options that do not fit this class or `serving`.

    Notes
    -----
    Flower's FedAvgM computes with its own copy of the model, `current_arrays`, and would undo the unlearning; whatever
    keeps such an ArrayRecord gets the current model before each round. Strategies that change the arrays' dtype
    (Flower's FedAdam makes float64) have their result cast back.
    """

    asynchronous: ClassVar[bool] = False
    """Whether rounds are asynchronous, with `options.buffer`."""
    own_state: ClassVar[tuple[str, ...]] = (SERVING, CLOCK, SAMPLING, UNLEARNED)
    """Prefixes in a state of what does not belong to `inner`."""

    def __init__(
        self,
        inner: Strategy,
        *,
        requests: RequestSource | None = None,
        serving: UnlearningProtocol | None = None,
        listener: Listener | None = None,
        nodes: NodeMap | None = None,
        eligible: Callable[[int], bool] | None = None,
        trains: Callable[[int], bool] | None = None,
        evaluate_after_unlearn: Evaluate | None = None,
        options: Options | None = None,
    ) -> None:
        super().__init__(inner)
        self._requests = RequestList() if requests is None else requests
        if not isinstance(self._requests, RequestSource):
            raise TypeError(
                f"requests is of type {type(self._requests).__name__}, expected a subclass of RequestSource"
            )
        self._serving = ByUnlearning() if serving is None else serving
        self._listener = Listener() if listener is None else listener
        self._nodes = NodeMap() if nodes is None else nodes
        self._eligible, self._trains = eligible, trains
        self._evaluate_after_unlearn = evaluate_after_unlearn
        self._options = Options() if options is None else options
        adapted = self._adapted
        self._keys = Keys(adapted.arrayrecord_key, adapted.configrecord_key, adapted.weighted_by_key)
        self._arrivals: Arrivals | None = None
        self._clock: dict[str, np.ndarray] = {}
        self._unlearned: int | None = None
        self._reset = self._options.server_state_on_unlearn == "reset"
        if (self._options.buffer is not None) != self.asynchronous:
            raise ValueError("options.buffer is for BufferedFedTU, and BufferedFedTU for options.buffer")
        if self._options.private_mean is not None and not self._serving.privately:
            raise ValueError(f"{type(self._serving).__name__} goes by single clients' models: no private_mean fits it")
        if self._options.secure is not None and not self._options.cover and requests is not None:
            raise ValueError("requests are served among clients that cover them (secure): cover must say how many")
        if self._reset and not adapted.can_reset:
            log(WARNING, "%s has no reset_state(): its state is kept after unlearning", type(inner).__name__)

    def summary(self) -> None:
        """Log the settings."""
        o = self._options
        text = "\t├──> FedTU: stage %s, seed %d, server state on unlearn: %s"
        log(INFO, text, o.stage, o.seed, o.server_state_on_unlearn)
        super().summary()

    def state_dict(self) -> dict[str, np.ndarray]:
        """State for a checkpoint: `inner`'s, and with prefixes that of protocol, simulated clock and client sampling.

        Returns
        -------
        dict of arrays
        """
        clock = self._clock if self._arrivals is None else self._arrivals.state_dict()
        parts = {SERVING: self._serving.state_dict(), CLOCK: clock}
        if self._options.sampling is not None:
            parts[SAMPLING] = self._options.sampling.state_dict()
        own = {prefix + name: values for prefix, part in parts.items() for name, values in part.items()}
        if self._options.compression is not None:
            own[UNLEARNED] = np.array([self._unlearned or 0])
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore the state of a checkpoint from `state_dict`.

        Raises
        ------
        ValueError
            When one of its parts cannot be loaded.
        """
        own = (SERVING, CLOCK, UNLEARNED, *(() if self._options.sampling is None else (SAMPLING,)))
        super().load_state_dict({name: values for name, values in state.items() if not name.startswith(own)})
        self._serving.load_state_dict(part_of(state, SERVING))
        self._clock = part_of(state, CLOCK)
        self._unlearned = int(state[UNLEARNED].item()) if UNLEARNED in state else None
        if self._options.sampling is not None:
            self._options.sampling.load_state_dict(part_of(state, SAMPLING))

    def go_on_from(self, state: Mapping[str, np.ndarray]) -> None:
        """Start with the accumulators of `inner` from another stage's `state_dict`; the rest of it is left out.

        Raises
        ------
        ValueError
            When `inner` cannot load it.
        """
        super().load_state_dict({name: values for name, values in state.items() if not name.startswith(self.own_state)})

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
        *,
        start_round: int = 1,
    ) -> Result:
        """Run rounds `start_round` to `num_rounds`.

        To resume after round t pass that checkpoint's arrays, `load_state_dict` its state, and `start_round=t + 1`; the
        initial evaluation (round 0) is then left out.

        Parameters
        ----------
        grid : Grid
            Flower's connection to the clients.
        initial_arrays : ArrayRecord
            The model to start from.
        num_rounds : int
            The last planned round; up to `options.extra_rounds` follow while requests are pending.
        timeout : float
            Seconds per exchange.
        train_config, evaluate_config : ConfigRecord, optional
            Settings for the messages to the clients.
        evaluate_fn : callable (round, arrays) -> MetricRecord or None, optional
            Evaluates on the server.
        start_round : int, at least 1

        Returns
        -------
        Result
            Flower's, with the final model in `arrays`.

        Raises
        ------
        NodeMapError
            If no client can be found.
        AggregationError
            If aggregation fails, or the model is no longer finite.
        ValueError
            If `start_round` is below 1.
        """
        if start_round < 1:
            raise ValueError(f"start_round is {start_round}, expected at least 1")
        run = Run(
            exchange=self._exchange(grid, timeout),
            eligible=OrderedGrid(grid, self._nodes, self._eligible),
            train_config=dict(train_config or {}),
            evaluate_config=dict(evaluate_config or {}),
            evaluate_fn=evaluate_fn,
            num_rounds=num_rounds,
            result=Result(arrays=initial_arrays),
        )
        return self._run(run, start_round)

    def _run(self, run: Run, start_round: int) -> Result:
        """Do the rounds of a prepared run, and the initial evaluation; see `start`."""
        self._barrier(run, start_round if self._unlearned is None else self._unlearned)
        self.summary()
        if run.evaluate_fn is not None and start_round == 1:
            self._evaluate(run.evaluate_fn, 0, "initial", run.result.arrays, run.result)
        if self._arrivals is not None:
            self._nodes.engaged = self._arrivals.engaged
        try:
            run.result.arrays = self._rounds(run, start_round, run.result.arrays)
        finally:
            self._nodes.engaged = lambda: ()
        return run.result

    def _exchange(self, grid: Grid, timeout: float) -> Exchange:
        """How the exchanges of one `start` are held; makes the reply stream where replies are taken one by one."""
        options, client_of = self._options, self._nodes.client_of
        collection, masking, encoding = AllAtOnce(grid=grid, client_of=client_of), Unmasked(), FullModels()
        if options.one_by_one:
            self._arrivals = arriving(grid, client_of, timeout, options.durations, self._clock)
            collection = OneByOne(stream=self._arrivals, listener=self._listener, deadline=options.deadline)
        if options.secure is not None:
            masking = SecureExchange(grid=grid, client_of=client_of, settings=options.secure)
        if options.compression is not None:
            encoding = options.compression
        if options.fitting is not None:
            encoding = FittedModels(options.fitting, encoding)
        return Exchange(
            grid=grid,
            nodes=self._nodes,
            listener=self._listener,
            keys=self._keys,
            stage=options.stage,
            seed=options.seed,
            timeout=timeout,
            collection=collection,
            masking=masking,
            encoding=encoding,
            needs_steps=self._adapted.needs_steps,
            numbers=options.numbers,
            bounds=options.bounds,
        )

    def _rounds(self, run: Run, start_round: int, arrays: ArrayRecord) -> ArrayRecord:
        """All planned rounds, and further ones while requests are pending: the final model."""
        for server_round in range(start_round, run.num_rounds + self._options.extra_rounds + 1):
            waiting = list(self._requests.pending(server_round))
            if server_round > run.num_rounds and not waiting:
                break
            arrays = self._round(run, server_round, arrays, waiting, list(self._requests.again(server_round)))
        return arrays

    def _round(
        self,
        run: Run,
        server_round: int,
        arrays: ArrayRecord,
        waiting: Sequence[UnlearnRequest],
        again: Sequence[UnlearnRequest],
    ) -> ArrayRecord:
        """One round: unlearning if requests are due, training, evaluation, checkpoint; returns the new model."""
        began = time.monotonic()
        self._listener.round_started(server_round, max(run.num_rounds, server_round))
        run.partition_to_node = self._nodes.refresh(run.exchange.grid, retry=True)
        if waiting or again or self._requests.cover_due(server_round):
            unlearn = self._unlearn_covered if self._options.cover else self._unlearn
            arrays, served = unlearn(run, server_round, arrays, waiting, again)
            if served:
                self._barrier(run, server_round)
                self._installed(run, server_round)
                if waiting and self._evaluate_after_unlearn is not None:
                    self._evaluate(self._evaluate_after_unlearn, server_round, "after_unlearn", arrays)
                self._listener.checkpoint(server_round, "after_unlearn", arrays, self.state_dict())
        arrays, metrics = self._train(run, server_round, arrays)
        self._evaluate_on_clients(run, server_round, arrays)
        if run.evaluate_fn is not None:
            self._evaluate(run.evaluate_fn, server_round, "round", arrays, run.result)
        if self._options.durations is not None and self._arrivals is not None:
            self._listener.clock(self._arrivals.now)
        self._listener.checkpoint(server_round, "round", arrays, self.state_dict())
        self._listener.round_completed(server_round, arrays, metrics, time.monotonic() - began)
        return arrays

    def _barrier(self, run: Run, server_round: int) -> None:
        """From this round on clients drop the error-feedback residuals that they kept from earlier rounds."""
        self._unlearned = server_round
        if self._options.compression is not None:
            run.train_config[message_keys.UNLEARNED_ROUND] = server_round

    def _installed(self, run: Run, server_round: int) -> None:
        """Hook: a FedTU exchange produced the current model; in synchronous rounds no client trains meanwhile."""

    def _unlearn(
        self,
        run: Run,
        server_round: int,
        arrays: ArrayRecord,
        waiting: Sequence[UnlearnRequest],
        again: Sequence[UnlearnRequest],
    ) -> tuple[ArrayRecord, bool]:
        """Hold the FedTU exchange; returns the new arrays, and whether any request was served, first or `again`."""
        served_before = {r.request_id for r in again}
        asking = by_client([*waiting, *again])
        expected = arrays if self._serving.models_travel else None
        messages = self._demands(run, server_round, expected, asking, served_before)
        good: list[Answer] = []
        for verdict in run.exchange.hold("unlearn", server_round, messages, expected):
            asked = asking[verdict.partition]
            if verdict.reply is not None:
                good.append(self._answer(verdict.partition, verdict.reply, asked))
                continue
            for request in asked:
                if request.request_id not in served_before:
                    self._requests.failed(request, server_round, verdict.reason)
        if not good:
            return arrays, False
        train_again = partial(run.exchange.train_again, server_round, run.train_config)
        private = self._options.private_mean
        if private is None:
            served = self._serving.serve(server_round, arrays, good, train_again)
        else:
            served = self._serving.serve_privately(server_round, arrays, good, private, asked=len(messages))
        for client, reason in served.refused.items():
            run.exchange.warn(server_round, "client %d cannot be erased: %s", client, reason)
            self._fail(server_round, client, [r for r in asking[client] if r.request_id not in served_before], reason)
        first = [self._note_served(server_round, asking[c], served_before, info) for c, info in served.info.items()]
        if any(first) and self._reset:
            self._adapted.reset_state()
        return served.arrays, bool(served.info)

    def _unlearn_covered(
        self,
        run: Run,
        server_round: int,
        arrays: ArrayRecord,
        waiting: Sequence[UnlearnRequest],
        again: Sequence[UnlearnRequest],
    ) -> tuple[ArrayRecord, bool]:
        """Hold the FedTU exchange as a secure sum over clients that ask and others as cover; returns as `_unlearn`."""
        served_before = {r.request_id for r in again}
        asking = by_client([*waiting, *again])
        messages = self._demands(run, server_round, arrays, asking, served_before)
        messages += self._covers(run, server_round, arrays, asking)
        private = self._options.private_mean
        if private is not None:
            private.announce("unlearn", server_round, len(messages), None)
        each = self._options.cover_each or private is not None
        hidden = self._requests.hidden
        if len(messages) < self._options.cover:
            text = "%d clients can take part, %d are to cover those that ask to forget"
            run.exchange.warn(server_round, text, len(messages), self._options.cover)
            if hidden:
                return arrays, False
        summed = run.exchange.sum_up("unlearn", server_round, messages, arrays, one_each=each, committed=hidden)
        for client in set(asking) & {run.exchange.partition(m) for m in messages} - set(summed.survivors):
            reason = summed.left_out.get(client, summed.fault)
            for request in [r for r in asking[client] if r.request_id not in served_before]:
                self._requests.failed(request, server_round, reason)
        first = [self._note_served(server_round, asking[c], served_before, {}) for c in asking if c in summed.survivors]
        changed = not summed.fault and summed.weight > 0
        new = moved(arrays, summed.update if each else summed.update / summed.weight) if changed else arrays
        if hidden and summed.terms is not None:
            self._note_cover(server_round, summed, arrays, new)
        if changed and (any(first) or not asking) and self._reset:
            self._adapted.reset_state()
        return new, changed

    def _note_cover(self, server_round: int, summed: Summed, before: ArrayRecord, after: ArrayRecord) -> None:
        """Report the outcome of an exchange to a source of hidden requests."""
        assert summed.terms is not None
        session = summed.terms.session
        commitments = {client: str(texts.get(stage_keys.COMMITMENT, "")) for client, texts in summed.texts.items()}
        if summed.fault:
            self._requests.cover_failed(server_round, session, commitments, summed.fault)
            return
        models = fingerprint(before), fingerprint(after)
        self._requests.covered(server_round, session, commitments, summed.survivors, *models, summed.weight)

    def _covers(
        self, run: Run, server_round: int, arrays: ArrayRecord, asking: Mapping[int, Sequence[UnlearnRequest]]
    ) -> list[Message]:
        """Messages to sampled clients without requests, until the exchange goes to `cover` clients."""
        others = [n for n in run.eligible.get_node_ids() if self._nodes.partition(n) not in asking]
        missing = max(0, self._options.cover - sum(client in run.partition_to_node for client in asking))
        with seeded(self._options.seed, self._options.stage, server_round, "cover"):
            drawn = random.sample(others, min(missing, len(others)))
        messages = []
        for node in drawn:
            config = run.exchange.config(server_round, {**run.train_config, **self._options.unlearn_config})
            config[message_keys.COVER] = True
            content = RecordDict({self._keys.arrays: arrays, self._keys.config: config})
            messages.append(Message(content, dst_node_id=node, message_type=self._serving.message_type))
        return messages

    def _demands(
        self,
        run: Run,
        server_round: int,
        model: ArrayRecord | None,
        asking: Mapping[int, Sequence[UnlearnRequest]],
        served_before: Collection[str],
    ) -> list[Message]:
        """Messages to the connected clients with requests; new requests of clients that are not connected fail."""
        records = {} if model is None else {self._keys.arrays: model}
        records |= self._serving.further_records(asking)
        messages = []
        for client, asked in asking.items():
            node = run.partition_to_node.get(client)
            if node is None:
                new = [r for r in asked if r.request_id not in served_before]
                if new:
                    run.exchange.warn(server_round, "client %d asks to forget but is not connected", client)
                    self._fail(server_round, client, new, "not connected")
                continue
            named = "; ".join(f"{r.request_id} ({r.scope}, records: {r.num_records})" for r in asked)
            stage = self._options.stage
            log(INFO, "[%s] round %d: client %d is asked to forget: %s", stage, server_round, client, named)
            config = run.exchange.config(server_round, {**run.train_config, **self._options.unlearn_config})
            config.update(config_of(asked))
            if self._options.cover:
                config[message_keys.COVER] = True
            content = RecordDict({**records, self._keys.config: config})
            messages.append(Message(content, dst_node_id=node, message_type=self._serving.message_type))
        return messages

    def _answer(self, client: int, reply: Message, asked: Sequence[UnlearnRequest]) -> Answer:
        """A valid reply as an `Answer`, weighted by the records that the client was asked to forget."""
        model = reply.content.array_records[self._keys.arrays] if self._serving.models_travel else None
        numbers = {k: v for k, v in metrics_of(reply).items() if not isinstance(v, list)}
        return Answer(client, model, sum(r.num_records for r in asked), numbers)

    def _note_served(
        self,
        server_round: int,
        asked: Sequence[UnlearnRequest],
        served_before: Collection[str],
        info: Mapping[str, Any],
    ) -> bool:
        """Report requests as served, or served again if `served_before`; returns whether any was served first."""
        for request in asked:
            if request.request_id in served_before:
                self._requests.served_again(request, server_round, info)
            else:
                self._requests.served(request, server_round, info)
        return any(request.request_id not in served_before for request in asked)

    def _fail(self, server_round: int, client: int, asked: Sequence[UnlearnRequest], reason: str) -> None:
        """Report that requests failed for a reason other than the client's reply."""
        self._listener.reply(client, False, reason)
        for request in asked:
            self._requests.failed(request, server_round, reason)

    def _train(self, run: Run, server_round: int, arrays: ArrayRecord) -> tuple[ArrayRecord, Mapping[str, object]]:
        """Hold the FedFT exchange; returns the new arrays and the clients' averaged metrics."""
        self.refresh_copies(arrays)
        verdicts = self._trained(run, server_round, arrays)
        good = [(v.partition, v.reply) for v in verdicts if v.reply is not None]
        replies = [reply for _, reply in good]
        private = self._options.private_mean
        if private is None or self._options.secure is not None:
            updates = [ClientUpdate.of(reply.content, self._keys.weight, client) for client, reply in good]
            self._serving.remember(server_round, arrays, super().state_dict(), updates)
        elif good:
            models = [reply.content.array_records[self._keys.arrays] for reply in replies]
            mean = private.train(server_round, arrays, models, clients=len(verdicts), population=run.drawn_from)
            replies = [private.reply(mean, self._keys.arrays, self._keys.weight)]
        if not good:
            return arrays, {}
        new, metrics = self.inner.aggregate_train(server_round, replies)
        keep_metrics(metrics, run.result.train_metrics_clientapp, server_round)
        if new is not None:
            arrays = self._serving.after_training(server_round, arrays, with_dtypes_of(arrays, new))
            if not all(finite(view(array)) for array in arrays.values()):
                stage = self._options.stage
                raise AggregationError(f"round {server_round}: the aggregated model is not finite; {stage} diverged")
        return arrays, dict(metrics or {})

    def _trained(self, run: Run, server_round: int, arrays: ArrayRecord) -> list[ReplyCheck]:
        """Let `inner` sample clients, have them train, and return their checked replies."""
        able, least = len(run.eligible.get_node_ids()), max(1, self._adapted.min_train_nodes)
        if able == 0:
            run.exchange.warn(server_round, "no client may be sampled")
            return []
        if able < least <= len(run.partition_to_node):  # Flower would wait for ever
            text = "no training: %d clients may be sampled, at least %d must take part"
            run.exchange.warn(server_round, text, able, least)
            return []
        private = self._options.private_mean
        seed = self._options.seed if private is None else private.sampling_seed(self._options.seed)
        enough = able >= max(least, self._adapted.min_available_nodes)  # else Flower waits for more
        with seeded(seed, self._options.stage, server_round, "train"), run.eligible.held(enough):
            config = run.exchange.config(server_round, run.train_config)
            messages = list(self.inner.configure_train(server_round, arrays, config, run.eligible))
        drawing = None if self._options.sampling is None else self._drawing(server_round)
        if drawing is not None:
            messages = self._redirected(run, server_round, drawing, messages, least)
        wanted = len(messages)
        with seeded(self._options.seed, self._options.stage, server_round, "oversample"):
            messages += further(messages, run.eligible.get_node_ids(), self._options.oversample)
        run.drawn_from = max(len(messages), min(able, len(run.eligible.get_node_ids())))
        if self._trains is not None:
            messages = [message for message in messages if self._trains(run.exchange.partition(message))]
            wanted = min(wanted, len(messages))
        if private is not None and self._options.secure is not None and messages:
            private.announce("train", server_round, len(messages), None)  # the server, which draws, is the adversary
        verdicts = run.exchange.hold("train", server_round, messages, arrays, enough=wanted)
        if drawing is not None and messages:
            clipped = drawing.hear(verdicts, run.exchange.bounds, self._keys.weight)
            run.exchange.report_clipped(server_round, clipped)
        if messages and not any(verdict.reply is not None for verdict in verdicts):
            run.exchange.warn(server_round, "no valid reply, the model stays as it is")
        return verdicts

    def _drawing(self, server_round: int) -> Drawing:
        """The client selection of a round by `options.sampling`, with its seed."""
        assert self._options.sampling is not None
        return Drawing(self._options.sampling, (self._options.seed, self._options.stage, server_round, "sampling"))

    def _redirected(
        self, run: Run, server_round: int, drawing: Drawing, messages: Sequence[Message], least: int
    ) -> list[Message]:
        """Send `messages` to the selected clients instead; none where fewer than `least` are selected."""
        reach = partial(run.exchange.reach, server_round, within=self._options.available_within)
        redirected = drawing.redirect(messages, run.eligible.partitions(), reach)
        if len(redirected) < len(messages):
            run.exchange.warn(server_round, "%d clients are there, %d were to train", len(redirected), len(messages))
        if len(redirected) >= least:
            return redirected
        run.exchange.warn(server_round, "no training: at least %d must take part", least)
        return []

    def _evaluate_on_clients(self, run: Run, server_round: int, arrays: ArrayRecord) -> None:
        """Hold the evaluation exchange, if `inner` evaluates on clients, and keep its metrics."""
        if self._adapted.fraction_evaluate == 0.0 or not run.eligible.get_node_ids():
            return
        with seeded(self._options.seed, self._options.stage, server_round, "evaluate"):
            config = run.exchange.config(server_round, run.evaluate_config)
            messages = list(self.inner.configure_evaluate(server_round, arrays, config, run.eligible))
        verdicts = run.exchange.hold("evaluate", server_round, messages, None)
        replies = [v.reply for v in verdicts if v.reply is not None]
        metrics = self.inner.aggregate_evaluate(server_round, replies) if replies else None
        keep_metrics(metrics, run.result.evaluate_metrics_clientapp, server_round)

    def _evaluate(
        self, evaluate: Evaluate, server_round: int, phase: str, arrays: ArrayRecord, result: Result | None = None
    ) -> None:
        """Evaluate on the server between the callbacks `evaluating` and `evaluated`."""
        began = time.monotonic()
        self._listener.evaluating(server_round, phase)
        metrics = evaluate(server_round, arrays)
        if metrics is not None and result is not None:
            result.evaluate_metrics_serverapp[server_round] = metrics
        self._listener.evaluated(server_round, phase, dict(metrics or {}), time.monotonic() - began)
