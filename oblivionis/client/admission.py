"""What is checked of a message that works on the model, before anything is read, loaded or excluded from training."""

from __future__ import annotations

import functools

from oblivionis.client.node_message import NodeMessage
from oblivionis.client.node_policy_guard import Refused
from oblivionis.config import compose as configuration
from oblivionis.config.allowed_code import permit_code
from oblivionis.config.identity import config_hash
from oblivionis.config.schema import Config
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.node_record_files import DATA_NODES
from oblivionis.errors import ClientError
from oblivionis.models.fingerprint import fingerprint_model
from strategies import message_keys


def admitted(message: NodeMessage) -> Config:
    """The configuration in the message, as it may be used on this node; Refused or ClientError where it may not be."""
    settings, guard = message.text("settings"), message.guard
    if guard is not None:
        guard.check_settings(settings, message.run)
        guard.count()
    config, digest = _parse(settings)
    if guard is not None:
        config = guard.permitted(config, message.config)
    else:
        permit_code(config)
    if message.trains:
        _check_masks(message, config)
    if message.kind != message_keys.TRAIN:
        message.demands()
    learn_configuration(message, digest)
    _check_base_model(message, config)
    return config


@functools.lru_cache(maxsize=4)
def _parse(settings: str) -> tuple[Config, str]:
    """The configuration in a message, and its hash."""
    config = configuration.from_yaml(settings)
    return config, config_hash(config)


def _check_masks(message: NodeMessage, config: Config) -> None:
    """Refuse to send a model by itself where the node or the configuration says that the server sees sums alone."""
    terms = message.participant.check(message.stage_record) if message.masked else None
    if message.guard is not None:
        message.guard.check_masks(terms)
    if terms is not None:
        return
    if message.sealed and message.kind == message_keys.TRAIN:
        raise Refused(
            "requests.sealed",
            f"client {message.client} refuses: what it learned says when records are no more trained on, and its "
            "requests are sealed: it goes into sums under masks only (requests.sealed)",
        )
    if config.federation.secure_aggregation.enabled:
        raise Refused(
            "federation.secure_aggregation",
            f"client {message.client} refuses: the run's updates are summed under masks, and the message asks for "
            "this client's own",
        )


def learn_configuration(message: NodeMessage, digest: str) -> None:
    """Enter into the node's ledger which configuration the run has, by its hash; Refused where it had another one.

    Folders that simulated runs share (`data.nodes`) see runs of one name with several configurations: all are entered.
    """
    if not (message.run and digest and message.has_folder):
        return
    strict = message.guard is not None or not message.config.get(DATA_NODES)
    known = NodeLedger(message.node.path).learn(message.run, digest, message.client, strict=strict)
    if known is not None and strict:
        raise Refused(
            "run",
            f"client {message.client} refuses: run {message.run!r} changed its configuration: its hash is "
            f"{digest[:12]}, and was {known[:12]} when this node learned of it; start it under another name",
        )


def _check_base_model(message: NodeMessage, config: Config) -> None:
    """ClientError unless the base model on this machine is the server's."""
    expected, actual = message.text("fingerprint"), fingerprint_model(config.model)
    if actual != expected:
        raise ClientError(
            f"client {message.client} has another base model: fingerprint {actual[:12]}, the server's is "
            f"{expected[:12]}; install the same {config.model.source!r} on this node"
        )
