"""What an evaluator is built from: the model, the data, the settings, and what was measured before."""

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
    """Everything that the evaluator `name` of a run may use (`oblivionis.measures.registry` says when).

    questions: the encoded questions of each set of the corpus, none for plain texts; full: the profile of a stage's
    end, else that after a round; oracle: the retrained model's per-question log; references: what RULER's Lens 1
    compares with; as_base: within it, the model is the untouched base model (None: nobody can make it so);
    prepared_of, reference_of: what `prepare` and `measure_base` of each evaluator returned.
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
        """The evaluator's own settings, those of `conf/evaluator/<name>.yaml` with what the run changes of them."""
        return self.config.evaluation.more.get(self.name, {})

    @property
    def prepared(self) -> Any:
        """What the evaluator's own `prepare` returned."""
        return self.prepared_of.get(self.name)

    @property
    def reference(self) -> Any:
        """What the evaluator's own `measure_base` returned."""
        return self.reference_of.get(self.name)

    def profile(self) -> Profile:
        """How many questions of which sets are asked, and how long an answer may be."""
        settings = self.config.evaluation.full if self.full else self.config.evaluation.light
        return Profile(settings.questions_per_set, settings.max_new_tokens, tuple(settings.sets))
