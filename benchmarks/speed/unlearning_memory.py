"""Peak memory and time of an unlearning exchange by every method, against fine-tuning on as many records.

    python -m benchmarks.speed.unlearning_memory

A random Llama of 27 million parameters with LoRA on all linear layers, random records. For the memory each method runs
in a fresh process, which reads its own peak: what it holds beyond the imports is base weights, adapter, optimiser,
activations and whatever the method keeps of the model as received. Freed blocks go back to the system at once there, so
that the peak is what is needed and not what the allocator keeps for the next update. "With a second model" is what NPO
would take if it held its reference as a copy of the base model. For the time, gradient difference and NPO alternate in
one process.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import torch
from peft import LoraConfig, get_peft_model
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.speed.memory_estimate import peak_bytes
from clients import losses, optimisation
from clients.flat_parameters import FlatParameters
from clients.training import TrainSettings, train
from clients.unlearning import UnlearnOptions, unlearn
from evaluation.engine.sequences import TokenSequence

VOCABULARY = 8192
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FINE_TUNING, SECOND_MODEL = "fine-tuning", "npo with a second model"
SETTINGS = TrainSettings(epochs=2, batch_size=16, learning_rate=1e-4, warmup_epochs=0, max_grad_norm=1.0)


def build() -> tuple[Any, FlatParameters]:
    """The model with its adapters and the vector of what is trained."""
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=512,
    )
    model = LlamaForCausalLM(shape)
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=MODULES))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
    return model, FlatParameters(model)


def records(count: int, seed: int) -> list[TokenSequence]:
    """Prompts of 20 to 40 tokens and answers of 30 to 70."""
    rng = random.Random(seed)
    sizes = [(rng.randint(20, 40), rng.randint(30, 70)) for _ in range(count)]
    return [TokenSequence(*(tuple(rng.randrange(VOCABULARY) for _ in range(n)) for n in pair)) for pair in sizes]


def exchange(
    name: str, model: Any, flat: FlatParameters, forget: list[TokenSequence], retain: list[TokenSequence]
) -> tuple[int, float]:
    """One exchange by the method `name` (`method:kl` with that retain term), or fine-tuning; (updates, seconds)."""
    if name == FINE_TUNING:
        report = train(model, flat, forget, SETTINGS, seed=0)
        return report.steps, report.seconds
    second = copy.deepcopy(model) if name == SECOND_MODEL else None
    method, _, term = ("npo" if second is not None else name).partition(":")
    options = UnlearnOptions(retain_loss=term or "nll")
    others = [[TokenSequence(r.prompt, other.answer)] for r, other in zip(forget, retain, strict=False)]
    given = {"options": options, "alternatives": others}
    done = unlearn(model, flat, forget, retain, method, {}, SETTINGS, seed=0, **given)
    return done.steps, done.seconds


def measure(name: str) -> dict[str, float]:
    """Peak MiB beyond the process before the model, and seconds per update."""
    optimisation.keep_freed_memory = lambda: False
    before = psutil.Process().memory_info().rss
    model, flat = build()
    steps, seconds = exchange(name, model, flat, records(16, 1), records(32, 2))
    return {"mib": (peak_bytes() - before) / 2**20, "seconds": seconds / steps}


def compare_time(repeats: int) -> float:
    """Median over paired repeats of NPO's seconds by those of gradient difference."""
    model, flat = build()
    forget, retain, start = records(16, 1), records(32, 2), flat.numpy()
    ratios = []
    for repeat in range(repeats + 1):
        taken = {}
        for name in ("grad_diff", "npo"):
            flat.load(start)
            taken[name] = exchange(name, model, flat, forget, retain)[1]
        if repeat:
            ratios.append(taken["npo"] / taken["grad_diff"])
    return statistics.median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3, help="paired repeats of the time comparison")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.one:
        print(json.dumps(measure(arguments.one)))
        return
    names = [FINE_TUNING, *losses.names(), "grad_diff:kl", "npo:kl", "simnpo:kl", SECOND_MODEL]
    found = {}
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    for name in names:
        command = [sys.executable, "-m", __spec__.name, "--threads", str(arguments.threads), "--one", name]
        root = Path(__file__).resolve().parents[2]
        output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root, env=environment).stdout
        found[name] = json.loads(output.splitlines()[-1])
    table = Table("method", "peak MiB", "by fine-tuning", "s per update")
    base = found[FINE_TUNING]["mib"]
    for name, row in found.items():
        table.add_row(name, f"{row['mib']:.0f}", f"{row['mib'] / base:.2f}", f"{row['seconds']:.2f}")
    Console().print(table)
    print(f"npo / grad_diff, seconds of an exchange: {compare_time(arguments.repeats):.2f}")


if __name__ == "__main__":
    main()
