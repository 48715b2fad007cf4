"""Stands for an engine process: submits <folder>/request.json, writes <folder>/handle.json."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from engine.schema.job import JobRequest
from tests.slurm.batch.jobs import slurm_executor

folder = Path(sys.argv[1])
request = JobRequest.model_validate_json((folder / "request.json").read_text())
handle = slurm_executor(folder, gpus=2).submit(request)
(folder / "handle.json").write_text(handle.model_dump_json())
