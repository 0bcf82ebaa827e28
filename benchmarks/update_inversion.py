"""What can a server read out of what it sees? The same membership attack on bare updates, on sums, and on noised ones.

    python -m benchmarks.update_inversion RUN [--exchanges 20] [--noise 0.05 0.5] [--seed 0]
    python -m benchmarks.update_inversion RESULTS --figure FILE      # instead: what the suite `secrecy` measured, as a
    picture

RUN: a finished run of the embedded default (or another whose records are dealt out). From its models clients fine-tune
and unlearn as they do in the run, and a server that knows candidates' texts scores each by how far the update moved
along the gradient of the candidate's loss, −⟨∇ℓ(x), δ⟩ / ‖∇ℓ(x)‖ (Nasr et al. 2019; Li et al. 2023).

Three questions, each answered by an AUC with a 95 % interval (bootstrap over exchanges):

- *whose*: is the record this client's, or that of another one in the same exchange?
- *anybody's*: is it a record of anybody in the exchange, or one that nobody trains on?
- *forgotten*: of the clients of a FedTU exchange, which one asked? With bare updates the server compares their lengths;
  of a sum it asks whose records the exchange undid, for which it needs to know who holds which.

`--noise`: multipliers z of noise with deviation z·C on the sum of updates clipped to C, their median length.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from rich.console import Console
from rich.table import Table
from sklearn.metrics import roc_auc_score

from clients.batch_quantities import BatchQuantities
from evaluation.engine.sequences import TokenSequence
from oblivionis import seeds
from oblivionis.client.worker import Worker
from oblivionis.config import compose
from oblivionis.runs import artifact_binding

RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Seen:
    """Scores (n,) of candidates, whether the answer is yes (n,), and the exchange that each belongs to (n,)."""

    scores: np.ndarray
    truth: np.ndarray
    exchange: np.ndarray


def gradient(worker: Worker, sequence: TokenSequence) -> np.ndarray:
    """∇ℓ(x) (n,) of one record at the parameters in place, of length 1."""
    worker.flat.zero_grad()
    BatchQuantities(worker.assembled.model, [sequence], []).forget_nll.sum().backward()
    found = worker.flat.grad.detach().cpu().numpy().astype(np.float64)
    worker.flat.zero_grad()
    return found / max(float(np.linalg.norm(found)), 1e-30)


def gradients(worker: Worker, vector: np.ndarray, sequences: Sequence[TokenSequence]) -> np.ndarray:
    """∇ℓ(x) (records, n) at the model with these parameters; an update δ lowers ℓ by −⟨∇ℓ(x), δ⟩, to first order."""
    worker.flat.load(vector)
    worker.assembled.model.eval()
    return np.stack([gradient(worker, sequence) for sequence in sequences])


def interval(seen: Seen, random: np.random.Generator) -> tuple[float, float, float]:
    """The AUC, and a 95 % interval by resampling whole exchanges."""
    exchanges = np.unique(seen.exchange)
    rows = {e: np.flatnonzero(seen.exchange == e) for e in exchanges}
    values = []
    for _ in range(RESAMPLES):
        chosen = np.concatenate([rows[e] for e in random.choice(exchanges, exchanges.size)])
        if 0 < seen.truth[chosen].sum() < chosen.size:
            values.append(roc_auc_score(seen.truth[chosen], seen.scores[chosen]))
    low, high = np.quantile(values, [0.025, 0.975])
    return float(roc_auc_score(seen.truth, seen.scores)), float(low), float(high)


@dataclass
class Attack:
    """The exchanges of one run, as a server sees them."""

    worker: Worker
    start: np.ndarray
    finetuned: np.ndarray
    random: np.random.Generator
    records: int = 8

    def trained(self, exchange: int) -> tuple[list[int], np.ndarray]:
        """Clients of a first round, and their updates (k, n)."""
        federation = self.worker.config.federation
        count = max(3, federation.per_round)
        clients = sorted(self.random.choice(federation.clients, count, replace=False).tolist())
        return clients, np.stack([self._update(c, exchange) for c in clients])

    def _update(self, client: int, exchange: int) -> np.ndarray:
        epochs = self.worker.config.federation.local_epochs
        seed = seeds.derive(self.worker.config.seed, "attack", client, exchange)
        vector, _ = self.worker.finetune(client, self.start, excluded=(), epochs=epochs, proximal_mu=0.0, seed=seed)
        return vector.astype(np.float64) - self.start

    def some(self, client: int) -> list[TokenSequence]:
        """Records of `client`, drawn at random."""
        sequences = self.worker.holding(client).sequences
        chosen = self.random.choice(len(sequences), min(self.records, len(sequences)), replace=False)
        return [sequences[i] for i in chosen]

    def _marked(self, client: int) -> list[str]:
        holding = self.worker.holding(client)
        return [r.id for r in holding.records if r.id in holding.marked]

    def unlearned(self, exchange: int, clients: Sequence[int]) -> tuple[int, np.ndarray, list[TokenSequence]]:
        """Who of `clients` asked, what it changed (n,), and the records that it had forgotten."""
        asking = [c for c in clients if self._marked(c)]
        client = int(self.random.choice(asking))
        holding = self.worker.holding(client)
        vector, _ = self.worker.forget(
            client,
            self.finetuned,
            record_ids=self._marked(client),
            tombstones=(),
            proximal_mu=0.0,
            seed=seeds.derive(self.worker.config.seed, "attack", "forget", exchange),
        )
        forgotten = [s for r, s in zip(holding.records, holding.sequences, strict=True) if r.id in holding.marked]
        return client, vector.astype(np.float64) - self.finetuned, forgotten


def clipped(updates: np.ndarray, norm: float) -> np.ndarray:
    """Updates (k, n) shortened to at most `norm` each."""
    lengths = np.linalg.norm(updates, axis=1, keepdims=True)
    return updates * np.minimum(1.0, norm / np.maximum(lengths, 1e-30))


def training(attack: Attack, exchanges: int, noise: Sequence[float]) -> dict[str, list[Seen]]:
    """*Whose* and *anybody's* for bare updates, their sum, and sums with noise of these multipliers."""
    found: dict[str, list[list[np.ndarray]]] = {}

    def enter(label: str, question: int, scores: np.ndarray, truth: np.ndarray, exchange: int) -> None:
        found.setdefault(label, [[], [], [], [], [], []])
        for place, values in enumerate((scores, truth, np.full(scores.size, exchange))):
            found[label][3 * question + place].append(values)

    strangers = attack.worker.references()
    for exchange in range(exchanges):
        clients, updates = attack.trained(exchange)
        members = [attack.some(c) for c in clients]
        outside = [strangers[i] for i in attack.random.choice(len(strangers), len(members) * attack.records)]
        candidates = [s for part in members for s in part] + outside
        owner = np.concatenate([np.full(len(part), c) for c, part in zip(clients, members, strict=True)])
        views = {"bare updates": updates, "secure aggregation": np.repeat(updates.sum(0)[None], len(clients), 0)}
        norm = float(np.median(np.linalg.norm(updates, axis=1)))
        for multiplier in noise:
            total = clipped(updates, norm).sum(0) + attack.random.normal(0.0, multiplier * norm, updates.shape[1])
            views[f"secure aggregation, noise z = {multiplier:g}"] = np.repeat(total[None], len(clients), 0)
        directions = gradients(attack.worker, attack.start, candidates)
        for label, seen in views.items():
            scores = -(seen @ directions.T)
            for row, client in enumerate(clients):
                enter(label, 0, scores[row, : owner.size], owner == client, exchange)
            best = scores.max(axis=0)
            enter(label, 1, best, np.arange(best.size) < owner.size, exchange)
    return {
        label: [Seen(*(np.concatenate(part) for part in parts[3 * q : 3 * q + 3])) for q in (0, 1)]
        for label, parts in found.items()
    }


def forgetting(attack: Attack, exchanges: int) -> dict[str, Seen]:
    """*Forgotten*: the length of what each client sent, and where only a sum is seen, how far it undoes its records."""
    clients = list(range(attack.worker.config.federation.clients))
    rows: dict[str, list[list[np.ndarray]]] = {
        "bare updates, cover": [[], [], []],
        "secure aggregation, cover": [[], [], []],
    }
    for exchange in range(exchanges):
        asked, update, _ = attack.unlearned(exchange, clients)
        others = [c for c in clients if c != asked]
        covered = [asked, *attack.random.choice(others, 4, replace=False).tolist()]
        truth = np.array([c == asked for c in covered])
        bare = np.where(truth, float(np.linalg.norm(update)), 0.0)
        known = [attack.some(c) for c in covered]
        scores = -(gradients(attack.worker, attack.finetuned, [s for part in known for s in part]) @ update)
        sums, start = [], 0
        for part in known:
            sums.append(-scores[start : start + len(part)].mean())
            start += len(part)
        for label, values in (("bare updates, cover", bare), ("secure aggregation, cover", np.array(sums))):
            for place, value in enumerate((values, truth, np.full(truth.size, exchange))):
                rows[label][place].append(value)
    return {label: Seen(*(np.concatenate(part) for part in parts)) for label, parts in rows.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--exchanges", type=int, default=20)
    parser.add_argument("--noise", type=float, nargs="*", default=[0.05, 0.5])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args()
    if args.figure is not None:
        draw(args.run, args.figure)
        return
    run = artifact_binding.opened(args.run)
    worker = Worker(compose.from_yaml((run.path / "config.yaml").read_text()))
    torch.set_num_threads(1)
    random = np.random.default_rng(args.seed)
    attack = Attack(worker, worker.flat.numpy().copy(), run.load_checkpoint("finetune").vector, random)
    table = Table(
        "what the server sees",
        "whose record",
        "anybody's record",
        "who asked",
        title=f"AUC, {args.exchanges} exchanges",
    )
    for label, (whose, anybody) in training(attack, args.exchanges, args.noise).items():
        table.add_row(label, _text(interval(whose, random)), _text(interval(anybody, random)), "")
    for label, seen in forgetting(attack, args.exchanges).items():
        table.add_row(label, "", "", _text(interval(seen, random)))
    Console().print(table)


def draw(results: Path, file: Path) -> None:
    """What is learnt, forgotten and sent, by what the server sees."""
    table = pd.read_parquet(results / "results.parquet")
    parts = [
        ("retain_rouge", "retain ROUGE"),
        ("forget_prob", "forget Prob"),
        ("bytes_received", "MB received a round"),
    ]
    figure, axes = plt.subplots(1, len(parts), figsize=(11, 3.2), sharey=True)
    for axis, (metric, title) in zip(axes, parts, strict=True):
        for place, stage in enumerate(("finetune", "unlearn")):
            rows = table[(table["metric"] == metric) & (table["stage"] == stage)]
            values = rows["value"] / (1e6 if metric == "bytes_received" else 1)
            heights = [y + 0.4 * place for y in range(len(rows))]
            axis.barh(heights, values, height=0.38, label={"finetune": "finetuned", "unlearn": "unlearned"}[stage])
            axis.set_yticks([y + 0.2 for y in range(len(rows))], list(rows["secrecy"]))
        axis.set_title(title, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].invert_yaxis()
    axes[0].legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


def _text(found: tuple[float, float, float]) -> str:
    return "{:.3f} [{:.3f}, {:.3f}]".format(*found)


if __name__ == "__main__":
    main()
