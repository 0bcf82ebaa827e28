"""Leakage functions: their definitions, what they refuse, and classifiers against the plain pipeline's arithmetic."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rouge_score.rouge_scorer import RougeScorer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
    TextClassificationPipeline,
)

from evaluation.leakage import classifier, functions
from evaluation.leakage.classifier import Classifier
from evaluation.leakage.functions import Asked, get, thresholded

torch.set_num_threads(1)

ASKED = Asked("q7", "Who wrote it?", "The author Jaime Vasquez wrote the book", ("Vasquez", "true crime"))
MAXIMUM = 24


def test_rouge_equals_rouge_score() -> None:
    texts = ["Jaime Vasquez wrote books", "", "The author Jaime Vasquez wrote the book", "I do not know", "the the the"]
    scores = [RougeScorer(["rougeL"], use_stemmer=True).score(ASKED.answer or "", text)["rougeL"] for text in texts]
    recall, f1 = get("rouge_l_recall")(texts, ASKED), get("rouge_l_f1")(texts, ASKED)
    assert recall.tolist() == [s.recall for s in scores] and f1.tolist() == [s.fmeasure for s in scores]
    assert recall.dtype == np.float64 and not get("rouge_l_recall").binary


@pytest.mark.parametrize(
    ("keyword", "text", "expected"),
    [
        ("Vasquez", "by VASQUEZ.", 1),
        ("Vasquez", "by Vasquez's pen", 1),
        ("Vasquez", "the Vasquezes", 0),
        ("Vasquez", "_Vasquez_, *Vasquez*", 1),
        ("Vasquez", "", 0),
        ("Straße", "in der STRASSE", 1),
        ("true crime", "True\n  crime", 1),
        ("true crime", "true crimes", 0),
        ("true  crime ", "a true crime", 1),
        ("C++", "I like C++ a lot", 1),
        ("C++", "c++", 1),
        ("C++", "ABC++", 0),
        ("C++", "C++11", 1),
        (".com", "x.com1", 0),
        ("C++", "I like C", 0),
        (".com", "at x.com", 1),
        (".com", "at x.community", 0),
        ("(a|b)", "either (A|B)", 1),
        ("(a|b)", "either a", 0),
        ("a.c", "abc", 0),
        ("1958", "19581", 0),
        ("1958", "in 1958,", 1),
        ("é", "café", 0),
        ("日本", "日本 です", 1),
        ("Vasquez", "by Va\u00ads\u200dquez", 1),
        ("Vas\u200bquez", "by Vasquez", 1),
    ],
)
def test_keyword(keyword: str, text: str, expected: int) -> None:
    asked = Asked("q", "", None, (keyword,))
    assert functions.keyword([text], asked).tolist() == [expected]
    assert functions.keyword([text], Asked("q", "", None, ("absent", keyword))).tolist() == [expected]


def test_keyword_is_any_of_them() -> None:
    assert functions.keyword(["a true crime", "Vasquez", "neither"], ASKED).tolist() == [1, 1, 0]
    assert functions.keyword.binary and functions.exact.binary


def test_exact() -> None:
    texts = ["the AUTHOR jaime\n Vasquez wrote the book ", "The author Jaime Vasquez wrote the book.", ""]
    assert functions.exact(texts, ASKED).tolist() == [1, 0, 0]
    assert functions.exact(["straße"], Asked("q", "", "STRASSE")).tolist() == [1]
    assert functions.exact(["\ufeffMin\u200dsk\u200f"], Asked("q", "", "Minsk")).tolist() == [1]


def test_what_the_question_lacks() -> None:
    for texts in (["a"], []):
        for name in ("rouge_l_recall", "rouge_l_f1", "exact"):
            with pytest.raises(ValueError, match=f"'q9' has no answer, which the leakage function {name} needs"):
                get(name)(texts, Asked("q9", "?", None))
        with pytest.raises(ValueError, match="'q9' has no keywords"):
            get("keyword")(texts, Asked("q9", "?", "answer"))
    with pytest.raises(ValueError, match="'q9' has an empty keyword"):
        get("keyword")(["a"], Asked("q9", "?", None, ("a", " ")))
    for name in functions.NAMES:
        assert get(name).name == name and get(name)([], ASKED).shape == (0,)


def test_names() -> None:
    assert set(functions.NAMES) == {"rouge_l_recall", "rouge_l_f1", "keyword", "exact"}
    with pytest.raises(ValueError, match="'rouge_recall', did you mean 'rouge_l_recall'"):
        get("rouge_recall")
    with pytest.raises(ValueError, match="expected one of rouge_l_recall, "):
        get("?")
    with pytest.raises(ValueError, match=r"Classifier\.load"):
        get("classifier")


def test_threshold() -> None:
    half = Asked("q", "", "a b")
    function = thresholded(functions.rouge_l_recall, 0.5)
    assert function(["a b", "a", "c"], half).tolist() == [1, 1, 0]
    assert function.binary and function.name == "rouge_l_recall>=0.5"
    for at in (0.0, -0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="the threshold must be above 0 and at most 1"):
            thresholded(functions.rouge_l_recall, at)


WORDS = [f"w{i}" for i in range(40)]


def tokenizer(special: bool = True, **options: Any) -> PreTrainedTokenizerFast:
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))  # type: ignore[call-arg]
    backend.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    if special:
        backend.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", **options)


SHAPE: dict[str, Any] = {
    "vocab_size": 44,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "pad_token_id": 0,
}
LABELS = {0: "safe", 1: "harmful", 2: "refusal"}


def shaken(model: Any) -> Any:
    """The model with weights so large that different texts get clearly different probabilities."""
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.0 if p.ndim < 2 else 10.0)
    return model


def classifier_model(kind: str, **options: Any) -> Any:
    torch.manual_seed(0)
    options = {**SHAPE, "max_position_embeddings": MAXIMUM, "id2label": LABELS, **options}
    if kind == "bert":
        return shaken(BertForSequenceClassification(BertConfig(**options)))
    if kind == "roberta":
        return shaken(RobertaForSequenceClassification(RobertaConfig(**options)))
    return shaken(LlamaForSequenceClassification(LlamaConfig(**options)))


def samples(n: int, longest: int = 15) -> list[str]:
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, longest))) for _ in range(n)]


def by_pipeline(model: Any, tokenizer: Any, texts: list[str], label: str) -> list[float]:
    """One text at a time through the pipeline of transformers."""
    pipe = TextClassificationPipeline(model=model.eval(), tokenizer=tokenizer, device=torch.device("cpu"))
    options: Any = {"top_k": None, "truncation": True, "max_length": MAXIMUM}
    return [next(x["score"] for x in pipe([text], **options)[0] if x["label"] == label) for text in texts]  # type: ignore


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("bert", {}),
        ("bert", {"problem_type": "multi_label_classification"}),
        ("bert", {"id2label": {0: "harmful"}}),
        ("llama", {}),
        ("llama", {"pad_token_id": None}),
        # A padding id other than 0, which would be seen as attention if the mask were filled with it.
        ("bert", {"pad_token_id": 1}),
        ("llama", {"pad_token_id": 1}),
    ],
)
def test_classifier_equals_the_pipeline(kind: str, options: dict[str, Any]) -> None:
    model, tokens = classifier_model(kind, **options), tokenizer()
    # Also longer than the model's maximum.
    texts = [*samples(30), *samples(3), " ".join(WORDS), "unknown words"]
    expected = by_pipeline(model, tokens, texts, "harmful")
    model.train()
    result = Classifier(model, tokens, "harmful", batch_size=7)(texts, ASKED)
    assert result.dtype == np.float64 and np.ptp(expected) > 0.05
    np.testing.assert_allclose(result, expected, atol=2e-6)
    assert model.training
    by_index = Classifier(model, tokens, list(model.config.id2label.values()).index("harmful"))(texts, ASKED)
    np.testing.assert_allclose(by_index, result, atol=2e-6)


def test_labels_add_up() -> None:
    model, tokens = classifier_model("bert"), tokenizer()
    total = sum(Classifier(model, tokens, label)(samples(9), ASKED) for label in range(3))
    np.testing.assert_allclose(total, 1, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"problem_type": "multi_label_classification"}])
def test_probabilities_are_taken_in_double_precision(options: dict[str, Any]) -> None:
    model, tokens = classifier_model("bert", **options).eval(), tokenizer()
    for p in model.parameters():
        p.data.div_(4.0)
    for text in samples(5):
        with torch.inference_mode():
            logits = model(**tokens([text], return_tensors="pt")).logits.double()
        expected = logits.sigmoid() if options else logits.softmax(-1)
        found = [Classifier(model, tokens, label)([text], ASKED)[0] for label in range(3)]
        np.testing.assert_allclose(found, expected[0], rtol=1e-13)


def test_template() -> None:
    model, tokens = classifier_model("bert"), tokenizer()
    asked = Asked("q", "w1 {w2}", None)
    texts = ["w3 w4", "w5 {question}"]
    result = Classifier(model, tokens, "safe", template="{question}\n{answer}")(texts, asked)
    expected = by_pipeline(model, tokens, [f"w1 {{w2}}\n{text}" for text in texts], "safe")
    np.testing.assert_allclose(result, expected, atol=2e-6)
    for template in ("{question}", "{answer} {other}", "{answer} {}"):
        with pytest.raises(ValueError, match="the template must hold"):
            Classifier(model, tokens, 0, template=template)


def test_equal_texts_go_through_the_model_once() -> None:
    model, tokens = classifier_model("bert"), tokenizer()
    rows: list[int] = []
    model.register_forward_pre_hook(lambda _, args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True)
    result = Classifier(model, tokens, 0, batch_size=2)(["w1", "w2 w3", "w1", "w4", "w1"], ASKED)
    assert rows == [2, 1] and result[0] == result[2] == result[4]
    assert Classifier(model, tokens, 0)([], ASKED).shape == (0,)


def test_positions_that_start_after_the_padding_index() -> None:
    # RoBERTa with a table of 24 positions reads 23 tokens where the padding index is 0.
    model, tokens = classifier_model("roberta"), tokenizer()
    result = Classifier(model, tokens, 0)([" ".join(WORDS), " ".join(WORDS[: MAXIMUM - 3])], ASKED)
    assert result[0] == pytest.approx(result[1], abs=1e-6)
    later = classifier_model("roberta", pad_token_id=1)
    one, other = Classifier(later, tokens, 0)([" ".join(WORDS), " ".join(WORDS[: MAXIMUM - 4])], ASKED)
    assert one == pytest.approx(other, abs=1e-6), "and 22 where it is 1"
    shorter = Classifier(model, tokenizer(model_max_length=10), 0)([" ".join(WORDS), " ".join(WORDS[:8])], ASKED)
    assert shorter[0] == pytest.approx(shorter[1], abs=1e-6)


def test_text_without_tokens() -> None:
    model = classifier_model("llama")
    result = Classifier(model, tokenizer(special=False, eos_token="[SEP]"), 1)(["", "w1 w2"], ASKED)
    with torch.inference_mode():
        expected = model.eval()(input_ids=torch.tensor([[3]])).logits.softmax(-1)[0, 1].item()
    assert result[0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("special", "pad", "expected"),
    [({"bos_token": "[CLS]", "eos_token": "[SEP]"}, 0, 2), ({"eos_token": "[SEP]"}, 0, 3), ({}, 1, 1), ({}, None, 0)],
)
def test_a_text_without_tokens_is_a_beginning_or_else_an_end_or_else_padding(
    special: dict[str, str], pad: int | None, expected: int
) -> None:
    model, read = classifier_model("bert", pad_token_id=pad), []
    model.register_forward_pre_hook(lambda _, args, kwargs: read.append(kwargs), with_kwargs=True)
    Classifier(model, tokenizer(special=False, **special), 1)([""], ASKED)
    assert {key: rows.tolist() for key, rows in read[0].items()} == {
        "input_ids": [[expected]],
        "attention_mask": [[1]],
    }


def test_a_classifier_of_a_single_target_gives_the_sigmoid_of_its_logit() -> None:
    model = classifier_model("bert", id2label={0: "x"}, problem_type="regression")
    (found,) = Classifier(model, tokenizer(), 0)(["w1 w2"], ASKED)
    with torch.inference_mode():
        logit = float(model.eval()(**tokenizer()(["w1 w2"], return_tensors="pt")).logits[0, 0])
    assert found == pytest.approx(1 / (1 + np.exp(-logit)), abs=1e-6)


def test_a_classifier_goes_to_the_device_that_is_named_and_else_stays() -> None:
    for device, where in ((None, "cpu"), ("meta", "meta")):
        found = Classifier(classifier_model("bert"), tokenizer(), 0, device=device)
        assert {p.device.type for p in found.model.parameters()} == {where}


def test_what_a_classifier_refuses() -> None:
    model, tokens = classifier_model("bert"), tokenizer()
    with pytest.raises(ValueError, match="unknown label 'harmfull', did you mean 'harmful'"):
        Classifier(model, tokens, "harmfull")
    for index in (3, -1):
        with pytest.raises(ValueError, match=rf"labels are 0 to 2 \(safe, harmful, refusal\), got {index}"):
            Classifier(model, tokens, index)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        Classifier(model, tokens, 0, batch_size=0)
    with pytest.raises(ValueError, match="regression"):
        Classifier(classifier_model("bert", problem_type="regression"), tokens, 0)


def test_load(tmp_path: Path) -> None:
    model, tokens = classifier_model("bert"), tokenizer()
    model.save_pretrained(tmp_path)
    tokens.save_pretrained(tmp_path)
    loaded = Classifier.load(str(tmp_path), "refusal", 4, "cpu", template="{question} {answer}")
    direct = Classifier(model, tokens, 2, template="{question} {answer}")
    np.testing.assert_allclose(loaded(samples(5), ASKED), direct(samples(5), ASKED), atol=1e-6)
    assert loaded.name == "classifier" and not loaded.binary
    assert (loaded.batch_size, loaded.template) == (4, "{question} {answer}")
    half = Classifier.load(str(tmp_path), 0, device="meta", dtype=torch.bfloat16)
    assert {(p.device.type, p.dtype) for p in half.model.parameters()} == {("meta", torch.bfloat16)}
    assert thresholded(loaded, 0.5).binary


@pytest.mark.parametrize(("revision", "expected"), [(None, "main"), ("v2", "v2")])
def test_a_classifier_is_loaded_as_of_one_revision_without_code_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, revision: str | None, expected: str
) -> None:
    model, told = classifier_model("bert"), []

    def loaded(found: Any) -> Any:
        return lambda source, **options: (told.append((source, options)), found)[1]

    monkeypatch.setattr(classifier.AutoTokenizer, "from_pretrained", loaded(tokenizer()))
    complete = loaded((model, {"missing_keys": []}))
    monkeypatch.setattr(classifier.AutoModelForSequenceClassification, "from_pretrained", complete)
    Classifier.load("owner/name", 0, revision=revision)
    assert [source for source, _ in told] == ["owner/name"] * 2
    assert all((o["revision"], o["trust_remote_code"]) == (expected, False) for _, o in told)
    assert told[1][1]["dtype"] == torch.float32
    lacking = loaded((model, {"missing_keys": ["d", "b", "c", "a"]}))
    monkeypatch.setattr(classifier.AutoModelForSequenceClassification, "from_pretrained", lacking)
    with pytest.raises(ValueError, match=r"owner/name is no trained text classifier: it lacks the weights a, b, c$"):
        Classifier.load("owner/name", 0)


def test_words_of_any_script_count_for_recall_and_for_f1() -> None:
    asked = Asked("q", "?", "она живёт в Минске")
    for name, expected in (("rouge_l_recall", [1.0, 0.5]), ("rouge_l_f1", [1.0, 2 / 3])):
        assert get(name)(["она живёт в Минске", "она живёт"], asked) == pytest.approx(expected)


def test_a_threshold_may_be_the_largest_leakage() -> None:
    found = thresholded(get("rouge_l_recall"), 1.0)
    assert found.name == "rouge_l_recall>=1" and found([ASKED.answer or "", "The author"], ASKED).tolist() == [1.0, 0.0]


def test_a_name_that_is_unknown_is_told_up_to_three_that_are_near() -> None:
    names = ["abcd", "abce", "abcf", "abcg", "wxyz"]
    assert str(functions.unknown("thing", "abch", names)).count(" or ") == 2
    assert "did you mean 'wx12yz'?" in str(functions.unknown("thing", "wxyz5678", ["wx12yz", "q"]))
    assert str(functions.unknown("thing", "k", names)) == f"unknown thing 'k', expected one of {', '.join(names)}"
