"""A launcher in a few lines: two ranks of the trainer a node, in sessions of their own as with torchrun.

`spawner.py MODE OUTPUT_DIR [NODE_RANK NODES]`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

RANKS_PER_NODE = 2

node_rank, nodes = (int(word) for word in sys.argv[3:5]) if len(sys.argv) > 3 else (0, 1)
ranks = [
    subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("trainer.py")), *sys.argv[1:3]],
        env={
            **os.environ,
            "RANK": str(node_rank * RANKS_PER_NODE + local),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(nodes * RANKS_PER_NODE),
        },
        start_new_session=True,
    )
    for local in range(RANKS_PER_NODE)
]
sys.exit(max(abs(process.wait()) for process in ranks))
