"""What every attack on an unlearned model works with: the questions, the model, and how the one is asked the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evaluation.engine.fused_lora import fused_lora
from evaluation.hook import EvaluationSession, Evaluator, Hook, Result
from evaluation.metrics.answer_metrics import probability, truth_ratio
from evaluation.metrics.rouge import ANY_SCRIPT, rouge_l, rule_for
from evaluation.metrics.tofu import SECTIONS, Profile, Question, TofuEvaluator
from oblivionis.config.schema import Config
from oblivionis.data.records import Corpus, Record
from oblivionis.measures.questions import encode_questions
from oblivionis.models.assembly import Assembled

Row = dict[str, Any]
"""Of one question under one variant of an attack: `variant`, `id` and what was measured."""


@dataclass(frozen=True)
class Attack:
    """One attack: its kind, a name that no other has, and the settings that its rows depend on.

    `run` maps the global vector of a model to the rows, for example those of `Battery.ask`. `unavailable` says why it
    cannot be made on these data; then it is not run. `by_group`: a row is the score of a record among `members` or
    `others` (its `group`), and the results hold the AUC of each variant in place of means over questions.
    """

    kind: str
    name: str
    settings: dict[str, Any]
    run: Callable[[np.ndarray], list[Row]]
    unavailable: str = ""
    by_group: bool = False


ONE_MODEL = "the run serves an ensemble, which is not one model"
"""Why an attack is left out that changes the weights of the model."""


class Battery:
    """The forget questions of a run, and its model to ask them.

    `requested`: ids of all records that a request names; `base`: the vector before any training; `any_script`:
    of how many questions ROUGE is by words of any script. The assembled model is changed from attack to attack; each
    begins by loading its vector.
    """

    def __init__(self, assembled: Assembled, corpus: Corpus, config: Config, requested: Sequence[str] = ()) -> None:
        self.assembled, self.corpus, self.config = assembled, corpus, config
        self.base = assembled.flat.numpy() if assembled.start is None else assembled.start
        profile = Profile(config.attack.questions)
        self.records: tuple[Record, ...] = profile.pick(corpus.evaluation.get("forget", ()))  # type: ignore[arg-type, assignment]
        self.questions = self.encoded(self.records)
        self.any_script = sum(rule_for(q.text, config.evaluation.rouge) == ANY_SCRIPT for q in self.questions)
        self.untouchable = corpus.forget_ids.union(requested)
        self.truth_ratio, self.rouge = config.evaluation.truth_ratio, config.evaluation.rouge
        self.max_new_tokens = config.attack.max_new_tokens or config.evaluation.full.max_new_tokens

    def settings(self, kind: str) -> Mapping[str, Any]:
        """What `conf/attack/<kind>.yaml` has, and the configuration above it."""
        return self.config.attack.more[kind]

    def encoded(self, records: Sequence[Record]) -> list[Question]:
        """The questions about these records, in tokens."""
        return encode_questions(records, self.assembled, self.config)

    def load(self, vector: np.ndarray) -> Assembled:
        """The model of a global vector."""
        self.assembled.load(vector)
        return self.assembled

    def ask(self, assembled: Assembled, questions: Sequence[Question], variant: str) -> list[Row]:
        """Prob, ROUGE-L recall and truth ratio R (where there are perturbed answers) of each question.

        The recall is by words of any script where `evaluation.rouge` cannot measure the true answer.
        """
        tofu = TofuEvaluator(
            {"forget": questions},
            self.decode,
            self.truth_ratio,
            profile=Profile(None, self.max_new_tokens, ("forget",)),
            rouge=self.rouge,
        )
        log = self.evaluate(assembled, tofu).details["log"][SECTIONS["forget"]]
        rows = []
        for i, question in enumerate(questions):
            loss, wrong = log["avg_gt_loss"][str(i)], log.get("average_perturb_loss", {}).get(str(i))
            row: Row = {"variant": variant, "id": question.id, "loss": loss, "prob": float(probability(loss))}
            _, answer, truth = log["generated_text"][str(i)]
            recall = log["rougeL_recall"][str(i)]
            if recall is None:
                recall = float(rouge_l([answer], truth, any_script=True).recall[0])
            row |= {"rouge": recall, "answer": answer}
            if wrong:
                right = log["avg_paraphrased_loss"][str(i)]
                row["truth_ratio"] = float(truth_ratio(right, wrong, self.truth_ratio))
            rows.append(row)
        return rows

    def evaluate(self, assembled: Assembled, evaluator: Evaluator) -> Result:
        """What one evaluator finds of the model."""
        with fused_lora(assembled.model):
            report = Hook([evaluator], strict=True).run(self.session(assembled))
        return report.results[evaluator.name]

    def session(self, assembled: Assembled) -> EvaluationSession:
        """What an evaluator asks the model by."""
        return EvaluationSession(
            assembled.model,
            stop_ids=assembled.stop_ids,
            pad_id=assembled.tokenizer.pad_token_id or 0,
            token_budget=self.config.evaluation.token_budget,
        )

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, without special ones."""
        return self.assembled.tokenizer.decode(list(ids), skip_special_tokens=True)

    def reworded(self, kind: str, number: int, frame: str) -> Attack:
        """The questions in the words of `frame`, the answers as they are."""

        def run(vector: np.ndarray) -> list[Row]:
            asked = [dataclasses.replace(r, question=reword(frame, r.question)) for r in self.records]
            return self.ask(self.load(vector), self.encoded(asked), frame)

        return Attack(kind, f"{kind}-{number}", {"frame": frame, "max_new_tokens": self.max_new_tokens}, run)


def reword(frame: str, question: str) -> str:
    """`frame` with the question for `{question}` and with a small first letter for `{lower}`."""
    return frame.replace("{question}", question).replace("{lower}", question[:1].lower() + question[1:])
