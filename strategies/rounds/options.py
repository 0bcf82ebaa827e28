"""Settings of FedTU that are plain values."""

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
from strategies.secure.agreed_parameters import SecureSettings
from strategies.submodel import Fitting


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of FedTU for one stage.

    Attributes
    ----------
    seed, stage : int, str
        With the round they seed the sampling, so that every run samples the same partitions; both go into the config of
        each message.
    unlearn_config : mapping
        Further settings for the messages to clients that ask to forget.
    server_state_on_unlearn : {"keep", "reset"}
        `reset` calls `inner.reset_state()` after each FedTU exchange that served a request for the first time.
    extra_rounds : int
        At most so many rounds are added while requests are pending after the last planned round.
    numbers : mapping
        By kind of exchange, which metrics are accepted from replies, such as `strategies.metric_schema.NUMBERS`; all
        for a kind that is not named.
    bounds : Bounds, optional
        Limits on what a single client contributes; None: none.
    secure : SecureSettings, optional
        FedFT and FedTU exchanges are held as secure sums (`strategies.secure`), to which `bounds` cannot apply; None:
        models come back one by one.
    cover : int
        With `secure`: to how many clients a FedTU exchange goes; those without a request send a masked zero.
    cover_each : bool
        The update of each client that unlearns counts in full, not by the records that it forgets.
    private_mean : PrivateMean, optional
        Aggregates the updates of an exchange with differential privacy. Not with `bounds.max_update_norm`, by which
        each update would depend on every client.
    deadline : float, optional
        Seconds after which a FedFT exchange goes on with the replies that have come; FedTU exchanges do not.
    oversample : float, at least 1
        Of a FedFT exchange for m clients ⌈m · oversample⌉ are asked, and m replies waited for.
    durations : Durations, optional
        A simulated clock; None: the machine's.
    buffer : Buffer, optional
        Rounds are asynchronous (`strategies.rounds.buffered.BufferedFedTU`); None: synchronous.
    fitting : Fitting, optional
        Which clients receive a submodel, such as `strategies.rules.lora_ranks.LoraRanks`. Not with `secure`.
    compression : Compression, optional
        How clients may compress their updates; None: models alone. Not with `secure`.
    sampling : Sampling, optional
        Which clients fine-tune in a round, as many as the inner strategy would sample; None: it samples them itself.
        One with weights of its own is not possible with `secure` or `private_mean`, where nobody sees single updates.
    available_within : float
        Seconds that a client may take to answer whether it is there.

    Raises
    ------
    ValueError
        For values out of range, and for options that exclude each other.
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
        """Whether synchronous rounds may go on without slow clients."""
        return self.deadline is not None or self.oversample > 1

    @property
    def one_by_one(self) -> bool:
        """Whether replies are taken one by one as they come."""
        return self.hurried or self.durations is not None or self.buffer is not None
