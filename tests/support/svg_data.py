"""Numbers read back from a page's drawing: each path in the units of its own axes, by the labels of the ticks."""

import re
import xml.etree.ElementTree as ET

import numpy as np

_SVG = "{http://www.w3.org/2000/svg}"


class Drawing:
    """The drawing of a page whose ids begin with `name`."""

    def __init__(self, page, name):
        source = next(svg for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL) if f'id="{name}-figure_1"' in svg)
        self.root, self.name = ET.fromstring(source), name
        self._axes = [g for g in self.root.iter(f"{_SVG}g") if re.fullmatch(rf"{name}-axes_\d+", g.get("id", ""))]

    @property
    def words(self):
        """All texts of the drawing."""
        return ["".join(text.itertext()) for text in self.root.iter(f"{_SVG}text")]

    def parts(self):
        """What has a name of its own, without the names that matplotlib gives."""
        ids = [g.get("id", "").removeprefix(f"{self.name}-") for g in self.root.iter(f"{_SVG}g")]
        return [i for i in ids if re.fullmatch(r"[a-z_]+-[\w-]+", i) and i != "figure_1"]

    def lines(self, part):
        """The lines of the part of this name, each as points (x, y): of a path in pieces a line per piece, of markers
        alone a line per marker. An axis without labelled ticks of its own is that of the axes beside it."""
        for axes in self._axes:
            for group in axes.iter(f"{_SVG}g"):
                if group.get("id") == f"{self.name}-{part}":
                    x, y = self._scale(axes, "x"), self._scale(axes, "y")
                    return [[(float(x(a)), float(y(b))) for a, b in line] for line in _pixels(group)]
        raise AssertionError(f"{part} is not among {self.parts()}")

    def _scale(self, axes, which):
        """Pixels to the units of an axis."""
        for candidate in (axes, *self._axes):
            ticks = [g for g in candidate.iter(f"{_SVG}g") if f"-{which}tick_" in g.get("id", "")]
            known = [(float(g.find(f".//{_SVG}use").get(which)), _label(g)) for g in ticks]
            known = [(pixel, float(label)) for pixel, label in known if re.fullmatch(r"-?[\d.]+", label)]
            if len(known) > 1:
                pixels, values = np.array(known).T
                slope = (values[-1] - values[0]) / (pixels[-1] - pixels[0])
                return lambda pixel: values[0] + slope * (pixel - pixels[0])
        return float


def _label(tick):
    return "".join("".join(text.itertext()) for text in tick.iter(f"{_SVG}text")).replace("\u2212", "-")


def _pixels(group):
    paths = [path.get("d") for path in group.findall(f"{_SVG}path")]
    numbers = [re.findall(r"([ML]) ([-\d.]+) ([-\d.]+)", path) for path in paths]
    lines = []
    for command, x, y in (point for path in numbers for point in path):
        if command == "M":
            lines.append([])
        lines[-1].append((float(x), float(y)))
    if lines:
        return lines
    return [[(float(use.get("x")), float(use.get("y")))] for use in group.iter(f"{_SVG}use")]
