"""A client's side of secure aggregation: its replies in each stage, and its checks against a dishonest server."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidKey
from cryptography.fernet import InvalidToken
from flwr.app import ConfigRecord
from numpy.typing import NDArray

from strategies.flower_internals import (
    create_shares,
    decrypt,
    encrypt,
    share_keys_plaintext_concat,
    share_keys_plaintext_separate,
)
from strategies.secure import stage_keys as w
from strategies.secure.agreed_parameters import WIDEST, Terms, TermsError
from strategies.secure.masks import (
    SEED_BYTES,
    Stream,
    Words,
    agreed,
    fernet_key,
    fixed_point,
    new_private,
    packed,
    public_of,
    quantised,
)

_KEYS, _SHARED, _MASKED, _CONFIRMED, _UNMASKED = "keys", "shared", "masked", "confirmed", "unmasked"


class SecureError(ValueError):
    """The server asks for something that would reveal more than a sum, or that does not belong to this session."""


class Participant:
    """One client in one session of secure aggregation (SecAgg+, Bell et al. 2020).

    A new session discards the one before. Each stage raises SecureError for what an honest server does not ask: a stage
    out of turn or twice, keys or shares of strangers, fewer neighbours than the threshold, the secrets of a client both
    as a survivor and as one that dropped out, other survivors than were named to its neighbours. The arguments `asked`
    are the ConfigRecord of the server's message, and results the one of the reply, by the keys of `stage_keys`.

    Parameters
    ----------
    state : mutable mapping
        Keeps the session between messages, such as a ConfigRecord of Flower's context.
    me : int
        The client's partition id.
    """

    def __init__(self, state: MutableMapping[str, Any], me: int) -> None:
        self._state, self._me = state, me

    @property
    def terms(self) -> Terms:
        """The terms of the current session; SecureError without one."""
        if w.SESSION not in self._state:
            raise SecureError(f"client {self._me} takes part in no secure sum")
        return Terms.from_wire(self._state)

    def keys(self, asked: Mapping[str, Any]) -> ConfigRecord:
        """Stage 1: accept the terms and make two key pairs, one for encrypted shares and one for masks.

        Returns
        -------
        ConfigRecord
            The two public keys.

        Raises
        ------
        SecureError
            For terms that are not acceptable.
        """
        try:
            terms = Terms.from_wire(asked)
        except TermsError as error:
            raise SecureError(f"client {self._me} does not accept the terms: {error}") from None
        self._state.clear()
        self._state.update(terms.to_wire())
        mask_key, share_key = new_private(), new_private()
        self._state.update({w.STAGE: _KEYS, w.MASK_KEY: mask_key, w.SHARE_KEY: share_key})
        return ConfigRecord({w.MASK_PUBLIC: public_of(mask_key), w.SHARE_PUBLIC: public_of(share_key)})

    def shares(self, asked: Mapping[str, Any]) -> ConfigRecord:
        """Stage 2: split the own seed and mask key into Shamir shares, each encrypted for one neighbour.

        Returns
        -------
        ConfigRecord
            Neighbours and encrypted shares.

        Raises
        ------
        SecureError
            If neighbours and keys do not fit together or to the terms, or this client's own keys are not among them.
        """
        terms = self._turn(asked, _KEYS)
        clients, mask_keys, share_keys = (
            _ints(asked, w.CLIENTS),
            _bytes(asked, w.MASK_KEYS),
            _bytes(asked, w.SHARE_KEYS),
        )
        if not len(clients) == len(set(clients)) == len(mask_keys) == len(share_keys) == len(set(mask_keys)):
            raise SecureError("the neighbours and their keys do not belong together")
        if not terms.threshold <= len(clients) <= terms.shares:
            raise SecureError(f"{len(clients)} neighbours, expected {terms.threshold} to {terms.shares}")
        own_keys = dict(zip(clients, zip(mask_keys, share_keys, strict=True), strict=True)).get(self._me)
        if own_keys != (public_of(self._state[w.MASK_KEY]), public_of(self._state[w.SHARE_KEY])):
            raise SecureError("the server tells others another key than this client's own")
        seed = secrets.token_bytes(SEED_BYTES)
        seed_shares = create_shares(seed, terms.threshold, len(clients))
        key_shares = create_shares(self._state[w.MASK_KEY], terms.threshold, len(clients))
        to, sealed, kept = [], [], {}
        for client, public, seed_share, key_share in zip(clients, share_keys, seed_shares, key_shares, strict=True):
            if client == self._me:
                kept = {w.HELD: [self._me], w.HELD_SEEDS: [seed_share], w.HELD_KEYS: [key_share]}
                continue
            plain = share_keys_plaintext_concat(self._me, client, seed_share, key_share)
            to.append(client)
            sealed.append(encrypt(self._key_with(public, terms), plain))
        self._state.update({w.STAGE: _SHARED, w.SEED: seed, w.CLIENTS: clients, w.MASK_KEYS: mask_keys})
        self._state.update({w.SHARE_KEYS: share_keys, **kept})
        return ConfigRecord({w.CLIENTS: to, w.SEALED: sealed})

    def check(self, asked: Mapping[str, Any]) -> Terms:
        """Check that the third stage may begin, before anything is trained for it.

        Returns
        -------
        Terms

        Raises
        ------
        SecureError
            If it may not.
        """
        terms = self._turn(asked, _SHARED)
        self._opened(asked, terms)
        return terms

    def masked(
        self,
        asked: Mapping[str, Any],
        update: NDArray,
        weight: int,
        tallies: Sequence[float] = (),
        noise: NDArray[np.int64] | None = None,
    ) -> ConfigRecord:
        """Stage 3: open the neighbours' shares, and mask the weighted update and tallies.

        Parameters
        ----------
        asked : mapping
        update : array (n,)
            Clipped and quantised by the terms.
        weight : int
            0 adds nothing but masks; one above `terms.max_weight` counts as that. With a norm in the terms every client
            counts 1, and an update of weight 0 is a zero.
        tallies : sequence of float
            `terms.tallies` further numbers, such as losses, summed with the same weight.
        noise : array (n,), int64, optional
            Integers to add, in quantisation steps.

        Returns
        -------
        ConfigRecord
            The masked vector, and a masked tail: tallies, weight, whether the weight was cut, and how many numbers were
            clipped (the last two are 0 with a norm: they would have no noise).

        Raises
        ------
        SecureError
            Out of turn, for shares that cannot be opened, or for another number of tallies.
        ValueError
            If the update is not finite.
        """
        terms = self._turn(asked, _SHARED)
        senders = self._opened(asked, terms)
        if len(tallies) != terms.tallies:
            raise SecureError(f"{len(tallies)} numbers beside the update, expected {terms.tallies}")
        counted = max(0, min(int(weight), terms.max_weight))
        integers, clipped = quantised(update if counted else np.zeros_like(update), terms)
        if terms.norm:
            counted = 1
        words = (integers * counted + (0 if noise is None else noise)).astype(np.uint64)
        reductions = (0, 0) if terms.norm else (int(weight > terms.max_weight), clipped)
        tail = np.array([*fixed_point(tallies) * counted, counted, *reductions], np.int64).astype(np.uint64)
        self._mask(words, tail, senders, terms)
        self._state[w.STAGE] = _MASKED
        return ConfigRecord(
            {w.SUM: packed(words, terms.modulus_bits), w.TAIL: packed(tail, WIDEST), w.NUMBERS: int(words.size)}
        )

    def confirm(self, asked: Mapping[str, Any]) -> ConfigRecord:
        """Stage 4: send every neighbour whose vector arrived, encrypted, the list of survivors as the server gave it.

        Returns
        -------
        ConfigRecord
            Neighbours and encrypted lists.
        """
        terms = self._turn(asked, _MASKED)
        active, dropped = self._roll_call(asked, terms)
        self._state.update({w.STAGE: _CONFIRMED, w.ACTIVE: active, w.DROPPED: dropped})
        view = json.dumps([self._me, active, dropped]).encode()
        others = [client for client in active if client != self._me]
        return ConfigRecord({w.CLIENTS: others, w.SEALED: [encrypt(self._view_key(o, terms), view) for o in others]})

    def unmask(self, asked: Mapping[str, Any]) -> ConfigRecord:
        """Stage 5: release the shares of the seeds of survivors, and of the keys of clients that dropped out.

        Only after as many as the threshold, itself included, confirmed the same lists: a client that one of them calls
        dropped out none may call a survivor, for whoever had both of a client's secrets could remove its masks.

        Returns
        -------
        ConfigRecord
            Survivors and dropped clients with their shares.

        Raises
        ------
        SecureError
            For too few or contradicting confirmations.
        """
        terms = self._turn(asked, _CONFIRMED)
        active, dropped = list(self._state[w.ACTIVE]), list(self._state[w.DROPPED])
        self._check_views(asked, terms, active, dropped)
        held = list(self._state[w.HELD])
        seeds = [self._state[w.HELD_SEEDS][held.index(client)] for client in active]
        keys = [self._state[w.HELD_KEYS][held.index(client)] for client in dropped]
        self._state.clear()
        self._state.update({**terms.to_wire(), w.STAGE: _UNMASKED})
        return ConfigRecord({w.ACTIVE: active, w.SEED_SHARES: seeds, w.DROPPED: dropped, w.KEY_SHARES: keys})

    def _roll_call(self, asked: Mapping[str, Any], terms: Terms) -> tuple[list[int], list[int]]:
        """The neighbours that are said to have sent a vector, and those that are not, checked."""
        active, dropped = _ints(asked, w.ACTIVE), _ints(asked, w.DROPPED)
        if set(active) & set(dropped):
            raise SecureError("the same client cannot have sent its vector and dropped out")
        if self._me not in active or len(active) != len(set(active)) or len(dropped) != len(set(dropped)):
            raise SecureError("the list of survivors is none of this session")
        if len(active) < terms.threshold:
            raise SecureError(f"{len(active)} of its neighbours are left, at least {terms.threshold} must be")
        if strangers := (set(active) | set(dropped)) - set(self._state[w.HELD]):
            raise SecureError(f"no share of client {min(strangers)} is held here")
        return active, dropped

    def _check_views(
        self, asked: Mapping[str, Any], terms: Terms, active: Sequence[int], dropped: Sequence[int]
    ) -> None:
        """Raise SecureError unless enough neighbours confirm lists that do not contradict these."""
        senders, sealed = _ints(asked, w.CLIENTS), _bytes(asked, w.SEALED)
        if len(senders) != len(sealed) or len(senders) != len(set(senders)) or set(senders) - set(active) - {self._me}:
            raise SecureError("confirmations of clients that sent no vector")
        if len(senders) + 1 < terms.threshold:
            raise SecureError(f"{len(senders) + 1} clients confirm who is left, at least {terms.threshold} must")
        for sender, cipher in zip(senders, sealed, strict=True):
            try:
                source, their_active, their_dropped = json.loads(decrypt(self._view_key(sender, terms), cipher))
            except (InvalidToken, ValueError):
                raise SecureError(f"the confirmation of client {sender} cannot be opened") from None
            if source != sender or set(their_active) & set(dropped) or set(their_dropped) & set(active):
                raise SecureError(f"client {sender} was told of other survivors: the server lies to one of them")

    def _view_key(self, other: int, terms: Terms) -> bytes:
        """The key by which two neighbours encrypt their lists of survivors."""
        public = self._state[w.SHARE_KEYS][list(self._state[w.CLIENTS]).index(other)]
        return fernet_key(self._state[w.SHARE_KEY], public, f"views/{terms.digest}")

    def _turn(self, asked: Mapping[str, Any], stage: str) -> Terms:
        """The terms, if the message belongs to this session and its stage is next."""
        terms = self.terms
        if asked.get(w.SESSION) != terms.session:
            raise SecureError("the message belongs to another session")
        if (now := self._state.get(w.STAGE)) != stage:
            raise SecureError(f"a message out of turn: this client's last stage was {now!r}, expected {stage!r}")
        return terms

    def _opened(self, asked: Mapping[str, Any], terms: Terms) -> list[int]:
        """Decrypt and keep the shares that neighbours sent; returns the senders."""
        senders, sealed = _ints(asked, w.CLIENTS), _bytes(asked, w.SEALED)
        neighbours = list(self._state[w.CLIENTS])
        if len(senders) != len(sealed) or len(senders) != len(set(senders)) or set(senders) - set(neighbours):
            raise SecureError("shares of clients that are no neighbours")
        if len(senders) + 1 < terms.threshold:
            raise SecureError(f"{len(senders) + 1} neighbours are left, at least {terms.threshold} must be")
        held, seeds, keys = [self._me], [self._own(w.HELD_SEEDS)], [self._own(w.HELD_KEYS)]
        for sender, cipher in zip(senders, sealed, strict=True):
            try:
                key = self._key_with(self._state[w.SHARE_KEYS][neighbours.index(sender)], terms)
                source, target, seed, mask_key = share_keys_plaintext_separate(decrypt(key, cipher))
            except (InvalidToken, InvalidKey, ValueError):
                raise SecureError(f"the shares of client {sender} cannot be opened") from None
            if (source, target) != (sender, self._me):
                raise SecureError(f"the shares of client {sender} are of or for somebody else")
            held.append(sender)
            seeds.append(seed)
            keys.append(mask_key)
        self._state.update({w.HELD: held, w.HELD_SEEDS: seeds, w.HELD_KEYS: keys})
        return senders

    def _own(self, key: str) -> bytes:
        """This client's own share of one of its secrets."""
        return self._state[key][0]

    def _key_with(self, public: bytes, terms: Terms) -> bytes:
        """The key by which two neighbours encrypt shares."""
        return fernet_key(self._state[w.SHARE_KEY], public, f"shares/{terms.digest}")

    def _mask(self, words: Words, tail: Words, peers: Sequence[int], terms: Terms) -> None:
        """Add the own mask, and a pairwise mask for each of `peers`, which that peer subtracts."""
        neighbours = list(self._state[w.CLIENTS])
        own = Stream(self._state[w.SEED], terms.session)
        own.add(words)
        own.add(tail)
        for peer in peers:
            public = self._state[w.MASK_KEYS][neighbours.index(peer)]
            stream = Stream(agreed(self._state[w.MASK_KEY], public, "masks"), terms.session)
            stream.add(words, negative=self._me > peer)
            stream.add(tail, negative=self._me > peer)


def _ints(asked: Mapping[str, Any], key: str) -> list[int]:
    """The list of clients under `key`; SecureError if it is none."""
    clients = asked.get(key, [])
    if not isinstance(clients, list) or not all(isinstance(v, int) and not isinstance(v, bool) for v in clients):
        raise SecureError(f"{key} is no list of clients")
    return clients


def _bytes(asked: Mapping[str, Any], key: str) -> list[bytes]:
    """The list of bytes under `key`; SecureError if it is none."""
    values = asked.get(key, [])
    if not isinstance(values, list) or not all(isinstance(v, bytes) for v in values):
        raise SecureError(f"{key} is no list of bytes")
    return values
