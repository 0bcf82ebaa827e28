"""How much memory an experiment takes at most, known before any weight is loaded.

Sizes come from the model's configuration file; activations from a pass without numbers (`oblivionis.models.dry_run`)
over the largest batch that configuration and records allow: made of the longest records, or, where only the clients
have them, of records of `model.max_length` tokens that are all answer. Counted are weights, adapters with gradient and
AdamW's moments, activations, the cache of generation, copies of what travels, and the libraries, and of a federation in
shards what the server evaluates: a stack's wider adapter, an ensemble's members and their logits. Not counted: what
allocators keep between blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from clients.batch_quantities import BY_LOGITS
from evaluation.engine import decoding
from evaluation.engine.decoders import PREFILL_TOKENS
from evaluation.engine.models import vocabulary_size
from oblivionis.config import extension_traits, method_traits
from oblivionis.config.schema import Config, Model, Profile
from oblivionis.data import datasets
from oblivionis.models import dry_run, loading, lora
from oblivionis.models.assembly import with_trainable
from oblivionis.models.hardware import Machine, client_processes, participants, server_threads, uses_gpu
from oblivionis.models.parameter_roles import role
from oblivionis.models.record_lengths import Lengths, Size, mean
from oblivionis.models.shard_merges import serves_ensemble, stacked
from oblivionis.models.shared_weights import shareable_bytes
from strategies.exact_shares import parts_in

LIBRARIES = 550_000_000
"""RAM of a process that has imported torch, transformers, peft and Flower, its share of what several have in
common (measured on a CPU: 585 MB while a client trains the embedded model)."""
GPU_LIBRARIES = 600_000_000
"""GPU memory of a process's CUDA context and kernels (a usual value, not measured here)."""
RECEIVED_COPIES, VECTOR_COPIES = 3, 6
"""Copies of the travelling vector in a client: as received, unpacked, and the one that some unlearning losses compare
with, while it trains; the new one, packed and on its way besides, when it has trained."""


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that one process takes at most.

    parts: in the memory that holds the model, by purpose; host: RAM in addition to a GPU's memory; passing: of these,
    what the process frees when its work is done.
    """

    parts: tuple[tuple[str, int], ...]
    host: int = 0
    passing: int = 0

    @property
    def total(self) -> int:
        return sum(size for _, size in self.parts)

    @property
    def idle(self) -> int:
        """What it keeps while others work."""
        return self.total - self.passing


@dataclass(frozen=True, slots=True)
class Estimate:
    """The needs of a simulation: the server's process and `clients` client processes at once.

    `parameters`: of the base model; `trainable`: those that travel; `frozen`: of the adapters, those that do not;
    `gpu_clients`: client processes on the GPU that the server uses too, 0 without a GPU; `shared`: bytes of base
    weights in RAM that all processes have in common (`oblivionis.models.shared_weights`).
    """

    parameters: int
    trainable: int
    frozen: int
    server: Need
    client: Need
    clients: int
    on_gpu: bool
    gpu_clients: int
    shared: int = 0

    @property
    def ram(self) -> int:
        """RAM of all processes together: the server evaluates while the clients wait, and waits while they train."""
        if self.on_gpu:
            return self.server.host + self.clients * self.client.host
        once, server, client = -self.clients * self.shared, self.server, self.client
        return once + max(
            server.total + self.clients * client.idle,
            server.idle + self.clients * client.total,
        )

    @property
    def gpu(self) -> int:
        """Memory of the GPU that holds most."""
        return self.server.total + self.gpu_clients * self.client.total if self.on_gpu else 0

    def shortages(self, machine: Machine) -> list[tuple[str, int, int]]:
        """(what, bytes needed, bytes free) of all that the machine has too little of."""
        needs = [("RAM", self.ram, machine.free_ram), ("GPU memory", self.gpu, machine.free_gpu)]
        return [(what, needed, free) for what, needed, free in needs if needed > free]


def estimate(config: Config, machine: Machine, lengths: Lengths | None = None) -> Estimate:
    """The most that `config` takes on `machine`. Raises ModelError for a model that is not there.

    lengths: of the records (`oblivionis.models.record_lengths`); None: all have `model.max_length` tokens.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(config.model.matmul_precision)
    try:
        return _estimate(config, machine, lengths or _longest(config))
    finally:
        torch.set_float32_matmul_precision(before)


def _longest(config: Config) -> Lengths:
    """As many records as a batch can hold, all answer and as long as can be."""
    size = Size(1, max(1, config.model.max_length - 1))
    return Lengths((size,), (size,), config.evaluation.token_budget, 1)


def _estimate(config: Config, machine: Machine, lengths: Lengths) -> Estimate:
    settings, on_gpu = config.model, uses_gpu(config, machine)
    folder = loading.resolve(settings.source, settings.revision)
    dtype = loading.DTYPES[settings.dtype]
    loading.check_config(folder, settings.quantization)
    parameters, model = _assembled(settings, folder)
    trainable = lora.count(model).trainable
    frozen = sum(p.numel() for name, p in model.named_parameters() if role(name) is not None and not p.requires_grad)
    records = _records_at_once(config)
    trained = mean(lengths.trained[:records])
    weights, vector = dry_run.stored_bytes(model), 4 * trainable
    run = dry_run.DryRun(model, on_gpu=on_gpu, dtype=dtype)
    libraries = GPU_LIBRARIES if on_gpu else LIBRARIES
    passes = [
        run.training(
            records,
            trained.tokens,
            trained.answer,
            gradient_checkpointing=config.training.gradient_checkpointing,
            distributions=distributions,
        )
        for distributions in {False, _reads_distributions(config)}
    ]
    training = max(passes, key=lambda peak: peak.total)
    held, served = _served(config, model, folder)
    measured = run if served is model else dry_run.DryRun(served, on_gpu=on_gpu, dtype=dtype)
    evaluating = evaluation_peak(config, lengths, served, measured, on_gpu, machine)
    loaded = 4 * lora.count(served).trainable
    client = [
        ("libraries", libraries),
        ("base weights", weights),
        ("trained weights, gradient, AdamW's moments", 4 * vector),
        ("activations of an update", training.total),
    ]
    server = [
        ("libraries", libraries),
        ("base weights", weights),
        ("trained weights and gradient", 2 * loaded),
        ("evaluation", evaluating.total),
    ]
    measuring = 2 if server_threads(config, machine)[1] else 1
    if measuring == 2:
        server.append(("second process that measures", libraries + weights + loaded + evaluating.total))
    states = (4 * config.federation.shards + 2 * participants(config)) * vector + measuring * held
    clients = client_processes(config, machine)
    if on_gpu:
        needs = Need(tuple(server), LIBRARIES + states), Need(tuple(client), LIBRARIES + VECTOR_COPIES * vector)
    else:
        copies = max(RECEIVED_COPIES * vector, VECTOR_COPIES * vector - training.passing)
        needs = (
            Need((*server, ("global models and replies", states)), passing=measuring * evaluating.passing),
            Need((*client, ("copies of what travels", copies)), passing=training.passing + copies),
        )
    alone = on_gpu or settings.quantization != "none"
    shared = 0 if alone else min(weights, shareable_bytes(folder, dtype))
    at_once = _clients_of_a_gpu(config, machine, clients)
    return Estimate(parameters, trainable, frozen, *needs, clients, on_gpu, at_once, shared)


def _assembled(settings: Model, folder: Path) -> tuple[int, Any]:
    """The parameters of the base model, and the model with what is trained, without numbers."""
    eager, dtype = settings.attn_implementation == "eager", loading.DTYPES[settings.dtype]
    model = dry_run.skeleton(folder, dtype=dtype, eager=eager)
    parameters = sum(p.numel() for p in model.parameters())
    model = with_trainable(model, settings, seed=0)
    if settings.quantization != "none":
        dry_run.quantize(model, settings.quantization, settings.double_quantization)
    return parameters, model


def _served(config: Config, model: Any, folder: Path) -> tuple[int, Any]:
    """Bytes of the numbers from which the served model is loaded besides the global ones, where shards train `model`,
    and the served model: of a stack that with the wider adapter."""
    shards, merge = config.federation.shards, config.federation.shard_merge
    if shards > 1 and merge == "stack":
        model = _assembled(stacked(config.model, shards), folder)[1]
    copies = 0 if shards == 1 else shards if merge == "ensemble" else 1
    return 4 * copies * lora.count(model).trainable, model


def _reads_distributions(config: Config) -> bool:
    """Whether a stage unlearns by entropies, divergences or margins, for which logits are made."""
    if not _unlearns(config):
        return False
    unlearning = config.unlearning
    names = extension_traits.code("unlearning", unlearning.method).quantities
    by_logits = not BY_LOGITS.isdisjoint(names) or unlearning.retain_loss == "kl"
    return by_logits or unlearning.entropy.forget != 0 or unlearning.entropy.retain != 0


def _records_at_once(config: Config) -> int:
    """Records in a forward pass; even at batch size 1 unlearning pairs a record to forget with one to keep, and with
    another answer where the method asks for one."""
    sizes = [config.training.batch_size, config.unlearning.batch_size or 0]
    together = 3 if method_traits.needs_alternatives(config.unlearning.method) else 2
    return max(*sizes, together) if _unlearns(config) else sizes[0]


def _unlearns(config: Config) -> bool:
    return bool({"unlearn", "local"} & set(config.stages))


def _clients_of_a_gpu(config: Config, machine: Machine, clients: int) -> int:
    """Processes on the first GPU: all of them unless each has its share."""
    if machine.gpus == 0 or not uses_gpu(config, machine):
        return 0
    share = config.federation.client_gpus
    return clients if share == 0 else min(clients, max(1, parts_in(1, share)))


def evaluation_peak(
    config: Config, lengths: Lengths, model: Any, run: dry_run.DryRun, on_gpu: bool, machine: Machine
) -> dry_run.Peak:
    """The larger of scoring a full batch and of generating the most answers at once."""
    threads, _ = server_threads(config, machine)
    batch = _scored_at_once(config.evaluation.token_budget, lengths)
    scoring = run.scoring(*batch, threads=threads)
    prompt = max(size.prompt for size in lengths.scored)
    prefill = run.scoring(max(1, PREFILL_TOKENS // prompt), prompt + 1, 1, threads=1)
    each, number = decoding.cached_token_bytes(model), next(model.parameters()).element_size()
    if serves_ensemble(config):
        # The logits of the members lie side by side, and the mean in float32.
        logits = batch[0] * batch[2] * vocabulary_size(model) * (config.federation.shards * number + 8)
        scoring = dry_run.Peak(scoring.passing + logits, scoring.heap)
    tokens = decoding.default_token_budget(model, on_gpu=on_gpu)
    generating = 0
    for new, copies, count in _generations(config):
        rows, cost = decoding.table_size(tokens, prompt, new, prompt + new, copies, count)
        # The logits of a step, and the same in float32.
        generating = max(generating, rows * (cost * each + vocabulary_size(model) * (number + 4)))
    answering = dry_run.Peak(prefill.passing + generating, prefill.heap)
    return max(scoring, answering, key=lambda peak: peak.total)


def _scored_at_once(budget: int, lengths: Lengths) -> tuple[int, int, int]:
    """Answers in the largest batch of `budget` tokens, tokens of each with its share of the question, and without."""
    fitting = min(lengths.answers, max(1, budget // lengths.scored[0].tokens))
    size = mean(lengths.scored[:fitting])
    tokens = size.answer + -(-size.prompt // lengths.variants)
    return max(1, min(lengths.answers, budget // tokens)), tokens, size.answer


def _generations(config: Config) -> list[tuple[int, int, int]]:
    """Longest answer, answers per question and answers in all of everything that an evaluation generates."""
    evaluation, leakage = config.evaluation, config.evaluation.leakage
    found = [(p.max_new_tokens, 1, _questions(config, p)) for p in (evaluation.light, evaluation.full)]
    forget = _set_size(config, "forget")
    for samples, questions in ((leakage.samples, leakage.questions), (leakage.full_samples, leakage.full_questions)):
        if samples:
            copies = samples if samples >= decoding.SHARING else 1
            found.append((leakage.max_new_tokens, copies, samples * min(questions or forget, forget)))
    return found


def _questions(config: Config, profile: Profile) -> int:
    return sum(min(_set_size(config, name), profile.questions_per_set or decoding.MAX_ROWS) for name in profile.sets)


def _set_size(config: Config, name: str) -> int:
    """Questions of a set, or as many as are ever answered at once where only the data tell."""
    size = datasets.set_size(config.data, name)
    return decoding.MAX_ROWS if size is None else size
