"""Every metric that speaks of the forget records is judged, in the direction that the catalogue knows."""

from benchmarks.meta.measuring import EVALUATORS
from benchmarks.meta.metrics import JUDGES
from oblivionis.measures import registry

OTHER_SETS = ("retain_", "real_authors_", "world_facts_", "model_utility")


def test_no_metric_of_the_forget_records_is_left_out():
    expected = set()
    for name in EVALUATORS:
        for key, metric in registry.measures()[name].catalogue.items():
            own = key.removeprefix(f"{name}_")
            if metric.direction is not None and not own.startswith(OTHER_SETS):
                expected.add(key)
    assert {judge.key for judge in JUDGES} == expected
    assert len(JUDGES) == len(expected) == 51


def test_what_is_better_after_forgetting_is_the_other_way_when_a_model_knows():
    for judge in JUDGES:
        metric = registry.catalogue()[judge.key]
        if metric.needs_oracle and metric.direction in ("higher", "lower"):
            assert judge.sign == {"higher": -1, "lower": 1}[metric.direction], judge.key
        assert judge.sign in (1, -1) and judge.why and judge.label == metric.label


def test_families_are_in_one_piece():
    families = [judge.family for judge in JUDGES]
    assert [f for n, f in enumerate(families) if n == 0 or families[n - 1] != f] == list(dict.fromkeys(families))
