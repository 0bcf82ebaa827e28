"""Golden runs: does a restructured tree do byte for byte what it did? See CONTRIBUTING.md."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
FIXED = {
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("record", help="do all golden runs of a tree, and keep what they left")
    one.add_argument("folder", type=Path, help="a new folder")
    one.add_argument("--tree", type=Path, default=PROJECT, help="the source tree (default: this one)")
    one.add_argument("--only", action="append", help="these runs alone; repeatable, `loss-*` names several")
    one.add_argument("--full", action="store_true", help="also the embedded default as it is (many minutes)")
    one.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time (default: one per core)")
    two = commands.add_parser("compare", help="name what differs; exit code 1 if anything does")
    two.add_argument("before", type=Path)
    two.add_argument("after", type=Path)
    given = parser.parse_args()
    sys.path.insert(0, str(PROJECT / "tests"))
    if given.command == "compare":
        from golden.comparing import report

        return report(given.before, given.after)
    if any(os.environ.get(key) != value for key, value in FIXED.items()):
        os.environ.update(FIXED)
        os.execv(sys.executable, sys.orig_argv[:1] + sys.orig_argv[1:])
    return _record(given)


def _record(given: argparse.Namespace) -> int:
    from fnmatch import fnmatch

    from golden.cases import all_cases

    chosen = [case for case in all_cases() if given.full or not case.full]
    if given.only:
        chosen = [case for case in chosen if any(fnmatch(case.name, pattern) for pattern in given.only)]
    tree = given.tree.resolve()
    if given.folder.exists() or not (tree / "oblivionis").is_dir() or not chosen:
        print("record needs a new folder, a source tree and at least one run that is named so", file=sys.stderr)
        return 2
    from golden.recording import record

    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() not in (PROJECT, tree)]
    failed = record(given.folder.resolve(), tree, chosen, given.jobs)
    if failed:
        print(f"not recorded: {', '.join(failed)}; see {given.folder}/*.log", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
