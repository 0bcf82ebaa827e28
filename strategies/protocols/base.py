"""How FedTU serves deletion requests: the interface of protocols, and the one without server state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

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
from strategies.stateful import Stateful

Train = Callable[[Sequence[int], ArrayRecord, Mapping[str, Any]], list[ReplyCheck]]
"""(Clients, model, further settings of the message) → their checked replies to a message of ordinary training."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A valid reply of a client that asked to forget.

    Attributes
    ----------
    client : int
        Its partition id.
    arrays : ArrayRecord or None
        Its unlearned model φ_u; None where the protocol has no model sent back.
    num_records : int, at least 1
        How many records it forgets.
    metrics : mapping of float
        The numbers that it reports.
    """

    client: int
    arrays: ArrayRecord | None
    num_records: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Served:
    """Outcome of a FedTU exchange.

    Attributes
    ----------
    arrays : ArrayRecord
        The new global model; the old one if nobody was served.
    info : mapping of client to mapping of float
        Metrics of each client that was served.
    refused : mapping of client to str
        Why the others were not.
    """

    arrays: ArrayRecord
    info: Mapping[int, Mapping[str, float]]
    refused: Mapping[int, str]

    @classmethod
    def everyone(
        cls, arrays: ArrayRecord, answers: Sequence[Answer], work: Mapping[str, float] = MappingProxyType({})
    ) -> Served:
        """All clients were served.

        Parameters
        ----------
        arrays : ArrayRecord
            The new global model.
        answers : sequence of Answer
        work : mapping of float, optional
            Metrics of the server's own work, added to those of each client.

        Returns
        -------
        Served
        """
        return cls(arrays, {answer.client: {**answer.metrics, **work} for answer in answers}, {})

    @classmethod
    def nobody(cls, arrays: ArrayRecord, answers: Sequence[Answer], reason: str) -> Served:
        """All clients were refused.

        Parameters
        ----------
        arrays : ArrayRecord
            The global model, which stays as it is.
        answers : sequence of Answer
        reason : str

        Returns
        -------
        Served
        """
        return cls(arrays, {}, {answer.client: reason for answer in answers})


class UnlearningProtocol(Stateful, ABC):
    """A way to serve deletion requests. What must last beyond a round goes through `state_dict` into checkpoints.

    Parameters
    ----------
    history : History, optional
        Remembers the updates of each FedFT exchange; None: nothing is remembered.
    """

    message_type: str = message_keys.UNLEARN
    """Type of the message to the clients that ask."""
    models_travel: bool = True
    """Whether they receive the global model and send one back."""

    def __init__(self, history: History | None = None) -> None:
        self._history = history

    @property
    def privately(self) -> bool:
        """Whether `serve_privately` can be called: the protocol needs no single client's model."""
        return False

    def further_records(self, asking: Collection[int]) -> dict[str, ArrayRecord]:
        """Records that go to the asking clients in addition to the global model; by default none.

        Parameters
        ----------
        asking : collection of int
            The clients that ask.

        Returns
        -------
        dict of ArrayRecord, by record name
        """
        return {}

    @abstractmethod
    def serve(self, server_round: int, arrays: ArrayRecord, answers: Sequence[Answer], train: Train) -> Served:
        """Make the global model after a FedTU exchange.

        Parameters
        ----------
        server_round : int
        arrays : ArrayRecord
            The global model before it.
        answers : sequence of Answer, by client
            At least one.
        train : Train
            Lets clients train further.

        Returns
        -------
        Served
        """

    def serve_privately(
        self, server_round: int, arrays: ArrayRecord, answers: Sequence[Answer], private: PrivateMean, *, asked: int
    ) -> Served:
        """As `serve`, with the updates merged with differential privacy; possible where `privately` is true.

        Parameters
        ----------
        server_round, arrays, answers
            As in `serve`.
        private : PrivateMean
            Merges the updates.
        asked : int
            Number of clients that were addressed, also of those that did not answer.

        Returns
        -------
        Served

        Raises
        ------
        NotImplementedError
            If the protocol needs single clients' models.
        """
        raise NotImplementedError(f"{type(self).__name__} goes by single clients' models")

    def after_training(self, server_round: int, before: ArrayRecord, after: ArrayRecord) -> ArrayRecord:
        """Correct the result of a FedFT exchange; by default it stays as it is.

        Parameters
        ----------
        server_round : int
        before, after : ArrayRecord
            The global model before and after the exchange.

        Returns
        -------
        ArrayRecord
            The global model to continue with.
        """
        return after

    def remember(
        self,
        server_round: int,
        sent: ArrayRecord,
        state: Mapping[str, np.ndarray],
        updates: Sequence[ClientUpdate],
    ) -> None:
        """Enter a FedFT exchange into the history, if there is one.

        Parameters
        ----------
        server_round : int
        sent : ArrayRecord
            The model that the clients started from.
        state : mapping of arrays
            The aggregator's `state_dict` at that time.
        updates : sequence of ClientUpdate
            The valid ones.
        """
        if self._history is not None:
            self._history.record(RoundUpdates(self._history.stage, server_round, sent, state, updates))


class ByUnlearning(UnlearningProtocol):
    """The asking clients run an unlearning method (message type `train.unlearn`); the server merges their models.

    One unlearned model φ_u becomes the global model bit for bit (Oblivionis eq. 6, which has one asking client).
    Several are merged as φ + Σ w_u (φ_u − φ), w_u being client u's share of the records that are forgotten. With
    `summed` w_u is 1, so that each update counts in full; that takes clients that stop unlearning where they should.

    Parameters
    ----------
    mean : Mean, optional
        Takes the weighted mean of the models in place of that formula. With `summed` the global model itself is one
        more model, of weight 1 − K, in addition to K unlearned ones. None: number by number.
    history : History, optional
        As `UnlearningProtocol`.
    summed : bool
        Whether updates are added up, and not averaged.

    Notes
    -----
    Robust aggregators (median, trimmed mean, Krum) are not used here: they drop what few clients send, and no other
    model has forgotten the records, so that a request would be reported as served whose model was dropped. Malicious
    replies are limited by `strategies.rounds.update_bounds`: an impossible update is refused, and its requests stay
    pending.
    """

    def __init__(self, mean: Mean | None = None, history: History | None = None, *, summed: bool = False) -> None:
        super().__init__(history)
        self._mean, self._summed = mean, summed

    @property
    def privately(self) -> bool:
        """Only without a history, which stores single clients' updates."""
        return self._history is None

    def serve_privately(
        self, server_round: int, arrays: ArrayRecord, answers: Sequence[Answer], private: PrivateMean, *, asked: int
    ) -> Served:
        """The global model plus the noised sum or mean of the clipped updates; see the base class.

        All updates count the same: how many records a client forgets is not revealed.
        """
        models = [answer.arrays for answer in answers if answer.arrays is not None]
        new = private.unlearn(server_round, arrays, models, clients=asked, summed=self._summed)
        return Served.everyone(new, answers)

    def serve(self, server_round: int, arrays: ArrayRecord, answers: Sequence[Answer], train: Train) -> Served:
        """Merge the unlearned models; `train` is not called. See `UnlearningProtocol.serve`."""
        models = [answer.arrays for answer in answers if answer.arrays is not None]
        if len(models) == 1:
            return Served.everyone(ArrayRecord({name: models[0][name] for name in arrays}), answers)
        total = sum(answer.num_records for answer in answers)
        weights = [1.0 if self._summed else answer.num_records / total for answer in answers]
        if self._summed and self._mean is not None:
            models, weights = [arrays, *models], [1.0 - len(models), *weights]
        return Served.everyone(merged(arrays, models, weights, self._mean), answers)


@dataclass(frozen=True, kw_only=True)
class ProtocolContext:
    """What a run offers to the protocol that serves its requests.

    Attributes
    ----------
    inner : ServerStep
        The aggregator.
    mean : Mean, optional
        How it averages models; None: number by number.
    history : History, optional
        What is stored of past rounds; None: nothing.
    summed : bool
        As in `ByUnlearning`.
    able : callable () -> sequence of int
        The clients that may train now.
    per_round : int, at least 1
        How many of them train in a round of FedFT.
    local_epochs : int, at least 1
        For how many epochs each.
    seed : int
        The run's.
    initial : callable () -> ArrayRecord
        The model before any training.
    layer_of : callable () -> array (n,), int
        The layer of each of the model's n numbers, from 0.
    labels : mapping of str
        The label of a stage's seeds, by the name that the history has for the stage.
    carries_on : bool
        Whether a stage begins with the aggregator's state of the one before.
    first_layers : callable (int) -> array (n,), bool
        Which numbers to negate, so that what the first so many decoder layers have learned changes its sign. Raises
        ValueError where the model has fewer layers, or nothing to train in them.
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
    labels: Mapping[str, str] = field(default_factory=dict)
    carries_on: bool = False

    @property
    def kept(self) -> History:
        """The history, for a protocol that declares `UPDATES`.

        Raises
        ------
        ValueError
            If there is none.
        """
        if self.history is None:
            raise ValueError("no updates of the clients are kept")
        return self.history
