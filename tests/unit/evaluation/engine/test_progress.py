"""What a watcher is told of long computations."""

import threading

import pytest
from support import tiny_llama

from evaluation.engine.decoding import greedy
from evaluation.engine.likelihood import score
from evaluation.engine.progress import counter, part, watched
from evaluation.engine.sequences import TokenSequence


def test_nobody_needs_to_watch():
    counter("answers", 3)(2)


def test_parts_and_counts():
    told = []
    with watched(lambda *what: told.append(what)):
        with part("outer"), part("inner"):
            counter("answers", 2)(2)
        counter("likelihoods", 1)
    counter("answers", 9)(9)
    assert told == [("outer", "answers", 0, 2), ("outer", "answers", 2, 2), ("", "likelihoods", 0, 1)]


def test_threads_add_up():
    told = []
    with watched(lambda *what: told.append(what[2])):
        add = counter("answers", 800)
    threads = [threading.Thread(target=lambda: [add(1) for _ in range(100)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == list(range(801))


@pytest.mark.parametrize("mode", ["auto", "packed", "padded", "plain"])
def test_scoring_and_decoding_count_to_the_end(mode):
    told = {}
    model = tiny_llama.base().eval()
    with watched(lambda _, what, done, total: told.setdefault(what, []).append((done, total))):
        sequences = [TokenSequence((1, 2, i), (4, i)) for i in range(3, 12)]
        score(model, [*sequences, *sequences], token_budget=16, mode=mode)
        greedy(model, [(1, 2, i) for i in range(3, 8)], max_new_tokens=4, stop_ids=(0,), mode=mode)
    for what, total in (("likelihoods", 9), ("answers", 5)):
        done = [d for d, _ in told[what]]
        assert done[0] == 0 and done[-1] == total and done == sorted(done) and {t for _, t in told[what]} == {total}
    assert len(told["likelihoods"]) > 3
