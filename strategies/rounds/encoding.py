"""The form in which models and updates travel: whole, compressed, or as submodels of clients with lower LoRA ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flwr.app import ArrayRecord

from strategies.submodel import Fitting, Submodel


class Encoding(ABC):
    """What clients receive in place of the global model, and how their replies become models again."""

    @property
    def decodes(self) -> bool:
        """Whether replies have to be decoded; if not, `read` returns them as they are."""
        return True

    def submodels(self, kind: str, model: ArrayRecord, clients: Iterable[int]) -> Mapping[int, Submodel]:
        """Submodels of the clients that do not receive the global model itself; by default there are none.

        Parameters
        ----------
        kind : str
            Kind of exchange, as `Listener.exchange_started` names it.
        model : ArrayRecord
            The global model.
        clients : iterable of int
            The clients that are addressed.

        Returns
        -------
        mapping of client to Submodel
        """
        return {}

    @abstractmethod
    def read(self, sent: ArrayRecord, answer: ArrayRecord) -> ArrayRecord:
        """Decode the client's model from its reply.

        Parameters
        ----------
        sent : ArrayRecord
            The model that the client received.
        answer : ArrayRecord
            Its reply.

        Returns
        -------
        ArrayRecord
            In the form of `sent`, if the reply is valid.

        Raises
        ------
        ValueError
            If the reply cannot be decoded; the message says why.
        """


class FullModels(Encoding):
    """The global model goes out, and clients send models of the same form."""

    @property
    def decodes(self) -> bool:
        """Never."""
        return False

    def read(self, sent: ArrayRecord, answer: ArrayRecord) -> ArrayRecord:
        """The reply itself is the client's model."""
        return answer


@dataclass(frozen=True)
class FittedModels(Encoding):
    """Some clients receive submodels that fit their LoRA ranks.

    Attributes
    ----------
    fitting : Fitting
        Which clients receive a submodel, such as `strategies.rules.lora_ranks.LoraRanks`.
    replies : Encoding
        How replies are decoded, each by the submodel that its client received.
    """

    fitting: Fitting
    replies: Encoding

    @property
    def decodes(self) -> bool:
        """As `replies`."""
        return self.replies.decodes

    def submodels(self, kind: str, model: ArrayRecord, clients: Iterable[int]) -> Mapping[int, Submodel]:
        """The clients' submodels by `fitting`; see `Encoding.submodels`."""
        of_client = self.fitting(kind, model)
        return {client: own for client in clients if (own := of_client(client)) is not None}

    def read(self, sent: ArrayRecord, answer: ArrayRecord) -> ArrayRecord:
        """Decode the client's submodel from its reply by `replies`; see `Encoding.read`."""
        return self.replies.read(sent, answer)
