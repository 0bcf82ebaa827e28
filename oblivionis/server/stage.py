"""A stage of a run: its rounds, what is measured after each, and what is kept of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from evaluation.hook import Report
from evaluation.ruler.evaluator import References
from oblivionis.config import method_traits
from oblivionis.erasure.exact_machine import machine_here
from oblivionis.erasure.exact_proof import Proof, judge_exact, keep_proof
from oblivionis.erasure.ledger import as_text
from oblivionis.erasure.node_request_sources import NodeRequests, SealedRequests
from oblivionis.erasure.record_holders import SimulatedRequests
from oblivionis.erasure.verification_rules import Judgement
from oblivionis.errors import RunError, RunFailed
from oblivionis.measures.assessor import Measured
from oblivionis.measures.rebound.tracker import ReboundTracker, rebound_summary
from oblivionis.measures.ruler import paired_models
from oblivionis.measures.ruler import report as ruler_report
from oblivionis.measures.ruler.oracles import noise_bands, states_of
from oblivionis.measures.verification import Verification
from oblivionis.models.aggregator import aggregator
from oblivionis.models.parameter_layers import layers_of, learned_by_first_layers
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import Checkpoint, part_hashes, vector_hash
from oblivionis.runs.failed_evaluators import END, recorded, warn
from oblivionis.runs.privacy import train_steps, unlearn_steps
from oblivionis.runs.updates import UpdateStore, open_stores
from oblivionis.runtime.processes import processor_seconds
from oblivionis.server.client_audits import ClientAudits
from oblivionis.server.round_settings import sampling_of, waiting
from oblivionis.server.run_context import Server
from strategies import message_keys, protocols
from strategies.errors import ParameterError
from strategies.metric_schema import COUNTS, NUMBERS, TRAIN
from strategies.protocols.base import ByUnlearning, ProtocolContext, UnlearningProtocol
from strategies.protocols.by_shard import ByShard
from strategies.rounds.buffered import BufferedFedTU
from strategies.rounds.fedtu import FedTU, Listener, Options
from strategies.rules.server_step import ServerStep
from strategies.rules.shard_rules import ShardRules

SENT, RECEIVED = "bytes_sent", "bytes_received"
"""Bytes of all messages of a round, from the server and to it."""
SAMPLING = {"finetune": "train", "retrain": "train", "unlearn": "unlearn", "local": "local"}
"""Label of a stage's sampling and client seeds: retrain repeats finetune, without the records to forget."""


class Stage:
    """One of finetune, retrain, unlearn: rounds of FedTU and FedFT with an evaluation after each."""

    def __init__(self, server: Server, name: str) -> None:
        self.server, self.name = server, name
        self.config, self.run, self.events = server.config, server.run, server.events
        self.rounds: int = getattr(self.config.federation.rounds, name)
        self.rules = [aggregator(self.config, server.mean) for _ in range(self.config.federation.shards)]
        self.requests = self._requests()
        self.sampling = sampling_of(self.config.federation, self._live, server.holdings.declared)
        self.oracle = self.run.evaluation_log("retrain") if name == "unlearn" else None
        self.references: References | None = None
        self.before: paired_models.Before | None = None
        self.label = SAMPLING[name]
        self.kept: dict[str, np.ndarray] = {}
        self.left_out = ""
        self.idle: list[int] = []
        self.updates = open_stores(self.config, self.run.path, name)
        self.private = server.private_mean(name)
        wanted = self.config.evaluation.rebound
        named = server.remote and not self.requests.hidden
        self.audits = ClientAudits(server, name, self.label) if name == "unlearn" and named else None
        local = name == "unlearn" and not server.remote
        self.verification = Verification(self.run, self.config, server.assessor, name) if local else None
        self.rebound = ReboundTracker(wanted, server.assessor, self.run, name) if local and wanted.enabled else None

    def _requests(self) -> SimulatedRequests | NodeRequests | SealedRequests:
        """Where this stage's requests come from: the nodes, a policy that plays them, or nowhere."""
        server = self.server
        if self.name == "unlearn" and self.config.unlearning.requests.policy == "nodes":
            return server.node_requests()
        policy = server.policy if self.name == "unlearn" else None
        return SimulatedRequests.of(self.config, self.run, server.holdings, policy)

    def execute(self) -> None:
        started = time.perf_counter()
        done, vector = self._recover(begun=not artifact_binding.begin(self.run, self.config, self.name))
        self.events.stage_started(self.name, done, self.rounds)
        if self.name == "unlearn" and self.oracle is None and not self.server.remote:
            self.events.warning("no retrained model in this run: forget quality cannot be computed")
        if self.name == "unlearn":
            self._measure_before()
        if done == 0 and self.config.evaluation.at_start:
            self.evaluate(0, "start", vector)
        self.done, self.vector, self.start = done, vector, self.server.initial_vector(self.name)
        self._rounds()
        self._finish(time.perf_counter() - started)

    def _measure_before(self) -> None:
        """What RULER compares with from here on, and its word on whether there is anything to unlearn."""
        server, assessor = self.server, self.server.assessor
        if assessor.ruler_ids is None:
            return
        common = (self.config, assessor, self.events, server.fingerprint)
        with self.recorded(0, "before", "ruler"):
            self.references = paired_models.references(self.run, *common)
            known = (
                self.references.original
                if self.references
                else paired_models.stage_states(self.run, "finetune", *common)
            )
            self.before = paired_models.measure_before(assessor, assessor.embed(server.start_vector), known)
            self.events.note(ruler_report.before_unlearning(self.before))

    def recorded(self, server_round: int, moment: str, evaluator: str) -> AbstractContextManager[None]:
        """What `evaluator` measures inside may fail: that is reported and kept, and the stage goes on."""
        return recorded(
            *(self.run, self.events, self.name, server_round, moment, evaluator),
            strict=self.config.strict,
        )

    def _recover(self, *, begun: bool) -> tuple[int, np.ndarray]:
        """Continue after the last complete round, or start afresh. `begun`: the stage broke off."""
        checkpoints = self.run.checkpoint_rounds(self.name)
        checkpoint = self.run.load_checkpoint(self.name) if checkpoints else None
        done = 0 if checkpoint is None else checkpoint.round
        if begun or checkpoints:
            artifact_binding.resume(self.run, self.name, done)
        if self.server.account is not None:
            self.server.account.roll_back(self.name, done)
        self.requests.roll_back(done)
        if self.audits is not None:
            self.audits.roll_back(self.requests.served_so_far(), done)
        self._recover_updates(done)
        if checkpoint is None:
            return 0, self.server.initial_vector(self.name)
        self.kept = checkpoint.strategy_state
        if self.private is not None:
            self.private.clipping_norm = float(checkpoint.info.get("clipping_norm", self.private.clipping_norm))
        return done, checkpoint.vector

    def _recover_updates(self, done: int) -> None:
        """The clients' updates as they were after round `done`. RunError where they are gone."""
        for store in self.updates:
            store.roll_back(done)
            if self.name == "unlearn" and done == 0 and (missing := store.missing()):
                raise RunError(f"{self.run.path} does not hold {missing}: start a new run")

    def _serving(self) -> UnlearningProtocol:
        """How requests are served, and where the clients' updates are remembered.

        RunError where a parameter of the method does not go with the model.
        """
        shards, histories = self.server.shards, self.updates or [None] * len(self.rules)
        parts = [self._protocol(shard, *pair) for shard, pair in enumerate(zip(self.rules, histories, strict=True))]
        return parts[0] if shards is None else ByShard(shards, parts, self.updates)

    def _protocol(self, shard: int, inner: ServerStep, history: UpdateStore | None) -> UnlearningProtocol:
        """How the requests of one shard's clients are served."""
        unlearning, federation, shards = self.config.unlearning, self.config.federation, self.server.shards
        summed = unlearning.merge == "sum"
        if self.name != "unlearn":
            return ByUnlearning(self.server.mean, history, summed=summed)

        def initial() -> ArrayRecord:
            model = ArrayRecord({message_keys.ADAPTER: Array(self.server.initial_vector("finetune"))})
            return model if shards is None else shards.part(model, shard)

        context = ProtocolContext(
            inner=inner,
            mean=self.server.mean,
            history=history,
            summed=summed,
            able=lambda: [c for c in self._able() if shards is None or shards.of_client[c] == shard],
            per_round=federation.per_round,
            local_epochs=federation.local_epochs,
            seed=self.config.seed,
            initial=initial,
            layer_of=lambda: layers_of(self.server.assembled.flat),
            first_layers=self._first_layers,
            labels=SAMPLING,
            carries_on=self.config.strategy.server_state_from_finetune == "keep",
        )
        try:
            return protocols.build(unlearning.method, context, **unlearning.params)
        except ParameterError as error:
            raise RunError(f"unlearning.params.{error}") from None

    def _rule(self) -> Any:
        """The aggregator of a round, of each shard where there are several."""
        shards, nodes = self.server.shards, self.server.nodes
        return self.rules[0] if shards is None else ShardRules(self.rules, shards, nodes.partition)

    def _first_layers(self, layers: int) -> np.ndarray:
        model, flat = self.server.assessor.assembled.model, self.server.assembled.flat
        return learned_by_first_layers(model, flat, self.config.model.mode, layers)

    def _rounds(self) -> None:
        """Run what is left; rounds are added while requests are pending, up to the configured number."""
        kind = FedTU if self.config.federation.buffer.size == 0 else BufferedFedTU
        fedtu = kind(
            self._rule(),
            requests=self.requests if self.name == "unlearn" else None,
            serving=self._serving(),
            listener=_Recorder(self),
            nodes=self.server.nodes,
            eligible=self._eligible,
            trains=self._trains_now,
            options=Options(
                seed=self.config.seed,
                stage=self.label,
                server_state_on_unlearn="reset" if self.config.strategy.server_state_on_unlearn == "reset" else "keep",
                extra_rounds=self.config.unlearning.requests.extra_rounds,
                numbers=COUNTS if self.config.privacy.level == "record" else NUMBERS,
                bounds=self.server.bounds,
                secure=self.server.secure_sums(self.private),
                cover=self.config.unlearning.cover if self.name == "unlearn" else 0,
                cover_each=self.config.unlearning.merge == "sum",
                private_mean=self.private,
                fitting=self.server.fitting,
                sampling=self.sampling,
                **waiting(self.config),
            ),
        )
        if self.name == "unlearn" and self.done == 0:
            if self.config.strategy.server_state_from_finetune == "keep":
                fedtu.go_on_from(self.run.load_checkpoint("finetune").strategy_state)
        else:
            fedtu.load_state_dict(self.kept)
        fedtu.start(
            self.server.grid,
            ArrayRecord({message_keys.ADAPTER: Array(self.vector)}),
            num_rounds=self.rounds,
            timeout=self.config.federation.timeout,
            train_config=self.server.message_config(self.name),
            start_round=self.done + 1,
        )

    def _eligible(self, client: int) -> bool:
        """Whether `client` may be drawn in this stage: it can train, or had records once where rounds are replayed."""
        if method_traits.replays(self.config.unlearning.method):
            return (self.server.holdings.declared(client) or 0) > 0
        return self._trains(client)

    def _trains(self, client: int) -> bool:
        """Whether `client` can train in this stage: it has records left and does not leave."""
        return self._live(client) > 0

    def _trains_now(self, client: int) -> bool:
        """Whether `client`, which was drawn, trains; notes in `idle` that it does not."""
        if not (trains := self._trains(client)):
            self.idle.append(client)
        return trains

    def _able(self) -> list[int]:
        """The clients that can train in this stage."""
        return [client for client in range(self.server.holdings.clients) if self._trains(client)]

    @property
    def norm(self) -> dict[str, float]:
        """The norm to which the next round clips, where it moves."""
        private = self.private
        return {"clipping_norm": private.clipping_norm} if private is not None and private.adaptive else {}

    def account_for(self, kind: str, server_round: int, clients: Sequence[int]) -> None:
        """Enter an exchange in which `clients` train with DP-SGD; who then does not answer counts, too."""
        account, privacy = self.server.account, self.config.privacy
        if account is None or privacy.level != "record":
            return
        assert privacy.clipping_norm is not None
        if kind == "unlearn":
            asked = Counter({c: 0 for c in clients})
            for request in self.requests.asked(server_round):
                asked[request.client] += len(request.record_ids)
            steps = {c: unlearn_steps(self.config, asked[c], max(self._live(c) - asked[c], 0)) for c in clients}
            if self.requests.hidden:  # nobody knows how a client divides what it holds
                steps = {c: (1.0, unlearn_steps(self.config, self._live(c), 0)[1]) for c in clients}
        else:
            count = self.server.holdings.count
            steps = {c: train_steps(self.config, live := self._live(c), max(live, count(c))) for c in clients}
        account.local(self.name, server_round, kind, privacy.clipping_norm, steps)

    def _live(self, client: int) -> int:
        """Records that `client` may train on in this stage."""
        if self.name == "unlearn":
            return self.requests.live(client)
        return self.server.holdings.live(client, without_forget_split=self.name == "retrain")

    def evaluate(self, server_round: int, moment: str, vector: np.ndarray) -> Measured:
        """Measure a global model and write the metrics; `moment` is start, after_unlearn, round or end."""
        if self.server.assessor.empty:
            return Measured(Report({}, {}, 0.0, {}), 0.0)
        self.events.evaluating(moment)
        measured = self.server.assessor.measure(
            vector, full=moment == "end", oracle=self.oracle, references=self.references
        )
        self.run.append_metrics(measured.rows(self.name, server_round, moment))
        self.events.evaluated(server_round, moment, measured.metrics, measured.seconds)
        warn(self.events, measured.report.failed)
        return measured

    def _finish(self, seconds: float) -> None:
        rounds = self.done
        self._check_replies()
        measured = self.evaluate(rounds, "end", self.vector)
        outcome = self._verify(rounds, measured)
        self.requests.close(rounds)
        paired_models.keep_states(self.run, self.name, measured.embedded, self.config, self.server.fingerprint)
        waiting = self.requests.waiting(rounds)
        if waiting:
            named = "; ".join(f"{r.id}{f' ({r.failure})' if r.failure else ''}" for r in waiting)
            self.events.warning(f"{len(waiting)} deletion requests are still pending: {named}")
        rebound, per_request = rebound_summary(self.run.metrics(), self.name)
        artifact_binding.finish_stage(
            self.run,
            self.name,
            {
                "stage": self.name,
                "rounds": rounds,
                "seconds": seconds,
                "seed": self.config.seed,
                "fingerprint": self.server.fingerprint,
                **measured.facts,
                "metrics": {**measured.metrics, **rebound},
                "traffic": self._traffic(),
                "requests": outcome,
                **self._ruler_facts(measured),
                **({"rebound": per_request} if per_request else {}),
                **self._unrequested(rounds),
            },
            measured.log,
        )
        self.events.stage_finished(self.name, seconds)

    def _unrequested(self, rounds: int) -> dict[str, Any]:
        """What the summary keeps of records of the forget split that nobody asked to forget: the retrained model goes
        without them, too."""
        missing = self.requests.unrequested(rounds) if self.name == "unlearn" else {}
        if not missing:
            return {}
        count, of = (sum(len(ids) for ids in by.values()) for by in (missing, self.server.holdings.forget))
        return {"unrequested": {"clients": len(missing), "records": count, "of": of}}

    def parts(self, after: np.ndarray) -> dict[str, list[str]]:
        """The hashes of the shards' parts of the model before and `after` an exchange; none where there is one."""
        if (shards := self.server.shards) is None:
            return {}
        return {"parts_before": part_hashes(self.vector, shards.count), "parts_after": part_hashes(after, shards.count)}

    def _check_replies(self) -> None:
        """RunFailed where every reply of the whole stage was left out: the model is the one that it began with."""
        rows = [r for r in self.run.metrics() if (r["stage"], r["evaluator"]) == (self.name, "federation")]
        failed = sum(row["metrics"]["failures"] for row in rows)
        if failed and not any(row["metrics"]["replies"] for row in rows):
            why = f"; the last one: {self.left_out}" if self.left_out else ""
            raise RunFailed(f"stage {self.name}: nobody trained, all {failed:g} replies were left out{why}")

    def _traffic(self) -> dict[str, float]:
        """Mean bytes of a round, both ways."""
        rows = [r["metrics"] for r in self.run.metrics() if (r["stage"], r["evaluator"]) == (self.name, "federation")]
        known = [row for row in rows if SENT in row]
        return {name: sum(row[name] for row in known) / len(known) for name in (SENT, RECEIVED)} if known else {}

    def _verify(self, server_round: int, measured: Measured) -> dict[str, int]:
        """Check the served requests: of an exact erasure by its proof, where the clients keep their records by what
        they measured."""
        waiting = self.requests.to_verify()
        found: Mapping[str, Judgement] = {}
        if self.audits is not None:
            self.audits.ask(self.requests.served_so_far(), server_round, "final", self.vector)
            found = self.audits.judge(waiting, self.vector, self.start)
        elif self.verification is not None:
            with self.recorded(server_round, END, "verification"):
                found = self.verification.judge(self.requests.served_so_far(), measured, self.vector, self.start)
        if self.name == "unlearn" and method_traits.replays(self.config.unlearning.method):
            rounds, shards = {shard: store.rounds() for shard, store in enumerate(self.updates)}, self.server.shards
            keep_proof(self.run, Proof(rounds, machine_here(self.config), () if shards is None else shards.of_client))
            found = judge_exact(self.run, waiting, found)
        return self.requests.verify(server_round, found)

    def _ruler_facts(self, measured: Measured) -> dict[str, Any]:
        """What the summary keeps of RULER besides the metrics: the values before unlearning, and the noise bands."""
        if self.before is None or measured.embedded is None:
            return {}
        facts: dict[str, Any] = {"before": self.before.facts()}
        oracles, known = self.server.oracles, self.references
        with self.recorded(self.done, END, "ruler beside retrained models"):
            if known is not None:
                facts["lens_1"] = paired_models.lens_1_of_pair(known, measured.embedded, self.config)
            if oracles:
                states = states_of(oracles, self.config, self.server.assessor, self.events)
                facts["bands"] = noise_bands(states, known and known.oracle, measured.embedded, self.config)
                facts["oracles"] = [{"run": str(o.run.path), "seed": o.seed} for o in oracles]
        return {"ruler": facts}


class _Recorder(Listener):
    """Binds FedTU's hooks to the run directory and the display."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._round, self._replies, self._failures, self._trained = 0, 0, 0, False
        self._kind, self._clients = "", dict[str, list[int]]()
        self._cuts: list[dict[str, object]] = []
        self._more: dict[str, float] = {}
        self._sent = self._received = 0
        self._counts = stage.server.starts_clients and stage.config.federation.ray_address is None
        self._work = self._since = 0.0
        self._checkpoint: Checkpoint | None = None

    def round_started(self, server_round: int, total: int) -> None:
        self._stage.server.check_stop()
        self._round, self._replies, self._failures, self._trained = server_round, 0, 0, False
        self._clients, self._cuts, self._more = {}, [], {}
        self._stage.idle = []
        self._work, self._since = 0.0, self._processor_seconds()
        self._sent, self._received = self._stage.server.grid.sent, self._stage.server.grid.received
        self._stage.events.round_started(server_round)

    def exchange_started(self, kind: str, nodes: Sequence[int]) -> None:
        self._stage.server.check_stop()
        if kind == "unlearn":
            addressed = set(nodes)
            asking = [r for r in self._stage.requests.asked(self._round) if r.client in addressed]
            first = {r.client for r in asking}
            if self._stage.audits is not None:
                self._stage.audits.ask(asking, self._round, "before", self._stage.vector)
                again = [r for r in self._stage.requests.requests_to_serve_again() if r.client in addressed]
                self._stage.audits.before_serving_again(again, self._round, self._stage.vector)
            others = sum(n not in first for n in nodes)
            covered = self._stage.config.unlearning.cover > 0
            self._stage.events.requests(as_text(asking, **{"covering" if covered else "again": others}))
        self._stage.account_for(kind, self._round, nodes)
        self._kind = kind
        self._stage.events.exchange_started(kind, nodes)

    def reply(self, node: int, ok: bool, reason: str) -> None:
        self._replies += ok
        self._failures += not ok
        self._clients.setdefault(self._kind if ok else "failed", []).append(node)
        self._stage.events.reply(node, ok, reason)
        if not ok:
            self._stage.left_out = f"client {node}: {reason}"
        if not ok and self._stage.config.strict:
            raise RunFailed(f"strict: client {node} failed in round {self._round}: {reason}")

    def exchange_ended(self, kind: str, accepted: int, left_out: int, seconds: float) -> None:
        self._trained |= kind == "train"

    def arrived(self, answers: int, sent: int) -> None:
        self._stage.events.arrived(answers, sent)

    def late(self, node: int, reason: str) -> None:
        self._clients.setdefault("late", []).append(node)
        self._more["late"] = self._more.get("late", 0) + 1

    def discarded(self, node: int) -> None:
        self._more["discarded"] = self._more.get("discarded", 0) + 1

    def barrier(self, server_round: int, version: int, discarded: int) -> None:
        self._stage.requests.barrier(server_round, version, discarded)

    def clock(self, seconds: float) -> None:
        self._more["clock_seconds"] = seconds

    def cut(self, node: int, what: str, told: float, used: float) -> None:
        self._cuts.append({"client": node, "what": what, "told": told, "used": used})
        self._stage.events.warning(f"client {node}: the {what} {told:.4g} of its reply counts as {used:.4g}")

    def _processor_seconds(self) -> float:
        """Of the server and its clients so far, where these are processes of this machine."""
        return processor_seconds() if self._counts else 0.0

    def checkpoint(self, server_round: int, moment: str, arrays: ArrayRecord, state: Mapping[str, np.ndarray]) -> None:
        """Keep and measure a model; what that takes is no work of the round."""
        self._work += self._processor_seconds() - self._since
        self._take_up(server_round, moment, arrays, state)
        self._since = self._processor_seconds()

    def _take_up(self, server_round: int, moment: str, arrays: ArrayRecord, state: Mapping[str, np.ndarray]) -> None:
        stage, vector = self._stage, _vector(arrays)
        evaluation = stage.config.evaluation
        if moment == "after_unlearn":
            stage.requests.applied(server_round, *map(vector_hash, (stage.vector, vector)), **stage.parts(vector))
            served = stage.requests.served_in(server_round)
            if (account := stage.server.account) is not None:
                account.served([r.id for r in served], server_round)
            if stage.verification is not None:
                with stage.recorded(server_round, moment, "verification"):
                    again = stage.requests.requests_served_again()
                    stage.verification.exchanged(served, again, server_round, stage.vector, vector)
            if stage.rebound is not None:
                with stage.recorded(server_round, moment, "rebound"):
                    stage.rebound.unlearned(served, server_round, stage.vector, vector)
            if stage.audits is not None:
                stage.audits.ask(served, server_round, "after", vector)
                stage.audits.after_serving_again(stage.requests.requests_served_again(), server_round, vector)
            if evaluation.after_unlearn and (served or stage.requests.hidden):
                stage.evaluate(server_round, moment, vector)
            return
        every = evaluation.every
        if stage.name != "unlearn" and evaluation.every_training is not None:
            every = evaluation.every_training
        if every and server_round % every == 0 and server_round < stage.rounds:
            stage.evaluate(server_round, "round", vector)
        if stage.rebound is not None:
            with stage.recorded(server_round, "round", "rebound"):
                stage.rebound.round_ended(stage.requests.served_so_far(), server_round, vector)
        self._checkpoint = Checkpoint(
            stage.name, server_round, vector, dict(state), {"seed": stage.config.seed, **stage.norm}
        )

    def round_completed(
        self, server_round: int, arrays: ArrayRecord, metrics: Mapping[str, Any], seconds: float
    ) -> None:
        stage = self._stage
        if not self._trained:
            least = stage.config.federation.min_clients
            few = f"fewer than {least} clients are left that may"
            why = "none of those drawn has a record left" if stage.idle else few
            stage.events.warning(f"round {server_round}: nobody trained, {why}")
        values = {k: float(v) for k, v in metrics.items() if k in TRAIN and isinstance(v, int | float)}
        grid = stage.server.grid
        traffic = {SENT: grid.sent - self._sent, RECEIVED: grid.received - self._received}
        values = {
            "seconds": seconds,
            "replies": self._replies,
            "failures": self._failures,
            **({"processor_seconds": self._work} if self._counts else {}),
            **self._more,
            **traffic,
            **values,
        }
        row = {
            "stage": stage.name,
            "round": server_round,
            "moment": "round",
            "evaluator": "federation",
            "metrics": values,
        }
        cuts = {"cut": self._cuts} if self._cuts else {}
        stage.run.append_metrics([{**row, "clients": self._clients, **cuts, "time": time.time()}])
        self._keep()
        stage.events.round_finished(server_round, seconds)

    def _keep(self) -> None:
        """The round is complete, and all that was measured of it is written: from here a stage goes on."""
        stage, checkpoint = self._stage, self._checkpoint
        assert checkpoint is not None
        stage.run.save_checkpoint(checkpoint, keep=stage.config.federation.keep_checkpoints)
        for store in stage.updates:
            store.settle()
        stage.done, stage.vector = checkpoint.round, checkpoint.vector


def _vector(arrays: ArrayRecord) -> np.ndarray:
    return np.array(arrays[message_keys.ADAPTER].numpy(), dtype=np.float32)
