"""The model of an audit, loaded: base model, adapter, tokenizer and template."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluation.engine.models import model_device
from oblivionis.audits.audited_model import Target, find_target
from oblivionis.config.schema import Config
from oblivionis.data.tokenize import PromptTemplate
from oblivionis.measures.assessor import assemble_for
from oblivionis.models.assembly import assemble_untrained
from oblivionis.runs.directory import RunDirectory, vector_hash


@dataclass(frozen=True, slots=True)
class AuditedModel:
    """A model under audit. `identity` says which weights it has; `folder` is where its audit lies by default; `run` is
    the run that made it, None for any other model, and `stage` and `round` say when. `fingerprint` is that of the base
    model, `adapter` the SHA-256 of what was trained on top of it, None without."""

    name: str
    identity: str
    model: Any
    tokenizer: Any
    template: PromptTemplate
    stop_ids: frozenset[int]
    folder: Path
    config: Config
    run: RunDirectory | None
    fingerprint: str
    adapter: str | None = None
    stage: str | None = None
    round: int | None = None

    @property
    def device(self) -> Any:
        """Where the model is."""
        return model_device(self.model)


def find_subject(target: str, stage: str | None, overrides: Sequence[str], kind: str = "leakage") -> AuditedModel:
    """What `find_target` finds, loaded. `kind` begins its folder's name. Raises OblivionisError."""
    return load_subject(find_target(target, stage, overrides), kind)


def load_subject(target: Target, kind: str = "leakage") -> AuditedModel:
    """The model of `target`; see `find_subject`."""
    config, fingerprint, checkpoint = target.config, target.fingerprint, target.checkpoint
    if target.run is not None and checkpoint is not None:
        assembled = assemble_for(target.run, config)
        assembled.load(checkpoint.vector)
        return AuditedModel(
            name=target.name,
            identity=identity_of(config, fingerprint, checkpoint.vector.tobytes()),
            model=assembled.model,
            tokenizer=assembled.tokenizer,
            template=assembled.template,
            stop_ids=assembled.stop_ids,
            folder=target.run.path / "audits" / f"{kind}-{checkpoint.stage}-{checkpoint.round:04d}",
            config=config,
            run=target.run,
            fingerprint=fingerprint,
            adapter=vector_hash(checkpoint.vector),
            stage=checkpoint.stage,
            round=checkpoint.round,
        )
    assembled = assemble_untrained(config.model)
    parts = Path(target.name).expanduser().parts
    return AuditedModel(
        name=target.name,
        identity=identity_of(config, fingerprint, b""),
        model=assembled.model,
        tokenizer=assembled.tokenizer,
        template=assembled.template,
        stop_ids=assembled.stop_ids,
        folder=Path("audits") / f"{kind}-{'--'.join(part for part in parts if part not in '/..')}",
        config=config,
        run=None,
        fingerprint=fingerprint,
    )


def identity_of(config: Config, fingerprint: str, adapter: bytes) -> str:
    """Differs wherever base weights, adapter or the arithmetic between them differ."""
    settings = config.model
    scale = settings.lora.alpha if settings.mode == "lora" and adapter else None
    rounded = "" if settings.matmul_precision == "highest" else f"/{settings.matmul_precision}"
    federation = config.federation
    merged = f"/{federation.shard_merge}" if federation.shards > 1 and adapter else ""
    identity = f"{fingerprint}/{hashlib.sha256(adapter).hexdigest()}/{settings.dtype}/{scale}{rounded}{merged}"
    if settings.quantization == "none":
        return identity
    double = settings.double_quantization and settings.quantization == "nf4"
    return f"{identity}/{settings.quantization}{'-double' if double else ''}"
