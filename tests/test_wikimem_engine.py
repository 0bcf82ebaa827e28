"""Canary NLLs and scores from a model: the same as one sentence after the other through the plain model."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from evaluation.wikimem import engine
from evaluation.wikimem.canaries import GENERIC_SUBJECT, context_of, contextualised, fill
from evaluation.wikimem.engine import Asking, FactScore, score_facts, sentence_nlls
from evaluation.wikimem.facts import Fact
from evaluation.wikimem.names import name_variants
from evaluation.wikimem.properties import counterfactuals, properties
from oblivionis.models import tiny

# Such small products are slower with two threads, by far so on a busy machine.
torch.set_num_threads(1)

FACTS = [
    Fact("Ulrike Karimov", "P19", ("Gdansk", "Riga")),
    Fact("Enaj Doe", "P19", ("Bergen",)),
    Fact("Jane Doe", "P19", ("bergen",)),
    Fact("Jane Doe", "P106", ("baker", "undertaker")),
    Fact("Jane Doe", "P166", ("Ruby Lynx Prize",)),
]
FEW = Asking(templates=4, counterfactuals=6)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(tiny.folder())


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny.folder(), attn_implementation="sdpa").eval()


def plain_nll(model: Any, tokenizer: Any, text: str) -> float:
    """Every token of the sentence after BOS, or after the first token where there is no BOS, one after the other."""
    bos = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    ids = bos + tokenizer(text, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        logp = model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return -sum(float(logp[i - 1, ids[i]]) for i in range(1, len(ids)))


def plain_scores(model: Any, tokenizer: Any, fact: Fact, found: FactScore, asking: Asking, context: Any) -> np.ndarray:
    """s(h, v) as WikiMem writes it, generic subject included, over the candidates of `found`."""
    prop = properties()[fact.property]

    def nll(template: str, name: str, value: str) -> float:
        return plain_nll(model, tokenizer, fill(contextualised(template, context), name, value, prop.kind))

    rows = []
    for template in prop.canaries[: asking.templates]:
        row = []
        for value in found.candidates:
            generic = nll(template, GENERIC_SUBJECT, value)
            similar = [generic - nll(template, name, value) for name in name_variants(fact.subject, asking.variants)]
            row.append(generic - nll(template, fact.subject, value) - asking.weight * sum(similar) / len(similar))
        rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize("mode", ["auto", "packed", "padded"])
def test_sentences_have_the_nlls_of_the_plain_model(model: Any, tokenizer: Any, mode: str) -> None:
    texts = ["Jane Doe was born in Bergen.", "Jane Doe was born in Berlin.", "Jane", "Jane Doe", "x"]
    texts += ["Bergen is where Jane Doe was born.", "Bergen is where Enaj Doe was born.", "Jane Doe", "Jane Doe."]
    expected = [plain_nll(model, tokenizer, text) for text in texts]
    for budget in (1, 20, 4096):
        found = sentence_nlls(model, tokenizer, texts, token_budget=budget, mode=mode)
        np.testing.assert_allclose(found, expected, atol=1e-4)
