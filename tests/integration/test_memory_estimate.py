"""The memory estimate against the peak of real processes."""

from pathlib import Path

import pytest

from benchmarks.speed import memory_estimate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read as Linux tells it"),
]
CASES = ["train lora", "train lora checkpointing", "train full", "evaluate lora"]


@pytest.fixture(scope="module")
def ratios(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Estimate by peak of each case, for a random model of 45 million parameters."""
    folder = tmp_path_factory.mktemp("model")
    memory_estimate.build(folder, layers=4)
    peaks = memory_estimate.measured(folder, CASES)
    return {case: memory_estimate.estimated(folder, case) / peak for case, peak in peaks.items()}


@pytest.mark.parametrize("case", CASES)
def test_the_estimate_is_near_what_a_process_takes(case: str, ratios: dict[str, float]) -> None:
    assert 0.7 < ratios[case] < 1.4
