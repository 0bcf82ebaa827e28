"""RULER's tabular experiment: data, models, unlearning with the clients' losses, and what a cell measures."""

import functools
import gzip
import hashlib
import importlib
import json
from urllib.error import URLError

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional as F

from benchmarks.tabular import data, unlearning
from benchmarks.tabular.data import Records, forget_rows
from benchmarks.tabular.experiment import COLUMNS, ORACLE, ORIGINAL, PAIR, TWIN, Cell, models, train_original
from benchmarks.tabular.model import initialised, train
from benchmarks.tabular.settings import Pretraining, Settings
from clients import losses
from evaluation.ruler.statistics import threshold_attack

SHAPE = {"features": 5, "classes": 3, "width": 8, "dropout": 0.0}
METHODS = ("grad_ascent", "neg_grad", "fine_tune", "scrub", "bad_teacher")


def records(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 5, generator=generator)
    return Records(x, torch.randint(3, (count,), generator=generator))


@pytest.fixture(scope="module")
def breast_cancer():
    return data.load("breast_cancer", None, 0.2, 999)


# -- data ----------------------------------------------------------------------------------------------------------

# RULER's Table 9: the sizes of the forget sets, beside the records of each dataset.
PAPER = {
    303: (10, 12, 24),
    569: (10, 22, 45),
    1000: (10, 40, 80),
    1599: (12, 63, 127),
    5404: (43, 216, 432),
    19020: (152, 760, 1521),
    45211: (361, 1808, 3616),
    45312: (362, 1812, 3624),
    48842: (390, 1953, 3907),
    101766: (814, 4070, 8141),
}


@pytest.mark.parametrize("count", PAPER)
def test_forget_sets_have_the_sizes_of_the_paper(count):
    train = count - -(-count // 5)
    assert tuple(len(forget_rows(train, f, 10, 999)) for f in (0.01, 0.05, 0.10)) == PAPER[count]


def test_a_forget_set_is_drawn_without_repetition_and_lies_inside_a_larger_one():
    small, large = (forget_rows(500, f, 10, 999) for f in (0.05, 0.10))
    assert len(set(large)) == 50 and set(large) <= set(range(500)) and set(small) < set(large)
    assert not np.array_equal(small, forget_rows(500, 0.05, 10, 998))


def test_forgetting_nearly_everything_is_refused():
    assert len(forget_rows(12, 0.1, 10, 0)) == 10
    with pytest.raises(ValueError, match="11 of 12 records are to be forgotten"):
        forget_rows(12, 0.1, 11, 0)


@pytest.mark.parametrize(("name", "sizes"), {"breast_cancer": (455, 114, 2), "digits": (1437, 360, 10)}.items())
def test_shipped_datasets_are_split_by_class_and_standardised_on_the_training_records(name, sizes):
    found = data.load(name, None, 0.2, 999)
    assert (len(found.train), len(found.test), found.classes) == sizes
    mean, spread = found.train.x.mean(0), found.train.x.std(0, correction=0)
    assert mean.abs().max() < 1e-5
    assert ((spread - 1).abs() < 1e-4).logical_or(spread == 0).all()
    assert found.test.x.mean(0).abs().max() > 1e-3
    shares = [torch.bincount(part.y, minlength=found.classes) / len(part) for part in (found.train, found.test)]
    assert (shares[0] - shares[1]).abs().max() < 0.01


HEART = """@RELATION heart
@ATTRIBUTE age NUMERIC
@ATTRIBUTE sex {male,female}
@ATTRIBUTE pain {none,some,much}
@ATTRIBUTE num {'<50','>50_1','>50_2'}
@DATA
"""


def cached_openml(folder, rows):
    """scikit-learn's cache as it is after `fetch_openml(name="heart-c", version=1)`, with a table of these rows."""
    table = HEART + "\n".join(rows) + "\n"
    address = "https://www.openml.org/data/v1/download/51/heart-c.arff"
    names = [("age", "numeric"), ("sex", "nominal"), ("pain", "nominal"), ("num", "nominal")]
    features = [
        {
            "index": str(i),
            "name": n,
            "data_type": t,
            "is_target": "false",
            "is_ignore": "false",
            "is_row_identifier": "false",
            "number_of_missing_values": "0" if n == "num" else "1",
        }
        for i, (n, t) in enumerate(names)
    ]
    listed = {"did": 49, "name": "heart-c", "version": 1, "status": "active"}
    description = {
        "id": "49",
        "name": "heart-c",
        "version": "1",
        "format": "ARFF",
        "status": "active",
        "file_id": "51",
        "url": address,
        "md5_checksum": hashlib.md5(table.encode()).hexdigest(),
        "default_target_attribute": "num",
    }
    api = "api/v1/json/data"
    quality = {"name": "NumberOfInstances", "value": str(len(rows))}
    answers = {
        f"{api}/list/data_name/heart-c/limit/2/data_version/1.gz": {"data": {"dataset": [listed]}},
        f"{api}/49.gz": {"data_set_description": description},
        f"{api}/features/49.gz": {"data_features": {"feature": features}},
        f"{api}/qualities/49.gz": {"data_qualities": {"quality": [quality]}},
    }
    files = {path: json.dumps(answer) for path, answer in answers.items()}
    files["data/v1/download/51/heart-c.arff.gz"] = table
    for path, text in files.items():
        target = folder / "openml" / "openml.org" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(gzip.compress(text.encode()))


def test_openml_data_is_read_from_scikit_learns_cache_encoded_and_made_binary(tmp_path):
    rng = np.random.default_rng(0)
    labels = ["'<50'"] * 30 + ["'>50_1'"] * 20 + ["'>50_2'"] * 10
    rows = [
        f"{rng.integers(30, 70)},{rng.choice(['male', 'female'])},{rng.choice(['none', 'some', '?'])},{label}"
        for label in labels
    ]
    rows[0] = "?,male,none,'<50'"
    cached_openml(tmp_path, rows)
    found = data.load("heart_disease", str(tmp_path), 0.2, 999)
    assert (len(found.train), len(found.test), found.classes) == (48, 12, 2)
    assert found.features == 1 + 1 + 3, "age, one column for the two sexes, one per pain with that of the missing"
    assert int(found.train.y.sum() + found.test.y.sum()) == 30, "both kinds of illness are class 1"
    assert torch.isfinite(found.train.x).all() and torch.isfinite(found.test.x).all()


def test_what_cannot_be_fetched_is_said_with_its_reason(monkeypatch, tmp_path):
    def fails(**_):
        raise URLError("no route to host")

    monkeypatch.setattr(data.shipped, "fetch_openml", fails)
    with pytest.raises(
        data.Unavailable, match="OpenML's 'credit-g', version 1: URLError: <urlopen error no route to host>"
    ):
        data.load("german_credit", str(tmp_path), 0.2, 999)


@pytest.mark.parametrize(
    ("name", "labels", "ones"),
    [
        ("wine_quality", ["3", "5", "6", "8"], [False, False, True, True]),
        ("diabetes_130", ["NO", ">30", "<30"], [False, False, True]),
        ("heart_disease", ["<50", ">50_1"], [False, True]),
    ],
)
def test_targets_of_many_classes_are_made_binary(name, labels, ones):
    assert data.SOURCES[name].positive(pd.Series(labels)).tolist() == ones


def test_the_papers_ten_datasets_are_marked():
    assert sum(map(data.in_paper, data.SOURCES)) == 10
    assert [name for name in data.SOURCES if not data.in_paper(name)] == ["wine", "digits"]


# -- models --------------------------------------------------------------------------------------------------------


def test_original_and_oracle_start_from_the_same_weights():
    dropping = SHAPE | {"dropout": 0.2}
    first, second = (train(records(n), dropping, 0, 1e-3, seed=4, dropout_seed=4) for n in (40, 30))
    other = train(records(40), dropping, 0, 1e-3, seed=5, dropout_seed=4)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.head.weight, other.head.weight)


def test_training_repeats_itself_and_leaves_the_global_random_state_alone():
    dropping = SHAPE | {"dropout": 0.5}
    state = torch.get_rng_state()
    one, two, masked = (train(records(40), dropping, 5, 1e-2, seed=1, dropout_seed=d) for d in (1, 1, 2))
    assert torch.equal(one.head.weight, two.head.weight) and not torch.equal(one.head.weight, masked.head.weight)
    assert torch.equal(state, torch.get_rng_state())


def test_training_is_adam_on_the_mean_cross_entropy_of_all_records():
    batch = records(40)
    expected = initialised(SHAPE, 3)
    optimiser = torch.optim.Adam(expected.parameters(), lr=1e-2)
    for _ in range(4):
        optimiser.zero_grad()
        loss = -torch.log_softmax(expected(batch.x), 1)[torch.arange(40), batch.y].mean()
        loss.backward()
        optimiser.step()
    found = train(batch, SHAPE, 4, 1e-2, seed=3, dropout_seed=3)
    for a, b in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_the_representation_is_what_the_head_reads_after_the_last_relu():
    model = initialised(SHAPE | {"dropout": 0.5}, 0)
    x = records(20).x
    first, _, _, second, *_ = model.body
    hidden = (
        (second.weight @ (first.weight @ x.T + first.bias[:, None]).clamp(min=0) + second.bias[:, None]).clamp(min=0).T
    )
    torch.testing.assert_close(model.embed(x), hidden)
    torch.testing.assert_close(model(x), hidden @ model.head.weight.T + model.head.bias)


# -- unlearning ----------------------------------------------------------------------------------------------------


def cross_entropy(model, batch):
    return F.cross_entropy(model(batch.x), batch.y)


def divergence(model, other, batch, temperature):
    """T² KL(other‖model), mean over the records."""
    q = torch.log_softmax(other(batch.x).detach() / temperature, 1)
    p = torch.log_softmax(model(batch.x) / temperature, 1)
    return temperature**2 * (q.exp() * (q - p)).sum(1).mean()


def formulas(name, received, forget, retain, epoch):
    """The losses of the updates of an epoch, by RULER's words and the papers that it names."""
    teacher = initialised(SHAPE, 100)
    if name == "grad_ascent":
        return [lambda m: -cross_entropy(m, forget)]
    if name == "neg_grad":
        return [lambda m: 0.3 * cross_entropy(m, retain) - 0.7 * cross_entropy(m, forget)]
    if name == "fine_tune":
        return [lambda m: cross_entropy(m, retain)]
    if name == "scrub":
        down = [lambda m: 0.4 * divergence(m, received, retain, 2.0) + cross_entropy(m, retain)]
        return down + ([lambda m: -divergence(m, received, forget, 2.0)] if epoch < 2 else [])
    return [
        lambda m: (
            divergence(m, teacher, forget, 2.0)
            + 0.4 * divergence(m, received, retain, 2.0)
            + 0.4 * cross_entropy(m, retain)
        )
    ]


GIVEN = {
    "grad_ascent": {},
    "neg_grad": {"alpha": 0.3},
    "fine_tune": {},
    "scrub": {"alpha": 0.4, "temperature": 2.0, "msteps": 2},
    "bad_teacher": {"alpha": 0.4, "temperature": 2.0, "teacher_seed": 100},
}


def plan_of(name, epochs=4, learning_rate=1e-2):
    return unlearning.Plan(name, epochs, learning_rate, losses.get(name).parameters(GIVEN[name]))


@pytest.mark.parametrize("name", METHODS)
def test_unlearning_follows_the_formula_of_the_method(name):
    forget, retain = records(12, 1), records(40, 2)
    original = train(retain, SHAPE, 20, 1e-2, seed=0, dropout_seed=0)
    before = [p.clone() for p in original.parameters()]
    expected = train(retain, SHAPE, 20, 1e-2, seed=0, dropout_seed=0)
    optimiser = torch.optim.Adam(expected.parameters(), lr=1e-2)
    for epoch in range(4):
        for formula in formulas(name, original, forget, retain, epoch):
            optimiser.zero_grad()
            formula(expected).backward()
            optimiser.step()
    found = unlearning.unlearn(original, forget, retain, plan_of(name), seed=100)
    for a, b, start in zip(found.parameters(), expected.parameters(), before, strict=True):
        torch.testing.assert_close(a, b)
        assert not torch.equal(a, start)
    assert all(torch.equal(a, b) for a, b in zip(original.parameters(), before, strict=True)), "the original stays"


@pytest.mark.parametrize(("name", "updates"), {**dict.fromkeys(METHODS, 4), "scrub": 6}.items())
def test_the_losses_are_those_of_the_clients(name, updates, monkeypatch):
    module = importlib.import_module(f"clients.losses.{name}")
    real, seen = getattr(module, name), []

    @functools.wraps(real)
    def counted(*args, **kwargs):
        seen.append(kwargs)
        return real(*args, **kwargs)

    monkeypatch.setattr(module, name, counted)
    forget, retain = records(12, 1), records(40, 2)
    unlearning.unlearn(initialised(SHAPE, 0), forget, retain, plan_of(name), seed=100)
    assert len(seen) == updates
    sizes = {key: len(value) for call in seen for key, value in call.items() if isinstance(value, torch.Tensor)}
    assert sizes and all(size == (12 if key.startswith("forget") else 40) for key, size in sizes.items())


def test_unlearning_drops_out_by_the_unlearning_seed():
    dropping = SHAPE | {"dropout": 0.5}
    original = initialised(dropping, 0)
    forget, retain = records(12, 1), records(40, 2)
    one, same, other = (unlearning.unlearn(original, forget, retain, plan_of("neg_grad"), s) for s in (100, 100, 101))
    assert torch.equal(one.head.weight, same.head.weight) and not torch.equal(one.head.weight, other.head.weight)
    assert not one.training


def test_every_method_but_those_of_states_tokens_logits_projections_and_other_answers_can_be_had():
    without = {"rmu", "pga", "undial", "wga", "satimp", "ce_u", "pdu", "idk_nll", "idk_dpo", "altpo"}
    without |= {"calibrated", "task_vector", "ihl", "fedosd"}
    assert set(losses.names()) - set(unlearning.names()) == without
    forget, retain = records(12, 1), records(40, 2)
    for name in unlearning.names():
        plan = unlearning.Plan(name, 2, 1e-3, losses.hyperparameters(name))
        unlearned = unlearning.unlearn(initialised(SHAPE, 0), forget, retain, plan, seed=0)
        assert torch.isfinite(unlearned.head.weight).all()


# -- a cell --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def settings():
    methods = {name: {"epochs": 2, "learning_rate": 1e-3, **GIVEN[name]} for name in METHODS}
    return Settings(datasets=["breast_cancer"], methods=methods, pretraining=Pretraining(epochs=8))


@pytest.fixture(scope="module")
def cell(settings, breast_cancer):
    return Cell(settings, breast_cancer, train_original(settings, breast_cancer, 3), 0.05, 3)


@pytest.fixture(scope="module")
def rows(cell):
    return {row["method"]: row for row in cell.rows()}


def test_the_forget_set_is_the_same_for_all_seeds(settings, breast_cancer, cell):
    other = Cell(settings, breast_cancer, train_original(settings, breast_cancer, 4), 0.05, 4)
    assert torch.equal(cell.forget.x, other.forget.x) and len(cell.forget) == 22
    assert len(cell.retain) == 455 - 22
    assert not {tuple(row) for row in cell.forget.x.tolist()} & {tuple(row) for row in cell.retain.x.tolist()}


def test_a_cell_has_a_row_for_each_model(settings, rows):
    assert list(rows) == models(settings) == [ORIGINAL, ORACLE, TWIN, PAIR, *METHODS]
    assert all(tuple(row) == COLUMNS for row in rows.values())


def cosines(a, b):
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


@torch.no_grad()
def test_a_row_holds_the_measures_by_their_definitions(settings, cell, breast_cancer, rows):
    plan = next(p for p in settings.plans() if p.method == "neg_grad")
    with torch.enable_grad():
        unlearned = unlearning.unlearn(cell.original, cell.forget, cell.retain, plan, 100)
    forget, retain = cell.forget.x, cell.retain.x
    near = cosines(unlearned.embed(forget), cell.oracle.embed(forget))
    row = rows["neg_grad"]
    assert row["s_oracle"] == pytest.approx(near.mean().item(), abs=1e-6)
    gap = near.mean() - np.median(cosines(unlearned.embed(retain), cell.oracle.embed(retain)).numpy())
    assert row["s_gap"] == pytest.approx(gap.item(), abs=1e-6)
    before = cosines(cell.original.embed(forget), cell.oracle.embed(forget))
    assert row["s_shift"] == pytest.approx((near - before).mean().item(), abs=1e-6)
    f, r = (F.normalize(unlearned.embed(x).double(), dim=1) for x in (forget, retain))
    own = (r @ r.T - 2 * torch.eye(len(r))).amax(1)
    best = (f @ r.T).amax(1)[:, None]
    ranks = (own < best).double().mean(1) + (own == best).double().mean(1) / 2
    assert row["mean_rank"] == pytest.approx(ranks.mean().item(), abs=1e-3)
    for name, part in (("forget", cell.forget), ("retain", cell.retain), ("test", breast_cancer.test)):
        right = (unlearned(part.x).argmax(1) == part.y).double().mean().item()
        assert row[f"{name}_accuracy"] == pytest.approx(right)
    loss = [F.cross_entropy(unlearned(p.x), p.y, reduction="none").numpy() for p in (cell.forget, breast_cancer.test)]
    assert row["mia"] == pytest.approx(threshold_attack(*loss))


def test_what_has_no_meaning_is_nan(rows):
    assert all(np.isnan(rows[ORACLE][name]) for name in ("s_oracle", "s_gap", "s_shift"))
    assert all(np.isnan(rows[name]["s_shift"]) for name in (ORIGINAL, TWIN, PAIR))
    assert all(np.isfinite(row["mean_rank"]) and 0 <= row["mia"] <= 1 for row in rows.values())


def test_a_twin_shares_the_oracles_start_and_a_pair_does_not(rows):
    assert rows[TWIN]["s_oracle"] > 0.99 > 0.9 > rows[PAIR]["s_oracle"]
