"""How deletion requests are served: by the clients' own unlearning, or with what the server keeps.

A protocol is a module of this package that defines `build(context, **params)`: from what the run has
(`strategies.protocols.base.ProtocolContext`) and `unlearning.params` it makes an `UnlearningProtocol`. The YAML file of
the same name in `conf/unlearning/` has the parameters with their defaults. Where there is a loss of the name, too
(`clients.losses`), the asking clients minimise it, and both are given the parameters; where there is none, the clients
only bury their records (`message_type = message_keys.BURY`).

Literals tell more of it without importing it:

- `LABEL`: what people call it; `LIMITS`: between what the parameters may lie. Where there is a loss, they may stand
  in its file;
- `UPDATES`: which rounds of clients' updates must be kept for it: `"all"`, or `"newest"`, that of every checkpoint that
  a run may continue from;
- `OTHERS = True`: clients that do not ask train for it, too, and it goes by each one's update;
- `REFERENCE = True`: the asking clients start from the model of those that do not ask, which it sends beside the global
  one (`message_keys.REFERENCE`);
- `NOT_WITH`: what else it does not go with, and why, a sentence by name: `ranks`, `compression`, `asynchronous_rounds`,
  `secure_sums`, `client_privacy`, `requests_in_a_row`. Without a word no protocol goes with secure sums and
  `client_privacy` that has no loss or goes by single updates, and none with asynchronous rounds that goes by them.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from strategies.protocols.base import ByUnlearning, ProtocolContext, UnlearningProtocol


def names() -> list[str]:
    """The names of all protocols, sorted."""
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in modules if hasattr(_module(name), "build"))


def build(name: str, context: ProtocolContext, **params: Any) -> UnlearningProtocol:
    """The protocol `name`; `ByUnlearning` where there is none, as of every loss that the server needs not know.

    Raises ParameterError where a parameter does not go with the model.
    """
    if name not in names():
        return ByUnlearning(context.mean, context.history, summed=context.summed)
    return _module(name).build(context, **params)


def _module(name: str) -> Any:
    return importlib.import_module(f"{__name__}.{name}")
