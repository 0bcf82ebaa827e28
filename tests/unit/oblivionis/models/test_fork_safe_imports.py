"""What is loaded before a process is forked."""

import pytest

from oblivionis.models.fork_safe_imports import libraries


@pytest.mark.parametrize(("version", "peft"), [("2.13.0+cpu", True), ("2.13.0+cu126", False), ("2.13.0", False)])
def test_beside_cuda_nothing_is_loaded_that_may_ask_for_the_device(version, peft):
    found = libraries(version)
    assert "torch" in found and ("peft" in found) == ("transformers" in found) == peft
