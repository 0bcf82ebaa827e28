"""Tests run side by side (pytest-xdist): one thread each, or they would wait for each other.

`pytest` alone runs units and invariants, but for the slow ones, and one whole run; `pytest -m "slow or integration or
deployed"` what it leaves out, and `pytest PATH` whatever lies there.
"""

import gc
import importlib
import logging
import os
import pkgutil
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests kill processes, not machines, and wait for no disk; those that they start do as much (support/site).
os.fsync = lambda file: os.fstat(file) and None
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A background job of a shell ignores Ctrl-C, and so would the commands that tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

PROJECT = Path(__file__).resolve().parents[1]
SUPPORT = PROJECT / "tests" / "support"
WHOLE_RUN = PROJECT / "tests" / "integration" / "test_whole_run.py"
LONGEST = (
    "test_architectures.py",
    "test_model_families.py",
    "test_exchanges.py",
    "test_faults.py",
    "test_deployment_guide.py",
    "test_masked_rounds.py",
    "test_other_scripts.py",
    "test_processes.py",
    "test_memory_estimate.py",
    "test_meta_suite.py",
    "test_real_model.py",
    "test_tutorials.py",
    "test_churn.py",
    "test_federated_suites.py",
    "test_faults_of_runs.py",
    "test_gpu_path.py",
    "test_audit_person.py",
    "test_cluster.py",
    "test_whole_run.py",
)


def pytest_collection_finish():
    """Import the rest of the packages: a module that a test is the first to import keeps what that test replaced."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    for package in ("oblivionis", "strategies", "clients", "evaluation"):
        folder = importlib.import_module(package).__path__
        for module in pkgutil.walk_packages(folder, f"{package}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)


class Deprecations(logging.Handler):
    """What transformers, peft and Flower log of features that they are going to remove."""

    LEAVING = re.compile("deprecated|will be removed", re.IGNORECASE)

    def __init__(self):
        super().__init__(logging.WARNING)
        self.found = []

    def emit(self, record):
        text = record.getMessage()
        if self.LEAVING.search(text):
            self.found.append(text)


@pytest.fixture(autouse=True)
def nothing_deprecated_is_used():
    """Those that are warned of are errors by pytest's own settings (pyproject.toml)."""
    handler = Deprecations()
    loggers = [logging.getLogger(name) for name in ("transformers", "peft", "flwr")]
    for logger in loggers:
        logger.addHandler(handler)
    yield
    for logger in loggers:
        logger.removeHandler(handler)
    assert not handler.found, handler.found


def pytest_configure(config):
    """What tests start begins with `site/sitecustomize.py`; the processes of pytest-xdist do not."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        os.environ["PYTHONPATH"] = os.pathsep.join([str(PROJECT), str(SUPPORT / "site")])
    if not hasattr(config, "workerinput"):
        os.environ["OBLIVIONIS_TEST_FORKS"] = str(Path(tempfile.mkdtemp(prefix="oblivionis-")) / "forks")
        os.environ["OBLIVIONIS_TEST_OWNER"], os.environ["OBLIVIONIS_TEST_PREFIX"] = str(os.getpid()), sys.prefix
        os.environ["OBLIVIONIS_TEST_PLAIN"] = str(int(plain(config)))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported for the tests, and the tests themselves, stay to the end: no garbage is looked for in them.

    Afterwards it is looked for less often than usual: tests build many small objects and keep them for a moment.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """What the tests of a file leave behind for good is not looked through again during those of other files."""
    result = yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return result


def plain(config):
    """Whether it is `pytest` alone."""
    return config.args_source == config.ArgsSource.TESTPATHS and not config.option.markexpr


def pytest_unconfigure(config):
    """The server of warm processes ends when its socket has gone."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(Path(os.environ.pop("OBLIVIONIS_TEST_FORKS")).parent, ignore_errors=True)


def pytest_ignore_collect(collection_path):
    """Without any arguments the long tiers are left out, but for one whole run."""
    if os.environ["OBLIVIONIS_TEST_PLAIN"] == "1" and collection_path != WHOLE_RUN and collection_path.suffix == ".py":
        return True if {"integration", "deployed"} & set(collection_path.relative_to(PROJECT).parts) else None
    return None


def pytest_xdist_auto_num_workers(config):
    """One per processor, and two more in the long tiers: tests of a deployment mostly wait for Flower."""
    return (os.cpu_count() or 1) + 2 * (not plain(config))


def pytest_collection_modifyitems(config, items):
    """The folder marks the tier; files that take or wait longest begin first, or they would end alone."""
    for item in items:
        item.add_marker(item.path.relative_to(PROJECT / "tests").parts[0])
    if os.environ["OBLIVIONIS_TEST_PLAIN"] == "1":
        late = {item for item in items if item.get_closest_marker("slow") and item.path != WHOLE_RUN}
        items[:] = [item for item in items if item not in late]
        config.hook.pytest_deselected(items=list(late))
    slow = {item.path for item in items if item.get_closest_marker("slow")}

    def place(item):
        name = item.path.name
        return LONGEST.index(name) if name in LONGEST else len(LONGEST) + (item.path not in slow)

    items.sort(key=place)
