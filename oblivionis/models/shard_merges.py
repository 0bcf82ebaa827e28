"""The model that is served of a federation in shards: what `federation.shard_merge` makes of the shards' models.

A global vector of S shards (S · n,) holds their vectors (n,) one after the other. Whoever measures, audits or exports a
global model assembles it by `assemble_served` and loads it by `Assembled.load`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from evaluation.engine import architectures
from evaluation.engine.ensemble import Ensemble
from oblivionis import seeds
from oblivionis.config.schema import Config, Model
from oblivionis.models import adapters
from oblivionis.models.assembly import Assembled, assemble, averaging, refitted
from oblivionis.models.errors import ModelError
from oblivionis.models.parameter_roles import Role, role
from strategies.arrays import Mean, weighted_sum
from strategies.rules.lora_product import ProductMean


def serves_ensemble(config: Config) -> bool:
    """Whether several models are served, which cannot be trained, quantised or exported as one."""
    return config.federation.shards > 1 and config.federation.shard_merge == "ensemble"


def assemble_served(config: Config) -> Assembled:
    """The model that the global vectors of a run with `config` make; its `load` takes them. Raises ModelError."""
    return served(assemble(config.model, seeds.derive(config.seed, "adapter")), config)


def served(assembled: Assembled, config: Config) -> Assembled:
    """The model that is served where shards train `assembled`, which is void from then on. Raises ModelError.

    With one shard it is `assembled` itself.
    """
    count, merge = config.federation.shards, config.federation.shard_merge
    if count == 1:
        return assembled
    start, manifest = np.tile(assembled.flat.numpy(), count), assembled.flat.manifest
    if merge == "mean":
        return dataclasses.replace(assembled, start=start, merge=_Mean(count, manifest, _mean_of(config, manifest)))
    if serves_ensemble(config):
        return _ensemble(assembled, start, count)
    _pairs_alone(manifest, merge)
    wide = refitted(assembled, stacked(config.model, count), seeds.derive(config.seed, "adapter"))
    hashed = assembled.manifest_hash
    return dataclasses.replace(wide, start=start, merge=_Stack(count, manifest), manifest_hash=hashed)


def _ensemble(assembled: Assembled, start: np.ndarray, count: int) -> Assembled:
    """The shards' models run one after the other, and the mean of their probabilities."""
    way = architectures.way(assembled.model)
    if way.name not in ("fused", "packed"):
        raise ModelError(
            f"federation.shard_merge: an ensemble cannot generate with this model ({way.reason}); set mean"
        )
    together = Ensemble(assembled.model, assembled.flat.load)
    whole = _Whole(count, assembled.flat.manifest)
    together.hold(whole.parts(start))
    return dataclasses.replace(assembled, model=together, start=start, merge=whole)


def stacked(model: Model, count: int) -> Model:
    """`model` with adapters that hold those of `count` shards side by side, their product scaled to the mean.

    B·A is multiplied by alpha / rank, or alpha / √rank with rsLoRA: of S times the rank by 1/S of what it was.
    """
    lora = model.lora
    alpha = lora.alpha / math.sqrt(count) if lora.use_rslora else lora.alpha
    return dataclasses.replace(model, adapter=None, lora=dataclasses.replace(lora, rank=lora.rank * count, alpha=alpha))


def _mean_of(config: Config, manifest: adapters.Manifest) -> Mean:
    """How shards are averaged: LoRA's products where both factors were trained, else number by number."""
    if config.model.mode == "full" or config.model.lora.aggregation == "freeze_a":
        return weighted_sum
    return averaging(config.model, manifest) or ProductMean(adapters.size(manifest), _pairs_alone(manifest, "mean"))


def _pairs_alone(manifest: adapters.Manifest, merge: str):
    try:
        return adapters.lora_pairs(manifest)
    except ModelError as error:
        reason = str(error).partition(":")[0]
        raise ModelError(
            f"federation.shard_merge: {merge} takes LoRA on linear layers, and {reason}; set model.lora.target_modules "
            "to linear layers"
        ) from None


@dataclasses.dataclass(frozen=True, slots=True)
class _Merge:
    """From a global vector of `count` shards of this manifest to the numbers of the served model."""

    count: int
    manifest: adapters.Manifest

    def parts(self, vector: np.ndarray) -> Sequence[np.ndarray]:
        """The shards' vectors (n,), checked; VectorError."""
        size = self.count * adapters.size(self.manifest)
        if vector.shape != (size,):
            raise adapters.VectorError(
                f"expected an array of shape ({size},) for {self.count} shards (federation.shards), got {vector.shape}"
            )
        parts = np.split(vector, self.count)
        for part in parts:
            adapters.check_vector(part, self.manifest)
        return parts


@dataclasses.dataclass(frozen=True, slots=True)
class _Whole(_Merge):
    """The shards as they are."""

    def __call__(self, vector: np.ndarray) -> np.ndarray:
        self.parts(vector)
        return vector


@dataclasses.dataclass(frozen=True, slots=True)
class _Mean(_Merge):
    """The mean of the shards in the rank of one."""

    mean: Mean

    def __call__(self, vector: np.ndarray) -> np.ndarray:
        return self.mean(self.parts(vector), [1 / self.count] * self.count).astype(np.float32)


@dataclasses.dataclass(frozen=True, slots=True)
class _Stack(_Merge):
    """The shards' factors side by side, so that B·A is the sum of their products; other numbers are averaged."""

    def __call__(self, vector: np.ndarray) -> np.ndarray:
        states = [adapters.unflatten(part, self.manifest) for part in self.parts(vector)]
        axes = {Role.A: 0, Role.B: 1}
        whole = []
        for name, _ in self.manifest:
            each, axis = [state[name] for state in states], axes.get(role(name))  # type: ignore[arg-type]
            one = np.mean(each, axis=0, dtype=np.float64) if axis is None else np.concatenate(each, axis=axis)
            whole.append(one.reshape(-1).astype(np.float32))
        return np.concatenate(whole)
