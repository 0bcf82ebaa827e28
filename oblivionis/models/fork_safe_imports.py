"""What a process may import before it is forked."""

from __future__ import annotations


def forkable(torch_version: str) -> bool:
    """Whether more than torch itself may be imported before the process is forked.

    Not with a torch that may use CUDA: bitsandbytes, which peft imports, may ask for the device, and a process that
    has done so cannot be forked.
    """
    return torch_version.endswith("+cpu")


def libraries(torch_version: str) -> tuple[str, ...]:
    """The large ones that a process may import before it is forked."""
    return ("torch", "transformers", "peft") if forkable(torch_version) else ("torch",)
