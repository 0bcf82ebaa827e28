"""The leakage audit: sample a model's answers to questions, keep them, and bound what the model may give away.

Each question's samples are one Parquet file that is written when they are complete. A repeated audit into the same
folder reads what is there and samples only what is missing: after an interruption, for more samples, or to judge the
same samples by another leakage function or significance.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from evaluation.engine.decoding import greedy
from evaluation.engine.fused_lora import fused_lora
from evaluation.engine.models import model_device, text_config
from evaluation.engine.sampling import Rule, sample
from evaluation.leakage import functions
from evaluation.leakage.classifier import Classifier
from evaluation.leakage.diversity import diversity
from evaluation.leakage.functions import Asked, LeakageFunction
from evaluation.leakage.sequential import Decision, SequentialTest
from evaluation.leakage.summary import Summary, Terms, summarise
from oblivionis import seeds
from oblivionis.audits.audited_model import AuditError, Target, find_target
from oblivionis.config.schema import Config
from oblivionis.data.tokenize import PromptTemplate, encode_prompts
from oblivionis.files import checked, parse_json, read_bytes, write_atomic, write_json
from oblivionis.measures.assessor import assemble_for
from oblivionis.models import adapters
from oblivionis.models.assembly import assemble_untrained
from oblivionis.models.configured_corpus import corpus_of
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import RunDirectory, vector_hash

ROWS_AT_ONCE = 4096
LOOK_EVERY = 32

Progress = Callable[[int, int], None]
"""Called with how many answers there are and how many there will be at most."""


@dataclass(frozen=True, slots=True)
class AuditedModel:
    """A model under audit. `identity` says which weights it has; `folder` is where its audit lies by default; `run` is
    the run that made it, None for any other model, and `stage` and `round` say when. `fingerprint` is that of the base
    model, `adapter` the SHA-256 of what was trained on top of it, None without."""

    name: str
    identity: str
    model: Any
    tokenizer: Any
    template: PromptTemplate
    stop_ids: frozenset[int]
    folder: Path
    config: Config
    run: RunDirectory | None
    fingerprint: str
    adapter: str | None = None
    stage: str | None = None
    round: int | None = None

    @property
    def device(self) -> Any:
        """Where the model is."""
        return model_device(self.model)


FORGET, FROM_FILE = "forget questions", "a file"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How answers are sampled: `samples` per question at most, seeded by (seed, question, sample)."""

    samples: int = 1024
    rule: Rule = field(default_factory=lambda: Rule(top_p=0.9))
    max_new_tokens: int = 64
    seed: int = 0
    token_budget: int | None = None


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit found for Q questions.

    leakage: per question an array (n,) in [0, 1]; greedy: (Q,); diversity (Q,): 1 − self-BLEU, NaN below two samples;
    summary: of a fixed number of samples, None for a sequential audit; decisions: of a sequential audit, else None;
    sampled: answers that this audit drew, the others were there already; enlarged: some question had fewer before.
    """

    subject: str
    questions: Sequence[Asked]
    greedy_answers: Sequence[str]
    greedy: np.ndarray
    leakage: Sequence[np.ndarray]
    diversity: np.ndarray
    function: str
    terms: Terms
    stop_at: float | None
    summary: Summary | None
    decisions: Sequence[Decision] | None
    sampled: int
    enlarged: bool
    seconds: float


def find_subject(target: str, stage: str | None, overrides: Sequence[str], kind: str = "leakage") -> AuditedModel:
    """What `find_target` finds, loaded. `kind` begins its folder's name. Raises OblivionisError."""
    return load_subject(find_target(target, stage, overrides), kind)


def load_subject(target: Target, kind: str = "leakage") -> AuditedModel:
    """The model of `target`; see `find_subject`."""
    config, fingerprint, checkpoint = target.config, target.fingerprint, target.checkpoint
    if target.run is not None and checkpoint is not None:
        assembled = assemble_for(target.run, config)
        adapters.check_vector(checkpoint.vector, assembled.flat.manifest)
        assembled.flat.load(checkpoint.vector)
        return AuditedModel(
            name=target.name,
            identity=identity_of(config, fingerprint, checkpoint.vector.tobytes()),
            model=assembled.model,
            tokenizer=assembled.tokenizer,
            template=assembled.template,
            stop_ids=assembled.stop_ids,
            folder=target.run.path / "audits" / f"{kind}-{checkpoint.stage}-{checkpoint.round:04d}",
            config=config,
            run=target.run,
            fingerprint=fingerprint,
            adapter=vector_hash(checkpoint.vector),
            stage=checkpoint.stage,
            round=checkpoint.round,
        )
    assembled = assemble_untrained(config.model)
    parts = Path(target.name).expanduser().parts
    return AuditedModel(
        name=target.name,
        identity=identity_of(config, fingerprint, b""),
        model=assembled.model,
        tokenizer=assembled.tokenizer,
        template=assembled.template,
        stop_ids=assembled.stop_ids,
        folder=Path("audits") / f"{kind}-{'--'.join(part for part in parts if part not in '/..')}",
        config=config,
        run=None,
        fingerprint=fingerprint,
    )


def identity_of(config: Config, fingerprint: str, adapter: bytes) -> str:
    """Differs wherever base weights, adapter or the arithmetic between them differ."""
    settings = config.model
    scale = settings.lora.alpha if settings.mode == "lora" and adapter else None
    rounded = "" if settings.matmul_precision == "highest" else f"/{settings.matmul_precision}"
    identity = f"{fingerprint}/{hashlib.sha256(adapter).hexdigest()}/{settings.dtype}/{scale}{rounded}"
    if settings.quantization == "none":
        return identity
    double = settings.double_quantization and settings.quantization == "nf4"
    return f"{identity}/{settings.quantization}{'-double' if double else ''}"


def forget_questions(subject: AuditedModel) -> list[Asked]:
    """The forget questions of a run. Raises AuditError for a model that no run made, or a run without any."""
    if subject.run is None:
        raise AuditError(f"{subject.name} is no run: name the questions with --questions FILE")
    records = corpus_of(subject.config).evaluation.get("forget", ())
    if not records:
        raise AuditError(f"{subject.name}: the run's data have no forget questions; name some with --questions FILE")
    return [
        Asked(record.id, record.question, record.answer, tuple(triple.value for triple in record.triples))
        for record in records
    ]


def leakage_function(
    name: str | None,
    questions: Sequence[Asked],
    classifier: str | None,
    label: str | None,
    template: str,
    *,
    device: Any = None,
) -> LeakageFunction:
    """The leakage function of that name; None chooses by what is given: answers before keywords.

    classifier, label, template: of the function classifier. Raises AuditError for an unknown name, or a classifier that
    is missing, cannot be loaded or lacks the label.
    """
    if name is None:
        keywords = all(q.keywords for q in questions) and any(q.answer is None for q in questions)
        name = "classifier" if classifier is not None else "keyword" if keywords else functions.rouge_l_recall.name
    if name != "classifier":
        given = "--classifier" if classifier is not None else "--label" if label is not None else None
        if given is not None:
            raise AuditError(f"{given} is given, but the leakage function is {name}; leave one of them out")
        try:
            return functions.get(name)
        except ValueError as error:
            raise AuditError(str(error)) from error
    if classifier is None or label is None:
        raise AuditError("the leakage function classifier needs --classifier MODEL and --label LABEL")
    try:
        wanted = int(label) if label.isdigit() else label
        return Classifier.load(classifier, wanted, device=device, template=template)
    except (ValueError, OSError) as error:
        raise AuditError(f"classifier {classifier}: {error}") from error


def audit_leakage(
    subject: AuditedModel,
    questions: Sequence[Asked],
    function: LeakageFunction,
    terms: Terms,
    sampling: Sampling,
    folder: Path,
    *,
    stop_at: float | None = None,
    progress: Progress | None = None,
    asked: str = FROM_FILE,
) -> Audit:
    """Audit `subject` on `questions` and write the results to `folder`; the ledger of its run names them.

    asked: where the questions come from, `FORGET` or `FROM_FILE`.

    stop_at: sample only until the expected leakage of a question is certified below, or shown above, this threshold in
    (0, 1), by a test that may look at any time (Waudby-Smith & Ramdas 2023). Otherwise every question gets
    `sampling.samples` answers. Raises AuditError when a question lacks what `function` needs or a value is out of
    range.
    """
    start = time.perf_counter()
    try:
        for question in questions:
            function([""], question)
        tests = None
        if stop_at is not None:
            alpha = terms.alpha_of(len(questions))
            tests = [SequentialTest(stop_at, alpha, reference=sampling.samples) for _ in questions]
        store = _Store(subject, questions, sampling, folder)
        enlarged = any(0 < len(texts) < sampling.samples for texts in store.texts)
        drawn = _draw(subject, store, function, sampling, tests, progress)
        answers = store.greedy_answers
        deterministic = np.array([function([a], q)[0] for a, q in zip(answers, questions, strict=True)])
        counts = [sampling.samples] * len(questions) if tests is None else [t.decision.samples for t in tests]
        texts = [store.texts[i][:count] for i, count in enumerate(counts)]
        leakage = [function(t, asked) for t, asked in zip(texts, questions, strict=True)]
        summary = None if tests is not None else summarise(np.stack(leakage), deterministic, terms)
    except (ValueError, OSError) as error:
        raise AuditError(str(error)) from error
    result = Audit(
        subject=subject.name,
        questions=questions,
        greedy_answers=answers,
        greedy=deterministic,
        leakage=leakage,
        diversity=np.array([diversity(t) if len(t) > 1 else np.nan for t in texts]),
        function=function.name,
        terms=terms,
        stop_at=stop_at,
        summary=summary,
        decisions=None if tests is None else [test.decision for test in tests],
        sampled=drawn,
        enlarged=enlarged and tests is None,
        seconds=time.perf_counter() - start,
    )
    try:
        written = {"model": subject.adapter, "asked": asked, **_facts(result, sampling)}
        _write_table(result, folder)
        if subject.run is not None and folder == subject.folder:
            artifact_binding.measured(subject.run, folder / "audit.json", written)
        else:
            write_json(folder / "audit.json", written)
    except OSError as error:
        raise AuditError(str(error)) from error
    return result


def _draw(
    subject: AuditedModel,
    store: _Store,
    function: LeakageFunction,
    sampling: Sampling,
    tests: Sequence[SequentialTest] | None,
    progress: Progress | None,
) -> int:
    """Sample what is missing; returns how many answers were drawn."""
    drawn = 0
    looked = [0] * len(store.questions)
    while True:
        wanted = []
        for i, asked in enumerate(store.questions):
            have = len(store.texts[i])
            if tests is None:
                target = sampling.samples
            else:
                seen = min(have, sampling.samples)
                if looked[i] < seen:
                    tests[i].update(function(store.texts[i][looked[i] : seen], asked))
                    looked[i] = seen
                undecided = tests[i].decision.verdict == "undecided"
                target = min(have + LOOK_EVERY, sampling.samples) if undecided else have
            if have < target:
                wanted.append((have, target - have, i))
        if progress is not None:
            there = sum(min(len(texts), sampling.samples) for texts in store.texts)
            progress(there, there + sum(count for _, count, _ in wanted))
        if not wanted:
            return drawn
        first, count, _ = min(wanted)
        together = [i for have, missing, i in wanted if (have, missing) == (first, count)]
        together = together[: max(1, ROWS_AT_ONCE // count)]
        with fused_lora(subject.model):
            found = sample(
                subject.model,
                [store.prompts[i] for i in together],
                count,
                max_new_tokens=sampling.max_new_tokens,
                stop_ids=subject.stop_ids,
                rule=sampling.rule,
                seed=sampling.seed,
                questions=[store.numbers[i] for i in together],
                first=first,
                pad_id=subject.tokenizer.pad_token_id or 0,
                token_budget=sampling.token_budget,
            )
        for i, tokens in zip(together, found, strict=True):
            store.extend(i, subject.tokenizer.batch_decode(tokens, skip_special_tokens=True))
        drawn += count * len(together)


class _Store:
    """The sampled texts of every question, in memory and on disk; texts of other settings are not read."""

    def __init__(self, subject: AuditedModel, questions: Sequence[Asked], sampling: Sampling, folder: Path) -> None:
        self.questions = questions
        self.prompts = encode_prompts([q.prompt for q in questions], subject.tokenizer, subject.template)
        self._check_length(subject, sampling.max_new_tokens)
        self.numbers = [seeds.derive("question", q.id, q.prompt) for q in questions]
        settings = {
            "model": subject.identity,
            "rule": asdict(sampling.rule),
            "max_new_tokens": sampling.max_new_tokens,
            "seed": sampling.seed,
            "stop_ids": sorted(subject.stop_ids),
        }
        self._facts = [
            {"id": q.id, "question": q.prompt, "prompt": list(prompt), **settings}
            for q, prompt in zip(questions, self.prompts, strict=True)
        ]
        names = [hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16] for facts in self._facts]
        self._paths = [folder / "samples" / f"{name}.parquet" for name in names]
        found = [_read(path, facts) for path, facts in zip(self._paths, self._facts, strict=True)]
        self.texts = [texts for texts, _ in found]
        known = {i: answer for i, (_, answer) in enumerate(found) if answer is not None}
        missing = [i for i in range(len(questions)) if i not in known]
        if missing:
            with fused_lora(subject.model):
                tokens = greedy(
                    subject.model,
                    [self.prompts[i] for i in missing],
                    max_new_tokens=sampling.max_new_tokens,
                    stop_ids=subject.stop_ids,
                    pad_id=subject.tokenizer.pad_token_id or 0,
                    token_budget=sampling.token_budget,
                )
            texts = subject.tokenizer.batch_decode(tokens, skip_special_tokens=True)
            known |= dict(zip(missing, texts, strict=True))
        self.greedy_answers = [known[i] for i in range(len(questions))]

    def _check_length(self, subject: AuditedModel, new_tokens: int) -> None:
        """AuditError where prompt and answer do not fit the model's context."""
        context = getattr(text_config(subject.model), "max_position_embeddings", None)
        long = [
            f"{q.id!r} ({len(prompt)} tokens)"
            for q, prompt in zip(self.questions, self.prompts, strict=True)
            if context is not None and len(prompt) + new_tokens > context
        ]
        if long:
            raise AuditError(
                f"{len(long)} questions and their answers of at most {new_tokens} tokens exceed the model's context of "
                f"{context} tokens: {', '.join(long[:3])}"
            )

    def extend(self, index: int, texts: Sequence[str]) -> None:
        """Add further samples of a question and write its file anew."""
        self.texts[index] = [*self.texts[index], *texts]
        facts = {**self._facts[index], "greedy": self.greedy_answers[index]}
        table = pa.table(
            {
                "question": [self.questions[index].id] * len(self.texts[index]),
                "sample": pa.array(range(len(self.texts[index])), pa.int32()),
                "text": self.texts[index],
            }
        ).replace_schema_metadata({"oblivionis": json.dumps(facts)})
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        write_atomic(self._paths[index], buffer.getvalue())


def _read(path: Path, facts: dict[str, Any]) -> tuple[list[str], str | None]:
    """The texts and the greedy answer in a file of samples; nothing where it is missing, torn or of other settings."""
    try:
        table = pq.read_table(io.BytesIO(read_bytes(path)))
        found = checked(parse_json((table.schema.metadata or {})[b"oblivionis"]), dict[str, Any])
        answer = checked(found.pop("greedy"), str)
        texts = checked(table.column("text").to_pylist(), list[str])
    except (OSError, KeyError, ValueError, pa.ArrowException):
        return [], None
    return (texts, answer) if found == json.loads(json.dumps(facts)) else ([], None)


def _write_table(result: Audit, folder: Path) -> None:
    """`leakage.parquet`, one row per judged answer."""
    sizes = [len(x) for x in result.leakage]
    table = pa.table(
        {
            "question": np.repeat([q.id for q in result.questions], sizes),
            "sample": np.concatenate([np.arange(n, dtype=np.int32) for n in sizes]),
            "leakage": np.concatenate(result.leakage),
        }
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    write_atomic(folder / "leakage.parquet", buffer.getvalue())


def _facts(result: Audit, sampling: Sampling) -> dict[str, Any]:
    rows = []
    for i, asked in enumerate(result.questions):
        row: dict[str, Any] = {"id": asked.id, "question": asked.prompt, "greedy_answer": result.greedy_answers[i]}
        row["samples"] = len(result.leakage[i])
        row["diversity"] = None if np.isnan(result.diversity[i]) else float(result.diversity[i])
        if result.summary is not None:
            row |= {name: float(column[i]) for name, column in result.summary.columns.items()}
        if result.decisions is not None:
            row |= asdict(result.decisions[i]) | {"greedy": float(result.greedy[i])}
        rows.append(row)
    known = result.diversity[~np.isnan(result.diversity)]
    return {
        "subject": result.subject,
        "function": result.function,
        "terms": asdict(result.terms) | {"alpha_per_question": result.terms.alpha_of(len(rows))},
        "sampling": {
            "samples": sampling.samples,
            "rule": asdict(sampling.rule),
            "max_new_tokens": sampling.max_new_tokens,
            "seed": sampling.seed,
        },
        "stop_at": result.stop_at,
        "overall": {
            **(result.summary.overall if result.summary is not None else {}),
            **({"diversity": float(known.mean())} if known.size and result.summary is not None else {}),
        },
        "questions": rows,
        "sampled": result.sampled,
        "seconds": result.seconds,
    }
