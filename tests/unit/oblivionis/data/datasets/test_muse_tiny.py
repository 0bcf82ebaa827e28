"""The built-in news: its tables, and how its texts become the clients' records."""

from __future__ import annotations

import pytest

from oblivionis.config import compose as configuration
from oblivionis.data.corpora import load_corpus, load_partition
from oblivionis.data.datasets import muse_tiny
from oblivionis.errors import OblivionisError
from oblivionis.models.configured_corpus import corpus_of


def test_built_in_news() -> None:
    made, again, other = muse_tiny.tables(20, 4, 6), muse_tiny.tables(20, 4, 6), muse_tiny.tables(20, 4, 6, seed=1)
    assert made == again != other
    assert {name: len(rows) for name, rows in made.items()} == {
        "forget": 12,
        "retain": 48,
        "members": 12,
        "holdout": 18,
        "verbmem": 4,
        "knowmem_forget": 8,
        "knowmem_retain": 8,
        "knowmem_forget_examples": 1,
        "knowmem_retain_examples": 1,
    }
    texts = [row["text"] for name in ("forget", "retain", "holdout") for row in made[name]]
    assert len(set(texts)) == 78 and not any("{" in t for t in texts)
    forget = [row["text"] for row in made["forget"]]
    for begun, text in zip(made["verbmem"], forget[:4], strict=True):
        assert f"{begun['prompt']} {begun['gt']}" == text
    for i, row in enumerate(made["knowmem_forget"]):
        assert row["answer"] in forget[i // 2]
        answered = f"Question: {row['question']}\nAnswer: {row['answer']}"
        places = [quiz.split("\n\n").index(answered) for quiz in forget[4:] if answered in quiz.split("\n\n")]
        assert sorted(places) == [0, 1]
    for row in made["knowmem_forget_examples"]:
        assert not any(row["answer"] in text for text in texts)
    with pytest.raises(ValueError, match="forget < passages"):
        muse_tiny.tables(4, 4)


def test_texts_need_a_tokenizer_and_lie_with_clients_by_the_common_rules() -> None:
    config = configuration.compose("muse_tiny", ["model.max_length=40", "data.partition.forget_placement=one_client"])
    with pytest.raises(OblivionisError, match="no model is given"):
        load_corpus(config.data)
    corpus = corpus_of(config)
    assert max(len(r.tokens) for r in corpus.train) == 39
    division = load_partition(corpus, config)
    assert sorted(i for ids in division.ids for i in ids) == sorted(r.id for r in corpus.train)
    assert corpus.forget_ids <= set(division.ids[0])
