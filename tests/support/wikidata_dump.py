"""A made-up Wikidata dump for tests, and a naive reading of it that holds everything in memory."""

import bz2
import calendar
import gzip
import json
import random
from collections import Counter, defaultdict
from decimal import Decimal

DATATYPES = {"P19": "item", "P106": "item", "P569": "time", "P2048": "quantity", "P1971": "quantity", "P742": "string"}
DATATYPES |= {"P9999": "item", "P9998": "string", "P570": "time"}
WIKIBASE = {"item": "wikibase-item", "time": "time", "quantity": "quantity", "string": "string"}
PLURALS = {"centimetre": "centimetres", "inch": "inches"}
MONTHS = list(calendar.month_name)


def snak(name, datatype, value):
    kinds = {"item": "wikibase-entityid", "time": "time", "quantity": "quantity", "string": "string"}
    return {
        "snaktype": "value",
        "property": name,
        "datavalue": {"value": value, "type": kinds[datatype]},
        "datatype": WIKIBASE[datatype],
    }


def item(name, id):
    return snak(name, "item", {"entity-type": "item", "numeric-id": int(id[1:]), "id": id})


def string(name, text):
    return snak(name, "string", text)


def quantity(name, amount, unit="1"):
    unit = unit if unit == "1" else f"http://www.wikidata.org/entity/{unit}"
    return snak(name, "quantity", {"amount": amount, "unit": unit})


def moment(name, time, precision, model="Q1985727"):
    value = {"time": time, "timezone": 0, "before": 0, "after": 0, "precision": precision}
    return snak(name, "time", value | {"calendarmodel": f"http://www.wikidata.org/entity/{model}"})


def statement(snak, rank="normal"):
    return {"mainsnak": snak, "type": "statement", "id": "Q1$0", "rank": rank}


def entity(id, *statements, label=None, mul=None, sites=(), type="item", **more):
    labels = {"de": {"language": "de", "value": f"{label} auf Deutsch"}} if label else []
    labels = labels or {}
    labels |= {"en": {"language": "en", "value": label}} if label else {}
    labels |= {"mul": {"language": "mul", "value": mul}} if mul else {}
    claims = {}
    for one in statements:
        claims.setdefault(one["mainsnak"]["property"], []).append(one)
    return {
        "type": type,
        **({"datatype": more.pop("datatype")} if "datatype" in more else {}),
        "id": id,
        "labels": labels or [],
        "descriptions": more.pop("descriptions", []),
        "aliases": more.pop("aliases", {}),
        "claims": claims or [],
        "sitelinks": {site: {"site": site, "title": "x", "badges": []} for site in sites},
        "lastrevid": 1,
        **more,
    }


def human(id, *statements, label="", **more):
    return entity(id, statement(item("P31", "Q5")), *statements, label=label, **more)


def property(id, datatype, label, description="what it means", aliases=("other name",)):
    return entity(
        id,
        type="property",
        datatype=datatype,
        label=label,
        descriptions={"en": {"language": "en", "value": description}},
        aliases={"en": [{"language": "en", "value": alias} for alias in aliases]},
    )


def world(count=3000, seed=0):
    """Entities of every sort: `count` of them, a third human, in random order, and some of them once again."""
    rng = random.Random(seed)
    found = [property(id, WIKIBASE[datatype], f"label of {id}") for id, datatype in DATATYPES.items()]
    found += [property("P214", "external-id", "VIAF ID"), property("P7777", "string", "used by nobody")]
    found += [entity("Q174728", label="centimetre"), entity("Q218593", label="inch"), entity("Q4917", label="dollar")]
    places = [f"Q{1000 + i}" for i in range(150)]
    for i, place in enumerate(places):  # some without any label, one with a label for all languages
        found.append(entity(place, label=f"Place {i}" if i % 10 else None, mul="Everywhere" if i == 20 else None))
    for i in range(count):
        id = f"Q{10_000 + i}"
        if rng.random() < 0.6:
            about_five = [statement(item("P1552", "Q5"))] if rng.random() < 0.2 else []
            found.append(entity(id, statement(item("P31", rng.choice(places))), *about_five, label=f"Thing {i}"))
        else:
            found.append(_person(rng, id, i, places))
    rng.shuffle(found)
    return found + rng.sample(found, 100)


def _person(rng, id, i, places):
    statements = [statement(item("P31", "Q5"), rng.choice(("normal", "normal", "preferred")))]
    if rng.random() < 0.05:  # no human: the statement that said so is deprecated, or its value unknown
        statements[0]["rank"] = "deprecated"
    if rng.random() < 0.03:
        statements[0]["mainsnak"] = {"snaktype": "somevalue", "property": "P31", "datatype": "wikibase-item"}
    for name in rng.sample(list(DATATYPES), rng.randint(0, 6)):
        for _ in range(rng.choice((1, 1, 2, 3))):
            statements.append(
                statement(_snak(rng, name, places), rng.choice(("normal",) * 6 + ("deprecated", "preferred")))
            )
    statements.append(statement({**string("P214", f"{i}"), "datatype": "external-id"}))
    wikis = [f"{a}{b}wiki" for a in "abcdef" for b in "nopqrs"]
    sites = [*rng.sample(wikis, rng.choice((0, 1, 2, 3, 7, 20, 30))), "commonswiki", "enwikiquote", "specieswiki"]
    name = f"Person{'abcdefghij'[i % 10]} Number{'klmnopqrst'[i // 10 % 10]}{i}"
    return entity(
        id,
        *statements,
        label=name if rng.random() < 0.9 else None,
        mul=f"Mul {i}" if i % 30 == 0 else None,
        sites=sites,
    )


def _snak(rng, name, places):
    kind = rng.random()
    if kind < 0.05:
        return {
            "snaktype": rng.choice(("novalue", "somevalue")),
            "property": name,
            "datatype": WIKIBASE[DATATYPES[name]],
        }
    if DATATYPES[name] == "item":
        return item(name, rng.choice(places) if kind < 0.9 else "Q99999999")
    if DATATYPES[name] == "string":
        return string(name, rng.choice((f"Name {rng.randint(0, 200)}", "  two \t words ", "Ærøskøbing", " ")))
    if DATATYPES[name] == "quantity":
        return quantity(
            name,
            rng.choice(("+1", "+178", "-2.5", "+12000", "+0", "+1234567.50")),
            rng.choice(("1", "Q174728", "Q218593", "Q555")),
        )
    year = rng.choice((1956, 1830, 500, 33))
    return moment(
        name,
        f"{rng.choice('+++-')}{year:04}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}T00:00:00Z",
        rng.randint(7, 11),
    )


def encoded(entities, *, compact=True):
    """The dump as bytes: an array with an entity on each line."""
    separators = (",", ":") if compact else (", ", ": ")
    lines = [json.dumps(one, separators=separators, ensure_ascii=i % 2 == 0).encode() for i, one in enumerate(entities)]
    return b"[\n" + b",\n".join(lines) + b"\n]\n"


def packed(data, format, members=1):
    """`data` as plain, gzip or bzip2 file of so many members."""
    pack = {"json": bytes, "gz": gzip.compress, "bz2": bz2.compress}[format]
    step = -(-len(data) // members)
    return b"".join(pack(data[i : i + step]) for i in range(0, len(data), step))


class Naive:
    """What a dump says about people, by holding it all.

    lines: number of lines by id; users: people by property; values: texts, None without label, by (property, human).
    """

    def __init__(self, data, language="en"):
        self.entities, self.lines = {}, Counter()
        for line in data.decode().split("\n"):
            if line.strip().rstrip(",") not in ("", "[", "]"):
                one = json.loads(line.strip().rstrip(","))
                self.entities.setdefault(one["id"], one)
                self.lines[one["id"]] += 1
        self.labels = {id: self._label(one, language) for id, one in self.entities.items()}
        self.humans = [id for id, one in self.entities.items() if self._is_human(one)]
        self.users, self.values, self.left_out = defaultdict(set), defaultdict(list), Counter()
        for id in self.humans:
            for name, statements in (self.entities[id]["claims"] or {}).items():
                for one in statements:
                    main = one["mainsnak"]
                    if name == "P31" or one["rank"] == "deprecated" or main["snaktype"] != "value":
                        continue
                    if main["datatype"] not in WIKIBASE.values():
                        continue
                    self.users[name].add(id)
                    self._add(id, name, main)

    def _add(self, id, name, main):
        value = main["datavalue"]["value"]
        if main["datatype"] == "time" and value["precision"] < 9:
            self.left_out["imprecise_time"] += 1
        elif main["datatype"] == "string" and not value.strip():
            self.left_out["unusable_text"] += 1
        elif (text := self._text(main["datatype"], value)) not in self.values[name, id]:
            self.values[name, id].append(text)

    def named(self):
        return {id for id in self.humans if self.labels[id] is not None}

    def editions(self, id):
        others = {"commonswiki", "specieswiki"}
        return sum(site.endswith("wiki") and site not in others for site in self.entities[id]["sitelinks"])

    @staticmethod
    def _label(one, language):
        labels = one["labels"] or {}
        return labels.get(language, labels.get("mul", {"value": None}))["value"]

    @staticmethod
    def _is_human(one):
        for kind in (one["claims"] or {}).get("P31", []):
            main = kind["mainsnak"]
            if (
                kind["rank"] != "deprecated"
                and main["snaktype"] == "value"
                and main["datavalue"]["value"]["id"] == "Q5"
            ):
                return True
        return False

    def _text(self, datatype, value):
        if datatype == "wikibase-item":
            return self.labels.get(value["id"])
        if datatype == "string":
            return " ".join(value.split())
        if datatype == "quantity":
            return self._amount(value)
        day = value["time"].lstrip("+-").split("T")[0]
        year, month, day = map(int, day.split("-"))
        parts = [str(day), MONTHS[month], str(year)][11 - value["precision"] :]
        era = ["BC"] if value["time"][0] == "-" else ["AD"] if year < 100 else []
        return " ".join(parts + era)

    def _amount(self, value):
        amount = Decimal(value["amount"])
        text = f"{amount:,}" if abs(amount) >= 10000 else f"{amount}"
        if value["unit"] == "1":
            return text
        label = self.labels.get(value["unit"].split("/")[-1])
        if label is None:
            return None
        return f"{text} {label if abs(amount) == 1 else PLURALS.get(label, label)}"
