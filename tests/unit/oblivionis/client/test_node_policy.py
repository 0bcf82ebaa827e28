"""`node.toml`: reading it, its mistakes, and the example that `deploy init` writes."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from oblivionis.client.node_policy import KEYS, Policy, PolicyError, example, read_policy, tomllib

PAGE = Path(__file__).resolve().parents[4] / "docs" / "reference" / "node-policy.md"


def written(folder, text):
    (folder / "node.toml").write_text(text)
    return folder


def test_without_a_file_the_safe_defaults_hold(tmp_path):
    policy = read_policy(tmp_path)
    assert policy == Policy()
    assert not policy.requests.from_server and not policy.models.download and not policy.data.download
    assert policy.models.folders == [] and policy.limits.epochs == 100


def test_every_key_can_be_set(tmp_path):
    text = f"""
[data]
built_in = false
download = true
[models]
fingerprints = ["{"a" * 64}"]
folders = ["/srv/models"]
download = true
[requests]
from_server = true
[updates]
masked = true
least_clients = 5
[limits]
epochs = 3
lora_rank = 64
rounds_per_day = 4
audits_per_day = 5
queries_per_day = 6
exchanges = 9
audit_samples = 7
audit_tokens = 8
"""
    policy = read_policy(written(tmp_path, text))
    assert asdict(policy) == tomllib.loads(text) | {"requests": {"from_server": True, "sealed": False}}
    other = asdict(read_policy(written(tmp_path, "[requests]\nsealed = true")))
    assert other == asdict(Policy()) | {"requests": {"from_server": False, "sealed": True}}
    defaults = asdict(Policy()) | {"requests": {"from_server": False}}
    assert all(
        asdict(policy)[s][k] != defaults[s][k]
        for s, _, k in (path.partition(".") for path in KEYS if path != "requests.sealed")
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[limits]\nepoch = 3", "limits.epoch: unknown key; did you mean limits.epochs?"),
        ("[limit]\nepochs = 3", "limit: unknown key; did you mean limits?"),
        ("[request]\nfrom-server = true", "request: unknown key; did you mean requests?"),
        ("[requests]\nfrom-server = true", "requests.from-server: unknown key; did you mean requests.from_server?"),
        ("zzz = 1", "zzz: unknown key; expected one of data.built_in, "),
        ("limits = 3", "limits: unknown key; did you mean"),
        ("[limits]\nepochs = 0", r"limits.epochs: 0 .*expected value >= 1"),
        ("[limits]\nepochs = true", "limits.epochs: "),
        ("[limits]\nepochs = 2.5", "limits.epochs: "),
        ('[requests]\nfrom_server = "no"', "requests.from_server: 'no' is not true or false"),
        ("[requests]\nfrom_server = true\nsealed = true", "requests.sealed: true as `requests.from_server` is"),
        ('[models]\nfingerprints = ["abc"]', "models.fingerprints: 'abc' is none; expected 64 hexadecimal digits"),
        ('[models]\nfolders = ["models"]', "models.folders: 'models' is none; expected absolute paths"),
        ("[models]\nfolders = 3", "models.folders: 3 is not a list"),
        ("[limits", "is no TOML file"),
        ("a = " + "[" * 5000, "is no TOML file"),
        ("x = 1\nx = 2", "is no TOML file"),
    ],
)
def test_mistakes(tmp_path, text, said):
    with pytest.raises(PolicyError, match=said):
        read_policy(written(tmp_path, text))


def test_what_is_no_text_is_no_policy(tmp_path):
    (tmp_path / "node.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(PolicyError, match="is no TOML file"):
        read_policy(tmp_path)
    (tmp_path / "node.toml").unlink()
    (tmp_path / "node.toml").mkdir()
    with pytest.raises(PolicyError, match="cannot be read"):
        read_policy(tmp_path)


def test_all_mistakes_are_told_at_once(tmp_path):
    with pytest.raises(PolicyError, match="3 problems") as caught:
        read_policy(written(tmp_path, "[limits]\nepochs = 0\nepoch = 1\n[data]\nbuilt_in = 1"))
    assert str(caught.value).count("\n") == 3


def test_the_example_says_what_holds_without_it(tmp_path):
    text = example()
    assert read_policy(written(tmp_path, text)) == Policy()
    uncommented = re.sub(r"(?m)^# (\w+ = )", r"\1", text)
    assert asdict(read_policy(written(tmp_path, uncommented))) == asdict(Policy())
    assert tomllib.loads(uncommented) == asdict(Policy()), "every key, with its default"


def test_the_page_names_every_key_with_its_default():
    text = PAGE.read_text(encoding="utf-8")
    rows = dict(re.findall(r"(?m)^\| `([a-z_.]+)` \| `([^`]+)` \|", text))
    assert rows == {path: json.dumps(key.default) for path, key in KEYS.items()}
