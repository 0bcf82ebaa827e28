"""`node.toml` in a client's own folder: what the client does for a server, whatever the server says.

Read anew for every message; `oblivionis.client.node_policy_guard` enforces it. Where the file is absent the defaults
below hold.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from oblivionis.config import dataset_traits
from oblivionis.config.compose import instance, tree_of
from oblivionis.config.limits import about
from oblivionis.config.problems import Problem, did_you_mean
from oblivionis.config.values import Key, check_value, expectation, keys_of
from oblivionis.errors import FileError, OblivionisError
from oblivionis.files import read_bytes

POLICY_FILE = "node.toml"
MOST_RANK = 4096
"""No adapter has a larger rank: a limit that is none."""
_HEAD = """\
# What this client does for a server, whatever the server says: docs/reference/node-policy.md
# Each line below is a default, and counts once its "# " is taken away. The file is read anew for every message.
"""


class PolicyError(OblivionisError):
    """A `node.toml` that cannot be used; nothing is done for any server then."""


@dataclass
class DataRules:
    """Which records the client is trained on, in addition to those in `data/` of its folder."""

    built_in: bool = field(
        default=True, metadata=about(f"Also the made-up records that the program brings ({dataset_traits.built_in()}).")
    )
    download: bool = field(
        default=False, metadata=about("Also benchmarks (TOFU, MUSE, …) and other data sets from the Hugging Face hub.")
    )


@dataclass
class ModelRules:
    """Which base models the client loads."""

    fingerprints: list[str] = field(
        default_factory=list,
        metadata=about(
            "Fingerprints (`oblivionis model info`) of the base models that may be loaded, no others; empty: the "
            "embedded one, and those below this folder or `folders`."
        ),
    )
    folders: list[str] = field(
        default_factory=list, metadata=about("Further folders in which models may lie, absolute paths.")
    )
    download: bool = field(
        default=False,
        metadata=about(
            "Fetch a model with one of `fingerprints` from the Hugging Face hub; false: only what its cache holds."
        ),
    )


@dataclass
class RequestRules:
    """By whose demand records are buried and audited, and by whose the client leaves."""

    from_server: bool = field(
        default=False,
        metadata=about(
            "Also at the server's word, as a server with a schedule needs it; false: only what `oblivionis request "
            "submit` asked for in this folder."
        ),
    )
    sealed: bool = field(
        default=False,
        metadata=about(
            "Tell no server which requests were made here, and serve none by its name: only cover exchanges "
            "(`unlearning.cover`) do. Excludes `from_server`."
        ),
    )


@dataclass
class UpdateRules:
    """How what the client learned leaves it."""

    masked: bool = field(
        default=False,
        metadata=about(
            "Under masks only, in sums with others (secure aggregation): the server sees no model of its own."
        ),
    )
    least_clients: int = field(
        default=3,
        metadata=about(
            "With `masked`: of so many clients at least, itself included, also if others drop out.", at_least=3
        ),
    )


@dataclass
class LimitRules:
    """How much work the client does."""

    epochs: int = field(default=100, metadata=about("Most passes over the records in one message.", at_least=1))
    lora_rank: int = field(
        default=MOST_RANK,
        metadata=about(
            "Largest LoRA rank that the client trains; a run with `model.lora.ranks` gives it no larger one.",
            at_least=1,
            at_most=MOST_RANK,
        ),
    )
    rounds_per_day: int = field(
        default=1000, metadata=about("Most messages a day (UTC) that train, unlearn or bury.", at_least=0)
    )
    audits_per_day: int = field(default=1000, metadata=about("Most audits a day.", at_least=0))
    queries_per_day: int = field(
        default=10000, metadata=about("Most queries for requests a day: each is a line of the ledger.", at_least=0)
    )
    exchanges: int = field(
        default=3,
        metadata=about(
            "Most cover exchanges that a sealed request goes into before it waits: a server that repeats them among "
            "other clients could narrow down who asks.",
            at_least=1,
        ),
    )
    audit_samples: int = field(
        default=4096, metadata=about("Most answers that an audit samples to a question.", at_least=0)
    )
    audit_tokens: int = field(default=1024, metadata=about("Longest answer in an audit, in tokens.", at_least=1))


@dataclass
class Policy:
    """All keys of `node.toml`."""

    data: DataRules = field(default_factory=DataRules)
    models: ModelRules = field(default_factory=ModelRules)
    requests: RequestRules = field(default_factory=RequestRules)
    updates: UpdateRules = field(default_factory=UpdateRules)
    limits: LimitRules = field(default_factory=LimitRules)


KEYS: dict[str, Key] = {key.path: key for key in keys_of(Policy, Policy(), "")}
_SECTIONS = tuple(f.name for f in fields(Policy))


def read_policy(folder: Path) -> Policy:
    """The policy of the client with that folder. Raises PolicyError with every problem of the file at once."""
    path = folder / POLICY_FILE
    try:
        tree = tomllib.loads(read_bytes(path).decode())
    except FileNotFoundError:
        return Policy()
    except FileError as error:
        raise PolicyError(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"{path} is no TOML file: {error}") from None
    good: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, value in _leaves(tree):
        if name not in KEYS:
            hint = did_you_mean(name, KEYS) or did_you_mean(name, _SECTIONS)
            problems.append(Problem(name, "unknown key", "" if hint else f"one of {', '.join(KEYS)}", hint))
            continue
        good[name], problem = check_value(KEYS[name], value)
        problems += [problem] if problem else _more(name, good[name])
    if good.get("requests.sealed") and good.get("requests.from_server"):
        what = "true as `requests.from_server` is: what a server may name, it knows"
        problems.append(Problem("requests.sealed", what, "one of the two"))
    if problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise PolicyError("\n".join([f"{path}: {count}", *(f"  {problem}" for problem in problems)]))
    return instance(Policy, tree_of(good))


def example() -> str:
    """A `node.toml` that names every key with its meaning and its default, all commented out."""
    lines = [_HEAD]
    for section in _SECTIONS:
        lines.append(f"[{section}]")
        for key in KEYS.values():
            if key.path.startswith(f"{section}."):
                limits = f" ({expectation(key)})" if key.about.range() else ""
                lines.append(f"# {key.about.help}{limits}")
                lines.append(f"# {key.path.partition('.')[2]} = {json.dumps(key.default)}")
        lines.append("")
    return "\n".join(lines)


def _leaves(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for section, content in tree.items():
        if section in _SECTIONS and isinstance(content, dict):
            yield from ((f"{section}.{name}", value) for name, value in content.items())
        else:
            yield section, content


def _more(name: str, value: Any) -> list[Problem]:
    """What is wrong with a value beyond its type."""
    if name == "models.fingerprints":
        wrong, expected = [v for v in value if not re.fullmatch(r"[0-9a-f]{64}", v)], "64 hexadecimal digits"
    elif name == "models.folders":
        wrong, expected = [v for v in value if not Path(v).expanduser().is_absolute()], "absolute paths"
    else:
        return []
    return [Problem(name, f"{v!r} is none", expected) for v in wrong]
