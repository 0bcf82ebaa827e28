"""The settings of `audit leakage`: declared once, given as `key=value` or as options, all mistakes at once."""

import json

import pytest
from support.commands import call

from oblivionis.cli import leakage
from oblivionis.config.problems import ConfigError
from oblivionis.config.schema import Leakage, LeakageAudit
from oblivionis.config.values import KEYS


def test_what_a_run_and_an_audit_share_has_one_default_and_one_range():
    shared = {f"evaluation.leakage.{name}": key for name, key in leakage.KEYS.items()}.keys() & KEYS.keys()
    names = [path.rpartition(".")[2] for path in shared]
    assert {"alpha", "rho", "leaks_from", "limit", "temperature", "top_p", "top_k", "confidence"} <= set(names)
    own = {"samples", "function"}
    for name in set(names) - own:
        assert leakage.KEYS[name].about is KEYS[f"evaluation.leakage.{name}"].about
        assert getattr(LeakageAudit(), name) == getattr(Leakage(), name)


def test_texts_are_taken_literally_and_numbers_are_read():
    found = leakage.read_settings(
        ["label=1", "classifier_input={question} {answer}", "samples=200", "confidence=0.99", "top_k=null"]
    )
    assert found == LeakageAudit(
        label="1", classifier_input="{question} {answer}", samples=200, confidence=0.99, top_k=None
    )


def test_all_mistakes_come_at_once_with_the_key_and_what_was_expected():
    with pytest.raises(ConfigError) as told:
        leakage.read_settings(["sampels=3", "alpha=0.7", "temperature=hot", "family_wise=maybe"])
    text = str(told.value)
    assert text.startswith("4 problems in the configuration:") and "sampels: unknown key; did you mean samples?" in text
    assert "alpha: 0.7 is out of range; expected 0 < value <= 0.5" in text
    assert "temperature: 'hot' is not a number" in text and "family_wise: 'maybe' is not true or false" in text


def test_every_setting_may_be_an_option_and_is_in_the_help(tmp_path):
    file = tmp_path / "q.jsonl"
    file.write_text(json.dumps({"question": "Why?", "answer": "So"}) + "\n")
    options = ["--samples", "0", "--top-p=2", "--rho", "-1", "--family-wise"]
    given = ["tiny", "limit=3", "evaluation.leakage.alpha=0", "--questions", file]
    result = call("audit", "leakage", *options, *given)
    assert result.code == 2 and "5 problems in the configuration" in result.err
    for name in ("samples", "top_p", "rho", "limit", "alpha"):
        assert f"  {name}: " in result.err
    text = call("audit", "leakage", "--help").out
    assert all(f" {name} " in text for name in leakage.KEYS) and "--samples" not in text.split("Options")[1]
