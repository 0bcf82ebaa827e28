"""What the real processes of a deployment refuse, and the bundle that they are sent."""

import shutil
import socket
import ssl
import subprocess

import httpx
import pytest
from support.deployed import Deployed
from support.processes import free_ports, until

from oblivionis.deploy import folder as deploy

# -- real processes on loopback ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    if shutil.which("nginx") is None:
        pytest.skip("needs nginx")
    with Deployed(tmp_path_factory.mktemp("refusals") / "lab", clients=2) as lab:
        lab.start_superlink()
        lab.start_nginx()
        yield lab


def outside(lab, path, **more):
    """What a stranger gets who sends bytes to nginx."""
    authority = ssl.create_default_context(cafile=lab.node(0) / "ca.crt")
    return httpx.post(f"https://127.0.0.1:{lab.port}{path}", verify=authority, **more).status_code


@pytest.mark.slow
def test_only_fleet_paths_pass_nginx(lab):
    assert outside(lab, "/v1/fleet/pull-messages") not in {403, 404, 502}, "this one reaches the SuperLink"
    for path in [
        "/",
        "/v1/control/list-runs",
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/runtime/pull-messages",
        "/v1/fleet",
        "/v1/fleet/",
        "/V1/fleet/pull-messages",
        "/docs",
        "/openapi.json",
    ]:
        assert outside(lab, path) == 403, path


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs",
        "/v1/fleet/..%2fcontrol/list-runs",
        "/v1/fleet/x/../../control/list-runs",
        "//v1/control/list-runs",
        "/v1/control/list-runs/../../fleet/../control/list-runs",
        "/v1/control/list-runs?/../../fleet/pull-messages",
        "/v1/control/list-runs#/v1/fleet/pull-messages",
        "https://localhost/v1/control/list-runs",
    ],
)
def test_no_spelling_of_a_control_path_passes_nginx(lab, path):
    with socket.create_connection(("127.0.0.1", lab.port)) as bare:
        context = ssl.create_default_context(cafile=lab.node(0) / "ca.crt")
        with context.wrap_socket(bare, server_hostname="localhost") as secure:
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            secure.sendall(head.encode())
            answer = secure.recv(100)
    assert answer.split()[1] in {b"400", b"403"}, answer


@pytest.mark.slow
def test_the_control_interface_answers_on_the_server_only(lab):
    assert "nodes" in lab.flwr("supernode", "list", "lab", "--format", "json")
    settings = (lab.server / "flwr-home" / "config.toml").read_text()
    home = lab.folder.parent / "stranger"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(settings.replace(f":{lab.superlink_port}", f":{lab.port}"))
    asked = ["flwr", "supernode", "list", "lab", "--format", "json"]
    done = subprocess.run(asked, env=lab.environment(FLWR_HOME=home), capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 or '"success": false' in done.stdout, done.stdout
    assert '"nodes"' not in done.stdout


@pytest.mark.slow
def test_too_large_a_body_is_refused(lab):
    assert outside(lab, "/v1/fleet/push-object", content=b"0" * (9 << 20)) == 413


@pytest.mark.slow
def test_without_tls_nothing_is_answered(lab):
    plain = httpx.post(f"http://127.0.0.1:{lab.port}/v1/fleet/pull-messages")
    assert plain.status_code == 400 and "HTTPS port" in plain.text
    with pytest.raises(httpx.TransportError):
        httpx.post(f"http://127.0.0.1:{lab.superlink_port}/v1/fleet/pull-messages")


def supernode(lab, *arguments):
    """Whether a SuperNode with these arguments comes online within 20 s, and what it says."""
    program = ["flower-supernode", *map(str, arguments), "--port", str(free_ports(1)[0])]
    limits = ["--max-retries", "2", "--max-wait-time", "10"]
    home = lab.environment(FLWR_HOME=lab.folder.parent / "stranger-node")
    log = lab.folder.parent / "stranger.log"
    with log.open("w") as out:
        process = subprocess.Popen([*program, *limits], env=home, stdout=out, stderr=subprocess.STDOUT, cwd="/")
    try:
        until(lambda: process.poll() is not None or "SuperNode ID" in log.read_text(), 20, every=0.2)
        return "SuperNode ID" in log.read_text() or lab.online() > 0, log.read_text()
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_supernodes_without_the_right_key_or_authority_are_refused(lab, tmp_path):
    deploy.create(tmp_path / "other", deploy.Deployment(clients=1))
    address = ["--superlink", f"127.0.0.1:{lab.port}"]
    ours, theirs = lab.node(0), tmp_path / "other" / "node0"
    trusted = ["--root-certificates", ours / "ca.crt"]

    refused = {
        "a key that nobody registered": ([*trusted, *key(theirs)], "Failed to activate"),
        "no key at all": (trusted, "must be registered"),
        "one of ours before it is registered": ([*trusted, *key(ours)], "Failed to activate"),
        "no TLS": (["--insecure"], "Exit Code: 305"),
        "another authority than the server's": (
            ["--root-certificates", theirs / "ca.crt", *key(ours)],
            "CERTIFICATE_VERIFY_FAILED",
        ),
    }
    for case, (arguments, reason) in refused.items():
        online, said = supernode(lab, *address, *arguments)
        assert not online, f"{case}: {said}"
        assert reason in said, f"{case}: {said}"
    lab.register()
    online, said = supernode(lab, *address, *trusted, *key(ours))
    assert online, said


def key(node):
    return ["--auth-supernode-private-key", node / "node.key"]
