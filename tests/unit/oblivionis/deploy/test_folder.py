"""`oblivionis deploy init`: permissions, certificates, keys and start scripts."""

import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
import zipfile

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from support.processes import PROJECT, SITE, environment, until

import oblivionis
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


# -- what `flwr run` sends -----------------------------------------------------------------------------------------


def test_the_bundle_holds_what_the_apps_import_and_nothing_else(tmp_path):
    subprocess.run(
        ["flwr", "build", "--app", PROJECT], cwd=tmp_path, env=environment(), check=True, capture_output=True
    )
    (bundle,) = tmp_path.glob("*.fab")
    names = set(zipfile.ZipFile(bundle).namelist())
    folders = ("oblivionis", *oblivionis.SIBLINGS, "conf")
    wanted = {str(p.relative_to(PROJECT)) for f in folders for p in (PROJECT / f).rglob("*.py")}
    wanted |= {str(p.relative_to(PROJECT)) for p in (PROJECT / "conf").rglob("*.yaml")}
    assert wanted <= names
    others = {name for name in names if name.split("/")[0] not in folders}
    assert others == {"pyproject.toml", "LICENSE", ".info/CONTENT"}
    data = {name for name in names - wanted - others if not name.endswith(".json")}
    assert not data, "records and tables are no part of the program"
    zipfile.ZipFile(bundle).extractall(tmp_path / "unpacked")
    apps = "# warm\nimport oblivionis.server.app, oblivionis.client.app as app; print(app.__file__)"
    path = environment(PYTHONPATH=os.pathsep.join([str(tmp_path / "unpacked"), str(SITE)]))
    done = subprocess.run([sys.executable, "-c", apps], cwd=tmp_path, env=path, capture_output=True, text=True)
    assert done.stdout.strip() == str(tmp_path / "unpacked" / "oblivionis" / "client" / "app.py"), done.stderr
