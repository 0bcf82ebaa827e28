"""A deployment in containers: an image of this very program, and a Compose file whose services run the start scripts.

Keys are mounted as secrets, and what a container must not change is mounted read-only; neither is part of the image.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from oblivionis.client.node_policy import POLICY_FILE
from oblivionis.deploy import hub
from oblivionis.deploy.templates import fill
from oblivionis.errors import OblivionisError
from oblivionis.naming import DATA_FOLDER
from oblivionis.version import __version__

ROOT = "/deployment"
"""Where the folders of a deployment lie in its containers."""
SUPERLINK = "superlink"
"""The service of that name, by which the SuperNodes of one machine reach it: a name in the server's certificate."""
IMAGE = f"oblivionis:{__version__}"
_OF_SERVER = (
    "ca.crt",
    "server.crt",
    "nginx.conf",
    "nodes",
    "start-superlink.sh",
    "start-nginx.sh",
    "register-nodes.sh",
)
_OF_NODE = ("ca.crt", POLICY_FILE, "start-supernode.sh", "bin", DATA_FOLDER)
"""What of its folder a container reads only."""

# `--compile-bytecode`: Flower starts a process per message, and the file system of a container is read-only.
DOCKERFILE = """\
# Oblivionis @VERSION@ with the libraries of the machine on which `oblivionis deploy init --containers` ran, PyTorch for
# CPUs. No key and no record is in it: docker build -t @IMAGE@ .
FROM python:@PYTHON@-slim

# The newest nginx of the distribution, with its security updates.
# hadolint ignore=DL3008
RUN apt-get update \\
    && apt-get install -y --no-install-recommends nginx-light \\
    && rm -rf /var/lib/apt/lists/* \\
    && pip install --no-cache-dir uv==0.13.9 \\
    && useradd --uid 1000 oblivionis

COPY constraints.txt /opt/constraints.txt
COPY oblivionis /opt/oblivionis
RUN uv pip install --system --no-cache --compile-bytecode --torch-backend=cpu \\
    --constraint /opt/constraints.txt /opt/oblivionis \\
    && chmod -R a+rX /opt/oblivionis

ENV FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 USER=oblivionis
USER 1000
"""

COMPOSE = """\
# SuperLink, nginx, SuperNodes; made by `oblivionis deploy init --containers`, explained in docs/guides/containers.md.
# OWNER: the ids of who owns this folder, `id -u`:`id -g`, who alone can read keys and records.
x-program: &program
  image: @IMAGE@
  pull_policy: never
  user: "${OWNER:-@OWNER@}"
  init: true
  read_only: true
  cap_drop: [ALL]
  security_opt: ["no-new-privileges:true"]
  tmpfs: [/tmp, /var/lib/nginx]
  restart: unless-stopped

x-server: &server
  working_dir: @ROOT@/server
  environment: {HOME: @ROOT@/server, FLWR_HOME: @ROOT@/server/flwr-home}
  volumes:
@SERVER_VOLUMES@
  secrets:
    - {source: server-key, target: @ROOT@/server/server.key}

services:
  superlink:
    <<: [*program, *server]
    command: [./start-superlink.sh]
    ports: ["@PUBLISHED@"]

  nginx:
    <<: [*program, *server]
    command: [./start-nginx.sh]
    network_mode: service:superlink
@NODES@
secrets:
  server-key: {file: ./server/server.key}
@NODE_SECRETS@
"""

COMPOSE_NODE = """
  @NODE@:
    <<: *program
    command: [./start-supernode.sh]
    working_dir: @ROOT@/@NODE@
    environment: {HOME: @ROOT@/@NODE@, RESTART: never@ADDRESS@}
    volumes:
@VOLUMES@
    secrets:
      - {source: @NODE@-key, target: @ROOT@/@NODE@/node.key}
"""

README = """\
# A deployment of Oblivionis for @PARTITIONS@ clients, in containers

Made by `oblivionis deploy init --containers`; docs/guides/containers.md says how it is used. SuperNodes reach it at
`@SUPERLINK@`.

| | goes to | secret |
| --- | --- | --- |
| `ca/` | nobody: keep it offline, it signs new server certificates | `ca.key` |
| `image/`, `compose.yaml` | every machine, in the folder that has `server/` or `node0/` there | |
| `server/` | the server | `server.key` |
| `node0/` … | one client machine each; delete it here afterwards | `node.key` |

On every machine, in this folder:

    docker build -t @IMAGE@ image

On the server:

    docker compose up -d superlink nginx
    docker compose exec superlink ./register-nodes.sh        # once, before the SuperNodes start

On each client, with its records (JSON lines, CSV, parquet, …) in `node0/data/`; `node0/node.toml` says what it does for
the server:

    docker compose up -d node0

The clocks of all machines must agree within some seconds. The server's certificate is valid until @VALID_UNTIL@.
"""


def constraints() -> str:
    """The versions that are installed here of all libraries that this program requires, as pip and uv read them.

    Without local parts of versions (`+cpu`), which say how a library was built. Raises OblivionisError where the
    program is not installed.
    """
    found: dict[str, str] = {}
    waiting: list[tuple[str, str]] = [(hub.NAME, "")]
    seen: set[tuple[str, str]] = set()
    while waiting:
        name, extra = waiting.pop()
        try:
            library = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # of another platform, or an extra that is not installed
            continue
        found[name] = Version(library.version).public
        for requirement in map(Requirement, library.requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                wanted = {(canonicalize_name(requirement.name), part) for part in ("", *requirement.extras)}
                waiting += wanted - seen
                seen |= wanted
    if found.pop(hub.NAME, None) is None:
        raise OblivionisError(f"{hub.NAME} is not installed: its requirements are known from its installation")
    return "".join(f"{name}=={version}\n" for name, version in sorted(found.items()))


def write_image(folder: Path, versions: str) -> None:
    """Lay out what the image is built from: this program, `versions` as `constraints` says them, and the Dockerfile."""
    hub.write(folder / hub.NAME, hub.NAME)
    python = ".".join(map(str, sys.version_info[:2]))
    texts = {
        "constraints.txt": versions,
        "Dockerfile": fill(DOCKERFILE, VERSION=__version__, IMAGE=IMAGE, PYTHON=python),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def compose(clients: int, owner: tuple[int, int], port: int, local: bool) -> str:
    """The Compose file: a service for the SuperLink, one for nginx, and one for each of `clients`.

    owner: user and group as which containers run. port: nginx's, the only one that is published: on the loopback
    interface where the deployment is `local`, to this machine, else on all.
    """
    nodes = [f"node{partition}" for partition in range(clients)]
    address = f', SUPERLINK: "{SUPERLINK}:{port}"' if local else ""
    services = [
        fill(COMPOSE_NODE, NODE=node, ROOT=ROOT, ADDRESS=address, VOLUMES=_volumes(node, _OF_NODE, 6)) for node in nodes
    ]
    return fill(
        COMPOSE,
        IMAGE=IMAGE,
        OWNER=":".join(map(str, owner)),
        ROOT=ROOT,
        PUBLISHED=f"127.0.0.1:{port}:{port}" if local else f"{port}:{port}",
        SERVER_VOLUMES=_volumes("server", _OF_SERVER, 4),
        NODES="".join(services),
        NODE_SECRETS="\n".join(f"  {node}-key: {{file: ./{node}/node.key}}" for node in nodes),
    )


def _volumes(folder: str, read_only: tuple[str, ...], indent: int) -> str:
    """The mounts of a folder, and of what in it must not be changed, as lines of the Compose file."""
    mounts = [(folder, ""), *((f"{folder}/{name}", ", read_only: true") for name in read_only)]
    lines = (f"- {{type: bind, source: ./{path}, target: {ROOT}/{path}{how}}}" for path, how in mounts)
    return "\n".join(" " * indent + line for line in lines)
