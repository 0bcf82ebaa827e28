"""The hash of a configuration: the same after every way through YAML, another after every change of a value."""

import dataclasses
import hashlib
import json

import pytest
from omegaconf import OmegaConf

from oblivionis.config import compose as configuration
from oblivionis.config.identity import config_hash


@pytest.mark.parametrize("name", configuration.list_experiments())
def test_the_way_through_yaml_changes_nothing(name):
    config = configuration.compose(name)
    text = configuration.to_yaml(config)
    assert config_hash(configuration.from_yaml(text)) == config_hash(config)
    lines = OmegaConf.to_container(OmegaConf.create(text), resolve=True)
    plain = json.dumps(lines, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert config_hash(config) == hashlib.sha256(plain.encode()).hexdigest(), "what config.yaml says, by another reader"


@pytest.mark.slow
def test_texts_that_yaml_and_interpolation_trip_over_survive():
    texts = ["${seed}", "é 名", "a: b", "# no comment", "yes", "1e3", "line\nbreak", "'\""]
    for text in texts:
        config = configuration.compose("smoke")
        config.model.template.question_prefix = text
        assert config_hash(configuration.from_yaml(configuration.to_yaml(config))) == config_hash(config)


def test_every_threshold_of_the_certificate_is_in_it():
    config = configuration.compose("smoke")
    changes = {"required": ["rouge"], "max_rouge": 0.25, "max_leakage": 0.2, "max_attacked_rouge": 0.75}
    assert set(changes) <= {f.name for f in dataclasses.fields(config.certificate)}
    hashes = {config_hash(config)}
    for name, value in changes.items():
        other = configuration.compose("smoke")
        setattr(other.certificate, name, value)
        hashes.add(config_hash(other))
    assert len(hashes) == 1 + len(changes)


def test_neither_order_nor_layout_of_the_file_matters():
    config = configuration.compose("smoke")
    tree = OmegaConf.to_container(OmegaConf.create(configuration.to_yaml(config)))
    text = json.dumps(dict(reversed(tree.items())), indent=3)
    assert config_hash(configuration.from_yaml(text)) == config_hash(config)
