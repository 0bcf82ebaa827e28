"""Measure the served requests of a finished run again, with more samples: no stage runs, and no request is made."""

from __future__ import annotations

from oblivionis.erasure.hidden_requests import seals
from oblivionis.erasure.ledger import NoRequests
from oblivionis.erasure.record_holders import LedgerRequests, SimulatedRequests
from oblivionis.errors import NotMeasured, RunError
from oblivionis.reports.certificate.signing import mark_superseded
from oblivionis.runs import artifact_binding
from oblivionis.server.client_audits import ClientAudits
from oblivionis.server.run_context import Server
from oblivionis.server.stage import SAMPLING

STAGE = "unlearn"


def measure_again(server: Server, samples: int) -> None:
    """Ask the clients anew what the final model of a run knows of the records that they asked to forget.

    The requests get the verdict that follows; what was measured and found before stays in the ledgers and the metrics.
    The clients sample `samples` answers to each question, by the run's settings otherwise.

    Raises
    ------
    RunError
        For a run whose clients do not keep their records, or where the server sees no request; for one with an
        unfinished stage, and one that has served no request.
    NotMeasured
        Where a client did not measure: what it measured before stays.
    """
    run, config = server.run, server.config
    if not config.data.on_clients or seals(config):
        how = "request audit --node-dir DIR ID" if seals(config) else "audit leakage RUN"
        raise RunError(f"{run.path}: no client measures for its server; use `oblivionis {how}`")
    if (summary := run.stage_summary(STAGE)) is None:
        raise RunError(f"{run.path}: the stage {STAGE} is unfinished; oblivionis simulate --resume {run.path}")
    requests = _requests(server)
    served = requests.served_so_far()
    if not served:
        raise RunError(f"{run.path}: it has served no request, there is nothing to measure")
    rounds, vector = int(summary["rounds"]), run.load_checkpoint(STAGE).vector
    server.events.stage_started(STAGE, rounds, rounds)
    artifact_binding.keep_rows(run, STAGE)
    audits = ClientAudits(server, STAGE, SAMPLING[STAGE], samples)
    measured = audits.ask_again(served, rounds, vector)
    judged = audits.judge([r for r in served if r.id in measured], vector, server.initial_vector(STAGE))
    requests.judge_again(rounds, judged)
    artifact_binding.seal(run)
    requests.close(rounds)
    mark_superseded(run)
    for request_id, judgement in judged.items():
        server.events.note(f"request {request_id}: {judgement.outcome}, {judgement.why}")
    if missing := [r.id for r in served if r.id not in measured]:
        raise NotMeasured(f"not measured again: {', '.join(missing)}; the lines above say why. What was known stays")


def _requests(server: Server) -> LedgerRequests:
    """The requests of the run, to which none is added."""
    if server.config.unlearning.requests.policy == "nodes":
        return server.node_requests()
    return SimulatedRequests.of(server.config, server.run, server.holdings, NoRequests())
