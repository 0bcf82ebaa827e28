"""FedTU with buffered asynchronous rounds (FedBuff): a server step after K updates, which may be stale."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict

from strategies import message_keys
from strategies.arrays import merged
from strategies.replies import ReplyCheck
from strategies.rounds.fedtu import FedTU
from strategies.rounds.model_versions import Buffer, Versions
from strategies.rounds.reply_stream import FLIGHT, Arrivals, Sent
from strategies.rounds.run_state import Run
from strategies.rules.server_step import ServerStep

BUFFER = "buffer/"
"""Prefix in a state of what asynchronous rounds keep."""
_MODEL = "model/"


@dataclass(slots=True)
class Flight:
    """A client that is training.

    Attributes
    ----------
    client : int
    version : int
        Version of the model that it started from.
    server_round : int
        The round in which that was sent.
    sent : Sent
    """

    client: int
    version: int
    server_round: int
    sent: Sent


@dataclass(slots=True)
class _Collected:
    """The good replies of a round, the clients that replied or were asked in it, and how many were asked and failed."""

    good: list[tuple[Flight, Message]]
    tried: set[int]
    asked: int = 0
    failed: int = 0


class BufferedFedTU(FedTU):
    """FedTU with asynchronous rounds (FedBuff, Nguyen et al. 2022): a server step per K updates, M clients in parallel.

    A round first serves the requests that are pending, as in synchronous rounds. Then clients are sampled uniformly
    among the idle ones that may train, until M train, from the current model; whenever replies have come, others are
    sampled. With K replies in the buffer the aggregator makes a step: an update Δ_k = φ_k − φ_start, computed from a
    model that s steps have changed since, counts as the model φ + (1 + s)^−a Δ_k (a: the staleness exponent) with the
    client's usual weight, so that with FedAvg and equal weights φ ← φ + (1/K) Σ (1 + s_k)^−a Δ_k, the paper's equation.
    Replies that come at the same time are taken together, up to K, before anyone is sampled; within a round no client
    is asked twice, for the model has not changed.

    **The barrier.** A FedTU exchange that serves a request makes a new version of the model. Updates under way then,
    which started from an earlier version, are never merged, whoever computes them; the client is asked again when it is
    done. So is a client that itself was training on the records. A request that is not served raises no barrier: it is
    pending, and the exchange that serves it starts from a model that contains all that was merged meanwhile.

    A round ends with fewer updates, or none, where M clients in it have failed, or nobody is left who could be asked.
    With a simulated clock a resumed run sends what was under way again, from the models that were sent then (they are
    in the state): the schedule, and the numbers, are as if it had not stopped. By the machine's clock it begins anew
    from the current model, since there the order of replies cannot be repeated.

    Parameters
    ----------
    inner : ServerStep
        An aggregator of `strategies.rules.factory`.
    **settings
        As `FedTU`, with `options.buffer`.

    Raises
    ------
    ValueError
        For another `inner`, or without `options.buffer`.
    """

    asynchronous = True
    own_state = (*FedTU.own_state, BUFFER)

    def __init__(self, inner: ServerStep, **settings: Any) -> None:
        super().__init__(inner, **settings)
        if not isinstance(inner, ServerStep):
            raise ValueError(
                f"asynchronous rounds take an aggregator of strategies.rules.factory, not {type(inner).__name__}"
            )
        assert self._options.buffer is not None
        self.inner: ServerStep = inner
        self._buffer: Buffer = self._options.buffer
        self.versions = Versions()
        self._flights: dict[Sent, Flight] = {}
        self._models: dict[int, ArrayRecord] = {}
        self._kept: dict[str, np.ndarray] = {}

    def state_dict(self) -> dict[str, np.ndarray]:
        """As `FedTU.state_dict`, with model versions, and on a simulated clock the clients at work and their models."""
        own: dict[str, np.ndarray] = {"versions": np.array([self.versions.now, self.versions.barrier], dtype=np.int64)}
        if self._options.durations is not None:
            flights = [f for f in self._flights.values() if not f.sent.void]
            rows = [(f.client, f.version, f.server_round, f.sent.since, f.sent.due) for f in flights]
            own["flights"] = np.array(rows, dtype=np.float64).reshape(-1, 5)
            for version in {f.version for f in flights} - {self.versions.now}:
                model = self._models[version]
                own |= {f"{_MODEL}{version}/{name}": array.numpy() for name, array in model.items()}
        return {**super().state_dict(), **{BUFFER + name: values for name, values in own.items()}}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore a `state_dict`; ValueError when `inner` or the protocol cannot load it."""
        own = {name.removeprefix(BUFFER): values for name, values in state.items() if name.startswith(BUFFER)}
        super().load_state_dict({name: values for name, values in state.items() if not name.startswith(BUFFER)})
        if own:
            now, barrier = own["versions"].tolist()
            self.versions = Versions(now, barrier)
        self._kept = own

    # -- the rounds ----------------------------------------------------------------------------------------------

    def _rounds(self, run: Run, start_round: int, arrays: ArrayRecord) -> ArrayRecord:
        """As `FedTU._rounds`; sends first what was under way before a resume."""
        self._flights.clear()
        self._models = {self.versions.now: arrays}
        self._send_again(run)
        return super()._rounds(run, start_round, arrays)

    def _installed(self, run: Run, server_round: int) -> None:
        """Raise the barrier: a FedTU exchange produced the current model."""
        self.versions.unlearned()
        behind = [f for f in self._flights.values() if not f.sent.void and not self.versions.admits(f.version)]
        for flight in behind:
            flight.sent.void = True
        self._listener.barrier(server_round, self.versions.now, len(behind))

    def _train(self, run: Run, server_round: int, arrays: ArrayRecord) -> tuple[ArrayRecord, Mapping[str, object]]:
        """Make a server step; returns the new arrays and the clients' averaged metrics."""
        self._models[self.versions.now] = arrays
        new, metrics = super()._train(run, server_round, arrays)
        if new is not arrays:
            self.versions.stepped()
        used = {flight.version for flight in self._flights.values() if not flight.sent.void}
        self._models = {version: model for version, model in self._models.items() if version in used}
        return new, metrics

    def _trained(self, run: Run, server_round: int, arrays: ArrayRecord) -> list[ReplyCheck]:
        """Collect a buffer; returns the checked replies, rebased as if all had started from `arrays`."""
        began = time.monotonic()
        collected = self._collect(run, server_round, arrays)
        for flight, reply in collected.good:
            if flight.version != self.versions.now:
                self._rebase(reply, flight, arrays)
        pairs = [(flight.client, reply) for flight, reply in collected.good]
        self.inner.starts_from(arrays)
        verdicts = run.exchange.judged("train", server_round, pairs, arrays)
        accepted = sum(v.reply is not None for v in verdicts)
        left_out = len(verdicts) - accepted + collected.failed
        if collected.good or collected.failed:
            self._listener.exchange_ended("train", accepted, left_out, time.monotonic() - began)
        if not accepted:
            run.exchange.warn(server_round, "no valid reply, the model stays as it is")
        return verdicts

    def _rebase(self, reply: Message, flight: Flight, arrays: ArrayRecord) -> None:
        """Rebase the model in `reply`: `arrays` plus the client's update, weighted by its staleness."""
        key, weight = self._keys.arrays, self._buffer.weight(self.versions.staleness(flight.version))
        models = [reply.content.array_records[key], self._models[flight.version]]
        reply.content[key] = merged(arrays, models, [weight, -weight])

    # -- who is at work ------------------------------------------------------------------------------------------

    def _collect(self, run: Run, server_round: int, arrays: ArrayRecord) -> _Collected:
        """Have clients train until the buffer is full."""
        arrivals, collected = self._stream, _Collected([], set())
        while True:
            self._draw(run, server_round, arrays, collected)
            if not self._flights:
                return collected
            limit = min(flight.sent.since for flight in self._flights.values()) + run.exchange.timeout
            arrived = arrivals.wait(limit, FLIGHT, self._buffer.size - len(collected.good))
            for sent, reply in arrived:
                self._take(run, server_round, self._flights.pop(sent), reply, collected)
            if not arrived:
                self._give_up(run, server_round, arrivals, collected)
            if len(collected.good) >= self._buffer.size or collected.failed >= self._buffer.concurrency:
                return collected

    def _take(self, run: Run, server_round: int, flight: Flight, reply: Message | None, collected: _Collected) -> None:
        """Take a reply into the buffer, unless it is from before the barrier or invalid."""
        if flight.sent.void or not self.versions.admits(flight.version):
            self._listener.discarded(flight.client)
            return
        collected.tried.add(flight.client)
        started = self._models[flight.version]
        verdict = self._judged_alone(run, flight.client, reply, started)
        if verdict.reply is not None:
            collected.good.append((flight, verdict.reply))
            self._listener.arrived(len(collected.good), self._buffer.size)
            return
        collected.failed += 1
        self._listener.reply(flight.client, False, verdict.reason)
        run.exchange.warn(server_round, "client %d left out: %s", flight.client, verdict.reason)

    def _judged_alone(self, run: Run, client: int, reply: Message | None, started: ArrayRecord) -> ReplyCheck:
        """Check one reply against the model that its client started from."""
        return run.exchange.checked("train", [(client, reply)], started, same_metrics=False)[0]

    def _give_up(self, run: Run, server_round: int, arrivals: Arrivals, collected: _Collected) -> None:
        """Stop waiting for clients that have had `timeout` seconds: their replies are lost."""
        for sent, flight in list(self._flights.items()):
            if arrivals.now >= sent.since + run.exchange.timeout:
                del self._flights[sent]
                arrivals.forget(sent)
                self._take(run, server_round, flight, None, collected)

    def _draw(self, run: Run, server_round: int, arrays: ArrayRecord, collected: _Collected) -> None:
        """Sample idle clients until as many train as may."""
        at_work = {flight.client for flight in self._flights.values()}
        missing = self._buffer.concurrency - sum(not flight.sent.void for flight in self._flights.values())
        if missing <= 0:
            return
        nodes = {self._nodes.partition(node): node for node in run.eligible.get_node_ids()}
        able = sorted(p for p in nodes if p is not None and p not in at_work and p not in collected.tried)
        stage, seed = self._options.stage, self._options.seed
        rng = random.Random(f"{seed}/{stage}/{server_round}/train/{collected.asked}")
        drawn = sorted(rng.sample(able, min(missing, len(able))))
        if not drawn:
            return
        self._listener.exchange_started("train", drawn)
        messages = [self._message(run, server_round, nodes[client], arrays) for client in drawn]
        self._begin(run, messages, [(client, self.versions.now, server_round) for client in drawn])
        collected.tried.update(drawn)
        collected.asked += len(drawn)

    def _message(self, run: Run, server_round: int, node: int, arrays: ArrayRecord) -> Message:
        """The training message to one node."""
        config = run.exchange.config(server_round, {**run.train_config, **self.inner.client_settings})
        content = RecordDict({self._keys.arrays: arrays, self._keys.config: config})
        return Message(content, dst_node_id=node, message_type=message_keys.TRAIN)

    def _begin(
        self,
        run: Run,
        messages: Sequence[Message],
        flights: Iterable[tuple[int, int, int]],
        due: Sequence[float] | None = None,
    ) -> list[Sent]:
        """Send messages; their clients are training from these versions of the model from now on."""
        sent = self._stream.send(messages, FLIGHT, due)
        for one, (client, version, server_round) in zip(sent, flights, strict=True):
            self._flights[one] = Flight(client, version, server_round, one)
        return sent

    def _send_again(self, run: Run) -> None:
        """After a resume, send again what was under way; clients whose replies will be discarded count as training."""
        arrivals = self._stream
        for sent in arrivals.underway(FLIGHT):
            self._flights[sent] = Flight(sent.client, -1, 0, sent)
        rows = self._kept.get("flights", np.empty((0, 5))).tolist()
        if not rows:
            return
        for name, values in self._kept.items():
            if name.startswith(_MODEL):
                version, array = name.removeprefix(_MODEL).split("/", 1)
                self._models.setdefault(int(version), ArrayRecord())[array] = Array(np.asarray(values))
        nodes = self._nodes.refresh(run.exchange.grid, retry=True)
        flights = [(int(client), int(version), int(round_)) for client, version, round_, _, _ in rows]
        missing = [client for client, _, _ in flights if client not in nodes]
        if missing:
            text = "clients %s were at work when the run broke off and are not connected: their work is lost"
            run.exchange.warn(0, text, ", ".join(map(str, missing)))
        again = [(flight, row) for flight, row in zip(flights, rows, strict=True) if flight[0] in nodes]
        messages = [self._message(run, r, nodes[c], self._models[v]) for (c, v, r), _ in again]
        sent = self._begin(run, messages, [flight for flight, _ in again], [row[4] for _, row in again])
        for one, (_, row) in zip(sent, again, strict=True):
            one.since = row[3]

    @property
    def _stream(self) -> Arrivals:
        """The reply stream, which there always is in asynchronous rounds."""
        assert self._arrivals is not None, "options.buffer makes it"
        return self._arrivals
