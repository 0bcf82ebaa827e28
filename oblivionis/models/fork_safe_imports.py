"""What a process may import before it is forked."""

from __future__ import annotations


def forkable(torch_version: str) -> bool:
    """Whether that may be more than torch itself.

    Not beside a torch that may use CUDA: bitsandbytes, which peft imports, may ask for the device, and a process that
    has done so cannot be forked.
    """
    return torch_version.endswith("+cpu")
