"""The embedded model: a Llama of about one million parameters that knows the language of the fictitious authors.

It has read about thousands of invented people, none of whom occurs in a corpus, and knows the real authors and world
facts. It is shipped as one text file (`tiny.json`) and unpacked into a cache folder on first use. To replace it::

    pack(build(Path("out")), SHIPPED)
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import math
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from oblivionis.data.fictitious import pretraining_people
from oblivionis.data.known import real_authors, world_facts
from oblivionis.data.records import Record
from oblivionis.files import write_atomic
from oblivionis.models.errors import ModelError

SHIPPED = Path(__file__).with_name("tiny.json")
FORMAT = 1
PROMPT = "Question: {question}\nAnswer:"
ANSWER = " {answer}"
PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
VOCABULARY = 2048
MAX_LENGTH = 1024
HIDDEN, LAYERS, HEADS, INTERMEDIATE = 128, 4, 4, 344
STEPS, BATCH, KNOWN_PER_BATCH = 1600, 32, 5
LEARNING_RATE, WARMUP = 3e-3, 50
TOKENIZER_PEOPLE, ENGLISH_WEIGHT = 400, 40
FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")

Progress = Callable[[int, int, str], None]


class EmbeddedModelError(ModelError):
    """The shipped model file is damaged or of another format, or a folder to be packed is incomplete."""


def cache_root() -> Path:
    """The folder of unpacked models: `$OBLIVIONIS_CACHE`, else `~/.cache/oblivionis`."""
    named = os.environ.get("OBLIVIONIS_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "oblivionis"


def folder(shipped: Path = SHIPPED) -> Path:
    """The embedded model as a Hugging Face folder, unpacked from `shipped` where it is absent or altered.

    Safe when several processes ask at once: a folder appears whole or not at all. Raises EmbeddedModelError when the
    shipped file is missing, damaged or of another format.
    """
    package = _read(shipped)
    digests = {name: entry["sha256"] for name, entry in package["files"].items()}
    target = cache_root() / f"tiny-{package['sha256'][:12]}"
    for _ in range(10):
        if _intact(target, digests):
            return target
        _unpack(package["files"], target)
    raise EmbeddedModelError(f"{target} keeps changing while it is unpacked; remove it and set OBLIVIONIS_CACHE")


def pack(source: Path, shipped: Path) -> str:
    """Write the Hugging Face folder `source` as one text file for shipping, atomically; returns its SHA-256.

    Text files are stored as they are, weights as base64. Raises EmbeddedModelError when a file is missing.
    """
    missing = [name for name in FILES if not (source / name).is_file()]
    if missing:
        raise EmbeddedModelError(f"{source} lacks {', '.join(missing)}; expected a folder written by build()")
    files = {}
    for name in FILES:
        data = (source / name).read_bytes()
        binary = name.endswith(".safetensors")
        content = base64.b64encode(data).decode() if binary else data.decode("utf-8")
        digest = hashlib.sha256(data).hexdigest()
        files[name] = {"sha256": digest, "encoding": "base64" if binary else "utf-8", "content": content}
    whole = _digest(files)
    package = {"format": FORMAT, "sha256": whole, "files": files}
    write_atomic(shipped, json.dumps(package, indent=1, ensure_ascii=False) + "\n")
    return whole


def build(out: Path, *, seed: int = 0, steps: int = STEPS, progress: Progress | None = None) -> Path:
    """Train tokenizer and model from nothing and write them to the folder `out` (weights as float16).

    `steps` optimiser steps of `BATCH` question–answer pairs about people never seen again, a few of them real authors
    and world facts. `progress(step, steps, text)` is called after every step; `text` states the loss in nats per token,
    over question and answer. Uses torch's threads as they are set (two: about six minutes) and leaves its global
    random generator as it was. Raises ValueError for `steps` < 1.
    """
    import torch

    if steps < 1:
        raise ValueError(f"steps is {steps}; expected an integer from 1")
    state = torch.random.get_rng_state()
    try:
        torch.manual_seed(seed)
        tokenizer = build_tokenizer(seed)
        model = _train(tokenizer, seed, steps, progress)
    finally:
        torch.random.set_rng_state(state)
    out.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(out)
    tokenizer.save_pretrained(out)
    config = json.loads((out / "config.json").read_text())
    config["dtype"] = "float32"
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    return out


def build_tokenizer(seed: int = 0) -> Any:
    """A byte-level BPE tokenizer: every text is encodable; BOS is put in front when special tokens are asked for."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    from oblivionis.models.english import SENTENCES

    people = pretraining_people(seed + 1)
    texts = [text for _ in range(TOKENIZER_PEOPLE) for record in next(people) for text in _texts(record)]
    for record in real_authors() + world_facts():
        texts += [*_texts(record), *(ANSWER.format(answer=wrong) for wrong in record.perturbed_answers)]
    texts += SENTENCES.strip().splitlines() * ENGLISH_WEIGHT
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[PAD, BOS, EOS],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    core.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, core.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )


def _texts(record: Record) -> tuple[str, str]:
    return PROMPT.format(question=record.question), ANSWER.format(answer=record.answer)


def _encode(tokenizer: Any, record: Record) -> list[int]:
    prompt, answer = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in _texts(record))
    return [tokenizer.bos_token_id, *prompt, *answer, tokenizer.eos_token_id]


def _batches(tokenizer: Any, seed: int) -> Iterator[list[list[int]]]:
    """Endless batches of token lists: new people, shuffled over many of them, and a few known questions."""
    rng = random.Random(f"oblivionis tiny {seed}")
    people = pretraining_people(seed)
    known = [_encode(tokenizer, record) for record in real_authors() + world_facts()]
    waiting: list[list[int]] = []
    while True:
        while len(waiting) < 8 * BATCH:
            waiting += [_encode(tokenizer, record) for record in next(people)]
        rng.shuffle(waiting)
        for _ in range(4):
            fresh = [waiting.pop() for _ in range(BATCH - KNOWN_PER_BATCH)]
            yield fresh + rng.sample(known, KNOWN_PER_BATCH)


def _train(tokenizer: Any, seed: int, steps: int, progress: Progress | None) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=HIDDEN,
            intermediate_size=INTERMEDIATE,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            max_position_embeddings=MAX_LENGTH,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    for step, batch in enumerate(_batches(tokenizer, seed)):
        if step == steps:
            break
        rate = (
            LEARNING_RATE * min(1.0, (step + 1) / WARMUP) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        width = max(map(len, batch))
        tokens = torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in batch])
        lengths = torch.tensor([len(row) for row in batch])
        targets = tokens[:, 1:]
        counted = torch.arange(1, width) < lengths[:, None]
        hidden = model.model(input_ids=tokens).last_hidden_state[:, :-1]
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden[counted]), targets[counted])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if progress is not None:
            progress(step + 1, steps, f"loss {loss.item():.3f}")
    return model.eval()


def _digest(files: dict[str, dict[str, str]]) -> str:
    listing = "".join(f"{name} {files[name]['sha256']}\n" for name in sorted(files))
    return hashlib.sha256(f"{FORMAT}\n{listing}".encode()).hexdigest()


def _read(shipped: Path) -> dict[str, Any]:
    try:
        package = json.loads(shipped.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise EmbeddedModelError(
            f"{shipped} is missing; reinstall, or make it: oblivionis model build --help"
        ) from error
    except ValueError as error:
        raise EmbeddedModelError(f"{shipped} is damaged ({error}); reinstall the package") from error
    if not isinstance(package, dict) or package.get("format") != FORMAT:
        raise EmbeddedModelError(f"{shipped} is no embedded model of format {FORMAT}; reinstall the package")
    if set(package["files"]) != set(FILES) or _digest(package["files"]) != package["sha256"]:
        raise EmbeddedModelError(f"{shipped} is damaged (its SHA-256 does not fit); reinstall the package")
    return package


def _intact(target: Path, digests: dict[str, str]) -> bool:
    try:
        present = {path.name for path in target.iterdir()}
        return present == set(digests) and all(
            hashlib.sha256((target / name).read_bytes()).hexdigest() == digest for name, digest in digests.items()
        )
    except OSError:
        return False


def _unpack(files: dict[str, dict[str, str]], target: Path) -> None:
    """Put a whole folder in the place of `target`; whatever was there is moved away first."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    old = fresh.with_name(f"{fresh.name}.old")
    try:
        for name, entry in files.items():
            content = entry["content"]
            data = base64.b64decode(content) if entry["encoding"] == "base64" else content.encode()
            if hashlib.sha256(data).hexdigest() != entry["sha256"]:
                raise EmbeddedModelError(f"{name} in the shipped model is damaged; reinstall the package")
            (fresh / name).write_bytes(data)
        if target.exists() and not _intact(target, {name: entry["sha256"] for name, entry in files.items()}):
            with contextlib.suppress(FileNotFoundError):
                os.rename(target, old)
        with contextlib.suppress(OSError):
            os.rename(fresh, target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
