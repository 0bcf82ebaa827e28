"""The server's side of a run: the stages finetune, retrain, unlearn and local, one after another, resumable."""

from __future__ import annotations

from pathlib import Path

from evaluation.engine.progress import watched
from evaluation.metrics.rouge import ANY_SCRIPT
from oblivionis.config import dataset_traits
from oblivionis.config.compose import to_tree
from oblivionis.config.schema import Config
from oblivionis.data.twins import left_out
from oblivionis.erasure import lineage
from oblivionis.erasure.ledger import Schedule
from oblivionis.erasure.retained_twins import note_twins, scheduled_in_words
from oblivionis.errors import RunError
from oblivionis.measures.muse import prompts
from oblivionis.measures.ruler import paired_models
from oblivionis.measures.ruler.oracles import find_oracles
from oblivionis.naming import BASE
from oblivionis.reports.request_figures import write_request_figures
from oblivionis.reports.verdicts import write_verdicts
from oblivionis.runs import artifact_binding
from oblivionis.runs.ancestry import LINEAGE_FILE, Descent, begun_with, descents, note_descent, of_base, read_lineage
from oblivionis.runs.directory import vector_hash
from oblivionis.runs.duration_forecast import plan
from oblivionis.runs.failed_evaluators import warn
from oblivionis.runs.reuse import import_stages
from oblivionis.runs.tracking import follow
from oblivionis.server.local_training import run_local
from oblivionis.server.round_settings import shards_in_words
from oblivionis.server.run_context import Server
from oblivionis.server.stage import Stage

NO_QUESTIONS = (
    "the clients keep their records (data=node), and data.path names no questions of the server's own: nothing is "
    "measured here, only on the clients that ask to forget"
)
OWN_QUESTIONS = "the clients keep their records (data=node): what is measured here are the questions of data.path"


def planned_rounds(config: Config) -> dict[str, int]:
    """Rounds of every stage of `config`; the stage `local` counts its clients."""
    rounds = {s: getattr(config.federation.rounds, s) for s in config.stages}
    if "local" in rounds:
        rounds["local"] = min(config.federation.local_clients or config.federation.clients, config.federation.clients)
    return rounds


def run_stages(server: Server) -> None:
    """Run every stage that is not finished yet, one after another."""
    tracking = follow(server.run, server.config.tracking, to_tree(server.config), server.events.warning)
    try:
        with watched(server.events.measuring):
            _run_stages(server)
    finally:
        tracking.close()


def _run_stages(server: Server) -> None:
    config, run, events = server.config, server.run, server.events
    effort = {full: 0 if server.assessor.empty else server.assessor.effort(full=full) for full in (False, True)}
    events.planned(plan(config, planned_rounds(config), effort[False], effort[True]))
    _check_start(server)
    artifact_binding.start(run)
    if config.start_from:
        import_stages(config, run, server.fingerprint, events)
    note_descent(run, _of_base(server))
    server.open_account()
    if server.shards is not None:
        events.note(shards_in_words(server.shards, config))
    _tell_of_data(server)
    _check_ruler(server)
    if config.evaluation.base and run.stage_summary(BASE) is None and not server.assessor.empty:
        _measure_base(server)
    for stage in config.stages:
        if run.stage_summary(stage) is not None:
            events.note(f"{stage}: finished earlier")
            rounds = planned_rounds(config)[stage]
            events.stage_started(stage, rounds, rounds)
            if stage == "unlearn" and config.unlearning.requests.policy == "nodes":
                server.node_requests().tell_again(rounds)
            continue
        if stage == "local":
            run_local(server)
        else:
            Stage(server, stage).execute()
    write_verdicts(run, config.evaluation.truth_ratio)
    write_request_figures(run)
    artifact_binding.seal(run)
    _register(server)


def _check_start(server: Server) -> None:
    """Refuse to begin with a model that is retired, and tell once which demands it still knows the records of."""
    config, key, folder = server.config, "model", server.run.path.parent
    begun = _of_base(server)
    if config.start_from:
        source = artifact_binding.opened(Path(config.start_from).expanduser(), with_models=False)
        key, folder, begun = "start_from", source.path.parent, descents(source).get("finetune")
    if begun is None:
        return
    lineage.require_used(folder, begun.model, key)
    if begun_with(server.run) is not None:
        return
    models = lineage.models_in(folder)
    found = models.of(begun.model)
    if models.unread:
        server.events.warning(f"{key}: {models.unread}")
    scheduled = server.policy.requests if isinstance(server.policy, Schedule) else ()
    told = config.unlearning.requests.policy == "nodes" and "unlearn" in config.stages
    remedy = "their nodes are told again" if told else "serve them here, too (`oblivionis model list` shows whose)"
    served_here = [name for request in scheduled for name in (request.id, request.group)]
    if found is not None and (line := lineage.open_line(found, remedy, served_here)):
        (server.events.note if told else server.events.warning)(f"{key}: {line}")


def _of_base(server: Server) -> Descent | None:
    """What the model comes of that the run begins with, where others made that: an adapter by its own weights.

    RunError for an adapter whose `lineage.json` is of other weights.
    """
    config = server.config
    descent = of_base(config)
    if config.model.adapter is None or config.model.mode != "lora":
        return descent
    adapter, here = Path(config.model.adapter).expanduser(), vector_hash(server.assembled.flat.numpy())
    if (said := read_lineage(adapter)) is None:
        known = lineage.models_in(server.run.path.parent).of(here)
        return descent if known is None else known.descent.and_of(descent)
    if said.model != here:
        raise RunError(
            f"model.adapter: {adapter / LINEAGE_FILE} is of another model ({said.model[:12]}) than the weights beside "
            f"it ({here[:12]}): export the adapter again, or take the file away"
        )
    return descent


def _register(server: Server) -> None:
    """Note beside the runs which models this one made of another's, so that one that vanishes is missed."""
    folder = server.run.path.parent
    if (begun := begun_with(server.run)) is None:
        return
    known = {line["model"] for line in lineage.registered(folder) if line["event"] == lineage.MADE}
    for stage, descent in descents(server.run).items():
        if descent.model not in {*known, begun.model}:
            lineage.register(folder, lineage.MADE, descent, stage=stage)


def _measure_base(server: Server) -> None:
    """The metrics of the model that nobody has trained, kept like those of a stage without rounds."""
    run, events = server.run, server.events
    if not artifact_binding.begin(run, server.config, BASE):
        artifact_binding.resume(run, BASE, 0)
    events.evaluating("base model")
    measured = server.assessor.measure(server.start_vector, full=True)
    run.append_metrics(measured.rows(BASE, 0, "end"))
    events.evaluated(0, "base model", measured.metrics, measured.seconds)
    warn(events, measured.report.failed)
    facts = {"stage": BASE, "rounds": 0, "seconds": measured.seconds, "seed": server.config.seed}
    summary = {**facts, "fingerprint": server.fingerprint, **measured.facts}
    artifact_binding.finish_stage(run, BASE, summary, measured.log)


def _tell_of_data(server: Server) -> None:
    """What a user should know of data that are no questions, or not trained on."""
    assessor, data = server.assessor, server.config.data
    if server.remote:
        server.events.note(NO_QUESTIONS if assessor.empty else OWN_QUESTIONS)
    if assessor.is_text:
        server.events.note(prompts.LEFT_OUT)
    if server.config.evaluation.rouge == ANY_SCRIPT:
        server.events.note("ROUGE goes by words of every script (evaluation.rouge=any_script), not by the paper's")
    if (withheld := assessor.withheld) and dataset_traits.of(data.name).withholds:
        server.events.note(
            f"{withheld} records of {data.holdout_authors} authors are withheld from all training (holdout)"
        )
    if not server.remote:
        lines = [note_twins(server.run, assessor.corpus).warning(), *left_out(assessor.corpus)]
        if isinstance(server.policy, Schedule):
            lines.append(scheduled_in_words(assessor.corpus, server.policy.requests))
        for line in filter(None, lines):
            server.events.warning(line)


def _check_ruler(server: Server) -> None:
    """Refuse, before anything runs, what RULER could not compare later; tell what will be left out."""
    for warning in () if server.remote else server.assessor.warnings():
        server.events.warning(warning)
    if "unlearn" in server.config.stages and server.run.stage_summary("unlearn") is None:
        paired_models.check_pair(server.run, server.config, server.fingerprint)
        server.oracles = find_oracles(server.run, server.config, server.fingerprint)
