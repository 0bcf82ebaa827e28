"""`report.html`: one self-contained page per run that opens without network."""

from __future__ import annotations

import html
import io
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from oblivionis import report
from oblivionis.config import Config
from oblivionis.files import write_atomic
from oblivionis.requests import Ledger
from oblivionis.runs import RunDirectory

_STYLE = """
:root { color-scheme: light dark; font-family: system-ui, sans-serif; line-height: 1.45 }
body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0; width: 100% }
th, td { padding: .3rem .6rem; border-bottom: 1px solid #8884; text-align: left; vertical-align: top }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
figure { margin: 1rem 0; background: #fff; padding: .5rem }
svg { max-width: 100%; height: auto }
abbr { text-decoration: underline dotted; cursor: help }
small, figcaption { opacity: .75 }
figcaption { color: #333 }
"""

_GLOSSARY = {
    "Prob": "Length-normalised probability of the true answer, exp(−mean NLL per answer token); on real authors and "
    "world facts its share among the true and the perturbed answers. 0 to 1.",
    "ROUGE-L recall": "Longest common subsequence of greedy and true answer over the length of the true one, stemmed. "
    "0 to 1.",
    "Truth ratio": "max(0, 1 − wrong/right): how much likelier the right answer is than the perturbed ones. 0 to 1, "
    "higher: the model knows more.",
    "Forget truth ratio": "Mean of min(R, 1/R) on the forget questions, R = wrong/right. 1: right and wrong answers are "
    "equally likely.",
    "Model utility": "Harmonic mean of Prob, ROUGE and truth ratio on retain, real authors and world facts.",
    "Forget quality (KS p)": "p-value of a two-sample Kolmogorov–Smirnov test between the truth ratios of this model "
    "and of the retrained one on the forget questions. Near 0: still tells them apart.",
}


def write_html(run: RunDirectory, config: Config) -> None:
    """Write `report.html` for `run`: comparison, curves per round with the FedTU rounds, answers, requests."""
    metrics = report.stage_metrics(run)
    title = f"{run.name}: {config.strategy.name}, {config.unlearning.method}"
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>Model <b>{html.escape(config.model.name)}</b>, data <b>{html.escape(config.data.name)}</b>, "
        f"{config.federation.clients} clients, {config.federation.fraction_train:.0%} of them per round, seed "
        f"{config.seed}. Truth ratio: {config.evaluation.truth_ratio}.</p>",
        "<h2>Comparison</h2>",
        _comparison(metrics) if metrics else "<p>No stage is finished.</p>",
        "<h2>Rounds</h2>",
        *_curves(run, config),
        "<h2>Deletion requests</h2>",
        _requests(run),
        "<h2>Answers</h2>",
        _answers(report.samples(run, list(metrics), config.evaluation.samples_shown)),
        f"<h2>Configuration</h2><pre>{html.escape(run.read_config())}</pre>",
    ]
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
        f"<body>{''.join(parts)}</body></html>\n"
    )
    write_atomic(run.path / "report.html", page)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], numeric_from: int) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return "".join(f'<{tag} class="n">{c}</{tag}>' if i >= numeric_from else f"<{tag}>{c}</{tag}>"
                       for i, c in enumerate(cells))

    body = "".join(f"<tr>{row(r, 'td')}</tr>" for r in rows)
    return f"<table><thead><tr>{row(head, 'th')}</tr></thead><tbody>{body}</tbody></table>"


def _comparison(metrics: dict[str, dict[str, float]]) -> str:
    head = ["questions", "measure", *(report.MODELS[s] for s in metrics)]
    rows = [
        [group, f'<abbr title="{html.escape(_GLOSSARY[measure], quote=True)}">{measure}</abbr>', *map(report.number, v)]
        for group, measure, v in report.rows(metrics)
    ]
    return _table(head, rows, 2)


def _curves(run: RunDirectory, config: Config) -> list[str]:
    """One figure per stage: forget and retain ROUGE and probability after each round."""
    figures = []
    rows = run.metrics()
    served = sorted({r.served_round for r in Ledger(run.ledger_path) if r.served_round is not None})
    for stage in config.stages:
        points = [r for r in rows if r["stage"] == stage and r["evaluator"] == "tofu" and r["moment"] != "end"]
        if len(points) < 2:
            continue
        figure, axes = plt.subplots(1, 2, figsize=(10, 3.2), sharex=True, layout="constrained")
        for axis, measure, label in ((axes[0], "rouge", "ROUGE-L recall"), (axes[1], "prob", "probability")):
            for group, color in (("forget", "tab:red"), ("retain", "tab:blue")):
                key = f"{group}_{measure}"
                known = [(r["round"], r["metrics"][key]) for r in points if r["metrics"].get(key) is not None]
                if known:
                    axis.plot(*zip(*known, strict=True), marker="o", markersize=3, color=color, label=group)
            for round in served if stage == "unlearn" else []:
                axis.axvline(round, color="0.6", linestyle=":", linewidth=1, label="FedTU" if round == served[0] else None)
            axis.set(xlabel="round", ylabel=label, ylim=(-0.02, 1.02))
            axis.legend(fontsize=8)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
        plt.close(figure)
        svg = buffer.getvalue()
        profile = "the light profile: a sample of the questions" if config.evaluation.light.questions_per_set else ""
        figures.append(f"<h3>{stage}</h3><figure>{svg[svg.index('<svg') :]}<figcaption>After each round, {profile}"
                       "</figcaption></figure>")
    return figures or ["<p>No evaluation per round (<code>evaluation.every=0</code>).</p>"]


def _requests(run: RunDirectory) -> str:
    requests = list(Ledger(run.ledger_path))
    if not requests:
        return "<p>None.</p>"
    rows = [
        [
            html.escape(r.id),
            str(r.client),
            str(len(r.record_ids)),
            html.escape(r.reason),
            r.state,
            str(r.served_round or "–"),
            str(r.attempts),
        ]
        for r in requests
    ]
    return _table(["request", "client", "records", "reason", "state", "served in round", "failed attempts"], rows, 5)


def _answers(found: Sequence[dict[str, Any]]) -> str:
    rows = []
    for sample in found:
        rows.append([html.escape(sample["set"]), "question", f"<b>{html.escape(sample['question'])}</b>"])
        rows.append(["", "truth", html.escape(sample["truth"])])
        rows.extend(["", html.escape(model), html.escape(text)] for model, text in sample["answers"].items())
    return _table(["questions", "", "text"], rows, 9) if rows else "<p>None.</p>"
