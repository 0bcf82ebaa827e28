"""Bounds on the influence of one client: capped weights, clipped updates, and refusal of impossible ones."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from flwr.app import ArrayRecord, MetricRecord

from strategies.arrays import distance, merged, norm
from strategies.client_update import ClientUpdate
from strategies.replies import ReplyCheck, metrics_of
from strategies.shards import OF_ONE_SHARD, Shards

AVERAGED = ("train", "calibrate", "replay", "evaluate")
"""Kinds of exchanges whose replies are averaged with the clients' weights."""

_ROUNDING = 1e-12

Records = Callable[[int], int | None]
"""(Client) → how many records it has at most, None if unknown."""
Longest = Callable[[str, int, float], float]
"""(Kind of exchange, client, ‖φ‖ of the model that was sent) → largest L2 norm of an honest update."""


@dataclass(frozen=True, slots=True)
class Clipped:
    """What was clipped of one reply.

    Attributes
    ----------
    client : int
    what : str
        `weight` or `norm`.
    reported, used : float
        The reported value and the one that counts.
    """

    client: int
    what: str
    reported: float
    used: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds on what one client may contribute, applied to the checked replies of an exchange before aggregation.

    Attributes
    ----------
    records : callable (client) -> int or None
        A weight above a client's records is lowered to them; None: not known.
    longest : callable (kind of exchange, client, ‖φ‖) -> float
        A reply whose update φ_k − φ has a larger L2 norm is refused.
    max_weight_share : float in (0, 1]
        Largest share of a client in an average, as far as there are enough others for that.
    max_update_norm : float, at least 1, optional
        A training update that is more than so many times as long as the (lower) median of the round is clipped to that;
        None: no limit on lengths at all, not even `longest`.
    free_share : float
        No update is clipped below this share of `longest`.

    Raises
    ------
    ValueError
        If a value is out of range.
    """

    records: Records = lambda client: None
    longest: Longest = lambda kind, client, length: math.inf
    max_weight_share: float = 1.0
    max_update_norm: float | None = None
    free_share: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.max_weight_share <= 1:
            raise ValueError(f"max_weight_share is {self.max_weight_share}, expected above 0 and at most 1")
        if self.max_update_norm is not None and not self.max_update_norm >= 1:
            raise ValueError(f"max_update_norm is {self.max_update_norm}, expected at least 1")

    def apply(
        self, kind: str, verdicts: Sequence[ReplyCheck], sent: ArrayRecord | None, arrays_key: str, weight_key: str
    ) -> tuple[list[ReplyCheck], list[Clipped]]:
        """Apply the bounds to the replies of an exchange.

        Parameters
        ----------
        kind : str
            Kind of exchange.
        verdicts : sequence of ReplyCheck
            Their replies are changed in place.
        sent : ArrayRecord or None
            The model that the clients started from; None where none comes back.
        arrays_key, weight_key : str

        Returns
        -------
        verdicts : list of ReplyCheck
            With refused replies taken out.
        clipped : list of Clipped
        """
        checks, clipped = list(verdicts), list[Clipped]()
        if sent is not None and self.max_update_norm is not None:
            checks, clipped = self._shortened(kind, checks, sent, arrays_key)
        weights = {v.partition: _weight(v, weight_key) for v in checks if v.reply is not None}
        allowed = self.weights(weights, shared=kind in AVERAGED)
        for verdict in checks:
            if verdict.reply is not None and allowed[verdict.partition] != weights[verdict.partition]:
                reported, used = weights[verdict.partition], allowed[verdict.partition]
                set_weight(verdict, weight_key, used)
                clipped.append(Clipped(verdict.partition, "weight", reported, used))
        return checks, clipped

    def weights(self, reported: Mapping[int, float], *, shared: bool = True) -> dict[int, float]:
        """Weights that count, of those that the clients reported; with `shared` capped as shares of one average."""
        capped = {c: w if (most := self.records(c)) is None else min(w, max(most, 1)) for c, w in reported.items()}
        return self.shared(capped) if shared else capped

    def by_shard(self, shards: Shards) -> BoundsByShard:
        """The same bounds in each shard.

        Parameters
        ----------
        shards : Shards

        Returns
        -------
        BoundsByShard
        """
        return BoundsByShard(
            *(self.records, self.longest, self.max_weight_share, self.max_update_norm, self.free_share), shards=shards
        )

    def shared(self, weights: Mapping[int, float]) -> dict[int, float]:
        """Weights of one average, capped so that no client has more than `max_weight_share`."""
        return _with_shares(weights, self.max_weight_share) if len(weights) > 1 else dict(weights)

    def of_training(self, updates: Sequence[ClientUpdate], sent: ArrayRecord) -> list[ClientUpdate]:
        """What counts of the updates of a round of training, as `apply` has it.

        Parameters
        ----------
        updates : sequence of ClientUpdate
        sent : ArrayRecord
            The model that the clients started from.

        Returns
        -------
        list of ClientUpdate
            Without refused ones.
        """
        used = list(updates)
        if self.max_update_norm is not None:
            moved = {update.partition: distance(update.arrays, sent) for update in updates}
            _, limits = self._limits("train", moved, norm(sent))
            used = [
                replace(update, arrays=_cut(update.arrays, sent, moved[update.partition], limit))
                for update in updates
                if (limit := limits.get(update.partition)) is not None
            ]
        weights = self.weights({update.partition: update.weight for update in used})
        return [replace(update, weight=weights[update.partition]) for update in used]

    def _limits(
        self, kind: str, moved: Mapping[int, float], length: float
    ) -> tuple[dict[int, float], dict[int, float]]:
        """By client the length that no honest update exceeds, and of those that do not the one that counts at most."""
        most = {client: self.longest(kind, client, length) for client in moved}
        fit = {client: far for client, far in moved.items() if far <= most[client]}
        if kind not in ("train", "replay") or len(fit) < 2 or self.max_update_norm is None:
            return most, dict.fromkeys(fit, math.inf)
        usual = self.max_update_norm * statistics.median_low(fit.values())
        return most, {client: max(usual, self.free_share * most[client]) for client in fit}

    def _shortened(
        self, kind: str, verdicts: Sequence[ReplyCheck], sent: ArrayRecord, arrays_key: str
    ) -> tuple[list[ReplyCheck], list[Clipped]]:
        """Refuse updates that are too long to be honest, and clip those far above the median length."""
        good = {v.partition: v.reply.content for v in verdicts if v.reply is not None}
        moved = {client: distance(content.array_records[arrays_key], sent) for client, content in good.items()}
        most, limits = self._limits(kind, moved, norm(sent))
        checks, clipped = list[ReplyCheck](), list[Clipped]()
        for verdict in verdicts:
            client = verdict.partition
            if verdict.reply is None:
                checks.append(verdict)
                continue
            far = moved[client]
            if client not in limits:
                reason = f"its update has the length {far:.3g}; no training here can give one above {most[client]:.3g}"
                checks.append(ReplyCheck(client, None, reason))
                continue
            if far > limits[client]:
                good[client][arrays_key] = _cut(good[client].array_records[arrays_key], sent, far, limits[client])
                clipped.append(Clipped(client, "norm", far, limits[client]))
            checks.append(verdict)
        return checks, clipped


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundsByShard(Bounds):
    """The bounds among the clients of one shard each: medians and shares of averages do not go across shards.

    Attributes
    ----------
    shards : Shards
    """

    shards: Shards

    def apply(
        self, kind: str, verdicts: Sequence[ReplyCheck], sent: ArrayRecord | None, arrays_key: str, weight_key: str
    ) -> tuple[list[ReplyCheck], list[Clipped]]:
        """Apply the bounds shard by shard; see `Bounds.apply`."""
        checks, clipped = list[ReplyCheck](), list[Clipped]()
        for shard, own in self.shards.groups(verdicts, lambda verdict: verdict.partition).items():
            model = sent if sent is None or kind in OF_ONE_SHARD else self.shards.part(sent, shard)
            kept, cut = Bounds.apply(self, kind, own, model, arrays_key, weight_key)
            checks, clipped = [*checks, *kept], [*clipped, *cut]
        return sorted(checks, key=lambda check: check.partition), clipped

    def shared(self, weights: Mapping[int, float]) -> dict[int, float]:
        """Weights of the shards' averages, capped in each; see `Bounds.shared`."""
        capped: dict[int, float] = {}
        for own in self.shards.groups(weights, lambda client: client).values():
            capped |= Bounds.shared(self, {client: weights[client] for client in own})
        return capped


def _cut(arrays: ArrayRecord, sent: ArrayRecord, far: float, limit: float) -> ArrayRecord:
    """A model whose update is `far` long, with no more than `limit` of it."""
    return merged(sent, [arrays], [limit / far]) if far > limit else arrays


def _with_shares(weights: Mapping[int, float], most: float) -> dict[int, float]:
    """`weights` lowered so that none is more than `most` of their sum; all equal where that cannot be."""
    if most * len(weights) <= 1:
        return dict.fromkeys(weights, min(weights.values()))
    order = sorted(weights, key=lambda c: -weights[c])
    limit, count = math.inf, 0
    while count < len(order) and weights[order[count]] > _limit(weights, order, count, most) * (1 + _ROUNDING):
        count += 1
        limit = _limit(weights, order, count, most)
    return {c: limit if c in order[:count] else w for c, w in weights.items()}


def _limit(weights: Mapping[int, float], order: Sequence[int], count: int, most: float) -> float:
    """The weight of the first `count` in `order` with which each of them has the share `most` of the sum."""
    return most * math.fsum(weights[c] for c in order[count:]) / (1 - count * most)


def _weight(verdict: ReplyCheck, key: str) -> float:
    """The weight that a good reply reports."""
    assert verdict.reply is not None
    return float(metrics_of(verdict.reply)[key])  # type: ignore[arg-type]


def set_weight(verdict: ReplyCheck, key: str, weight: float) -> None:
    """Replace the weight in a valid reply.

    Parameters
    ----------
    verdict : ReplyCheck
        With a valid reply, which is changed.
    key : str
        The metric that is the weight.
    weight : float above 0
    """
    assert verdict.reply is not None
    (name, metrics), *_ = verdict.reply.content.metric_records.items()
    verdict.reply.content[name] = MetricRecord({**metrics, key: weight})
