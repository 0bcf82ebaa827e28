"""A federation that never had the demanded records, with which each model of an exact erasure is compared.

`python -m benchmarks.federated.never_saw RUN FOLDER` reads of a finished run its configuration, its demands, who took
part in which round and the hash of each model. For every demand it trains a federation from the model before any
training, in which the demanded records are in no round: without a server, without messages, and from none of the models
that the run stores. It ends with exit code 0 and `FOLDER/stages/never_saw.json` where all models are equal to the last
bit, else with exit code 1 and the first that is not.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from flwr.app import ArrayRecord

from benchmarks.federated.identity import NEVER_SAW, UNLEARN
from benchmarks.federated.serving import EQUAL
from oblivionis import seeds
from oblivionis.audits.replay import as_record, as_vector
from oblivionis.client.worker import Worker
from oblivionis.config import compose as configuration
from oblivionis.config.schema import Config
from oblivionis.erasure.exact_proof import exchanges, model_after, read_proof
from oblivionis.erasure.ledger import Ledger
from oblivionis.errors import OblivionisError, RunError
from oblivionis.models.aggregator import aggregator
from oblivionis.models.assembly import averaging
from oblivionis.models.update_bounds_settings import bounds_of
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import RunDirectory, part_hashes, vector_hash
from oblivionis.runs.updates import LABELS
from strategies import message_keys
from strategies.client_update import ClientUpdate


class Held(NamedTuple):
    """A round of training: its stage, its number, and the clients that took part in it."""

    stage: str
    number: int
    clients: Sequence[int]


def check(path: Path) -> int:
    """Compare every demand's model of a finished run, and its last one, with a federation that never had the records.

    Returns the number of demands. Raises RunError for a model that is another one or that the run's rounds do not lead
    to, and for a run without demands.
    """
    run = artifact_binding.opened(path)
    config = configuration.from_yaml(run.read_config(), run.config_place)
    proof, applied = read_proof(run), exchanges(run)
    if proof is None or not applied:
        raise RunError(f"{path}: it served no demand exactly: there is no model to compare")
    last = part_hashes(run.load_checkpoint(UNLEARN).vector, proof.shards)
    federation = _NeverSaw(config, run)
    for shard in range(proof.shards):
        own = {client for client in range(config.federation.clients) if proof.shard_of(client) == shard}
        expected = {line["round"]: model_after(line, shard, proof.shards) for line in applied}
        expected[federation.end] = last[shard]
        for number, model in federation.models(own):
            if expected.pop(number, model) != model:
                what = "the last model" if number == federation.end else f"the model after the demand of round {number}"
                what += f" of shard {shard}" if proof.shards > 1 else ""
                raise RunError(f"{path}: {what} is not that of a federation that never had the records")
            print(f"shard {shard}: round {number}, equal", flush=True)
        if expected:
            raise RunError(f"{path}: its metrics have no round {min(expected)} of {UNLEARN}, which served a demand")
    return len(applied)


class _NeverSaw:
    """The federation of a run, again and again without the records that had been demanded by then."""

    def __init__(self, config: Config, run: RunDirectory) -> None:
        self._config, self._worker = config, Worker(config)
        self._untrained = self._worker.flat.numpy()
        rows = [row for row in run.metrics() if row["evaluator"] == "federation" and row["stage"] in LABELS]
        self._rounds = [Held(r["stage"], r["round"], r["clients"].get(message_keys.TRAIN, ())) for r in rows]
        self._demands = [(r.served_round, r.client, r.record_ids) for r in Ledger(run.ledger_path) if r.served_round]
        self.end = 1 + max(held.number for held in self._rounds if held.stage == UNLEARN)

    def models(self, clients: Collection[int]) -> Iterator[tuple[int, str]]:
        """The hashes of the models that a shard of these clients has right after the exchange of each round of unlearn,
        and at last (`end`)."""
        own = [(number, ids) for number, client, ids in self._demands if client in clients]
        starts = sorted({1, *(number for number, _ in own)})
        for start, end in zip(starts, [*starts[1:], self.end + 1], strict=True):
            withheld = {record for number, ids in own if number <= start for record in ids}
            for number, model in self._trained(clients, withheld, end):
                if number >= start:
                    yield number, vector_hash(as_vector(model))

    def _trained(
        self, clients: Collection[int], withheld: Collection[str], end: int
    ) -> Iterator[tuple[int, ArrayRecord]]:
        """From before any training on: the models with which the rounds of unlearn before `end` begin, and the last."""
        worker, config = self._worker, self._config
        rule = aggregator(config, averaging(config.model, worker.flat.manifest))
        bounds = bounds_of(config, lambda c: len(worker.holding(c).records), worker.flat.size, reported=False)
        model, stage = as_record(self._untrained), self._rounds[0].stage
        for held in self._rounds:
            if held.stage != stage and config.strategy.server_state_from_finetune != "keep":
                rule.reset_state()
            stage = held.stage
            if stage == UNLEARN:
                if held.number >= end:
                    return
                yield held.number, model
            updates = [
                self._update(c, held, model, withheld) for c in held.clients if self._trains(c, clients, withheld)
            ]
            if updates := bounds.of_training(updates, model):
                rule.starts_from(model)
                model = rule.aggregate(model, updates)
        yield self.end, model

    def _trains(self, client: int, clients: Collection[int], withheld: Collection[str]) -> bool:
        """Whether a client is one of the shard's, and has a record left."""
        return client in clients and bool(self._worker.holding(client).select(withheld))

    def _update(self, client: int, held: Held, model: ArrayRecord, withheld: Collection[str]) -> ClientUpdate:
        """What a client makes of a model in a round, without the withheld records."""
        config = self._config
        vector, report = self._worker.finetune(
            client,
            as_vector(model),
            excluded=withheld,
            epochs=config.federation.local_epochs,
            proximal_mu=float(config.strategy.params.get(message_keys.PROXIMAL_MU.replace("-", "_"), 0.0)),
            seed=seeds.derive(config.seed, LABELS[held.stage], client, held.number),
        )
        return ClientUpdate(client, report.num_examples, as_record(vector), report.steps)


def main(source: Path, folder: Path) -> None:
    """Check the run `source` and write the result into `folder`."""
    began, place = time.perf_counter(), RunDirectory(folder)
    with place.lock():
        demands = check(source)
        summary = {"stage": NEVER_SAW, "rounds": demands, "seconds": time.perf_counter() - began}
        place.finish_stage(NEVER_SAW, {**summary, "metrics": {EQUAL: float(demands)}}, None)


if __name__ == "__main__":
    try:
        main(*map(Path, sys.argv[1:]))
    except OblivionisError as error:
        sys.exit(f"error: {error}")
