"""The shares of clients in a mean, against exact fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from strategies import message_keys
from strategies.client_update import ClientUpdate, shares


@pytest.mark.parametrize(
    "weights", [[3.0], [1.0, 2.0, 5.0], [1.7e308, 1.7e308], [1.7e308, 1.0, 1.7e308, 1e300], [1e-300, 1.7e308, 1e308]]
)
def test_shares_are_those_of_the_weights_also_where_their_sum_is_more_than_a_float_holds(weights):
    found = shares([ClientUpdate(k, weight, ArrayRecord()) for k, weight in enumerate(weights)])
    total = sum(map(Fraction, weights))
    assert found == [pytest.approx(float(Fraction(weight) / total), rel=1e-12) for weight in weights]
    assert sum(found) == pytest.approx(1, rel=1e-15)


@pytest.mark.parametrize(
    ("said", "entry"), [("a" * 64, "a" * 64), ("A" * 64, ""), ("a" * 65, ""), (b"a" * 64, ""), (7, "")]
)
def test_a_reply_names_a_line_of_its_clients_ledger_by_a_hash_or_none(said, entry):
    content = RecordDict({"arrays": ArrayRecord(), "metrics": MetricRecord({"n": 1})})
    assert ClientUpdate.of(content, "n", 0).entry == ""
    content[message_keys.PROOF] = ConfigRecord({message_keys.ENTRY: said})
    assert ClientUpdate.of(content, "n", 0).entry == entry
