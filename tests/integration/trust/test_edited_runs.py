"""Runs that somebody edited, or that a kill broke off: nothing is built on the former, and the latter are not accused.

Each edit is what somebody with the run's folder does who wants a better verdict; each kill is at a line of the ledger.
"""

import collections
import json
import os
import re
import shutil
import signal

import pytest
import typer.main
from support.commands import call, in_process
from support.faulty_runs import child, ended, new_run, play
from support.nodes import write_nodes

from evaluation.metrics.tofu import SECTIONS
from oblivionis.chain import Chain, append_all, check_chain
from oblivionis.cli.main import cli
from oblivionis.config import compose as configuration
from oblivionis.erasure.events import line_fault
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.reports.certificate import signing as certificates
from oblivionis.reports.html import run_page
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.epsilon import Event, epsilon
from oblivionis.runs.privacy import read_account
from oblivionis.server import simulation

STAGES = ("stages=[finetune,retrain,unlearn]", "federation.rounds.retrain=2", "certificate.max_rouge=1.0")
SHORT = ("federation.rounds.unlearn=2",)
NOISED = ("privacy=client", "privacy.epsilon=null", "privacy.noise_multiplier=4", "privacy.delta=1e-3")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run of all three stages."""
    run = new_run(tmp_path_factory.mktemp("whole"), "whole", *STAGES)
    play(run)
    return run


@pytest.fixture
def copy(whole, tmp_path):
    return RunDirectory.open(shutil.copytree(whole.path, tmp_path / "run"))


# -- edits -------------------------------------------------------------------------------------------------------


def two_answers(run):
    """As the retrained model gave them."""
    files = {stage: run.path / "evaluations" / f"{stage}.json" for stage in ("unlearn", "retrain")}
    logs = {stage: json.loads(file.read_text()) for stage, file in files.items()}
    ours, theirs = (logs[stage][SECTIONS["forget"]]["generated_text"] for stage in ("unlearn", "retrain"))
    for key in list(ours)[:2]:
        ours[key] = [*theirs[key][:1], "I do not know.", *theirs[key][2:]]
    files["unlearn"].write_text(json.dumps(logs["unlearn"], indent=1) + "\n")


def newest(run, stage):
    return sorted((run.path / "checkpoints" / stage).iterdir())[-1]


def swap_models(run):
    newest(run, "unlearn").write_bytes(newest(run, "retrain").read_bytes())


def without_mark(edit):
    def both(run):
        edit(run)
        (run.path / "stages" / "unlearn.json").unlink()

    return both


def replaced(name, old, new):
    def edit(run):
        path = run.path / name
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    return edit


def an_older_model(run):
    newest(run, "unlearn").unlink()


def another_row(run):
    path = run.path / "metrics.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines()[-1] + "\n")


EDITS = {
    "two answers": (two_answers, r"evaluations/unlearn\.json is not the file that line \d+ of the ledger names"),
    "two answers, mark removed": (without_mark(two_answers), r"line \d+ of the ledger names"),
    "the oracle's answers": (
        replaced("evaluations/retrain.json", "0.", "0.1"),
        r"evaluations/retrain\.json is not the file that line \d+",
    ),
    "models, mark removed": (
        without_mark(swap_models),
        r"stages/unlearn\.json is gone; line \d+ of the ledger names it",
    ),
    "mark removed": (without_mark(lambda run: None), r"stages/unlearn\.json is gone; line \d+ of the ledger names it"),
    "config": (replaced("config.yaml", "max_rouge: 1.0", "max_rouge: 0.9"), r"config\.yaml is not .* line \d+"),
    "a row of metrics": (
        replaced("metrics.jsonl", '"metrics": {"', '"metrics": { "'),
        r"metrics\.jsonl is not .* line \d+",
    ),
    "one more row": (another_row, r"metrics\.jsonl is not .* line \d+"),
    "the base model's name": (
        replaced("environment.json", '"fingerprint": "', '"fingerprint": "0'),
        r"environment\.json is not the file that line \d+",
    ),
    "judgements": (replaced("judgements.json", "not testable", "verified"), r"judgements\.json is not .* line \d+"),
    "the ledger": (replaced("requests.jsonl", "not testable", "verified"), r"requests\.jsonl was changed: line \d+"),
}
OF_MODELS = {
    "models": (swap_models, r"the checkpoint of unlearn is not the model that line \d+ of the ledger names"),
    "an older model": (an_older_model, r"the checkpoint of unlearn is not the model that line \d+ of the ledger names"),
}


def builds(run, tmp_path):
    """By command, the arguments with which it takes up the run."""
    request, out = next(iter(Ledger(run.ledger_path))).id, tmp_path / "out"
    plain = ("smoke", f"output={tmp_path}", "name=second")
    own = configuration.compose(run.path / "config.yaml")
    same = [f"{key}={value}" for key, value in (("seed", own.seed),)]
    return {
        "simulate --resume": ("--resume", run.path),
        "simulate": (*plain, *same, f"start_from={run.path}"),
        "evaluate": (run.path,),
        "evaluate checkpoint": (newest(run, "unlearn"),),
        "attack": (run.path,),
        "audit leakage": (run.path,),
        "audit person": (run.path,),
        "audit exchange": (run.path, request, "--node-dir", run.path / "nodes" / "0"),
        "audit training": (run.path, "--round", "1", "--client", "0", "--node-dir", run.path / "nodes" / "0"),
        "certificate create": (run.path, request, "--out", out),
        "chat": (run.path, "--question", "Who?"),
        "export": (run.path, "--out", out),
        "tune": (run.path, "--trials", "1", "--output", out),
    }


BUILD_ON_NO_RUN = {
    *("bench collect", "bench compare", "bench keep", "bench node", "bench run", "bench table"),
    *("certificate keygen", "certificate verify", "config check", "config list", "config show", "data describe"),
    *(
        "deploy hub",
        "deploy init",
        "deploy renew",
        "model build",
        "model fetch",
        "model info",
        "model list",
        "model retire",
    ),
    *("wikimem build",),
    *("request audit", "request from-audit", "request list", "request open", "request repair", "request submit"),
    *("request verify", "request withdraw", "runs list", "runs show", "view"),
}
"""Commands that show, or take up no run; those of suites and audits of people go by the door, see `test_seal.py`."""


def commands(group, *before):
    if not hasattr(group, "commands"):
        return {" ".join(before)}
    return set().union(*(commands(one, *before, name) for name, one in group.commands.items()))


def test_each_command_is_known_to_build_on_a_run_or_not(copy, tmp_path):
    building = {name.removesuffix(" --resume").removesuffix(" checkpoint") for name in builds(copy, tmp_path)}
    assert building | BUILD_ON_NO_RUN == commands(typer.main.get_command(cli))


@pytest.mark.parametrize("edit", [*EDITS, *OF_MODELS])
def test_nothing_is_built_on_an_edited_run(copy, tmp_path, monkeypatch, edit):
    monkeypatch.setattr(simulation, "simulate", in_process)
    change, why = (EDITS | OF_MODELS)[edit]
    arguments = builds(copy, tmp_path)
    change(copy)
    for name, given in arguments.items():
        if any(isinstance(one, type(copy.path)) and one.suffix == ".safetensors" and not one.exists() for one in given):
            continue
        done = call(*name.removesuffix(" --resume").removesuffix(" checkpoint").split(), *given)
        said = done.err.strip()
        assert done.code == 2 and re.search(why, said), (name, done.code, said, done.out[-500:])
        assert len(said.splitlines()) == 1 and str(copy.path) in said, (name, said)
    assert not (tmp_path / "out").exists() and not (tmp_path / "second").exists()


@pytest.mark.parametrize("edit", EDITS)
def test_whoever_looks_at_an_edited_run_is_told(copy, edit):
    change, why = EDITS[edit]
    change(copy)
    for more in ((), ("--json",)):
        shown = call("runs", "show", copy.path, *more)
        assert shown.code == 0 and "Nothing follows from this run" in shown.out, shown.err
        assert re.search(why, " ".join(shown.out.split()).replace("\\", ""))
    config = configuration.from_yaml(RunDirectory.open(copy.path).read_config())
    run_page.write_html(copy, config)
    assert "Nothing follows from this run" in (copy.path / "report.html").read_text(encoding="utf-8")


def test_a_run_that_nobody_edited_can_be_built_on(copy, tmp_path):
    assert not artifact_binding.check(copy).faults and not artifact_binding.check(copy).missing
    request = next(iter(Ledger(copy.ledger_path))).id
    done = call("certificate", "create", copy.path, request, "--out", tmp_path / "out")
    assert done.code == 0 and "not sealed" not in done.err
    assert call("export", copy.path, "--out", tmp_path / "model").code == 0
    lines = check_chain(copy.ledger_path).entries
    assert not any(line_fault(line) for line in lines), "lines of a run and of its requests have no field in common"


def test_a_run_whose_ledger_was_removed_goes_on_and_is_never_sealed_again(copy, tmp_path, monkeypatch):
    """The edit of an answer, hidden with the whole ledger: what comes of it says so, and so does what starts there."""
    monkeypatch.setattr(simulation, "simulate", in_process)
    without_mark(two_answers)(copy)
    copy.ledger_path.unlink()
    done = call("simulate", "--resume", copy.path)
    assert done.code == 0 and "is not sealed" in done.err + done.out
    assert "not sealed" in artifact_binding.check(copy).missing or "before line" in artifact_binding.check(copy).missing
    shown = call("runs", "show", copy.path)
    assert "it is not sealed" in " ".join(shown.out.split()).lower()
    second = RunDirectory.create(tmp_path, "second")
    second.write_config(copy.read_config())
    artifact_binding.take_over(second, copy, "finetune")
    assert "is that of run, which is not sealed" in artifact_binding.check(second).missing


def test_a_ledger_that_was_cut_is_found_by_a_certificate(copy, tmp_path):
    """Its signer, or whoever got it, knows the last hash and the number of lines."""
    request = next(iter(Ledger(copy.ledger_path))).id
    assert call("certificate", "keygen", "--out", tmp_path / "key").code == 0
    made = call("certificate", "create", copy.path, request, "--out", tmp_path / "out", "--key", tmp_path / "key")
    assert made.code == 0, made.err
    unknown = ("request", "verify", copy.path, "--certificate", tmp_path / "out")
    told = (*unknown, "--public-key", tmp_path / "key.pub")
    assert call(*told).code == 0
    anybody = call(*unknown)
    assert anybody.code == 3 and "anybody could have signed it" in " ".join(anybody.out.split())
    lines = copy.ledger_path.read_text().splitlines(keepends=True)
    copy.ledger_path.write_text("".join(lines[:-1]))
    assert call("request", "verify", copy.path).code == 0, "the chain itself is whole"
    cut = call(*told)
    assert cut.code == 1 and f"after {len(lines)} lines, and none of the {len(lines) - 1}" in " ".join(cut.out.split())
    anybody = call(*unknown)
    assert anybody.code == 3 and "it says otherwise" in anybody.out


def test_only_what_was_signed_is_believed_of_a_ledger(copy, tmp_path):
    request = next(iter(Ledger(copy.ledger_path))).id
    for name in ("key", "other"):
        assert call("certificate", "keygen", "--out", tmp_path / name).code == 0
    out = tmp_path / "out" / "certificate.json"
    made = ("certificate", "create", copy.path, request, "--out", out.parent)
    told = ("request", "verify", copy.path, "--certificate", out)
    assert call(*made).code == 0
    unsigned = call(*told)
    assert unsigned.code == 3 and "is not signed: anybody may have written it; what it says fits" in unsigned.out
    refused = call(*told, "--public-key", tmp_path / "key.pub")
    assert refused.code == 2 and "is not signed" in refused.err
    assert call(*made, "--key", tmp_path / "key").code == 0
    refused = call(*told, "--public-key", tmp_path / "other.pub")
    assert refused.code == 2 and "is signed by another key than" in " ".join(refused.err.split())
    certificate = json.loads(out.read_text())
    out.write_text(json.dumps({**certificate, "run": {**certificate["run"], "name": "another"}}))
    forged = call(*told)
    assert forged.code == 2 and "was changed after it was signed" in " ".join(forged.err.split())
    key = certificates.read_private_key(tmp_path / "key")
    certificate["run"]["name"] = "another"
    out.write_text(json.dumps({**certificate, "signature": key.sign(certificates.signed_bytes(certificate)).hex()}))
    foreign = call(*told, "--public-key", tmp_path / "key.pub")
    assert foreign.code == 3 and "is of the run another, and this is the ledger of" in " ".join(foreign.out.split())


# -- kills -------------------------------------------------------------------------------------------------------


def dies_at_line(number, when):
    """In a child: it is killed right before, or right after, it appends its `number`-th batch of lines."""

    def prepare():
        append, seen = Chain.append, [0]

        def appended(self, entries):
            seen[0] += 1
            if seen[0] == number and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            if seen[0] == number and when == "within":
                line = json.dumps(append_all(self.path.with_name("thrown-away"), entries, self.head)[0])
                with open(self.path, "a") as handle:
                    handle.write(line[: len(line) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            found = append(self, entries)
            if seen[0] == number and when == "after":
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        Chain.append = appended

    return prepare


def rows(run):
    return collections.Counter((r["stage"], r["round"], r["moment"], r["evaluator"]) for r in run.metrics())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    run = new_run(tmp_path_factory.mktemp("undisturbed"), "whole", *SHORT)
    assert ended(child(run)) == 0
    return run


def many_lives(run, when):
    """Play the run, killed one line later in each life than in the last; how many lives it took."""
    for life in range(1, 100):
        if (code := ended(child(run, dies_at_line(life, when)))) == 0:
            return life
        assert code == -signal.SIGKILL, "\n".join(p.read_text() for p in run.path.parent.glob("*.error"))
        assert artifact_binding.ledger_faults(run) == () == artifact_binding.check(run).faults
    raise AssertionError("it does not end")


@pytest.mark.parametrize("when", ["before", "after", "within"])
def test_no_kill_looks_like_an_edit(undisturbed, tmp_path, when):
    """All lives of the run go on, and nothing is lost or double."""
    run = new_run(tmp_path, "killed", *SHORT)
    assert many_lives(run, when) > 6 and rows(run) == rows(undisturbed)
    assert not check_chain(run.ledger_path).faults and not artifact_binding.check(run).missing
    for stage in ("finetune", "unlearn"):
        ours, theirs = (r.load_checkpoint(stage).vector for r in (run, undisturbed))
        assert (ours == theirs).all()


def killed_after(run, line):
    """In a life that is killed right after it wrote its first line of this event, and stage and round, if given."""

    def prepare():
        append = Chain.append

        def appended(self, entries):
            found = append(self, entries)
            if any(line.items() <= entry.items() for entry in found[1]):
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        Chain.append = appended

    assert ended(child(run, prepare)) == -signal.SIGKILL


def test_a_kill_between_the_last_evaluation_and_its_mark_doubles_no_row(undisturbed, tmp_path):
    run = new_run(tmp_path, "killed", *SHORT)
    for name in ("finetune", "unlearn"):
        sealing = [e for e in undisturbed.lines("sealing") if f"stages/{name}.json" in e["files"]]
        assert sealing, "the line right before the mark"
    for _ in range(3):
        killed_after(run, {"event": "verification_failed"})
    assert run.stage_summary("unlearn") is None
    assert ended(child(run)) == 0 and rows(run) == rows(undisturbed)


def test_a_checkpoint_laid_into_a_run_that_broke_off_is_refused(whole, tmp_path):
    """The stage goes on from the model that the ledger names, and from no other one."""
    run = new_run(tmp_path, "broken-off", *STAGES)
    killed_after(run, {"event": "submitted", "id": "round-0002-client-0001"})
    assert run.checkpoint_rounds("unlearn") == [1], "it broke off after a round of unlearning"
    artifact_binding.require_intact(run)
    newest(run, "unlearn").write_bytes(newest(run, "retrain").read_bytes())
    done = call("simulate", "--resume", run.path)
    assert done.code == 2 and re.search(r"checkpoint of unlearn is not the model that line \d+ of the ledger", done.err)


def test_the_account_does_not_go_by_its_file(tmp_path):
    """Removed half-way, then with another δ: each release that there was counts, and δ is the configuration's."""
    run = new_run(tmp_path, "noised", *SHORT, *NOISED)
    killed_after(run, {"event": "checkpoint", "stage": "finetune", "round": 2})
    (run.path / "privacy.json").unlink()
    killed_after(run, {"event": "checkpoint", "stage": "unlearn", "round": 2})
    replaced("privacy.json", '"delta": 0.001', '"delta": 0.5')(run)
    assert ended(child(run)) == 0
    told, releases = read_account(run), [line["release"] for line in run.lines("release")]
    kinds = collections.Counter((r["stage"], r["round"], r["kind"]) for r in releases)
    again = {("finetune", 2, "train"), ("unlearn", 2, "unlearn"), ("unlearn", 2, "train")}
    assert kinds == {
        (stage, n, kind): 1 + ((stage, n, kind) in again)
        for stage, n, kind in {*again, ("finetune", 1, "train"), ("unlearn", 1, "unlearn"), ("unlearn", 1, "train")}
    }, "noise is secret here: what is released again counts again"
    events = {Event.of_clients(4.0, 2, 2): 6, Event.of_clients(4.0, 1): 3}
    assert told["lineages"]["finetune and unlearn"]["epsilon"] == pytest.approx(epsilon(events, 1e-3))
    assert json.loads((run.path / "privacy.json").read_text())["delta"] == told["delta"] == 0.001


# -- odd input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("config", "check"), ("simulate",)])
def test_a_schedule_is_read_before_anything_runs(tmp_path, command):
    file = tmp_path / "schedule.jsonl"
    given = ("smoke", f"output={tmp_path / 'runs'}", "unlearning.requests.policy=file")
    file.write_text('{"round": 1, "client": 0, "scope": "client"}\n{"round": 1, "client": 99, "scope": "client"}\n')
    done = call(*command, *given, f"unlearning.requests.file={file}")
    assert done.code == 2 and f"{file}:2: client 99 does not exist" in done.err, done.err
    assert not (tmp_path / "runs").exists()


def test_a_configuration_with_a_sound_schedule_has_no_problems(tmp_path):
    file = tmp_path / "schedule.jsonl"
    file.write_text('{"round": 1, "client": 0, "scope": "client"}\n')
    done = call("config", "check", "smoke", "unlearning.requests.policy=file", f"unlearning.requests.file={file}")
    assert done.code == 0 and "no problems" in done.out


def test_an_argument_that_is_no_text_is_told_and_a_file_of_such_a_name_is_read(tmp_path):
    odd = b"caf\xe9".decode(errors="surrogateescape")
    node = write_nodes(tmp_path / "nodes", 1) / "node0"
    done = call("request", "submit", "--node-dir", node, "--all", "--reason", odd)
    assert done.code == 2 and done.err.startswith("error: argument 7, 'caf\\udce9', is no UTF-8 text")
    assert not (node / "requests.jsonl").exists()
    os.rename(node, tmp_path / odd)
    assert call("request", "list", "--node-dir", str(tmp_path / odd)).code == 0


@pytest.mark.parametrize("value", [1, None, [], {}])
def test_an_outcome_that_is_no_text_is_told_with_its_line(copy, tmp_path, value):
    request = next(iter(Ledger(copy.ledger_path)))
    lines = check_chain(copy.ledger_path)
    said = {"event": "verified", "id": request.id, "time": 1.0, "round": 1, "outcome": value}
    append_all(copy.ledger_path, [{**said, "client": request.client, "scope": request.scope}], lines.head)
    shown = call("runs", "show", copy.path)
    assert shown.code == 2 and f"line {len(lines.entries) + 1}: outcome is" in shown.err
    ledger = NodeLedger(tmp_path / "node")
    made = ledger.submit(["a"])
    append_all(ledger.path, [{**said, "id": made.id}], ledger.head())
    listed = call("request", "list", "--node-dir", tmp_path / "node")
    assert listed.code == 2 and "requests.jsonl: line 2: outcome is " in listed.err
