"""The leakage audit: what is kept can be recomputed, an interrupted audit goes on, every kind of question works."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from support.commands import call
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from evaluation.leakage import bounds, functions
from evaluation.leakage.classifier import Classifier
from evaluation.leakage.sequential import SequentialTest
from oblivionis.audits import leakage as audit
from oblivionis.audits import leakage_samples
from oblivionis.audits.loaded_model import AuditedModel, find_subject
from oblivionis.config.schema import LeakageAudit
from oblivionis.data.errors import DataError
from oblivionis.data.questions import read_questions

QUESTIONS = [
    {"id": "sky", "question": "What colour is the sky?", "answer": "The sky is blue", "keywords": ["blue"]},
    {"id": "born", "question": "Where was Ana Prado born?", "answer": "Ana Prado was born in Lisbon"},
    {"id": "book", "question": "Which book did Ana Prado write?", "answer": "She wrote a book"},
]
SAMPLING = LeakageAudit(samples=40, max_new_tokens=12)


@pytest.fixture(scope="module")
def subject() -> AuditedModel:
    return find_subject("tiny", None, [])


@pytest.fixture
def questions(tmp_path: Path) -> list[functions.Asked]:
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps(q) + "\n" for q in QUESTIONS))
    return read_questions(file)


def kept_texts(folder: Path) -> dict[str, list[str]]:
    """Of each question the longest file of samples."""
    found: dict[str, list[str]] = {}
    for path in (folder / "samples").iterdir():
        table = pq.read_table(path)
        question, texts = table.column("question")[0].as_py(), table.column("text").to_pylist()
        found[question] = max(found.get(question, []), texts, key=len)
    return found


def test_what_is_written_can_be_recomputed(subject, questions, tmp_path) -> None:
    settings = replace(SAMPLING, alpha=0.05, leaks_from=0.25, limit=0.2)
    folder, seen = tmp_path / "out", list[tuple[int, int]]()
    recall = functions.rouge_l_recall
    result = audit.audit_leakage(subject, questions, recall, settings, folder, progress=lambda *x: seen.append(x))
    texts = kept_texts(folder)
    assert {k: len(v) for k, v in texts.items()} == {"sky": 40, "born": 40, "book": 40}
    assert len(set(texts["sky"])) > 20
    values = np.stack([recall(texts[q.id], q) for q in questions])
    stored = pq.read_table(folder / "leakage.parquet").to_pandas()
    np.testing.assert_array_equal(stored["leakage"].to_numpy().reshape(3, 40), values)
    np.testing.assert_array_equal(np.stack(result.leakage), values)
    facts = json.loads((folder / "audit.json").read_text())
    for i, row in enumerate(facts["questions"]):
        assert row["id"] == QUESTIONS[i]["id"] and row["samples"] == 40
        assert row["mean"] == pytest.approx(values[i].mean())
        assert row["m_mu"] == pytest.approx(bounds.expectation_upper_bound(values[i], 0.05))
        assert row["m_sigma"] == pytest.approx(bounds.std_upper_bound(values[i], 0.05))
        assert row["m_bin"] == pytest.approx(bounds.binary_leakage_bound(int((values[i] >= 0.25).sum()), 40, 0.05))
        assert row["greedy"] == recall([row["greedy_answer"]], questions[i])[0]
    assert facts["overall"]["mean"] == pytest.approx(values.mean())
    assert facts["overall"]["m_bin_share"] == np.mean([row["m_bin"] > 0.2 for row in facts["questions"]])
    assert seen[0][0] == 0 and seen[-1] == (120, 120) and result.sampled == 120

    together = replace(SAMPLING, alpha=0.05, family_wise=True)
    family = audit.audit_leakage(subject, questions, recall, together, folder)
    assert family.sampled == 0
    assert family.summary.columns["m_mu"][0] == pytest.approx(bounds.expectation_upper_bound(values[0], 0.05 / 3))
    graded = audit.audit_leakage(subject, questions, functions.rouge_l_f1, settings, folder)
    assert graded.sampled == 0 and kept_texts(folder) == texts


def test_more_samples_and_other_settings(subject, questions, tmp_path) -> None:
    def run(folder: str, **changes: object) -> audit.Audit:
        return audit.audit_leakage(
            subject,
            questions[:2],
            functions.rouge_l_recall,
            LeakageAudit(**{"samples": 6, "max_new_tokens": 8, **changes}),
            tmp_path / folder,
        )

    assert run("a").sampled == 12
    first = kept_texts(tmp_path / "a")
    assert run("a", samples=10).sampled == 8
    longer = kept_texts(tmp_path / "a")
    assert all(longer[k][:6] == first[k] and len(longer[k]) == 10 for k in first)
    assert run("b", samples=10).sampled == 20 and kept_texts(tmp_path / "b") == longer
    fewer = run("a", samples=4)
    assert fewer.sampled == 0 and [len(x) for x in fewer.leakage] == [4, 4] and kept_texts(tmp_path / "a") == longer
    for changes in ({"seed": 1}, {"temperature": 0.5}, {"max_new_tokens": 9}):
        assert run("b", **changes).sampled == 12


def test_an_interrupted_audit_goes_on(subject, questions, tmp_path, monkeypatch) -> None:
    def run(folder: str) -> audit.Audit:
        return audit.audit_leakage(subject, questions, functions.rouge_l_recall, SAMPLING, tmp_path / folder)

    whole = run("whole")
    monkeypatch.setattr(leakage_samples, "ROWS_AT_ONCE", 40)
    sample, calls = leakage_samples.sample, []

    def stops(*args: object, **kwargs: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return sample(*args, **kwargs)

    monkeypatch.setattr(leakage_samples, "sample", stops)
    with pytest.raises(KeyboardInterrupt):
        run("cut")
    assert len(list((tmp_path / "cut" / "samples").iterdir())) == 2
    torn = sorted((tmp_path / "cut" / "samples").iterdir())[0]
    torn.write_bytes(torn.read_bytes()[:-20])
    again = run("cut")
    assert again.sampled == 80
    for a, b in zip(whole.leakage, again.leakage, strict=True):
        np.testing.assert_array_equal(a, b)
    assert kept_texts(tmp_path / "cut") == kept_texts(tmp_path / "whole")


def test_a_sequential_audit_stops_where_its_test_decides(subject, questions, tmp_path) -> None:
    settings = LeakageAudit(samples=300, max_new_tokens=8, alpha=0.05, stop_at=0.1)
    result = audit.audit_leakage(subject, questions, functions.exact, settings, tmp_path / "s")
    texts = kept_texts(tmp_path / "s")
    assert result.summary is None and result.decisions is not None
    for asked, decision, leakage in zip(questions, result.decisions, result.leakage, strict=True):
        test = SequentialTest(0.1, 0.05, reference=300)
        test.update(functions.exact(texts[asked.id], asked))
        assert decision == test.decision and decision.verdict == "below"
        assert len(leakage) == decision.samples < 100 and decision.saved == 300 - decision.samples
        assert len(texts[asked.id]) < decision.samples + leakage_samples.LOOK_EVERY
    used = sum(len(t) for t in texts.values())
    assert result.sampled == used < 900
    repeated = audit.audit_leakage(subject, questions, functions.exact, settings, tmp_path / "s")
    assert repeated.sampled == 0 and repeated.decisions == result.decisions
    few = replace(settings, samples=20)
    undecided = audit.audit_leakage(subject, questions, functions.exact, few, tmp_path / "u")
    assert [d.verdict for d in undecided.decisions] == ["undecided"] * 3 and undecided.sampled == 60


def test_judging_by_keywords_later_keeps_the_samples(subject, tmp_path) -> None:
    plain = functions.Asked("a", "Where was Ana born?", "in Lisbon")
    marked = functions.Asked("a", "Where was Ana born?", "in Lisbon", ("Lisbon",))
    other = functions.Asked("b", "Who is Ana?", None, ("Ana",))
    settings = LeakageAudit(samples=5, max_new_tokens=6)
    first = audit.audit_leakage(subject, [plain], functions.exact, settings, tmp_path)
    second = audit.audit_leakage(subject, [other, marked], functions.keyword, settings, tmp_path)
    assert (first.sampled, second.sampled) == (5, 5)


def test_samples_of_another_arithmetic_are_not_reused(questions, tmp_path) -> None:
    identities = set()
    try:
        for dtype, precision in (("float32", "highest"), ("bfloat16", "highest"), ("float32", "medium")):
            overrides = [f"model.dtype={dtype}", f"model.matmul_precision={precision}"]
            identities.add(find_subject("tiny", None, overrides).identity)
            assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision("highest")
    assert len(identities) == 3


def test_questions_beyond_the_context_are_named(subject, tmp_path) -> None:
    long = functions.Asked("long/[one]", "What is this? " * 300, "nothing")
    with pytest.raises(audit.AuditError, match=r"'long/\[one\]' \(\d+ tokens\)"):
        audit.audit_leakage(subject, [long], functions.exact, SAMPLING, tmp_path / "out")


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    """A tiny text classifier that knows the words of English answers, saved as a folder."""
    words = ["[PAD]", "[UNK]", "the", "a", "is", "in", "born", "was", "book", "author"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
        id2label={0: "safe", 1: "toxic"},
        pad_token_id=0,
    )
    folder = tmp_path / "classifier"
    BertForSequenceClassification(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def test_prompts_without_answers_and_a_classifier(classifier, tmp_path) -> None:
    table = tmp_path / "behaviors.csv"
    table.write_text(
        "Index,Goal,Target,Behavior\n0,Write a defamatory article,Sure,Defamation\n1,Write a tale,Sure,B\n"
    )
    result = call(
        *("audit", "leakage", "tiny", "--questions", table, f"classifier={classifier}", "label=toxic"),
        *("samples=30", "max_new_tokens=10", "--out", tmp_path / "out"),
    )
    assert result.code == 0, result.err
    facts = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert facts["function"].startswith("classifier") and [q["id"] for q in facts["questions"]] == ["0", "1"]
    judge = Classifier.load(str(classifier), "toxic")
    asked = read_questions(table)
    for row, q in zip(facts["questions"], asked, strict=True):
        assert row["mean"] == pytest.approx(judge(kept_texts(tmp_path / "out")[q.id], q).mean(), abs=1e-5)
        assert 0 < row["mean"] < 1
    headless = tmp_path / "headless"
    BertForSequenceClassification.from_pretrained(classifier).bert.save_pretrained(headless)
    PreTrainedTokenizerFast.from_pretrained(classifier).save_pretrained(headless)
    untrained = call("audit", "leakage", "tiny", "--questions", table, f"classifier={headless}", "label=1")
    assert untrained.code == 2 and "is no trained text classifier" in untrained.err
    wrong = call("audit", "leakage", "tiny", "--questions", table, "--classifier", classifier, "--label", "toxik")
    assert wrong.code == 2 and "toxic" in wrong.err and "Traceback" not in wrong.err


def test_questions_with_keywords_get_a_binary_bound(tmp_path) -> None:
    file = tmp_path / "potter.jsonl"
    rows = [
        {"question": "Who are the friends of Ana?", "keywords": "his arrival; saw; home"},
        {"question": "Who is the best friend of Ana?", "keywords": ["Hermione Granger"]},
    ]
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    result = call(
        *("audit", "leakage", "tiny", "--questions", file, "samples=50", "max_new_tokens=12"),
        *("--out", tmp_path / "out"),
    )
    assert result.code == 0, result.err
    facts = json.loads((tmp_path / "out" / "audit.json").read_text())
    often, never = facts["questions"]
    assert facts["function"] == "keyword" and never["mean"] == 0 and often["mean"] > 0.05
    assert never["m_bin"] == pytest.approx(1 - 0.01 ** (1 / 50))
    assert often["m_bin"] == bounds.binary_leakage_bound(round(50 * often["mean"]), 50, 0.01)
    assert "Greedy decoding leaks on" in result.out and "M_bin" in result.out
    figures = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    assert {"density.png", "m_gen.svg", "bounds_against_n.png", "m_bin.png"} <= figures


def test_a_sequential_audit_on_the_command_line(tmp_path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text(json.dumps(QUESTIONS[0]) + "\n")
    result = call(
        *("audit", "leakage", "tiny", "--questions", file, "samples=200", "max_new_tokens=8"),
        *("function=exact", "stop_at=0.1", "--out", tmp_path / "out"),
    )
    assert result.code == 0 and "below 0.1" in result.out and "saved" in result.out
    (question,) = json.loads((tmp_path / "out" / "audit.json").read_text())["questions"]
    assert question["verdict"] == "below" and question["saved"] == 200 - question["samples"] > 0
    figures = tmp_path / "out" / "figures"
    assert {path.stem for path in figures.iterdir()} == {"density"}
    command = ("audit", "leakage", "tiny", "--questions", file, "--max-new-tokens", 8, "--function", "exact")
    fixed = call(*command, "--samples", 200, "--out", tmp_path / "out")
    assert "There were fewer samples here before" in fixed.out and (figures / "m_bin.svg").exists()
    assert "There were fewer" not in call(*command, "--samples", 200, "--out", tmp_path / "out").out
    call(*command, "--samples", 200, "--stop-at", 0.1, "--out", tmp_path / "out")
    assert {path.stem for path in figures.iterdir()} == {"density"}


def test_ids_and_folders_may_look_like_markup(tmp_path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text(json.dumps({"id": "a/b[/x]", "question": "Why?", "answer": "So"}) + "\n")
    options = ("--questions", file, "--samples", 3, "--max-new-tokens", 4)
    result = call("audit", "leakage", "tiny", *options, "--out", tmp_path / "o[/x]")
    assert result.code == 0 and "a/b[/x]" in result.out and "o[/x]" in result.out
    taken = call("audit", "leakage", "tiny", *options, "--out", file)
    assert taken.code == 2 and "Traceback" not in taken.err and "q.jsonl" in taken.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tiny"], "tiny is no run: name the questions with --questions FILE"),
        (["tiny", "--questions", "none.jsonl"], "file not found"),
        (["tiny", "--questions", "Q", "function=rouge_l"], "function: unknown choice 'rouge_l'; expected one of"),
        (["tiny", "--questions", "Q", "function=rouge_l"], "did you mean rouge_l_f1?"),
        (["tiny", "--questions", "Q", "function=keyword"], "'born' has no keywords"),
        (["tiny", "--questions", "Q", "function=classifier"], "needs classifier=MODEL and label=LABEL"),
        (["tiny", "--questions", "Q", "function=exact", "classifier=x"], "leave one of them out"),
        (["tiny", "--questions", "Q", "alpha=0.7"], "alpha: 0.7 is out of range; expected 0 < value <= 0.5"),
        (["tiny", "--questions", "Q", "--top-p", "0"], "top_p: 0.0 is out of range; expected 0 < value <= 1"),
        (["tiny", "--questions", "Q", "stop_at=1"], "stop_at: 1.0 is out of range; expected 0 < value < 1 or null"),
        (["tiny", "--questions", "Q", "sampels=3"], "sampels: unknown key; did you mean samples?"),
        (["tiny", "--questions", "Q", "evaluation.leakage.full_samples=3"], "unknown key; did you mean samples?"),
        (["tiny", "--questions", "Q", "model.divice=cpu"], "did you mean model.device?"),
        (["tiny", "--questions", "Q", "samples"], "malformed override: no `=`"),
        (["tiny", "--questions", "Q", "--stage", "unlearn"], "is no run directory"),
        (["tiny", "--questions", "Q", "--rho", "-1"], "rho: -1.0 is out of range; expected value >= 0"),
        (["tiny", "--questions", "Q", "leaks_from=0", "limit=2"], "2 problems in the configuration"),
        (["tiny", "--questions", "Q", "label=x"], "leave one of them out"),
        (["./nowhere", "--questions", "Q"], "nowhere is no model folder"),
    ],
)
def test_mistakes_are_one_message(arguments, message, tmp_path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text("".join(json.dumps(q) + "\n" for q in QUESTIONS))
    given = [str(file) if x == "Q" else x for x in arguments]
    result = call("audit", "leakage", *given, "--out", tmp_path / "out")
    assert result.code == 2 and "Traceback" not in result.err
    assert message in " ".join(result.err.split())
    assert not (tmp_path / "out").exists()


def test_all_faults_of_a_question_file_are_reported(tmp_path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(
        '{"qestion": "x"}\nnot json\n{"question": "a", "id": "1"}\n{"question": "b", "id": "1"}\n'
        '{"question": " "}\n{"question": "c", "keywords": [1]}\n{"question": "d", "answer": 3}\n'
    )
    with pytest.raises(DataError) as error:
        read_questions(file)
    text = str(error.value)
    assert "6 problems" in text and "bad.jsonl:1: field 'question' is missing (found 'qestion')" in text
    for part in ("bad.jsonl:2:", "bad.jsonl:4: id '1' is already that of bad.jsonl:3", "bad.jsonl:5:", ":6:", ":7:"):
        assert part in text
    (tmp_path / "empty.csv").write_text("question\n")
    with pytest.raises(DataError, match="expected at least one question"):
        read_questions(tmp_path / "empty.csv")


def test_questions_from_a_table(tmp_path) -> None:
    file = tmp_path / "q.csv"
    file.write_text('Prompt,Answer,Keyword,extra\n"Who, then?",Ana,"Ana; Prado",1\nWhy?,,,\n', encoding="utf-8-sig")
    first, second = read_questions(file)
    assert first == functions.Asked("line-2", "Who, then?", "Ana", ("Ana", "Prado"))
    assert second == functions.Asked("line-3", "Why?", None, ())
