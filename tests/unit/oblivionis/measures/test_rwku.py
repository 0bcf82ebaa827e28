"""RWKU's probes against the greedy generation of `transformers` and ROUGE-L by its definition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.benchmark_files import PEOPLE, rwku

from oblivionis.config import compose as configuration
from oblivionis.measures.assessor import Assessor
from oblivionis.models.assembly import Assembled, assemble
from oblivionis.models.configured_corpus import corpus_of

LIMIT = 6


def generated(assembled: Assembled, text: str) -> str:
    ids = torch.tensor([assembled.tokenizer(text)["input_ids"]])
    with torch.no_grad():
        made = assembled.model.eval().generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=LIMIT,
            do_sample=False,
            eos_token_id=sorted(assembled.stop_ids),
            pad_token_id=0,
        )
    return assembled.tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True).strip().split("\n")[0].strip()


def recall(said: str, truth: str) -> float:
    """The longest common subsequence of words over the number of true ones."""
    ours, true = said.lower().split(), truth.lower().split()
    table = np.zeros((len(ours) + 1, len(true) + 1), dtype=int)
    for i, a in enumerate(ours):
        for j, b in enumerate(true):
            table[i + 1, j + 1] = table[i, j] + 1 if a == b else max(table[i, j + 1], table[i + 1, j])
    return table[-1, -1] / len(true)


@pytest.mark.slow
def test_recall_of_the_first_line_of_the_greedy_answers(tmp_path: Path) -> None:
    overrides = ["data=rwku", f"data.path={rwku(tmp_path)}", "strict=true", f"evaluation.rwku.max_new_tokens={LIMIT}"]
    config = configuration.compose("smoke", [*overrides, f"data.forget_targets=[{','.join(list(PEOPLE)[:2])}]"])
    assembled, corpus = assemble(config.model, 0), corpus_of(config)
    records = {record.id: record for asked in corpus.evaluation.values() for record in asked}
    for record in records.values():
        # What the model says is made the truth for half of the probes: something is recalled, and something not.
        said = generated(assembled, record.question)
        if record.subject == next(iter(PEOPLE)) and said:
            object.__setattr__(record, "answer", said)
    measured = Assessor(assembled, corpus, config).measure(assembled.flat.numpy(), full=True)
    log = measured.log
    assert log is not None and set(log["rwku"]) == set(corpus.evaluation)
    for name, rows in log["rwku"].items():
        asked = [record for record in corpus.evaluation[name] if record.id in rows]
        assert len(asked) == len(rows) == min(2, len(corpus.evaluation[name])), "smoke asks two of each set"
        for record in asked:
            row = rows[record.id]
            assert (row["shown"], row["truth"]) == (record.question, record.answer)
            assert row["generated"] == generated(assembled, record.question)
            assert row["score"] == pytest.approx(recall(row["generated"], record.answer))
        expected = np.mean([row["score"] for row in rows.values()])
        assert measured.metrics[f"rwku_{name}"] == pytest.approx(expected)
    assert 0 < measured.metrics["rwku_forget_questions"] < 1
    assert not any(key.startswith(("muse_", "forget_", "choices_forget")) for key in measured.metrics)


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    overrides = ["data=rwku", f"data.path={rwku(tmp_path)}", "evaluation.rwku.enabled=false"]
    config = configuration.compose("smoke", overrides)
    assembled = assemble(config.model, 0)
    metrics = Assessor(assembled, corpus_of(config), config).measure(assembled.flat.numpy(), full=True).metrics
    assert set(metrics) == {"choices_utility"}
