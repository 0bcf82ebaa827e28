"""How long one checkpoint's TOFU evaluation takes: one shared pass against each set on its own in padded batches.

    python -m benchmarks.speed.tofu_evaluation --tofu DIR [--model DIR] [--threads 2] [--train-steps 0] [--limit N]
        [--matmul-precision medium]

DIR holds the TOFU files as JSON lines. Both ways score the answers, paraphrases and perturbed answers of forget01,
retain, real authors and world facts and continue every question greedily (200 new tokens at most), then aggregate.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from evaluation.engine.forward import token_log_probs
from evaluation.engine.packing import PackedBatch
from evaluation.engine.sequences import TokenSequence
from evaluation.hook import EvaluationSession, Hook
from evaluation.metrics.rouge import rouge_l
from evaluation.metrics.tofu import SECTIONS, Profile, Question, TofuEvaluator, aggregate
from oblivionis.models import embedded_model

FILES = {
    "forget": "forget01_perturbed.json",
    "retain": "retain_perturbed.json",
    "real_authors": "real_authors_perturbed.json",
    "world_facts": "world_facts_perturbed.json",
}
BATCH = 32


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def encode(tokenizer: Any, question: str, answers: list[str]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Prompt ids, and the ids of each answer with EOS."""

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])

    return ids(f"Question: {question}\nAnswer:"), [(*ids(f" {a}"), tokenizer.eos_token_id) for a in answers]


def questions(tokenizer: Any, folder: Path, limit: int | None) -> dict[str, list[Question]]:
    """The question sets of the folder, the first `limit` questions of each."""
    sets: dict[str, list[Question]] = {}
    for name, file in FILES.items():
        sets[name] = []
        for i, row in enumerate(read(folder / file)[:limit]):
            paraphrase = row.get("paraphrased_answer")
            right = [row["answer"]] + ([paraphrase] if paraphrase else [])
            prompt, answers = encode(tokenizer, row["question"], [*right, *row["perturbed_answer"]])
            sets[name].append(
                Question(
                    id=f"{name}-{i}",
                    prompt=prompt,
                    answer=answers[0],
                    text=row["answer"],
                    paraphrase=answers[1] if paraphrase else None,
                    perturbed=tuple(answers[len(right) :]),
                )
            )
    return sets


def finetune(model: Any, tokenizer: Any, folder: Path, steps: int) -> None:
    """A few plain AdamW steps on the whole of TOFU, so that answers look like TOFU's and end."""
    rows = [encode(tokenizer, row["question"], [row["answer"]]) for row in read(folder / "full.json")]
    rng, optimizer = random.Random(0), torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()
    for _ in range(steps):
        batch = PackedBatch.build([TokenSequence(prompt, answers[0]) for prompt, answers in rng.sample(rows, 16)])
        optimizer.zero_grad()
        (-token_log_probs(model, batch).mean()).backward()
        optimizer.step()
    model.eval()
    model.set_attn_implementation("sdpa")


def plain_losses(model: Any, sequences: list[TokenSequence], pad_id: int) -> list[float]:
    """Mean answer NLL of each sequence: right-padded batches in arrival order, logits of every position."""
    losses: list[float] = []
    for start in range(0, len(sequences), BATCH):
        part = sequences[start : start + BATCH]
        width = max(len(s.prompt) + len(s.answer) for s in part)
        ids = torch.full((len(part), width), pad_id)
        labels = torch.full((len(part), width), -100)
        mask = torch.zeros((len(part), width), dtype=torch.long)
        for i, s in enumerate(part):
            tokens = torch.tensor(s.prompt + s.answer)
            ids[i, : len(tokens)], mask[i, : len(tokens)] = tokens, 1
            labels[i, len(s.prompt) : len(tokens)] = tokens[len(s.prompt) :]
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1].flatten(0, 1)
        nll = F.cross_entropy(logits, labels[:, 1:].flatten(), reduction="none").view(len(part), -1)
        losses += (nll.sum(1) / (labels[:, 1:] >= 0).sum(1)).tolist()
    return losses


def plain_continuations(model: Any, prompts: list[tuple[int, ...]], limit: int, stop: int, pad_id: int) -> Any:
    """Greedy continuations by `generate`: left-padded batches in arrival order."""
    config = GenerationConfig(max_new_tokens=limit, do_sample=False, eos_token_id=stop, pad_token_id=pad_id)
    produced: list[list[int]] = []
    for start in range(0, len(prompts), BATCH):
        part = prompts[start : start + BATCH]
        width = max(len(p) for p in part)
        ids = torch.tensor([[pad_id] * (width - len(p)) + list(p) for p in part])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in part])
        rows = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)[:, width:].tolist()
        produced += [row[: row.index(stop)] if stop in row else row for row in rows]
    return produced


def plain_log(
    model: Any, sets: dict[str, list[Question]], decode: Callable[[Any], str], limit: int, stop: int, pad_id: int
) -> tuple[dict[str, Any], dict[str, float]]:
    """The log of all sets, each on its own, and the seconds of its two parts."""
    log: dict[str, Any] = {}
    seconds = {"likelihoods": 0.0, "continuations": 0.0}
    with torch.inference_mode():
        for name, asked in sets.items():
            start = time.perf_counter()
            all_sequences = [q.sequences() for q in asked]
            columns = list(zip(*all_sequences, strict=True))
            right = plain_losses(model, list(columns[0]), pad_id)
            has_paraphrase = asked[0].paraphrase is not None
            paraphrased = plain_losses(model, list(columns[1]), pad_id) if has_paraphrase else right
            wrong = [plain_losses(model, list(column), pad_id) for column in columns[2:]]
            middle = time.perf_counter()
            produced = plain_continuations(model, [q.prompt for q in asked], limit, stop, pad_id)
            texts = [[decode(q.prompt), decode(ids), q.text] for q, ids in zip(asked, produced, strict=True)]
            recall = rouge_l([t[1] for t in texts], [t[2] for t in texts]).recall.tolist()
            seconds["likelihoods"] += middle - start
            seconds["continuations"] += time.perf_counter() - middle
            values = {
                "avg_gt_loss": right,
                "avg_paraphrased_loss": paraphrased,
                "average_perturb_loss": [list(losses) for losses in zip(*wrong, strict=True)],
                "rougeL_recall": recall,
                "generated_text": texts,
            }
            log[SECTIONS[name]] = {key: {str(i): v for i, v in enumerate(x)} for key, x in values.items()}
    return log, seconds


def largest_loss_difference(first: dict[str, Any], second: dict[str, Any]) -> float:
    """Largest difference of any loss of two logs, in nats."""
    largest = 0.0
    for section in SECTIONS.values():
        for column in ("avg_gt_loss", "avg_paraphrased_loss", "average_perturb_loss"):
            pairs = zip(first[section][column].values(), second[section][column].values(), strict=True)
            for a, b in pairs:
                largest = max(largest, float((torch.tensor(a) - torch.tensor(b)).abs().max()))
    return largest


def read_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tofu", type=Path, required=True, help="folder of the TOFU JSON lines files")
    parser.add_argument("--model", type=Path, help="Hugging Face folder (default: the embedded model)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--matmul-precision", choices=("highest", "medium"), default="highest")
    parser.add_argument("--train-steps", type=int, default=0, help="finetune on TOFU first")
    parser.add_argument("--max-new-tokens", type=int, default=200)
    parser.add_argument("--limit", type=int, help="questions per set")
    return parser.parse_args(arguments)


def differing(ours: dict[str, Any], theirs: dict[str, Any]) -> int:
    """How many greedy continuations are not the same in both logs."""
    answers = [
        (one[1], other[1])
        for section in SECTIONS.values()
        for one, other in zip(
            ours[section]["generated_text"].values(), theirs[section]["generated_text"].values(), strict=True
        )
    ]
    return sum(one != other for one, other in answers)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; the exit status is 1 where a value differs by more than 1e-4."""
    options = read_options(arguments)
    torch.set_num_threads(options.threads)
    torch.set_float32_matmul_precision(options.matmul_precision)
    source = options.model
    if source is None:
        source = embedded_model.folder()
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="sdpa").eval()
    stop = tokenizer.eos_token_id
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else stop
    sets = questions(tokenizer, options.tofu, options.limit)
    if options.train_steps:
        finetune(model, tokenizer, options.tofu, options.train_steps)

    def decode(ids: Any) -> str:
        return tokenizer.decode(ids, skip_special_tokens=True)

    # Before ours, which tells the process to keep freed memory. Both find a warm model.
    plain_log(model, {name: asked[:2] for name, asked in sets.items()}, decode, 8, stop, pad_id)
    start = time.perf_counter()
    log, seconds = plain_log(model, sets, decode, options.max_new_tokens, stop, pad_id)
    expected = aggregate(log)
    plain = time.perf_counter() - start

    profile = Profile(max_new_tokens=options.max_new_tokens)
    evaluator = TofuEvaluator(sets, decode, profile=profile)
    session = EvaluationSession(model, stop_ids=[stop], pad_id=pad_id)
    start = time.perf_counter()
    session.request(sequences=[s for asked in sets.values() for q in asked for s in q.sequences()])
    session.compute()
    likelihood_seconds = time.perf_counter() - start
    report = Hook([evaluator], strict=True).run(session)
    ours = time.perf_counter() - start
    result = report.results["tofu"]

    actual = aggregate(result.details["log"])
    difference = max(
        largest_loss_difference(log, result.details["log"]), *(abs(actual[name] - expected[name]) for name in expected)
    )
    lengths = [
        len(tokens)
        for asked in sets.values()
        for tokens in session.greedy([q.prompt for q in asked], options.max_new_tokens)
    ]
    mean = sum(lengths) / len(lengths)
    print(f"{sum(map(len, sets.values()))} questions, continuations of {mean:.1f} tokens on average")
    parts = ", ".join(f"{part} {value:.2f}" for part, value in seconds.items())
    print(f"plain   {plain:8.2f} s  ({parts})")
    print(f"shared  {ours:8.2f} s  (likelihoods {likelihood_seconds:.2f}, the rest {ours - likelihood_seconds:.2f})")
    print(f"ratio   {plain / ours:8.2f}")
    print(f"largest difference {difference:.2e}, {differing(result.details['log'], log)} continuations differ")
    return 0 if difference <= 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
