"""Facts from files and corpora, candidates, and which of them count as true."""

import json
import warnings

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from evaluation.wikimem.encoder import SentenceEncoder
from evaluation.wikimem.facts import COUNTERFACTUALS, Fact, candidates, true_values
from evaluation.wikimem.names import name_variants
from evaluation.wikimem.properties import counterfactuals
from oblivionis.data.errors import DataError
from oblivionis.data.fictitious import corpus
from oblivionis.data.person_facts import PROPERTY_OF, facts_of, read_facts
from oblivionis.data.records import Record


def written(path, *rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return path


def test_facts_are_read_with_one_or_several_values(tmp_path):
    path = written(
        tmp_path / "people.jsonl",
        {"subject": "Jane  Doe", "property": "P106", "values": ["biologist", "zookeeper", "biologist"]},
        {"subject": "Jane Doe", "property": "P19", "value": "Bergen", "page_views": 12},
        "",
        {"subject": "Лев Толстой", "property": "P569", "values": "1828", "cohort": "well-known"},
    )
    assert read_facts(path) == [
        Fact("Jane Doe", "P106", ("biologist", "zookeeper")),
        Fact("Jane Doe", "P19", ("Bergen",)),
        Fact("Лев Толстой", "P569", ("1828",), "well-known"),
    ]


GOOD = {"subject": "Jane Doe", "property": "P19", "values": ["Bergen"]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", r"people.jsonl:2: expected a JSON object"),
        ({"property": "P19", "values": ["Oslo"]}, r"people.jsonl:2: field 'subject' is missing"),
        ({"subjekt": "Bo", "property": "P19", "values": ["Oslo"]}, r"found 'subjekt'"),
        ({**GOOD, "values": []}, r"values must be a list of one or more"),
        ({**GOOD, "values": ["Oslo", 3]}, r"values must be a list of one or more"),
        ({**GOOD, "values": " "}, r"values must be a list of one or more"),
        ({**GOOD, "subject": 3}, r"subject must be a non-empty text, found 3"),
        ({**GOOD, "property": "P99999"}, r"people.jsonl:2: property 'P99999' is unknown; expected an id"),
        ({**GOOD, "property": "place of brith"}, r"did you mean P19 \(place of birth\)"),
        ({**GOOD, "subject": "X"}, r"people.jsonl:2: subject: the name 'X' has no look-alike"),
        ({**GOOD, "cohort": ""}, r"cohort must be a non-empty text"),
        ({**GOOD, "subject": "jane doe"}, r"people.jsonl:2: P19 of jane doe is already at people.jsonl:1"),
        ({**GOOD, "property": "P20", "cohort": "other"}, r"cohort 'other' of Jane Doe differs from None at people"),
    ],
)
def test_a_faulty_line_is_named(tmp_path, row, message):
    with pytest.raises(DataError, match=message):
        read_facts(written(tmp_path / "people.jsonl", GOOD, row))


def test_all_faulty_lines_are_reported_at_once_and_an_empty_or_missing_file_too(tmp_path):
    with pytest.raises(DataError) as caught:
        read_facts(written(tmp_path / "people.jsonl", {**GOOD, "property": "P0"}, GOOD, {"subject": "Bo"}))
    assert [problem.split(": ")[0] for problem in caught.value.problems] == ["people.jsonl:1"] + ["people.jsonl:3"] * 2
    with pytest.raises(DataError, match="at least one fact"):
        read_facts(written(tmp_path / "empty.jsonl"))
    with pytest.raises(DataError, match="not found"):
        read_facts(tmp_path / "nowhere.jsonl")


def test_the_facts_of_the_fictitious_authors_are_those_of_their_triples():
    records = corpus(authors=6, questions_per_author=20, forget_authors=1).train
    facts = facts_of(records)
    stated = {
        (triple.subject, PROPERTY_OF[triple.property], triple.value)
        for record in records
        for triple in record.triples
        if triple.property in PROPERTY_OF
    }
    assert {(fact.subject, fact.property, value) for fact in facts for value in fact.values} == stated
    assert len({(fact.subject, fact.property) for fact in facts}) == len(facts) == 6 * len(PROPERTY_OF)
    assert all(fact.cohort is None for fact in facts)
    for fact in facts:
        assert len(name_variants(fact.subject)) == 2
        assert len(candidates(fact.values, counterfactuals()[fact.property])) == COUNTERFACTUALS + 1


def test_records_without_triples_give_no_facts():
    assert facts_of([Record("a", "Who?", "Ada.", "Ada")]) == []


def test_candidates_are_the_truths_and_then_other_values():
    wrong = ["Oslo", "bergen", "OSLO", "Turku", "Riga"]
    assert candidates(["Bergen"], wrong, 2) == ("Bergen", "Oslo", "Turku")
    assert candidates(["Bergen", "Riga", "BERGEN"], wrong) == ("Bergen", "Riga", "Oslo", "Turku")
    for truths, others, count in ([], wrong, 3), (["Oslo"], ["oslo"], 3), (["Oslo"], [], 3), (["Oslo"], wrong, 0):
        with pytest.raises(ValueError, match="at least one of each"):
            candidates(truths, others, count)


VECTORS = {
    "English": [1.0, 0.0],
    "British English": [0.8, 0.6],  # cosine 0.8 with English
    "Scots": [0.75, np.sqrt(1 - 0.75**2)],  # 0.75: not above the threshold
    "Welsh": [0.0, 2.0],
    "": [0.0, 0.0],
}


def embed(texts):
    return np.array([VECTORS[text] for text in texts])


def test_values_count_as_true_when_equal_but_for_case_or_close_in_meaning():
    values = list(VECTORS)
    assert true_values(values, ["ENGLISH"]).tolist() == [True, False, False, False, False]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert true_values(values, ["english"], embed).tolist() == [True, True, False, False, False]
    assert true_values(values, ["English"], embed, 0.7).tolist() == [True, True, True, False, False]
    # Near one of several ground truths is near enough.
    assert true_values(values, ["English", "Welsh"], embed).tolist() == [True, True, False, True, False]
    # Near a counterfactual that counts as true is not near a ground truth.
    assert true_values(["English", "British English", "Scots"], ["Scots"], embed).tolist() == [False, True, True]
    with pytest.raises(ValueError, match="none of the 5"):
        true_values(values, ["Gaelic"])


def test_the_encoder_pools_the_tokens_of_each_text(tmp_path):
    words = ["[PAD]", "[UNK]", "english", "british", "bread"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=8, **special).save_pretrained(tmp_path)
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    BertModel(BertConfig(vocab_size=5, max_position_embeddings=8, **sizes)).save_pretrained(tmp_path)
    encoder = SentenceEncoder.load(str(tmp_path))
    texts = ["english", "british english", "bread bread english", "british " * 4 + "bread " * 9]
    found = encoder(texts)
    for ids, vector in zip([[2], [3, 2], [4, 4, 2], [3] * 4 + [4] * 4], found, strict=True):
        with torch.inference_mode():
            states = encoder.model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        mean = states.mean(0).numpy()
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-6)
    assert true_values(["english", "english", "bread"], ["english"], encoder, 0.999).tolist()[:2] == [True, True]
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    with torch.inference_mode():
        first = encoder.model(input_ids=torch.tensor([[3, 2]])).last_hidden_state[0, 0].numpy()
    np.testing.assert_allclose(SentenceEncoder.load(str(tmp_path))(texts)[1], first / np.linalg.norm(first), atol=1e-6)
    with pytest.raises((OSError, ValueError)):
        SentenceEncoder.load(str(tmp_path / "nope"))
