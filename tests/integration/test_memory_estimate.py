"""The memory estimate against the peak of real processes."""

from pathlib import Path

import pytest

from benchmarks.speed import memory_estimate


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of 60 million parameters."""
    made = tmp_path_factory.mktemp("model")
    memory_estimate.build(made)
    return made


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read as Linux tells it")
@pytest.mark.parametrize("case", ["train lora", "train lora checkpointing", "train full", "evaluate lora"])
def test_the_estimate_is_near_what_a_process_takes(case: str, folder: Path) -> None:
    ratio = memory_estimate.estimated(folder, case) / memory_estimate.measured(folder, case)
    assert 0.7 < ratio < 1.4
