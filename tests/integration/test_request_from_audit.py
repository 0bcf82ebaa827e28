"""From what an audit found memorised to a schedule of deletion requests."""

import json
from dataclasses import replace

import pytest
from support.audits import audit_of, phrasings, write
from support.commands import call

from oblivionis.audits.people_outcomes import (
    Outcome,
    Person,
    PersonFact,
    audits_of,
    person_slug,
    read_audit,
)
from oblivionis.audits.requests_from_audit import plan_requests
from oblivionis.config import compose as configuration
from oblivionis.data.corpora import load_corpus, load_partition
from oblivionis.data.person_facts import PROPERTY_OF, facts_of
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.record_holders import Holdings
from oblivionis.erasure.request import Request
from oblivionis.erasure.schedule import read_schedule
from oblivionis.errors import OblivionisError
from oblivionis.naming import subject_key
from oblivionis.runs.directory import RunDirectory


def fact_of(fact, *strengths):
    return PersonFact(fact.property, "a label", fact.values, f"{fact.subject}/{fact.property}", phrasings(*strengths))


def make_run(folder, *overrides):
    config = configuration.compose("smoke", [f"output={folder}", "data.authors=10", "federation.clients=3", *overrides])
    run = RunDirectory.create(folder, "made")
    run.write_config(configuration.to_yaml(config))
    return run, config, load_corpus(config.data)


@pytest.fixture
def made(tmp_path):
    return make_run(tmp_path)


def people_of(corpus, *strengths):
    """Everybody that the corpus states facts about, each fact memorised with these z*."""
    found = {}
    for fact in facts_of(corpus.train):
        found.setdefault(fact.subject, []).append(fact_of(fact, *strengths))
    return [Person(name, None, name, (), tuple(facts)) for name, facts in found.items()]


def test_outcomes_by_hand():
    (fact,) = [PersonFact("P19", "place of birth", ("Rome",), "x", phrasings(3.0, None, 1.0, None))]
    assert fact.outcome == Outcome(2, 4, 2.0, "Oslo")
    assert [fact.strong(least) for least in (0, 1, 2, 3, 3.5)] == [2, 2, 1, 1, 0]
    assert PersonFact("P19", "b", ("Rome",), "x", phrasings(3.0)).outcome == Outcome(1, 1, 3.0, None)
    assert PersonFact("P19", "b", ("Rome",), "x", phrasings(None)).outcome == Outcome(0, 1, None, "Oslo")
    other = replace(fact, phrasings=phrasings(None, None))
    assert Person("Ana", None, None, (), (fact, other)).rate == 0.25


def test_an_audit_can_be_read_back(made, tmp_path):
    run, _, corpus = made
    found = people_of(corpus, 2.5, None)
    people = [replace(p, facts=tuple(replace(f, before=f.outcome) for f in p.facts)) for p in found]
    audit = audit_of(run, people, against="before")
    assert read_audit(write(audit, tmp_path / "a")) == audit == read_audit(tmp_path / "a" / "audit.json")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "people": [3]}'])
def test_a_file_that_is_no_audit_is_one_message(tmp_path, text):
    (tmp_path / "audit.json").write_text(text)
    result = call("request", "from-audit", tmp_path)
    assert result.code == 2 and "audit.json" in result.err and "Traceback" not in result.err


def test_the_records_asked_for_are_those_that_state_what_is_memorised(made, tmp_path):
    run, config, corpus = made
    folder = write(audit_of(run, people_of(corpus, 2.5)), tmp_path / "a")
    result = call("request", "from-audit", folder, "--at-round", "2")
    assert result.code == 0, result.err
    holder = load_partition(corpus, config).holder
    lines = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    asked = {i: line["client"] for line in lines for i in line["record_ids"]}
    assert asked == {r.id: holder[r.id] for r in corpus.train if {t.property for t in r.triples} & set(PROPERTY_OF)}
    assert len({line["client"] for line in lines}) > 1 and {line["round"] for line in lines} == {2}
    holdings = Holdings.of(corpus, load_partition(corpus, config))
    assert len(read_schedule(folder / "requests.jsonl", holdings, last_round=2).requests) == len(lines)
    outside = len(set(asked) - corpus.forget_ids)
    assert f"{outside} of {len(asked)} records lie outside the forget split" in " ".join(result.out.split())
    for line in lines:
        shown = [r for r in corpus.train if r.id in line["record_ids"]]
        assert f"client {line['client']}: {len(shown)} record" in result.out
        assert shown[0].question[:60] in result.out
        stated = {v for r in shown for t in r.triples if t.property in PROPERTY_OF for v in [t.value]}
        assert all(value in line["reason"] for value in stated)
    assert f"unlearning.requests.file={folder}/requests.jsonl" in result.out and "stages=[unlearn]" in result.out


@pytest.mark.parametrize(("per_round", "at_round"), [(1, 1), (2, 1), (3, 2), (1000, 1)])
def test_requests_can_be_spread_over_rounds(made, tmp_path, per_round, at_round):
    run, config, corpus = made
    folder = write(audit_of(run, people_of(corpus, 2.5)), tmp_path / "a")
    plain = call("request", "from-audit", folder)
    at_once = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    result = call("request", "from-audit", folder, "--per-round", per_round, "--at-round", at_round)
    lines = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    assert [{**line, "round": 1} for line in lines] == at_once and "rounds.unlearn" not in plain.out
    rounds = [line["round"] for line in lines]
    assert rounds == sorted(rounds) and rounds[0] == at_round and len(rounds) > 3
    assert max(map(rounds.count, rounds)) == min(per_round, len(rounds))
    assert set(rounds) == set(range(at_round, rounds[-1] + 1)), "no round is left out"
    more = rounds[-1] > config.federation.rounds.unlearn
    assert more == (f"federation.rounds.unlearn={rounds[-1]}" in result.out)


def test_a_whole_subject_is_looked_up_with_every_client(made, tmp_path):
    run, config, corpus = made
    person = people_of(corpus, 3.0)[0]
    folder = write(audit_of(run, [person]), tmp_path / "a")
    result = call("request", "from-audit", folder, "--scope", "subject", "--out", tmp_path / "s.jsonl")
    assert result.code == 0, result.err
    holdings = Holdings.of(corpus, load_partition(corpus, config))
    requests = read_schedule(tmp_path / "s.jsonl", holdings, last_round=2).requests
    assert {i for r in requests for i in r.record_ids} == {r.id for r in corpus.train if r.subject == person.name}
    assert {r.group for r in requests} == {f"audit-{person_slug(person.name)}"}


@pytest.mark.parametrize(
    ("options", "asks"),
    [
        ({"min_strength": 2.0, "min_phrasings": 1}, True),
        ({"min_strength": 2.0, "min_phrasings": 2}, False),
        ({"min_strength": 1.0, "min_phrasings": 2}, True),
        ({"min_strength": 2.6, "min_phrasings": 1}, False),
    ],
)
def test_thresholds_count_phrasings_of_enough_strength(made, options, asks):
    run, _, corpus = made
    plan = plan_requests(audit_of(run, people_of(corpus, 2.5, 1.0, None)), **options)
    assert bool(plan.demands) is asks


def test_nothing_memorised_writes_no_file(made, tmp_path):
    run, _, corpus = made
    folder = write(audit_of(run, people_of(corpus, None, 1.5)), tmp_path / "a")
    result = call("request", "from-audit", folder)
    assert result.code == 0 and result.err == ""
    assert "Nothing to ask for: no fact is memorised in 1 or more phrasings with a z* of at least 2." in result.out
    assert [path.name for path in folder.iterdir()] == ["audit.json"]


def test_what_no_record_states_is_named(made, tmp_path):
    run, _, corpus = made
    known = people_of(corpus, 3.0)[0]
    foreign = PersonFact("P19", "place of birth", ("Nowhere",), "x", phrasings(4.0))
    people = [replace(known, facts=(*known.facts, foreign)), Person("Ada Roy", None, None, (), (foreign,))]
    plan = plan_requests(audit_of(run, people))
    count = sum(r.subject == known.name for r in corpus.train)
    assert plan.nothing == (
        f"{known.name}, place of birth Nowhere (1 of 1, z* 4.0): none of the {count} records about this person states "
        "it",
        "Ada Roy, place of birth Nowhere (1 of 1, z* 4.0): no record names this person",
    )
    assert [demand.person for demand in plan.demands] == [known.name]
    result = call("request", "from-audit", write(audit_of(run, people[1:]), tmp_path / "a"))
    assert result.code == 0 and "nothing to delete: Ada Roy" in result.out
    assert "no training record states what is memorised" in result.out


def test_one_person_of_several(made):
    run, _, corpus = made
    people = people_of(corpus, 3.0)
    plan = plan_requests(audit_of(run, people), [people[1].name.upper()])
    assert [demand.person for demand in plan.demands] == [people[1].name]
    with pytest.raises(OblivionisError, match=f"nobody called '{people[1].name[:-1]}'; did you mean {people[1].name}"):
        plan_requests(audit_of(run, people), [people[1].name[:-1]])


def test_what_the_unlearned_model_was_asked_before_is_asked_again(made, tmp_path):
    run, config, corpus = made
    holdings = Holdings.of(corpus, load_partition(corpus, config))
    people = people_of(corpus, 3.0)
    first, second = plan_requests(audit_of(run, people[:2])).demands
    ledger = Ledger(run.ledger_path)
    client, records = next(iter(first.records.items()))
    ledger.submit(Request("one", client, tuple(r.id for r in records), 1, "by letter"))
    subject = holdings.subjects.find(second.person)
    for holder, ids in subject.records.items():
        name = f"s-client-{holder:04d}"
        ledger.submit(Request(name, holder, ids, 2, scope="subject", subject=subject.name, group="s"))
    plan = plan_requests(audit_of(run, people[:2], stage="unlearn"))
    assert f"{second.person}" in plan.nothing[-1] and "was asked for all" in plan.nothing[-1]
    folder = write(audit_of(run, people[:3], stage="unlearn"), tmp_path / "a")
    result = call("request", "from-audit", folder)
    assert result.code == 0 and "comes first, at its own rounds" in " ".join(result.out.split())
    requests = read_schedule(folder / "requests.jsonl", holdings).requests
    earlier = [(r.id, r.client, r.record_ids, r.round, r.scope, r.group) for r in ledger]
    assert [(r.id, r.client, r.record_ids, r.round, r.scope, r.group) for r in requests[: len(earlier)]] == earlier
    asked = [i for r in requests for i in r.record_ids]
    assert len(asked) == len(set(asked)), "no record is asked for twice"


MISTAKES = {
    "no such audit": (["nope"], "nope: there is no such file"),
    "unknown scope": (["A", "--scope", "client"], "--scope 'client'; expected one of records, subject"),
    "strength below nothing": (["A", "--min-strength", "-1"], "--min-strength -1.0; expected a number of at least 0"),
    "strength that is none": (["A", "--min-strength", "nan"], "--min-strength nan"),
    "no such person": (["A", "--person", "Zed"], "--person: the audit knows nobody called 'Zed'"),
    "out is a folder": (["A", "--out", "."], "--out"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_message(made, tmp_path, mistake, monkeypatch):
    run, _, corpus = made
    folder = write(audit_of(run, people_of(corpus, 3.0)), tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    arguments, message = MISTAKES[mistake]
    result = call("request", "from-audit", *(folder if a == "A" else a for a in arguments))
    assert result.code == 2 and message in result.err and "Traceback" not in result.err
    assert not (folder / "requests.jsonl").exists()


def test_an_audit_of_no_run_or_of_a_run_that_is_gone(made, tmp_path):
    run, _, corpus = made
    people = people_of(corpus, 3.0)
    with pytest.raises(OblivionisError, match="which no run made: there are no clients"):
        plan_requests(audit_of(None, people))
    with pytest.raises(OblivionisError, match="is no run directory"):
        plan_requests(replace(audit_of(run, people), run=str(tmp_path / "gone")))


def test_the_latest_audit_of_each_stage(made):
    run, _, corpus = made
    for stage, round in (("unlearn", 1), ("unlearn", 2), ("finetune", 2)):
        audit = replace(audit_of(run, people_of(corpus, 3.0), stage), round=round)
        write(audit, run.path / "audits" / f"person-{stage}-{round:04d}")
    (run.path / "audits" / "person-retrain-0002").mkdir()
    (run.path / "audits" / "person-retrain-0002" / "audit.json").write_text("torn")
    found = audits_of(run)
    assert list(found) == ["finetune", "unlearn"] and found["unlearn"].round == 2
    result = call("request", "from-audit", run.path)
    assert result.code == 2 and "person-unlearn-0002" in result.err


def test_slugs_are_file_names_and_tell_people_apart():
    names = ["Zoë Holm", "Zoe Holm", "../../etc", "Лев Толстой", "x" * 300, "Zoë  holm"]
    slugs = [person_slug(name) for name in names]
    assert all(slug and set(slug) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for slug in slugs)
    assert len(set(slugs)) == 5 and slugs[0] == slugs[5] and max(map(len, slugs)) < 60
    assert subject_key(names[0]) == subject_key(names[5])
