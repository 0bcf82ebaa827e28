"""A run, a certificate and a suite whose every text field tries to leave its place in a page: see `test_hostile_texts`.

`text(field)` is what stands in a field; it names the field, so that a page can be asked whether it shows it.
"""

from html.parser import HTMLParser

import pandas as pd
from support.audits import audit_of, phrasings, write
from support.reports import log_of, make_run, metrics_of
from support.suite_view import cells, view

from evaluation.metrics.tofu import SECTIONS
from oblivionis.audits.people_outcomes import Person, PersonFact, Phrasing, person_slug
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import Request
from oblivionis.erasure.verification_rules import Judgement
from oblivionis.files import write_json
from oblivionis.measures.audit_numbers import audit_path
from oblivionis.reports.table import Marked, Table
from oblivionis.runs.directory import RunDirectory

NAME = '<script>run &lt; "its\' name" onclick=x'
"""Of the run: no slash can be in it."""
VOID = {"meta", "br", "path", "use"}
TAGS = (
    "html head meta title style body main h1 h2 h3 p a abbr b u br small span code pre nav section ul ol li div table "
    "thead caption tbody tr th td dl dt dd details summary meter figure figcaption "
    "svg g defs clippath rect path use text tspan metadata rdf:rdf cc:work dc:date dc:format dc:type"
)
"""The elements of the pages, and those of matplotlib's drawings."""


def text(field):
    """Tags, both quotes, an entity, an attribute, a text that runs from right to left, a line break."""
    attack = "</title></style></td></svg>--><script>alert(1)</script><img src=//evil/x onerror='alert(2)'>"
    return f'{field}: {attack} &amp; " onclick="x" \' \u202eהפוך\u202c \n{{{{ 7 }}}} ${{x}} `code`'


class Parsed(HTMLParser):
    """Tags with their attributes, the text outside the style sheet, and the attributes' values; tags must match."""

    def __init__(self, source):
        super().__init__()
        self.tags, self.shown, self._open = [], "", []
        self.feed(source)
        self.close()
        assert not self._open, f"left open: {self._open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self._open and self._open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        if "style" not in self._open:
            self.shown += data

    @property
    def links(self):
        return [attributes["href"] for _, attributes in self.tags if attributes.get("href")]


def hostile_run(folder, overrides=()):
    """A finished run in which whoever named or wrote anything was hostile. Returns it with its configuration."""
    run, config = make_run(folder, logs=_log, metrics=_metrics, overrides=overrides)
    path = run.path.rename(run.path.with_name(NAME))
    run = RunDirectory.open(path)
    run.write_environment(seed=0, python=text("python"), platform=text("platform"), cpus=text("cpus"))
    summary = run.stage_summary("finetune")
    write_json(run.path / "stages" / "finetune.json", {**summary, "reused_from": text("reused").replace("/", "")})
    config.model.name = text("model")
    config.model.source = text("source")
    config.data.name = text("data")
    config.data.path = text("path").replace("/", "")
    config.strategy.name = text("strategy")
    config.unlearning.method = text("method")
    config.unlearning.params = {text("parameter"): text("value")}
    run.write_config("# " + text("yaml").replace("\n", " ") + "\n" + run.read_config())
    _ask(run)
    _measure(run)
    _audit(run)
    _attack(run)
    return run, config


def _log(stage):
    log = log_of(stage)
    for name in SECTIONS.values():
        log[name]["generated_text"] = {
            str(i): [f"Question: {text('question')}\nAnswer:", text(f"answer of {stage}"), text("truth")]
            for i in range(4)
        }
        log[name]["avg_gt_loss"] = {str(i): 0.5 + i for i in range(4)}
        log[name]["rougeL_recall"] = {str(i): 0.9 - 0.1 * i for i in range(4)}
    log["ids"] = {name: [text("record 0"), "a", "b", text("record 3")] for name in SECTIONS.values()}
    return log


def _metrics(stage):
    ruler = {"ruler_mean_rank": 0.6, "ruler_gap": -0.1, "wikimem_forget_strict": 0.25, "wikimem_retain_strict": 0.5}
    return {**metrics_of(stage), **ruler, "leakage_samples": 8.0, "leakage_mean": 0.2}


def _ask(run):
    ledger = Ledger(run.ledger_path)
    about = {"scope": "subject", "subject": text("subject"), "group": text("group"), "already": 2}
    ledger.submit(Request(text("request"), 1, (text("record 0"), "a"), 1, text("reason"), **about))
    ledger.submit(Request("leaves", 2, (text("record 3"),), 1, scope="client"))
    ledger.submit(Request("waits", 3, (text("unknown record"),), 2))
    ledger.submit(Request("refused", 4, ("b",), 2))
    ledger.failed(text("request"), 1, text("failure"))
    ledger.served(text("request"), 1, **{"forget-nll-before": 0.25, "forget-nll-after": 3.5, "unlearn-steps": 4})
    ledger.applied(text("request"), 1, text("hash before"), text("hash after"))
    ledger.verified(text("request"), 2, Judgement("verified", text("why"), 0.1), 0.5)
    ledger.failed("waits", 1, text("latest failure"))
    ledger.rejected("refused", 2, text("rejection"))


def _measure(run):
    row = {"stage": "unlearn", "round": 1, "moment": "round"}
    clients = {"unlearn": [1], "train": [2, 3], "failed": [4]}
    run.append_metrics(
        [
            {**row, "evaluator": "federation", "metrics": {"seconds": 1.5, "failures": 1}, "clients": clients},
            {**row, "evaluator": text("evaluator"), "metrics": {}, "error": text("error")},
            *(
                {**row, "round": n, "moment": moment, "evaluator": "rebound", "metrics": {}, "requests": requests}
                for n, moment, value in ((1, "before_unlearn", 0.9), (1, "after_unlearn", 0.1), (1, "round", 0.2))
                for requests in [{"prob": {text("request"): value}}]
            ),
            {**row, "round": 2, "evaluator": "rebound", "metrics": {}, "requests": {"prob": {text("request"): 0.6}}},
        ]
    )


def _audit(run):
    told = Phrasing(text("phrasing"), False, None, 3, text("ranked first"))
    facts = tuple(
        PersonFact("P19", text("fact"), (text("true value"), "Rome"), inputs, (*phrasings(3.0, None), told, told))
        for inputs in ("one", "two")
    )
    person = Person(text("person"), text("cohort"), text("in the data"), (text("record 0"), "z"), facts)
    for stage in ("finetune", "unlearn"):
        write(audit_of(run, [person], stage), run.path / "audits" / f"person-{stage}-0002")
    columns = {"samples": 8, "greedy": 0.5, "mean": 0.25, "ed": 0.3, "m_mu": 0.7, "m_bin": 0.4}
    write_json(run.path / "audits" / "leakage-unlearn-0002" / "audit.json", {"questions": [{"id": "a", **columns}]})
    measured = {moment: {"request_rouge": 0.5, "retain_prob": 0.75} for moment in ("before", "after", "final")}
    write_json(audit_path(run.path, text("request")), {"request": text("request"), "client": 0, **measured})
    for request in Ledger(run.ledger_path):
        _certify(run, request.id)


def _certify(run, request_id):
    """What a request's page reads of its certificate, where `certificate create` puts it."""
    found = {"result": "FAIL", "issued": text("issued"), "signature": ""}
    write_json(run.path / "certificates" / person_slug(request_id) / "certificate.json", found)
    (run.path / "certificates" / person_slug(request_id) / "certificate.html").write_text("")


def _attack(run):
    values = {"prob": 0.5, "rouge": 0.25, "truth_ratio": 0.75}
    both = {"before": values, "after": {**values, "rouge": 0.5}}
    rows = [
        {"attack": "none", "variant": "", "verdict": "near", "p_above": 0.5},
        {"attack": "jailbreak", "variant": text("variant"), "verdict": "still known", "p_above": 0.001},
        {"attack": "sampling", "variant": "8"},
    ]
    sampled = {"before": values, "after": {**values, "m_mu": 0.5, "m_bin": 0.25}}
    models = [both, both, sampled]
    membership = {
        "variant": text("inference"),
        "members": 4,
        "others": 5,
        "models": {stage: {"auc": 0.75, "low": 0.5, "high": 0.875} for stage in ("unlearn", "retrain")},
        "difference": 0.0,
        "p": 0.5,
    }
    results = {
        "run": run.name,
        "stage": "unlearn",
        "round": 2,
        "oracle": "retrain",
        "rows": [
            {**row, "questions": 4, "models": {"unlearn": m, "retrain": m}, "difference": {"prob": 0.25}}
            for row, m in zip(rows, models, strict=True)
        ],
        "membership": [membership],
        "left_out": {text("left out"): text("why left out")},
        "failed": {text("failed attack"): text("why failed")},
    }
    write_json(run.path / "attacks" / "unlearn-0002" / "results.json", results)
    alone = [{**row, "models": {"finetune": row["models"]["unlearn"]}} for row in results["rows"][:1]]
    alone = [{name: value for name, value in row.items() if name != "verdict"} for row in alone]
    of_finetune = {**results, "stage": "finetune", "oracle": None, "rows": alone, "membership": []}
    write_json(run.path / "attacks" / "finetune-0002" / "results.json", of_finetune)


def hostile_certificate():
    """A certificate in which every string that a file could have brought in is hostile."""
    hashes = {"before": text("hash before"), "after": text("hash after")}
    measured = {text("measure"): 0.5, "rouge": None}
    return {
        "result": "FAIL",
        "issued": text("issued"),
        "demand": {"id": text("demand"), "clients": [3], "records": 2},
        "requests": [
            {
                "result": "FAIL",
                "checks": [
                    {
                        "name": text(f"check {i}"),
                        "result": result,
                        "required": not i,
                        "figure": figure,
                        "why": text("why"),
                    }
                    for i, (result, figure) in enumerate(
                        [("FAIL", {text("figure"): text("of")}), ("PASS", {"at most": 0.5}), ("INCONCLUSIVE", {})]
                    )
                ],
                "request": {
                    "id": text("request"),
                    "client": 3,
                    "scope": "records",
                    "records": 2,
                    "record_ids": [text("record 0"), text("record 1")],
                    "round": 1,
                    "served_round": 2,
                    "state": text("state"),
                },
                "evidence": {
                    "source": text("source"),
                    "signed_by": [text("signer")],
                    "judgement": {
                        "records": {
                            text("judged record"): {
                                "outcome": text("outcome"),
                                "units": 9,
                                "before": 1.0,
                                "final": 0.5,
                                "oracle": None,
                            }
                        }
                    },
                    "events": [
                        {"event": text("event"), "round": 1, "time": 1.5, "hash": text("hash")},
                        {"event": "served"},
                    ],
                    "rounds": [
                        {"round": 2, "clients": {"unlearn": [3], "train": [text("client")]}},
                        {"round": 3, "clients": {}},
                    ],
                    "models": {
                        "base": {"source": text("base"), "fingerprint": text("fingerprint")},
                        **hashes,
                        "final": {"round": 4, "sha256": text("hash of the final model")},
                    },
                    "before": measured,
                    "after": {},
                    "final": measured,
                    "leakage": {text("bound"): text("of the bound"), "upper": 0.25},
                    "rank": {"of": text("of the rank"), "mean rank": 0.5},
                    "oracle": {"verdict": text("verdict"), "value": 0.125},
                    "attacks": [
                        {
                            "attack": text("attack"),
                            "questions": 4,
                            "before": 0.5,
                            "rouge": None,
                            "verdict": text("judged"),
                        },
                        {"attack": "prefix", "questions": 4, "before": 0.5, "rouge": 0.25, "verdict": None},
                    ],
                },
            }
        ],
        "run": {
            "name": text("run"),
            "seed": 0,
            "aggregator": text("aggregator"),
            "method": text("method"),
            "clients": 4,
            "config_sha256": text("config"),
            "oblivionis": text("version"),
            "packages": {text("package"): text("its version")},
        },
        "replay": {"command": text("command"), "where": text("where"), "needs": text("needs")},
        "public_key": text("key"),
        "signature": text("signature"),
    }


def hostile_suite(folder):
    """A suite whose cells, axes, tables, facts and published numbers are hostile, with a hostile run behind a cell."""
    hostile_run(folder)
    run = next((folder / "runs").iterdir())
    (run / "report.html").write_text("")
    frame = cells(failed="fedadam/rmu/seed=1").replace({"client 3 <died>": text("cell's error")})
    first = frame.cell == "fedavg/npo/seed=0"
    frame.loc[first & (frame.stage == "unlearn"), "run"] = f"runs/{run.name}"
    frame = frame.replace({"fedavg": text("aggregator"), "npo": text("method"), "fedavg/npo/seed=0": text("cell")})
    frame = frame.replace({"forget_rouge": text("metric")}).rename(columns={"strategy": text("axis")})
    paper = pd.DataFrame(
        [{text("axis"): text("aggregator"), "unlearning": text("method"), "metric": text("metric"), "value": 0.25}]
    )
    cell = Marked(text("marked cell"), "bold")
    return view(
        folder,
        title=text("title"),
        description=f"{text('description')}\n\n`{text('code')}`",
        cells=frame,
        axes=(text("axis"), "unlearning", "seed"),
        paper=paper,
        tables=[
            Table(text("table"), [text("head"), "b", "c"], [[text("text"), text("other"), cell]], text("note")),
            Table("Empty", ["a", "b"], []),
        ],
        facts={text("label"): text("fact")},
        warnings=[text("warning")],
        metrics=(text("metric"), "model_utility"),
    )
