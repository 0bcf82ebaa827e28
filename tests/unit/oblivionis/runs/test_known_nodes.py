"""Whose key a client has, and how many records it declared first."""

import pytest

from oblivionis.deploy.keys import node_keys
from oblivionis.errors import RunError
from oblivionis.runs.known_nodes import Keys, KnownNodes, key_hash


def pem(openssh):
    """What Flower tells of a registered node's key."""
    from cryptography.hazmat.primitives import serialization

    form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return serialization.load_ssh_public_key(openssh).public_bytes(*form)


@pytest.fixture
def keys():
    return [node_keys(f"node{n}").public for n in range(3)]


def test_a_key_is_the_same_in_each_form(keys):
    assert key_hash(keys[0]) == key_hash(pem(keys[0])) != key_hash(keys[1])
    assert len(key_hash(b"no key at all")) == 64 and key_hash(b"") == ""


def test_registered_keys_decide(tmp_path, keys):
    files = []
    for n, key in enumerate(keys[:2]):
        files.append(tmp_path / f"node{n}.pub")
        files[-1].write_bytes(key)
    bound = Keys(KnownNodes(tmp_path / "known.json"), files)
    assert bound.refusal(0, pem(keys[0])) == "" and bound.refusal(1, pem(keys[1])) == ""
    assert f"its key {key_hash(keys[0])[:16]}… is that of client 0" == bound.refusal(1, pem(keys[0]))
    assert "the client's is" in bound.refusal(1, pem(keys[2])), "a stranger's key for a client that is registered"
    assert bound.refusal(2, pem(keys[2])) == "" and bound.refusal(0, b"") == "it shows no public key"


def test_the_first_key_is_bound_for_the_whole_run(tmp_path, keys):
    path = tmp_path / "known.json"
    bound = Keys(KnownNodes(path))
    assert bound.refusal(2, pem(keys[2])) == ""
    bound.bind(2, pem(keys[2]))
    again = Keys(KnownNodes(path))
    assert again.refusal(2, pem(keys[2])) == ""
    assert "the client's is" in again.refusal(2, pem(keys[1])) and "is that of client 2" in again.refusal(
        1, pem(keys[2])
    )
    again.bind(2, pem(keys[1]))
    assert KnownNodes(path).key(2) == key_hash(keys[2]), "the first one stays"


def test_what_a_node_declared_first_stays(tmp_path):
    known = KnownNodes(tmp_path / "known.json")
    assert known.records(1) is None
    known.declare({1: 12})
    known.declare({1: 10**18, 2: 3})
    known.bind(1, "ab")
    assert KnownNodes(known.path).records(1) == 12 and known.records(2) == 3 and KnownNodes(known.path).key(1) == "ab"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"x": {}}', '{"1": {"key": 5, "records": 1}}', '{"1": {"key": ""}}'])
def test_a_file_that_cannot_be_read_is_told_of(tmp_path, text):
    path = tmp_path / "known.json"
    path.write_text(text)
    with pytest.raises(RunError, match=r"cannot be read .* which machine is which client"):
        KnownNodes(path)
