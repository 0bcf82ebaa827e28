"""ROUGE equals the package rouge-score, on random and on real text, and its definition by hand."""

from __future__ import annotations

import json
import os
import random
import string
import threading
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from evaluation.metrics import rouge
from evaluation.metrics.word_matching import folded, visible

ROOT = Path(__file__).resolve().parents[4]


def assert_equals_rouge_score(predictions: list[str], references: list[str], stemmed: bool = True) -> None:
    scorer = RougeScorer(["rouge1", "rougeL"], use_stemmer=stemmed)
    expected = [scorer.score(r, p) for p, r in zip(predictions, references, strict=True)]
    for name, result in (
        ("rouge1", rouge.rouge_1(predictions, references, stemmed=stemmed)),
        ("rougeL", rouge.rouge_l(predictions, references, stemmed=stemmed)),
    ):
        for field, values in (("precision", result.precision), ("recall", result.recall), ("fmeasure", result.f1)):
            theirs = np.array([getattr(score[name], field) for score in expected])
            np.testing.assert_array_equal(values, theirs, err_msg=f"{name} {field}")


@pytest.mark.parametrize("stemmed", [True, False])
def test_random_text_with_odd_characters(stemmed: bool) -> None:
    rng = random.Random(0)
    words = ["running", "runs", "The", "relational", "sky", "skies", "flies", "dying", "café", "naïve", "ÉCOLE", "x1y2"]
    words += [
        "",
        "...",
        "don't",
        "U.S.A.",
        "generalizations",
        "oscillators",
        "İstanbul",
        "a",
        "ſs",
        "日本",
        "--",
        "3.14",
    ]
    words += ["".join(rng.choices(string.ascii_letters + "-'", k=rng.randint(1, 12))) for _ in range(60)]

    def text() -> str:
        return "".join(rng.choice(words) + rng.choice([" ", "  ", "\n", ", ", "-"]) for _ in range(rng.randint(0, 40)))

    predictions, references = [text() for _ in range(300)], [text() for _ in range(300)]
    assert_equals_rouge_score(["", "...", *predictions], ["a word", "", *references], stemmed)


WORDS = st.sampled_from(
    ["run", "Running", "runs", "relational", "1958", "x1y2", "don't", "İİ", "K", "é", "\0", ".", "\ud800"]
)
TEXTS = st.one_of(
    st.text(max_size=60),
    st.text(alphabet="aAbB09 .\0\n", max_size=80),
    st.lists(WORDS, max_size=80).map(" ".join),
    st.lists(WORDS, max_size=10).map("".join),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=12))
@pytest.mark.slow
def test_any_text(pairs: list[tuple[str, str]]) -> None:
    assert_equals_rouge_score([p for p, _ in pairs], [r for _, r in pairs])


def test_every_character_that_has_a_lower_case() -> None:
    characters = [chr(i) for i in range(0x110000)]
    # Only where str.lower changes a character or leaves ASCII can it become a word.
    texts = [f"a{c}b" for c in characters if c.isascii() or c.lower() != c]
    assert_equals_rouge_score(texts, ["a b ab aib akb a0b a9b"] * len(texts))


@given(st.lists(TEXTS, max_size=8), TEXTS)
def test_one_reference_for_all(predictions: list[str], reference: str) -> None:
    for f in (rouge.rouge_1, rouge.rouge_l):
        one, each = f(predictions, reference), f(predictions, [reference] * len(predictions))
        for field in ("precision", "recall", "f1"):
            np.testing.assert_array_equal(getattr(one, field), getattr(each, field))


def test_a_repeated_text_is_taken_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    encoded = rouge.encode_texts
    monkeypatch.setattr(
        rouge, "encode_texts", lambda texts, characters: (seen.extend(texts), encoded(texts, characters))[1]
    )
    result = rouge.rouge_l(["a b", "b", "a b", "c"], "a b c")
    assert result.recall.tolist() == [2 / 3, 1 / 3, 2 / 3, 1 / 3]
    assert sorted(seen) == ["a b", "a b c", "b", "c"]


def random_texts(seed: int, n: int) -> list[str]:
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 6))) for _ in range(150)]
    return [" ".join(rng.choices(words, k=rng.randint(0, 30))) for _ in range(n)]


@pytest.mark.parametrize(("kept", "chunk"), [(0, 1 << 18), (10, 200), (50, 1), (1 << 18, 300)])
def test_any_size_of_dictionary_and_chunk(monkeypatch: pytest.MonkeyPatch, kept: int, chunk: int) -> None:
    monkeypatch.setattr(rouge, "KEPT_WORDS", kept)
    monkeypatch.setattr(rouge, "CHUNK", chunk)
    assert_equals_rouge_score(random_texts(1, 60), random_texts(2, 60))
    if kept < 100:
        assert len(rouge.current_characters(True)) <= max(kept, 1)


def test_threads_with_restarts_of_the_dictionary(monkeypatch: pytest.MonkeyPatch) -> None:
    predictions, references = random_texts(3, 200), random_texts(4, 200)
    expected = rouge.rouge_l(predictions, references).f1
    monkeypatch.setattr(rouge, "KEPT_WORDS", 20)
    monkeypatch.setattr(rouge, "CHUNK", 500)
    wrong: list[int] = []

    def work() -> None:
        for _ in range(5):
            wrong.append(int((rouge.rouge_l(predictions, references).f1 != expected).sum()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [0] * 20


@pytest.mark.parametrize("any_script", [False, True])
@pytest.mark.parametrize("stemmed", [False, True])
def test_a_text_longer_than_a_chunk_is_read_as_a_short_one(
    monkeypatch: pytest.MonkeyPatch, any_script: bool, stemmed: bool
) -> None:
    said, true = ["Мама мыла раму running Zürich", "cats run"], ["мама мыла пол runs in Zürich", "a cat runs"]
    expected = [f(said, true, stemmed=stemmed, any_script=any_script) for f in (rouge.rouge_1, rouge.rouge_l)]
    monkeypatch.setattr(rouge, "CHUNK", 5)
    for function, known in zip((rouge.rouge_1, rouge.rouge_l), expected, strict=True):
        found = function(said, true, stemmed=stemmed, any_script=any_script)
        np.testing.assert_array_equal(found.recall, known.recall)
        np.testing.assert_array_equal(found.precision, known.precision)
    # "run", "z" and "rich" of "runs in z rich"; or three of six words, and "run" with stems.
    by_hand = (4 / 6 if stemmed else 3 / 6) if any_script else 3 / 4 if stemmed else 2 / 4
    assert expected[1].recall[0] == by_hand


@pytest.mark.parametrize("letters", ["abcdefgh", "абвгдежз"])
def test_the_dictionary_begins_anew_once_it_has_too_many_words(monkeypatch: pytest.MonkeyPatch, letters: str) -> None:
    """Whether the words are ASCII, which are looked up as they are, or not, of which the stems alone are kept."""
    monkeypatch.setattr(rouge, "KEPT_WORDS", 5)
    monkeypatch.setattr(rouge, "CHARACTERS", {True: rouge.Characters(True)})
    many = " ".join(f"{letter}ъ" if letter > "z" else f"{letter}q" for letter in letters)
    rouge.rouge_l([many], [many], any_script=True)
    full = rouge.CHARACTERS[True]
    assert full.size > 5
    assert rouge.rouge_l(["я"], ["я"], any_script=True).recall.tolist() == [1.0]
    assert rouge.CHARACTERS[True] is not full and rouge.CHARACTERS[True].size <= 2


def test_real_text() -> None:
    folder = Path(os.environ.get("OBLIVIONIS_TOFU", ROOT.parent / "shared" / "tofu"))
    path = folder / "forget01_perturbed.json"
    if not path.exists():
        pytest.skip(f"no TOFU data at {folder} (set OBLIVIONIS_TOFU)")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    pairs = [(wrong, row["answer"]) for row in rows for wrong in [row["paraphrased_answer"], *row["perturbed_answer"]]]
    assert_equals_rouge_score([p for p, _ in pairs], [r for _, r in pairs])


def test_real_answers_hold_nothing_unseen_and_fold_to_lower_case() -> None:
    folder = Path(os.environ.get("OBLIVIONIS_TOFU", ROOT.parent / "shared" / "tofu"))
    rows = [json.loads(line) for path in folder.glob("*.json") for line in path.read_text("utf-8").splitlines()]
    if not rows:
        pytest.skip(f"no TOFU data at {folder} (set OBLIVIONIS_TOFU)")
    fields = ("answer", "paraphrased_answer", "perturbed_answer")
    given = [row[name] for row in rows for name in fields if name in row]
    answers = {text for value in given for text in ([value] if isinstance(value, str) else value)}
    assert len(answers) > 9_000 and sum(not text.isascii() for text in answers) > 600
    for text in answers:
        assert visible(text) == text and folded(text) == unicodedata.normalize("NFKC", text).casefold()


def test_words_with_other_letters_have_no_stem() -> None:
    """Porter's rules are for English."""
    assert rouge.unicode_tokens("Elections élections") == ("elect", "élections")
    assert rouge.unicode_tokens("Elections élections", stemmed=False) == ("elections", "élections")


@pytest.mark.parametrize(
    ("text", "question", "new"),
    [
        ("He is known for his writings in French.", "What is he known for in his writing?", ("french",)),
        ("Is it him, him or her?", "Is it?", ("him", "him", "or", "her")),
        ("Anything at all", "", ("anything", "at", "all")),
        ("Юрий родился в Москве", "Где родился ЮРИЙ?", ("в", "москве")),
        ("张三出生在上海市", "张三出生在哪里", ("上", "海", "市")),
        ("Nothing new", "Is nothing new?", ()),
    ],
)
def test_new_words_are_those_whose_stems_the_question_lacks(text: str, question: str, new: tuple[str, ...]) -> None:
    assert rouge.new_words(text, question) == new
    found = rouge.rouge_1(["élections", "elections"], ["élection", "election"], any_script=True)
    assert found.f1.tolist() == [0.0, 1.0]


def test_by_hand() -> None:
    # Stemmed: "author write book" against "book the author wrote": common words author, book; in order: one of them.
    one, longest = (f(["Authors writing books"], ["Books the author wrote"]) for f in (rouge.rouge_1, rouge.rouge_l))
    assert (one.precision[0], one.recall[0]) == (2 / 3, 2 / 4)
    assert (longest.precision[0], longest.recall[0]) == (1 / 3, 1 / 4)
    assert longest.f1[0] == pytest.approx(2 / 7)


def test_text_without_words_scores_zero_and_lengths_must_agree() -> None:
    assert rouge.rouge_l(["", "a"], ["a", "!"]).f1.tolist() == [0.0, 0.0]
    assert rouge.rouge_l([], []).recall.shape == (0,)
    with pytest.raises(ValueError, match="1 predictions for 2 references"):
        rouge.rouge_1(["a"], ["a", "b"])


COUNTS = {
    # words that hold a letter of a-z or a digit, of all words
    "She lives in Minsk.": True,
    "Müller wohnt über der Bäckerei": True,  # 4 of 4
    "Öl": True,  # l
    "Anh Nguyễn Văn Đức sống ở Hà Nội": True,  # 7 of 8: ở has none
    "Iğdır'da yaşıyor, İstanbul'u sever": True,
    "À Œ": False,  # 0 of 2, Latin letters though they are
    "12.3.1953": True,
    "E = mc²": True,
    "α = 2πr": True,  # 1 of 2
    "α + β = γ": False,
    "He works at 北京大学 in Beijing": True,  # 5 of 9
    "COVID-19 是一种疾病": False,  # 2 of 7
    "iPhone 手机": False,  # 1 of 3
    "Она работает в Google с 2015 года": False,  # 2 of 7
    "삼성은 Samsung": True,  # 1 of 2
    "林晓雨住在杭州西湖边的一座老房子里。": False,
    "ليلى ولدت شتاء في طرابلس": False,
    "नीना दिल्ली में रहती है": False,
    "ＡＢＣ": False,  # full-width letters, which rouge-score drops
    "K. lives": True,  # the Kelvin sign is a k in lower case
    "👍 !": False,
    "": False,
}


@pytest.mark.parametrize(("truth", "counts"), COUNTS.items())
def test_a_truth_counts_where_half_of_its_words_are_read(truth: str, counts: bool) -> None:
    assert rouge.measurable(truth) is counts


@pytest.mark.parametrize("truth", COUNTS)
def test_what_rouge_score_cannot_tell_from_nothing_never_counts(truth: str) -> None:
    same = RougeScorer(["rougeL"], use_stemmer=True).score(truth, truth)["rougeL"].recall
    assert same in (0.0, 1.0) and (same == 1.0 or not rouge.measurable(truth))


@given(st.text(st.characters(max_codepoint=127), max_size=40))
def test_every_ascii_text_with_a_word_counts(text: str) -> None:
    words = RougeScorer(["rougeL"]).score(text, text)["rougeL"].recall == 1
    assert rouge.measurable(text) == rouge.measurable(text, rouge.ANY_SCRIPT) == words


def test_any_script_measures_whatever_has_a_letter_or_a_digit() -> None:
    assert [t for t in COUNTS if not rouge.measurable(t, rouge.ANY_SCRIPT)] == ["👍 !", ""]


def test_rouge_by_a_rule_is_nan_where_the_truth_does_not_count() -> None:
    truths = ["She lives in Minsk", "林晓雨住在杭州", "Она живёт в Минске", "ولدت في طرابلس"]
    said = ["She lived in Oslo", "林晓雨住杭州市", "Она родилась в Минске", "ولدت سلمى في"]
    paper = rouge.rouge_by(rouge.PAPER, said, truths)
    assert paper.recall.tolist()[0] == 3 / 4 and np.isnan(paper.recall[1:]).all() and np.isnan(paper.f1[1:]).all()
    by_hand = [3 / 4, 6 / 7, 3 / 4, 2 / 3]
    assert rouge.rouge_by(rouge.ANY_SCRIPT, said, truths).recall.tolist() == pytest.approx(by_hand)
    with pytest.raises(ValueError, match="unknown rule 'latin' of ROUGE, expected paper or any_script"):
        rouge.rouge_by("latin", said, truths)


@pytest.mark.parametrize(
    ("scores", "mean"),
    [
        ([0.2, 0.4], 0.3),
        ([0.5, np.nan], 0.5),
        ([0.5, np.nan, np.nan], None),
        ([np.nan], None),
        ([], None),
        ([0.0, 0.0], 0.0),
    ],
)
def test_a_mean_takes_half_of_the_truths(scores: list[float], mean: float | None) -> None:
    found = rouge.mean_of(np.array(scores, dtype=np.float64))
    assert found is None if mean is None else found == pytest.approx(mean)


def test_a_mean_of_all_is_numpys_to_the_last_bit() -> None:
    scores = np.random.default_rng(0).random(997)
    assert rouge.mean_of(scores) == float(scores.mean()) and rouge.note_of(scores, rouge.PAPER) == ""


def test_a_note_names_the_key_and_what_is_left_out() -> None:
    some, few = np.array([0.5, 0.1, np.nan]), np.array([0.5, np.nan, np.nan])
    assert "mean over the 2 of 3 true answers" in rouge.note_of(some, rouge.PAPER)
    assert "most true answers are written in others" in rouge.note_of(few, rouge.PAPER)
    assert all("evaluation.rouge=any_script" in rouge.note_of(x, rouge.PAPER) for x in (some, few))
    assert "not the paper's" in rouge.note_of(some[:2], rouge.ANY_SCRIPT)
    assert rouge.note_of(few, rouge.ANY_SCRIPT) == "most true answers have no letter and no digit"


def test_sets_without_rouge_are_told_together() -> None:
    truths = {"Forget": ["北京", "上海"], "Retain": ["Москва"], "World facts": ["Oslo", "北京"], "Empty": []}
    (line,) = rouge.left_out(truths, rouge.PAPER)
    assert line.startswith("ROUGE is left out (Forget, Retain): ") and "evaluation.rouge=any_script" in line
    assert rouge.left_out(truths, rouge.ANY_SCRIPT) == []


def test_words_are_stemmed_unless_told_otherwise():
    for cut in (rouge.tokens, rouge.unicode_tokens):
        assert cut("Running cats") == ("run", "cat") and cut("Running cats", False) == ("running", "cats")


@pytest.mark.parametrize("rule", rouge.RULES)
def test_a_single_answer_is_looked_at_by_the_rule_that_can_measure_it(rule):
    assert rouge.rule_for("an English answer", rule) == rule
    assert rouge.rule_for("длинный ответ", rule) == rouge.ANY_SCRIPT


def test_there_are_as_many_characters_as_words_may_be_kept() -> None:
    """A dictionary that is just not full takes the words of one more chunk, of a letter and a space each at least."""
    assert rouge.FIRST + rouge.KEPT_WORDS + rouge.CHUNK // 2 + 1 <= 0x110000
    assert rouge.FIRST > 0xDFFF, "no surrogates"


def test_a_chunk_holds_several_pairs_or_one_that_is_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rouge, "CHUNK", 10)
    cut = [(part.start, part.stop) for part in rouge.slices_of(np.array([15, 1, 10, 3, 7, 12, 4, 6, 1]))]
    assert cut == [(0, 1), (1, 2), (2, 3), (3, 5), (5, 6), (6, 8), (8, 9)]
