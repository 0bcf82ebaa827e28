"""What a server's message may do on a client with a folder of its own: each refusal, before anything is read."""

import functools
import json
import os
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from support.inprocess import InProcessGrid
from support.nodes import write_lines, write_nodes

from oblivionis.chain import check_chain
from oblivionis.client import worker
from oblivionis.client.app import app
from oblivionis.client.node_policy import LimitRules, ModelRules, Policy
from oblivionis.client.node_policy_guard import Guard, Refused
from oblivionis.config import compose as configuration
from oblivionis.config.identity import config_hash
from oblivionis.config.schema import Config
from oblivionis.erasure.node_folder import NodeFolder
from oblivionis.erasure.node_ledger import REFUSALS_PER_DAY, NodeLedger
from oblivionis.models import source
from oblivionis.server.run_context import Server
from strategies import message_keys

LONG, OWN = "0" * 64, "1" * 64


class Built(Exception):
    """The client went as far as loading a model."""


@pytest.fixture
def node(tmp_path, monkeypatch):
    """The folder of client 1, which has two records about its requests; building a worker is an exception."""

    def build(_, config):
        raise Built(config.model.source)

    monkeypatch.setattr(worker.Worker, "__init__", build)
    monkeypatch.setattr(worker, "current", None)
    return write_nodes(tmp_path / "nodes") / "node1"


@functools.cache
def settings_text(*overrides):
    given = ["data=node", "unlearning.requests.policy=nodes", "federation.clients=2", *overrides]
    return configuration.to_yaml(configuration.compose("smoke", given))


def send(folder, kind, config=None, overrides=(), **message):
    """What the client answers: its error's reason."""
    grid = InProcessGrid(app, 2)
    (number,) = (n for n, context in grid.contexts.items() if context.node_config["partition-id"] == 1)
    grid.contexts[number].node_config["node-dir"] = str(folder)
    settings = {
        "settings": configuration.to_yaml(config) if config else settings_text(*overrides),
        "fingerprint": LONG,
        "run": "run",
        "stage": "train",
        "server-round": 1,
        **{name.replace("_", "-"): value for name, value in message.items()},
    }
    arrays = ArrayRecord({message_keys.ADAPTER: Array(np.zeros(3, np.float32))})
    content = RecordDict({message_keys.ARRAYS: arrays, message_keys.CONFIG: ConfigRecord(settings)})
    (reply,) = grid.send_and_receive([Message(content, dst_node_id=number, message_type=kind)])
    assert reply.has_error() and reply.error.code == 1001
    return reply.error.reason


def refusals(folder):
    return NodeLedger(folder).lines("refused")


def untouched(folder):
    return not (folder / "tombstones.jsonl").exists() and not (folder / "left.json").exists()


def changed(**settings):
    """A configuration with values that no check of the server's would let pass."""
    config = configuration.compose("smoke", ["data=node", "unlearning.requests.policy=nodes", "federation.clients=2"])
    for path, value in settings.items():
        *sections, name = path.split("__")
        part = config
        for section in sections:
            part = getattr(part, section)
        setattr(part, name, value)
    return config


# -- records ---------------------------------------------------------------------------------------------------------


def outside(tmp_path, node, how):
    file = tmp_path / "outside.jsonl"
    write_lines(file, [{"question": "Q?", "answer": "A."}])
    (node / "data" / "link.jsonl").symlink_to(file)
    (node / "data" / "linked").symlink_to(tmp_path)
    return {
        "absolute": str(file),
        "dots": f"{node}/data/../../../outside.jsonl",
        "link": str(node / "data" / "link.jsonl"),
        "linked folder": str(node / "data" / "linked" / "outside.jsonl"),
        "relative": os.path.relpath(file),
        "home": "~/outside.jsonl",
        "nobody's home": "~nobody-of-that-name/outside.jsonl",
        "its own ledger": str(node / "requests.jsonl"),
        "a file beside": f"{node}/data-outside.jsonl",
        "root": "/",
        "not there": "/nowhere/at/all.jsonl",
        "empty": "",
    }[how]


PLACES = (
    *("absolute", "dots", "link", "linked folder", "relative", "home", "nobody's home", "its own ledger"),
    *("a file beside", "root", "not there", "empty"),
)


@pytest.mark.parametrize("how", PLACES)
def test_no_message_makes_a_node_read_records_outside_its_folder(node, tmp_path, how):
    path = outside(tmp_path, node, how)
    reason = send(node, "train", changed(data__name="jsonl", data__path=path))
    assert reason == f"client 1 refuses: data.path {path!r} lies outside its own records (data)"
    (line,) = refusals(node)
    assert (line["kind"], line["run"], line["stage"], line["round"], line["rule"]) == (
        "train",
        "run",
        "train",
        1,
        "data",
    )
    assert line["reason"] == reason and check_chain(node / "requests.jsonl").faults == ()


def test_nor_files_beside_the_records(node):
    own = str(node / "data" / "first.jsonl")
    for key in ("forget_file", "holdout_file", "reference_file"):
        reason = send(node, "train", changed(data__name="jsonl", data__path=own, **{f"data__{key}": "/etc/passwd"}))
        assert reason.startswith(f"client 1 refuses: data.{key} '/etc/passwd' lies outside")
    assert "Built" in send(node, "train", changed(data__name="jsonl", data__path=own), fingerprint=fingerprint())


def test_nor_sentences_of_the_servers(node, tmp_path):
    for path in ("/etc/passwd", f"{node}/data/../../../idk.txt", str(node / "requests.jsonl")):
        config = changed(unlearning__alternatives__idk=path)
        reason = send(node, "train", config)
        said = f"unlearning.alternatives.idk {path!r} lies outside its own records (data)"
        assert reason == f"client 1 refuses: {said}"
    own = changed(unlearning__alternatives__idk=str(node / "data" / "idk.txt"))
    assert "Built" in send(node, "train", own, fingerprint=fingerprint())


def fingerprint():
    from oblivionis.models.fingerprint import fingerprint_source

    return fingerprint_source("embedded")


def test_a_folder_in_the_message_counts_for_nothing(node, tmp_path):
    write_lines(tmp_path / "theirs" / "node1" / "data" / "x.jsonl", [{"question": "Q?", "answer": "A."}])
    extra = {"data_nodes": str(tmp_path / "theirs"), "nodes_dir": str(tmp_path / "theirs")}
    send(node, "train", fingerprint=fingerprint(), **extra)
    assert [p.name for p in (tmp_path / "theirs" / "node1").iterdir()] == ["data"] and (node / "usage.json").exists()


def test_benchmarks_come_from_the_hub_only_where_the_node_says_so(node):
    for name in ("tofu", "muse_news"):
        config = changed(data__name=name, data__path=None)
        assert "it fetches no data (data.download)" in send(node, "train", config)
    (node / "node.toml").write_text("[data]\ndownload = true\nbuilt_in = false")
    assert "Built" in send(node, "train", config, fingerprint=fingerprint())
    assert "(data.built_in)" in send(node, "train", changed(data__name="fictitious"))


def test_own_records_come_from_the_hub_only_where_the_node_says_so(node):
    config = changed(data__name="records", data__path="owner/name", data__forget_file="/srv/ids.txt")
    assert "data.path 'owner/name' of the hub: it fetches no data (data.download)" in send(node, "train", config)
    (node / "node.toml").write_text("[data]\ndownload = true")
    assert "data.forget_file '/srv/ids.txt' lies outside its own records (data)" in send(node, "train", config)
    config = changed(data__name="records", data__path="owner/name")
    assert "Built" in send(node, "train", config, fingerprint=fingerprint())


# -- models ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/srv/model", "./model", "~/model", "..", "/", "/proc/self", "a b", "x/y/z"])
def test_no_model_from_elsewhere(node, path):
    reason = send(node, "train", changed(model__source=path))
    assert reason == f"client 1 refuses: model.source {path!r} lies outside its folders (models.folders)"


def test_no_adapter_from_elsewhere(node, tmp_path):
    for path in ("/srv/adapter", "..", "a b"):
        reason = send(node, "train", changed(model__adapter=path))
        assert reason == f"client 1 refuses: model.adapter {path!r} lies outside its folders (models.folders)"
    (node / "node.toml").write_text(f"[models]\nfolders = [{json.dumps(str(tmp_path))}]")
    assert "ModelError" in send(node, "train", changed(model__adapter=str(tmp_path / "none"))), "there is none"


def test_no_model_of_the_hub_unless_its_fingerprint_is_listed(node, monkeypatch):
    monkeypatch.setattr(source, "resolve", lambda *_: pytest.fail("looked for"))
    assert "no model of a hub is allowed (models.fingerprints)" in send(
        node, "train", changed(model__source="org/name")
    )
    (node / "node.toml").write_text(f'[models]\nfingerprints = ["{OWN}"]')
    assert "is none of its own (models.fingerprints)" in send(node, "train", changed(model__source="org/name"))
    assert "is none of its own (models.fingerprints)" in send(node, "train"), (
        "nor the embedded one, which is not listed"
    )
    reason = send(node, "train", changed(model__source="org/name"), fingerprint=OWN)
    assert reason == "client 1 refuses: model.source 'org/name' is not on this machine (models.download)"


def test_a_cached_model_is_used_from_its_folder(node, monkeypatch, tmp_path):
    monkeypatch.setattr("oblivionis.client.node_policy_guard.cached", lambda name, revision: tmp_path / "cache")
    guard = Guard(Policy(models=ModelRules(fingerprints=[OWN])), node, 1, "train")
    config = guard.permitted(changed(model__source="org/name", model__revision="main"), {"fingerprint": OWN})
    assert (config.model.source, config.model.revision) == (str(tmp_path / "cache"), None)
    free = Guard(Policy(models=ModelRules(fingerprints=[OWN], download=True)), node, 1, "train")
    assert free.permitted(changed(model__source="org/name"), {"fingerprint": OWN}).model.source == "org/name"
    with pytest.raises(Refused, match=r"models\.fingerprints"):
        free.permitted(changed(model__source="org/name"), {"fingerprint": LONG})


def test_a_model_in_a_permitted_folder_is_looked_at(node, tmp_path):
    (tmp_path / "models" / "mine").mkdir(parents=True)
    (node / "node.toml").write_text(f"[models]\nfolders = [{json.dumps(str(tmp_path / 'models'))}]")
    inside = str(tmp_path / "models" / "mine")
    assert "ModelError" in send(node, "train", changed(model__source=inside)), "it is empty"
    assert "models.folders" in send(node, "train", changed(model__source=inside + "/../../other"))


def test_no_code_is_fetched_by_the_name_of_an_attention(node):
    for name in ("kernels-community/flash-attn", "org/repo@main:f", "a.b", ""):
        reason = send(node, "train", changed(model__attn_implementation=name))
        assert reason == f"client 1 refuses: attention {name!r}: it fetches no code (model.attn_implementation)"


def test_no_file_is_run_as_a_loss(node, tmp_path):
    file = tmp_path / "theirs.py"
    file.write_text(f"open({str(tmp_path / 'run')!r}, 'w')\ndef theirs(forget_nll): return forget_nll.mean()\n")
    for path in (str(file), str(node / "data" / "theirs.py"), "/nowhere/theirs.py"):
        reason = send(node, "train.unlearn", changed(unlearning__method=path, unlearning__params={"a": 1}))
        assert reason == (f"client 1 refuses: the loss {path!r}: it runs no code but the program's (unlearning.method)")
    assert not (tmp_path / "run").exists()


# -- requests --------------------------------------------------------------------------------------------------------


def demand(requests, records, counts=None, scopes=None):
    return {
        "request_ids": requests,
        "record_ids": records,
        "record_counts": counts or [len(records)],
        "scopes": scopes or ["records"] * len(requests),
    }


@pytest.mark.parametrize("kind", ["train.unlearn", "query.bury", "evaluate.audit"])
def test_nothing_is_buried_left_or_audited_that_nobody_asked_for_here(node, kind):
    everything = ["p1-home", "p1-job", "p4-home", "p4-job", "p7-home", "p7-job"]
    for asked in (
        demand(["x"], ["p1-home"]),
        demand(["all"], everything, scopes=["client"]),
        demand(["all"], [], [0], ["client"]),
        demand(["x"], ["p1-home"], scopes=["subject"]),
    ):
        name = asked["request_ids"][0]
        reason = send(node, kind, **asked)
        assert reason == f"client 1 refuses: request {name!r} was not made on this node (requests.from_server)"
    assert untouched(node) and {e["kind"] for e in refusals(node)} == {kind}


def test_a_request_that_was_made_here_does_not_stand_for_others(node):
    NodeLedger(node).submit(["p1-home"], identifier="mine")
    for asked, said in (
        (demand(["mine"], ["p1-home", "p1-job"]), "'mine' does not ask for record 'p1-job'"),
        (demand(["mine"], ["p1-home"], scopes=["client"]), "'mine' has the scope 'records', not 'client'"),
        (demand(["mine", "more"], ["p1-home", "p1-job"], [1, 1]), "'more' was not made on this node"),
        (demand(["mine-client-0002"], ["p1-home"]), "'mine-client-0002' was not made on this node"),
        (demand(["mine\x1b[2J"], ["p1-home"]), "'mine [2J' was not made on this node"),
    ):
        assert said in send(node, "train.unlearn", **asked)
    assert untouched(node)
    for name in ("mine", "mine-client-0001", "mine-client-0001-2"):
        assert "Built" in send(node, "train.unlearn", fingerprint=fingerprint(), **demand([name], ["p1-home"]))


def test_a_server_with_a_schedule_is_let_in_by_the_node(node):
    (node / "node.toml").write_text("[requests]\nfrom_server = true")
    assert "Built" in send(node, "train.unlearn", fingerprint=fingerprint(), **demand(["theirs"], ["p1-home"]))


def test_a_rejection_brings_no_record_back_into_training_and_ends_no_demand(node):
    ledger = NodeLedger(node)
    ledger.submit(["p1-home"], identifier="mine")
    ledger.heard("run", OWN, [{"event": "rejected", "id": "mine", "line": LONG, "round": 1, "reason": "no"}])
    assert ledger.requests()[0].state == "rejected" and ledger.asked() == {"p1-home"}
    assert [r.id for r in ledger.unsettled()] == ["mine"], "another run is told of it"
    assert "Built" in send(node, "train.unlearn", fingerprint=fingerprint(), **demand(["mine"], ["p1-home"]))


# -- how much --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epochs", [101, 10**9, 0, -1])
def test_the_number_of_epochs_is_bounded(node, epochs):
    said = f"client 1 refuses: {epochs} epochs in one message, at most 100 (limits.epochs)"
    assert send(node, "train", epochs=epochs) == said


def test_so_is_that_of_the_configuration(node):
    NodeLedger(node).submit(["p1-home"], identifier="mine")
    mine = demand(["mine"], ["p1-home"])
    said = "client 1 refuses: 5000 epochs in one message, at most 100 (limits.epochs)"
    assert send(node, "train", changed(federation__local_epochs=5000)) == said
    assert send(node, "train.unlearn", changed(unlearning__epochs=5000), **mine) == said
    (node / "node.toml").write_text("[limits]\nepochs = 5000")
    assert "Built" in send(node, "train.unlearn", changed(unlearning__epochs=5000), fingerprint=fingerprint(), **mine)


def test_other_texts_are_no_number_of_epochs(node):
    assert "limits.epochs" in send(node, "train", epochs="7") and "limits.epochs" in send(node, "train", epochs=2.5)


@pytest.mark.slow
def test_an_audit_is_bounded(node):
    NodeLedger(node).submit(["p1-home"], identifier="mine")
    asked = demand(["mine"], ["p1-home"])
    bounded = (
        ({"evaluation__leakage__full_samples": 5000}, "limits.audit_samples"),
        ({"evaluation__full__max_new_tokens": 5000}, "limits.audit_tokens"),
        ({"evaluation__leakage__max_new_tokens": 5000}, "limits.audit_tokens"),
        ({"evaluation__wikimem__counterfactuals_folder": "/etc"}, "data"),
        ({"evaluation__wikimem__embedder": "org/encoder"}, "models.folders"),
        ({"evaluation__wikimem__embedder": "/srv/encoder"}, "models.folders"),
    )
    for number, (settings, rule) in enumerate(bounded):
        assert send(node, "evaluate.audit", changed(**settings), **asked).endswith(f"({rule})")
        allowed = send(node, "train", changed(**settings), fingerprint=fingerprint(), run=f"run-{number}")
        assert "Built" in allowed, "training reads none of it"


def test_a_larger_rank_than_the_node_trains_is_refused_and_a_truncation_taken(node):
    (node / "node.toml").write_text("[limits]\nlora_rank = 8")
    uneven = changed(model__lora__ranks=[8, 32], model__lora__aggregation="product")
    for kind in ("train", "train.unlearn"):
        reason = send(node, kind, uneven)
        assert reason == "client 1 refuses: LoRA adapters of rank 32, at most 8 (limits.lora_rank)"
        assert send(node, kind, uneven, lora_rank="4").endswith("(limits.lora_rank)")
        assert send(node, kind, uneven, lora_rank=9).endswith("(limits.lora_rank)")
    assert "Built" in send(node, "train", uneven, lora_rank=8, fingerprint=fingerprint())
    full = changed(model__mode="full")
    assert "Built" in send(node, "train", full, fingerprint=fingerprint(), run="full"), "no adapters there"


@pytest.mark.parametrize(("text", "told"), [("", None), ("[limits]\nlora_rank = 8", 8)])
def test_a_node_says_which_rank_it_trains_and_the_server_goes_by_it(node, text, told):
    (node / "node.toml").write_text(text)
    grid = InProcessGrid(app, 2)
    (number,) = (n for n, context in grid.contexts.items() if context.node_config["partition-id"] == 1)
    grid.contexts[number].node_config["node-dir"] = str(node)
    content = RecordDict({message_keys.CONFIG: ConfigRecord({})})
    (reply,) = grid.send_and_receive([Message(content, dst_node_id=number, message_type="query")])
    assert reply.content[message_keys.METRICS].get(message_keys.LORA_RANK) == told
    server = SimpleNamespace(config=changed(), nodes=SimpleNamespace(answers={1: reply.content}))
    assert [Server.most_rank(server, client) for client in (0, 1)] == [32, told or 32]


def test_rounds_audits_and_queries_a_day_are_counted_for_good(node):
    (node / "node.toml").write_text("[limits]\nrounds_per_day = 2\nqueries_per_day = 1\naudits_per_day = 0")
    for _ in range(2):
        assert "Built" in send(node, "train", fingerprint=fingerprint())
    assert send(node, "train") == "client 1 refuses: 2 such messages were served today (limits.rounds_per_day)"
    assert "rounds_per_day" in send(node, "train.unlearn") and "rounds_per_day" in send(node, "query.bury")
    assert "audits_per_day" in send(node, "evaluate.audit")
    used = json.loads((node / "usage.json").read_text())
    (node / "usage.json").write_text(json.dumps({**used, "day": "2020-01-01"}))
    assert "Built" in send(node, "train", fingerprint=fingerprint()), "another day"


def test_a_damaged_count_begins_anew(node):
    (node / "usage.json").write_text("[" * 9999)
    assert "Built" in send(node, "train", fingerprint=fingerprint())


def test_queries_for_requests_are_counted_and_plain_ones_are_not(node):
    (node / "node.toml").write_text("[limits]\nqueries_per_day = 1")
    grid = InProcessGrid(app, 2)
    (number,) = (n for n, context in grid.contexts.items() if context.node_config["partition-id"] == 1)
    grid.contexts[number].node_config["node-dir"] = str(node)

    def ask(**settings):
        content = RecordDict({message_keys.CONFIG: ConfigRecord(settings)})
        (reply,) = grid.send_and_receive([Message(content, dst_node_id=number, message_type="query")])
        return reply

    whole = {"ledger": LONG, "ledger-head": LONG, "run": "run", "server-round": 1, "outcomes": []}
    assert not ask(**whole, **{"config-hash": OWN}).has_error()
    assert "queries_per_day" in ask(**whole).error.reason
    assert not ask().has_error(), "who are you?"
    assert [(e["run"], e["config"]) for e in NodeLedger(node).lines("run")] == [("run", OWN)]


def test_a_configuration_too_long_to_be_one_is_not_parsed(node):
    assert "a configuration of 1000001 characters" in send(node, "train", settings="#" * 1_000_001)


def test_nor_one_whose_aliases_would_fill_the_memory(node):
    levels = [f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 9)}]" for i in range(1, 30)]
    bomb = "\n".join(["x0: &x0 [a]", *levels])
    assert "a configuration with aliases (settings)" in send(node, "train", settings=bomb)
    starred = changed(model__template__question_prefix="*a *b")
    assert "Built" in send(node, "train", starred, fingerprint=fingerprint())


# -- the file, the ledger, the run -----------------------------------------------------------------------------------


def test_a_faulty_policy_refuses_everything(node):
    (node / "node.toml").write_text("[limits]\nepoch = 3")
    assert send(node, "train") == "client 1 refuses: its node.toml is faulty; its log says why"
    assert [e["rule"] for e in refusals(node)] == ["node.toml"]


def test_a_refusal_is_entered_once_and_no_server_fills_the_disk(node):
    for _ in range(3):
        send(node, "train", epochs=0)
    assert len(refusals(node)) == 1
    for number in range(2, REFUSALS_PER_DAY + 20):
        send(node, "train", epochs=0, server_round=number, run="\x1b]0;x\x07" + "y" * 100)
    lines = refusals(node)
    assert len(lines) == REFUSALS_PER_DAY and "not entered" in lines[-1]["more"]
    assert "\x1b" not in (node / "requests.jsonl").read_text() and check_chain(node / "requests.jsonl").faults == ()
    assert (node / "requests.jsonl").stat().st_size < REFUSALS_PER_DAY * 1000


def test_foreign_text_is_cut_and_plain_in_reply_and_ledger(node):
    path = "/\x1b[31m" + "x" * 100_000
    reason = send(node, "train", changed(data__name="jsonl", data__path=path))
    assert len(reason) < 400 and "\x1b" not in reason


def test_a_run_that_changes_its_configuration_is_refused(node):
    first = changed()
    assert "Built" in send(node, "train", first, fingerprint=fingerprint())
    (line,) = NodeLedger(node).lines("run")
    assert (line["run"], line["config"], line["client"]) == ("run", config_hash(first), 1)
    reason = send(node, "train", changed(certificate__max_leakage=0.9), fingerprint=fingerprint())
    assert "run 'run' changed its configuration" in reason and config_hash(first)[:12] in reason
    assert [e["reason"] for e in refusals(node)] == [reason]
    assert "Built" in send(node, "train", changed(certificate__max_leakage=0.9), fingerprint=fingerprint(), run="two")


@pytest.mark.parametrize("run", ["", "x" * 201, "a\x1bb"])
def test_a_run_without_a_proper_name_is_refused(node, run):
    assert "the message does not name its run" in send(node, "train", run=run)


def test_the_nodes_ledger_is_its_owners_alone(node):
    NodeLedger(node).submit(["p1-home"], identifier="mine")
    assert (node / "requests.jsonl").stat().st_mode & 0o777 == 0o600
    (node / "requests.jsonl").chmod(0o644)
    NodeLedger(node).note("queried")
    assert (node / "requests.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_damaged_mark_of_having_left_is_a_mark(node):
    for text in ("", "[]", "{}", "{" * 9999, "\x00"):
        (node / "left.json").write_text(text)
        assert NodeFolder(node).left_by() == "unknown"


def test_simulated_clients_have_no_guard(node):
    assert Guard.of({}, 1, "train") is None


def test_the_limits_of_a_simulation_stay(node):
    guard = Guard(Policy(limits=LimitRules(epochs=2)), node, 1, "train")
    assert isinstance(guard.permitted(changed(federation__local_epochs=2), {}), Config)
    with pytest.raises(Refused, match="3 epochs"):
        guard.permitted(changed(federation__local_epochs=3), {})


@pytest.mark.parametrize("kind", [message_keys.UNLEARN, message_keys.BURY, message_keys.AUDIT])
def test_where_requests_are_sealed_no_guess_tells_one_from_none(node, kind):
    (node / "node.toml").write_text("[requests]\nsealed = true\n")
    NodeLedger(node).submit(["p1-home"], reason="by letter", identifier="art17")
    guesses = [
        {"request_ids": ["art17"], "record_ids": ["p1-home"]},
        {"request_ids": ["art17"], "record_ids": ["p4-home"]},
        {"request_ids": ["art17"], "record_ids": ["p1-home"], "scopes": ["client"]},
        {"request_ids": ["another"], "record_ids": ["p1-home"]},
    ]
    (reason,) = {send(node, kind, **guess) for guess in guesses}
    assert reason.endswith("served in cover exchanges only, and not by name (requests.sealed)")
    assert NodeFolder(node).tombstones() == frozenset()


@pytest.mark.parametrize("left", [True, False])
def test_a_sealed_client_trains_under_masks_only_and_does_not_say_why(tmp_path, left):
    folder = write_nodes(tmp_path / "nodes") / "node1"
    (folder / "node.toml").write_text("[requests]\nsealed = true\n")
    if left:
        NodeFolder(folder).leave("art17")
    config = configuration.compose("smoke", ["data=node", "unlearning.requests.policy=nodes", "federation.clients=2"])
    worker_of = worker.resident(config)
    reason = send(
        folder,
        message_keys.TRAIN,
        config,
        fingerprint=fingerprint(),
        manifest_hash=worker_of.assembled.manifest_hash,
    )
    assert reason.endswith("it goes into sums under masks only (requests.sealed)")
