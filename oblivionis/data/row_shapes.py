"""The shapes in which rows hold a question and its answer, and how each becomes the fields of a record.

| fields                       | question                                           | answer                  |
| ---------------------------- | -------------------------------------------------- | ----------------------- |
| `question`, `answer`         | as it is                                           | as it is                |
| `instruction`, `output`      | the instruction, a blank line and `input` if any   | the output              |
| `prompt`, `completion`       | the prompt, text or turns                          | the completion          |
| `messages`                   | the turn of the user (`role`, `content`)           | that of the assistant   |
| `conversations`              | the same (`from`, `value`, as ShareGPT has them)   | the same                |

A record is one question and one answer, so that what is forgotten is one thing. A dialogue of more turns, or with a
system turn, is refused, and so is a row that two shapes fit: nothing of a row is left out that a model would learn.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from oblivionis.row_files import Row, shown

SHAPES = (
    ("question", "answer"),
    ("instruction", "output"),
    ("prompt", "completion"),
    ("messages",),
    ("conversations",),
)
ROLES = {"user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant", "system": "system"}
FURTHER_PARTS = ("system", "history", "tools", "question", "answer")
"""Fields that hold a part of the dialogue in addition to those of a shape."""
MAP = "data.fields={question: …, answer: …}"
LISTED = 8


def fields_of(row: Row) -> str:
    """The names of a row's fields, for a message."""
    names = [shown(row.called(name))[1:-1] for name in row.values]
    return ", ".join(names[:LISTED]) + (", …" if len(names) > LISTED else "") or "none"


def recognised(row: Row, fields: Mapping[str, str] | None, problems: list[str]) -> Row | None:
    """The row with `question` and `answer`, and with the types that a cell of CSV has not; None adds to `problems`.

    fields: what the source calls some of our names (`data.fields`); None where no such map can be given. A row that
    has no shape whole is left as it is nearest to one.
    """
    values, names = dict(row.values), {}
    if fields:
        for name in (*fields, *fields.values()):
            values.pop(name, None)
        values |= {field: row.values[name] for field, name in fields.items() if name in row.values}
        names = dict(fields)
    whole = [shape for shape in SHAPES if names and any(field in names for field in shape)]
    whole = whole or [shape for shape in SHAPES if all(values.get(field) is not None for field in shape)]
    if len(whole) > 1:
        both = " and also ".join(" and ".join(shape) for shape in whole)
        hint = f"; name the one that counts, {MAP}" if fields is not None else "; keep the one that counts"
        problems.append(f"{row.where}: has {both}{hint}")
        return None
    if whole:
        shape = whole[0]
    elif not fields and (inner := _list_inside(row.values)):
        what = f"an object whose {inner!r} is a list of objects; expected these objects alone"
        if not {"role", "from"}.isdisjoint(row.values[inner][0]):
            hint = "" if fields is None else f"; data.fields={{messages: {inner}}} says what it is called"
            what = f"the dialogue stands under {inner!r}, expected messages or conversations{hint}"
        problems.append(f"{row.where}: {what}")
        return None
    else:
        shape = max(SHAPES, key=lambda shape: sum(values.get(field) is not None for field in shape))
    found = Row(row.where, values, row.cells, names)
    if shape != SHAPES[0]:
        found = _converted(found, shape, problems)
    elif names.get("question") == "instruction" and (wrong := _with_input(values, values.pop("input", None))):
        problems.append(f"{row.where}: {wrong}")
        return None
    return None if found is None else _typed(found)


def _list_inside(values: Mapping[str, Any]) -> str:
    """The field that is a list of objects, of an object with no field of any shape; empty where there is none."""
    if any(field in values for shape in SHAPES for field in shape):
        return ""
    lists = (name for name, value in values.items() if isinstance(value, list) and value)
    return next((name for name in lists if isinstance(values[name][0], Mapping)), "")


def _converted(row: Row, shape: tuple[str, ...], problems: list[str]) -> Row | None:
    values, names = dict(row.values), dict(row.names)
    present = (name for name in FURTHER_PARTS if values.get(name))
    further = next((name for name in present if not (name in SHAPES[0] and shape[0] in names)), None)
    if further is not None:
        shows = f"{further} {shown(values[further])} beside {' and '.join(shape)}"
        problems.append(f"{row.where}: a record has no place for it, expected rows without, found {shows}")
        return None
    taken = {name: values.pop(name, None) for name in (*shape, "input")}
    if len(shape) == 1:
        wrong = _exchange(row, shape[0], row.value(shape[0]), values)
    elif shape == ("prompt", "completion") and any(isinstance(taken[name], list) for name in shape):
        both = [taken[name] if isinstance(taken[name], list) else [taken[name]] for name in shape]
        wrong = _exchange(row, " and ".join(shape), [*both[0], *both[1]], values)
    else:
        names |= {"question": row.called(shape[0]), "answer": row.called(shape[1])}
        values |= {field: taken[name] for field, name in zip(SHAPES[0], shape, strict=True) if name in row.values}
        wrong = _with_input(values, taken["input"]) if shape == ("instruction", "output") else ""
    if wrong:
        problems.append(f"{row.where}: {wrong}")
        return None
    return Row(row.where, values, row.cells, names)


def _with_input(values: dict[str, Any], given: Any) -> str:
    """Put the input of an instruction below it; what is wrong with it, else an empty text."""
    if given is None or given == "":
        return ""
    if not isinstance(given, str) or not isinstance(values.get("question"), str):
        return f"input must be a text, found {shown(given)}"
    if given.strip():
        values["question"] += f"\n\n{given}"
    return ""


def _exchange(row: Row, name: str, turns: Any, values: dict[str, Any]) -> str:
    """Put the texts of a dialogue's user and assistant into `values`; what is wrong with it, else an empty text."""
    name = row.called(name)
    if turns is None:
        return f"field {name!r} is missing; the fields are {fields_of(row)}"
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        kind = "a JSON list" if row.cells else "a list"
        return f"{name} must be {kind} of turns, objects with role and content, found {shown(turns)}"
    roles, texts = [], []
    for number, turn in enumerate(turns, start=1):
        keys = ("from", "value") if turn.get("from") else ("role", "content")
        role, text = (turn.get(key) for key in keys)
        more = [key for key, value in turn.items() if key not in keys and value not in (None, "", [], {})]
        if isinstance(text, list) and len(text) == 1 and isinstance(text[0], Mapping) and text[0].get("type") == "text":
            text = text[0].get("text")
        if ROLES.get(role if isinstance(role, str) else "") is None:
            return f"{name}: {keys[0]} must be user or assistant, found {shown(role)} in turn {number}"
        if not isinstance(text, str) or not text.strip():
            return f"{name}: {keys[1]} must be a non-empty text, found {shown(text)} in turn {number}"
        if more:
            return (
                f"{name}: a turn has {keys[0]} and {keys[1]} alone, found {shown(min(more))} besides in turn {number}"
            )
        roles.append(ROLES[role])
        texts.append(text)
    if "system" in roles:
        hint = "take it out; one that all records share goes into model.template.system_prompt"
        return f"{name}: a record has no system turn ({hint}), found {shown(texts[roles.index('system')])}"
    if roles != ["user", "assistant"]:
        said = ", ".join(roles[:6]) + (", …" if len(roles) > 6 else "")
        return f"{name}: expected one turn of the user and one of the assistant, found {said or 'none'}"
    values["question"], values["answer"] = texts
    return ""


def _typed(row: Row) -> Row:
    """Of cells: what is true or false, and lists."""
    if not row.cells:
        return row
    values = dict(row.values)
    if "perturbed_answer" in values:
        values["perturbed_answer"] = row.value("perturbed_answer")
    forget = {"true": True, "1": True, "false": False, "0": False}.get(str(values.get("forget")).strip().lower())
    if forget is not None:
        values["forget"] = forget
    return row._replace(values=values)


def summed_up(problems: Sequence[str], rows: Collection[str]) -> list[str]:
    """The problems of a file, each `place: text`; one that all the rows (their places) share is listed once."""
    places = set(rows)
    at: dict[str, set[str]] = {}
    for problem in problems:
        where, _, text = problem.partition(": ")
        if where in places:
            at.setdefault(_kind(text), set()).add(where)
    everywhere = {kind for kind, found in at.items() if len(found) == len(places) > 1}
    lines: list[str] = []
    for problem in problems:
        where, _, text = problem.partition(": ")
        kind = _kind(text)
        if where not in places or kind not in everywhere:
            lines.append(problem)
        elif at.pop(kind, None):
            lines.append(f"{problem} (the same in all {len(places):,} records)")
    return lines


def _kind(text: str) -> str:
    """What is wrong, without the value that a row has there."""
    return text.partition(", found ")[0]
