"""Texts and holdout sets in whole small runs: real server and clients in one process."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from support.inprocess import InProcessGrid

from evaluation.metrics.membership import auc
from evaluation.metrics.rouge import rouge_l
from oblivionis.client.app import app
from oblivionis.config import compose as configuration
from oblivionis.data.corpora import load_corpus, load_partition
from oblivionis.data.datasets import fictitious, tofu
from oblivionis.data.errors import DataError
from oblivionis.data.records import Corpus, Record
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.node_folder import NodeFolder
from oblivionis.measures import registry
from oblivionis.measures.assessor import Assessor
from oblivionis.measures.membership import report as membership_report
from oblivionis.measures.membership.evaluator import Membership
from oblivionis.models.assembly import assemble
from oblivionis.models.configured_corpus import corpus_of
from oblivionis.reports import run_summary as report
from oblivionis.reports.html.run_page import write_html
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.progress import Events
from oblivionis.server.app import serve

TINY = [
    "federation.clients=3",
    "federation.fraction_train=0.7",
    "federation.local_epochs=1",
    "federation.rounds={finetune: 2, retrain: 2, unlearn: 2}",
    "data.passages=9",
    "data.forget_passages=3",
    "model.max_length=64",
    "evaluation.light.questions_per_set=2",
    "evaluation.muse.continuation=12",
    "evaluation.muse.answer=6",
    "evaluation.membership.bootstrap=50",
    "strict=true",
]


class Notes(Events):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warning(self, text: str) -> None:
        self.warnings.append(text)


def run(experiment: str, output: Path, overrides: list[str]) -> tuple[RunDirectory, configuration.Config, Notes]:
    config = configuration.compose(experiment, [*overrides, f"output={output}", "name=run"])
    directory = RunDirectory.create(output, config.name)
    directory.write_config(configuration.to_yaml(config))
    events = Notes()
    serve(config, InProcessGrid(app, config.federation.clients), directory, events, threading.Event())
    return directory, config, events


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return run("muse_tiny", tmp_path_factory.mktemp("muse"), TINY)


@pytest.mark.slow
def test_a_run_on_texts_measures_muse_and_nothing_about_questions(texts) -> None:
    directory, _, events = texts
    metrics = report.stage_metrics(directory)
    assert set(metrics) == {"finetune", "unlearn", "retrain"}
    for stage, found in metrics.items():
        log = directory.evaluation_log(stage)
        for name in ("verbmem", "knowmem_forget", "knowmem_retain"):
            assert found[f"muse_{name}"] == pytest.approx(np.mean([x["score"] for x in log["muse"][name].values()]))
        groups = log["membership"]["min_k_40"]
        expected = auc(list(groups["members"].values()), list(groups["others"].values()))
        assert found["membership_auc_min_k_40"] == log["muse"]["auc"] == pytest.approx(expected)
        oracle = directory.evaluation_log("retrain")["muse"]["auc"]
        leak = 100 * ((1 - log["muse"]["auc"]) - (1 - oracle)) / (1 - oracle)
        assert found["muse_privleak"] == pytest.approx(leak)
        assert not any(k.startswith(("forget_", "retain_", "ruler_", "leakage_", "wikimem_")) for k in found)
    assert metrics["retrain"]["muse_privleak"] == 0
    assert sum("plain text" in note for note in events.notes) == 1
    assert not any("RULER" in w or "forget quality" in w for w in events.warnings)
    assert {r["evaluator"] for r in directory.metrics()} == {"muse", "membership", "federation", "rebound", "requests"}


@pytest.mark.slow
def test_pieces_of_texts_are_forgotten_by_id_and_verified(texts) -> None:
    directory, config, _ = texts
    corpus = corpus_of(config)
    requests = list(Ledger(directory.ledger_path))
    assert {i for r in requests for i in r.record_ids} <= corpus.forget_ids
    served = [r for r in requests if r.served_round is not None]
    assert served and all(r.rouge is not None and 0 <= r.rouge <= 1 for r in served)
    for request in served:
        assert set(request.record_ids) <= set(NodeFolder(directory.nodes_path / str(request.client)).tombstones())


@pytest.mark.slow
def test_the_report_of_a_run_on_texts(texts) -> None:
    directory, config, _ = texts
    metrics = report.stage_metrics(directory)
    rows = {(group, name): values for _, group, name, values in report.rows(metrics)}
    assert ("Forget, MUSE", "VerbMem (NVM)") in rows and ("Retain, MUSE", "KnowMem (UP)") in rows
    assert rows["Forget, membership", "AUC, loss"] == [m["membership_auc_loss"] for m in metrics.values()]
    shown = report.samples(directory, config, list(metrics))
    assert {s["set"] for s in shown} == {"Forget", "Retain"} and len(shown[0]["answers"]) == 3
    write_html(directory, config)
    page = (directory.path / "report.html").read_text()
    assert all(words in page for words in ("PrivLeak", "VerbMem (NVM)", Membership.legend.split(":")[0]))


@pytest.mark.slow
def test_recitation_by_definition(texts) -> None:
    directory, config, _ = texts
    assembled, corpus = assemble(config.model, 0), corpus_of(config)
    assessor = Assessor(assembled, corpus, config)
    vector = directory.load_checkpoint("finetune").vector
    record = corpus.train[0]
    found = assessor.recalls(vector, [record.id])[record.id]
    half = len(record.tokens) // 2
    start = assembled.tokenizer.bos_token_id
    ids = torch.tensor([[start, *record.tokens[:half]]])
    expected = record.tokens[half : half + config.evaluation.muse.continuation]
    with torch.no_grad():
        said = assembled.model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=len(expected), do_sample=False
        )[0, ids.shape[1] :]
    texts = [assembled.tokenizer.decode(x, skip_special_tokens=True) for x in (said, expected)]
    assert found == pytest.approx(rouge_l([texts[0]], [texts[1]]).recall[0])


def test_holdout_authors_change_nothing_else() -> None:
    plain, more = (fictitious.corpus(8, 3, 2, seed=4, holdout_authors=n) for n in (0, 5))
    assert more.train == plain.train and more.forget_ids == plain.forget_ids
    assert {k: v for k, v in more.evaluation.items() if k != "holdout"} == dict(plain.evaluation)
    holdout = more.evaluation["holdout"]
    assert len(holdout) == 15 and len({r.id for r in (*holdout, *plain.train)}) == 15 + 24
    assert not {r.subject for r in holdout} & {r.subject for r in plain.train}
    config = configuration.compose("default")
    corpora = [load_corpus(c.data) for c in (config, configuration.compose("default", ["data.holdout_authors=0"]))]
    assert load_partition(corpora[0], config) == load_partition(corpora[1], config)
    assert "holdout" in corpora[0].evaluation and "holdout" not in corpora[1].evaluation


def authors(count: int) -> Corpus:
    train = tuple(Record(f"r{i}", f"q{i}", "a", f"author-{i // 2}") for i in range(2 * count))
    return Corpus("tofu", train, frozenset({"r0", "r1"}), {"forget": train[:2], "retain": train[2:], "world_facts": ()})


def test_authors_are_withheld_from_training_and_from_the_questions() -> None:
    corpus = authors(9)
    found = tofu.withhold(corpus, 3, seed=0)
    away = {r.subject for r in found.evaluation["holdout"]}
    assert len(away) == 3 and "author-0" not in away and len(found.evaluation["holdout"]) == 6
    assert set(found.train) == set(corpus.train) - set(found.evaluation["holdout"])
    assert not away & {r.subject for r in found.evaluation["retain"]} and len(found.evaluation["retain"]) == 10
    assert found == tofu.withhold(corpus, 3, seed=0) != tofu.withhold(corpus, 3, seed=1)
    with pytest.raises(DataError, match="at most 7"):
        tofu.withhold(corpus, 8, seed=0)


def test_a_small_part_of_tofu_keeps_all_that_is_to_be_forgotten() -> None:
    corpus = authors(9)
    found = tofu.keep_first(corpus, 3)
    assert [r.subject for r in found.train[::2]] == ["author-0", "author-1", "author-2", "author-3"]
    assert found.forget_ids == corpus.forget_ids and found.evaluation["forget"] == corpus.evaluation["forget"]
    assert {r.subject for r in found.evaluation["retain"]} == {"author-1", "author-2", "author-3"}
    with pytest.raises(DataError, match="at most"):
        tofu.keep_first(corpus, 9)


def test_a_holdout_file_of_own_records(tmp_path: Path) -> None:
    def write(name: str, *rows: dict) -> Path:
        file = tmp_path / name
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return file

    file = write(
        "mine.jsonl", {"id": "a", "question": "Q1", "answer": "A1", "forget": True}, {"question": "Q2", "answer": "A2"}
    )
    holdout = write("holdout.jsonl", {"id": "h", "question": "Q3", "answer": "A3"})

    def load() -> Corpus:
        overrides = ["data=jsonl", f"data.path={file}", f"data.holdout_file={holdout}", "federation.clients=2"]
        return load_corpus(configuration.compose("default", overrides).data)

    assert [r.id for r in load().evaluation["holdout"]] == ["h"]
    assert "holdout" not in {r.id for r in load().train}
    write("holdout.jsonl", {"question": "Q2", "answer": "A2"}, {"id": "a", "question": "new", "answer": "x"}, {})
    with pytest.raises(DataError) as error:
        load()
    assert str(error.value).count("this record is trained on") == 2 and "holdout.jsonl:3" in str(error.value)
    write("holdout.jsonl")
    with pytest.raises(DataError, match="expected at least one record"):
        load()


def test_what_the_comparison_needs_after_the_fact() -> None:
    class Run:
        def evaluation_log(self, stage: str):
            return {"muse": {"auc": {"finetune": 0.9, "retrain": 0.6}[stage]}} if stage != "local" else None

    metrics: dict = {"finetune": {}, "retrain": {}, "local": {}}
    registry.measures()["muse"].complete(Run(), metrics, "geometric", 0.95)  # type: ignore[arg-type]
    assert metrics["finetune"]["muse_privleak"] == pytest.approx(-75) and metrics["retrain"]["muse_privleak"] == 0
    assert metrics["local"] == {}


def test_sentences_by_the_attack_that_tells_most() -> None:
    def values(name: str, auc: float, difference: float, p: float) -> dict[str, float]:
        head = f"membership_auc_{name}"
        return {head: auc, f"{head}_low": 0.1, f"{head}_high": 0.9, f"{head}_difference": difference, f"{head}_p": p}

    unlearned = values("loss", 0.8, 0.2, 0.3) | values("zlib", 0.7, 0.4, 1e-4)
    (line,) = membership_report.sentences({"unlearn": unlearned, "retrain": values("zlib", 0.3, 0, 1)})
    assert "AUC, zlib: unlearned 0.700 [0.100, 0.900], retrained 0.300" in line and "under-unlearned" in line
    unlearned = values("zlib", 0.1, -0.2, 0.001)
    assert (
        "over-unlearned" in membership_report.sentences({"unlearn": unlearned, "retrain": values("zlib", 0.3, 0, 1)})[0]
    )
    unlearned = values("loss", 0.5, 0.2, 0.03) | values("zlib", 0.7, 0.4, 0.04)
    retrained = values("loss", 0.3, 0, 1) | values("zlib", 0.3, 0, 1)
    (line,) = membership_report.sentences({"unlearn": unlearned, "retrain": retrained})
    assert "not to be told" in line, "0.03 is more than half of 5 %"
    assert membership_report.sentences({"unlearn": {}}) == []
