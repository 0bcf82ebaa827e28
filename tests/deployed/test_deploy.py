"""`oblivionis deploy init`: permissions, certificates, keys and start scripts; what real processes refuse."""

import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import threading
import time
import zipfile

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from support.deployed import Deployed
from support.processes import PROJECT, environment, free_ports, until

from oblivionis.deploy import folder as deploy
from oblivionis.errors import OblivionisError

HOSTS = ("lab.example.org", "192.0.2.7", "2001:db8::7")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("deploy") / "lab"
    deploy.create(made, deploy.Deployment(clients=3, hosts=HOSTS))
    return made


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def private_keys(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and b"PRIVATE KEY" in p.read_bytes()}


# -- the folder ------------------------------------------------------------------------------------------------------


def test_private_keys_are_their_owners_alone(folder):
    keys = private_keys(folder)
    names = {"ca/ca.key", "server/server.key", *(f"node{i}/node.key" for i in range(3))}
    assert {str(p.relative_to(folder)) for p in keys} == names
    assert len(set(keys.values())) == 5, "no key lies in two places"
    assert {mode(p) for p in keys} == {0o600}
    assert {mode(p) for p in [folder, *folder.rglob("*")] if p.is_dir()} == {0o700}


def test_permissions_do_not_depend_on_the_umask(tmp_path):
    before = os.umask(0)
    try:
        deploy.create(tmp_path / "new" / "lab", deploy.Deployment(clients=1))
    finally:
        os.umask(before)
    assert {mode(p) for p in private_keys(tmp_path)} == {0o600}
    assert {mode(p) for p in (tmp_path / "new").rglob("*") if p.is_dir()} == {0o700}
    assert not any(mode(p) & 0o022 for p in (tmp_path / "new").rglob("*")), "nobody else writes"


def test_node_keys_are_what_flower_reads(folder):
    points = set()
    for i in range(3):
        private = load_ssh_private_key((folder / f"node{i}" / "node.key").read_bytes(), None)
        public = load_ssh_public_key((folder / "server" / "nodes" / f"node{i}.pub").read_bytes())
        assert isinstance(private.curve, ec.SECP384R1)
        assert private.public_key().public_numbers() == public.public_numbers()
        points.add(public.public_numbers().x)
    assert len(points) == 3


def handshake(folder, name, authority):
    """A TLS handshake in memory between a server with the deployment's certificate and a strict client."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server" / "server.crt", folder / "server" / "server.key")
    client = ssl.create_default_context(cafile=authority)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    ends, errors = socket.socketpair(), []

    def serve():
        try:
            server.wrap_socket(ends[0], server_side=True).close()
        except OSError as error:
            errors.append(error)
            ends[0].close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client.wrap_socket(ends[1], server_hostname=name).close()
    finally:
        ends[1].close()
        thread.join()


@pytest.mark.parametrize("name", [*HOSTS, "127.0.0.1", "localhost"])
def test_the_server_is_who_it_says(folder, name):
    handshake(folder, name, folder / "node0" / "ca.crt")


def test_another_name_or_another_authority_is_refused(folder, tmp_path):
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(folder, "elsewhere.example.org", folder / "node0" / "ca.crt")
    deploy.create(tmp_path / "other", deploy.Deployment(clients=1))
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(folder, HOSTS[0], tmp_path / "other" / "node0" / "ca.crt")


def test_a_renewed_server_is_trusted_by_the_old_clients(tmp_path):
    lab = tmp_path / "lab"
    deploy.create(lab, deploy.Deployment(clients=1, hosts=HOSTS, days=1))
    before = {p: p.read_bytes() for p in lab.rglob("*") if p.is_file()}
    deploy.renew(lab, ["new.example.org"], 30)
    changed = {str(p.relative_to(lab)) for p in lab.rglob("*") if p.is_file() and p.read_bytes() != before.get(p)}
    assert changed == {"server/server.crt", "server/server.key"}
    assert mode(lab / "server" / "server.key") == 0o600
    for name in (*HOSTS, "127.0.0.1", "localhost", "new.example.org"):
        handshake(lab, name, lab / "node0" / "ca.crt")
    shutil.rmtree(lab / "ca")
    with pytest.raises(OblivionisError, match=r"ca\.key is missing"):
        deploy.renew(lab, [], 30)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_openssl_agrees(folder):
    def checked(*arguments):
        done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    authority, server = folder / "ca" / "ca.crt", folder / "server" / "server.crt"
    strict = ("-x509_strict", "-purpose", "sslserver", "-verify_hostname", HOSTS[0])
    assert checked("verify", *strict, "-CAfile", authority, server)[0] == 0
    assert checked("verify", "-CAfile", folder / "node1" / "ca.crt", "-purpose", "sslclient", server)[0] != 0
    assert "pathlen:0" in checked("x509", "-in", authority, "-noout", "-text")[1]
    assert checked("x509", "-in", server, "-noout", "-checkend", 824 * 86400)[0] == 0
    assert checked("x509", "-in", server, "-noout", "-checkend", 826 * 86400)[0] == 1


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"hosts": ("https://lab.example.org",)}, "without scheme and port"),
        ({"hosts": ("lab.example.org:9443",)}, "without scheme and port"),
        ({"hosts": ("lab_1",)}, "neither a host name nor an IP address"),
        ({"port": 9444}, "overlap"),
        ({"node_port": 9442}, "overlap"),
        ({"node_port": 65534}, "65535"),
    ],
)
def test_mistakes(made, said):
    with pytest.raises(OblivionisError, match=said):
        deploy.Deployment(clients=3, **made)


def test_nothing_is_overwritten(folder):
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(OblivionisError, match="nothing is overwritten"):
        deploy.create(folder, deploy.Deployment(clients=3))
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_no_deployment_where_flower_would_bundle_it(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.flwr.app]\npublisher = "me"\n')
    with pytest.raises(OblivionisError, match="makes a bundle for all machines"):
        deploy.create(tmp_path / "a" / "lab", deploy.Deployment(clients=1))
    assert not (tmp_path / "a").exists()


# -- the start script of a SuperNode, with a stand-in for Flower's program ---------------------------------------------


def stand_in(folder, text):
    """A program `flower-supernode` and the PATH with which it is found."""
    program = folder / "bin" / "flower-supernode"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return environment(PATH=f"{program.parent}{os.pathsep}/usr/bin{os.pathsep}/bin")


def test_a_node_folder_works_wherever_it_is_copied(folder, tmp_path):
    moved = tmp_path / "client machine" / "own name"
    shutil.copytree(folder / "node2", moved)
    settings = stand_in(tmp_path, 'for a in "$@"; do echo "$a"; done; echo "home=$FLWR_HOME"')
    told = subprocess.run(
        [moved / "start-supernode.sh"], env={**settings, "RESTART": "never"}, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert told[told.index("--superlink") + 1] == "lab.example.org:9443"
    assert told[told.index("--root-certificates") + 1] == str(moved / "ca.crt")
    assert told[told.index("--auth-supernode-private-key") + 1] == str(moved / "node.key")
    assert told[told.index("--node-config") + 1] == f'partition-id=2 num-partitions=3 node-dir="{moved}"'
    assert told[-1] == f"home={moved / 'flwr-home'}"
    assert "--insecure" not in told


@pytest.mark.parametrize("warm", ["yes", "no"])
def test_the_nodes_own_superexec_comes_first(folder, tmp_path, warm):
    settings = {**stand_in(tmp_path, "command -v flower-superexec"), "RESTART": "never", "WARM": warm}
    flowers = tmp_path / "bin" / "flower-superexec"
    flowers.write_text("#!/bin/sh\n")
    flowers.chmod(0o755)
    node = folder / "node1"
    done = subprocess.run([node / "start-supernode.sh"], env=settings, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(node / "bin" / "flower-superexec" if warm == "yes" else flowers)


def test_a_supernode_that_ends_is_started_again_until_told_to_stop(folder, tmp_path):
    starts = tmp_path / "starts"
    settings = stand_in(tmp_path, f'echo $$ >>"{starts}"; [ $(wc -l <"{starts}") -gt 1 ] || exit 3; exec sleep 1000')
    process = subprocess.Popen([folder / "node0" / "start-supernode.sh"], env=settings, stderr=subprocess.PIPE)
    try:
        assert until(lambda: starts.exists() and len(starts.read_text().split()) == 2, 20), "not started again"
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert b"ended with status 3; starting it again in 1 s" in process.stderr.read()
        with pytest.raises(ProcessLookupError):
            os.kill(int(starts.read_text().split()[1]), 0)
    finally:
        process.kill()
        process.wait()


def test_without_the_environment_a_script_says_so(folder):
    bare = environment(PATH="/usr/bin:/bin")
    done = subprocess.run([folder / "node0" / "start-supernode.sh"], env=bare, capture_output=True, text=True)
    assert done.returncode == 1 and "activate the environment" in done.stderr


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


def test_the_bundle_holds_the_program_and_nothing_else(tmp_path):
    subprocess.run(
        ["flwr", "build", "--app", PROJECT], cwd=tmp_path, env=environment(), check=True, capture_output=True
    )
    (bundle,) = tmp_path.glob("*.fab")
    names = set(zipfile.ZipFile(bundle).namelist())
    folders = ("oblivionis", "strategies", "clients", "evaluation", "benchmarks", "conf")
    wanted = {str(p.relative_to(PROJECT)) for f in folders for p in (PROJECT / f).rglob("*.py")}
    wanted |= {str(p.relative_to(PROJECT)) for p in (PROJECT / "conf").rglob("*.yaml")}
    assert wanted <= names
    others = {name for name in names if name.split("/")[0] not in folders}
    assert others == {"pyproject.toml", "LICENSE", ".info/CONTENT"}
    data = {name for name in names - wanted - others if not name.endswith(".json")}
    assert not data, "records and tables are no part of the program"
