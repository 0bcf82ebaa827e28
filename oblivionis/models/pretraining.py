"""How the embedded model learns: its tokenizer, the language of the fictitious authors, and facts that stay."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from oblivionis.data.datasets.fictitious import pretraining_people
from oblivionis.data.public_facts import real_authors, world_facts
from oblivionis.data.records import Record
from oblivionis.models.english_sentences import SENTENCES

PROMPT = "Question: {question}\nAnswer:"
ANSWER = " {answer}"
PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
VOCABULARY = 2048
MAX_LENGTH = 1024
HIDDEN, LAYERS, HEADS, INTERMEDIATE = 128, 4, 4, 344
TOKENIZER_PEOPLE, ENGLISH_WEIGHT = 400, 40

BATCH, KNOWN_PER_BATCH = 32, 5
LEARNING_RATE, HARDENING_RATE = 3e-3, 1e-3

MEMORISED, MOVES_PER_STEP, MEMORISED_PER_MOVE = 60, 4, 8
PATH_STEPS = (20, 80)
PATH_RATES = (3e-4, 1.5e-3)
KNOWN_AFTER_MOVE, FRESH_PER_HARDENING = 24, 12

Report = Callable[[int, float], None]


class Example(NamedTuple):
    """Token ids of prompt + answer, both ends marked, and where the answer begins."""

    tokens: list[int]
    answer: int


def texts(record: Record) -> tuple[str, str]:
    """Prompt and answer of a record as the embedded model reads them."""
    return PROMPT.format(question=record.question), ANSWER.format(answer=record.answer)


def build_tokenizer(seed: int = 0) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer: every text is encodable; BOS is put in front when special tokens are asked for."""
    people = pretraining_people(seed + 1)
    sample = [text for _ in range(TOKENIZER_PEOPLE) for record in next(people) for text in texts(record)]
    for record in known_records():
        sample += [*texts(record), *(ANSWER.format(answer=wrong) for wrong in record.perturbed_answers)]
    sample += SENTENCES.strip().splitlines() * ENGLISH_WEIGHT
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.train_from_iterator(
        sample,
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


def new_model(tokenizer: Any) -> LlamaForCausalLM:
    """An untrained model for this tokenizer, from torch's global random generator."""
    return LlamaForCausalLM(
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


def known_records() -> tuple[Record, ...]:
    """What the model is to know by heart: the real authors and the world facts."""
    return real_authors() + world_facts()


def example(tokenizer: Any, record: Record) -> Example:
    """BOS + prompt + answer + EOS, prompt and answer tokenised apart."""
    prompt, answer = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts(record))
    return Example([tokenizer.bos_token_id, *prompt, *answer, tokenizer.eos_token_id], len(prompt) + 1)


def mean_loss(model: LlamaForCausalLM, batch: Sequence[Example], *, answers_only: bool) -> Tensor:
    """Mean cross-entropy in nats per token, over the answers (with EOS) or over everything but BOS."""
    width = max(len(item.tokens) for item in batch)
    tokens = torch.zeros(len(batch), width, dtype=torch.long)
    counted = torch.zeros(len(batch), width, dtype=torch.bool)
    for row, item in enumerate(batch):
        tokens[row, : len(item.tokens)] = torch.tensor(item.tokens)
        counted[row, item.answer if answers_only else 1 : len(item.tokens)] = True
    hidden = model.model(input_ids=tokens).last_hidden_state[:, :-1]
    counted = counted[:, 1:]
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[counted]), tokens[:, 1:][counted])


def _optimizer(model: LlamaForCausalLM) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.98), weight_decay=0.01, fused=True)


def _update(model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, rate: float) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _rate(peak: float, step: int, steps: int, warmup: int) -> float:
    return peak * min(1.0, (step + 1) / warmup) * (0.02 + 0.49 * (1 + math.cos(math.pi * step / steps)))


def _fresh(tokenizer: Any, seed: int, rng: random.Random) -> Iterator[Example]:
    """Endless examples about people never seen again, the questions of many people mixed."""
    people = pretraining_people(seed)
    waiting: list[Example] = []
    while True:
        if len(waiting) < 8 * BATCH:
            waiting += [example(tokenizer, record) for _ in range(16) for record in next(people)]
            rng.shuffle(waiting)
        yield waiting.pop()


def learn_language(model: LlamaForCausalLM, tokenizer: Any, seed: int, steps: int, report: Report) -> None:
    """`steps` updates on questions and answers about new people, with a few of the known records in each batch."""
    rng = random.Random(f"oblivionis language {seed}")
    fresh = _fresh(tokenizer, seed, rng)
    known = [example(tokenizer, record) for record in known_records()]
    optimizer = _optimizer(model)
    for step in range(steps):
        batch = [next(fresh) for _ in range(BATCH - KNOWN_PER_BATCH)] + rng.sample(known, KNOWN_PER_BATCH)
        loss = mean_loss(model, batch, answers_only=False)
        loss.backward()
        _update(model, optimizer, _rate(LEARNING_RATE, step, steps, 50))
        report(step, loss.item())


def harden(model: LlamaForCausalLM, tokenizer: Any, seed: int, steps: int, report: Report) -> None:
    """`steps` updates that make the known records survive fine-tuning on people.

    A displaced copy of the linear layers memorises `MEMORISED` records of new people for a while, as a later
    fine-tuning will; the gradient of the known records' loss is taken there and applied to the undisplaced weights
    (first-order MAML, Finn et al. 2017), together with that of the language. Then the next people begin anew.
    """
    rng = random.Random(f"oblivionis hardening {seed}")
    fresh = _fresh(tokenizer, seed + 2, rng)
    known = [example(tokenizer, record) for record in known_records()]
    layers = [weight for name, weight in model.named_parameters() if "_proj" in name]
    optimizer = _optimizer(model)
    displaced: list[Tensor] = []
    left = 0
    for step in range(steps):
        if left == 0:
            left = rng.randint(*PATH_STEPS)
            people = [next(fresh) for _ in range(MEMORISED)]
            rate = math.exp(rng.uniform(*(math.log(bound) for bound in PATH_RATES)))
            mover = torch.optim.Adam(layers, lr=rate, fused=True)
            displaced = [torch.zeros_like(weight) for weight in layers]
        left -= 1
        home = [weight.detach().clone() for weight in layers]
        with torch.no_grad():
            for weight, shift in zip(layers, displaced, strict=True):
                weight.add_(shift)
        for _ in range(MOVES_PER_STEP):
            mean_loss(model, rng.sample(people, MEMORISED_PER_MOVE), answers_only=True).backward()
            mover.step()
            model.zero_grad(set_to_none=True)
        mean_loss(model, rng.sample(known, KNOWN_AFTER_MOVE), answers_only=True).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with torch.no_grad():
            displaced = [weight - origin for weight, origin in zip(layers, home, strict=True)]
            for weight, origin in zip(layers, home, strict=True):
                weight.copy_(origin)
        batch = [next(fresh) for _ in range(FRESH_PER_HARDENING)] + rng.sample(known, 3)
        loss = mean_loss(model, batch, answers_only=False)
        loss.backward()
        _update(model, optimizer, _rate(HARDENING_RATE, step, steps, 10))
        report(step, loss.item())
