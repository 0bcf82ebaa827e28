"""lm-eval: what EleutherAI's lm-evaluation-harness measures of the model, on the tasks that `evaluation.lm_eval` names.

Settings: `conf/evaluator/lm_eval.yaml`, by the harness's own names; off while there are no tasks. The harness builds
prompts, runs the model (its `HFLM`) and computes the metrics. A metric is called `<task>_<metric>`, and
`<task>_<metric>_<filter>` where a task has several filters of answers. Of a group that aggregates there is the group's
value; those of its tasks are among the details. Tasks that run code which a model wrote are refused.
"""

from __future__ import annotations

import copy
import logging
import math
import random
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluation.hook import Result
from evaluation.metrics.catalogue import Group
from oblivionis.config.problems import did_you_mean
from oblivionis.errors import RunError
from oblivionis.measures.base import Measure

if TYPE_CHECKING:
    from evaluation.hook import EvaluationSession, Evaluator, Result
    from oblivionis.measures.context import Context

LIMITS = {
    "tasks": {
        "help": "Tasks, groups and tags of the harness (`lm-eval ls tasks` lists them), or YAML files of tasks; none: "
        "it is left out."
    },
    "include_path": {"help": "Folder with YAML files of further tasks; null: none.", "type": "str"},
    "num_fewshot": {
        "help": "Answered examples before a question; null: as each task has it. A task that says 0 keeps it.",
        "type": "int",
        "at_least": 0,
    },
    "limit": {
        "help": "At most so many items of each task, the first ones; null: all.",
        "type": "int",
        "at_least": 1,
        "unit": "items",
    },
    "batch_size": {"help": "Sequences in a forward pass.", "at_least": 1, "unit": "sequences"},
    "apply_chat_template": {"help": "Whether the tokenizer's chat template goes around prompts."},
    "after_rounds": {"help": "After rounds, too, not only at a stage's end."},
}
SEED = 1234


@dataclass(frozen=True)
class HarnessEvaluator:
    """The metrics of the harness's `tasks` (what its TaskManager loads), `shown` those that are metrics of ours.

    `arguments` are those of the chat template. Few-shot examples and whatever else a task draws come from `SEED`, the
    same for every model. A metric that is no finite number is left out. The details hold per task `results` and
    `items`, the number of items that were asked.
    """

    tasks: Any
    shown: tuple[str, ...]
    tokenizer: Any
    limit: int | None = None
    batch_size: int = 8
    apply_chat_template: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    name: str = field(default="lm_eval", init=False)

    def evaluate(self, session: EvaluationSession) -> Result:
        """Measure."""

        from lm_eval.evaluator import evaluate  # type: ignore[import-not-found]
        from lm_eval.models import huggingface  # type: ignore[import-not-found]

        from evaluation.engine.models import base_model

        harness: Any = huggingface.HFLM
        with _drawn_from(SEED):
            # A copy: the harness chooses a padding token and a side.
            tokenizer = copy.deepcopy(self.tokenizer)
            model = base_model(session.model)
            output: Any = evaluate(
                harness(
                    pretrained=model,
                    tokenizer=tokenizer,
                    batch_size=self.batch_size,
                    backend="causal",
                    chat_template_args=dict(self.arguments),
                ),
                self.tasks,
                limit=self.limit,
                bootstrap_iters=0,
                log_samples=False,
                apply_chat_template=self.apply_chat_template,
            )
        values = {task: _finite(results) for task, results in output["results"].items()}
        metrics = {f"{task}_{name}": value for task in self.shown for name, value in values.get(task, {}).items()}
        counts = {task: count["effective"] for task, count in output["n-samples"].items()}
        return Result(metrics, {"results": values, "items": counts})


def _finite(results: Mapping[str, Any]) -> dict[str, float]:
    """Of a task's results, by `metric,filter`, the finite numbers by our names; standard errors are left out."""
    numbers: dict[str, float] = {}
    for key, value in results.items():
        metric, comma, chosen = key.partition(",")
        if comma and not metric.endswith("_stderr") and isinstance(value, int | float) and math.isfinite(value):
            name = metric if chosen == "none" else f"{metric}_{chosen}"
            numbers[re.sub(r"[^\w.-]+", "-", name)] = float(value)
    return numbers


@contextmanager
def _drawn_from(seed: int) -> Iterator[None]:
    """The generators of Python, NumPy and torch begin with `seed` within, and go on afterwards as if nothing was."""
    import torch

    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def _is_file(task: str) -> bool:
    return task.endswith((".yaml", ".yml"))


def _shown(tasks: Any) -> tuple[str, ...]:
    """Groups that aggregate, and tasks that are in none of them."""
    groups = [group for group in tasks["groups"].values() if group.has_aggregation]
    inside = {task.task_name for group in groups for task in group.get_all_tasks()}
    below = {inner.name for group in groups for inner in group.get_all_groups()}
    names = [group.name for group in groups if group.name not in below]
    return (*names, *(name for name in tasks["tasks"] if name not in inside))


class LmEval(Measure):
    """What the harness measures of the model on the configured tasks."""

    order = 90
    needs = ("prepared",)
    others = Group("lm-eval", 95)
    legend = (
        "lm-eval: `<task>_<metric>` as EleutherAI's harness computes it. Which value is better depends on the task: on "
        "what was to be forgotten the retrained model's, on anything else mostly the higher."
    )

    def prepare(self, context: Context) -> tuple[Any, tuple[str, ...]] | None:
        """The loaded tasks, with their data, and whose metrics are shown; None without tasks.

        Raises RunError where the package is not installed, or a task is unknown or cannot be loaded.
        """
        settings = context.settings
        if not settings["tasks"]:
            return None
        try:
            from lm_eval.tasks import TaskManager  # type: ignore[import-not-found]
        except ImportError as error:
            raise RunError(
                "evaluation.lm_eval.tasks: its package is not installed; pip install 'oblivionis[lm-eval]', or name no "
                f"tasks ({error})"
            ) from error
        logging.getLogger("lm_eval").setLevel(logging.ERROR)
        folder, named = settings["include_path"], list(settings["tasks"])
        if folder is not None and not Path(folder).expanduser().is_dir():
            raise RunError(f"evaluation.lm_eval.include_path: there is no folder {folder}")
        manager = TaskManager(
            include_path=None if folder is None else str(Path(folder).expanduser()),
            # Reading the harness's own thousands of files takes seconds.
            include_defaults=not all(_is_file(task) for task in named),
        )
        for task in named:
            if task not in manager.all_tasks and not (_is_file(task) and Path(task).expanduser().is_file()):
                near = did_you_mean(task, manager.all_tasks) or "`lm-eval ls tasks` lists what there is"
                raise RunError(f"evaluation.lm_eval.tasks: there is no task {task!r}; {near}")
        try:
            tasks = manager.load([str(Path(task).expanduser()) if _is_file(task) else task for task in named])
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise RunError(f"evaluation.lm_eval.tasks: {', '.join(named)} cannot be loaded: {reason}") from error
        for task in tasks["tasks"].values():
            if task.get_config("num_fewshot") is None or (
                settings["num_fewshot"] is not None and task.get_config("num_fewshot") != 0
            ):
                task.set_config(key="num_fewshot", value=settings["num_fewshot"] or 0)
            task.set_fewshot_seed(seed=SEED)
        return tasks, _shown(tasks)

    def build(self, context: Context) -> list[Evaluator]:
        """At a stage's end, after rounds where that is wanted."""
        settings = context.settings
        if not (context.full or settings["after_rounds"]):
            return []
        tasks, shown = context.prepared
        own = {key: settings[key] for key in ("limit", "batch_size", "apply_chat_template")}
        template = context.assembled.template
        return [HarnessEvaluator(tasks, shown, context.tokenizer, arguments=template.arguments, **own)]
