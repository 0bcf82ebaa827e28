"""WikiMem as an evaluator: which facts about people the session's model has memorised.

Canaries are scored by `engine`, which shares prefixes among them; no other evaluator reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from evaluation.hook import EvaluationSession, Result
from evaluation.wikimem.engine import Asking, FactScore, score_facts
from evaluation.wikimem.facts import Embed, Fact
from evaluation.wikimem.properties import Property
from evaluation.wikimem.score import by_property, summarize


@dataclass(frozen=True)
class WikimemEvaluator:
    """Memorisation of facts about people to forget and about others: forget_strict, retain_lenient and so on.

    Metrics of both groups, as far as defined: strict, lenient (WikiMem's strict and lenient rate, in [0, 1]), strength
    (mean z* over memorised templates), unmemorized (share of subjects with nothing memorised), and, not in WikiMem,
    rank: the mean of `FactScore.ranks`, which also moves where no true value comes first, and likeliest: the mean of
    `FactScore.likeliest`, which is not lowered by look-alike names that the model takes for the person. The details
    hold WikiMem's figures by property, and of each template of each fact what came first and the rank.

    Attributes
    ----------
    forget, retain : sequence of Fact
        Not both empty.
    known : sequence of Fact
        Facts for the context.
    tokenizer
        The model's.
    asking : Asking
    properties, counterfactuals, embed
        As in `engine.score_facts`.

    Raises
    ------
    ValueError
        Without facts.
    """

    forget: Sequence[Fact]
    retain: Sequence[Fact]
    known: Sequence[Fact]
    tokenizer: Any
    asking: Asking = field(default_factory=Asking)
    properties: Mapping[Fact, Property] | None = None
    counterfactuals: Mapping[str, Sequence[str]] | None = None
    embed: Embed | None = None
    name: str = field(default="wikimem", init=False)

    def __post_init__(self) -> None:
        if not self.forget and not self.retain:
            raise ValueError("no facts to ask for")

    def evaluate(self, session: EvaluationSession) -> Result:
        """Score and summarise."""
        found = score_facts(
            session.model,
            self.tokenizer,
            [*self.forget, *self.retain],
            self.asking,
            counterfactuals=self.counterfactuals,
            properties=self.properties,
            known=self.known,
            embed=self.embed,
            token_budget=session.token_budget,
            mode=session.mode,
        )
        count = len(self.forget)
        groups = {name: part for name, part in (("forget", found[:count]), ("retain", found[count:])) if part}
        metrics = {f"{name}_{key}": value for name, part in groups.items() for key, value in _metrics(part).items()}
        return Result(metrics, {name: _details(part) for name, part in groups.items()})


def _metrics(found: Sequence[FactScore]) -> dict[str, float]:
    """The metrics of one group of facts."""
    summary = summarize([score.pair for score in found])
    metrics = {
        "strict": summary.strict_rate,
        "lenient": summary.lenient_rate,
        "unmemorized": summary.unmemorized_subjects / summary.subjects,
        "rank": float(np.mean([score.ranks.mean() for score in found])),
        "likeliest": float(np.mean([score.likeliest.mean() for score in found])),
    }
    return metrics if summary.mean_strength is None else metrics | {"strength": summary.mean_strength}


def _details(found: Sequence[FactScore]) -> dict[str, Any]:
    """Figures per property, and per fact how many templates have rank 1, and of each which candidate came first and
    `FactScore.ranks`."""
    return {
        "properties": {name: asdict(s) for name, s in by_property([score.pair for score in found]).items()},
        "facts": [
            {
                "subject": score.fact.subject,
                "property": score.fact.property,
                "values": list(score.fact.values),
                "memorized": int(score.pair.memorized.sum()),
                "templates": len(score.templates),
                "first": list(score.best),
                "ranks": score.ranks.tolist(),
            }
            for score in found
        ],
    }
