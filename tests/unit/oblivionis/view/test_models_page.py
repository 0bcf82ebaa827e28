"""The lineage of models is the tree that was made by hand, whatever ledgers say."""

import json
import re

import pytest
from support.lineage import hashed, lineage_run
from support.pages import Text
from support.reports import HOSTILE
from support.window import Visitor, run_page

from oblivionis.erasure.lineage import EXPORTED, FILE, Model, register
from oblivionis.erasure.verification_rules import VERIFIED
from oblivionis.runs.ancestry import Descent, write_lineage
from oblivionis.view import library
from oblivionis.view.models_page import descendants


def model(name, *of, run="run", stage="unlearn", places=()):
    return Model(name, run, stage, Descent(name, (*of, name), (run,)), places)


def drawn(models):
    return [(one.depth, one.model.model, one.of and one.of.model) for one in descendants(models)]


def test_each_model_stands_below_the_latest_that_it_comes_of():
    """base → (a → (a1, a2 → a21), b); x by itself; rounds r1 to r3 are no models of the list."""
    models = [
        *(model("base", "r1"), model("a", "base", "r2"), model("b", "base"), model("x", "r3")),
        *(model("a1", "base", "a"), model("a2", "base", "a"), model("a21", "base", "a", "a2", "r3")),
    ]
    assert drawn(models) == [
        *((0, "base", None), (1, "a", "base"), (2, "a1", "a"), (2, "a2", "a"), (3, "a21", "a2")),
        *((1, "b", "base"), (0, "x", None)),
    ]


def test_a_retrained_model_is_not_drawn_below_the_finetuned_one_of_its_run():
    first = model("f", run="first", stage="finetune", places=("first", "second"))
    assert drawn([first, model("r", "f", run="second", stage="retrain")]) == [(0, "f", None), (0, "r", None)]
    older = model("o", run="older", stage="unlearn")
    assert drawn([older, model("r", "o", run="second", stage="retrain")]) == [(0, "o", None), (1, "r", "o")]


def test_models_that_come_of_each_other_are_shown_once():
    assert sorted(name for _, name, _ in drawn([model("a", "b"), model("b", "a"), model("c", "b")])) == ["a", "b", "c"]
    chain = [model(f"m{n}", *(f"m{k}" for k in range(n))) for n in range(1200)]
    assert drawn(chain)[-1] == (1199, "m1199", "m1198"), "deeper than Python's stack"


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(library, "FRESH_SECONDS", -1.0)


@pytest.fixture
def folder(tmp_path):
    """`learned`, whose model A begins with; A serves d1 and not d2, whose id is hostile."""
    folder = tmp_path / "runs"
    learned = Descent(hashed("L"), (hashed("L"),), ("learned",))
    lineage_run(folder, "learned", {"finetune": ["L"]})
    requests = [("d1", VERIFIED), (HOSTILE, "open")]
    lineage_run(folder, "A", {"finetune": ["L"], "unlearn": ["A"]}, begun=learned, requests=requests, policy="file")
    return folder


def items(page):
    """The models of a page: how deep, and in words."""
    found = re.findall(r'<li id="m\d+" class="d(\d)[^"]*">(.*?)</li>', page, re.DOTALL)
    return [(int(depth), " ".join(re.sub("<[^>]+>", " ", text).split())) for depth, text in found]


def test_the_page_shows_the_tree_and_who_still_knows(folder):
    visitor = Visitor(folder)
    page = visitor.page("/models")
    (depth, first), (below, second) = items(page)
    assert (depth, below) == (0, 1)
    assert first.startswith("finetuned model of learned") and "lies in learned , A" in first
    assert "may still know" in first and "d1" in first.partition("may still know")[2]
    assert second.startswith("unlearned model of A comes of the finetuned model of learned")
    assert second.endswith("knew d1 : verified")
    parsed = Text(page)
    assert HOSTILE in parsed.text and "<script>alert" not in page
    assert {run_page("learned"), run_page("A"), "#m0"} <= set(parsed.links)
    assert page.count('class="d0 open"') == 1 == page.count('class="d1 open"')


def test_what_changes_in_the_folder_is_shown(folder):
    visitor = Visitor(folder)
    assert len(items(visitor.page("/models"))) == 2
    out = folder / "export"
    out.mkdir()
    of = Descent(hashed("E"), (hashed("L"), hashed("E")), ("gone",))
    write_lineage(out, of)
    register(folder, EXPORTED, of, stage="unlearn", folder=str(out))
    assert any(f"lies in {out}" in text for _, text in items(visitor.page("/models")))
    (out / "lineage.json").unlink()
    assert any("no place that is known" in text for _, text in items(visitor.page("/models")))
    (folder / FILE).write_text(json.dumps({"event": EXPORTED}) + "\n")
    assert visitor.get("/models").status_code == 422


def test_nothing_outside_of_the_folder_is_looked_at(folder, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    of = Descent(hashed("E"), (hashed("E"),), ("gone",))
    write_lineage(outside, of)
    register(folder, EXPORTED, of, stage="unlearn", folder=str(outside))
    (folder / "A" / "judgements.json").symlink_to(outside / "lineage.json")
    page = Visitor(folder).page("/models")
    assert "Not read: A: " in page and str(outside) not in page
    assert "no place that is known" in page
    (folder / FILE).rename(outside / FILE)
    (folder / FILE).symlink_to(outside / FILE)
    assert "is not looked at" in Visitor(folder).get("/models").text


def test_folders_are_chosen_by_name(folder, tmp_path):
    lineage_run(tmp_path / "other", "B", {"finetune": ["B"]})
    visitor = Visitor(tmp_path)
    page = visitor.page("/models")
    assert [text.split(" lies")[0][:20] for _, text in items(page)] == ["finetuned model of B"]
    assert "/models?folder=runs" in Text(page).links
    assert len(items(visitor.page("/models?folder=runs"))) == 2
    assert visitor.get("/models?folder=../runs").status_code == 404
    alone = Visitor(folder / "A").page("/models")
    assert "There is no folder of runs here" in alone, "what lies beside a run that was named is not looked at"
