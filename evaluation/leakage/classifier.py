"""Leakage function by a text-classification model."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from evaluation.engine.models import evaluation_mode, model_device, text_config
from evaluation.leakage.functions import Asked, once, unknown


class Classifier:
    """Graded leakage: the probability of one label by a Hugging Face text-classification model.

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
        r"""Use a loaded model.

        Parameters
        ----------
        model : nn.Module
            Any AutoModelForSequenceClassification.
        tokenizer
            Truncates texts at the model's maximum length.
        label : str or int
            A name from the model's configuration, or an index.
        batch_size : int, at least 1
            Where the configuration has no pad_token_id, texts go through one at a time.
        device : optional
            Where the model is moved; default: left where it is.
        template : str
            What the model reads: {answer} for the sampled text, {question} for the question, e.g.
            "{question}\n{answer}".

        Raises
        ------
        ValueError
            For an unknown label, a template without {answer} or with other fields, a batch size below 1, or a model of
            several regression targets.
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
        """Load model and tokenizer from a folder or the Hugging Face hub.

        Parameters
        ----------
        source : str
            Folder or repository.
        label, batch_size, device, template
            As in the class.
        revision : str, optional
            Branch, tag or commit of the repository.
        dtype : torch.dtype
            Of the weights.

        Returns
        -------
        Classifier

        Raises
        ------
        ValueError
            As the class, and for a model without a trained classification head.
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

    def __call__(self, texts: Sequence[str], asked: Asked) -> np.ndarray:
        return once(texts, lambda distinct: self._probabilities(distinct, asked))

    def _probabilities(self, texts: list[str], asked: Asked) -> np.ndarray:
        """The probability of the label for each text."""
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
    """The index of a label, given by name or index."""
    names = {int(i): str(name) for i, name in config.id2label.items()}
    if isinstance(label, str):
        index = next((i for i, name in names.items() if name == label), None)
        if index is None:
            raise unknown("label", label, list(names.values()))
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
