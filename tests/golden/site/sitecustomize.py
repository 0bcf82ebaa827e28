"""What each process of a run with real client processes does first: its wall clock stands still for the program."""

import os
import sys
from pathlib import Path

sys.modules["bitsandbytes"] = None  # type: ignore[assignment]  # as after a plain installation
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from golden import fixing  # noqa: E402

sys.path.pop(0)
fixing.wall_clock(Path(os.environ["OBLIVIONIS_GOLDEN_TREE"]))
