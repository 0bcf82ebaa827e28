"""The picture of README, drawn from a finished run: python docs/images/forget_curve.py RUN FILE.svg"""

import sys
from pathlib import Path

import matplotlib

from oblivionis.reports.html.curves import curves_of
from oblivionis.reports.svg import FIGURE_STYLE
from oblivionis.runs.directory import RunDirectory


def draw(folder: str, file: str) -> None:
    """The probability of forget and retain answers over the rounds of the stage unlearn, as in the run's report."""
    run = RunDirectory(Path(folder))
    retrained = [row["metrics"] for row in run.metrics() if (row["stage"], row["evaluator"]) == ("retrain", "tofu")]
    (unlearn,) = [curves for curves in curves_of(run, retrained[-1]) if curves.stage == "unlearn"]
    figure = unlearn.drawing(["prob"], "white")
    figure.set_size_inches(7.5, 3.6)
    figure.axes[0].text(
        0, unlearn.target["forget_prob"], "retrained model", color="tab:red", verticalalignment="bottom"
    )
    with matplotlib.rc_context(FIGURE_STYLE | {"savefig.facecolor": "white"}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    draw(*sys.argv[1:])
