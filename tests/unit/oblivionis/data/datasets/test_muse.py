"""MUSE's tables from a folder, cut into pieces; what a run makes of texts."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from oblivionis.config import compose as configuration
from oblivionis.data.datasets import muse
from oblivionis.data.errors import DataError
from oblivionis.data.records import TEXT_SETS, Record
from oblivionis.data.tokenize import PromptTemplate, cut, encode_all, plain_ids, text_start
from oblivionis.models.loading import load_tokenizer, resolve

TEXTS = [f"Text {i} tells of {'many things and ' * i}the end." for i in range(5)]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(resolve("embedded"))


def pieces(size, tokenizer):
    return lambda texts: [[(p, tokenizer.decode(p)) for p in text] for text in cut(texts, tokenizer, size)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Every kind of file once."""

    def write(name: str, text: str | bytes) -> None:
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())

    write("raw/forget.json", json.dumps([{"text": t} for t in TEXTS[:2]]))
    write("raw/retain2.txt", "One long text.\n\nStill the same text.")
    write("verbmem/forget.jsonl", json.dumps({"prompt": "Text 1 tells of", "gt": "many things"}) + "\n")
    (tmp_path / "knowmem").mkdir()
    for i, half in enumerate((["Who?"], ["Where?"])):
        table = pyarrow.table({"question": half, "answer": ["Ann"]})
        pyarrow.parquet.write_table(table, tmp_path / f"knowmem/forget_qa-0000{i}-of-00002.parquet")
    pyarrow.parquet.write_table(
        pyarrow.table({"question": ["When?"], "answer": ["now"]}), tmp_path / "knowmem/retain_qa.parquet"
    )
    write("knowmem/retain_qa_icl.json", json.dumps([{"question": "Why?", "answer": "so"}]))
    write("privleak/forget.json", json.dumps(TEXTS[:2]))
    write("privleak/holdout.json", json.dumps(TEXTS[2:]))
    write("scal/forget_2.json", json.dumps(TEXTS[:4]))
    return tmp_path


def test_a_folder_with_every_kind_of_file(folder: Path, tokenizer) -> None:
    corpus = muse.load("muse_news", folder, pieces(7, tokenizer))
    assert corpus.is_text and set(corpus.evaluation) == set(TEXT_SETS) - {"knowmem_forget_examples"}
    assert {r.subject for r in corpus.train} == {"muse-forget-0000", "muse-forget-0001", "muse-retain-0000"}
    assert {r.id for r in corpus.train if r.subject.startswith("muse-forget")} == corpus.forget_ids
    for subject, text in (
        ("muse-forget-0001", TEXTS[1]),
        ("muse-retain-0000", "One long text.\n\nStill the same text."),
    ):
        parts = [r for r in corpus.train if r.subject == subject]
        assert [r.id for r in parts] == [f"{subject}-p{i:03d}" for i in range(len(parts))] and len(parts) > 1
        assert [t for r in parts for t in r.tokens] == plain_ids([text], tokenizer)[0]
        assert all(len(r.tokens) == 7 for r in parts[:-1]) and 1 <= len(parts[-1].tokens) <= 7
        assert "".join(r.answer for r in parts) == text and not any(r.question for r in parts)
    asked = corpus.evaluation
    assert [(r.question, r.answer) for r in asked["knowmem_forget"]] == [("Who?", "Ann"), ("Where?", "Ann")]
    assert [(r.question, r.answer) for r in asked["knowmem_retain_examples"]] == [("Why?", "so")]
    assert (asked["verbmem"][0].question, asked["verbmem"][0].answer) == ("Text 1 tells of", "many things")
    assert [r.subject for r in asked["holdout"]] == ["muse-holdout-0000", "muse-holdout-0001", "muse-holdout-0002"]
    assert asked["holdout"][0].tokens == tuple(plain_ids(TEXTS[2:3], tokenizer)[0][:7])
    larger = muse.load("muse_news", folder, pieces(7, tokenizer), forget_set="scal_2")
    assert len({r.subject for r in larger.train if r.id in larger.forget_ids}) == 4


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_pieces_put_together_are_the_text(size: int, tokenizer) -> None:
    texts = [*TEXTS, "", " leading and trailing  ", "ünïcödé\n\nlines"]
    for text, parts in zip(texts, cut(texts, tokenizer, size), strict=True):
        assert [t for part in parts for t in part] == tokenizer(text, add_special_tokens=False)["input_ids"]
        assert all(len(part) == size for part in parts[:-1]) and all(parts)
    with pytest.raises(DataError, match="at least one token"):
        cut(texts, tokenizer, 0)


def test_every_token_of_a_piece_is_learned(tokenizer) -> None:
    text = Record("t", "", "abc", "s", tokens=(7, 8, 9))
    question = Record("q", "Who?", "Ann", "s")
    encoded, truncated = encode_all([text, question, text], tokenizer, PromptTemplate(), max_length=64)
    assert truncated == 0
    assert [(e.prompt, e.answer) for e in encoded[::2]] == [((tokenizer.bos_token_id,), (7, 8, 9))] * 2
    assert encoded[1].answer[-1] == tokenizer.eos_token_id
    assert text_start(tokenizer) == (tokenizer.bos_token_id,)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("raw/retain2.txt", None, "has no table raw/retain2; expected raw/retain2 with one of .jsonl, .json"),
        ("raw/forget.json", '[{"txt": "a"}]', "raw/forget.json row 1: field 'text' is missing"),
        ("raw/forget.json", '[{"text": " "}]', "row 1: text must be a non-empty text"),
        ("raw/forget.json", "{", "raw/forget.json: cannot be read"),
        ("raw/forget.json", '{"text": {"0": "a"}}', "one JSON object with an object under each key"),
        ("raw/forget.json", "[3]", "raw/forget.json: a JSON list of numbers, expected a list of objects"),
        ("raw/forget.json", '["a", 3]', "raw/forget.json row 2: expected an object, found 3"),
        ("raw/forget.json", "[]", "the table raw/forget is empty"),
        ("verbmem/forget.jsonl", '{"prompt": "a"}\n', "forget.jsonl:1: field 'gt' is missing"),
        ("knowmem/retain_qa.parquet", "no parquet", "retain_qa.parquet: cannot be read"),
    ],
)
def test_faulty_tables(folder: Path, tokenizer, file: str, content: str | None, message: str) -> None:
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(content)
    with pytest.raises(DataError) as error:
        muse.load("muse_news", folder, pieces(7, tokenizer))
    assert message in str(error.value)


def test_no_folder_and_no_network(tmp_path: Path, tokenizer, monkeypatch) -> None:
    import datasets

    with pytest.raises(DataError, match="no such folder"):
        muse.load("muse_books", tmp_path / "none", pieces(7, tokenizer))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"raw/forget of muse-bench/MUSE-Books(.|\n)*without network set data.path"):
        muse.load("muse_books", None, pieces(7, tokenizer))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data=muse_tiny", "data.forget_passages=60"], "leave nothing to retain"),
        (["data=muse_books", "data.muse_forget=scal_1"], "MUSE-Books has no scal_1"),
        (["data=muse_news", "data.path=/none/here"], "there is no folder /none/here"),
        (["data=jsonl", "data.path=x", "data.holdout_file=/none.jsonl"], "there is no file /none.jsonl"),
    ],
)
def test_settings_that_do_not_fit(overrides: list[str], message: str) -> None:
    with pytest.raises(configuration.ConfigError, match=message):
        configuration.compose("default", overrides)
