"""Local LoRA training against transformers.Trainer doing the same updates on TOFU.

    python -m benchmarks.speed.local_training --tofu DIR [--model smollm2] [--matmul-precision medium] [--chat]

DIR holds TOFU's `full.json`. Each way runs in fresh processes, alternating, and the medians over the repeats are
compared: Trainer with two threads (right padding to the longest of the batch, records in the order in which they
come), ours with two threads, and ours as two one-thread processes that each train their own client's records. Beside
it stands which share of the machine's rate of matrix products that is: the products that the records ask for (padding
counts for nothing), by the rate that the same shapes reach alone in the same processes. With --chat records are asked
in the model's chat template, whose first words all of them share: ours computes these once for each batch, so that
its share may exceed 1.
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
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

from clients.flat_parameters import FlatParameters
from clients.training import TrainSettings, batches, train
from evaluation.engine.sequences import TokenSequence
from oblivionis.models.source import resolve

RANK, ALPHA, BATCH = 32, 64, 32
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
_barrier: Any = None
SETTINGS = TrainSettings(epochs=1, batch_size=BATCH, learning_rate=1e-3, warmup_epochs=0)


def base_model_and_tokenizer(source: str) -> tuple[nn.Module, Any]:
    """The model of a configuration's `model.source`."""
    folder = resolve(source)
    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def prepare(source: str, tofu: Path, count: int, chat: bool = False) -> tuple[nn.Module, list[TokenSequence]]:
    """A model with a fresh adapter and the first `count` records of TOFU as sequences."""
    rows = [json.loads(line) for line in (tofu / "full.json").read_text().splitlines()]
    model, tokenizer = base_model_and_tokenizer(source)

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])

    def asked(question: str) -> str:
        turns = [{"role": "user", "content": question}]
        if chat:
            return tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return f"Question: {question}\nAnswer:"

    space = "" if chat else " "
    sequences = [
        TokenSequence(ids(asked(row["question"])), (*ids(space + row["answer"]), tokenizer.eos_token_id))
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


def product_seconds(model: nn.Module, sequences: list[TokenSequence]) -> float:
    """How long the products of one epoch take alone: each linear layer forward and back to its inputs, in batches of
    the mean size, and the head at answer tokens."""
    updates = len(sequences) / BATCH
    rows = round(sum(len(s.prompt) + len(s.answer) for s in sequences) / updates)
    answers = round(sum(len(s.answer) for s in sequences) / updates)
    seconds = 0.0
    shapes = [tuple(p.shape) for name, p in model.named_parameters() if name.endswith("base_layer.weight")]
    head = tuple(model.get_output_embeddings().weight.shape)  # type: ignore[operator]
    for (out, into), count, size in [*((s, shapes.count(s), rows) for s in sorted(set(shapes))), (head, 1, answers)]:
        weight, x, grad = torch.randn(out, into), torch.randn(size, into), torch.randn(size, out)
        times = []
        for _ in range(7):
            start = time.perf_counter()
            torch.mm(x, weight.T)
            torch.mm(grad, weight)
            times.append(time.perf_counter() - start)
        seconds += count * statistics.median(times)
    return updates * seconds


def work(way: str, options: argparse.Namespace, threads: int, client: int) -> tuple[float, float, list[float], float]:
    """One process: warm up, wait for the others, train -> begin and end (seconds, same clock), losses, and the seconds
    that the products take alone."""
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(options.matmul_precision)
    count = options.records
    # Every second record, so that two clients hold records of the same length on average.
    model, sequences = prepare(options.model, options.tofu, 2 * count, options.chat)
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
    end = time.perf_counter()
    _barrier.wait()
    return begin, end, losses, product_seconds(model, sequences)


def measure(way: str, options: argparse.Namespace, processes: int, threads: int) -> tuple[float, list[float], float]:
    """Samples per second of all processes together, the losses of the first, and its share of the products' rate."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes, timeout=600)
    with ProcessPoolExecutor(processes, context, initializer=_share, initargs=(barrier,)) as pool:
        replies = list(pool.map(partial(work, way, options, threads), range(processes)))
    seconds = max(reply[1] for reply in replies) - min(reply[0] for reply in replies)
    return processes * options.records / seconds, replies[0][2], replies[0][3] / (replies[0][1] - replies[0][0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tofu", type=Path, required=True, help="folder with TOFU's full.json")
    parser.add_argument("--model", default="embedded", help="as `model.source` of a configuration")
    parser.add_argument("--matmul-precision", choices=("highest", "medium"), default="highest")
    parser.add_argument("--chat", action="store_true", help="ask in the model's chat template")
    parser.add_argument("--records", type=int, default=640, help="records per client")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    ways = {
        "Trainer, 1 process x 2 threads": ("trainer", 1, 2),
        "ours, 1 process x 2 threads": ("ours", 1, 2),
        "ours, 2 processes x 1 thread": ("ours", 2, 1),
    }
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    shares: dict[str, list[float]] = {name: [] for name in ways}
    losses: dict[str, list[float]] = {}
    for _ in range(options.repeats):
        for name, (way, processes, threads) in ways.items():
            speed, losses[name], share = measure(way, options, processes, threads)
            speeds[name].append(speed)
            shares[name].append(share)
    reference, *ours = ways
    base = statistics.median(speeds[reference])
    for name, values in speeds.items():
        middle, share = statistics.median(values), statistics.median(shares[name])
        spread = ", ".join(f"{value:.1f}" for value in values)
        print(f"{name:32s} {middle:7.1f} samples/s  {middle / base:5.2f}x  {share:4.0%} of products  ({spread})")
    for name in ours:
        gap = max(abs(a - b) for a, b in zip(losses[reference], losses[name], strict=True))
        print(f"loss of {len(losses[name])} updates, {name}: largest difference from Trainer {gap:.1e}")


if __name__ == "__main__":
    main()
