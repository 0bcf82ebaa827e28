"""Whether clients mask their models: the server then learns the sum of their updates alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from flwr.app import ArrayRecord, Message

from strategies.secure.server import Summed


class Masking(ABC):
    """What the server sees of the models that come back in an exchange."""

    @property
    @abstractmethod
    def sums(self) -> bool:
        """Whether models come back as one sum, and not one by one."""

    def sum_up(
        self,
        kind: str,
        messages: Sequence[Message],
        sent: ArrayRecord,
        timeout: float,
        *,
        one_each: bool = False,
        committed: bool = False,
    ) -> Summed:
        """Hold an exchange as a secure sum; by default there is none.

        Parameters
        ----------
        kind : str
            Kind of exchange, as `Listener.exchange_started` names it.
        messages : sequence of Message
        sent : ArrayRecord
            The model that the clients start from.
        timeout : float
            Seconds for the stage in which clients train.
        one_each : bool
            Every update counts 1, or 0 for a client that only covers others.
        committed : bool
            Leave out clients that send no commitment.

        Returns
        -------
        Summed
            With a `fault` where there is no sum.

        Raises
        ------
        NotImplementedError
            If models come back one by one.
        """
        raise NotImplementedError(f"{type(self).__name__} makes no sums")


class Unmasked(Masking):
    """The server sees each client's model."""

    @property
    def sums(self) -> bool:
        """Never."""
        return False
