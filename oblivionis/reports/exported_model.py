"""The final model of a run as a folder that transformers and peft read, with a card that says what it is."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from evaluation.engine.merging import merged
from oblivionis.config.schema import Config
from oblivionis.erasure import lineage
from oblivionis.errors import OblivionisError
from oblivionis.measures.assessor import assemble_for
from oblivionis.models.fingerprint import fingerprint_source
from oblivionis.models.packaged import PACKAGED
from oblivionis.models.shard_merges import serves_ensemble
from oblivionis.models.source import EMBEDDED
from oblivionis.reports.model_card import ADAPTER, MERGED, WHOLE, base_name, model_card
from oblivionis.runs.ancestry import descent_of, write_lineage
from oblivionis.runs.checkpoints import find_checkpoint
from oblivionis.runs.directory import Checkpoint, RunDirectory, vector_hash

CARD = "README.md"
WHAT = {ADAPTER: "PEFT adapter", MERGED: "model with the adapter added", WHOLE: "model"}


class ExportError(OblivionisError):
    """A model that cannot be written as asked."""


def check_export(config: Config, folder: Path, *, merged: bool) -> None:
    """ExportError for what cannot be: a folder in use, an adapter merged into rounded weights."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ExportError(f"{folder} is not empty: name a folder that does not exist yet")
    if serves_ensemble(config):
        raise ExportError(
            f"the run serves {config.federation.shards} models and the mean of what they say (federation.shard_merge="
            "ensemble), which no single adapter is; a run with mean or stack can be exported"
        )
    if merged and config.model.quantization != "none":
        raise ExportError(
            f"--merged: the base weights are rounded ({config.model.quantization}), and what is added to them would be "
            "rounded, too; leave --merged out"
        )


def kind_of(config: Config, *, merged: bool) -> str:
    """What a folder with a model of `config` holds; a model that was trained whole has no adapter to add."""
    return WHOLE if config.model.mode == "full" else MERGED if merged else ADAPTER


def export(target: Path, stage: str | None, folder: Path, *, merged: bool = False) -> str:
    """Write the model that `find_checkpoint` finds into `folder`, whole or not at all; what it holds, as the card says.

    A PEFT adapter, in float32; with `merged` the whole model with the adapter added, in the base weights' type; a run
    with `model.mode=full` has no adapter and gives the whole model. The tokenizer, `README.md`, and what the model
    comes of (`oblivionis.runs.ancestry`) lie beside it; `models.jsonl` beside the run says where it is. Raises
    OblivionisError.
    """
    run, checkpoint, config, _ = find_checkpoint(target, stage, [])
    check_export(config, folder, merged=merged)
    descent, runs = descent_of(run, checkpoint), run.path.parent
    lineage.require_used(runs, descent.model, str(target))
    assembled = assemble_for(run, config)
    assembled.load(checkpoint.vector)
    kind = kind_of(config, merged=merged)
    facts = {
        "round": checkpoint.round,
        "parameters": assembled.flat.size,
        "adapter": vector_hash(checkpoint.vector),
        "fingerprint": fingerprint_source(config.model.source, config.model.revision),
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        fresh = Path(scratch) / "model"
        _save(assembled.model, config, kind, fresh)
        assembled.tokenizer.save_pretrained(fresh)
        card = model_card(run, config, checkpoint.stage, kind, facts)
        (fresh / CARD).write_text(card, encoding="utf-8")
        write_lineage(fresh, descent)
        if folder.exists():
            folder.rmdir()
        shutil.move(fresh, folder)
    lineage.register(runs, lineage.EXPORTED, descent, stage=checkpoint.stage, folder=str(folder.resolve()))
    return kind


def still_known(run: RunDirectory, checkpoint: Checkpoint) -> str:
    """A line that names the demands whose records an exported model may still know; empty without any."""
    found = lineage.models_in(run.path.parent)
    model = found.of(vector_hash(checkpoint.vector))
    known = lineage.open_line(model, "serve them in a run first") if model is not None else ""
    return "\n".join(filter(None, (known, found.unread)))


def _save(model: Any, config: Config, kind: str, folder: Path) -> None:
    if kind == MERGED:
        plain: Any = merged(model)
        plain.save_pretrained(folder)
    elif kind == WHOLE:
        model.save_pretrained(folder)
    else:
        # A path of this machine means nothing on another; what the base is, the card says.
        source = config.model.source
        named = source if source == EMBEDDED or source in PACKAGED else base_name(config) or config.model.name
        model.peft_config["default"].base_model_name_or_path = named
        model.peft_config["default"].revision = config.model.revision
        model.save_pretrained(folder, save_embedding_layers=False)


def push(folder: Path, repository: str, *, private: bool = True) -> str:
    """Upload an exported folder to the Hugging Face hub, with the user's own token; its address. Raises ExportError."""
    from huggingface_hub import HfApi

    try:
        api = HfApi()
        api.create_repo(repository, private=private, exist_ok=True)
        return str(api.upload_folder(repo_id=repository, folder_path=folder))
    except Exception as error:  # whatever network, token or hub say
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ExportError(
            f"{folder} is written, but could not be uploaded to {repository}: {reason}. Look at the network and the "
            "token (HF_TOKEN, or `hf auth login`), then upload the folder by `hf upload`"
        ) from error
