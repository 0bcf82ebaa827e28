"""Small tokenizers of the two usual kinds."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AddedToken, PreTrainedTokenizerFast

TEXT = [
    "Question: Who wrote the book of the sea?\nAnswer: Maria Silva wrote the book of the sea.",
    "Question: Where does the author live?\nAnswer: The author lives in Lisbon, Portugal.",
    "The answer is always in the book. No answer, no question: 1975 was the year.",
] * 20
SPECIAL = (
    "<|begin|>",
    "<|end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|return|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "[INST]",
    "[/INST]",
)


def byte_level(*, bos: bool = False, chat: str | None = None) -> PreTrainedTokenizerFast:
    """A byte-level BPE as GPT-2's; with `bos` it puts BOS in front by itself, as Llama-3's does."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(TEXT, trainer)
    if bos:
        begin = raw.token_to_id("<|begin|>")
        raw.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", begin)])
    made = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<|begin|>", eos_token="<|end|>")
    made.add_tokens([AddedToken(text, normalized=False) for text in ("<think>", "</think>")])
    made.chat_template = chat
    return made


def sentencepiece_like(chat: str | None = None) -> PreTrainedTokenizerFast:
    """As Llama-2's tokenizer: spaces become ▁, and one is put before whatever text it is given; BOS in front."""
    raw = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    raw.pre_tokenizer = pre_tokenizers.Split(Regex("(?=▁)|\n"), "isolated")
    raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    raw.train_from_iterator([*TEXT, "[INST] x [/INST]"], trainer)
    raw.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", raw.token_to_id("<s>"))]
    )
    made = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    made.chat_template = chat
    return made
