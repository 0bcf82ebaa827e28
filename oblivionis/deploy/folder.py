"""A deployment's folder: keys, certificates, start scripts and configuration for one server and its SuperNodes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

from oblivionis.client.node_policy import POLICY_FILE, example
from oblivionis.deploy import containers
from oblivionis.deploy import keys as deploy_keys
from oblivionis.deploy import templates as deploy_files
from oblivionis.errors import OblivionisError
from oblivionis.files import write_atomic

LOCAL = ("127.0.0.1", "localhost")
_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*")


@dataclass(frozen=True, slots=True)
class Deployment:
    """What `create` lays out.

    hosts: names and IP addresses by which SuperNodes reach the server; they are given the first one.
    port: nginx's, reached from outside. superlink_port: Flower's own, on the loopback interface only.
    node_port: of the first SuperNode's interface to its own ClientApp, on the loopback interface; the others follow.
    days: how long the server's certificate is valid.
    owner: user and group as which containers run; None: no containers.
    """

    clients: int
    hosts: tuple[str, ...] = ("127.0.0.1",)
    port: int = 9443
    superlink_port: int = 9444
    node_port: int = 9500
    days: int = 825
    owner: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        _check_hosts(self.hosts)
        if self.owner is not None and self.owner[0] == 0:
            raise OblivionisError(
                "--containers: no container is to run as root; run it as the user who is to own the folder"
            )
        ports = [self.port, self.superlink_port, *(self.node_port + i for i in range(self.clients))]
        if max(ports) > 65535 or len(set(ports)) < len(ports):
            raise OblivionisError(
                f"the ports overlap or exceed 65535: {self.port} for nginx, {self.superlink_port} for the SuperLink, "
                f"{self.node_port} to {ports[-1]} for the SuperNodes; choose others"
            )

    @property
    def local(self) -> bool:
        """Whether only this machine is to reach the server."""
        return all(host in (*LOCAL, "::1") for host in self.hosts)

    @property
    def superlink(self) -> str:
        """The address that SuperNodes are given."""
        host = self.hosts[0]
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


def create(folder: Path, deployment: Deployment) -> None:
    """Lay out `deployment` in `folder`, which must not exist or be empty: keys cannot be had back.

    Folders are 0700, private keys 0600. Raises OblivionisError for a folder that is in use, or lies in a Flower app,
    whose bundle might carry keys and records to every machine.
    """
    folder = folder.expanduser().resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OblivionisError(f"{folder} exists and is not empty; nothing is overwritten, choose another folder")
    for parent in folder.parents:
        if _is_flower_app(parent / "pyproject.toml"):
            raise OblivionisError(
                f"{folder} lies in the Flower app {parent}, of which `flwr run` makes a bundle for all machines; "
                "choose a folder elsewhere"
            )
    if {'"', "\\", "\n"} & set(str(folder)):
        raise OblivionisError(
            f"{folder} has a quotation mark, backslash or line break in its name; choose another folder"
        )
    versions = containers.constraints() if deployment.owner else ""
    authority = deploy_keys.certificate_authority(f"Oblivionis deployment {folder.name}")
    _make_folder(folder)
    _write(folder / "ca" / "ca.key", authority.private, 0o600)
    _write(folder / "ca" / "ca.crt", authority.public, 0o644)
    values = {
        "SUPERLINK": deployment.superlink,
        "SUPERLINK_PORT": deployment.superlink_port,
        "LISTEN": f"127.0.0.1:{deployment.port}" if deployment.local and not deployment.owner else deployment.port,
        "SERVER_DIR": f"{containers.ROOT}/server" if deployment.owner else folder / "server",
        "PARTITIONS": deployment.clients,
        "VALID_UNTIL": date.today() + timedelta(days=deployment.days),
    }
    _write_server(folder / "server", authority, deployment, values)
    for partition in range(deployment.clients):
        _write_node(folder, partition, authority, {**values, "RUNTIME_PORT": deployment.node_port + partition})
    readme = deploy_files.README
    if deployment.owner:
        readme, values = containers.README, {**values, "IMAGE": containers.IMAGE}
        containers.write_image(folder / "image", versions)
        composed = containers.compose(deployment.clients, deployment.owner, deployment.port, deployment.local)
        _write(folder / "compose.yaml", composed, 0o644)
    _write(folder / "README.md", deploy_files.fill(readme, **values), 0o644)


def renew(folder: Path, hosts: Sequence[str], days: int) -> list[str]:
    """Replace the server's certificate and key by new ones, for the names of the old one and for `hosts`.

    Returns all these names. Clients go on as they are: they trust the CA, which signs it. Raises OblivionisError for a
    folder without CA or server.
    """
    folder = folder.expanduser().resolve()
    authority, server = folder / "ca", folder / "server"
    for path in (authority / "ca.key", authority / "ca.crt", server / "server.crt"):
        if not path.is_file():
            raise OblivionisError(
                f"{path} is missing; expected the folder that `oblivionis deploy init` made, with ca/"
            )
    pair = deploy_keys.Pair((authority / "ca.key").read_bytes(), (authority / "ca.crt").read_bytes())
    _check_hosts(hosts)
    names = list(dict.fromkeys((*hosts, *deploy_keys.hosts_of((server / "server.crt").read_bytes()))))
    made = deploy_keys.server_certificate(pair, names, days)
    for name, content, mode in (("server.key", made.private, 0o600), ("server.crt", made.public, 0o644)):
        write_atomic(server / name, content)  # its temporary file is the owner's alone
        (server / name).chmod(mode)
    return names


def _check_hosts(hosts: Sequence[str]) -> None:
    for host in hosts:
        if not deploy_keys.is_address(host) and not (_NAME.fullmatch(host) and len(host) <= 253):
            raise OblivionisError(
                f"--host {host!r} is neither a host name nor an IP address; give it without scheme and port"
            )


def _write_server(folder: Path, authority: deploy_keys.Pair, deployment: Deployment, values: dict) -> None:
    within = (containers.SUPERLINK,) if deployment.owner else ()
    hosts = tuple(dict.fromkeys((*deployment.hosts, *LOCAL, *within)))
    server = deploy_keys.server_certificate(authority, hosts, deployment.days)
    _write(folder / "ca.crt", authority.public, 0o644)
    _write(folder / "server.crt", server.public, 0o644)
    _write(folder / "server.key", server.private, 0o600)
    texts = {
        "nginx.conf": (deploy_files.NGINX_CONF, 0o644),
        "flwr-home/config.toml": (deploy_files.CONFIG_TOML, 0o600),
        "start-superlink.sh": (deploy_files.START_SUPERLINK, 0o755),
        "start-nginx.sh": (deploy_files.START_NGINX, 0o755),
        "register-nodes.sh": (deploy_files.REGISTER_NODES, 0o755),
    }
    for name, (template, mode) in texts.items():
        _write(folder / name, deploy_files.fill(template, **values), mode)
    _make_folder(folder / "runs")


def _write_node(folder: Path, partition: int, authority: deploy_keys.Pair, values: dict) -> None:
    name = f"node{partition}"
    keys = deploy_keys.node_keys(name)
    node = folder / name
    _write(node / "node.key", keys.private, 0o600)
    _write(node / "node.pub", keys.public, 0o644)
    _write(folder / "server" / "nodes" / f"{name}.pub", keys.public, 0o644)
    _write(node / "ca.crt", authority.public, 0o644)
    script = deploy_files.fill(deploy_files.START_SUPERNODE, **values, PARTITION=partition)
    _write(node / "start-supernode.sh", script, 0o755)
    _write(node / POLICY_FILE, example(), 0o600)
    _write(node / "bin" / "flower-superexec", deploy_files.FLOWER_SUPEREXEC, 0o755)
    _make_folder(node / "data")


def _make_folder(folder: Path) -> None:
    for missing in [p for p in (*reversed(folder.parents), folder) if not p.exists()]:
        missing.mkdir(mode=0o700)
    folder.chmod(0o700)


def _write(path: Path, content: bytes | str, mode: int) -> None:
    """Write a new file that no other user can read before it has its `mode`."""
    _make_folder(path.parent)
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)


def _is_flower_app(project: Path) -> bool:
    return project.is_file() and "[tool.flwr.app" in project.read_text(encoding="utf-8", errors="replace")


def next_steps(folder: Path, deployment: Deployment) -> str:
    """What to do after `create`, for the terminal."""
    if deployment.owner:
        return (
            f"wrote {folder}; next, in it: docker build -t {containers.IMAGE} image; then see its README.md and "
            "docs/guides/containers.md."
        )
    where = "" if deployment.local else f" on {deployment.hosts[0]}"
    return (
        f"wrote {folder}; next{where}: server/start-superlink.sh, server/start-nginx.sh, server/register-nodes.sh, "
        "then each client's start-supernode.sh. See its README.md and docs/guides/deployment.md."
    )
