"""TOFU: probability, ROUGE-L recall and truth ratio on four question sets, model utility and forget quality.

`aggregate` reads a per-question log in the shape the TOFU authors publish; `TofuEvaluator` produces such a log for a
model. Every number has this one implementation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy

from evaluation.engine.sequences import TokenSequence
from evaluation.hook import EvaluationSession, Result
from evaluation.metrics.answer_metrics import (
    CONVENTIONS,
    exact_memorization,
    extraction_strength,
    probability,
    truth_ratio,
)
from evaluation.metrics.rouge import PAPER, RULES, mean_of, note_of, or_none, rouge_by

Log = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Section -> column -> question number -> value, as in the published logs."""

SECTIONS = {
    "forget": "eval_log_forget",
    "retain": "eval_log",
    "real_authors": "eval_real_author_wo_options",
    "world_facts": "eval_real_world_wo_options",
}
TITLES = {
    "forget": "Forget",
    "retain": "Retain",
    "real_authors": "Real Authors",
    "world_facts": "Real World",
}
GENERAL = ("real_authors", "world_facts")
UTILITY_SETS = ("retain", *GENERAL)
MEASURES = {"ROUGE": "rouge", "Prob.": "prob", "Truth Ratio": "truth_ratio"}
SHORT_NAMES = {
    f"{measure} {title}": f"{name}_{short}" for name, title in TITLES.items() for measure, short in MEASURES.items()
} | {"Model Utility": "model_utility", "Forget Quality": "forget_quality", "KS Test Forget": "forget_ks"}


def _column(log: Log, name: str, column: str, *, gaps: bool = False) -> np.ndarray | None:
    """Values (n,) or (n, E) of a column of a question set; None where the set or the column is missing or empty.

    With `gaps` a value may be None, which becomes NaN.
    """
    values = log.get(SECTIONS[name], {}).get(column)
    if not values:
        return None
    try:
        array = np.asarray(list(values.values()), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{SECTIONS[name]}.{column} is not a table of numbers: {error}") from None
    known = array[[value is not None for value in values.values()]] if gaps else array
    if not np.isfinite(known).all():
        raise ValueError(f"{SECTIONS[name]}.{column} holds a value that is not finite")
    return array


def truth_ratios(log: Log, name: str, convention: str = "geometric") -> np.ndarray | None:
    """Truth ratio of each question of a set (Oblivionis eq. 13).

    Parameters
    ----------
    log : Log
    name : str
        Key of `SECTIONS`.
    convention : {"geometric", "arithmetic"}

    Returns
    -------
    array (n,), at least 0, or None
        None where the log has no losses.

    Raises
    ------
    ValueError
        For losses that do not fit together or are not finite.
    """
    right, wrong = _column(log, name, "avg_paraphrased_loss"), _column(log, name, "average_perturb_loss")
    if right is None or wrong is None:
        return None
    if len(right) != len(wrong):
        raise ValueError(f"{SECTIONS[name]}: {len(right)} paraphrased losses, {len(wrong)} perturbed ones")
    return truth_ratio(right, wrong, convention)


def rouge_recalls(log: Log, name: str) -> np.ndarray | None:
    """ROUGE-L recall of each generated answer by the paper's rule (Oblivionis eq. 12), from the texts in the log.

    Parameters
    ----------
    log : Log
    name : str
        Of the question set, one of `SECTIONS`.

    Returns
    -------
    array (n,) in [0, 1], or None
        NaN where an answer cannot count; None without texts.
    """
    texts = log.get(SECTIONS[name], {}).get("generated_text")
    if not texts:
        return None
    _, generated, references = zip(*texts.values(), strict=True)
    return rouge_by(PAPER, generated, references).recall


def _recalls(log: Log, name: str) -> np.ndarray | None:
    """The recalls (n,) in the log, NaN where one cannot count; else those of its texts."""
    recalls = _column(log, name, "rougeL_recall", gaps=True)
    return rouge_recalls(log, name) if recalls is None else recalls


def _probabilities(log: Log, name: str) -> np.ndarray | None:
    """P(a|q)^{1/|a|} of each question; on the general sets as a share of the correct and the perturbed answers'."""
    losses = _column(log, name, "avg_gt_loss")
    if losses is None or name not in GENERAL:
        return None if losses is None else probability(losses)
    wrong = _column(log, name, "average_perturb_loss")
    if wrong is None:
        return None
    right = probability(losses)
    return right / (right + probability(wrong).sum(-1))


def _truth_ratio_score(ratios: np.ndarray, name: str) -> float:
    """Mean of min(TR, 1/TR) on the forget set, of max(0, 1 - TR) on the other sets (Oblivionis eq. 14)."""
    if name == "forget":
        with np.errstate(divide="ignore"):
            return float(np.minimum(ratios, 1 / ratios).mean())
    return float(np.maximum(0.0, 1 - ratios).mean())


def _measures(log: Log, name: str, convention: str) -> Iterator[tuple[str, float]]:
    """ROUGE, probability and truth ratio of a set, as far as the log has data."""
    recalls = _recalls(log, name)
    if recalls is not None and (mean := mean_of(recalls)) is not None:
        yield f"ROUGE {TITLES[name]}", mean
    probabilities = _probabilities(log, name)
    if probabilities is not None:
        yield f"Prob. {TITLES[name]}", float(probabilities.mean())
    ratios = truth_ratios(log, name, convention)
    if ratios is not None:
        yield f"Truth Ratio {TITLES[name]}", _truth_ratio_score(ratios, name)


def forget_quality(ratios: Sequence[float] | np.ndarray, oracle: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Forget quality: two-sample Kolmogorov-Smirnov test of forget-set truth ratios (Oblivionis eqs. 15-17).

    Parameters
    ----------
    ratios, oracle : array (n,), array (m,)
        Truth ratios of the model and of the retrained model.

    Returns
    -------
    p_value, statistic : float in [0, 1]

    Raises
    ------
    ValueError
        For an empty sample.
    """
    if len(ratios) == 0 or len(oracle) == 0:
        raise ValueError("forget quality needs truth ratios of the model and of the oracle")
    test: Any = scipy.stats.ks_2samp(ratios, oracle)
    return float(test.pvalue), float(test.statistic)


def aggregate(log: Log, oracle: Log | None = None, convention: str = "geometric") -> dict[str, float]:
    """Aggregates of a log under the names of the TOFU code.

    Parameters
    ----------
    log : Log
    oracle : Log, optional
        Of the retrained model.
    convention : {"geometric", "arithmetic"}
        Of the truth ratio; geometric is that of the published tables.

    Returns
    -------
    dict of float
        "ROUGE", "Prob." and "Truth Ratio" of "Forget", "Retain", "Real Authors", "Real World"; "Model Utility", the
        harmonic mean of the nine numbers without the forget set (0 if any is 0; Oblivionis eq. 18); with the oracle's
        log "Forget Quality" = "KS Test PVal Forget" and "KS Test Forget". What the log has no data for is absent, and
        so is a ROUGE to which too few answers count (`evaluation.metrics.rouge.mean_of`), with the model utility.

    Raises
    ------
    ValueError
        For an unknown convention, a loss that is not finite, or an oracle without forget losses where the model has
        them.
    """
    if convention not in CONVENTIONS:
        raise ValueError(f"unknown truth ratio convention {convention!r}, expected {' or '.join(CONVENTIONS)}")
    result: dict[str, float] = {}
    for name in SECTIONS:
        result.update(_measures(log, name, convention))
    names = [f"{measure} {TITLES[name]}" for measure in MEASURES for name in UTILITY_SETS]
    if all(name in result for name in names):
        result["Model Utility"] = float(scipy.stats.hmean([result[name] for name in names]))
    ratios = truth_ratios(log, "forget", convention)
    if oracle is not None and ratios is not None:
        expected = truth_ratios(oracle, "forget", convention)
        if expected is None:
            raise ValueError("the oracle's log has no forget-set losses")
        p_value, statistic = forget_quality(ratios, expected)
        result |= {"Forget Quality": p_value, "KS Test PVal Forget": p_value, "KS Test Forget": statistic}
    return result


def notes_on(log: Log, aggregates: Mapping[str, float], rule: str) -> dict[str, str]:
    """What a reader must know about each ROUGE, and about the model utility made of them.

    Parameters
    ----------
    log : Log
    aggregates : mapping of float
        From `aggregate`.
    rule : str
        What a word is, one of `evaluation.metrics.rouge.RULES`.

    Returns
    -------
    dict of str
        By the names of `aggregates`.
    """
    found = {}
    for name in SECTIONS:
        recalls = _recalls(log, name)
        if recalls is not None and (note := note_of(recalls, rule)):
            found[f"ROUGE {TITLES[name]}"] = note
    parts = [f"{measure} {TITLES[name]}" for measure in MEASURES for name in UTILITY_SETS]
    noted = [part for part in parts if part in found]
    if noted and all(part in aggregates or part in found for part in parts):
        missing = [part for part in noted if part not in aggregates]
        found["Model Utility"] = found[(missing or noted)[0]]
    return found


@dataclass(frozen=True)
class Question:
    """A tokenised question.

    Attributes
    ----------
    id : str
    prompt, answer : tuple of int
        Token ids; answers end with EOS.
    text : str
        The true answer.
    paraphrase : tuple of int, optional
        The right answer of the truth ratio.
    perturbed : tuple of tuples of int
        Wrong answers.
    """

    id: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    text: str
    paraphrase: tuple[int, ...] | None = None
    perturbed: tuple[tuple[int, ...], ...] = ()

    def sequences(self) -> list[TokenSequence]:
        """The answer, the right answer of the truth ratio (the paraphrase, if any), then every perturbed one."""
        right = self.answer if self.paraphrase is None else self.paraphrase
        return [TokenSequence(self.prompt, answer) for answer in (self.answer, right, *self.perturbed)]


@dataclass(frozen=True)
class Profile:
    """Extent of an evaluation.

    Attributes
    ----------
    questions : int, at least 1, optional
        Questions per set, evenly spaced; None: all.
    max_new_tokens : int
        0: no generation.
    sets : tuple of str
        Keys of `SECTIONS`.

    Raises
    ------
    ValueError
        If a value is out of range.
    """

    questions: int | None = None
    max_new_tokens: int = 200
    sets: tuple[str, ...] = tuple(SECTIONS)

    def __post_init__(self) -> None:
        if (self.questions is not None and self.questions < 1) or self.max_new_tokens < 0:
            raise ValueError("a profile needs at least one question and max_new_tokens >= 0")
        if unknown := set(self.sets) - set(SECTIONS):
            raise ValueError(f"unknown question sets {sorted(unknown)}, expected some of {list(SECTIONS)}")

    def pick(self, questions: Sequence[Question]) -> tuple[Question, ...]:
        """The questions that this profile asks, in order."""
        if self.questions is None or self.questions >= len(questions):
            return tuple(questions)
        index = np.linspace(0, len(questions) - 1, self.questions).round().astype(int)
        return tuple(questions[i] for i in index)


FULL = Profile()
LIGHT = Profile(questions=40, max_new_tokens=64, sets=("forget", "retain"))


@dataclass(frozen=True)
class TofuEvaluator:
    """TOFU's metrics of the session's model, under short names (forget_prob, retain_rouge, model_utility, ...).

    Beyond `aggregate`: extraction strength and exact memorisation of each set.

    Attributes
    ----------
    questions : mapping of sequences of Question
        By question set: "forget", "retain", "real_authors", "world_facts".
    decode : callable (token ids) -> str
        Without special tokens.
    convention : {"geometric", "arithmetic"}
        Of the truth ratio.
    oracle : array (m,), optional
        Forget-set truth ratios of the retrained model, of the same convention; gives forget_quality and forget_ks.
    profile : Profile
    rouge : str
        What a word of ROUGE is, one of `evaluation.metrics.rouge.RULES`.

    Raises
    ------
    ValueError
        For an unknown convention, rule or question set.
    """

    questions: Mapping[str, Sequence[Question]]
    decode: Callable[[Sequence[int]], str]
    convention: str = "geometric"
    oracle: Sequence[float] | None = None
    profile: Profile = FULL
    rouge: str = PAPER
    name: str = field(default="tofu", init=False)

    def __post_init__(self) -> None:
        if self.convention not in CONVENTIONS:
            raise ValueError(f"unknown truth ratio convention {self.convention!r}, expected one of {CONVENTIONS}")
        if self.rouge not in RULES:
            raise ValueError(f"unknown rule of ROUGE {self.rouge!r}, expected one of {RULES}")
        if unknown := set(self.questions) - set(SECTIONS):
            raise ValueError(f"unknown question sets {sorted(unknown)}, expected some of {list(SECTIONS)}")

    def asked(self) -> dict[str, tuple[Question, ...]]:
        """The questions of each set that the profile asks; sets without questions are left out."""
        picked = {name: self.profile.pick(self.questions.get(name, ())) for name in self.profile.sets}
        return {name: questions for name, questions in picked.items() if questions}

    def request(self, session: EvaluationSession) -> None:
        """Announce the answers and prompts that will be read."""
        questions = [q for questions in self.asked().values() for q in questions]
        session.request(sequences=[s for q in questions for s in q.sequences()])
        if self.profile.max_new_tokens:
            session.request(prompts=[q.prompt for q in questions], max_new_tokens=self.profile.max_new_tokens)

    def evaluate(self, session: EvaluationSession) -> Result:
        """Measure; the details hold the log, the question ids of each section and the forget truth ratios."""
        log: dict[str, dict[str, dict[str, Any]]] = {}
        metrics: dict[str, float] = {}
        ids: dict[str, list[str]] = {}
        for name, questions in self.asked().items():
            log[SECTIONS[name]], memorised = self._section(session, questions)
            ids[SECTIONS[name]] = [q.id for q in questions]
            metrics |= {f"{name}_{measure}": value for measure, value in memorised.items()}
        aggregates = aggregate(log, convention=self.convention)
        metrics |= {SHORT_NAMES[key]: value for key, value in aggregates.items()}
        ratios = truth_ratios(log, "forget", self.convention)
        if ratios is not None and self.oracle is not None:
            metrics["forget_quality"], metrics["forget_ks"] = forget_quality(ratios, self.oracle)
        details = {
            "log": log,
            "ids": ids,
            "convention": self.convention,
            "forget_truth_ratios": [] if ratios is None else ratios.tolist(),
        }
        notes = {SHORT_NAMES[key]: note for key, note in notes_on(log, aggregates, self.rouge).items()}
        return Result(metrics, details, notes)

    def _section(
        self, session: EvaluationSession, questions: Sequence[Question]
    ) -> tuple[dict[str, dict[str, Any]], dict[str, float]]:
        """The log of one question set, and its memorisation metrics."""
        per_question = [q.sequences() for q in questions]
        scores = session.scores([s for sequences in per_question for s in sequences])
        starts = np.cumsum([0] + [len(sequences) for sequences in per_question])
        answers = starts[:-1]
        losses = [scores.mean_nll[a:b].tolist() for a, b in itertools.pairwise(starts)]
        section = {
            "avg_gt_loss": _numbered(x[0] for x in losses),
            "avg_paraphrased_loss": _numbered(x[1] for x in losses),
        }
        if all(q.perturbed for q in questions):
            section["average_perturb_loss"] = _numbered(x[2:] for x in losses)
        if self.profile.max_new_tokens:
            produced = session.greedy([q.prompt for q in questions], self.profile.max_new_tokens)
            texts = [
                [self.decode(q.prompt), self.decode(tokens), q.text]
                for q, tokens in zip(questions, produced, strict=True)
            ]
            section["generated_text"] = _numbered(texts)
            recall = rouge_by(self.rouge, [text[1] for text in texts], [text[2] for text in texts]).recall
            section["rougeL_recall"] = _numbered(or_none(recall))
        memorised = {
            "extraction_strength": float(np.mean([extraction_strength(scores.correct[i]) for i in answers])),
            "exact_memorization": float(np.mean([exact_memorization(scores.correct[i]) for i in answers])),
        }
        return section, memorised


def _numbered(values: Any) -> dict[str, Any]:
    """Values by their position as text, as in the published logs."""
    return {str(i): value for i, value in enumerate(values)}
