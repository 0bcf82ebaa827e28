"""Every record of a demand, and the request by which it was forgotten: from ledgers made by hand."""

from __future__ import annotations

import pytest

from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import Request
from oblivionis.erasure.verification_rules import Judgement
from oblivionis.reports.certificate.scope import CertificateError, scope_of
from oblivionis.runs.directory import RunDirectory


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path)


def demand(ledger, *earlier):
    """A person's records lie with clients 1 (a, b, c) and 2 (d); `earlier` requests of client 1 name some of them."""
    ledger.submit(*earlier)
    covered = tuple(dict.fromkeys(i for request in earlier for i in request.record_ids if i in "abc"))
    own = tuple(i for i in "abc" if i not in covered)
    about = {"scope": "subject", "subject": "Mara Voss", "group": "art17"}
    ledger.submit(
        Request("art17-1", 1, own, 2, already=len(covered), covered=covered, **about),
        Request("art17-2", 2, ("d",), 2, **about),
    )
    return ledger


def served(ledger, *names):
    for name in names:
        ledger.served(name, 3)
    return ledger


def named(scope):
    return {(of.record, of.client): of.request.id for of in scope.records}


def refusal(run, name="art17"):
    with pytest.raises(CertificateError) as error:
        scope_of(run, name)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_records_that_an_earlier_request_names_are_those_of_that_request(run):
    ledger = demand(Ledger(run.ledger_path), Request("zz", 1, ("a", "x"), 1))
    served(ledger, "zz", "art17-1", "art17-2")
    ledger.verified("zz", 4, Judgement("verified", "", 0.0), 0.5)
    scope = scope_of(run, "art17")
    mine = {("a", 1): "zz", ("b", 1): "art17-1", ("c", 1): "art17-1", ("d", 2): "art17-2"}
    assert named(scope) == mine, "x, which zz also names, is no record of the demand"
    assert [r.id for r in scope.requests] == ["zz", "art17-1", "art17-2"] and scope.unnamed == {}
    assert named(scope_of(run, "art17-1")) == {key: of for key, of in mine.items() if key[1] == 1}
    assert named(scope_of(run, "zz")) == {("a", 1): "zz", ("x", 1): "zz"}


def test_a_demand_all_of_whose_records_earlier_requests_name(run):
    first, second = Request("first", 1, ("a", "b"), 1), Request("second", 1, ("c",), 1)
    ledger = served(demand(Ledger(run.ledger_path), first, second), "first", "second", "art17-2")
    assert ledger.get("art17-1").state == "covered"
    scope = scope_of(run, "art17-1")
    assert named(scope) == {("a", 1): "first", ("b", 1): "first", ("c", 1): "second"}
    assert [r.id for r in scope.requests] == ["first", "second"]


@pytest.mark.parametrize("own", [("a", "b", "c"), ("a",)])
def test_a_request_that_waits_is_named(run, own):
    """Whether it names some of the demand's records or all of one client's."""
    ledger = served(demand(Ledger(run.ledger_path), Request("zz", 1, own, 1)), "art17-2")
    if own == ("a",):
        ledger.served("art17-1", 3)
    said = "request 'zz' is not served yet{}: it names record 'a', which 'art17-1' asks for, too"
    assert refusal(run) == said.format("")
    ledger.failed("zz", 2, "busy")
    assert refusal(run) == said.format(" (1 attempt failed)")
    ledger.failed("zz", 3, "busy")
    assert refusal(run) == said.format(" (2 attempts failed)")
    ledger.served("zz", 4)
    assert named(scope_of(run, "art17"))["a", 1] == "zz"
    ledger.roll_back(3)
    assert refusal(run) == said.format(" (2 attempts failed)"), "the exchange that served it was undone"


def test_a_request_of_the_demand_itself_that_waits_or_was_rejected_is_named(run):
    ledger = served(demand(Ledger(run.ledger_path)), "art17-1")
    assert refusal(run) == "request 'art17-2' is not served yet"
    ledger.rejected("art17-2", 3, "no")
    assert refusal(run) == "request 'art17-2' was rejected"


def test_a_request_that_was_rejected_counts_by_the_one_that_was_made_in_its_place(run):
    ledger = served(demand(Ledger(run.ledger_path), Request("zz", 1, ("a",), 1)), "art17-1", "art17-2")
    ledger.rejected("zz", 2, "the client does not hold it")
    assert refusal(run) == "request 'zz' was rejected: it names record 'a', which 'art17-1' asks for, too"
    ledger.submit(Request("other", 2, ("a",), 4))
    served(ledger, "other")
    assert "'zz' was rejected" in refusal(run), "a record of that name on another client is another record"
    ledger.submit(Request("again", 1, ("a",), 5))
    assert refusal(run).startswith("request 'again' is not served yet")
    served(ledger, "again")
    ledger.submit(Request("late", 1, ("a",), 6))
    for _ in range(2):
        assert named(scope_of(run, "art17"))["a", 1] == "again", "whatever became of a later one"
        ledger.rejected("late", 7, "no")
    ledger.submit(Request("last", 1, ("a",), 8))
    assert named(scope_of(run, "art17"))["a", 1] == "again"
    served(ledger, "last")
    assert named(scope_of(run, "art17"))["a", 1] == "last", "of several that are served the newest"


def test_a_ledger_that_names_covered_records_which_nobody_asked_for(run):
    ledger = Ledger(run.ledger_path)
    ledger.submit(Request("r", 1, ("a",), 1, already=1, covered=("b",)))
    ledger.served("r", 1)
    assert refusal(run, "r") == "request 'r' leaves record 'b' to an earlier request, and none in the ledger names it"


def test_a_ledger_of_an_earlier_version_names_no_covered_records(run):
    ledger = Ledger(run.ledger_path)
    ledger.submit(Request("r", 1, ("a",), 1, already=2), Request("c", 1, (), 1, already=1))
    ledger.served("r", 1)
    scope = scope_of(run, "r")
    assert named(scope) == {("a", 1): "r"} and scope.unnamed == {"r": 2}
    assert refusal(run, "c").startswith("request 'c' is covered: all its records were asked for by earlier requests")


def test_what_a_client_leaves_to_earlier_requests_counts_where_it_asks_for_nothing_itself(run):
    """In a ledger of an earlier version one client of the demand was served, and all of the other's were covered."""
    ledger = Ledger(run.ledger_path)
    about = {"scope": "subject", "subject": "Mara Voss", "group": "art17"}
    ledger.submit(
        Request("art17-1", 1, ("a",), 2, already=1, **about), Request("art17-2", 2, (), 2, already=3, **about)
    )
    scope = scope_of(run, served(ledger, "art17-1") and "art17")
    assert named(scope) == {("a", 1): "art17-1"} and scope.unnamed == {"art17-1": 4}


def test_a_demand_is_known_by_the_id_that_its_client_gave_it(run):
    ledger = Ledger(run.ledger_path)
    ledger.submit(Request("mine-client-0002", 2, ("a",), 1, told="mine"), Request("mine", 1, ("b",), 1))
    served(ledger, "mine", "mine-client-0002")
    assert named(scope_of(run, "mine")) == {("a", 2): "mine-client-0002", ("b", 1): "mine"}
    assert "knows no request 'ghost'; it has mine-client-0002, mine" in refusal(run, "ghost")
    ledger.submit(*(Request(f"r{i}", 1, (f"r{i}",), 1) for i in range(9)))
    assert refusal(run, "ghost").endswith("it has 11 others")
