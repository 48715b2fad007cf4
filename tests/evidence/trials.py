"""Runs the tiny training script through the real node agent and probe."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from engine.schema.evidence import RunEvidence
from engine.schema.plan import LaunchPlan, ProbePlan
from engine.trial.evidence import read_evidence

ROOT = Path(__file__).resolve().parents[2]
TOTAL, MEASURED = 8, 5


def run_variant(folder: Path, variant: str, *, ranks: int = 2, cpus_per_rank: int = 1) -> RunEvidence:
    """One run of scripts/tiny_train.py as `variant`, and its evidence."""
    trial = folder / f"{variant}-{ranks}"
    for name in ("work", "output"):
        (trial / name).mkdir(parents=True)
    shutil.copytree(ROOT / "engine" / "probe" / "payload", trial / "probe")
    shutil.copy(Path(__file__).parent / "scripts" / "tiny_train.py", trial / "work" / "train.py")
    plan = LaunchPlan(
        trial_id=variant,
        token="token",
        trial_dir=str(trial),
        workdir=str(trial / "work"),
        output_dir=str(trial / "output"),
        probe_dir=str(trial / "probe"),
        python=sys.executable,
        launcher="torchrun",
        command=["train.py"],
        setup=[],
        env={"VARIANT": variant},
        unset=[],
        nodes=1,
        ranks_per_node=ranks,
        cpus_per_rank=cpus_per_rank,
        device="cpu",
        memory_limit_bytes=2 << 30,
        total_updates=TOTAL,
        measured_updates=MEASURED,
        probe=ProbePlan(nonce="ab12"),
        start_timeout_s=120.0,
        update_timeout_s=60.0,
        total_timeout_s=200.0,
    )
    spec = trial / "spec.json"
    spec.write_text(plan.model_dump_json())
    command = [sys.executable, "-P", "-m", "slurm.agent", str(spec)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=trial, env=environment, check=True, timeout=250, capture_output=True)
    return read_evidence(trial, plan)
