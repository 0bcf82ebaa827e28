"""The resident part of a client process: one base model and the records, however many clients the process plays."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clients import losses
from clients.calibrated_forgetting import Estimator, Target
from clients.entropy import Entropy
from clients.flat_parameters import FlatParameters
from clients.optimisation import BETAS, Ball
from clients.record_level_dp import Privacy, train_privately, unlearn_privately
from clients.training import Prox, TrainReport, TrainSettings, train
from clients.unlearning import UnlearnOptions, UnlearnReport, unlearn
from evaluation.engine.fused_lora import fused_lora
from evaluation.engine.models import evaluation_mode
from evaluation.engine.sequences import TokenSequence
from oblivionis import seeds
from oblivionis.client.base_dialogues import base_dialogues
from oblivionis.config import method_traits
from oblivionis.config.schema import Config
from oblivionis.data import alternative_answers, idk_answers
from oblivionis.data.corpora import load_partition
from oblivionis.data.records import Corpus, Record
from oblivionis.data.tokenize import encode_all, encode_pairs
from oblivionis.data.twins import with_twins
from oblivionis.erasure.node_record_files import NodeRecords
from oblivionis.erasure.verification_evidence import measurable_words
from oblivionis.erasure.verification_rules import Thresholds
from oblivionis.errors import ClientError
from oblivionis.measures.recitation import greedy_recall, new_session, sampled_recall
from oblivionis.models import adapters
from oblivionis.models.assembly import Assembled, assemble, of_rank, refitted
from oblivionis.models.configured_corpus import corpus_of
from oblivionis.models.random_model import expected_distance
from oblivionis.models.shard_merges import served
from strategies import message_keys

_RESIDENT_PARTITIONS = 64
DIALOGUES = 12
"""How many dialogues the base model writes for a client that gives up more records than it keeps."""
LOOKS = 3
"""How often at most a client looks, after it has unlearned, whether it still recites a record, and goes on if so."""


@dataclass(frozen=True, slots=True)
class Holding:
    """One client's records in their order, with their token sequences; `marked`: ids of the forget split."""

    records: tuple[Record, ...]
    sequences: tuple[TokenSequence, ...]
    truncated: int
    marked: frozenset[str] = frozenset()

    def identified(self) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
        """Each record by its id, with the tokens of its prompt and of its answer."""
        return [(r.id, s.prompt, s.answer) for r, s in zip(self.records, self.sequences, strict=True)]

    def select(self, excluded: Collection[str]) -> list[TokenSequence]:
        """The token sequences of all records but the excluded ones."""
        return [s for r, s in zip(self.records, self.sequences, strict=True) if r.id not in excluded]


class Worker:
    """A base model with its adapter slot, and the corpus. Built once per process and configuration.

    Of `node` data there is no corpus: clients bring their own records with `hold`.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self._rank = config.model.lora.rank
        torch.set_num_threads(max(1, config.federation.client_threads))
        torch.set_flush_denormal(True)
        self.assembled = assemble(config.model, seeds.derive(config.seed, "adapter"))
        self.flat: FlatParameters = self.assembled.flat
        self._start = None if config.unlearning.target is None else self.flat.numpy()
        own = config.data.on_clients
        self.corpus = Corpus("node", (), frozenset()) if own else corpus_of(config)
        self.partition = None if own else load_partition(self.corpus, config)
        self.holdings: OrderedDict[int, Holding] = OrderedDict()
        self._references: list[TokenSequence] | None = None
        self._estimator: Estimator | None = None
        self._dialogues: dict[int, list[TokenSequence]] = {}

    def fit(self, rank: int) -> None:
        """Train adapters of this rank from now on, on the same base model."""
        if rank == self._rank:
            return
        seed = seeds.derive(self.config.seed, "adapter")
        self.assembled = refitted(self.assembled, of_rank(self.config.model, rank), seed)
        self.flat, self._rank = self.assembled.flat, rank
        self._start = None if self._start is None else self.flat.numpy()
        self._estimator = None

    def served(self) -> Assembled:
        """The model that is measured: of shards what is made of them all. Training needs `fit` again."""
        self.fit(self.config.model.lora.rank)
        made = served(self.assembled, self.config)
        if made.flat is not self.flat:
            self.assembled, self.flat, self._rank = made, made.flat, 0
        return made

    @cached_property
    def _perturbed(self) -> dict[str, tuple[str, ...]]:
        """Wrong answers by record id, of the corpus."""
        return alternative_answers.perturbed_answers(self.corpus)

    def holding(self, client: int) -> Holding:
        """The records of `client`, tokenised; the most recently used clients stay in memory."""
        if client in self.holdings:
            self.holdings.move_to_end(client)
            return self.holdings[client]
        if self.partition is None:
            raise ClientError(f"client {client} has not read its own records")
        if not 0 <= client < len(self.partition.clients):
            raise ClientError(f"partition {client} does not exist: the configuration has {len(self.partition.clients)}")
        records = tuple(self.corpus.train[i] for i in self.partition.clients[client])
        return self.keep(client, records, self.corpus.forget_ids)

    def hold(self, client: int, own: NodeRecords) -> Holding:
        """Take `own` as the records of `client`; they are tokenised anew only if they have changed."""
        known = self.holdings.get(client)
        marked = with_twins(own.marked, own.records) if self.config.data.forget_twins else own.marked
        if known is not None and (known.records, known.marked) == (own.records, marked):
            return self.holding(client)
        return self.keep(client, own.records, marked)

    def keep(self, client: int, records: tuple[Record, ...], marked: frozenset[str]) -> Holding:
        """Tokenise what a client holds, of which `marked` may be to be forgotten, and keep it for later calls."""
        sequences, truncated = self._encoded(records)
        self.holdings[client] = Holding(records, tuple(sequences), truncated, marked)
        while len(self.holdings) > _RESIDENT_PARTITIONS:
            self.holdings.popitem(last=False)
        return self.holdings[client]

    def _encoded(self, records: Sequence[Record]) -> tuple[list[TokenSequence], int]:
        """The token sequences of `records`, and how many were truncated."""
        encoded, truncated = encode_all(
            records,
            self.assembled.tokenizer,
            self.assembled.template,
            max_length=self.config.model.max_length,
            on_overflow=self.config.model.on_overflow,
        )
        return [TokenSequence(e.prompt, e.answer) for e in encoded], truncated

    def references(self, own: Sequence[Record] | None = None) -> list[TokenSequence]:
        """The records that nobody trains on, by which the client judges; `own` where it brings them itself."""
        if own is not None:
            return self._encoded(own)[0]
        if self._references is None:
            self._references = self._encoded(self.corpus.evaluation.get("reference", ()))[0]
        return self._references

    def finetune(
        self,
        client: int,
        vector: np.ndarray,
        *,
        excluded: Collection[str],
        epochs: int,
        proximal_mu: float,
        seed: int,
        moving: np.ndarray | None = None,
        privacy: Privacy | None = None,
    ) -> tuple[np.ndarray, TrainReport]:
        """Train from the global `vector` on all records of `client` but `excluded`; the new vector and a report.

        moving (size,), bool: which numbers may change, None for all. With `privacy` its records are hidden (DP-SGD);
        then all numbers change, and ClientError where not all may.
        """
        sequences = self.holding(client).select(excluded)
        if not sequences:
            raise ClientError(f"client {client} has no record left to train on")
        self._load(vector)
        settings = self.settings(epochs=epochs)
        prox = Prox(proximal_mu, vector) if proximal_mu > 0 else None
        model = self.assembled.model
        if privacy is None:
            mask = None if moving is None else torch.as_tensor(moving, device=self.flat.device)
            report = train(model, self.flat, sequences, settings, prox=prox, moving=mask, seed=seed)
        elif moving is not None:
            raise ClientError("training under record-level privacy moves every number of the model")
        else:
            report = train_privately(model, self.flat, sequences, settings, privacy, prox=prox, seed=seed)
        return self.flat.numpy(), report

    def forget(
        self,
        client: int,
        vector: np.ndarray,
        *,
        record_ids: Collection[str],
        tombstones: Collection[str],
        proximal_mu: float,
        seed: int,
        reference: np.ndarray | None = None,
        own_references: Sequence[Record] | None = None,
        privacy: Privacy | None = None,
    ) -> tuple[np.ndarray, UnlearnReport]:
        """Run the configured unlearning operator with `record_ids` as forget set and the live rest as retain set.

        A client that gives up more records than it keeps is held to what the received model says of the reference
        records, too, and to what the base model says by itself, where the method has a target. A method that learns
        other answers in their place is given some, drawn by `seed`; ClientError where there are none, or where it needs
        retain records and none is left.
        own_references: the client's own records that nobody trains on, where its records are its own. reference: the
        model of the other clients, for a method that starts from it. With `privacy` the records of both sets are hidden
        (DP-SGD).
        """
        forget_set, retain_set = self._divided(client, record_ids, tombstones)
        self._check_retain_records(client, retain_set)
        method = self.config.unlearning.method
        if method_traits.starts_from_others(method):
            if reference is None:
                raise ClientError(f"{method} starts from the model of the other clients, which the server did not send")
            vector = reference
        needs_alternatives = losses.get(method).needs_alternatives
        alternatives = self._alternatives(client, record_ids, seed) if needs_alternatives else ()
        self._load(vector)
        settings = self._unlearning_settings()
        options = self._unlearning_options(vector, proximal_mu, self._target(forget_set, settings, own_references))
        values, model = dict(self.config.unlearning.params), self.assembled.model

        def unlearned(options: UnlearnOptions, seed: int) -> UnlearnReport:
            retained, options = self._held(client, forget_set, retain_set, options, own_references)
            given = (model, self.flat, forget_set, retained, method, values, settings)
            if privacy is None:
                return unlearn(*given, seed=seed, options=options, alternatives=alternatives)
            return unlearn_privately(*given, privacy, seed=seed, options=options)

        report = unlearned(options, seed)
        if options.target is not None and method_traits.ends_recitation(method):
            for look in range(1, LOOKS + 1):
                if not (recited := self._recited_beyond_chance(client, record_ids, seed)):
                    break
                target = self._target(forget_set, settings, own_references, recited)
                later = unlearned(replace(options, target=target), seeds.derive(seed, look))
                report = report.then(later)
                if not later.steps:
                    break
        return self.flat.numpy(), report

    def _held(
        self,
        client: int,
        forget_set: Sequence[TokenSequence],
        retain_set: Sequence[TokenSequence],
        options: UnlearnOptions,
        own_references: Sequence[Record] | None,
    ) -> tuple[Sequence[TokenSequence], UnlearnOptions]:
        """The retain set and the options, with what else a client is held to that gives up more records than it keeps.

        Nothing where the method has no target, or its target is met already (`Estimator.target`).
        """
        target = options.target
        if target is None or target.lowered is None or len(retain_set) >= len(forget_set):
            return retain_set, options
        if not method_traits.has_retain_choice(self.config.unlearning.method):
            return retain_set, options
        references, dialogues = self.references(own_references), self._base_dialogues(client)
        held = len(references) + len(dialogues)
        return [*retain_set, *references, *dialogues], replace(options, held=held, held_to_base=len(dialogues))

    def _recited_beyond_chance(self, client: int, record_ids: Collection[str], seed: int) -> list[int]:
        """Places, among the named records of `client`, of those that the model recites as it is now, and more of them
        than the untouched base model says by chance."""
        wanted, thresholds = set(record_ids), Thresholds.of(self.config.unlearning.requests)
        records = [r for r in self.holding(client).records if r.id in wanted]
        recalls = self._recalls(records, seed)
        recited = [i for i, r in enumerate(records) if thresholds.is_recited(measurable_words(r), recalls[i])]
        if not recited or self._start is None:
            return recited
        with self._as_base():
            chance = self._recalls([records[i] for i in recited], seed)
        return [i for i, by_chance in zip(recited, chance, strict=True) if recalls[i] > by_chance]

    def _base_dialogues(self, client: int) -> list[TokenSequence]:
        """What the untouched base model asks and answers by itself, for each client something else; nothing where the
        client holds plain text."""
        if self.holding(client).records[0].tokens:
            return []
        if client not in self._dialogues:
            with self._as_base():
                seed = seeds.derive(self.config.seed, "base dialogues", client)
                self._dialogues[client] = base_dialogues(self.assembled, DIALOGUES, seed)
            while len(self._dialogues) > _RESIDENT_PARTITIONS:
                self._dialogues.pop(next(iter(self._dialogues)))
        return self._dialogues[client]

    @contextmanager
    def _as_base(self) -> Iterator[None]:
        """The model as the untouched base model."""
        assert self._start is not None
        present = self.flat.numpy()
        self.flat.load(self._start)
        try:
            yield
        finally:
            self.flat.load(present)

    def _recalls(self, records: Sequence[Record], seed: int) -> list[float]:
        """Recall of the greedy answer of the model as it is now to each of these records, or of a sampled one where
        that is larger."""
        assembled, config, samples = self.assembled, self.config, self.config.unlearning.sampled_answers
        with fused_lora(assembled.model), evaluation_mode(assembled.model):
            greedy = greedy_recall(new_session(assembled, config), records, assembled, config)
            if not samples:
                return greedy
            sampled = sampled_recall(records, assembled, config, samples=samples, seed=seed)
        return list(map(max, greedy, sampled))

    def _check_retain_records(self, client: int, retain_set: Sequence[TokenSequence]) -> None:
        """ClientError where the configured unlearning needs retain records and the client has none left."""
        unlearning = self.config.unlearning
        if retain_set:
            return
        if losses.get(unlearning.method).needs_retain:
            raise ClientError(
                f"unlearning.method {unlearning.method} needs retain records, and client {client} has none left; "
                "choose another method"
            )
        if unlearning.rectify.enabled:
            raise ClientError(
                f"unlearning.rectify needs retain records, and client {client} has none left; set "
                "unlearning.rectify.enabled=false"
            )

    def _unlearning_settings(self) -> TrainSettings:
        """The configured training, with what the configuration changes of it for unlearning."""
        unlearning = self.config.unlearning
        return self.settings(
            epochs=unlearning.epochs,
            learning_rate=unlearning.learning_rate,
            batch_size=unlearning.batch_size,
            weight_decay=unlearning.weight_decay,
            max_grad_norm=unlearning.max_grad_norm,
            schedule=unlearning.schedule,
            betas=(unlearning.beta_1, BETAS[1]),
        )

    def _unlearning_options(self, vector: np.ndarray, proximal_mu: float, target: Target | None) -> UnlearnOptions:
        """The configured options of an unlearning that starts from `vector`, with those of its method."""
        unlearning = self.config.unlearning
        method, ball, limit = unlearning.method, None, unlearning.forget_nll_limit
        if (radius := method_traits.ball(method)) is not None:
            ball = Ball(vector, unlearning.params[radius] or self._distance_to_random(vector) / 3)
        if method_traits.stops_at_chance(method):
            limit = limit or math.log(len(self.assembled.tokenizer))
        return UnlearnOptions(
            prox=Prox(proximal_mu, vector) if proximal_mu > 0 else None,
            ball=ball,
            entropy=Entropy(unlearning.entropy.forget, unlearning.entropy.retain),
            retain_loss=unlearning.retain_loss,
            forget_nll_limit=limit,
            target=target,
            rectify=unlearning.rectify.smoothing if unlearning.rectify.enabled else None,
        )

    def _target(
        self,
        records: Sequence[TokenSequence],
        settings: TrainSettings,
        own: Sequence[Record] | None,
        recited: Collection[int] = frozenset(),
    ) -> Target | None:
        """Up to what `records`, of which those at the places `recited` are recited, are forgotten from the model as it
        is now, None where the method goes its own way."""
        unlearning = self.config.unlearning
        if unlearning.target is None or self._start is None:
            return None
        references = tuple(self.references(own))
        try:
            if self._estimator is None or self._estimator.references != references:
                model, size = self.assembled.model, settings.batch_size
                self._estimator = Estimator(model, self.flat, self._start, references, size)
            return self._estimator.target(records, unlearning.tolerance, recited)
        except ValueError as error:
            raise ClientError(f"unlearning.target: {error}") from None

    def _alternatives(self, client: int, record_ids: Collection[str], seed: int) -> list[list[TokenSequence]]:
        """Other answers to the questions of the named records of `client`, in the order of its records."""
        wanted = set(record_ids)
        records = [r for r in self.holding(client).records if r.id in wanted]
        unlearning = self.config.unlearning
        if unlearning.alternatives.source == "idk":
            file = unlearning.alternatives.idk
            sentences = idk_answers.read_sentences(Path(file).expanduser()) if file else idk_answers.SENTENCES
            choices = dict.fromkeys(wanted, sentences)
        else:
            choices = {r.id: r.perturbed_answers or self._perturbed.get(r.id, ()) for r in records}
            if without := [r.id for r in records if not choices[r.id]]:
                raise ClientError(f"client {client}: {alternative_answers.missing_answers(unlearning.method, without)}")
        drawn = [alternative_answers.drawn(choices[r.id], seed, r.id, unlearning.epochs) for r in records]
        encoded = encode_pairs(
            [(r.question, answer) for r, answers in zip(records, drawn, strict=True) for answer in answers],
            self.assembled.tokenizer,
            self.assembled.template,
            max_length=self.config.model.max_length,
            on_overflow=self.config.model.on_overflow,
            names=[f"another answer of {r.id}" for r, answers in zip(records, drawn, strict=True) for _ in answers],
        )
        sequences = iter(TokenSequence(e.prompt, e.answer) for e in encoded)
        return [list(itertools.islice(sequences, len(answers))) for answers in drawn]

    def _divided(
        self, client: int, record_ids: Collection[str], tombstones: Collection[str]
    ) -> tuple[list[TokenSequence], list[TokenSequence]]:
        """The named records of `client`, and its other live ones; ClientError for one that it does not hold."""
        holding = self.holding(client)
        held = {r.id for r in holding.records}
        foreign = [i for i in record_ids if i not in held]
        if foreign:
            raise ClientError(f"client {client} does not hold record {foreign[0]!r} ({len(foreign)} unknown)")
        wanted = set(record_ids)
        return holding.select(held - wanted), holding.select(wanted.union(tombstones))

    def _distance_to_random(self, vector: np.ndarray) -> float:
        """Expected distance of `vector` from the parameters of a randomly initialised model."""
        model = self.config.model
        initializer_range = getattr(self.assembled.model.config, "initializer_range", 0.02)
        return expected_distance(vector, self.flat.manifest, model.mode, initializer_range)

    def _load(self, vector: np.ndarray) -> None:
        """Give the model these parameters; an error where they are not of its shape."""
        adapters.check_vector(vector, self.flat.manifest)
        self.flat.load(vector)

    def settings(self, *, epochs: int, **changes: Any) -> TrainSettings:
        """The configured training, for so many epochs and with these changes."""
        training = self.config.training
        values: dict = {
            "learning_rate": training.learning_rate,
            "weight_decay": training.weight_decay,
            "batch_size": training.batch_size,
            "warmup_epochs": training.warmup_epochs,
            "warmup_ratio": training.warmup_ratio,
            "schedule": training.schedule,
            "max_grad_norm": training.max_grad_norm,
            "gradient_accumulation": training.gradient_accumulation,
            "optimizer": training.optimizer,
            "gradient_checkpointing": training.gradient_checkpointing,
        }
        values.update({k: v for k, v in changes.items() if v is not None})
        return TrainSettings(epochs=epochs, **values)


def unlearning_metrics(report: UnlearnReport) -> dict[str, float]:
    """What a client reports of its unlearning in addition to the model; what it did not measure is left out."""
    numbers = {
        message_keys.NUM_EXAMPLES: report.num_examples,
        "unlearn-steps": report.steps,
        "unlearn-loss": report.last_loss,
        "forget-nll-before": report.first_forget_nll,
        "forget-nll-after": report.last_forget_nll,
        "forget-entropy-before": report.first_forget_entropy,
        "forget-entropy-after": report.last_forget_entropy,
        "forget-gap-before": report.first_gap,
        "forget-gap-after": report.last_gap,
    }
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


current: Worker | None = None
"""The worker that this process keeps."""


def resident(config: Config) -> Worker:
    """This process's worker for `config`, rebuilt only when what it was built from changes."""
    global current
    if current is None or _built_from(current.config) != _built_from(config):
        current = None
        current = Worker(config)
    current.config = config
    return current


def _built_from(config: Config) -> tuple[object, ...]:
    """The part of a configuration that a worker is built from."""
    parts = (config.model, config.data, config.federation.clients, config.federation.client_threads, config.seed)
    return *parts, config.unlearning.target
