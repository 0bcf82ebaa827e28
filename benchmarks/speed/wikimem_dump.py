"""How fast a Wikidata dump is read: MB of decompressed JSON per second of processor time (one core), both passes.

    python -m benchmarks.speed.wikimem_dump [--megabytes 150] [--formats gzip bzip2 plain] [--repeats 3]

The dump is made up, in the layout of the real one: entities of some hundred bytes to tens of KB, labels in up to 60
languages, statements with references, a tenth of the items human. "build" is the whole of `oblivionis wikimem build`:
both passes with checkpoints, and the files. "plain way" opens the file with the standard library and calls json.loads
on every line, once, and does nothing else. Times are of the processor, in turns; of the repeats the median counts.
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from oblivionis.audits.wikimem_build import build
from oblivionis.data.wikidata.reader import Options

LETTERS = {"ru": "абвгдежз", "uk": "абвгдежз", "ar": "ابتثجحخ", "fa": "ابتثجحخ", "ja": "日本人山田", "zh": "中国人民大"}
LANGUAGES = ("en", "de", "fr", "es", "it", "pt", "nl", "pl", "sv", "he", "cs", "ko", "tr", "vi", "fi", "hu", *LETTERS)
LANGUAGES += tuple(f"x{language}" for language in LANGUAGES) + tuple(f"y{language}" for language in LANGUAGES)
SUFFIXES = {"gzip": ".json.gz", "bzip2": ".json.bz2", "plain": ".json"}
OTHER_KINDS = ("Q13442814", "Q4167836", "Q16521", "Q515", "Q523", "Q11424")
ITEM_PROPERTIES = ("P21", "P27", "P19", "P20", "P106", "P69", "P166", "P1412", "P735", "P734", "P26", "P39", "P54")
IDENTIFIERS = ("P214", "P213", "P227", "P244", "P268", "P269", "P345", "P646", "P856")


def word(rng: random.Random, language: str) -> str:
    return "".join(rng.choices(LETTERS.get(language, "abcdefghijklmnopqrstuvw"), k=rng.randint(4, 11)))


def snak(prop: str, datatype: str, kind: str, value: Any) -> dict[str, Any]:
    data = {"value": value, "type": kind}
    return {"snaktype": "value", "property": prop, "datavalue": data, "datatype": datatype}


def item(prop: str, number: int) -> dict[str, Any]:
    value = {"entity-type": "item", "numeric-id": number, "id": f"Q{number}"}
    return snak(prop, "wikibase-item", "wikibase-entityid", value)


def referred(rng: random.Random) -> int:
    """The number of an item that a statement names: the smaller, the more often, up to a hundred million."""
    return int(10 ** rng.uniform(1, 8))


def point_in_time(prop: str, rng: random.Random) -> dict[str, Any]:
    value = {
        "time": f"+{rng.randint(1800, 2010)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}T00:00:00Z",
        "timezone": 0,
        "before": 0,
        "after": 0,
        "precision": rng.choice((11, 11, 11, 9)),
        "calendarmodel": "http://www.wikidata.org/entity/Q1985727",
    }
    return snak(prop, "time", "time", value)


def statement(snak: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    found = {"mainsnak": snak, "type": "statement", "id": f"Q1${rng.getrandbits(128):032x}", "rank": "normal"}
    if rng.random() < 0.5:
        sources = {"P248": [item("P248", rng.randint(10**5, 10**8))], "P813": [point_in_time("P813", rng)]}
        found["references"] = [{"hash": f"{rng.getrandbits(160):040x}", "snaks": sources, "snaks-order": list(sources)}]
    return found


def entity(number: int, human: bool, rng: random.Random) -> dict[str, Any]:
    """One item of the dump, as a JSON object."""
    spoken = rng.sample(LANGUAGES[1:], min(int(rng.expovariate(1 / 12)), 60))
    labels = {tongue: {"language": tongue, "value": word(rng, tongue) + " " + word(rng, tongue)} for tongue in spoken}
    labels["en"] = {"language": "en", "value": f"{word(rng, 'en').title()} {word(rng, 'en').title()}"}
    described = rng.sample(LANGUAGES, len(spoken))
    snaks = [item("P31", 5 if human else int(rng.choice(OTHER_KINDS)[1:]))]
    wide = int(rng.expovariate(1 / 10)) + 2
    if human:
        snaks += [item(p, referred(rng)) for p in rng.choices(ITEM_PROPERTIES, k=wide)]
        snaks += [point_in_time("P569", rng)]
    else:
        snaks += [item(rng.choice(("P279", "P361", "P17", "P50")), referred(rng)) for _ in range(wide)]
    snaks += [snak(p, "external-id", "string", f"{rng.getrandbits(40)}") for p in rng.choices(IDENTIFIERS, k=wide // 2)]
    claims: dict[str, list[dict[str, Any]]] = {}
    for one in snaks:
        claims.setdefault(one["property"], []).append(statement(one, rng))
    return {
        "type": "item",
        "id": f"Q{number}",
        "labels": labels,
        "descriptions": {
            tongue: {"language": tongue, "value": " ".join(word(rng, tongue) for _ in range(4))} for tongue in described
        },
        "aliases": {tongue: [{"language": tongue, "value": word(rng, tongue)}] for tongue in spoken[::3]},
        "claims": claims,
        "sitelinks": {f"{t}wiki": {"site": f"{t}wiki", "title": labels[t]["value"], "badges": []} for t in spoken[::2]},
        "pageid": number,
        "ns": 0,
        "title": f"Q{number}",
        "lastrevid": rng.getrandbits(31),
        "modified": "2024-05-01T12:00:00Z",
    }


def lines(megabytes: float, seed: int) -> Iterator[bytes]:
    """The lines of a dump of about so many MB."""
    rng = random.Random(seed)
    left, number = int(megabytes * 1e6), 9
    yield b"[\n"
    while left > 0:
        number += 1
        line = json.dumps(entity(number, rng.random() < 0.1, rng), separators=(",", ":")).encode()
        left -= len(line)
        yield line + (b",\n" if left > 0 else b"\n")
    yield b"]\n"


def opened(path: Path) -> BinaryIO | gzip.GzipFile | bz2.BZ2File:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    return bz2.open(path, "rb") if path.suffix == ".bz2" else open(path, "rb")


def plain_way(path: Path) -> int:
    """How many lines json.loads reads."""
    entities = 0
    with opened(path) as file:
        for line in file:
            text = line.strip().rstrip(b",")
            if text not in (b"[", b"]"):
                json.loads(text)
                entities += 1
    return entities


def seconds(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=150, help="decompressed JSON")
    parser.add_argument("--formats", nargs="+", choices=SUFFIXES, default=list(SUFFIXES))
    parser.add_argument("--repeats", type=int, default=3, help="turns, of which the median counts")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    made = list(lines(options.megabytes, options.seed))
    data = b"".join(made)
    megabytes = len(data) / 1e6
    print(f"{megabytes:.0f} MB of JSON, {len(made) - 2} entities, {megabytes * 1e3 / (len(made) - 2):.1f} kB each")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.formats:
            path = Path(folder) / f"dump{SUFFIXES[name]}"
            pack = {"gzip": gzip.compress, "bzip2": bz2.compress, "plain": bytes}[name]
            path.write_bytes(pack(data))
            times: dict[str, list[float]] = {}
            for repeat in range(options.repeats):
                for way, every_line in (("build", False), ("build --every-line", True)):
                    out = Path(folder) / f"{name}{repeat}{every_line}"
                    settings = Options(min_humans=10, every_line=every_line)
                    times.setdefault(way, []).append(seconds(partial(build, path, out, settings)))
                times.setdefault("plain way", []).append(seconds(partial(plain_way, path)))
            plain = statistics.median(times["plain way"])
            for way, found in times.items():
                median = statistics.median(found)
                spread = f"{megabytes / max(found):,.0f} to {megabytes / min(found):,.0f}"
                print(
                    f"{name:6} {way:19}{megabytes / median:7,.0f} MB/s  ({spread})  {plain / median:5.1f} x plain way"
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
