"""Attacks on an unlearned model: does what was forgotten come back, more than the retrained model gives away?

Each attack on each model is one file of JSON lines, written when it is complete: a head that says what it was made
from, then a line per question. A repeated command reads the files that fit and runs only what is missing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from evaluation.metrics.membership import auc, auc_interval, compared
from evaluation.metrics.retrained_comparison import judge_probability, judge_recall
from oblivionis.audits import attacks as kinds
from oblivionis.audits.attack_questions import Attack, Battery, Row
from oblivionis.audits.attacks import NONE
from oblivionis.audits.loaded_model import identity_of
from oblivionis.config.schema import Config
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import REJECTED
from oblivionis.errors import OblivionisError, RunInterrupted
from oblivionis.files import checked, parse_json, read_bytes, write_atomic
from oblivionis.measures.assessor import assemble_for
from oblivionis.models.configured_corpus import corpus_of
from oblivionis.runs import artifact_binding
from oblivionis.runs.checkpoints import find_checkpoint
from oblivionis.runs.directory import RunDirectory, package_versions, vector_hash
from oblivionis.runs.failed_evaluators import one_line

ORACLE = "retrain"
MEASURES = ("prob", "rouge", "truth_ratio")
CONFIDENCE = 0.95

Progress = Callable[[int, int, str], None]
"""Called with how many attacks on a model are done, how many there are, and what comes next."""


class AttackError(OblivionisError):
    """An attack that cannot be made as asked."""


@dataclass(frozen=True)
class Attacked:
    """A model under attack: its stage and round, its global vector, and what tells it from every other model."""

    stage: str
    round: int
    vector: np.ndarray
    identity: str


class _Written(TypedDict):
    seconds: float
    made_from: dict[str, Any]


class _Head(_Written, total=False):
    rows: int


class _Asked(TypedDict):
    id: str
    variant: str


class _Row(_Asked, total=False):
    group: str
    score: float
    prob: float
    loss: float
    rouge: float
    truth_ratio: float
    m_mu: float
    m_bin: float


@dataclass(frozen=True)
class Done:
    """An attack on one model: a row per variant and question, and the seconds that it took."""

    rows: Sequence[Row]
    seconds: float

    def by_variant(self) -> dict[str, dict[str, Row]]:
        """Variant -> question id (for `membership` with its group) -> row, in the order in which they were made."""
        found: dict[str, dict[str, Row]] = {}
        for row in self.rows:
            found.setdefault(row["variant"], {})[row["id"]] = row
        return found


def attack_run(
    target: Path,
    stage: str,
    overrides: Sequence[str] = (),
    only: Sequence[str] = (),
    progress: Progress | None = None,
) -> tuple[RunDirectory, Path, dict[str, Any]]:
    """Attack the model of `stage` and the retrained model of the run, and write `results.json`.

    overrides: changes of the run's configuration, such as `attack.samples=1000`. only: kinds of attack to make now;
    the results hold every attack of `attack.attacks` that is complete. Returns the run, the folder and the results.
    An attack that fails is named in the results with its reason, and tried again next time. Raises OblivionisError for
    what cannot be attacked, and RunInterrupted when the user stops it: what is complete is kept.
    """
    run, checkpoint, config, fingerprint = find_checkpoint(target, stage, overrides)
    unknown = [kind for kind in only if kind not in config.attack.attacks]
    if unknown:
        raise AttackError(f"--only {unknown[0]}: not among attack.attacks ({', '.join(config.attack.attacks)})")
    checkpoints = [checkpoint]
    if checkpoint.stage != ORACLE and run.stage_summary(ORACLE) is not None:
        checkpoints.append(run.load_checkpoint(ORACLE))
    corpus = corpus_of(config)
    if not corpus.evaluation.get("forget"):
        why = "its clients hold plain text" if corpus.is_text else "its data have none"
        raise AttackError(f"{run.path}: attacks ask the forget questions, and {why}")
    asked = [i for r in Ledger(run.ledger_path) if r.state != REJECTED for i in r.record_ids]
    battery = Battery(assemble_for(run, config), corpus, config, asked)
    models = [
        Attacked(c.stage, c.round, c.vector, identity_of(config, fingerprint, c.vector.tobytes())) for c in checkpoints
    ]
    folder = run.path / "attacks" / f"{checkpoint.stage}-{checkpoint.round:04d}"
    attacks = kinds.build(battery)
    found, failed = _run_all(attacks, models, battery, folder, only, progress)
    results = {
        "run": run.name,
        "stage": checkpoint.stage,
        "round": checkpoint.round,
        "oracle": ORACLE if len(models) > 1 else None,
        "adapters": {m.stage: vector_hash(m.vector) for m in models},
        "truth_ratio": config.evaluation.truth_ratio,
        "questions": len(battery.questions),
        "any_script": battery.any_script,
        "settings": _settings(config),
        "versions": package_versions(),
        "rows": [row for a in attacks if not a.by_group for row in _table(a, found, models)],
        "membership": [row for a in attacks if a.by_group for row in _aucs(a, found, models, config)],
        "left_out": {a.name: a.unavailable for a in attacks if a.unavailable},
        "failed": failed,
        "seconds": {f"{name}.{model}": done.seconds for (name, model), done in found.items()},
        "time": time.time(),
    }
    artifact_binding.measured(run, folder / "results.json", results)
    return run, folder, results


def _settings(config: Config) -> dict[str, Any]:
    tree = dataclasses.asdict(config.attack)
    return tree | tree.pop("more")


def _run_all(
    attacks: Sequence[Attack],
    models: Sequence[Attacked],
    battery: Battery,
    folder: Path,
    only: Sequence[str],
    progress: Progress | None,
) -> tuple[dict[tuple[str, str], Done], dict[str, str]]:
    """Every complete attack by (its name, the model's stage), running those that are wanted and missing; and why some
    failed, by "name.stage"."""
    cells = [(a, m, not only or a.kind == NONE or a.kind in only) for a in attacks if not a.unavailable for m in models]
    total = sum(wanted for *_, wanted in cells)
    found: dict[tuple[str, str], Done] = {}
    failed: dict[str, str] = {}
    count = 0
    for attack, model, wanted in cells:
        path, made_from = _place(attack, model, battery, folder)
        done = _read(path, made_from)
        if wanted:
            try:
                if progress is not None:
                    progress(count, total, attack.name)
                count += 1
                done = done or _run_one(attack, model, path, made_from)
            except KeyboardInterrupt:
                raise RunInterrupted(
                    f"stopped; {len(found)} of {len(cells)} attacks on a model are complete and kept in {folder}; the "
                    "same command goes on from there"
                ) from None
            except Exception as error:
                failed[f"{attack.name}.{model.stage}"] = one_line(str(error) or type(error).__name__)
        if done is not None:
            found[attack.name, model.stage] = done
    if progress is not None:
        progress(count, total, "")
    return found, failed


def _run_one(attack: Attack, model: Attacked, path: Path, made_from: Mapping[str, Any]) -> Done:
    started = time.perf_counter()
    rows = attack.run(model.vector)
    done = Done(rows, time.perf_counter() - started)
    head = {"attack": attack.name, "model": model.stage, "round": model.round, "seconds": done.seconds}
    head["rows"] = len(rows)
    lines = [{**head, "made_from": made_from}, *rows]
    write_atomic(path, "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines))
    return done


def _place(attack: Attack, model: Attacked, battery: Battery, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Where an attack on a model lies, and all that its rows depend on."""
    questions = json.dumps([dataclasses.astuple(q) for q in battery.questions])
    made_from = {
        "model": model.identity,
        "truth_ratio": battery.truth_ratio,
        "questions": hashlib.sha256(questions.encode()).hexdigest(),
        "attack": json.loads(json.dumps(attack.settings)),
        **({"any_script": battery.any_script} if battery.any_script else {}),
    }
    digest = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:8]
    return folder / "questions" / f"{attack.name}.{model.stage}.{digest}.jsonl", made_from


def _read(path: Path, made_from: Mapping[str, Any]) -> Done | None:
    """A complete attack; None where there is no such file, or not one of these settings."""
    try:
        head, *rows = (parse_json(line) for line in read_bytes(path).decode().splitlines())
        if checked(head, _Head)["made_from"] != made_from or len(rows) != head.get("rows", len(rows)):
            return None
        return Done(checked(rows, list[_Row]), float(head["seconds"]))
    except (FileNotFoundError, ValueError):
        return None


def _table(attack: Attack, found: Mapping[tuple[str, str], Done], models: Sequence[Attacked]) -> list[dict[str, Any]]:
    """The rows of the comparison: each model before and after a variant of the attack, on the questions it asks."""
    target = models[0].stage
    done = {m.stage: d.by_variant() for m in models if (d := found.get((attack.name, m.stage))) is not None}
    plain = {m.stage: found[NONE, m.stage].by_variant()[""] for m in models if (NONE, m.stage) in found}
    table = []
    for variant in done.get(target, {}):
        rows = {stage: of[variant] for stage, of in done.items() if variant in of}
        values = {
            stage: {
                "before": _means([plain[stage][i] for i in by_id if i in plain.get(stage, {})]),
                "after": _means(list(by_id.values())),
            }
            for stage, by_id in rows.items()
        }
        line = {"attack": attack.kind, "name": attack.name, "variant": variant, "questions": len(rows[target])}
        line |= {"models": values}
        line["records"] = {
            stage: {i: row["rouge"] for i, row in by_id.items() if "rouge" in row} for stage, by_id in rows.items()
        }
        if target != ORACLE and ORACLE in rows:
            ours, theirs = values[target]["after"], values[ORACLE]["after"]
            line["difference"] = {m: ours[m] - theirs[m] for m in ours if m in theirs}
            line |= _judged(rows[target], rows[ORACLE])
        table.append(line)
    return table


def _means(rows: Sequence[Row]) -> dict[str, float]:
    """Means over questions; `truth_ratio` that of min(R, 1/R). A value that no row has is absent."""
    found = {}
    for name in ("prob", "rouge", "truth_ratio", "m_mu", "m_bin"):
        values = np.array([row[name] for row in rows if name in row], np.float64)
        if values.size and name == "truth_ratio":
            with np.errstate(divide="ignore"):
                values = np.minimum(values, 1 / values)
        if values.size:
            found[name] = float(values.mean())
    return found


def _judged(ours: Mapping[str, Row], theirs: Mapping[str, Row]) -> dict[str, Any]:
    """The verdict on the attacked model compared with the retrained one under the same attack, paired by question.

    By the probability of the answers where it was measured, else by the recall of what was sampled.
    """
    both = [i for i in ours if i in theirs]
    measure = "prob" if all("loss" in ours[i] for i in both) else "rouge"
    if measure == "prob":
        found = judge_probability([ours[i]["loss"] for i in both], [theirs[i]["loss"] for i in both])
    else:
        found = judge_recall([ours[i]["rouge"] for i in both], [theirs[i]["rouge"] for i in both])
    if found is None:
        return {}
    word = found.verdict if measure == "prob" else found.significance
    return {"verdict": word, "by": measure, "p_above": found.p_above, "p_below": found.p_below}


def _aucs(
    attack: Attack, found: Mapping[tuple[str, str], Done], models: Sequence[Attacked], config: Config
) -> list[dict[str, Any]]:
    """A row per kind of membership inference: AUC of each model with its interval, and their difference."""
    target = models[0].stage
    groups = {m.stage: _groups(d) for m in models if (d := found.get((attack.name, m.stage))) is not None}
    table = []
    for variant, scores in groups.get(target, {}).items():
        line: dict[str, Any] = {"variant": variant, "members": len(scores["members"]), "others": len(scores["others"])}
        line["models"] = {}
        for stage, of in groups.items():
            values = [list(of[variant][key].values()) for key in ("members", "others")]
            low, high = auc_interval(*values, confidence=CONFIDENCE, seed=config.seed)
            line["models"][stage] = {"auc": auc(*values), "low": low, "high": high}
        if target != ORACLE and ORACLE in groups:
            names = compared(variant, scores, groups[ORACLE].get(variant), CONFIDENCE)
            line |= {name.removeprefix(f"auc_{variant}_"): value for name, value in names.items()}
        table.append(line)
    return table


def _groups(done: Done) -> dict[str, dict[str, dict[str, float]]]:
    """Kind of inference -> "members" and "others" -> id -> score."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for row in done.rows:
        found.setdefault(row["variant"], {}).setdefault(row["group"], {})[row["id"]] = row["score"]
    return found
