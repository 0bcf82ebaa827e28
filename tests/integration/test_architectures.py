"""Every class of transformers' causal language models that can be made small, against transformers record by record."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.architectures import kinds
from support.models_page import INTRODUCTION, Row, row

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "models.md"


@pytest.mark.parametrize("kind", kinds())
def test_numbers_are_transformers_own_or_the_page_says_why_not(kind: str) -> None:
    """Likelihoods, states, greedy and sampled answers and LoRA's gradients; in bfloat16 here the likelihoods alone."""
    found = row(kind, quick=True)
    assert found.wrong is None
    told = Row.of_line(next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| {kind} |")))
    assert told.ways == found.ways


def test_at_least_sixty_architectures_are_held_in_two_dtypes() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    assert sum(all("e-" in cell for cell in Row.of_line(line).cells) for line in lines) >= 60
    assert PAGE.read_text().startswith(INTRODUCTION)
