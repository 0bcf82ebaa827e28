"""What a run was asked to do and what it did: settings and rounds of the page."""

from __future__ import annotations

import re

import htpy as h
import pytest
from support.pages import page_lines
from support.reports import make_run

from oblivionis.config import compose as configuration
from oblivionis.reports import run_overview


def federation(stage, server_round, clients=None, failures=0, **more):
    """What a round leaves in metrics.jsonl."""
    metrics = {"failures": failures, "seconds": 2.0 * server_round}
    row = {"stage": stage, "round": server_round, "moment": "round", "evaluator": "federation", "metrics": metrics}
    return row | ({} if clients is None else {"clients": clients}) | more


@pytest.fixture
def run(tmp_path):
    run, _ = make_run(tmp_path, stages=["retrain"])
    run.finish_stage("finetune", {"stage": "finetune", "metrics": {}, "rounds": 3, "seconds": 61.4}, {})
    run.append_metrics(
        [
            federation("finetune", 1, {"train": [0, 1], "failed": [4, 2]}, failures=2),
            federation("finetune", 2, {"train": [1, 2, 3, 1]}, cut=[{"client": 3}, {"client": 0}, {"client": 3}]),
            federation("finetune", 3, failures=1),
            federation("unlearn", 1, {"unlearn": [5], "calibrate": [4], "train": [0]}),
        ]
    )
    return run


def rows_of(run, stage):
    return [row for row in run.metrics() if row["evaluator"] == "federation" and row["stage"] == stage]


def test_a_stage_is_summed_up(run):
    """Rounds, seconds, clients that trained at all and per round that tells of them, and replies that failed."""
    assert run_overview.stage_line(run, "finetune", rows_of(run, "finetune")) == [
        "finetune",
        "3",
        "61",
        "4",
        "3",
        "3",
        "",
    ]
    assert run_overview.stage_line(run, "unlearn", rows_of(run, "unlearn")) == (
        ["unlearn", "1", "–", "1", "1", "0", "not finished"]
    )
    assert run_overview.stage_line(run, "local", []) == ["local", "0", "–", "–", "–", "–", "not finished"]


def test_a_stage_that_was_taken_over_says_so(run):
    run.finish_stage("unlearn", {"stage": "unlearn", "metrics": {}, "rounds": 2, "reused_from": "/runs/other"}, {})
    assert run_overview.stage_line(run, "unlearn", [])[-1] == "taken over from the run other"


def test_who_took_part_round_by_round(run):
    page = str(h.fragment[run_overview.done(run)])
    tables = [part.split("</table>")[0] for part in page.split("<table>")[1:]]
    assert len(tables) == 3, "of all stages, and of the rounds of two; the retrained model's were not written down"
    _, finetune, unlearn = ([_cells(row) for row in table.split("<tr")[2:]] for table in tables)
    assert finetune == [["1", "–", "0, 1", "2, 4", "–", "2.0"], ["2", "–", "1, 2, 3", "–", "0, 3", "4.0"]]
    assert unlearn == [["1", "4, 5", "0", "–", "–", "2.0"]]


def _cells(row):
    return re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)


def test_nothing_was_done_yet(tmp_path):
    run, _ = make_run(tmp_path, stages=[])
    (run.path / "metrics.jsonl").unlink(missing_ok=True)
    assert "Nothing yet." in str(h.fragment[run_overview.done(run)])


@pytest.mark.parametrize(("rate", "said"), [("null", "learning rate 0.002"), ("0.0005", "learning rate 0.0005")])
def test_the_learning_rate_of_unlearning_is_its_own_or_that_of_training(rate, said):
    given = ["training.learning_rate=0.002", f"unlearning.learning_rate={rate}", "unlearning.epochs=7"]
    told = run_overview.method_line(configuration.compose("smoke", given))
    assert said in told and "epochs 7" in told


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["unlearning.requests.policy=all_at_round", "unlearning.requests.round=2"], "at once, in round 2"),
        (["unlearning.requests.policy=random_client_per_round"], "drawn at random"),
        (
            ["unlearning.requests.policy=random_client_per_round", "unlearning.requests.scope=client"],
            "drawn at random; who asks leaves with all its records",
        ),
    ],
)
def test_who_asks(overrides, said):
    assert run_overview.policy_line(configuration.compose("smoke", overrides)).endswith(said)


def facts_of(overrides, run=None, folder=None):
    made, config = make_run(folder, overrides=overrides)
    terms = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", str(run_overview.asked(run or made, config)), re.DOTALL)
    return {re.sub(r"<[^>]+>", "", k): re.sub(r"<[^>]+>", "", v) for k, v in terms}


def test_the_settings_that_matter(tmp_path):
    (tmp_path / "a").mkdir()
    overrides = [
        "stages=[finetune,unlearn,local]",
        "seed=5",
        "federation.local_epochs=3",
        "evaluation.rouge=any_script",
    ]
    facts = facts_of(overrides, folder=tmp_path / "a")
    assert facts["Stages"] == "finetune (2 rounds), unlearn (2 rounds), local (each client alone)"
    assert facts["Model"].endswith("trained: LoRA of rank 32; seed 5") and "(the embedded one)" in facts["Model"]
    assert facts["Clients"] == "2; 100% of them fine-tune in a round, 3 epochs each"
    assert facts["ROUGE"] == "words of every script" and "Software" not in facts
    assert facts["Unlearning"].startswith("npo (") and "drawn at random" in facts["Who asks to forget"]
    (tmp_path / "b").mkdir()
    facts = facts_of(["stages=[finetune]"], folder=tmp_path / "b")
    assert facts["Stages"] == "finetune (2 rounds)"
    assert not {"Unlearning", "Who asks to forget", "ROUGE"} & facts.keys()


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([], "6 made-up authors with 2 questions each, 1 author to forget; spread evenly over the clients at random"),
        (["data.same_questions=true"], "6 made-up authors with the same 2 questions each, 1 author to forget; spread"),
        (["data.partition.scheme=by_author"], "to forget; all records of an author with one client"),
        (["data=node", "unlearning.requests.policy=none"], "each client's own, which stay on its machine"),
        (["data=tofu"], "TOFU, records to forget: forget"),
    ],
)
def test_the_data_in_words(overrides, said):
    told = run_overview.data_line(configuration.compose("smoke", overrides))
    assert told.startswith(said) or told.endswith(said)


def test_the_software_in_words():
    known = {"oblivionis": "1", "packages": {"flwr": "2", "torch": "3", "numpy": "4"}, "python": "3.11", "cpus": 8}
    told = run_overview.software_line({**known, "platform": "Linux"})
    assert told == "Oblivionis 1, flwr 2, torch 3, Python 3.11; 8 CPU cores, Linux"
    assert run_overview.software_line({"packages": {"flwr": None}}) == "Oblivionis ?, Python ?; ? CPU cores, "
    assert run_overview.software_line({}) == ""


def test_data_of_ones_own_is_called_by_its_file(tmp_path):
    (tmp_path / "own.jsonl").write_text("")
    config = configuration.compose("smoke", ["data=records", f"data.path={tmp_path / 'own.jsonl'}"])
    assert run_overview.data_line(config) == "records: own.jsonl; spread evenly over the clients at random"


def test_a_page_says_in_short_what_it_is_about():
    said = (
        "3 clients fine-tune the language model “tiny” together on the data “fictitious” without sharing their records"
    )
    config = configuration.compose("smoke", ["federation.clients=3"])
    assert run_overview.in_short(config) == f"{said}; in the stage unlearn any of these can be deleted on request."
    config = configuration.compose("smoke", ["federation.clients=3", "stages=[finetune,local]"])
    assert run_overview.in_short(config) == f"{said}."
    config = configuration.compose("smoke", ["federation.clients=1", "stages=[local]"])
    assert run_overview.in_short(config).startswith("1 client fine-tunes the language model “tiny” on the data ")
    assert run_overview.asked_in_short(config) == "local with fedavg, npo"


def test_what_was_done_in_short(tmp_path):
    run, _ = make_run(tmp_path)
    assert run_overview.done_in_short(run) == ""
    row = {"stage": "unlearn", "moment": "round", "evaluator": "federation"}
    run.append_metrics([{**row, "round": n, "metrics": {"failures": f}} for n, f in ((1, 1), (2, None))])
    assert run_overview.done_in_short(run) == "2 rounds, 1 failed reply"


def test_who_took_part_in_a_long_stage_is_shown_of_its_last_rounds(tmp_path):
    run, _ = make_run(tmp_path)
    row = {"stage": "unlearn", "moment": "round", "evaluator": "federation", "metrics": {}, "clients": {"train": [7]}}
    run.append_metrics([{**row, "round": n} for n in range(1, 202)])
    lines = page_lines("".join(map(str, run_overview.done(run)[1])), 1000)
    assert lines[0] == "+ Who took part in unlearn, round by round (the last 150 of 201 rounds)"
    assert [lines[3].split(" | ")[0], lines[-1].split(" | ")[0], len(lines)] == ["52", "201", 153]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["data.forget_authors=2"], "2 authors to forget; "),
        (["data.forget_subjects=[Mara, Ivo]"], "2 authors to forget, to forget: Mara, Ivo; "),
        (["data.partition.scheme=dirichlet"], "; spread unevenly over the clients (Dirichlet)"),
        (["data=tofu", "data.forget_split=forget05"], "TOFU, records to forget: forget05; "),
    ],
)
def test_whom_the_data_are_about_and_how_they_are_spread(overrides, said):
    config = configuration.compose("smoke", [o for o in overrides if "subjects" not in o])
    if "subjects" in overrides[0]:
        config.data.forget_subjects = ["Mara", "Ivo"]
    assert said in run_overview.data_line(config)


def test_data_without_a_path_are_called_by_their_name():
    config = configuration.compose("smoke")
    config.data.name, config.data.path = "muse", None
    assert run_overview.data_line(config) == "muse; spread evenly over the clients at random"


@pytest.mark.parametrize(
    ("mode", "source", "said"),
    [
        ("lora", "embedded", "tiny (the embedded one), trained: LoRA of rank 32"),
        ("full", "me/model", "tiny (me/model), trained: all weights"),
    ],
)
def test_the_model_in_words(mode, source, said):
    config = configuration.compose("smoke", [f"model.mode={mode}"])
    config.model.source = source
    assert run_overview.model_line(config) == said


@pytest.mark.parametrize(
    ("policy", "scope", "said"),
    [
        ("all_at_round", "client", "at once, in round 1; who asks leaves with all its records"),
        ("all_at_round", "forget_split", "the named clients, or all that hold records to forget, at once, in round 1"),
        ("subjects_at_round", "client", "the people named, on all clients at once, in round 1"),
        ("file", "client", "a schedule in a file"),
        ("nodes", "client", "whoever makes a request on a client's machine"),
        ("none", "client", "nobody"),
    ],
)
def test_each_policy_in_words(policy, scope, said):
    config = configuration.compose("smoke")
    config.unlearning.requests.policy, config.unlearning.requests.scope = policy, scope
    assert run_overview.policy_line(config).endswith(said)


def test_the_software_leaves_out_what_is_not_known():
    told = run_overview.software_line({"oblivionis": "1", "packages": {"torch": "3", "numpy": "4"}, "python": "3.11"})
    assert told == "Oblivionis 1, torch 3, Python 3.11; ? CPU cores, "


def test_nothing_yet_is_all_that_is_said_of_a_run_without_rounds(tmp_path):
    run, _ = make_run(tmp_path, stages=[])
    assert str(run_overview.done(run)) == "<p>Nothing yet.</p>"


def test_a_local_stage_counts_its_clients(run):
    run.finish_stage("local", {"stage": "local", "metrics": {}, "rounds": 2, "clients": 4, "seconds": 0.5}, {})
    rows = [federation("local", 0, {"train": [0]})]
    assert run_overview.stage_line(run, "local", rows) == ["local", "2", "0", "4", "1", "0", ""]
    page = str(h.fragment[run_overview.done(run)])
    assert re.findall(r'<th class="who" scope="row">(\w+)</th>', page)[:4] == [
        "finetune",
        "retrain",
        "unlearn",
        "local",
    ]
