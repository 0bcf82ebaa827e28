"""Validity checks of client replies before aggregation; an invalid reply is left out, with a reason."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord

from strategies import message_keys, metric_schema
from strategies.arrays import finite, first_record, view
from strategies.flower_internals import SUPERLINK_NODE_ID
from strategies.untrusted_text import LONGEST, clean, plain

LONGEST_REASON = LONGEST + 20
_LONGEST_TRACEBACK = 20_000


@dataclass(frozen=True, slots=True)
class ReplyCheck:
    """Outcome of one message.

    Attributes
    ----------
    partition : int
        The client; -1 if unknown.
    reply : Message or None
        The valid reply.
    reason : str
        Why there is none.
    late : bool
        The exchange went on without the reply, which is no fault of the client's.
    """

    partition: int
    reply: Message | None
    reason: str = ""
    late: bool = False


def answers(messages: Sequence[Message], replies: Iterable[Message]) -> list[tuple[Message, Message | None]]:
    """Match sent messages with replies.

    Replies are matched by `reply_to_message_id`; by sender only where that id is of no message here. A reply from
    another node than the addressed one is ignored, except an error that Flower makes for a dead node, which comes from
    the SuperLink. Of two replies to one message the first counts.

    Parameters
    ----------
    messages : sequence of Message
    replies : iterable of Message

    Returns
    -------
    list of (Message, Message or None)
        In the order of `messages`.
    """
    sent = {m.metadata.message_id: m.metadata.dst_node_id for m in messages if m.metadata.message_id}
    by_id: dict[str, Message] = {}
    by_node: dict[int, Message] = {}
    for reply in replies:
        about, sender = reply.metadata.reply_to_message_id, reply.metadata.src_node_id
        if about in sent:
            if sender == sent[about] or (reply.has_error() and sender == SUPERLINK_NODE_ID):
                by_id.setdefault(about, reply)
        else:
            by_node.setdefault(reply.metadata.src_node_id, reply)
    return [(m, by_id.get(m.metadata.message_id) or by_node.get(m.metadata.dst_node_id)) for m in messages]


def judge(
    exchanged: Iterable[tuple[int, Message | None]],
    *,
    reference: ArrayRecord | None,
    arrays_key: str = message_keys.ARRAYS,
    weight_key: str = message_keys.NUM_EXAMPLES,
    needs_steps: bool = False,
    timeout: float | None = None,
    same_metrics: bool = True,
    numbers: metric_schema.Numbers | None = None,
    own: Mapping[int, ArrayRecord] | None = None,
) -> list[ReplyCheck]:
    """Check the replies of an exchange.

    Parameters
    ----------
    exchanged : iterable of (client, Message or None)
    reference : ArrayRecord or None
        The arrays that were sent: a valid reply has exactly these names, shapes and dtypes, with finite numbers. None:
        the exchange returns no arrays.
    arrays_key, weight_key : str
        A valid reply has one MetricRecord of finite numbers, with `weight_key` above 0.
    needs_steps : bool
        It must report the number of local steps above 0, too.
    timeout : float, optional
        Seconds, for the reason of a missing reply.
    same_metrics : bool
        Flower needs equal metric keys in all replies that it averages: those that differ from most are left out.
    numbers : Numbers, optional
        Accept these metrics alone, if they have the right type and range, and drop all others. Then no reply is left
        out for differing: with `same_metrics` only metrics that all replies report are kept.
    own : mapping of client to ArrayRecord, optional
        References of clients that received other arrays.

    Returns
    -------
    list of ReplyCheck, by partition id
        Metrics are dropped from the replies in place.
    """
    verdicts = []
    for partition, reply in sorted(exchanged, key=lambda pair: pair[0]):
        expected = (own or {}).get(partition, reference)
        reason = _fault(partition, reply, expected, arrays_key, weight_key, needs_steps, timeout)
        if not reason and reply is not None and numbers is not None:
            reason = metric_schema.fault(metrics_of(reply), numbers)
        verdicts.append(ReplyCheck(partition, None if reason else reply, clean(reason, LONGEST_REASON)))
    if numbers is not None:
        _keep(verdicts, numbers, same=same_metrics)
        return verdicts
    return _same_metrics(verdicts) if same_metrics else verdicts


def metrics_of(reply: Message) -> MetricRecord:
    """The one MetricRecord of a valid reply.

    Parameters
    ----------
    reply : Message
        With a MetricRecord.

    Returns
    -------
    MetricRecord
        Not a copy.
    """
    return first_record(reply.content, MetricRecord)


def error_text(reply: Message) -> str:
    """Code and reason of an error reply; of a Python traceback only the exception.

    Parameters
    ----------
    reply : Message
        With an error.

    Returns
    -------
    str
        One line, sanitised and truncated as by `clean`.
    """
    reason = reply.error.reason or ""
    lines = [line for text in reason[-_LONGEST_TRACEBACK:].splitlines() if (line := plain(text))]
    text = clean("; ".join(lines[-1:] if "Traceback" in reason or "RayTaskError" in reason else lines))
    return f"error {reply.error.code}: {text}" if text else f"error {reply.error.code}"


def _fault(
    partition: int,
    reply: Message | None,
    reference: ArrayRecord | None,
    arrays_key: str,
    weight_key: str,
    needs_steps: bool,
    timeout: float | None,
) -> str:
    """What is wrong with a reply; empty if nothing is."""
    if reply is None:
        return "no reply" if timeout is None else f"no reply within {timeout:g} s"
    if reply.has_error():
        return error_text(reply)
    if not reply.has_content():
        return "the reply is empty"
    if reference is not None:
        records = reply.content.array_records
        if list(records) != [arrays_key]:
            return f"expected one ArrayRecord {arrays_key!r}, got {sorted(records) or 'none'}"
        if fault := _array_fault(reference, records[arrays_key]):
            return fault
    return _metric_fault(partition, reply, weight_key, needs_steps)


def _array_fault(reference: ArrayRecord, candidate: ArrayRecord) -> str:
    """What is wrong with the arrays of a reply."""
    missing, extra = reference.keys() - candidate.keys(), candidate.keys() - reference.keys()
    if missing or extra:
        return f"wrong arrays: missing {sorted(missing)}, unknown {sorted(extra)}"
    for name, sent in reference.items():
        try:
            array = view(candidate[name])
        except (ValueError, OverflowError, MemoryError) as error:
            return f"array {name!r} cannot be read: {error}"
        if array.dtype != np.dtype(sent.dtype):
            return f"array {name!r} has dtype {array.dtype}, expected {sent.dtype}"
        if array.shape != tuple(sent.shape):
            return f"array {name!r} has shape {array.shape}, expected {tuple(sent.shape)}"
        if not finite(array):
            return f"array {name!r} holds NaN or infinite numbers"
    return ""


def _metric_fault(partition: int, reply: Message, weight_key: str, needs_steps: bool) -> str:
    """What is wrong with the metrics of a reply."""
    records = reply.content.metric_records
    if len(records) != 1:
        return f"expected one MetricRecord, got {len(records)}"
    metrics = metrics_of(reply)
    for key, value in metrics.items():
        if not all(math.isfinite(v) for v in (value if isinstance(value, list) else [value])):
            return f"metric {key!r} is {value}"
    for key in (weight_key, message_keys.TRAIN_STEPS) if needs_steps else (weight_key,):
        if key not in metrics:
            reason = f"metric {key!r} is missing"
            return (
                reason if key == weight_key else f"{reason}: the aggregator needs it; an older program does not tell it"
            )
        value = metrics[key]
        if isinstance(value, list) or value <= 0:
            return f"metric {key!r} is {value}, expected a number above 0"
    claimed = metrics.get(message_keys.PARTITION_ID, partition)
    if claimed != partition:
        return f"the reply is signed by client {claimed}"
    return ""


def _same_metrics(verdicts: list[ReplyCheck]) -> list[ReplyCheck]:
    """Leave out the replies whose metric keys differ from those of most; a tie goes to the lowest partition id."""
    layouts = {v.partition: _layout(v.reply) for v in verdicts if v.reply is not None}
    if len(set(layouts.values())) < 2:
        return verdicts
    usual = Counter(layouts.values()).most_common(1)[0][0]
    names = sorted(key for key, _ in usual[1])
    return [
        v
        if v.reply is None or layouts[v.partition] == usual
        else ReplyCheck(v.partition, None, f"its metrics differ from those of the other replies: {names}")
        for v in verdicts
    ]


def _layout(reply: Message) -> tuple[str, frozenset[tuple[str, int]]]:
    """Names and lengths of a reply's metrics."""
    (name, metrics), *_ = reply.content.metric_records.items()
    return name, frozenset((k, len(v) if isinstance(v, list) else -1) for k, v in metrics.items())


def _keep(verdicts: Sequence[ReplyCheck], numbers: metric_schema.Numbers, *, same: bool) -> None:
    """Keep the known metrics of all good replies, and with `same` those alone that all of them report."""
    replies = [verdict.reply for verdict in verdicts if verdict.reply is not None]
    kept = [metric_schema.known(metrics_of(reply), numbers) for reply in replies]
    shared = set.intersection(*(set(metrics) for metrics in kept)) if kept and same else None
    for reply, metrics in zip(replies, kept, strict=True):
        (name,) = reply.content.metric_records
        del reply.content[name]
        wanted = metrics.keys() if shared is None else shared
        reply.content[message_keys.METRICS] = MetricRecord({k: v for k, v in metrics.items() if k in wanted})
