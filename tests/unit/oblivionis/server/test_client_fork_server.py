"""What the processes of a simulation have loaded when they begin."""

import pytest

from oblivionis.config.compose import compose
from oblivionis.server import client_fork_server as module


@pytest.mark.parametrize(
    ("keys", "loaded"),
    [
        (["unlearning=calibrated", "evaluation.processes=1"], True),
        (["unlearning=npo", "evaluation.processes=2"], True),
        (["unlearning=npo", "evaluation.processes=1"], False),
    ],
)
def test_the_stemmer_is_loaded_once_where_processes_compare_answers(monkeypatch, keys, loaded):
    """By clients that look at their answers, or by a second evaluator."""
    monkeypatch.setattr(module, "fork_server", lambda names, variables, before: names)
    assert ("nltk.stem.porter" in module.client_fork_server(compose("smoke", keys))) == loaded
