"""The command: arguments, exit codes, messages, and what each subcommand prints."""

import contextlib
import json
import re

import pytest
from support.commands import call, in_process
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from oblivionis.cli import main as cli
from oblivionis.config import compose as configuration
from oblivionis.data.corpora import load_corpus
from oblivionis.errors import RunError, RunInterrupted
from oblivionis.measures.assessor import Assessor, evaluate_checkpoint
from oblivionis.models.assembly import assemble
from oblivionis.models.source import resolve
from oblivionis.reports.format import number
from oblivionis.runs.directory import RunDirectory
from oblivionis.server import simulation

SMALL = ["data.authors=8", "data.forget_authors=2", "evaluation.full.questions_per_set=4", "evaluation.every=0"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The run directory of `oblivionis simulate smoke`, and what the command printed."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "simulate", in_process)
        result = call("simulate", "smoke", f"output={folder}", "name=tried", *SMALL)
    return folder / "tried", result


def stored(run, stage):
    return json.loads((run / "stages" / f"{stage}.json").read_text())["metrics"]


def table(text):
    """Rows of a printed comparison, by (questions, measure)."""
    rows, group = {}, ""
    for line in text.splitlines():
        if line.startswith("│") and line.count("│") >= 4:
            cells = [cell.strip() for cell in line.strip("│").split("│")]
            group = cells[0] or group
            rows[group, cells[1]] = cells[2:]
    return rows


# -- arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (None, ("default", [])),
        ([], ("default", [])),
        (["smoke"], ("smoke", [])),
        (["a=1", "b=2"], ("default", ["a=1", "b=2"])),
        (["my/file.yaml", "a=[1, 2]"], ("my/file.yaml", ["a=[1, 2]"])),
        (["smoke", "tofu"], ("smoke", ["tofu"])),
    ],
)
def test_the_first_argument_without_an_equals_sign_is_the_experiment(arguments, expected):
    assert cli.split_arguments(arguments) == expected


COMMANDS = (
    "simulate, evaluate, export, bench, bench keep, config show, config check, config list, data describe, model info, "
    "model build, "
    "audit leakage, audit person, request from-audit, request submit, request list, "
    "request verify, certificate create, certificate verify, certificate keygen, wikimem build, chat, runs list, "
    "runs show, view"
)


@pytest.mark.parametrize("command", COMMANDS.split(", "))
def test_every_command_has_help(command):
    result = call(*command.split(), "--help")
    assert result.code == 0 and result.err == ""
    assert re.search(rf"Usage: .*{command} ", result.out)


def test_help_explains_the_arguments():
    assert "federation.rounds.unlearn=5" in " ".join(call("simulate", "--help").out.split())
    assert "A run directory, a checkpoint, a name in conf/model" in " ".join(call("evaluate", "--help").out.split())


def test_the_version_is_printed():
    result = call("--version")
    assert (result.code, result.out, result.err) == (0, f"{cli.__version__}\n", "")


def test_the_help_names_the_commands():
    result = call("--help")
    assert result.code == 0
    assert all(name in result.out for name in ("simulate", "evaluate", "config", "data", "model", "runs"))


# -- mistakes ------------------------------------------------------------------------------------------------------

MISTAKES = {
    "unknown command": (["simulat"], "No such command 'simulat'"),
    "unknown option": (["simulate", "--bogus"], "No such option"),
    "missing argument": (["evaluate"], "Missing argument"),
    "unknown experiment": (["simulate", "nosuch"], "there is no 'nosuch'"),
    "unknown choice": (["simulate", "strategy=fedadm"], "did you mean fedadam?"),
    "unknown key": (["config", "show", "unlearning.metod=npo"], "did you mean unlearning.method?"),
    "value out of range": (["config", "check", "federation.fraction_train=1.7"], "federation.fraction_train"),
    "no equals sign": (["config", "show", "smoke", "seed"], "expected key=value"),
    "more clients than records": (["data", "describe", "federation.clients=9999"], "clients cannot share"),
    "unknown subject": (
        ["simulate", "unlearning.requests.policy=subjects_at_round", "unlearning.requests.subjects=[Zed Quill]"],
        "unlearning.requests.subjects: no record is about 'Zed Quill'",
    ),
    "nothing to resume": (["simulate", "--resume", "nope"], "nope is no run directory"),
    "resume with options": (["simulate", "smoke", "--resume", "nope"], "leave the other arguments out"),
    "no such run": (["evaluate", "nope"], "nope is no run directory"),
    "no stage of a model": (["evaluate", "tiny", "--stage", "unlearn"], "--stage chooses a stage of a run"),
    "a mistake beside a model": (["evaluate", "tiny", "data=tof"], "tofu"),
    "no such run to show": (["runs", "show", "nope"], "nope is no run directory"),
    "no data file": (["data", "describe", "data=jsonl"], "data.path"),
    "no such data file": (["data", "describe", "data=jsonl", "data.path=nope.jsonl"], "nope.jsonl"),
    "no such tofu folder": (["data", "describe", "data=tofu", "data.path=/nope"], "/nope"),
    "no such model folder": (["model", "info", "model.source=./nope/x"], "./nope/x"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_users_mistake_is_one_message_and_exit_code_2(mistake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, message = MISTAKES[mistake]
    result = call(*arguments)
    assert result.code == 2
    assert message in result.err and result.out == ""
    assert "Traceback" not in result.err and "fault of oblivionis" not in result.err
    assert list(tmp_path.iterdir()) == [], "nothing was begun"


def test_a_model_that_the_hub_does_not_give(monkeypatch):
    import huggingface_hub

    def refuse(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    result = call("model", "info", "model.source=someone/model")
    assert result.code == 2
    assert "'someone/model'" in result.err and "no route to host" in result.err and "Traceback" not in result.err


def test_a_folder_that_is_not_empty_is_not_built_into(tmp_path):
    (tmp_path / "mine.txt").write_text("keep me")
    result = call("model", "build", tmp_path)
    assert result.code == 2 and "is not empty" in result.err
    assert (tmp_path / "mine.txt").read_text() == "keep me"


def test_a_run_name_that_is_taken(finished, monkeypatch):
    run, _ = finished
    before = sorted(p.name for p in run.parent.iterdir())
    result = call("simulate", "smoke", f"output={run.parent}", "name=tried")
    assert result.code == 2 and "exists already and is finished; choose another name" in result.err
    assert "--resume" not in result.err, "there is nothing to continue"
    assert sorted(p.name for p in run.parent.iterdir()) == before


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (RuntimeError("the roof is on fire"), 1, "This is a fault of oblivionis"),
        (RunInterrupted("Ctrl-C"), 130, "stopped; continue with"),
        (KeyboardInterrupt(), 130, "stopped; continue with"),
    ],
)
def test_a_run_that_fails_says_how_to_go_on(error, code, message, tmp_path, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr(simulation, "simulate", fail)
    result = call("simulate", "smoke", f"output={tmp_path}", "name=broken")
    assert result.code == code
    assert message in " ".join(result.err.split())
    assert "--resume" in result.err and "broken" in result.err
    assert ("Traceback" in result.err) == (code == 1)
    assert not (tmp_path / "broken" / "running.json").exists(), "the lock is released"


def test_a_second_ctrl_c_while_the_processes_end_loses_no_advice(tmp_path, monkeypatch):
    class Ends(contextlib.nullcontext):
        def __exit__(self, *_):
            raise KeyboardInterrupt

    def stopped(*_):
        raise RunInterrupted("stopped by Ctrl-C")

    monkeypatch.setattr(cli, "client_fork_server", lambda config: Ends())
    monkeypatch.setattr(simulation, "simulate", stopped)
    result = call("simulate", "smoke", f"output={tmp_path}", "name=twice")
    assert result.code == 130
    assert "stopped; continue with: oblivionis simulate --resume" in " ".join(result.err.split())


def test_a_mistake_that_a_run_meets_leaves_its_name_free(tmp_path, monkeypatch):
    """No folder with settings that do not work, and no advice to continue them."""
    monkeypatch.setattr(simulation, "simulate", in_process)
    file = tmp_path / "mine.jsonl"
    file.write_text('{"question": "Who?"}\n' * 2)
    result = call("simulate", "smoke", "data=jsonl", f"data.path={file}", f"output={tmp_path}", "name=tried")
    assert result.code == 2 and "mine.jsonl:1: field 'answer' is missing" in result.err
    assert "--resume" not in result.err and "failed" not in result.err
    assert not (tmp_path / "tried").exists()


def test_a_mistake_in_a_run_that_has_begun_is_to_be_mended_first(tmp_path, monkeypatch):
    def begin(config, run, events, forks=None):
        run.append_metrics([{"stage": "finetune", "round": 0, "moment": "start", "evaluator": "tofu", "metrics": {}}])
        raise RunError("the data have gone")

    monkeypatch.setattr(simulation, "simulate", begin)
    result = call("simulate", "smoke", f"output={tmp_path}", "name=tried")
    assert result.code == 2 and (tmp_path / "tried" / "metrics.jsonl").exists()
    first, second = result.err.strip().splitlines()
    assert first == (
        "the run broke off; if what follows can be mended, continue with: oblivionis simulate --resume "
        f"{tmp_path / 'tried'}"
    )
    assert second == "error: the data have gone"


# -- config --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [[], ["smoke", "seed=7"], ["paper_phi_1_5", "strategy=fedyogi", "data=tofu"]])
def test_what_config_show_prints_is_the_same_configuration(arguments, tmp_path):
    first = call("config", "show", *arguments)
    assert first.code == 0
    assert configuration.from_yaml(first.out) == configuration.compose(*cli.split_arguments(arguments))
    file = tmp_path / "shown.yaml"
    file.write_text(first.out)
    assert call("config", "show", file).out == first.out


def test_config_check_passes_a_good_configuration():
    result = call("config", "check", "smoke", "unlearning=simnpo")
    assert (result.code, result.out) == (0, "smoke: no problems\n")


def test_config_check_lists_three_mistakes_at_once(tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text("extends: default\nfederation: {fraction_train: 1.7}\nunlearning: {metod: npo}\nstrategy: fedadm\n")
    result = call("config", "check", file)
    assert result.code == 2 and result.out == ""
    text = " ".join(result.err.split())
    assert text.startswith("3 problems in the configuration:")
    for key, hint, line in (
        ("federation.fraction_train", "expected 0 < value <= 1", 2),
        ("unlearning.metod", "did you mean unlearning.method?", 3),
        ("strategy", "did you mean fedadam?", 4),
    ):
        assert re.search(rf"{key}: .*?{re.escape(hint)} .*?bad.yaml:{line}\]", text), key


def test_config_list_names_every_choice():
    result = call("config", "list")
    assert result.code == 0
    told = re.split(r"^ (?=\w)", result.out, flags=re.MULTILINE)  # a group's choices may take several lines
    for group, names in {"experiment": configuration.list_experiments(), **configuration.list_choices()}.items():
        (choices,) = [part.replace(",", " ").split()[1:] for part in told if part.split()[:1] == [group]]
        assert choices == sorted(names)


# -- data and model ------------------------------------------------------------------------------------------------


def people(count):
    return [
        {"id": f"p{i}", "question": f"Where does {name} live?", "answer": "In Ost.", "subject": name, "forget": i < 2}
        for i, name in enumerate(f"Person {n // 2}" for n in range(count))
    ]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_data_describe_says_who_holds_records_about_whom(tmp_path):
    file = write_lines(tmp_path / "people.jsonl", people(12))
    data = ["data=jsonl", f"data.path={file}", "federation.clients=3"]
    listed = call("data", "describe", *data, "--subjects").out.splitlines()
    rows = {line[: line.index("  ")].strip(): line.split() for line in (x[1:] for x in listed[1:])}
    assert list(rows) == [f"Person {n}" for n in range(6)] and all(row[2] == "2" for row in rows.values())
    clients = {}
    for n in range(6):
        head, _, *lines = call("data", "describe", *data, "--subject", f" PERSON  {n}").out.splitlines()
        held = {int(line.split()[0]): line.replace(",", "").split()[1:] for line in lines}
        assert sorted(i for ids in held.values() for i in ids) == [f"p{2 * n}", f"p{2 * n + 1}"]
        assert head == f"Person {n}: 2 records on {len(held)} client{'s' * (len(held) > 1)}"
        assert "".join(rows[f"Person {n}"][3:]) == ",".join(map(str, sorted(held)))
        clients[n] = set(held)
    assert set().union(*clients.values()) == {0, 1, 2}
    result = call("data", "describe", *data, "--subject", "Person x")
    assert result.code == 2 and "no record is about 'Person x'; did you mean Person" in result.err


def test_data_describe_counts_json_lines(tmp_path):
    file = write_lines(tmp_path / "people.jsonl", people(12))
    result = call("data", "describe", "data=jsonl", f"data.path={file}", "federation.clients=3")
    assert result.code == 0 and result.err == ""
    facts = dict(re.findall(r"^│ +(.+?) +│ +(.+?) +│$", result.out, re.MULTILINE))
    assert facts["training records"] == "12" and facts["subjects"] == "6"
    assert facts["of these to forget"] == "2 (16.7%)"
    assert facts["questions forget"] == "2" and facts["questions retain"] == "10"
    clients = re.findall(r"^│ +(\d+) │ +(\d+) │ +(\d+) │ +(\d+|·) │$", result.out, re.MULTILINE)
    assert [int(c[0]) for c in clients] == [0, 1, 2]
    assert sum(int(c[1]) for c in clients) == 12
    assert sum(int(c[3]) for c in clients if c[3] != "·") == 2


def test_data_describe_takes_the_folder_of_the_training_file(tmp_path):
    write_lines(tmp_path / "train.jsonl", people(4))
    result = call("data", "describe", "data=jsonl", f"data.path={tmp_path}", "federation.clients=2")
    assert result.code == 0 and re.search(r"training records +│ +4 ", result.out)


def test_data_describe_names_every_faulty_line(tmp_path):
    rows = people(5)
    rows[1]["answer"] = ""
    rows[3] = {"question": "?", "anwser": "x"}
    file = write_lines(tmp_path / "people.jsonl", rows)
    file.write_text(file.read_text() + "{torn\n")
    result = call("data", "describe", "data=jsonl", f"data.path={file}", "federation.clients=2")
    assert result.code == 2 and "Traceback" not in result.err
    assert all(f"people.jsonl:{line}:" in result.err for line in (2, 4, 6))
    assert "found 'anwser'" in result.err and "people.jsonl:1:" not in result.err


def test_model_info_counts_what_travels_when_a_is_frozen():
    printed = {}
    for mode in ("factors", "product", "freeze_a"):
        out = call("model", "info", "model.lora.rank=4", f"model.lora.aggregation={mode}").out
        printed[mode] = dict(re.findall(r"^│ +(.+?) +│ +(.+?) +│$", out, re.MULTILINE))
    frozen, whole = printed["freeze_a"], printed["factors"]
    numbers = [
        int(facts[key].split()[0].replace(",", ""))
        for facts, key in ((frozen, "trainable parameters"), (frozen, "frozen adapter parameters"),
                           (whole, "trainable parameters"))
    ]  # fmt: skip
    assert numbers[0] + numbers[1] == numbers[2]
    assert frozen["sent per client and exchange"].startswith(f"{4 * numbers[0] / 1000:.3g} kB there")
    assert len({facts["base parameters"] for facts in printed.values()}) == 1
    assert printed["product"]["sent per client and exchange"] == whole["sent per client and exchange"]
    assert "frozen adapter parameters" not in whole


def test_model_info_prints_sizes_and_nothing_else():
    result = call("model", "info", "model.lora.rank=4")
    assert result.code == 0
    assert result.err == "", "no progress bars and no warnings of other libraries"
    facts = dict(re.findall(r"^│ +(.+?) +│ +(.+?) +│$", result.out, re.MULTILINE))
    base = int(facts["base parameters"].replace(",", ""))
    trainable = int(facts["trainable parameters"].split()[0].replace(",", ""))
    share = float(re.search(r"\((.+?)%", facts["trainable parameters"]).group(1))
    assert share == pytest.approx(100 * trainable / (base + trainable), abs=0.01)
    assert facts["sent per client and exchange"].startswith(f"{4 * trainable / 1000:.3g} kB there")
    assert re.fullmatch("[0-9a-f]{64}", facts["fingerprint"])


# -- runs ----------------------------------------------------------------------------------------------------------


def test_simulate_ends_with_the_comparison(finished):
    run, result = finished
    assert result.code == 0
    few, rows = table(result.out), table(call("runs", "show", run, "--full").out)
    assert few["Forget", "Prob"] == rows["Forget", "Prob"] and all(rows[name] == few[name] for name in few)
    assert ("Forget", "Forget quality (KS p)") not in few and ("All but forget", "Model utility") in few
    assert re.search(r"\d of \d deletion requests?\s+verified", result.out)
    assert f"oblivionis runs show {run} --full" in result.out
    for column, stage in enumerate(("finetune", "unlearn", "retrain")):
        metrics = stored(run, stage)
        assert rows["Forget", "Prob"][column] == number(metrics["forget_prob"])
        assert rows["World facts", "Truth ratio"][column] == number(metrics["world_facts_truth_ratio"])
        assert rows["All but forget", "Model utility"][column] == number(metrics["model_utility"])
        assert rows["Forget", "Forget quality (KS p)"][column] != "–"
    assert "Sample answers" not in result.out and result.out.count("\n", result.out.index("verified")) < 40
    assert "Sample answers" in call("runs", "show", run, "--answers").out
    assert re.search(r"\d deletion requests? for \d records?: ", result.out)
    assert f"run directory: {run}" in result.out and (run / "report.html").stat().st_size > 10_000


def test_runs_show_repeats_the_summary(finished):
    run, result = finished
    again = call("runs", "show", run)
    assert again.code == 0
    assert table(again.out) == table(result.out) != {}
    assert again.out.splitlines()[0] in result.out


def test_runs_list(finished, tmp_path):
    run, _ = finished
    result = call("runs", "list", run.parent)
    assert result.code == 0 and "tried" in result.out
    assert "finetune ✓, retrain ✓, unlearn ✓" in result.out
    empty = call("runs", "list", tmp_path)
    assert (empty.code, empty.out) == (0, f"no runs in {tmp_path}\n")


@pytest.mark.parametrize("stage", ["finetune", "retrain", "unlearn"])
def test_evaluate_measures_what_the_stage_stored(finished, stage):
    run, _ = finished
    _, checkpoint, measured = evaluate_checkpoint(run, stage, [])
    metrics = measured.metrics
    kept = {k: v for k, v in stored(run, stage).items() if not k.startswith("rebound_")}  # those take all rounds
    assert (checkpoint.stage, checkpoint.round) == (stage, 2)
    assert {k: metrics[k] for k in kept} == pytest.approx(kept, abs=1e-6)
    column = {"finetune": 0, "unlearn": 1, "retrain": 2}[stage]
    quality = table(call("runs", "show", run, "--full").out)["Forget", "Forget quality (KS p)"][column].strip("()")
    assert number(metrics["forget_quality"]) == quality, "also that of the stages before there was an oracle"


def test_evaluate_prints_the_last_stage_or_a_checkpoint(finished):
    run, _ = finished
    expected = number(stored(run, "unlearn")["forget_prob"])
    for target in (run, run / "checkpoints" / "unlearn" / "round-0002.safetensors"):
        result = call("evaluate", target)
        assert result.code == 0 and result.err == ""
        assert result.out.startswith("tried: stage unlearn, round 2\n")
        assert table(result.out)["Forget", "Prob"] == [expected]


def test_evaluate_measures_any_model_without_a_run(finished, tmp_path):
    """The base model of a run, by its name, by a folder, and of another architecture."""
    folder = resolve("embedded")
    small = ["data.authors=8", "data.forget_authors=2", "evaluation.full.questions_per_set=4"]
    off = [f"evaluation.{name}" for name in ("leakage.full_samples=0", "wikimem.enabled=false", "ruler.enabled=false")]
    results = [call("evaluate", target, *small, *off) for target in ("tiny", folder)]
    assert results[0].code == results[1].code == 0, results[0].err + results[1].err
    assert table(results[0].out) == table(results[1].out)
    assert results[1].out.startswith(f"{folder} · fictitious · truth ratio geometric\n")
    config = configuration.compose("default", [*small, *off])
    assembled = assemble(config.model, 0)
    expected = Assessor(assembled, load_corpus(config.data), config).measure(assembled.flat.numpy(), full=True).metrics
    found = table(results[0].out)
    for row, name in {"Prob": "forget_prob", "ROUGE-L recall": "forget_rouge"}.items():
        assert found["Forget", row] == [number(expected[name])]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 512, "vocab_size": len(tokenizer)}
    GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=1)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    other = call("evaluate", tmp_path, *small, *off, "evaluation.full.max_new_tokens=4")
    assert other.code == 0 and 0 < float(table(other.out)["Forget", "Prob"][0]) < 0.01, other.err


def test_evaluate_refuses_a_file_that_is_no_checkpoint_of_a_run(finished, tmp_path):
    run, _ = finished
    text = tmp_path / "notes.txt"
    text.write_text("not a checkpoint")
    result = call("evaluate", text)
    assert result.code == 2 and "notes.txt is no readable checkpoint" in result.err
    moved = tmp_path / "moved.safetensors"
    moved.write_bytes((run / "checkpoints" / "unlearn" / "round-0002.safetensors").read_bytes())
    result = call("evaluate", moved)
    assert result.code == 2 and "does not lie in a run directory" in result.err


def test_audit_of_a_run_asks_its_forget_questions(finished):
    run, _ = finished
    corpus = load_corpus(configuration.compose("smoke", SMALL).data)
    folder = run / "audits" / "leakage-finetune-0002"
    result = call("audit", "leakage", run, "--stage", "finetune", "--samples", 3, "--max-new-tokens", 6)
    assert result.code == 0 and "tried, finetune (round 2)" in result.out and str(folder) in result.out
    facts = json.loads((folder / "audit.json").read_text())
    assert [q["id"] for q in facts["questions"]] == [r.id for r in corpus.evaluation["forget"]]
    again = call("audit", "leakage", run, "--stage", "finetune", "--samples", 3, "--max-new-tokens", 6)
    assert again.code == 0 and "answers sampled in" not in again.out
    keyword = call(
        *("audit", "leakage", run / "checkpoints" / "unlearn" / "round-0002.safetensors", "--function", "keyword"),
        *("--samples", 3, "--max-new-tokens", 6, "--out", run / "other"),
    )
    assert keyword.code == 0 and "Leakage (keyword) of tried, unlearn" in keyword.out


def test_evaluate_with_another_convention(finished):
    run, _ = finished
    arithmetic = evaluate_checkpoint(run, "finetune", ["evaluation.truth_ratio=arithmetic"])[2].metrics
    geometric = stored(run, "finetune")
    assert arithmetic["forget_truth_ratio"] != pytest.approx(geometric["forget_truth_ratio"], abs=1e-6)
    assert arithmetic["forget_prob"] == pytest.approx(geometric["forget_prob"], abs=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stage", "bogus"], "no readable checkpoint of stage bogus"),
        (["--set", "evaluation.truth_ratio=x"], "expected one of geometric, arithmetic"),
    ],
)
def test_evaluate_refuses_what_it_cannot_do(finished, options, message):
    result = call("evaluate", finished[0], *options)
    assert result.code == 2 and "Traceback" not in result.err
    assert message in " ".join(result.err.split())


def test_a_finished_run_can_be_resumed_and_changes_nothing(finished, monkeypatch):
    run, _ = finished
    before = {s: stored(run, s) for s in ("finetune", "retrain", "unlearn")}
    monkeypatch.setattr(simulation, "simulate", in_process)
    result = call("simulate", "--resume", run)
    assert result.code == 0 and "finetune: finished earlier" in result.out
    assert {s: stored(run, s) for s in before} == before
    assert RunDirectory.open(run).checkpoint_rounds("unlearn") == [1, 2]
