"""Measure the served requests of a finished run again, with more samples: no stage runs, and no request is made."""

from __future__ import annotations

from oblivionis.config.schema import Config
from oblivionis.erasure.hidden_requests import seals
from oblivionis.erasure.ledger import Ledger, NoRequests
from oblivionis.erasure.record_holders import LedgerRequests, SimulatedRequests
from oblivionis.errors import NotMeasured, RunError
from oblivionis.measures.audit_numbers import read_audit
from oblivionis.reports.certificate.signing import mark_superseded
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import RunDirectory
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
        As `check_again`.
    NotMeasured
        Where a client did not measure: what it measured before stays.
    """
    run, config = server.run, server.config
    check_again(run, config, samples)
    summary = run.stage_summary(STAGE) or {}
    requests = _requests(server)
    served = requests.served_so_far()
    rounds, vector = int(summary["rounds"]), run.load_checkpoint(STAGE).vector
    which = ", ".join(r.id for r in served)
    server.events.note(f"measuring the final model again, {samples} answers to a question: {which}")
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


def check_again(run: RunDirectory, config: Config, samples: int) -> None:
    """RunError for a run whose clients do not keep their records, or where the server sees no request; for one without
    a finished stage unlearn, one that has served no request, and where no more than before would be sampled."""
    if not config.data.on_clients or seals(config):
        how = "request audit --node-dir DIR ID" if seals(config) else "audit leakage RUN"
        raise RunError(f"{run.path}: no client measures for its server; use `oblivionis {how}`")
    if STAGE not in config.stages:
        raise RunError(
            f"{run.path}: it has no stage {STAGE}, so that it served no request: there is nothing to measure"
        )
    if run.stage_summary(STAGE) is None:
        raise RunError(f"{run.path}: the stage {STAGE} is unfinished; oblivionis simulate --resume {run.path}")
    served = [r for r in Ledger(run.ledger_path) if r.served_round is not None]
    if not served:
        raise RunError(f"{run.path}: it has served no request, there is nothing to measure")
    audits = {r.id: read_audit(run.path, r.id) or {} for r in served}
    most = max(int(audit.get("final", {}).get("leakage_samples", 0)) for audit in audits.values())
    if samples <= most:
        raise RunError(f"samples={samples}: {most} were drawn before; give more, fewer would hide what those showed")


def _requests(server: Server) -> LedgerRequests:
    """The requests of the run, to which none is added."""
    if server.config.unlearning.requests.policy == "nodes":
        return server.node_requests()
    return SimulatedRequests.of(server.config, server.run, server.holdings, NoRequests())
