"""How deletion requests are served: by the clients' own unlearning, or with what the server stores.

A protocol is a module of this package that defines `build(context, **params)`: from what the run offers
(`strategies.protocols.base.ProtocolContext`) and `unlearning.params` it makes an `UnlearningProtocol`. The YAML file of
the same name in `conf/unlearning/` has the parameters with their defaults. Where there is also a loss of that name
(`clients.losses`), the asking clients minimise it, and both are given the parameters. Where there is none, the clients
only exclude their records from training (`message_type = message_keys.BURY`).

Further literals of the file are read without importing it:

- `LABEL`: the name in tables; `LIMITS`: the ranges of the parameters, which may be in the loss's file instead;
- `UPDATES`: which rounds of clients' updates must be stored: `"all"`, or `"newest"`, that of every checkpoint that a
  run may continue from; `"models"`: all rounds, each with its model and the aggregator's state, without updates;
- `REPLAYS = True`: past rounds are held again. Clients are then drawn from all that ever had a record, and those that
  have none left sit their rounds out;
- `OTHERS = True`: clients that do not ask train for it, too, and it needs each one's update;
- `REFERENCE = True`: the asking clients start from the model of those that do not ask, which is sent with the global
  one (`message_keys.REFERENCE`);
- `NOT_WITH`: what it cannot be combined with, and why, a sentence by name: `ranks`, `compression`,
  `asynchronous_rounds`, `secure_sums`, `client_privacy`, `record_privacy`, `sampling_by_records`,
  `reset_after_unlearning`, `requests_in_a_row`, `shards`. Without being named, a protocol that has
  no loss or needs single updates goes with neither secure sums nor `client_privacy`, and one that needs single updates
  goes with no asynchronous rounds.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from strategies.protocols.base import ByUnlearning, ProtocolContext, UnlearningProtocol


def names() -> list[str]:
    """Names of all protocols.

    Returns
    -------
    list of str, sorted
    """
    return sorted(name for _, name, _ in pkgutil.iter_modules(__path__) if _builder(name) is not None)


def build(name: str, context: ProtocolContext, **params: Any) -> UnlearningProtocol:
    """Make the protocol of an unlearning method.

    Parameters
    ----------
    name : str
        The method.
    context : ProtocolContext
    **params
        Its parameters, `unlearning.params`.

    Returns
    -------
    UnlearningProtocol
        `ByUnlearning` where there is no protocol of that name: the server need not know the clients' loss.

    Raises
    ------
    ParameterError
        If a parameter does not fit the model.
    ValueError
        If a parameter is out of range, or the protocol needs stored updates and there are none.
    """
    builder = _builder(name) if name in names() else None
    if builder is None:
        return ByUnlearning(context.mean, context.history, summed=context.summed)
    return builder(context, **params)


def _builder(name: str) -> Callable[..., UnlearningProtocol] | None:
    """The function `build` of the module of this name; None where it has none, as the helpers here."""
    return vars(importlib.import_module(f"{__name__}.{name}")).get("build")
