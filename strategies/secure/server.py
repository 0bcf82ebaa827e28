"""The server's side of secure aggregation: five stages, the sum, and why a client is not in it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from strategies.flower_internals import combine_shares
from strategies.replies import answers, error_text
from strategies.secure import stage_keys as w
from strategies.secure.agreed_parameters import LARGEST_TALLY, TAIL, TALLY_STEP, WIDEST, Terms
from strategies.secure.masks import SEED_BYTES, Stream, Words, agreed, packed, public_of, signed, unpacked
from strategies.untrusted_text import clean

_Reader = Callable[[int, Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]
"""(Client, message, reply) → the valid content of the reply; raises _ReplyError."""
_KEY_BYTES = 32
_COMMITMENT = re.compile("[0-9a-f]{64}")
_OTHERS = 3
"""Numbers after the tallies in a vector's tail: weight, whether it was cut, how many numbers were clipped."""


@dataclass(frozen=True, slots=True)
class Summed:
    """Result of a secure sum: everything that the server learns.

    Attributes
    ----------
    terms : Terms or None
    update : array (n,), float64
        Σ w δ over the survivors.
    weight : int
        Σ w.
    tallies : tuple of float
        Σ w v of each tally.
    survivors : tuple of int
        The clients in the sum.
    cut : int
        Clients with a weight above the largest.
    clipped : int
        Numbers that lay outside the clipping range.
    left_out : mapping of str
        Why other clients are not in it.
    texts : mapping
        Texts that came with the masked vectors, by client.
    fault : str
        Why there is no sum; then only `terms`, `left_out` and `texts` hold.
    """

    terms: Terms | None = None
    update: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    weight: int = 0
    tallies: tuple[float, ...] = ()
    survivors: tuple[int, ...] = ()
    cut: int = 0
    clipped: int = 0
    left_out: Mapping[int, str] = field(default_factory=dict)
    texts: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    fault: str = ""


class SecureSum:
    """One session of secure aggregation (SecAgg+, Bell et al. 2020).

    Parameters
    ----------
    grid : Grid
    partition : callable (Message) -> int
        The client that a message goes to.
    terms : Terms
    patience : float
        Seconds for each stage in which nothing is trained.
    """

    def __init__(self, grid: Grid, partition: Callable[[Message], int], terms: Terms, patience: float) -> None:
        self._grid, self._partition, self._terms, self._patience = grid, partition, terms, patience
        self._left_out: dict[int, str] = {}
        self._texts: dict[int, Mapping[str, Any]] = {}

    def hold(
        self,
        messages: Sequence[Message],
        numbers: int,
        timeout: float,
        *,
        committed: bool = False,
    ) -> Summed:
        """Run the five stages.

        Parameters
        ----------
        messages : sequence of Message
            To each client, for the third stage.
        numbers : int
            Length n of an update.
        timeout : float
            Seconds for the third stage, in which clients train.
        committed : bool
            Leave out clients that send no commitment.

        Returns
        -------
        Summed
            With a `fault` where there is no sum.
        """
        nodes = {self._partition(message): message for message in messages}
        keys = self._exchange(w.KEYS_TYPE, {c: self._terms.to_wire() for c in nodes}, nodes, self._patience, _keys)
        ring = _Ring(list(keys), self._terms.shares)
        if fault := self._too_few(ring.clients, ring):
            return self._failed(fault)
        introductions = {c: self._introduction(c, ring, keys) for c in keys}
        sealed = self._exchange(w.SHARES_TYPE, introductions, nodes, self._patience, _shares_of(w.CLIENTS))
        if fault := self._too_few(sealed, ring):
            return self._failed(fault)
        posted = {c: self._post(c, ring, sealed) for c in sealed}
        size = len(packed(np.zeros(numbers, np.uint64), self._terms.modulus_bits))
        tail = 8 * (self._terms.tallies + _OTHERS)

        def read(_client: int, _asked: Mapping[str, Any], got: Mapping[str, Any]) -> dict[str, Any]:
            vector = _vector(got, numbers, size, tail)
            if committed and not _COMMITMENT.fullmatch(str(vector.get(w.COMMITMENT, ""))):
                raise _ReplyError("the reply holds no commitment")
            return vector

        vectors = self._exchange(None, posted, nodes, timeout, read)
        self._texts = {c: {k: v for k, v in got.items() if k not in (w.SUM, w.TAIL)} for c, got in vectors.items()}
        if fault := self._too_few(vectors, ring):
            return self._failed(fault)
        survivors = [c for c in sealed if c in vectors]
        calls = {c: self._roll_call(c, ring, sealed, vectors) for c in survivors}
        views = self._exchange(w.CONFIRM_TYPE, calls, nodes, self._patience, _shares_of(w.ACTIVE))
        if fault := self._too_few(views, ring):
            return self._failed(fault)
        forwarded = {c: {**calls[c], **self._post(c, ring, views)} for c in views}
        opened = self._exchange(w.UNMASK_TYPE, forwarded, nodes, self._patience, _opened)
        try:
            return self._sum(ring, keys, sealed, vectors, opened, numbers)
        except _SumError as error:
            return self._failed(str(error))

    def _failed(self, fault: str) -> Summed:
        """The result of a session without a sum."""
        return Summed(self._terms, left_out=dict(self._left_out), texts=self._texts, fault=fault)

    def _too_few(self, clients: Iterable[int], ring: _Ring) -> str:
        """Why the session cannot go on with `clients`; empty if it can."""
        here, threshold = set(clients), self._terms.threshold
        if len(here) < threshold:
            return f"{len(here)} clients are left, a secure sum needs {threshold}"
        for client in here:
            if (left := len(here & set(ring.around(client)))) < threshold:
                return (
                    f"{left} of the clients that share the secrets of client {client} are left, {threshold} are needed"
                )
        return ""

    def _introduction(self, client: int, ring: _Ring, keys: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        """The neighbours of `client` and their public keys."""
        around = ring.around(client)
        return {
            w.CLIENTS: around,
            w.MASK_KEYS: [keys[c][w.MASK_PUBLIC] for c in around],
            w.SHARE_KEYS: [keys[c][w.SHARE_PUBLIC] for c in around],
        }

    def _post(self, client: int, ring: _Ring, sealed: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        """What the neighbours of `client` encrypted for it."""
        senders = [c for c in ring.around(client) if c != client and c in sealed]
        return {
            w.CLIENTS: senders,
            w.SEALED: [sealed[c][w.SEALED][sealed[c][w.CLIENTS].index(client)] for c in senders],
        }

    def _roll_call(
        self, client: int, ring: _Ring, sealed: Iterable[int], vectors: Mapping[int, object]
    ) -> dict[str, Any]:
        """The neighbours of `client` whose vectors arrived, and those whose vectors are missing."""
        around, shared = ring.around(client), set(sealed)
        return {
            w.ACTIVE: [c for c in around if c in vectors],
            w.DROPPED: [c for c in around if c in shared and c not in vectors],
        }

    def _exchange(
        self,
        kind: str | None,
        contents: Mapping[int, Mapping[str, Any]],
        nodes: Mapping[int, Message],
        timeout: float,
        read: _Reader,
    ) -> dict[int, dict[str, Any]]:
        """One stage; returns what each valid reply says. `kind` None: the clients' own messages, with the record."""
        messages = []
        for client, content in contents.items():
            record = ConfigRecord({w.SESSION: self._terms.session, **content})
            original = nodes[client]
            content_sent = RecordDict({w.RECORD: record} if kind else {**original.content, w.RECORD: record})
            message_type = kind or original.metadata.message_type
            messages.append(Message(content_sent, dst_node_id=original.metadata.dst_node_id, message_type=message_type))
        valid: dict[int, dict[str, Any]] = {}
        received = answers(messages, self._grid.send_and_receive(messages, timeout=timeout)) if messages else []
        for client, (_, reply) in zip(contents, received, strict=True):
            try:
                valid[client] = read(client, contents[client], _record(reply, timeout))
            except _ReplyError as error:
                self._left_out[client] = clean(str(error))
        return valid

    def _sum(
        self,
        ring: _Ring,
        keys: Mapping[int, Mapping[str, Any]],
        sealed: Mapping[int, object],
        vectors: Mapping[int, Mapping[str, Any]],
        opened: Mapping[int, Mapping[str, Any]],
        numbers: int,
    ) -> Summed:
        """Add up the vectors and remove the masks; raises _SumError."""
        terms = self._terms
        words, tail = np.zeros(numbers, np.uint64), np.zeros(terms.tallies + _OTHERS, np.uint64)
        for vector in vectors.values():
            words += unpacked(vector[w.SUM], numbers, terms.modulus_bits)
            tail += unpacked(vector[w.TAIL], tail.size, WIDEST)
        for client in vectors:
            stream = Stream(self._secret(client, ring, opened, w.ACTIVE, w.SEED_SHARES), terms.session)
            stream.add(words, negative=True)
            stream.add(tail, negative=True)
        for client in sealed:
            if client not in vectors:
                self._unmask_pairs(client, ring, keys, vectors, opened, words, tail)
        return self._read(words, tail, vectors)

    def _unmask_pairs(
        self,
        client: int,
        ring: _Ring,
        keys: Mapping[int, Mapping[str, Any]],
        vectors: Mapping[int, object],
        opened: Mapping[int, Mapping[str, Any]],
        words: Words,
        tail: Words,
    ) -> None:
        """Remove the masks that others added for `client`, whose own vector is missing."""
        private = self._secret(client, ring, opened, w.DROPPED, w.KEY_SHARES)
        if public_of(private) != keys[client][w.MASK_PUBLIC]:
            raise _SumError(f"the shares of the key of client {client} do not fit together: somebody sent wrong ones")
        for other in ring.around(client):
            if other == client or other not in vectors:
                continue
            try:
                shared = agreed(private, keys[other][w.MASK_PUBLIC], "masks")
            except ValueError:
                raise _SumError(f"the key of client {other} is none") from None
            stream = Stream(shared, self._terms.session)
            stream.add(words, negative=other < client)
            stream.add(tail, negative=other < client)

    def _secret(
        self, client: int, ring: _Ring, opened: Mapping[int, Mapping[str, Any]], whose: str, shares: str
    ) -> bytes:
        """Reconstruct a secret of `client` from the shares that its neighbours released."""
        released = []
        for other in ring.around(client):
            if other in opened and client in (among := opened[other][whose]):
                released.append(opened[other][shares][among.index(client)])
        threshold = self._terms.threshold
        if len(released) < threshold:
            raise _SumError(f"{len(released)} shares of a secret of client {client} came back, {threshold} are needed")
        try:
            secret = combine_shares(released[:threshold])
        except (ValueError, IndexError):
            secret = b""
        if len(secret) != SEED_BYTES:
            raise _SumError(f"the shares of a secret of client {client} do not fit together: somebody sent wrong ones")
        return secret

    def _read(self, words: Words, tail: Words, vectors: Mapping[int, Mapping[str, Any]]) -> Summed:
        """Decode the unmasked sum, and check that it is one that clients can produce."""
        terms, count = self._terms, len(vectors)
        sums, others = signed(words, terms.modulus_bits), signed(tail, WIDEST)
        weight, cut, clipped = (int(v) for v in others[terms.tallies :])
        tallies = others[: terms.tallies]
        most = weight * terms.levels + count * int(TAIL * terms.noise + 1) * bool(terms.noise)
        sound = (
            0 <= weight <= count * terms.max_weight
            and 0 <= cut <= count
            and 0 <= clipped <= count * sums.size
            and bool((np.abs(tallies) <= weight * LARGEST_TALLY / TALLY_STEP).all())
            and bool((np.abs(sums) <= most).all())
        )
        if not sound:
            raise _SumError("the sum lies outside of what clients can add up to: somebody sent no masked update")
        return Summed(
            terms,
            update=sums.astype(np.float64) * np.float64(terms.step),
            weight=weight,
            tallies=tuple(float(v) * TALLY_STEP for v in tallies),
            survivors=tuple(sorted(vectors)),
            cut=cut,
            clipped=clipped,
            left_out=dict(self._left_out),
            texts=self._texts,
        )


class _SumError(ValueError):
    """The masks cannot be removed."""


class _ReplyError(ValueError):
    """A reply that is not valid."""


class _Ring:
    """Neighbourhoods for secret sharing: clients in a random circle, each with its nearest, itself included.

    The order is random in each session, so that nobody chooses its neighbours.
    """

    def __init__(self, clients: Sequence[int], shares: int) -> None:
        self.clients = list(clients)
        order = self.clients.copy()
        secrets.SystemRandom().shuffle(order)
        self._place = {client: place for place, client in enumerate(order)}
        self._order = order
        self._reach = min(shares, len(order)) // 2
        self._all = shares >= len(order)

    def around(self, client: int) -> list[int]:
        """The neighbours of `client` and itself, ascending."""
        if self._all:
            return sorted(self._order)
        place, count = self._place[client], len(self._order)
        return sorted({self._order[(place + d) % count] for d in range(-self._reach, self._reach + 1)})


def _record(reply: Message | None, timeout: float) -> dict[str, Any]:
    """The record in a reply; raises _ReplyError if there is none or more than that."""
    if reply is None:
        raise _ReplyError(f"no reply within {timeout:g} s")
    if reply.has_error():
        raise _ReplyError(error_text(reply))
    if not reply.has_content() or w.RECORD not in reply.content.config_records:
        raise _ReplyError("the reply is no part of a secure sum")
    if reply.content.array_records or reply.content.metric_records:
        raise _ReplyError("the reply tells more than its part of a secure sum")
    return dict(reply.content.config_records[w.RECORD])


def _keys(client: int, asked: Mapping[str, Any], got: Mapping[str, Any]) -> dict[str, Any]:
    """Read the public keys of the first stage."""
    keys = {key: got.get(key) for key in (w.MASK_PUBLIC, w.SHARE_PUBLIC)}
    if not all(isinstance(value, bytes) and len(value) == _KEY_BYTES for value in keys.values()):
        raise _ReplyError("the reply has no public keys")
    return keys


def _shares_of(key: str) -> _Reader:
    """A reader of what a client encrypts for each of the clients under `key` of its message except itself."""

    def read(client: int, asked: Mapping[str, Any], got: Mapping[str, Any]) -> dict[str, Any]:
        clients, sealed = got.get(w.CLIENTS), got.get(w.SEALED)
        missing = _ReplyError("the reply does not hold a share for each neighbour")
        if not isinstance(clients, list) or not isinstance(sealed, list) or len(sealed) != len(clients):
            raise missing
        if sorted(clients) != sorted(c for c in asked[key] if c != client):
            raise missing
        if not all(isinstance(value, bytes) for value in sealed):
            raise _ReplyError("the shares are no bytes")
        return {w.CLIENTS: clients, w.SEALED: sealed}

    return read


def _vector(got: Mapping[str, Any], numbers: int, size: int, tail: int) -> dict[str, Any]:
    """Read a masked vector of the third stage, with short texts that came with it."""
    words, rest = got.get(w.SUM), got.get(w.TAIL)
    if got.get(w.NUMBERS) != numbers or not isinstance(words, bytes) or not isinstance(rest, bytes):
        raise _ReplyError(f"the reply holds no masked vector of {numbers} numbers")
    if len(words) != size or len(rest) != tail:
        raise _ReplyError(f"the masked vector has {len(words)} bytes, expected {size}")
    texts = {key: value for key, value in got.items() if isinstance(value, str) and len(value) <= 200}
    return {w.SUM: words, w.TAIL: rest, **texts}


def _opened(client: int, asked: Mapping[str, Any], got: Mapping[str, Any]) -> dict[str, Any]:
    """Read the shares released in the last stage."""
    released = {key: got.get(key, []) for key in (w.ACTIVE, w.SEED_SHARES, w.DROPPED, w.KEY_SHARES)}
    pairs = ((w.ACTIVE, w.SEED_SHARES), (w.DROPPED, w.KEY_SHARES))
    for whose, shares in pairs:
        if (
            released[whose] != asked[whose]
            or not isinstance(released[shares], list)
            or len(released[shares]) != len(asked[whose])
        ):
            raise _ReplyError("the reply does not hold the shares that were asked for")
        if not all(isinstance(value, bytes) and len(value) == _SHARE_BYTES for value in released[shares]):
            raise _ReplyError("the reply holds shares of another length")
    return released


_SHARE_BYTES = 4 + 16 * (SEED_BYTES // 16 + 1)
"""Flower's shares: an index, and 16 bytes for each 16 of the padded secret."""
