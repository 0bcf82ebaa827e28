"""A run at a glance says what the run's own files say, and why it cannot."""

import hashlib
import json
import multiprocessing
import os
import shutil
import socket
import sys
import time

import numpy as np
import psutil
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support.reports import ask, bind, make_run

from oblivionis.config import compose as configuration
from oblivionis.reports import run_summary
from oblivionis.runs import artifact_binding, run_status
from oblivionis.runs.directory import Checkpoint
from oblivionis.runs.run_status import DAMAGED, FINISHED, RUNNING, STOPPED, glance, look, read


def test_it_says_what_the_composed_configuration_says(tmp_path):
    entropy = ["unlearning.entropy.forget=0.25", "unlearning.entropy.retain=-1"]
    run, config = make_run(tmp_path, overrides=["strategy=fedadam", "unlearning=simnpo", "seed=7", *entropy])
    found = glance(run.path)
    choices = (config.model.name, config.data.name, config.strategy.name, run_summary.method(config), config.seed)
    assert (found.model, found.data, found.strategy, found.method, found.seed) == choices
    assert "entropy(0.25, -1)" in found.method
    assert found.state == FINISHED and found.current is None
    for stage, metrics in found.metrics.items():
        assert metrics == run.stage_summary(stage)["metrics"]
    assert found.value("unlearn", "forget_quality") == 0.125 and found.value("local", "forget_quality") is None
    newest = max(p.stat().st_mtime for p in run.path.rglob("*") if p.is_file())
    assert found.changed == pytest.approx(newest, abs=1)


@pytest.mark.parametrize(
    ("more", "clients", "total"), [([], 2, 2), (["federation.clients=5", "federation.local_clients=3"], 5, 3)]
)
def test_how_far_it_came(tmp_path, more, clients, total):
    stages = "stages=[finetune,retrain,unlearn,local]"
    run, config = make_run(tmp_path, ["finetune"], overrides=[stages, "federation.rounds.retrain=4", *more])
    run.save_checkpoint(Checkpoint("retrain", 3, np.zeros(2, np.float32), {}, {}), keep=1)
    row = {"stage": "local", "moment": "end", "evaluator": "tofu", "metrics": {}}
    run.append_metrics([{**row, "round": 1}, {**row, "round": 1}, {**row, "round": 2}])
    found = glance(run.path)
    assert config.federation.clients == clients
    words = ["finetune ✓", "retrain 3/4", "unlearn 0/2", f"local 2/{total}"]
    assert [stage.as_text() for stage in found.stages] == words
    assert found.state == STOPPED and found.current.stage == "retrain"


def holder(run, pid, host=None, started=None):
    started = psutil.Process(pid).create_time() if started is None else started
    facts = {"pid": pid, "host": host or socket.gethostname(), "started": started}
    (run.path / "running.json").write_text(json.dumps(facts))


def test_who_runs_it(tmp_path):
    run, _ = make_run(tmp_path, ["finetune"])
    holder(run, os.getppid())
    assert (glance(run.path).state, glance(run.path).note) == (RUNNING, f"process {os.getppid()}")
    holder(run, os.getppid(), started=1.0)
    assert glance(run.path).state == STOPPED, "another process has got that number since"
    holder(run, 1, host="elsewhere")
    assert glance(run.path).state == RUNNING and "elsewhere" in glance(run.path).note


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config.yaml", "stages: [finetune\n", "config.yaml"),
        ("config.yaml", "stages: [../../secret]\n", "unknown stage '../../secret'"),
        ("config.yaml", "seed: high\n", "seed: expected `int`"),
        ("config.yaml", "- 1\n", "it names no stages"),
        ("config.yaml", "model: " + "[" * 5000 + "\n", "config.yaml"),
        ("config.yaml", "#" * 1_100_000, "larger than a configuration"),
        ("stages/finetune.json", "{}", "metrics"),
    ],
)
def test_a_damaged_run_says_what_is_damaged(tmp_path, file, content, said):
    run, _ = make_run(tmp_path, ["finetune"])
    (run.path / file).write_text(content)
    found = glance(run.path)
    assert found.state == DAMAGED and said in found.note, found.note


def test_a_configuration_without_most_keys_will_do(tmp_path):
    (tmp_path / "config.yaml").write_text("stages: [finetune]\nmodel: {name: '2024'}\n")
    found = glance(tmp_path)
    assert (found.state, found.model, found.data, found.seed) == (STOPPED, "2024", "", None)
    assert found.method == "no unlearning"
    assert [stage.as_text() for stage in found.stages] == ["finetune 0/0"]


@pytest.mark.slow
def test_every_configuration_that_is_written_can_be_read(tmp_path):
    for number, experiment in enumerate(configuration.list_experiments()):
        config = configuration.compose(experiment)
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "config.yaml").write_text(configuration.to_yaml(config))
        found = glance(folder)
        assert (found.state, found.model, found.data) == (STOPPED, config.model.name, config.data.name)


LINES = (
    *(
        "a: 1",
        "b: {c: [1, 2]}",
        "a:",
        "b: 'x",
        "a: |",
        "c: >-",
        "b: &x 1",
        "a: *x",
        "a:b",
        "b: [1,",
        "c: x # y",
        "a: b: c",
    ),
    *(
        "  d: 2",
        "  - 3",
        "- 4",
        "---",
        "...",
        "# note",
        "",
        "   ",
        "\t",
        "  'z'",
        "]",
        "  x",
        "  <<: *x",
        "? q",
        "%TAG",
    ),
    *("a: 1\r", "b: 1\u20282", "c: \x85...", "a: !!python/name:os.system", "  ]", " 'y'", "a: 2001-01-01", "b: ~"),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(LINES), max_size=8), st.booleans())
@pytest.mark.slow
def test_blocks_that_are_read_one_by_one_say_what_the_whole_says(lines, ended):
    text = "\n".join(lines) + "\n" * ended
    blocks = [block for block in run_status.BLOCK.split(text) if block[:1] in tuple("abc")]

    def outcome(of):
        try:
            return of()
        except (yaml.YAMLError, ValueError) as error:
            return type(error), str(error).splitlines()[0]

    for _ in range(2):  # the second time some are known
        whole = outcome(lambda: yaml.load("".join(blocks), run_status.LOADER) or {})
        found = outcome(lambda: run_status.mapping_of(blocks))
        assert isinstance(found, tuple) == isinstance(whole, tuple) and (isinstance(whole, tuple) or found == whole)


# -- what a run is read from ---------------------------------------------------------------------------------------

OPENED, LISTED = "open", ("os.listdir", "os.scandir")


def touched(path):
    """What a run is read from: the files that are opened and the folders that are listed, as Python tells of each.

    Such a hook cannot be taken away, and slows down all that follows: a process of its own has it.
    """
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(hooked, (path,))


def hooked(path):
    events = []

    def note(event, args):
        if event in (OPENED, *LISTED) and isinstance(args[0], str | bytes | os.PathLike):
            events.append((event, os.path.abspath(os.fsdecode(args[0]))))

    sys.addaudithook(note)
    read(path)
    found = list(events)
    return {at for event, at in found if event == OPENED}, {at for event, at in found if event != OPENED}


def everything(folder):
    """A run with each kind of file that its ledger can name, and one that it names by hand."""
    run, config = make_run(folder)
    ask(run)
    bind(run, config)
    run.keep({"evaluations/finetune.states.safetensors": b"states", "environment.json": "{}", "odd/one.json": "{}"})
    run.keep({"audits/request-r0.json": "{}", "judgements.json": "{}", "request_figures.json": "{}"})
    for name in ("audits/leakage-unlearn/audit.json", "attacks/relearn/results.json"):
        artifact_binding.measured(run, run.path / name, {})
    return run


def earlier(folder):
    """A run by an earlier version, whose ledger names its files at the end alone."""
    run, config = make_run(folder)
    run.write_environment(seed=0)
    artifact_binding.begin(run, config, "unlearn")
    names = [p for pattern in artifact_binding.EARLIER for p in run.path.glob(pattern)]
    files = {str(p.relative_to(run.path)): hashlib.sha256(p.read_bytes()).hexdigest() for p in names}
    run.note("sealed", files=files, models={})
    return run


def stopped(folder):
    run, _ = make_run(folder, ["finetune"], overrides=["stages=[finetune,retrain,unlearn,local]"])
    run.save_checkpoint(Checkpoint("retrain", 1, np.zeros(2, np.float32), {}, {}), keep=1)
    return run


@pytest.fixture(scope="module", params=[everything, earlier, stopped])
def made(request, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("made")).path


def changed(path):
    """Another first byte, with the time of writing set back."""
    before, data = path.stat(), path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_no_file_that_a_run_is_read_from_changes_unseen(made, tmp_path):
    shutil.copytree(made, path := tmp_path / "run")
    files, folders = touched(path)
    reading = read(path)
    assert reading.glance.state != DAMAGED and not reading.glance.nothing, reading.glance
    assert str(path / "config.yaml") in files and len(files) > 2
    for file in map(type(path), sorted(files)):
        assert file.is_relative_to(path)
        for change in (changed, lambda file: file.unlink()):
            before, data = look(path, reading.others).digest, file.read_bytes()
            time.sleep(0.02)  # a tick of the file system's clock
            change(file)
            assert look(path, reading.others).digest != before, file
            file.write_bytes(data)
    for folder in map(type(path), sorted(folders)):
        names = ("new.json", "round-0009.safetensors", "new.states.safetensors", "request-new.json", "privacy.json")
        for name in (*names, "retrain/round-0009.safetensors", "new/results.json", "leakage-new/audit.json"):
            before, was = look(path, reading.others).digest, read(path)
            time.sleep(0.02)
            new = folder / name
            if new.exists():
                continue
            new.parent.mkdir(exist_ok=True)
            new.write_text("{}")
            assert look(path, reading.others).digest != before or read(path) == was, new
            new.unlink()


def test_a_file_of_each_kind_that_is_edited_or_gone_is_told(tmp_path):
    run = everything(tmp_path)
    names = artifact_binding.check(run, with_models=False).files
    assert len(names) > 12 and read(run.path).others == ("odd/one.json",)
    for name in names:
        file = run.path / name
        data = file.read_bytes()
        file.write_bytes(data[:-1] + b"@")
        found = glance(run.path)
        assert name in (found.nothing or found.note), found
        file.write_bytes(data)
        assert not glance(run.path).nothing
