"""What has no state takes none, and says what it was given."""

from __future__ import annotations

import numpy as np
import pytest

from strategies.stateful import Stateful


def test_without_a_state_only_an_empty_one_is_loaded() -> None:
    class Forgetful(Stateful):
        pass

    assert Forgetful().state_dict() == {}
    Forgetful().load_state_dict({})
    with pytest.raises(ValueError, match=r"^Forgetful cannot load a state \(\['a', 'b'\]\)$"):
        Forgetful().load_state_dict({"b": np.zeros(1), "a": np.zeros(1)})
