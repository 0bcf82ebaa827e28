"""Texts of data, models, clients and files on the pages: shown as they are, and never part of the page itself."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from support.hostile import TAGS, Parsed, hostile_certificate, hostile_run, hostile_suite, text

from benchmarks.output.page import write_suite_html
from oblivionis.audits.people_outcomes import person_slug
from oblivionis.reports.certificate.page import certificate_page
from oblivionis.reports.format import printable
from oblivionis.reports.html.request_pages import page_of
from oblivionis.reports.html.run_page import write_html


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Every page there is, by its name, and the folder that it lies in."""
    folder = tmp_path_factory.mktemp("hostile")
    run, config = hostile_run(folder / "run")
    write_html(run, config)
    found = {"report": run.path / "report.html"}
    found |= {r: run.path / page_of(text("request") if r == "request" else r) for r in ("request", "leaves", "waits")}
    found["person"] = run.path / "people" / f"{person_slug(text('person'))}.html"
    found["certificate"] = folder / "certificate.html"
    found["certificate"].write_text(certificate_page(hostile_certificate()), encoding="utf-8")
    found["suite"] = write_suite_html(folder / "suite", hostile_suite(folder / "suite"))
    found["table"] = folder / "table.html"
    found["table"].write_text(hostile_suite(folder / "other").tables[0].page(), encoding="utf-8")
    return found


PAGES = ("report", "request", "leaves", "waits", "person", "certificate", "suite", "table")


@pytest.fixture(params=PAGES)
def page(request, pages):
    return pages[request.param], Parsed(pages[request.param].read_text(encoding="utf-8"))


def test_nothing_but_the_pages_own_elements(page):
    _, parsed = page
    assert {tag for tag, _ in parsed.tags} <= set(TAGS.split())
    names = {name for _, attributes in parsed.tags for name in attributes}
    assert not {name for name in names if name.startswith("on")}
    assert [tag for tag, _ in parsed.tags].count("style") == 1 and "style" not in names


def test_every_link_stays_in_the_pages(page):
    path, parsed = page
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for link in parsed.links:
        target, _, place = unquote(link).partition("#")
        assert not re.match(r"\s*[a-z]+:|//", target), link
        assert not target or Path(path.parent, target).is_file(), link
        assert target or not place or place in ids or link == "#glossary", link


SHOWN = {
    "report": "python platform cpus strategy method parameter value yaml request reason failure latest#failure "
    "evaluator error question truth answer#of#finetune answer#of#unlearn answer#of#retrain person cohort variant "
    "inference left#out why#left#out failed#attack why#failed model source data path reused",
    "request": "request reason group subject failure question truth answer#of#unlearn person issued record#0",
    "leaves": "record#3 issued",
    "waits": "unknown#record latest#failure",
    "person": "person cohort in#the#data fact true#value phrasing ranked#first request reason",
    "certificate": "demand judged#record outcome issued check#0 check#2 figure of why request record#0 record#1 "
    "state run aggregator method config "
    "version package its#version source event hash client base fingerprint hash#before hash#after measure bound "
    "of#the#bound of#the#rank verdict attack judged where command needs key signature hash#of#the#final#model",
    "suite": "title description code cell axis aggregator method metric cell's#error table head text other "
    "marked#cell note label fact warning",
    "table": "table head text other marked#cell note",
}


@pytest.mark.parametrize(("name", "fields"), [(name, fields.split()) for name, fields in SHOWN.items()])
def test_the_texts_are_shown_as_they_are(pages, name, fields):
    """Warnings leave out what cannot be printed, and set as code what stands between backticks; a path has no slash."""
    lines = printable(Parsed(pages[name].read_text(encoding="utf-8")).shown)
    for field in fields:
        whole = printable(text(field.replace("#", " ")))
        assert any(v in lines for v in (whole, whole.replace("`code`", "code"), whole.replace("/", ""))), field


def test_a_label_of_a_figure_stays_one_attribute(pages):
    parsed = Parsed(pages["suite"].read_text(encoding="utf-8"))
    labels = [attributes["aria-label"] for tag, attributes in parsed.tags if tag == "svg"]
    assert f"{text('metric')} of every cell" in labels
