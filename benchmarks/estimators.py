"""How well can a client estimate what a model that never saw a record would make of it? All sources against the oracle.

    python -m benchmarks.estimators [--seeds 0 1 2] [--rounds 120] [--figure FILE] [OVERRIDE ...]

A federation of the embedded default in one process, fine-tuned with and retrained without the forget records (the same
clients in the same rounds). For each forget record every estimator, which sees the fine-tuned model only, is held
against the mean negative log-likelihood of its answer under the retrained model: bias and mean absolute error in nats
per token, Spearman's rank correlation, and the probability that follows (mean of exp(−loss)). `--figure`: estimate
against oracle, record by record, for the estimator in use.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from scipy.optimize import isotonic_regression
from scipy.stats import spearmanr

from clients.batch_quantities import BatchQuantities
from clients.calibrated_forgetting import never_seen_nll
from evaluation.engine.sequences import TokenSequence
from oblivionis import seeds
from oblivionis.client.worker import Worker
from oblivionis.config import compose
from oblivionis.data.records import Record

USED = "base model, a line fitted on references (in use)"
BATCH = 32


@dataclass(frozen=True, slots=True)
class Federation:
    """What came of one seed. first: round and loss at which a client first met each of its records, by id; references:
    mean loss of the reference records under the global model before each round."""

    base: np.ndarray
    finetuned: np.ndarray
    retrained: np.ndarray
    first: Mapping[str, tuple[int, float]]
    references: Sequence[float]


def losses(worker: Worker, vector: np.ndarray, sequences: Sequence[TokenSequence]) -> list[np.ndarray]:
    """Loss (L_i,) of each sequence's answer tokens under the model with these parameters, nats."""
    model, found = worker.assembled.model.eval(), []
    worker.flat.load(vector)
    with torch.no_grad():
        for start in range(0, len(sequences), BATCH):
            found += BatchQuantities(model, sequences[start : start + BATCH], []).forget_token_log_p
    return [-log_p.double().numpy() for log_p in found]


def means(values: Sequence[np.ndarray]) -> np.ndarray:
    """(n,) the mean of each."""
    return np.array([value.mean() for value in values])


def federate(worker: Worker, rounds: int, seed: int) -> Federation:
    """FedAvg over `rounds` rounds, with the forget records and without."""
    base, references = worker.flat.numpy().copy(), worker.references()
    clients, share = worker.config.federation.clients, worker.config.federation.fraction_train
    models: list[np.ndarray] = []
    first: dict[str, tuple[int, float]] = {}
    curve: list[float] = []
    for whole in (True, False):
        drawn, vector, met = np.random.default_rng(seed), base, set[int]()
        for number in range(1, rounds + 1):
            chosen = sorted(drawn.choice(clients, max(1, round(share * clients)), replace=False).tolist())
            if whole:
                curve.append(float(means(losses(worker, vector, references)).mean()))
            updates, weights = [], []
            for client in chosen:
                holding = worker.holding(client)
                excluded = frozenset[str]() if whole else holding.marked
                if not holding.select(excluded):
                    continue
                if whole and client not in met:
                    met.add(client)
                    seen = means(losses(worker, vector, holding.sequences))
                    first |= {r.id: (number, float(x)) for r, x in zip(holding.records, seen, strict=True)}
                epochs, own = worker.config.federation.local_epochs, seeds.derive(seed, client, number)
                trained, report = worker.finetune(
                    client, vector, excluded=excluded, epochs=epochs, proximal_mu=0.0, seed=own
                )
                updates.append(trained)
                weights.append(report.num_examples)
            if updates:
                vector = np.average(updates, axis=0, weights=weights).astype(np.float32)
        models.append(vector)
    return Federation(base, models[0], models[1], first, curve)


def estimates(worker: Worker, found: Federation, records: Sequence[Record]) -> dict[str, np.ndarray]:
    """Every estimate (n,) of the records' mean loss under a model that never saw them, nats per token."""
    sequences, references = worker.references(records), worker.references()
    base, now = losses(worker, found.base, references), losses(worker, found.finetuned, references)
    own = losses(worker, found.base, sequences)
    shift = means(now).mean() - means(base).mean()
    rounds, met = zip(*(found.first[r.id] for r in records), strict=True)
    since = means(now).mean() - np.array([found.references[number - 1] for number in rounds])

    def monotone() -> np.ndarray:
        """Token by token: isotonic regression of the references' present loss on their base loss."""
        known, inverse, counts = np.unique(np.concatenate(base), return_inverse=True, return_counts=True)
        fitted = isotonic_regression(np.bincount(inverse, np.concatenate(now)) / counts, weights=counts).x
        return means([np.interp(values, known, fitted) for values in own])

    def under(change: Callable[[Record], list[Record]]) -> np.ndarray:
        """The fine-tuned model's loss on changed records."""
        return np.array([means(losses(worker, found.finetuned, worker.references(change(r)))).mean() for r in records])

    others = sorted({r.subject for r in worker.corpus.train} - {r.subject for r in records})
    return {
        "first sight": np.array(met),
        "first sight, and what references changed since": np.array(met) + since,
        "base model": means(own),
        "base model, and what references changed": means(own) + shift,
        USED: never_seen_nll(means(base), means(now), means(own)),
        "base model, token by token, monotone fit on references": monotone(),
        "perturbed answers": under(lambda r: [replace(r, answer=wrong) for wrong in r.perturbed_answers]),
        "the same about another person": under(lambda r: [_about(r, other) for other in others[:8]]),
        "its answer to other questions": under(
            lambda r: [replace(r, question=other.question) for other in worker.corpus.train[:8]]
        ),
    }


def _about(record: Record, name: str) -> Record:
    """The record with another name in question and answer."""
    surname, other = record.subject.split()[-1], name.split()[-1]
    texts = (text.replace(record.subject, name).replace(surname, other) for text in (record.question, record.answer))
    question, answer = texts
    return replace(record, question=question, answer=answer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("overrides", nargs="*")
    asked = parser.parse_args()
    found: dict[str, list[np.ndarray]] = {}
    truth: list[np.ndarray] = []
    for seed in asked.seeds:
        config = compose.compose("default", [f"seed={seed}", "unlearning=calibrated", *asked.overrides])
        worker = Worker(config)
        federation = federate(worker, asked.rounds, seed)
        records = [r for r in worker.corpus.evaluation["forget"] if r.id in federation.first]
        truth.append(means(losses(worker, federation.retrained, worker.references(records))))
        for name, values in estimates(worker, federation, records).items():
            found.setdefault(name, []).append(values)
    _print(found, truth)
    if asked.figure is not None:
        _draw(asked.figure, found[USED], truth, asked.seeds)


def _print(found: Mapping[str, list[np.ndarray]], truth: Sequence[np.ndarray]) -> None:
    oracle = np.concatenate(truth)
    table = Table(title=f"{len(oracle)} forget records, {len(truth)} federations; oracle: Prob {_prob(oracle)}")
    for head in ("estimate", "bias", "error", "rank correlation", "Prob"):
        table.add_column(head, justify="left" if head == "estimate" else "right")
    for name, parts in found.items():
        values = np.concatenate(parts)
        error, rank = values - oracle, float(spearmanr(values, oracle)[0])  # type: ignore[index]
        table.add_row(name, f"{error.mean():+.3f}", f"{np.abs(error).mean():.3f}", f"{rank:.2f}", _prob(values))
    Console(width=120).print(table)


def _prob(values: np.ndarray) -> str:
    return f"{np.exp(-values).mean():.3f}"


def _draw(file: Path, found: Sequence[np.ndarray], truth: Sequence[np.ndarray], names: Sequence[int]) -> None:
    figure = Figure(figsize=(4.6, 4.4), layout="constrained")
    axes = figure.add_subplot()
    top = 1.1 * max(values.max() for values in (*found, *truth))
    axes.plot([0, top], [0, top], color="0.6", linewidth=1)
    for values, oracle, seed in zip(found, truth, names, strict=True):
        axes.scatter(oracle, values, s=18, label=f"seed {seed}")
    axes.set(xlim=(0, top), ylim=(0, top), xlabel="oracle: loss of the retrained model, nats per token")
    axes.set_ylabel("estimate of the client")
    axes.legend(frameon=False)
    figure.savefig(file)


if __name__ == "__main__":
    main()
