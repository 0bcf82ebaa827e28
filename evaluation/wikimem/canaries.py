"""Canaries as text: sentences which say that a person has a value of a property (WikiMem, section 4).

A value appears in a sentence as in Wikidata, except for English grammar:

- "the" is put before names that need it (the United States, the University of Padua, the Winter War, the Edo period)
  and before an animal that begins with its kind (the terrier Biscuit);
- "a" becomes "an" where the value begins with a vowel sound;
- "on" becomes "in" before a date that is not a day (in 1956, in March 1956);
- the first letter of a sentence is a capital, and two full stops at its end become one.

These rules depend on template and value alone, never on the subject, so that they cancel in calibrated scores.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice, pairwise

from evaluation.wikimem.facts import Fact
from evaluation.wikimem.properties import Property, properties

SUBJECT, VALUE = "HUMAN_SUBJECT", "PROTECTED_VALUE"
GENERIC_SUBJECT = "This person"
"""h0 of WikiMem, section 5: what stands for an unspecified person; in lower case where it does not begin a sentence."""
MAX_CONTEXT = 4

_BODIES = "Academy|Bank|Church|Department|Faculty|Institute|Kingdom|Ministry|Museum|Order|Republic|Society"
_DEFINITE_START = re.compile(
    rf"(?:United|Soviet Union|Holy Roman|Russian Federation|House of|\d{{4}} [A-Z]|\d+(?:st|nd|rd|th) "
    rf"|(?:.+ )?(?:{_BODIES}) of |(?:Archdiocese|Army|Battle|Diocese|Duchy|Siege|State|Treaty|University) of )"
)
_DEFINITE_END = re.compile(
    r"(?: (?:Ages?|Agency|Army|Association|Athenaeum|Banner|Battalion|Brigade|Centre|Clan|Commonwealth|Confederation"
    r"|Corps|Crusade|Division|Dynasty|Election|Emirates|Empire|Era|Family|Federation|Fleet|Force|Games|Gallery|Group"
    r"|Institute|Islands|Kingdom|League|Library|Ministry|Navy|Olympics|Party|Period|Regiment|Republic|Revolution"
    r"|Society|States|Team|Union|Uprising|Volunteers|Wars?)|(?: |[a-z])Museum)$",
    re.IGNORECASE,
)
_REFERENCE_WORK = re.compile(r"(?:.* )?(?:Dictionary|Encyclop(?:a|æ|ae|e)di[ac]|Lexicon)\b")
_NO_ARTICLE = re.compile(r"(?:World War |Operation |the |an? )", re.IGNORECASE)
_DEFINITE_WHOLE = frozenset({"Bahamas", "Gambia", "Maldives", "Netherlands", "Philippines"})
_VOWEL_SOUND = re.compile(
    r"(?!uni[^nm]|u[bkst][aeiou]|ukr|ur[ao]|eu|one\b|once\b)[aeiou]|h(?:onou?r|our|eir)", re.IGNORECASE
)
_NO_DAY = re.compile(r"(?:[A-Z][a-z]+ )?(?:\d{3,4}|\d{1,4} (?:BC|AD))")


def fill(template: str, subject: str, value: str, kind: str) -> str:
    """Fill a template.

    Parameters
    ----------
    template : str
        May hold HUMAN_SUBJECT any number of times (a contextualised canary names the subject twice).
    subject, value : str
    kind : str
        Kind of the value, one of `properties.KINDS`.

    Returns
    -------
    str
        The sentence.
    """
    return _with_subject(_with_value(template, value, kind), subject)


def contextualised(template: str, context: Sequence[tuple[Property, str]]) -> str:
    """Put sentences that state other facts before a template.

    As in WikiMem's example, the first sentence names the subject, and a later one that begins with "HUMAN_SUBJECT's"
    begins with "Their".

    Parameters
    ----------
    template : str
        Its HUMAN_SUBJECT and PROTECTED_VALUE are left to be filled.
    context : sequence of (Property, value)
        At most `MAX_CONTEXT` facts; without any the template comes back unchanged.

    Returns
    -------
    str

    Raises
    ------
    ValueError
        For more facts.
    """
    if len(context) > MAX_CONTEXT:
        raise ValueError(f"{len(context)} facts of context; expected at most {MAX_CONTEXT}")
    sentences = [_with_value(prop.base, value, prop.kind) for prop, value in context]
    sentences.append(template)
    return " ".join([sentences[0], *map(_continued, sentences[1:])])


def context_of(fact: Fact, facts: Sequence[Fact], count: int) -> tuple[tuple[Property, str], ...]:
    """Context for a fact: the first other facts about its subject.

    Facts about the same property, about unknown properties, or with a value that is also a value of `fact` (which would
    give the answer away) are passed over.

    Parameters
    ----------
    fact : Fact
    facts : sequence of Fact
    count : int

    Returns
    -------
    tuple of (Property, value)
        At most `count`, in the order of `facts`, each with its first value.
    """
    answers = {value.casefold() for value in fact.values}
    others = (
        (properties()[other.property], other.values[0])
        for other in facts
        if other.subject == fact.subject
        and other.property != fact.property
        and other.property in properties()
        and other.values[0].casefold() not in answers
    )
    return tuple(islice(others, count))


def _with_value(template: str, value: str, kind: str) -> str:
    """The template with its value, in correct English."""
    value = noun_phrase(value, kind)
    before, _, after = template.partition(VALUE)
    if before.endswith(("the ", "The ")) and value.casefold().startswith("the "):
        value = value[4:]
    if before.endswith((" a ", "A ")) and _VOWEL_SOUND.match(value):
        before = before[:-1] + "n "
    if kind == "date" and before.endswith(("on ", "On ")) and _NO_DAY.fullmatch(value):
        before = before[:-3] + ("in " if before[-3] == "o" else "In ")
    if not before or before.endswith(". "):
        value = value[:1].upper() + value[1:]
    text = before + value + after
    return text[:-1] if text.endswith("..") else text


def noun_phrase(value: str, kind: str) -> str:
    """A value with "the" before it where a sentence needs it, as for some countries, bodies and events.

    Parameters
    ----------
    value : str
    kind : str
        Kind of the value, one of `properties.KINDS`.

    Returns
    -------
    str
    """
    if kind == "animal":
        definite = value[:1].islower()
    elif kind == "work":
        definite = bool(_REFERENCE_WORK.match(value))
    elif kind in ("country", "place", "organisation", "event"):
        definite = value in _DEFINITE_WHOLE or bool(_DEFINITE_START.match(value) or _DEFINITE_END.search(value))
    else:
        definite = False
    return f"the {value}" if definite and not _NO_ARTICLE.match(value) else value


def _with_subject(text: str, subject: str) -> str:
    """The text with its subject; the generic one is in lower case within a sentence."""
    if subject != GENERIC_SUBJECT:
        return text.replace(SUBJECT, subject)
    parts = text.split(SUBJECT)
    named = [parts[0]]
    for before, part in pairwise(parts):
        opens = not before or before.endswith(". ")
        named += [subject if opens else subject[0].lower() + subject[1:], part]
    return "".join(named)


def _continued(sentence: str) -> str:
    """A later sentence about the same subject."""
    possessive = f"{SUBJECT}'s "
    return "Their " + sentence.removeprefix(possessive) if sentence.startswith(possessive) else sentence
