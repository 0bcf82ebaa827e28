"""Records that are named like a person, and who says whether they are about that person: never the program."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from oblivionis.data.subjects import Alike
from oblivionis.errors import OblivionisError

ALL = "all"
SHOWN = 20
"""Records in a message."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Ids of the records named alike that are about the person, and of those that are not."""

    included: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()


NOTHING_ALIKE = Decision()
"""What is said where no record is named alike."""


def as_text(alike: Sequence[Alike]) -> str:
    """`named alike: 2 records (r4, subject 'Voss, Mara'; r7, in its text)`; empty for none."""
    if not alike:
        return ""
    shown = "; ".join(f"{a.record_id}, {a.how}" for a in alike[:SHOWN])
    more = f"; and {len(alike) - SHOWN} more" if len(alike) > SHOWN else ""
    return f"named alike: {len(alike)} record{'s' * (len(alike) != 1)} ({shown}{more})"


def decide(
    name: str,
    alike: Sequence[Alike],
    include: Collection[str],
    exclude: Collection[str],
    options: tuple[str, str] = ("--include", "--exclude"),
) -> Decision:
    """Divide the records `alike` to a person's name as `include` and `exclude` say.

    Parameters
    ----------
    include, exclude : collection of str
        Ids of records; `ALL`: all that the other one does not name.
    options : two str
        What the two are called where they are written.

    Raises
    ------
    OblivionisError
        For an id that is not among `alike` or in both, and where a record is in neither, with all of `alike`.
    """
    ids = [a.record_id for a in alike]
    both = set(include) & set(exclude)
    if both:
        raise OblivionisError(f"{' and '.join(options)} both name {min(both)}")
    for option, given in zip(options, (include, exclude), strict=True):
        if unknown := sorted(set(given) - {ALL, *ids}):
            known = as_text(alike) or "no record is"
            raise OblivionisError(f"{option}: {unknown[0]!r} is no record named like {name!r}; {known}")
    rest = [i for i in ids if i not in include and i not in exclude]
    if rest and ALL not in include and ALL not in exclude:
        left = [a for a in alike if a.record_id in rest]
        raise OblivionisError(
            f"{as_text(left)}: {' or '.join(options)} must say of each whether it is about {name!r} "
            f"(ids with commas between, or {ALL})"
        )
    included = {*include, *(rest if ALL in include else ())}
    return Decision(tuple(i for i in ids if i in included), tuple(i for i in ids if i not in included))
