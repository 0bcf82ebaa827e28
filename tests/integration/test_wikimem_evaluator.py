"""WikiMem in the evaluation hook and in a whole run."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.inprocess import InProcessGrid
from transformers import AutoModelForCausalLM, AutoTokenizer

from evaluation.hook import EvaluationSession, Hook
from evaluation.wikimem.engine import Asking, score_facts
from evaluation.wikimem.evaluator import WikimemEvaluator
from evaluation.wikimem.facts import Fact
from oblivionis.client.app import app
from oblivionis.config import compose as configuration
from oblivionis.config.schema import Wikimem, WikimemProfile
from oblivionis.data.errors import DataError
from oblivionis.data.records import Corpus, Record, Triple
from oblivionis.errors import RunError
from oblivionis.measures import registry
from oblivionis.measures.wikimem.people import People
from oblivionis.models import embedded_model
from oblivionis.reports import run_summary as report
from oblivionis.reports.html.run_page import write_html
from oblivionis.runs.directory import RunDirectory, named_metrics
from oblivionis.runs.progress import Events
from oblivionis.server.app import serve

torch.set_num_threads(1)

FACTS = [
    Fact("Jane Doe", "P19", ("Bergen",)),
    Fact("Jane Doe", "P106", ("baker",)),
    Fact("Ulrike Karimov", "P19", ("Gdansk",)),
]
VALUES = {"P19": ["Riga", "Turin", "Oslo", "Porto"], "P106": ["weaver", "judge", "miner", "nurse"]}


def record(number: int, subject: str, question: str, answer: str, *triples: tuple[str, str]) -> Record:
    found = tuple(Triple(subject, name, value) for name, value in triples)
    return Record(f"r{number}", question, answer, subject, triples=found)


CORPUS = Corpus(
    "some",
    (
        record(0, "Jane Doe", "Where was Jane Doe born?", "In Bergen.", ("birthplace", "Bergen")),
        record(1, "Jane Doe", "What did Jane Doe do?", "She baked.", ("first occupation", "baker")),
        record(2, "Ulrike Karimov", "Whence came Ulrike Karimov?", "From Gdansk.", ("birthplace", "Gdansk")),
        record(3, "author-001", "Who is Amir Novak?", "A writer from Split."),
        record(4, "author-002", "Who is Ana Ruiz?", "A writer from Lima."),
    ),
    frozenset({"r0", "r1", "r4"}),
)


def text_of(r: Record) -> str:
    return f"Question: {r.question}\nAnswer: {r.answer}"


def test_the_metrics_are_the_summary_of_the_scores() -> None:
    tokenizer = AutoTokenizer.from_pretrained(embedded_model.folder())
    model = AutoModelForCausalLM.from_pretrained(embedded_model.folder(), attn_implementation="sdpa").eval()
    asking = Asking(templates=3)
    evaluator = WikimemEvaluator(FACTS[:2], FACTS[2:], FACTS, tokenizer, asking, counterfactuals=VALUES)
    result = Hook([evaluator], strict=True).run(EvaluationSession(model, stop_ids=())).results["wikimem"]
    scored = score_facts(model, tokenizer, FACTS, asking, counterfactuals=VALUES)
    for name, part in (("forget", scored[:2]), ("retain", scored[2:])):
        first = np.array([[bool(x.scores[t].argmax() < 1) for t in range(3)] for x in part])
        assert result.metrics[f"{name}_strict"] == pytest.approx(first.mean())
        assert result.metrics[f"{name}_lenient"] == pytest.approx(first.any(1).mean())
        assert result.metrics[f"{name}_unmemorized"] == (0.0 if first.any() else 1.0)
        better = [(x.scores[:, 1:] >= x.scores[:, :1]).mean() for x in part]
        assert result.metrics[f"{name}_rank"] == pytest.approx(np.mean(better))
        lead = [(x.nll[:, :1] < x.nll[:, 1:].min(1, keepdims=True)).mean() for x in part]
        assert result.metrics[f"{name}_likeliest"] == pytest.approx(np.mean(lead))
        strengths = np.concatenate([x.pair.strength for x in part])
        if first.any():
            assert result.metrics[f"{name}_strength"] == pytest.approx(np.nanmean(strengths))
        else:
            assert f"{name}_strength" not in result.metrics
    assert set(result.details["forget"]["properties"]) == {"P19", "P106"}
    assert [row["first"] for row in result.details["retain"]["facts"]] == [list(scored[2].best)]
    json.dumps(result.details)
    with pytest.raises(ValueError, match="no facts"):
        WikimemEvaluator([], [], [], tokenizer)


def test_people_to_forget_are_those_of_forget_records(tmp_path: Path) -> None:
    found = People.of(CORPUS, Wikimem(), text_of)
    assert found is not None
    assert [(f.subject, f.property) for f in found.forget] == [("Jane Doe", "P19"), ("Jane Doe", "P106")]
    assert {f.subject for f in found.retain} >= {"Ulrike Karimov"}
    assert People.of(CORPUS, Wikimem(enabled=False), text_of) is None
    bare = Corpus("bare", (record(0, "Jane Doe", "Who?", "She."),), frozenset())
    assert People.of(bare, Wikimem(), text_of) is None
    path = tmp_path / "people.jsonl"
    rows = [("Amir Novak", "Split"), ("Ana Ruiz", "Lima"), ("jane doe", "Bergen"), ("Mina Sole", "Rome")]
    path.write_text(
        "\n".join(json.dumps({"subject": s, "property": "P19", "values": [v]}) for s, v in rows), encoding="utf-8"
    )
    named = People.of(CORPUS, Wikimem(subjects=str(path)), text_of)
    assert named is not None
    assert [f.subject for f in named.forget] == ["Ana Ruiz", "jane doe"]
    assert [f.subject for f in named.retain] == ["Amir Novak", "Mina Sole"]


def test_profiles_choose_people_facts_and_values(tmp_path: Path) -> None:
    (tmp_path / "counterfactuals.json").write_text(json.dumps({"P19": ["Rome", "Oslo"]}), encoding="utf-8")
    one = WikimemProfile(forget_subjects=1, retain_subjects=0, facts_per_subject=1, templates=3, counterfactuals=7)
    found = People.of(CORPUS, Wikimem(light=one, context=2, counterfactuals_folder=str(tmp_path)), text_of)
    assert found is not None
    (light,), (full,) = found.evaluators(None, False), found.evaluators(None, True)
    assert (light.forget, light.retain, light.asking) == ([FACTS[0]], [], Asking(3, 7, 2))
    assert len(full.forget) == 2 and full.asking == Asking(None, 100, 2) and len(full.known) >= 3
    assert full.counterfactuals is not None and full.counterfactuals["P19"] == ("Rome", "Oslo")
    assert len(full.counterfactuals["P106"]) >= 100
    nobody = WikimemProfile(forget_subjects=0, retain_subjects=0)
    alone = People.of(CORPUS, Wikimem(light=nobody), text_of)
    assert alone is not None and alone.evaluators(None, False) == []


def test_records_become_canaries_in_their_own_words() -> None:
    found = People.of(CORPUS, Wikimem(phrasings="records"), text_of)
    assert found is not None and found.properties is not None
    assert [f.property for f in found.forget] == ["P19"], "no record says baker word for word"
    assert found.properties[found.forget[0]].canaries == (
        "Question: Where was HUMAN_SUBJECT born?\nAnswer: In PROTECTED_VALUE.",
    )


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"subjects": "absent.jsonl"}, DataError, "absent.jsonl"),
        (
            {"counterfactuals_folder": "absent"},
            RunError,
            r"counterfactuals_folder: absent: expected JSON with counterfactuals",
        ),
        ({"counterfactuals_folder": "."}, RunError, r"counterfactuals.json: P19 must have a list"),
    ],
)
def test_what_cannot_be_read_is_named(
    settings: dict[str, Any], error: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("counterfactuals.json").write_text('{"P19": "Rome"}', encoding="utf-8")
    with pytest.raises(error, match=message):
        People.of(CORPUS, Wikimem(**settings), text_of)


def test_an_unknown_embedder_is_named() -> None:
    found = People.of(CORPUS, Wikimem(embedder="./absent"), text_of)
    assert found is not None
    with pytest.raises(RunError, match=r"evaluation.wikimem.embedder: ./absent cannot be loaded"):
        found.evaluators(None, False)


def test_a_run_measures_it_at_every_evaluation(tmp_path: Path) -> None:
    overrides = ["federation.local_epochs=1", "evaluation.leakage.samples=0", "evaluation.leakage.full_samples=0"]
    config = configuration.compose("smoke", [*overrides, f"output={tmp_path}", "name=run"])
    run = RunDirectory.create(Path(config.output), "run")
    run.write_config(configuration.to_yaml(config))
    serve(config, InProcessGrid(app, config.federation.clients), run, Events(), threading.Event())
    rows = list(run.metrics())
    moments = [(r["stage"], r["round"], r["moment"]) for r in rows if r["evaluator"] == "tofu"]
    found = [r for r in rows if r["evaluator"] == "wikimem"]
    assert [(r["stage"], r["round"], r["moment"]) for r in found] == moments
    assert all({"forget_strict", "forget_rank", "retain_strict", "retain_rank"} <= set(r["metrics"]) for r in found)
    for stage in ("finetune", "retrain", "unlearn"):
        summary, log = run.stage_summary(stage), run.evaluation_log(stage)
        assert summary is not None and log is not None
        last = [r["metrics"] for r in found if r["stage"] == stage][-1]
        assert last == {k.removeprefix("wikimem_"): v for k, v in summary["metrics"].items() if "wikimem_" in k}
        assert len(log["wikimem"]["forget"]["facts"]) == 1
    declared = set(registry.catalogue())
    for row in rows:
        if row["evaluator"] in registry.names() and row["evaluator"] != "rebound":
            assert set(named_metrics(row["evaluator"], row["metrics"])) <= declared, row["evaluator"]
    metrics = report.stage_metrics(run)
    assert {key for found in metrics.values() for key in found} <= declared
    labels = {(group, name) for _, group, name, _ in report.rows(metrics)}
    assert {
        ("Forget, WikiMem", "Facts that rank first (strict)"),
        ("Retain, WikiMem", "Values that score higher (null 0.5)"),
    } <= labels
    write_html(run, config)
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert "Retain, WikiMem" in page and registry.measures()["wikimem"].legend.split(":")[0] in page
