"""What FedTU asks of the strategy that it wraps, with a default for each."""

from __future__ import annotations

from flwr.app import ArrayRecord

from strategies import message_keys
from strategies.stateful import Stateful


class ServerRule(Stateful):
    """A strategy as FedTU sees it: the names of its records, its sampling, and its state.

    The defaults are those of a strategy that names and remembers nothing. Aggregators override them by `ServerStep`;
    `strategies.rounds.strategy_proxy.ForeignStrategy` reads those of any other Flower strategy.

    Attributes
    ----------
    arrayrecord_key, configrecord_key : str
        Names of the records in a message.
    weighted_by_key : str
        The metric that weights a reply.
    needs_steps : bool
        Whether every reply must report the number of local steps, above 0.
    can_reset : bool
        Whether `reset_state` drops what is remembered.
    min_train_nodes, min_available_nodes : int
        Fewest clients that are sampled for training, and that must be available before.
    fraction_evaluate : float in [0, 1]
        Share of the available clients that evaluate in a round.
    """

    arrayrecord_key: str = message_keys.ARRAYS
    configrecord_key: str = message_keys.CONFIG
    weighted_by_key: str = message_keys.NUM_EXAMPLES
    needs_steps: bool = False
    can_reset: bool = False
    min_train_nodes: int = 1
    min_available_nodes: int = 1
    fraction_evaluate: float = 1.0

    def reset_state(self) -> None:
        """Drop what is remembered, if `can_reset`: the next aggregation is as the first."""

    def refresh_copies(self, arrays: ArrayRecord) -> None:
        """Take `arrays` as the current model, which another step made; by default no copy of it is kept."""
