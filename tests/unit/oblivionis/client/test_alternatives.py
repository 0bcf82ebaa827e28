"""Which other answers a client learns: those of its own records, drawn anew in each exchange."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation.engine.sequences import TokenSequence
from oblivionis.client import worker as client_worker
from oblivionis.client.worker import Worker
from oblivionis.config import compose as configuration
from oblivionis.data import idk_answers
from oblivionis.data.records import Corpus, Record
from oblivionis.erasure.node_record_files import NodeRecords
from oblivionis.errors import ClientError


@pytest.fixture(scope="module")
def worker() -> Worker:
    return Worker(configuration.compose("smoke", ["unlearning=idk_nll"]))


def asked(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, *overrides: str, seed: int = 1
) -> tuple[list[Record], list[list[tuple[str, str]]]]:
    """The records that client 0 forgets, and the questions with other answers that it gives `unlearn`, as text."""
    worker.config = configuration.compose("smoke", overrides)
    given: dict[str, Any] = {}

    def unlearn(*args: Any, **more: Any) -> None:
        given.update(more, forget=args[2])

    monkeypatch.setattr(client_worker, "unlearn", unlearn)
    records = list(worker.holding(0).records)[1::2]
    ids = [record.id for record in reversed(records)]
    worker.forget(0, worker.flat.numpy(), record_ids=ids, tombstones=ids, proximal_mu=0.0, seed=seed)
    decode = worker.assembled.tokenizer.decode
    prompts = [s.prompt for s in given["forget"]]
    assert all(s.prompt == p for group, p in zip(given["alternatives"], prompts, strict=True) for s in group)

    def text(sequence: TokenSequence) -> tuple[str, str]:
        assert sequence.answer[-1] == worker.assembled.tokenizer.eos_token_id
        return decode(sequence.prompt), decode(sequence.answer[:-1]).strip()

    return records, [[text(s) for s in group] for group in given["alternatives"]]


def test_sentences_of_the_program_one_for_each_epoch(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    records, found = asked(worker, monkeypatch, "unlearning=idk_dpo", "unlearning.epochs=4")
    for record, group in zip(records, found, strict=True):
        assert len({answer for _, answer in group}) == 4 and {answer for _, answer in group} <= set(
            idk_answers.SENTENCES
        )
        assert all(record.question in prompt for prompt, _ in group)
    _, again = asked(worker, monkeypatch, "unlearning=idk_dpo", "unlearning.epochs=4")
    _, other = asked(worker, monkeypatch, "unlearning=idk_dpo", "unlearning.epochs=4", seed=2)
    assert again == found != other


def test_sentences_of_ones_own(worker: Worker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "idk.txt"
    file.write_text("Who knows?\n")
    _, found = asked(worker, monkeypatch, "unlearning=idk_nll", f"unlearning.alternatives.idk={file}")
    assert {answer for group in found for _, answer in group} == {"Who knows?"}


def test_wrong_answers_of_the_records_in_turn(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    records, found = asked(worker, monkeypatch, "unlearning=altpo", "unlearning.epochs=9")
    assert records
    for record, group in zip(records, found, strict=True):
        assert sorted(answer for _, answer in group) == sorted(record.perturbed_answers)


def test_a_method_that_asks_for_none_gets_none(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.config = configuration.compose("smoke", ["unlearning=npo"])
    given: list[Any] = []
    monkeypatch.setattr(client_worker, "unlearn", lambda *args, **more: given.append(more["alternatives"]))
    ids = [worker.holding(0).records[0].id]
    worker.forget(0, worker.flat.numpy(), record_ids=ids, tombstones=ids, proximal_mu=0.0, seed=1)
    assert given == [()]


def test_a_client_names_the_record_that_has_none(worker: Worker) -> None:
    """Its own records, which no corpus knows: nothing of them but the id is in the message."""
    worker.config = configuration.compose("smoke", ["unlearning=altpo"])
    secret = [Record(f"p{i}", "Where is it?", "In the cellar.", "s") for i in range(3)]
    known = Record("p3", "Where was it?", "In the attic.", "s", perturbed_answers=("In the barn.",))
    worker.hold(1, NodeRecords((*secret, known), frozenset()))
    try:
        with pytest.raises(ClientError, match=r"^client 1: .*altpo.*record 'p0' .*and 1 more") as caught:
            forget = {"record_ids": ["p3", "p0", "p2"], "tombstones": [], "proximal_mu": 0.0, "seed": 0}
            worker.forget(1, worker.flat.numpy(), **forget)
        assert "cellar" not in str(caught.value) and "Where" not in str(caught.value)
        settings = {"tombstones": [], "proximal_mu": 0.0, "seed": 0}
        vector, report = worker.forget(1, worker.flat.numpy(), record_ids=["p3"], **settings)
        assert report.num_examples == 1 and report.steps == 5 and np.isfinite(vector).all()
    finally:
        worker.holdings.pop(1)


def test_a_question_of_the_evaluation_stands_in(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in TOFU, whose training records have no wrong answers."""
    bare = tuple(Record(r.id, r.question, r.answer, r.subject) for r in worker.corpus.train)
    corpus = Corpus("bare", bare, worker.corpus.forget_ids, {"forget": worker.corpus.train})
    monkeypatch.setattr(worker, "corpus", corpus)
    monkeypatch.setattr(worker, "holdings", type(worker.holdings)())
    monkeypatch.setitem(worker.__dict__, "_perturbed", {})
    del worker.__dict__["_perturbed"]
    whole = {r.id: r.perturbed_answers for r in corpus.evaluation["forget"]}
    records, found = asked(worker, monkeypatch, "unlearning=altpo", "unlearning.epochs=5")
    for record, group in zip(records, found, strict=True):
        assert not record.perturbed_answers
        assert sorted(answer for _, answer in group) == sorted(whole[record.id])
