"""The pages of a run."""

REPORT = "report.html"
"""The first of them, in its folder; the others link back to it."""
