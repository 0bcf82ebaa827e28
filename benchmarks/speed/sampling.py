"""Sampled tokens per second: `evaluation.engine.sampling.sample` against transformers' `generate`, and a whole audit.

    python -m benchmarks.speed.sampling --tofu DIR [--model DIR] [--threads 2] [--sizes 1 4 16 64 256 1024] [--audit]
        [--matmul-precision medium]

DIR holds the TOFU files as JSON lines. Both sample 64 tokens with top-p 0.9 from the same prompts, none of which ends
early: `size` answers to one question, and one answer to each of `size` questions. Beside the tokens stands how much of
the rate at which this machine reads memory the weights take that each step reads once (`weights_read`): near 1 where
nothing but reading them is left to save, which at large sizes is not so. --audit instead audits the 40 questions of
forget01 with 1024 samples each and prints its time and the peak memory of the process.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from benchmarks.speed.tofu_evaluation import encode, read
from evaluation.engine.half_precision_weights import multiplies_bfloat16
from evaluation.engine.sampling import Rule, sample
from evaluation.leakage.functions import Asked, rouge_l_recall
from oblivionis.audits.leakage import audit_leakage
from oblivionis.audits.loaded_model import find_subject
from oblivionis.config.schema import LeakageAudit
from oblivionis.models import embedded_model

TOKENS, TOP_P = 64, 0.9
READ_BYTES = 2**30


def generate(model: Any, prompts: list[tuple[int, ...]], pad_id: int) -> int:
    """Sample by `generate`: one left-padded batch. Returns the number of new tokens."""
    width = max(map(len, prompts))
    ids = torch.tensor([[pad_id] * (width - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    config = GenerationConfig(
        max_new_tokens=TOKENS,
        min_new_tokens=TOKENS,
        do_sample=True,
        top_p=TOP_P,
        top_k=0,
        eos_token_id=model.config.eos_token_id,
        pad_token_id=pad_id,
    )
    with torch.inference_mode():
        return model.generate(input_ids=ids, attention_mask=mask, generation_config=config)[:, width:].numel()


def ours(model: Any, prompts: list[tuple[int, ...]], samples: int) -> int:
    """Sample by our sampler. Returns the number of new tokens."""
    found = sample(model, prompts, samples, max_new_tokens=TOKENS, stop_ids=(), rule=Rule(top_p=TOP_P))
    return sum(len(tokens) for answers in found for tokens in answers)


def rate(work: Callable[[], int]) -> float:
    """Tokens per second."""
    start = time.perf_counter()
    return work() / (time.perf_counter() - start)


def read_rate() -> float:
    """Bytes per second that a product of a matrix of 1 GiB, far larger than any cache, with a vector reads."""
    matrix = torch.ones(READ_BYTES // 4096, 1024)
    vector = torch.ones(1024)
    torch.mv(matrix, vector)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        torch.mv(matrix, vector)
        seconds.append(time.perf_counter() - start)
    return READ_BYTES / min(seconds)


def weights_read(model: Any) -> tuple[int, int]:
    """Bytes of weights that a decoding step reads, by `generate` and by ours: all layers and the head.

    Ours keeps the layers in bfloat16 under "medium" precision where the processor multiplies such numbers.
    """
    head = model.get_output_embeddings().weight.nbytes
    layers = sum(weight.nbytes for weight in model.model.layers.parameters())
    halved = torch.get_float32_matmul_precision() == "medium" and multiplies_bfloat16()
    return head + layers, head + layers // (2 if halved else 1)


def compare(model: Any, prompts: list[tuple[int, ...]], sizes: list[int], pad_id: int, repeats: int) -> bool:
    """Print a row per batch size; whether ours is never slower."""
    reading, (their_bytes, own_bytes) = read_rate(), weights_read(model)
    print(
        f"memory is read at {reading / 1e9:.1f} GB/s; a step reads {their_bytes / 1e6:.0f} and {own_bytes / 1e6:.0f} MB"
    )
    print(f"{'size':>6} {'what':<28} {'generate':>16} {'ours':>16} {'ratio':>7}   tokens/s, median of {repeats}")
    faster = True
    for size in sizes:
        several = [prompts[i % len(prompts)] for i in range(size)]
        for name, theirs, here in (
            ("answers to one question", [prompts[0]] * size, lambda n=size: ours(model, prompts[:1], n)),
            ("questions, one answer each", several, lambda p=several: ours(model, p, 1)),
        ):
            pairs = [(rate(lambda p=theirs: generate(model, p, pad_id)), rate(here)) for _ in range(repeats)]
            plain, own = (statistics.median(values) for values in zip(*pairs, strict=True))
            shares = [
                f"({tokens / size * read / reading:4.0%})" for tokens, read in ((plain, their_bytes), (own, own_bytes))
            ]
            print(
                f"{size:>6} {name:<28} {plain:>8.0f} {shares[0]:>7} {own:>8.0f} {shares[1]:>7} {own / plain:>7.2f}",
                flush=True,
            )
            faster = faster and own >= plain
    return faster


def audit(folder: Path, model: str) -> None:
    """Audit forget01 and print time and peak memory."""
    rows = read(folder / "forget01_perturbed.json")
    asked = [Asked(str(i), row["question"], row["answer"]) for i, row in enumerate(rows)]
    subject = find_subject(model, None, [])
    with tempfile.TemporaryDirectory() as out:
        result = audit_leakage(subject, asked, rouge_l_recall, LeakageAudit(), Path(out))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{len(asked)} questions x 1024 samples: {result.seconds:.0f} s, peak memory {peak:.0f} MiB")


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; the exit status is 1 where ours is slower at any size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tofu", type=Path, required=True, help="folder of the TOFU JSON lines files")
    parser.add_argument("--model", type=Path, help="Hugging Face folder (default: the embedded model)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--matmul-precision", choices=("highest", "medium"), default="highest")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 4, 16, 64, 256, 1024])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--audit", action="store_true", help="time a whole audit instead")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.set_float32_matmul_precision(options.matmul_precision)
    if options.audit:
        audit(options.tofu, str(options.model or "tiny"))
        return 0
    source = options.model
    if source is None:
        source = embedded_model.folder()
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="sdpa").eval()
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    prompts = [encode(tokenizer, row["question"], [])[0] for row in read(options.tofu / "full.json")[:1024]]
    generate(model, prompts[:2], pad_id)
    ours(model, prompts[:2], 1)
    return 0 if compare(model, prompts, options.sizes, pad_id, options.repeats) else 1


if __name__ == "__main__":
    sys.exit(main())
