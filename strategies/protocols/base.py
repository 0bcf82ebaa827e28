"""How FedTU serves deletion requests: by what the asking clients unlearn, or by erasing them from the past rounds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from strategies import message_keys
from strategies.arrays import Mean, merged
from strategies.client_update import ClientUpdate
from strategies.privacy.private_mean import PrivateMean
from strategies.protocols.update_history import History, RoundUpdates
from strategies.replies import ReplyCheck
from strategies.rules.server_step import ServerStep

Train = Callable[[Sequence[int], ArrayRecord, Mapping[str, Any]], list[ReplyCheck]]
"""Sends a model with further settings to these clients as ordinary training; their judged replies."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A good answer of a client that was asked to forget.

    `arrays`: its model φ_u, None where none comes back; `num_records`: how many records it forgets; `metrics`: the
    numbers that it tells.
    """

    client: int
    arrays: ArrayRecord | None
    num_records: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Served:
    """The new global model; what is noted about each client that was served; why others were not."""

    arrays: ArrayRecord
    info: Mapping[int, Mapping[str, float]]
    refused: Mapping[int, str]


class UnlearningProtocol(ABC):
    """What FedTU asks of a way to serve requests. `history`, if any, remembers the updates of each FedFT exchange."""

    message_type: ClassVar[str] = message_keys.UNLEARN
    """How the asking clients are addressed."""
    models_travel: ClassVar[bool] = True
    """Whether they receive the global model and send one back."""

    def __init__(self, history: History | None = None) -> None:
        self._history = history

    @property
    def privately(self) -> bool:
        """Whether `serve_privately` can be called: it takes no single client's model."""
        return False

    def beside(self, asking: Collection[int]) -> dict[str, ArrayRecord]:
        """Further records for the clients that ask."""
        return {}

    @abstractmethod
    def serve(self, server_round: int, arrays: ArrayRecord, answers: Sequence[Answer], train: Train) -> Served:
        """The global model after a FedTU exchange. `arrays`: the one before; `answers`: one at least, by client;
        `train`: reaches clients for further training.
        """

    def serve_privately(
        self, server_round: int, arrays: ArrayRecord, answers: Sequence[Answer], private: PrivateMean, *, asked: int
    ) -> Served:
        """As `serve`, with the answers' updates merged by `private`; `asked`: how many clients were addressed."""
        raise NotImplementedError(f"{type(self).__name__} goes by single clients' models")

    def after_training(self, server_round: int, before: ArrayRecord, after: ArrayRecord) -> ArrayRecord:
        """The global model after a FedFT exchange that made `after` of `before`."""
        return after

    def state_dict(self) -> dict[str, np.ndarray]:
        """What must last beyond a round; it goes into checkpoints."""
        return {}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from what `state_dict` gave. Raises ValueError for a state where there is none."""
        if state:
            raise ValueError(f"{type(self).__name__} cannot load a state ({sorted(state)})")

    def remember(
        self,
        server_round: int,
        sent: ArrayRecord,
        state: Mapping[str, np.ndarray],
        updates: Sequence[ClientUpdate],
    ) -> None:
        """Note a FedFT exchange: the model `sent`, the aggregator's `state` then, and the accepted `updates`."""
        if self._history is not None:
            self._history.record(RoundUpdates(self._history.stage, server_round, sent, state, updates))


class ByUnlearning(UnlearningProtocol):
    """The asking clients run an unlearning method (message type `train.unlearn`).

    One answer φ_u becomes the global model bit for bit; several are merged as φ + Σ w_u (φ_u − φ), w_u being the share
    of the records that client u forgets (Oblivionis eq. 6), or by `mean` with these weights. With `summed`, w_u is 1:
    each client's records move all of their way, not their share of it, which takes clients that stop where they should;
    for `mean`, φ itself is one more model then, with the weight 1 − K beside K answers.

    That is so beside every aggregator, also those that stand liars (median, trimmed mean, Krum): they drop what few
    clients send, and what an unlearned model has forgotten no other one has. A request would be noted as served whose
    model was dropped. What holds a liar back here is `strategies.rounds.update_bounds`: an impossible update is
    refused, and its requests stay pending.
    """

    def __init__(self, mean: Mean | None = None, history: History | None = None, *, summed: bool = False) -> None:
        super().__init__(history)
        self._mean, self._summed = mean, summed

    @property
    def privately(self) -> bool:
        """With nothing to remember: a history keeps what single clients sent."""
        return self._history is None

    def serve_privately(
        self, server_round: int, arrays: ArrayRecord, answers: Sequence[Answer], private: PrivateMean, *, asked: int
    ) -> Served:
        """φ plus the sum of the clipped updates with noise, or their mean. All of them count alike: how many records a
        client forgets is its own affair."""
        models = [answer.arrays for answer in answers if answer.arrays is not None]
        new = private.unlearn(server_round, arrays, models, clients=asked, summed=self._summed)
        return Served(new, {answer.client: answer.metrics for answer in answers}, {})

    def serve(self, server_round: int, arrays: ArrayRecord, answers: Sequence[Answer], train: Train) -> Served:
        models = [answer.arrays for answer in answers if answer.arrays is not None]
        if len(models) == 1:
            new = ArrayRecord({name: models[0][name] for name in arrays})
        else:
            total = sum(answer.num_records for answer in answers)
            weights = [1.0 if self._summed else answer.num_records / total for answer in answers]
            if self._summed and self._mean is not None:
                models, weights = [arrays, *models], [1.0 - len(models), *weights]
            new = merged(arrays, models, weights, self._mean)
        return Served(new, {answer.client: answer.metrics for answer in answers}, {})


@dataclass(frozen=True, kw_only=True)
class ProtocolContext:
    """What a run has for the protocol that serves its requests.

    `inner`: the aggregator; `mean`: how it averages models, None: number by number; `history`: what is kept of past
    rounds, None where nothing is; `summed`: as `ByUnlearning` has it; `able`: the clients that may train now;
    `per_round`: how many of them train in a round of FedFT; `local_epochs`: for how long; `seed`: the run's.

    `initial`: the model before any training. `layer_of`: the layer of each number of the model (n,), from 0.
    `first_layers`: which numbers (n,), bool, change the sign of what the first so many decoder layers have learned when
    theirs is changed; it raises ValueError where the model has fewer, or nothing to train in them.
    """

    inner: ServerStep
    mean: Mean | None = None
    history: History | None = None
    summed: bool = False
    able: Callable[[], Sequence[int]]
    per_round: int
    local_epochs: int
    seed: int
    initial: Callable[[], ArrayRecord]
    layer_of: Callable[[], NDArray[np.integer]]
    first_layers: Callable[[int], NDArray[np.bool_]]

    @property
    def kept(self) -> History:
        """The history, for a protocol that declares `UPDATES`. Raises ValueError where nothing is kept."""
        if self.history is None:
            raise ValueError("no updates of the clients are kept")
        return self.history
