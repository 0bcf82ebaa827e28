"""A suite for Slurm: an array job for each set of runs that start together, submitted in the order of the graph.

`slurm/` in the suite's folder gets a script and a list of runs per array, and `submit.sh`, which submits of every array
what is not in the store yet, with dependencies (`afterok`) on the very tasks that a run begins with. A task is
`oblivionis bench node`, and `oblivionis bench collect` makes the tables afterwards. Every machine must see the store,
the suite's folder and this Python.
"""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks.federated.graph import Graph, Node
from benchmarks.federated.options import Slurm
from benchmarks.federated.resource_demand import Demand, Demands, check
from benchmarks.output.terminal import say
from oblivionis.files import write_atomic

FOLDER, SUBMIT = "slurm", "submit.sh"
TASKS = 1000
"""Most tasks of an array: Slurm's own limit (MaxArraySize), where it was not changed."""

_SCRIPT = """\
#!/bin/bash
{options}
set -euo pipefail
cd {place}
keys=(
{keys}
)
exec {command} bench node {folder} "${{keys[$SLURM_ARRAY_TASK_ID]}}" --store {store}
"""

_SUBMIT = """\
#!/bin/bash
# Submits those runs of the suite that are not done. After failures, run it again. Then: collect.sh
set -euo pipefail
here={here}
store={store}
declare -A task=()

queued=$(squeue --noheader --me --name={names} --format=%A)  # where Slurm does not answer, nothing is submitted
if [ -n "$queued" ]; then
    echo "runs of this suite are queued or under way: wait for them, or end them with scancel --me --name={names}" >&2
    exit 1
fi

# array NAME: submits the runs of NAME.tasks (a line each: its folder in the store, its stages) that are not done, after
# those of NAME.after that were submitted now
array() {{
    local index=0 missing=() keys=() after="" key stages stage job
    while read -r key stages; do
        for stage in $stages; do
            if [ ! -f "$store/$key/stages/$stage.json" ]; then
                missing+=("$index")
                keys+=("$key")
                break
            fi
        done
        index=$((index + 1))
    done < "$here/$1.tasks"
    if [ ${{#missing[@]}} = 0 ]; then
        return
    fi
    while read -r key; do
        if [ -n "${{task[$key]:-}}" ]; then
            after+=":${{task[$key]}}"
        fi
    done < "$here/$1.after"
    local options=(--parsable "--array=$(IFS=,; echo "${{missing[*]}}")")
    if [ -n "$after" ]; then
        options+=("--dependency=afterok$after" --kill-on-invalid-dep=yes)
    fi
    job=$(sbatch "${{options[@]}}" "$here/$1.sbatch")
    job=${{job%%;*}}
    for index in "${{!missing[@]}}"; do
        task[${{keys[$index]}}]=${{job}}_${{missing[$index]}}
    done
    echo "$1: job $job, ${{#missing[@]}} runs"
}}

{arrays}
if [ ${{#task[@]}} = 0 ]; then
    echo "all runs are done"
fi
"""

_COLLECT = """\
#!/bin/bash
# Writes and prints the tables of what is done.
set -euo pipefail
cd {place}
exec {command} bench collect {folder} --store {store}
"""


@dataclass(frozen=True)
class Array:
    """Runs that ask for the same and begin with the same: `name` of its files, in the order of submission."""

    name: str
    demand: Demand
    nodes: tuple[Node, ...]

    @property
    def after(self) -> tuple[Node, ...]:
        """Runs that must be done before."""
        return self.nodes[0].after


def arrays(nodes: Sequence[Node], demands: Demands) -> list[Array]:
    """The runs in arrays of `TASKS` at most; an array comes after those that hold what it begins with."""
    groups: dict[tuple[tuple[str, ...], Demand], list[Node]] = {}
    for node in nodes:
        check(node.config, node.label)
        groups.setdefault((tuple(need.key for need in node.after), demands.of(node.config)), []).append(node)
    parts = [
        (demand, tuple(group[first : first + TASKS]))
        for (_, demand), group in groups.items()
        for first in range(0, len(group), TASKS)
    ]
    return [Array(f"array-{number:02d}", *part) for number, part in enumerate(parts)]


def write(graph: Graph, folder: Path, store: Path, slurm: Slurm, console: Console) -> None:
    """Write the scripts of the suite in `folder` and say how they are used.

    Raises OblivionisError for runs that Ray is to spread over machines.
    """

    place = (folder / FOLDER).resolve()
    found = arrays(graph.nodes, Demands(slurm.reserve, gpus_there=False, tell=partial(say, console)))
    (place / "logs").mkdir(parents=True, exist_ok=True)
    for old in place.glob("array-*"):
        old.unlink()
    common = {
        "place": shlex.quote(str(Path.cwd())),
        "command": shlex.join([sys.executable, "-m", "oblivionis.cli.main"]),
        "folder": shlex.quote(str(folder.resolve())),
        "store": shlex.quote(str(store.resolve())),
        "here": shlex.quote(str(place)),
    }
    name = _name(folder)
    for array in found:
        lines = [f"{node.key} {' '.join(node.stages)}\n" for node in array.nodes]
        write_atomic(place / f"{array.name}.tasks", "".join(lines))
        write_atomic(place / f"{array.name}.after", "".join(f"{node.key}\n" for node in array.after))
        options = "\n".join(f"#SBATCH {option}" for option in _options(array, name, place, slurm))
        # In the script itself, which Slurm copies when it is submitted.
        keys = "\n".join(node.key for node in array.nodes)
        write_atomic(place / f"{array.name}.sbatch", _SCRIPT.format(options=options, keys=keys, **common))
        say(console, f"{array.name}: {len(array.nodes)} runs ({_stages(array)}), each with {array.demand}")
    calls = "\n".join(f"array {array.name}" for array in found)
    write_atomic(place / SUBMIT, _SUBMIT.format(arrays=calls, names=name, **common))
    write_atomic(place / "collect.sh", _COLLECT.format(**common))
    say(console, f"submit what is not done: bash {place / SUBMIT}")
    say(console, f"then make the tables:    bash {place / 'collect.sh'}")


def _name(folder: Path) -> str:
    """What Slurm calls the jobs of this folder: no other suite's are called so."""
    mark = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]
    return f"oblivionis-{mark}"


def _stages(array: Array) -> str:
    return ", ".join(dict.fromkeys(node.stage for node in array.nodes))


def _options(array: Array, name: str, place: Path, slurm: Slurm) -> list[str]:
    demand = array.demand
    log = shlex.quote(f"{place}/logs/{array.name}-%A_%a.out")
    options = [f"--job-name={name}", f"--output={log}", "--open-mode=append", "--requeue"]
    options += ["--nodes=1", "--ntasks=1", f"--cpus-per-task={demand.cpus}"]
    options += [f"--mem={-(-demand.memory // 2**20)}M"] if demand.memory else []
    options += [f"--gpus={demand.gpus}"] if demand.gpus else []
    options += [f"--time={slurm.limit}"] if slurm.limit is not None else []
    return options + [shlex.quote(option) for option in slurm.more]
