"""The texts that `oblivionis deploy init` writes: start scripts, nginx's and Flower's configuration, a README.

`@NAME@` is filled in by `fill`. Scripts find their own folder, so that a node's folder may be copied anywhere.
"""

from __future__ import annotations

import re
from string import Template


class _Text(Template):
    """Text of shells and of nginx, in which `$` means something else: a placeholder is `@NAME@`."""

    pattern = "@(?P<named>[A-Z_]+)@|(?P<braced>(?!))|(?P<escaped>(?!))|(?P<invalid>(?!))"  # type: ignore[assignment]
    flags = re.VERBOSE  # and not, as by default, of any case


_PREAMBLE = """\
#!/bin/sh
set -eu
umask 077
PATH=$PATH:/usr/local/sbin:/usr/sbin  # where Debian has nginx, and its users do not look
here=$(cd "$(dirname "$0")" && pwd)
if ! command -v @PROGRAM@ >/dev/null; then
    echo "@PROGRAM@ is not on PATH: @REMEDY@" >&2
    exit 1
fi
"""
_FLOWER = "activate the environment in which oblivionis is installed"
_NGINX = "install it (Debian: apt-get install nginx-light)"
_ENVIRONMENT = """\
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 TOKENIZERS_PARALLELISM=false
"""


def _preamble(program: str, remedy: str) -> str:
    return fill(_PREAMBLE, PROGRAM=program, REMEDY=remedy)


def fill(template: str, **values: object) -> str:
    """`template` with every `@NAME@` replaced; KeyError for one without a value."""
    return _Text(template).substitute(values)


START_SUPERLINK = (
    _preamble("flower-superlink", _FLOWER)
    + _ENVIRONMENT
    + """\
export FLWR_HOME="$here/flwr-home" OBLIVIONIS_HOME="$here"
cd "$here"
exec flower-superlink --host 127.0.0.1 --port @SUPERLINK_PORT@ \\
    --ssl-ca-certfile "$here/ca.crt" --ssl-certfile "$here/server.crt" --ssl-keyfile "$here/server.key" \\
    --enable-supernode-auth --disable-runtime-dependency-installation --database "$here/superlink.db"
"""
)

START_NGINX = (
    _preamble("nginx", _NGINX)
    + """\
exec nginx -p "$here/" -c "$here/nginx.conf" -e "$here/nginx-error.log" -g "daemon off;"
"""
)

REGISTER_NODES = (
    _preamble("flwr", _FLOWER)
    + _ENVIRONMENT
    + """\
export FLWR_HOME="$here/flwr-home"
for key in "$here"/nodes/*.pub; do
    flwr supernode register "$key" lab
done
"""
)

# `START_SUPERNODE` puts it before Flower's own. With -c, what it forks imports nothing of ours by itself.
FLOWER_SUPEREXEC = """\
#!/bin/sh
exec python3 -P -c 'from oblivionis.deploy.preforked_client_apps import main; main()' "$@"
"""

# A SuperNode that ends (a crash, a lost machine that came back) is started again, after 1, 2, 4, … 60 seconds.
START_SUPERNODE = (
    _preamble("flower-supernode", _FLOWER)
    + _ENVIRONMENT
    + """\
export FLWR_HOME="$here/flwr-home" FLWR_SUPEREXEC_TASK_POLL_INTERVAL="${FLWR_SUPEREXEC_TASK_POLL_INTERVAL:-0.2}"
[ "${WARM:-yes}" = no ] || export PATH="$here/bin:$PATH"
cd "$here"
set -- --superlink "${SUPERLINK:-@SUPERLINK@}" --root-certificates "$here/ca.crt" \\
    --auth-supernode-private-key "$here/node.key" --host 127.0.0.1 --port "${RUNTIME_PORT:-@RUNTIME_PORT@}" \\
    --node-config "partition-id=@PARTITION@ num-partitions=@PARTITIONS@ node-dir=\\"$here\\""
if [ "${RESTART:-always}" = never ]; then
    exec flower-supernode "$@"
fi
wait=1
while :; do
    started=$(date +%s)
    flower-supernode "$@" &
    child=$!
    trap 'kill "$child" 2>/dev/null; wait "$child" || true; exit 0' INT TERM
    wait "$child" && status=0 || status=$?
    trap - INT TERM
    [ $(($(date +%s) - started)) -lt 60 ] || wait=1
    echo "the SuperNode ended with status $status; starting it again in $wait s" >&2
    sleep "$wait"
    wait=$((wait < 32 ? wait * 2 : 60))
done
"""
)

NGINX_CONF = """\
# Lets only Flower's fleet paths through from outside. All else of the SuperLink (its control interface above all, which
# node authentication does not cover) is reached on the server itself only, at 127.0.0.1:@SUPERLINK_PORT@.
pid nginx.pid;
worker_processes auto;
events {}
http {
    server_tokens off;
    access_log nginx-access.log;
    server {
        listen @LISTEN@ ssl;
        ssl_certificate server.crt;
        ssl_certificate_key server.key;
        ssl_protocols TLSv1.2 TLSv1.3;

        # Flower sends arrays in pieces of 5 MB. Bodies stay in memory: no file of a client's lies about.
        client_max_body_size 8m;
        client_body_buffer_size 8m;
        proxy_max_temp_file_size 0;

        location ~ ^/v1/fleet/[a-z-]+$ {
            limit_except POST {
                deny all;
            }
            proxy_pass https://127.0.0.1:@SUPERLINK_PORT@$uri;
            proxy_ssl_verify on;
            proxy_ssl_trusted_certificate ca.crt;
            proxy_ssl_name localhost;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_read_timeout 300s;
        }
        location / {
            return 403;
        }
    }
}
"""

CONFIG_TOML = """\
[superlink]
default = "lab"

[superlink.lab]
address = "127.0.0.1:@SUPERLINK_PORT@"
root-certificates = "@SERVER_DIR@/ca.crt"
"""

README = """\
# A deployment of Oblivionis for @PARTITIONS@ clients

Made by `oblivionis deploy init`; docs/guides/deployment.md says how it is used. SuperNodes reach it at `@SUPERLINK@`.

| folder | goes to | secret |
| --- | --- | --- |
| `ca/` | nobody: keep it offline, it signs new server certificates | `ca.key` |
| `server/` | the server, at this very path (`flwr-home/config.toml` names it) | `server.key` |
| `node0/` … | one client machine each, anywhere; delete it here afterwards | `node.key` |

On the server, in the environment in which Oblivionis is installed:

    server/start-superlink.sh
    server/start-nginx.sh
    server/register-nodes.sh        # once, before the SuperNodes start

On each client, with its records (JSON lines, CSV, parquet, …) in `node0/data/`; `node0/node.toml` says what it does for
the server:

    node0/start-supernode.sh

The clocks of all machines must agree within some seconds. The server's certificate is valid until @VALID_UNTIL@.
"""
