"""What the stages of a run share on the server: model, questions, partition, ledger, and the way to the clients."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord

from clients import losses
from clients.calibrated_forgetting import LEAST_REFERENCES
from clients.update_plan import moved_layers
from oblivionis import seeds
from oblivionis.config import compose as configuration
from oblivionis.config import dataset_traits
from oblivionis.config.identity import config_hash
from oblivionis.config.schema import Config
from oblivionis.data.errors import DataError
from oblivionis.data.records import Corpus
from oblivionis.erasure.alternative_answers_check import check_alternatives
from oblivionis.erasure.hidden_requests import seals
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.node_record_files import CONFIG_HASH, DATA_NODES, NODES_DIR
from oblivionis.erasure.node_request_sources import NodeRequests, SealedRequests
from oblivionis.erasure.remote_record_holders import RemoteHoldings, query_config
from oblivionis.erasure.schedule import holdings_of, policy_of
from oblivionis.erasure.verification_rules import Thresholds
from oblivionis.errors import RunError, RunInterrupted
from oblivionis.measures.assessor import Assessor, RemoteEvaluator
from oblivionis.measures.ruler.oracles import Oracle
from oblivionis.models.assembly import Assembled, assemble, averaging
from oblivionis.models.client_ranks import fitting
from oblivionis.models.configured_corpus import corpus_of
from oblivionis.models.fingerprint import fingerprint_model
from oblivionis.models.shard_merges import served
from oblivionis.models.update_bounds_settings import bounds_of
from oblivionis.runs.ancestry import begun_with
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.known_nodes import FILE as KNOWN_NODES
from oblivionis.runs.known_nodes import Keys, KnownNodes
from oblivionis.runs.privacy import Account, open_account
from oblivionis.runs.progress import Events
from oblivionis.server.grids import StoppableGrid
from oblivionis.server.round_settings import shards_of
from strategies import message_keys
from strategies.privacy.private_mean import PrivateMean
from strategies.rounds.fedtu import NodeMap
from strategies.rounds.nodes import Roster
from strategies.secure.agreed_parameters import SecureSettings

LOUD = 3.0
"""From this ratio of the noise's length to the updates' on, a user is warned."""
QUERY_S = 300.0
"""Longest wait for what a node says of itself."""


class Server:
    """Everything that the stages share: model, questions, partition, ledger, and the way to the clients.

    `assembled` is what the clients train, `start_vector` the global model before any training; its model is measured by
    `assessor`. `shards`: who belongs to which shard, None where there is one.

    `registered`: files with the public keys of the nodes, by which clients are known; None: nodes have no keys.
    `simulated`: nobody is to be protected from who knows the seed, so that noise may come from it.
    `roster`: which node holds which partition, where that is known without asking. `remote_evaluator`: measures at the
    same time.
    """

    def __init__(
        self,
        config: Config,
        grid: StoppableGrid,
        run: RunDirectory,
        events: Events,
        stop: threading.Event,
        registered: Sequence[Path] | None = None,
        *,
        simulated: bool = False,
        roster: Roster | None = None,
        remote_evaluator: RemoteEvaluator | None = None,
    ) -> None:
        self.config, self.grid, self.run, self.events, self.stop = config, grid, run, events, stop
        if config.federation.server_threads:
            torch.set_num_threads(config.federation.server_threads)
        torch.set_flush_denormal(True)
        corpus = corpus_of(config)
        known = KnownNodes(run.path / KNOWN_NODES)
        self.nodes = NodeMap(
            expected=config.federation.clients,
            min_nodes=config.federation.min_clients,
            wait_s=config.federation.wait_for_clients,
            timeout_s=min(config.federation.timeout, QUERY_S),
            config=query_config(config),
            partitions=config.federation.clients,
            identities=None if registered is None else Keys(known, registered),
            set_aside=self._set_aside,
            roster=None if config.data.on_clients else roster,
        )
        self.holdings = holdings_of(config, corpus, self.nodes, known)
        asked = "unlearn" in config.stages and run.stage_summary("unlearn") is None
        self.policy = policy_of(config, self.holdings) if asked else None
        check_alternatives(config, corpus, self.policy)
        self.remote = isinstance(self.holdings, RemoteHoldings)
        self.fingerprint = fingerprint_model(config.model)
        self.assembled = assemble(config.model, seeds.derive(config.seed, "adapter"))
        if asked:
            _check_moved_layers(config, self.assembled)
            _check_references(config, corpus)
        self.mean = averaging(config.model, self.assembled.flat.manifest)
        self.start_vector = np.tile(self.assembled.flat.numpy(), config.federation.shards)
        self.shards = shards_of(config, self.holdings)
        self.fitting = self.shards or fitting(config.model, self.assembled.flat.manifest, self.most_rank)
        bounds = bounds_of(config, self.holdings.declared, self.assembled.flat.size, reported=self.remote)
        self.bounds = bounds if self.shards is None else bounds.by_shard(self.shards)
        model = served(self.assembled, config)
        self.assessor = Assessor(model, corpus, config, self.start_vector, remote_evaluator=remote_evaluator)
        self.oracles: list[Oracle] = []
        self.simulated, self.starts_clients = simulated, roster is not None
        self.account: Account | None = None
        self.settings = configuration.to_yaml(config)
        run.write_environment(
            seed=config.seed,
            base_model=config.model.source,
            fingerprint=self.fingerprint,
            manifest_hash=self.assembled.manifest_hash,
            trainable_parameters=self.assembled.flat.size,
        )

    def most_rank(self, client: int) -> int:
        """The largest LoRA rank with which `client` trains, as it said; the run's where it said none."""
        most, answer = self.config.model.lora.rank, self.nodes.answers.get(client)
        for record in answer.metric_records.values() if answer is not None else ():
            rank = record.get(message_keys.LORA_RANK)
            if isinstance(rank, int) and rank >= 1:
                return min(rank, most)
        return most

    def message_config(self, stage: str) -> ConfigRecord:
        """What every message of a stage carries besides the model."""
        return ConfigRecord(
            {
                "settings": self.settings,
                "fingerprint": self.fingerprint,
                "manifest-hash": self.assembled.manifest_hash,
                message_keys.RUN: self.run.name,
                NODES_DIR: str(self.run.nodes_path),
                **({DATA_NODES: self.config.data.nodes} if self.remote and self.config.data.nodes else {}),
                "exclude": "forget-split" if stage == "retrain" else "",
                **self._noise(),
            }
        )

    def secure_sums(self, private: PrivateMean | None) -> SecureSettings | None:
        """How exchanges are held as secure sums, in which clients bring the noise of `private`; None: they are not."""
        secure = self.config.federation.secure_aggregation
        if not secure.enabled:
            return None
        return SecureSettings(
            clipping=secure.clipping,
            shares=secure.shares,
            threshold=secure.threshold,
            bits=secure.bits,
            max_weight=secure.max_weight,
            patience=secure.patience,
            private=None if private is None else private.shared,
            follow=None if private is None else private.follow,
            tell=self.config.privacy.level == "none" and not seals(self.config),
        )

    def _noise(self) -> dict[str, float]:
        """What clients need to know that add noise themselves."""
        account = self.account
        if account is None or (account.level != "record" and not self.config.federation.secure_aggregation.enabled):
            return {}
        return {message_keys.NOISE_MULTIPLIER: account.noise_multiplier}

    def open_account(self) -> None:
        """Begin the account of the run's privacy, or go on with it, and say what it starts from."""
        clients = range(self.config.federation.clients)
        marked = self.holdings.forget
        records = {c: (n, len(marked.get(c, ()))) for c in clients if (n := self.holdings.count(c)) > 0}
        self.account = open_account(self.config, self.run, records, secret=not self.simulated)
        if self.account is None:
            return
        self.events.note(self.account.sentence)
        federation = self.config.federation
        drawn = federation.per_round
        longer = self.account.noise_multiplier * math.sqrt(self.assembled.flat.size) / drawn
        if self.account.level == "client" and longer > LOUD:
            self.events.warning(
                f"the noise of a round is about {longer:.0f} times as long as the mean of its {drawn} clipped updates "
                "can be, whatever privacy.clipping_norm is: little will be learnt. More clients in a round "
                "(federation.clients, federation.fraction_train), fewer trainable numbers (model.lora.rank, "
                "model.lora.target_modules) or a larger privacy.epsilon make it less"
            )

    def private_mean(self, stage: str) -> PrivateMean | None:
        """What makes one noised update of those of an exchange of `stage`; None unless clients are to be hidden."""
        privacy, account = self.config.privacy, self.account
        if account is None or privacy.level != "client":
            return None
        assert privacy.clipping_norm is not None
        return PrivateMean(
            account.noise_multiplier,
            privacy.clipping_norm,
            adaptive=privacy.clipping == "adaptive",
            seed=seeds.derive(self.config.seed, "noise", stage) if self.simulated else None,
            on_release=lambda release: account.release(stage, release),
        )

    def node_requests(self) -> NodeRequests | SealedRequests:
        """The requests that are made on the clients' machines, by the run's ledger."""
        unlearning = self.config.unlearning
        if seals(self.config):
            return self._sealed_requests()
        return NodeRequests(
            *self._ledger_and_thresholds(),
            **self._asking(),
            most=unlearning.requests.max_per_round,
            again=unlearning.again,
            per_round=unlearning.requests.per_round,
        )

    def _sealed_requests(self) -> SealedRequests:
        """The same where the server sees none of them: each round of the stage unlearn has a cover exchange."""
        return SealedRequests(*self._ledger_and_thresholds(), **self._asking())

    def _ledger_and_thresholds(self) -> tuple[Ledger, Thresholds]:
        return Ledger(self.run.ledger_path), Thresholds.of(self.config.unlearning.requests)

    def _asking(self) -> dict[str, Any]:
        """What a source that asks the nodes needs for it."""
        return {
            "run": self.run.name,
            "nodes": self.nodes,
            "grid": self.grid,
            "settings": {NODES_DIR: str(self.run.nodes_path), CONFIG_HASH: config_hash(self.config)},
            "live": lambda client: self.holdings.live(client, without_forget_split=False),
            "warn": self.events.warning,
            "last_round": self.config.federation.rounds.unlearn,
            "descent": begun_with(self.run),
        }

    def _set_aside(self, client: int, node: int, reason: str) -> None:
        self.events.warning(f"node {node} says that it is client {client}, and is set aside: {reason}")

    def check_stop(self) -> None:
        if self.stop.is_set():
            raise RunInterrupted("stopped by Ctrl-C")

    def initial_vector(self, stage: str) -> np.ndarray:
        """The global model that `stage` starts from: the finetuned one for unlearn, else the fresh adapter."""
        if stage != "unlearn":
            return self.start_vector
        if self.run.stage_summary("finetune") is None:
            raise RunError(
                "the stage unlearn starts from the finetuned model: put finetune before it in `stages`, or name a "
                "finished run with `start_from`"
            )
        return self.run.load_checkpoint("finetune").vector


def _check_references(config: Config, corpus: Corpus) -> None:
    """DataError for fewer records that nobody trains on than clients can judge by; what a node brings, it checks."""
    if config.unlearning.target is None or config.data.on_clients:
        return
    count, key = len(corpus.evaluation.get("reference", ())), dataset_traits.of(config.data.name).references
    if count < LEAST_REFERENCES:
        raise DataError(
            f"data.{key}: {count} reference records are too few to judge by; expected at least {LEAST_REFERENCES}, or "
            "unlearning=npo, which takes none"
        )


def _check_moved_layers(config: Config, assembled: Assembled) -> None:
    """RunError for a loss that moves layers of which the model has none, or in which nothing is trained."""
    method = config.unlearning.method
    if method not in losses.names() and not method.endswith(".py"):
        return
    try:
        loss = losses.get(method)
        moved_layers(assembled.model, assembled.flat, loss, loss.parameters(config.unlearning.params))
    except ValueError as error:
        raise RunError(
            f"unlearning.params: {error}; choose another layer, or model.lora.target_modules that these layers have"
        ) from error
