"""Which models still know the records of which demands: by the runs of a folder, and by the ledger of a node.

A demand is about every model that knew its records, whichever run served it. A model is known by its hash, so that
copies, moved and renamed runs are one. What no run's ledger keeps lies in `models.jsonl` beside the runs, chained like
a ledger (`oblivionis.chain`): which models were exported, which runs began with another's model, and which models are
used no more. A model of which that is said is closed for all demands.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from oblivionis.chain import Chain, check_chain
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.request import COVERED, OPEN, PENDING, Request
from oblivionis.erasure.request_states import NodeStates
from oblivionis.erasure.verification_records import judgement_of
from oblivionis.erasure.verification_rules import DONE
from oblivionis.errors import OblivionisError, RunError
from oblivionis.files import checked
from oblivionis.naming import MODELS
from oblivionis.runs import artifact_binding
from oblivionis.runs.ancestry import Descent, begun_with, descents, read_lineage
from oblivionis.runs.directory import RunDirectory, list_runs, read_checkpoint, vector_hash

FILE = "models.jsonl"
EXPORTED, MADE, RETIRED = "exported", "made", "retired"
"""Events of it: a model was exported to `folder`; a run that began with another's model left one; it is used no more.
"""
NOT_FOUND, UNKNOWN = "not found", "not known"
"""A model that lies nowhere here; what became of a demand in it, where the run that could say so is gone."""
FORGOTTEN = "forgotten before"
"""A model that comes of one that has forgotten the records of a request."""
_CLOSED = (*DONE, COVERED, RETIRED, FORGOTTEN)
_SHORT, _SHOWN = 12, 5
"""Digits of a hash, and demands, that are shown."""
_PREFIX = re.compile(r"[0-9a-f]{6,64}")


class _MADE(TypedDict):
    model: str
    models: list[str]
    runs: list[str]
    stage: str


_SHAPES = {EXPORTED: _MADE, MADE: _MADE, RETIRED: TypedDict("Retired", {"model": str, "reason": str})}
_SCHEDULE = re.compile(r"^\s+policy: file$", re.MULTILINE)
"""In a run's configuration, as it is written: its demands come from a file of its user."""


@dataclass(frozen=True)
class Model:
    """A model of a folder of runs, and what became of the demands whose records it knew.

    `name`: of the run that made it; `stage`: with which it ended; `places`: where it lies, in words; `states`: by
    demand the states of its requests in this model; `retired`: why it is used no more, empty where it is used.
    """

    model: str
    name: str
    stage: str
    descent: Descent
    places: tuple[str, ...] = ()
    states: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    retired: str = ""

    @property
    def demands(self) -> dict[str, str]:
        """What became of each demand, in words: one where its requests have one state, else how many have which."""
        counts = {name: Counter(states) for name, states in self.states.items()}
        return {
            name: ", ".join(state if len(of) == 1 else f"{number} {state}" for state, number in of.items())
            for name, of in counts.items()
        }

    @property
    def open(self) -> list[str]:
        """The demands whose records it may still know; none once it is retired."""
        return [] if self.retired else [name for name, of in self.states.items() if not set(of).issubset(_CLOSED)]

    @property
    def what(self) -> str:
        """What it is, in words."""
        return f"{MODELS.get(self.stage, self.stage)} model of {self.name}".lstrip()

    @property
    def short(self) -> str:
        """The beginning of its hash."""
        return self.model[:_SHORT]


@dataclass(frozen=True)
class Models:
    """The models of a folder of runs, and what is said of the runs that cannot be read."""

    folder: Path
    models: tuple[Model, ...]
    damaged: tuple[str, ...] = ()

    @property
    def unread(self) -> str:
        """A line that names the runs which cannot be read; empty without any."""
        if not self.damaged:
            return ""
        return (
            f"what these runs know of demands is not known here, since they cannot be read: {'; '.join(self.damaged)}"
        )

    def files(self, model: Model) -> list[str]:
        """Where a model lies: its checkpoint in each run, and the folders to which it was exported."""
        found = []
        for run in list_runs(self.folder):
            if run.name in model.places:
                for stage, descent in descents(run).items():
                    if descent.model == model.model and (rounds := run.checkpoint_rounds(stage)):
                        found.append(f"{run.name}/checkpoints/{stage}/round-{rounds[-1]:04d}.safetensors")
        return [*found, *(place for place in model.places if Path(place).is_absolute())]

    def find(self, text: str) -> Model:
        """The model whose hash begins with `text`. RunError where there is none, or there are several."""
        found = [m for m in self.models if m.model.startswith(text)] if _PREFIX.fullmatch(text) else []
        if len(found) == 1:
            return found[0]
        which = f"the hashes of {len(found)} models begin with {text}" if found else f"{text!r} names no model"
        raise RunError(f"{self.folder}: {which}: name a run, an exported model, or 6 digits of `oblivionis model list`")

    def of(self, model: str) -> Model | None:
        """The model with that hash."""
        return next((m for m in self.models if m.model == model), None)


@dataclass(frozen=True)
class _Run:
    """A run of the folder: the models that its stages left, with what its requests came to.

    `starts`: the hashes of the models, of each round, to descendants of which its requests were made; `requests`: by
    client and by its own id; `here`: the stages whose models lie in it.
    """

    run: RunDirectory
    descents: Mapping[str, Descent]
    begun: Descent | None
    requests: Mapping[tuple[int, str], Request]
    here: frozenset[str]

    @property
    def starts(self) -> frozenset[str]:
        known = self.descents.get("finetune") or self.begun
        if known is None:
            return frozenset()
        older = () if self.begun is None or self.begun.model == known.model else self.begun.models
        return frozenset(known.models).difference(older)


def models_in(folder: Path, demanded: Iterable[str] = (), *, check: Callable[[Path], None] | None = None) -> Models:
    """The models of all runs in a folder, oldest first, and those that were exported from there or are gone.

    Demands are those that nodes made themselves, or that a schedule names; those that a policy plays belong to its run
    alone. demanded: ids that count as well; check: OblivionisError for a folder that may not be looked at, which counts
    as damaged, an export as not there. FileError for a damaged `models.jsonl`.
    """
    runs, damaged = list[_Run](), list[str]()
    for run in list_runs(folder):
        try:
            if check is not None:
                check(run.path)
            runs.append(_read(run, frozenset(demanded)))
        except OblivionisError as error:
            damaged.append(f"{run.name}: {error}")
    found: dict[str, Model] = {}
    for of in runs:
        for stage, descent in of.descents.items():
            place = (of.run.name,) if stage in of.here else ()
            _add(found, Model(descent.model, descent.runs[-1], stage, descent, place))
    lines = registered(folder)
    for line in lines:
        if line["event"] in (EXPORTED, MADE):
            descent = msgspec.convert(line, Descent)
            _add(found, Model(descent.model, descent.runs[-1], line["stage"], descent, _exported(line, check)))
    for of in runs:
        if (begun := of.begun) is not None:
            _add(found, Model(begun.model, (begun.runs or ("?",))[-1], "", begun))
    retired = {line["model"]: line["reason"] for line in lines if line["event"] == RETIRED}
    models = (_with_demands(model, runs, retired.get(model.model, "")) for model in found.values())
    return Models(folder, tuple(models), tuple(damaged))


def registered(folder: Path) -> list[Mapping[str, Any]]:
    """The lines of `models.jsonl`; RunError where one was changed, removed or moved, or does not say what it must."""
    path = folder / FILE
    if not path.exists():
        return []
    lines = check_chain(path)
    if lines.altered:
        raise RunError(f"{path} was changed: {lines.altered[0]}")
    for number, line in enumerate(lines.entries, start=1):
        try:
            checked(line, _SHAPES.get(str(line.get("event")), dict))
        except ValueError as error:
            raise RunError(f"{path}: line {number}: {error}") from None
    return list(lines.entries)


def open_line(model: Model, remedy: str, without: Collection[str] = ()) -> str:
    """A line that names the demands, `without` some, whose records a model may still know; empty without any."""
    names = [name for name in model.open if name not in without]
    if not names:
        return ""
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    records = f"the records of {len(names)} deletion request{'s' * (len(names) > 1)} ({shown})"
    return f"the {model.what} ({model.short}) may still know {records}: {remedy}"


def still_known(
    run: RunDirectory, requests: Sequence[Request], covered: str
) -> tuple[list[tuple[Model, dict[str, str]]], tuple[str, ...]]:
    """The models beside a run, other than the one with the hash `covered`, that may still know what these requests are
    about, with what came of each request there; and what is said of the runs that cannot be read."""
    names = {name for r in requests for name in (r.group, r.told or r.id, _apart(r.client, r.told or r.id))}
    found = models_in(run.path.parent, [r.id for r in requests])
    others = [(m, {name: m.demands[name] for name in m.open if name in names}) for m in found.models]
    return [(m, states) for m, states in others if states and m.model != covered], found.damaged


def register(folder: Path, event: str, descent: Descent, /, **said: str) -> None:
    """Enter durably what was done with a model: `EXPORTED` or `MADE`, with `stage` and, of an export, its `folder`."""
    Chain(folder / FILE).append([{"event": event, "time": time.time(), **said, **msgspec.to_builtins(descent)}])


def retire(models: Models, model: Model, reason: str) -> None:
    """Enter durably that a model is used no more. RunError without a reason, or where it is said already."""
    if not reason.strip():
        raise RunError("--reason: say why the model is used no more, e.g. that its files were deleted")
    if model.retired:
        raise RunError(f"the {model.what} ({model.short}) is retired already: {model.retired}")
    line = {"event": RETIRED, "time": time.time(), "model": model.model, "reason": reason}
    Chain(models.folder / FILE).append([line])


def find_model(text: str, stage: str | None, folder: Path) -> tuple[Models, Model]:
    """The model that a user names: a run (of `stage`, else its last finished one), a checkpoint, an exported model, or
    the beginning of a hash; with those of its folder, which for the latter two is `folder`.

    RunError where there is none.
    """
    path = Path(text).expanduser()
    if path.is_file() and len(path.resolve().parents) > 3:
        checkpoint, folder = read_checkpoint(path), path.resolve().parents[3]
        text = vector_hash(checkpoint.vector)
    elif (path / "config.yaml").is_file():
        finished, folder = descents(artifact_binding.opened(path, with_models=False)), path.resolve().parent
        name = stage or next((s for s in ("unlearn", "retrain", "finetune") if s in finished), "")
        if name not in finished:
            raise RunError(
                f"{path}: {f'stage {name} is not' if name else 'no stage is'} finished; name one with --stage"
            )
        text = finished[name].model
    elif (exported := read_lineage(path)) is not None:
        text = exported.model
    found = models_in(folder)
    return found, found.find(text)


def require_used(folder: Path, model: str, what: str) -> None:
    """RunError where a model of this folder is retired: nothing more is made of it."""
    for line in registered(folder):
        if line["event"] == RETIRED and line["model"] == model:
            raise RunError(f"{what}: this model is retired ({line['reason']}), nothing more is made of it")


def _read(run: RunDirectory, demanded: frozenset[str]) -> _Run:
    if faults := artifact_binding.ledger_faults(run):
        raise RunError(faults[0])
    requests = {(r.client, r.told or r.id): r for r in Ledger(run.ledger_path) if r.state != COVERED}
    if not _SCHEDULE.search(run.read_config()):
        requests = {key: r for key, r in requests.items() if r.told or demanded & {r.id, r.group}}
    found = descents(run)
    here = frozenset(stage for stage in found if run.checkpoint_rounds(stage))
    return _Run(run, found, begun_with(run), requests, here)


def _add(found: dict[str, Model], model: Model) -> None:
    """One model of each hash, wherever it lies, with all that it comes of by any run that made it."""
    known = found.setdefault(model.model, model)
    older = [m for m in known.descent.and_of(model.descent).models if m != model.model]
    descent = Descent(model.model, (*older, model.model), known.descent.and_of(model.descent).runs)
    places = tuple(dict.fromkeys((*known.places, *model.places)))
    found[model.model] = replace(known, places=places, descent=descent, stage=known.stage or model.stage)


def _exported(line: Mapping[str, Any], check: Callable[[Path], None] | None) -> tuple[str, ...]:
    """Where an exported model lies, if it does, and if it may be looked at."""
    folder = str(line.get("folder", ""))
    try:
        if check is not None:
            check(Path(folder))
        lineage = read_lineage(Path(folder)) if folder else None
    except OblivionisError:
        return ()
    return (folder,) if lineage is not None and lineage.model == line["model"] else ()


def _with_demands(model: Model, runs: Sequence[_Run], retired: str) -> Model:
    groups = {key: request.group for of in runs for key, request in of.requests.items()}
    shared = {name for name, count in Counter(name for _, name in groups).items() if count > 1}
    states: dict[str, tuple[str, ...]] = {}
    for client, name in sorted(groups, key=lambda key: (key[1], key[0])):
        demand = groups[client, name] or (_apart(client, name) if name in shared else name)
        if state := _state(model, [of for of in runs if (client, name) in of.requests], (client, name)):
            states[demand] = (*states.get(demand, ()), state)
    return replace(model, states=states, retired=retired)


def _apart(client: int, name: str) -> str:
    """What a demand is called whose id another client gave as well."""
    return f"{name} of client {client}"


def _state(model: Model, runs: Sequence[_Run], demand: tuple[int, str]) -> str:
    """What became of a demand, which these `runs` had, in a model; empty where it never knew the records."""
    for of in runs:
        if model.stage == "retrain" and "retrain" in of.descents and of.descents["retrain"].model == model.model:
            judged = judgement_of(of.run, of.requests[demand].id)
            return "" if judged and not judged.get("seen") else OPEN
    served = [(of, of.descents["unlearn"].model) for of in runs if "unlearn" in of.descents]
    own = [of for of, final in served if final == model.model]
    nearest = next((m for m in reversed(model.descent.models) if any(final == m for _, final in served)), "")
    before = [of for of, final in served if final == nearest]
    if outcomes := {of.requests[demand].outcome for of in own or before}:
        outcome = next((o for o in outcomes if o not in _CLOSED), None) or outcomes.pop()
        return OPEN if outcome == PENDING else outcome
    if all(of.starts.isdisjoint(model.descent.models) for of in runs):
        return ""
    return OPEN if model.places or model.stage == "finetune" else UNKNOWN


# -- by the ledger of a node ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Knowing:
    """What a request came to in the models of one run, by the ledger of its node. `model`: the hash of the run's last
    model as far as the node knows it, else empty."""

    run: str
    model: str
    state: str


def knowing(states: NodeStates, request_id: str) -> list[Knowing]:
    """The runs whose models knew the records of a request before it was served there, and what it came to in each.

    None of a covered request, for which earlier ones stand.
    """
    if states.requests[request_id].state == COVERED:
        return []
    results = states.results.get(request_id, {})
    found = []
    for run in dict.fromkeys((*states.knew(request_id), *results)):
        model = states.model_of(run, request_id)
        state = results.get(run) or (FORGOTTEN if states.forgotten_before(run, request_id) else OPEN)
        gone = states.is_retired(run, model)
        found.append(Knowing(run, model, RETIRED if gone and state not in _CLOSED else state))
    return found


def retire_on_node(ledger: NodeLedger, text: str, reason: str) -> Knowing:
    """Enter into a node's ledger that the model of a run, which `text` names by the run or the hash, is used no more.

    RunError without a reason, where the node knows no such model, or several, or where it is said already.
    """
    if not reason.strip():
        raise RunError("--reason: say why the model is used no more, e.g. that its files were deleted")
    states = ledger.states()
    all_known = [of for request in states.requests for of in knowing(states, request)]
    known = {of.run: of for of in sorted(all_known, key=lambda of: bool(of.model))}
    chosen = [of for of in known.values() if of.run == text or (_PREFIX.fullmatch(text) and of.model.startswith(text))]
    if len({of.run for of in chosen}) != 1:
        names = ", ".join(known) or "none"
        raise RunError(f"{ledger.path}: {text!r} names {len(chosen)} models that knew a record of a request; {names}")
    if states.is_retired(chosen[0].run, chosen[0].model):
        raise RunError(f"{ledger.path}: the model of run {chosen[0].run} is retired already")
    ledger.note(RETIRED, None, run=chosen[0].run, model=chosen[0].model, reason=reason)
    return chosen[0]
