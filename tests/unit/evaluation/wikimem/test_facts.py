"""Candidates, and which of them count as true."""

import warnings

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from evaluation.wikimem.encoder import SentenceEncoder
from evaluation.wikimem.facts import candidates, true_values


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
