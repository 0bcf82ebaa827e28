"""`gpu.json` and `gpu.md`: what the kit found, for programs and for people."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from benchmarks.gpu.kit_parts import Outcome, counted
from benchmarks.gpu.options import Options
from benchmarks.gpu.result_rows import FAILED, SKIPPED, Row, Value
from oblivionis.files import write_atomic, write_json

JSON_FILE, MARKDOWN_FILE = "gpu.json", "gpu.md"
PACKAGES = ("torch", "transformers", "peft", "accelerate", "bitsandbytes", "flwr", "ray", "numpy")
REASONS = (FAILED, SKIPPED)


def device(options: Options) -> dict[str, Any]:
    """What it was measured on: name, memory in 10⁹ bytes (of a GPU), CUDA's version, processors."""
    found: dict[str, Any] = {"name": platform.processor() or platform.machine(), "cpus": os.cpu_count()}
    if options.on_gpu:
        import torch

        properties = torch.cuda.get_device_properties(torch.device(options.device))
        found |= {"name": properties.name, "memory_gb": properties.total_memory / 1e9, "cuda": torch.version.cuda}
    return found


def versions() -> dict[str, str | None]:
    """Of the packages that matter; None where one is missing."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def write(folder: Path, facts: dict[str, Any], parts: dict[str, Outcome]) -> None:
    """Both files, whole or as before. facts: what else the JSON has than the parts."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / JSON_FILE, {**facts, "parts": parts})
    write_atomic(folder / MARKDOWN_FILE, markdown(facts, parts))


def markdown(facts: dict[str, Any], parts: dict[str, Outcome]) -> str:
    """An overview of the parts, then a table for each."""
    place = ", ".join(f"{key} {shown(value)}" for key, value in facts["device"].items())
    overview: dict[str, Row] = {}
    for name, part in parts.items():
        row: Row = {"status": part["status"], "seconds": part["seconds"], "rows": len(part["rows"])}
        row |= {column: counted(part["rows"], column) for column in REASONS}
        overview[name] = {**row, "why": part.get("why") or None}
    lines = ["# On a GPU" if facts["options"]["device"] != "cpu" else "# The kit for a GPU, on a CPU", ""]
    lines += [f"{place}; {', '.join(f'{k} {v}' for k, v in facts['versions'].items())}", "", *table("part", overview)]
    for name, part in parts.items():
        if part["rows"]:
            lines += ["", f"## {part['title']} ({name})", "", *table("", part["rows"])]
    return "\n".join(lines) + "\n"


def table(first: str, rows: dict[str, Row]) -> list[str]:
    """Lines of Markdown: a column for each name that occurs in a row, reasons last."""
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    names = [name for name in names if name not in REASONS] + [name for name in REASONS if name in names]
    lines = [_line([first, *names]), _line(["---", *["---" if n in REASONS else "---:" for n in names]])]
    return lines + [_line([name, *[shown(row.get(column)) for column in names]]) for name, row in rows.items()]


def shown(value: Value) -> str:
    """A number with four significant digits; nothing for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"
