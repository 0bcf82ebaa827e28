"""A client's audit of its own records: it measures what the model still knows of them, and reports numbers only."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from oblivionis.client.worker import Worker
from oblivionis.config.schema import Config
from oblivionis.data.errors import DataError
from oblivionis.data.records import Corpus, Record
from oblivionis.data.twins import find_twins
from oblivionis.erasure.node_record_files import FACTS_FILE, read_references
from oblivionis.erasure.verification_evidence import ESTIMATED, Likelihood
from oblivionis.erasure.verification_rules import Thresholds, far_likelier
from oblivionis.errors import ClientError, OblivionisError
from oblivionis.measures import registry
from oblivionis.measures.assessor import Assessor
from oblivionis.measures.audit_numbers import (
    NAMES,
    REQUEST_EXPECTED,
    REQUEST_LIKELY,
    REQUEST_PROB,
    REQUEST_RECITED,
    REQUEST_ROUGE,
    REQUEST_SHORT,
    REQUEST_TWINS,
)

log = logging.getLogger("flwr")


def audit(
    worker: Worker,
    client: int,
    vector: np.ndarray,
    forget_ids: Collection[str],
    tombstones: Collection[str],
    folder: Path,
    samples: int | None = None,
) -> dict[str, float]:
    """Measure what a model knows of a client's records that are to be forgotten, and of those that it keeps.

    Parameters
    ----------
    worker : Worker
    client : int
    vector : array (n,)
        The global model, of S shards (S · n,).
    forget_ids, tombstones : collection of str
        Ids of the records to forget, and of those that are neither to be forgotten now nor kept.
    folder : Path
        The client's own.
    samples : int, optional
        Answers sampled to a question; None: as many as configured.

    Returns
    -------
    dict of str to float
        Over the records to forget: the means of ROUGE-L recall, in any script, and probability (`request_rouge`,
        `request_prob`; with records that nobody trains on also `request_expected`, the probability in a model that
        never saw them), how many are recited (`request_recited`), not recited and far likelier than that
        (`request_likely`), too short to tell (`request_short`), and held by records that it keeps as well
        (`request_twins`). What `evaluation.audit.profile` asks of both groups (TOFU's
        measures, leakage bounds, RULER's Lens 2, WikiMem where `<folder>/facts.jsonl` or the records state facts). How
        many records there are in each group, and how many evaluators failed (their reasons go to the client's own log).

    Raises
    ------
    ClientError
        When the client holds none of `forget_ids`, and for a model of another size: nothing is made of its shards.
    """
    size = worker.flat.size * worker.config.federation.shards
    if vector.size != size:
        raise ClientError(f"client {client} is to audit a model of {vector.size} numbers, the run's has {size}")
    records = worker.holding(client).records
    forget = tuple(r for r in records if r.id in forget_ids)
    retain = tuple(r for r in records if r.id not in forget_ids and r.id not in tombstones)
    if not forget:
        raise ClientError(f"client {client} holds none of the records that are to be audited")
    assessor = assessor_of(worker, forget, retain, folder, samples)
    measured = assessor.measure(vector, full=worker.config.evaluation.audit.profile == "full")
    for name, reason in measured.report.failed.items():
        log.warning("client %d: the audit goes without %s: %s", client, name, reason)
    rouge = assessor.recalls_in(measured.log)
    if missing := [r.id for r in forget if r.id not in rouge]:
        rouge |= assessor.recalls(vector, missing)
    return {
        **{name: float(value) for name, value in measured.metrics.items() if name in NAMES},
        **_of_request(assessor, Thresholds.of(worker.config.unlearning.requests), vector, forget, rouge),
        REQUEST_TWINS: float(len({twin.forget for twin in find_twins(forget, retain)})),
        "forget_records": float(len(forget)),
        "retain_records": float(len(retain)),
        "failed_evaluators": float(len(measured.report.failed)),
    }


def _of_request(
    assessor: Assessor,
    thresholds: Thresholds,
    vector: np.ndarray,
    forget: Sequence[Record],
    rouge: Mapping[str, float],
) -> dict[str, float]:
    """What the model recites of the records to forget, and how likely their answers are; rouge: recall by record."""
    ids = [r.id for r in forget]
    prob, expected = assessor.knowledge(vector, ids, rouge=False)["prob"], assessor.never_seen(vector, ids)
    units = assessor.units(ids)
    recited, short = thresholds.count(units, rouge)
    silent = [i for i in ids if not thresholds.is_recited(units[i], rouge[i])]
    likely = [i for i in silent if expected and far_likelier(Likelihood(prob[i], expected[i], ESTIMATED), prob[i])]
    return {
        REQUEST_ROUGE: float(np.mean([rouge[i] for i in ids])),
        # A model that computes no number any more knows nothing.
        REQUEST_PROB: float(np.nan_to_num([prob[i] for i in ids]).mean()),
        **(
            {REQUEST_EXPECTED: float(np.mean([expected[i] for i in ids])), REQUEST_LIKELY: float(len(likely))}
            if expected
            else {}
        ),
        REQUEST_RECITED: float(recited),
        REQUEST_SHORT: float(short),
    }


def assessor_of(
    worker: Worker, forget: tuple[Record, ...], retain: tuple[Record, ...], folder: Path, samples: int | None = None
) -> Assessor:
    """An assessor of these records; a faulty file of facts costs WikiMem and nothing else. samples: as in `audit`."""
    held = {"forget": forget, "retain": retain, "reference": _references(folder, (*forget, *retain))}
    sets = {name: records for name, records in held.items() if records}
    corpus = Corpus("node", (*forget, *retain), frozenset(r.id for r in forget), sets)
    settings = worker.config if samples is None else with_samples(worker.config, samples)
    facts = folder / FACTS_FILE
    names, served = registry.run_by_clients(), worker.served()
    try:
        config = _with_facts(settings, facts if facts.is_file() else None)
        return Assessor(served, corpus, config, names=names)
    except OblivionisError as error:
        if not facts.is_file():
            raise
        log.warning("the audit goes without WikiMem: %s", error)
        return Assessor(served, corpus, _with_facts(settings, None), names=names)


def _references(folder: Path, trained: Sequence[Record]) -> tuple[Record, ...]:
    """The client's records that nobody trains on, none where it has no such."""
    try:
        return read_references(folder, trained)
    except DataError:
        return ()


def with_samples(config: Config, samples: int) -> Config:
    """`config` with another number of sampled answers to a question."""
    leakage = replace(config.evaluation.leakage, samples=samples, full_samples=samples)
    return replace(config, evaluation=replace(config.evaluation, leakage=leakage))


def _with_facts(config: Config, facts: Path | None) -> Config:
    """`config` with WikiMem's subjects from the client's own file: a path of the server's means nothing here."""
    wikimem = replace(config.evaluation.wikimem, subjects=None if facts is None else str(facts))
    return replace(config, evaluation=replace(config.evaluation, wikimem=wikimem))
