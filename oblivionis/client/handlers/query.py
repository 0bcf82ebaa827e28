"""Who is this node, how many records does it hold, and which requests were made on it?"""

from __future__ import annotations

from flwr.app import Message, MetricRecord, RecordDict

from oblivionis.client.admission import learn_configuration
from oblivionis.client.node_message import NodeMessage
from oblivionis.erasure.hidden_requests import sealed_counts
from oblivionis.erasure.node_record_files import CONFIG_HASH, NodeRecords, counts, read_node
from oblivionis.erasure.node_request_sources import answer_query
from oblivionis.erasure.standing_demands import hold_back
from strategies import message_keys


def handle(message: NodeMessage) -> Message:
    """Answer with the client's partition id, so that the server can address it by a name that outlives a run.

    Where the records are the clients' own, also with how many it holds, and how many of them it may be trained on. A
    server that keeps a ledger of requests gets those that were made here, unless they are sealed.
    """
    guard, config = message.guard, message.config
    if message_keys.LEDGER in config:
        if guard is not None:
            guard.count()
        learn_configuration(message, message.text(CONFIG_HASH))
    answer = MetricRecord({message_keys.PARTITION_ID: message.client})
    if guard is not None and guard.most_rank is not None:
        answer[message_keys.LORA_RANK] = guard.most_rank
    sealed = bool(config.get(message_keys.SEALED)) or message.sealed
    held = None
    if config.get("data") == "node":
        own = None if sealed else _own_records(message)
        held = None if own is None else {record.id for record in own.records}
        numbers = sealed_counts(message.node) if own is None else counts(message.node, own)
        answer[message_keys.NUM_RECORDS], answer[message_keys.LIVE_RECORDS] = numbers
    content = RecordDict({message_keys.METRICS: answer})
    audits = guard is None or guard.audits
    requests = answer_query(config, message.client, message.node.path, sealed=sealed, audits=audits, held=held)
    if requests is not None:
        content[message_keys.REQUESTS] = requests
    return message.reply(content)


def _own_records(message: NodeMessage) -> NodeRecords:
    """The client's own records, once those that a standing demand covers are held back from training."""
    own = read_node(message.node.path)
    hold_back(message.node, own.records, near=False)
    return own
