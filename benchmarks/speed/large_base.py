"""A base model of a billion parameters on a CPU: one round by the real command, its peak memory next to the estimate.

    python -m benchmarks.speed.large_base [--folder DIR] [--dtype bfloat16]

A randomly initialised Llama of the shape of Llama-3.2-1B, three clients with four records each, LoRA r = 32. It is
made in DIR (default: a temporary folder), which takes 2.5 GB. Memory is what the server's and the client processes
hold, shared pages counted once (PSS), every half second. Needs a tokenizer: `oblivionis model fetch smollm2`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from benchmarks.model_shapes import LLAMA_3_2_1B
from oblivionis.config.extension_traits import defaults
from oblivionis.models import loading
from oblivionis.runtime.processes import NAME

OFF = ("leakage.samples=0", "leakage.full_samples=0", "ruler.enabled=false", "wikimem.enabled=false")
SETTINGS = [
    *("data.authors=3", "data.forget_authors=1", "data.questions_per_author=4", "stages=[finetune]"),
    *("federation.clients=3", "federation.fraction_train=1.0", "federation.rounds.finetune=1"),
    *("federation.local_epochs=1", "training.batch_size=4", "model.max_length=128", "model.lora.rank=32"),
    *("evaluation.every=0", "evaluation.at_start=false", "evaluation.full.sets=[forget]"),
    *("evaluation.full.questions_per_set=2", "evaluation.full.max_new_tokens=8", "evaluation.membership.enabled=false"),
    *(f"evaluation.{name}.enabled=false" for name, keys in defaults("evaluator").items() if "enabled" in keys),
    *(f"evaluation.{key}" for key in OFF),
]
EVERY_S = 0.5


def make(folder: Path, dtype: torch.dtype) -> None:
    """The model with SmolLM2's tokenizer, whose ids are among the model's."""
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        model = LlamaForCausalLM(LlamaConfig(**LLAMA_3_2_1B, bos_token_id=1, eos_token_id=2))
    finally:
        torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(loading.resolve("smollm2", None)).save_pretrained(folder)


def held(process: psutil.Process) -> dict[str, int]:
    """Bytes of the server's process and of the client processes below it."""
    found = {"server": 0, "clients": 0, "processes": 0}
    for each in [process, *process.children(recursive=True)]:
        try:
            if each.pid != process.pid and each.name() != NAME:
                continue
            size = each.memory_full_info().pss
        except psutil.Error:
            continue
        found["server" if each.pid == process.pid else "clients"] += size
        found["processes"] += each.pid != process.pid
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the model is, or is made")
    parser.add_argument("--dtype", choices=tuple(loading.DTYPES), default="bfloat16")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch) / "model"
        if not (folder / "config.json").exists():
            make(folder, loading.DTYPES[options.dtype])
        command = [sys.executable, "-m", "oblivionis.cli.main", "simulate", "default", f"model.source={folder}"]
        command += ["model.name=llama-1b-shape", f"model.dtype={options.dtype}", f"output={scratch}", "name=large"]
        command += ["model.lora.target_modules=[q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj]", *SETTINGS]
        log = Path(scratch) / "log.txt"
        began, most = time.monotonic(), {"server": 0, "clients": 0, "processes": 0, "together": 0}
        with log.open("w") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
            watched = psutil.Process(process.pid)
            while process.poll() is None:
                now = held(watched)
                now["together"] = now["server"] + now["clients"]
                most = {key: max(most[key], now[key]) for key in most}
                time.sleep(EVERY_S)
        text = log.read_text()
        if process.returncode:
            raise SystemExit(f"the run failed:\n{text[-3000:]}")
        print("\n".join(line for line in text.splitlines() if re.match(r"memory:|\[finetune\]", line)))
        print(f"{time.monotonic() - began:.0f} s in all; at most held, in GB:")
        print(", ".join(f"{key} {most[key] / 1e9:.2f}" for key in ("server", "clients", "together")), end="")
        print(f" ({most['processes']} client processes at once)")


if __name__ == "__main__":
    main()
