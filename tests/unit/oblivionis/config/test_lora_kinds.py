"""Kinds of adapters: what a configuration may ask for together, and what it may not."""

from __future__ import annotations

import pytest

from oblivionis.config.compose import compose
from oblivionis.config.problems import ConfigError

DORA, SAVED = "model.lora.use_dora=true", "model.lora.modules_to_save=[lm_head]"
EXPERTS = "model.lora.target_parameters=[mlp.experts.down_proj]"
PRODUCT = "model.lora.aggregation=product"


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ([DORA, PRODUCT], "model.lora.use_dora"),
        ([DORA, "model.lora.aggregation=freeze_a"], "model.lora.use_dora"),
        ([DORA, "model.quantization=int8"], "model.lora.use_dora"),
        ([DORA, EXPERTS], "model.lora.use_dora"),
        ([DORA, "unlearning=pga"], "model.lora.use_dora"),
        ([SAVED, "unlearning=pga"], "model.lora.modules_to_save"),
        ([SAVED, PRODUCT, "model.lora.ranks=[1,2]"], "model.lora.modules_to_save"),
        ([EXPERTS, PRODUCT], "model.lora.target_parameters"),
        ([EXPERTS, "model.lora.dropout=0.1"], "model.lora.dropout"),
    ],
)
def test_what_cannot_be_right_is_refused_by_its_key(changes: list[str], key: str) -> None:
    with pytest.raises(ConfigError) as error:
        compose("smoke", changes)
    assert key in [problem.path for problem in error.value.problems]
    assert all("\n" not in str(problem) for problem in error.value.problems)
    assert compose("smoke", ["model.mode=full", *(c for c in changes if c in (DORA, SAVED, EXPERTS))])


@pytest.mark.parametrize(
    "changes", [[SAVED, PRODUCT], [SAVED, "model.lora.aggregation=freeze_a"], [DORA, SAVED], [EXPERTS]]
)
def test_the_rest_goes_together(changes: list[str]) -> None:
    assert compose("smoke", changes).model.lora.rank == 32


def test_all_linear_is_a_word() -> None:
    assert compose("smoke", ["model.lora.target_modules=all-linear"]).model.lora.target_modules == ["all-linear"]
    assert compose("smoke", ["model.lora.target_modules=[all-linear,lm_head]"]).model.lora.target_modules == [
        *("all-linear", "lm_head")
    ]
    assert compose("smoke", ["model.lora.target_modules=null"]).model.lora.target_modules is None
    with pytest.raises(ConfigError, match=r"write model\.lora\.target_modules=\[q_proj\]"):
        compose("smoke", ["model.lora.target_modules=q_proj"])
