"""The settings of FedTU that are plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from strategies.metric_schema import Numbers
from strategies.privacy.private_mean import PrivateMean
from strategies.rounds.client_sampling import Sampling
from strategies.rounds.compression import Compression
from strategies.rounds.model_versions import Buffer
from strategies.rounds.simulated_durations import Durations
from strategies.rounds.update_bounds import Bounds
from strategies.secure.terms import SecureSettings
from strategies.submodel import Fitting


@dataclass(frozen=True, slots=True)
class Options:
    """How FedTU goes about a stage.

    `seed`, `stage`: with the round they seed the sampling, so that every run samples the same partitions; both go into
    the config of each message.
    `unlearn_config`: further settings for the messages to clients that ask to forget.
    `server_state_on_unlearn`: `reset` calls `inner.reset_state()` after each FedTU exchange that served a request.
    `extra_rounds`: at most so many rounds are added while requests are pending after the last planned round.
    `numbers`: by kind of exchange, which numbers are taken of replies, `strategies.metric_schema.NUMBERS` say; of a
    kind that is not named all are.
    `bounds`: what a single client may count at most; None: whatever it sends and tells.
    `secure`: how FedFT and FedTU exchanges are held as secure sums (`strategies.secure`), in which `bounds` see nobody;
    None: models come back one by one.
    `cover`: with `secure`, to how many clients a FedTU exchange goes; those that ask for nothing send a masked zero.
    `cover_each`: what several clients unlearn counts in full for each, not by the records that they forget.
    `private_mean`: makes one update of those of an exchange, with differential privacy; None: there is none. Updates
    shortened by the median of all (`bounds.max_update_norm`) would each depend on every client: ValueError.
    `deadline`: a FedFT exchange goes on with the answers that came in so many seconds; FedTU exchanges do not.
    `oversample`: of a FedFT exchange for m clients ⌈m · oversample⌉ are asked, and m answers waited for.
    `durations`: a simulated clock takes the place of the machine's; None: there is none.
    `buffer`: rounds are asynchronous (`strategies.rounds.buffered.BufferedFedTU`); None: they are not.
    `fitting`: which clients receive the model in a form of their own, `strategies.rules.lora_ranks.LoraRanks` say. Not
    with `secure`: models of several forms have no sum (ValueError).
    `compression`: how clients may send what they learned (`strategies.rounds.compression`); None: as models alone. Not
    with `secure` either.
    `sampling`: which clients fine-tune in a round, as many as the strategy within would take; None: it draws them
    itself. One that gives weights of its own is a ValueError beside `secure` and `private_mean`, where nobody sees
    single clients' updates.
    `available_within`: how long a client may take to answer whether it is there, in seconds.
    """

    seed: int = 0
    stage: str = "train"
    unlearn_config: Mapping[str, Any] = field(default_factory=dict)
    server_state_on_unlearn: Literal["keep", "reset"] = "keep"
    extra_rounds: int = 0
    numbers: Mapping[str, Numbers] = field(default_factory=dict)
    bounds: Bounds | None = None
    secure: SecureSettings | None = None
    cover: int = 0
    cover_each: bool = False
    private_mean: PrivateMean | None = None
    deadline: float | None = None
    oversample: float = 1.0
    durations: Durations | None = None
    buffer: Buffer | None = None
    fitting: Fitting | None = None
    compression: Compression | None = None
    sampling: Sampling | None = None
    available_within: float = 30.0

    def __post_init__(self) -> None:
        if self.cover and self.secure is None:
            raise ValueError("cover takes secure aggregation: without it a zero is seen to be one")
        if self.buffer is not None and (self.fitting is not None or self.compression is not None):
            raise ValueError(
                "asynchronous rounds (buffer) take models of one form (fitting) that travel whole (compression)"
            )
        if self.fitting is not None and self.secure is not None:
            raise ValueError("models of several forms (fitting) have no sum under masks (secure)")
        if self.compression is not None and self.secure is not None:
            raise ValueError("updates of fewer numbers or bits (compression) have no sum under masks (secure)")
        if (value := self.server_state_on_unlearn) not in ("keep", "reset"):
            raise ValueError(f"server_state_on_unlearn is {value!r}, expected 'keep' or 'reset'")
        hidden = self.secure is not None or self.private_mean is not None
        if hidden and self.sampling is not None and self.sampling.weighs:
            raise ValueError(f"{type(self.sampling).__name__} weighs single clients' updates: no sum of them will do")
        if self.private_mean is not None and self.bounds is not None and self.bounds.max_update_norm is not None:
            raise ValueError("private_mean clips each update by itself: set bounds.max_update_norm to None")
        if (self.deadline is not None and not self.deadline > 0) or not 1 <= self.oversample < math.inf:
            raise ValueError(f"expected deadline > 0 and oversample >= 1, got {self.deadline} and {self.oversample}")
        if self.one_by_one and self.secure is not None:
            raise ValueError("a secure sum is held with all its clients: no deadline, oversample, durations or buffer")
        if self.buffer is not None and (self.hurried or self.private_mean is not None):
            raise ValueError("asynchronous rounds have no deadline, oversample or private_mean")
        if self.sampling is not None and (self.buffer is not None or self.oversample > 1):
            raise ValueError(
                "asynchronous rounds, and the further clients of oversample, are drawn uniformly: no sampling"
            )
        if self.private_mean is not None and self.oversample > 1:
            raise ValueError("private_mean takes all that were drawn: who is fast must not decide who counts")

    @property
    def hurried(self) -> bool:
        """Whether synchronous rounds may go on without clients that are slow."""
        return self.deadline is not None or self.oversample > 1

    @property
    def one_by_one(self) -> bool:
        """Whether answers are taken as they come."""
        return self.hurried or self.durations is not None or self.buffer is not None
