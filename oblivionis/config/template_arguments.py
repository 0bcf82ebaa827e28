"""What a chat template may be given by name."""

from __future__ import annotations

import math
import re
from typing import Any

RESERVED = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "date_string",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "strftime_now",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Names that have a meaning already: of the conversation itself, or of the function of transformers."""
EXPECTED = "a text, a number, true, false, null or a list of these"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_PLAIN = (str, bool, int, float, type(None))


def fault_of(name: str, value: Any) -> tuple[str, str] | None:
    """What is wrong with an argument of a chat template, and what was expected; None where it is right."""
    if name == "date_string":
        return "the date has a key of its own", "model.template.date_string"
    if name in RESERVED or name.endswith("_token"):
        return "the name is reserved for what every template is given", "a variable of the chat template"
    if not _NAME.fullmatch(name):
        return "is no name of a variable", "letters, digits and _"
    entries = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(entry, _PLAIN) and _is_given(entry) for entry in entries):
        return f"{value!r} is no plain value", EXPECTED
    return None


def _is_given(value: Any) -> bool:
    """Whether it is neither a number without a value nor OmegaConf's mark for what must be given."""
    return value != "???" and not (isinstance(value, float) and not math.isfinite(value))
