"""Who gets in: the token once, then its cookie; no other name of this machine, no form of another site."""

import re
from types import SimpleNamespace

import pytest
from support.nodes import write_nodes
from support.reports import make_run
from support.window import ADDRESS, PORT, TOKEN, Visitor

from oblivionis.cli.view import view
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.errors import OblivionisError
from oblivionis.view import serve
from oblivionis.view.guard import POLICY, STORED
from oblivionis.view.node_page import Node


@pytest.fixture(scope="module")
def visitor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guard")
    run, _ = make_run(folder)
    (run.path / "report.html").write_text("<script>alert(1)</script>")
    return Visitor(folder)


def test_the_token_becomes_a_cookie_and_leaves_the_address(visitor):
    answer = visitor.get(f"/compare?run=a&token={TOKEN}&run=b%26c", cookies={})
    assert (answer.status_code, answer.headers["location"]) == (303, "/compare?run=a&run=b%26c")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"oblivionis-{PORT}={TOKEN};")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert TOKEN not in answer.text


def test_the_address_with_the_token_leads_to_no_other_host(visitor):
    answer = visitor.get(f"{ADDRESS}//evil.example/x?token={TOKEN}", cookies={})
    assert (answer.status_code, answer.headers["location"]) == (303, "/evil.example/x")


def test_a_code_lets_one_browser_in_and_is_spent(tmp_path):
    visitor = Visitor(tmp_path, code="for-the-command-line")
    for wrong in ("", "no", TOKEN):
        assert visitor.get(f"/?code={wrong}", cookies={}).status_code == 403
    answer = visitor.get("/node?code=for-the-command-line&x=1", cookies={})
    assert (answer.status_code, answer.headers["location"]) == (303, "/node?x=1")
    assert answer.headers["set-cookie"].startswith(f"oblivionis-{PORT}={TOKEN};")
    for cookies in ({}, visitor.cookies):
        again = visitor.get("/?code=for-the-command-line", cookies=cookies)
        assert again.status_code == 403 and "set-cookie" not in again.headers
    assert Visitor(tmp_path).get("/?code=", cookies={}).status_code == 403, "no code was made"
    assert Visitor(tmp_path).get("/?code=None", cookies={}).status_code == 403


def test_the_command_line_of_the_browser_tells_no_token(tmp_path, monkeypatch, capsys):
    make_run(tmp_path)
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    shut = SimpleNamespace(run=lambda sockets: [socket.close() for socket in sockets])
    monkeypatch.setattr(serve, "server", lambda app: shut)
    monkeypatch.setattr("oblivionis.view.library.Library.glances", lambda self: {})
    view(tmp_path, port=0, open_=True)
    (address,) = opened
    (token,) = re.findall(r"token=([\w-]+)", capsys.readouterr().out)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?code=[\w-]{43}", address) and token not in address


@pytest.mark.parametrize(
    "path", ["/", "/runs.csv", "/runs/runs/made/", "/runs/runs/made/report.html", "/static/window.js"]
)
def test_nothing_is_shown_without_it(visitor, path):
    for cookies in ({}, {f"oblivionis-{PORT}": "wrong"}, {f"oblivionis-{PORT + 1}": TOKEN}):
        answer = visitor.get(path, cookies=cookies)
        assert answer.status_code == 403 and "made" not in answer.text.replace(path, "")
    assert visitor.get(f"{path}?token=wrong").status_code == 403, "also for who has the cookie"


def test_another_name_of_this_machine_is_refused(visitor):
    others = ("evil.example", f"evil.example:{PORT}", "127.0.0.1.evil.example", f"127.0.0.1.evil.example:{PORT}")
    near = (
        "127.0.0.1",
        "localhost",
        f"127.0.0.1:{PORT + 1}",
        f"localhost:{PORT}:80",
        f"LOCALHOST:{PORT}",
        f"x@localhost:{PORT}",
    )
    for host in (*others, *near, "", f"[::1]:{PORT}", "127.0.0.1:"):
        for path in ("/", f"/?token={TOKEN}"):
            answer = visitor.get(path, headers={"host": host})
            assert answer.status_code == 400 and "Runs" not in answer.text and "set-cookie" not in answer.headers, host
    assert visitor.get("/", headers={"host": f"localhost:{PORT}"}).status_code == 200


def test_every_answer_carries_the_policy(visitor):
    for path in ("/", "/nope", "/static/window.css", "/runs.csv"):
        headers = visitor.get(path).headers
        assert headers["content-security-policy"] == POLICY and "unsafe" not in POLICY
        assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "same-origin"
    assert visitor.get("/", cookies={}).headers["content-security-policy"] == POLICY


def test_a_page_that_lies_in_a_run_runs_nothing(visitor):
    answer = visitor.get("/runs/runs/made/report.html")
    assert answer.text == "<script>alert(1)</script>", "as it is"
    policy = answer.headers["content-security-policy"]
    assert policy == STORED and "default-src 'none'" in policy
    assert "sandbox allow-same-origin" in policy and "allow-scripts" not in policy


def test_it_listens_on_this_machine_only():
    with serve.listen(0) as first:
        host, port = first.getsockname()
        assert host == "127.0.0.1"
        with pytest.raises(OblivionisError, match=f"--port {port}: .*choose another one"):
            serve.listen(port)


def test_without_a_wish_a_taken_port_is_no_matter(monkeypatch):
    with serve.listen(0) as first:
        monkeypatch.setattr(serve, "PORT", first.getsockname()[1])
        with serve.listen(None) as second:
            assert second.getsockname()[0] == "127.0.0.1" and second.getsockname() != first.getsockname()


# -- forms ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    return write_nodes(tmp_path) / "node0"


def form_of(visitor):
    return {
        "form_token": re.search(r'name="form_token" value="(\w+)"', visitor.page("/node"))[1],
        "what": "records",
        "ids": "p0-home",
        "reason": "by letter",
    }


def test_a_form_of_the_window_makes_a_request(tmp_path, folder):
    visitor = Visitor(tmp_path, Node(folder, write=True))
    answer = visitor.ask("POST", "/node", data=form_of(visitor), headers={"origin": ADDRESS})
    (made,) = NodeLedger(folder).requests()
    assert (answer.status_code, answer.headers["location"]) == (303, f"/node?made={made.id}")
    assert (made.record_ids, made.reason) == (("p0-home",), "by letter")
    assert f"Request {made.id} was made: 1 record." in visitor.page(answer.headers["location"])


@pytest.mark.parametrize(
    ("changes", "headers", "status"),
    [
        ({}, {"origin": "http://evil.example"}, 403),
        ({}, {"origin": "null"}, 403),
        ({}, {}, 403),
        ({"form_token": "0" * 64}, {"origin": ADDRESS}, 403),
        ({"form_token": ""}, {"origin": ADDRESS}, 403),
        ({"form_token": TOKEN}, {"origin": ADDRESS}, 403),
        ({"reason": "x" * 1_000_001}, {"origin": ADDRESS}, 422),
    ],
)
def test_other_forms_are_refused(tmp_path, folder, changes, headers, status):
    visitor = Visitor(tmp_path, Node(folder, write=True))
    answer = visitor.ask("POST", "/node", data={**form_of(visitor), **changes}, headers=headers)
    assert answer.status_code == status
    assert visitor.ask("POST", "/node", data=form_of(visitor), headers=headers, cookies={}).status_code == 403
    assert NodeLedger(folder).requests() == []


def test_nothing_can_be_asked_of_a_window_that_only_shows(tmp_path, folder):
    writing, showing = (Visitor(tmp_path, Node(folder, write=write)) for write in (True, False))
    answer = showing.ask("POST", "/node", data=form_of(writing), headers={"origin": ADDRESS})
    assert answer.status_code == 405 and NodeLedger(folder).requests() == []
    page = showing.page("/node")
    assert "form_token" not in page and "--write" in page
    for path in ("/", "/compare", "/requests", "/suites"):
        assert showing.ask("POST", path, headers={"origin": ADDRESS}).status_code == 405
    assert Visitor(tmp_path).get("/node").status_code == 404
