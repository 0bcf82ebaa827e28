"""What the members of a secure sum agree on: who may drop out, and how numbers become integers that cannot overflow."""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

WIDEST = 64
"""Bits of the largest modulus."""
LARGEST_CLIENTS = 1 << 16
LEAST_CLIENTS = 3
"""Fewest clients in a sum: of two, each could compute the other's update from the sum."""
TALLY_STEP = 2.0**-16
LARGEST_TALLY = 2.0**15
"""Tallies are fixed-point: clipped to ± this, in steps of `TALLY_STEP`."""
TAIL = 12
"""Noise is assumed to stay within so many standard deviations (exceeded with probability below 1e-32 per number)."""


class TermsError(ValueError):
    """Terms under which a sum would reveal something or could overflow."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of one session.

    `clients`: how many are addressed, n; `shares`: among how many neighbours, itself included, a client divides its
    secrets, k; `threshold`: how many of these give them back, t. `clipping`: every number of an update is clipped to
    ± c; `bits`: it becomes one of 2^bits − 1 integers, 0 exactly 0; `max_weight`: what a client counts at most.
    `told`: names of the numbers that are told beside the update, joined by commas; `one_each`: every update counts 1,
    whatever is behind it, 0 where nothing is. With `norm` above 0 a client shortens its update to that L2
    norm and counts 1, whatever it holds; `noise`: the deviation in steps of the discrete Gaussian noise that it adds to
    each number; `counting` above 0: behind its update it adds one number more, half of this, positive if the update was
    no longer than the norm and negative if it was.

    Raises TermsError where the threshold is not above half of the shares (a server that tells some that a client
    dropped out and others that it did not could then take that client's masks off), or the sum could overflow.
    """

    session: str
    clients: int
    shares: int
    threshold: int
    clipping: float
    bits: int = 22
    max_weight: int = 10_000
    told: str = ""
    one_each: bool = False
    norm: float = 0.0
    noise: float = 0.0
    counting: float = 0.0

    def __post_init__(self) -> None:
        if fault := self._fault():
            raise TermsError(fault)

    def _fault(self) -> str:
        if not LEAST_CLIENTS <= self.clients <= LARGEST_CLIENTS:
            return f"{self.clients} clients in a secure sum, expected {LEAST_CLIENTS} to {LARGEST_CLIENTS}"
        if not LEAST_CLIENTS <= self.shares <= self.clients:
            return f"shares is {self.shares}, expected {LEAST_CLIENTS} to the number of clients, {self.clients}"
        if self.threshold < LEAST_CLIENTS:
            return f"threshold is {self.threshold}, expected at least {LEAST_CLIENTS}: as few may be in the sum"
        if not self.shares / 2 < self.threshold <= self.shares:
            return f"threshold is {self.threshold}, expected above {self.shares / 2:g} (half of shares), at most shares"
        if not (math.isfinite(self.clipping) and self.clipping > 0):
            return f"clipping is {self.clipping}, expected above 0"
        if not 2 <= self.bits <= 31:
            return f"bits is {self.bits}, expected 2 to 31"
        if self.max_weight < 1:
            return f"max_weight is {self.max_weight}, expected at least 1"
        for name in ("norm", "noise", "counting"):
            if not (math.isfinite(value := getattr(self, name)) and value >= 0):
                return f"{name} is {value}, expected at least 0"
        needed = max(self._bits_needed(self.largest), self._bits_needed(LARGEST_TALLY / TALLY_STEP))
        if needed > WIDEST:
            return (
                f"{self.clients} clients of weight {self.max_weight} with {self.bits} bits need a modulus of {needed} "
                f"bits, more than {WIDEST}: lower max_weight or bits"
            )
        return ""

    @property
    def names(self) -> tuple[str, ...]:
        """The numbers that are told beside the update, in this order."""
        return tuple(filter(None, self.told.split(",")))

    @property
    def tallies(self) -> int:
        """How many they are."""
        return len(self.names)

    @property
    def digest(self) -> str:
        """SHA-256 of the terms, 64 hexadecimal digits: clients that were told different ones share no keys."""
        return hashlib.sha256(json.dumps(self.to_wire(), sort_keys=True).encode()).hexdigest()

    @property
    def levels(self) -> int:
        """The largest integer that a number becomes, L = 2^(bits − 1) − 1."""
        return 2 ** (self.bits - 1) - 1

    @property
    def step(self) -> float:
        """What one integer stands for, c / L: a number is off by at most half of it."""
        return self.clipping / self.levels

    @property
    def largest(self) -> int:
        """The largest integer that a client of weight 1 adds to a number's sum."""
        return self.levels + math.ceil(TAIL * self.noise)

    @property
    def modulus_bits(self) -> int:
        """All sums are taken modulo two to the power of this, which no true sum reaches."""
        return self._bits_needed(self.largest)

    def _bits_needed(self, largest: float) -> int:
        return 1 + (self.clients * self.max_weight * int(largest)).bit_length()

    def to_wire(self) -> dict[str, Any]:
        """As values of a ConfigRecord."""
        return asdict(self)

    @classmethod
    def from_wire(cls, config: Mapping[str, Any]) -> Terms:
        """What `to_wire` gave. Raises TermsError for anything else."""
        try:
            values = {name: kind(config[name]) for name, kind in _KINDS.items()}
        except (KeyError, TypeError, ValueError) as error:
            raise TermsError(f"these are no terms of a secure sum: {type(error).__name__} {error}") from None
        return cls(**values)


_KINDS = {
    "session": str,
    "clients": int,
    "shares": int,
    "threshold": int,
    "clipping": float,
    "bits": int,
    "max_weight": int,
    "told": str,
    "one_each": bool,
    "norm": float,
    "noise": float,
    "counting": float,
}


def default_shares(clients: int) -> int:
    """Among how many n clients share: all up to 32, then as many as grow with log n (Bell et al. 2020)."""
    return clients if clients <= 32 else 4 * math.ceil(math.log2(clients)) + 9


def default_threshold(shares: int) -> int:
    """More than six tenths of the shares: four tenths of the clients may drop out."""
    return max(LEAST_CLIENTS, math.floor(0.6 * shares) + 1)


@dataclass(frozen=True, slots=True)
class SecureSettings:
    """How secure sums are held.

    `shares`, `threshold`: None: by the number of clients, see `strategies.secure.terms`. `clipping`, `bits`,
    `max_weight`: see `Terms`. `patience`: longest wait in seconds for the stages in which nothing is trained.
    `private`: (kind of exchange, terms, how many numbers) → the same terms with a norm and noise; `follow`: is told the
    sum of ± ½ over the clients, by `Terms.counting`, and how many these are. `tell`: whether numbers such as losses are
    summed beside the updates: noise on the updates does not protect them.
    """

    clipping: float
    shares: int | None = None
    threshold: int | None = None
    bits: int = 22
    max_weight: int = 10_000
    patience: float = 120.0
    private: Callable[[str, Terms, int], Terms] | None = None
    follow: Callable[[float, int], None] | None = None
    tell: bool = True

    def terms(self, kind: str, clients: int, told: Sequence[str], numbers: int, *, one_each: bool = False) -> Terms:
        """Those of a new session. On a ring `shares` is odd: as many on either side, and the client itself.

        Raises TermsError, and what `private` raises.
        """
        shares = min(self.shares or default_shares(clients), clients)
        if shares < clients and shares % 2 == 0:
            shares -= 1
        threshold = min(self.threshold or default_threshold(shares), shares)
        terms = Terms(
            session=secrets.token_hex(16),
            clients=clients,
            shares=shares,
            threshold=threshold,
            clipping=self.clipping,
            bits=self.bits,
            max_weight=self.max_weight,
            told=",".join(told),
            one_each=one_each,
        )
        return terms if self.private is None else self.private(kind, terms, numbers)
