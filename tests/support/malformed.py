"""Shared by tests: see `test_malformed_files`. What becomes of files, and of the values in JSON."""

from __future__ import annotations

import copy
import json
import os
import random
import re

NUMBER = re.compile(rb"(?<=[:\[ ])-?\d+(\.\d+)?(?=[,}\]\s])")


def _number(text, new):
    """The first number of a text replaced; where it has none, a line with one more key would be no malformed file."""
    return NUMBER.sub(new, text, count=1)


def _cut(text):
    """The first half, up to the middle of a line."""
    lines = text.splitlines(keepends=True)
    kept, last = lines[: len(lines) // 2], lines[len(lines) // 2] if lines else b""
    return b"".join(kept) + last[: len(last) // 2]


def _twice(text):
    """The first key of the first object given twice, first with another value."""
    return re.sub(rb'\{\s*"([^"]+)":', rb'{"\1": null, "\1":', text, count=1)


BYTES = {
    "truncated": _cut,
    "less its end": lambda t: t.rstrip()[:-2],
    "empty": lambda t: b"",
    "binary": lambda t: random.Random(0).randbytes(4096),
    "BOM": lambda t: b"\xef\xbb\xbf" + t,
    "UTF-16": lambda t: t.decode("utf-8", "replace").encode("utf-16"),
    "Latin-1": lambda t: t.replace(b'"', b'"\xe9', 1),
    "NUL": lambda t: t[: len(t) // 2] + b"\0\0\0" + t[len(t) // 2 :],
    "zeros": lambda t: bytes(len(t)),
    "nested": lambda t: b"[" * 200_000,
    "nested objects": lambda t: b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "5,000 digits": lambda t: _number(t, b"1" * 5000),
    "NaN": lambda t: _number(t, b"NaN"),
    "Infinity": lambda t: _number(t, b"-Infinity"),
    "1e999": lambda t: _number(t, b"1e999"),
    "a number": lambda t: b"5\n",
    "a text": lambda t: b'"text"\n',
    "a list": lambda t: b"[[1, 2], [3]]\n",
    "null": lambda t: b"null\n",
    "key twice": _twice,
    "huge line": lambda t: b'{"x": "' + b"y" * 3_000_000 + b'"}\n' + t,
    "CRLF": lambda t: t.replace(b"\n", b"\r\n"),
    "surrogate": lambda t: re.sub(rb'": "', rb'": "\\ud800', t, count=1),
    "escape": lambda t: re.sub(rb'": "', rb'": "\\u001b]0;x\\u0007', t, count=1),
}


def _folder(path):
    path.mkdir()


def _loop(path):
    path.symlink_to(path.name)


def _other_loop(path):
    path.with_name(f"{path.name}-2").symlink_to(path.name)
    path.symlink_to(f"{path.name}-2")


PLACES = {
    "folder": _folder,
    "symlink loop": _loop,
    "two links": _other_loop,
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
}
WRONG = (None, "text", 7, -1.5, [], {}, True, ["a", 1], {"a": {"b": []}})


def paths_of(value, least=0, most=3, at=()):
    """Where the values of a JSON value stand, the first of each list only."""
    if len(at) >= least and at:
        yield at
    if len(at) < most and isinstance(value, dict):
        for key in value:
            yield from paths_of(value[key], least, most, (*at, key))
    elif len(at) < most and isinstance(value, list) and value:
        yield from paths_of(value[0], least, most, (*at, 0))


def changed(value, path, new):
    """`value` with `new` at `path`; without what is there for `KeyError`."""
    value = copy.deepcopy(value)
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    if new is KeyError:
        del inner[path[-1]]
    else:
        inner[path[-1]] = new
    return value


def _alike(one, other):
    """Whether both are of one type of JSON."""
    numbers = [isinstance(v, int | float) and not isinstance(v, bool) for v in (one, other)]
    return all(numbers) or type(one) is type(other)


def variants(value, number, seed):
    """`number` times `value` with another type somewhere, or something missing, and in words what that is."""
    rng = random.Random(seed)
    places = list(paths_of(value))
    found = []
    while len(found) < number:
        path = rng.choice(places)
        inner = value
        for key in path:
            inner = inner[key]
        new = rng.choice([KeyError, *(w for w in WRONG if not _alike(w, inner))])
        what = "missing" if new is KeyError else json.dumps(new)
        found.append((f"{'.'.join(map(str, path))} {what}", changed(value, path, new)))
    return found
