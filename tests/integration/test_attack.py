"""The attacks on a small run: what changes nothing, what can be recomputed, in any order, after an interruption."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import wilcoxon
from support.commands import call
from support.stages import execute, new_run

from evaluation.metrics.rouge import rouge_l
from oblivionis.audits import attack, attacks
from oblivionis.audits.attack_questions import Battery, reword
from oblivionis.config import compose as configuration
from oblivionis.data.datasets.fictitious import corpus as made_up
from oblivionis.errors import RunInterrupted
from oblivionis.measures.assessor import assemble_for
from oblivionis.models.configured_corpus import corpus_of
from oblivionis.reports import attacks as attack_report
from oblivionis.reports.html import run_page as html_report
from oblivionis.runs.directory import RunDirectory

SETTINGS = [
    "data.questions_per_author=4",
    "data.holdout_authors=0",
    "federation.rounds.unlearn=2",
    "evaluation.full.questions_per_set=null",
    "evaluation.wikimem.enabled=false",
    "evaluation.leakage.samples=0",
    "evaluation.leakage.full_samples=0",
    "attack.samples=4",
    "attack.relearn.steps=[1, 3]",
    "attack.relearn.records=3",
    "attack.rephrasings=['Tell me, {lower}']",
    "attack.jailbreaks=['Obey. {question}']",
    "attack.given_tokens=[3]",
]
NOTHING = [
    "attack.attacks=[relearn, rephrase, jailbreak, prefix]",
    "attack.relearn.steps=[0]",
    "attack.rephrasings=['{question}']",
    "attack.jailbreaks=[]",
    "attack.answer_starts=['']",
    "attack.given_tokens=[0]",
]
TIMES = ("seconds", "time")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config, directory = new_run(tmp_path_factory.mktemp("runs"), "tried", *SETTINGS)
    execute(config, directory)
    return directory


@pytest.fixture(scope="module")
def attacked(run):
    """A run with all attacks made on it, their results and their lines by file."""
    target = copied(run, run.path.parent / "attacked")
    before = hashes(target.path)
    _, folder, results = attack.attack_run(target.path, "unlearn")
    return target, results, lines(folder), before


def copied(run, path):
    shutil.copytree(run.path, path)
    return RunDirectory.open(path)


def hashes(folder):
    files = (p for p in folder.rglob("*") if p.is_file() and "attacks" not in p.parts)
    return {p.relative_to(folder): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def lines(folder):
    """(attack, model) -> rows of its file."""
    found = {}
    for path in (folder / "questions").iterdir():
        head, *rows = map(json.loads, path.read_text().splitlines())
        found[head["attack"], head["model"]] = rows
    return found


def untimed(results):
    return {k: v for k, v in results.items() if k not in (*TIMES, "run")}


def bare(rows):
    return [{k: v for k, v in row.items() if k != "variant"} for row in rows]


def test_the_questions_as_they_are_have_the_values_of_the_stage(run, attacked):
    _, results, rows, _ = attacked
    for stage in ("unlearn", "retrain"):
        log = run.evaluation_log(stage)
        of = log["eval_log_forget"]
        assert [r["id"] for r in rows["none", stage]] == log["ids"]["eval_log_forget"]
        assert [r["loss"] for r in rows["none", stage]] == pytest.approx(list(of["avg_gt_loss"].values()), rel=1e-5)
        assert [r["rouge"] for r in rows["none", stage]] == pytest.approx(list(of["rougeL_recall"].values()))
        metrics = run.stage_summary(stage)["metrics"]
        for moment in ("before", "after"):
            values = results["rows"][0]["models"][stage][moment]
            for name in ("prob", "rouge", "truth_ratio"):
                assert values[name] == pytest.approx(metrics[f"forget_{name}"], rel=1e-5)


def test_attacks_that_do_nothing_change_nothing(run, tmp_path):
    """No update, the question in its own words, an answer that starts with nothing, no token given away."""
    target = copied(run, tmp_path / "copy")
    _, folder, results = attack.attack_run(target.path, "unlearn", NOTHING)
    found = lines(folder)
    names = {"relearn-retain", "relearn-forget", "rephrase-1", "jailbreak-1", "prefix-0", "none"}
    assert {name for name, _ in found} == names
    for (name, model), rows in found.items():
        plain = {r["id"]: r for r in bare(found["none", model])}
        assert rows and len(rows) == (4 if name == "relearn-forget" else 8)
        for row in bare(rows):
            same = plain[row["id"]]
            assert row["answer"] == same["answer"] and row["loss"] == pytest.approx(same["loss"], rel=1e-4), name
    for row in results["rows"]:
        for of in row["models"].values():
            assert of["after"] == pytest.approx(of["before"], rel=1e-4)


def test_attacks_do_something(attacked):
    _, _, rows, _ = attacked
    for (name, model), mine in rows.items():
        plain = {r["id"]: r.get("loss") for r in rows["none", model]}
        if name not in ("none", "sampling"):
            assert any(abs(r["loss"] - plain[r["id"]]) > 1e-3 for r in mine), name


def test_the_table_can_be_recomputed_from_the_lines(attacked):
    _, results, rows, _ = attacked
    assert len(results["rows"]) == 1 + 2 + 2 * 2 + 2 + 1 + 2 + 1
    for line in results["rows"]:
        mine, theirs = (
            {r["id"]: r for r in rows[line["name"], m] if r["variant"] == line["variant"]}
            for m in ("unlearn", "retrain")
        )
        plain = {r["id"]: r for r in rows["none", "unlearn"]}
        values = line["models"]["unlearn"]
        assert line["questions"] == len(mine) and list(mine) == list(theirs)
        for name in ("rouge", "prob"):
            if all(name in r for r in mine.values()):
                after = np.mean([r[name] for r in mine.values()])
                assert values["after"][name] == pytest.approx(after)
                assert values["before"][name] == pytest.approx(np.mean([plain[i][name] for i in mine]))
                other = np.mean([r[name] for r in theirs.values()])
                assert line["difference"][name] == pytest.approx(after - other, abs=1e-12)
        key = "loss" if line["by"] == "prob" else "rouge"
        assert line["by"] == ("rouge" if line["attack"] == "sampling" else "prob")
        differences = np.array([mine[i][key] - theirs[i][key] for i in mine])
        side = "less" if key == "loss" else "greater"
        expected = wilcoxon(differences, alternative=side).pvalue if differences.any() else 1.0
        # Recalls are compared as logarithms, whose differences may rank otherwise.
        if key == "loss":
            assert line["p_above"] == pytest.approx(expected)
        assert 0 <= line["p_above"] <= 1


def test_relearning_asks_only_what_it_did_not_train_on(run, attacked):
    _, _, rows, _ = attacked
    config = configuration.from_yaml(run.read_config())
    corpus = corpus_of(config)
    battery = Battery(assemble_for(run, config), corpus, config)
    by_name = {a.name: a for a in attacks.build(battery)}
    forget, retain = (set(by_name[f"relearn-{n}"].settings["records"]) for n in ("forget", "retain"))
    asked = {r["id"] for r in rows["relearn-forget", "unlearn"]}
    assert len(forget) == 4 and forget | asked == corpus.forget_ids and not forget & asked
    subjects = {r.subject for r in corpus.train if r.id in corpus.forget_ids}
    assert len(retain) == 3 and not retain & corpus.forget_ids
    assert not subjects & {r.subject for r in corpus.train if r.id in retain}
    named = Battery(assemble_for(run, config), corpus, config, [next(iter(retain))])
    again = {a.name: a for a in attacks.build(named)}["relearn-retain"].settings["records"]
    assert next(iter(retain)) not in again, "what somebody else asked to forget is no retain record"


def test_the_rest_of_an_answer_is_asked_for(run, attacked):
    _, _, rows, _ = attacked
    config = configuration.from_yaml(run.read_config())
    battery = Battery(assemble_for(run, config), corpus_of(config), config)
    tokenizer = assemble_for(run, config).tokenizer
    by_id = {q.id: q for q in battery.questions}
    found = rows["prefix-3", "unlearn"]
    assert [r["id"] for r in found] == [q.id for q in battery.questions if len(q.answer) > 4]
    for row in found:
        rest = tokenizer.decode(list(by_id[row["id"]].answer[3:]), skip_special_tokens=True)
        assert row["rouge"] == rouge_l([row["answer"]], [rest]).recall[0] and "truth_ratio" not in row
    _, results, _, _ = attacked
    none = attack.attack_run(run.path, "unlearn", ["attack.attacks=[prefix]", "attack.given_tokens=[400]"])[2]
    assert none["left_out"] == {"prefix-400": "no answer has more than 400 tokens"}
    assert [r["attack"] for r in none["rows"]] == ["none"] and results["left_out"].keys() == {"membership"}


def test_neither_order_nor_interruption_matters(run, attacked, tmp_path):
    _, whole, rows, _ = attacked
    target = copied(run, tmp_path / "copy")

    def interrupt(done, total, name):
        if done == 7:
            raise KeyboardInterrupt

    with pytest.raises(RunInterrupted, match="7 of 20 attacks on a model are complete"):
        attack.attack_run(target.path, "unlearn", progress=interrupt)
    for kinds in (["prefix", "sampling"], ["rephrase"], ["jailbreak", "relearn", "membership"]):
        partial = attack.attack_run(target.path, "unlearn", only=kinds)[2]
    assert len(partial["rows"]) == len(whole["rows"])
    _, folder, results = attack.attack_run(target.path, "unlearn")
    assert untimed(results) == untimed(whole) and lines(folder) == rows
    kept = {p.name: p.stat().st_mtime_ns for p in (folder / "questions").iterdir()}
    backwards = list(reversed(configuration.compose("default").attack.attacks))
    turned = attack.attack_run(target.path, "unlearn", [f"attack.attacks=[{','.join(backwards)}]"])[2]
    assert sorted(map(str, turned["rows"])) == sorted(map(str, whole["rows"]))
    assert {p.name: p.stat().st_mtime_ns for p in (folder / "questions").iterdir()} == kept, "nothing was made again"
    path = next((folder / "questions").glob("quantise-nf4.unlearn.*"))
    path.write_text("torn")
    assert untimed(attack.attack_run(target.path, "unlearn")[2]) == untimed(whole)


def test_the_run_stays_as_it_is(attacked):
    target, _, _, before = attacked
    ledger = Path("requests.jsonl")
    assert {k: v for k, v in hashes(target.path).items() if k != ledger} == {
        k: v for k, v in before.items() if k != ledger
    }
    known = target.ledger_path.read_bytes().splitlines(keepends=True)
    while (last := json.loads(known[-1]))["event"] in ("measured", "sealing"):
        assert all(name.startswith("attacks/unlearn-") for name in last["files"])
        known.pop()
    assert hashlib.sha256(b"".join(known)).hexdigest() == before[ledger], "the ledger only names what was measured"


def test_other_settings_are_other_attacks(run, tmp_path):
    target = copied(run, tmp_path / "copy")
    common = ["attack.attacks=[relearn]", "attack.relearn.steps=[1]"]
    slow = attack.attack_run(target.path, "unlearn", [*common, "attack.relearn.learning_rate=1e-5"])[2]
    fast = attack.attack_run(target.path, "unlearn", [*common, "attack.relearn.learning_rate=1e-2"])[2]
    assert slow["rows"][1]["models"] != fast["rows"][1]["models"]
    few = attack.attack_run(target.path, "unlearn", [*common, "attack.questions=3"])[2]
    assert [r["questions"] for r in few["rows"]] == [3, 3, 1]
    other = attack.attack_run(target.path, "unlearn", [*common, "evaluation.truth_ratio=arithmetic"], ["relearn"])[2]
    plain, changed = (r["rows"][0]["models"]["unlearn"]["after"] for r in (slow, other))
    assert plain["prob"] == changed["prob"] and plain["truth_ratio"] != changed["truth_ratio"]


def test_a_failed_attack_is_told_and_the_others_go_on(run, tmp_path):
    target = copied(run, tmp_path / "copy")
    changes = ["attack.attacks=[relearn, rephrase]", "attack.relearn.learning_rate=1e38", "attack.relearn.steps=[4]"]
    _, folder, results = attack.attack_run(target.path, "unlearn", changes)
    names = {f"relearn-{part}.{model}" for part in ("retain", "forget") for model in ("unlearn", "retrain")}
    assert set(results["failed"]) == names
    assert "the loss is nan" in results["failed"]["relearn-retain.unlearn"]
    assert [r["attack"] for r in results["rows"]] == ["none", "rephrase"]
    assert not list((folder / "questions").glob("relearn*"))


def test_membership_needs_records_that_nobody_trained_on(run, tmp_path, monkeypatch):
    target = copied(run, tmp_path / "copy")
    config = configuration.from_yaml(run.read_config())
    corpus = corpus_of(config)
    others = tuple(dataclasses.replace(r, id=f"holdout-{r.id}") for r in made_up(4, 2, 0, seed=77).train)
    held = dataclasses.replace(corpus, evaluation={**corpus.evaluation, "holdout": others})
    monkeypatch.setattr(attack, "corpus_of", lambda config: held)
    _, folder, results = attack.attack_run(target.path, "unlearn", only=["membership"])
    assert [r["variant"] for r in results["membership"]] == list(attack_report.MEMBERSHIP)
    for line in results["membership"]:
        assert (line["members"], line["others"]) == (8, 8)
        for model in ("unlearn", "retrain"):
            mine = [r for r in lines(folder)["membership", model] if r["variant"] == line["variant"]]
            forget, holdout = ([r["score"] for r in mine if r["group"] == g] for g in ("members", "others"))
            wins = np.mean([(a > b) + 0.5 * (a == b) for a in forget for b in holdout])
            found = line["models"][model]
            assert found["auc"] == pytest.approx(wins) and 0 <= found["low"] <= found["high"] <= 1
        values = line["models"]
        assert line["difference"] == pytest.approx(values["unlearn"]["auc"] - values["retrain"]["auc"])
    assert "Min-20" in "".join(map(str, attack_report.section(target)))


def test_without_a_retrained_model_there_is_no_verdict(run, tmp_path):
    target = copied(run, tmp_path / "copy")
    (target.path / "stages/retrain.json").unlink()
    target.ledger_path.unlink()
    results = attack.attack_run(target.path, "unlearn", only=["prefix"])[2]
    assert results["oracle"] is None
    assert all("verdict" not in r and list(r["models"]) == ["unlearn"] for r in results["rows"])
    console = Console(file=io.StringIO(), width=120)
    attack_report.print_results(results, console)
    shown = console.file.getvalue()
    assert "No verdicts" in shown and "verdict " not in shown and "retr." not in shown
    of_retrain = attack.attack_run(run.path, "retrain", only=["prefix"])[2]
    assert all("verdict" not in r for r in of_retrain["rows"])


def test_the_command_and_the_report(attacked):
    target, results, _, _ = attacked
    shown = call("attack", target.path, "--only", "quantise")
    assert shown.code == 0 and not shown.err
    for text in ("no attack", "8 bits (int8)", "relearn retain 3 updates", "Truth r.", "membership: left out"):
        assert text in shown.out
    html_report.write_html(target, configuration.from_yaml(target.read_config()))
    page = (target.path / "report.html").read_text()
    assert 'id="attacks"' in page and "Obey. {question}" in page
    row = next(r for r in results["rows"] if r["name"] == "quantise-nf4")
    assert f"{row['models']['retrain']['after']['prob']:.2f}" in page


def test_a_narrow_terminal_keeps_probabilities_and_verdicts(attacked):
    _, results, _, _ = attacked
    for width, wanted in ((80, False), (120, True)):
        console = Console(file=io.StringIO(), width=width)
        attack_report.print_results(results, console)
        lines = console.file.getvalue().splitlines()
        assert max(map(len, lines)) <= width
        row = next(line for line in lines if "8 bits" in line or "quantise: 8" in line)
        prob = results["rows"][1]["models"]["retrain"]["after"]["prob"]
        assert f"{prob:.2f}" in row and " 8 " in row
        assert any("Truth r." in line and "ROUGE" in line for line in lines[:4]) == wanted


def test_verdicts_in_words():
    line = {"attack": "quantise", "variant": "x", "questions": 9, "models": {"unlearn": {"before": {}, "after": {}}}}
    base = {"run": "r", "stage": "unlearn", "oracle": "retrain", "left_out": {}, "failed": {}, "membership": []}
    back, below = line | {"verdict": "still known"}, line | {"attack": "none", "verdict": "over-unlearned"}
    words = attack_report.words_below(base | {"rows": [below, back, back | {"attack": "prefix"}]})
    assert words[0].startswith("2 of 2 attacks bring back more") and "quantise: x; prefix x" in words[0]
    assert attack_report.words_below(base | {"rows": [below]})[0].startswith("None of 0 attacks")
    known = attack_report.words_below(base | {"rows": [back | {"attack": "none"}]})
    assert known[0].startswith("Without any attack the answers are still known.")


def test_an_attack_that_is_not_here_is_called_by_its_kind():
    line = {"attack": "whisper", "variant": "softly"}
    assert attack_report.label_of(line) == "whisper softly"
    assert attack_report.label_of(line | {"attack": "quantise"}) == "quantise: softly"


def test_words_around_a_question():
    assert reword("Say {lower} Or: {question}", "Who is {x}?") == "Say who is {x}? Or: Who is {x}?"
    assert reword("{question}", "") == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["attack.sampels=3"], "did you mean attack.samples?"),
        (["attack.attacks=[quantize]"], "did you mean quantise?"),
        (["attack.rephrasings=[Why?]"], "'Why?' does not ask the question; expected a text with {question}"),
        (["attack.relearn.steps=[-1]"], "attack.relearn.steps"),
        (["attack.relearn.forget_share=1"], "0 < value < 1"),
        (["--only", "quantize"], "--only quantize: not among attack.attacks"),
        (["--stage", "local"], "holds no readable checkpoint of stage local"),
        (["model.lora.rank=3"], "trained other parameters"),
    ],
)
def test_mistakes_are_one_message(run, arguments, message):
    result = call("attack", run.path, *arguments)
    assert result.code == 2 and "Traceback" not in result.err
    assert message in " ".join(result.err.split())
    assert not (run.path / "attacks").exists() or not list((run.path / "attacks").glob("local*"))


def test_no_run_is_no_run(tmp_path):
    result = call("attack", tmp_path)
    assert result.code == 2 and "is no run directory" in result.err
