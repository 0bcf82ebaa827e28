"""How far retrained models lie apart: other runs' oracles, of other seeds, give the noise bands of RULER's metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evaluation.ruler.evaluator import Embedded, References, lens_1, lens_2
from evaluation.ruler.statistics import noise_band
from oblivionis.config import compose as configuration
from oblivionis.config.schema import Config
from oblivionis.errors import RunError
from oblivionis.measures.ruler.paired_models import Embeds, stage_states
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.progress import Events
from oblivionis.runs.reuse import differing, differing_rounds
from oblivionis.runs.saved_representations import read_states

CONFIDENCE = 0.95
FREE = ("seed", "evaluation.full")
"""Settings in which another oracle may differ from ours."""


@dataclass(frozen=True)
class Oracle:
    """The finished retrain stage of another run."""

    run: RunDirectory
    seed: int


def find_oracles(run: RunDirectory, config: Config, fingerprint: str) -> list[Oracle]:
    """The runs of `evaluation.ruler.oracles`. RunError, naming every fault, where one cannot serve.

    Each needs a finished retrain stage of the same base model, data, clients, strategy and training, and a seed of its
    own.
    """
    settings = config.evaluation.ruler
    if not settings.enabled or not settings.oracles:
        return []
    own_seed = (run.stage_summary("retrain") or {}).get("seed", config.seed)
    seeds = {own_seed: "this run"}
    oracles, faults = [], []
    for path in settings.oracles:
        oracle = artifact_binding.opened(Path(path).expanduser())
        summary = oracle.stage_summary("retrain")
        if summary is None:
            faults.append(f"{path} has no finished stage retrain")
            continue
        if wrong := _unlike(oracle, summary, config, fingerprint):
            faults.append(f"{path} was made with other settings: {'; '.join(wrong)}")
        seed = summary["seed"]
        if seed in seeds:
            faults.append(f"{path} has the seed {seed} of {seeds[seed]}; each needs its own")
        seeds.setdefault(seed, path)
        oracles.append(Oracle(oracle, seed))
    if faults:
        raise RunError("\n  ".join(["evaluation.ruler.oracles:", *faults]))
    return oracles


def _unlike(oracle: RunDirectory, summary: dict[str, Any], config: Config, fingerprint: str) -> list[str]:
    """What an oracle's run does not share with ours and should."""
    theirs = configuration.from_yaml(oracle.read_config(), oracle.config_place)
    wrong = [*differing(config, theirs, FREE), *differing_rounds(config, theirs, ["retrain"])]
    states = read_states(oracle, "retrain")
    if {summary["fingerprint"], states.fingerprint if states else fingerprint} != {fingerprint}:
        wrong.append("the base model's fingerprint")
    if states is not None and states.seed != summary["seed"]:
        wrong.append("the seed of its file of representations")
    return wrong


def states_of(oracles: Sequence[Oracle], config: Config, assessor: Embeds, events: Events) -> list[Embedded]:
    """The oracles' representations of all records that RULER reads; nothing is written to their folders."""
    return [stage_states(oracle.run, "retrain", config, assessor, events) for oracle in oracles]


def noise_bands(
    oracles: Sequence[Embedded], own: Embedded | None, model: Embedded, config: Config
) -> dict[str, dict[str, Any]]:
    """Bands of mean_rank and gap: where another retrained model would lie with probability CONFIDENCE.

    All are read on the records of `model`. mean_rank: over all oracles, our own (`own`, of the model's seed) among
    them: each is a model that never saw the records. gap: S_gap of each other oracle against our own, as if it were an
    unlearned model (RULER 0.A.5); without our own there is none. Each has what a `NoiseBand` has, and its values; where
    these are all the same, which says nothing of how far apart models lie, there is none.
    """
    ids = (model.forget_ids, model.retain_ids)
    others = [oracle.take(*ids) for oracle in oracles]
    ours = [] if own is None else [own.take(*ids)]
    bands = {"mean_rank": _band([lens_2(oracle).mean for oracle in (*ours, *others)])}
    if own is not None:
        pair, sample = References(own, own), config.evaluation.ruler.retain_sample
        bands["gap"] = _band([lens_1(oracle, pair, sample)["gap"] for oracle in others])
    return {name: band for name, band in bands.items() if band["low"] < band["high"]}


def _band(values: list[float]) -> dict[str, Any]:
    return {**asdict(noise_band(values, CONFIDENCE)), "values": values}
