"""The server's side of client audits: it asks what the model knows of a request's records, and keeps the numbers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict

from oblivionis.assessment.audit_numbers import (
    MOMENTS,
    REQUEST_RECITED,
    REQUEST_ROUGE,
    REQUEST_SHORT,
    audit_path,
    check_numbers,
    read_audit,
)
from oblivionis.assessment.verification import doubt, moved
from oblivionis.files import write_json
from oblivionis.requests.judgement import Judgement, judge_counts
from oblivionis.requests.ledger import Request
from oblivionis.server.context import Server
from strategies import protocol
from strategies.errors import NodeMapError
from strategies.replies import answers, judge, metrics_of

EVALUATOR = "client_audit"
ATTEMPTS = 2
"""A client that restarts may lose a message, and Flower does not deliver it again."""

Numbers = Mapping[str, float]


class ClientAudits:
    """Sends `evaluate.audit` messages, one per request, and writes `audits/request-<id>.json` and metrics.jsonl.

    A client that cannot be asked, or whose answer is not entirely well, costs a warning and that moment's numbers.
    """

    def __init__(self, server: Server, stage: str, label: str) -> None:
        self._server, self._stage, self._label = server, stage, label
        self._limit = server.config.unlearning.requests.verify_max_rouge

    def ask(
        self, requests: Sequence[Request], server_round: int, moment: str, vector: np.ndarray
    ) -> dict[str, Numbers]:
        """The numbers of each request, by id, of the global model `vector` at `moment`, one of `MOMENTS`."""
        if not requests:
            return {}
        started = time.perf_counter()
        self._server.events.evaluating(f"client audit, {moment}")
        found: dict[str, Numbers] = {}
        reasons: dict[str, str] = {}
        waiting = list(requests)
        for _ in range(ATTEMPTS):
            waiting = self._exchange(waiting, server_round, vector, found, reasons)
            if not waiting:
                break
        for request in requests:
            self._keep(request, server_round, moment, found.get(request.id), reasons.get(request.id, ""))
        if found:
            self._write_row(server_round, moment, found, time.perf_counter() - started)
        return found

    def judge(self, requests: Sequence[Request], vector: np.ndarray, finetuned: np.ndarray) -> dict[str, Judgement]:
        """The outcome of each request by what its client told before the exchange and of the final model.

        A request without final numbers has none. vector, finetuned: of the final model, and before unlearning.
        """
        ruined, least = moved(vector, finetuned), self._server.config.unlearning.requests.verify_min_utility
        found: dict[str, Judgement] = {}
        for request in requests:
            audit = read_audit(self._server.run.path, request.id) or {}
            before, final = audit.get("before", {}), audit.get("final")
            if not final:
                continue
            failed = final.get("failed_evaluators", 0.0)
            why_not = f"{failed:g} evaluators failed in the client's audit; its log says why" if failed else ruined
            outcome, why = judge_counts(
                len(request.record_ids),
                before.get(REQUEST_RECITED),
                final[REQUEST_RECITED],
                untestable=final[REQUEST_SHORT],
                doubt=why_not or doubt({}, final, before, least),
            )
            found[request.id] = Judgement(outcome, why, final[REQUEST_ROUGE])
        return found

    def _exchange(
        self,
        requests: Sequence[Request],
        server_round: int,
        vector: np.ndarray,
        found: dict[str, Numbers],
        reasons: dict[str, str],
    ) -> list[Request]:
        """Ask once; `found` and `reasons` get what came of it. Returns the requests without any reply."""
        server, timeout = self._server, self._server.config.federation.timeout
        try:
            nodes = server.nodes.refresh(server.grid, retry=True)
        except NodeMapError as error:
            reasons |= {r.id: str(error) for r in requests}
            return []
        asked = [r for r in requests if r.client in nodes]
        reasons |= {r.id: "the client is not connected" for r in requests if r.client not in nodes}
        messages = [
            Message(self._content(r, server_round, vector), dst_node_id=nodes[r.client], message_type=protocol.AUDIT)
            for r in asked
        ]
        if not messages:
            return []
        silent = []
        received = answers(messages, server.grid.send_and_receive(messages, timeout=timeout))
        # The messages come back in the order in which they were sent.
        for request, (_, answer) in zip(asked, received, strict=True):
            (verdict,) = judge([(request.client, answer)], reference=None, timeout=timeout)
            if verdict.reply is None:
                reasons[request.id] = verdict.reason
                silent += [request] if answer is None else []
                continue
            told = dict(metrics_of(verdict.reply))
            for key in (protocol.NUM_EXAMPLES, protocol.PARTITION_ID):
                told.pop(key, None)
            try:
                found[request.id] = check_numbers(told, len(request.record_ids), self._limit)
            except ValueError as error:
                reasons[request.id] = str(error)
        return silent

    def _content(self, request: Request, server_round: int, vector: np.ndarray) -> RecordDict:
        config = self._server.message_config(self._stage)
        config[protocol.SERVER_ROUND] = server_round
        config[protocol.STAGE] = self._label
        config[protocol.REQUEST_IDS] = [request.id]
        config[protocol.RECORD_IDS] = list(request.record_ids)
        config[protocol.RECORD_COUNTS] = [len(request.record_ids)]
        config[protocol.SCOPES] = [request.scope]
        arrays = ArrayRecord({protocol.ADAPTER: Array(vector)})
        return RecordDict({protocol.ARRAYS: arrays, protocol.CONFIG: config})

    def _keep(self, request: Request, server_round: int, moment: str, numbers: Numbers | None, reason: str) -> None:
        run = self._server.run.path
        known = read_audit(run, request.id) or {"request": request.id, "client": request.client}
        if moment == "before":  # a round that is repeated begins anew
            known = {"request": request.id, "client": request.client, "round": server_round}
        known.pop(moment, None)
        failed = {k: v for k, v in known.pop("failed", {}).items() if k != moment}
        if numbers is None:
            failed[moment] = reason
            self._server.events.warning(f"client {request.client} did not audit request {request.id!r}: {reason}")
        else:
            known[moment] = dict(numbers)
        write_json(audit_path(run, request.id), {**known, **({"failed": failed} if failed else {})})

    def _write_row(self, server_round: int, moment: str, found: Mapping[str, Numbers], seconds: float) -> None:
        shared = set.intersection(*(set(numbers) for numbers in found.values()))
        row = {
            "stage": self._stage,
            "round": server_round,
            "moment": MOMENTS[moment],
            "evaluator": EVALUATOR,
            "metrics": {name: float(np.mean([n[name] for n in found.values()])) for name in sorted(shared)},
            "requests": {request: dict(numbers) for request, numbers in found.items()},
            "seconds": seconds,
            "time": time.time(),
        }
        self._server.run.append_metrics([row])
