"""Which runs a suite needs, which its cells share, and what makes two stages the same."""

import os

import pytest
from support.commands import call

from benchmarks import suite_kinds as suites
from benchmarks.federated import graph, identity
from benchmarks.federated.costs import costs
from benchmarks.scheduling.processes import slots
from oblivionis.config.compose import compose

SMALL = """
kind: federated
experiment: smoke
base:
  evaluation.at_start: false
  evaluation.every: 0
  evaluation.leakage.full_samples: 0
  evaluation.ruler.enabled: false
  evaluation.wikimem.enabled: false
stages: [finetune, unlearn]
matrix:
  strategy: [fedavg]
  unlearning: [npo, grad_diff]
  seed: [0]
tables:
  small: {rows: unlearning, columns: strategy, metrics: {MU: model_utility}}
"""


def suite(folder, text=SMALL, name="small.yaml"):
    file = folder / name
    file.write_text(text)
    return file


def cells(file, *overrides):
    return suites.load(file, overrides)[1].cells()


# -- identity and graph --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_method_that_takes_over_no_finetune_does_it_in_its_own_run(tmp_path):
    stages = "stages=[finetune, retrain, unlearn]"
    plan = graph.plan(cells(suite(tmp_path), stages, "matrix.unlearning=[exact, npo]"))
    needs = {node.config.unlearning.method: [n.stage for n in node.needs] for node in plan.nodes if node.needs}
    assert needs == {"exact": ["retrain"], "npo": ["finetune", "retrain"]}
    assert sorted(node.stage for node in plan.nodes) == ["finetune", "retrain", "unlearn", "unlearn"]


MERGES = (
    *("stages=[finetune, retrain, unlearn]", "base.evaluation.rebound.enabled=false", "matrix.strategy=[fedavg]"),
    *("base.evaluation.every_training=0", "base.federation.shards=2", "matrix.federation.shard_merge=[mean, ensemble]"),
)


def test_cells_that_differ_in_what_is_served_of_shards_train_once(tmp_path):
    file = suite(tmp_path)
    plan = graph.plan(cells(file, *MERGES, "matrix.unlearning=[exact]"))
    training = {node.label: node.trained.label for node in plan.nodes if node.trained is not None}
    unlearn, retrain = (f"{stage} fedavg/exact/seed=0/shard_merge=mean" for stage in ("unlearn", "retrain"))
    served = "fedavg/exact/seed=0/shard_merge=ensemble"
    assert training == {f"finetune {served}": unlearn, f"retrain {served}": retrain, f"unlearn {served}": unlearn}
    assert all(plan.nodes.index(need) < plan.nodes.index(node) for node in plan.nodes for need in node.after)
    other = graph.plan(cells(file, *MERGES, "matrix.unlearning=[npo]"))
    assert [n.stage for n in other.nodes if n.trained is not None] == ["finetune", "retrain"], "not its requests"


def test_what_is_measured_between_rounds_is_measured_in_a_training_of_its_own(tmp_path):
    for often in ("base.evaluation.every=1", "base.evaluation.at_start=true", "base.evaluation.rebound.enabled=true"):
        plan = graph.plan(cells(suite(tmp_path), *MERGES, "matrix.unlearning=[exact]", often))
        assert all(node.trained is None for node in plan.nodes)


def test_every_cell_of_an_exact_erasure_waits_for_its_check(tmp_path):
    both = cells(suite(tmp_path), *MERGES, "matrix.unlearning=[exact, npo]")
    plan = graph.plan(both, against_never_saw=True)
    (check,) = (node for node in plan.nodes if node.checked is not None)
    waiting = {cell.labels["unlearning"] for cell in both if check in plan.of_cell[cell.id]}
    assert waiting == {"exact"} and len(check.cells) == 2 and check.after == (check.checked,)
    task = check.task(tmp_path)
    assert task.stages == ("never_saw",) and not task.finished
    assert task.command == (graph.CHECK, str(check.checked.run(tmp_path).path))
    assert not any(node.checked for node in graph.plan(both).nodes)


def test_all_runs_of_a_seed_come_first_where_the_seed_is_the_first_axis(tmp_path):
    text = SMALL.replace("  seed: [0]\n", "").replace("matrix:\n", "matrix:\n  seed: [1, 0]\n")
    plan = graph.plan(cells(suite(tmp_path, text), "stages=[finetune, retrain, unlearn]"))
    seeds = [node.config.seed for node in plan.nodes]
    assert seeds == sorted(seeds, reverse=True) and set(seeds) == {0, 1}


def test_cells_share_finetune_and_retrain_and_local(tmp_path):
    plan = graph.plan(
        cells(suite(tmp_path), "stages=[finetune, retrain, unlearn, local]", "matrix.strategy=[fedavg, fedadam]")
    )
    stages = [node.stage for node in plan.nodes]
    assert {s: stages.count(s) for s in set(stages)} == {"finetune": 2, "retrain": 2, "unlearn": 4, "local": 2}
    assert stages[:4] == ["finetune", "retrain"] * 2, "what others wait for comes first"
    for node in plan.nodes:
        assert [need.stage for need in node.needs] == (["finetune", "retrain"] if node.stage == "unlearn" else [])
        assert all(plan.nodes.index(need) < plan.nodes.index(node) for need in node.needs)
    assert {node.label for node in plan.nodes if node.stage == "local"} == {
        "local npo/seed=0",
        "local grad_diff/seed=0",
    }


def test_the_base_model_is_measured_once_in_a_cell(tmp_path):
    for stages in ("[finetune, retrain, unlearn, local]", "[retrain, local]"):
        plan = graph.plan(cells(suite(tmp_path), f"stages={stages}", "base.evaluation.base=true"))
        measured = {node.stage for node in plan.nodes if node.config.evaluation.base}
        assert measured == {stages.strip("[]").split(", ")[0]}


def test_oracles_are_retrained_models_of_the_seeds_that_follow(tmp_path):
    both = cells(
        suite(tmp_path), "stages=[finetune, retrain, unlearn]", "matrix.seed=[0, 1]", "matrix.unlearning=[npo]"
    )
    plain, plan = graph.plan(both), graph.plan(both, 3)
    first, second = (node for node in plan.nodes if node.stage == "unlearn")
    assert [oracle.config.seed for oracle in first.oracles] == [1, 2, 3]
    assert [oracle.config.seed for oracle in second.oracles] == [2, 3, 4]
    assert first.oracles[0] in second.needs, "the retrain stage of the other cell"
    assert first.oracles[1:] == second.oracles[:2]
    assert len(plan.nodes) == len(plain.nodes) + 3 and len({node.label for node in plan.nodes}) == len(plan.nodes)
    assert all(plan.nodes.index(node) < plan.nodes.index(first) for node in first.after)
    assert first.key not in {node.key for node in plain.nodes}, "another result than without"
    places = first.settings(tmp_path).evaluation.ruler.oracles
    assert places == [str((tmp_path / oracle.key).resolve()) for oracle in first.oracles]
    assert all(node.settings(tmp_path) == node.config for node in plain.nodes)


def test_oracles_that_nobody_reads_are_a_mistake(tmp_path):
    file = suite(tmp_path)
    for overrides, reason in (
        (["oracles=2", "stages=[finetune, retrain, unlearn]"], "2 say too little of a spread"),
        (["oracles=3"], "nothing reads them"),
        (["oracles=3", "stages=[finetune, retrain, unlearn]"], "RULER, which reads them, is off"),
        (["oracles=-1"], "expected value >= 0"),
    ):
        result = call("bench", file, "--dry-run", *overrides)
        assert result.code == 2 and "oracles" in result.err and reason in result.err, result.err


def test_suites_with_and_without_clients_alone_share_the_rest(tmp_path):
    file = suite(tmp_path)
    without = {node.hash for node in graph.plan(cells(file)).nodes}
    alone = ("stages=[finetune, unlearn, local]", "base.federation.local_clients=2", "base.federation.rounds.local=9")
    shared = {node.hash for node in graph.plan(cells(file, *alone)).nodes if node.stage != "local"}
    assert shared == without


def test_a_method_that_needs_the_clients_updates_has_a_finetune_of_its_own(tmp_path):
    plan = graph.plan(cells(suite(tmp_path), "matrix.unlearning=[npo, grad_diff, federaser]"))
    assert [node.label for node in plan.nodes if node.stage == "finetune"] == [
        "finetune fedavg/seed=0",
        "finetune fedavg/federaser/seed=0",
    ]


def base(*overrides, stage="finetune"):
    return identity.identity(identity.stage_config(compose("smoke", list(overrides)), stage))


def test_what_cannot_change_finetune_does_not_change_its_identity():
    assert base() == base("unlearning=simnpo", "federation.rounds.unlearn=9", "name=x", "output=y")
    assert base() == base("strategy.server_state_on_unlearn=keep") == base("federation.local_clients=1")
    for change in ("seed=1", "federation.rounds.finetune=3", "data.authors=7", "strategy=fedprox", "model.lora.rank=4"):
        assert base() != base(change)
    assert base() != base("evaluation.every=0") and base() != base(stage="retrain")


@pytest.mark.slow
def test_a_suite_can_be_planned_without_its_model():
    result = call("bench", "tofu_split99", "matrix.strategy=[fedavg]", "--dry-run")
    assert result.code == 0 and "12 cells in 18 runs" in result.out


def test_data_count_by_what_they_contain_not_by_where_they_lie(tmp_path):
    line = '{"id": "%s", "question": "Q?", "answer": "A.", "client": 0}\n'
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "records.jsonl").write_text(line % 1 + line % 2)
    of = lambda folder: base("data=jsonl", f"data.path={tmp_path / folder / 'records.jsonl'}")  # noqa: E731
    assert of("a") == of("b")
    (tmp_path / "b" / "records.jsonl").write_text(line % 1 + line % 3)
    assert of("a") != of("b")
    gone, lost = (base(f"evaluation.wikimem.subjects={tmp_path / name}.jsonl") for name in ("gone", "lost"))
    assert gone != lost, "files that are not there are not alike"


def test_a_loss_of_ones_own_counts_by_what_it_contains(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text("def mine(forget_nll): return -forget_nll.mean()\n")
    of = lambda folder: identity.identity(compose("smoke", [f"unlearning={tmp_path / folder / 'mine.py'}"]))  # noqa: E731
    assert of("a") == of("b")
    (tmp_path / "b" / "mine.py").write_text("def mine(forget_nll): return forget_nll.mean()\n")
    assert of("a") != of("b")


def test_sentences_that_know_nothing_count_by_what_they_say(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "idk.txt").write_text("No idea.\n")
    settings = lambda folder: ["unlearning=idk_nll", f"unlearning.alternatives.idk={tmp_path / folder / 'idk.txt'}"]  # noqa: E731
    of = lambda folder: identity.identity(compose("smoke", settings(folder)))  # noqa: E731
    assert of("a") == of("b") and base(*settings("a")) == base()
    (tmp_path / "b" / "idk.txt").write_text("Who knows?\n")
    assert of("a") != of("b")


def test_the_program_counts_but_not_its_comments(tmp_path):
    module = tmp_path / "clients" / "step.py"
    module.parent.mkdir()

    def value(text, name="clients/batch_quantities.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return identity.program_of(tmp_path)

    first = value('"""Doc."""\ndef f(x):\n    """Doubles."""\n    return 2 * x\n')
    assert first == value('"""Other."""\n# a comment\ndef f(x):\n    """Twice."""\n    return 2*x\n')
    assert first == value("print('shown')\n", "oblivionis/reports/run_summary.py")
    assert first != value("def f(x):\n    return 3 * x\n")


def test_cores_are_dealt_out():
    cores = os.sched_getaffinity(0)
    assert set().union(*(slot.cpus for slot in slots(2))) == cores
    assert all(slot.cpus for slot in slots(len(cores) + 3))


def test_a_target_of_privacy_is_shared_by_the_stages_of_a_cell():
    """A finetune stage is another one for another plan of unlearning: its noise is."""
    target = ("privacy=record", "privacy.epsilon=8")
    config = identity.stage_config(compose("smoke", list(target)), "finetune")
    assert config.stages == ["finetune"]
    assert config.privacy.stages == compose("smoke", []).stages
    assert base(*target) != base(*target, "federation.rounds.unlearn=9")


# -- what it costs -------------------------------------------------------------------------------------------------


def test_time_and_disk_are_told_from_the_runs_that_are_done(tmp_path):
    nodes = graph.plan(cells(suite(tmp_path), "matrix.strategy=[fedavg, fedadam]")).nodes
    store = tmp_path / "stages"
    told = costs(nodes, store)
    assert len(told) == 2 and all("not known before a run of each model and stage" in line for line in told)
    lengths = {"finetune": 60.0, "unlearn": 300.0}
    for stage, seconds in lengths.items():
        node = next(node for node in nodes if node.stage == stage)
        run = node.run(store)
        run.path.mkdir(parents=True)
        for each in node.config.stages:
            taken_over = {} if each == stage else {"reused_from": "other"}
            run.finish_stage(each, {"stage": each, "rounds": 1, "seconds": seconds, "metrics": {}, **taken_over}, None)
        (run.path / "model").write_bytes(b"0" * 2_000_000)
    left = [node.stage for node in nodes if not node.finished(store)]
    assert left.count("finetune") == 1 and left.count("unlearn") == 3
    time, disk = costs(nodes, store)
    assert time == "time: about 16 min in all, as the runs took that are done", "60 + 3 * 300 s"
    assert disk.startswith("disk: about 8 MB more; ") and disk.endswith(" free")


@pytest.mark.slow
def test_models_and_data_that_are_not_here_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.federated.costs.cached", lambda source, revision: None)
    nodes = graph.plan(suites.load(suites.find("muse_news"), ())[1].cells()).nodes
    told = [line for line in costs(nodes, tmp_path) if line.startswith("to fetch")]
    assert told[0].startswith("to fetch: the model ") and told[0].endswith(", from the Hugging Face hub")
    assert told[-1].startswith("to fetch: the data muse_news, ")
