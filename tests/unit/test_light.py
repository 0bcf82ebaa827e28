"""Light commands are light: which libraries they do not load, told by a process of each one's own.

They end in a second of processor time; loading torch alone takes several. A server forks one process per command, after
it has loaded what many commands load: were any of that heavy, it would be found in each.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.reports import ask, make_run
from support.suite_view import cells

from benchmarks.federated import results
from oblivionis.reports import run_summary
from oblivionis.reports.html import run_page
from oblivionis.runs.directory import Checkpoint

HEAVY = {
    *("torch", "transformers", "peft", "bitsandbytes", "nltk", "scipy.stats", "statsmodels", "sklearn", "pandas"),
    *("matplotlib", "datasets", "flwr_datasets", "ray", "tensorboard", "pyarrow"),
}
TABLES = {"pyarrow"}
"""What reading a table of results takes."""

SERVER = """
import contextlib, io, json, os, resource, sys
import oblivionis.erasure.ledger, oblivionis.reports.run_summary, optuna
from oblivionis.cli.main import main
for line in sys.stdin:
    read, write = os.pipe()
    if os.fork() == 0:
        sys.argv = ["oblivionis", *json.loads(line)]
        out, err, code = io.StringIO(), io.StringIO(), 0
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                main()
        except SystemExit as exit:
            code = exit.code
        told = {"code": code, "out": out.getvalue(), "err": err.getvalue(), "modules": sorted(sys.modules)}
        with os.fdopen(write, "w") as pipe:
            json.dump(told, pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        print(pipe.read(), flush=True)
    os.wait()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Holds a finished run with a served request, whose report was written, and the results of a suite."""
    folder = tmp_path_factory.mktemp("light")
    run, config = make_run(folder)
    run.save_checkpoint(Checkpoint("retrain", 2, np.zeros(3, np.float32), {}, {}), keep=1)
    run.save_checkpoint(Checkpoint("unlearn", 2, np.ones(3, np.float32), {}, {}), keep=1)
    ask(run)
    run_summary.stage_metrics(run, config.evaluation.truth_ratio, config.evaluation.membership.confidence)
    run_page.write_html(run, config)
    (folder / "node" / "data").mkdir(parents=True)
    line = {"id": "r1", "question": "Who?", "answer": "Ann.", "subject": "Ann"}
    (folder / "node" / "data" / "records.jsonl").write_text(json.dumps(line) + "\n")
    (folder / "suite").mkdir()
    found = cells().astype({"seed": str})
    results.write(results.table_of(found.to_dict("records"), ["strategy", "unlearning", "seed"]), folder / "suite")
    return folder


@pytest.fixture(scope="module")
def server(folder):
    """Runs a command in `folder` and tells its exit code, output and modules."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None

    def call(command):
        process.stdin.write(json.dumps(command) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield call
    process.stdin.close()
    process.wait(30)


def loaded(told):
    """What of `HEAVY` a command loaded; of scipy its parts count, which load when they are used."""
    return {name for name in HEAVY if any(f"{module}.".startswith(f"{name}.") for module in told["modules"])}


LIGHT = [
    "--help",
    "--version",
    "runs list runs",
    "runs show runs/made",
    "config list",
    "config check smoke",
    "config show smoke",
    "data describe --help",
    "model info --help",
    "model build --help",
    "wikimem --help",
    "deploy --help",
    "attack --help",
    "bench --help",
    "tune --help",
    "certificate keygen --out made.key",
    "certificate keygen --help",
    "request submit --node-dir node --ids r1 --reason art17",
    "request list --node-dir node",
    "request verify runs/made",
    "view --help",
]


@pytest.mark.parametrize("command", LIGHT)
def test_a_light_command_loads_nothing_heavy(server, command):
    told = server(command.split())
    assert told["code"] == 0, told["err"]
    assert loaded(told) == set()


def test_a_ledger_is_read_without_flower():
    code = "import sys, oblivionis.erasure.ledger; print({'flwr', 'grpc', 'torch'} & set(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr


def test_the_tables_of_a_suite_take_what_reads_tables_only(server):
    told = server(["bench", "table", "suite", "--layout", "quick", "--format", "md"])
    assert told["code"] == 0 and told["out"], told["err"]
    assert loaded(told) <= TABLES


def test_a_certificate_is_verified_without_anything_heavy(server, folder):
    keys = server(["certificate", "keygen", "--out", "sign.key"])
    made = server(["certificate", "create", "runs/made", "r0", "--key", "sign.key", "--out", "certificate"])
    assert keys["code"] == made["code"] == 0, made["err"]
    assert not loaded(made)
    told = server(["certificate", "verify", "certificate", "--public-key", "sign.key.pub"])
    assert told["code"] == 0 and loaded(told) == set(), told["err"]


MISTAKES = {
    "simulate nosuch=1": "unknown key",
    "simulate training.learning_rate=x": "is not a number",
    "simulate model.dtype=float31": "did you mean float32?",
    "simulate strategy=fedavgg": "did you mean fedavg?",
    "simulate data=jsonl data.path=nope.jsonl": "there is no file",
    "simulate start_from=nope": "no run directory",
    "simulate --resume nope": "no run directory",
    "config check nosuch=1": "unknown key",
    "data describe data=jsonl data.path=nope.jsonl": "there is no file",
    "model info nosuch=1": "unknown key",
    "model info model.source=./nope": "is no model folder",
    "evaluate nope": "no run directory",
    "evaluate runs/made --stage finetune": "checkpoint",
    "evaluate runs/made --set nosuch=1": "unknown key",
    "chat nope": "no run directory",
    "chat runs/made --set nosuch=1": "unknown key",
    "attack nope": "no run directory",
    "attack runs/made nosuch=1": "unknown key",
    "audit leakage ./nope": "is no model folder",
    "audit leakage ./nope --stage unlearn": "no run directory",
    "audit leakage runs/made --questions nope.jsonl": "file not found",
    "audit leakage runs/made --stage finetune": "checkpoint",
    "audit person ./nope": "is no model folder",
    "audit person runs/made --subjects nope.jsonl": "file not found",
    "request from-audit nope": "there is no such file",
    "request submit --node-dir nope --all --reason art17": "no such folder",
    "request submit --node-dir node --ids nope --reason art17": "nope",
    "request list --node-dir nope": "no such folder",
    "request verify nope": "no ledger",
    "certificate create nope r0": "no run directory",
    "certificate create runs/made nope": "nope",
    "certificate verify nope": "cannot be read",
    "runs show nope": "no run directory",
    "view nope": "no such folder",
    "view runs --write": "--node-dir DIR",
    "bench nope": "there is no 'nope'",
    "bench quick nosuch=1": "unknown key",
    "bench quick base.training.learning_rate=x": "is not a number",
    "bench table nope": "cannot be read as results",
    "tune nope": "there is no 'nope'",
    "tune runs/made": "no checkpoint of stage finetune",
    "tune smoke --unlearning nop": "did you mean npo?",
    "tune smoke --space nope.yaml": "there is no",
    "tune smoke --subject Nobody": "nobody holds a record about",
}


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_is_told_before_anything_heavy_is_loaded(server, command):
    told = server(command.split())
    assert told["code"] == 2 and MISTAKES[command] in told["err"] and "Traceback" not in told["err"], told
    assert not loaded(told)
