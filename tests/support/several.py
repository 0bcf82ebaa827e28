"""Several `oblivionis` commands in one process, on the in-process grid: forked from the warm process of the tests.

    python several.py '[["simulate", "smoke"], ["attack", "runs/smoke"]]'

Prints each command behind a `$`, and ends with the code of the first that fails. The program is that of PYTHONPATH.
"""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from support.commands import in_process

from oblivionis.cli import main
from oblivionis.server import simulation

simulation.simulate = in_process
for command in json.loads(sys.argv[1]):
    print("$", *command, flush=True)
    sys.argv = ["oblivionis", *command]
    try:
        main.main()
    except SystemExit as stop:
        if stop.code:
            raise
