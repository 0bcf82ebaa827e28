"""MUSE (Shi et al. 2024): verbatim memorisation, knowledge memorisation and privacy leakage.

- VerbMem (NVM in Oblivionis' tables): the model continues a passage of the forget texts greedily; ROUGE-L F1 of its
  continuation against the true one. Lower is better.
- KnowMem: questions about the texts after a few examples of answered questions; ROUGE-L recall of the greedy answer.
  On forget texts (NKM) lower is better, on retain texts (UP, utility) higher.
- PrivLeak: how far the AUC of the Min-40 % attack is from that of the retrained model. 0 is best.

ROUGE takes words as they are, without stemming, as in the published evaluation; what it cannot count
(`evaluation.metrics.rouge.measurable`) is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evaluation.hook import EvaluationSession, Result
from evaluation.metrics.membership import SHARES, Candidate, auc, lowest_mean
from evaluation.metrics.rouge import PAPER, mean_of, note_of, or_none, rouge_by

KNOWLEDGE = ("forget", "retain")
PRIVLEAK_ATTACK = "min_k_40"
_END = re.compile(r"\n\n|\nQuestion|Question:")


@dataclass(frozen=True)
class Item:
    """A prompt to continue.

    Attributes
    ----------
    id : str
    prompt : tuple of int
        Token ids of the complete prompt.
    shown : str
        The part of it that a reader is shown.
    truth : str
        The true continuation.
    """

    id: str
    prompt: tuple[int, ...]
    shown: str
    truth: str


def few_shot(examples: Sequence[tuple[str, str]], question: str) -> str:
    """Few-shot prompt of KnowMem: answered questions, blank lines between them, then the question.

    Parameters
    ----------
    examples : sequence of (question, answer)
    question : str

    Returns
    -------
    str
        Ends with "Answer:" and no space, which belongs to the answer's first token.
    """
    shots = "".join(f"Question: {q}\nAnswer: {a}\n\n" for q, a in examples)
    return f"{shots}Question: {question}\nAnswer:"


def first_answer(text: str) -> str:
    """The generated text up to a blank line or the next "Question".

    Parameters
    ----------
    text : str

    Returns
    -------
    str
        Without white space at its ends.
    """
    return _END.split(text, maxsplit=1)[0].strip()


def privleak(model: float, oracle: float) -> float | None:
    """PrivLeak in percent, from the AUCs of the Min-40 % attack (forget texts are members).

    (a − r) / r · 100 for a = 1 − model and r = 1 − oracle: MUSE's attack score is a loss, so its AUC is the probability
    that a forget text has the *higher* loss of the lowest tokens. Hence MUSE's signs: negative, down to −100, where the
    texts are still remembered (under-unlearned); positive where they are avoided (over-unlearned); 0 for the retrained
    model.

    Parameters
    ----------
    model, oracle : float in [0, 1]
        AUCs of the model and of the retrained model.

    Returns
    -------
    float or None
        At least −100; None where r is 0.

    Raises
    ------
    ValueError
        For an AUC outside [0, 1].
    """
    if not (0 <= model <= 1 and 0 <= oracle <= 1):
        raise ValueError(f"an AUC lies in [0, 1], got {model} and {oracle}")
    return None if oracle == 1 else 100 * (oracle - model) / (1 - oracle)


@dataclass(frozen=True)
class MuseEvaluator:
    """MUSE's metrics verbmem, knowmem_forget, knowmem_retain in [0, 1]; privleak (percent) if `oracle_auc` is given.

    A metric without items is left out. The details hold per set id -> {shown, generated, truth, score}, a score None
    where it cannot count, and `auc`.

    Attributes
    ----------
    passages : sequence of Item
        Of VerbMem.
    knowledge : mapping of sequences of Item
        Questions of KnowMem, by "forget" and "retain".
    decode : callable (token ids) -> str
    members, others : sequence of Candidate
        Forget and holdout texts, for the AUC.
    oracle_auc : float, optional
        AUC of the retrained model.
    continuation, answer : int
        Most tokens that are generated.
    rouge : str
        What a word is, one of `evaluation.metrics.rouge.RULES`.

    Raises
    ------
    ValueError
        For an unknown set of questions.
    """

    passages: Sequence[Item]
    knowledge: Mapping[str, Sequence[Item]]
    decode: Callable[[Sequence[int]], str]
    members: Sequence[Candidate] = ()
    others: Sequence[Candidate] = ()
    oracle_auc: float | None = None
    continuation: int = 128
    answer: int = 32
    rouge: str = PAPER
    name: str = field(default="muse", init=False)

    def __post_init__(self) -> None:
        if unknown := set(self.knowledge) - set(KNOWLEDGE):
            raise ValueError(f"unknown sets {sorted(unknown)}, expected {' and '.join(KNOWLEDGE)}")

    def request(self, session: EvaluationSession) -> None:
        """Announce prompts and texts."""
        if self.passages:
            session.request(prompts=[x.prompt for x in self.passages], max_new_tokens=self.continuation)
        if questions := [x.prompt for items in self.knowledge.values() for x in items]:
            session.request(prompts=questions, max_new_tokens=self.answer)
        if self.members and self.others:
            session.request(sequences=[c.sequence for c in (*self.members, *self.others)])

    def evaluate(self, session: EvaluationSession) -> Result:
        """Generate, score and attack."""
        found = Scored(self.rouge)
        if self.passages:
            found.add("verbmem", self.passages, self._continued(session, self.passages, self.continuation), "f1")
        for name, items in self.knowledge.items():
            if items:
                said = [first_answer(text) for text in self._continued(session, items, self.answer)]
                found.add(f"knowmem_{name}", items, said, "recall")
        metrics, details = found.metrics, found.details
        if self.members and self.others:
            details["auc"] = self._auc(session)
            leak = None if self.oracle_auc is None else privleak(details["auc"], self.oracle_auc)
            metrics |= {} if leak is None else {"privleak": leak}
        return Result(metrics, details, found.notes)

    def _continued(self, session: EvaluationSession, items: Sequence[Item], limit: int) -> list[str]:
        """The greedy continuations as text."""
        return [self.decode(tokens) for tokens in session.greedy([x.prompt for x in items], limit)]

    def _auc(self, session: EvaluationSession) -> float:
        """AUC of the Min-40 % attack."""
        scores = session.scores([c.sequence for c in (*self.members, *self.others)])
        values = [lowest_mean(x, SHARES[PRIVLEAK_ATTACK]) for x in scores.log_probs]
        return auc(values[: len(self.members)], values[len(self.members) :])


@dataclass
class Scored:
    """Metrics, notes and details of sets of items, by the mean ROUGE-L without stemming of the generated texts.

    Attributes
    ----------
    rule : str
        What a word is, one of `evaluation.metrics.rouge.RULES`.
    metrics, notes, details : dict
        Filled by `add`.
    """

    rule: str
    metrics: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, items: Sequence[Item], said: Sequence[str], part: str) -> None:
        """Score the generated texts of a set of items.

        Parameters
        ----------
        name : str
            Name of the metric.
        items : sequence of n Item
        said : sequence of n str
            What the model generated.
        part : {"recall", "f1"}
        """
        scores: np.ndarray = getattr(rouge_by(self.rule, said, [x.truth for x in items], stemmed=False), part)
        if (mean := mean_of(scores)) is not None:
            self.metrics[name] = mean
        if note := note_of(scores, self.rule):
            self.notes[name] = note
        self.details[name] = {
            x.id: {"shown": x.shown, "generated": text, "truth": x.truth, "score": score}
            for x, text, score in zip(items, said, or_none(scores), strict=True)
        }
