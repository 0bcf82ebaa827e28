"""The examples of CONTRIBUTING.md in a copy of the program: their tests pass, a run and its tables have them."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.benchmark_files import knowundo
from support.trees import Tree

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = re.findall(
    r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
)
FOLDERS = {
    "loss": ("clients/losses", "conf/unlearning", "tests/unit/clients/losses"),
    "protocol": ("strategies/protocols", "conf/unlearning", "tests/unit/strategies/protocols"),
    "aggregator": ("strategies/rules", "conf/strategy", "tests/unit/strategies/rules"),
    "evaluator": ("oblivionis/measures", "conf/evaluator", "tests/unit/oblivionis/measures"),
    "attack": ("oblivionis/audits/attacks", "conf/attack", "tests/unit/oblivionis/audits/attacks"),
    "dataset": ("oblivionis/data/datasets", "conf/data", "tests/unit/oblivionis/data/datasets"),
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the packages and `conf/` with the examples, and nothing else."""
    tree = Tree(tmp_path_factory.mktemp("tree"))
    for name, text in EXAMPLES:
        assert not (tree.path / name).exists(), "an example edits no file"
        tree.add(name, text)
    return tree


def names(kind):
    return [Path(name).stem for name, _ in EXAMPLES if str(Path(name).parent) == FOLDERS[kind][0]]


@pytest.mark.parametrize("kind", FOLDERS)
def test_each_kind_is_one_code_file_one_yaml_file_and_one_test(kind):
    code, conf, test = FOLDERS[kind]
    (name,) = names(kind)
    files = {file for file, _ in EXAMPLES if name in file}
    assert files == {f"{code}/{name}.py", f"{conf}/{name}.yaml", f"{test}/test_{name}.py"}


def test_the_tests_of_the_examples_pass(tree):
    tests = [name for name, _ in EXAMPLES if name.startswith("tests/")]
    result = tree.run("-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", *tests)
    assert result.returncode == 0 and f"{len(tests)} passed" in result.stdout, result.stdout


def test_a_mistake_in_their_keys_is_told(tree):
    loss, protocol, aggregator, evaluator, attack, dataset = (name for kind in FOLDERS for name in names(kind))
    chosen = [f"unlearning={loss}", f"strategy={aggregator}", f"data={dataset}"]
    wrong = ["unlearning.params.cap=0", "strategy.params.pace=2", f"evaluation.{evaluator}.most=0"]
    wrong += [f"attack.{attack}.marks=-1", "data.forget_authors=6", "data.path=here"]
    result = tree.oblivionis(["config", "check", "smoke", *chosen, *wrong])
    assert result.returncode == 2
    for key in (item.partition("=")[0] for item in wrong):
        assert f"{key}: " in result.stderr
    assert "6 of 6 numbers leave nothing to retain" in result.stderr
    against = ["unlearning.params.pull=2", "federation.compression.method=topk", "federation.keep_checkpoints=3"]
    result = tree.oblivionis(
        ["config", "check", "smoke", f"unlearning={protocol}", *against, "unlearning.updates.keep=1", "privacy=client"]
    )
    assert result.returncode == 2
    for key in (
        "unlearning.params.pull",
        "federation.compression.method",
        "unlearning.updates.keep",
        "unlearning.method",
    ):
        assert f"{key}: " in result.stderr
    assert "what was left out of an update is in no model that is kept" in result.stderr


def test_a_file_that_is_neither_loss_nor_protocol_is_told(tree):
    (protocol,) = names("protocol")
    name = f"strategies/protocols/{protocol}_misnamed.py"
    tree.add(
        name, (tree.path / FOLDERS["protocol"][0] / f"{protocol}.py").read_text("utf-8").replace("build(", "built(")
    )
    tree.add(f"conf/unlearning/{protocol}_misnamed.yaml", "params:\n  pull: 1.0\n")
    result = tree.oblivionis(["config", "check", "smoke", f"unlearning={protocol}_misnamed"])
    assert result.returncode == 2 and "1 problem" in result.stderr
    assert f"{name}: has neither a function '{protocol}_misnamed' of a batch" in result.stderr


def test_a_whole_run_with_all_of_them(tree):
    loss, _, aggregator, evaluator, attack, dataset = (name for kind in FOLDERS for name in names(kind))
    chosen = [f"unlearning={loss}", f"strategy={aggregator}", f"data={dataset}", f"evaluation.{evaluator}.most=7"]
    folder = tree.path / "runs" / "all"
    result = tree.oblivionis(
        ["simulate", "smoke", "--full", *chosen, "name=all"],
        ["attack", folder, "--only", attack, f"attack.{attack}.marks=3"],
    )
    assert result.returncode == 0, result.stderr
    simulated, attacked = result.stdout.split("$ attack")
    for stage in ("finetune", "retrain", "unlearn"):
        metrics = json.loads((folder / "stages" / f"{stage}.json").read_text("utf-8"))["metrics"]
        assert 0 < metrics[f"{evaluator}_tokens"] <= 7
    assert "Answer length" in simulated
    assert "Answer length" in (folder / "report.html").read_text("utf-8")
    assert "shout with 3 marks" in attacked
    requests = [json.loads(line) for line in (folder / "requests.jsonl").read_text("utf-8").splitlines()]
    asked = {identifier for request in requests for identifier in request.get("record_ids", ())}
    assert asked and asked <= {f"sum-{a:03d}-{b:03d}" for a in (4, 5) for b in range(3)}


def test_a_dataset_that_is_taken_out_leaves_nothing_and_can_be_put_back(tree, tmp_path):
    parts = [tree.path / "oblivionis/data/datasets/knowundo.py", *(tree.path / "conf/data").glob("knowundo_*.yaml")]
    kept = {file: file.read_text("utf-8") for file in parts}
    assert len(kept) == 3
    describe = ["data", "describe", "smoke", "data=knowundo_privacy", f"data.path={knowundo(tmp_path)}"]
    for file in parts:
        file.unlink()
    try:
        others = {*tree.path.rglob("*.py"), *tree.path.rglob("*.yaml"), *tree.path.rglob("*.json")}
        assert not [file for file in others if "knowundo" in file.read_text("utf-8").lower()]
        refused = tree.oblivionis(describe)
        assert refused.returncode == 2 and "unknown choice 'knowundo_privacy'" in refused.stderr
        assert tree.oblivionis(["config", "check", "smoke"]).returncode == 0
    finally:
        for file, text in kept.items():
            file.write_text(text, "utf-8")
    told = tree.oblivionis(describe)
    assert told.returncode == 0 and "5 (50.0%)" in told.stdout, told.stdout


def test_a_whole_run_with_the_protocol(tree):
    (protocol,), folder = names("protocol"), tree.path / "runs" / "served"
    asked = [
        "unlearning.requests.policy=all_at_round",
        "unlearning.requests.clients=[0]",
        "unlearning.params.pull=0.25",
    ]
    short = ["stages=[finetune,unlearn]", "federation.rounds.unlearn=1", "name=served"]
    result = tree.oblivionis(["simulate", "smoke", f"unlearning={protocol}", *asked, *short])
    assert result.returncode == 0, result.stderr
    requests = [json.loads(line) for line in (folder / "requests.jsonl").read_text("utf-8").splitlines()]
    assert {row["client"] for row in requests if "client" in row} == {0}
    stored = folder / "updates" / "0000"
    last, after = (
        load_file(stored / name) for name in ("finetune/round-0002.safetensors", "unlearn/round-0001.safetensors")
    )
    before = load_file(folder / "checkpoints" / "finetune" / "round-0002.safetensors")["adapter"]
    assert np.abs(last["client/1"] - before).max() > 1e-4
    np.testing.assert_allclose(after["global"], 0.75 * before + 0.25 * last["client/1"], rtol=0, atol=1e-7)
