"""What a client process loads: in a deployment every message starts a new one."""

import subprocess
import sys
import textwrap
from pathlib import Path

QUERY = """
    import sys
    from flwr.app import Message, RecordDict
    from support.inprocess import InProcessGrid
    from oblivionis.client.app import app
    from strategies import message_keys as protocol

    grid = InProcessGrid(app, 1)
    (node,) = grid.get_node_ids()
    (reply,) = grid.send_and_receive([Message(RecordDict(), dst_node_id=node, message_type="query")])
    print(reply.content.metric_records[protocol.METRICS][protocol.PARTITION_ID])
    print([name for name in ("torch", "transformers", "peft", "nltk", "scipy") if name in sys.modules])
"""


def test_a_query_is_answered_without_torch():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(QUERY)], cwd=Path(__file__).parents[1], capture_output=True, text=True
    )
    assert done.stdout.splitlines() == ["0", "[]"], done.stdout + done.stderr
