"""From a person audit to deletion requests: the records that state what is memorised, on the clients that hold them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oblivionis.audits.people_outcomes import Person, PersonAudit, PersonFact, as_text, person_slug
from oblivionis.config import compose as configuration
from oblivionis.config.problems import did_you_mean
from oblivionis.config.schema import Config
from oblivionis.data.corpora import load_partition
from oblivionis.data.person_records import About, PersonRecords, states
from oblivionis.data.records import Record
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import REJECTED, Request
from oblivionis.erasure.schedule import EXCLUDE, INCLUDE
from oblivionis.errors import OblivionisError
from oblivionis.files import write_atomic
from oblivionis.models.configured_corpus import corpus_of
from oblivionis.naming import subject_key
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import RunDirectory
from strategies.message_keys import SCOPE_CLIENT, SCOPE_RECORDS, SCOPE_SUBJECT

SCOPES = (SCOPE_RECORDS, SCOPE_SUBJECT)


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked for a person: the records by the client that holds them, and the facts that they state.

    subject: the corpus' name of the person, with the scope `subject`.
    """

    person: str
    facts: tuple[PersonFact, ...]
    records: dict[int, tuple[Record, ...]]
    subject: str | None = None

    @property
    def count(self) -> int:
        return sum(map(len, self.records.values()))


@dataclass(frozen=True, slots=True)
class Plan:
    """The requests that an audit leads to.

    earlier: what the audited model was asked to forget, which has to be asked for again, since unlearning begins anew
    from the finetuned model; nothing: memorised facts without a record to delete, in words; outside: records asked for
    that do not belong to the forget split, so that the retrained model has them.
    """

    run: RunDirectory
    config: Config
    demands: tuple[Demand, ...]
    earlier: tuple[Request, ...]
    nothing: tuple[str, ...]
    outside: int

    @property
    def count(self) -> int:
        return sum(demand.count for demand in self.demands)


def plan_requests(
    audit: PersonAudit,
    names: Sequence[str] = (),
    *,
    scope: str = SCOPE_RECORDS,
    min_strength: float = 2.0,
    min_phrasings: int = 1,
) -> Plan:
    """Whom to ask to forget what, so that the memorised facts of `audit` go away; for these people only, if named.

    A fact counts when it is memorised in at least `min_phrasings` phrasings with a z* of at least `min_strength` each.
    With the scope `records`, the records about the person that state such a fact; with `subject`, all of the person's.
    Raises OblivionisError for an audit of a model that no run made, a run that is gone, or an unknown name.
    """
    run, config = _run_of(audit)
    corpus = corpus_of(config)
    holder = load_partition(corpus, config).holder
    lookup = PersonRecords(corpus)
    earlier = _earlier(run, audit)
    asked = {i for request in earlier for i in request.record_ids}
    demands, nothing = [], []
    for person in _chosen(audit, names):
        facts = [fact for fact in person.facts if fact.strong(min_strength) >= min_phrasings]
        if not facts:
            continue
        about = lookup.about(person.name)
        if scope == SCOPE_SUBJECT:
            found, unmatched = _whole_subject(person, facts, about)
        else:
            found, unmatched = _stating(person, facts, about)
        nothing += unmatched
        if found and asked.issuperset(record.id for record in found):
            nothing.append(
                f"{person.name}, {', '.join(map(described, facts))}: {run.name} was asked for all {len(found)} records "
                "before; what is left is the unlearning's"
            )
        elif found:
            found = [record for record in found if scope == SCOPE_SUBJECT or record.id not in asked]
            records: dict[int, tuple[Record, ...]] = {}
            for record in found:
                client = holder[record.id]
                records[client] = (*records.get(client, ()), record)
            stated = tuple(f for f in facts if scope == SCOPE_SUBJECT or _any_states(found, person, f))
            subject = about.subject if scope == SCOPE_SUBJECT else None
            demands.append(Demand(person.name, stated, dict(sorted(records.items())), subject))
    ids = {record.id for demand in demands for records in demand.records.values() for record in records}
    return Plan(run, config, tuple(demands), earlier, tuple(nothing), len(ids - corpus.forget_ids))


def _earlier(run: RunDirectory, audit: PersonAudit) -> tuple[Request, ...]:
    """What the audited model was asked to forget."""
    known = Ledger(run.ledger_path) if audit.stage == "unlearn" else ()
    return tuple(r for r in known if r.state != REJECTED and (r.record_ids or r.scope != SCOPE_RECORDS))


def _run_of(audit: PersonAudit) -> tuple[RunDirectory, Config]:
    if audit.run is None:
        raise OblivionisError(
            f"the audit is of {audit.model}, which no run made: there are no clients who could be asked. Audit a run "
            "directory"
        )
    run = artifact_binding.opened(Path(audit.run))
    return run, configuration.from_yaml(run.read_config(), run.config_place)


def _chosen(audit: PersonAudit, names: Sequence[str]) -> list[Person]:
    known = {subject_key(person.name): person for person in audit.people}
    for name in names:
        if subject_key(name) not in known:
            hint = did_you_mean(name, [person.name for person in audit.people])
            raise OblivionisError(f"--person: the audit knows nobody called {name!r}{'; ' + hint if hint else ''}")
    wanted = {subject_key(name) for name in names} or set(known)
    return [person for key, person in known.items() if key in wanted]


def _any_states(records: Sequence[Record], person: Person, fact: PersonFact) -> bool:
    return any(states(record, person.name, fact.id, fact.values) for record in records)


def _stating(person: Person, facts: Sequence[PersonFact], about: About) -> tuple[list[Record], list[str]]:
    found = [r for r in about.records if any(states(r, person.name, f.id, f.values) for f in facts)]
    missing = [f for f in facts if not _any_states(found, person, f)]
    why = (
        "no record names this person"
        if not about.records
        else f"none of the {len(about.records)} records about this person states it"
    )
    return found, [f"{person.name}, {described(fact)}: {why}" for fact in missing]


def _whole_subject(person: Person, facts: Sequence[PersonFact], about: About) -> tuple[list[Record], list[str]]:
    if about.subject is not None:
        return [r for r in about.records if subject_key(r.subject) == subject_key(about.subject)], []
    why = (
        f"{len(about.records)} records name this person, but belong to several subjects; use --scope records"
        if about.records
        else "no record names this person"
    )
    return [], [f"{person.name}, {', '.join(map(described, facts))}: {why}"]


def described(fact: PersonFact) -> str:
    """A memorised fact for a reader: `place of birth Bilbao (3 of 11, z* 2.4)`."""
    return f"{fact.label} {' / '.join(fact.values)} ({as_text(fact.outcome)})"


def write_schedule(
    plan: Plan, path: Path, *, scope: str, server_round: int, per_round: int | None = None
) -> tuple[int, int]:
    """Write the requests as a schedule for `unlearning.requests.file`, earlier ones first.

    The new ones are asked from `round` on, all at once or `per_round` of them in each round. Returns how many are new
    and the last round in which one is asked.
    """
    asked = (line for demand in plan.demands for line in _lines(demand, scope))
    new = [
        {"round": server_round + (place // per_round if per_round else 0), **line} for place, line in enumerate(asked)
    ]
    earlier = [_again(request) for request in plan.earlier]
    taken = {line["id"] for line in earlier}
    for line in new:
        while line["id"] in taken:
            line["id"] = f"{line['id']}-again"
        taken.add(line["id"])
    lines = [line for i, line in enumerate(earlier) if line not in earlier[:i]] + new
    write_atomic(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return len(new), max((line["round"] for line in new), default=server_round)


def _again(request: Request) -> dict[str, object]:
    """A request of a ledger as a line of a schedule; those about one subject give the same line."""
    line: dict[str, object] = {"round": request.round, "reason": request.reason}
    if request.scope == SCOPE_SUBJECT:
        decided = {INCLUDE: [*request.included], EXCLUDE: [*request.excluded]}
        return line | {"subject": request.subject, **{k: ids for k, ids in decided.items() if ids}, "id": request.group}
    line |= {"client": request.client, "id": request.id}
    return line | ({"scope": SCOPE_CLIENT} if request.scope == SCOPE_CLIENT else {"record_ids": [*request.record_ids]})


def _lines(demand: Demand, scope: str) -> list[dict[str, Any]]:
    name = f"audit-{person_slug(demand.person)}"
    if scope == SCOPE_SUBJECT:
        return [{"subject": demand.subject, "id": name, "reason": _reason(demand, demand.facts)}]
    return [
        {
            "client": client,
            "record_ids": [record.id for record in records],
            "id": f"{name}-client-{client:04d}",
            "reason": _reason(demand, [f for f in demand.facts if any(_states(r, demand, f) for r in records)]),
        }
        for client, records in demand.records.items()
    ]


def _states(record: Record, demand: Demand, fact: PersonFact) -> bool:
    return states(record, demand.person, fact.id, fact.values)


def _reason(demand: Demand, facts: Sequence[PersonFact]) -> str:
    return f"memorised of {demand.person}: {'; '.join(map(described, facts))}"
