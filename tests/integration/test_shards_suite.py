"""A suite of federations in shards: merges share their training, and each exact erasure is compared with a federation
that never had the records."""

from __future__ import annotations

import pytest
from support.stages import execute

from benchmarks import suite_kinds as suites
from benchmarks.federated import collecting, graph, never_saw
from oblivionis.client.worker import Worker
from oblivionis.config import compose as configuration
from oblivionis.errors import RunError
from oblivionis.runs.directory import RunDirectory

SUITE = """
kind: federated
experiment: smoke
against_never_saw: true
base:
  federation: {clients: 6, fraction_train: 0.7, local_epochs: 1, rounds: {finetune: 3, retrain: 3, unlearn: 3}}
  data: {authors: 8, questions_per_author: 2, forget_authors: 3}
  unlearning.requests.policy: random_client_per_round
  evaluation:
    {every: 0, every_training: 0, at_start: false, base: true, after_unlearn: false}
  evaluation.rebound.enabled: false
  evaluation.ruler.enabled: false
  evaluation.wikimem.enabled: false
matrix:
  seed: [0]
  served:
    - {label: mean, unlearning: exact, federation.shards: 2}
    - {label: stack, unlearning: exact, federation.shards: 2, federation.shard_merge: stack}
    - {label: ensemble, unlearning: exact, federation.shards: 2, federation.shard_merge: ensemble}
"""
UNTIMED = ("seconds", "serving_seconds", "serving_processor_seconds", "bytes_sent", "bytes_received", "serving_bytes")


def done(folder, name, *overrides):
    """The rows of a suite whose runs are done in this process, its graph, which of them trained, and where they lie."""
    file = folder / f"{name}.yaml"
    file.write_text(SUITE)
    settings = suites.load(file, overrides)[1]
    cells, store, trained = settings.cells(), folder / f"{name}-runs", []
    plan = graph.plan(cells, against_never_saw=True)
    for node in plan.nodes:
        node.task(store).prepare()
        if node.checked is not None:
            never_saw.main(node.checked.run(store).path, node.run(store).path)
            continue
        run = RunDirectory.open(node.run(store).path)
        events, _ = execute(configuration.from_yaml(run.read_config()), run)
        assert node.finished(store), events.warnings
        trained += [node.label] * bool(events.trained)
    table = collecting.collect(settings.axes(), cells, plan, store, folder, {})
    return table.to_pylist(), plan, trained, store


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return done(tmp_path_factory.mktemp("shared"), "shared")


def test_the_merges_of_one_federation_are_trained_once(shared):
    _, plan, trained, _ = shared
    assert [node.stage for node in plan.nodes].count("unlearn") == 3
    assert trained == ["retrain seed=0/served=mean", "unlearn seed=0/served=mean"]


def test_the_model_of_every_demand_is_that_of_a_federation_that_never_had_the_records(shared):
    rows, plan, *_ = shared
    assert [node.stage for node in plan.nodes].count("never_saw") == 1
    equal = {row["served"]: row["value"] for row in rows if row["metric"] == "equal_to_never_saw"}
    assert equal == {"mean": 3.0, "stack": 3.0, "ensemble": 3.0}


def test_a_model_that_saw_the_records_is_found(shared, monkeypatch):
    _, plan, _, store = shared
    (run,) = [node.checked.run(store).path for node in plan.nodes if node.checked is not None]
    trained = Worker.finetune
    monkeypatch.setattr(Worker, "finetune", lambda *args, **more: trained(*args, **{**more, "excluded": ()}))
    with pytest.raises(
        RunError, match=r"the model after the demand of round \d of shard \d is not that of a federation"
    ):
        never_saw.check(run)


def test_a_demand_whose_round_the_run_does_not_name_is_not_counted(shared, monkeypatch):
    _, plan, _, store = shared
    (run,) = [node.checked.run(store).path for node in plan.nodes if node.checked is not None]
    lines = never_saw.exchanges(RunDirectory(run))
    monkeypatch.setattr(never_saw, "exchanges", lambda _: [*lines, {**lines[-1], "round": 99}])
    with pytest.raises(RunError, match="no round 99 of unlearn"):
        never_saw.check(run)


@pytest.mark.parametrize("merge", ["stack", "ensemble"])
def test_a_merge_that_shares_has_the_numbers_of_a_run_of_its_own(shared, tmp_path, merge):
    served = (
        f"matrix.served=[{{label: {merge}, unlearning: exact, federation.shards: 2, federation.shard_merge: {merge}}}]"
    )
    alone, _, trained, _ = done(tmp_path, "alone", served)
    assert len(trained) == 2

    def values(rows):
        mine = [row for row in rows if row["served"] == merge and not row["metric"].startswith(UNTIMED)]
        return {(row["stage"], row["metric"]): (row["value"], row["error"]) for row in mine}

    assert values(shared[0]) == values(alone) and len(values(alone)) > 30
