"""A page of a run's report for each person that was audited: facts before and after, phrasings, deletion requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import htpy as h

from oblivionis.audits.people_outcomes import (
    STAGES,
    Outcome,
    Person,
    PersonAudit,
    PersonFact,
    as_text,
    audits_of,
    person_slug,
)
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import Request
from oblivionis.files import write_atomic
from oblivionis.naming import MODELS, subject_key
from oblivionis.reports import run_summary as report
from oblivionis.reports.format import counted, number
from oblivionis.reports.html import REPORT
from oblivionis.reports.markup import folded, html_page, html_table
from oblivionis.runs.artifact_binding import nothing_follows
from oblivionis.runs.directory import RunDirectory

FOLDER = "people"


@dataclass(frozen=True, slots=True)
class _Known:
    """What the audits of a run say about a person: by stage, and the outcomes by stage, of facts by their `inputs`."""

    name: str
    people: dict[str, Person] = field(default_factory=dict)
    outcomes: dict[str, dict[str, Outcome]] = field(default_factory=dict)

    @property
    def latest(self) -> tuple[str, Person]:
        """The audit that the page is about: of the unlearned model where there is one."""
        stage = next(s for s in ("unlearn", "finetune", "retrain") if s in self.people)
        return stage, self.people[stage]


def section(run: RunDirectory) -> list[h.Node]:
    """The part of `report.html` that lists the people, with links to their pages; nothing without an audit."""
    known, stages, requests = _known(audits_of(run)), _stages(audits_of(run)), list(Ledger(run.ledger_path))
    if not known:
        return []
    rows = []
    for one in known.values():
        person = one.latest[1]
        link = h.a(href=f"{FOLDER}/{person_slug(one.name)}.html")[one.name]
        about = requests_about(person, requests)
        states = ", ".join(dict.fromkeys(request.outcome for request in about)) or "–"
        shares = [share([one.outcomes.get(s, {}).get(f.inputs) for f in person.facts]) for s in stages]
        rows.append([link, person.cohort or "", str(len(person.facts)), *shares, states])
    heads = ["person", "cohort", "facts", *(MODELS[stage] for stage in stages), "requests"]
    return [
        h.p["Share of phrasings in which the facts about a person are memorised (WikiMem)."],
        html_table(heads, ["", "", "n", *["n"] * len(stages), ""], rows, "Audited people"),
    ]


def write_pages(run: RunDirectory) -> None:
    """Write `people/<name>.html` for everybody that the latest person audits of `run` are about, and no others."""
    audits, requests = audits_of(run), list(Ledger(run.ledger_path))
    known, nothing = _known(audits), nothing_follows(run)
    written = set()
    for one in known.values():
        name = f"{person_slug(one.name)}.html"
        page = html_page(f"{one.name} in {run.name}", _page(run, one, audits, requests, REPORT, nothing))
        write_atomic(run.path / FOLDER / name, page)
        written.add(name)
    for path in (run.path / FOLDER).glob("*.html"):
        if path.name not in written:
            path.unlink()


def page_parts(run: RunDirectory, page: str, home: str) -> tuple[str, list[h.Node]] | None:
    """Title and parts of the page that lies at `page` in the run; None where nobody has it. home: where it links
    back."""
    audits, requests = audits_of(run), list(Ledger(run.ledger_path))
    one = next((o for o in _known(audits).values() if f"{FOLDER}/{person_slug(o.name)}.html" == page), None)
    if one is None:
        return None
    return f"{one.name} in {run.name}", _page(run, one, audits, requests, home, nothing_follows(run))


def requests_about(person: Person, requests: Sequence[Request]) -> list[Request]:
    """The deletion requests that name the person, or a record about the person."""
    names = {subject_key(name) for name in (person.name, person.subject) if name}
    records = set(person.record_ids)
    return [r for r in requests if (r.subject and subject_key(r.subject) in names) or records & set(r.record_ids)]


def _known(audits: Mapping[str, PersonAudit]) -> dict[str, _Known]:
    found: dict[str, _Known] = {}
    for stage, audit in audits.items():
        for person in audit.people:
            one = found.setdefault(subject_key(person.name), _Known(person.name))
            one.people[stage] = person
            one.outcomes.setdefault(stage, {}).update({f.inputs: f.outcome for f in person.facts})
            if audit.against_stage is not None and audit.against_stage not in audits:
                before = {f.inputs: f.before for f in person.facts if f.before is not None}
                one.outcomes.setdefault(audit.against_stage, {}).update(before)
    return found


def _stages(audits: Mapping[str, PersonAudit]) -> list[str]:
    """The stages that something is known of."""
    known = {*audits, *(audit.against_stage for audit in audits.values())}
    return [stage for stage in STAGES if stage in known]


def share(outcomes: Sequence[Outcome | None]) -> str:
    """The mean share of phrasings in which facts are memorised, in per cent; – where one was not measured."""
    if not outcomes or any(outcome is None for outcome in outcomes):
        return "–"
    return f"{sum(o.memorized / o.phrasings for o in outcomes if o is not None) / len(outcomes):.0%}"


def _page(
    run: RunDirectory,
    one: _Known,
    audits: Mapping[str, PersonAudit],
    requests: Sequence[Request],
    home: str,
    nothing: str,
) -> list[h.Node]:
    """The parts of the page; nothing: that nothing follows from the run, and why, else empty."""
    stage, person = one.latest
    stages = _stages(audits)
    audit = audits[stage]
    return [
        h.p[h.a(href=f"../{home}")["report" if home else "run"]],
        h.h1[one.name],
        h.p(".bad")[nothing] if nothing else None,
        h.p["Run ", h.b[run.name], _who(person), "."],
        h.h2["What is memorised"],
        _facts(one, person, stages),
        h.p[_how(audit)],
        h.h2["Deletion requests"],
        _requests(requests_about(person, requests), person),
        h.h2[f"Phrasings, {MODELS[stage]} model"],
        *map(_phrasings, person.facts),
    ]


def _who(person: Person) -> str:
    parts = [f"cohort {person.cohort}"] if person.cohort else []
    if person.subject and subject_key(person.subject) != subject_key(person.name):
        parts.append(f"{person.subject} in the data")
    count = len(person.record_ids)
    parts.append(f"{counted(count, 'training record')} about this person")
    return "".join(f"; {part}" for part in parts)


def _how(audit: PersonAudit) -> str:
    words = "the records' own words" if audit.settings.get("phrasings") == "records" else "canaries of WikiMem"
    return (
        f"Memorised in so many phrasings ({words}): the true value ranks before all values of other people, however "
        "likely they are by themselves. z* says by how many standard deviations, on average over those phrasings. Not "
        "memorised is no proof of absence: another phrasing may still bring the fact out."
    )


def _facts(one: _Known, person: Person, stages: Sequence[str]) -> h.Element:
    rows = []
    for fact in person.facts:
        outcomes = [one.outcomes.get(stage, {}).get(fact.inputs) for stage in stages]
        rows.append([fact.label, " / ".join(fact.values), *map(_meter, outcomes), fact.outcome.instead or ""])
    heads = ["fact", "true value", *(MODELS[stage] for stage in stages), "ranked first instead"]
    return html_table(heads, [""] * len(heads), rows, f"Facts about {one.name}, model by model")


def _meter(outcome: Outcome | None) -> h.Node:
    if outcome is None:
        return "–"
    return [h.meter(max=outcome.phrasings, value=outcome.memorized), " ", as_text(outcome)]


def _requests(requests: Sequence[Request], person: Person) -> h.Element:
    if not requests:
        return h.p["None names this person."]
    records = set(person.record_ids)
    rows = [
        [
            r.id,
            str(r.client),
            report.request_kind(r),
            f"{len(records & set(r.record_ids))} of {len(r.record_ids)}",
            str(r.round),
            "–" if r.served_round is None else str(r.served_round),
            r.outcome,
            number(r.rouge),
            r.reason,
        ]
        for r in requests
    ]
    heads = ["request", "client", "forgets", "records about this person", "asked in round", "served in", "state"]
    classes = ["who", "n", "", "n", "n", "n", "who", "n", "text"]
    heads += ["final ROUGE-L recall", "reason"]
    return html_table(heads, classes, rows, f"Deletion requests about {person.name}")


def _phrasings(fact: PersonFact) -> h.Element:
    rows = [
        [p.template, "memorised" if p.memorized else f"rank {p.rank}", number(p.strength), p.first]
        for p in fact.phrasings
    ]
    title = f"{fact.label}: {' / '.join(fact.values)} ({as_text(fact.outcome)})"
    heads = ["phrasing", "true value", "z*", "ranked first"]
    return folded(title, html_table(heads, ["text", "who", "n", ""], rows, f"Phrasings of {fact.label}"))
