"""The finetuned, the unlearned and the retrained model of a run, asked the same question.

One base model is loaded; for each answer the adapter of the model that is to speak is loaded into it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from evaluation.engine.decoding import greedy
from evaluation.engine.fused_lora import fused_lora
from evaluation.engine.models import text_config
from evaluation.engine.sampling import Rule, sample
from evaluation.metrics.rouge import ANY_SCRIPT, rouge_l, rule_for
from oblivionis import seeds
from oblivionis.config.schema import Config, LeakageAudit
from oblivionis.config.values import check_value, keys_of
from oblivionis.data.records import Corpus, Record
from oblivionis.data.tokenize import encode_prompts
from oblivionis.errors import OblivionisError
from oblivionis.measures.assessor import assemble_for
from oblivionis.models.configured_corpus import corpus_of
from oblivionis.naming import MODELS
from oblivionis.runs import artifact_binding
from oblivionis.runs.checkpoints import find_checkpoint
from oblivionis.runs.directory import RunDirectory

STAGES = ("finetune", "unlearn", "retrain")
WITHOUT_GENERATION = 64
"""Longest answer, in tokens, to the questions of a run whose full evaluation generates nothing."""
_KEYS = {key.path: key for key in keys_of(LeakageAudit, LeakageAudit())}
SETTINGS = {
    name: replace(_KEYS[name], optional=name != "seed")
    for name in ("temperature", "top_p", "top_k", "confidence", "samples", "max_new_tokens", "seed")
}
"""How answers are decoded: the settings that a conversation shares with a leakage audit; all but the seed may be unset.
"""


class ChatError(OblivionisError):
    """A question that cannot be asked or a setting that cannot be used."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """How answers are decoded: greedily, unless anything that only sampling has is set.

    temperature, top_p, top_k, confidence: as in `evaluation.engine.sampling.Rule`; the temperature is 1 where another
    one is set and it is not. samples: answers of each model. max_new_tokens: longest answer, None: that of the run's
    full evaluation. seed: of the samples and of the order of `Chat.draw`. Raises ChatError for a value out of range,
    and for temperature 0 with something that greedy decoding does not have.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    confidence: float | None = None
    samples: int | None = None
    max_new_tokens: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, key in SETTINGS.items():
            if (problem := check_value(key, getattr(self, name))[1]) is not None:
                raise ChatError(str(problem))
        given = self._only_sampled
        if self.temperature == 0 and given:
            raise ChatError(
                f"temperature 0 is greedy decoding, which knows no {' and no '.join(given)}; unset one side"
            )

    @property
    def _only_sampled(self) -> list[str]:
        return [n for n in ("top_p", "top_k", "confidence", "samples") if getattr(self, n) is not None]

    @property
    def rule(self) -> Rule | None:
        """What answers are drawn from; None: greedy."""
        if self.temperature == 0 or (self.temperature is None and not self._only_sampled):
            return None
        temperature = 1.0 if self.temperature is None else self.temperature
        return Rule(temperature, 1.0 if self.top_p is None else self.top_p, self.top_k, self.confidence)

    def describe(self) -> str:
        """All that differs from greedy decoding as the run's evaluation does it, in one line."""
        if self.rule is None:
            chosen = ["greedy"]
        else:
            chosen = [f"temperature {self.rule.temperature:g}"]
            chosen += [f"{name} {getattr(self, name):g}" for name in self._only_sampled]
            chosen.append(f"seed {self.seed}")
        return ", ".join(chosen + ([f"max_new_tokens {self.max_new_tokens}"] if self.max_new_tokens else []))


@dataclass(frozen=True, slots=True)
class Reply:
    """One question with each model's answers, by the model's name.

    For a question that the run's data know: `known` names its set, `truth` is the true answer and `recalls` holds the
    ROUGE-L recall of each answer, by words of any script where `any_script`. problems: why a model has no answer.
    """

    question: str
    answers: dict[str, list[str]]
    problems: dict[str, str]
    known: str = ""
    truth: str | None = None
    recalls: dict[str, list[float]] = field(default_factory=dict)
    any_script: bool = False


class Chat:
    """The models of a run's finished stages, ready to be asked.

    Sampled answers depend on the seed, on how many questions were answered before, and on the number of the sample: the
    same question asked twice gets different answers, the same conversation with the same seed gets the same ones.
    Models share the random numbers.
    """

    def __init__(
        self,
        target: Path,
        stages: Sequence[str] = (),
        decoding: Decoding | None = None,
        overrides: Sequence[str] = (),
    ) -> None:
        """Load the base model and the last checkpoints of `stages` (none named: of all finished ones).

        `overrides` change the run's own configuration, e.g. `model.device=cpu`. Raises RunError or ChatError when
        `target` is no run directory, a stage is not finished, or the base model is gone or another one.
        """
        self.run = artifact_binding.opened(target)
        self.stages = _finished(self.run, stages)
        _, first, self.config, _ = find_checkpoint(target, self.stages[0], overrides)
        self.assembled = assemble_for(self.run, self.config)
        self.vectors: dict[str, np.ndarray] = {}
        for stage in self.stages:
            checkpoint = first if stage == self.stages[0] else self.run.load_checkpoint(stage)
            self.vectors[stage] = self.assembled.numbers(checkpoint.vector)
        self.corpus, self._no_corpus = _corpus(self.config)
        self._known = {} if self.corpus is None else _known(self.corpus)
        self.decoding = decoding or Decoding()
        self.restart()

    def restart(self) -> None:
        """Begin the conversation anew: samples and drawn questions come as they came from its beginning."""
        self._answered = 0
        self._drawn: dict[str, list[Record]] = {}

    @property
    def max_new_tokens(self) -> int:
        return self.decoding.max_new_tokens or self.config.evaluation.full.max_new_tokens or WITHOUT_GENERATION

    def draw(self, name: str) -> Record:
        """A question of the set `forget` or `retain`: all of them in a seeded order, then again."""
        if self.corpus is None:
            raise ChatError(f"the run's data cannot be read: {self._no_corpus}")
        records = self.corpus.evaluation.get(name, ())
        if not records:
            raise ChatError(f"the run's data have no {name} questions")
        if not self._drawn.get(name):
            order = list(records)
            random.Random(seeds.derive(self.decoding.seed, "chat", name)).shuffle(order)
            self._drawn[name] = order[::-1]
        return self._drawn[name].pop()

    def ask(self, question: str) -> Reply:
        """Every model's answers to `question`; one that the run's data hold word for word is compared with the truth.

        An answer ends where the model's context does. Raises ChatError for a question that leaves no room for one.
        """
        question = question.encode("utf-8", "replace").decode()
        name, record = self._known.get(question, ("", None))
        return self._reply(question, name, record)

    def ask_known(self, name: str) -> Reply:
        """As `ask`, a question that `draw` draws from the set `forget` or `retain`."""
        record = self.draw(name)
        return self._reply(record.question, name, record)

    def _reply(self, question: str, name: str, record: Record | None) -> Reply:
        prompt = encode_prompts([question], self.assembled.tokenizer, self.assembled.template)[0]
        context = getattr(text_config(self.assembled.model), "max_position_embeddings", None)
        room = self.max_new_tokens if context is None else min(self.max_new_tokens, context - len(prompt))
        if room < 1:
            raise ChatError(f"the question has {len(prompt)} tokens as a prompt, the model's context is {context}")
        answers, problems = {}, {}
        for stage, vector in self.vectors.items():
            try:
                answers[MODELS[stage]] = self._answers(vector, prompt, room)
            except ValueError as error:
                problems[MODELS[stage]] = str(error)
        self._answered += 1
        if record is None:
            return Reply(question, answers, problems)
        truth, rule = record.answer, rule_for(record.answer, self.config.evaluation.rouge)
        any_script = rule == ANY_SCRIPT
        recalls = {m: rouge_l(texts, truth, any_script=any_script).recall.tolist() for m, texts in answers.items()}
        return Reply(question, answers, problems, name, truth, recalls, any_script)

    def _answers(self, vector: np.ndarray, prompt: tuple[int, ...], room: int) -> list[str]:
        """Raises ValueError where the model's logits are not finite."""
        assembled, decoding = self.assembled, self.decoding
        assembled.put(vector)
        pad = assembled.tokenizer.pad_token_id or 0
        with fused_lora(assembled.model):
            if decoding.rule is None:
                found = greedy(assembled.model, [prompt], max_new_tokens=room, stop_ids=assembled.stop_ids, pad_id=pad)
            else:
                found = sample(
                    assembled.model,
                    [prompt],
                    decoding.samples or 1,
                    max_new_tokens=room,
                    stop_ids=assembled.stop_ids,
                    rule=decoding.rule,
                    seed=decoding.seed,
                    questions=[self._answered],
                    pad_id=pad,
                )[0]
        return assembled.tokenizer.batch_decode(found, skip_special_tokens=True)


def _finished(run: RunDirectory, stages: Sequence[str]) -> list[str]:
    """The stages to ask, in the order of the report."""
    finished = [stage for stage in STAGES if run.stage_summary(stage) is not None]
    if not finished:
        raise ChatError(f"{run.path}: no stage is finished yet; continue with: oblivionis simulate --resume {run.path}")
    for stage in stages:
        if stage not in finished:
            raise ChatError(f"{run.path}: {stage!r} is no finished stage; finished: {', '.join(finished)}")
    return [stage for stage in finished if not stages or stage in stages]


def _corpus(config: Config) -> tuple[Corpus | None, str]:
    """The run's data, or why they cannot be read: free questions do without."""
    try:
        return corpus_of(config), ""
    except (OblivionisError, OSError) as error:
        return None, str(error)


def _known(corpus: Corpus) -> dict[str, tuple[str, Record]]:
    """Question -> its set and record; questions with several answers are left out."""
    found: dict[str, tuple[str, Record]] = {}
    several = set()
    trained = [("forget" if r.id in corpus.forget_ids else "retain", r) for r in corpus.train]
    asked = [(name, r) for name, records in corpus.evaluation.items() for r in records]
    for name, record in [*asked, *trained]:
        if found.setdefault(record.question, (name, record))[1].answer != record.answer:
            several.add(record.question)
    return {question: entry for question, entry in found.items() if question not in several}
