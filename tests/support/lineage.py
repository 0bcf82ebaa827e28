"""Runs as they lie in a folder, by what their ledgers say of their models and demands."""

import hashlib

from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import Request
from oblivionis.erasure.verification_rules import Judgement
from oblivionis.runs.ancestry import note_descent
from oblivionis.runs.directory import RunDirectory


def hashed(name):
    return hashlib.sha256(name.encode()).hexdigest()


def lineage_run(folder, name, stages, *, begun=None, requests=(), policy="nodes"):
    """`stages`: by stage the models of its rounds; `requests`: by demand what it came to."""
    run = RunDirectory(folder / name)
    run.path.mkdir(parents=True)
    run.write_config(f"stages: [finetune, unlearn]\nunlearning:\n  requests:\n    policy: {policy}\n")
    run.note("stage", run=name, stage="finetune", text="")
    note_descent(run, begun)
    ledger = Ledger(run.ledger_path)
    for stage, rounds in stages.items():
        for number, model in enumerate(rounds, start=1):
            rows = {"bytes": 0, "sha256": hashed("")}
            run.note("checkpoint", stage=stage, round=number, file=hashed(f"f{model}"), model=hashed(model), rows=rows)
        place = run.path / "checkpoints" / stage
        place.mkdir(parents=True)
        (place / f"round-{len(rounds):04d}.safetensors").write_bytes(b"")
        run.finish_stage(stage, {"stage": stage, "rounds": len(rounds), "metrics": {}}, None)
    for demand, outcome in requests:
        ledger.submit(Request(demand, 0, (f"r{demand}",), 1, told=demand if policy == "nodes" else ""))
        if outcome != "open":
            ledger.served(demand, 1)
            ledger.verified(demand, 2, Judgement(outcome, "why", 0.1), 0.5)
    return run
