"""An engine process that submits a trial, writes the handle down and waits to be killed."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from engine.durable import write_text
from engine.schema.job import JobRequest
from slurm.local.executor import LocalExecutor

request = JobRequest.model_validate_json(Path(sys.argv[1]).read_text())
handle = LocalExecutor().submit(request)
write_text(Path(sys.argv[2]), handle.model_dump_json())
while True:
    time.sleep(600)
