"""Whether the runs that are done at a time have enough memory together."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable

from rich.console import Console

from benchmarks.output.terminal import say
from oblivionis.config.schema import Config
from oblivionis.reports.format import bytes_text

_SAME = ("seed", "strategy", "output", "name", "tracking", "attack")
"""Keys of the configuration that change the estimate by nothing, or by next to nothing."""


def memory_key(config: Config) -> str:
    """What of a configuration its memory depends on: runs with the same are estimated once."""
    tree = {key: value for key, value in dataclasses.asdict(config).items() if key not in _SAME}
    return json.dumps(tree, sort_keys=True, default=str)


def warn_of_memory(configs: Iterable[Config], jobs: int, console: Console) -> None:
    """Tell where the `jobs` largest runs take more RAM together than this machine has free.

    A single run at a time checks its memory itself. A run whose memory cannot be estimated counts nothing.
    """
    if jobs == 1:
        return
    from oblivionis.models.hardware import Machine  # torch
    from oblivionis.server.preflight import estimated

    machine, known, sizes = Machine.here(), dict[str, int](), list[int]()
    for config in configs:
        if (key := memory_key(config)) not in known:
            need = estimated(config, machine)
            known[key] = 0 if isinstance(need, str) else need.ram
        sizes.append(known[key])
    together = list(itertools.accumulate(sorted(sizes, reverse=True)[:jobs], initial=0))
    if together[-1] <= machine.free_ram:
        return
    fitting = max(1, sum(size <= machine.free_ram for size in together) - 1)
    text = (
        f"warning: --jobs {jobs}: the memory may not do: {len(together) - 1} runs at a time take up to "
        f"{bytes_text(together[-1])} of {bytes_text(machine.free_ram)} free RAM; --jobs {fitting} takes up to "
        f"{bytes_text(together[fitting])}"
    )
    say(console, text, style="red")
