"""Tests run side by side (pytest-xdist): one thread each, or they would wait for each other."""

import os
import shutil
import signal
import tempfile
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A background job of a shell ignores Ctrl-C, and so would the commands that tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

PROJECT = Path(__file__).resolve().parents[1]
SUPPORT = PROJECT / "tests" / "support"
LONGEST = ("test_faults.py", "test_deployment_guide.py", "test_federated_suites.py", "test_processes.py")


def pytest_configure(config):
    """What tests start begins with `site/sitecustomize.py`; the processes of pytest-xdist do not."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        os.environ["PYTHONPATH"] = os.pathsep.join([str(PROJECT), str(SUPPORT / "site")])
    if not hasattr(config, "workerinput"):
        os.environ["OBLIVIONIS_TEST_FORKS"] = str(Path(tempfile.mkdtemp(prefix="oblivionis-")) / "forks")
        os.environ["OBLIVIONIS_TEST_OWNER"] = str(os.getpid())


def pytest_unconfigure(config):
    """The server of warm processes ends when its socket has gone."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(Path(os.environ.pop("OBLIVIONIS_TEST_FORKS")).parent, ignore_errors=True)


def pytest_xdist_auto_num_workers():
    """One more than there are processors: tests of a deployment mostly wait for Flower."""
    return (os.cpu_count() or 1) + 1


TIERS = ("unit", "invariants", "integration", "deployed")


def pytest_collection_modifyitems(items):
    """The folder marks the tier; files that take longest begin first, or the others would be done long before them."""
    for item in items:
        item.add_marker(item.path.relative_to(PROJECT / "tests").parts[0])
    slow = {item.path for item in items if item.get_closest_marker("slow")}

    def place(item):
        name = item.path.name
        return LONGEST.index(name) if name in LONGEST else len(LONGEST) + (item.path not in slow)

    items.sort(key=place)
