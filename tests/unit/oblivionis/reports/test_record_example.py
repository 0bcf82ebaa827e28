"""A record as a model is given it: which characters stand where."""

from __future__ import annotations

import io

from rich.console import Console

from oblivionis.models.model_description import Example
from oblivionis.reports.record_example import print_example


def printed(example, width=100):
    out = io.StringIO()
    print_example(example, Console(file=out, width=width))
    return out.getvalue().splitlines()


def test_spaces_at_the_edges_and_line_ends_are_seen():
    """Two spaces before the prompt and one after it; one before the answer, two after it; a tab cannot be seen."""
    assert printed(Example("qa", "  Question: Who?\n\nAnswer: ", " Bo\tx.  ", 5, 3, "</s>")) == [
        "a record as it is trained on, scored and sampled (template qa)",
        "prompt, 5 tokens",
        "│ ··Question: Who?⏎",
        "│ ⏎",
        "│ Answer:·",
        "answer, 3 tokens, the last one its end",
        "│ ·Bo�x.··</s>",
    ]


def test_a_part_that_ends_with_a_line_end_has_no_further_line_and_an_empty_one_has_one():
    lines = printed(Example("chat", "user\n", "", 2, 1, ""))
    assert lines[2:] == ["│ user⏎", "answer, 1 token, the last one its end", "│ "]


def test_a_long_line_goes_on_below_behind_a_bar_of_its_own():
    lines = printed(Example("text", "abcdefghij", "[red]k", 1, 1, ""), width=8)
    assert [line for line in lines if line.startswith("│")] == ["│ abcdef", "│ ghij", "│ [red]k"]
