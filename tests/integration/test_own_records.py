"""A run on records of another format and shape is the run on the same records as JSON lines."""

import json

import pandas as pd
from support.commands import call
from support.stages import execute, final_metrics, new_run

ROWS = [
    {"id": f"p{i}", "subject": f"s{i // 2}", "question": f"Who mends the {i}. bell?", "answer": f"Person {i} does.",
     "forget": i < 2}
    for i in range(6)
]  # fmt: skip
SHORT = [
    *("stages=[finetune, retrain, unlearn]", "federation.clients=2", "federation.fraction_train=1.0"),
    *(f"federation.rounds.{stage}=1" for stage in ("finetune", "retrain", "unlearn")),
    *("federation.local_epochs=1", "evaluation.every=0", "evaluation.at_start=false"),
    *("evaluation.leakage.samples=0", "evaluation.leakage.full_samples=0", "evaluation.full.max_new_tokens=4"),
]


def write_both(folder):
    lines = folder / "plain" / "mine.jsonl"
    lines.parent.mkdir()
    lines.write_text("\n".join(map(json.dumps, ROWS)))
    names = {"question": "instruction", "answer": "output"}
    pd.DataFrame(ROWS).rename(columns=names).assign(input="").to_parquet(folder / "mine.parquet")
    return lines, folder / "mine.parquet"


def test_a_run_on_parquet_with_alpacas_fields_is_the_run_on_json_lines(tmp_path):
    found = []
    for number, file in enumerate(write_both(tmp_path)):
        config, run = new_run(tmp_path, f"run{number}", "data=records", f"data.path={file}", *SHORT)
        execute(config, run)
        metrics = final_metrics(run)
        found.append({stage: {k: v for k, v in of.items() if "seconds" not in k} for stage, of in metrics.items()})
    assert found[0] == found[1] and found[0]["unlearn"]


def test_data_describe_tells_the_same_of_both(tmp_path):
    files = write_both(tmp_path)
    told = [call("data", "describe", "data=records", f"data.path={f}", "federation.clients=2", "--json") for f in files]
    assert [t.code for t in told] == [0, 0] and told[0].out == told[1].out and '"records": 6' in told[0].out
    older = call("data", "describe", "data=jsonl", f"data.path={files[1]}", "federation.clients=2", "--json")
    assert older.out == told[0].out
    named = call(
        *("data", "describe", "data=records", f"data.path={files[1]}", "federation.clients=2", "--json"),
        "data.fields={question: instruction, answer: output, subject: id}",
    )
    assert json.loads(named.out)["subjects"] == 6 and json.loads(told[0].out)["subjects"] == 3
    several = call("data", "describe", "data=records", "data.path=nobody/nothing", "federation.clients=2")
    assert several.code == 2 and several.err.count("\n") == 1 and "cannot load train of nobody/nothing" in several.err
