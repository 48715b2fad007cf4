"""A launcher in a few lines: two ranks of the trainer, each in a session of its own as torchrun does it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ranks = [
    subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("trainer.py")), *sys.argv[1:]],
        env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
        start_new_session=True,
    )
    for rank in range(2)
]
sys.exit(max(abs(process.wait()) for process in ranks))
