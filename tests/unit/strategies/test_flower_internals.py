"""What this package takes of Flower beyond its public interface: each test says what a new Flower changed."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, FedAvgM, FedMedian, FedProx, FedTrimmedAvg, MultiKrum
from support.fedtu_clients import adapter, content

from strategies import flower_internals

ROOT = Path(__file__).resolve().parents[3]
PUBLIC = ("flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy", "flwr.simulation")
ADAPTERS = {
    "strategies/flower_internals.py",
    *(f"oblivionis/flower/{name}.py" for name in ("grids", "superexec")),
}
PRIVATE = ("_message_id", "_src_node_id", "_check_and_log_replies", "_run_id")


def sources() -> list[Path]:
    folders = ("strategies", "clients", "evaluation", "oblivionis", "benchmarks")
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.slow
def test_only_the_adapters_go_beyond_the_public_interface() -> None:
    """Every import of Flower's elsewhere is a name that one of its public modules lists."""
    beyond = []
    for path in sources():
        if path.relative_to(ROOT).as_posix() in ADAPTERS:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                beyond += [f"{path}: {a.name}" for a in node.names if a.name.split(".")[0] == "flwr"]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flwr":
                module = str(node.module)
                listed = importlib.import_module(module).__all__ if module in PUBLIC else ()
                beyond += [f"{path}: {module}.{a.name}" for a in node.names if a.name not in listed]
            elif isinstance(node, ast.Constant | ast.Attribute):
                name = node.value if isinstance(node, ast.Constant) else node.attr
                beyond += [f"{path}: {name}" for private in PRIVATE if name == private]
    assert beyond == [], "take them from strategies.flower_internals or oblivionis.flower, and test there what they do"


@pytest.mark.parametrize("name", sorted(flower_internals.__all__))
def test_all_names_are_there(name: str) -> None:
    assert getattr(flower_internals, name, None) is not None, f"Flower has moved or dropped {name}"


def test_a_message_takes_an_id_and_an_error_its_sender() -> None:
    flower_internals.identify_process()
    message = Message(RecordDict(), dst_node_id=7, message_type="train")
    flower_internals.set_message_id(message, "m-1")
    assert message.metadata.message_id == "m-1", "Metadata no longer reads its message id from _message_id"
    reply = Message(Error(flower_internals.NODE_UNAVAILABLE), reply_to=message)
    assert reply.metadata.reply_to_message_id == "m-1"
    flower_internals.set_sender(reply, flower_internals.SUPERLINK_NODE_ID)
    assert reply.metadata.src_node_id == 1, "Metadata no longer reads its sender from _src_node_id"
    assert (flower_internals.NODE_UNAVAILABLE, flower_internals.SUPERLINK_NODE_ID) == (5, 1)


def test_checking_replies_keeps_the_good_ones() -> None:
    flower_internals.identify_process()
    sent = [Message(RecordDict(), dst_node_id=n, message_type="train") for n in (1, 2)]
    good, bad = Message(content([1.0]), reply_to=sent[0]), Message(Error(5), reply_to=sent[1])
    assert flower_internals.valid_replies(FedAvg(), [good, bad]) == [good]
    parameters = list(inspect.signature(FedAvg._check_and_log_replies).parameters)
    assert parameters == ["self", "replies", "is_train", "validate"], "valid_replies calls it otherwise"


@pytest.mark.parametrize("strategy", [FedAvg, FedAvgM, FedProx, FedMedian, FedTrimmedAvg, MultiKrum])
def test_attributes_that_are_read_of_strategies(strategy: type[FedAvg]) -> None:
    """By `ForeignStrategy` and `ServerStep`."""
    made = strategy(**({"proximal_mu": 0.1} if strategy is FedProx else {}))  # type: ignore[arg-type]
    names = ("weighted_by_key", "arrayrecord_key", "configrecord_key", "min_train_nodes", "min_available_nodes")
    for name in (*names, "fraction_train", "fraction_evaluate", "train_metrics_aggr_fn"):
        assert hasattr(made, name), f"{strategy.__name__} has no {name} any more"
    assert made.weighted_by_key == "num-examples"
    if strategy is FedAvgM:
        assert hasattr(made, "current_arrays"), "FedAvgM keeps no copy any more: refresh_copies can go"


def test_a_made_up_reply_has_the_metadata_that_it_is_given() -> None:
    from flwr.app import Metadata

    names = set(inspect.signature(Metadata.__init__).parameters)
    assert names >= {"run_id", "message_id", "src_node_id", "dst_node_id", "reply_to_message_id", "group_id", "ttl"}
    assert list(inspect.signature(flower_internals.make_message).parameters)[:2] == ["metadata", "content"]


def test_shares_give_the_secret_back_from_the_threshold_on() -> None:
    secret = bytes(range(32))
    shares = flower_internals.create_shares(secret, 3, 5)
    assert flower_internals.combine_shares(shares[:3]) == flower_internals.combine_shares(shares[2:]) == secret


def test_encryption_and_packing_go_there_and_back() -> None:
    from cryptography.fernet import Fernet

    key = Fernet.generate_key()
    assert flower_internals.decrypt(key, flower_internals.encrypt(key, b"text")) == b"text"
    packed = flower_internals.share_keys_plaintext_concat(3, 4, b"one", b"other")
    assert flower_internals.share_keys_plaintext_separate(packed) == (3, 4, b"one", b"other")


def test_an_adapter_record_can_be_made() -> None:
    """`NodeInfo` is what grids list; a MetricRecord takes floats as weights."""
    assert flower_internals.NodeInfo(node_id=4, public_key=b"k").public_key == b"k"
    assert MetricRecord({"num-examples": 2.5})["num-examples"] == 2.5
    assert adapter([1.0])["adapter"].numpy().dtype == np.float32
