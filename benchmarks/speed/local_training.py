"""Local LoRA training against transformers.Trainer doing the same updates on TOFU.

    python -m benchmarks.speed.local_training --tofu DIR

DIR holds TOFU's `full.json`. Each way runs in fresh processes, alternating, and the medians over the repeats are
compared: Trainer with two threads (right padding to the longest of the batch, records in the order in which they
come), ours with two threads, and ours as two one-thread processes that each train their own client's records.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clients.flat import FlatParameters
from clients.training import TrainSettings, batches, train
from evaluation.engine.sequences import TokenSequence

RANK, ALPHA, BATCH = 32, 64, 32
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
_barrier: Any = None
SETTINGS = TrainSettings(epochs=1, batch_size=BATCH, learning_rate=1e-3, warmup_epochs=0)


def base_model_and_tokenizer(texts: list[str]) -> tuple[nn.Module, Any]:
    """The embedded model, or where it is absent a random one of its shape with a tokenizer trained on `texts`."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    try:
        from oblivionis.models import tiny

        folder = tiny.folder()
        return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    except (ImportError, RuntimeError, ValueError, OSError):
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=2048, special_tokens=["<pad>", "<eos>"], show_progress=False)
    core.train_from_iterator(texts, trainer)
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=344,
        vocab_size=2048,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>")
    return LlamaForCausalLM(config), tokenizer


def prepare(tofu: Path, count: int) -> tuple[nn.Module, list[TokenSequence]]:
    """A model with a fresh adapter and the first `count` records of TOFU as sequences."""
    from peft import LoraConfig, get_peft_model

    rows = [json.loads(line) for line in (tofu / "full.json").read_text().splitlines()]
    model, tokenizer = base_model_and_tokenizer([f"{row['question']} {row['answer']}" for row in rows])

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])

    sequences = [
        TokenSequence(ids(f"Question: {row['question']}\nAnswer:"), (*ids(f" {row['answer']}"), tokenizer.eos_token_id))
        for row in rows[:count]
    ]
    torch.manual_seed(0)
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=MODULES, task_type="CAUSAL_LM")
    return get_peft_model(model, config), sequences  # type: ignore[arg-type]


def right_padded(sequences: list[TokenSequence]) -> dict[str, torch.Tensor]:
    """Input ids, labels and mask of a batch, padded to its longest."""
    longest = max(len(s.prompt) + len(s.answer) for s in sequences)
    rows = {"input_ids": [], "labels": [], "attention_mask": []}
    for s in sequences:
        pad = longest - len(s.prompt) - len(s.answer)
        rows["input_ids"].append([*s.prompt, *s.answer, *[0] * pad])
        rows["labels"].append([*[-100] * len(s.prompt), *s.answer, *[-100] * pad])
        rows["attention_mask"].append([1] * (longest - pad) + [0] * pad)
    return {name: torch.tensor(values) for name, values in rows.items()}


def run_trainer(model: nn.Module, sequences: list[TokenSequence], folder: str) -> list[float]:
    """One epoch with transformers.Trainer in the given order; the loss of every update."""
    from transformers import Trainer, TrainingArguments

    losses: list[float] = []

    class InOrder(Trainer):
        def _get_train_sampler(self, *args: Any, **kwargs: Any) -> torch.utils.data.Sampler:
            return torch.utils.data.SequentialSampler(sequences)

        def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            loss = super().training_step(*args, **kwargs)
            losses.append(loss.item())
            return loss

    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=BATCH,
        num_train_epochs=1,
        learning_rate=SETTINGS.learning_rate,
        weight_decay=SETTINGS.weight_decay,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
    trainer = InOrder(model=model, args=arguments, train_dataset=sequences, data_collator=right_padded)  # type: ignore[arg-type]
    trainer.train()
    return losses


def _share(barrier: Any) -> None:
    global _barrier
    _barrier = barrier


def work(way: str, tofu: Path, count: int, threads: int, client: int) -> tuple[float, float, list[float]]:
    """One process: warm up, wait for the others, train -> begin and end (seconds, same clock), losses."""
    torch.set_num_threads(threads)
    # Every second record, so that two clients hold records of the same length on average.
    model, sequences = prepare(tofu, 2 * count)
    sequences = sequences[client::2]
    if way == "ours":
        flat = FlatParameters(model)
        initial = flat.numpy()
        train(model, flat, sequences[: 2 * BATCH], SETTINGS, seed=0)
        flat.load(initial)
        _barrier.wait()
        begin = time.perf_counter()
        losses: list[float] = []
        train(model, flat, sequences, SETTINGS, seed=0, on_step=lambda _, loss: losses.append(loss))
    else:
        order = next(batches(count, count, torch.Generator().manual_seed(0)))
        ordered = [sequences[i] for i in order]
        initial_state = {name: p.detach().clone() for name, p in model.named_parameters()}
        with tempfile.TemporaryDirectory() as folder:
            run_trainer(model, ordered[: 2 * BATCH], folder)
            with torch.no_grad():
                for name, p in model.named_parameters():
                    p.copy_(initial_state[name])
            _barrier.wait()
            begin = time.perf_counter()
            losses = run_trainer(model, ordered, folder)
    return begin, time.perf_counter(), losses


def measure(way: str, tofu: Path, count: int, processes: int, threads: int) -> tuple[float, list[float]]:
    """Samples per second of all processes together, and the losses of the first."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes, timeout=600)
    with ProcessPoolExecutor(processes, context, initializer=_share, initargs=(barrier,)) as pool:
        replies = list(pool.map(partial(work, way, tofu, count, threads), range(processes)))
    seconds = max(reply[1] for reply in replies) - min(reply[0] for reply in replies)
    return processes * count / seconds, replies[0][2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tofu", type=Path, required=True, help="folder with TOFU's full.json")
    parser.add_argument("--records", type=int, default=640, help="records per client")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    ways = {
        "Trainer, 1 process x 2 threads": ("trainer", 1, 2),
        "ours, 1 process x 2 threads": ("ours", 1, 2),
        "ours, 2 processes x 1 thread": ("ours", 2, 1),
    }
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    losses: dict[str, list[float]] = {}
    for _ in range(arguments.repeats):
        for name, (way, processes, threads) in ways.items():
            speed, losses[name] = measure(way, arguments.tofu, arguments.records, processes, threads)
            speeds[name].append(speed)
    reference, *ours = ways
    base = statistics.median(speeds[reference])
    for name, values in speeds.items():
        middle = statistics.median(values)
        spread = ", ".join(f"{value:.1f}" for value in values)
        print(f"{name:32s} {middle:7.1f} samples/s  {middle / base:5.2f}x   ({spread})")
    for name in ours:
        gap = max(abs(a - b) for a, b in zip(losses[reference], losses[name], strict=True))
        print(f"loss of {len(losses[name])} updates, {name}: largest difference from Trainer {gap:.1e}")


if __name__ == "__main__":
    main()
