"""RWKU in a whole small run, real server and clients in one process: a person is forgotten by name, and asked about."""

from __future__ import annotations

import threading

import pytest
from support.benchmark_files import PEOPLE, rwku
from support.inprocess import InProcessGrid

from oblivionis.client.app import app
from oblivionis.config import compose as configuration
from oblivionis.erasure.ledger import Ledger
from oblivionis.models.configured_corpus import corpus_of
from oblivionis.reports import run_summary
from oblivionis.reports.html.run_page import write_html
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.progress import Events, headline
from oblivionis.server.app import serve

MARA = next(iter(PEOPLE))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDirectory, configuration.Config]:
    folder = tmp_path_factory.mktemp("rwku")
    overrides = [
        *("data=rwku", f"data.path={rwku(folder / 'data')}", f"output={folder}", "name=run", "strict=true"),
        *("federation.clients=3", "federation.rounds={finetune: 1, retrain: 1, unlearn: 1}", "model.max_length=24"),
        *("unlearning.requests.policy=subjects_at_round", f"unlearning.requests.subjects=[{MARA}]"),
        "evaluation.muse.continuation=8",
    ]
    config = configuration.compose("smoke", overrides)
    directory = RunDirectory.create(folder, config.name)
    directory.write_config(configuration.to_yaml(config))
    serve(config, InProcessGrid(app, 3), directory, Events(), threading.Event())
    return directory, config


def test_a_person_is_forgotten_by_name(run: tuple[RunDirectory, configuration.Config]) -> None:
    directory, config = run
    corpus = corpus_of(config)
    served = [request for request in Ledger(directory.ledger_path) if request.served_round is not None]
    assert {i for request in served for i in request.record_ids} == corpus.forget_ids
    assert {r.subject for r in corpus.train if r.id in corpus.forget_ids} == {MARA}


def test_what_is_asked_is_in_table_headline_samples_and_report(run: tuple[RunDirectory, configuration.Config]) -> None:
    directory, config = run
    metrics = run_summary.stage_metrics(directory)
    assert set(metrics) == {"finetune", "unlearn", "retrain"}
    rows = {(group, measure): values for _, group, measure, values in run_summary.rows(metrics)}
    assert rows["Forget, RWKU", "Attacks answered (AA)"] == [m["rwku_forget_attacks"] for m in metrics.values()]
    assert rows["Neighbours, RWKU", "Blanks filled (FB)"] == [m["rwku_neighbor_blanks"] for m in metrics.values()]
    assert rows["Utility, multiple choice", "Accuracy"] == [m["choices_utility"] for m in metrics.values()]
    assert not any(group.endswith("MUSE") for group, _ in rows)
    assert headline(metrics["unlearn"]).startswith("RWKU forget ")
    shown = run_summary.samples(directory, config, list(metrics))
    assert [(s["set"], s["truth"], len(s["answers"])) for s in shown] == [
        ("Forget", "Oxmoor", 3),
        ("Neighbours", "a town", 3),
    ]
    write_html(directory, config)
    assert "What is Oxmoor?" in (directory.path / "report.html").read_text(encoding="utf-8")
