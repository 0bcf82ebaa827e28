"""Writes the reference page of the library from its signatures and docstrings.

`python -m oblivionis.api.reference > docs/reference/library.md`
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import oblivionis

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "library.md"
HEAD = """# The library

What `from oblivionis import …` gives. How to use it, with four examples: [the guide](../guides/library.md); how long it
stays as it is: [versions](versions.md). Made from the code; do not edit it by hand, but run
`python -m oblivionis.api.reference > docs/reference/library.md`. Here stand signatures and first sentences; whole
docstrings are what `help(oblivionis.evaluate_model)` prints, and stand on the site, which
`mkdocs build --strict -f docs/site/mkdocs.yml` builds.

Names are imported when they are first used: `import oblivionis` loads nothing heavy. Functions take plain arguments and
return frozen dataclasses, mappings and numpy arrays. Errors that a caller can fix are `OblivionisError`, `ConfigError`
or `ValueError`; the docstrings name them.
"""
SECTIONS = {
    "A model's knowledge": ("evaluate_model", "Evaluation", "load_model", "ModelLike", "Rows", "PromptTemplate"),
    "Federation": ("FedTU", "UnlearnRequest", "RequestList", "federation", "aggregators"),
    "Runs": ("simulate", "simulated_clients", "Run", "losses"),
    "Leakage of sampled answers": ("leakage_bounds", "LeakageBounds", "leakage"),
    "Representations": ("ruler",),
    "Facts about people": ("wikimem",),
    "Errors": ("OblivionisError", "ConfigError", "DataError", "ModelError", "RunFailed", "RunInterrupted"),
}


def page() -> str:
    """The page. What stands between a comment with a name and the end is what the site has its own entry for."""
    parts, known = [HEAD], dict(names())
    for section, shown in SECTIONS.items():
        parts.append(f"## {section}\n")
        for name in shown:
            value = getattr(oblivionis, name)
            inner = [f"{name}.{one}" for one in sorted(value.__all__)] if isinstance(value, ModuleType) else [name]
            parts += [f"### The namespace `{name}`\n"] if isinstance(value, ModuleType) else []
            parts += [f"<!-- ::: oblivionis.{name} -->", *(_entry(one, known[one]) for one in inner), "<!-- end -->\n"]
    return "\n".join(parts)


def names() -> Iterator[tuple[str, Any]]:
    """Every public name and what it stands for: those of `oblivionis`, and behind a dot those of its namespaces."""
    for name in sorted(oblivionis.__all__):
        value = getattr(oblivionis, name)
        yield name, value
        if isinstance(value, ModuleType):
            yield from ((f"{name}.{inner}", getattr(value, inner)) for inner in sorted(value.__all__))


def signature(value: Any) -> str:
    """The parameters and the result of what is public, as they are written.

    Parameters
    ----------
    value : object
        A function, a class, or anything else.

    Returns
    -------
    str
        E.g. `(rank: int) -> float`; empty for what cannot be called.
    """
    if isinstance(value, ModuleType | property) or not callable(value) or getattr(value, "_is_protocol", False):
        return ""
    try:
        found = inspect.signature(value)
    except ValueError:  # a type alias, or an exception of the plain kind
        return ""
    plain = [p.replace(annotation=_Bare(p.annotation)) if _told(p) else p for p in found.parameters.values()]
    result = found.return_annotation
    return str(found.replace(parameters=plain, return_annotation=_Bare(result) if isinstance(result, str) else result))


def _entry(name: str, value: Any) -> str:
    own = value if inspect.isclass(value) or inspect.isroutine(value) else None
    first = " ".join((inspect.getdoc(own) or "").partition("\n\n")[0].split())
    return f"\n```python\n{name}{signature(value)}\n```\n{first}\n" if first else f"\n```python\n{name}\n```\n"


def _told(parameter: inspect.Parameter) -> bool:
    return isinstance(parameter.annotation, str)


class _Bare(str):
    """An annotation that is shown as it is written."""

    def __repr__(self) -> str:
        return str(self)


if __name__ == "__main__":
    sys.stdout.write(page())
