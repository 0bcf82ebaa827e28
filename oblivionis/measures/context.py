"""What a measure's evaluators are built from: the model, the data, the settings, and earlier results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from evaluation.metrics.tofu import Profile, Question
from evaluation.ruler.evaluator import References
from oblivionis.config.schema import Config
from oblivionis.data.records import Corpus
from oblivionis.models.assembly import Assembled


@dataclass(frozen=True)
class Context:
    """Everything that a measure may use.

    Attributes
    ----------
    name : str
        That of the measure.
    assembled : Assembled
    corpus : Corpus
    config : Config
    questions : mapping of sequences of Question
        The encoded questions of each set of the corpus; empty for plain texts.
    full : bool
        The profile of a stage's end, else that after a round.
    oracle : mapping or None
        The retrained model's per-question log.
    references : References or None
        The representations that RULER's Lens 1 compares with.
    as_base : callable or None
        Returns a context manager in which the model is the untouched base model. None: it is not known.
    prepared_of, reference_of : mapping
        By measure, what its `prepare` and `measure_base` returned.
    """

    name: str
    assembled: Assembled
    corpus: Corpus
    config: Config
    questions: Mapping[str, Sequence[Question]]
    full: bool = False
    oracle: Mapping[str, Any] | None = None
    references: References | None = None
    as_base: Callable[[], AbstractContextManager[None]] | None = None
    prepared_of: Mapping[str, Any] = field(default_factory=dict)
    reference_of: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tokenizer(self) -> Any:
        return self.assembled.tokenizer

    def decode(self, ids: Sequence[int]) -> str:
        """Token ids as text, without special tokens."""
        return self.assembled.tokenizer.decode(list(ids), skip_special_tokens=True)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The measure's own settings: `conf/evaluator/<name>.yaml` with what the run changes of them."""
        return self.config.evaluation.more.get(self.name, {})

    @property
    def prepared(self) -> Any:
        """What the measure's own `prepare` returned."""
        return self.prepared_of.get(self.name)

    @property
    def reference(self) -> Any:
        """What the measure's own `measure_base` returned."""
        return self.reference_of.get(self.name)

    def profile(self) -> Profile:
        """The sets that are asked, how many questions of each, and how long an answer may be."""
        settings = self.config.evaluation.full if self.full else self.config.evaluation.light
        return Profile(settings.questions_per_set, settings.max_new_tokens, tuple(settings.sets))
