"""No part of serving requests is quadratic: processor seconds at 50 and at 300 requests."""

import gc
import logging

import pytest

from benchmarks.speed.request_growth import measure
from benchmarks.speed.supernodes import exponent


@pytest.mark.slow
def test_serving_requests_in_batches_is_not_quadratic(tmp_path, caplog):
    """Six times the requests take less than 18 times as long; quadratic work would take 36 times."""
    caplog.set_level(logging.ERROR, logger="flwr")
    gc.disable()  # a pass over what other tests of the process left would count as a part's work
    try:
        measure(20, 25, tmp_path / "warm")
        few, many = (measure(count, 25, tmp_path) for count in (50, 300))
    finally:
        gc.enable()
    assert few.keys() == many.keys()
    for name, seconds in many.items():
        assert seconds < 18 * max(few[name], 0.002), f"{name}: {few[name]:.3f} s at 50, {seconds:.3f} s at 300"


def test_the_exponent_is_that_of_a_power():
    assert abs(exponent([(10, 3.0), (100, 300.0), (1000, 30000.0)]) - 2) < 1e-9
