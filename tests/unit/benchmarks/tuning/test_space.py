"""What is searched, by default and where a file says so, and the mistakes in such a file."""

import pytest

from benchmarks.tuning.space import read_file, space
from oblivionis.config.compose import compose
from oblivionis.config.configuration_layers import list_choices
from oblivionis.config.problems import ConfigError


def searched(method, given=None, epochs=20):
    config = compose("default", [f"unlearning={method}"])
    return {d.path.removeprefix("unlearning."): d for d in space(method, config, epochs, given)}


def test_a_methods_own_hyperparameters_its_rate_and_its_epochs():
    found = searched("npo")
    assert list(found) == ["params.beta", "params.alpha", "epochs", "learning_rate"]
    beta, rate, epochs = found["params.beta"], found["learning_rate"], found["epochs"]
    assert (beta.low, beta.high, beta.log) == (pytest.approx(0.01), pytest.approx(1.0), True)
    assert (rate.low, rate.high) == (pytest.approx(1e-4), pytest.approx(1e-2)), "around training.learning_rate"
    assert (epochs.low, epochs.high, epochs.whole) == (1, 20, True)


def test_around_0_and_without_seeds():
    assert (searched("ce_u")["params.alpha"].low, searched("ce_u")["params.alpha"].high) == (0, 1)
    assert not [name for name in searched("rmu") if name.endswith("seed")]
    assert "epochs" not in searched("federaser"), "the server rebuilds by the epochs of training"


@pytest.mark.parametrize("method", [name for name in list_choices()["unlearning"] if name != "exact"])
def test_every_method_has_a_space_that_its_limits_allow(method):
    for name, dimension in searched(method).items():
        for end in (dimension.low, dimension.high) if not dimension.choices else dimension.choices:
            compose("default", [f"unlearning={method}", f"unlearning.{name}={end}"])


def test_a_method_without_hyperparameters_is_refused():
    with pytest.raises(ConfigError, match="exact: nothing is left to search"):
        searched("exact")


def test_a_file_replaces_adds_and_leaves_out(tmp_path):
    file = tmp_path / "space.yaml"
    file.write_text(
        "npo:\n  unlearning.params.beta: {low: 0.05, high: 0.5}\n  unlearning:\n    epochs: [2, 5]\n"
        "    learning_rate: null\n    retain_loss: [nll, kl]\n"
    )
    found = searched("npo", read_file(file, ["npo"])["npo"])
    assert set(found) == {"params.beta", "params.alpha", "epochs", "retain_loss"}
    assert (found["params.beta"].low, found["params.beta"].log) == (0.05, False)
    assert found["epochs"].choices == (2, 5) and found["retain_loss"].choices == ("nll", "kl")


MISTAKES = {
    "unlearning.params.betta": ({"low": 1, "high": 2}, "did you mean unlearning.params.beta"),
    "unlearning.requests.round": ([1, 2], "unknown key"),
    "unlearning.params.beta": ({"low": -1, "high": 2}, "value > 0"),
    "unlearning.params.alpha": ({"low": 2, "high": 1}, "low < high"),
    "unlearning.epochs": ({"low": 1, "hihg": 3}, "did you mean high"),
    "unlearning.learning_rate": ("fast", "is no range"),
    "unlearning.retain_loss": (["nnl"], "nll"),
}


@pytest.mark.parametrize("path", MISTAKES)
def test_mistakes_in_a_space(path):
    entry, said = MISTAKES[path]
    with pytest.raises(ConfigError) as error:
        searched("npo", {path: entry})
    assert f"npo.{path}" in str(error.value) and said in str(error.value)


def test_nothing_left_to_search():
    keys = ("params.beta", "params.alpha", "epochs", "learning_rate")
    with pytest.raises(ConfigError, match="nothing is left"):
        searched("npo", {f"unlearning.{key}": None for key in keys})


def test_a_file_for_a_method_that_is_not_tuned(tmp_path):
    file = tmp_path / "space.yaml"
    file.write_text("wga:\n  unlearning.epochs: [2]\n")
    with pytest.raises(ConfigError, match="no method that is tuned"):
        read_file(file, ["npo"])
