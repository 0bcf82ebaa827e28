"""Hands a command line over to the server of warm processes (`support/forks.py`), and stands for what that forks.

The first that comes starts the server. Where it cannot be had, where OBLIVIONIS_TEST_FORKS is not set, and in another
environment than that of the tests (OBLIVIONIS_TEST_PREFIX), whose libraries the server has, a process goes on by
itself.
"""

import os
import sys

MODULES = ("oblivionis.cli.main",)
FLOWER = ("flower-superexec", "flower-superlink", "flower-supernode", "flwr", "flwr-serverapp", "flwr-simulation")
SCRIPTS = (*FLOWER, "oblivionis", "several.py")
FORKING = ("from multiprocessing.forkserver import main", "from oblivionis.deploy.preforked_client_apps import main")
CODE = (*FORKING, "# warm\n")
"""How the programs of `python -c` begin that are handed over; a test's own says that it is to be."""
START_S = 120


def try_at(address):
    """End as the process that was forked for this command line; return if there is none."""
    arguments = _wanted(sys.orig_argv[1:])
    if not arguments or sys.platform != "linux" or not os.path.isdir(os.path.dirname(address)):
        return
    if sys.prefix != os.environ["OBLIVIONIS_TEST_PREFIX"]:
        return
    connection = _connect(address)
    if connection is not None:
        _stand_for(connection, arguments)


def _wanted(given):
    """What to hand over, without options of Python; nothing if the command is none of those that are."""
    while given and given[0].startswith("-") and given[0] not in ("-m", "-c"):
        given = given[1:]
    if not given:
        return None
    if given[0] == "-m":
        return given if given[1] in MODULES else None
    if given[0] == "-c":
        return given if given[1].startswith(CODE) else None
    return given if os.path.basename(given[0]) in SCRIPTS and os.path.isfile(given[0]) else None


def _connect(address):
    """A connection to the server, which is started if it is not there."""
    import fcntl
    import socket

    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(address)
        return connection
    except OSError:
        pass
    with open(f"{address}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(address):
            _start(address)
        try:
            connection.connect(address)
        except OSError:
            return None
    return connection


def _start(address):
    import subprocess
    import time

    here = os.path.dirname(os.path.abspath(__file__))
    kept = {key: value for key, value in os.environ.items() if key not in ("OBLIVIONIS_TEST_FORKS", "COLUMNS")}
    kept |= {"OBLIVIONIS_TEST_PATCH": "", "RAY_worker_niceness": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}
    kept.pop("OBLIVIONIS_TEST_MARK", None)
    program = [sys.executable, os.path.join(os.path.dirname(here), "forks.py"), address]
    room = "room".ljust(1 << 15)
    with open(f"{address}.log", "ab") as log:
        server = subprocess.Popen(
            [*program, os.environ["OBLIVIONIS_TEST_OWNER"], room],
            cwd="/",
            env={**kept, "ROOM": room},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_S
    while server.poll() is None and not os.path.exists(address) and time.monotonic() < deadline:
        time.sleep(0.02)
    server.returncode = 0  # it outlives this process


def _stand_for(connection, arguments):
    """Pass signals on until the forked process has ended, and end in the same way."""
    import array
    import contextlib
    import json
    import signal
    import socket

    child, early = [], []

    def passed_on(number, frame):
        if child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child[0], number)
        else:
            early.append(number)

    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, *(() if ignored else (signal.SIGINT,))):
        signal.signal(number, passed_on)
    files = sorted(int(f) for f in os.listdir("/proc/self/fd") if _inherited(int(f)))
    umask = os.umask(0o77)
    os.umask(umask)
    request = {
        "arguments": arguments,
        "files": files,
        "cwd": os.getcwd(),
        "umask": umask,
        "cores": sorted(os.sched_getaffinity(0)),
        "masked": [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "sigint_ignored": ignored,
        "environment": dict(os.environ),
    }
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
    line = json.dumps(request).encode() + b"\n"
    sent = connection.sendmsg([line], rights)
    connection.sendall(line[sent:])
    told = connection.makefile("r")
    first = told.readline()
    if not first:
        os._exit(1)
    child.append(int(first))
    for number in early:
        passed_on(number, None)
    last = told.readline()
    code = int(last) if last else 1
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _inherited(file):
    """Whether a file came from who started this process: those of our own are closed on exec."""
    try:
        return os.get_inheritable(file)
    except OSError:
        return False
