"""The choices of `unlearning`: what they are, what each method looks at, what they do not go with."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from clients import losses
from oblivionis.config import extension_traits, method_traits
from oblivionis.config.compose import ConfigError, compose, method_params


def test_the_configuration_knows_what_each_method_looks_at() -> None:
    known = {name: losses.get(name) for name in losses.names()}
    assert all(method_traits.is_loss(name) for name in known)
    for name, method in known.items():
        assert method_traits.has_retain_choice(name) == ("retain_loss" in method.names)
        sees = any(q.startswith("forget_") and "states" not in q for q in method.names)
        assert method_traits.sees_forget_likelihood(name) == sees
        assert method_traits.needs_retain(name) == method.needs_retain
        assert method_traits.needs_alternatives(name) == method.needs_alternatives
    with_choice = set(method_traits.with_retain_choice())
    assert {"grad_diff", "npo", "simnpo"} <= with_choice and not with_choice & {"pga", "rmu", "scrub"}
    assert [n for n in known if not method_traits.sees_forget_likelihood(n)] == ["fine_tune", "idk_nll", "rmu"]
    assert {n for n in known if method_traits.needs_retain(n)} == {"fine_tune", "neg_grad", "pdu", "scrub"}
    assert method_traits.with_alternatives() == ["altpo", "idk_dpo", "idk_nll"]
    assert not method_traits.is_loss("federaser") and not method_traits.sees_forget_likelihood("federaser")
    assert (
        method_traits.scale("task_vector", {"alpha": 3.0}) == 3.0 and method_traits.scale("npo", {"beta": 1.0}) == 1.0
    )


def test_the_choice_gru_is_npo_without_a_retain_term() -> None:
    unlearning = compose("default", ["unlearning=gru"]).unlearning
    assert (unlearning.method, unlearning.params["alpha"], unlearning.params["beta"]) == ("npo", 0.0, 0.1)
    assert unlearning.rectify.enabled and unlearning.rectify.smoothing == 0.8
    assert not compose("default").unlearning.rectify.enabled


def test_npo_entropy_is_npo_with_entropy_optimisation() -> None:
    plain, config = (compose("default", [f"unlearning={name}"]).unlearning for name in ("npo", "npo_entropy"))
    assert (plain.method, plain.entropy.forget, plain.entropy.retain) == ("npo", 0.0, 0.0)
    assert (config.method, config.entropy.forget, config.entropy.retain) == ("npo", 1.0, -0.125)
    assert config.params == plain.params == method_params("npo") == method_params("npo_entropy")
    overrides = ["unlearning=npo_entropy", "unlearning.entropy.forget=2", "unlearning.params.beta=0.5"]
    changed = compose("default", overrides).unlearning
    assert (changed.entropy.forget, changed.entropy.retain, changed.params["beta"]) == (2.0, -0.125, 0.5)


@pytest.mark.parametrize("override", ["unlearning.entropy.forget=-1", "unlearning.entropy.retain=0.1"])
def test_the_configuration_knows_the_signs(override: str) -> None:
    with pytest.raises(ConfigError, match="out of range"):
        compose("default", [override])


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        (["unlearning=rmu", "unlearning.retain_loss=kl"], "unlearning.retain_loss"),
        (["unlearning=fine_tune", "unlearning.forget_nll_limit=4"], "unlearning.forget_nll_limit"),
        (["unlearning=federaser", "unlearning.forget_nll_limit=4"], "unlearning.forget_nll_limit"),
        (["unlearning=scrub", "unlearning.requests.scope=client"], "unlearning.requests.scope"),
        (["unlearning=pga", "unlearning.updates.keep=1"], "unlearning.updates.keep"),
        (["unlearning=neg_grad", "unlearning.params.alpha=1.5"], "unlearning.params.alpha"),
        (["unlearning=scrub", "unlearning.params.msteps=1.5"], "unlearning.params.msteps"),
        (["unlearning=scrub", "unlearning.params.temperature=0"], "unlearning.params.temperature"),
        (["unlearning=pdu", "unlearning.requests.scope=client"], "unlearning.requests.scope"),
        (["unlearning=idk_nll", "unlearning.forget_nll_limit=4"], "unlearning.forget_nll_limit"),
        (["unlearning=npo", "unlearning.alternatives.source=perturbed"], "unlearning.alternatives.source"),
        (["unlearning=federaser", f"unlearning.alternatives.idk={__file__}"], "unlearning.alternatives.idk"),
        (["unlearning=idk_dpo", "unlearning.alternatives.idk=nowhere.txt"], "unlearning.alternatives.idk"),
        (["unlearning=altpo", f"unlearning.alternatives.idk={__file__}"], "unlearning.alternatives.idk"),
        (["unlearning=idk_dpo", "unlearning.alternatives.source=ikd"], "unlearning.alternatives.source"),
        (["unlearning=idk_nll", "data=muse_tiny"], "unlearning.method"),
    ],
)
def test_options_that_make_no_sense_are_refused(overrides: list[str], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose("default", overrides)
    assert [problem.path for problem in caught.value.problems] == [path]


REFUSED = {
    "unlearning=fedosd": [
        (["stages=[local]"], "stages"),
        (["federation.clients=1"], "federation.clients"),
        (["privacy=client"], "unlearning.method"),
        (["privacy=record"], "unlearning.method"),
        (["federation.secure_aggregation.enabled=true"], "unlearning.method"),
        (["unlearning.params.epochs=0"], "unlearning.params.epochs"),
        (["unlearning.params.recovery=-1"], "unlearning.params.recovery"),
    ],
    "unlearning=weight_negation": [
        (["stages=[local]"], "stages"),
        (["unlearning.entropy.forget=1"], "unlearning.entropy"),
        (["privacy=client"], "unlearning.method"),
        (["privacy=record"], "unlearning.method"),
        (["federation.secure_aggregation.enabled=true"], "unlearning.method"),
        (["unlearning.requests.policy=random_client_per_round"], "unlearning.requests.policy"),
        (["unlearning.forget_nll_limit=3"], "unlearning.forget_nll_limit"),
        (["unlearning.target=oracle_estimate"], "unlearning.target"),
        (["unlearning.rectify.enabled=true"], "unlearning.rectify.enabled"),
        (["unlearning.params.layers=0"], "unlearning.params.layers"),
    ],
    "unlearning=rapid_retraining": [
        (["stages=[local]"], "stages"),
        (["unlearning.entropy.forget=1"], "unlearning.entropy"),
        (["privacy=client"], "unlearning.method"),
        (["privacy=record"], "unlearning.method"),
        (["federation.secure_aggregation.enabled=true"], "unlearning.method"),
        (["federation.buffer.size=3"], "unlearning.method"),
        (["unlearning.target=oracle_estimate"], "unlearning.target"),
        (["unlearning.params.rounds=0"], "unlearning.params.rounds"),
    ],
    "unlearning=fused": [
        (["stages=[local]"], "stages"),
        (["unlearning.entropy.forget=1"], "unlearning.entropy"),
        (["privacy=client"], "unlearning.method"),
        (["privacy=record"], "unlearning.method"),
        (["federation.secure_aggregation.enabled=true"], "unlearning.method"),
        (["federation.buffer.size=3"], "unlearning.method"),
        (["model.lora.ranks=[8,16]", "model.lora.aggregation=product"], "model.lora.ranks"),
        (["unlearning.params.rounds=0"], "unlearning.params.rounds"),
        (["unlearning.params.layers=0"], "unlearning.params.layers"),
        (["unlearning.params.share=0"], "unlearning.params.share"),
    ],
    "unlearning=task_vector": [
        (["unlearning.forget_nll_limit=4"], "unlearning.forget_nll_limit"),
        (["unlearning.entropy.forget=1"], "unlearning.entropy"),
        (["unlearning.rectify.enabled=true"], "unlearning.rectify.enabled"),
        (["unlearning.target=oracle_estimate"], "unlearning.target"),
        (["unlearning.params.alpha=0"], "unlearning.params.alpha"),
    ],
    "unlearning.rectify.enabled=true": [
        (["unlearning=federaser"], "unlearning.rectify.enabled"),
        (["unlearning=fine_tune"], "unlearning.rectify.enabled"),
        (["unlearning.requests.scope=client"], "unlearning.rectify.enabled"),
        (["unlearning.rectify.smoothing=0"], "unlearning.rectify.smoothing"),
        (["model.dtype=float16"], "model.dtype"),
        (
            ["unlearning=grad_diff", "privacy=record", "privacy.epsilon=8", "privacy.clipping_norm=1"],
            "unlearning.rectify.enabled",
        ),
    ],
}


@pytest.mark.parametrize(
    ("chosen", "overrides", "path"), [(chosen, *case) for chosen, cases in REFUSED.items() for case in cases]
)
def test_senseless_combinations_are_refused(chosen: str, overrides: list[str], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose("default", [chosen, *overrides])
    assert [problem.path for problem in caught.value.problems].count(path) == 1


def declare(monkeypatch: pytest.MonkeyPatch, not_with: dict[str, str]) -> None:
    """NPO says that it does not go with these."""
    read = extension_traits.code

    def code(kind: str, name: str) -> extension_traits.CodeFile:
        found = read(kind, name)
        literals = {**found.literals, "NOT_WITH": not_with} if name == "npo" else found.literals
        return dataclasses.replace(found, literals=literals)

    monkeypatch.setattr(extension_traits, "code", code)


@pytest.mark.parametrize(
    ("name", "overrides", "path"),
    [
        ("ranks", ["model.lora.ranks=[8,16]", "model.lora.aggregation=product"], "model.lora.ranks"),
        ("compression", ["federation.compression.method=int8"], "federation.compression.method"),
        ("asynchronous_rounds", ["federation.buffer.size=3"], "federation.buffer.size"),
        (
            "secure_sums",
            ["federation.secure_aggregation.enabled=true", "federation.min_clients=3", "unlearning.cover=3"],
            "federation.secure_aggregation.enabled",
        ),
        ("client_privacy", ["privacy=client"], "privacy.level"),
        ("requests_in_a_row", ["unlearning.requests.policy=random_client_per_round"], "unlearning.requests.policy"),
        ("requests_in_parts", ["unlearning.requests.per_round=3"], "unlearning.requests.per_round"),
        ("newest_rounds_only", ["unlearning.updates.keep=3"], "unlearning.updates.keep"),
    ],
)
def test_what_a_file_says_that_it_does_not_go_with_is_refused(
    name: str, overrides: list[str], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = ["unlearning=npo", "unlearning.requests.policy=all_at_round"]
    assert compose("default", [*quiet, *overrides]).unlearning.method == "npo"
    declare(monkeypatch, {name: "it is no good"})
    assert compose("default", quiet).unlearning.method == "npo"
    with pytest.raises(ConfigError) as caught:
        compose("default", [*quiet, *overrides])
    assert [(problem.path, problem.message) for problem in caught.value.problems] == [(path, "it is no good")]


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        (["start_from={run}"], "start_from"),
        (["unlearning.updates.keep=5"], "unlearning.updates.keep"),
        (["unlearning.requests.per_round=1"], "unlearning.requests.per_round"),
    ],
)
def test_an_exact_erasure_is_refused_before_anything_runs_where_it_could_not_be_right(
    overrides: list[str], path: str, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text("")
    with pytest.raises(ConfigError) as caught:
        compose("default", ["unlearning=exact", *(text.format(run=tmp_path) for text in overrides)])
    assert [problem.path for problem in caught.value.problems] == [path]


def test_a_file_that_does_not_go_with_what_nobody_knows_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, {"rank": "no"})
    with pytest.raises(ConfigError, match=r"NOT_WITH of npo names 'rank'.*one of ranks, compression"):
        compose("default", ["unlearning=npo"])
