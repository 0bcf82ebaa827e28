"""The answers of a leakage audit: sampled as far as they are missing, and kept.

Each question's samples are one Parquet file that is written when they are complete. A repeated audit into the same
folder reads what is there and samples only what is missing: after an interruption, for more samples, or to judge the
same samples by another leakage function or significance.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from evaluation.engine.decoding import greedy
from evaluation.engine.fused_lora import fused_lora
from evaluation.engine.models import text_config
from evaluation.engine.sampling import Rule, sample
from evaluation.leakage.functions import Asked, LeakageFunction
from evaluation.leakage.sequential import SequentialTest
from oblivionis import seeds
from oblivionis.audits.audited_model import AuditError
from oblivionis.audits.loaded_model import AuditedModel
from oblivionis.config.schema import LeakageAudit
from oblivionis.data.tokenize import encode_prompts
from oblivionis.files import checked, parse_json, read_bytes, write_atomic

ROWS_AT_ONCE = 4096
LOOK_EVERY = 32

Progress = Callable[[int, int], None]
"""Called with how many answers there are and how many there will be at most."""


def rule_of(settings: LeakageAudit) -> Rule:
    """The sampling distribution of the settings."""
    return Rule(settings.temperature, settings.top_p, settings.top_k, settings.confidence)


def draw(
    store: SampleStore,
    function: LeakageFunction,
    tests: Sequence[SequentialTest] | None,
    progress: Progress | None,
) -> int:
    """Sample what is missing, with tests as much as they need; returns how many answers were drawn."""
    subject, settings = store.subject, store.settings
    drawn = 0
    examined = [0] * len(store.questions)
    while True:
        wanted = []
        for i, asked in enumerate(store.questions):
            have = len(store.texts[i])
            if tests is None:
                target = settings.samples
            else:
                seen = min(have, settings.samples)
                if examined[i] < seen:
                    tests[i].update(function(store.texts[i][examined[i] : seen], asked))
                    examined[i] = seen
                undecided = tests[i].decision.verdict == "undecided"
                target = min(have + LOOK_EVERY, settings.samples) if undecided else have
            if have < target:
                wanted.append((have, target - have, i))
        if progress is not None:
            there = sum(min(len(texts), settings.samples) for texts in store.texts)
            progress(there, there + sum(count for _, count, _ in wanted))
        if not wanted:
            return drawn
        first, count, _ = min(wanted)
        together = [i for have, missing, i in wanted if (have, missing) == (first, count)]
        together = together[: max(1, ROWS_AT_ONCE // count)]
        with fused_lora(subject.model):
            found = sample(
                subject.model,
                [store.prompts[i] for i in together],
                count,
                max_new_tokens=settings.max_new_tokens,
                stop_ids=subject.stop_ids,
                rule=rule_of(settings),
                seed=settings.seed,
                questions=[store.numbers[i] for i in together],
                first=first,
                pad_id=subject.tokenizer.pad_token_id or 0,
            )
        for i, tokens in zip(together, found, strict=True):
            store.extend(i, subject.tokenizer.batch_decode(tokens, skip_special_tokens=True))
        drawn += count * len(together)


class SampleStore:
    """The sampled texts of every question, in memory and on disk; texts of other settings are not read."""

    def __init__(self, subject: AuditedModel, questions: Sequence[Asked], settings: LeakageAudit, folder: Path) -> None:
        self.subject, self.questions, self.settings = subject, questions, settings
        self.prompts = encode_prompts([q.prompt for q in questions], subject.tokenizer, subject.template)
        self._check_length()
        self.numbers = [seeds.derive("question", q.id, q.prompt) for q in questions]
        common = {
            "model": subject.identity,
            "rule": asdict(rule_of(settings)),
            "max_new_tokens": settings.max_new_tokens,
            "seed": settings.seed,
            "stop_ids": sorted(subject.stop_ids),
        }
        self._facts = [
            {"id": q.id, "question": q.prompt, "prompt": list(prompt), **common}
            for q, prompt in zip(questions, self.prompts, strict=True)
        ]
        names = [hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16] for facts in self._facts]
        self._paths = [folder / "samples" / f"{name}.parquet" for name in names]
        found = [_read(path, facts) for path, facts in zip(self._paths, self._facts, strict=True)]
        self.texts = [texts for texts, _ in found]
        known = {i: answer for i, (_, answer) in enumerate(found) if answer is not None}
        missing = [i for i in range(len(questions)) if i not in known]
        if missing:
            with fused_lora(subject.model):
                tokens = greedy(
                    subject.model,
                    [self.prompts[i] for i in missing],
                    max_new_tokens=settings.max_new_tokens,
                    stop_ids=subject.stop_ids,
                    pad_id=subject.tokenizer.pad_token_id or 0,
                )
            texts = subject.tokenizer.batch_decode(tokens, skip_special_tokens=True)
            known |= dict(zip(missing, texts, strict=True))
        self.greedy_answers = [known[i] for i in range(len(questions))]

    def _check_length(self) -> None:
        """AuditError where prompt and answer do not fit the model's context."""
        new_tokens = self.settings.max_new_tokens
        context = getattr(text_config(self.subject.model), "max_position_embeddings", None)
        long = [
            f"{q.id!r} ({len(prompt)} tokens)"
            for q, prompt in zip(self.questions, self.prompts, strict=True)
            if context is not None and len(prompt) + new_tokens > context
        ]
        if long:
            raise AuditError(
                f"{len(long)} questions and their answers of at most {new_tokens} tokens exceed the model's context of "
                f"{context} tokens: {', '.join(long[:3])}"
            )

    def extend(self, index: int, texts: Sequence[str]) -> None:
        """Add further samples of a question and write its file anew."""
        self.texts[index] = [*self.texts[index], *texts]
        facts = {**self._facts[index], "greedy": self.greedy_answers[index]}
        table = pa.table(
            {
                "question": [self.questions[index].id] * len(self.texts[index]),
                "sample": pa.array(range(len(self.texts[index])), pa.int32()),
                "text": self.texts[index],
            }
        ).replace_schema_metadata({"oblivionis": json.dumps(facts)})
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        write_atomic(self._paths[index], buffer.getvalue())


def _read(path: Path, facts: dict[str, Any]) -> tuple[list[str], str | None]:
    """The texts and the greedy answer in a file of samples; nothing where it is missing, torn or of other settings."""
    try:
        table = pq.read_table(io.BytesIO(read_bytes(path)))
        found = checked(parse_json((table.schema.metadata or {})[b"oblivionis"]), dict[str, Any])
        answer = checked(found.pop("greedy"), str)
        texts = checked(table.column("text").to_pylist(), list[str])
    except (OSError, KeyError, ValueError, pa.ArrowException):
        return [], None
    return (texts, answer) if found == json.loads(json.dumps(facts)) else ([], None)
