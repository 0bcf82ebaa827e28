"""Multiple choice against plain `transformers`, question by question, and against the harness's own task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.benchmark_files import choice, wmdp

from oblivionis.config import compose as configuration
from oblivionis.config.schema import Config
from oblivionis.data.errors import DataError
from oblivionis.data.multiple_choice import LETTERS
from oblivionis.data.records import Choice
from oblivionis.measures.assessor import Assessor
from oblivionis.measures.choices import prompt
from oblivionis.models.assembly import Assembled, assemble
from oblivionis.models.configured_corpus import corpus_of

ASKED = [
    {
        "question": f"Which of these is number {i}?",
        "choices": [f"{j} and {i * j}" for j in range(2 + i % 3)],
        "answer": 1,
    }
    for i in range(9)
]


def setting(*overrides: str) -> Config:
    return configuration.compose("smoke", ["strict=true", "evaluation.full.questions_per_set=null", *overrides])


def trained(assembled: Assembled) -> np.ndarray:
    """A vector away from the base model."""
    start = assembled.flat.numpy()
    return start + np.random.default_rng(0).normal(0, 0.05, start.size).astype(np.float32)


def chosen(assembled: Assembled, asked: Choice) -> int:
    """The letter with the largest logit after the prompt, which is tokenised as it stands."""
    ids = assembled.tokenizer(prompt(asked))["input_ids"]
    with torch.no_grad():
        logits = assembled.model.eval()(torch.tensor([ids])).logits[0, -1]
    letters = [assembled.tokenizer(f"x {letter}", add_special_tokens=False)["input_ids"] for letter in LETTERS]
    return int(torch.stack([logits[letters[i][-1]] for i in range(len(asked.choices))]).argmax())


def test_the_prompt_is_that_of_the_benchmarks() -> None:
    asked = Choice("x", "Which one rings?", ("glass", "bells"), 1, "high school physics")
    assert prompt(asked) == (
        "The following are multiple choice questions (with answers) about high school physics.\n\n"
        "Which one rings?\nA. glass\nB. bells\nAnswer:"
    )
    assert prompt(Choice("x", "Who?", ("I", "you"), 0)).startswith(
        "The following are multiple choice questions (with answers).\n"
    )


def test_the_likeliest_letter_is_the_answer(tmp_path: Path) -> None:
    file = tmp_path / "own.json"
    file.write_text(json.dumps(ASKED))
    folder = wmdp(tmp_path / "wmdp")
    (folder / "wmdp-cyber.json").write_text(json.dumps([choice(f"Which one is {i}?", i % 4) for i in range(8)]))
    config = setting("data=wmdp_cyber", f"data.path={folder}", f"evaluation.choices.file={file}")
    assembled, corpus = assemble(config.model, 0), corpus_of(config)
    vector = trained(assembled)
    measured = Assessor(assembled, corpus, config).measure(vector, full=True)
    assembled.flat.load(vector)
    own = tuple(Choice(f"own-{i:04d}", a["question"], tuple(a["choices"]), a["answer"]) for i, a in enumerate(ASKED))
    said: dict[str, dict[str, int]] = {}
    for name, asked in {**corpus.choices, "file": own}.items():
        said[name] = {one.id: chosen(assembled, one) for one in asked}
        right = [said[name][one.id] == one.answer for one in asked]
        assert measured.metrics[f"choices_{name}"] == pytest.approx(np.mean(right)), name
    assert len({place for answers in said.values() for place in answers.values()}) > 1, "not one letter for all"
    assert measured.log is not None and measured.log["choices"] == said
    assert {k for k in measured.metrics if not k.startswith(("choices_", "membership_"))} == set(), "texts"


@pytest.mark.slow
def test_a_file_of_ones_own_goes_with_any_data_and_is_asked_in_the_profile_s_measure(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ASKED))
    config = setting(
        f"evaluation.choices.file={file}", "evaluation.light.questions_per_set=4", "evaluation.leakage.samples=0"
    )
    assembled, corpus = assemble(config.model, 0), corpus_of(config)
    measured = Assessor(assembled, corpus, config).measure(assembled.flat.numpy(), full=False)
    assert measured.log is not None and len(measured.log["choices"]["file"]) == 4
    assert "forget_prob" in measured.metrics
    off = setting(f"evaluation.choices.file={file}", "evaluation.choices.enabled=false", "evaluation.leakage.samples=0")
    metrics = Assessor(assembled, corpus, off).measure(assembled.flat.numpy(), full=False).metrics
    assert not any(key.startswith("choices") for key in metrics)
    file.write_text('{"question": "Who?", "choices": ["I", "you"], "answer": 2}\n')
    with pytest.raises(DataError, match=r"own.jsonl:1: answer must be one of the choices, 0 to 1, found 2"):
        Assessor(assembled, corpus, config)


TASK = """
task: same
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{file}"}}}}
output_type: multiple_choice
test_split: test
num_fewshot: 0
description: "The following are multiple choice questions (with answers).\\n\\n"
doc_to_text: "{{{{question.strip()}}}}\\nA. {{{{choices[0]}}}}\\nB. {{{{choices[1]}}}}\\nAnswer:"
doc_to_choice: ["A", "B"]
doc_to_target: answer
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""


def test_the_harness_finds_the_same(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    file = tmp_path / "own.json"
    rows: list[dict[str, Any]] = [
        {**row, "choices": row["choices"][:2], "answer": i % 2} for i, row in enumerate(ASKED)
    ]
    file.write_text(json.dumps(rows))
    (tmp_path / "same.yaml").write_text(TASK.format(file=file))
    config = setting(f"evaluation.choices.file={file}", f"evaluation.lm_eval.tasks=[{tmp_path}/same.yaml]")
    assembled = assemble(config.model, 0)
    vector = trained(assembled)
    metrics = (
        Assessor(assembled, corpus_of(config), config, names=("choices", "lm_eval")).measure(vector, full=True).metrics
    )
    assert metrics["choices_file"] == metrics["lm_eval_same_acc"]
    assert 0 < metrics["choices_file"] < 1
