"""The reply of an exchange: a model and numbers, plain, compressed, or under masks in a secure sum."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from oblivionis import seeds
from oblivionis.client.compression_residuals import Residuals
from oblivionis.client.exchange import Exchange
from oblivionis.client.update_encoding import packed
from oblivionis.erasure.node_record_files import records_hash
from oblivionis.errors import ClientError
from strategies import message_keys
from strategies.privacy.distributed_noise import contribution, discrete_gaussian, joint_norm, share_sigma
from strategies.secure import stage_keys
from strategies.secure.secure_exchange import difference


class ModelReply:
    """The reply of an exchange in the making. `commitment`: to the sealed requests that a cover exchange serves."""

    def __init__(self, exchange: Exchange, commitment: str = "") -> None:
        self._exchange, self._message = exchange, exchange.message
        self._commitment = commitment
        self._compressed: ArrayRecord | None = None

    def compressed(self, vector: np.ndarray, excluded: Collection[str] | None = None) -> np.ndarray:
        """The model as the server will read it in the reply, which sends as much of it as the configuration says.

        `excluded`: the records that it was not trained on; None for an unlearned model, of which no residual is kept:
        it would hold what was just to be forgotten.
        """
        exchange, message = self._exchange, self._message
        settings = exchange.config.federation.compression
        if settings.method == "none" or (excluded is None and not settings.unlearning):
            return vector
        residuals = None if excluded is None or not settings.error_feedback else self._residuals(excluded)
        seed = seeds.derive(exchange.seed, message.kind)
        self._compressed, model = packed(settings, message.vector, vector, seed, residuals, message.round)
        return model

    def _residuals(self, excluded: Collection[str]) -> Residuals | None:
        """What this stage's updates have kept back; None without a folder, and in an exchange that no later one
        continues, such as a calibration."""
        exchange, message = self._exchange, self._message
        if not message.has_folder or "/" in message.stage:
            return None
        trained = [r for r in exchange.worker.holding(exchange.client).identified() if r[0] not in excluded]
        return Residuals(
            exchange.node,
            message.run,
            f"{message.stage}/{message.text('exclude')}",
            records_hash(trained),
            since=message.integer(message_keys.UNLEARNED_ROUND, 0),
            current=lambda: exchange.node.left_by() is None and exchange.withheld() <= set(excluded),
        )

    def message(self, vector: np.ndarray | None, metrics: Mapping[str, int | float], entry: str = "") -> Message:
        """The reply with numbers and a model; in a secure sum both under masks, and the model as its change.

        `entry`: the hash of the line of the client's ledger about it, if the server is to know it.
        """
        if self._message.masked:
            assert vector is not None, "no secure sum without a model"
            return self._masked(vector, metrics)
        numbers = MetricRecord({**metrics, message_keys.PARTITION_ID: self._exchange.client})
        content = RecordDict({message_keys.METRICS: numbers})
        if vector is not None:
            content[message_keys.ARRAYS] = self._compressed or ArrayRecord({message_keys.ADAPTER: Array(vector)})
        if entry:
            content[message_keys.PROOF] = ConfigRecord({message_keys.ENTRY: entry})
        return self._message.reply(content)

    def _masked(self, vector: np.ndarray, metrics: Mapping[str, int | float]) -> Message:
        """The client's part of a secure sum; in a cover exchange it leaves only when `cover_seconds` have passed."""
        exchange, message = self._exchange, self._message
        participant, weight = message.participant, int(metrics[message_keys.NUM_EXAMPLES])
        terms = participant.terms
        if terms.one_each:
            weight = min(weight, 1)
        tallies = [float(metrics.get(name, 0.0)) for name in terms.names]
        update, noise = self._noised(difference(vector, message.vector))
        answer = participant.masked(message.stage_record, update, weight, tallies, noise)
        if self._commitment:
            answer[stage_keys.COMMITMENT] = self._commitment
        if message.covering:
            passed = time.monotonic() - exchange.began
            time.sleep(max(0.0, exchange.config.unlearning.cover_seconds - passed))
        return message.stage_reply(answer)

    def _noised(self, update: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """`update` and this client's share of the noise, in steps; where single clients are hidden it is clipped.

        ClientError where the terms have less noise than the configuration asks for.
        """
        exchange, message = self._exchange, self._message
        terms, wanted = message.participant.terms, exchange.config.privacy
        if wanted.level != "client":
            return update, None
        multiplier = message.real(message_keys.NOISE_MULTIPLIER, 0.0)
        norm = terms.norm if wanted.clipping == "adaptive" else wanted.clipping_norm
        expected = (wanted.noise_multiplier or multiplier, norm)
        if not multiplier > 0 or expected != (multiplier, terms.norm) or not terms.norm > 0 or terms.names:
            raise ClientError(
                f"client {exchange.client} is to be hidden, and the sum has another norm or noise than the run"
            )
        numbers = update.size + bool(terms.counting)
        longest = joint_norm(terms.norm, terms.counting)
        least = share_sigma(multiplier, longest, terms.step, numbers, terms.threshold)
        if terms.noise < least * (1 - 1e-9):
            raise ClientError(
                f"client {exchange.client} is to be hidden, and the sum has less noise than the run asks for"
            )
        seed = exchange.noise_seed() if message.simulated else secrets.randbits(256)
        noise = discrete_gaussian(numbers, terms.noise, np.random.default_rng(seed))
        return contribution(update, terms.norm, terms.counting), noise
