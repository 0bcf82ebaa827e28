"""Words in every script, and ROUGE by them."""

import random
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.metrics.rouge import rouge_1, rouge_l, tokens, unicode_tokens
from evaluation.metrics.word_matching import folded, visible, words, words_as_written

SENTENCES = {
    "cyrillic": "Нина живёт в Минске",
    "greek": "Η Νίνα μένει στην Αθήνα",
    "arabic": "نينا تعيش في بيروت",
    "hebrew": "נינה גרה בתל אביב",
    "chinese": "尼娜住在明斯克",
    "japanese": "ニーナは東京に住んでいます",
    "korean": "니나는 서울에 산다",
    "thai": "นีน่าอาศัยอยู่ที่กรุงเทพ",
    "hindi": "नीना दिल्ली में रहती है",
    "armenian": "Նինան ապրում է Երևանում",
    "georgian": "ნინა ცხოვრობს თბილისში",
    "amharic": "ኒና በአዲስ አበባ ትኖራለች",
    "english": "Nina lives in Minsk",
}
UNITS = {
    "Нина живёт в Минске.": "нина живёт в минске",
    "我住在北京。2021年": "我 住 在 北 京 2021 年",
    "東京タワー": "東 京 タ ワ ー",
    "سَلامٌ عليكم": "سلام عليكم",
    "שָׁלוֹם": "שלום",
    "\ufb2aלום": "שלום",
    "안녕하세요 세계!": "안녕하세요 세계",
    "हिन्दी में": "हिन्दी में",
    "Straße, STRASSE": "strasse strasse",
    "ＡＢＣ ﬁne": "abc fine",
    "Zoë's 10-year-old café can't": "zoë s 10 year old café can t",
    "👍🏽 … — !": "",
    "": "",
    "N\u200di\u200dn\u200da li\u00adves\ufeff in\u2060 M\u034fi\ufe0fnsk\u200f": "nina lives in minsk",
    "Nina\u3164lives\uffa0in\u1160\u115fMinsk": "nina lives in minsk",
    "می\u200cروم": "میروم",
    "e\u200d\u0301t\u00e9": "été",
    "ΜΑΪ\u0301ΟΥ": "μαΐου",
}


@pytest.mark.parametrize(("text", "expected"), UNITS.items())
def test_units_by_hand(text, expected):
    assert " ".join(words(text)) == expected


@pytest.mark.parametrize("text", SENTENCES.values(), ids=SENTENCES)
def test_a_text_recites_itself_and_not_another(text):
    other = next(t for t in SENTENCES.values() if t != text)
    for rouge in (rouge_1, rouge_l):
        found = rouge([text, other, "", f"— {text}!"], text, any_script=True)
        assert found.recall.tolist() == [1, 0, 0, 1] and found.precision.tolist() == [1, 0, 0, 1]


# Derived from Unicode's list of default-ignorable code points (DerivedCoreProperties.txt), by hand.
IGNORABLE = [
    *("\u00ad", "\u034f", "\u061c", "\u17b4", "\u180b", "\u180e", "\u200b", "\u200c", "\u200d", "\u200e", "\u200f"),
    *("\u202a", "\u202e", "\u2060", "\u2064", "\u2066", "\u206f", "\ufe00", "\ufe0f", "\ufeff", "\U0001d173"),
    *("\U000e0001", "\U000e0061", "\U000e0100"),
]


@pytest.mark.parametrize("character", IGNORABLE, ids=lambda c: f"U+{ord(c):04X}")
def test_what_no_reader_sees_hides_nothing(character):
    for text in SENTENCES.values():
        hidden = character.join(text)
        assert visible(hidden) == text and words(hidden) == words(text)
        for pair in ((hidden, text), (text, hidden)):
            assert rouge_l([pair[0]], pair[1], any_script=True).recall.tolist() == [1.0]


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=40))
def test_folding_again_changes_nothing_and_ascii_is_lower_cased_alone(text):
    assert folded(folded(text)) == folded(text)
    assert folded(ascii(text)) == ascii(text).lower()


def test_published_numbers_keep_the_rule_of_rouge_score():
    assert rouge_l([SENTENCES["cyrillic"]], SENTENCES["cyrillic"]).recall[0] == 0


@given(st.text(st.characters(max_codepoint=127), max_size=60), st.booleans())
def test_on_ascii_both_rules_are_one(text, stemmed):
    assert unicode_tokens(text, stemmed) == tokens(text, stemmed)


def test_rouge_is_the_same_on_english_under_both_rules():
    drawn = random.Random(0)
    vocabulary = ["the", "a", "Author's", "novels", "novel", "3.14", "running", "runs", "U.S.", "well-known"]
    texts = [[" ".join(drawn.choices(vocabulary, k=drawn.randint(0, 12))) for _ in range(200)] for _ in range(2)]
    for stemmed in (True, False):
        one, other = (rouge_l(*texts, stemmed=stemmed, any_script=rule) for rule in (True, False))
        assert np.array_equal(one.recall, other.recall) and np.array_equal(one.f1, other.f1)


@given(st.lists(st.sampled_from(["кот", "дом", "猫", "cat", "cats", "ملك", "7"]), max_size=8), st.data())
def test_recall_is_the_longest_common_subsequence_of_the_words(first, data):
    second = data.draw(st.lists(st.sampled_from(["кот", "дом", "猫", "cat", "ملك", "7"]), max_size=8))
    stems = [["cat" if w == "cats" else w for w in text] for text in (first, second)]
    table = np.zeros((len(first) + 1, len(second) + 1), int)
    for i, a in enumerate(stems[0]):
        for j, b in enumerate(stems[1]):
            table[i + 1, j + 1] = table[i, j] + 1 if a == b else max(table[i, j + 1], table[i + 1, j])
    expected = table[-1, -1] / len(second) if second else 0
    assert rouge_l([" ".join(first)], [" ".join(second)], any_script=True).recall[0] == pytest.approx(expected)


@given(st.text(max_size=40))
def test_writing_the_same_text_otherwise_changes_nothing(text):
    composed = unicodedata.normalize("NFC", text)
    assert words(unicodedata.normalize("NFD", composed)) == words(composed)


@given(st.text(st.characters(exclude_categories=("Cn", "Co", "Cs")), max_size=60))
def test_every_word_has_a_letter_or_a_number_and_no_space(text):
    for word in words(text):
        assert word and not any(c.isspace() for c in word)
        assert any(unicodedata.category(c)[0] in "LN" for c in word)


def test_as_written_only_the_case_is_changed():
    assert words_as_written("ＡＢＣ Straße, x²!") == ("ａｂｃ", "straße", "x", "²")


@given(st.text(st.characters(max_codepoint=127), max_size=60))
def test_on_ascii_what_is_written_is_what_counts(text):
    assert words_as_written(text) == words(text)


def test_a_stretched_arabic_word_is_the_word() -> None:
    assert words("\u0628\u064a\u0640\u0640\u0631\u0648\u062a") == words("\u0628\u064a\u0631\u0648\u062a") != ()
