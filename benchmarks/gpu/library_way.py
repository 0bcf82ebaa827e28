"""The plain library way: local training by transformers.Trainer, and sampling by `generate`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import SequentialSampler
from transformers import GenerationConfig, PrinterCallback, Trainer, TrainingArguments

from clients.training import TrainSettings
from evaluation.engine.sequences import TokenSequence

Epoch = Callable[[], tuple[list[float], float]]
"""Trains an epoch: the loss of every update, in nats per answer token, and the seconds of the updates."""
IGNORED = -100
"""What transformers leaves out of a loss."""


def right_padded(records: Sequence[TokenSequence]) -> dict[str, torch.Tensor]:
    """Input ids, labels and mask (B, longest) of a batch."""
    longest = max(len(r.prompt) + len(r.answer) for r in records)
    shape = len(records), longest
    ids, mask = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    labels = torch.full(shape, IGNORED)
    for row, record in enumerate(records):
        begin, end = len(record.prompt), len(record.prompt) + len(record.answer)
        ids[row, :end] = torch.tensor([*record.prompt, *record.answer])
        labels[row, begin:end] = torch.tensor(record.answer)
        mask[row, :end] = 1
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


def prepared(model: Any, records: Sequence[TokenSequence], settings: TrainSettings, device: str) -> Epoch:
    """What trains an epoch with Trainer over `records` as they come; its seconds are Trainer's, without its set-up."""
    found: list[torch.Tensor] = []

    class InOrder(Trainer):
        def _get_train_sampler(self, *args: Any, **kwargs: Any) -> SequentialSampler:
            return SequentialSampler(records)

        def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            found.append(super().training_step(*args, **kwargs).detach())
            return found[-1]

    arguments = TrainingArguments(
        output_dir=tempfile.gettempdir(),
        per_device_train_batch_size=settings.batch_size,
        num_train_epochs=1,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        optim="adamw_torch_fused",
        bf16=device != "cpu",
        use_cpu=device == "cpu",
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
    trainer = InOrder(model=model, args=arguments, train_dataset=records, data_collator=right_padded)  # type: ignore[arg-type]
    trainer.remove_callback(PrinterCallback)

    def epoch() -> tuple[list[float], float]:
        seconds = trainer.train().metrics["train_runtime"]
        return [float(loss) for loss in found], seconds

    return epoch


def generated(model: Any, prompts: Sequence[Sequence[int]], tokens: int, top_p: float) -> int:
    """Sample `tokens` new ones after each prompt by `generate`, in one left-padded batch; the number of new tokens."""
    width, device = max(map(len, prompts)), next(model.parameters()).device
    ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
    config = GenerationConfig(
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=True,
        top_p=top_p,
        top_k=0,
        eos_token_id=2,
        pad_token_id=0,
    )
    with torch.inference_mode():
        return model.generate(input_ids=ids, attention_mask=mask, generation_config=config)[:, width:].numel()
