"""As `in_one_process`, in runs alone: `OBLIVIONIS_TEST_PATCH` of a Ray cluster, whose other processes load nothing."""

import runpy
import sys
from pathlib import Path

if "simulate" in sys.orig_argv:
    runpy.run_path(str(Path(__file__).with_name("in_one_process.py")))
