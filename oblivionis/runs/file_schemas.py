"""What the files of a run hold, as types that are checked when a file is read: nothing in a folder is taken on trust.

Further keys are ignored. Floats may be whole numbers; those of metrics.jsonl may be NaN or infinite.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from msgspec import Meta

Round = Annotated[int, Meta(ge=0)]
Numbers = dict[str, float]
Known = dict[str, float | None]


class _Measured(TypedDict):
    stage: str
    round: Round
    metrics: Known


class MetricsRow(_Measured, total=False):
    """A line of metrics.jsonl. notes: by metric, why it is left out or how it is to be read; requests: by measure and
    request; compared_with: by record, with what the likelihood of its answer is compared; clients: by exchange, in a
    row of the federation."""

    moment: str
    evaluator: str
    error: str
    notes: dict[str, str]
    clients: dict[str, list[int]]
    requests: dict[str, dict[str, float | Numbers]]
    compared_with: dict[str, str]
    seconds: float
    time: float


class Environment(TypedDict, total=False):
    """environment.json."""

    oblivionis: str
    python: str
    platform: str
    cpus: int | str | None
    packages: dict[str, str | None]
    seed: int
    base_model: str
    fingerprint: str
    manifest_hash: str
    trainable_parameters: int


class _Client(TypedDict):
    rate: float
    steps: int


class _Release(TypedDict):
    stage: str
    round: Round
    kind: str
    noise_multiplier: float
    clipping_norm: float


class Released(_Release, total=False):
    """A noised release: of a round's clients, or of each client's steps."""

    clients: int
    population: int | None
    of_clients: dict[str, _Client]


class _Spent(TypedDict):
    epsilon: float
    epsilon_if_drawing_is_known: float
    releases: int
    unlearning_exchanges: int


class _Request(TypedDict):
    id: str
    round: Round
    epsilon_before: float
    epsilon_after: float


class AccountFacts(TypedDict):
    """What an account of privacy goes by."""

    level: str
    delta: float
    units: int
    target_epsilon: float | None
    noise_multiplier: float


class PrivacyAccount(AccountFacts):
    """privacy.json."""

    lineages: dict[str, _Spent]
    releases: list[Released]
    requests: list[_Request]


class Band(TypedDict):
    """A noise band of retrained models."""

    mean: float
    n: int
    low: float
    high: float
    confidence: float


class RulerFacts(TypedDict, total=False):
    """What a summary keeps of RULER."""

    before: dict[str, Any]
    lens_1: dict[str, Known]
    bands: dict[str, Band]
    oracles: list[dict[str, Any]]


class _Finished(TypedDict):
    metrics: Known


class Summary(_Finished, total=False):
    """stages/<stage>.json."""

    stage: str
    rounds: Round
    clients: int
    seconds: float
    seed: int
    fingerprint: str
    standard_deviation: Known
    notes: dict[str, str]
    requests: dict[str, int]
    ruler: RulerFacts
    rebound: dict[str, dict[str, dict[str, float | bool | None]]]
    reused_from: str


class Section(TypedDict, total=False):
    """A question set of a per-question log, each column by the question's number."""

    avg_gt_loss: Known
    gt_loss: Known
    num_token_gt: Known
    avg_paraphrased_loss: Known
    average_perturb_loss: dict[str, list[float]]
    rouge1_recall: Known
    rougeL_recall: Known
    generated_text: dict[str, tuple[str, str, str]]


_LOSSES = Section.__optional_keys__ - {"generated_text", "rougeL_recall", "rouge1_recall"}


class Reported(TypedDict):
    """An answer of MUSE."""

    shown: str
    truth: str
    generated: str


class Muse(TypedDict, total=False):
    """What the log keeps of MUSE."""

    auc: float | None
    verbmem: dict[str, Reported]
    knowmem_forget: dict[str, Reported]
    knowmem_retain: dict[str, Reported]


class _Fact(TypedDict, total=False):
    ranks: list[float]


class _Facts(TypedDict, total=False):
    facts: list[_Fact]


class Wikimem(TypedDict, total=False):
    """Of people to forget, what is shown of their facts."""

    forget: _Facts


class Log(TypedDict, total=False):
    """evaluations/<stage>.json."""

    eval_log_forget: Section
    eval_log: Section
    eval_real_author_wo_options: Section
    eval_real_world_wo_options: Section
    ids: dict[str, list[str]]
    ruler: Numbers
    leakage: dict[str, Known]
    wikimem: Wikimem
    membership: dict[str, dict[str, Numbers]]
    muse: Muse
    rwku: dict[str, dict[str, Reported]]


def uneven(log: Mapping[str, Any]) -> str:
    """Which column of a per-question log is about other questions than it should be; empty where none is."""
    for name in sorted(name for name in Log.__optional_keys__ & log.keys() if name.startswith("eval_")):
        columns = [log[name][column] for column in sorted(_LOSSES & log[name].keys())]
        if len({tuple(column) for column in columns}) > 1:
            return f"{name}: its columns are not about the same questions"
        ids, texts = log.get("ids", {}).get(name), log[name].get("generated_text")
        if ids is not None and texts is not None and len(ids) != len(texts):
            return f"ids.{name}: {len(ids)} ids of {len(texts)} questions"
    return ""
