"""Leakage functions h: how much each of the texts sampled for one question gives away, in [0, 1].

Graded ones (ROUGE-L, a classifier's probability) take any value in [0, 1], binary ones (keyword, exact) 0 or 1;
`thresholded` makes a binary one of a graded one. Equal texts are judged once.
"""

from __future__ import annotations

import difflib
import re
import string
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from evaluation.engine.models import evaluation_mode, model_device, text_config
from evaluation.metrics.rouge import rouge_l


@dataclass(frozen=True)
class Asked:
    """The question behind some sampled texts.

    prompt: its text; answer: the true answer; keywords: what gives the answer away, each of one word or more.
    """

    id: str
    prompt: str
    answer: str | None
    keywords: tuple[str, ...] = ()


class LeakageFunction(Protocol):
    """Maps n texts sampled for one question to their leakage, (n,) float64 in [0, 1]; 0 or 1 where `binary`.

    Raises ValueError with the question's id where the question lacks what the function needs.
    """

    @property
    def name(self) -> str: ...

    @property
    def binary(self) -> bool: ...

    def __call__(self, texts: Seq[str], asked: Asked) -> np.ndarray: ...


def _once(texts: Seq[str], judge: Callable[[list[str]], Seq[float] | np.ndarray]) -> np.ndarray:
    """judge(distinct texts) spread over all texts, (n,) float64."""
    numbers: dict[str, int] = {}
    which = np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=np.int64)
    return np.asarray(judge(list(numbers)), dtype=np.float64)[which]


@dataclass(frozen=True)
class _TextFunction:
    """A leakage function of the texts alone."""

    name: str
    binary: bool
    judge: Callable[[list[str], Asked], Seq[float] | np.ndarray]

    def __call__(self, texts: Seq[str], asked: Asked) -> np.ndarray:
        return _once(texts, lambda distinct: self.judge(distinct, asked))


def _answer(asked: Asked, needed_by: str) -> str:
    if asked.answer is None:
        raise ValueError(f"question {asked.id!r} has no answer, which the leakage function {needed_by} needs")
    return asked.answer


def _recall(texts: list[str], asked: Asked) -> np.ndarray:
    return rouge_l(texts, _answer(asked, "rouge_l_recall")).recall


def _f1(texts: list[str], asked: Asked) -> np.ndarray:
    return rouge_l(texts, _answer(asked, "rouge_l_f1")).f1


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _exact(texts: list[str], asked: Asked) -> list[float]:
    answer = _folded(_answer(asked, "exact"))
    return [float(_folded(text) == answer) for text in texts]


_LETTER_OR_DIGIT = r"[^\W_]"


@lru_cache(maxsize=1 << 12)
def _keyword_pattern(keywords: tuple[str, ...]) -> re.Pattern[str]:
    """Finds any of the folded keywords in a folded text."""

    def whole(keyword: str) -> str:
        # Not \b: next to a keyword's own punctuation ("C++", ".com") it asks for a letter where none need be.
        before, after = (re.match(_LETTER_OR_DIGIT, keyword[i]) is not None for i in (0, -1))
        start, end = f"(?<!{_LETTER_OR_DIGIT})" if before else "", f"(?!{_LETTER_OR_DIGIT})" if after else ""
        return start + re.escape(keyword) + end

    return re.compile("|".join(map(whole, keywords)))


def _keyword(texts: list[str], asked: Asked) -> list[float]:
    if not asked.keywords:
        raise ValueError(f"question {asked.id!r} has no keywords, which the leakage function keyword needs")
    keywords = tuple(map(_folded, asked.keywords))
    if "" in keywords:
        raise ValueError(f"question {asked.id!r} has an empty keyword")
    search = _keyword_pattern(keywords).search
    return [float(search(_folded(text)) is not None) for text in texts]


# Graded, need the answer: the share of the answer's words that the text holds in order, and ROUGE-L's F1.
rouge_l_recall: LeakageFunction = _TextFunction("rouge_l_recall", False, _recall)
rouge_l_f1: LeakageFunction = _TextFunction("rouge_l_f1", False, _f1)
# Binary: any keyword appears, case-folded, any white space between its words, not as a part of a longer word. Letters
# and digits make words: "Potter" is in "Potter's" and "_Potter_", not in "Potters"; "C++" is in "C++11".
keyword: LeakageFunction = _TextFunction("keyword", True, _keyword)
# Binary, needs the answer: equal to it after case-folding, with white space collapsed and none at the ends.
exact: LeakageFunction = _TextFunction("exact", True, _exact)

_FUNCTIONS = {function.name: function for function in (rouge_l_recall, rouge_l_f1, keyword, exact)}
NAMES = tuple(_FUNCTIONS)


def _unknown(what: str, name: str, known: Seq[str]) -> ValueError:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"expected one of {', '.join(known)}"
    return ValueError(f"unknown {what} {name!r}, {hint}")


def get(name: str) -> LeakageFunction:
    """The leakage function of this name, one of NAMES.

    Raises ValueError for another name, with those nearest to it; a classifier comes from `Classifier.load`.
    """
    if name == "classifier":
        raise ValueError("the leakage function 'classifier' needs a model: Classifier.load(source, label)")
    if name not in _FUNCTIONS:
        raise _unknown("leakage function", name, NAMES)
    return _FUNCTIONS[name]


@dataclass(frozen=True)
class _Thresholded:
    function: LeakageFunction
    at: float

    @property
    def name(self) -> str:
        return f"{self.function.name}>={self.at:g}"

    @property
    def binary(self) -> bool:
        return True

    def __call__(self, texts: Seq[str], asked: Asked) -> np.ndarray:
        return (self.function(texts, asked) >= self.at).astype(np.float64)


def thresholded(function: LeakageFunction, at: float) -> LeakageFunction:
    """1 where function(...) >= at, else 0; named like "rouge_l_recall>=0.5".

    Raises ValueError for a threshold outside (0, 1], which would call every text or none a leak.
    """
    if not 0 < at <= 1:
        raise ValueError(f"the threshold must be above 0 and at most 1, got {at}")
    return _Thresholded(function, at)


class Classifier:
    """Graded: the probability of one label from a Hugging Face text-classification model.

    Softmax over the labels; sigmoid of the label's logit where the model has a single one or says that it is
    multi-label.
    """

    name = "classifier"
    binary = False

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        label: str | int,
        batch_size: int = 32,
        device: torch.device | str | None = None,
        *,
        template: str = "{answer}",
    ) -> None:
        """model: any AutoModelForSequenceClassification, moved to `device` (default: left where it is).

        label: a name from the model's configuration or an index. template: what the model reads, {answer} for the
        sampled text and {question} for the question, e.g. "{question}\\n{answer}"; cut off at the model's maximum
        length by the tokenizer. Where the configuration has no pad_token_id, texts go through one at a time. Raises
        ValueError for an unknown label, a template without {answer} or with other fields, a batch size below 1, a
        model of several regression targets.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        fields = {field for _, field, _, _ in string.Formatter().parse(template) if field is not None}
        if "answer" not in fields or fields - {"answer", "question"}:
            raise ValueError(f"the template must hold {{answer}} and may hold {{question}}, got {template!r}")
        config: Any = model.config
        if config.problem_type == "regression" and config.num_labels > 1:
            raise ValueError("a model of several regression targets gives no probability of a label")
        self.label = _label_index(label, config)
        self.model = model if device is None else model.to(device)
        self.tokenizer, self.batch_size, self.template = tokenizer, batch_size, template
        self._sigmoid = config.num_labels == 1 or config.problem_type == "multi_label_classification"
        self._pad_id: int | None = text_config(model).pad_token_id
        self._max_length = _max_length(model, tokenizer)

    @classmethod
    def load(
        cls,
        source: str,
        label: str | int,
        batch_size: int = 32,
        device: torch.device | str | None = None,
        *,
        template: str = "{answer}",
        revision: str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Classifier:
        """The model and tokenizer of a folder or of a repository on the Hugging Face hub; the rest as for the class.

        Also raises ValueError for a model without a trained classification head.
        """
        revision = revision or "main"
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=False)
        model, found = AutoModelForSequenceClassification.from_pretrained(
            source, revision=revision, dtype=dtype, output_loading_info=True, trust_remote_code=False
        )
        if found["missing_keys"]:
            missing = ", ".join(sorted(found["missing_keys"])[:3])
            raise ValueError(f"{source} is no trained text classifier: it lacks the weights {missing}")
        return cls(model, tokenizer, label, batch_size, device, template=template)

    def __call__(self, texts: Seq[str], asked: Asked) -> np.ndarray:
        return _once(texts, lambda distinct: self._probabilities(distinct, asked))

    def _probabilities(self, texts: list[str], asked: Asked) -> np.ndarray:
        if not texts:
            return np.zeros(0)
        rendered = [self.template.format(answer=text, question=asked.prompt) for text in texts]
        cut = {"truncation": True, "max_length": self._max_length} if self._max_length else {}
        fields: dict[str, list[list[int]]] = dict(self.tokenizer(rendered, **cut))
        self._fill_empty(fields)
        lengths = [len(ids) for ids in fields["input_ids"]]
        longest_first = sorted(range(len(texts)), key=lengths.__getitem__, reverse=True)
        size = 1 if self._pad_id is None else self.batch_size
        result = np.zeros(len(texts))
        with evaluation_mode(self.model), torch.inference_mode():
            for start in range(0, len(texts), size):
                indices = longest_first[start : start + size]
                batch = {key: self._padded(key, [rows[i] for i in indices]) for key, rows in fields.items()}
                logits = self.model(**batch).logits.double()
                probabilities = logits.sigmoid() if self._sigmoid else logits.softmax(-1)
                result[indices] = probabilities[:, self.label].cpu().numpy()
        return result

    def _fill_empty(self, fields: dict[str, list[list[int]]]) -> None:
        """A text without tokens (an empty one, where the tokenizer adds none) becomes a single special token."""
        ids = [self.tokenizer.bos_token_id, self.tokenizer.eos_token_id, self._pad_id, 0]
        special = next(i for i in ids if i is not None)
        for i, row in enumerate(fields["input_ids"]):
            if not row:
                for key in fields:
                    fields[key][i] = [{"input_ids": special, "attention_mask": 1}.get(key, 0)]

    def _padded(self, key: str, rows: list[list[int]]) -> Tensor:
        """Rows filled up on the right, where absolute positions stay right: ids with the pad id, the rest with 0."""
        fill = self._pad_id if key == "input_ids" else 0
        width = max(map(len, rows))
        return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows], device=model_device(self.model))


def _label_index(label: str | int, config: Any) -> int:
    names = {int(i): str(name) for i, name in config.id2label.items()}
    if isinstance(label, str):
        index = next((i for i, name in names.items() if name == label), None)
        if index is None:
            raise _unknown("label", label, list(names.values()))
        return index
    if not 0 <= label < config.num_labels:
        raise ValueError(f"the labels are 0 to {config.num_labels - 1} ({', '.join(names.values())}), got {label}")
    return label


def _max_length(model: nn.Module, tokenizer: Any) -> int | None:
    """Longest input in tokens, None for no limit."""
    positions = getattr(text_config(model), "max_position_embeddings", None) or 0
    for name, module in model.named_modules():
        # RoBERTa counts positions from the one after its padding position.
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            positions = module.num_embeddings - module.padding_idx - 1
    known = [n for n in (positions, tokenizer.model_max_length) if 0 < n < 10**9]
    return int(min(known)) if known else None
