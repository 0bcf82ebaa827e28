"""The examples of the guides to the library, each run as it stands, and what they claim."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.commands import call, in_process

from oblivionis import ConfigError, Run, RunFailed, evaluate_model, load_model, losses, simulate
from oblivionis.config.compose import compose
from oblivionis.models.configured_corpus import corpus_of
from oblivionis.server import simulation

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "guides" / "examples" / "library"
GUIDES = "".join(
    (ROOT / "docs" / "guides" / f"{page}.md").read_text(encoding="utf-8") for page in ("library", "fedtu", "leakage")
)


def test_the_guides_show_the_files() -> None:
    shown = re.findall(
        r"^\[(\w+\.py)\]\(examples/library/\1\):\n\n```python\n(.*?)^```", GUIDES, re.MULTILINE | re.DOTALL
    )
    assert dict(shown) == {file.name: file.read_text(encoding="utf-8") for file in EXAMPLES.glob("*.py")}
    assert len(shown) == 4


def run(name: str, *arguments: object, cwd: Path) -> str:
    """The standard output of an example that is a process of its own."""
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    # Or Flower would join the cluster of another test.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_ADDRESS": "local"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_fedtu_around_flowers_fedadam(tmp_path: Path) -> None:
    """In Flower's own simulation."""
    out = run("fedtu_fedadam.py", cwd=tmp_path)
    distances = [float(far) for far in re.findall(r"^round \d+: ([\d.]+) from the truth$", out, re.MULTILINE)]
    assert len(distances) == 13 and "request served in round 6\n" in out
    assert min(distances[:6]) > 0.5, "the wrong records keep the model from the truth"
    assert distances[6] < 0.2 and distances[12] < 0.05
    told = (distances[5], distances[6], distances[12])
    assert "{:.2f} before the request of round 6, {:.2f} after it, {:.2f} at the end".format(*told) in " ".join(
        GUIDES.split()
    )


@pytest.fixture(scope="module")
def tofu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up authors in TOFU's files, with the fields that its own files have."""
    folder = tmp_path_factory.mktemp("tofu")
    names = runpy.run_path(str(EXAMPLES / "tofu_metrics.py"), run_name="example")["FILES"]
    sizes = ["data.authors=4", "data.questions_per_author=2", "data.forget_authors=2"]
    for name, records in corpus_of(compose("smoke", sizes)).evaluation.items():
        rows = [
            {
                "question": record.question,
                "answer": record.answer,
                "perturbed_answer": list(record.perturbed_answers),
                **({"paraphrased_answer": record.paraphrased_answer} if record.paraphrased_answer else {}),
            }
            for record in records[:4]
        ]
        if name in names:
            (folder / names[name]).write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return folder


def test_tofu_metrics_of_a_model_folder(
    tofu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for part in load_model("embedded"):
        part.save_pretrained(tmp_path)  # type: ignore[union-attr]
    monkeypatch.setattr(sys, "argv", ["tofu_metrics.py", str(tmp_path), str(tofu), "embedded"])
    names = runpy.run_path(str(EXAMPLES / "tofu_metrics.py"), run_name="__main__")
    found = names["found"]
    assert found.metrics["forget_quality"] == pytest.approx(1.0), "beside itself"
    assert 0 < found.metrics["model_utility"] < 1
    out = capsys.readouterr().out
    assert f"model_utility{found.metrics['model_utility']:28.3f}\n" in out
    assert f"  answer  {names['answer']}\n" in out and names["answer"]
    assert evaluate_model("embedded", names["questions"]).metrics.items() <= found.metrics.items()


def test_bounds_on_scores(tmp_path: Path) -> None:
    lines = run("bounds_on_scores.py", cwd=tmp_path).splitlines()
    question, mean, most, leaks = lines[1].split()
    assert int(question) == 7 and float(mean) == pytest.approx(2 / 3, abs=0.02)
    assert float(mean) < float(most) < 0.75 and 0.8 < float(leaks) < 0.9  # P(Beta(4, 2) >= 1/2) = 0.8125
    assert re.fullmatch(r"question 0 leaks below 0\.2 on average: \d{2} answers told", lines[-1])


@pytest.fixture(scope="module")
def capped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """What the example of a loss gives, with the clients in this process, and the loss's file."""
    folder = tmp_path_factory.mktemp("capped")
    file = EXAMPLES / "capped_ascent.py"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(simulation, "simulate", in_process)
        return runpy.run_path(str(file), run_name="__main__")["run"], file


def test_a_loss_of_ones_own_in_a_run(capped: tuple[Run, Path]) -> None:
    run, file = capped
    assert list(run.metrics) == ["finetune", "unlearn", "retrain"]
    assert run.metrics["unlearn"]["forget_prob"] < run.metrics["retrain"]["forget_prob"]
    config = (run.path / "config.yaml").read_text(encoding="utf-8")
    assert f"method: {file}\n" in config and "cap: 3.0\n" in config
    assert "capped_ascent" in (run.path / "report.html").read_text(encoding="utf-8")
    assert losses.get(str(file)).defaults == {"cap": 4.0}


def test_a_run_is_opened_again(capped: tuple[Run, Path]) -> None:
    run, _ = capped
    assert Run.open(str(run.path)) == run
    shown = call("runs", "show", run.path)
    assert shown.code == 0, shown.err


def test_a_run_that_cannot_be_is_told_before_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="did you mean"):
        simulate("smoke", ["unlearning=npoo"])
    assert list(tmp_path.iterdir()) == []

    def breaks(*_: Any) -> None:
        raise RunFailed("no more memory")

    monkeypatch.setattr(simulation, "simulate", breaks)
    with pytest.raises(RunFailed):
        simulate("smoke", ["name=broken"])
    assert Run.open(tmp_path / "runs" / "broken").metrics == {}
