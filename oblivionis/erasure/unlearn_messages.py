"""What a FedTU message asks of a client: checked, buried, and turned into the forget set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from oblivionis.erasure.node_folder import NodeFolder
from oblivionis.errors import OblivionisError
from strategies import message_keys
from strategies.rounds.request_source import SCOPES


class DemandError(OblivionisError):
    """A FedTU message that makes no sense or asks for what the client does not hold; the reason goes to the server."""


@dataclass(frozen=True, slots=True)
class Demand:
    """One deletion request as it reaches a client."""

    request_id: str
    scope: str
    record_ids: tuple[str, ...]


def read_demands(config: Mapping[str, object]) -> tuple[Demand, ...]:
    """The requests in the config of a `train.unlearn` message.

    Without counts or scopes, a message holds one request and asks for the named records. Raises DemandError unless
    there are as many counts and scopes as requests, the counts add up, and every request names a record; one by which
    the client leaves need not.
    """
    requests, record_ids = _texts(config, message_keys.REQUEST_IDS), _texts(config, message_keys.RECORD_IDS)
    counts = [len(record_ids)]
    if message_keys.RECORD_COUNTS in config:
        counts = [int(n) for n in config[message_keys.RECORD_COUNTS]]  # type: ignore[attr-defined]
    scopes = [message_keys.SCOPE_RECORDS] * len(requests)
    if message_keys.SCOPES in config:
        scopes = _texts(config, message_keys.SCOPES)
    if not requests or len(set(requests)) < len(requests):
        raise DemandError(f"expected request ids that differ, got {requests}")
    if not len(requests) == len(counts) == len(scopes):
        raise DemandError(f"{len(requests)} requests, but {len(counts)} record counts and {len(scopes)} scopes")
    if min(counts) < 0 or sum(counts) != len(record_ids):
        raise DemandError(f"the record counts {counts} do not divide {len(record_ids)} record ids")
    demands, start = [], 0
    for request_id, scope, count in zip(requests, scopes, counts, strict=True):
        if scope not in SCOPES:
            raise DemandError(f"request {request_id!r} has the scope {scope!r}, expected one of {', '.join(SCOPES)}")
        if count == 0 and scope != message_keys.SCOPE_CLIENT:
            raise DemandError(f"request {request_id!r} names no record")
        demands.append(Demand(request_id, scope, tuple(record_ids[start : start + count])))
        start += count
    return tuple(demands)


def accept(
    demands: Sequence[Demand], held: Sequence[str], node: NodeFolder, contents: Mapping[str, str] | None = None
) -> set[str]:
    """Bury in `node` what `demands` ask for of the `held` records; returns the ids of the forget set.

    contents: by id what the held records say, as `NodeFolder.bury` takes it.
    A client that leaves is marked so, buries everything that it holds, and forgets all of it but what other requests
    buried before: those were exchanges of their own. When a message is repeated the forget set is the same again.
    Raises DemandError for a named record that is not held (nothing is buried then), or when nothing is left to forget.
    """
    known = set(held)
    named = {i for demand in demands for i in demand.record_ids}
    if foreign := sorted(named - known):
        raise DemandError(f"this client does not hold record {foreign[0]!r} ({len(foreign)} unknown)")
    before = node.buried()
    for demand in demands:
        if demand.scope == message_keys.SCOPE_CLIENT:
            node.leave(demand.request_id)
        node.bury(demand.record_ids, demand.request_id, contents)
    leaving = [d.request_id for d in demands if d.scope == message_keys.SCOPE_CLIENT]
    if not leaving:
        return named
    node.bury(held, leaving[0], contents)
    forget = forget_set(demands, held, before)
    if not forget:
        raise DemandError("this client leaves, and all its records are forgotten already")
    return forget


def forget_set(demands: Sequence[Demand], held: Sequence[str], buried: Mapping[str, str]) -> set[str]:
    """What `demands` ask for: the named records and, of a client that leaves, all `held` but what others `buried`."""
    named = {i for demand in demands for i in demand.record_ids}
    if all(demand.scope != message_keys.SCOPE_CLIENT for demand in demands):
        return named
    ours = {demand.request_id for demand in demands}
    return named | {i for i in held if buried.get(i) is None or buried[i] in ours}


def _texts(config: Mapping[str, object], key: str) -> list[str]:
    values = config.get(key)
    if not isinstance(values, list | tuple) or not all(isinstance(v, str) for v in values):
        raise DemandError(f"expected a list of texts under {key!r}, got {values!r}")
    return list(values)
