"""From a global model to its metrics: the question sets, the evaluators and the profiles of the configuration."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.engine.fused_lora import fused_lora
from evaluation.engine.packing import Sequence as Tokens
from evaluation.engine.sampling import Rule
from evaluation.hook import EvaluationSession, Hook, Report
from evaluation.leakage import functions as leakage_functions
from evaluation.leakage.evaluator import LeakageEvaluator, Prompted
from evaluation.leakage.functions import Asked
from evaluation.leakage.summary import Terms
from evaluation.metrics.answer import probability
from evaluation.metrics.rouge import rouge_l
from evaluation.metrics.tofu import SECTIONS, Profile, Question, TofuEvaluator, truth_ratios
from evaluation.ruler.evaluator import LEAST_RETAIN, Answered, Embedded, References, RulerEvaluator
from oblivionis import seeds
from oblivionis.assessment import ruler
from oblivionis.assessment.membership import Groups, spread
from oblivionis.assessment.muse import Muse, recited
from oblivionis.assessment.wikimem import People
from oblivionis.config.schema import Config
from oblivionis.data.records import Corpus, Record
from oblivionis.data.tokenize import encode_all, encode_pairs, whole_text
from oblivionis.errors import RunError
from oblivionis.models import adapters
from oblivionis.models.assembly import Assembled, assemble
from oblivionis.models.corpus import corpus_of
from oblivionis.runs.checkpoints import find_checkpoint
from oblivionis.runs.directory import Checkpoint, RunDirectory, named_metrics
from oblivionis.runs.progress import Events


@dataclass(frozen=True, slots=True)
class Measured:
    """The evaluation of one global model.

    `metrics` are those of the TOFU evaluator, by short name, and those of the others as `leakage_…`, `ruler_…`,
    `wikimem_…`, `membership_…` and `muse_…`; `report` holds all evaluators' results.
    """

    report: Report
    seconds: float

    @property
    def metrics(self) -> dict[str, float]:
        return {k: v for name, r in self.report.results.items() for k, v in named_metrics(name, r.metrics).items()}

    @property
    def log(self) -> dict[str, Any] | None:
        """The per-question log in the shape of TOFU's own, with the question ids under `ids`.

        `ruler` holds the percentile ranks of the forget records by id; `wikimem`, `membership` and `muse` the details
        of those evaluators.
        """
        results = self.report.results
        found, ranked = results.get("tofu"), results.get("ruler")
        log = {**found.details["log"], "ids": found.details["ids"]} if found else {}
        if ranked and found:
            log["ruler"] = dict(zip(ranked.details["ids"], ranked.details["ranks"], strict=True))
        whole = {n: dict(results[n].details) for n in ("wikimem", "membership", "muse") if n in results}
        return {**log, **whole} if found or "muse" in whole else None

    @property
    def embedded(self) -> Embedded | None:
        """The representations that RULER read, None where it was left out or failed."""
        found = self.report.results.get("ruler")
        return found.details["embedded"] if found else None

    def rows(self, stage: str, round: int, moment: str) -> list[dict[str, Any]]:
        """One line of metrics.jsonl per evaluator; a failed evaluator has `error` instead of metrics."""
        head = {"stage": stage, "round": round, "moment": moment}
        tail = {"seconds": self.seconds, "time": time.time()}
        found = [
            {**head, "evaluator": name, "metrics": dict(result.metrics), **tail}
            for name, result in self.report.results.items()
        ]
        return found + [
            {**head, "evaluator": name, "metrics": {}, "error": error, **tail}
            for name, error in self.report.failed.items()
        ]

    def forget_rouge(self) -> Mapping[str, float]:
        """ROUGE-L recall of each forget question that was asked, by record id."""
        log = self.log
        if log is None or "eval_log_forget" not in log:
            return {}
        recalls = log["eval_log_forget"].get("rougeL_recall", {})
        return dict(zip(log["ids"]["eval_log_forget"], recalls.values(), strict=True)) if recalls else {}


class Assessor:
    """Measures adapters of one assembled model on the questions of one corpus, tokenised once."""

    def __init__(self, assembled: Assembled, corpus: Corpus, config: Config) -> None:
        ruler.check_layer(assembled.model, config)
        self._people = People.of(
            corpus,
            config.evaluation.wikimem,
            lambda r: whole_text(assembled.tokenizer, assembled.template, r.question, r.answer),
        )
        self._assembled, self._config, self._corpus = assembled, config, corpus
        tokenizer = assembled.tokenizer
        asked = {} if corpus.is_text else {n: r for n, r in corpus.evaluation.items() if n in SECTIONS}
        self._questions = {name: encode_questions(records, assembled, config) for name, records in asked.items()}
        self._groups = Groups.of(corpus, assembled, config)
        self._muse = Muse.of(corpus, assembled, config)
        self._reference: dict[str, float] | None = None
        self._untouched = True
        self._sequences: dict[str, Tokens] = {}
        self._decode = lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True)
        self._asked = [
            Prompted(Asked(record.id, record.question, record.answer), question.prompt)
            for record, question in zip(asked.get("forget", ()), self._questions.get("forget", ()), strict=True)
        ]

    def _leakage(self, full: bool) -> list[LeakageEvaluator]:
        """The leakage evaluator of a profile, none where it samples nothing or there is no forget question."""
        settings = self._config.evaluation.leakage
        samples = settings.full_samples if full else settings.samples
        asked = spread(self._asked, settings.full_questions if full else settings.questions)
        if not samples or not asked:
            return []
        return [
            LeakageEvaluator(
                asked,
                self._decode,
                leakage_functions.get(settings.function),
                samples,
                Terms(alpha=settings.alpha, rho=settings.rho, leaks_from=settings.leaks_from, limit=settings.limit),
                Rule(settings.temperature, settings.top_p, settings.top_k, settings.confidence),
                settings.max_new_tokens,
                seeds.derive(self._config.seed, "leakage"),
            )
        ]

    @property
    def manifest_hash(self) -> str:
        """Which parameters a vector holds (and which are frozen beside them)."""
        return self._assembled.manifest_hash

    @property
    def is_text(self) -> bool:
        """Whether the clients hold pieces of text."""
        return self._corpus.is_text

    @property
    def empty(self) -> bool:
        """Whether there is nothing to ask."""
        return not self._questions and self._muse is None and self._people is None

    @property
    def withheld(self) -> int:
        """Records of the holdout set."""
        return len(self._corpus.evaluation.get("holdout", ()))

    def _profile(self, full: bool) -> Profile:
        settings = self._config.evaluation.full if full else self._config.evaluation.light
        return Profile(settings.questions_per_set, settings.max_new_tokens, tuple(settings.sets))

    def _ruler_records(self, full: bool) -> tuple[list[Answered], list[Answered]]:
        """The forget and retain records that a profile asks, with their true answers."""
        profile = self._profile(full)
        forget, retain = (
            [Answered(q.id, Tokens(q.prompt, q.answer)) for q in profile.pick(self._questions.get(name, ()))]
            if name in profile.sets
            else []
            for name in ("forget", "retain")
        )
        return forget, retain

    def _ruler(self, records: tuple[list[Answered], list[Answered]], with_: References | None) -> list[RulerEvaluator]:
        """RULER on these records, none where it is switched off or they are too few."""
        settings = self._config.evaluation.ruler
        forget, retain = records
        if not settings.enabled or not forget or len(retain) < LEAST_RETAIN:
            return []
        return [RulerEvaluator(forget, retain, settings.pooling, settings.layer, with_, settings.retain_sample)]

    def ruler_lacks(self) -> list[str]:
        """Which profiles leave RULER out for want of records, and why; nothing where it is switched off."""
        if not self._config.evaluation.ruler.enabled or self._corpus.is_text:
            return []
        lacking = []
        for name, full in (("light", False), ("full", True)):
            forget, retain = self._ruler_records(full)
            if not self._ruler((forget, retain), None):
                lacking.append(f"evaluation.{name} asks {len(forget)} forget and {len(retain)} retain questions")
        return lacking

    @property
    def ruler_ids(self) -> tuple[list[str], list[str]] | None:
        """Ids of the forget and of the retain records that RULER reads in either profile; None where in neither."""
        found = self._ruler(self._both_profiles(), None)
        return ([r.id for r in found[0].forget], [r.id for r in found[0].retain]) if found else None

    def _both_profiles(self) -> tuple[list[Answered], list[Answered]]:
        light, full = self._ruler_records(False), self._ruler_records(True)
        forget, retain = (list({r.id: r for r in (*b, *a)}.values()) for a, b in zip(light, full, strict=True))
        return forget, retain

    def embed(self, vector: np.ndarray) -> Embedded:
        """The representations of `ruler_ids` in the model with `vector`; there must be some."""
        (evaluator,) = self._ruler(self._both_profiles(), None)
        self._load(vector)
        with fused_lora(self._assembled.model):
            return evaluator.embed(self._session())

    def measure(
        self,
        vector: np.ndarray,
        *,
        full: bool,
        oracle: Mapping[str, Any] | None = None,
        references: References | None = None,
    ) -> Measured:
        """Load `vector` and run every evaluator with the profile `full` or `light` of the configuration.

        `oracle` is the retrained model's log; with it there is a forget quality. With `references`, RULER's Lens 1.
        """
        started = time.perf_counter()
        evaluation = self._config.evaluation
        self._load(vector)
        ratios = truth_ratios(oracle, "forget", evaluation.truth_ratio) if oracle is not None else None
        tofu = TofuEvaluator(
            questions=self._questions,
            decode=self._decode,
            convention=evaluation.truth_ratio,
            oracle=None if ratios is None else ratios.tolist(),
            profile=self._profile(full),
        )
        people = self._people.evaluators(self._assembled.tokenizer, full) if self._people else []
        evaluators = [
            *([tofu] if self._questions else []),
            *self._ruler(self._ruler_records(full), references),
            *self._leakage(full),
            *people,
            *self._groups.evaluators(self._config, full, self._reference, oracle),
            *([self._muse.evaluator(self._config, self._groups, full, oracle)] if self._muse else []),
        ]
        session = self._session()
        with fused_lora(self._assembled.model):
            report = Hook(evaluators, strict=self._config.strict).run(session)
        return Measured(report, time.perf_counter() - started)

    def recalls(self, vector: np.ndarray, record_ids: Sequence[str]) -> dict[str, float]:
        """ROUGE-L recall of the greedy answer to each of these training records, by id, in one pass.

        They are asked as the profile `full` asks the forget questions, with at most as many new tokens; of a piece of
        text the first half is given and the rest expected (`muse.recited`).
        """
        self._load(vector)
        with fused_lora(self._assembled.model):
            return dict(zip(record_ids, self._recalled(self._session(), record_ids), strict=True))

    def knowledge(self, vector: np.ndarray, record_ids: Sequence[str], *, rouge: bool) -> dict[str, dict[str, float]]:
        """How well the model with `vector` knows these training records: by measure, by id.

        prob: length-normalised probability of what is trained on; with `rouge` also rouge, as `recalls`.
        """
        new = [r for r in self._records(record_ids) if r.id not in self._sequences]
        encoded = _sequences(new, self._assembled, self._config)
        self._sequences |= {record.id: tokens for record, tokens in zip(new, encoded, strict=True)}
        self._load(vector)
        session = self._session()
        with fused_lora(self._assembled.model):
            found = {"prob": probability(session.scores([self._sequences[i] for i in record_ids]).mean_nll).tolist()}
            if rouge:
                found["rouge"] = self._recalled(session, record_ids)
        return {name: dict(zip(record_ids, values, strict=True)) for name, values in found.items()}

    def _recalled(self, session: EvaluationSession, record_ids: Sequence[str]) -> list[float]:
        records = self._records(record_ids)
        if self._corpus.is_text:
            return recited(records, self._assembled, session, self._config.evaluation.muse.continuation)
        bare = [replace(r, paraphrased_answer=None, perturbed_answers=()) for r in records]
        questions = encode_questions(bare, self._assembled, self._config)
        limit = self._config.evaluation.full.max_new_tokens
        produced = session.greedy([q.prompt for q in questions], limit)
        return rouge_l([self._decode(tokens) for tokens in produced], [r.answer for r in records]).recall.tolist()

    def _records(self, record_ids: Sequence[str]) -> list[Record]:
        known = {record.id: record for record in self._corpus.train}
        return [known[i] for i in record_ids]

    def _load(self, vector: np.ndarray) -> None:
        adapters.check_vector(vector, self._assembled.flat.manifest)
        if self._untouched:
            self._look_at_base()
            self._untouched = False
        self._assembled.flat.load(vector)

    def _look_at_base(self) -> None:
        """What the attack `reference` compares with: the model as it is assembled, before anything is loaded."""
        settings = self._config.evaluation.membership
        if settings.enabled and "reference" in settings.attacks and self._groups.others:
            with fused_lora(self._assembled.model):
                self._reference = self._groups.reference(self._session)

    def _session(self) -> EvaluationSession:
        return EvaluationSession(
            self._assembled.model,
            stop_ids=self._assembled.stop_ids,
            pad_id=self._assembled.tokenizer.pad_token_id or 0,
            token_budget=self._config.evaluation.token_budget,
        )


def _sequences(records: Sequence[Record], assembled: Assembled, config: Config) -> list[Tokens]:
    """Token ids of the records as clients train on them."""
    encoded, _ = encode_all(
        records,
        assembled.tokenizer,
        assembled.template,
        max_length=config.model.max_length,
        on_overflow=config.model.on_overflow,
    )
    return [Tokens(e.prompt, e.answer) for e in encoded]


def encode_questions(records: Sequence[Record], assembled: Assembled, config: Config) -> list[Question]:
    """Tokenise questions with all their answers; answers longer than `model.max_length` follow `on_overflow`."""
    pairs, spans = [], []
    for record in records:
        right = [record.paraphrased_answer] if record.paraphrased_answer is not None else []
        start = len(pairs)
        pairs += [(record.question, text) for text in (record.answer, *right, *record.perturbed_answers)]
        spans.append((start, len(right)))
    encoded = encode_pairs(
        pairs,
        assembled.tokenizer,
        assembled.template,
        max_length=config.model.max_length,
        on_overflow=config.model.on_overflow,
    )
    found = []
    for record, (start, right) in zip(records, spans, strict=True):
        answer, *others = encoded[start : start + 1 + right + len(record.perturbed_answers)]
        found.append(
            Question(
                id=record.id,
                prompt=answer.prompt,
                answer=answer.answer,
                text=record.answer,
                paraphrase=others[0].answer if right else None,
                perturbed=tuple(e.answer for e in others[right:]),
            )
        )
    return found


def assemble_for(run: RunDirectory, config: Config) -> Assembled:
    """The model that the vectors of `run` belong to. RunError when `config` (with overrides) describes another one."""
    assembled = assemble(config.model, seeds.derive(config.seed, "adapter"))
    expected = run.environment().get("manifest_hash")
    if expected and assembled.manifest_hash != expected:
        raise RunError(
            f"{run.path} trained other parameters than these settings describe; leave out overrides of model and seed"
        )
    return assembled


def evaluate_checkpoint(
    target: Path, stage: str | None, overrides: Sequence[str], events: Events | None = None
) -> tuple[RunDirectory, Checkpoint, dict[str, float]]:
    """Measure what `find_checkpoint` finds; `overrides` as there, e.g. `evaluation.truth_ratio=arithmetic`."""
    run, checkpoint, config, fingerprint = find_checkpoint(target, stage, overrides)
    assessor = Assessor(assemble_for(run, config), corpus_of(config), config)
    known = None
    if checkpoint.stage == "unlearn":
        ruler.check_pair(run, config, fingerprint)
        known = ruler.references(run, config, assessor, events or Events())
    measured = assessor.measure(checkpoint.vector, full=True, oracle=run.evaluation_log("retrain"), references=known)
    return run, checkpoint, measured.metrics
