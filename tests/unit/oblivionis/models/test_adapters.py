"""Where the factors of each module lie in the flat vector."""

from __future__ import annotations

import pytest

from oblivionis.models.adapters import lora_pairs
from oblivionis.models.errors import ModelError
from strategies.rules.lora_product import Pair


def test_pairs_of_a_manifest():
    manifest = [
        ("norm", (3,)),
        ("l.1.q.lora_A.default.weight", (2, 6)),
        ("l.1.q.lora_B.default.weight", (5, 2)),
        ("head", (2, 1)),
        ("l.2.q.lora_A.default.weight", (3, 4)),
        ("scale", (2,)),
        ("l.2.q.lora_B.default.weight", (2, 3)),
    ]
    assert lora_pairs(manifest) == (
        Pair(a=3, b=15, rank=2, inputs=6, outputs=5),
        Pair(a=27, b=41, rank=3, inputs=4, outputs=2),
    )
    assert lora_pairs([("w", (3, 3))]) == ()


@pytest.mark.parametrize(
    "manifest",
    [
        [("m.lora_A.default.weight", (2, 6))],
        [("m.lora_B.default.weight", (5, 2))],
        [("m.lora_embedding_A.default", (2, 6)), ("m.lora_embedding_B.default", (5, 2))],
        [("m.lora_A.default.weight", (2, 6, 3, 3)), ("m.lora_B.default.weight", (5, 2, 1, 1))],
        [("m.lora_A.default.weight", (2, 6)), ("m.lora_B.default.weight", (5, 3))],
    ],
)
def test_factors_without_a_product_are_refused(manifest):
    with pytest.raises(ModelError, match=r"m\.lora_\w+.*model\.lora\.aggregation=factors"):
        lora_pairs(manifest)
