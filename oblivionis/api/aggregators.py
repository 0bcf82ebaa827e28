"""The aggregators of the program by name: Flower strategies, to be used alone or inside `FedTU`.

`names()` lists them; `build("fednova", fraction_train=0.5)` makes one. A `ServerStep` of your own overrides `step`, or
`combine` where the weighted mean of the clients' models is not enough.
"""

from __future__ import annotations

from strategies.client_update import ClientUpdate
from strategies.rules.factory import build, names
from strategies.rules.server_step import ServerStep

__all__ = ["ClientUpdate", "ServerStep", "build", "names"]
