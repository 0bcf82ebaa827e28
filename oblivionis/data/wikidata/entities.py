"""What a line of a Wikidata dump says: people with their statements, properties, labels, and values as text.

The layout is Wikibase's JSON: one entity a line, empty maps also written as empty lists. Of the statements those of
rank preferred or normal with a value count; "unknown value" and "no value" do not. Values of the datatypes item,
string, quantity and time are read:

- item: the item's label in the language asked for, else its label for all languages (`mul`);
- string: as it is;
- quantity: the amount, with commas from five digits on, and the label of the unit ("178 centimetres": frequent units
  have their English plural);
- time: "12 March 1956", "March 1956" or "1956" by its precision, in the calendar of the statement; years before 1 end
  in BC, those before 100 in AD. What is only known to the decade or less is left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

INSTANCE_OF, HUMAN = "P31", "Q5"
DATATYPES = MappingProxyType({"wikibase-item": "item", "string": "string", "quantity": "quantity", "time": "time"})
"""The datatypes that are read, by Wikibase's name for them."""
REJECTED = MappingProxyType(
    {
        "too_long": "longer than 64 MiB",
        "not_utf8": "not UTF-8",
        "not_json": "not JSON",
        "cut_off": "last line, cut off",
        "not_object": "JSON, but no object",
        "no_id": "without the id of an entity",
        "odd_structure": "an object, but not laid out like an entity",
    }
)
"""Why a line is rejected."""
LEFT_OUT = MappingProxyType(
    {
        "imprecise_time": "a time known to the decade or less",
        "unusable_text": "a string without a character to read, or longer than Wikidata allows",
        "odd_value": "a value that is not laid out as its datatype asks",
    }
)
"""Why a statement of a person that has a value gives no text."""

MAX_TEXT = 1500
"""Longest text in characters that is read; Wikidata allows no longer strings, and shorter labels."""

_ID = re.compile(r"[A-Z][1-9][0-9]{0,17}")
_AMOUNT = re.compile(r"([+-]?)([0-9]{1,127})(\.[0-9]{1,127})?")
_TIME = re.compile(r"([+-])([0-9]{1,16})-([0-9]{2})-([0-9]{2})T")
_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November")
_MONTHS += ("December",)
_YEAR, _MONTH, _DAY = 9, 10, 11
_WIKIPEDIA = re.compile(r"[a-z0-9_]+wiki")
_NO_WIKIPEDIA = re.compile(
    r"(?:commons|foundation|incubator|mediawiki|meta|outreach|sources|species|test2?|wikidata|wikifunctions|wikimania)wiki"
)
_UNITS = ("centimetre", "metre", "kilometre", "gram", "kilogram", "pound", "second", "minute", "hour", "day", "week")
_UNITS += ("month", "year", "euro", "United States dollar", "point")
_PLURALS = MappingProxyType({"foot": "feet", "inch": "inches"} | {unit: f"{unit}s" for unit in _UNITS})


class Rejected(ValueError):
    """A line that is no entity; `kind` is one of `REJECTED`."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class Value(NamedTuple):
    """A value of a statement.

    text: what can be said without other entities, such as the amount of a quantity; entity: the id of the item or unit
    whose label belongs to it, or "".
    """

    text: str
    entity: str = ""

    def with_label(self, labels: Mapping[str, str]) -> str | None:
        """The value as text, None where `labels`, texts by id, has no text for its entity."""
        if not self.entity:
            return self.text
        label = labels.get(self.entity)
        if label is None or not self.text:
            return label
        return f"{self.text} {label if self.text in ('1', '-1') else _PLURALS.get(label, label)}"


class Usage(NamedTuple):
    """How a person uses a property: its datatype, one of `DATATYPES`' values, and the distinct values, maybe none."""

    datatype: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Human:
    """A person. name: the label, or None; editions: how many Wikipedias have an article; usages: by property, in the
    order of the entity and without `INSTANCE_OF`; left_out: how many values gave no text, by `LEFT_OUT`."""

    id: str
    name: str | None
    editions: int
    usages: Mapping[str, Usage]
    left_out: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FoundProperty:
    """A property of the dump. datatype: one of `DATATYPES`' values; label, description: maybe None."""

    datatype: str
    label: str | None
    description: str | None
    aliases: tuple[str, ...]


def entity_of(line: bytes) -> dict[str, Any] | None:
    """The entity of a line, None for a blank line or a bracket of the array around all. Raises Rejected."""
    text = line.strip()
    if text.startswith(b"[") and text[1:].lstrip().startswith(b"{"):
        text = text[1:]
    if text.endswith(b"]") and text[:-1].rstrip().endswith(b"}"):
        text = text[:-1].rstrip()
    text = text.removesuffix(b",")
    if text in (b"", b"[", b"]", b"[]"):
        return None
    try:
        entity = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise Rejected("not_json" if is_utf8(text) else "not_utf8") from None
    if not isinstance(entity, dict):
        raise Rejected("not_object")
    identifier = entity.get("id")
    if not isinstance(identifier, str) or not _ID.fullmatch(identifier):
        raise Rejected("no_id")
    return entity


def is_utf8(text: bytes) -> bool:
    try:
        return text.isascii() or bool(text.decode())
    except UnicodeDecodeError:
        return False


def label_of(entity: Mapping[str, Any], language: str) -> str | None:
    """The label in `language`, else that for all languages, or None. Raises Rejected for an odd structure."""
    labels = _map(entity.get("labels"))
    for name in (language, "mul"):
        if name in labels:
            text = _text(_map(labels[name]).get("value"))
            if text:
                return text
    return None


def human_of(entity: Mapping[str, Any], language: str) -> Human | None:
    """The person that an entity is (P31 is Q5), or None. Raises Rejected for an odd structure."""
    claims = _map(entity.get("claims"))
    if INSTANCE_OF not in claims or not entity["id"].startswith("Q"):
        return None
    kinds = _usage(claims[INSTANCE_OF], Counter())
    if kinds is None or Value("", HUMAN) not in kinds.values:
        return None
    left_out: Counter[str] = Counter()
    usages: dict[str, Usage] = {}
    for name, statements in claims.items():
        usage = _usage(statements, left_out)
        if usage is None or name == INSTANCE_OF:
            continue
        if not (name.startswith("P") and _ID.fullmatch(name)):
            raise Rejected("odd_structure")
        usages[name] = usage
    sites = _map(entity.get("sitelinks"))
    editions = sum(1 for site in sites if _WIKIPEDIA.fullmatch(site) and not _NO_WIKIPEDIA.fullmatch(site))
    return Human(entity["id"], label_of(entity, language), editions, usages, left_out)


def property_of(entity: Mapping[str, Any], language: str) -> FoundProperty | None:
    """The property that an entity is, None for items and other datatypes. Raises Rejected for an odd structure."""
    datatype = DATATYPES.get(_text(entity.get("datatype")))
    if datatype is None or not entity["id"].startswith("P"):
        return None
    description = _text(_map(_map(entity.get("descriptions")).get(language)).get("value"))
    aliases = (_text(_map(alias).get("value")) for alias in _list(_map(entity.get("aliases")).get(language)))
    return FoundProperty(datatype, label_of(entity, language), description or None, tuple(filter(None, aliases)))


def _usage(statements: Any, left_out: Counter[str]) -> Usage | None:
    """What the statements of a property say, None without a value or for datatypes that are not read."""
    datatype, values, used = "", {}, False
    for statement in _list(statements):
        snak = _map(_map(statement).get("mainsnak"))
        datatype = DATATYPES.get(_text(snak.get("datatype")), "")
        if not datatype:
            return None
        if statement.get("rank") == "deprecated" or snak.get("snaktype") != "value":
            continue
        used = True
        value = _READ[datatype](_map(snak.get("datavalue")).get("value"))
        if isinstance(value, Value):
            values[value] = None
        else:
            left_out[value] += 1
    return Usage(datatype, tuple(values)) if used else None


def _item(value: Any) -> Value | str:
    identifier = value.get("id") if isinstance(value, dict) else None
    return Value("", identifier) if isinstance(identifier, str) and _ID.fullmatch(identifier) else "odd_value"


def _string(value: Any) -> Value | str:
    if not isinstance(value, str):
        return "odd_value"
    text = _text(value)
    return Value(text) if text else "unusable_text"


def _quantity(value: Any) -> Value | str:
    if not isinstance(value, dict):
        return "odd_value"
    amount = _AMOUNT.fullmatch(_text(value.get("amount")))
    unit = _text(value.get("unit")).rpartition("/")[2]
    if amount is None or not (unit == "1" or _ID.fullmatch(unit)):
        return "odd_value"
    sign, whole, fraction = amount.groups(default="")
    whole = f"{int(whole):,}" if int(whole) > 9999 else str(int(whole))
    return Value(sign.removeprefix("+") + whole + fraction, "" if unit == "1" else unit)


def _time(value: Any) -> Value | str:
    if not isinstance(value, dict):
        return "odd_value"
    point, precision = _TIME.match(_text(value.get("time"))), value.get("precision")
    if point is None or not isinstance(precision, int):
        return "odd_value"
    if precision < _YEAR:
        return "imprecise_time"
    sign, year, month, day = point[1], int(point[2]), int(point[3]), int(point[4])
    if not year or (precision >= _MONTH and not 1 <= month <= 12) or (precision >= _DAY and not 1 <= day <= 31):
        return "odd_value"
    era = " BC" if sign == "-" else " AD" if year < 100 else ""
    text = f"{year}{era}"
    if precision >= _MONTH:
        text = f"{_MONTHS[month - 1]} {text}"
    return Value(f"{day} {text}" if precision >= _DAY else text)


_READ = MappingProxyType({"item": _item, "string": _string, "quantity": _quantity, "time": _time})


def _map(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    if value is None or value == []:
        return {}
    raise Rejected("odd_structure")


def _list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    if value is None or value == {}:
        return []
    raise Rejected("odd_structure")


def _text(value: Any) -> str:
    """A text with its white space made single blanks; "" for anything else, and for more than `MAX_TEXT` characters."""
    return " ".join(value.split()) if isinstance(value, str) and len(value) <= MAX_TEXT else ""
