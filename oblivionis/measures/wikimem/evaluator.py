"""WikiMem: does the model rank the true facts about people above those of others?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evaluation.metrics.catalogue import Direction, Group, Metric
from oblivionis.data.tokenize import whole_text
from oblivionis.measures.base import Measure
from oblivionis.naming import SETS

if TYPE_CHECKING:
    from evaluation.hook import Evaluator
    from oblivionis.measures.context import Context
    from oblivionis.measures.wikimem.people import People

_STRICT = (
    "WikiMem: in which share of the phrasings the true value of a fact scores above every value of other people, "
    "averaged over facts. The score takes off how likely the sentence is with look-alike names. 0 to 1."
)
_LENIENT = (
    "WikiMem: share of facts whose true value ranks first in at least one phrasing (lenient rate). More phrasings make "
    "it higher by chance."
)
_STRENGTH = (
    "WikiMem: by how many standard deviations the lead of the true value exceeds the mean lead of a candidate, "
    "averaged over the phrasings in which it ranks first."
)
_UNMEMORIZED = "WikiMem: share of people none of whose facts ranks first in any phrasing."
_RANK = (
    "Not of WikiMem: share of the values of other people that score at least as high as the true one, averaged over "
    "phrasings and facts. 0: always first; 0.5: chance; above: avoided."
)
_LIKELIEST = (
    "Not of WikiMem: in which share of the phrasings the true value is likelier than every value of other people, "
    "averaged over facts. Unlike the strict rate it stays high where the model takes look-alike names for the person. "
    "0 to 1."
)


def _of_people(name: str, group: Group, known: Direction, unknown: Direction) -> list[Metric]:
    """The metrics about one group of people; known, unknown: which way is better for what is known and what is not."""
    return [
        Metric(f"{name}_strict", "Facts that rank first (strict)", known, None, _STRICT, group),
        Metric(f"{name}_lenient", "Facts that rank first (any phrasing)", known, None, _LENIENT, group),
        Metric(f"{name}_strength", "Memorisation strength z*", known, None, _STRENGTH, group, least=None, most=None),
        Metric(f"{name}_unmemorized", "People with nothing memorised", unknown, None, _UNMEMORIZED, group),
        Metric(f"{name}_rank", "Values that score higher", unknown, 0.5, _RANK, group),
        Metric(f"{name}_likeliest", "Facts that are likeliest", known, None, _LIKELIEST, group),
    ]


class Wikimem(Measure):
    """How true facts about people rank among those of others."""

    order = 40
    needs = ("prepared",)
    client_metrics = ("",)
    metrics = (
        *_of_people("forget", Group(f"{SETS['forget']}, WikiMem", 30), "oracle", "oracle"),
        *_of_people("retain", Group(f"{SETS['retain']}, WikiMem", 31), "higher", "lower"),
    )
    legend = (
        "WikiMem: does the true value of a fact about a person rank first among those of others? By chance about 1 in "
        "100 does in a phrasing, and half of the others' values score higher; more than half: the model avoids the "
        "true one."
    )

    def prepare(self, context: Context) -> People | None:
        """Whose facts are asked for; None where there are none. Raises RunError, or DataError for a faulty file."""
        from oblivionis.measures.wikimem.people import People

        tokenizer, template = context.tokenizer, context.assembled.template
        return People.of(
            context.corpus,
            context.config.evaluation.wikimem,
            lambda record: whole_text(tokenizer, template, record.question, record.answer),
        )

    def build(self, context: Context) -> list[Evaluator]:
        """The facts of the profile, none where it asks for no fact."""
        people: People = context.prepared
        return list(people.evaluators(context.tokenizer, context.full))
