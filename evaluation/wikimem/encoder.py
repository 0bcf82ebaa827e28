"""Sentence embeddings from a Hugging Face encoder: they tell which values mean the same (WikiMem, footnote 7)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

BATCH = 64


@dataclass(frozen=True)
class SentenceEncoder:
    """Calls of it turn texts into embeddings, (n,) -> (n, width) float32.

    The embedding is the mean of the last hidden states over the tokens of a text, or the first of them: `first_token`.
    """

    model: Any
    tokenizer: Any
    first_token: bool = False

    @classmethod
    def load(cls, name: str) -> SentenceEncoder:
        """An encoder by folder or by name on the hub, in the layout of Sentence Transformers or without pooling.

        A folder's `1_Pooling/config.json` says whether the first token counts; otherwise the mean does. Raises OSError
        or ValueError when there is no such model.
        """
        tokenizer = AutoTokenizer.from_pretrained(name)
        model = AutoModel.from_pretrained(name).eval()
        pooling = Path(name) / "1_Pooling" / "config.json"
        settings = json.loads(pooling.read_text(encoding="utf-8")) if pooling.is_file() else {}
        return cls(model, tokenizer, bool(settings.get("pooling_mode_cls_token")))

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        found = []
        for start in range(0, len(texts), BATCH):
            batch = self.tokenizer(
                list(texts[start : start + BATCH]), padding=True, truncation=True, return_tensors="pt"
            )
            states = self.model(**batch).last_hidden_state
            mask = batch["attention_mask"].unsqueeze(-1).to(states.dtype)
            pooled = states[:, 0] if self.first_token else (states * mask).sum(1) / mask.sum(1)
            found.append(pooled.float().numpy())
        return np.concatenate(found) if found else np.empty((0, 0), np.float32)
