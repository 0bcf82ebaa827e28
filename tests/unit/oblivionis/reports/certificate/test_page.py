"""What the page of a certificate says, word by word."""

from __future__ import annotations

import copy

import pytest
from support.pages import Text

from oblivionis.reports.certificate.page import certificate_page

REQUEST = {
    "id": "r0",
    "client": 7,
    "scope": "records",
    "records": 2,
    "record_ids": ["a", "b"],
    "round": 1,
    "served_round": 2,
    "state": "verified",
}
JUDGED = {"outcome": "verified", "units": 5, "before": 1.0, "final": 0.12345, "oracle": None}
EVIDENCE = {
    "source": "the server of the run",
    "signed_by": [],
    "before": {"rouge": 1.0, "prob": 0.5},
    "after": {},
    "final": {"rouge": 0.25, "records": 2.0},
    "judgement": {"records": {"a": JUDGED}},
    "leakage": {"of": "one question", "upper": 0.123456},
    "rank": None,
    "oracle": {"verdict": "near"},
    "attacks": [
        {"attack": "prefix", "questions": 3, "before": 0.1, "rouge": 0.2, "verdict": "near"},
        {"attack": "relearn", "questions": 4, "before": 0.3, "rouge": 0.4, "verdict": None},
    ],
    "events": [
        {"event": "submitted", "time": 0.0, "hash": "h1"},
        {"event": "served", "round": 2, "time": 3661.0, "hash": "h2"},
        {"event": "odd"},
    ],
    "models": {
        "base": {"source": "tiny", "fingerprint": "f0"},
        "before": "b0",
        "after": None,
        "final": {"round": 4, "sha256": "s0"},
    },
    "rounds": [
        {"round": 1, "clients": {"train": [0, 1]}},
        {"round": 2, "clients": {"unlearn": [7], "train": [2], "failed": [3]}},
    ],
}
CHECKS = [
    {"name": "rouge", "result": "PASS", "required": True, "figure": {"recall": 0.123456, "records": 2}, "why": "gone"},
    {"name": "attacks", "result": "FAIL", "required": False, "figure": {}, "why": "comes back"},
]
CERTIFICATE = {
    "result": "INCONCLUSIVE",
    "demand": {"id": "r0", "clients": [7], "records": 2},
    "requests": [{"result": "FAIL", "checks": CHECKS, "request": REQUEST, "evidence": EVIDENCE}],
    "run": {
        "name": "made",
        "seed": 3,
        "aggregator": "fedavg",
        "method": "npo",
        "clients": 5,
        "config_sha256": "c0",
        "oblivionis": "0.2",
        "packages": {"torch": "2", "flwr": "1"},
    },
    "replay": {"command": "oblivionis simulate x", "where": "in the run"},
    "issued": "2026-01-01T00:00:00Z",
    "public_key": None,
    "signature": None,
}


def page(**evidence) -> Text:
    certificate = copy.deepcopy(CERTIFICATE)
    certificate["requests"][0]["evidence"] |= evidence
    return Text(certificate_page(certificate))


def test_the_tables_of_a_certificate():
    checks, events, rounds, measured, records, attacks = page().tables
    assert checks == [
        ["check", "result", "required", "figures", "why"],
        ["rouge", "PASS", "yes", "recall 0.1235, records 2", "gone"],
        ["attacks", "FAIL", "no", "", "comes back"],
    ]
    assert events == [
        ["when (UTC)", "round", "what", "line of the ledger"],
        ["1970-01-01 00:00:00", "–", events[1][2], "h1"],
        ["1970-01-01 01:01:01", "2", "served: unlearned and averaged in", "h2"],
        ["–", "–", "odd", "–"],
    ]
    assert rounds == [
        ["round", "clients that forgot", "that trained", "left out"],
        ["1", "–", "0, 1", "–"],
        ["2", "7", "2", "3"],
    ]
    assert measured[1:] == [["ROUGE-L recall", "1", "0.25"], ["Prob", "0.5", "–"], ["records", "–", "2"]]
    assert len(measured[0]) == 3, "of two moments: nothing was measured after the exchange"
    assert records[1:] == [["a", "verified", "5", "1", "0.1235", "–"]]
    assert attacks[1:] == [["prefix", "3", "0.1", "0.2", "near"], ["relearn", "4", "0.3", "0.4", "–"]]
    assert "<b>2</b>" in certificate_page(CERTIFICATE) and "<b>1</b>" not in certificate_page(CERTIFICATE)


def test_the_words_of_a_certificate():
    words = page().words
    for part in (
        "Erasure certificate: INCONCLUSIVE No check fails, but a required one cannot tell. Demand r0 for 2 records of "
        "client 7, run made , issued 2026-01-01T00:00:00Z. Measured by the server of the run. Checks",
        "Request r0 of client 7 What the named records Records 2 records: a, b Asked in round 1 Served in round 2 "
        "State verified",
        "Base model tiny f0 Before the exchange b0 Final, round 4 s0",
        "By the server of the run.",
        "Sampled answers of one question upper 0.1235",
        "Retrained model verdict near",
        "Replay oblivionis simulate x Where in the run Configuration, SHA-256 c0 Seed 3 Aggregator, method fedavg, npo "
        "Clients 5 Software oblivionis 0.2, torch 2, flwr 1 Signature This certificate is not signed.",
    ):
        assert part in words, part
    assert "Request r0 of client 7: FAIL" not in words, "it is the only one"
    assert not {"Sealed", "privacy", "RULER"} & set(words.replace(",", " ").split())


@pytest.mark.parametrize(
    ("scope", "records", "said"),
    [
        ("client", 1, "What everything that the client holds: it leaves Records 1 record: a, b"),
        ("subject", 3, "What all records about one person Records 3 records: a, b"),
    ],
)
def test_what_was_asked(scope, records, said):
    certificate = copy.deepcopy(CERTIFICATE)
    certificate["requests"][0]["request"] |= {"scope": scope, "records": records}
    assert said in Text(certificate_page(certificate)).words


def test_several_requests_of_several_clients():
    certificate = copy.deepcopy(CERTIFICATE)
    second = copy.deepcopy(certificate["requests"][0])
    second["request"] |= {"client": 9, "id": "r1"}
    second["evidence"] |= {"source": "the client itself, on its own records", "signed_by": ["k" * 64, "m" * 64]}
    certificate["requests"].append(second)
    certificate["demand"] = {"id": "both", "clients": [7, 9], "records": 1}
    words = Text(certificate_page(certificate)).words
    assert "Demand both for 1 record of clients 7, 9," in words
    own = f"client 9 itself, on its own records, signed with the key {'k' * 16}…, {'m' * 16}…"
    assert f"Measured by {own}; the server of the run." in words and f"By {own}." in words
    assert "Request r0 of client 7: FAIL" in words and "Request r1 of client 9: FAIL" in words


def test_rows_are_called_as_readers_know_them_and_say_nothing_twice():
    numbers = {"forget_rouge": 1.0, "forget_prob": 0.5, "leakage_ed": 0.3, "rouge": 1.0, "prob": 0.4, "short": 0.0}
    rows = page(before=numbers, after={}, final={**numbers, "twins": 1.0}).tables[3][1:]
    assert [row[0] for row in rows] == [
        "Forget Prob",
        "ED score",
        "ROUGE-L recall",
        "Prob",
        "Records that kept ones also hold",
    ]


def test_what_was_not_measured_has_no_table():
    empty = {"before": {}, "final": {}, "judgement": {}, "leakage": None, "oracle": None, "attacks": [], "rounds": []}
    told = page(**empty)
    assert [table[0][0] for table in told.tables] == ["check", "when (UTC)"]
    assert not {"Attacks", "Sampled"} & set(told.words.split())


def test_sealed_requests_and_privacy():
    sealed = {"session": "s1", "commitment": "c1", "salts": ["x", "y"], "digests": ["d"], "line": "l", "records": 3}
    private = {
        "level": "client",
        "delta": 1e-5,
        "epsilon before the request": 1.0,
        "epsilon after its exchange": 1.5,
        "epsilon of the final model": 2.0,
        "noise": "secret",
    }
    told = page(sealed=sealed, privacy=private, rank={"mean rank": 0.75})
    assert "did not see the request session s1 commitment c1 salts x, y digests d line l records 3" in told.words
    assert "Differential privacy" in told.words and "raised ε from 1 to 1.5" in told.words
    assert "delta 1e-05" in told.words and "Representations (RULER, Lens 2) mean rank 0.75" in told.words


def test_a_signature_is_shown_with_how_to_check_it():
    certificate = {**CERTIFICATE, "public_key": "p0", "signature": "s9"}
    certificate["replay"] = CERTIFICATE["replay"] | {"needs": "the nodes"}
    words = Text(certificate_page(certificate)).words
    assert "Ed25519 public key p0 Signature of certificate.json s9" in words and "not signed" not in words
    assert "oblivionis certificate verify certificate.json --public-key FILE" in words
    assert "Where in the run Also needs the nodes" in words


def test_only_a_failure_is_marked_as_bad():
    assert certificate_page(CERTIFICATE).count('class="bad"') == 1
    failed = certificate_page({**CERTIFICATE, "result": "FAIL"})
    assert failed.count('class="bad"') == 2 and "At least one check says that the records are not forgotten." in failed
    assert "Every required check holds." in certificate_page({**CERTIFICATE, "result": "PASS"})


def test_every_record_of_the_demand_is_listed_and_what_its_exchange_did():
    certificate = copy.deepcopy(CERTIFICATE)
    place = {"client": 7, "request": "zz", "served_round": 3, "found": "not verified"}
    certificate["records"] = [{"record": "rec-a", **place}, {"record": "rec-b", **place, "client": 8}]
    left = {"prob": 0.7391, "reference": 0.2071, "compared_with": "the retrained model"}
    first = {"before": 0.91, "after": 0.92, "known": 0.7402, "left": {**left, "prob": 0.55}}
    exchanges = [first, {**first, "after": 0.6543, "known": 0.56, "left": left}]
    final = {"prob": 0.3304, "reference": 0.2072, "compared_with": "others"}
    judged = {"a": {**JUDGED, "exchanges": exchanges, "likelihood": final}}
    judged["b"] = {**JUDGED, "exchanges": [], "likelihood": None}
    judged["c"] = {**JUDGED, "exchanges": exchanges, "likelihood": None, "oracle": 0.4321}
    certificate["requests"][0]["evidence"]["judgement"]["records"] = judged
    page = Text(certificate_page(certificate))
    demand, *_, recalls, likelihoods, _ = page.tables
    assert demand[1:] == [["rec-a", "7", "zz", "3", "not verified"], ["rec-b", "8", "zz", "3", "not verified"]]
    assert recalls[0][3:] == ["recall before", "right after", "in the final model", "in the retrained model"]
    assert recalls[1:] == [
        ["a", "verified", "5", "1", "0.6543", "0.1235", "–"],
        ["b", "verified", "5", "1", "–", "0.1235", "–"],
        ["c", "verified", "5", "1", "0.6543", "0.1235", "0.4321"],
    ]
    assert likelihoods[1:] == [
        ["a", "0.7402", "0.7391", "0.2071", "0.3304", "0.2072", "others"],
        ["b", "–", "–", "–", "–", "–", "–"],
        ["c", "0.7402", "0.7391", "0.2071", "–", "–", "the retrained model"],
    ]
    said = page.text
    assert "Records of the demand" in said and "request that names it" in said
    assert all(text in said for text in ("rec-a", "rec-b", "zz", "not verified"))
    shown = ("0.6543", "0.7402", "0.7391", "0.2071", "0.3304", "0.2072", "the retrained model", "right after")
    assert all(text in said for text in shown), "of the last exchange, beside what was known before the first"
    assert not [text for text in ("0.55", "0.56", "0.92") if text in said]


def test_the_page_of_an_earlier_certificate_is_what_it_was():
    """It lists no records of the demand, and tells of no exchange."""
    said = certificate_page(CERTIFICATE)
    assert "Records of the demand" not in said and "right after the exchange" not in said and "likelihood" not in said


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ("submitted", "asked"),
        ("applied", "the global model changed"),
        ("cover_exchange", "the global model changed by a sum in which this client's part is"),
        ("failed", "attempt failed"),
        ("rejected", "rejected"),
        ("verified", "verified"),
        ("verification_failed", "verification failed"),
    ],
)
def test_each_line_of_the_ledger_has_its_words(event, said):
    assert page(events=[{"event": event}]).tables[1][1] == ["–", "–", said, "–"]
