"""What the stages of a run share on the server: model, questions, partition, ledger, and the way to the clients."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from flwr.app import ConfigRecord
from flwr.serverapp import Grid

from oblivionis import seeds
from oblivionis.assessment.assessor import Assessor
from oblivionis.assessment.ruler_oracles import Oracle
from oblivionis.config import compose as configuration
from oblivionis.config.identity import config_hash
from oblivionis.config.schema import Config
from oblivionis.errors import RunError, RunInterrupted
from oblivionis.models.assembly import assemble, averaging
from oblivionis.models.corpus import corpus_of
from oblivionis.models.fingerprint import fingerprint_source
from oblivionis.requests.alternatives import check_alternatives
from oblivionis.requests.from_nodes import NodeRequests
from oblivionis.requests.ledger import Ledger
from oblivionis.requests.node_records import CONFIG_HASH, DATA_NODES, NODES_DIR
from oblivionis.requests.remote_holdings import RemoteHoldings, query_config
from oblivionis.requests.schedule import holdings_of, policy_of
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.known_nodes import FILE as KNOWN_NODES
from oblivionis.runs.known_nodes import Keys, KnownNodes
from oblivionis.runs.progress import Events
from oblivionis.server.bounds import bounds_of
from strategies import protocol
from strategies.fedtu import NodeMap

QUERY_S = 300.0
"""Longest wait for what a node says of itself."""


class Server:
    """Everything that the stages share: model, questions, partition, ledger, and the way to the clients.

    `registered`: files with the public keys of the nodes, by which clients are known; None: nodes have no keys.
    """

    def __init__(
        self,
        config: Config,
        grid: Grid,
        run: RunDirectory,
        events: Events,
        stop: threading.Event,
        registered: Sequence[Path] | None = None,
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
        )
        self.holdings = holdings_of(config, corpus, self.nodes, known)
        asked = "unlearn" in config.stages and run.stage_summary("unlearn") is None
        self.policy = policy_of(config, self.holdings) if asked else None
        check_alternatives(config, corpus, self.policy)
        self.remote = isinstance(self.holdings, RemoteHoldings)
        self.fingerprint = fingerprint_source(config.model.source, config.model.revision)
        self.assembled = assemble(config.model, seeds.derive(config.seed, "adapter"))
        self.mean = averaging(config.model, self.assembled.flat.manifest)
        self.start_vector = self.assembled.flat.numpy()
        self.bounds = bounds_of(config, self.holdings.declared, self.assembled.flat.size, told=self.remote)
        self.assessor = Assessor(self.assembled, corpus, config, self.start_vector)
        self.oracles: list[Oracle] = []
        self.settings = configuration.to_yaml(config)
        run.write_environment(
            seed=config.seed,
            base_model=config.model.source,
            fingerprint=self.fingerprint,
            manifest_hash=self.assembled.manifest_hash,
            trainable_parameters=self.assembled.flat.size,
        )

    def message_config(self, stage: str) -> ConfigRecord:
        """What every message of a stage carries besides the model."""
        return ConfigRecord(
            {
                "settings": self.settings,
                "fingerprint": self.fingerprint,
                "manifest-hash": self.assembled.manifest_hash,
                protocol.RUN: self.run.name,
                NODES_DIR: str(self.run.nodes_path),
                **({DATA_NODES: self.config.data.nodes} if self.remote and self.config.data.nodes else {}),
                "exclude": "forget-split" if stage == "retrain" else "",
            }
        )

    def node_requests(self) -> NodeRequests:
        """The requests that are made on the clients' machines, by the run's ledger."""
        return NodeRequests(
            Ledger(self.run.ledger_path),
            self.config.unlearning.requests.verify_max_rouge,
            run=self.run.name,
            nodes=self.nodes,
            grid=self.grid,
            settings={NODES_DIR: str(self.run.nodes_path), CONFIG_HASH: config_hash(self.config)},
            live=lambda client: self.holdings.live(client, without_forget_split=False),
            warn=self.events.warning,
            most=self.config.unlearning.requests.max_per_round,
            again=self.config.unlearning.again,
        )

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
