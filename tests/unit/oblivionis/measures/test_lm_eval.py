"""The harness on a local task, offline: its numbers are those of plain `transformers`, and nothing else changes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from oblivionis.client.audit import assessor_of
from oblivionis.config import compose as configuration
from oblivionis.config.schema import Config
from oblivionis.errors import RunError
from oblivionis.measures import registry
from oblivionis.measures.assessor import Assessor
from oblivionis.models.assembly import Assembled, assemble
from oblivionis.models.configured_corpus import corpus_of
from oblivionis.reports import run_summary

pytest.importorskip("lm_eval")

ITEMS = [
    {"question": f"Which trade did {name} learn?", "choices": ["baker", "a maker of clocks", "sailor"], "answer": i % 3}
    for i, name in enumerate(["Ada Marsh", "Bo Lind", "Cy Vale", "Di Holm", "Ed Ward", "Fay Sand"])
]
EXAMPLE = ITEMS.pop()
CHOICE = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{file}", train: "{example}"}}}}
output_type: multiple_choice
test_split: test
fewshot_split: train
fewshot_config: {{sampler: first_n}}
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
"""
SAID = """
task: said
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{file}"}}}}
output_type: generate_until
test_split: test
num_fewshot: 0
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_target: said
generation_kwargs: {{until: ["\\n"], max_gen_toks: 6, do_sample: false}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""
GROUP = """
group: trades
task: [learnt, practised]
aggregate_metric_list: [{metric: acc, weight_by_size: true}]
"""


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A folder with two tasks of choices, of five and of two items, with an answered example, and their group."""
    example = tmp_path / "example.json"
    example.write_text(json.dumps([EXAMPLE]))
    for name, items in (("learnt", ITEMS), ("practised", ITEMS[1:3])):
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(items))
        (tmp_path / f"{name}.yaml").write_text(CHOICE.format(name=name, file=file, example=example))
    (tmp_path / "trades.yaml").write_text(GROUP)
    return tmp_path


@pytest.fixture
def without_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness's own thousands of tasks are not looked through, which takes seconds."""
    import lm_eval.tasks

    manager = lm_eval.tasks.TaskManager
    monkeypatch.setattr(
        lm_eval.tasks, "TaskManager", lambda include_path, include_defaults: manager(None, include_path, False)
    )


def setting(*overrides: str) -> Config:
    without = ("leakage.full_samples=0", "leakage.samples=0", "wikimem.enabled=false", "ruler.enabled=false")
    off = [f"evaluation.{name}" for name in (*without, "membership.enabled=false", "fluency.enabled=false")]
    return configuration.compose("smoke", ["strict=true", *off, *(f"evaluation.lm_eval.{o}" for o in overrides)])


def trained(assembled: Assembled) -> np.ndarray:
    """A vector away from the base model."""
    start = assembled.flat.numpy()
    return start + np.random.default_rng(0).normal(0, 0.02, start.size).astype(np.float32)


def log_likelihood(assembled: Assembled, context: str, choice: str) -> float:
    """Of " choice" after the context, one sequence at a time."""
    given = assembled.tokenizer(context)["input_ids"]
    whole = assembled.tokenizer(f"{context} {choice}")["input_ids"]
    assert whole[: len(given)] == given
    with torch.no_grad():
        rows = assembled.model.eval()(torch.tensor([whole])).logits[0].double().log_softmax(-1)
    return sum(float(rows[place - 1, whole[place]]) for place in range(len(given), len(whole)))


def accuracies(assembled: Assembled, items: list[dict[str, Any]], shots: str = "") -> tuple[float, float]:
    """By the definition: the likeliest choice, and the likeliest per byte."""
    right, right_per_byte = [], []
    for item in items:
        context = f"{shots}Question: {item['question']}\nAnswer:"
        values = [log_likelihood(assembled, context, choice) for choice in item["choices"]]
        per_byte = [value / len(choice.encode()) for value, choice in zip(values, item["choices"], strict=True)]
        right.append(int(np.argmax(values)) == item["answer"])
        right_per_byte.append(int(np.argmax(per_byte)) == item["answer"])
    return float(np.mean(right)), float(np.mean(right_per_byte))


@pytest.mark.slow
def test_a_task_of_choices_and_one_of_answers(tasks: Path, tmp_path: Path) -> None:
    config = setting(f"tasks=[{tasks}/learnt.yaml,{tmp_path}/said.yaml]", "batch_size=4")
    assembled = assemble(config.model, 0)
    vector = trained(assembled)
    assembled.flat.load(vector)
    texts = [f"Question: {item['question']}\nAnswer:" for item in ITEMS]
    said = [greedy(assembled, text) for text in texts]
    file = tmp_path / "said.json"
    # The true answer to the last question is another one.
    rows = [{**item, "said": text} for item, text in zip(ITEMS, [*said[:-1], "never"], strict=True)]
    file.write_text(json.dumps(rows))
    (tmp_path / "said.yaml").write_text(SAID.format(file=file))
    assessor = Assessor(assembled, corpus_of(config), config)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    padding = assembled.tokenizer.padding_side, assembled.tokenizer.pad_token
    measured = assessor.measure(vector, full=True)
    assert np.array_equal(assembled.flat.numpy(), vector)
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    assert padding == (assembled.tokenizer.padding_side, assembled.tokenizer.pad_token)
    expected = accuracies(assembled, ITEMS)
    assert 0 < expected[0] < 1
    found = {key: value for key, value in measured.metrics.items() if key.startswith("lm_eval_")}
    assert found == {
        "lm_eval_learnt_acc": expected[0],
        "lm_eval_learnt_acc_norm": expected[1],
        "lm_eval_said_exact_match": 0.8,
    }
    log = measured.log
    assert log is not None and log["lm_eval"]["items"] == {"learnt": 5, "said": 5}
    again = assessor.measure(vector, full=True)
    assert again.metrics == measured.metrics and "forget_prob" in again.metrics
    assert not any(k.startswith("lm_eval") for k in assessor.measure(vector, full=False).metrics), "at a stage's end"


def greedy(assembled: Assembled, text: str) -> str:
    """What Hugging Face says in up to six tokens, until the line ends."""
    ids = torch.tensor([assembled.tokenizer(text)["input_ids"]])
    with torch.no_grad():
        made = assembled.model.eval().generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=6,
            do_sample=False,
            eos_token_id=assembled.tokenizer.eos_token_id,
            pad_token_id=0,
        )
    return assembled.tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True).split("\n")[0]


@pytest.mark.usefixtures("without_defaults")
@pytest.mark.slow
def test_a_group_of_tasks_with_examples_and_a_limit(tasks: Path) -> None:
    files = ",".join(f"{tasks}/{name}.yaml" for name in ("learnt", "practised"))
    config = setting(
        "tasks=[trades]", f"include_path={tasks}", "num_fewshot=1", "limit=3", "after_rounds=true", "batch_size=2"
    )
    assembled = assemble(config.model, 0)
    vector = trained(assembled)
    metrics = Assessor(assembled, corpus_of(config), config).measure(vector, full=False).metrics

    shot = f"Question: {EXAMPLE['question']}\nAnswer: {EXAMPLE['choices'][EXAMPLE['answer']]}\n\n"
    right = [accuracies(assembled, [item], shot)[0] for item in (*ITEMS[:3], *ITEMS[1:3])]
    found = {key: value for key, value in metrics.items() if key.startswith("lm_eval")}
    assert found == {"lm_eval_trades_acc": pytest.approx(np.mean(right))}
    alone = setting(f"tasks=[{files}]")
    names = {key for key in Assessor(assembled, corpus_of(alone), alone).measure(vector, full=True).metrics}
    assert {"lm_eval_learnt_acc", "lm_eval_practised_acc_norm"} <= names


def test_a_client_runs_no_task_that_its_server_names(tmp_path: Path) -> None:
    config = setting("tasks=[none.yaml]")
    assembled = assemble(config.model, 0)
    corpus = corpus_of(config)
    worker: Any = SimpleNamespace(served=lambda: assembled, config=config)
    forget = tuple(record for record in corpus.train if record.id in corpus.forget_ids)
    assessor = assessor_of(worker, forget, corpus.train[:2], tmp_path)
    metrics = assessor.measure(assembled.flat.numpy(), full=True).metrics
    assert "forget_prob" in metrics and not any(key.startswith("lm_eval") for key in metrics)


def test_the_table_has_rows_for_whatever_tasks() -> None:
    shown = {"finetune": {"lm_eval_mmlu_acc": 0.5, "model_utility": 0.25}, "unlearn": {"lm_eval_mmlu_acc": 0.25}}
    assert run_summary.rows(shown)[-1][1:] == ("lm-eval", "mmlu_acc", [0.5, 0.25])
    (legend,) = run_summary.legends(shown)
    assert legend == registry.measures()["lm_eval"].legend
    assert registry.reader_name("lm_eval_mmlu_acc") == "lm_eval_mmlu_acc"


@pytest.mark.usefixtures("without_defaults")
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["tasks=[trads]", "include_path={folder}"], "there is no task 'trads'; did you mean trades?"),
        (["tasks=[none.yaml]"], "there is no task 'none.yaml'"),
        (["tasks=[trades]", "include_path=/none/here"], "include_path: there is no folder /none/here"),
        (["tasks=[{folder}/broken.yaml]"], "broken.yaml cannot be loaded: "),
        (["tasks=[{folder}/gone.yaml]"], "gone.yaml cannot be loaded: "),
    ],
)
def test_tasks_that_cannot_be_had_are_one_message(tasks: Path, overrides: list[str], message: str) -> None:
    (tasks / "broken.yaml").write_text("task: [")
    (tasks / "gone.yaml").write_text(CHOICE.format(name="gone", file="none", example="none"))
    config = setting(*(override.format(folder=tasks) for override in overrides))
    assembled = assemble(config.model, 0)
    with pytest.raises(RunError) as error:
        Assessor(assembled, corpus_of(config), config)
    assert message in str(error.value) and str(error.value).startswith("evaluation.lm_eval.")
    assert "\n" not in str(error.value)
