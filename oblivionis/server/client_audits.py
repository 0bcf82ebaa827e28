"""The server's side of client audits: it asks what the model knows of a request's records, and keeps the numbers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict

from oblivionis.erasure.node_key import MOMENT, PUBLIC_KEY, SIGNATURE, SIGNED, audit_bytes, verified
from oblivionis.erasure.request import Request
from oblivionis.erasure.verification_rules import Judgement, Thresholds
from oblivionis.files import json_text, read_json, write_json
from oblivionis.measures.audit_numbers import (
    MOMENTS,
    REQUEST_RECITED,
    audit_path,
    check_numbers,
    judge_numbers,
    read_audit,
)
from oblivionis.runs.directory import vector_hash
from oblivionis.server.run_context import Server
from strategies import message_keys
from strategies.errors import NodeMapError
from strategies.replies import answers, judge, metrics_of

EVALUATOR = "client_audit"
ATTEMPTS = 2
"""A client that restarts may lose a message, and Flower does not deliver it again."""

KEYS_FILE = "keys.json"
"""In the run's `audits/`: by client, the public key with which it signed its first audit, and must sign the others."""

UNKNOWN_BEFORE = "what the model knew and was worth before its first exchange was not measured"
"""Why nothing follows from a later exchange alone: the first one may have ruined the model."""

Numbers = Mapping[str, float]


@dataclass
class _Asked:
    """What clients are asked about one model, and their replies by request: numbers and signatures, or the reason for
    neither."""

    round: int
    moment: str
    vector: np.ndarray
    numbers: dict[str, Numbers] = field(default_factory=dict)
    signatures: dict[str, dict[str, str]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    @cached_property
    def model(self) -> str:
        return vector_hash(self.vector)


class ClientAudits:
    """Sends `evaluate.audit` messages, one per request, and writes `audits/request-<id>.json` and metrics.jsonl.

    A client that cannot be asked, or whose answer is not entirely well, costs a warning and that moment's numbers; so
    does one whose signature (`oblivionis.erasure.node_key`) does not fit. What is known right before and after an
    exchange is of the one that served the request, and where that left records recited, of a later one that began with
    a model that recites some (`before_serving_again`): whether an exchange ended the recitation only one and the same
    can tell. `samples`: answers that are sampled to a question, None for as many as configured.
    """

    def __init__(self, server: Server, stage: str, label: str, samples: int | None = None) -> None:
        self._server, self._stage, self._label, self._samples = server, stage, label, samples
        self._thresholds = Thresholds.of(server.config.unlearning.requests)
        self._begun = _Asked(0, "before", np.empty(0, np.float32))

    def ask(
        self, requests: Sequence[Request], server_round: int, moment: str, vector: np.ndarray
    ) -> dict[str, Numbers]:
        """The numbers of each request, by id, of the global model `vector` at `moment`, one of `MOMENTS`."""
        asked = self._ask(requests, server_round, moment, vector)
        for request in requests:
            self._keep(request, asked)
        return asked.numbers

    def ask_again(self, requests: Sequence[Request], server_round: int, vector: np.ndarray) -> dict[str, Numbers]:
        """The numbers of each request, by id, of the final model `vector`; where a client does not measure it now,
        what is known of it stays."""
        asked = self._ask(requests, server_round, "final", vector)
        for request in requests:
            if request.id in asked.numbers:
                self._keep(request, asked)
            else:
                self._tell(request, asked)
        return asked.numbers

    def before_serving_again(self, requests: Sequence[Request], server_round: int, vector: np.ndarray) -> None:
        """Before the exchange of a round serves `requests` again: ask the clients of those whose records were still
        recited right after the exchange that their audit is of, about the global model `vector`."""
        left = [r for r in requests if self._is_left(r, server_round)]
        self._begun = self._ask(left, server_round, "before", vector)

    def after_serving_again(self, requests: Sequence[Request], server_round: int, vector: np.ndarray) -> None:
        """After that exchange, which made the model `vector`: the audit of a request is of this exchange now, where it
        began with a model that recites a record of it."""
        begun = [r for r in requests if self._begun.numbers.get(r.id, {}).get(REQUEST_RECITED, 0.0) > 0]
        asked = self._ask(begun, server_round, "after", vector)
        for request in (r for r in begun if r.id in asked.numbers):
            self._keep(request, self._begun)
            self._keep(request, asked)

    def roll_back(self, requests: Sequence[Request], server_round: int) -> None:
        """Forget what is known of exchanges after `server_round`: the stage goes on from there, and they never were.

        Such a request has no numbers from right before and after an exchange until it is served again.
        """
        why = f"the exchange was undone: the run resumed from round {server_round}"
        for request in requests:
            audit = read_audit(self._server.run.path, request.id)
            if audit is not None and audit.get("round", 0) > server_round:
                undone = {"request": request.id, "client": request.client, "round": audit["round"]}
                self._write(request, {**undone, "failed": {"before": why, "after": why}})

    def _first(self, request: Request) -> Numbers | None:
        """What its client reported of the model before the exchange that first served a request."""
        rows = [r for r in self._server.run.metrics() if r["evaluator"] == EVALUATOR]
        rows = [r for r in rows if request.id in r.get("requests", {})]
        place = (self._stage, request.served_round, MOMENTS["before"])
        numbers = [r["requests"][request.id] for r in rows if (r["stage"], r["round"], r["moment"]) == place]
        return numbers[-1] if numbers else None

    def _is_left(self, request: Request, server_round: int) -> bool:
        """Whether the exchange that an audit is of left records recited, or is of a round that is repeated."""
        audit = read_audit(self._server.run.path, request.id) or {}
        return audit.get("round", 0) >= server_round or (audit.get("after") or {}).get(REQUEST_RECITED, 0.0) > 0

    def _ask(self, requests: Sequence[Request], server_round: int, moment: str, vector: np.ndarray) -> _Asked:
        """Ask the clients of `requests`, and write their numbers into metrics.jsonl."""
        asked = _Asked(server_round, moment, vector)
        if not requests:
            return asked
        started = time.perf_counter()
        self._server.events.evaluating(f"client audit, {moment}")
        waiting = list(requests)
        for _ in range(ATTEMPTS):
            waiting = self._exchange(waiting, asked)
            if not waiting:
                break
        self._write_row(requests, asked, time.perf_counter() - started)
        return asked

    def judge(self, requests: Sequence[Request], vector: np.ndarray, finetuned: np.ndarray) -> dict[str, Judgement]:
        """Judge requests by what their clients report of the models right before, right after and at the end.

        Parameters
        ----------
        requests : sequence of Request
        vector, finetuned : array (n,)
            The final model, and the one before unlearning.

        Returns
        -------
        dict of str to Judgement
            By request id; a request without final numbers has none.
        """
        ruined = self._thresholds.displaced(vector, finetuned)
        judgements: dict[str, Judgement] = {}
        for request in requests:
            audit = read_audit(self._server.run.path, request.id) or {}
            first, why = self._first(request), ruined
            if first is None and audit.get("round", request.served_round) != request.served_round:
                why = ruined or UNKNOWN_BEFORE
            judged = judge_numbers(self._thresholds, audit, len(request.record_ids), ruined=why, first=first)
            if judged is not None:
                judgements[request.id] = judged
        return judgements

    def _exchange(self, requests: Sequence[Request], asked: _Asked) -> list[Request]:
        """Ask once, and enter numbers and reasons into `asked`. Returns the requests without any reply."""
        server, timeout = self._server, self._server.config.federation.timeout
        try:
            nodes = server.nodes.refresh(server.grid, retry=True)
        except NodeMapError as error:
            asked.reasons |= {r.id: str(error) for r in requests}
            return []
        reached = [r for r in requests if r.client in nodes]
        asked.reasons |= {r.id: "the client is not connected" for r in requests if r.client not in nodes}
        messages = [
            Message(self._content(r, asked), dst_node_id=nodes[r.client], message_type=message_keys.AUDIT)
            for r in reached
        ]
        if not messages:
            return []
        silent = []
        received = answers(messages, server.grid.send_and_receive(messages, timeout=timeout))
        # The messages come back in the order in which they were sent.
        for request, (_, answer) in zip(reached, received, strict=True):
            (verdict,) = judge([(request.client, answer)], reference=None, timeout=timeout)
            if verdict.reply is None:
                asked.reasons[request.id] = verdict.reason
                silent += [request] if answer is None else []
                continue
            reported = dict(metrics_of(verdict.reply))
            for key in (message_keys.NUM_EXAMPLES, message_keys.PARTITION_ID):
                reported.pop(key, None)
            try:
                numbers = check_numbers(reported, len(request.record_ids), self._thresholds)
                asked.signatures[request.id] = self._signature(request, asked, verdict.reply, numbers)
                asked.numbers[request.id] = numbers
            except ValueError as error:
                asked.reasons[request.id] = str(error)
        return silent

    def _signature(self, request: Request, asked: _Asked, reply: Message, numbers: Numbers) -> dict[str, str]:
        """The client's signature of `numbers` with its public key. ValueError where it is absent, does not fit, or is
        not by the key of its first audit in this run."""
        given = reply.content.config_records.get(SIGNATURE, {})
        key, signature = given.get(PUBLIC_KEY), given.get(SIGNATURE)
        if key is None or signature is None:
            raise ValueError("the audit is not signed: the client's program is too old")
        body = audit_bytes(request.id, request.client, asked.moment, numbers, self._facts(asked))
        if not verified(key, signature, body):
            raise ValueError("the signature does not fit: the numbers are not those that the client signed")
        path = self._server.run.path / "audits" / KEYS_FILE
        try:
            known = read_json(path, dict[str, str])
        except FileNotFoundError:
            known = {}
        if known.setdefault(str(request.client), key) != key:
            raise ValueError("it is signed by another key than the client's first audit in this run")
        write_json(path, known)
        return {PUBLIC_KEY: str(key), SIGNATURE: str(signature)}

    def _facts(self, asked: _Asked) -> dict[str, Any]:
        """What is signed with the request and the numbers."""
        run = self._server.run.name
        return {"run": run, "stage": self._label, "round": asked.round, "model": asked.model}

    def _content(self, request: Request, asked: _Asked) -> RecordDict:
        config = self._server.message_config(self._stage)
        config[message_keys.SERVER_ROUND] = asked.round
        config[message_keys.STAGE] = self._label
        config[MOMENT] = asked.moment
        config[message_keys.REQUEST_IDS] = [request.id]
        config[message_keys.RECORD_IDS] = list(request.record_ids)
        config[message_keys.RECORD_COUNTS] = [len(request.record_ids)]
        config[message_keys.SCOPES] = [request.scope]
        if self._samples is not None:
            config[message_keys.SAMPLES] = self._samples
        arrays = ArrayRecord({message_keys.ADAPTER: Array(asked.vector)})
        return RecordDict({message_keys.ARRAYS: arrays, message_keys.CONFIG: config})

    def _keep(self, request: Request, asked: _Asked) -> None:
        """Enter what a client replied, or why it did not, into the request's audit."""
        run, moment = self._server.run, asked.moment
        known = read_audit(run.path, request.id) or {"request": request.id, "client": request.client}
        if moment == "before":  # a round that is repeated begins anew
            known = {"request": request.id, "client": request.client, "round": asked.round}
        known.pop(moment, None)
        failed = {k: v for k, v in known.pop("failed", {}).items() if k != moment}
        signatures = {k: v for k, v in known.pop("signatures", {}).items() if k != moment}
        numbers = asked.numbers.get(request.id)
        if numbers is None:
            failed[moment] = asked.reasons.get(request.id, "")
            self._tell(request, asked)
        else:
            known[moment] = dict(numbers)
            signed, facts = asked.signatures[request.id], self._facts(asked)
            known["signed_by"] = signed[PUBLIC_KEY]
            signatures[moment] = {SIGNATURE: signed[SIGNATURE], **{name: facts[name] for name in SIGNED}}
        more = {name: value for name, value in (("signatures", signatures), ("failed", failed)) if value}
        self._write(request, {**known, **more})

    def _tell(self, request: Request, asked: _Asked) -> None:
        """Tell why a client did not measure."""
        reason = asked.reasons.get(request.id, "")
        self._server.events.warning(f"client {request.client} did not audit request {request.id!r}: {reason}")

    def _write(self, request: Request, audit: Mapping[str, Any]) -> None:
        """Write the audit of a request; the ledger names its file first."""
        run = self._server.run
        name = audit_path(run.path, request.id).relative_to(run.path).as_posix()
        run.keep({name: json_text(audit)})

    def _write_row(self, requests: Sequence[Request], asked: _Asked, seconds: float) -> None:
        """The means over the requests that were measured, and as `error` what clients could not measure."""
        by_request = asked.numbers
        shared = set.intersection(*map(set, by_request.values())) if by_request else set()
        failed = "; ".join(self._failed(request, asked) for request in requests if self._failed(request, asked))
        row = {
            "stage": self._stage,
            "round": asked.round,
            "moment": MOMENTS[asked.moment],
            "evaluator": EVALUATOR,
            "metrics": {name: float(np.mean([n[name] for n in by_request.values()])) for name in sorted(shared)},
            "requests": {request: dict(numbers) for request, numbers in by_request.items()},
            **({"error": failed} if failed else {}),
            "seconds": seconds,
            "time": time.time(),
        }
        self._server.run.append_metrics([row])

    @staticmethod
    def _failed(request: Request, asked: _Asked) -> str:
        """What is missing of a client's audit of a request, and why; empty where nothing is."""
        who = f"client {request.client}, request {request.id}"
        if request.id not in asked.numbers:
            return f"{who}: {asked.reasons.get(request.id, '')}"
        count = asked.numbers[request.id].get("failed_evaluators", 0.0)
        return f"{who}: {count:g} of its evaluators failed, its log says why" if count else ""
