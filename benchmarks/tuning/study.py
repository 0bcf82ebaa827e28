"""Optuna's part: which values come next, which trials are not worth finishing, the journal that remembers them.

Trials are drawn by TPE with a seed of their own each, made of the tuning's seed, the method and the trial's number:
with one job at a time a resumed study draws what one that was not stopped would have drawn. A trial is stopped where
its distance after a round, from the middle of the rounds on, lies in the largest quarter of all trials' at that round.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from benchmarks.tuning.space import Dimension
from oblivionis import seeds
from oblivionis.errors import RunError

JOURNAL = "optuna.journal"
RANDOM_TRIALS = 5
"""Trials that are drawn at random before the sampler learns from them, and that finish before any is stopped."""
KEPT = 75.0
"""Per cent of the trials, after the same round, that a trial must be among to go on."""
SPENT = (TrialState.COMPLETE, TrialState.PRUNED)
UNTUNED, SPACE = "untuned", "space"
CONSTRAINT = "utility"


class Search:
    """The study of one method in the journal of a tuning's folder. Raises RunError where its space was another one."""

    def __init__(self, folder: Path, method: str, space: Sequence[Dimension], seed: int, rounds: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", module="optuna")
        self._method, self._seed = method, seed
        self.distributions = {dimension.path: distribution(dimension) for dimension in space}
        self.study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(folder / JOURNAL))),
            study_name=method,
            load_if_exists=True,
            direction="minimize",
            pruner=optuna.pruners.PercentilePruner(KEPT, n_startup_trials=RANDOM_TRIALS, n_warmup_steps=rounds // 2),
        )
        wanted = {dimension.path: dimension.plain() for dimension in space}
        before = self.study.user_attrs.get(SPACE)
        if before is None:
            self.study.set_user_attr(SPACE, wanted)
        elif before != wanted:
            differing = [path for path in {**before, **wanted} if before.get(path) != wanted.get(path)]
            raise RunError(
                f"{folder}: {method} was searched in another space ({', '.join(differing)}); choose another --output"
            )

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """The trials in these states, by number; the untuned settings are none of them."""
        return [t for t in self.study.get_trials(deepcopy=False, states=states or None) if UNTUNED not in t.user_attrs]

    @property
    def spent(self) -> int:
        """Trials that count: those that finished, and those that were not worth it."""
        return len(self.trials(*SPENT))

    def ask(self) -> FrozenTrial:
        """A new trial with its values."""
        number = len(self.study.get_trials(deepcopy=False))
        seed = seeds.derive(self._seed, "tuning", self._method, number) % 2**32
        self.study.sampler = optuna.samplers.TPESampler(n_startup_trials=RANDOM_TRIALS, seed=seed)
        return self._of(self.study.ask(self.distributions).number)

    def report(self, number: int, server_round: int, value: float) -> bool:
        """Tell the distance after a round; whether the trial should be stopped."""
        trial = self._open(number)
        if server_round not in self._of(number).intermediate_values:
            trial.report(value, server_round)
        return trial.should_prune()

    def complete(self, number: int, judged: Mapping[str, Any]) -> None:
        """The trial finished: `judged` has its distance, by how much it falls short of the utility, and what else."""
        trial = self._open(number)
        trial.set_constraint(CONSTRAINT, judged["violation"])
        for name, entry in judged.items():
            trial.set_user_attr(name, entry)
        self.study.tell(number, judged["distance"])

    def prune(self, number: int, judged: Mapping[str, Any]) -> None:
        """The trial was stopped."""
        for name, entry in judged.items():
            self._open(number).set_user_attr(name, entry)
        self.study.tell(number, state=TrialState.PRUNED)

    def fail(self, number: int, reason: str) -> None:
        """The trial broke off; it does not count."""
        self._open(number).set_user_attr("error", reason)
        self.study.tell(number, state=TrialState.FAIL)

    def learn(self, values: Mapping[str, Any], judged: Mapping[str, Any], curve: Mapping[int, float]) -> None:
        """Let the sampler know of the untuned settings, if they lie in the space; once."""
        known = [t for t in self.study.get_trials(deepcopy=False) if UNTUNED in t.user_attrs]
        if known or not all(_holds(self.distributions[path], values.get(path)) for path in self.distributions):
            return
        self.study.add_trial(
            optuna.trial.create_trial(
                value=judged["distance"],
                params={path: values[path] for path in self.distributions},
                distributions=dict(self.distributions),
                user_attrs={UNTUNED: True, **judged},
                intermediate_values=dict(curve),
                constraints={CONSTRAINT: judged["violation"]},
            )
        )

    def _of(self, number: int) -> FrozenTrial:
        return next(t for t in self.study.get_trials(deepcopy=False) if t.number == number)

    def _open(self, number: int) -> Trial:
        return Trial(self.study, self._of(number)._trial_id)


def distribution(dimension: Dimension) -> BaseDistribution:
    """A dimension as Optuna has it."""
    if dimension.choices:
        return CategoricalDistribution(dimension.choices)
    assert dimension.low is not None and dimension.high is not None
    if dimension.whole:
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def _holds(distribution: BaseDistribution, value: Any) -> bool:
    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return False
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    return distribution.low <= value <= distribution.high
