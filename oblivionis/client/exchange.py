"""One exchange with a server: a message that works on the model, with the model, records and seed that serve it."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from clients.record_level_dp import Privacy
from oblivionis import seeds
from oblivionis.client.admission import admitted
from oblivionis.client.node_message import NodeMessage
from oblivionis.client.single_participation import Turn, hidden, take_part
from oblivionis.client.worker import Worker, resident
from oblivionis.config import method_traits
from oblivionis.config.schema import Config
from oblivionis.data.records import Record
from oblivionis.data.twins import content_key
from oblivionis.erasure.hidden_requests import sealed_counts, seals
from oblivionis.erasure.node_ledger import BESIDE, RECORDS, NodeLedger
from oblivionis.erasure.node_record_files import left_of, other_files_hash, read_node, read_references, records_hash
from oblivionis.erasure.standing_demands import hold_back
from oblivionis.erasure.unlearn_messages import accept
from oblivionis.errors import ClientError
from oblivionis.runs.directory import vector_hash
from strategies import message_keys

log = logging.getLogger("flwr")


class Exchange:
    """A message that works on the model, once it is admitted.

    Attributes: the `message`; the run's `config`; the `worker` with model and records; `run_seed` by the run's seed,
    stage, client and round, and the `turn` by which the client does the work, with the `seed` that it uses; `began`,
    when the message was taken up (monotonic clock, seconds).
    """

    def __init__(self, message: NodeMessage) -> None:
        self.began = time.monotonic()
        self.message, self.client, self.node = message, message.client, message.node
        self.config = admitted(message)
        self.worker = _prepared_worker(message, self.config)
        self.run_seed = seeds.derive(self.config.seed, message.stage, message.client, message.round)
        self.turn = _turn(message, self.run_seed)
        self.seed = self.turn.seed

    @property
    def records(self) -> tuple[Record, ...]:
        """All records that the client holds."""
        return self.worker.holding(self.client).records

    @property
    def held(self) -> list[str]:
        """Ids of all records that the client holds."""
        return [record.id for record in self.records]

    def withheld(self) -> set[str]:
        """Ids of records not to be trained on: those excluded, and those that requests on this node name."""
        return {*self.node.tombstones(), *NodeLedger(self.node.path).asked()}

    def without_rested(self, excluded: Collection[str], least: int) -> set[str]:
        """`excluded`, and the records that a client that repeats its work goes without; at least `least` are left.

        With fresh noise on all that it learned no record is left out.
        """
        if hidden(self.config.privacy.level, self.message.real(message_keys.NOISE_MULTIPLIER, 0.0)):
            return set(excluded)
        live = [i for i in self.held if i not in excluded]
        return {*excluded, *self.turn.left_out(live, least)}

    def past_round(self) -> Mapping[str, Any]:
        """The line of the client's own ledger about the round that is held again, as the server's history has it.

        ClientError where there is none, or the client held other records then: those were not trained on. Records that
        it withheld then already may be gone.
        """
        message = self.message
        what = f"round {message.round} of {message.stage}"
        wanted = {
            "kind": message.kind,
            "run": message.run,
            "seed": self.run_seed,
            "replay": message.integer(message_keys.REPLAYED_BEFORE, 0),
            "exclude": "",
        }
        lines = [{"replay": 0, "exclude": "", **e} for e in NodeLedger(self.node.path).exchanges()]
        lines = [e for e in lines if wanted.items() <= e.items()]
        if not lines:
            raise ClientError(
                f"client {self.client} is to hold {what} again, and its ledger does not say that it took part in it in "
                "this run"
            )
        line, here = lines[-1], self.basis()
        withheld = self._withheld_at(line)
        if (withheld - self.withheld()).issubset(self.held) and line.get("trained") == self.proven_records(withheld):
            del here[RECORDS]  # the records that are left are those of that round
        if any(line.get(name) != found for name, found in here.items()):
            raise ClientError(f"client {self.client} holds other records than in {what}")
        return line

    def changed_since(self, line: Mapping[str, Any]) -> set[str]:
        """Ids of the held records that are withheld now and were not at a line of the client's ledger, or were then."""
        return (self.withheld() ^ self._withheld_at(line)).intersection(self.held)

    def _withheld_at(self, line: Mapping[str, Any]) -> set[str]:
        """What `withheld` gave at a line of the client's ledger."""
        return {*line["asked"], *(i for i, _ in self.node.tombstone_lines()[: line["tombstones"]])}

    def check_as_then(self, line: Mapping[str, Any], vector: np.ndarray) -> None:
        """ClientError where the same model and records gave another `vector` at a line of the client's ledger."""
        if line.get("before") == vector_hash(self.message.vector) and line.get("after") != vector_hash(vector):
            raise ClientError(
                f"client {self.client} does not give what it gave in round {self.message.round} of "
                f"{self.message.stage}: its software or its processor has changed"
            )

    def basis(self) -> dict[str, str]:
        """Hashes of what the client works with: all its records, and the files read in addition."""
        return {
            RECORDS: records_hash(self.worker.holding(self.client).identified()),
            BESIDE: other_files_hash(self.node.path),
        }

    def proven_records(self, excluded: Collection[str]) -> str:
        """The hash of the records that are left to train on without those `excluded`; empty where no past round can be
        held again, so that nothing is to be proven by it."""
        if not method_traits.replays(self.config.unlearning.method):
            return ""
        return left_of(self.worker.holding(self.client).identified(), excluded)

    @property
    def hides_requests(self) -> bool:
        """Whether nothing that a server sees may depend on the requests of this client."""
        return self.message.has_folder and seals(self.config)

    def weight(self, records: int) -> int:
        """The weight of an update trained on so many records: where requests are sealed, of all that there ever were.

        Sums of several rounds among other clients would otherwise reveal whose number has fallen.
        """
        if not self.hides_requests:
            return records
        return sealed_counts(self.node)[0] if self.config.data.on_clients else len(self.records)

    def exclude(self) -> set[str]:
        """Exclude from training what the message asks to forget, durably; the ids of the forget set."""
        return accept(self.message.demands(), self.held, self.node, self.contents())

    def contents(self) -> dict[str, str]:
        """By id the content of each record, by which one that was excluded is recognised under another id."""
        return {record.id: content_key(record) for record in self.records}

    def own_references(self) -> tuple[Record, ...] | None:
        """The client's own records that nobody trains on; None where the server deals out the records, or none are
        needed."""
        if not self.config.data.on_clients or self.config.unlearning.target is None:
            return None
        return read_references(self.node.path, self.records)

    def privacy(self) -> Privacy | None:
        """How the client hides its records; None without record-level privacy. ClientError for a message without noise.

        A simulated client takes its noise from the run's seed; any other one from its own machine, for whoever knows
        the seed could take the noise away again.
        """
        message, wanted = self.message, self.config.privacy
        if wanted.level != "record":
            return None
        multiplier = message.real(message_keys.NOISE_MULTIPLIER, 0.0)
        if not multiplier > 0 or wanted.clipping_norm is None:
            raise ClientError(
                f"client {self.client} is to hide its records, and the server's message does not say by how much noise"
            )
        return Privacy(multiplier, wanted.clipping_norm, self.noise_seed() if message.simulated else None)

    def noise_seed(self) -> int:
        """The seed of a simulated client's noise, another one for each kind of exchange of a round."""
        return seeds.derive(self.seed, "noise", self.message.kind, self.message.text("exclude"))


def _prepared_worker(message: NodeMessage, config: Config) -> Worker:
    """This process's worker with the model's shape as sent, and the client's own records where it has such."""
    worker = resident(config)
    worker.fit(_rank(message, config))
    if message.text("manifest-hash") != worker.assembled.manifest_hash:
        raise ClientError(f"client {message.client} would train other parameters than the server sends")
    if config.data.on_clients:
        hold_back(message.node, worker.hold(message.client, read_node(message.node.path)).records)
    return worker


def _rank(message: NodeMessage, config: Config) -> int:
    """The rank of the LoRA factors in the message; ClientError for one that the run cannot have."""
    lora = config.model.lora
    rank = message.config.get(message_keys.LORA_RANK, lora.rank)
    if not isinstance(rank, int) or not 1 <= rank <= lora.rank or (rank != lora.rank and lora.ranks is None):
        raise ClientError(f"client {message.client} was sent LoRA factors of rank {rank!r}, which the run has not")
    return rank


def _turn(message: NodeMessage, seed: int) -> Turn:
    """How this client does the work of the message: a client with its own folder never does the same work twice."""
    if message.guard is None or not message.trains:
        return Turn(seed)
    work = {"kind": message.kind, "run": message.run, "stage": message.stage, "round": message.round}
    turn = take_part(message.node.path, seed, work, masked=message.masked)
    if turn.again:
        text = "client %d did the work of round %d before: now by another seed and on half of its records"
        log.warning(text, message.client, message.round)
    return turn
