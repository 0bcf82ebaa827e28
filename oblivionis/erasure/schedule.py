"""Who asks for what, and when: the policy that a configuration names, and schedules of requests as JSON lines."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oblivionis.config.schema import Config
from oblivionis.data.corpora import load_partition
from oblivionis.data.records import Corpus
from oblivionis.data.subjects import Subject
from oblivionis.erasure.alternative_answers_check import asks_alternatives, check_alternatives
from oblivionis.erasure.ledger import AllAtRound, NoRequests, Policy, RandomClientPerRound, Schedule
from oblivionis.erasure.named_alike import ALL, NOTHING_ALIKE, Decision, decide
from oblivionis.erasure.record_holders import Holdings
from oblivionis.erasure.remote_record_holders import RemoteHoldings
from oblivionis.erasure.request import Request, RequestError
from oblivionis.errors import FileError, OblivionisError
from oblivionis.files import parse_json, read_bytes
from oblivionis.models.configured_corpus import corpus_of
from oblivionis.naming import unfit_character
from oblivionis.runs.known_nodes import KnownNodes
from strategies.message_keys import SCOPE_CLIENT, SCOPE_RECORDS, SCOPE_SUBJECT
from strategies.rounds.nodes import NodeMap
from strategies.rounds.request_source import SCOPES

INCLUDE, EXCLUDE = "include", "exclude"
FIELDS = ("round", "client", "record_ids", "scope", "subject", INCLUDE, EXCLUDE, "id", "reason")
REMOTE_KIND = "expected client and record_ids"
KINDS = 'expected one of: client and record_ids; client and "scope": "client"; subject'


def policy_of(config: Config, holdings: Holdings | RemoteHoldings) -> Policy:
    """The policy of `unlearning.requests`. Raises RequestError for an unknown subject or a faulty schedule."""
    settings = config.unlearning.requests
    everything = holdings.records if settings.scope == "client" and isinstance(holdings, Holdings) else None
    if settings.policy == "random_client_per_round":
        return RandomClientPerRound(config.seed, everything)
    if settings.policy == "all_at_round":
        clients = None if settings.clients is None else tuple(settings.clients)
        return AllAtRound(settings.round, clients, everything)
    if settings.policy == "subjects_at_round":
        return _subjects_at_round(settings.round, settings.subjects or [], holdings)
    if settings.policy == "file":
        path = Path(str(settings.file)).expanduser()
        return read_schedule(path, holdings, last_round=config.federation.rounds.unlearn)
    return NoRequests()


def check_requests(config: Config) -> None:
    """Raise now what `policy_of` and `check_alternatives` would raise in the run: only the data tell which subjects and
    records there are, and what other answers."""
    by_data = "unlearn" in config.stages and config.unlearning.requests.policy in ("subjects_at_round", "file")
    if by_data or asks_alternatives(config):
        corpus = corpus_of(config)
        policy = policy_of(config, holdings_of(config, corpus)) if "unlearn" in config.stages else None
        check_alternatives(config, corpus, policy)


def holdings_of(
    config: Config, corpus: Corpus, nodes: NodeMap | None = None, known: KnownNodes | None = None
) -> Holdings | RemoteHoldings:
    """Who holds what; where the records are the clients' own, how many each holds as it tells when `nodes` asks it."""
    if config.data.on_clients:
        return RemoteHoldings(config.federation.clients, nodes, known)
    return Holdings.of(corpus, load_partition(corpus, config))


def _subjects_at_round(server_round: int, names: list[str], holdings: Holdings | RemoteHoldings) -> Schedule:
    problems, requests = list[str](), list[Request]()
    for number, name in enumerate(names):
        try:
            subject, decision = _person(
                name, holdings, options=(INCLUDE, f"{EXCLUDE} of a schedule (unlearning.requests.policy=file)")
            )
        except OblivionisError as error:
            problems.append(f"unlearning.requests.subjects: {error}")
            continue
        requests += about_subject(subject, server_round, f"round-{server_round:04d}-subject-{number:03d}", "", decision)
    if problems:
        raise RequestError("\n".join(problems))
    return Schedule(tuple(requests))


def about_subject(
    subject: Subject, server_round: int, group: str, reason: str, decision: Decision = NOTHING_ALIKE
) -> list[Request]:
    """One request for each client that holds records about `subject`; together they are the `group`.

    decision: what was said of the records named alike; those of `subject` have the included ones among them.
    """
    return [
        Request(
            f"{group}-client-{client:04d}",
            client,
            record_ids,
            server_round,
            reason,
            scope=SCOPE_SUBJECT,
            subject=subject.name,
            group=group,
            included=decision.included,
            excluded=decision.excluded,
        )
        for client, record_ids in subject.records.items()
    ]


def read_schedule(path: Path, holdings: Holdings | RemoteHoldings, *, last_round: int | None = None) -> Schedule:
    """Read requests from JSON lines.

    A line has `round` (1 to `last_round`), optionally `id` and `reason`, and says one of three things: `client` and
    `record_ids`; `client` and `"scope": "client"`, by which that client leaves; or `subject`, which becomes a request
    for each client that holds records about it; `include` and `exclude` beside it say which records named alike are
    about it. Raises RequestError with all faults of the file, each with its line.
    """
    problems: list[str] = []
    requests: dict[str, Request] = {}
    lines: dict[str, int] = {}
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except FileNotFoundError:
        raise RequestError(f"unlearning.requests.file: there is no file {path}") from None
    except FileError as error:
        raise RequestError(f"unlearning.requests.file: {error}") from None
    except UnicodeDecodeError:
        raise RequestError(f"{path}: expected UTF-8 text") from None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        faults, made = _read_line(line, number, holdings, last_round)
        for request in made:
            if request.id in lines and lines[request.id] != number:
                faults.append(f"the id of line {lines[request.id]} again ({request.id!r}); ids must be unique")
                break
            lines[request.id] = number
            requests[request.id] = request
        problems += [f"{path}:{number}: {fault}" for fault in faults]
    if not requests and not problems:
        problems.append(f"{path}: expected at least one request, found none")
    if problems:
        raise RequestError("\n".join(problems))
    return Schedule(tuple(requests.values()))


def _read_line(
    line: str, number: int, holdings: Holdings | RemoteHoldings, last_round: int | None
) -> tuple[list[str], list[Request]]:
    """What is wrong with a line, and the requests that it makes if nothing is."""
    try:
        row = parse_json(line)
    except ValueError as error:
        return [f"not JSON ({error})"], []
    if not isinstance(row, dict):
        return ["expected a JSON object"], []
    faults = [*_names(row), *_rounds(row, last_round), *_texts(row)]
    scope, wrong = _scope(row)
    faults += wrong
    if isinstance(holdings, RemoteHoldings) and scope not in (None, SCOPE_RECORDS):
        return [*faults, f"the records stay with the clients (data=node), and the scope is {scope}; {REMOTE_KIND}"], []
    subject, decision = None, NOTHING_ALIKE
    if scope == SCOPE_SUBJECT:
        try:
            name = row["subject"]
            if not isinstance(name, str):
                raise OblivionisError(holdings.subjects.unknown(str(name)))
            subject, decision = _person(name, holdings, _decided(row, INCLUDE), _decided(row, EXCLUDE))
        except OblivionisError as error:
            faults.append(str(error))
    elif scope is not None:
        faults += [f"{key} goes with subject" for key in (INCLUDE, EXCLUDE) if key in row]
        faults += _client(row, holdings, scope)
    if faults:
        return faults, []
    reason = row.get("reason", "")
    if scope == SCOPE_SUBJECT:
        assert subject is not None
        return [], about_subject(subject, row["round"], row.get("id", f"file-{number:04d}"), reason, decision)
    client = row["client"]
    ids = holdings.records[client] if scope == SCOPE_CLIENT and isinstance(holdings, Holdings) else row["record_ids"]
    identifier = row.get("id", f"file-{number:04d}-client-{client:04d}")
    return [], [Request(identifier, client, tuple(ids), row["round"], reason, scope=str(scope))]


def _person(
    name: str,
    holdings: Holdings | RemoteHoldings,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    options: tuple[str, str] = (INCLUDE, EXCLUDE),
) -> tuple[Subject, Decision]:
    """The subject of that name with all records about it, and what is said of those that are named alike.

    Arguments as of `decide`. Raises OblivionisError.
    """
    subjects = holdings.subjects
    exact, alike = subjects.find(name), subjects.alike(name)
    if exact is None and not alike:
        raise OblivionisError(subjects.unknown(name))
    decision = decide(name, alike, include, exclude, options)
    records = {} if exact is None else dict(exact.records)
    for record in alike:
        if record.record_id in decision.included:
            records[record.client] = (*records.get(record.client, ()), record.record_id)
    if not records:
        raise OblivionisError(f"no record is about {name!r}: those named alike are excluded")
    written = " ".join(name.split()) if exact is None else exact.name
    return Subject(written, dict(sorted(records.items()))), decision


def _decided(row: Mapping[str, Any], key: str) -> list[str]:
    given = row.get(key, [])
    ids = [given] if given == ALL else given
    if not isinstance(ids, list) or not all(isinstance(i, str) for i in ids):
        raise OblivionisError(f"{key}: expected a list of ids or {ALL!r}, found {json.dumps(given)}")
    return ids


def _names(row: Mapping[str, Any]) -> list[str]:
    """Fields that look like a slip of the pen; further ones are nobody's business."""
    near = {name: difflib.get_close_matches(name, FIELDS, n=1, cutoff=0.8) for name in row if name not in FIELDS}
    return [f"unknown field {name!r}; did you mean {close[0]!r}?" for name, close in near.items() if close]


def _rounds(row: Mapping[str, Any], last: int | None) -> list[str]:
    if "round" not in row:
        return ["missing round"]
    server_round = row["round"]
    if not isinstance(server_round, int) or isinstance(server_round, bool) or server_round < 1:
        return [f"round {server_round!r}; expected a whole number of at least 1"]
    if last is not None and server_round > last:
        return [f"round {server_round} never comes: federation.rounds.unlearn is {last}"]
    return []


def _texts(row: Mapping[str, Any]) -> list[str]:
    wrong = [k for k in ("id", "reason") if k in row and not isinstance(row[k], str)]
    faults = [f"{key} must be a text, found {json.dumps(row[key])}" for key in wrong]
    unfit = unfit_character(row["id"]) if isinstance(row.get("id"), str) else ""
    faults += [f"id must have no control characters, found {unfit}"] if unfit else []
    return faults + (["id must not be empty"] if row.get("id") == "" else [])


def _scope(row: Mapping[str, Any]) -> tuple[str | None, list[str]]:
    """Which kind of request a line is, None where it is not clear."""
    given = row.get("scope")
    if "scope" in row and given not in SCOPES:
        return None, [f"scope {given!r}; expected one of {', '.join(SCOPES)}"]
    leaves = given == SCOPE_CLIENT
    kinds = {SCOPE_RECORDS: "record_ids" in row, SCOPE_CLIENT: leaves, SCOPE_SUBJECT: "subject" in row}
    named = [kind for kind, present in kinds.items() if present]
    if not named:
        return None, [f"missing what is to be forgotten; {KINDS}"]
    if len(named) > 1:
        return None, [f"names {' and '.join(named)} at once; {KINDS}"]
    (kind,) = named
    if given not in (None, kind):
        return None, [f"the scope is {given}, but the line names {kind}; {KINDS}"]
    if kind == SCOPE_SUBJECT and "client" in row:
        return kind, ["a subject's records are looked up with every client; leave client out"]
    return kind, []


def _client(row: Mapping[str, Any], holdings: Holdings | RemoteHoldings, scope: str) -> list[str]:
    """What is wrong with `client` and `record_ids`."""
    if "client" not in row:
        return ["missing client"]
    client = row["client"]
    if not isinstance(client, int) or isinstance(client, bool) or not 0 <= client < holdings.clients:
        return [f"client {client!r} does not exist; expected 0 to {holdings.clients - 1}"]
    if scope == SCOPE_CLIENT:
        return []
    ids = row["record_ids"]
    if not isinstance(ids, list) or not ids or not all(isinstance(i, str) for i in ids):
        return [f"no record ids; expected a list of texts, found {json.dumps(ids)}"]
    twice = sorted(i for i, times in Counter(ids).items() if times > 1)
    foreign = holdings.foreign(client, ids)
    faults = [f"record {twice[0]!r} is named more than once"] if twice else []
    return faults + ([f"record {foreign[0]!r} is not held by client {client}"] if foreign else [])
