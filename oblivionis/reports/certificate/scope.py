"""What a certificate is about: every record of a demand, and the request by which it was forgotten."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from oblivionis.chain import check_chain
from oblivionis.erasure import lineage
from oblivionis.erasure.ledger import EXCHANGE, Ledger
from oblivionis.erasure.request import PENDING, REJECTED, Request
from oblivionis.errors import OblivionisError
from oblivionis.reports.format import counted
from oblivionis.runs.directory import RunDirectory


class CertificateError(OblivionisError):
    """A certificate that cannot be made or read, or a key that cannot be used."""


@dataclass(frozen=True, slots=True)
class Named:
    """A record of a demand: the client that holds it, and the request that was served for it."""

    record: str
    client: int
    request: Request


@dataclass(frozen=True, slots=True)
class Scope:
    """All `records` of a demand, and the `requests` that were served for them, in the order in which they were made:
    those of the demand, and earlier ones that name records of it. `unnamed`: by request how many records of the demand
    are asked for by earlier requests of which an old ledger does not tell."""

    records: tuple[Named, ...]
    requests: tuple[Request, ...]
    unnamed: dict[str, int]


def scope_of(run: RunDirectory, demand: str) -> Scope:
    """What `demand`, the id of a request or of a demand that several clients had requests of, is about.

    Raises CertificateError, with the request, where the run knows no such demand, and where a record of it is named by
    no request that is served now: those are pending, or were rejected.
    """
    ledger = Ledger(run.ledger_path)
    requests = [r for r in ledger if demand in (r.id, r.group, r.told)]
    if not requests:
        raise CertificateError(_unknown(run, ledger, demand))
    records = [named for request in requests for named in _records(ledger, request)]
    served = {named.request.id for named in records}
    if not served:
        raise CertificateError(
            f"request {demand!r} is covered: all its records were asked for by earlier requests; make theirs"
        )
    unnamed: dict[str, int] = {}
    for request in requests:
        if (left := request.already - len(request.covered)) > 0:
            part = request.id if request.id in served else records[0].request.id
            unnamed[part] = unnamed.get(part, 0) + left
    return Scope(tuple(records), tuple(r for r in ledger if r.id in served), unnamed)


def not_covered(run: RunDirectory, scope: Scope, covered: str) -> dict[str, Any]:
    """What a certificate says of other models that may still know records of its demand, by those that lie beside the
    run or came of it; nothing without any. covered: the hash of the model that it is about."""
    known, damaged = lineage.still_known(run, scope.requests, covered)
    models = [{"model": model.model, "what": model.what, "requests": states} for model, states in known]
    for line in damaged:
        name = line.partition(":")[0]
        models.append({"model": "", "what": f"run {name}, which cannot be read", "requests": {}})
    return {"not_covered": models} if models else {}


def _records(ledger: Ledger, request: Request) -> Iterator[Named]:
    """The records of a request, its own and those that others name."""
    if why := _not_served(request):
        raise CertificateError(f"request {request.id!r} {why}")
    for record in request.record_ids:
        yield Named(record, request.client, request)
    others = [r for r in ledger.of_client(request.client) if r.id != request.id]
    for record in request.covered:
        naming = [r for r in others if record in r.record_ids]
        served = [r for r in naming if not _not_served(r)]
        if not served:
            raise CertificateError(_uncovered(request, record, naming))
        yield Named(record, request.client, served[-1])


def _not_served(request: Request) -> str:
    """Why nothing can be said of a request, in words; empty where it is served."""
    if request.state == PENDING:
        tried = f" ({counted(request.attempts, 'attempt')} failed)" if request.attempts else ""
        return f"is not served yet{tried}"
    return "was rejected" if request.state == REJECTED else ""


def _uncovered(request: Request, record: str, naming: Sequence[Request]) -> str:
    if not naming:
        return f"request {request.id!r} leaves record {record!r} to an earlier request, and none in the ledger names it"
    last = naming[-1]
    return f"request {last.id!r} {_not_served(last)}: it names record {record!r}, which {request.id!r} asks for, too"


def _unknown(run: RunDirectory, ledger: Ledger, demand: str) -> str:
    known = list(ledger)
    names = ", ".join(r.id for r in known) if len(known) <= 10 else f"{len(known)} others"
    sealed = any(e.get("event") == EXCHANGE for e in check_chain(run.ledger_path).entries)
    hint = "; its requests are sealed: name the node's folder (--node-dir), or what it opened (--opened)"
    return f"{run.path} knows no request {demand!r}; it has {names or 'none'}{hint if sealed else ''}"
