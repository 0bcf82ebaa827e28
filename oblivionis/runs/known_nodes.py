"""What a run knows of its nodes, in `known-nodes.json`: whose key each client has, and how many records it declared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from oblivionis.errors import FileError, RunError
from oblivionis.files import parse_json, read_bytes, write_json

FILE = "known-nodes.json"
SHOWN = 16
"""Digits of a key's hash that messages show."""


@dataclass(frozen=True, slots=True)
class KnownNode:
    """`key`: the SHA-256 of the public key, empty where nodes have none; `records`: what it declared first, or None."""

    key: str = ""
    records: int | None = None


class KnownNodes:
    """The file of one run. RunError for one that cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._nodes: dict[int, KnownNode] = {}
        try:
            found = parse_json(read_bytes(path))
            self._nodes = {int(client): _known(entry) for client, entry in found.items()}
        except FileNotFoundError:
            return
        except (FileError, ValueError, TypeError, AttributeError, KeyError) as error:
            raise RunError(
                f"{path} cannot be read ({error}); it says which machine is which client. If you delete it, the "
                "first machine that claims to be a client is believed"
            ) from None

    def key(self, client: int) -> str:
        """The public key of `client`; empty if it has none yet."""
        return self._nodes.get(client, KnownNode()).key

    def client_of(self, key: str) -> int | None:
        """Which client has this key."""
        return next((client for client, node in self._nodes.items() if key and node.key == key), None)

    def records(self, client: int) -> int | None:
        """How many records `client` declared when it was first asked."""
        return self._nodes.get(client, KnownNode()).records

    def bind(self, client: int, key: str) -> None:
        """Note whose key `client` has; the first one stays."""
        if key and not self.key(client):
            self._note({client: replace(self._nodes.get(client, KnownNode()), key=key)})

    def declare(self, records: Mapping[int, int]) -> None:
        """Note how many records clients declare, at once; of each the first number stays."""
        new = {client: count for client, count in records.items() if self.records(client) is None}
        if new:
            self._note({c: replace(self._nodes.get(c, KnownNode()), records=count) for c, count in new.items()})

    def _note(self, nodes: Mapping[int, KnownNode]) -> None:
        self._nodes |= nodes
        entries = {str(c): {"key": n.key, "records": n.records} for c, n in sorted(self._nodes.items())}
        write_json(self.path, entries)


class Keys:
    """Which public key is which client's (`strategies.rounds.nodes.Identities`).

    `registered`: files `node<client>.pub`, as `deploy init` lays them out; they bind their clients, and no other client
    may have one of their keys. A client without such a file belongs to the first key that claims it in this run.
    """

    def __init__(self, known: KnownNodes, registered: Iterable[Path] = ()) -> None:
        self._known = known
        self._registered = {client: key for client, key in map(_registration, registered) if client is not None}

    def refusal(self, partition: int, key: bytes) -> str:
        """Why the node with this key cannot be `partition`; empty if it may."""
        shown = key_hash(key)
        if not shown:
            return "it shows no public key"
        owner = next((c for c, k in self._registered.items() if k == shown), self._known.client_of(shown))
        if owner is not None and owner != partition:
            return f"its key {shown[:SHOWN]}… is that of client {owner}"
        bound = self._registered.get(partition) or self._known.key(partition)
        if bound and bound != shown:
            where = "server/nodes" if partition in self._registered else self._known.path.name
            return f"its key is {shown[:SHOWN]}…, the client's is {bound[:SHOWN]}… ({where})"
        return ""

    def bind(self, partition: int, key: bytes) -> None:
        """From now on `partition` is the node with this key."""
        self._known.bind(partition, key_hash(key))


def key_hash(key: bytes) -> str:
    """The SHA-256 of a public key, the same for PEM and OpenSSH; of bytes that are neither, that of the bytes."""
    if not key:
        return ""
    for load in (serialization.load_ssh_public_key, serialization.load_pem_public_key):
        try:
            found = load(key)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            continue
        form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        return hashlib.sha256(found.public_bytes(*form)).hexdigest()
    return hashlib.sha256(key).hexdigest()


def _registration(path: Path) -> tuple[int | None, str]:
    number = path.stem.removeprefix("node")
    client = int(number) if number.isdecimal() and number.isascii() and len(number) < 10 else None
    return client, key_hash(read_bytes(path))


def _known(entry: Any) -> KnownNode:
    key, records = entry["key"], entry["records"]
    if not isinstance(key, str) or not (records is None or (isinstance(records, int) and records >= 0)):
        raise ValueError(f"unexpected entry {entry!r}")
    return KnownNode(key, records)
