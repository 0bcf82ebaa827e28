"""The unlearning losses of the program by name: functions of plain tensors, to be used in a training loop of your own.

`get("npo").function(log_p, reference_log_p, beta=0.1)` is a scalar to minimise; `get` also takes the path of a Python
file, as the setting `unlearning` of a run does.
"""

from __future__ import annotations

from clients.losses import Method, get, names

__all__ = ["Method", "get", "names"]
