"""How FedTU serves deletion requests: by what the asking clients unlearn, or by erasing them from the past rounds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from flwr.app import ArrayRecord

from strategies import message_keys
from strategies.arrays import Mean, merged
from strategies.client_update import ClientUpdate
from strategies.privacy.private_mean import PrivateMean
from strategies.protocols.federaser import FedEraser, Train
from strategies.protocols.update_history import History, RoundUpdates, mean_of_others


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


class PGAProtocol(ByUnlearning):
    """As `ByUnlearning`; the asking clients also receive the mean of the other clients' newest models (PGA's w_ref)."""

    def __init__(self, history: History, mean: Mean | None = None, *, summed: bool = False) -> None:
        super().__init__(mean, history, summed=summed)
        self._past = history

    def beside(self, asking: Collection[int]) -> dict[str, ArrayRecord]:
        """The model of the clients that do not ask."""
        return {message_keys.REFERENCE: mean_of_others(self._past, asking, self._mean)}


class FedEraserProtocol(UnlearningProtocol):
    """The asking clients only bury their records (message type `query.bury`); `eraser` rebuilds the model without them.

    Its history remembers the updates.
    """

    message_type = message_keys.BURY
    models_travel = False

    def __init__(self, eraser: FedEraser) -> None:
        super().__init__(eraser.history)
        self._eraser = eraser

    def serve(self, server_round: int, arrays: ArrayRecord, answers: Sequence[Answer], train: Train) -> Served:
        erasure = self._eraser.erase(server_round, arrays, [answer.client for answer in answers], train)
        served = [answer for answer in answers if answer.client not in erasure.refused]
        info = {answer.client: {**answer.metrics, **erasure.info} for answer in served}
        return Served(erasure.arrays, info, erasure.refused)
