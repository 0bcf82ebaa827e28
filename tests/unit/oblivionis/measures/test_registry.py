"""The catalogue of metrics: what every evaluator declares, and what is made of it."""

import subprocess
import sys
from collections import defaultdict
from typing import get_args

import pytest
from htpy import fragment

from benchmarks.output.figures import drawn, metric_name
from evaluation.leakage.summary import COLUMNS
from evaluation.metrics.catalogue import Direction, Group, Metric
from evaluation.metrics.membership import ATTACKS
from evaluation.metrics.tofu import SHORT_NAMES
from oblivionis import measures
from oblivionis.config import extension_traits
from oblivionis.config.schema import MEMBERSHIP
from oblivionis.measures import registry
from oblivionis.measures.audit_numbers import NAMES
from oblivionis.measures.rebound.evaluator import MEASURES
from oblivionis.reports import run_summary as report
from oblivionis.reports.glossary import GLOSSARY
from oblivionis.runs.directory import named_metrics

ROWS = [
    ("Forget", ["Prob", "ROUGE-L recall", "Forget truth ratio", "Forget quality (KS p)"]),
    ("Retain", ["Prob", "ROUGE-L recall", "Truth ratio"]),
    ("Real authors", ["Prob", "ROUGE-L recall", "Truth ratio"]),
    ("World facts", ["Prob", "ROUGE-L recall", "Truth ratio"]),
    (
        "Forget, sampled",
        ["Mean leakage", "ED score", "Bound on mean leakage (M_μ)", "Questions that may leak (M_bin)"],
    ),
    ("Forget, RULER", ["Mean rank (null 0.5)", "S_gap (null 0)", "S_oracle", "S_shift"]),
    *(
        (
            f"{group}, WikiMem",
            [
                "Facts that rank first (strict)",
                "Facts that rank first (any phrasing)",
                "Memorisation strength z*",
                "People with nothing memorised",
                "Values that score higher (null 0.5)",
                "Facts that are likeliest",
            ],
        )
        for group in ("Forget", "Retain")
    ),
    ("Forget, MUSE", ["VerbMem (NVM)", "KnowMem (NKM)", "PrivLeak"]),
    ("Retain, MUSE", ["KnowMem (UP)"]),
    ("Forget, RWKU", ["Blanks filled (FB)", "Questions answered (QA)", "Attacks answered (AA)"]),
    ("Neighbours, RWKU", ["Blanks filled (FB)", "Questions answered (QA)"]),
    *((f"{name}, multiple choice", ["Accuracy"]) for name in ("Forget", "Utility", "Own file")),
    (
        "Forget, membership",
        ["AUC, loss", "AUC, zlib", "AUC, Min-20 %", "AUC, Min-40 %", "AUC, Min-K++ 20 %", "AUC, reference"],
    ),
    ("Forget, fluency", ["NLL under the base model", "Gibberish", "Answers without an end"]),
    ("Retain, fluency", ["NLL under the base model", "Gibberish", "Answers without an end"]),
    ("All but forget", ["Model utility"]),
]


def test_the_comparison_has_its_rows_in_their_order():
    every = {"finetune": dict.fromkeys(registry.catalogue(), 0.5)}
    expected = [(group, label, [0.5]) for group, labels in ROWS for label in labels]
    assert [row[1:] for row in report.rows(every)] == expected
    some = {"finetune": {"model_utility": 0.1}, "unlearn": {"forget_prob": 0.2, "unknown": 1.0}}
    assert [row[1:] for row in report.rows(some)] == [
        ("Forget", "Prob", [None, 0.2]),
        ("All but forget", "Model utility", [0.1, None]),
    ]


def test_evaluators_run_in_their_order():
    first = ("tofu", "ruler", "leakage", "wikimem", "membership", "muse", "rwku", "choices", "fluency", "rebound")
    assert registry.names() == (*first, "lm_eval")


def test_what_evaluators_measure_is_what_they_declare():
    known = registry.catalogue()
    assert set(SHORT_NAMES.values()) <= set(known)
    assert {f"leakage_{name}" for name in COLUMNS} <= set(known)
    attacks = [key for key, m in known.items() if key.startswith("membership_auc_") and m.group is not None]
    assert attacks == [f"membership_auc_{name}" for name in ATTACKS] and ATTACKS == MEMBERSHIP
    assert set(MEASURES.values()) <= set(known)


def test_every_metric_is_told_once_and_can_be_explained():
    meanings = defaultdict(set)
    for key, metric in registry.catalogue().items():
        meanings[metric.title].add(metric.meaning)
        assert metric.direction is None or metric.direction in get_args(Direction), key
        assert metric.meaning.endswith(".") and metric.label and GLOSSARY[metric.title] == metric.meaning
    assert all(len(found) == 1 for found in meanings.values())
    declared = [m for name in registry.names() for m in registry.measures()[name].metrics]
    assert len(declared) + len(registry.OF_STAGES) == len(registry.catalogue()), "no two of one name"
    places = {metric.group.place: metric.group for metric in declared if metric.group is not None}
    assert len(places) == len({metric.group for metric in declared if metric.group is not None})


def test_readers_see_names_that_tell_metrics_apart():
    names = [registry.reader_name(key) for key in registry.catalogue()]
    assert len(set(names)) == len(names)
    assert registry.reader_name("forget_prob") == "Forget Prob"
    assert registry.reader_name("world_facts_truth_ratio") == "World facts Truth ratio"
    assert registry.reader_name("forget_truth_ratio") == "Forget truth ratio"
    assert registry.reader_name("ruler_mean_rank") == "Mean rank (null 0.5)"
    assert registry.reader_name("seconds") == "Seconds" and registry.reader_name("nothing") == "nothing"


def test_suites_draw_and_explain_what_the_catalogue_says():
    assert set(drawn()) == {
        *("forget_rouge", "forget_prob", "forget_truth_ratio", "forget_quality", "retain_rouge", "retain_prob"),
        *("model_utility", "leakage_mean", "ruler_mean_rank"),
    }
    linked = str(fragment[metric_name("retain_prob")])
    assert "#g-prob" in linked and "Retain Prob" in linked
    assert str(fragment[metric_name("a<b")]) == "a&lt;b"


def test_legends_follow_the_rows():
    def first_words(*measured):
        return [line.split(":")[0] for line in registry.legends(measured)]

    assert first_words("forget_prob", "model_utility", "leakage_mean") == []
    shown = ("membership_auc_zlib", "muse_verbmem", "wikimem_retain_rank", "fluency_forget_nll", "ruler_gap")
    assert first_words(*shown) == ["RULER", "WikiMem", "MUSE", "Membership", "Fluency"]
    assert first_words("membership_auc_zlib_low", "fluency_threshold") == [], "they have no row"


def test_clients_tell_what_they_measure_alone_and_nothing_else():
    told = registry.reported_by_clients()
    assert {"forget_prob", "retain_rouge", "leakage_m_bin", "ruler_mean_rank", "wikimem_forget_rank"} <= told
    assert {"fluency_forget_nll", "fluency_threshold"} <= told and told < NAMES
    own = {key for key in told if not registry.catalogue()[key].needs_oracle}
    assert told == own and not any(
        key.startswith(("membership_", "muse_", "rebound_", "real_authors_", "model_", "seconds")) for key in told
    )
    assert not {"forget_quality", "forget_ks", "ruler_gap", "ruler_shift"} & told
    assert registry.run_by_clients() == ("tofu", "ruler", "leakage", "wikimem", "fluency")


def test_details_are_kept_unless_the_evaluator_says_otherwise():
    assert registry.to_log("tofu", {"log": {"a": {}}, "ids": {"a": []}}) == {"a": {}, "ids": {"a": []}}
    assert registry.to_log("ruler", {"ids": ["x"], "ranks": [0.5], "embedded": object()}) == {"ruler": {"x": 0.5}}
    assert registry.to_log("leakage", {"ids": ["x"], "columns": {}}) == {}
    assert registry.to_log("wikimem", {"forget": 1}) == {"wikimem": {"forget": 1}}
    assert registry.to_log("wikimem", {}) == {} and registry.to_log("unknown", {"x": 1}) == {"unknown": {"x": 1}}


NEW = """
from evaluation.metrics.catalogue import Group, Metric

from oblivionis.measures.base import Measure


class Pace(Measure):
    metrics = (Metric("pace", "Pace & <b>", "higher", 0.25, "How fast.", Group("Forget, pace"), drawn=True),)
    legend = "Pace: how fast."
"""


@pytest.fixture
def pace(tmp_path, monkeypatch):
    """An evaluator that somebody added as a file."""
    (tmp_path / "pace.py").write_text(NEW, encoding="utf-8")
    monkeypatch.setattr(measures, "__path__", [*measures.__path__, str(tmp_path)])
    monkeypatch.setitem(extension_traits.CODE, "evaluator", (*extension_traits.CODE["evaluator"], str(tmp_path)))
    for cached in (registry.measures, registry.catalogue):
        cached.cache_clear()
    yield
    for cached in (registry.measures, registry.catalogue):
        cached.cache_clear()
    sys.modules.pop(f"{measures.__name__}.pace", None)


@pytest.mark.usefixtures("pace")
def test_a_new_file_reaches_table_legend_and_suites():
    assert registry.names()[-1] == "pace"
    metrics = {"unlearn": {"pace_pace": 0.75, "model_utility": 0.5, "forget_prob": 0.1}}
    assert report.rows(metrics)[1][1:] == ("Forget, pace", "Pace & <b> (null 0.25)", [0.75])
    assert report.legends(metrics) == ["Pace: how fast."]
    assert "pace_pace" in drawn() and registry.reader_name("pace_pace") == "Pace & <b> (null 0.25)"
    assert "pace_pace" not in registry.reported_by_clients(), "numbers leave a client only where the evaluator says so"
    assert "Pace &amp; &lt;b&gt;" in str(report.comparison(metrics).html_table())


def test_a_null_value_stands_in_the_title():
    assert Metric("k", "Label", "oracle", 0.5, "Means.").title == "Label (null 0.5)"
    assert Metric("k", "Label", "oracle", 0.0, "Means.", Group("G")).title == "Label (null 0)"
    assert Metric("k", "Label", None, None, "Means.").title == "Label"


def test_names_of_metrics():
    assert named_metrics("tofu", {"a": 1.0}) == {"a": 1.0}
    assert named_metrics("ruler", {"a": 1.0}) == {"ruler_a": 1.0}


def test_the_catalogue_is_read_without_what_is_heavy():
    heavy = "torch transformers peft scipy sklearn statsmodels matplotlib flwr ray datasets nltk pandas"
    code = (
        "import sys; from oblivionis.measures import registry; import oblivionis.reports.glossary;"
        "registry.catalogue(); registry.reported_by_clients();"
        f"print(*sorted(set('{heavy}'.split()) & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""
