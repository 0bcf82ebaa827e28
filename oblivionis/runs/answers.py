"""What the per-question log of a stage holds about single questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oblivionis.naming import LOG_SETS


def forget_answers(log: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """By record id: probability and ROUGE-L recall of the answer, the prompt and the answer itself."""
    section = (log or {}).get(LOG_SETS["forget"], {})
    ids = (log or {}).get("ids", {}).get(LOG_SETS["forget"], [])
    found: dict[str, dict[str, Any]] = {i: {} for i in ids}
    for name in ("avg_gt_loss", "rougeL_recall", "generated_text"):
        values = list((section.get(name) or {}).values())
        if len(values) == len(ids):
            for record_id, value in zip(ids, values, strict=True):
                found[record_id][name] = value
    return {i: values for i, values in found.items() if values}


def bare(prompts: Sequence[str]) -> list[str]:
    """Prompts without the lines that all of them begin and end with: what a chat template puts around a question.

    One prompt by itself stays as it is.
    """
    lines = [prompt.strip().split("\n") for prompt in prompts]
    if len(lines) < 2:
        return [prompt.strip() for prompt in prompts]
    shortest = min(map(len, lines))
    head = next((n for n in range(shortest) if len({tuple(own[: n + 1]) for own in lines}) > 1), shortest - 1)
    rest = shortest - head - 1
    tail = next((n for n in range(rest) if len({tuple(own[-n - 1 :]) for own in lines}) > 1), rest)
    return ["\n".join(own[head : len(own) - tail]) for own in lines]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model was asked, what it said, and what is true."""

    prompt: str
    text: str
    truth: str


def answers(log: Mapping[str, Any] | None, of: str) -> dict[str, Answer]:
    """The answers to a question set of `naming.LOG_SETS`, or to a group of MUSE's, by record id or number."""
    log = log or {}
    if of not in LOG_SETS:
        rows = log.get("muse", {}).get(of) or {}
        return {i: Answer(row["shown"], row["generated"], row["truth"]) for i, row in rows.items()}
    texts = log.get(LOG_SETS[of], {}).get("generated_text") or {}
    ids = log.get("ids", {}).get(LOG_SETS[of], [])
    named = zip(ids if len(ids) == len(texts) else texts, texts.values(), strict=True)
    return {i: Answer(*row) for i, row in named}
