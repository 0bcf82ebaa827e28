"""The properties, canaries and counterfactuals: every sentence is read."""

import json
import re
from datetime import datetime
from fnmatch import fnmatch
from pathlib import Path

import pytest
from flwr.common.constant import FAB_INCLUDE_PATTERNS

import evaluation.wikimem.properties as module
from evaluation.wikimem.canaries import GENERIC_SUBJECT, MAX_CONTEXT, context_of, contextualised, fill, noun_phrase
from evaluation.wikimem.facts import Fact
from evaluation.wikimem.properties import DATATYPES, KINDS, counterfactuals, properties, read_counterfactuals

PAPER_PROPERTIES = 243
SUBJECT, VALUE = "HUMAN_SUBJECT", "PROTECTED_VALUE"
ALL = list(properties().values())
EVERY_CANARY = [(property, canary) for property in ALL for canary in property.canaries]


def normalised(sentence: str) -> str:
    return " ".join(re.findall(r"\w+", sentence.casefold()))


def test_there_are_as_many_properties_as_in_the_paper_with_well_formed_unique_ids():
    raw = json.loads(Path(module.__file__).with_name("properties.json").read_text(encoding="utf-8"))
    assert len(raw) == len(ALL) >= PAPER_PROPERTIES
    assert all(re.fullmatch(r"P[1-9]\d{0,4}", property.id) for property in ALL)
    assert len({property.label for property in ALL}) == len(ALL)


def test_well_known_ids_have_their_labels():
    known = {
        "P19": "place of birth",
        "P21": "sex or gender",
        "P27": "country of citizenship",
        "P106": "occupation",
        "P569": "date of birth",
        "P1412": "languages spoken, written or signed",
        "P1853": "blood type",
        "P1971": "number of children",
    }
    assert {id: properties()[id].label for id in known} == known


@pytest.mark.parametrize("property", ALL, ids=lambda property: property.id)
def test_description_aliases_and_kinds(property):
    assert property.datatype in DATATYPES
    assert property.kind in KINDS
    assert (property.datatype == "quantity") == (property.kind == "quantity")
    assert property.datatype != "time" or property.kind == "date"
    assert property.description[0].islower() or property.description.startswith(("Arabic", "Roman", "Swiss"))
    assert not property.description.endswith(".")
    names = [property.label, *property.aliases]
    assert len(property.aliases) >= 2
    assert len({name.casefold() for name in names}) == len(names)
    assert all(name == name.strip() and name for name in [*names, property.description, property.example])


@pytest.mark.parametrize("property", ALL, ids=lambda property: property.id)
def test_canaries_are_eleven_different_sentences_with_both_gaps(property):
    canaries = property.canaries
    assert len(canaries) == 11 and canaries[0] == property.base
    for canary in canaries:
        assert canary.count(SUBJECT) == canary.count(VALUE) == 1
        words = re.sub(rf"{SUBJECT}|{VALUE}", "X", canary)
        assert canary.endswith(".") and canary.count(".") == 1
        assert words[0].isupper(), canary
        assert re.fullmatch(r"[\w ,:;'/–.-]+", words), canary
        assert not re.search(r"  | [,.:;]|[,:;](?! )|_|\bX(?!'s\b)\w|\b(\w+) \1\b", words), canary
        assert len(words.split()) >= 3
    forms = [normalised(canary) for canary in canaries]
    assert len(set(forms)) == 11
    # A frame around another sentence ("It is known that …") is no paraphrase; "X is Y" is inside many.
    assert not any(a != b and len(a.split()) > 3 and f" {a} " in f" {b} " for a in forms for b in forms)


def test_no_sentence_serves_two_properties():
    owners: dict[str, str] = {}
    for property, canary in EVERY_CANARY:
        assert owners.setdefault(normalised(canary), property.id) == property.id, canary


@pytest.mark.parametrize("property", ALL, ids=lambda property: property.id)
def test_paraphrases_vary_in_order(property):
    first = [canary.index(VALUE) < canary.index(SUBJECT) for canary in property.canaries]
    assert any(first) and first.count(False) >= 3
    openings = {tuple(canary.split()[:2]) for canary in property.canaries}
    assert len(openings) >= 5


def test_articles_and_prepositions_before_the_value_fit_its_kind():
    definite = {"award", "term", "thing", "group", "organisation"}
    for property, canary in EVERY_CANARY:
        before = canary[: canary.index(VALUE)].casefold().split()
        word = before[-1] if before else ""
        assert word not in ("a", "an") or property.kind == "occupation", canary
        assert word != "the" or property.kind in definite, canary
        if property.kind == "date":
            assert word not in ("in", "at", "the"), canary
        if property.kind == "quantity":
            assert word not in ("on", "in"), canary


def test_every_filled_sentence_reads_cleanly():
    for property, canary in EVERY_CANARY:
        for value in [property.example, *counterfactuals().get(property.id, ())]:
            text = fill(canary, "Ada Vos", value, property.kind)
            assert "Ada Vos" in text and SUBJECT not in text and VALUE not in text
            assert text.endswith(".") and not text.endswith(".."), text
            assert not re.search(r"\b([Tt]he|[Aa]n?) (the|an?)\b", text), text
            if property.kind == "occupation":
                assert not re.search(r"\b[Aa] (?=[aeio])|\b[Aa]n (?=[^aeiouh])", text), text
            assert not text[0].islower() or property.kind == "name", text


FILLED = [
    ("P569", 1, "1956", "Ada Vos was born in 1956."),
    ("P569", 1, "March 1956", "Ada Vos was born in March 1956."),
    ("P569", 2, "1956", "In 1956, Ada Vos was born."),
    ("P569", 2, "12 March 1956", "On 12 March 1956, Ada Vos was born."),
    ("P569", 2, "1956-03-12", "On 1956-03-12, Ada Vos was born."),
    ("P569", 2, "44 BC", "In 44 BC, Ada Vos was born."),
    ("P841", 1, "17 March", "The feast of Ada Vos is celebrated on 17 March."),
    ("P106", 1, "engineer", "Ada Vos works as an engineer."),
    ("P106", 1, "university teacher", "Ada Vos works as a university teacher."),
    ("P106", 1, "unionist", "Ada Vos works as a unionist."),
    ("P106", 1, "urologist", "Ada Vos works as a urologist."),
    ("P106", 1, "urban planner", "Ada Vos works as an urban planner."),
    ("P106", 1, "euphonium player", "Ada Vos works as a euphonium player."),
    ("P106", 1, "usher", "Ada Vos works as an usher."),
    ("P106", 1, "hourly worker", "Ada Vos works as an hourly worker."),
    ("P106", 1, "undertaker", "Ada Vos works as an undertaker."),
    ("P106", 1, "honorary consul", "Ada Vos works as an honorary consul."),
    ("P106", 8, "engineer", "An engineer is what Ada Vos became."),
    ("P27", 1, "United States", "Ada Vos is a citizen of the United States."),
    ("P27", 4, "Netherlands", "The passport of Ada Vos was issued by the Netherlands."),
    ("P27", 1, "France", "Ada Vos is a citizen of France."),
    ("P607", 1, "World War II", "Ada Vos fought in World War II."),
    ("P607", 1, "Battle of Hastings", "Ada Vos fought in the Battle of Hastings."),
    ("P69", 2, "University of Padua", "The University of Padua is the alma mater of Ada Vos."),
    ("P69", 1, "Elmford College", "Ada Vos studied at Elmford College."),
    ("P1411", 1, "The Booker Prize", "Ada Vos was nominated for the Booker Prize."),
    ("P1429", 1, "terrier Biscuit", "Ada Vos keeps the terrier Biscuit as a pet."),
    ("P1429", 1, "Bo", "Ada Vos keeps Bo as a pet."),
    ("P6758", 3, "Celtic F.C.", "Ada Vos cheers for Celtic F.C."),
    ("P509", 2, "pneumonia", "Pneumonia proved fatal to Ada Vos."),
]


@pytest.mark.parametrize(("id", "index", "value", "text"), FILLED)
def test_values_are_put_into_a_sentence_as_english_demands(id, index, value, text):
    property = properties()[id]
    assert fill(property.canaries[index], "Ada Vos", value, property.kind) == text


def test_a_title_keeps_its_article_and_a_reference_work_gets_one():
    assert noun_phrase("War and Peace", "work") == "War and Peace"
    assert noun_phrase("Dictionary of National Biography", "work") == "the Dictionary of National Biography"
    assert noun_phrase("The Hague", "place") == "The Hague"
    assert noun_phrase("United States", "person") == "United States"


def test_the_generic_subject_is_written_small_inside_a_sentence():
    assert fill(f"{SUBJECT}'s father is {VALUE}.", GENERIC_SUBJECT, "Bo", "person") == "This person's father is Bo."
    assert fill(f"{VALUE} raised {SUBJECT}.", GENERIC_SUBJECT, "Bo", "person") == "Bo raised this person."
    twice = f"{SUBJECT} sang. {SUBJECT} was taught by {VALUE}, said {SUBJECT}."
    assert (
        fill(twice, GENERIC_SUBJECT, "Bo", "person")
        == "This person sang. This person was taught by Bo, said this person."
    )


def test_the_filled_value_does_not_depend_on_the_subject():
    for property, canary in EVERY_CANARY:
        one, other = (fill(canary, name, property.example, property.kind) for name in ("Ada Vos", "Ira Umm"))
        assert one.replace("Ada Vos", "Ira Umm") == other


CONTEXT = [("P27", "United States"), ("P19", "South Jamaica"), ("P106", "rapper"), ("P607", "Cold War")]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "50 Cent's number of children is 2."),
        (1, "50 Cent's country of citizenship is the United States. Their number of children is 2."),
        (
            3,
            "50 Cent's country of citizenship is the United States. Their place of birth is South Jamaica. "
            "Their occupation is rapper. Their number of children is 2.",
        ),
        (
            4,
            "50 Cent's country of citizenship is the United States. Their place of birth is South Jamaica. "
            "Their occupation is rapper. 50 Cent participated in the Cold War. Their number of children is 2.",
        ),
    ],
)
def test_contextualised_canaries_as_in_the_paper(count, text):
    context = [(properties()[id], value) for id, value in CONTEXT[:count]]
    target = properties()["P1971"]
    template = contextualised(target.base, context)
    assert template.count(VALUE) == 1
    assert fill(template, "50 Cent", "2", target.kind) == text


def test_a_value_that_begins_the_last_sentence_of_a_contextualised_canary_gets_a_capital():
    school = properties()["P69"]
    template = contextualised(school.canaries[2], [(properties()["P6758"], "Celtic F.C.")])
    text = "Ada Vos's favourite team is Celtic F.C. The University of Padua is the alma mater of Ada Vos."
    assert fill(template, "Ada Vos", "University of Padua", school.kind) == text


def test_more_than_four_facts_of_context_are_refused():
    with pytest.raises(ValueError, match="at most 4"):
        contextualised(properties()["P1971"].base, [(ALL[0], "x")] * (MAX_CONTEXT + 1))


def test_context_is_the_first_other_facts_of_the_same_person_that_do_not_give_the_answer_away():
    target = Fact("Ada", "P19", ("Bergen",))
    facts = [
        Fact("Bo", "P106", ("baker",)),
        Fact("Ada", "P551", ("bergen",)),
        Fact("Ada", "P20", ("BERGEN",)),
        target,
        Fact("Ada", "P106", ("nurse", "poet")),
        Fact("Ada", "P26", ("Bo",)),
    ]
    assert [(p.id, value) for p, value in context_of(target, facts, 4)] == [("P106", "nurse"), ("P26", "Bo")]
    assert [(p.id, value) for p, value in context_of(target, facts, 1)] == [("P106", "nurse")]
    assert context_of(target, facts, 0) == ()


def test_a_property_that_has_counterfactuals_has_a_hundred():
    assert set(counterfactuals()) <= set(properties())
    for values in counterfactuals().values():
        assert len({value.casefold() for value in values}) == len(values)
        # Beside 100 counterfactuals there is room for a few ground truths of the list.
        assert len(values) >= 105
        assert all(value == " ".join(value.split()) and value for value in values)


SHAPES = {
    "P26": r"[A-Z][\w-]+ [A-Z][a-z]+",
    "P69": r"[A-Z]\w+ (College|Academy|Institute)",
    "P106": r"[a-z ]+",
    "P136": r"[a-z]+ [a-z ]+",
    "P166": r"([A-Z]\w+ ){2}[A-Z]\w+",
    "P569": r"\d{1,2} [A-Z][a-z]+ \d{4}",
    "P800": r"[A-Z]\w+( and)?( [A-Z]\w+)+",
    "P812": r"[a-z ]+",
    "P1066": r"[A-Z][\w-]+ [A-Z][a-z]+",
    "P1429": r"[a-z]+ [A-Z][a-z]+",
    "P2650": r"[a-z -]+",
    "P3342": r"[A-Z][\w-]+ [A-Z][a-z]+",
    "P6872": r"[A-Z]\w+ [A-Z]\w+",
    "P10673": r"(19|20)\d\d",
}


@pytest.mark.parametrize("id", sorted(counterfactuals()))
def test_counterfactuals_are_of_the_right_kind(id):
    shape = SHAPES.get(id, r"[A-Z][\w-]+( [\w-]+)*")
    assert [value for value in counterfactuals()[id] if not re.fullmatch(shape, value)] == []
    if id == "P569":
        assert all(datetime.strptime(value, "%d %B %Y") for value in counterfactuals()[id])


def test_the_data_files_travel_in_a_flower_bundle():
    for name in ("properties.json", "counterfactuals.json"):
        path = Path(module.__file__).with_name(name)
        assert path.is_file()
        assert any(fnmatch(f"evaluation/wikimem/{name}", pattern) for pattern in FAB_INCLUDE_PATTERNS)


def test_counterfactuals_are_read_from_a_file_or_the_folder_that_holds_it(tmp_path):
    file = tmp_path / "counterfactuals.json"
    file.write_text('{"P19": ["Oslo", "Rome"], "P27": ["Peru"]}', encoding="utf-8-sig")
    expected = {"P19": ("Oslo", "Rome"), "P27": ("Peru",)}
    assert dict(read_counterfactuals(file)) == dict(read_counterfactuals(tmp_path)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no JSON", "expected JSON with counterfactuals"),
        ('{"P19": ["a"], "P19": ["b"]}', "a key is given twice"),
        ("[]", "expected an object with at least one property id"),
        ("{}", "expected an object with at least one property id"),
        ('{"P19": []}', "P19 must have a list of one or more non-empty texts"),
        ('{"P19": ["a", " "]}', "P19 must have a list of one or more non-empty texts"),
        ('{"P19": "Oslo"}', "P19 must have a list of one or more non-empty texts"),
        ('{"P19": ["a"], "P27": [1]}', "P27 must have a list of one or more non-empty texts"),
    ],
)
def test_counterfactuals_that_are_laid_out_differently_are_refused(tmp_path, text, message):
    (tmp_path / "counterfactuals.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_counterfactuals(tmp_path)


def test_counterfactuals_of_no_file_are_refused(tmp_path):
    (tmp_path / "counterfactuals.json").mkdir()
    for source in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ValueError, match="expected JSON with counterfactuals"):
            read_counterfactuals(source)
