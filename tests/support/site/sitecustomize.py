"""What the processes that tests start do first: Python imports a module of this name by itself."""

import os
import sys

# As after a plain installation. peft imports it where it is installed, which takes a second of each process.
sys.modules["bitsandbytes"] = None

# Tests kill processes, not machines: what was written need not have reached the disk.
os.fsync = lambda file: os.fstat(file) and None

if address := os.environ.get("OBLIVIONIS_TEST_FORKS"):
    import handover

    handover.try_at(address)

if patches := os.environ.get("OBLIVIONIS_TEST_PATCH"):
    import runpy

    for patch in patches.split(os.pathsep):
        runpy.run_path(patch)
