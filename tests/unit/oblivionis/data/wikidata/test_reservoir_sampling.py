"""What is counted, drawn and written of a Wikidata dump."""

import json
import random
import re
from collections import Counter

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from support import wikidata_dump as wd

from evaluation.wikimem.canaries import fill
from evaluation.wikimem.properties import counterfactuals, properties, read_counterfactuals
from oblivionis.audits.wikimem_build import build
from oblivionis.data.person_facts import read_facts
from oblivionis.data.wikidata.entities import Rejected, entity_of, human_of
from oblivionis.data.wikidata.reader import OVERSAMPLING, Labels, Options, Survey, wanted_labels
from oblivionis.data.wikidata.reservoir_sampling import IdSet, Reservoir
from oblivionis.data.wikidata.stream import Batch, Position
from oblivionis.data.wikidata.tables import tables

ALL = Options(counterfactuals=100_000, min_humans=1, subjects=100_000)
SOME = Options(counterfactuals=8, min_humans=100, subjects=20)


@pytest.fixture(scope="module")
def data():
    return wd.encoded(wd.world())


@pytest.fixture(scope="module")
def naive(data):
    return wd.Naive(data)


@pytest.fixture(scope="module")
def dump(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("dump") / "world.json.gz"
    path.write_bytes(wd.packed(data, "gz"))
    return path


@pytest.fixture(scope="module")
def everything(dump, tmp_path_factory):
    """The folder of a build whose samples hold all there is, and its summary."""
    out = tmp_path_factory.mktemp("all")
    return out, build(dump, out, ALL)


@pytest.fixture(scope="module")
def sampled(dump, tmp_path_factory):
    """The folder of a build that had to sample."""
    out = tmp_path_factory.mktemp("some")
    build(dump, out, SOME)
    return out


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def surveyed(entities, options=SOME):
    """Both passes over entities in memory."""
    lines = [json.dumps(one, separators=(",", ":")).encode() for one in entities]
    batch = Batch(lines, Position(len(lines)), 0)
    survey = Survey(options)
    survey.read(batch)
    survey.finish()
    labels = Labels(wanted_labels(survey), options.language)
    labels.read(batch)
    return survey, tables(survey, labels.found)


# -- against the naive reading ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_people_and_their_properties_are_counted(everything, naive):
    out, summary = everything
    found = json.loads((out / "properties.json").read_text())
    assert {row["id"]: row["humans"] for row in found} == {name: len(users) for name, users in naive.users.items()}
    assert [row["humans"] for row in found] == sorted((row["humans"] for row in found), reverse=True)
    assert {row["id"]: row["datatype"] for row in found} == {n: wd.DATATYPES[n] for n in naive.users}
    assert summary["entities"] == naive.lines.total()
    assert summary["humans"] == len(naive.humans)
    assert summary["unnamed"] == len(naive.humans) - len(naive.named())
    assert summary["left_out_values"] == dict(naive.left_out)
    assert summary["repeated"] == sum(naive.lines[id] - 1 for id in naive.humans) > 10
    assert summary["rejected"] == {} and summary["closed"]


def test_without_a_limit_all_values_with_a_label_are_counterfactuals(everything, naive):
    out, _ = everything
    expected = {}
    for (name, human), values in naive.values.items():
        if human in naive.named():
            expected.setdefault(name, set()).update(value for value in values if value is not None)
    found = read_counterfactuals(out)
    assert {name: set(values) for name, values in found.items()} == expected
    assert all(len(set(map(str.casefold, values))) == len(values) for values in found.values())


def test_pairs_are_true_of_their_people(everything, sampled, naive):
    for out in (everything[0], sampled):
        found = rows(out / "pairs.jsonl")
        assert [(r["property"], r["value"]) for r in found] == [
            (name, value) for name, values in read_counterfactuals(out).items() for value in values
        ]
        for row in found:
            assert row["value"] in naive.values[row["property"], row["human"]]
            assert row["name"] == naive.labels[row["human"]]


def test_without_a_limit_all_people_of_the_cohorts_are_subjects(everything, naive):
    out, summary = everything
    expected = {}
    for (name, human), values in naive.values.items():
        texts = [value for value in values if value is not None]
        editions = naive.editions(human)
        if human in naive.named() and name in properties() and texts and (1 <= editions <= 3 or editions >= 20):
            cohort = "well-known" if editions >= 20 else "lesser-known"
            expected[naive.labels[human], name] = (tuple(texts), cohort, editions)
    facts = {(fact.subject, fact.property): (fact.values, fact.cohort) for fact in read_facts(out / "subjects.jsonl")}
    assert facts == {key: value[:2] for key, value in expected.items()}
    assert {(r["subject"], r["property"]): r["editions"] for r in rows(out / "subjects.jsonl")} == {
        key: value[2] for key, value in expected.items()
    }
    for cohort in ("well-known", "lesser-known"):
        people = {name for (name, _), value in expected.items() if value[1] == cohort}
        assert summary["subjects"]["written"][cohort] == len(people) > 50


def test_a_sample_has_as_many_values_as_asked_for_and_the_summary_says_where_not(sampled, naive):
    summary = json.loads((sampled / "summary.json").read_text())
    found = read_counterfactuals(sampled)
    assert set(found) == {name for name, users in naive.users.items() if len(users) >= 100}
    assert all(len(found[name]) == 10 for name in ("P19", "P106", "P742", "P9999"))  # a fifth more than 8
    short = {name: len(values) for name, values in found.items() if len(values) < 8}
    assert summary["properties"]["too_few_counterfactuals"]["all"] == len(short)
    assert summary["properties"]["too_few_counterfactuals"]["with_canaries"] == {
        name: count for name, count in short.items() if name in properties()
    }
    facts = read_facts(sampled / "subjects.jsonl")
    assert len({f.subject for f in facts if f.cohort == "well-known"}) == 10
    assert len({f.subject for f in facts if f.cohort == "lesser-known"}) == 10


def test_properties_of_the_dump_are_described_and_those_without_canaries_marked(everything):
    out, summary = everything
    found = {row["id"]: row for row in json.loads((out / "properties.json").read_text())}
    assert found["P19"]["label"] == "label of P19" and found["P19"]["aliases"] == ["other name"]
    assert found["P19"]["description"] == "what it means"
    assert {name for name, row in found.items() if not row["canaries"]} == {"P9998", "P9999"}
    assert (summary["properties"]["with_canaries"], summary["properties"]["without_canaries"]) == (len(found) - 2, 2)
    assert set(summary["properties"]["canaries_of_unkept"]) == set(properties()) - set(found)


def test_rare_properties_are_left_out(dump, tmp_path, naive):
    limit = sorted(len(users) for users in naive.users.values())[4]
    build(dump, tmp_path, Options(min_humans=limit, subjects=0))
    kept = {row["id"] for row in json.loads((tmp_path / "properties.json").read_text())}
    assert kept == {name for name, users in naive.users.items() if len(users) >= limit}
    assert set(read_counterfactuals(tmp_path)) <= kept
    assert (tmp_path / "subjects.jsonl").read_text() == ""


def test_labels_in_another_language(data, dump, tmp_path):
    build(dump, tmp_path, Options(counterfactuals=100_000, min_humans=1, language="de"))
    german = wd.Naive(data, "de")
    expected = {v for (name, h), vs in german.values.items() if name == "P19" and h in german.named() for v in vs}
    assert set(read_counterfactuals(tmp_path)["P19"]) == expected - {None}


# -- values ------------------------------------------------------------------------------------------------------------

LABELS = {"Q1": "Bergen", "Q2": "centimetre", "Q3": "foot", "Q4": "furlong", "Q5": "human"}


@pytest.mark.parametrize(
    ("snak", "expected"),
    [
        (wd.item("P19", "Q1"), "Bergen"),
        (wd.item("P19", "Q77"), None),
        (wd.string("P742", "  Silver\n Wren "), "Silver Wren"),
        (wd.string("P742", "やまだ"), "やまだ"),
        (wd.quantity("P1971", "+4"), "4"),
        (wd.quantity("P1971", "0"), "0"),
        (wd.quantity("P1971", "-3"), "-3"),
        (wd.quantity("P1971", "+9999"), "9999"),
        (wd.quantity("P1971", "+10000"), "10,000"),
        (wd.quantity("P1971", "-1234567.890"), "-1,234,567.890"),
        (wd.quantity("P1971", "+007"), "7"),
        (wd.quantity("P2048", "+178", "Q2"), "178 centimetres"),
        (wd.quantity("P2048", "+1", "Q2"), "1 centimetre"),
        (wd.quantity("P2048", "+6.1", "Q3"), "6.1 feet"),
        (wd.quantity("P2048", "+3", "Q4"), "3 furlong"),
        (wd.quantity("P2048", "+3", "Q77"), None),
        (wd.moment("P569", "+1956-03-12T00:00:00Z", 11), "12 March 1956"),
        (wd.moment("P569", "+1956-03-12T10:20:30Z", 14), "12 March 1956"),
        (wd.moment("P569", "+1956-03-00T00:00:00Z", 10), "March 1956"),
        (wd.moment("P569", "+1956-00-00T00:00:00Z", 9), "1956"),
        (wd.moment("P569", "-0044-03-15T00:00:00Z", 11, "Q1985786"), "15 March 44 BC"),
        (wd.moment("P569", "-0500-00-00T00:00:00Z", 9, "Q1985786"), "500 BC"),
        (wd.moment("P569", "+0033-04-00T00:00:00Z", 10), "April 33 AD"),
        (wd.moment("P569", "+0800-12-25T00:00:00Z", 11), "25 December 800"),
        (wd.moment("P569", "+00000001732-02-22T00:00:00Z", 11), "22 February 1732"),
    ],
)
def test_values_become_text(snak, expected):
    person = human_of(wd.human("Q9", wd.statement(snak)), "en")
    (usage,) = person.usages.values()
    assert [value.with_label(LABELS) for value in usage.values] == [expected]
    assert not person.left_out


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("12 March 1956", "on 12 March 1956"),
        ("15 March 44 BC", "on 15 March 44 BC"),
        ("17 March", "on 17 March"),
        ("March 1956", "in March 1956"),
        ("April 33 AD", "in April 33 AD"),
        ("1956", "in 1956"),
        ("500 BC", "in 500 BC"),
        ("7 BC", "in 7 BC"),
    ],
)
def test_times_of_every_precision_read_well_in_a_canary(value, expected):
    assert fill("HUMAN_SUBJECT was born on PROTECTED_VALUE.", "Ada", value, "date") == f"Ada was born {expected}."


@pytest.mark.parametrize(
    ("snak", "reason"),
    [
        (wd.moment("P569", "+1956-00-00T00:00:00Z", 8), "imprecise_time"),
        (wd.moment("P569", "+1900-00-00T00:00:00Z", 7), "imprecise_time"),
        (wd.moment("P569", "+1956-00-00T00:00:00Z", 11), "odd_value"),
        (wd.moment("P569", "+1956-13-01T00:00:00Z", 11), "odd_value"),
        (wd.moment("P569", "+0000-01-01T00:00:00Z", 9), "odd_value"),
        (wd.moment("P569", "yesterday", 11), "odd_value"),
        (wd.string("P742", " \t"), "unusable_text"),
        (wd.string("P742", "x" * 1501), "unusable_text"),
        (wd.string("P742", {"text": "x"}), "odd_value"),
        (wd.quantity("P1971", "many"), "odd_value"),
        (wd.quantity("P1971", 4), "odd_value"),
        (wd.snak("P19", "item", {"numeric-id": 5}), "odd_value"),
        (wd.snak("P19", "item", None), "odd_value"),
    ],
)
def test_values_that_give_no_text_are_counted_and_still_show_use(snak, reason):
    person = human_of(wd.human("Q9", wd.statement(snak)), "en")
    (usage,) = person.usages.values()
    assert usage.values == () and person.left_out == {reason: 1}


@pytest.mark.parametrize("kind", ["novalue", "somevalue"])
def test_unknown_and_missing_values_and_deprecated_statements_are_no_use(kind):
    empty = {"snaktype": kind, "property": "P19", "datatype": "wikibase-item"}
    deprecated = wd.statement(wd.item("P106", "Q1"), "deprecated")
    person = human_of(wd.human("Q9", wd.statement(empty), deprecated), "en")
    assert person.usages == {}
    both = human_of(wd.human("Q9", wd.statement(empty), wd.statement(wd.item("P19", "Q1"))), "en")
    assert len(both.usages["P19"].values) == 1


def test_only_wikipedias_are_editions():
    sites = ["enwiki", "zh_min_nanwiki", "be_x_oldwiki", "commonswiki", "specieswiki", "wikidatawiki", "metawiki"]
    person = human_of(wd.human("Q9", sites=[*sites, "enwikiquote", "frwikisource", "sourceswiki"]), "en")
    assert person.editions == 3


# -- samples -----------------------------------------------------------------------------------------------------------


def test_every_set_of_items_is_equally_likely_in_a_reservoir():
    counts = Counter()
    for seed in range(20_000):
        reservoir, rng = Reservoir(3), random.Random(seed)
        for item in range(7):
            reservoir.offer(item, rng)
        counts[tuple(sorted(reservoir.items))] += 1
    assert len(counts) == 35
    assert chisquare(list(counts.values())).pvalue > 1e-3


@pytest.mark.slow
def test_counterfactuals_and_subjects_are_drawn_evenly():
    people = []
    for i in range(30):
        name = wd.statement(wd.string("P742", f"name {i}"))
        people.append(
            wd.human(f"Q{100 + i}", name, label=f"Ada {i}", sites=[f"a{j}wiki" for j in range(i % 2 * 20 + 1)])
        )
    drawn, subjects, runs = Counter(), Counter(), 800
    for seed in range(runs):
        found = surveyed(people, Options(seed=seed, counterfactuals=5, min_humans=1, subjects=4))[1]
        assert len(found.counterfactuals["P742"]) == 6 and len(found.subjects) == 4
        drawn.update(found.counterfactuals["P742"])
        subjects.update(row["subject"] for row in found.subjects)
    assert len(drawn) == len(subjects) == 30
    assert chisquare(list(drawn.values())).pvalue > 1e-3
    assert chisquare(list(subjects.values())).pvalue > 1e-3


@given(st.lists(st.integers(0, 100_000), max_size=60))
def test_id_sets_behave_like_sets(numbers):
    found, expected = IdSet(), set()
    for number in numbers:
        assert found.add(number) == (number not in expected)
        expected.add(number)
        found = IdSet(json.loads(json.dumps(found.state())))


def test_a_repeated_person_counts_once():
    ada = wd.human("Q10", wd.statement(wd.string("P742", "a")), label="Ada")
    bob = wd.human("Q11", wd.statement(wd.string("P742", "b")), label="Bob")
    survey, found = surveyed([ada, bob, ada], Options(min_humans=1))
    assert survey.users["P742"] == 2 and survey.counts["repeated"] == 1
    assert sorted(found.counterfactuals["P742"]) == ["a", "b"]


def test_people_who_cannot_be_measured_are_passed_over():
    def person(number, name, value, place=None):
        more = [wd.statement(wd.item("P19", place))] if place else []
        return wd.human(f"Q{number}", wd.statement(wd.string("P742", value)), *more, label=name, sites=["enwiki"])

    people = [person(10, "Ada Lovelace", "a"), person(11, "ADA  lovelace", "b"), person(12, "Q", "c")]
    people += [wd.human("Q13", wd.statement(wd.item("P19", "Q99")), label="No Label", sites=["enwiki"])]
    people += [wd.human("Q14", wd.statement(wd.string("P9998", "d")), label="No Canary", sites=["enwiki"])]
    people += [wd.entity("Q50", label="Bergen"), person(15, "Eve Holm", "e", "Q50")]
    found = surveyed(people, Options(min_humans=1, subjects=20))[1]
    assert {(r["subject"].casefold(), r["property"]) for r in found.subjects} == {
        ("ada lovelace", "P742"),
        ("eve holm", "P742"),  # every other value of P19 is missing
    }
    assert found.summary["subjects"]["passed_over"] == {"name_taken": 1, "no_look_alike": 1, "no_facts": 1}
    assert found.summary["subjects"]["eligible"]["lesser-known"] == 5
    assert found.summary["values_without_label"] == {"pairs": 1, "facts": 1}


def test_the_same_seed_draws_the_same_and_another_seed_something_else(dump, sampled, tmp_path):
    build(dump, tmp_path / "same", SOME)
    for path in sampled.iterdir():
        assert (tmp_path / "same" / path.name).read_bytes() == path.read_bytes()
    build(dump, tmp_path / "other", Options(seed=1, counterfactuals=8, subjects=20))
    for name in ("counterfactuals.json", "pairs.jsonl", "subjects.jsonl"):
        assert (tmp_path / "other" / name).read_bytes() != (sampled / name).read_bytes()


# -- lines of any content -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", ["null", '""', "5", '"five"', '"Q0"', '"Q" ', '["Q5"]', '"Q' + "9" * 5000 + '"'])
def test_ids_must_be_those_of_entities(id):
    with pytest.raises(Rejected) as rejected:
        entity_of(f'{{"type":"item","id":{id}}}'.encode())
    assert rejected.value.kind == "no_id"


@settings(max_examples=150, deadline=None)
@given(st.data())
@pytest.mark.slow
def test_no_bytes_of_a_line_are_fatal(data):
    lines = [orjson.dumps(one) for one in wd.world(20)]
    line = bytearray(data.draw(st.sampled_from(lines)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(line) - 1))
        line[at : at + data.draw(st.integers(0, 30))] = data.draw(st.binary(max_size=3))
    survey = Survey(Options(every_line=data.draw(st.booleans())))
    survey.read(Batch([bytes(line)], Position(1), 0))
    Labels(frozenset({"Q1000"}), "en").read(Batch([bytes(line)], Position(1), 0))
    assert survey.counts["entities"] + survey.rejected.total() <= 1 + line.count(b"\n")


FLOATS = st.floats(allow_nan=False, allow_subnormal=False)
LEAVES = st.none() | st.booleans() | st.integers() | FLOATS | st.text(max_size=5)
KEYS = st.sampled_from(["value", "mainsnak", "datavalue", "datatype", "snaktype", "rank", "en", "P31"])
JSON = st.recursive(
    LEAVES | st.sampled_from(["Q5", "wikibase-item"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
)


def paths(value, path=()):
    """The keys that lead to every value inside."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from paths(inner, (*path, key))


@settings(max_examples=150, deadline=None)
@given(st.data())
@pytest.mark.slow
def test_no_structure_of_an_entity_is_fatal(data):
    one = wd.human(
        "Q9", wd.statement(wd.item("P19", "Q1")), wd.statement(wd.quantity("P2048", "+1", "Q2")), label="A B"
    )
    *places, last = data.draw(st.sampled_from([path for path in paths(one) if path != ("id",)]))
    target = one
    for place in places:
        target = target[place]
    target[last] = data.draw(JSON)
    ada = wd.human("Q10", wd.statement(wd.item("P19", "Q1")), label="Ada Holm", sites=["enwiki"])
    place, kind = wd.entity("Q1", label="Bergen"), {"id": "P2048", "type": "property", "datatype": "quantity"}
    survey, found = surveyed([one, ada, one | kind, place], Options(min_humans=1, every_line=data.draw(st.booleans())))
    assert survey.counts["entities"] + survey.rejected.total() == 4
    assert found.counterfactuals["P19"] == ["Bergen"]


def test_properties_must_have_ids_of_properties():
    one = wd.human("Q9", wd.statement(wd.item("P19", "Q1")))
    for name in ("Q19", "P", "foo", ""):
        with pytest.raises(Rejected) as rejected:
            human_of(one | {"claims": one["claims"] | {name: one["claims"]["P19"]}}, "en")
        assert rejected.value.kind == "odd_structure"


def test_labels_longer_than_wikidata_allows_are_none():
    assert human_of(wd.human("Q9", label="x" * 1500), "en").name == "x" * 1500
    assert human_of(wd.human("Q9", label="x" * 1501), "en").name is None


def test_a_sample_holds_no_more_than_its_size():
    people = [
        wd.human(f"Q{i}", wd.statement(wd.string("P742", f"{i}")), label=f"A {i}", sites=["aawiki"])
        for i in range(10, 900)
    ]
    survey = Survey(Options(counterfactuals=5, subjects=8))
    survey.read(Batch([orjson.dumps(one) for one in people], Position(890), 0))
    assert len(survey.pairs["P742"].items) == OVERSAMPLING * 5 and survey.pairs["P742"].seen == 890
    assert len(survey.subjects["lesser-known"].items) == 4 + 1 + 10


# -- what reads the result ---------------------------------------------------------------------------------------------


def test_counterfactuals_are_read_from_a_folder_or_a_file(sampled):
    assert read_counterfactuals(sampled) == read_counterfactuals(sampled / "counterfactuals.json")
    assert all(isinstance(values, tuple) for values in read_counterfactuals(sampled).values())
    assert set(counterfactuals()) <= set(properties())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "expected JSON with counterfactuals"),
        ("{", "expected JSON with counterfactuals"),
        ("[]", "expected an object with at least one property id"),
        ("{}", "expected an object with at least one property id"),
        ('{"P19": []}', "P19 must have a list of one or more non-empty texts"),
        ('{"P19": ["a", " "]}', "P19 must have a list of one or more non-empty texts"),
        ('{"P19": "Bergen"}', "P19 must have a list of one or more non-empty texts"),
    ],
)
def test_faulty_counterfactuals_are_refused(tmp_path, text, message):
    if text is not None:
        (tmp_path / "counterfactuals.json").write_text(text)
    with pytest.raises(ValueError, match=re.escape("counterfactuals.json: " + message)):
        read_counterfactuals(tmp_path)
