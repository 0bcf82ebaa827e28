"""What scoring canaries costs: prefixes computed once, against every filled sentence in length-sorted batches.

    python -m benchmarks.speed.wikimem [--model DIR] [--facts 20] [--templates 11] [--context 0] [--rounds 4]

Both ways score the same facts of the built-in corpus with their look-alike names and 100 counterfactuals. The plain
way tokenises all sentences, sorts them by length and pads 64 at a time. The facts are dealt to `rounds` shares, and the
two ways take turns, so that both find the machine in the same state.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from evaluation.wikimem.canaries import context_of, contextualised, fill
from evaluation.wikimem.engine import Asking, FactScore, score_facts
from evaluation.wikimem.facts import Fact, candidates
from evaluation.wikimem.names import name_variants
from evaluation.wikimem.properties import counterfactuals, properties
from evaluation.wikimem.score import calibrated_scores
from oblivionis.data.datasets import fictitious
from oblivionis.data.person_facts import facts_of
from oblivionis.models import embedded_model

BATCH = 64


class Positions:
    """Counts the token positions that reach the model, with and without padding."""

    def __init__(self, model: Any, pad_id: int) -> None:
        self.all = self.real = 0
        self._pad_id = pad_id
        lookup = model.get_input_embeddings()
        forward = lookup.forward

        def counted(ids: torch.Tensor) -> torch.Tensor:
            self.all += ids.numel()
            self.real += int((ids != self._pad_id).sum())
            return forward(ids)

        lookup.forward = counted


def sentences(fact: Fact, asking: Asking, known: list[Fact]) -> list[str]:
    """Every template, name and candidate of a fact, in this order."""
    found = properties()[fact.property]
    context = context_of(fact, known, asking.context)
    templates = [contextualised(canary, context) for canary in found.canaries[: asking.templates]]
    names = (fact.subject, *name_variants(fact.subject, asking.variants))
    values = candidates(fact.values, counterfactuals()[fact.property], asking.counterfactuals)
    return [fill(t, name, value, found.kind) for t in templates for name in names for value in values]


def plain_nlls(model: Any, tokenizer: Any, texts: list[str], pad_id: int) -> np.ndarray:
    """Sum of the token NLLs after BOS of each sentence: right-padded batches of similar lengths."""
    rows = [[tokenizer.bos_token_id, *ids] for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    result = np.empty(len(rows))
    with torch.inference_mode():
        for start in range(0, len(order), BATCH):
            part = order[start : start + BATCH]
            width = len(rows[part[-1]])
            ids = torch.full((len(part), width), pad_id)
            mask = torch.zeros((len(part), width), dtype=torch.long)
            for j, i in enumerate(part):
                ids[j, : len(rows[i])], mask[j, : len(rows[i])] = torch.tensor(rows[i]), 1
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
            nll = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(len(part), -1)
            result[part] = (nll * mask[:, 1:]).sum(1)
    return result


def plain_scores(
    model: Any, tokenizer: Any, facts: list[Fact], asking: Asking, known: list[Fact], pad_id: int
) -> list[np.ndarray]:
    """The calibrated scores (T, C) of each fact, from every sentence on its own."""
    texts = [sentences(fact, asking, known) for fact in facts]
    nll = plain_nlls(model, tokenizer, [text for part in texts for text in part], pad_id)
    result = []
    for part in np.split(nll, np.cumsum([len(part) for part in texts])[:-1]):
        table = part.reshape(asking.templates or 11, 1 + asking.variants, -1)
        result.append(calibrated_scores(table[:, 0], table[:, 1:]))
    return result


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; the exit status is 1 where a score differs by more than 2e-4 nats (two NLLs, 1e-4 each)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="Hugging Face folder (default: the embedded model)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--facts", type=int, default=20)
    parser.add_argument("--templates", type=int, default=11)
    parser.add_argument("--context", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    source = options.model
    if source is None:
        source = embedded_model.folder()
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="sdpa").eval()
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    known = facts_of(fictitious.corpus().train)
    facts = known[: options.facts]
    asking = Asking(templates=options.templates, context=options.context)

    positions = Positions(model, pad_id)
    ways = ("plain", "shared")
    seconds, all_positions, real_positions = ({way: 0.0 for way in ways} for _ in range(3))
    difference, count = 0.0, 0
    score_facts(model, tokenizer, facts[:1], Asking(templates=1))
    for turn in range(options.rounds):
        share = facts[turn :: options.rounds]
        found: dict[str, list[np.ndarray]] = {}
        for way in ways if turn % 2 else ways[::-1]:
            positions.all = positions.real = 0
            start = time.perf_counter()
            if way == "plain":
                found[way] = plain_scores(model, tokenizer, share, asking, known, pad_id)
            else:
                scores: list[FactScore] = score_facts(model, tokenizer, share, asking, known=known)
                found[way] = [x.scores for x in scores]
            seconds[way] += time.perf_counter() - start
            all_positions[way] += positions.all
            real_positions[way] += positions.real
        count += sum(len(sentences(fact, asking, known)) for fact in share)
        for a, b in zip(found["plain"], found["shared"], strict=True):
            difference = max(difference, float(np.abs(a - b).max()))
    print(f"{len(facts)} facts, {count} sentences; plain batches of {BATCH}; {options.threads} threads")
    for way in ways:
        print(
            f"{way:8}{seconds[way]:8.2f} s  {all_positions[way]:10.0f} positions"
            f" ({real_positions[way]:.0f} without padding)"
        )
    shared = all_positions["shared"]
    print(
        f"ratio   {seconds['plain'] / seconds['shared']:8.2f}    {all_positions['plain'] / shared:10.2f}"
        f" ({real_positions['plain'] / shared:.2f} without padding)"
    )
    print(f"largest difference of a score {difference:.1e} nats")
    return 0 if difference <= 2e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
