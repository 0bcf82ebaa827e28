"""Pairs of texts per second: ROUGE-L of `evaluation.metrics.rouge` against the package rouge-score, one thread.

    python -m benchmarks.speed.rouge --tofu DIR [--copies 25] [--compared 8000] [--repeats 5] [--limit N]

DIR holds the TOFU answers as JSON lines (full.json). Predictions are answers with words swapped, left out and put in,
references answers with a word of their own: no text occurs twice. Times are of the processor. The line "first words"
is the very first call, which also stems every word for the first time.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path

import numpy as np
from rouge_score.rouge_scorer import RougeScorer

from evaluation.metrics.rouge import rouge_l


def perturbed(answer: str, rng: random.Random, vocabulary: list[str]) -> str:
    """The answer with about a tenth of its words swapped, a tenth left out and a tenth replaced."""
    words = answer.split()
    for _ in range(1 + len(words) // 20):
        i, j = rng.randrange(len(words)), rng.randrange(len(words))
        words[i], words[j] = words[j], words[i]
    return " ".join(rng.choice(vocabulary) if rng.random() < 0.1 else word for word in words if rng.random() >= 0.1)


def pairs_of(answers: list[str], copies: int, seed: int) -> tuple[list[str], list[str]]:
    """Predictions and references, `copies` of each answer, all texts different."""
    rng = random.Random(seed)
    vocabulary = [word for answer in answers for word in answer.split()]
    predictions: list[str] = []
    references: list[str] = []
    seen: set[str] = set()
    for copy in range(copies):
        for answer in answers:
            words = answer.split()
            words.insert(rng.randrange(len(words) + 1), str(copy))
            pair = [" ".join(words), perturbed(answer, rng, vocabulary)]
            for i, text in enumerate(pair):
                while pair[i] in seen:
                    pair[i] = f"{text} {rng.choice(vocabulary)} {rng.randrange(10**6)}"
                seen.add(pair[i])
            references.append(pair[0])
            predictions.append(pair[1])
    return predictions, references


def fresh(texts: list[str]) -> list[str]:
    """Equal texts as new objects, which carry no hash value or other trace of an earlier run."""
    return [text.encode("utf-8").decode("utf-8") for text in texts]


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; the exit status is 1 where any value differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tofu", type=Path, required=True, help="folder with full.json")
    parser.add_argument("--copies", type=int, default=25, help="pairs per answer")
    parser.add_argument("--limit", type=int, help="answers")
    parser.add_argument("--compared", type=int, default=8000, help="pairs that rouge-score gets as well")
    parser.add_argument("--repeats", type=int, default=5, help="turns, of which the median counts")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    lines = (options.tofu / "full.json").read_text(encoding="utf-8").splitlines()
    answers = [json.loads(line)["answer"] for line in lines][: options.limit]
    predictions, references = pairs_of(answers, options.copies, options.seed)
    count, first = len(predictions), len(answers)
    words = sum(len(text.split()) for text in references) / count
    print(f"{count} pairs, references of {words:.1f} words on average, {len({*predictions, *references})} texts")

    head = fresh(predictions[:first]), fresh(references[:first])
    start = time.process_time()
    rouge_l(*head)
    cold = first / (time.process_time() - start)

    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    step = min(options.compared, count) // options.repeats or 1
    speeds: list[float] = []
    packages: list[float] = []
    one_reference: list[float] = []
    difference = 0.0
    # In turns, so that a busier machine slows down both.
    for part in range(options.repeats):
        slow = slice(part * step, (part + 1) * step)
        compared = predictions[slow], references[slow]
        start = time.process_time()
        theirs = [scorer.score(r, p)["rougeL"] for p, r in zip(*compared, strict=True)]
        packages.append(len(theirs) / (time.process_time() - start))
        pairs = fresh(predictions), fresh(references)
        start = time.process_time()
        ours = rouge_l(*pairs)
        speeds.append(count / (time.process_time() - start))
        alone = fresh(predictions[:1024])
        start = time.process_time()
        rouge_l(alone, references[part])
        one_reference.append(len(alone) / (time.process_time() - start))
        for values, field in ((ours.precision, "precision"), (ours.recall, "recall"), (ours.f1, "fmeasure")):
            expected = np.array([getattr(score, field) for score in theirs])
            difference = max(difference, float(np.abs(values[slow] - expected).max(initial=0.0)))

    def line(name: str, values: list[float], what: str) -> None:
        print(f"{name:18}{np.median(values):12,.0f} pairs/s  ({min(values):,.0f} to {max(values):,.0f}; {what})")

    line("rouge-score", packages, f"{step} pairs each time")
    line("evaluation.metrics.rouge", speeds, f"{count} pairs each time")
    line("  one reference", one_reference, "1024 predictions at once, or all there are")
    line("  first words", [cold], f"{first} pairs, no word stemmed before")
    print(f"{'ratio':18}{np.median(speeds) / np.median(packages):12.1f}")
    print(f"largest difference {difference:.2e} of {step * options.repeats} pairs")
    return 0 if difference == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
