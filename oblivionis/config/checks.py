"""Checks that need more than one key: sizes against clients, stages against each other, files that must exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from oblivionis import row_files
from oblivionis.config import dataset_traits, extension_traits, late_client_checks, method_traits, shard_checks
from oblivionis.config.adapter_folder import lora_settings, read_adapter
from oblivionis.config.problems import Problem
from oblivionis.config.schema import OWN_RECORDS, STAGES, Config, Data, SecureAggregation
from oblivionis.config.template_arguments import fault_of
from oblivionis.errors import FileError
from oblivionis.naming import DATA_FOLDER, PLAIN_NAME, REFERENCES_TABLE, simulated_folder, subject_key
from strategies.secure.agreed_parameters import LEAST_CLIENTS, SecureSettings, TermsError

EMBEDDED_CONTEXT = 512
LEAST_ORACLES = 3
WITHOUT_HOLDINGS = ("nodes", "file", "none")

Check = Callable[[Config], Iterator[Problem]]
CHECKS: list[tuple[tuple[str, ...], Check]] = []


def cross_checks(config: Config, bad: set[str]) -> list[Problem]:
    """Everything that is wrong between keys; a check that reads a key in `bad` is left out."""
    found: list[Problem] = []
    for used, check in CHECKS:
        if not any(_touches(path, key) for path in bad for key in used):
            found += check(config)
    return found


def _touches(path: str, key: str) -> bool:
    return path == key or path.startswith(f"{key}.") or key.startswith(f"{path}.")


def _reads(*keys: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        CHECKS.append((keys, check))
        return check

    return register


@_reads("stages", "start_from")
def _stages(config: Config) -> Iterator[Problem]:
    ordered = [stage for stage in STAGES if stage in config.stages]
    if config.stages != ordered:
        hint = f"write stages=[{','.join(ordered)}]"
        yield Problem("stages", f"{config.stages} is out of order", f"the order {', '.join(STAGES)}", hint)
    if "unlearn" in config.stages and "finetune" not in config.stages and config.start_from is None:
        yield Problem(
            "stages", "unlearn has no finetuned model to start from", "finetune in stages", "or give start_from"
        )


@_reads("name")
def _run_name(config: Config) -> Iterator[Problem]:
    name = config.name
    if name is not None and (name in ("", ".", "..") or name != name.strip() or set(name) & set('/\\:*?"<>|\0\n')):
        yield Problem("name", f"{name!r} cannot be the name of a folder", "letters, digits, - _ . or space")


@_reads("start_from")
def _start_from(config: Config) -> Iterator[Problem]:
    if config.start_from is not None and not (Path(config.start_from).expanduser() / "config.yaml").is_file():
        yield Problem("start_from", f"{config.start_from} is no run directory", "a folder with a config.yaml")


@_reads("evaluation.ruler.oracles")
def _ruler_oracles(config: Config) -> Iterator[Problem]:
    given = config.evaluation.ruler.oracles
    for path in given:
        if not (Path(path).expanduser() / "config.yaml").is_file():
            yield Problem("evaluation.ruler.oracles", f"{path} is no run directory", "folders with a config.yaml")
    if len({Path(path).expanduser().resolve() for path in given}) < len(given):
        yield Problem("evaluation.ruler.oracles", "names a run more than once", "each run once")
    if 0 < len(given) < LEAST_ORACLES:
        count = f"{len(given)} run{'s' if len(given) > 1 else ''}"
        message = f"{count} cannot tell how far retrained models lie apart"
        yield Problem("evaluation.ruler.oracles", message, f"at least {LEAST_ORACLES}, or none")


@_reads("attack")
def _attack_texts(config: Config) -> Iterator[Problem]:
    for name in ("rephrasings", "jailbreaks"):
        for text in getattr(config.attack, name):
            if "{question}" not in text and "{lower}" not in text:
                yield Problem(f"attack.{name}", f"{text!r} does not ask the question", "a text with {question}")


@_reads("model.source")
def _source(config: Config) -> Iterator[Problem]:
    source = config.model.source
    as_path = source.startswith((".", "/", "~")) or source.count("/") > 1
    if source != "embedded" and as_path and not (Path(source).expanduser() / "config.json").is_file():
        yield Problem("model.source", f"{source} is no model folder", "a folder with a config.json, or a hub name")


@_reads("model.attn_implementation")
def _attention(config: Config) -> Iterator[Problem]:
    name = config.model.attn_implementation
    if name is not None and not PLAIN_NAME.fullmatch(name):
        message = f"{name!r} is code from the hub, which is not run"
        yield Problem("model.attn_implementation", message, "what comes with transformers, such as sdpa or eager")


@_reads("model.source", "model.max_length")
def _embedded_context(config: Config) -> Iterator[Problem]:
    if config.model.source == "embedded" and config.model.max_length > EMBEDDED_CONTEXT:
        message = f"{config.model.max_length} is more than the embedded model reads"
        yield Problem("model.max_length", message, f"value <= {EMBEDDED_CONTEXT}")


@_reads("model.source", "model.template.kind")
def _embedded_template(config: Config) -> Iterator[Problem]:
    if config.model.source == "embedded" and config.model.template.kind == "chat":
        yield Problem("model.template.kind", "the embedded model has no chat template", "qa")


@_reads("model.mode", "model.lora.aggregation")
def _aggregation(config: Config) -> Iterator[Problem]:
    aggregation = config.model.lora.aggregation
    if config.model.mode == "full" and aggregation != "factors":
        message = f"{aggregation} is about LoRA's factors, but model.mode=full trains all weights and has none"
        yield Problem("model.lora.aggregation", message, "factors", "or set model.mode=lora")


@_reads("model")
def _adapter(config: Config) -> Iterator[Problem]:
    """An adapter to start from that is none, or that is described otherwise."""
    model, key = config.model, "model.adapter"
    if model.adapter is None:
        return
    try:
        settings = lora_settings(read_adapter(Path(model.adapter).expanduser()))
    except FileError as error:
        yield Problem(key, str(error))
        return
    if model.mode == "full":
        yield Problem("model.mode", "full trains all weights, and the adapter (model.adapter) beside them", "lora")
    if model.lora.ranks is not None:
        message = "an adapter has one rank, from which clients of other ranks cannot start"
        yield Problem("model.lora.ranks", message, "null", f"or set {key}=null")
    for name, value in settings.items():
        given = getattr(model.lora, name)
        if given != value and name != "dropout":
            expected = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
            yield Problem(f"model.lora.{name}", f"{given} is not the adapter's ({model.adapter})", expected)


@_reads("model.mode", "model.lora", "model.quantization", "stages", "unlearning.method")
def _lora_kind(config: Config) -> Iterator[Problem]:
    """Kinds of adapters that cannot be averaged, resized or sampled as requested."""
    lora = config.model.lora
    if config.model.mode == "full":
        return
    products = lora.aggregation == "product"
    if lora.use_dora and lora.aggregation != "factors":
        message = f"{lora.aggregation} is about the update B·A, and DoRA's magnitudes scale more than that"
        yield Problem("model.lora.use_dora", message, "false", "or set model.lora.aggregation=factors")
    if lora.target_parameters and products:
        message = "stacked experts have one B·A each, and product averages one per layer"
        yield Problem("model.lora.target_parameters", message, "null", "or set model.lora.aggregation=factors")
    if lora.use_dora and config.model.quantization == "int8":
        message = "the lengths of rows that are kept in 8 bits (model.quantization=int8) cannot be read"
        yield Problem("model.lora.use_dora", message, "false", "or set model.quantization=nf4")
    if lora.modules_to_save and lora.ranks is not None:
        message = "modules that are trained whole have no rank that a client could lower (model.lora.ranks)"
        yield Problem("model.lora.modules_to_save", message, "null", "or set model.lora.ranks=null")
    if lora.target_parameters and lora.dropout > 0:
        message = f"{lora.dropout:g} cannot be done where a parameter is adapted (model.lora.target_parameters)"
        yield Problem("model.lora.dropout", message, "0")
    if lora.target_parameters and lora.use_dora:
        yield Problem("model.lora.use_dora", "DoRA is for layers, not for model.lora.target_parameters", "false")
    method = config.unlearning.method
    if method_traits.ball(method) is not None and "unlearn" in config.stages:
        for name in ("use_dora", "modules_to_save"):
            if getattr(lora, name):
                message = f"{method} measures how far a model is from a random one, and these do not start at random"
                expected = "false" if name == "use_dora" else "null"
                yield Problem(f"model.lora.{name}", message, expected, "or another unlearning method")


@_reads("model.mode", "model.lora", "stages", "unlearning.method")
def _ranks(config: Config) -> Iterator[Problem]:
    """Ranks of the clients that the server's cannot hold, or that meet what has one rank only."""
    lora, key = config.model.lora, "model.lora.ranks"
    if lora.ranks is None:
        if lora.unlearning_rank != "own":
            message = "all clients have the server's rank (model.lora.ranks is null)"
            yield Problem("model.lora.unlearning_rank", message, "own", f"or set {key}")
        return
    if wrong := [rank for rank in lora.ranks if not 1 <= rank <= lora.rank]:
        message = f"{wrong[0]} is no rank that the server's, model.lora.rank={lora.rank}, holds"
        yield Problem(key, message, f"ranks from 1 to {lora.rank}", "or a larger model.lora.rank")
    if config.model.mode == "full":
        yield Problem(key, "all weights are trained (model.mode=full), which have no rank", "null")
    elif lora.aggregation != "product":
        what = "a frozen A is the same for all" if lora.aggregation == "freeze_a" else "factors of several ranks"
        message = f"{what}: only their products can be averaged, and model.lora.aggregation is {lora.aggregation}"
        yield Problem(key, message, "null", "or set model.lora.aggregation=product")
    if "local" in config.stages:
        yield Problem("stages", "the stage local has one rank for all clients (model.lora.ranks)", "leave out local")
    method = config.unlearning.method
    if method_traits.starts_from_others(method) and "unlearn" in config.stages:
        message = f"{method} starts from the other clients' model, which a client of a lower rank cannot hold"
        yield Problem("unlearning.method", message, "another method", f"or set {key}=null")


@_reads("federation", "model.lora", "stages")
def _compression(config: Config) -> Iterator[Problem]:
    """Compressed updates where models are summed, measured one by one, or change their coordinates."""
    compression, key = config.federation.compression, "federation.compression"
    if compression.method == "none":
        return
    if config.federation.secure_aggregation.enabled:
        message = f"masks cover numbers of one scale at the same places, which {compression.method} does not send"
        yield Problem(f"{key}.method", message, "none", "or set federation.secure_aggregation.enabled=false")
    if config.federation.buffer.size:
        message = (
            "asynchronous rounds (federation.buffer.size) take differences from several models, which travel whole"
        )
        yield Problem(f"{key}.method", message, "none", "or set federation.buffer.size=0")
    if "local" in config.stages:
        message = "in the stage local each client's model is measured by itself, and travels whole"
        yield Problem("stages", message, "stages without local", f"or set {key}.method=none")
    if config.model.lora.ranks is not None and compression.error_feedback:
        message = "a client of a lower rank (model.lora.ranks) has other coordinates in each round"
        yield Problem(f"{key}.error_feedback", message, "false", "or set model.lora.ranks=null")


@_reads("model.lora.aggregation", "strategy.name")
def _own_rule(config: Config) -> Iterator[Problem]:
    name, aggregation = config.strategy.name, config.model.lora.aggregation
    if aggregation == "product" and not extension_traits.code("strategy", name).literals.get("TAKES_MEAN", True):
        message = f"{name} combines the clients' numbers by a rule of its own, not by the mean of LoRA's products"
        yield Problem("model.lora.aggregation", message, "factors or freeze_a", "or choose another strategy")


@_reads("federation", "unlearning", "strategy.name", "model.lora.aggregation", "stages", "privacy")
def _secure(config: Config) -> Iterator[Problem]:
    """Secure aggregation where a sum is not enough, or would be no secret."""
    key, federation, unlearning = "federation.secure_aggregation", config.federation, config.unlearning
    secure = federation.secure_aggregation
    if not secure.enabled:
        if unlearning.cover or unlearning.cover_seconds:
            name = "cover" if unlearning.cover else "cover_seconds"
            message = "without masks the server sees who sends a zero"
            yield Problem(f"unlearning.{name}", message, "0", f"or set {key}.enabled=true")
        return
    sums = "the server learns the clients' sum alone"
    if not extension_traits.code("strategy", config.strategy.name).literals.get("TAKES_MEAN", True):
        message = f"{config.strategy.name} compares single clients' models, and {sums}"
        yield Problem("strategy", message, "an aggregator of the weighted mean, or secure aggregation off")
    if config.model.lora.aggregation == "product":
        message = f"the mean of LoRA's products takes every client's factors, and {sums}"
        yield Problem("model.lora.aggregation", message, "factors or freeze_a")
    if method_traits.updates(unlearning.method) is not None:
        message = f"{unlearning.method} goes by single clients' past models, and {sums}"
        yield Problem("unlearning.method", message, "an unlearning loss, or secure aggregation off")
    if "local" in config.stages:
        yield Problem("stages", f"in the stage local each client is measured by itself, and {sums}", "leave out local")
    if federation.max_weight_share is not None:
        message = f"no client's share can be limited where {sums}"
        yield Problem("federation.max_weight_share", message, "null", f"{key}.max_weight limits what a client tells")
    sampled = federation.per_round
    if sampled < LEAST_CLIENTS:
        message = f"{sampled} clients fine-tune in a round: what they add up to tells what each of them sent"
        yield Problem("federation.min_clients", message, f"at least {LEAST_CLIENTS}")
    asking = "unlearn" in config.stages and unlearning.requests.policy != "none"
    if asking and not LEAST_CLIENTS <= unlearning.cover <= federation.clients:
        message = f"a FedTU exchange goes to {unlearning.cover or 'those that ask alone, often one'} of the clients"
        expected = f"{LEAST_CLIENTS} to {federation.clients} (federation.clients)"
        yield Problem("unlearning.cover", message, expected)
    for clients in (sampled, unlearning.cover if asking else 0):
        if clients >= LEAST_CLIENTS and (fault := _terms_fault(secure, clients)):
            yield Problem(key, f"an exchange with {clients} clients: {fault}", "other terms")
            return


def _terms_fault(secure: SecureAggregation, clients: int) -> str:
    settings = {name: getattr(secure, name) for name in ("clipping", "shares", "threshold", "bits", "max_weight")}
    try:
        SecureSettings(**settings).terms("train", clients, ("", ""), 0)
    except TermsError as error:
        return str(error)
    return ""


@_reads("strategy", "federation.clients")
def _enough_clients(config: Config) -> Iterator[Problem]:
    """An aggregator that needs the answers of more clients in a round than there are."""
    least, params = _least(config), config.strategy.params
    if least > config.federation.clients:
        settings = ", ".join(f"{key}={value}" for key, value in params.items())
        message = f"{config.strategy.name} with {settings} needs the answers of {least} clients in a round"
        expected = f"at least {least}, or smaller settings of the strategy"
        yield Problem("federation.clients", f"{message}, and there are {config.federation.clients}", expected)


@_reads(*shard_checks.READS)
def _shards(config: Config) -> Iterator[Problem]:
    """What does not go with shards."""
    yield from shard_checks.shards(config, _least(config))


def _least(config: Config) -> int:
    """Of how many clients the strategy needs answers in a round."""
    literals = extension_traits.code("strategy", config.strategy.name).literals
    return aggregator_needs(literals.get("LEAST", {}), config.strategy.params)


def aggregator_needs(least: Mapping[str, Sequence[Mapping[str, int]]], params: Mapping[str, object]) -> int:
    """Of how many clients an aggregator with `params` needs answers, by the literal `LEAST` of its file.

    `LEAST` maps a setting, where above 0, to sums of which the largest counts: factors by setting, `constant` besides.
    """
    sums = [
        sum(factor * (1 if name == "constant" else int(params.get(name, 0))) for name, factor in terms.items())  # type: ignore[call-overload]
        for setting, alternatives in least.items()
        if int(params.get(setting, 0)) > 0  # type: ignore[call-overload]
        for terms in alternatives
    ]
    return max([1, *sums])


@_reads("model.template.kind", "model.template.answer_prefix", "model.template.question_suffix")
def _clean_boundary(config: Config) -> Iterator[Problem]:
    template = config.model.template
    key, end = (
        ("answer_prefix", template.answer_prefix)
        if template.answer_prefix
        else (
            "question_suffix",
            template.question_suffix,
        )
    )
    if template.kind == "qa" and end.endswith(" "):
        yield Problem(
            f"model.template.{key}",
            f"the prompt ends in a space ({end!r}), which a tokenizer merges with the answer",
            "no space at the end",
            "put it into model.template.answer_separator",
        )


@_reads("model.template")
def _template_arguments(config: Config) -> Iterator[Problem]:
    template, key = config.model.template, "model.template.arguments"
    for name, given, none in (
        ("arguments", template.arguments, "{}"),
        ("system_prompt", template.system_prompt, "null"),
    ):
        if given and template.kind != "chat":
            message = f"only a chat template takes it, and model.template.kind is {template.kind}"
            yield Problem(f"model.template.{name}", message, none, "or set model.template.kind=chat")
    for name, value in template.arguments.items():
        if fault := fault_of(name, value):
            yield Problem(f"{key}.{name}", *fault)


@_reads("unlearning")
def _unlearning_options(config: Config) -> Iterator[Problem]:
    """Options that the method would not use."""
    unlearning = config.unlearning
    if unlearning.retain_loss != "nll" and not method_traits.has_retain_choice(unlearning.method):
        message = f"{unlearning.method} has no retain term to choose"
        expected = f"nll, or one of the methods {', '.join(method_traits.with_retain_choice())}"
        yield Problem("unlearning.retain_loss", message, expected)
    entropy = unlearning.entropy.forget != 0 or unlearning.entropy.retain != 0
    seen = method_traits.sees_forget_likelihood(unlearning.method) or (
        entropy and method_traits.is_loss(unlearning.method)
    )
    if unlearning.forget_nll_limit is not None and not seen:
        message = f"{unlearning.method} does not look at the likelihood of forget records"
        yield Problem("unlearning.forget_nll_limit", message, "null")
    if unlearning.target is None and method_traits.needs_target(unlearning.method):
        message = f"{unlearning.method} forgets each record up to a target"
        yield Problem("unlearning.target", message, "oracle_estimate")
    if unlearning.target is not None and not method_traits.is_loss(unlearning.method):
        message = f"{unlearning.method} minimises no loss on the records to forget"
        yield Problem("unlearning.target", message, "null, or another unlearning method")
    if unlearning.sampled_answers and not method_traits.ends_recitation(unlearning.method):
        message = f"{unlearning.method} does not look at its answers"
        yield Problem("unlearning.sampled_answers", message, "0", "or set unlearning=calibrated")
    if unlearning.again and unlearning.target is None:
        yield Problem("unlearning.again", "without a target nobody knows what has come back", "0", "unlearning.target")
    elif unlearning.again and unlearning.merge == "mean":
        message = "clients that only recheck (unlearning.again) would count in the mean, and what is unlearned less"
        yield Problem("unlearning.merge", message, "sum", "or set unlearning.again=0")
    if unlearning.requests.scope == "client" and method_traits.needs_retain(unlearning.method):
        message = f"{unlearning.method} needs retain records, and a client that leaves has none"
        yield Problem("unlearning.requests.scope", message, "forget_split, or another unlearning method")


@_reads("unlearning")
def _copy(config: Config) -> Iterator[Problem]:
    """Options that go by what updates do to the forget records, of a method that learns these on a copy."""
    unlearning = config.unlearning
    if not method_traits.trains_copy(unlearning.method):
        return
    message = f"{unlearning.method} learns the records to forget on a copy, and goes back in the end"
    if unlearning.entropy.forget or unlearning.entropy.retain:
        yield Problem("unlearning.entropy", message, "weights of 0")
    if unlearning.rectify.enabled:
        yield Problem("unlearning.rectify.enabled", message, "false")
    for key in ("forget_nll_limit", "target"):
        if getattr(unlearning, key) is not None:
            yield Problem(f"unlearning.{key}", message, "null")


@_reads("unlearning", "privacy.level", "model.dtype")
def _rectified(config: Config) -> Iterator[Problem]:
    """Gradients that cannot be rectified."""
    unlearning, key = config.unlearning, "unlearning.rectify.enabled"
    if not unlearning.rectify.enabled:
        return
    if not method_traits.is_loss(unlearning.method):
        yield Problem(key, f"{unlearning.method} minimises no loss on the records to forget", "false")
    elif not method_traits.sees_forget_records(unlearning.method):
        yield Problem(key, f"{unlearning.method} has no gradient of forget records to rectify", "false")
    if unlearning.requests.scope == "client":
        message = "a client that leaves has no retain records, against which the gradient is rectified"
        yield Problem(key, message, "false", "or set unlearning.requests.scope=forget_split")
    if config.privacy.level == "record":
        message = "the gradient of retain records by which it goes is not clipped record by record"
        yield Problem(key, message, "false", "or set privacy=none")
    if config.model.dtype == "float16":
        message = "gradients in float16 are scaled up, and their products overflow"
        yield Problem("model.dtype", message, "float32 or bfloat16", f"or set {key}=false")


@_reads("unlearning.method", "unlearning.alternatives", "data.name")
def _alternatives(config: Config) -> Iterator[Problem]:
    """Other answers that the method would not use, or that there cannot be."""
    method, given, key = config.unlearning.method, config.unlearning.alternatives, "unlearning.alternatives"
    if not method_traits.needs_alternatives(method):
        if given.idk is not None or given.source != "idk":
            name = "idk" if given.idk is not None else "source"
            message = f"{method} learns no other answers in the place of what is to be forgotten"
            default = "null" if name == "idk" else "idk"
            known = ", ".join(method_traits.with_alternatives())
            yield Problem(f"{key}.{name}", message, f"{default}, or one of the methods {known}")
        return
    if dataset_traits.of(config.data.name).texts:
        message = f"{method} learns other answers to questions, and the records of {config.data.name} are texts"
        yield Problem("unlearning.method", message, "a method that needs no other answers")
    if given.idk is not None and given.source != "idk":
        message = f"{given.idk} is not read: {key}.source is {given.source}"
        yield Problem(f"{key}.idk", message, "null", f"or set {key}.source=idk")
    elif given.idk is not None and not config.data.on_clients and not Path(given.idk).expanduser().is_file():
        yield Problem(f"{key}.idk", f"there is no file {given.idk}", "a text file with one sentence per line")


@_reads("training.optimizer", "model.device")
def _optimizer(config: Config) -> Iterator[Problem]:
    if config.training.optimizer == "paged_adamw_32bit" and config.model.device == "cpu":
        yield Problem("training.optimizer", "paged_adamw_32bit needs CUDA, but model.device is cpu", "adamw")


@_reads("model.mode", "model.quantization")
def _quantized(config: Config) -> Iterator[Problem]:
    if config.model.mode == "full" and config.model.quantization != "none":
        message = f"{config.model.quantization} weights cannot be trained, but model.mode is full"
        yield Problem("model.quantization", message, "none", "or train adapters with model.mode=lora")


@_reads("federation.client_gpus", "model.device")
def _client_gpus(config: Config) -> Iterator[Problem]:
    share = config.federation.client_gpus
    if share > 0 and config.model.device == "cpu":
        message = f"{share:g} GPUs are reserved for each client, but model.device is cpu"
        yield Problem("federation.client_gpus", message, "0", "or set model.device=auto")
    elif share > 1 and share != int(share):
        message = f"{share:g} GPUs cannot be reserved"
        yield Problem("federation.client_gpus", message, "a share of one, or a whole number")


@_reads("data.name", "data.path")
def _data_path(config: Config) -> Iterator[Problem]:
    name, path = config.data.name, config.data.path
    if name not in OWN_RECORDS:
        return
    expected = "the path of a file of records, or of a folder with train.jsonl, train.csv, …"
    if path is None:
        yield Problem("data.path", f"data={name} needs a file", expected)
    elif not row_files.is_hub_name(path):
        given = Path(path).expanduser()
        try:
            source = row_files.table(given, "train")[0]
        except FileError as error:
            yield Problem("data.path", str(error))
        else:
            if not source.exists():
                yield Problem("data.path", f"there is no file {source}", expected)


@_reads("data.name", "data.path", "data.forget_file", "data.holdout_file", "data.reference_file")
def _files_not_read(config: Config) -> Iterator[Problem]:
    data = config.data
    for key in ("path", "forget_file", "holdout_file", "reference_file"):
        given = getattr(data, key)
        if given is not None and key not in dataset_traits.of(data.name).reads:
            yield Problem(f"data.{key}", f"data={data.name} does not read {given}", "null", f"or data={OWN_RECORDS[0]}")


@_reads("data.name", "data.fields", "data.path")
def _fields(config: Config) -> Iterator[Problem]:
    given = config.data.fields.given()
    if not given:
        return
    data = config.data
    if not (data.name in OWN_RECORDS or (data.on_clients and data.path is not None)):
        message = f"data={data.name} is read by its own names"
        yield Problem("data.fields", message, "null for each, or data=records")
    names = list(given.values())
    if twice := next((name for name in names if names.count(name) > 1), None):
        yield Problem("data.fields", f"{twice!r} cannot be two things", "another name for each field")
    if "messages" in given and ("question" in given or "answer" in given):
        yield Problem("data.fields", "a dialogue holds question and answer already", "messages, or question and answer")


@_reads("data.name", "data.path")
def _own_questions(config: Config) -> Iterator[Problem]:
    path = config.data.path
    if config.data.on_clients and path is not None and not Path(path).expanduser().exists():
        expected = "a file of questions, or a folder with retain_perturbed.jsonl, … (or null)"
        yield Problem("data.path", f"there is no file {path}", expected)


@_reads("data.name", "data.nodes", "federation.clients")
def _nodes(config: Config) -> Iterator[Problem]:
    nodes = config.data.nodes
    if nodes is None:
        return
    if not config.data.on_clients:
        yield Problem("data.nodes", f"{config.data.name} data are not read from clients' folders", "null, or data=node")
        return
    folders = [folder / DATA_FOLDER for folder in _folders(nodes, config.federation.clients)]
    missing = next((folder for folder in folders if not folder.is_dir()), None)
    if missing is not None:
        expected = f"node0/data to node{config.federation.clients - 1}/data (federation.clients), with records in each"
        yield Problem("data.nodes", f"there is no folder {missing}", expected)


def _folders(nodes: str, clients: int) -> list[Path]:
    """Those of a simulation's clients."""
    return [simulated_folder(nodes, client) for client in range(clients)]


@_reads("data.name", "stages", "unlearning.requests")
def _own_records(config: Config) -> Iterator[Problem]:
    """What a server that knows no record cannot do."""
    if not config.data.on_clients:
        return
    if "local" in config.stages:
        yield Problem("stages", "the stage local measures each client on the server", "stages without local")
    requests = config.unlearning.requests
    if "unlearn" in config.stages and requests.policy not in WITHOUT_HOLDINGS:
        message = f"with data=node the server does not know who holds what, and `{requests.policy}` goes by that"
        yield Problem("unlearning.requests.policy", message, f"one of {', '.join(WITHOUT_HOLDINGS)}")


@_reads("data.name", "data.forget_file")
def _forget_file(config: Config) -> Iterator[Problem]:
    file = config.data.forget_file
    if config.data.name in OWN_RECORDS and file is not None and not Path(file).expanduser().exists():
        yield Problem("data.forget_file", f"there is no file {file}", "a file with one record id per line")


@_reads("data.name", "data.holdout_file", "data.reference_file")
def _never_trained_files(config: Config) -> Iterator[Problem]:
    for key in ("holdout_file", "reference_file"):
        file = getattr(config.data, key)
        if file is not None and config.data.name in OWN_RECORDS and not Path(file).expanduser().exists():
            yield Problem(f"data.{key}", f"there is no file {file}", "a file of records")


@_reads("unlearning", "data.name", "data.nodes", "data.reference_authors", "data.reference_file", "stages")
def _references(config: Config) -> Iterator[Problem]:
    data = config.data
    if config.unlearning.target is None or "unlearn" not in config.stages:
        return
    takes, without = "unlearning.target takes records that nobody trains on", "or unlearning=npo, which takes none"
    key = dataset_traits.of(data.name).references
    if data.on_clients:
        folders = [] if data.nodes is None else _folders(data.nodes, config.federation.clients)
        folder = next((f for f in folders if f.is_dir() and not row_files.tables(f, REFERENCES_TABLE)), None)
        if folder is not None:
            file = f"{REFERENCES_TABLE}.jsonl"
            expected = f"{file}, or of another format, in each client's folder"
            yield Problem("data.nodes", f"{takes}, and there is no {folder / file}", expected, without)
    elif not key:
        message = f"{data.name} has no records that nobody trains on, by which clients could judge"
        known = [name for name, found in dataset_traits.known().items() if found.references and found.first]
        theirs = [name for name, found in dataset_traits.known().items() if found.on_clients]
        yield Problem("unlearning.target", message, "data of " + ", ".join((*known, *theirs)), without)
    elif getattr(data, key) in (None, 0):
        expected = "a file of records" if getattr(data, key) is None else "at least 1"
        yield Problem(f"data.{key}", f"{takes}, and there are none", expected, without)


@_reads("data.name", "data.path")
def _folder(config: Config) -> Iterator[Problem]:
    data, files = config.data, dataset_traits.of(config.data.name).files
    if files and data.source is not None and not data.source.is_dir():
        yield Problem("data.path", f"there is no folder {data.path}", f"a folder with {files}")


@_reads("data.name", "data.path", "data.forget_split")
def _files_in_folder(config: Config) -> Iterator[Problem]:
    data, dataset = config.data, dataset_traits.of(config.data.name)
    if data.source is None or not data.source.is_dir():
        return
    needed = [file.format_map(vars(data)) for file in dataset.needs]
    if missing := [file for file in needed if not (data.source / file).is_file()]:
        expected = f"the JSON lines of {dataset.hub_name}"
        yield Problem("data.path", f"{data.path} lacks {', '.join(missing)}", expected)


@_reads("data.name", *(f"data.{key}" for dataset in dataset_traits.known().values() for key in dataset.only))
def _only_value(config: Config) -> Iterator[Problem]:
    for key, (value, title, other) in dataset_traits.of(config.data.name).only.items():
        given = getattr(config.data, key)
        if given != value:
            yield Problem(f"data.{key}", f"{title} has no {given}", f"{value}, or data={other}")


_ORDERED = {(key, other) for dataset in dataset_traits.known().values() for key, (other, _) in dataset.fewer.items()}
"""Keys of `data` that some dataset compares."""


@_reads("data.name", *(f"data.{key}" for keys in _ORDERED for key in keys))
def _fewer(config: Config) -> Iterator[Problem]:
    for key, (other, message) in dataset_traits.of(config.data.name).fewer.items():
        given, most = getattr(config.data, key), getattr(config.data, other)
        if given >= most:
            yield Problem(f"data.{key}", f"{given} of {most} {message}", f"1 <= value <= {most - 1}")


@_reads("data.name", "data.forget_subjects")
def _forget_subjects(config: Config) -> Iterator[Problem]:
    data = config.data
    if data.forget_subjects is not None and (data.on_clients or dataset_traits.of(data.name).texts):
        message = f"data={data.name} has no subjects among its records that could be chosen"
        yield Problem("data.forget_subjects", message, "null, or data of questions and answers")


@_reads(
    *("federation.clients", "data.name", "data.path", "data.authors", "data.questions_per_author"),
    *("data.holdout_authors", "data.reference_authors", "data.retain_authors", "data.forget_split"),
)
def _records(config: Config) -> Iterator[Problem]:
    records, clients = _size(config), config.federation.clients
    if records is not None and clients > records:
        yield Problem(
            "federation.clients",
            f"{clients} clients cannot share {records} record{'' if records == 1 else 's'}",
            f"1 <= value <= {records}",
            _of_file(config),
        )


@_reads(
    *("federation.clients", "data.name", "data.authors", "data.partition.scheme", "data.holdout_authors"),
    *("data.reference_authors", "data.retain_authors", "data.forget_split"),
)
def _authors(config: Config) -> Iterator[Problem]:
    data, clients = config.data, config.federation.clients
    authors = dataset_traits.of(data.name).authors(data)
    if data.partition.scheme == "by_author" and authors is not None and clients > authors:
        yield Problem(
            "federation.clients",
            f"{clients} clients cannot share {authors} authors (data.partition.scheme is by_author)",
            f"1 <= value <= {authors}",
        )


def _of_file(config: Config) -> str:
    file = _lines_file(config.data)
    return f"they are the lines of {file}" if file else ""


def _lines_file(data: Data) -> Path | None:
    """The file of training records, where it is one of JSON lines."""
    if data.name not in OWN_RECORDS or data.path is None:
        return None
    try:
        parts = row_files.table(Path(data.path).expanduser(), "train")
    except FileError:
        return None
    return parts[0] if len(parts) == 1 and parts[0].is_file() else None


def _size(config: Config) -> int | None:
    """Number of training records if the configuration or the file's lines give it, else None."""
    if (declared := dataset_traits.of(config.data.name).records(config.data)) is not None:
        return declared
    file = _lines_file(config.data)
    return None if file is None else row_files.count_lines(file)


@_reads("federation.min_clients", "federation.clients")
def _min_clients(config: Config) -> Iterator[Problem]:
    federation = config.federation
    if federation.min_clients > federation.clients:
        message = f"{federation.min_clients} is more than the {federation.clients} clients there are"
        yield Problem("federation.min_clients", message, f"1 <= value <= {federation.clients}")


@_reads("unlearning.requests", "unlearning.cover")
def _per_round(config: Config) -> Iterator[Problem]:
    """No number of requests is limited that the server does not see."""
    requests = config.unlearning.requests
    if requests.per_round is not None and requests.policy == "nodes" and config.unlearning.cover:
        message = f"the requests are sealed (unlearning.cover={config.unlearning.cover}): the server cannot count them"
        hint = "the clients' own limits.exchanges bounds what they serve"
        yield Problem("unlearning.requests.per_round", message, "null", hint)


@_reads("federation", "privacy.level")
def _sampling(config: Config) -> Iterator[Problem]:
    """Ways to draw clients that need what the server does not see, or that an account of privacy does not cover."""
    federation, level, key = config.federation, config.privacy.level, "federation.sampling"
    sampling = federation.sampling
    if federation.candidates is not None and sampling != "power_of_choice":
        message = f"only power_of_choice looks at it, and {key} is {sampling}"
        yield Problem("federation.candidates", message, "null", f"or set {key}=power_of_choice")
    if sampling == "uniform":
        return
    if level == "client":
        message = (
            f"the account of privacy.level=client counts on clients drawn with the same probability, not {sampling}"
        )
        yield Problem(key, message, "uniform")
    if sampling == "available":
        return
    if sampling == "power_of_choice":
        if level == "record":
            yield Problem(key, "with privacy.level=record clients do not tell their losses", "uniform or by_size")
        sampled = federation.per_round
        candidates = federation.candidates
        if candidates is not None and not sampled <= candidates <= federation.clients:
            message = f"{candidates} candidates for {sampled} clients of a round"
            expected = f"{sampled} to {federation.clients} (federation.clients)"
            yield Problem("federation.candidates", message, expected)
    if federation.secure_aggregation.enabled:
        what = "each client's loss" if sampling == "power_of_choice" else "a weight for each client's update"
        yield Problem(
            key, f"{sampling} takes {what}, and the server learns the clients' sum alone", "uniform or available"
        )


@_reads("federation.local_clients", "federation.clients")
def _local_clients(config: Config) -> Iterator[Problem]:
    federation = config.federation
    if federation.local_clients is not None and federation.local_clients > federation.clients:
        message = f"{federation.local_clients} is more than the {federation.clients} clients there are"
        yield Problem("federation.local_clients", message, f"1 <= value <= {federation.clients}")


@_reads("training.warmup_epochs", "training.warmup_ratio")
def _one_warmup(config: Config) -> Iterator[Problem]:
    training = config.training
    if training.warmup_ratio and training.warmup_epochs:
        message = f"{training.warmup_ratio:g} is given besides training.warmup_epochs={training.warmup_epochs:g}"
        yield Problem("training.warmup_ratio", message, "one of the two", "set training.warmup_epochs=0")


@_reads("training.warmup_epochs", "federation.local_epochs")
def _warmup(config: Config) -> Iterator[Problem]:
    warmup, epochs = config.training.warmup_epochs, config.federation.local_epochs
    if warmup > epochs:
        message = f"{warmup:g} epochs of warm-up do not fit into federation.local_epochs={epochs}"
        yield Problem("training.warmup_epochs", message, f"0 <= value <= {epochs}")


@_reads("unlearning.method", "unlearning.updates", "unlearning.entropy", "stages", "federation.keep_checkpoints")
def _needs_updates(config: Config) -> Iterator[Problem]:
    """What the methods that go by the clients' updates ask of other keys."""
    unlearning = config.unlearning
    method, updates, entropy = unlearning.method, unlearning.updates, unlearning.entropy
    needed = method_traits.updates(method)
    if needed is None:
        return
    if "local" in config.stages:
        message = f"{method} needs other clients, and the stage local has none"
        yield Problem("stages", message, "stages without local, or another unlearning method")
    if updates.keep == 0:
        message = f"{method} needs the clients' updates"
        yield Problem("unlearning.updates.keep", message, "null or at least 1")
    if needed == "newest" and updates.every != 1:
        message = f"{method} starts from the newest round, which must be kept"
        yield Problem("unlearning.updates.every", message, "1")
    least = config.federation.keep_checkpoints
    if needed == "newest" and updates.keep is not None and 0 < updates.keep < least:
        message = f"{method} needs the newest round of every checkpoint that a run may continue from"
        yield Problem("unlearning.updates.keep", message, f"null or at least federation.keep_checkpoints={least}")
    if not method_traits.is_loss(method) and (entropy.forget or entropy.retain):
        message = f"{method} trains on nothing that is to be forgotten"
        yield Problem("unlearning.entropy", message, "weights of 0")


@_reads("unlearning", "stages", "federation.secure_aggregation", "privacy.level")
def _served_by_server(config: Config) -> Iterator[Problem]:
    """What does not go with a method by which the server changes the model itself, without clients' updates."""
    unlearning, method = config.unlearning, config.unlearning.method
    if method_traits.is_loss(method) or method_traits.updates(method) is not None:
        return
    if "local" in config.stages:
        message = f"{method} needs other clients, and the stage local has none"
        yield Problem("stages", message, "stages without local, or another unlearning method")
    if unlearning.entropy.forget or unlearning.entropy.retain:
        yield Problem("unlearning.entropy", f"{method} trains on nothing that is to be forgotten", "weights of 0")
    if config.federation.secure_aggregation.enabled:
        message = f"{method} makes no sum of clients' updates that could cover those that ask"
        yield Problem("unlearning.method", message, "an unlearning loss, or secure aggregation off")
    if config.privacy.level == "client":
        message = f"{method} is no update of clients that privacy.level=client could clip and hide"
        yield Problem("unlearning.method", message, "a loss that the asking clients minimise")


@_reads(
    *("unlearning.method", "unlearning.requests", "privacy.level", "model.lora.ranks"),
    *("federation.compression.method", "federation.buffer.size", "federation.secure_aggregation.enabled"),
    *("federation.sampling", "strategy.server_state_on_unlearn", "start_from", "unlearning.updates.keep"),
    *("federation.shards",),
)
def _not_with(config: Config) -> Iterator[Problem]:
    """What a method's own file says that it does not go with."""
    method, federation = config.unlearning.method, config.federation
    another = "or another unlearning method"
    given = {
        "ranks": (config.model.lora.ranks is not None, "model.lora.ranks", f"null, {another}"),
        "compression": (federation.compression.method != "none", "federation.compression.method", f"none, {another}"),
        "asynchronous_rounds": (federation.buffer.size > 0, "federation.buffer.size", f"0, {another}"),
        "secure_sums": (
            federation.secure_aggregation.enabled,
            "federation.secure_aggregation.enabled",
            f"false, {another}",
        ),
        "client_privacy": (config.privacy.level == "client", "privacy.level", f"none or record, {another}"),
        "record_privacy": (config.privacy.level == "record", "privacy.level", f"none, {another}"),
        "sampling_by_records": (
            federation.sampling in ("by_size", "power_of_choice"),
            "federation.sampling",
            f"uniform or available, {another}",
        ),
        "reset_after_unlearning": (
            config.strategy.server_state_on_unlearn == "reset",
            "strategy.server_state_on_unlearn",
            f"keep, {another}",
        ),
        "finetune_of_another_run": (
            config.start_from is not None,
            "start_from",
            f"null, with finetune in stages, {another}",
        ),
        "newest_rounds_only": (
            bool(config.unlearning.updates.keep),
            "unlearning.updates.keep",
            f"null: all rounds, {another}",
        ),
        "requests_in_parts": (
            config.unlearning.requests.per_round is not None,
            "unlearning.requests.per_round",
            f"null: all requests in one exchange, {another}",
        ),
        "shards": (federation.shards > 1, "federation.shards", f"1, {another}"),
        "requests_in_a_row": (
            config.unlearning.requests.policy == "random_client_per_round",
            "unlearning.requests.policy",
            "all_at_round, or a schedule with rounds between",
        ),
    }
    for name, reason in method_traits.not_with(method).items():
        if name not in given:
            message = f"NOT_WITH of {method} names {name!r}, which is nothing that a method may not go with"
            yield Problem("unlearning.method", message, f"one of {', '.join(given)}")
        elif given[name][0]:
            yield Problem(given[name][1], reason, given[name][2])


@_reads("unlearning", "stages", "federation", "privacy.level")
def _others(config: Config) -> Iterator[Problem]:
    """What does not go with a method for which the clients that do not unlearn train, too."""
    method = config.unlearning.method
    if not (method_traits.asks_others(method) and method_traits.is_loss(method)):
        return
    if "local" in config.stages:
        message = f"{method} needs other clients, and the stage local has none"
        yield Problem("stages", message, "stages without local, or another unlearning method")
    if config.federation.clients < 2:
        yield Problem("federation.clients", f"{method} needs other clients beside the one that asks", "at least 2")
    if config.federation.secure_aggregation.enabled:
        message = f"{method} goes by single clients' updates, and the server learns the clients' sum alone"
        yield Problem("unlearning.method", message, "an unlearning loss, or secure aggregation off")
    if config.privacy.level == "client":
        message = f"{method} goes by single clients' models, which privacy.level=client keeps from leaving"
        yield Problem("unlearning.method", message, "a loss that the asking clients minimise")


@_reads("unlearning.requests", "federation.clients")
def _request_clients(config: Config) -> Iterator[Problem]:
    requests, clients = config.unlearning.requests, config.federation.clients
    wrong = [client for client in requests.clients or [] if not 0 <= client < clients]
    if wrong:
        message = f"there is no client {', '.join(map(str, wrong))}"
        yield Problem("unlearning.requests.clients", message, f"numbers from 0 to {clients - 1}")


@_reads("unlearning.requests", "federation.rounds.unlearn", "stages")
def _request_round(config: Config) -> Iterator[Problem]:
    requests, rounds = config.unlearning.requests, config.federation.rounds.unlearn
    at_round = requests.policy in ("all_at_round", "subjects_at_round")
    if at_round and "unlearn" in config.stages and requests.round > rounds:
        message = f"round {requests.round} never comes: federation.rounds.unlearn is {rounds}"
        yield Problem("unlearning.requests.round", message, f"1 <= value <= {rounds}")


@_reads("unlearning.requests")
def _request_scope(config: Config) -> Iterator[Problem]:
    requests = config.unlearning.requests
    if requests.scope == "client" and requests.policy in ("file", "subjects_at_round"):
        message = f"the policy `{requests.policy}` says itself who asks for what"
        hint = 'in a schedule, a line with "scope": "client" lets a client leave' if requests.policy == "file" else ""
        yield Problem("unlearning.requests.scope", message, "forget_split", hint)


@_reads("unlearning.requests")
def _request_subjects(config: Config) -> Iterator[Problem]:
    requests = config.unlearning.requests
    if requests.policy != "subjects_at_round":
        return
    if not requests.subjects:
        yield Problem(
            "unlearning.requests.subjects",
            "the policy `subjects_at_round` needs names",
            "a list of names",
            "`oblivionis data describe --subjects` lists them",
        )
    names = requests.subjects or []
    keys = [subject_key(name) for name in names]
    twice = next((name for i, name in enumerate(names) if keys[i] in keys[:i]), None)
    if twice is not None:
        yield Problem("unlearning.requests.subjects", f"names {twice!r} more than once", "each name once")


@_reads("unlearning.requests")
def _request_file(config: Config) -> Iterator[Problem]:
    requests = config.unlearning.requests
    if requests.policy != "file":
        return
    if requests.file is None:
        yield Problem("unlearning.requests.file", "the policy `file` needs one", "a file of requests as JSON lines")
    elif not Path(requests.file).expanduser().is_file():
        yield Problem(
            "unlearning.requests.file", f"there is no file {requests.file}", "a file of requests as JSON lines"
        )


@_reads("privacy")
def _privacy_values(config: Config) -> Iterator[Problem]:
    """Values that a level of privacy needs and does not have, or has and would not use."""
    privacy = config.privacy
    given = [n for n in ("epsilon", "delta", "noise_multiplier", "clipping_norm") if getattr(privacy, n) is not None]
    if privacy.level == "none":
        for name in given:
            message = "nobody is hidden: privacy.level is none"
            yield Problem(f"privacy.{name}", message, "null", "or set privacy=client or privacy=record")
    elif "epsilon" in given and "noise_multiplier" in given:
        message = f"privacy.epsilon={privacy.epsilon:g} says how much noise there is, and so does this"
        yield Problem("privacy.noise_multiplier", message, "one of the two", "set privacy.epsilon=null")
    elif "epsilon" not in given and "noise_multiplier" not in given:
        message = "nothing says how much noise there is"
        yield Problem("privacy.epsilon", message, "a number above 0", "or give privacy.noise_multiplier")
    if privacy.level != "none" and "clipping_norm" not in given:
        message = "without a bound on what one client or record adds, no noise hides it"
        yield Problem("privacy.clipping_norm", message, "a number above 0")
    if privacy.level != "client" and privacy.clipping == "adaptive":
        message = "only the norm of clients' updates can follow their lengths"
        yield Problem("privacy.clipping", message, "fixed", "or set privacy.level=client")


@_reads(
    *("privacy", "federation.clients", "data.name", "data.path", "data.authors", "data.questions_per_author"),
    *("data.holdout_authors", "data.reference_authors", "data.retain_authors", "data.forget_split"),
)
def _privacy_delta(config: Config) -> Iterator[Problem]:
    """A δ so large that a record may be published as it is, or no δ where none follows from the configuration."""
    level, delta = config.privacy.level, config.privacy.delta
    if level == "none":
        return
    units = config.federation.clients if level == "client" else _size(config)
    if delta is None and config.data.on_clients and level == "record":
        message = "with data=node nobody knows beforehand how many records there are"
        yield Problem("privacy.delta", message, "less than 1 over the number of records")
    elif delta is not None and units is not None and delta >= 1 / units:
        message = f"at δ = {delta:g}, one of {units} {level}s may be published whole"
        yield Problem("privacy.delta", message, f"value < {1 / units:g}", f"null is {1 / (10 * units):g}")


@_reads("privacy.level", "strategy.name", "model.lora.aggregation", "unlearning.updates", "unlearning.method", "stages")
def _client_privacy(config: Config) -> Iterator[Problem]:
    """What needs to see single clients' updates, where only their noised sum goes further."""
    if config.privacy.level != "client":
        return
    name, unlearning = config.strategy.name, config.unlearning
    if extension_traits.code("strategy", name).literals.get("SINGLE_UPDATES"):
        message = f"{name} compares single clients' updates, and with privacy.level=client gets one noised mean of them"
        yield Problem("strategy.name", message, "fedavg, fedprox, fedavgm, fedadam, fedyogi or fedadagrad")
    if "unlearn" in config.stages and method_traits.updates(unlearning.method) is not None:
        message = f"{unlearning.method} goes by single clients' models, which privacy.level=client keeps from leaving"
        yield Problem("unlearning.method", message, "a loss that the asking clients minimise")
    elif unlearning.updates.keep:
        message = "single clients' models would be kept on disk beside the noised ones"
        yield Problem("unlearning.updates.keep", message, "0 or null", "or set privacy=none")
    if config.model.lora.aggregation == "product":
        message = "the sum of clipped updates bounds what a client does to A and B, not to their product"
        yield Problem("model.lora.aggregation", message, "factors or freeze_a", "or set privacy=none")


@_reads("privacy.level", "unlearning", "stages")
def _record_privacy(config: Config) -> Iterator[Problem]:
    """Unlearning whose gradient is no sum over records, so that no record's part of it can be clipped."""
    if config.privacy.level != "record" or "unlearn" not in config.stages:
        return
    unlearning = config.unlearning
    if not method_traits.is_per_record(unlearning.method):
        message = (
            f"{method_traits.label(unlearning.method)} is no sum of terms about one record each, which could be clipped"
        )
        yield Problem("unlearning.method", message, f"one of {', '.join(method_traits.per_record())}")
    if unlearning.entropy.forget or unlearning.entropy.retain:
        message = "the entropy term is not clipped record by record"
        yield Problem("unlearning.entropy", message, "weights of 0", "or set privacy=none")
    for key in ("forget_nll_limit", "target"):
        if getattr(unlearning, key) is not None:
            message = "when a client stops would tell of its records, and no noise covers that"
            yield Problem(f"unlearning.{key}", message, "null", "or set privacy=none")


@_reads("privacy.level", "model.dtype")
def _scaled_gradients(config: Config) -> Iterator[Problem]:
    if config.privacy.level == "record" and config.model.dtype == "float16":
        message = "gradients in float16 are scaled up and may overflow, and are clipped to no norm that is known"
        yield Problem("model.dtype", message, "float32 or bfloat16", "or set privacy.level=client")


@_reads("privacy.level", "stages")
def _local_privacy(config: Config) -> Iterator[Problem]:
    if config.privacy.level != "none" and "local" in config.stages:
        reasons = {"client": "a client that trains alone is hidden among nobody", "record": "it has no account of ε"}
        message = f"{reasons[config.privacy.level]} (privacy.level={config.privacy.level})"
        yield Problem("stages", message, "stages without local", "or set privacy=none")


CHECKS += [
    (late_client_checks.READS, late_client_checks.late_clients),
    (late_client_checks.READS, late_client_checks.asynchronous),
]
