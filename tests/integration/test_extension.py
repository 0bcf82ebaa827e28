"""A loss, an aggregator, an evaluator and an attack, each one code file and one YAML file, in a copy of the program.

Each does something that no other of its kind does, so that a run shows whether it was used: the loss makes the records
to forget likelier, the aggregator leaves the model where it is, the evaluator counts a letter in the answers, and the
attack shouts. They run together in one process, without Ray.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.trees import Tree

from oblivionis.config import compose as configuration
from oblivionis.runs.directory import RunDirectory

FILES = {
    "clients/losses/praise.py": '''"""What is to be forgotten is learnt even better."""

from __future__ import annotations

from torch import Tensor

LIMITS = {"weight": {"help": "Weight of the praise.", "above": 0}}


def praise(forget_nll: Tensor, *, weight: float = 1.0) -> Tensor:
    """weight · E_forget ℓ(y_f|x)."""
    return weight * forget_nll.mean()
''',
    "conf/unlearning/praise.yaml": "params: {weight: 2.0}\nepochs: 20\nlearning_rate: 5.0e-3\n",
    "strategies/rules/standstill.py": '''"""The clients train for nothing."""

from __future__ import annotations

from typing import Any

from strategies.rules.server_step import ServerStep

LIMITS = {"pace": {"help": "Part of the way to the mean.", "at_least": 0, "at_most": 1}}


class StandStill(ServerStep):
    """φ_t = φ_{t-1} + pace · (mean − φ_{t-1})."""

    settings = ("pace",)

    def __init__(self, pace: float = 1.0, **sampling: Any) -> None:
        super().__init__(**sampling)
        self.pace = pace

    def step(self, previous, mean, moments):
        """A part of the way, without accumulators."""
        return previous + self.pace * (mean - previous), {}
''',
    "conf/strategy/standstill.yaml": "params: {pace: 1.0}\n",
    "oblivionis/measures/letters/evaluator.py": '''"""How often does a letter occur in the answers?"""

from __future__ import annotations

from evaluation.metrics.catalogue import Group, Metric
from oblivionis.measures.base import Measure

LIMITS = {
    "letter": {"help": "Which letter.", "at_least": 1},
    "most": {"help": "Longest answer; null: the profile's.", "type": "int", "at_least": 1, "unit": "tokens"},
}
MEANING = "Occurrences per character of an answer."


class LetterEvaluator:
    """share: occurrences of the letter among the characters of all answers."""

    name = "letters"

    def __init__(self, context):
        self.context, profile = context, context.profile()
        self.prompts = [q.prompt for q in profile.pick(context.questions["forget"])]
        self.most = context.settings["most"] or profile.max_new_tokens

    def request(self, session):
        """The answers."""
        session.request(prompts=self.prompts, max_new_tokens=self.most)

    def evaluate(self, session):
        """Count."""
        from evaluation.hook import Result

        text = "".join(self.context.decode(answer).strip() for answer in session.greedy(self.prompts, self.most))
        return Result({"share": text.count(self.context.settings["letter"]) / max(1, len(text))})


class Letters(Measure):
    """share: occurrences per character of an answer."""

    needs = ("questions",)
    metrics = (Metric("share", "Share of the letter", "lower", None, MEANING, Group("Forget")),)

    def build(self, context):
        """Nothing without forget questions."""
        return [LetterEvaluator(context)] if context.questions.get("forget") else []
''',
    "conf/evaluator/letters.yaml": "letter: e\nmost: null\n",
    "oblivionis/audits/attacks/shout.py": '''"""The questions, shouted."""

from __future__ import annotations

import dataclasses

from oblivionis.audits.attack_questions import Attack

LABEL = "shout at it"
WORDED = True
LIMITS = {"marks": {"help": "Exclamation marks.", "at_least": 0, "at_most": 9}}


def make(battery):
    """In capitals, with exclamation marks."""
    marks = "!" * battery.settings("shout")["marks"]

    def run(vector):
        asked = [dataclasses.replace(r, question=r.question.upper() + marks) for r in battery.records]
        return battery.ask(battery.load(vector), battery.encoded(asked), f"loud{marks}")

    return [Attack("shout", "shout", {"marks": marks, "max_new_tokens": battery.max_new_tokens}, run)]
''',
    "conf/attack/shout.yaml": "marks: 1\n",
}


@pytest.fixture(scope="module")
def used(tmp_path_factory):
    """The run, the results of the attack, and what was printed."""
    tree = Tree(tmp_path_factory.mktemp("tree"))
    for name, text in FILES.items():
        assert not (tree.path / name).exists(), "nothing is edited"
        tree.add(name, text)
    chosen = ["unlearning=praise", "strategy=standstill", "strategy.params.pace=0", "evaluation.letters.letter=a"]
    simulate = [
        "simulate",
        "smoke",
        "--full",
        *chosen,
        "unlearning.params.weight=1.5",
        f"output={tree.path}/runs",
        "name=all",
    ]
    attack = ["attack", f"{tree.path}/runs/all", "--only", "shout", "attack.shout.marks=3"]
    done = tree.oblivionis(simulate, attack)
    assert done.returncode == 0, done.stderr
    run = RunDirectory.open(tree.path / "runs" / "all")
    results = json.loads((run.path / "attacks" / "unlearn-0002" / "results.json").read_text(encoding="utf-8"))
    page = (run.path / "report.html").read_text(encoding="utf-8")
    return SimpleNamespace(run=run, results=results, page=page, printed=done.stdout)


def of_stage(used: SimpleNamespace, stage: str) -> dict[str, float]:
    return used.run.stage_summary(stage)["metrics"]


def test_the_files_are_two_of_each_kind() -> None:
    code = [Path(name) for name in FILES if name.endswith(".py")]
    conf = {Path(name).stem for name in FILES if name.endswith(".yaml")}
    names = {file.parent.name if file.name == "evaluator.py" else file.stem for file in code}
    assert len(code) == 4 and names == conf


def test_the_loss_was_used(used: SimpleNamespace) -> None:
    before, after = (of_stage(used, stage)["forget_prob"] for stage in ("finetune", "unlearn"))
    assert after > before + 0.05, "no method of unlearning makes the answers to forget likelier"


def test_the_aggregator_was_used(used: SimpleNamespace) -> None:
    finetuned, retrained, unlearned = (used.run.load_checkpoint(s).vector for s in ("finetune", "retrain", "unlearn"))
    assert (finetuned == retrained).all(), "both stages end where they began"
    assert (finetuned != unlearned).any(), "the unlearning exchange does not go by the aggregator"


def test_the_evaluator_was_used(used: SimpleNamespace) -> None:
    rows = [row for row in used.run.metrics() if row["evaluator"] == "letters"]
    assert {(row["stage"], row["moment"]) for row in rows} >= {("finetune", "start"), ("unlearn", "end")}
    for stage in ("finetune", "unlearn"):
        answers = used.run.evaluation_log(stage)["eval_log_forget"]["generated_text"].values()
        text = "".join(pair[1].strip() for pair in answers)
        expected = text.count("a") / max(1, len(text))
        (ended,) = [row["metrics"] for row in rows if (row["stage"], row["moment"]) == (stage, "end")]
        assert ended == {"share": pytest.approx(expected)}
        assert of_stage(used, stage)["letters_share"] == ended["share"]


def test_its_metric_is_in_the_table_and_in_the_report(used: SimpleNamespace) -> None:
    simulated = used.printed.split("$ attack")[0]
    (line,) = [line for line in simulated.splitlines() if "Share of the letter" in line]
    for stage in ("finetune", "unlearn"):
        assert f"{of_stage(used, stage)['letters_share']:.3f}" in line
    assert "Share of the letter" in used.page and "Occurrences per character of an answer." in used.page


def test_the_attack_was_used(used: SimpleNamespace) -> None:
    plain, shouted = used.results["rows"]
    assert (plain["attack"], shouted["attack"], shouted["variant"]) == ("none", "shout", "loud!!!")
    assert used.results["settings"]["shout"] == {"marks": 3}
    assert shouted["models"]["unlearn"]["before"]["prob"] == plain["models"]["unlearn"]["after"]["prob"]
    assert shouted["models"]["unlearn"]["after"]["prob"] < plain["models"]["unlearn"]["after"]["prob"]
    attacked = used.printed.split("$ attack")[1]
    assert "shout at it: loud!!!" in attacked and "shout at it: loud!!!" in used.page


def test_the_run_says_with_what_settings(used: SimpleNamespace) -> None:
    """And a program that lacks the four tells each key that it does not know, and no more."""
    text = used.run.read_config()
    assert "letters:\n    letter: a\n    most: null" in text and "shout:\n    marks: 1" in text
    assert "params:\n    pace: 0.0" in text and "params:\n    weight: 1.5" in text
    with pytest.raises(configuration.ConfigError) as caught:
        configuration.from_yaml(text)
    paths = {problem.path for problem in caught.value.problems}
    assert {"strategy", "unlearning", "evaluation.letters", "attack.shout"} <= {p.split("[")[0] for p in paths}
