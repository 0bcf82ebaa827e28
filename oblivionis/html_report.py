"""`report.html`: one self-contained page per run that opens without network."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import MaxNLocator

from oblivionis import (
    attack_report,
    membership_report,
    person_pages,
    rebound_report,
    report,
    ruler_report,
    verdicts,
)
from oblivionis.config import Config
from oblivionis.files import write_atomic
from oblivionis.html_parts import html_page, html_table
from oblivionis.requests import PENDING, Ledger, Request
from oblivionis.runs import RunDirectory

_GLOSSARY = {
    "Prob": "Length-normalised probability of the true answer, exp(−mean NLL per answer token), end token included; "
    "on real authors and world facts its share among the true and the perturbed answers. 0 to 1.",
    "ROUGE-L recall": "Longest common subsequence of the greedy and the true answer over the length of the true one, "
    "in stemmed words. 0 to 1.",
    "Truth ratio": "Mean of max(0, 1 − R), R = wrong/right: how much likelier the right answer is than the perturbed "
    "ones. 0 to 1; higher: the model knows more.",
    "Forget truth ratio": "Mean of min(R, 1/R) on the forget questions, R = wrong/right. 1: right and wrong answers "
    "are equally likely.",
    "Over-unlearned (↓)": "The unlearned model's value on the forget questions is less than half of the retrained "
    "model's, and the paired questions say that this is no chance (one-sided Wilcoxon signed-rank test, p at most "
    "0.01). For the truth ratio the value is the median of 1/R, right over wrong: the mean of min(R, 1/R) is small for "
    "a model that knows the answer as for one that avoids it. Far above (↑), more than twice: still known.",
    "Model utility": "Harmonic mean of Prob, ROUGE-L recall and truth ratio on retain, real authors and world facts; 0 "
    "as soon as one of the nine is 0.",
    "Forget quality (KS p)": "p-value of a two-sample Kolmogorov–Smirnov test between the truth ratios of this model "
    "and of the retrained one on the forget questions. Near 0: the two can be told apart. The retrained model against "
    "itself has 1.",
    "Mean leakage": "Mean ROUGE-L recall (or `evaluation.leakage.function`) of randomly sampled answers to forget "
    "questions. 0 to 1.",
    "ED score": "Mean leakage plus rho times its standard deviation over the samples of a question, averaged over "
    "questions.",
    "Bound on mean leakage (M_μ)": "Upper bound on the expected leakage of a question that holds with probability 1 − "
    "alpha, averaged over questions. Fewer samples make it looser.",
    "Questions that may leak (M_bin)": "Share of forget questions for which the probability of a leaking answer "
    "(leakage of at least `leaks_from`) is not certified to be below `limit`.",
    "Mean rank (null 0.5)": "RULER without an oracle: how near a forget record lies to its nearest retained record, as "
    "a percentile of how near retained records lie to their nearest other one, averaged over the forget records. 0.5: "
    "they blend in; above: residual memorisation; below: pushed too far. Compare with the retrained model: some data "
    "are not at 0.5 by themselves.",
    "S_gap (null 0)": "RULER beside the retrained model: mean cosine of the forget records' representations in the two "
    "models less the median cosine of the retained ones. Negative: residual memorisation; positive: over-correction.",
    "S_oracle": "Mean cosine of the forget records' representations in this model and in the retrained one. Near 1: "
    "they lie where the retrained model has them.",
    "S_shift": "S_oracle less that of the finetuned model. Positive: unlearning moved the forget records towards the "
    "retrained model; in the column of the retrained model stands what there was to gain.",
    "Facts that rank first (strict)": "WikiMem: in which share of the phrasings the true value of a fact scores above "
    "every value of other people, averaged over facts. The score takes off how likely the sentence is with look-alike "
    "names. 0 to 1.",
    "Facts that rank first (any phrasing)": "WikiMem: share of facts whose true value ranks first in at least one "
    "phrasing (lenient rate). More phrasings make it higher by chance.",
    "Memorisation strength z*": "WikiMem: by how many standard deviations the lead of the true value exceeds the mean "
    "lead of a candidate, averaged over the phrasings in which it ranks first.",
    "Values that score higher (null 0.5)": "Not of WikiMem: share of the values of other people that score at least as "
    "high as the true one, averaged over phrasings and facts. 0: always first; 0.5: chance; above: avoided.",
    "People with nothing memorised": "WikiMem: share of people none of whose facts ranks first in any phrasing.",
    **membership_report.GLOSSARY,
    "FedTU": "Federated targeted unlearning: a client asks to forget records, and only that client is addressed, "
    "before the round's fine-tuning (FedFT) by a sample of the clients.",
}
_STAGES = {
    "finetune": "finetune: training on all records",
    "retrain": "retrain: the same without the records to forget",
    "unlearn": "unlearn: from the finetuned model, serving deletion requests",
}
_RC: Any = {"svg.fonttype": "none", "svg.hashsalt": "oblivionis", "font.family": "sans-serif", "font.size": 9}


def write_html(run: RunDirectory, config: Config) -> None:
    """Write `report.html` for `run`: comparison, curves per round with the FedTU rounds, requests, answers, settings.

    Where people were audited it links to a page for each, under `people/`. No page needs the network. Every text from
    the data or a model is escaped.
    """
    metrics = report.stage_metrics(run, config.evaluation.truth_ratio, config.evaluation.membership.confidence)
    title = f"{run.name}: {config.strategy.name}, {report.method(config)}"
    legend = report.LEGEND if "retrain" in metrics else report.NO_ORACLE
    found = verdicts.find_verdicts(run, config.evaluation.truth_ratio)
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>Model <b>{html.escape(config.model.name)}</b>, data <b>{html.escape(config.data.name)}</b>, "
        f"{config.federation.clients} clients, {config.federation.fraction_train:.0%} of them per round, seed "
        f"{config.seed}. Truth ratio: {config.evaluation.truth_ratio}.</p>",
        "<h2>Comparison</h2>",
        _comparison(metrics, verdicts.marks(found)) if metrics else "<p>No stage is finished.</p>",
        *(f'<p class="verdict">{html.escape(line)}</p>' for line in verdicts.sentences(found)),
        *(f"<p>{html.escape(line)}</p>" for line in ruler_report.sentences(run)),
        f"<p>{html.escape(legend)}</p>" if metrics else "",
        f"<p>{html.escape(report.RULER_LEGEND)}</p>" if report.has_ruler(metrics) else "",
        f"<p>{html.escape(report.WIKIMEM_LEGEND)}</p>" if report.has_wikimem(metrics) else "",
        *(f"<p>{html.escape(line)}</p>" for line in membership_report.sentences(metrics)),
        *(f"<p>{html.escape(line)}</p>" for line in membership_report.legends(metrics)),
        "<h2>Rounds</h2>",
        *_curves(run, config, metrics.get("retrain", {})),
        "<h2>Deletion requests</h2>",
        _requests(run, config),
        *rebound_report.section(run),
        *attack_report.section(run),
        *person_pages.section(run),
        "<h2>Answers</h2>",
        _answers(report.samples(run, config, list(metrics))),
        "<details><summary>What the words mean</summary><dl>",
        *(f"<dt><b>{html.escape(k)}</b></dt><dd>{html.escape(v)}</dd>" for k, v in _GLOSSARY.items()),
        f"</dl></details><details><summary>Configuration</summary><pre>{html.escape(run.read_config())}</pre></details>",
    ]
    person_pages.write_pages(run)
    write_atomic(run.path / "report.html", html_page(title, parts))


def _explained(term: str) -> str:
    return f'<abbr title="{html.escape(_GLOSSARY[term], quote=True)}">{html.escape(term)}</abbr>'


def _comparison(metrics: Mapping[str, Mapping[str, float]], marks: Mapping[tuple[str, str], str]) -> str:
    rows, previous = [], ""
    for group, measure, values in report.rows(metrics):
        cells = [report.number(value) for value in values]
        if (mark := marks.get((group, measure))) is not None:
            place = list(metrics).index("unlearn")
            cells[place] = f"<b class=mark>{mark} {cells[place]}</b>"
        rows.append([group if group != previous else "", _explained(measure), *cells])
        previous = group
    models = [report.MODELS[s] for s in metrics]
    return html_table(["questions", "measure", *models], ["", "", *["n"] * len(models)], rows)


def _curves(run: RunDirectory, config: Config, oracle: Mapping[str, float]) -> list[str]:
    """One figure per stage: forget and retain ROUGE and probability over its rounds."""
    found = []
    rows = [r for r in run.metrics() if r["evaluator"] == "tofu"]
    served = sorted({r.served_round for r in Ledger(run.ledger_path) if r.served_round is not None})
    for stage, title in _STAGES.items():
        points = [r for r in rows if r["stage"] == stage]
        if len(points) > 1:
            marks, target = (served, oracle) if stage == "unlearn" else ([], {})
            drawing, caption = _drawing(points, marks, target), _caption(config, marks)
            found.append(f"<h3>{title}</h3><figure>{drawing}<figcaption>{caption}</figcaption></figure>")
    return found or ["<p>No stage was measured more than once (see <code>evaluation.every</code>).</p>"]


def _caption(config: Config, marks: Sequence[int]) -> str:
    size = config.evaluation.light.questions_per_set
    asked = f"a sample of {size} questions per set" if size else "all questions"
    text = f"Filled: after a round, {asked}. Hollow: at the end, with the full profile."
    if marks:
        text += f" Dotted: rounds that began with {_explained('FedTU')}. Dashed: the retrained model at its end."
    return text


def _drawing(points: Sequence[Mapping[str, Any]], marks: Sequence[int], target: Mapping[str, float]) -> str:
    """ROUGE-L recall and probability over the rounds as SVG. A model right after FedTU stands half a round early."""
    with matplotlib.rc_context(_RC):
        figure, axes = plt.subplots(1, 2, figsize=(9.6, 3.1), sharex=True, layout="constrained")
        for axis, measure, label in ((axes[0], "rouge", "ROUGE-L recall"), (axes[1], "prob", "Prob")):
            for i, round in enumerate(marks):
                axis.axvline(round, color="0.6", linestyle=":", linewidth=1, label="_" * (i > 0) + "FedTU")
            for group, color in (("forget", "tab:red"), ("retain", "tab:blue")):
                _line(axis, points, f"{group}_{measure}", group, color)
                if target.get(f"{group}_{measure}") is not None:
                    axis.axhline(target[f"{group}_{measure}"], color=color, linestyle="--", linewidth=0.9)
            axis.set(xlabel="round", ylabel=label, ylim=(-0.03, 1.03))
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            axis.spines[["top", "right"]].set_visible(False)
        handles, labels = axes[0].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside right upper", frameon=False)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
        plt.close(figure)
    svg = buffer.getvalue()
    return svg[svg.index("<svg") :]


def _line(axis: Any, points: Sequence[Mapping[str, Any]], key: str, label: str, color: str) -> None:
    """The values of `key` over the rounds; those that are missing are left out."""
    known = [
        (p["round"] - 0.5 * (p["moment"] == "after_unlearn"), p["metrics"][key], p["moment"])
        for p in points
        if p["metrics"].get(key) is not None
    ]
    known.sort(key=lambda p: p[0])
    between = [(x, y) for x, y, moment in known if moment != "end"]
    if between:
        axis.plot(*zip(*between, strict=True), marker="o", markersize=3.5, color=color, label=label)
    ends = [(x, y) for x, y, moment in known if moment == "end"]
    if between and ends:
        axis.plot(*zip(between[-1], ends[-1], strict=True), color=color, linestyle=":")
    for x, y in ends[-1:]:
        axis.plot(x, y, marker="o", markersize=5, color=color, markerfacecolor="white", linestyle="none")


def _requests(run: RunDirectory, config: Config) -> str:
    rows = [
        [
            html.escape(r.id),
            str(r.client),
            html.escape(report.request_kind(r)),
            str(len(r.record_ids)),
            str(r.round),
            "–" if r.served_round is None else str(r.served_round),
            str(r.attempts),
            html.escape(r.state),
            html.escape(_reason(r)),
        ]
        for r in Ledger(run.ledger_path)
    ]
    head = ["request", "client", "forgets", "records", "asked in round", "served in", "failed attempts", "state"]
    if not rows:
        return "<p>None.</p>"
    line = report.requests_line(run, config.unlearning.requests.verify_max_rouge)
    table = html_table([*head, "reason"], ["who", "n", "", *["n"] * 4, "who", ""], rows)
    return f"<p>{html.escape(line)}.</p>{table}"


def _reason(request: Request) -> str:
    """Why a request was made, what was asked for before, and why it is pending still."""
    parts = [request.reason] if request.reason else []
    if request.already:
        parts.append(f"{request.already} more records were asked for before")
    if request.state == PENDING and request.failure:
        parts.append(f"last failure: {request.failure}")
    return "; ".join(parts)


def _answers(found: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for sample in found:
        question = f"<b>{html.escape(sample['question'])}</b>"
        rows.append([html.escape(sample["set"]), "question", question])
        rows.append(["", "truth", html.escape(sample["truth"])])
        for who, said in sample["answers"].items():
            rows.append(["", html.escape(who), html.escape(said.strip()) or "(empty)"])
    return html_table(["questions", "who", "text"], ["", "who", ""], rows) if rows else "<p>None.</p>"
