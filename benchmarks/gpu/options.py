"""What a run of the kit was asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """device: cpu or cuda; tiny: shapes so small that a CPU core runs all of it within a minute; tofu: folder of TOFU's
    JSON lines; beside: a `gpu.json` whose seconds are written next to these."""

    device: str = "cuda"
    tiny: bool = False
    tofu: str | None = None
    beside: str | None = None

    @property
    def on_gpu(self) -> bool:
        """Whether the models lie on a GPU."""
        return self.device != "cpu"
