"""The attacks on an unlearned model: what each does to the model or to the questions, and what it reads per question.

An attack is applied to one model at a time. It depends on that model, its own settings and the run's seed only: never
on another attack, nor on the order of attacks.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clients.relearning import relearn
from clients.training import TrainSettings
from evaluation.engine.fused_lora import fused_lora
from evaluation.engine.quantise import QUANTISERS, quantise_merged
from evaluation.engine.sampling import Rule
from evaluation.engine.sequences import TokenSequence
from evaluation.hook import EvaluationSession, Hook, Result
from evaluation.leakage import functions as leakage_functions
from evaluation.leakage.evaluator import LeakageEvaluator, Prompted
from evaluation.leakage.functions import Asked
from evaluation.leakage.summary import Terms
from evaluation.metrics.answer import probability, truth_ratio
from evaluation.metrics.membership import MembershipEvaluator
from evaluation.metrics.tofu import SECTIONS, Profile, Question, TofuEvaluator
from oblivionis import seeds
from oblivionis.assessment.membership import Groups
from oblivionis.assessment.questions import encode_questions
from oblivionis.config.schema import Config
from oblivionis.data.records import Corpus, Record
from oblivionis.models.assembly import Assembled, assemble
from oblivionis.naming import subject_key

NONE = "none"
LABELS = {"int8": "8 bits (int8)", "nf4": "4 bits (nf4)"}

Row = dict[str, Any]
"""Of one question under one variant of an attack: `variant`, `id` and what was measured."""


@dataclass(frozen=True)
class Attack:
    """One attack: its kind, a name that no other has, and the settings that its rows depend on.

    `run` maps the global vector of a model to the rows. `lacking` says why it cannot be made on these data; then it is
    not run.
    """

    kind: str
    name: str
    settings: dict[str, Any]
    run: Callable[[np.ndarray], list[Row]]
    lacking: str = ""


class Battery:
    """The attacks of a configuration on the models of one run.

    `requested`: ids of all records that somebody asked to forget. The assembled model is changed from attack to
    attack; each begins by loading its vector.
    """

    def __init__(self, assembled: Assembled, corpus: Corpus, config: Config, requested: Sequence[str] = ()) -> None:
        self._assembled, self._corpus, self._config = assembled, corpus, config
        self._base = assembled.flat.numpy()
        profile = Profile(config.attack.questions)
        self.records: tuple[Record, ...] = profile.pick(corpus.evaluation.get("forget", ()))  # type: ignore[arg-type, assignment]
        self.questions = encode_questions(self.records, assembled, config)
        self._untouchable = corpus.forget_ids.union(requested)
        self.truth_ratio = config.evaluation.truth_ratio
        self._limit = config.attack.max_new_tokens or config.evaluation.full.max_new_tokens

    def attacks(self) -> list[Attack]:
        """The questions as they are, under the kind `none`, then every attack of `attack.attacks`."""
        makers = {
            "quantise": self._quantise,
            "relearn": self._relearn,
            "sampling": self._sampling,
            "rephrase": self._rephrase,
            "jailbreak": self._jailbreak,
            "prefix": self._prefix,
            "membership": self._membership,
        }
        plain = Attack(NONE, NONE, {"max_new_tokens": self._limit}, self._plain)
        return [plain, *(a for kind in self._config.attack.attacks for a in makers[kind]())]

    def _plain(self, vector: np.ndarray) -> list[Row]:
        self._assembled.flat.load(vector)
        return self._ask(self._assembled, self.questions, "")

    def _quantise(self) -> list[Attack]:
        def of(name: str) -> Attack:
            def run(vector: np.ndarray) -> list[Row]:
                model = dataclasses.replace(self._config.model, quantization="none")
                fresh = assemble(model, seeds.derive(self._config.seed, "adapter"))
                fresh.flat.load(vector)
                quantised = quantise_merged(fresh.model, QUANTISERS[name]).eval()
                return self._ask(dataclasses.replace(fresh, model=quantised), self.questions, LABELS[name])

            return Attack("quantise", f"quantise-{name}", {"max_new_tokens": self._limit}, run)

        return [of(name) for name in self._config.attack.quantisers]

    def _relearn(self) -> list[Attack]:
        settings = self._config.attack.relearn
        order = random.Random(seeds.derive(self._config.seed, "attack", "relearn"))
        about = {subject_key(r.subject) for r in self._corpus.train if r.id in self._untouchable}
        unrelated = [
            r for r in self._corpus.train if r.id not in self._untouchable and subject_key(r.subject) not in about
        ]
        chosen = order.sample(unrelated, min(settings.records, len(unrelated)))
        retain = self._relearning("retain", chosen, self.questions, "no retain records about anybody else")
        shuffled = order.sample(list(self.records), len(self.records))
        count = min(max(1, round(settings.forget_share * len(shuffled))), len(shuffled) - 1)
        trained = shuffled[: max(0, count)]
        asked = [q for q in self.questions if q.id not in {r.id for r in trained}]
        forget = self._relearning("forget", trained, asked, "one forget question cannot be divided")
        return [retain, forget]

    def _relearning(self, name: str, trained: Sequence[Record], asked: Sequence[Question], lacking: str) -> Attack:
        own, training = self._config.attack.relearn, self._config.training
        whole = "" if name == "retain" else f" of {len(self.questions)}"
        label = f"{len(trained)}{whole} records"
        settings = TrainSettings(
            batch_size=own.batch_size or training.batch_size,
            learning_rate=own.learning_rate or training.learning_rate,
            weight_decay=training.weight_decay,
            warmup_epochs=0.0,
            max_grad_norm=training.max_grad_norm,
            optimizer=training.optimizer,
            gradient_checkpointing=training.gradient_checkpointing,
        )

        def run(vector: np.ndarray) -> list[Row]:
            model, flat = self._assembled.model, self._assembled.flat
            flat.load(vector)
            sequences = [
                TokenSequence(q.prompt, q.answer) for q in encode_questions(trained, self._assembled, self._config)
            ]
            seed = seeds.derive(self._config.seed, "attack", "relearn", name)
            rows: list[Row] = []
            for step, learnt in relearn(model, flat, sequences, settings, own.steps, seed=seed).items():
                flat.load(learnt)
                rows += self._ask(self._assembled, asked, f"{name} {step} updates ({label})")
            return rows

        facts = {"train": dataclasses.asdict(settings), "steps": own.steps, "records": [r.id for r in trained]}
        facts |= {"seed": self._config.seed, "max_new_tokens": self._limit}
        return Attack("relearn", f"relearn-{name}", facts, run, "" if trained and asked else lacking)

    def _sampling(self) -> list[Attack]:
        own, count = self._config.evaluation.leakage, self._config.attack.samples
        seed = seeds.derive(self._config.seed, "leakage")

        def run(vector: np.ndarray) -> list[Row]:
            asked = [
                Prompted(Asked(r.id, r.question, r.answer), q.prompt)
                for r, q in zip(self.records, self.questions, strict=True)
            ]
            evaluator = LeakageEvaluator(
                asked,
                self._decode,
                leakage_functions.get(own.function),
                count,
                Terms(alpha=own.alpha, rho=own.rho, leaks_from=own.leaks_from, limit=own.limit),
                Rule(own.temperature, own.top_p, own.top_k, own.confidence),
                own.max_new_tokens,
                seed,
            )
            self._assembled.flat.load(vector)
            columns = self._evaluate(self._assembled, evaluator).details["columns"]
            rows: list[Row] = []
            for variant, column in ((f"mean of {count}", "mean"), (f"best of {count}", "max")):
                for i, q in enumerate(self.questions):
                    row = {"variant": variant, "id": q.id, "rouge": columns[column][i]}
                    rows.append(row | ({b: columns[b][i] for b in ("m_mu", "m_bin")} if column == "mean" else {}))
            return rows

        facts = {k: v for k, v in dataclasses.asdict(own).items() if "samples" not in k and "questions" not in k}
        return [Attack("sampling", "sampling", {**facts, "samples": count, "seed": seed}, run)]

    def _rephrase(self) -> list[Attack]:
        return [self._reworded("rephrase", i, text) for i, text in enumerate(self._config.attack.rephrasings, 1)]

    def _jailbreak(self) -> list[Attack]:
        own = self._config.attack
        framed = [self._reworded("jailbreak", i, text) for i, text in enumerate(own.jailbreaks, 1)]
        return [*framed, *(self._started(i, text) for i, text in enumerate(own.answer_starts, len(framed) + 1))]

    def _reworded(self, kind: str, number: int, frame: str) -> Attack:
        """The questions in the words of `frame`, the answers as they are."""

        def run(vector: np.ndarray) -> list[Row]:
            asked = [dataclasses.replace(r, question=reword(frame, r.question)) for r in self.records]
            self._assembled.flat.load(vector)
            return self._ask(self._assembled, encode_questions(asked, self._assembled, self._config), frame)

        return Attack(kind, f"{kind}-{number}", {"frame": frame, "max_new_tokens": self._limit}, run)

    def _started(self, number: int, start: str) -> Attack:
        """The questions as they are, and answers that begin with `start`: it is given, what follows is measured."""

        def run(vector: np.ndarray) -> list[Row]:
            given: tuple[int, ...] = ()
            if start:
                (first,) = encode_questions(
                    [dataclasses.replace(self.records[0], answer=start, paraphrased_answer=None, perturbed_answers=())],
                    self._assembled,
                    self._config,
                )
                given = first.answer[:-1]
            asked = [dataclasses.replace(q, prompt=(*q.prompt, *given)) for q in self.questions]
            self._assembled.flat.load(vector)
            return self._ask(self._assembled, asked, f"{start} …")

        return Attack("jailbreak", f"jailbreak-{number}", {"start": start, "max_new_tokens": self._limit}, run)

    def _prefix(self) -> list[Attack]:
        def of(count: int) -> Attack:
            asked = [self._rest(q, count) for q in self.questions if len(q.answer) > count + 1]

            def run(vector: np.ndarray) -> list[Row]:
                self._assembled.flat.load(vector)
                label = f"{count} tokens of the answer given"
                return self._ask(self._assembled, asked if count else self.questions, label)

            lacking = "" if asked else f"no answer has more than {count} tokens"
            facts = {"tokens": count, "max_new_tokens": self._limit}
            return Attack("prefix", f"prefix-{count}", facts, run, lacking)

        return [of(count) for count in self._config.attack.given_tokens]

    def _rest(self, question: Question, count: int) -> Question:
        """The question whose prompt includes the first `count` tokens of the answer, and which asks for the rest."""
        given, rest = question.answer[:count], question.answer[count:]
        return Question(question.id, (*question.prompt, *given), rest, self._decode(rest).strip())

    def _membership(self) -> list[Attack]:
        groups = Groups.of(self._corpus, self._assembled, self._config)
        seed = seeds.derive(self._config.seed, "membership")

        def run(vector: np.ndarray) -> list[Row]:
            self._assembled.flat.load(self._base)
            with fused_lora(self._assembled.model):
                reference = groups.reference(self._session(self._assembled))
            self._assembled.flat.load(vector)
            evaluator = MembershipEvaluator(groups.members, groups.others, reference=reference, resamples=1, seed=seed)
            details = self._evaluate(self._assembled, evaluator).details
            return [
                {"variant": name, "id": i, "group": group, "score": score}
                for name, found in details.items()
                for group, scores in found.items()
                for i, score in scores.items()
            ]

        lacking = "" if groups.others else "these data have no holdout records, which no model was trained on"
        facts = {group: [c.id for c in getattr(groups, group)] for group in ("members", "others")}
        return [Attack("membership", "membership", facts, run, lacking)]

    def _ask(self, assembled: Assembled, questions: Sequence[Question], variant: str) -> list[Row]:
        """Prob, ROUGE-L recall and truth ratio R (where there are perturbed answers) of each question."""
        tofu = TofuEvaluator(
            {"forget": questions},
            self._decode,
            self.truth_ratio,
            profile=Profile(None, self._limit, ("forget",)),
        )
        log = self._evaluate(assembled, tofu).details["log"][SECTIONS["forget"]]
        rows = []
        for i, question in enumerate(questions):
            loss, wrong = log["avg_gt_loss"][str(i)], log.get("average_perturb_loss", {}).get(str(i))
            row: Row = {"variant": variant, "id": question.id, "loss": loss, "prob": float(probability(loss))}
            row |= {"rouge": log["rougeL_recall"][str(i)], "answer": log["generated_text"][str(i)][1]}
            if wrong:
                right = log["avg_paraphrased_loss"][str(i)]
                row["truth_ratio"] = float(truth_ratio(right, wrong, self.truth_ratio))
            rows.append(row)
        return rows

    def _evaluate(self, assembled: Assembled, evaluator: Any) -> Result:
        with fused_lora(assembled.model):
            report = Hook([evaluator], strict=True).run(self._session(assembled))
        return report.results[evaluator.name]

    def _session(self, assembled: Assembled) -> EvaluationSession:
        return EvaluationSession(
            assembled.model,
            stop_ids=assembled.stop_ids,
            pad_id=assembled.tokenizer.pad_token_id or 0,
            token_budget=self._config.evaluation.token_budget,
        )

    def _decode(self, ids: Sequence[int]) -> str:
        return self._assembled.tokenizer.decode(list(ids), skip_special_tokens=True)


def reword(frame: str, question: str) -> str:
    """`frame` with the question for `{question}` and with a small first letter for `{lower}`."""
    return frame.replace("{question}", question).replace("{lower}", question[:1].lower() + question[1:])
