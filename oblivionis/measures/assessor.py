"""From a global model to its metrics: it is loaded, and the evaluators of the measures run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from clients.calibrated_forgetting import LEAST_REFERENCES, never_seen_nll
from evaluation.engine.fused_lora import fused_lora
from evaluation.engine.sequences import TokenSequence
from evaluation.hook import EvaluationError, EvaluationSession, Evaluator, Hook, Report
from evaluation.metrics.answer_metrics import probability
from evaluation.metrics.tofu import SECTIONS
from evaluation.ruler.evaluator import Embedded, References
from oblivionis.config.schema import Config
from oblivionis.data.records import Corpus, Record
from oblivionis.erasure.verification_evidence import measurable_words
from oblivionis.errors import OblivionisError, RunError
from oblivionis.measures import leakage, registry
from oblivionis.measures.base import Measure
from oblivionis.measures.context import Context
from oblivionis.measures.questions import encode_questions, encode_records
from oblivionis.measures.recitation import bare, greedy_recall, new_session, recall
from oblivionis.measures.ruler import paired_models
from oblivionis.measures.ruler.evaluator import of_both_profiles
from oblivionis.models.assembly import Assembled, assemble_untrained
from oblivionis.models.configured_corpus import corpus_of
from oblivionis.models.shard_merges import assemble_served
from oblivionis.runs.answers import forget_answers
from oblivionis.runs.checkpoints import find_checkpoint
from oblivionis.runs.directory import Checkpoint, RunDirectory, named_metrics
from oblivionis.runs.progress import Events

T = TypeVar("T")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Measured:
    """The evaluation of one global model.

    `metrics` are those of the TOFU evaluator, by short name, and those of the others as `<evaluator>_<metric>`;
    `report` holds all evaluators' results.
    """

    report: Report
    seconds: float

    @property
    def metrics(self) -> dict[str, float]:
        return {k: v for name, r in self.report.results.items() for k, v in named_metrics(name, r.metrics).items()}

    @property
    def notes(self) -> dict[str, str]:
        """By metric, named as in `metrics`, why it is left out or how its value is to be read."""
        return {k: note for name, r in self.report.results.items() for k, note in named_metrics(name, r.notes).items()}

    @property
    def facts(self) -> dict[str, Any]:
        """What the summary of a stage that ends with the model keeps: `metrics`, and `notes` where there are any."""
        return {"metrics": self.metrics, **_noted(self.notes)}

    @property
    def log(self) -> dict[str, Any] | None:
        """What the measures keep of their evaluators' details (`Measure.to_log`); None where nothing is kept."""
        kept: dict[str, Any] = {}
        for name, result in self.report.results.items():
            kept |= registry.to_log(name, result.details)
        return kept or None

    @property
    def embedded(self) -> Embedded | None:
        """The representations that RULER read, None where it was left out or failed."""
        result = self.report.results.get("ruler")
        return result.details["embedded"] if result else None

    def rows(self, stage: str, server_round: int, moment: str) -> list[dict[str, Any]]:
        """One line of metrics.jsonl per evaluator; a failed evaluator has `error` instead of metrics."""
        head = {"stage": stage, "round": server_round, "moment": moment}
        tail = {"seconds": self.seconds, "time": time.time()}
        measured = [
            {**head, "evaluator": name, "metrics": dict(result.metrics), **_noted(result.notes), **tail}
            for name, result in self.report.results.items()
        ]
        return measured + [
            {**head, "evaluator": name, "metrics": {}, "error": error, **tail}
            for name, error in self.report.failed.items()
        ]


class RemoteEvaluator(Protocol):
    """Another process that runs some of the evaluators at the same time."""

    def begin(self, vector: np.ndarray, *, full: bool) -> frozenset[str]:
        """Start measuring the model with `vector`, and name the evaluators that do it."""
        ...

    def end(self) -> Report | None:
        """Wait for the report; None where the process is lost. Raises what an evaluator raised in it."""
        ...


class Assessor:
    """Measures global models of one assembled model on the records of one corpus, tokenised once.

    Parameters
    ----------
    assembled : Assembled
    corpus : Corpus
    config : Config
    base : array (n,), optional
        The vector of the untouched base model, for evaluators that compare with it. None: the one that a model with
        LoRA was assembled with; a model that is trained in other ways goes without those evaluators.
    names : sequence of str, optional
        Which measures; None: all.
    remote_evaluator : RemoteEvaluator, optional
        Another process that runs some of their evaluators at the same time.

    Raises
    ------
    OblivionisError
        For settings or data that do not fit (`Measure.prepare`).
    """

    def __init__(
        self,
        assembled: Assembled,
        corpus: Corpus,
        config: Config,
        base: np.ndarray | None = None,
        names: Sequence[str] | None = None,
        remote_evaluator: RemoteEvaluator | None = None,
    ) -> None:
        self.assembled, self._config, self._corpus = assembled, config, corpus
        self._base = assembled.start if base is None else base
        self._measures = [registry.measures()[name] for name in (registry.names() if names is None else names)]
        self._remote = remote_evaluator
        sets = {} if corpus.is_text else {n: r for n, r in corpus.evaluation.items() if n in SECTIONS}
        context = Context(
            name="",
            assembled=assembled,
            corpus=corpus,
            config=config,
            questions={name: encode_questions(records, assembled, config) for name, records in sets.items()},
            as_base=self._as_base if self._base is not None else None,
        )
        self.context = replace(context, prepared_of=self._of_each(context, lambda m, c: m.prepare(c)))
        self._loaded: np.ndarray | None = None
        self._unready: dict[str, str] = {}
        self._sequences: dict[str, TokenSequence] = {}

    @property
    def manifest_hash(self) -> str:
        """Hash of the names and shapes of a vector's parameters, and of those that are frozen."""
        return self.assembled.manifest_hash

    @property
    def corpus(self) -> Corpus:
        """The records that the measures ask about."""
        return self._corpus

    @property
    def is_text(self) -> bool:
        """Whether the clients hold pieces of text."""
        return self._corpus.is_text

    @property
    def empty(self) -> bool:
        """Whether there is nothing to ask."""
        return not self.context.questions and all(v is None for v in self.context.prepared_of.values())

    @property
    def withheld(self) -> int:
        """Records of the holdout set."""
        return len(self._corpus.evaluation.get("holdout", ()))

    @property
    def ruler_ids(self) -> tuple[list[str], list[str]] | None:
        """Ids of the forget and of the retain records that RULER reads in either profile; None where in neither."""
        ruler = of_both_profiles(self.context)
        return ([r.id for r in ruler.forget], [r.id for r in ruler.retain]) if ruler else None

    def warnings(self) -> list[str]:
        """What the measures warn of before a run: where they are left out, and why."""
        return [line for lines in self._of_each(self.context, lambda m, c: m.warnings(c)).values() for line in lines]

    def effort(self, *, full: bool) -> int:
        """How many tokens the model generates at most in an evaluation, by which its duration is forecast."""
        return sum(self._of_each(replace(self.context, full=full), lambda m, c: m.most_tokens(c)).values())

    def embed(self, vector: np.ndarray) -> Embedded:
        """The representations of `ruler_ids` in the model with `vector`; there must be some."""
        ruler = of_both_profiles(self.context)
        assert ruler is not None
        with self.session(vector) as session:
            return ruler.embed(session)

    def measure(
        self,
        vector: np.ndarray,
        *,
        full: bool,
        oracle: Mapping[str, Any] | None = None,
        references: References | None = None,
        names: Collection[str] | None = None,
    ) -> Measured:
        """Load a model and run the evaluators of the measures.

        Parameters
        ----------
        vector : array (n,), float32
        full : bool
            With the profile `evaluation.full`, else with `evaluation.light`.
        oracle : mapping, optional
            The retrained model's per-question log, for metrics that compare with it.
        references : References, optional
            The representations that RULER's Lens 1 compares with.
        names : collection of str, optional
            These measures alone.

        Raises
        ------
        EvaluationError
            In a strict configuration, when an evaluator fails.
        """
        started = time.perf_counter()
        with self.session(vector) as session:
            context = replace(self.context, full=full, oracle=oracle, references=references)
            built, failed = self._each_or_failed(context, lambda m, c: m.evaluators(c))
            failed |= self._unready
            wanted = [name for name in built if name not in failed and (names is None or name in names)]
            remote = self._remote.begin(vector, full=full) if self._remote and names is None else frozenset[str]()
            report = self.report(session, built, [name for name in wanted if name not in remote])
            if remote:
                assert self._remote is not None
                other = self._remote.end() or self.report(session, built, [n for n in wanted if n in remote])
                report = _joined(report, other, built)
        reported = report.results.keys() | report.failed.keys()
        not_built = {n: why for n, why in failed.items() if n not in reported and (names is None or n in names)}
        report = self._loggable(replace(report, failed={**not_built, **report.failed}))
        return Measured(report, time.perf_counter() - started)

    def report(
        self, session: EvaluationSession, built: Mapping[str, Sequence[Evaluator]], names: Sequence[str]
    ) -> Report:
        """Run the evaluators that were `built` for the measures of these names."""
        return Hook([e for name in names for e in built[name]], strict=self._config.strict).run(session)

    def recalls(self, vector: np.ndarray, record_ids: Sequence[str]) -> dict[str, float]:
        """ROUGE-L recall of the greedy answer to each of these training records, by id (`recitation.greedy_recall`)."""
        with self.session(vector) as session:
            return dict(zip(record_ids, self._recalled(session, record_ids), strict=True))

    def recalls_in(self, log: Mapping[str, Any] | None) -> dict[str, float]:
        """As `recalls`, of the training records whose greedy answers a log has; empty without such a log."""
        said = {
            i: values["generated_text"][1] for i, values in forget_answers(log).items() if "generated_text" in values
        }
        records = [record for record in self._corpus.train if record.id in said]
        recalls = recall([said[record.id] for record in records], records)
        return {record.id: value for record, value in zip(records, recalls, strict=True)}

    def units(self, record_ids: Sequence[str]) -> dict[str, int]:
        """How many measurable words each record's answer has, by id."""
        return {r.id: measurable_words(r) for r in self._records(record_ids)}

    def leakage(self, vector: np.ndarray, record_ids: Sequence[str]) -> dict[str, dict[str, float]]:
        """Bounds on what sampled answers to these training records leak, by id and name (`leakage.by_question`).

        They are sampled as in the profile `full`. Empty for pieces of text.
        """
        records = [] if self._corpus.is_text else self._records(record_ids)
        if not records:
            return {}
        context = replace(self.context, name="leakage", full=True)
        questions = encode_questions([bare(record) for record in records], self.assembled, self._config)
        prompted = list(zip(records, questions, strict=True))
        bounds: dict[str, dict[str, float]] = {}
        with self.session(vector) as session:
            for evaluator in leakage.of_records(context, prompted):
                details = evaluator.evaluate(session).details
                bounds |= leakage.by_question(details, details["samples"])
        return bounds

    def knowledge(self, vector: np.ndarray, record_ids: Sequence[str], *, rouge: bool) -> dict[str, dict[str, float]]:
        """How well the model with `vector` knows these training records, by metric and id, each in [0, 1].

        `prob`: length-normalised probability of what is trained on; with `rouge` also `rouge`, as `recalls`.
        """
        with self.session(vector) as session:
            columns = {"prob": probability(self._nll(session, self._records(record_ids))).tolist()}
            if rouge:
                columns["rouge"] = self._recalled(session, record_ids)
        return {name: dict(zip(record_ids, values, strict=True)) for name, values in columns.items()}

    def never_seen(self, vector: np.ndarray, record_ids: Sequence[str]) -> dict[str, float]:
        """Estimate how likely a model that never saw these training records finds their answers, by id.

        The estimate is that of calibrated forgetting (`clients.calibrated_forgetting.never_seen_nll`): from what
        training has made of records that nobody trains on, and from the untouched base model. Empty without these, or
        with too few of them.
        """
        sets = (self._corpus.evaluation.get(name, ()) for name in ("reference", "holdout"))
        unseen = next((records for records in sets if len(records) >= LEAST_REFERENCES), None)
        if self._base is None or unseen is None:
            return {}
        records = self._records(record_ids)
        with self.session(vector) as session:
            now = self._nll(session, unseen)
            with self._as_base():
                session = self._new_session()  # a session keeps what its model answered
                before, own = self._nll(session, unseen), self._nll(session, records)
        if not np.isfinite([*now, *before, *own]).all():
            return {}
        return dict(zip(record_ids, probability(never_seen_nll(before, now, own)).tolist(), strict=True))

    def wrong_answers(self, vector: np.ndarray, record_ids: Sequence[str]) -> dict[str, float]:
        """Mean length-normalised probability of the wrong answers to these training records' questions, by id.

        Records without wrong answers are left out.
        """
        records = [record for record in self._records(record_ids) if record.perturbed_answers]
        wrong = [replace(r, id=f"{r.id} {n}", answer=a) for r in records for n, a in enumerate(r.perturbed_answers)]
        if not wrong:
            return {}
        with self.session(vector) as session:
            values = iter(probability(self._nll(session, wrong)).tolist())
        return {r.id: float(np.mean([next(values) for _ in r.perturbed_answers])) for r in records}

    def _nll(self, session: EvaluationSession, records: Sequence[Record]) -> np.ndarray:
        """Mean negative log-likelihood (n,) of what is trained on of each record, nats per token."""
        new = [r for r in records if r.id not in self._sequences]
        encoded = encode_records(new, self.assembled, self._config)
        self._sequences |= {record.id: tokens for record, tokens in zip(new, encoded, strict=True)}
        return session.scores([self._sequences[r.id] for r in records]).mean_nll

    def _recalled(self, session: EvaluationSession, record_ids: Sequence[str]) -> list[float]:
        return greedy_recall(session, self._records(record_ids), self.assembled, self._config)

    def _records(self, record_ids: Sequence[str]) -> list[Record]:
        known = {record.id: record for record in self._corpus.train}
        return [known[i] for i in record_ids]

    def _of_each(self, context: Context, part: Callable[[Measure, Context], T]) -> dict[str, T]:
        """The `part` of each measure by name, in the order of evaluation."""
        return {m.name: part(m, replace(context, name=m.name)) for m in self._measures}

    def _each_or_failed(
        self, context: Context, part: Callable[[Measure, Context], T]
    ) -> tuple[dict[str, T], dict[str, str]]:
        """As `_of_each`, and by name why a measure failed; a user's mistake is raised, and with `strict` any error."""
        found: dict[str, T] = {}
        failed: dict[str, str] = {}
        for measure in self._measures:
            try:
                found[measure.name] = part(measure, replace(context, name=measure.name))
            except OblivionisError:
                raise
            except Exception as error:
                failed[measure.name] = self._failure(measure.name, error)
        return found, failed

    def _failure(self, name: str, error: Exception) -> str:
        """Why an evaluator failed, which is logged; raised as EvaluationError with `strict`."""
        if self._config.strict:
            raise EvaluationError(f"evaluator {name} failed: {error}") from error
        reason = f"{type(error).__name__}: {error}"
        logger.error("evaluator %s failed: %s", name, reason)
        return reason

    def _loggable(self, report: Report) -> Report:
        """The report without results of which no log can be made: their evaluators failed."""
        kept, failed = {}, dict(report.failed)
        for name, result in report.results.items():
            try:
                registry.to_log(name, result.details)
                kept[name] = result
            except Exception as error:
                failed[name] = self._failure(name, error)
        return replace(report, results=kept, failed=failed)

    @contextmanager
    def session(self, vector: np.ndarray) -> Iterator[EvaluationSession]:
        """A session of the model with `vector`; before the first one is loaded, measures use the base model."""
        numbers = self.assembled.numbers(vector)
        with fused_lora(self.assembled.model):
            if self._loaded is None:
                session = self._new_session()
                references, self._unready = self._each_or_failed(self.context, lambda m, c: m.measure_base(c, session))
                self.context = replace(self.context, reference_of=references)
            self.assembled.put(numbers)
            self._loaded = numbers
            yield self._new_session()

    @contextmanager
    def _as_base(self) -> Iterator[None]:
        """Put the untouched base model in the place of the loaded one, and the loaded one back afterwards."""
        assembled, loaded = self.assembled, self._loaded
        assert loaded is not None and self._base is not None
        assembled.load(self._base)
        try:
            yield
        finally:
            assembled.put(loaded)

    def _new_session(self) -> EvaluationSession:
        return new_session(self.assembled, self._config)


def _joined(one: Report, other: Report, order: Iterable[str]) -> Report:
    """Both reports in one, in the order of evaluation."""
    places = {name: place for place, name in enumerate(order)}

    def both(a: Mapping[str, T], b: Mapping[str, T]) -> dict[str, T]:
        return dict(sorted({**a, **b}.items(), key=lambda item: places.get(item[0], len(places))))

    seconds, failed = both(one.seconds, other.seconds), both(one.failed, other.failed)
    return Report(both(one.results, other.results), seconds, one.shared_seconds + other.shared_seconds, failed)


def _noted(notes: Mapping[str, str]) -> dict[str, Any]:
    return {"notes": dict(notes)} if notes else {}


def assemble_for(run: RunDirectory, config: Config) -> Assembled:
    """Assemble the model that the vectors of `run` belong to. RunError when `config` describes another one."""
    assembled = assemble_served(config)
    expected = run.environment().get("manifest_hash")
    if expected and assembled.manifest_hash != expected:
        raise RunError(
            f"{run.path} trained other parameters than these settings describe; leave out overrides of model and seed"
        )
    return assembled


def evaluate_model(config: Config) -> Measured:
    """Measure the configured base model as it is, with the profile `full`: no run is needed. Raises OblivionisError."""
    assembled = assemble_untrained(config.model)
    vector = assembled.flat.numpy()
    return Assessor(assembled, corpus_of(config), config, vector).measure(vector, full=True)


def evaluate_checkpoint(
    target: Path, stage: str | None, overrides: Sequence[str], events: Events | None = None
) -> tuple[RunDirectory, Checkpoint, Measured]:
    """Measure what `find_checkpoint` finds; `overrides` as there, e.g. `evaluation.truth_ratio=arithmetic`."""
    run, checkpoint, config, fingerprint = find_checkpoint(target, stage, overrides)
    assembled = assemble_for(run, config)
    base = assembled.flat.numpy() if assembled.start is None else None
    assessor = Assessor(assembled, corpus_of(config), config, base)
    known = None
    if checkpoint.stage == "unlearn":
        paired_models.check_pair(run, config, fingerprint)
        known = paired_models.references(run, config, assessor, events or Events())
    measured = assessor.measure(checkpoint.vector, full=True, oracle=run.evaluation_log("retrain"), references=known)
    return run, checkpoint, measured
