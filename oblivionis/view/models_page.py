"""The models of a folder of runs: which comes of which, and which may still know the records of a demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import htpy as h
from starlette.requests import Request
from starlette.responses import Response

from oblivionis.erasure.lineage import FILE, Model, Models, models_in
from oblivionis.errors import RunError
from oblivionis.naming import MODELS
from oblivionis.reports.markup import html_table, joined, section_heading
from oblivionis.runs import run_files
from oblivionis.runs.ancestry import LINEAGE_FILE
from oblivionis.view import shell
from oblivionis.view.library import Library, NotThere

FILES = ("config.yaml", "requests.jsonl", "judgements.json", "stages/*.json", "checkpoints/*/*")
"""What the models of a run are read from."""
SHOWN, DEMANDS = 200, 6
"""Models on the page, and demands of each."""
DEEPEST = 4
"""So far are models set in below those that they come of."""


@dataclass(frozen=True, slots=True)
class Descendant:
    """A model, so many steps below the first one that it comes of; of: the one that it comes of next."""

    depth: int
    model: Model
    of: Model | None


def respond(request: Request) -> Response:
    """The page."""
    library: Library = request.app.state.library
    folders = _folders(library)
    head: list[h.Node] = [h.h1["Models"]]
    if not folders:
        parts = [*head, h.p["There is no folder of runs here: start the window on one to see its models."]]
        return shell.page(request, "Models", parts)
    chosen = request.query_params.get("folder", next(iter(folders)))
    if chosen not in folders:
        raise NotThere(f"there is no folder of runs {chosen!r} in {library.root}")
    found = _models(request, folders[chosen])
    tree = descendants(found.models)
    anchors = {one.model.model: f"m{number}" for number, one in enumerate(tree[:SHOWN])}
    parts = [
        *head,
        h.p(".sub")[
            "Each stands below the one that it comes of. A model is its trained parameters, wherever they lie."
        ],
        _choice(folders, chosen) if len(folders) > 1 else None,
        section_heading("open", "Who may still know a demanded record"),
        _open(found, anchors),
        section_heading("lineage", "Lineage"),
        _tree(tree, found, anchors, library),
        [h.p(".bad")[f"Not read: {line}"] for line in found.damaged],
        h.p(".terms")[
            "Demands are those made on nodes, or by a schedule; what a policy plays belongs to its run alone. ",
            h.code["oblivionis model retire"],
            " closes the demands of a model that is used no more.",
        ],
    ]
    return shell.page(request, "Models", parts)


def descendants(models: Sequence[Model]) -> list[Descendant]:
    """The models as a tree, each after the one that it comes of next and before what comes of its later siblings."""
    known = {model.model: model for model in models}
    above = {model.model: _parent(model, known) for model in models}
    below: dict[str | None, list[Model]] = {}
    for model in models:
        parent = above[model.model]
        below.setdefault(parent and parent.model, []).append(model)
    found: list[Descendant] = []
    seen: set[str] = set()
    for first in [*below.get(None, ()), *models]:  # the latter: hostile ledgers may say that two come of each other
        waiting = [(0, first)]
        while waiting:
            depth, model = waiting.pop()
            if model.model not in seen:
                seen.add(model.model)
                found.append(Descendant(depth, model, above[model.model] if depth else None))
                waiting += [(depth + 1, child) for child in reversed(below.get(model.model, []))]
    return found


def _parent(model: Model, known: Mapping[str, Model]) -> Model | None:
    """The latest listed model that a model comes of. Descents rather name too many: a retrained model is not drawn
    below the finetuned one of its run, also where the run took that over from another."""
    for digest in reversed(model.descent.models[:-1]):
        one = known.get(digest)
        own = one is not None and one.stage == "finetune" and model.name in (one.name, *one.places)
        if one is not None and not (model.stage == "retrain" and own):
            return one
    return None


def _folders(library: Library) -> dict[str, Path]:
    """The folders in which runs lie, by name; nothing is looked at above the library."""
    parents = dict.fromkeys(path.parent for path in library.found().runs.values())
    inside = [path for path in parents if path.is_relative_to(library.root)]
    return {path.relative_to(library.root).as_posix(): path for path in sorted(inside)}


def _models(request: Request, folder: Path) -> Models:
    """The models of a folder, read again once a file changed that they were read from."""
    library: Library = request.app.state.library
    kept: dict[Path, tuple[bytes, Models]] = request.app.state.lineages

    def inside(path: Path) -> None:
        if not path.resolve().is_relative_to(library.root):
            raise RunError(f"{path} is outside of {library.root}, and is not looked at")
        library.check(path)

    if (folder / FILE).is_symlink():
        inside((folder / FILE).resolve().parent)
    now = _digest(library, folder, kept.get(folder))
    if folder not in kept or kept[folder][0] != now:
        found = models_in(folder, check=inside)
        kept[folder] = _digest(library, folder, (b"", found)), found
    return kept[folder][1]


def _digest(library: Library, folder: Path, known: tuple[bytes, Models] | None) -> bytes:
    """What is another one once a file changed that the models are read from; known: them, as they were read."""
    runs = [path for path in library.found().runs.values() if path.parent == folder]
    exported = [Path(p) for m in (known[1].models if known else ()) for p in m.places if Path(p).is_absolute()]
    files = [run_files.at(folder, FILE), *(run_files.at(path, LINEAGE_FILE) for path in exported)]
    return run_files.digest([*files, *(file for run in runs for file in run_files.seen(run, FILES))])


def _choice(folders: Mapping[str, Path], chosen: str) -> h.Element:
    links = [
        h.a(href=shell.address("/models", [("folder", name)]), aria_current="true" if name == chosen else None)[name]
        for name in folders
    ]
    return h.nav(".tabs", aria_label="Folders")["Folder: ", links]


def _open(found: Models, anchors: Mapping[str, str]) -> h.Node:
    """By demand the models that may know its records."""
    demands = dict.fromkeys(name for model in found.models for name in model.open)
    rows: list[list[h.Node]] = []
    for name in list(demands)[:SHOWN]:
        models = [model for model in found.models if name in model.open]
        links = [_link(model, anchors) for model in models[:DEMANDS]]
        rows.append([name, [joined(links, ", "), _more(len(models) - DEMANDS)]])
    if not rows:
        return h.p["No model, as far as the ledgers here tell."]
    what = "The models that may still know the records of each demand"
    more = h.p[f"The first {SHOWN} of {len(demands)} demands."] if len(demands) > SHOWN else None
    return [html_table(["demand", "may still be known to"], ["who", ""], rows, what), more]


def _link(model: Model, anchors: Mapping[str, str]) -> h.Node:
    """To a model, where it is on the page."""
    anchor = anchors.get(model.model)
    return h.a(href=f"#{anchor}")[model.what] if anchor else model.what


def _tree(tree: Sequence[Descendant], found: Models, anchors: Mapping[str, str], library: Library) -> h.Node:
    if not tree:
        return h.p["No run here has finished a stage yet."]
    more = h.p[f"The first {SHOWN} of {len(tree)} models."] if len(tree) > SHOWN else None
    return [h.ul(".lineage")[[_item(one, found, anchors, library) for one in tree[:SHOWN]]], more]


def _item(one: Descendant, found: Models, anchors: Mapping[str, str], library: Library) -> h.Element:
    model = one.model
    places = [
        h.a(href=shell.run_address(name))[place] if (name := library.name_of(found.folder / place)) else place
        for place in model.places
    ]
    of = [" comes of the ", _link(one.of, anchors)] if one.of is not None else None
    return h.li(id=anchors[model.model], class_=[f"d{min(one.depth, DEEPEST)}", {"open": bool(model.open)}])[
        h.p[h.b[MODELS.get(model.stage, model.stage or "first")], f" model of {model.name}", of],
        h.p(".about")[h.code[model.short], " lies in ", joined(places, ", ") if places else "no place that is known"],
        h.p[f"Retired: {model.retired}"] if model.retired else _demands(model),
    ]


def _demands(model: Model) -> list[h.Element]:
    """The demands whose records it knew, by what became of them; the open ones first."""
    states, still = model.demands, set(model.open)
    names: dict[tuple[bool, str], list[str]] = {}
    for name in (*model.open, *(name for name in states if name not in still)):
        names.setdefault((name in still, states[name]), []).append(name)
    return [
        h.p[h.span(class_={"bad": known})[f"{'may still know' if known else 'knew'} {_some(of)}"], f": {state}"]
        for (known, state), of in names.items()
    ]


def _some(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    return ", ".join(names[:DEMANDS]) + _more(len(names) - DEMANDS)


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""
