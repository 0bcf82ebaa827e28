"""Terms of a secure sum: who shares secrets, who may drop out, and a quantisation in which sums cannot overflow."""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_type_hints

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

    Attributes
    ----------
    session : str
        Random name of the session.
    clients : int
        Clients n that are addressed, 3 to 65536.
    shares : int
        Among how many neighbours k, itself included, a client splits its secrets.
    threshold : int
        How many shares t reconstruct them, above k/2.
    clipping : float above 0
        Every number of an update is clipped to ± c.
    bits : int, 2 to 31
        A number becomes one of 2^bits − 1 integers; 0 stays exactly 0.
    max_weight : int, at least 1
        Largest weight of a client.
    told : str
        Names of the tallies, joined by commas.
    one_each : bool
        Every update counts 1, or 0 for a client that only covers others.
    norm : float, at least 0
        Above 0: a client clips its update to that L2 norm, and counts 1 whatever it holds.
    noise : float, at least 0
        σ in steps of the discrete Gaussian noise that a client adds to each number.
    counting : float, at least 0
        Above 0: a client appends half of this to its update, positive if the update was no longer than the norm, else
        negative.

    Raises
    ------
    TermsError
        If the sum could overflow, or a value is out of range. With a threshold of at most half of the shares a server
        could tell some that a client dropped out and others that it did not, and remove that client's masks.
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
        """What is wrong with the terms; empty if nothing is."""
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
        """Names of the tallies, in order."""
        return tuple(filter(None, self.told.split(",")))

    @property
    def tallies(self) -> int:
        """How many tallies there are."""
        return len(self.names)

    @property
    def digest(self) -> str:
        """SHA-256 of the terms, 64 hexadecimal digits; clients with different terms derive different keys."""
        return hashlib.sha256(json.dumps(self.to_wire(), sort_keys=True).encode()).hexdigest()

    @property
    def levels(self) -> int:
        """Largest integer of a quantised number, L = 2^(bits − 1) − 1."""
        return 2 ** (self.bits - 1) - 1

    @property
    def step(self) -> float:
        """Quantisation step c / L; a number is off by at most half of it."""
        return self.clipping / self.levels

    @property
    def largest(self) -> int:
        """Largest integer that a client of weight 1 adds to a sum, noise included."""
        return self.levels + math.ceil(TAIL * self.noise)

    @property
    def modulus_bits(self) -> int:
        """Bits of the modulus of all sums, which no true sum reaches."""
        return self._bits_needed(self.largest)

    def _bits_needed(self, largest: float) -> int:
        """Bits, with sign, of a sum over all clients of such integers."""
        return 1 + (self.clients * self.max_weight * int(largest)).bit_length()

    def to_wire(self) -> dict[str, Any]:
        """The terms as values of a ConfigRecord."""
        return asdict(self)

    @classmethod
    def from_wire(cls, config: Mapping[str, Any]) -> Terms:
        """Read what `to_wire` gave; TermsError for anything else."""
        try:
            values = {name: kind(config[name]) for name, kind in _KINDS.items()}
        except (KeyError, TypeError, ValueError) as error:
            raise TermsError(f"these are no terms of a secure sum: {type(error).__name__} {error}") from None
        return cls(**values)


_KINDS = get_type_hints(Terms)


def default_shares(clients: int) -> int:
    """Default number of neighbours: all clients up to 32, above that of order log n (Bell et al. 2020).

    Parameters
    ----------
    clients : int, at least 1
        n.

    Returns
    -------
    int
    """
    return clients if clients <= 32 else 4 * math.ceil(math.log2(clients)) + 9


def default_threshold(shares: int) -> int:
    """Default threshold, more than 0.6 of the shares: up to 0.4 of the clients may drop out.

    Parameters
    ----------
    shares : int, at least 3
        Among how many neighbours a secret is split.

    Returns
    -------
    int, at least 3
    """
    return max(LEAST_CLIENTS, math.floor(0.6 * shares) + 1)


@dataclass(frozen=True, slots=True)
class SecureSettings:
    """Settings of secure sums.

    Attributes
    ----------
    clipping, bits, max_weight
        As in `Terms`.
    shares, threshold : int, optional
        As in `Terms`; None: `default_shares`, `default_threshold`.
    patience : float
        Seconds for each stage in which nothing is trained.
    private : callable (kind of exchange, terms, numbers) -> Terms, optional
        Adds norm and noise to the terms.
    follow : callable (float, int), optional
        Called with the noised sum of ± ½ over the clients (`Terms.counting`), and with their number.
    tell : bool
        Sum tallies such as losses, too: noise on the updates does not protect them.
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

    def terms(self, kind: str, clients: int, tallies: Sequence[str], numbers: int, *, one_each: bool = False) -> Terms:
        """Terms of a new session.

        Parameters
        ----------
        kind : str
            Kind of exchange.
        clients : int
            Clients that are addressed.
        tallies : sequence of str
            Names of the tallies.
        numbers : int
            Length of an update.
        one_each : bool

        Returns
        -------
        Terms
            Where not all clients are neighbours `shares` is odd: as many on either side, and the client itself.

        Raises
        ------
        TermsError
            If no valid terms are possible; also what `private` raises.
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
            told=",".join(tallies),
            one_each=one_each,
        )
        return terms if self.private is None else self.private(kind, terms, numbers)
