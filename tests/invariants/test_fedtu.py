"""FedTU without requests is the strategy inside it."""

import numpy as np
import pytest
from flwr.serverapp import strategy as flower
from support.fedtu_clients import adapter, federation, flat, noise

from strategies.rounds.fedtu import FedTU
from strategies.rules.factory import build, names


@pytest.mark.parametrize("inner", [*names(), "flower"])
def test_without_requests_it_is_the_inner_strategy(inner):
    """Bit for bit Flower's own loop, client-side evaluation and metrics included."""

    def make():
        if inner == "flower":
            return flower.FedAvgM(server_momentum=0.9)
        return build(inner, fraction_evaluate=1.0)

    start, seen = adapter(noise("start")), {"bare": [], "fedtu": []}
    by_node = {"order": lambda replies: sorted(replies, key=lambda r: r.metadata.src_node_id)}
    bare = make().start(
        federation(3, **by_node), start, num_rounds=3, evaluate_fn=lambda r, a: seen["bare"].append(flat(a))
    )
    ours = FedTU(make()).start(
        federation(3, **by_node), start, num_rounds=3, evaluate_fn=lambda r, a: seen["fedtu"].append(flat(a))
    )
    assert all(np.array_equal(a, b) for a, b in zip(seen["bare"], seen["fedtu"], strict=True))
    assert np.array_equal(flat(bare.arrays), flat(ours.arrays))
    assert bare.train_metrics_clientapp == ours.train_metrics_clientapp
    assert bare.evaluate_metrics_clientapp == ours.evaluate_metrics_clientapp
