"""A client's policy in force: what a server's message asks for is checked before anything is read, loaded or excluded.

A message chooses on a client, in addition to the numbers of the model: the folder (`nodes-dir`, `data-nodes`), the
records (`data.name`, `data.path`, `data.forget_file`, `data.holdout_file`, `data.reference_file`), the base model
(`model.source`, `model.revision`, `model.adapter`, `model.attn_implementation`), files and models of an audit
(`evaluation.wikimem.counterfactuals_folder`, `evaluation.wikimem.embedder`), the code of the loss
(`unlearning.method`), the file of answers that it learns instead (`unlearning.alternatives.idk`), whose records are
excluded and audited and whether the client leaves (`request-ids`, `record-ids`, `scopes`), and how much is done
(`epochs`, `federation.local_epochs`, `unlearning.epochs`, `model.lora.rank`, `lora-rank`, the lengths and counts of an
audit's answers, `leakage-samples`, the size of `settings`, how many messages there are). Each is bounded here. Other
paths of a configuration (`output`, `start_from`, `evaluation.ruler.oracles`, `evaluation.wikimem.subjects`) no client
reads.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from oblivionis.client.node_policy import MOST_RANK, POLICY_FILE, Policy, PolicyError, read_policy
from oblivionis.config import dataset_traits, extension_traits
from oblivionis.config.schema import OWN_RECORDS, Config, Data, Model, Unlearning
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.erasure.node_record_files import NODE_DIR
from oblivionis.erasure.request_states import own_id
from oblivionis.erasure.unlearn_messages import Demand
from oblivionis.errors import ClientError, FileError, OblivionisError
from oblivionis.files import parse_json, read_bytes, write_json
from oblivionis.models.packaged import PACKAGED
from oblivionis.models.source import EMBEDDED, HUB_NAME, cached
from oblivionis.naming import DATA_FOLDER, PLAIN_NAME
from oblivionis.row_files import is_hub_name
from strategies import message_keys
from strategies.secure.agreed_parameters import Terms

log = logging.getLogger("flwr")

LONGEST_SETTINGS = 1_000_000
"""Characters of a configuration in a message."""
LONGEST_NAME = 200
USAGE_FILE = "usage.json"
COUNTED = {
    message_keys.QUERY: "queries_per_day",
    message_keys.TRAIN: "rounds_per_day",
    message_keys.UNLEARN: "rounds_per_day",
    message_keys.BURY: "rounds_per_day",
    message_keys.AUDIT: "audits_per_day",
}
"""By kind of message the limit of `node.toml` by which it is counted."""


class Refused(ClientError):
    """What a client does not do for a server. `rule`: the key of `node.toml` that would allow it, or what is wrong."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(what)
        self.rule = rule


class Guard:
    """The policy of the client whose own folder is `folder`, for one message of the type `kind`.

    Its methods raise Refused, with a reason that names what the server sent and no path of this machine.
    """

    def __init__(self, policy: Policy, folder: Path, client: int, kind: str) -> None:
        self._policy, self._folder, self._client, self._kind = policy, folder, client, kind

    @classmethod
    def of(cls, node_config: Mapping[str, object], client: int, kind: str) -> Guard | None:
        """The guard of a client that names its own folder; None for a simulated one, whose folder the server names."""
        own = node_config.get(NODE_DIR)
        if not own:
            return None
        folder = Path(str(own)).expanduser()
        try:
            return cls(read_policy(folder), folder, client, kind)
        except PolicyError as error:
            log.error("%s", error)
            raise Refused(
                POLICY_FILE, f"client {client} refuses: its {POLICY_FILE} is faulty; its log says why"
            ) from None

    @property
    def sealed(self) -> bool:
        """Whether no server learns which requests were made here."""
        return self._policy.requests.sealed

    @property
    def audits(self) -> bool:
        """Whether any audit is done here."""
        return self._policy.limits.audits_per_day > 0

    @property
    def most_rank(self) -> int | None:
        """The largest LoRA rank that is trained here; None where nothing limits it."""
        rank = self._policy.limits.lora_rank
        return None if rank == MOST_RANK else rank

    @property
    def most_exchanges(self) -> int:
        """Into how many cover exchanges a sealed request goes."""
        return self._policy.limits.exchanges

    def count(self) -> None:
        """Count the message, durably; Refused where today's are used up."""
        rule = COUNTED.get(self._kind)
        if rule is None:
            return
        limit = getattr(self._policy.limits, rule)
        today = time.strftime("%Y-%m-%d", time.gmtime())
        path = self._folder / USAGE_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self._folder / f".{USAGE_FILE}.lock", timeout=60):
                used = _usage(path, today)
                if used.get(rule, 0) >= limit:
                    raise self._refused(f"limits.{rule}", f"{limit} such messages were served today")
                write_json(path, {**used, "day": today, rule: used.get(rule, 0) + 1})
        except Timeout:
            raise ClientError(f"client {self._client}: {USAGE_FILE} is in use by another process") from None

    def check_masks(self, terms: Terms | None) -> None:
        """Refused where the client sends what it learned in larger sums only; `terms` None: it is to send it bare."""
        rules = self._policy.updates
        if not rules.masked:
            return
        if terms is None:
            raise self._refused("updates.masked", "the message asks for a model of its own, and it sends sums only")
        if terms.threshold < rules.least_clients:
            what = f"a sum of {terms.threshold} clients if others drop out, at least {rules.least_clients}"
            raise self._refused("updates.least_clients", what)

    def check_settings(self, text: str, run: str) -> None:
        """Refused for a configuration that is none before it is parsed, and for a run whose name is none.

        A text of some lines that name each other (aliases of YAML) would take all memory.
        """
        if len(text) > LONGEST_SETTINGS:
            raise self._refused("settings", f"a configuration of {len(text)} characters")
        if "*" in text and _has_aliases(text):
            raise self._refused("settings", "a configuration with aliases")
        if not run or len(run) > LONGEST_NAME or not run.isprintable():
            raise self._refused("run", "the message does not name its run")

    def permitted(self, config: Config, message: Mapping[str, Any]) -> Config:
        """`config` as it may be used here: of a model on the hub, the folder in this machine's cache."""
        self._check_data(config.data)
        self._check_loss(config.unlearning)
        self._check_work(config, message)
        self._check_rank(config.model, message)
        if self._kind == message_keys.AUDIT:
            self._check_audit(config, message)
        return replace(config, model=self._model(config.model, str(message.get("fingerprint", ""))))

    def check_demands(self, demands: Sequence[Demand]) -> None:
        """Refused unless there is a request for each of `demands` in this client's own folder.

        Where requests are sealed it is always the same refusal: no guess tells whether there is one.
        """
        if self.sealed:
            raise self._refused("requests.sealed", "its requests are served in cover exchanges only, and not by name")
        if self._policy.requests.from_server:
            return
        known = {r.id: r for r in NodeLedger(self._folder).requests()}
        for demand in demands:
            own = known.get(demand.request_id) or known.get(own_id(demand.request_id, self._client))
            rule, said = "requests.from_server", f"request {_cut(demand.request_id)!r}"
            if own is None:
                raise self._refused(rule, f"{said} was not made on this node")
            if own.scope != demand.scope:
                raise self._refused(rule, f"{said} has the scope {own.scope!r}, not {demand.scope!r}")
            if foreign := set(demand.record_ids) - set(own.everything):
                raise self._refused(rule, f"{said} does not ask for record {_cut(min(foreign))!r}")

    def _check_data(self, data: Data) -> None:
        rules = self._policy.data
        if data.on_clients:
            return
        dataset = dataset_traits.of(data.name)
        if dataset.built_in and not rules.built_in:
            raise self._refused("data.built_in", f"data={data.name}: it trains on its own records only")
        if dataset.files and data.path is None:
            if not rules.download:
                raise self._refused("data.download", f"data={data.name} without data.path: it fetches no data")
            return
        keys = ["path", "forget_file", "holdout_file", "reference_file"]
        if data.name in OWN_RECORDS and data.path is not None and is_hub_name(data.path):
            if not rules.download:
                raise self._refused("data.download", f"data.path {_cut(data.path)!r} of the hub: it fetches no data")
            keys.remove("path")
        for key in keys:
            given = getattr(data, key)
            if given is not None and not _within(given, [self._folder / DATA_FOLDER]):
                raise self._refused("data", f"data.{key} {_cut(given)!r} lies outside its own records")

    def _check_loss(self, unlearning: Unlearning) -> None:
        method, sentences = unlearning.method, unlearning.alternatives.idk
        if extension_traits.own_loss(method) is not None:
            raise self._refused("unlearning.method", f"the loss {_cut(method)!r}: it runs no code but the program's")
        if sentences is not None and not _within(sentences, [self._folder / DATA_FOLDER]):
            raise self._refused("data", f"unlearning.alternatives.idk {_cut(sentences)!r} lies outside its own records")

    def _check_work(self, config: Config, message: Mapping[str, Any]) -> None:
        epochs = {
            message_keys.TRAIN: message.get(message_keys.EPOCHS, config.federation.local_epochs),
            message_keys.UNLEARN: config.unlearning.epochs,
        }.get(self._kind, 1)
        limit = self._policy.limits.epochs
        if not isinstance(epochs, int) or not 1 <= epochs <= limit:
            raise self._refused("limits.epochs", f"{_cut(str(epochs))} epochs in one message, at most {limit}")

    def _check_rank(self, model: Model, message: Mapping[str, Any]) -> None:
        if model.mode != "lora" or self._kind not in (message_keys.TRAIN, message_keys.UNLEARN):
            return
        rank, limit = message.get(message_keys.LORA_RANK, model.lora.rank), self._policy.limits.lora_rank
        if not isinstance(rank, int) or rank > limit:
            what = f"LoRA adapters of rank {_cut(str(rank))}, at most {limit}"
            raise self._refused("limits.lora_rank", what)

    def _check_audit(self, config: Config, message: Mapping[str, Any]) -> None:
        from evaluation.wikimem.encoder import in_package

        limits, evaluation, wikimem = self._policy.limits, config.evaluation, config.evaluation.wikimem
        full = evaluation.audit.profile == "full"
        configured = evaluation.leakage.full_samples if full else evaluation.leakage.samples
        samples = message.get(message_keys.SAMPLES, configured)
        if not isinstance(samples, int) or samples < 0:
            raise self._refused(message_keys.SAMPLES, f"{_cut(str(samples))} sampled answers")
        if samples > limits.audit_samples:
            raise self._refused("limits.audit_samples", f"{samples} sampled answers, at most {limits.audit_samples}")
        profile = evaluation.full if full else evaluation.light
        tokens = max(profile.max_new_tokens, evaluation.leakage.max_new_tokens)
        if tokens > limits.audit_tokens:
            raise self._refused("limits.audit_tokens", f"answers of {tokens} tokens, at most {limits.audit_tokens}")
        if (folder := wikimem.counterfactuals_folder) is not None and not _within(folder, [self._folder]):
            raise self._refused("data", f"evaluation.wikimem.counterfactuals_folder {_cut(folder)!r} lies outside")
        if (name := wikimem.embedder) is not None and in_package(name) is None and not _within(name, self._model_roots):
            raise self._refused("models.folders", f"evaluation.wikimem.embedder {_cut(name)!r} is none of its models")

    @property
    def _model_roots(self) -> list[Path]:
        return [self._folder, *(Path(folder).expanduser() for folder in self._policy.models.folders)]

    def _model(self, model: Model, announced: str) -> Model:
        """`model` from where it may be taken. What the server announces is compared with the files by the caller."""
        rules, source = self._policy.models, model.source
        if model.attn_implementation is not None and not PLAIN_NAME.fullmatch(model.attn_implementation):
            given = _cut(model.attn_implementation)
            raise self._refused("model.attn_implementation", f"attention {given!r}: it fetches no code")
        if model.adapter is not None and not _within(model.adapter, self._model_roots):
            raise self._refused("models.folders", f"model.adapter {_cut(model.adapter)!r} lies outside its folders")
        if rules.fingerprints and announced not in rules.fingerprints:
            raise self._refused("models.fingerprints", f"base model {_cut(announced)[:12]!r} is none of its own")
        if source == EMBEDDED or source in PACKAGED:
            return model
        looks_like_path = source.startswith(("/", ".", "~")) or Path(source).exists()
        if looks_like_path or not HUB_NAME.fullmatch(source):
            if not _within(source, self._model_roots):
                raise self._refused("models.folders", f"model.source {_cut(source)!r} lies outside its folders")
            return model
        if not rules.fingerprints:
            raise self._refused("models.fingerprints", f"model.source {_cut(source)!r}: no model of a hub is allowed")
        if rules.download:
            return model
        folder = cached(source, model.revision)
        if folder is None:
            raise self._refused("models.download", f"model.source {_cut(source)!r} is not on this machine")
        return replace(model, source=str(folder), revision=None)

    def _refused(self, rule: str, what: str) -> Refused:
        return Refused(rule, f"client {self._client} refuses: {what} ({rule})")


def note_refusal(folder: Path, kind: str, error: Refused, message: Mapping[str, Any]) -> None:
    """Enter a refusal into the ledger of the client with that folder, once a day for each rule, kind and round.

    Where that fails, the client's log has to do.
    """
    about = {
        "kind": kind,
        "run": _cut(str(message.get(message_keys.RUN, ""))),
        "stage": _cut(str(message.get(message_keys.STAGE, ""))),
        "round": number if isinstance(number := message.get(message_keys.SERVER_ROUND), int) else None,
        "rule": error.rule,
    }
    try:
        NodeLedger(folder).refuse(_cut(str(error), 500), **about)
    except (OSError, OblivionisError) as failure:
        log.error("a refusal could not be entered into the ledger: %s", failure)


def _usage(path: Path, today: str) -> dict[str, Any]:
    """What was used today; nothing where the file is absent or of another day."""
    with suppress(FileNotFoundError, FileError, ValueError):
        usage = parse_json(read_bytes(path))
        if isinstance(usage, dict) and usage.get("day") == today:
            return {k: v for k, v in usage.items() if k in COUNTED.values() and isinstance(v, int)}
    return {}


def _has_aliases(text: str) -> bool:
    with suppress(yaml.YAMLError):  # parsing has the better message
        return any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text))
    return False


def _within(given: str, roots: Sequence[Path]) -> bool:
    """Whether a path of the server's lies in one of `roots` once `..` and symbolic links are resolved."""
    try:
        place = Path(given).expanduser().resolve()
        return any(place.is_relative_to(root.resolve()) for root in roots)
    except (OSError, RuntimeError, ValueError):
        return False


def _cut(text: str, length: int = LONGEST_NAME) -> str:
    """Foreign text in one line without control characters, at most `length` long."""
    plain = "".join(c if c.isprintable() else " " for c in text[:length])
    return plain.encode("utf-8", "replace").decode()
