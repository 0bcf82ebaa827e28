"""python -m benchmarks.gpu [--minutes 9] [--parts NAME ...] [--out DIR]

Runs the parts on one CUDA device, without network and without the data of the tests, and writes `gpu.json` and `gpu.md`
after each. `--device cpu --tiny` runs all but what needs CUDA with tiny shapes: does the kit itself work? The exit code
is 1 where something failed; what did not fit into the time is named as skipped.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.gpu import report
from benchmarks.gpu.kit_parts import GRACE, PARTS, Outcome, outcome
from benchmarks.gpu.options import Options
from benchmarks.gpu.result_rows import FAILED


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [part.name for part in PARTS]
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, all in this process")
    parser.add_argument("--minutes", type=float, default=9.0, help="time for everything (default: 9)")
    parser.add_argument("--parts", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--out", type=Path, default=Path("gpu"), help="folder of the results (default: gpu)")
    parser.add_argument("--tofu", type=Path, help="folder with TOFU's JSON lines; without it, made-up authors")
    parser.add_argument("--beside", type=Path, help="gpu.json of another device, whose values stand beside smollm2's")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the parts in their order; 0, 1 where something failed, 2 where there is no such device."""
    given = parsed(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    tofu, reference = (str(path.resolve()) if path else None for path in (given.tofu, given.beside))
    options = Options(given.device, given.tiny, tofu, reference)
    if options.on_gpu:
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
    if options.on_gpu and not _has_cuda():
        print("torch sees no GPU; try the kit itself with --device cpu --tiny", file=sys.stderr)
        return 2
    start = time.time()
    end = start + 60 * given.minutes - (0.0 if given.tiny else GRACE)
    facts = {"device": report.device(options), "versions": report.versions(), "options": asdict(options)}
    found: dict[str, Outcome] = {}
    for part in PARTS:
        if part.name not in given.parts:
            continue
        found[part.name] = outcome(part, options, end, apart=not given.tiny)
        report.write(given.out, {**facts, "minutes": given.minutes, "seconds": time.time() - start}, found)
        print(f"{part.name}: {found[part.name]['status']}, {found[part.name]['seconds']:.0f} s", flush=True)
    print(f"{given.out / report.MARKDOWN_FILE}")
    return int(any(part["status"] == FAILED for part in found.values()))


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    sys.exit(main())
