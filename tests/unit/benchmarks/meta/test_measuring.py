"""One federation: its averaging, and its models' states beside the audit's own attacks."""

import numpy as np
import pytest
from support.meta_suite import TINY

from benchmarks import suite_kinds as suites
from benchmarks.meta.federation import fedavg
from benchmarks.meta.measuring import Measurer
from benchmarks.meta.models import training_records
from oblivionis import seeds
from oblivionis.audits.attack_questions import Battery
from oblivionis.audits.attacks import quantise, relearn
from oblivionis.client.worker import Worker
from oblivionis.measures.assessor import Assessor
from oblivionis.models.assembly import assemble

SUITE = suites.FOLDER / "metrics_meta.yaml"


def worker_of(*overrides):
    _, settings = suites.load(SUITE, [*TINY, *overrides])
    return Worker(settings.configuration(1))


@pytest.fixture(scope="module")
def trained():
    """A worker, and what it makes of all records in four rounds."""
    worker = worker_of("base.federation.rounds.finetune=4", "base.attack.relearn.steps=[3]")
    base = worker.flat.numpy()
    return worker, base, fedavg(worker, base, worker.corpus.train, "judged")


def test_one_clients_average_is_its_own_training():
    worker = worker_of("base.federation.clients=1")
    base, held = worker.flat.numpy(), worker.partition.clients[0]
    found = fedavg(worker, base, worker.corpus.train, "judged")
    worker = worker_of("base.federation.clients=1")
    assert sorted(held) == list(range(len(worker.corpus.train)))
    own = seeds.derive(1, "judged", 0, 0)
    alone, _ = worker.finetune(0, base, excluded=(), epochs=1, proximal_mu=0.0, seed=own)
    assert (found == alone).all() and (found != base).any()


def test_a_client_without_a_record_sits_out(trained):
    worker, base, _ = trained
    first, second = worker.partition.clients
    records = [r if place in first else None for place, r in enumerate(worker.corpus.train)]
    found = fedavg(worker, base, records, "judged")
    assert second and (found != base).any()
    assert (fedavg(worker, base, [None] * len(records), "judged") == base).all()


def test_models_are_those_of_records_and_label(trained):
    worker, base, vector = trained
    assert (fedavg(worker, base, worker.corpus.train, "judged") == vector).all()
    assert (fedavg(worker, base, worker.corpus.train, "oracle") != vector).any()
    assert (fedavg(worker, base, training_records(worker.corpus, "never_saw"), "judged") != vector).any()


@pytest.mark.slow
def test_the_states_are_those_of_the_attacks(trained):
    worker, base, vector = trained
    measurer = Measurer(worker, vector, base)
    found = {state: measurer.measure(vector, state) for state in ("plain", "quantised", "relearned")}
    battery = Battery(worker.assembled, worker.corpus, worker.config)
    (quantised,), (relearned, _) = quantise.make(battery), relearn.make(battery)
    for state, attack in (("quantised", quantised), ("relearned", relearned)):
        rows = attack.run(vector)
        assert found[state]["forget_prob"] == pytest.approx(np.mean([row["prob"] for row in rows]), abs=1e-4)
        assert found[state]["forget_rouge"] == pytest.approx(np.mean([row["rouge"] for row in rows]), abs=1e-4)
        assert abs(found[state]["forget_prob"] - found["plain"]["forget_prob"]) > 1e-4
    adapted = Assessor(
        assemble(worker.config.model, seeds.derive(1, "adapter")), worker.corpus, worker.config, names=("tofu",)
    )
    plain = adapted.measure(vector, full=True).metrics
    for metric in ("forget_prob", "retain_prob", "forget_exact_memorization"):
        assert found["plain"][metric] == pytest.approx(plain[metric], abs=1e-4)
