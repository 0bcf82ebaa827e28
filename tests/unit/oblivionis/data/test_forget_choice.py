"""Another choice of whom to forget changes what is asked, not what is held."""

import pytest

from oblivionis.config.compose import compose
from oblivionis.config.problems import ConfigError
from oblivionis.data.corpora import load_corpus, load_partition
from oblivionis.data.datasets import tofu
from oblivionis.data.errors import DataError
from oblivionis.data.forget_choice import forgetting
from oblivionis.data.records import Corpus, Record

RECORDS = [Record(f"{name}{i}", f"{name} {i}?", "so.", name) for name in ("Ann", "Bo", "Cy") for i in (1, 2)]
ASKED = tuple(Record(r.id, r.question, r.answer, r.subject, "so it is.", ("no.",)) for r in RECORDS)
CORPUS = Corpus(
    "made", tuple(RECORDS), frozenset({"Cy1", "Cy2"}), {"forget": ASKED[4:], "retain": ASKED[:4], "world_facts": ()}
)


def test_the_records_stay_and_the_questions_change_sides():
    other = forgetting(CORPUS, ["Bo"])
    assert other.train == CORPUS.train and other.forget_ids == {"Bo1", "Bo2"}
    assert other.evaluation["forget"] == ASKED[2:4], "in the words of the set that asked about them"
    assert other.evaluation["retain"] == ASKED[:2]
    assert forgetting(CORPUS, ["Cy"]).evaluation["forget"] == CORPUS.evaluation["forget"]


def test_clients_hold_the_same():
    names = [record.subject for record in load_corpus(compose("smoke").data).train]
    config = compose("smoke", [f"data.forget_subjects=[{names[0]}]"])
    corpus = load_corpus(config.data)
    assert {r.subject for r in corpus.evaluation["forget"]} == {names[0]}
    assert load_partition(corpus, config) == load_partition(load_corpus(compose("smoke").data), compose("smoke"))


@pytest.mark.parametrize(
    ("subjects", "said"), [(["Boo"], "did you mean Bo?"), (["Ann", "Bo", "Cy"], "leave nobody to retain")]
)
def test_a_choice_that_cannot_be(subjects, said):
    with pytest.raises(DataError, match=said.replace("?", r"\?")):
        forgetting(CORPUS, subjects)


def test_texts_have_no_subjects_to_choose():
    with pytest.raises(ConfigError, match=r"data\.forget_subjects"):
        compose("muse_tiny", ["data.forget_subjects=[a]"])


def test_what_the_source_withholds_stays_withheld():
    apart = tofu.withhold(CORPUS, 1, seed=0)
    gone = ({"Ann", "Bo"} - {r.subject for r in apart.train}).pop()
    with pytest.raises(DataError, match="nobody holds a record"):
        forgetting(apart, [gone])
