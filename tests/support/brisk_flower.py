"""Runs first in Flower's processes of a deployment in tests: the same program, but it waits for shorter times.

Heartbeats are due every 10 s instead of 30, so that who vanished is missed after 20 s instead of a minute. A SuperNode
without work asks for some after a second instead of three.
"""

import os
import sys
import time
import types

INTERVAL_S, IDLE_S = 10, 1.0
_PROGRAM = os.path.basename([*sys.orig_argv, "", ""][1])


def shorten() -> None:
    """In modules that are loaded and in those that will be."""
    import flwr.common.constant

    named = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "flwr"]
    for module in {flwr.common.constant, *named}:
        if getattr(module, "HEARTBEAT_DEFAULT_INTERVAL", None) is not None:
            module.HEARTBEAT_DEFAULT_INTERVAL = INTERVAL_S
    if _PROGRAM == "flower-supernode":
        from flwr.supernode import start_client_internal

        brisk = types.SimpleNamespace(**vars(time))
        brisk.sleep = lambda seconds: time.sleep(min(seconds, IDLE_S))
        start_client_internal.time = brisk


_OF_A_NODE = os.environ.get("OBLIVIONIS_TEST_NAME", "").startswith("node")
"""Client processes are forked from one without a program's name; the SuperNode expects their heartbeats as often."""

if _PROGRAM in ("flower-superlink", "flower-supernode", "flwr-serverapp") or _OF_A_NODE:
    shorten()
