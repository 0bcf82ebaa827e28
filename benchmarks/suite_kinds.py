"""Benchmark suites: YAML files whose `kind` says what is run, and the rest with which values.

A kind is a dataclass of settings, whose fields are the suite's keys, with the functions that check, announce and run
them; `KINDS` has all of them. This module does for every kind what does not depend on it: it finds and reads the file,
applies overrides, checks types and ranges, and guards the folder of the results.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.federated.options import Options, RayCluster, Slurm
from benchmarks.output.folders import claim
from benchmarks.output.terminal import say
from oblivionis.config.compose import settings_of
from oblivionis.config.configuration_layers import flatten, parse_overrides
from oblivionis.config.problems import ConfigError, Problem, did_you_mean
from oblivionis.config.yaml_files import display, read_yaml
from oblivionis.errors import RunError, RunInterrupted

FOLDER = Path(__file__).resolve().parent / "suites"
SUITE_FILE = "suite.yaml"
FEDERATED, TABULAR, META = "federated", "ruler_tabular", "metrics_meta"


@dataclass(frozen=True)
class Kind:
    """What a `kind` of suite means.

    settings: a dataclass whose fields have the metadata of `oblivionis.config.limits.about`; problems: what is wrong
    beyond types and ranges, given the settings and where each dotted path stands; plan: lines that say what would be
    run; run: runs what is not in the folder yet and writes results there; extendable: top-level keys that may differ
    when a folder is resumed, because they change no finished part of its results; parallel: whether it can do several
    runs at once; away: whether on other machines, too.
    """

    settings: type
    problems: Callable[[Any, Mapping[str, str]], list[Problem]]
    plan: Callable[[Any, Options], list[str]]
    run: Callable[[Any, Path, Console, Options], None]
    extendable: frozenset[str] = frozenset()
    parallel: bool = False
    away: bool = False


class _Kinds(Mapping[str, Kind]):
    """Every kind by its name; what runs it is imported when the kind is asked for."""

    def __getitem__(self, name: str) -> Kind:
        if name == FEDERATED:
            return _federated()
        if name == TABULAR:
            return _tabular()
        if name == META:
            return _meta()
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter((FEDERATED, TABULAR, META))

    def __len__(self) -> int:
        return 3

    def __contains__(self, name: object) -> bool:
        return name in (FEDERATED, TABULAR, META)


def _federated() -> Kind:
    from benchmarks.federated import settings

    def announce(suite: settings.Settings, options: Options) -> list[str]:
        from benchmarks.federated import runner

        return runner.announce(suite, options)

    def run(suite: settings.Settings, folder: Path, console: Console, options: Options) -> None:
        from benchmarks.federated import runner

        runner.run(suite, folder, console, options)

    keys = frozenset(field.name for field in dataclasses.fields(settings.Settings))
    return Kind(settings.Settings, settings.problems, announce, run, keys, parallel=True, away=True)


def _tabular() -> Kind:
    from benchmarks.tabular import runner, settings

    return Kind(
        settings.Settings,
        settings.problems,
        lambda suite, _: runner.plan(suite),
        lambda suite, folder, console, _: runner.run(suite, folder, console),
        settings.EXTENDABLE,
    )


def _meta() -> Kind:
    from benchmarks.meta import runner, settings

    return Kind(
        settings.Settings,
        settings.problems,
        lambda suite, options: runner.plan(suite, options.jobs),
        lambda suite, folder, console, options: runner.run(suite, folder, console, options.jobs),
        settings.EXTENDABLE,
        parallel=True,
    )


KINDS = _Kinds()


def bench(
    name: str,
    overrides: Sequence[str],
    output: Path | None,
    *,
    resume: bool,
    dry_run: bool,
    console: Console,
    jobs: int = 1,
    store: Path | None = None,
    away: RayCluster | Slurm | None = None,
) -> None:
    """Run a suite, a file or a name in `benchmarks/`; the results are in `output` (default: runs/bench/NAME).

    resume: continue what was interrupted in that folder; dry_run: only say what would be run; jobs: runs at once;
    store: where the runs of federated suites lie (default: `stages` beside `output`); away: do them on other machines.
    Raises ConfigError with every problem of the suite, RunError for a folder that does not fit, RunInterrupted after
    Ctrl-C.
    """
    file = find(name)
    kind_name, settings = load(file, overrides)
    kind = KINDS[kind_name]
    folder = output or folder_of(name)
    options = Options(jobs, store or _stages(folder), away)
    if not kind.parallel and (given := [*options.arguments()]):
        raise RunError(f"a suite of the kind {kind_name} does one thing at a time; leave {given[0]} out")
    if not kind.away and (given := [*away.arguments()] if away else []):
        raise RunError(f"a suite of the kind {kind_name} runs on this machine alone; leave {given[0]} out")
    if dry_run:
        for line in [f"suite: {display(file)} ({kind_name})", *kind.plan(settings, options), f"results: {folder}"]:
            say(console, line)
        return
    wanted = {"kind": kind_name, **dataclasses.asdict(settings)}
    taken = "has results already; continue them with --resume"
    claim(folder / SUITE_FILE, wanted, resume=resume, taken=taken, free=kind.extendable)
    say(console, f"results: {folder}")
    try:
        kind.run(settings, folder, console, options)
    except KeyboardInterrupt:
        more = [*options.arguments(), *(["--store", str(store)] if store else [])]
        command = shlex.join(["oblivionis", "bench", name, *overrides, "--output", str(folder), *more, "--resume"])
        raise RunInterrupted(f"stopped; continue with: {command}") from None


def folder_of(name: str) -> Path:
    """Where the results of a suite go by default. Raises ConfigError for one that there is not."""
    return Path("runs") / "bench" / find(name).stem


def _stages(folder: Path) -> Path:
    return folder.parent / "stages"


def do_node(folder: Path, key: str, store: Path | None, console: Console) -> None:
    """Do one run of the federated suite in `folder`; see `benchmarks.federated.single_run`. Raises OblivionisError."""
    from benchmarks.federated import single_run

    settings = _of_folder(folder)
    try:
        single_run.do(settings, key, store or _stages(folder), console)
    except KeyboardInterrupt:
        raise RunInterrupted(f"{key} was stopped; submit it again to go on") from None


def collect(folder: Path, store: Path | None, console: Console) -> None:
    """Results and tables of the federated suite in `folder`, as far as its runs are done. Raises OblivionisError."""
    from benchmarks.federated import runner

    runner.gather(_of_folder(folder), folder, console, store or _stages(folder))


def _of_folder(folder: Path) -> Any:
    """The settings of the federated suite whose results lie in `folder`. Raises OblivionisError."""
    file = folder / SUITE_FILE
    if not file.is_file():
        raise RunError(f"{folder} is no suite's folder: it holds no {SUITE_FILE}")
    name, settings = load(file, whole=False)
    if name != FEDERATED:
        raise RunError(f"{folder} holds a suite of the kind {name}, which has no runs of its own")
    return settings


def find(name: str) -> Path:
    """The file of a suite: a path, or a name in this folder. Raises ConfigError."""
    path, named = Path(name).expanduser(), FOLDER / f"{name.removesuffix('.yaml')}.yaml"
    for candidate in (path, named):
        if candidate.is_file():
            return candidate.resolve()
    known = sorted(file.stem for file in FOLDER.glob("*.yaml"))
    expected = f"a YAML file, or one of {', '.join(known)}"
    raise ConfigError([Problem("suite", f"there is no {name!r}", expected, did_you_mean(path.stem, known))])


def kind_of(file: Path) -> str | None:
    """The kind that a suite names, without reading the rest. Raises ConfigError for a file that cannot be read."""
    values, _, problems = _read(file)
    if problems:
        raise ConfigError(problems)
    return values.get("kind", (None, ""))[0]


def load(file: Path, overrides: Sequence[str] = (), *, whole: bool = True) -> tuple[str, Any]:
    """The kind of a suite and its settings, with `key=value` overrides on top. Raises ConfigError with all problems.

    whole: check what lies beyond types, too, such as the configuration of every cell, which takes its time.
    """
    values, places, problems = _read(file)
    layer, more = parse_overrides(overrides)
    problems += more
    values |= layer.values
    name, where = values.pop("kind", (None, display(file)))
    if problems:
        raise ConfigError(problems)
    if name not in KINDS:
        message = "a value must be given" if name is None else f"unknown kind {name!r}"
        hint = did_you_mean(str(name), KINDS)
        raise ConfigError([Problem("kind", message, f"one of {', '.join(KINDS)}", hint, where)])
    try:
        return name, _settings(KINDS[name], values, places | {"": display(file)}, whole)
    except ConfigError as error:
        raise ConfigError(_placed(problem, display(file)) for problem in error.problems) from None


def _placed(problem: Problem, file: str) -> Problem:
    """The problem, with the suite's file if it says another place or none."""
    if file in problem.where:
        return problem
    return dataclasses.replace(problem, where=f"{problem.where}; {file}" if problem.where else file)


def _read(file: Path, seen: tuple[Path, ...] = ()) -> tuple[dict[str, tuple[Any, str]], dict[str, str], list[Problem]]:
    """The values of a suite on top of those of the suite that it `extends`: by dotted path, each with its place."""
    content, places, problems = read_yaml(file)
    parent = content.pop("extends", None)
    own = {path: (value, places.get(path, display(file))) for path, value in flatten(content)}
    if parent is None:
        return own, places, problems
    base = next((f for f in (file.parent / str(parent), file.parent / f"{parent}.yaml") if f.is_file()), None)
    where = places.get("extends", "")
    if base is None:
        return own, places, [*problems, Problem("extends", f"there is no {parent!r}", "a suite's file", "", where)]
    if base.resolve() in (*seen, file.resolve()):
        return own, places, [*problems, Problem("extends", f"{display(file)} extends itself", "", "", where)]
    inherited, more_places, more = _read(base.resolve(), (*seen, file.resolve()))
    kept = {p: v for p, v in inherited.items() if not any(p.startswith(f"{path}.") for path, (v, _) in own.items())}
    return {**kept, **own}, {**more_places, **places}, [*more, *problems]


def _settings(kind: Kind, values: dict[str, tuple[Any, str]], places: Mapping[str, str], whole: bool) -> Any:
    """The checked settings of `values`: for a dotted path its value and its place."""
    settings = settings_of(kind.settings, values)
    problems = kind.problems(settings, {**places, **{p: where for p, (_, where) in values.items()}}) if whole else []
    if problems:
        raise ConfigError(problems)
    return settings
