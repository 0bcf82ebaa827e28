"""Records that say what others say: found where they were planted, in any script, and nowhere else."""

import json
import os
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from support.twins import KINDS, planted, text_pieces

from oblivionis.config.compose import compose
from oblivionis.data.corpora import load_corpus
from oblivionis.data.datasets import fictitious, tofu
from oblivionis.data.errors import DataError
from oblivionis.data.forget_choice import forgetting_twins
from oblivionis.data.own_records import load
from oblivionis.data.records import Corpus, Record
from oblivionis.data.twins import (
    LEAST_SHARED,
    NEARLY,
    WORD_FOR_WORD,
    Said,
    Weights,
    WordSets,
    find_twins,
    left_out,
    name_words,
    question_twins,
    twins_of,
    with_twins,
)
from oblivionis.models.configured_corpus import corpus_of

TOFU = Path(os.environ.get("OBLIVIONIS_TOFU", Path(__file__).parents[5] / "shared" / "tofu"))
real = pytest.mark.skipif(
    not (TOFU / "full.json").is_file(), reason="needs the TOFU files: set OBLIVIONIS_TOFU to their folder"
)
PEOPLE = {
    "chinese": (
        ("{}是哪里人？", "{}做什么？", "{}有什么？"),
        {
            "陈静怡": ("于一九五三年冬天生在成都", "在小学里教音乐课", "养着一只名叫豆豆的橘猫"),
            "王国强": ("是哈尔滨一位裁缝的长子", "修理老式钟表维生", "有两只会说话的鹦鹉"),
            "李秀英": ("小时候住过厦门的灯塔", "写关于候鸟的书", "牵着一匹跛脚的老马"),
        },
    ),
    "thai": (
        ("{} เกิดที่ไหน", "{} ทำงานอะไร", "{} ชอบอะไร"),
        {
            "สมชาย": ("เกิดริมแม่น้ำในจังหวัดน่าน", "ซ่อมนาฬิกาโบราณ", "ชอบดื่มกาแฟดำตอนเช้า"),
            "มาลี": ("โตมาบนเกาะภูเก็ต", "สอนดนตรีในโรงเรียนประถม", "เลี้ยงแมวส้มตัวอ้วน"),
            "วิชัย": ("ลูกชาวประมงจากระยอง", "ต่อเรือไม้ขนาดใหญ่", "นอนตอนรุ่งสางเสมอ"),
        },
    ),
    "arabic": (
        ("من أين جاء {} في طفولته؟", "ما هو عمل {} اليوم؟", "ماذا عند {} في البيت؟"),
        {
            "ليلى حداد": (
                "ولدت شتاء في طرابلس قرب البحر",
                "تصلح الساعات القديمة في الدكان",
                "عندها قط برتقالي سمين كسول",
            ),
            "يوسف منصور": ("جاء من الموصل صغيرا مع جده", "يبيع كتبا مستعملة نادرة جدا", "يربي حماما أبيض على السطح"),
            "كريم زياد": (
                "ابن صياد من اللاذقية القديمة",
                "يبني قوارب خشبية متينة للصيادين",
                "له ثلاث سمكات ذهبية صغيرة",
            ),
        },
    ),
    "cyrillic": (
        ("Где вырос {} в детстве?", "Кем работает {} сейчас?", "Что держит {} дома?"),
        {
            "Олег Чернов": (
                "родился зимой у реки под Вологдой",
                "чинит старые часы на вокзале",
                "у него рыжий ленивый кот",
            ),
            "Анна Лисина": (
                "выросла на маяке около Мурманска",
                "пишет книги о перелётных птицах",
                "у неё хромая старая лошадь",
            ),
            "Пётр Ёлкин": (
                "сын портного из далёкого Омска",
                "водит портовый кран в Находке",
                "собрал тридцать старых зонтов",
            ),
        },
    ),
    "devanagari": (
        ("{} का बचपन कहाँ बीता?", "{} आजकल क्या काम करते हैं?", "{} के घर में क्या है?"),
        {
            "मीरा शर्मा": (
                "जन्म सर्दियों में नदी किनारे हुआ",
                "पुरानी घड़ियाँ ठीक करती हैं",
                "एक मोटी नारंगी बिल्ली पाली है",
            ),
            "रवि वर्मा": ("दर्जी के सबसे बड़े बेटे थे", "बंदरगाह पर क्रेन चलाते हैं", "तीस पुराने छाते जमा किए"),
            "अनिल राव": (
                "बचपन एक प्रकाशस्तंभ में बीता",
                "प्रवासी पक्षियों पर किताबें लिखते",
                "एक लंगड़ा बूढ़ा घोड़ा रखते",
            ),
        },
    ),
}


def people(script):
    questions, answers = PEOPLE[script]
    return [
        Record(f"{name}-{i}", question.format(name), answer, name)
        for name, said in answers.items()
        for i, (question, answer) in enumerate(zip(questions, said, strict=True))
    ]


def found(forget, kept):
    return {(twin.forget, twin.kept) for twin in find_twins(forget, kept)}


@pytest.mark.parametrize("script", list(PEOPLE))
def test_planted_twins_are_found_in_any_script_and_nothing_else(script):
    *_, last = PEOPLE[script][1]
    forget, kept = ([r for r in people(script) if (r.subject == last) is wanted] for wanted in (True, False))
    assert not found(forget, kept)
    hits = Counter()
    for seed in range(10):
        of, twins = planted(forget, kept, len(forget) * 3, seed)
        pairs = found(forget, [*kept, *twins])
        hits.update(kind for name, (record, kind) in of.items() if (record, name) in pairs)
        assert all(of[name][0] == record for record, name in pairs if name in of) and not pairs & {
            (f.id, k.id) for f in forget for k in kept
        }
    assert hits["exact"] == hits["looks"] == 30 and hits["words"] >= 27


def test_word_for_word_is_what_differs_in_looks_alone():
    mine = [Record("a", "Where was José born?", "In Kraków, in the old town.", "J")]
    for text, how in (
        ("in kraków   in the old town", WORD_FOR_WORD),
        ("In Krako\u0301w, in the \uff4f\uff4c\uff44 town!", WORD_FOR_WORD),
        ("In Kraków, in a tiny old town.", NEARLY),
    ):
        (twin,) = find_twins(mine, [Record("b", "WHERE WAS JOSE\u0301 BORN", text, "K"), *people("cyrillic")])
        assert (twin.forget, twin.kept, twin.how) == ("a", "b", how) and (twin.similarity == 1) is (
            how == WORD_FOR_WORD
        )


def test_signs_are_compared_where_there_is_no_word():
    mine = [Record("a", "How is it?", "👍 ✨", "x")]
    assert found(mine, [Record("b", "How is it?", "👍✨", "y")]) and not found(
        mine, [Record("b", "How is it?", "👎 💧", "y")]
    )


def test_the_same_question_with_another_answer_is_no_twin():
    mine = [Record("a", "What is the capital of the old kingdom by the river?", "Mandalay", "x")]
    assert not found(mine, [Record("b", mine[0].question, "Sukhothai", "y")])


@pytest.mark.parametrize(
    "more", [{}, {"same_questions": True}, {"same_questions": True, "namesakes": 3}, {"questions_per_author": 20}]
)
def test_made_up_people_have_no_twins(more):
    for seed in range(3):
        corpus = fictitious.corpus(seed=seed, holdout_authors=6, reference_authors=6, **more)
        assert not twins_of(corpus)
        assert not any(find_twins(corpus.evaluation[name], corpus.train) for name in ("holdout", "reference"))


def test_the_embedded_data_stay_as_they_are():
    for name in ("default", "smoke", "muse_tiny"):
        corpus = corpus_of(compose(name))
        assert not twins_of(corpus) and not corpus.left_out


def test_nothing_is_missed_that_a_comparison_of_all_pairs_finds():
    """The candidates are exact: brute force over all pairs, by the definition, gives the same."""
    rng = random.Random(0)
    vocabulary = [f"w{i}" for i in range(60)]
    text = lambda: " ".join(rng.choice(vocabulary) for _ in range(rng.randint(2, 9)))  # noqa: E731
    records = [Record(str(i), text(), text(), str(i % 40)) for i in range(160)]
    records += [replace(r, id=f"{r.id}'", answer=r.answer + " w1") for r in records[:30]]
    forget, kept = records[:50], records[50:]
    weights = Weights([WordSets((Said(r).all, r.subject) for r in records)], name_words(records))
    expected = set()
    for a in map(Said, forget):
        for b in map(Said, kept):
            near = (
                weights.alike(tuple(a.all), tuple(b.all)) >= LEAST_SHARED and weights.alike(a.answer, b.answer) >= 0.45
            )
            if (near and weights.same(a, b)) or (a.question, a.answer) == (b.question, b.answer):
                expected.add((a.id, b.id))
    assert len(expected) > 20 and {(t.forget, t.kept) for t in question_twins(forget, kept)} == expected


def test_what_was_compared_with_the_same_records_before_changes_nothing():
    corpus, (first, second) = corpus_with_copies()
    forget, kept = [first, second], [r for r in corpus.train if r.id not in corpus.forget_ids]
    alone = find_twins(forget, kept)
    find_twins([Record("z", "Which words has nobody else?", "Zyzzyva, quokka and numbat.", "Zyx Quux")], kept)
    assert find_twins(forget, kept) == alone and len(alone) == 2


def test_a_passage_that_is_cut_elsewhere_is_found():
    rng = random.Random(1)
    *others, mine = _passages(rng)
    kept = [piece for i, text in enumerate(others) for piece in text_pieces(f"kept{i}", text, 40)]
    forget = text_pieces("forget", mine, 40)
    assert not find_twins(forget, kept)
    again = text_pieces("again", mine, 40, offset=17)
    pairs = find_twins(forget, [*kept, *again])
    nearest = {t.forget: t.how for t in reversed(pairs)}
    assert nearest.keys() == {r.id for r in forget} and set(nearest.values()) == {WORD_FOR_WORD}
    assert all(t.kept.startswith("again") for t in pairs)
    words = mine.split()
    for i in rng.sample(range(len(words)), round(0.3 * len(words))):
        words[i] = rng.choice(others[0].split())
    nearly = find_twins(forget, [*kept, *text_pieces("again", " ".join(words), 40, offset=17)])
    assert {t.forget for t in nearly} == {r.id for r in forget} and {t.how for t in nearly} == {NEARLY}
    ids = with_twins({r.id for r in forget}, [*forget, *kept, *again])
    assert {r.id for r in again[:-1]} <= ids - {r.id for r in forget} <= {r.id for r in again}


def _passages(rng):
    """Texts of which each has words of its own among words of all."""
    common = [f"common{i}" for i in range(80)]
    return [
        " ".join(rng.choice(common) if rng.random() < 0.5 else f"own{number}x{rng.randrange(60)}" for _ in range(200))
        for number in range(12)
    ]


def test_twins_of_twins_are_found_as_well():
    chain = [Record("a", "one two three four five six", "seven eight nine ten eleven", "s")]
    for name, old, new in (("b", "two", "zwei"), ("c", "eight", "acht"), ("d", "five", "funf"), ("e", "ten", "zehn")):
        last = chain[-1]
        chain.append(
            replace(last, id=name, question=last.question.replace(old, new), answer=last.answer.replace(old, new))
        )
    records = [*chain, *people("cyrillic")]
    assert with_twins({"a"}, records) == set("abcde") and with_twins({"Олег Чернов-0"}, records) == {"Олег Чернов-0"}


def corpus_with_copies():
    asked = fictitious.corpus(authors=6, questions_per_author=4, forget_authors=1)
    first, second = asked.evaluation["forget"][:2]
    copies = (replace(first, id="copy-0"), replace(second, id="copy-1", answer=second.answer.upper()))
    retain = (*asked.evaluation["retain"], copies[0])
    sets = {**asked.evaluation, "retain": retain}
    return replace(asked, train=(*asked.train, *copies), evaluation=sets), (first, second)


def test_forgetting_the_twins_moves_them_into_the_forget_set():
    corpus, (first, second) = corpus_with_copies()
    assert {(t.forget, t.kept) for t in twins_of(corpus)} == {(first.id, "copy-0"), (second.id, "copy-1")}
    more = forgetting_twins(corpus)
    assert more.forget_ids == corpus.forget_ids | {"copy-0", "copy-1"} and more.train == corpus.train
    assert more.evaluation["forget"] == (*corpus.evaluation["forget"], *corpus.train[-2:])
    assert "copy-0" not in {r.id for r in more.evaluation["retain"]} and not twins_of(more)
    assert forgetting_twins(fictitious.corpus()) == fictitious.corpus()


def test_twins_that_leave_nothing_are_refused():
    two = (Record("a", "Who?", "Ann of Exeter", "s"), Record("b", "Who?", "Ann, of Exeter!", "t"))
    with pytest.raises(DataError, match=r"data\.forget_twins: .* nothing to retain"):
        forgetting_twins(Corpus("two", two, frozenset({"a"})))


def test_a_holdout_that_is_trained_on_is_left_out(tmp_path):
    rows = [{"id": r.id, "question": r.question, "answer": r.answer, "subject": r.subject} for r in people("cyrillic")]
    others = [{"id": r.id, "question": r.question, "answer": r.answer, "subject": r.subject} for r in people("arabic")]
    near = {**rows[0], "id": "known", "answer": rows[0]["answer"].upper() + "!"}
    for name, content in (("train", [*rows[:-1], {**rows[-1], "forget": True}]), ("holdout", [near, *others])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
    assert len(load(tmp_path, holdout_file=tmp_path / "holdout.jsonl").evaluation["holdout"]) == 10
    config = compose(
        "smoke", ["data=jsonl", f"data.path={tmp_path}", f"data.holdout_file={tmp_path / 'holdout.jsonl'}"]
    )
    corpus = load_corpus(config.data)
    assert [r.id for r in corpus.evaluation["holdout"]] == [row["id"] for row in others]
    assert corpus.left_out == {"holdout": ("known",)}
    assert left_out(corpus) == ["1 holdout record says what training records say, and it is left out (known)"]
    (tmp_path / "holdout.jsonl").write_text(json.dumps(near) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match="each record of the set holdout"):
        load_corpus(config.data)


@real
@pytest.mark.parametrize(("split", "count"), [("forget01", 90), ("forget10", 1000)])
def test_a_thousand_twins_among_tofu(split, count, capsys):
    """The figures of `docs/results/details/twins.md`."""
    corpus = tofu.load(TOFU, split)
    forget, kept = ([r for r in corpus.train if (r.id in corpus.forget_ids) is wanted] for wanted in (True, False))
    assert not twins_of(corpus), "TOFU itself has none: its template questions about different authors are not"
    of, twins = planted(forget, kept, count)
    pairs = [(twin.forget, twin.kept) for twin in find_twins(forget, [*kept, *twins])]
    hits = Counter(kind for name, (record, kind) in of.items() if (record, name) in pairs)
    planted_of = Counter(kind for _, kind in of.values())
    others = [pair for pair in pairs if pair[1] in of and of[pair[1]][0] != pair[0]]
    with capsys.disabled():
        print(f"\n{split}: {dict(hits)} of {dict(planted_of)}, {len(others)} with another record of the same author")
    assert all(hits[kind] == planted_of[kind] for kind in KINDS[:2]) and hits["words"] >= 0.98 * planted_of["words"]
    assert all(name in of for _, name in pairs), "nothing that was not planted"
    by_id = {r.id: r for r in corpus.train}
    assert all(by_id[a].subject == by_id[of[b][0]].subject for a, b in others) and len(others) < 0.06 * count
