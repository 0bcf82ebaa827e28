"""The golden runs: what is done in each, as command lines of the console command, and with which files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from support.benchmark_files import choice, rwku, wmdp
from support.nodes import write_lines, write_nodes

RUN = "runs/run"
LEDGER = f"{RUN}/requests.jsonl"
REQUEST = "{request}"
"""In a command line: the first request of the run's ledger."""


@dataclass(frozen=True)
class Step:
    """`oblivionis ARGUMENTS`; broken_off: killed before the next message once the run's ledger has so many lines."""

    arguments: tuple[str, ...]
    broken_off: int | None = None


@dataclass(frozen=True)
class Case:
    """Steps one after another in one folder, which `prepare` fills.

    real: with real client processes; clock, keys and order of messages are not fixed then. own_folders: each client
    names its folder, of node0, node1, … in `nodes`, itself.
    """

    name: str
    steps: tuple[Step, ...]
    prepare: Callable[[Path], object] = lambda folder: None
    real: bool = False
    own_folders: bool = False
    full: bool = False


SMALL = (
    "output=runs",
    "name=run",
    "federation.clients=4",
    "federation.fraction_train=0.5",
    "federation.local_epochs=1",
    "data.authors=8",
    "data.questions_per_author=2",
    "data.forget_authors=2",
    "evaluation.processes=1",
    "evaluation.light.questions_per_set=2",
    "evaluation.full.questions_per_set=3",
)
SHORT = (
    "stages=[finetune,unlearn]",
    "evaluation.every=0",
    "evaluation.at_start=false",
    "evaluation.wikimem.enabled=false",
    "evaluation.ruler.enabled=false",
    "evaluation.leakage.samples=0",
    "evaluation.leakage.full_samples=0",
)
REFERENCE = ("data.reference_authors=8",)
AT_ONCE = ("unlearning.requests.policy=all_at_round",)
ALL_TRAIN = ("federation.fraction_train=1.0",)
CLOCK = ("federation.simulated_seconds.distribution=pareto", "federation.simulated_seconds.persistence=0.2")
SECURE = (
    "federation.secure_aggregation.enabled=true",
    "federation.min_clients=3",
    "unlearning.cover=4",
    "federation.timeout=5",
)
LEARNT = (
    "federation.rounds={finetune: 12, unlearn: 2}",
    "federation.local_epochs=12",
    "federation.keep_checkpoints=1",
    "training.learning_rate=1e-2",
    "unlearning.epochs=10",
    "model.lora.rank=4",
    "model.lora.target_modules=[down_proj]",
    "evaluation.light.max_new_tokens=20",
    "evaluation.full.max_new_tokens=20",
)
"""So much that records are recited, in a small adapter; requests come once the stage unlearn has begun."""
NODE = ("data=node", "data.nodes=nodes", *ALL_TRAIN)
TEXTS = ("federation.clients=3", "federation.fraction_train=0.7", "model.max_length=64")


def _steps(*commands: str) -> tuple[Step, ...]:
    return tuple(Step(tuple(command.split(" "))) for command in commands)


def _run(*overrides: str, short: bool = True) -> Step:
    return Step(("simulate", "smoke", *SMALL, *(SHORT if short else ()), *overrides))


LOOK = _steps(f"runs show {RUN} --full", f"request verify {RUN}")
CERTIFY = _steps(
    "certificate keygen --out key",
    f"certificate create {RUN} {REQUEST} --key key --out certificate",
    "certificate verify certificate/certificate.json --public-key key.pub",
)


def _case(name: str, *overrides: str) -> Case:
    return Case(name, (_run(*overrides), *LOOK))


def _aggregators() -> list[Case]:
    params = {
        "fedavg": (),
        "fedavgm": (),
        "fedprox": (),
        "fedadagrad": (),
        "fedadam": (),
        "fedyogi": (),
        "fednova": (),
        "fedmedian": (),
        "fedtrimmedmean": (),
        "krum": ("federation.clients=6", "strategy.params.num_malicious_nodes=1"),
        "multikrum": ("federation.clients=6", "strategy.params.num_malicious_nodes=1"),
    }
    return [_case(f"aggregator-{name}", f"strategy={name}", *ALL_TRAIN, *more) for name, more in params.items()]


def _losses() -> list[Case]:
    names = (
        *("altpo", "bad_teacher", "ce_u", "fine_tune", "grad_ascent", "grad_diff", "gru", "idk_dpo", "idk_nll", "ihl"),
        *("neg_grad", "npo_entropy", "pdu", "rmu", "satimp", "scrub", "simnpo", "task_vector", "undial", "wga"),
    )
    return [_case(f"loss-{name}", f"unlearning={name}", "federation.rounds.finetune=1") for name in names]


def _protocols() -> list[Case]:
    eraser = ("unlearning=federaser", "unlearning.updates.every=1", "strategy=fedavgm")
    return [
        _case("protocol-federaser", *eraser),
        _case("protocol-fedosd", "unlearning=fedosd"),
        _case("protocol-fused", "unlearning=fused", "unlearning.params.rounds=2"),
        _case("protocol-pga", "unlearning=pga", "unlearning.requests.scope=client"),
        _case("protocol-rapid-retraining", "unlearning=rapid_retraining", "unlearning.params.rounds=2"),
        _case("protocol-weight-negation", "unlearning=weight_negation"),
        _case("protocol-calibrated", "unlearning=calibrated", "unlearning.again=2", *REFERENCE),
        Case("protocol-federaser-resumed", (*_broken(10, *eraser), *LOOK)),
    ]


def _broken(lines: int, *overrides: str) -> tuple[Step, ...]:
    first = _run(*overrides)
    return (Step(first.arguments, lines), Step(("simulate", "--resume", RUN)))


def _node_folders(folder: Path) -> None:
    write_nodes(folder / "nodes", 4)


def _scheduled(folder: Path) -> None:
    _node_folders(folder)
    write_lines(
        folder / "demands.jsonl",
        [
            {"id": "of-client-0", "round": 1, "client": 0, "record_ids": ["p0-home", "p0-job"]},
            {"id": "of/client 1", "round": 2, "client": 1, "record_ids": ["p1-job"]},
        ],
    )
    for client in range(4):
        (folder / f"nodes/node{client}/node.toml").write_text("[requests]\nfrom_server = true\n")


def _sealed(folder: Path) -> None:
    _node_folders(folder)
    for client in range(4):
        (folder / f"nodes/node{client}/node.toml").write_text("[requests]\nsealed = true\n")


def _ask(client: int, *what: str) -> Step:
    return Step(("request", "submit", "--node-dir", f"nodes/node{client}", "--reason", "by letter", *what))


def _nodes() -> list[Case]:
    listing = tuple(Step(("request", "list", "--node-dir", f"nodes/node{c}")) for c in range(2))
    folders = tuple(x for c in range(4) for x in ("--node-dir", f"nodes/node{c}"))
    asks = (_ask(1, "--subject", "Ivo Lind", "--id", "art17"), _ask(1, "--ids", "p5-job"))
    of_nodes = "unlearning.requests.policy=nodes"
    begun = _run(*NODE, of_nodes, *LEARNT, "certificate.required=[rouge]")
    certify = [[*step.arguments] for step in CERTIFY]
    certify[1][3] = "job"
    return [
        Case(
            "node-verified",
            (
                Step(begun.arguments, 19),
                _ask(1, "--subject", "Ivo Lind", "--id", "art17"),
                _ask(2, "--ids", "p2-job", "--id", "job"),
                Step(("simulate", "--resume", RUN)),
                *LOOK,
                Step(("request", "verify", RUN, *folders)),
                *(Step(tuple(arguments)) for arguments in certify),
            ),
            _node_folders,
        ),
        Case(
            "node-schedule",
            (_run(*NODE, "unlearning.requests.policy=file", "unlearning.requests.file=demands.jsonl"), *LOOK, *listing),
            _scheduled,
            own_folders=True,
        ),
        Case(
            "node-asks",
            (
                *asks,
                _run(*NODE, of_nodes),
                *LOOK,
                *listing,
                Step(("request", "verify", RUN, *folders)),
                *CERTIFY,
            ),
            _node_folders,
        ),
        Case(
            "node-sealed",
            (
                *asks,
                _run(*NODE, *SECURE, of_nodes, "certificate.required=[rouge]"),
                *LOOK,
                *listing,
                Step(("request", "verify", RUN, *folders)),
                Step(("request", "audit", "--node-dir", "nodes/node1", "art17")),
                Step(("request", "open", "--node-dir", "nodes/node1", "art17")),
                Step(("certificate", "create", RUN, "art17", "--node-dir", "nodes/node1", "--out", "certificate")),
            ),
            _sealed,
            own_folders=True,
        ),
    ]


def _people(folder: Path) -> None:
    rwku(folder / "rwku")


def _hazards(folder: Path) -> None:
    wmdp(folder / "wmdp")


def _tasks(folder: Path) -> None:
    write_lines(folder / "choices.jsonl", [choice("Which one shatters?", 0), choice("Which one rings?", "B")])
    write_lines(folder / "task.jsonl", [choice("Which one shatters?", 0), choice("Which one flies?", 2)])
    (folder / "own.yaml").write_text(
        json.dumps(
            {
                "task": "own",
                "dataset_path": "json",
                "dataset_kwargs": {"data_files": {"test": str(folder / "task.jsonl")}},
                "test_split": "test",
                "output_type": "multiple_choice",
                "doc_to_text": "Question: {{question}}\nAnswer:",
                "doc_to_choice": "{{choices}}",
                "doc_to_target": "{{answer}}",
                "metric_list": [{"metric": "acc"}],
            }
        )
    )


def _measures() -> list[Case]:
    texts = ("data=muse_tiny", "data.passages=9", "data.forget_passages=3", *TEXTS)
    few = ("evaluation.muse.continuation=12", "evaluation.muse.answer=6", "evaluation.membership.bootstrap=50")
    rebound = ("evaluation.rebound.rouge=true", "federation.rounds.unlearn=3", "evaluation.base=true")
    return [
        Case("measures-default", (_run(*rebound, "evaluation.leakage.full_samples=8", short=False), *LOOK)),
        Case(
            "measures-commands",
            (
                _run("evaluation.ruler.enabled=true", "federation.rounds.finetune=1"),
                Step(("evaluate", RUN)),
                Step(("audit", "leakage", RUN, "--samples", "8", "--out", "leakage")),
                Step(("audit", "person", RUN, "--out", "person")),
                Step(("attack", RUN, "attack.samples=8", "attack.relearn.steps=[1]", "attack.questions=2")),
                Step(("chat", RUN, "--question", "Who is Mara Voss?")),
                Step(("export", RUN, "--out", "exported")),
                *CERTIFY,
                *LOOK,
                Step(("runs", "list", "runs")),
                Step(("view", "runs", "--port", "0", "--node-dir", f"{RUN}/nodes/2")),
            ),
        ),
        Case("measures-muse", (_run(*texts, *few, "stages=[finetune,retrain,unlearn]", "unlearning=npo"), *LOOK)),
        Case("measures-rwku", (_run("data=rwku", "data.path=rwku", *TEXTS, "unlearning=npo"), *LOOK), _people),
        Case("measures-wmdp", (_run("data=wmdp_cyber", "data.path=wmdp", *TEXTS, "unlearning=rmu"), *LOOK), _hazards),
        Case(
            "measures-tasks",
            (_run("evaluation.choices.file=choices.jsonl", "evaluation.lm_eval.tasks=[own.yaml]"), *LOOK),
            _tasks,
        ),
    ]


def all_cases() -> list[Case]:
    """Long ones first."""
    private = ("privacy.delta=1e-3", "unlearning.epochs=1", *AT_ONCE)
    deadline = (*CLOCK, "federation.deadline=60", "federation.oversample=1.5")
    buffer = (*CLOCK, "federation.buffer.size=1", "federation.buffer.concurrency=3", "federation.rounds.unlearn=3")
    adaptive = (*ALL_TRAIN, "federation.clients=8", "privacy=client", "privacy.clipping=adaptive")
    shrunk = (
        *SMALL[:-3],
        "federation.rounds={finetune: 2, retrain: 2, unlearn: 2}",
        *REFERENCE,
        "evaluation.light.questions_per_set=2",
        "evaluation.full.questions_per_set=3",
        "evaluation.processes=2",
    )
    return [
        Case("full-default", (Step(("simulate", "default", *SMALL[:2])), *LOOK), real=True, full=True),
        Case("real-default", (Step(("simulate", "default", *shrunk)), *LOOK), real=True),
        *_measures(),
        *_nodes(),
        Case("default", (Step(("simulate", "default", *shrunk, "evaluation.processes=1")), *LOOK, *CERTIFY)),
        *_protocols(),
        Case("resumed", (*_broken(11, "federation.rounds.unlearn=3"), *LOOK, *CERTIFY)),
        Case("resumed-asynchronous", (*_broken(11, *buffer), *LOOK)),
        _case("asynchronous", *buffer),
        _case("deadline", *deadline),
        _case("secure", *SECURE, *AT_ONCE),
        _case("privacy-client", "privacy=client", *private),
        _case("privacy-client-adaptive", *adaptive, *private),
        _case("privacy-record", "privacy=record", *private),
        _case("privacy-secure", "privacy=client", *private, *SECURE),
        _case("ranks", "model.lora.aggregation=product", "model.lora.ranks=[8,16,32]", *AT_ONCE),
        _case("compression", "federation.compression.method=topk_int8", *AT_ONCE, *ALL_TRAIN),
        _case("full-model", "model.mode=full"),
        _case("local", "stages=[finetune,local]", "federation.local_clients=2"),
        _case("whole-client-leaves", "unlearning.requests.scope=client", *AT_ONCE),
        _case("mean-of-several", *AT_ONCE, "unlearning.merge=mean", "data.partition.scheme=iid"),
        _case("churn", "federation.churn=0.3", *ALL_TRAIN),
        *_aggregators(),
        *_losses(),
    ]
