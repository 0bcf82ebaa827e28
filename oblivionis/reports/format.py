"""Numbers and texts as readers see them."""

from __future__ import annotations

import math

from oblivionis.naming import counted as counted

ID_LENGTH = 24
SHOWN_CHARACTERS = 240


def number(value: float | None) -> str:
    """A cell: three decimals, powers of ten where that would hide the value, a dash where there is none."""
    if value is None or math.isnan(value):
        return "–"
    if value != 0 and abs(value) < 1e-3:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.3f}"


def fixed(value: float, digits: int = 3) -> str:
    """A cell with so many decimals; a dash for NaN."""
    return "–" if math.isnan(value) else f"{value:.{digits}f}"


def short(value: float, digits: int | None) -> str:
    """A cell as papers print it: two decimals, two significant places below 0.01, unless `digits` says else."""
    if digits is not None or math.isnan(value):
        return fixed(value, digits or 0)
    return f"{value:.2f}" if abs(value) >= 0.01 or value == 0 else f"{value:.2g}"


def p_value(value: float) -> str:
    """A cell for a p-value; a dash for NaN."""
    return "<0.001" if value < 0.001 else fixed(value)


def printable(text: str) -> str:
    """`text` as one line without control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def shortened(text: str, most: int = SHOWN_CHARACTERS) -> str:
    """`text` as one printable line of at most so many characters."""
    text = printable(text)
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def short_id(name: str) -> str:
    """`name` as one printable line, cut in the middle: what tells ids apart often stands at the end."""
    text, head = printable(name), ID_LENGTH // 3
    return text if len(text) <= ID_LENGTH else f"{text[:head]}…{text[head + 1 - ID_LENGTH :]}"


def bytes_text(number: float) -> str:
    """`number` bytes in decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"
