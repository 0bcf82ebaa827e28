"""Trainable parameters as one flat float32 vector: its manifest, its checks, its files, and the way back to peft."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias, TypedDict

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from oblivionis.errors import FileError
from oblivionis.files import checked, need_file, parse_json, write_atomic, write_json
from oblivionis.models.errors import ModelError
from oblivionis.models.parameter_roles import Role, file_key, partner, role
from strategies.rules.lora_product import Pair

Manifest: TypeAlias = Sequence[tuple[str, tuple[int, ...]]]
ManifestList: TypeAlias = list[tuple[str, tuple[int, ...]]]

_VECTOR, _HEADER = "vector", "oblivionis"


class _Header(TypedDict):
    manifest: list[tuple[str, list[int]]]
    metadata: dict[str, Any]


class VectorError(ModelError, ValueError):
    """A vector is no set of finite values for the parameters that a manifest lists."""


def size(manifest: Manifest) -> int:
    """Length of the vector that `manifest` describes."""
    return sum(math.prod(shape) for _, shape in manifest)


def manifest_hash(manifest: Manifest, frozen: Mapping[str, np.ndarray] | None = None) -> str:
    """SHA-256 (hexadecimal) of names, shapes, their order, and the `frozen` adapter weights, which do not travel."""
    text = json.dumps([[name, list(shape)] for name, shape in manifest], separators=(",", ":"))
    digest = hashlib.sha256(text.encode())
    for name, array in (frozen or {}).items():
        digest.update(name.encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def lora_pairs(manifest: Manifest) -> tuple[Pair, ...]:
    """Where each LoRA module's A and B lie in the vector. Raises ModelError for a factor that is no matrix or alone."""
    starts = dict(zip(dict(manifest), accumulate((math.prod(s) for _, s in manifest), initial=0), strict=False))
    shapes = dict(manifest)
    factors = {name for name in shapes if role(name) not in (None, Role.SAVED)}
    pairs = []
    for name in [name for name in shapes if role(name) is Role.A]:
        other = partner(name)
        a, b = shapes[name], shapes.get(other, ())
        if len(a) == 2 and len(b) == 2 and a[0] == b[1]:
            pairs.append(Pair(starts[name], starts[other], rank=a[0], inputs=a[1], outputs=b[0]))
            factors -= {name, other}
    if factors:
        raise ModelError(
            f"{min(factors)} has no matrix A or B beside it: products can only be averaged for LoRA on linear layers; "
            "set model.lora.aggregation=factors"
        )
    return tuple(pairs)


def of_rank(manifest: Manifest, rank: int) -> ManifestList:
    """The manifest of the same modules with LoRA factors of another rank: A (rank, in), B (out, rank)."""
    shapes = {Role.A: lambda shape: (rank, *shape[1:]), Role.B: lambda shape: (*shape[:1], rank)}
    return [(name, shapes.get(role(name), tuple)(shape)) for name, shape in manifest]  # type: ignore[arg-type]


def flatten(state: Mapping[str, Any], manifest: Manifest | None = None) -> tuple[np.ndarray, ManifestList]:
    """Tensors or arrays by name -> float32 vector (sum of sizes,) and its manifest.

    With `manifest` the order is that of the manifest, and names and shapes must agree (VectorError); without, it is
    that of `state`. Floating-point types of any width are converted to float32.
    """
    arrays = {name: _float32(value) for name, value in state.items()}
    if manifest is None:
        manifest = [(name, array.shape) for name, array in arrays.items()]
    wanted = {name: tuple(shape) for name, shape in manifest}
    problems = [f"{n} is missing" for n in wanted if n not in arrays]
    problems += [f"{n} is unexpected" for n in arrays if n not in wanted]
    problems += [
        f"{n} has shape {arrays[n].shape}, expected {s}"
        for n, s in wanted.items()
        if n in arrays and arrays[n].shape != s
    ]
    if problems:
        raise VectorError(f"the state does not fit the manifest: {'; '.join(problems[:5])} ({len(problems)} in all)")
    parts = [arrays[name].reshape(-1) for name, _ in manifest]
    vector = np.concatenate(parts) if parts else np.empty(0, dtype=np.float32)
    return vector, [(name, tuple(shape)) for name, shape in manifest]


def unflatten(vector: np.ndarray, manifest: Manifest) -> dict[str, np.ndarray]:
    """Views into `vector` by name, in the shapes of `manifest`. Raises VectorError if the length differs."""
    _check_shape(vector, manifest)
    state = {}
    offset = 0
    for name, shape in manifest:
        end = offset + math.prod(shape)
        state[name] = vector[offset:end].reshape(shape)
        offset = end
    return state


def check_vector(array: Any, manifest: Manifest) -> None:
    """Raise VectorError unless `array` is a finite float32 vector of the manifest's length.

    What must hold of every vector that reaches a model or an aggregate, whoever sent it.
    """
    if not isinstance(array, np.ndarray):
        raise VectorError(f"expected a numpy array, got {type(array).__name__}")
    if array.dtype != np.float32:
        raise VectorError(f"expected float32 values, got {array.dtype}")
    _check_shape(array, manifest)
    finite = np.isfinite(array)
    if not finite.all():
        bad = np.flatnonzero(~finite)
        raise VectorError(
            f"{len(bad)} of {len(array)} values are NaN or infinite, the first in {_owner(int(bad[0]), manifest)}"
        )


def save_vector(path: Path, vector: np.ndarray, manifest: Manifest, metadata: Mapping[str, Any] | None = None) -> None:
    """Write a checked vector, its manifest and JSON-able `metadata` to a safetensors file, whole or not at all."""
    check_vector(vector, manifest)
    header = {"manifest": [[n, list(s)] for n, s in manifest], "metadata": dict(metadata or {})}
    text = json.dumps(header, allow_nan=False)
    write_atomic(path, save({_VECTOR: np.ascontiguousarray(vector)}, metadata={_HEADER: text}))


def load_vector(path: Path) -> tuple[np.ndarray, ManifestList, dict[str, Any]]:
    """Vector, manifest and metadata that `save_vector` wrote. Raises ModelError for a missing or damaged file."""
    try:
        need_file(path)
        with safe_open(path, framework="numpy") as file:
            header = checked(parse_json((file.metadata() or {})[_HEADER]), _Header)
            vector = file.get_tensor(_VECTOR)
    except FileNotFoundError as error:
        raise ModelError(f"{path}: no such file") from error
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, FileError) as error:
        raise ModelError(f"{path}: no whole file of saved parameters ({error})") from error
    manifest = [(name, tuple(shape)) for name, shape in header["manifest"]]
    check_vector(vector, manifest)
    return vector, manifest, header["metadata"]


def to_peft(
    folder: Path,
    vector: np.ndarray,
    manifest: Manifest,
    config: Any,
    *,
    base: str | None = None,
    frozen: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Write the LoRA weights as an ordinary peft adapter, for `PeftModel.from_pretrained(base_model, folder)`.

    `config` is the LoraConfig (`lora.lora_config`, or `peft_model.peft_config["default"]`), `base` the name of the
    base model, `frozen` the adapter weights that are not in the vector (`lora.frozen_lora`). Raises VectorError, or
    ModelError if the parameters are not those of one adapter.
    """
    check_vector(vector, manifest)
    tensors = {}
    for name, array in {**unflatten(vector, manifest), **(frozen or {})}.items():
        what = role(name)
        if what is None or not name.startswith("base_model."):
            raise ModelError(f"{name} is no LoRA weight of a peft model; only adapters can be exported to peft")
        tensors[file_key(name)] = np.ascontiguousarray(array)
    whole = {partner(key) for key in tensors if role(key) is Role.A}
    if alone := [key for key in tensors if role(key) is Role.B and key.endswith("weight") and key not in whole]:
        raise ModelError(f"{alone[0]} has no lora_A beside it; an adapter trained with A frozen needs that A as well")
    described = {key: value for key, value in config.to_dict().items() if key != "auto_mapping"}
    described |= {"base_model_name_or_path": base, "inference_mode": True}
    described = {k: sorted(v) if isinstance(v, set | frozenset) else v for k, v in described.items()}
    write_atomic(folder / "adapter_model.safetensors", save(tensors, metadata={"format": "pt"}))
    write_json(folder / "adapter_config.json", described)


def _float32(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach().float().cpu().numpy()
    array = np.asarray(value)
    if not np.issubdtype(array.dtype, np.floating):
        raise VectorError(f"expected floating-point values, got {array.dtype}")
    return array.astype(np.float32, copy=False)


def _check_shape(array: np.ndarray, manifest: Manifest) -> None:
    expected = (size(manifest),)
    if array.shape != expected:
        raise VectorError(f"expected an array of shape {expected} for {len(manifest)} parameters, got {array.shape}")


def _owner(position: int, manifest: Manifest) -> str:
    for name, shape in manifest:
        position -= math.prod(shape)
        if position < 0:
            return name
    raise AssertionError("the position was taken from an array of the manifest's size")
