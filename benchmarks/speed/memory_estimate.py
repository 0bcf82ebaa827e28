"""The memory estimate against what processes take: peak resident memory of a training and of an evaluation.

    python -m benchmarks.speed.memory_estimate [CASE ...]

builds a random Llama (hidden 512, 8 layers, 32,000 tokens; about 60 million parameters), and for each case forks a
process that trains on one full batch (or scores and generates), with records as long as the estimate assumes. It prints
the peak of the process's resident memory (`VmHWM`), the estimate, and estimate / measured. The measured process
sends and receives nothing; of the estimate the copies of what travels are left out accordingly. Peak resident memory
includes the model's file as far as it is mapped while it is read.
"""

from __future__ import annotations

import importlib
import multiprocessing
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oblivionis.config import compose as configuration

HIDDEN, LAYERS, VOCABULARY, LENGTH, BATCH = 512, 8, 32000, 256, 8
CASES: dict[str, list[str]] = {
    "train lora": [],
    "train lora dropout": ["model.lora.dropout=0.05"],
    "train lora checkpointing": ["training.gradient_checkpointing=true"],
    "train lora bfloat16": ["model.dtype=bfloat16"],
    "train lora nf4": ["model.quantization=nf4"],
    "train lora nf4 checkpointing": ["model.quantization=nf4", "training.gradient_checkpointing=true"],
    "train full": ["model.mode=full"],
    "evaluate lora": [],
    "evaluate lora nf4": ["model.quantization=nf4"],
}


def overrides(folder: Path, case: str) -> list[str]:
    """The configuration of a case."""
    return [
        f"model.source={folder}",
        "model.name=random",
        f"model.max_length={LENGTH}",
        "model.device=cpu",
        "model.lora.rank=16",
        "stages=[finetune]",
        f"training.batch_size={BATCH}",
        "evaluation.token_budget=4096",
        "evaluation.full.max_new_tokens=64",
        "evaluation.leakage.samples=0",
        "evaluation.leakage.full_samples=0",
        "federation.server_threads=1",
        *CASES[case],
    ]


def build(folder: Path, layers: int = LAYERS) -> None:
    """Write the random model."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "hidden_size": HIDDEN,
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "intermediate_size": 1376,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 2 * LENGTH,
    }
    LlamaForCausalLM(LlamaConfig(**shape)).save_pretrained(folder)


def estimated(folder: Path, case: str) -> int:
    """Bytes of the process that a case starts, without the copies of what travels."""
    from oblivionis.models.hardware import Machine
    from oblivionis.models.memory import estimate

    need = estimate(configuration.compose("default", overrides(folder, case)), Machine(1, 0, 0))
    parts = dict((need.server if case.startswith("evaluate") else need.client).parts)
    return sum(parts.values()) - parts.get("copies of what travels", 0) - parts.get("global models and replies", 0)


def work(folder: Path, case: str) -> None:
    """What a client process (or the server's evaluation) does, in this process; prints its peak in bytes."""
    import torch
    from transformers import BitsAndBytesConfig

    from clients.flat_parameters import FlatParameters
    from clients.training import TrainSettings, train
    from evaluation.engine.decoding import greedy
    from evaluation.engine.fused_lora import fused_lora
    from evaluation.engine.likelihood import score
    from evaluation.engine.sequences import TokenSequence
    from oblivionis.models import loading, lora

    torch.set_num_threads(1)
    config = configuration.compose("default", overrides(folder, case))
    settings = config.model
    options: dict[str, Any] = {"dtype": loading.DTYPES[settings.dtype]}
    if settings.quantization == "nf4":
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=options["dtype"],
        )
    model = loading.load_weights(folder, torch.device("cpu"), **options)
    if settings.mode == "lora":
        own = settings.lora
        model = lora.attach_lora(
            model, rank=own.rank, alpha=own.alpha, dropout=own.dropout, target_modules=own.target_modules
        )
    lora.trainable(model, settings.mode)
    flat = FlatParameters(model)
    count = config.evaluation.token_budget // LENGTH if case.startswith("evaluate") else BATCH
    ids = torch.randint(VOCABULARY, (count, LENGTH), generator=torch.Generator().manual_seed(0)).tolist()
    records = [TokenSequence(tuple(row[:1]), tuple(row[1:])) for row in ids]
    if case.startswith("evaluate"):
        with fused_lora(model):
            score(model, records, token_budget=config.evaluation.token_budget)
            # So many that their keys and values fill the table. Most share their beginnings, which saves time and no
            # memory; the last pass over prompts is over different ones.
            alike = [[*row[: LENGTH - 9], end] for row in ids for end in range(7)]
            greedy(model, [*alike, *(row[8:] for row in ids)], max_new_tokens=8, stop_ids=())
    else:
        checkpointing = config.training.gradient_checkpointing
        # The first update makes AdamW's moments, the second has them and its activations: a hundredth with LoRA.
        epochs = 1 if settings.mode == "lora" else 2
        train(
            model,
            flat,
            records,
            TrainSettings(epochs=epochs, batch_size=BATCH, warmup_epochs=0, gradient_checkpointing=checkpointing),
            seed=0,
        )
    print(peak_bytes(), flush=True)


def work_in_forks(folder: Path, cases: Sequence[str]) -> None:
    """`work`, for each case in a fork of this process. Raises RuntimeError where one of them fails."""
    importlib.import_module("evaluation.engine.fused_lora")
    for case in cases:
        process = multiprocessing.get_context("fork").Process(target=work, args=(folder, case))
        process.start()
        process.join()
        if process.exitcode:
            raise RuntimeError(f"{case}: its process ended with {process.exitcode}")


def peak_bytes() -> int:
    """Peak resident memory of this process on Linux. That of `getrusage` would be the parent's where that had more."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")))


def measured(folder: Path, cases: Sequence[str]) -> dict[str, int]:
    """Peak resident memory, in bytes, of a process that does the work of a case, by case.

    All are forks of one process that has imported what they need; the kernel counts a fork's peak from its start.
    """
    command = [sys.executable, "-m", "benchmarks.speed.memory_estimate", "--work", str(folder), *cases]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(zip(cases, map(int, done.stdout.split()[-len(cases) :]), strict=True))


def main() -> None:
    if sys.argv[1:2] == ["--work"]:
        work_in_forks(Path(sys.argv[2]), sys.argv[3:])
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder)
        print(f"{'case':30} {'estimate':>10} {'measured':>10} {'ratio':>6}")
        for case, real in measured(folder, sys.argv[1:] or list(CASES)).items():
            guess = estimated(folder, case)
            print(f"{case:30} {guess / 1e6:7.0f} MB {real / 1e6:7.0f} MB {guess / real:6.2f}", flush=True)


if __name__ == "__main__":
    main()
