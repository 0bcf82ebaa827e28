"""Whom a tuning forgets: others than the run itself."""

import pytest

from benchmarks.tuning.requests import requests_of, subjects_of
from oblivionis.config.compose import compose
from oblivionis.config.problems import ConfigError
from oblivionis.data.corpora import load_corpus
from oblivionis.errors import RunError

DEFAULT = compose("default")


def reported(config):
    corpus = load_corpus(config.data)
    return list(dict.fromkeys(r.subject for r in corpus.train if r.id in corpus.forget_ids))


def test_others_in_equal_number_by_the_seed():
    chosen = [subjects_of(DEFAULT, seed) for seed in (0, 0, 1)]
    assert chosen[0] == chosen[1] != chosen[2]
    assert len(chosen[0]) == len(reported(DEFAULT)) and not set(chosen[0]) & set(reported(DEFAULT))


def test_a_reported_subject_is_refused():
    with pytest.raises(RunError, match="must not be tuned on"):
        subjects_of(DEFAULT, 0, [reported(DEFAULT)[0]])


def test_an_equal_record_under_another_name_is_refused(tmp_path):
    rows = ['"a", "subject": "Ann", "forget": true', '"b", "subject": "Bo"', '"c", "subject": "Cy"']
    file = tmp_path / "train.jsonl"
    file.write_text("".join(f'{{"question": "Who?", "answer": "She.", "id": {row}}}\n' for row in rows))
    config = compose("default", ["data=jsonl", f"data.path={file}", "federation.clients=2"])
    with pytest.raises(RunError, match="must not be tuned on"):
        subjects_of(config, 0, ["Bo"])
    with pytest.raises(RunError, match="too few"):
        subjects_of(config, 0)


def test_an_unknown_subject():
    name = subjects_of(DEFAULT, 0)[0]
    with pytest.raises(RunError, match="did you mean"):
        subjects_of(DEFAULT, 0, [name[:-1]])


@pytest.mark.parametrize(
    ("override", "key"),
    [
        (["unlearning.requests.policy=none"], "unlearning.requests.policy"),
        (["unlearning.requests.scope=client"], "unlearning.requests.scope"),
        (["data=muse_tiny", "unlearning.requests.policy=random_client_per_round"], "data.name"),
    ],
)
def test_requests_and_data_with_which_it_cannot_be(override, key):
    with pytest.raises(ConfigError, match=key):
        subjects_of(compose("default", override), 0)


def test_the_same_requests_for_other_records():
    names = subjects_of(DEFAULT, 0)
    at_once = compose("default", ["unlearning.requests.policy=all_at_round", "unlearning.requests.clients=[3]"])
    assert requests_of(at_once, names).clients is None
    name = reported(DEFAULT)[0]
    about = compose(
        "default", ["unlearning.requests.policy=subjects_at_round", f"unlearning.requests.subjects=[{name}]"]
    )
    assert requests_of(about, names).subjects == names
