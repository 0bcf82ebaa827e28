"""Wikidata properties that describe people, with eleven canary templates each (WikiMem, section 4).

`properties.json` holds them: ids and labels are those of Wikidata, everything else is in our own words. The gaps are
HUMAN_SUBJECT and PROTECTED_VALUE; `canaries.fill` fills them. `counterfactuals.json` holds values of other people for
some of the properties, by id.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

PARAPHRASES = 10
COUNTERFACTUALS_FILE = "counterfactuals.json"
DATATYPES = ("item", "string", "quantity", "time")
KINDS = MappingProxyType(
    {
        "animal": "a single animal: a name, or a kind and a name (terrier Biscuit)",
        "award": "an award or a record, without article (Booker Prize)",
        "belief": "a religion, ideology or way of life (Buddhism)",
        "code": "a number or code that is not counted with (23, G4XYZ)",
        "country": "a state or a similar power (Portugal)",
        "date": "a day, a month with a year, a year, or a day of the year (12 March 1956, 1956, 17 March)",
        "event": "a war, election, tournament, mission, epoch or other event (2012 Summer Olympics)",
        "field": "a subject or activity (geology)",
        "genre": "a genre (gothic romance)",
        "group": "a people, tribe or class (Kurds)",
        "language": "a language (Welsh)",
        "name": "a part of a name, a further name, or the name of an account (Lindqvist)",
        "occupation": "an occupation in the singular, without article (baker)",
        "organisation": "an organisation, team, family or institution (Siemens)",
        "person": "a person, real or not (Ingrid Haugen)",
        "place": "a town, building or other place (Bergen)",
        "position": "an office or post, without article (Minister of Finance)",
        "quantity": "a number, where it has a unit with it (178 centimetres)",
        "sport": "a sport or discipline (handball)",
        "term": "a word of a fixed vocabulary (brown, A+, epilepsy)",
        "thing": "an object, material or possession (glasses)",
        "title": "a title, degree or rank, without article (colonel)",
        "vehicle": "a ship, aircraft or other vehicle (HMS Beagle)",
        "work": "the title of a work (War and Peace)",
    }
)
"""What a value of each kind looks like in a sentence."""


@dataclass(frozen=True, slots=True)
class Property:
    """A Wikidata property that describes people.

    Attributes
    ----------
    id : str
        Such as P19.
    label : str
        Wikidata's English label.
    description : str
    aliases : tuple of str
        Other names.
    datatype : str
        One of `DATATYPES`.
    kind : str
        One of `KINDS`.
    example : str
        A value that reads well in every canary.
    base : str
        The declarative canary.
    paraphrases : tuple of str
        `PARAPHRASES` further canaries that say the same.
    """

    id: str
    label: str
    description: str
    aliases: tuple[str, ...]
    datatype: str
    kind: str
    example: str
    base: str
    paraphrases: tuple[str, ...]

    @property
    def canaries(self) -> tuple[str, ...]:
        """The base and its paraphrases: eleven sentences with both gaps."""
        return (self.base, *self.paraphrases)


@cache
def properties() -> MappingProxyType[str, Property]:
    """All properties by id, in the order of the file.

    Returns
    -------
    mapping of Property
    """
    rows = json.loads(Path(__file__).with_name("properties.json").read_text(encoding="utf-8"))
    found = [
        Property(**row | {"aliases": tuple(row["aliases"]), "paraphrases": tuple(row["paraphrases"])}) for row in rows
    ]
    return MappingProxyType({prop.id: prop for prop in found})


@cache
def counterfactuals() -> MappingProxyType[str, tuple[str, ...]]:
    """Built-in values of other people by property id, at least 100 each.

    There are some for the properties of the fictitious authors and a few more; the rest are read from another source,
    such as a Wikidata dump (`read_counterfactuals`).

    Returns
    -------
    mapping of tuples of str
    """
    return read_counterfactuals(Path(__file__).with_name(COUNTERFACTUALS_FILE))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; ValueError for a key that is given twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found


def read_counterfactuals(source: Path) -> MappingProxyType[str, tuple[str, ...]]:
    """Read values of other people by property id.

    Parameters
    ----------
    source : Path
        A file like `counterfactuals.json`, or a folder that holds one, such as `oblivionis wikimem build` writes.

    Returns
    -------
    mapping of tuples of str

    Raises
    ------
    ValueError
        Where there is no such file, or its layout is wrong.
    """
    path = source / COUNTERFACTUALS_FILE if source.is_dir() else source
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is no file")
        lists = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_once)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected JSON with counterfactuals by property id ({error})") from error
    if not isinstance(lists, dict) or not lists:
        raise ValueError(f"{path}: expected an object with at least one property id, such as P19, and its values")
    for prop, values in lists.items():
        if not isinstance(values, list) or not values or not all(isinstance(v, str) and v.strip() for v in values):
            raise ValueError(f"{path}: {prop} must have a list of one or more non-empty texts")
    return MappingProxyType({prop: tuple(values) for prop, values in lists.items()})
