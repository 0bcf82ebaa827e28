"""A model in each state, and what every metric says of it."""

from __future__ import annotations

import copy
import dataclasses
import random

import numpy as np

from benchmarks.meta.metrics import JUDGES
from benchmarks.meta.models import measured
from evaluation.engine.quantise import QUANTISERS, quantise_merged
from evaluation.ruler.evaluator import References
from oblivionis import seeds
from oblivionis.audits.attack_questions import Battery
from oblivionis.audits.attacks.relearn import RETAIN, relearnt, unrelated
from oblivionis.client.worker import Worker
from oblivionis.measures import registry
from oblivionis.measures.assessor import Assessor
from oblivionis.models.assembly import assemble

_JUDGED = {registry.evaluator_of(judge.key) for judge in JUDGES}
EVALUATORS = tuple(name for name in registry.names() if name in _JUDGED)


class Measurer:
    """Measures global vectors of one federation, all in one form: adapters merged into the base model.

    So a quantised model, which has no adapters, is one more vector of all weights. Metrics that need a retrained model
    take `oracle`; RULER's S_shift begins at `original`, the model that knows. Both as global vectors of `worker`.
    """

    def __init__(self, worker: Worker, original: np.ndarray, oracle: np.ndarray) -> None:
        config, corpus = worker.config, measured(worker.corpus)
        self._config = config
        self._battery = Battery(worker.assembled, corpus, config)
        self._unrelated = unrelated(self._battery, random.Random(seeds.derive(config.seed, "attack", "relearn")))
        self._adapted = assemble(config.model, seeds.derive(config.seed, "adapter"))
        whole = dataclasses.replace(config, model=dataclasses.replace(config.model, mode="full"), strict=True)
        assembled = assemble(whole.model, 0)
        self._names = assembled.flat.names
        self._assessor = Assessor(assembled, corpus, whole, assembled.flat.numpy(), EVALUATORS)
        found = self._assessor.measure(self.weights(oracle, "plain"), full=True)
        self._log = found.log
        self._references = None
        if found.embedded is not None:
            self._references = References(self._assessor.embed(self.weights(original, "plain")), found.embedded)

    def weights(self, vector: np.ndarray, state: str) -> np.ndarray:
        """All weights (n,) of the model of a global vector in a state of `models.STATES`, float32."""
        quantiser = QUANTISERS[self._config.attack.quantisers[0]] if state == "quantised" else lambda weight: weight
        if state == "relearned":
            (vector,) = relearnt(self._battery, RETAIN, self._unrelated, vector).values()
        self._adapted.flat.load(vector)
        parts = dict(quantise_merged(copy.deepcopy(self._adapted.model), quantiser).named_parameters())
        return np.concatenate([parts[name].detach().numpy().ravel() for name in self._names])

    def measure(self, vector: np.ndarray, state: str) -> dict[str, float]:
        """Every metric of the model of a global vector in a state, by name; one that is undefined is absent."""
        found = self._assessor.measure(
            self.weights(vector, state), full=True, oracle=self._log, references=self._references
        )
        return found.metrics
