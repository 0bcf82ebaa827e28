"""Forecast of a run's duration from the rounds and evaluations that were timed so far."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from oblivionis.config.schema import Config

NOTABLE = 600.0
"""Seconds; for a shorter run nothing is said of what takes its time."""


@dataclass(frozen=True)
class Plan:
    """What a run is going to do.

    rounds: of each stage, the stage `local` counts clients; weights: what such a round costs in rounds of training (1
    where nothing is said); light_evaluations: the smaller evaluations of each stage, before and between its rounds;
    full: how long the evaluation at a stage's end takes, in smaller ones, None where nothing is measured.
    """

    rounds: Mapping[str, int]
    light_evaluations: Mapping[str, int]
    full: float | None
    weights: Mapping[str, float] = field(default_factory=dict)


def plan(config: Config, rounds: Mapping[str, int], light: int, full: int) -> Plan:
    """The plan of a run with so many rounds of each stage, whose evaluations have the lengths `light` and `full`.

    light, full: in any unit, 0 where nothing is measured.
    """
    evaluation, federation = config.evaluation, config.federation
    light_evaluations = {}
    for stage, count in rounds.items():
        every = evaluation.every
        if stage != "unlearn" and evaluation.every_training is not None:
            every = evaluation.every_training
        between = (count - 1) // every if every else 0
        light_evaluations[stage] = 0 if stage == "local" or not light else between + evaluation.at_start
    together = federation.per_round
    weights = {"local": federation.rounds.local / together} if "local" in rounds else {}
    return Plan(dict(rounds), light_evaluations, full / light if light and full else None, weights)


@dataclass
class _Mean:
    total: float = 0.0
    count: float = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        self.total, self.count = self.total + value, self.count + weight

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None


class Forecast:
    """Forecast of the time left, in seconds, from the durations of what was done.

    A stage's next rounds are assumed to take as long as its earlier ones, or before its first as those of the stages
    before. The very first round, in which clients' processes start, counts only until there is another one.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._rounds = dict(plan.rounds)
        self._light_left = dict(plan.light_evaluations)
        self._ends = set(plan.rounds) if plan.full is not None else set[str]()
        self._of_stage: dict[str, _Mean] = defaultdict(_Mean)
        self._of_all, self._light, self._full = _Mean(), _Mean(), _Mean()
        self.timed = 0
        self._inside = 0.0
        self._spent_rounds = self._spent_evaluations = 0.0

    def skip(self, stage: str, rounds: int) -> None:
        """So many rounds of a stage were done in an earlier run of the program; with all of them the stage was."""
        planned = self._plan.rounds.get(stage, 0)
        self._rounds[stage] = max(0, planned - rounds)
        if rounds and planned:
            self._light_left[stage] = round(self._plan.light_evaluations.get(stage, 0) * self._rounds[stage] / planned)
        if not self._rounds[stage]:
            self._ends.discard(stage)

    def finished(self, stage: str) -> None:
        """Nothing of the stage is left."""
        self._rounds[stage] = self._light_left[stage] = 0
        self._ends.discard(stage)

    def round(self, stage: str, seconds: float) -> None:
        """A round is over, `seconds` with the evaluations in it."""
        own, self._inside = max(0.0, seconds - self._inside), 0.0
        self.timed += 1
        self._spent_rounds += own
        if self.timed == 2:
            self._of_stage.clear()
            self._of_all = _Mean()
        self._of_stage[stage].add(own)
        self._of_all.add(own, self._plan.weights.get(stage, 1.0))
        self._rounds[stage] = max(0, self._rounds.get(stage, 0) - 1)

    def evaluation(self, stage: str, seconds: float, *, full: bool, inside: bool) -> None:
        """An evaluation is over, with the full or the smaller profile; inside: its time is a part of its round's."""
        self._spent_evaluations += seconds
        if inside:
            self._inside += seconds
        if full:
            self._full.add(seconds)
            self._ends.discard(stage)
        else:
            self._light.add(seconds)
            self._light_left[stage] = max(0, self._light_left.get(stage, 0) - 1)

    def rounds_left(self) -> float | None:
        """Of training and unlearning; None before the first round."""
        if self._of_all.mean is None:
            return 0.0 if not any(self._rounds.values()) else None
        left = 0.0
        for stage, count in self._rounds.items():
            own = self._of_stage[stage].mean
            left += count * (self._of_all.mean * self._plan.weights.get(stage, 1.0) if own is None else own)
        return left

    def evaluations_left(self) -> float | None:
        """Of all evaluations; None before one was timed."""
        lights, ends, ratio = sum(self._light_left.values()), len(self._ends), self._plan.full
        if ratio is None or not (lights or ends):
            return 0.0
        light, full = self._light.mean, self._full.mean
        if light is None and full is None:
            return None
        light = (full or 0.0) / ratio if light is None else light
        return lights * light + ends * (light * ratio if full is None else full)

    def left(self) -> float | None:
        """Of everything with a forecast; None before the first round."""
        rounds = self.rounds_left()
        return None if rounds is None else rounds + (self.evaluations_left() or 0.0)

    def spent(self) -> str:
        """What rounds and evaluations took so far, in words; empty before any of them is over."""
        found = (("rounds", self._spent_rounds), ("evaluations", self._spent_evaluations))
        return ", ".join(f"{name} {duration(seconds)}" for name, seconds in found if seconds)

    def sentence(self, waited: float = 0.0) -> str:
        """What the rest will take, in words; empty before the first round.

        waited: seconds since the last round or evaluation that was timed; they are no longer left.
        """
        rounds, evaluations = self.rounds_left(), self.evaluations_left()
        if rounds is None:
            return ""
        if not (rounds or evaluations or evaluations is None):
            return ""
        if evaluations is None and not any(self._rounds.values()):
            return "evaluations are left, of which none was timed yet"
        left = rounds + (evaluations or 0.0) - waited
        about = f"about {duration(left)} left" if left > 0 or not waited else "longer than foretold"
        if evaluations is None:
            return f"{about}, evaluations not counted"
        of = min(evaluations, left)
        return f"{about}, {duration(of)} of them evaluations" if of > 0 else about

    def advice(self) -> str:
        """What to turn down where evaluations will take longer than training, in a long run; else empty."""
        rounds, evaluations = self.rounds_left(), self.evaluations_left()
        if rounds is None or evaluations is None or evaluations <= rounds or rounds + evaluations < NOTABLE:
            return ""
        light = sum(self._light_left.values()) * (self._light.mean or 0.0)
        keys = (
            "fewer with a larger evaluation.every (and evaluation.every_training)"
            if light > evaluations / 2
            else "shorter with evaluation.full.questions_per_set, evaluation.leakage.full_samples or "
            "evaluation.full.max_new_tokens"
        )
        return f"evaluations will take {duration(evaluations)}, longer than training ({duration(rounds)}): {keys}"


def duration(seconds: float) -> str:
    """A time in words, for a person."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
