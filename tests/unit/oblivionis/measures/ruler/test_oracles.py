"""Noise bands of RULER's metrics: what retrained models that are all alike say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from oblivionis.config import compose as configuration
from oblivionis.measures.ruler import oracles


@pytest.mark.parametrize(("means", "bands"), [([0.5, 0.5, 0.5], []), ([0.5, 0.6, 0.5], ["mean_rank"])])
def test_models_that_do_not_differ_say_nothing_of_how_far_apart_another_one_may_lie(
    means: list[float], bands: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of values that are drawn from two, three are the same and the fourth is not in up to one case of eight."""

    def model(mean: float) -> Any:
        found = SimpleNamespace(mean=mean, forget_ids=(), retain_ids=())
        found.take = lambda *ids: found
        return found

    monkeypatch.setattr(oracles, "lens_2", lambda found: found)
    models = [model(mean) for mean in means]
    assert list(oracles.noise_bands(models, None, models[0], configuration.compose("smoke"))) == bands
