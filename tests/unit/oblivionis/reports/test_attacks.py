"""The attacks of a run in tables and words, on results made by hand."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console
from support.reports import make_run

from oblivionis.errors import FileError
from oblivionis.reports import attacks


def row(attack, verdict=None, **more):
    """One attack on the unlearned model beside the retrained one."""
    models = {
        "unlearn": {"before": {"prob": 0.25, "rouge": 0.5}, "after": {"prob": 0.75, "rouge": 0.5}},
        "retrain": {"before": {"prob": 0.125, "rouge": 0.375}, "after": {"prob": 0.5, "rouge": 0.625}},
    }
    found = {"attack": attack, "variant": "" if attack == "none" else "by hand", "questions": 9, "models": models}
    return found | {"difference": {"prob": 0.25, "rouge": -0.125}, **({"verdict": verdict} if verdict else {})} | more


def results(*rows, **more):
    made = {"run": "made", "stage": "unlearn", "round": 2, "oracle": "retrain", "rows": list(rows)}
    return made | {"membership": [], "left_out": {}, "failed": {}} | more


def printed(found):
    out = io.StringIO()
    attacks.print_results(found, Console(file=out, width=160))
    return out.getvalue()


def line_of(text, name):
    """The cells of the row that begins with these words."""
    words = name.split()
    (found,) = (cells for line in text.splitlines() if (cells := line.split())[: len(words)] == words)
    return found[len(words) :]


def test_a_row_has_the_way_of_the_attacked_model_the_end_of_the_other_and_the_difference_of_each_measure():
    assert line_of(printed(results(row("quantise", "near"))), "quantise: by hand") == (
        ["9", "0.25→0.75", "0.50", "+0.25", "0.50", "0.62", "-0.12", "–", "–", "–", "as", "retrained"]
    )


def test_on_the_page_the_other_model_has_its_way_too():
    mine, theirs, difference = attacks.cells_of(row("quantise"), "prob", results(), whole=True)
    assert (mine, theirs, difference) == ("0.25→0.75", "0.12→0.50", "+0.25")


def test_the_page_has_verdict_and_p_value_beside_both_models():
    page = str(attacks.html_rows(results(row("quantise", "still known", p_above=0.0031), row("prefix", "near"))))
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line) for line in page.split("<tr")[1:]]
    heads, first, second = (
        [re.sub(r"<br>", " / ", re.sub(r"</?(?:small|b)(?: [^>]*)?>", "", c)) for c in line] for line in rows
    )
    measures = ["Prob / retrained", "Δ", "ROUGE / retrained", "Δ", "Truth r. / retrained", "Δ"]
    assert heads == ["attack", "n", *measures, "verdict", "p above"]
    shown = ["9", "0.25→0.75 / 0.12→0.50", "+0.25", "0.50 / 0.38→0.62", "-0.12", "– / –", "–"]
    assert first == ["quantise: by hand", *shown, "comes back", "0.0031"]
    assert second[1:] == [*shown, "as retrained", "–"]


@pytest.mark.parametrize(
    ("verdict", "word"),
    [
        ("still known", ["comes", "back"]),
        ("over-unlearned", ["below"]),
        ("near", ["as", "retrained"]),
        ("undecided", ["undecided"]),
    ],
)
def test_each_verdict_has_its_word(verdict, word):
    assert line_of(printed(results(row("quantise", verdict))), "quantise: by hand")[10:] == word


def test_what_is_known_without_an_attack_does_not_come_back():
    text = printed(results(row("none", "still known"), row("quantise", "still known")))
    assert line_of(text, "no attack 9")[9:] == line_of(text, "quantise: by hand")[10:] == ["still", "known"]
    assert "Without any attack the answers are still known. 1 of 1 attacks bring back more" in text


def test_of_the_attacks_those_count_that_have_a_verdict():
    rows = [row("none", "undecided"), row("quantise", "undecided"), row("prefix", "near"), row("relearn")]
    text = printed(results(*rows, failed={"jailbreak": "out of memory"}))
    assert "None of 2 attacks is shown to bring back more than the retrained model gives away (1 undecided, 1 more" in (
        " ".join(text.split())
    )
    assert "jailbreak failed: out of memory." in text


def test_membership_inference_stands_below():
    aucs = {"unlearn": {"auc": 0.75, "low": 0.5, "high": 1.0}, "retrain": {"auc": 0.5, "low": 0.25, "high": 0.75}}
    of = {"variant": "zlib", "members": 4, "others": 6, "models": aucs, "difference": 0.25, "p": 0.031}
    text = printed(results(row("none", "near"), membership=[of]))
    assert line_of(text, "zlib") == (
        ["4", "+", "6", "0.75", "[0.50,", "1.00]", "0.50", "[0.25,", "0.75]", "+0.25", "0.031"]
    )


def test_without_a_retrained_model_there_is_no_word():
    alone = row("quantise")
    text = printed(results(alone, oracle=None))
    assert line_of(text, "quantise: by hand") == ["9", "0.25→0.75", "0.50", "–"]
    assert attacks.NO_ORACLE in " ".join(text.split())


def test_of_each_stage_the_newest_attacks_are_shown(tmp_path):
    run, _ = make_run(tmp_path)
    for stage, server_round in (("unlearn", 10), ("unlearn", 9), ("finetune", 2)):
        folder = run.path / "attacks" / f"{stage}-{server_round}"
        folder.mkdir(parents=True)
        models = {"models": {stage: row("none")["models"]["unlearn"]}}
        made = results(row("none", **models), stage=stage, round=server_round, oracle=None)
        (folder / "results.json").write_text(json.dumps(made))
    assert [(found["stage"], found["round"]) for found in attacks.latest(run)] == [("unlearn", 10), ("finetune", 2)]


def test_results_without_the_attacked_model_are_refused(tmp_path):
    file = tmp_path / "results.json"
    file.write_text(json.dumps(results(row("none"), stage="finetune")))
    with pytest.raises(FileError, match=r"rows\[0\]\.models: the attacked model, 'finetune', is missing"):
        attacks.read_results(file)


def test_of_attacks_on_one_model_the_last_ones_are_shown(tmp_path):
    run, _ = make_run(tmp_path)
    assert attacks.latest(run) == [] == attacks.section(run)
    for name in (f"unlearn-1-{letter}" for letter in "hcafgebdi"):
        (run.path / "attacks" / name).mkdir(parents=True)
        made = results(row("none"), stage="unlearn", round=1, run=name)
        (run.path / "attacks" / name / "results.json").write_text(json.dumps(made))
    (run.path / "attacks" / "unlearn-2").mkdir()
    assert [found["run"] for found in attacks.latest(run)] == ["unlearn-1-i"]


@pytest.mark.parametrize(("stage", "name"), [("unlearn", "unlearned"), ("retrain", "retrained"), ("local", "local")])
def test_a_model_is_called_as_elsewhere(stage, name):
    assert attacks.model_line({"stage": stage}) == name


@pytest.mark.parametrize(
    ("verdicts", "failed", "tail"),
    [
        (["near", "undecided", "undecided"], {}, "gives away (2 undecided)."),
        (["near"], {"prefix": "no memory"}, "gives away (1 more failed)."),
        (["undecided"], {"prefix": "no memory"}, "gives away (1 undecided, 1 more failed)."),
        (["near"], {}, "gives away."),
    ],
)
def test_what_no_attack_brings_back(verdicts, failed, tail):
    rows = [row(f"attack{i}", verdict=verdict) for i, verdict in enumerate(verdicts)]
    said = attacks.outcome(results(*rows, failed=failed))
    assert f"None of {len(verdicts)} attacks is shown to bring back more than" in said
    assert said.endswith(tail)


def test_attacks_that_were_not_finished_are_passed_over_wherever_they_lie(tmp_path):
    run, _ = make_run(tmp_path)
    for name in ("a", "b", "c"):
        (run.path / "attacks" / name).mkdir(parents=True)
    (run.path / "attacks" / "b" / "results.json").write_text(json.dumps(results(row("none"))))
    assert [found["run"] for found in attacks.latest(run)] == ["made"]
    assert attacks.section(run)[0] is not None and len(attacks.section(run)) > 3


def test_a_model_that_was_not_measured_is_a_dash():
    """Of the other model there may be nothing, and of a measure no value before, after or at all."""
    own = {"unlearn": {"before": {"rouge": 0.5}, "after": {"prob": 0.5, "rouge": 0.5}}}
    found = row("relearn", models=own)
    assert attacks.cells_of(found, "prob", results()) == ["–→0.50", "–", "+0.25"]
    assert attacks.cells_of(found, "rouge", results(), whole=True) == ["0.50", "–", "-0.12"]
    assert attacks.cells_of(found, "truth_ratio", results()) == ["–", "–", "–"]
    assert attacks.cells_of(found, "prob", results(oracle=None)) == ["–→0.50"]
    assert attacks.course({"before": {"prob": 0.5}, "after": {}}, "prob") == "–"


@pytest.mark.parametrize(("stage", "known"), [("none", True), ("quantise", False)])
def test_what_is_known_without_an_attack_is_told_by_the_row_without_one(stage, known):
    assert attacks.still_known(results(row(stage, "still known"))) is known
    assert attacks.still_known(results(row("none", "near"))) is False


def test_a_long_label_is_cut_to_its_width():
    found = row("quantise")
    assert attacks.label_of(found) == attacks.label_of(found, 17) == "quantise: by hand"
    assert attacks.label_of(found, 16) == "quantise: by ha…" and attacks.label_of(found, 14) == "quantise: by…"
    assert attacks.label_of(row("none")) == "no attack"


def test_sampled_answers_have_bounds_beside_those_of_the_retrained_model():
    sampled = row("sampling")
    sampled["models"]["unlearn"]["after"] |= {"m_mu": 0.5, "m_bin": 0.25}
    sampled["models"]["retrain"]["after"] |= {"m_bin": 0.125}
    lines = attacks.words_below(results(row("none"), sampled, left_out={"a": "b"}, failed={"c": "d"}, any_script=0))
    assert lines[2:] == [
        "Sampling, bounds: M_μ 0.50, M_bin 0.25 (retrained 0.12) (means over questions, see docs/guides/leakage.md).",
        "a: left out, b.",
        "c failed: d.",
    ]


def test_membership_without_a_retrained_model_has_one_value():
    of = {"variant": "zlib", "members": 4, "others": 6, "models": {"unlearn": {"auc": 0.75, "low": 0.5, "high": 1.0}}}
    alone = results(row("none"), oracle=None, membership=[of])
    assert attacks.membership_rows(alone) == [["zlib", "4 + 6", "0.75 [0.50, 1.00]"]]
    assert attacks.membership_head(alone) == ["inference", "n", "unlearned"]
    assert attacks.words_below(alone) == [attacks.LEGEND, attacks.NO_ORACLE, attacks.MEMBERSHIP_LEGEND]


def test_an_attack_that_failed_has_a_row_of_dashes():
    found = results(row("quantise", "near"), failed={"prefix": "no memory"}, oracle=None)
    assert line_of(printed(found), "prefix –") == ["failed", "–", "–"]


@pytest.mark.parametrize("oracle", ["retrain", None])
def test_no_name_and_no_number_is_broken(oracle):
    table = attacks.tables(results(row("quantise", "near"), oracle=oracle), 30).renderables[1]
    assert [column.no_wrap for column in table.columns if column.header != "n"] == [True] * (len(table.columns) - 1)
    assert [column.justify for column in table.columns][:3] == ["left", "right", "right"]


def test_words_are_no_markup_and_get_no_colours_of_their_own():
    out = io.StringIO()
    console = Console(file=out, width=400, force_terminal=True, color_system="standard")
    attacks.print_results(results(row("none", "near"), failed={"prefix": "[red]3 of 'x'"}), console)
    assert out.getvalue().splitlines()[-1] == "prefix failed: [red]3 of 'x'."
