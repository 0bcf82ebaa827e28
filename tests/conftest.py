"""Tests run side by side (pytest-xdist): one thread each, or they would wait for each other."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
