"""matplotlib's drawings as parts of a page: colours, fonts and ids."""

from __future__ import annotations

import re

import matplotlib
import pytest
from matplotlib.figure import Figure
from support.hostile import Parsed

from oblivionis.reports.svg import FIGURE_STYLE, INK, PAPER, svg_figure


def drawn(name="of rounds", **how):
    with matplotlib.rc_context(FIGURE_STYLE):
        figure = Figure(figsize=(2, 1))
        axis = figure.subplots()
        axis.plot([0, 1], [0, 1], marker="o", color=INK, markerfacecolor=PAPER)
        axis.set_title("a <title>")
        axis.text(0, 0, "bold", fontweight="bold", fontstyle="italic")
    return str(svg_figure(figure, name, 'what "is" seen', **how))


def test_a_drawing_has_the_pages_colours_and_no_style_of_its_own():
    source = drawn()
    assert INK not in source and PAPER not in source and ' style="' not in source and "<style" not in source
    assert 'stroke="currentColor"' in source or 'fill="currentColor"' in source
    assert 'fill="var(--paper)"' in source and "font-family" not in source
    assert source.startswith('<div class="figure"><svg role="img" stroke-linejoin="round" stroke-linecap="butt" ')
    assert 'aria-label="what &#34;is&#34; seen"' in source and ">a &lt;title&gt;<" in source
    assert "<?xml" not in source and "<!DOCTYPE" not in source and "Matplotlib v" not in source


def test_the_parts_of_a_font_are_attributes_of_their_own():
    (bold,) = re.findall(r"<text ([^>]*)>bold</text>", drawn())
    assert 'font-style="italic"' in bold and 'font-weight="700"' in bold and 'font-size="9px"' in bold
    (title,) = re.findall(r"<text ([^>]*)>a &lt;title&gt;</text>", drawn())
    assert 'font-size="9px"' in title and "font-style" not in title and 'text-anchor="middle"' in title


def test_two_drawings_in_a_page_share_no_id_and_each_refers_to_its_own():
    first, second = (Parsed(drawn(name)) for name in ("of rounds", "b"))
    ids = [{a["id"] for _, a in page.tags if "id" in a} for page in (first, second)]
    assert ids[0] and not ids[0] & ids[1] and all(i.startswith("of-rounds-") for i in ids[0])
    for page, own in zip((first, second), ids, strict=True):
        links = [a[name] for _, a in page.tags for name in ("xlink:href",) if name in a]
        clips = [a["clip-path"] for _, a in page.tags if "clip-path" in a]
        assert links and all(link.removeprefix("#") in own for link in links)
        assert clips and all(clip.removeprefix("url(#").removesuffix(")") in own for clip in clips)


@pytest.mark.parametrize(
    ("how", "around"), [({}, {"class": "figure"}), ({"wide": True}, {"class": "wide figure", "tabindex": "0"})]
)
def test_a_wide_drawing_can_be_moved(how, around):
    assert Parsed(drawn(**how)).tags[0] == ("div", around)
