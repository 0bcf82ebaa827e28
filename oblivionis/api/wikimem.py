"""WikiMem: which facts about a person has a model memorised? Canaries, look-alike names and calibrated ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evaluation.engine.fused_lora import fused_lora
from evaluation.wikimem import engine
from evaluation.wikimem.encoder import SentenceEncoder
from evaluation.wikimem.engine import Asking, FactScore, Progress
from evaluation.wikimem.facts import SAME_MEANING, Embed, Fact
from evaluation.wikimem.names import name_variants
from evaluation.wikimem.properties import Property, counterfactuals, properties
from evaluation.wikimem.score import PairScore, Summary, by_cohort, by_property, summarize
from oblivionis.api.models import ModelLike, loaded

__all__ = [
    "Asking",
    "Fact",
    "FactScore",
    "PairScore",
    "Property",
    "SentenceEncoder",
    "Summary",
    "by_cohort",
    "by_property",
    "counterfactuals",
    "name_variants",
    "properties",
    "score_facts",
    "summarize",
]


def score_facts(
    model: ModelLike,
    facts: Sequence[Fact],
    asking: Asking | None = None,
    *,
    counterfactuals: Mapping[str, Sequence[str]] | None = None,
    properties: Mapping[str, Property] | None = None,
    embed: Embed | None = None,
    threshold: float = SAME_MEANING,
    progress: Progress | None = None,
) -> list[FactScore]:
    """Calibrated scores, ranks and strengths of every fact, in their order (WikiMem, sections 4 and 5).

    `summarize` sums up the `pair` of each score.

    Parameters
    ----------
    model : ModelLike
    facts : sequence of Fact
        What is true of whom, by Wikidata's property ids.
    asking : Asking, optional
        How many canaries, competing values and look-alike names, and how much context; None: `Asking()`.
    counterfactuals : mapping of sequences of str, optional
        Competing values by property id; None: those of the function of that name.
    properties : mapping of Property, optional
        Canaries by property id; None: those of the function of that name.
    embed : callable (sequence of n str) -> array (n, width), optional
        Such as a `SentenceEncoder`; None: only texts that are equal but for letter case mean the same.
    threshold : float in [-1, 1]
        A competing value with a cosine above it to a true one counts as true.
    progress : callable (done, all), optional
        Called with numbers of sentences.

    Returns
    -------
    list of FactScore

    Raises
    ------
    ModelError
        For what is no model.
    ValueError
        For an unknown property, a property without competing values, a name without look-alikes, or a sentence that is
        too long for the model.
    """
    network, tokenizer = loaded(model)
    with fused_lora(network):
        return engine.score_facts(
            network,
            tokenizer,
            facts,
            asking or Asking(),
            counterfactuals=counterfactuals,
            properties=properties,
            embed=embed,
            threshold=threshold,
            progress=progress,
        )
