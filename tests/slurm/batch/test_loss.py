"""Why a job without a result is gone: Slurm's facts and the words in its log, one cause each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.schema.job import JobHandle, Loss, SchedulerFacts
from slurm.batch.loss import explain_loss
from slurm.batch.silence import Silence

OOM = "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=12.0. Some of your processes may have been"
LIMIT = "slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-11-30T14:00:00 DUE TO TIME LIMIT ***"
MISSING = "srun: error: Aborting, io error and missing step on node 1\n*** STEP 6.0 ON n1 CANCELLED AT 2026"
OVER = "slurmstepd: error: Step 12.0 exceeded memory limit (3000 > 1000), being killed"


def _facts(state: str, **values: Any) -> SchedulerFacts:
    started = {"started_at": 1.0} if values.pop("started", True) else {}
    return SchedulerFacts.model_validate(
        {"job_id": "12", "state": state, "source": "squeue", "as_of": 0.0, **started, **values}
    )


@pytest.mark.parametrize(
    ("facts", "log", "has_begun", "loss"),
    [
        (_facts("OUT_OF_MEMORY", exit_code=0, signal=125), "", True, Loss.HOST_OOM),
        (_facts("FAILED", exit_code=137), OOM, True, Loss.HOST_OOM),
        (_facts("FAILED", exit_code=137), OVER, True, Loss.HOST_OOM),
        (_facts("FAILED", exit_code=137), "torch: CUDA out of memory", True, Loss.AGENT_DIED),
        (_facts("TIMEOUT"), "", True, Loss.TIME_LIMIT),
        (_facts("NODE_FAIL", nodes=("n1", "n2")), "", True, Loss.NODE_FAILED),
        (_facts("PREEMPTED"), "", True, Loss.PREEMPTED),
        (_facts("CANCELLED by 1000"), "", True, Loss.CANCELLED_OUTSIDE),
        (_facts("FAILED", exit_code=3), "", True, Loss.RESTARTED),
        (_facts("FAILED", exit_code=1, restarts=1), "", True, Loss.RESTARTED),
        (_facts("FAILED", exit_code=1), "ModuleNotFoundError: submitit", False, Loss.NEVER_STARTED),
        (_facts("FAILED", exit_code=9), "", True, Loss.AGENT_DIED),
        (_facts("COMPLETED", exit_code=0), "", True, Loss.AGENT_DIED),
        (None, "", True, Loss.VANISHED),
        (None, LIMIT, True, Loss.TIME_LIMIT),
        (_facts("FAILED", exit_code=137), MISSING, True, Loss.NODE_FAILED),
        (None, OOM, True, Loss.HOST_OOM),
        (_facts("RUNNING"), "", True, Loss.VANISHED),
    ],
    ids=lambda value: getattr(value, "state", None) or str(value)[:20],
)
def test_cause_of_a_loss(
    tmp_path: Path, facts: SchedulerFacts | None, log: str, has_begun: bool, loss: Loss
) -> None:
    """State, exit code and log lead to one cause; its sentence keeps Slurm's word for it."""
    (tmp_path / "12_0_log.err").write_text(log)
    lost = explain_loss(tmp_path, facts, has_begun=has_begun, memory="4G")
    assert lost.loss is loss
    if facts is not None:
        assert facts.state in lost.reason
    if loss is Loss.HOST_OOM:
        assert "4G" in lost.reason


def test_last_words_of_a_job_that_never_started(tmp_path: Path) -> None:
    """What the interpreter said before it died is part of the reason."""
    (tmp_path / "12_0_log.err").write_text("x" * 5000 + "ModuleNotFoundError: submitit")
    reason = explain_loss(tmp_path, _facts("FAILED", exit_code=1), has_begun=False).reason
    assert reason.endswith("ModuleNotFoundError: submitit")
    assert len(reason) < 2000


def test_a_beating_heart_outweighs_the_scheduler(tmp_path: Path) -> None:
    """A job that Slurm calls ended is final only after the grace, counted anew from each sign of life."""
    now = [100.0]
    silence = Silence(10.0, clock=lambda: now[0])
    handle = JobHandle(executor="slurm", job_id="12", trial_dir=str(tmp_path), token="t")
    (tmp_path / "heartbeat").write_text("1")
    assert not silence.is_final(handle)
    now[0] = 109.0
    (tmp_path / "heartbeat").write_text("2")
    assert not silence.is_final(handle)
    now[0] = 118.0
    assert silence.seconds(handle) == 9.0
    assert not silence.is_final(handle)
    now[0] = 119.0
    assert silence.is_final(handle)


def test_a_job_that_is_there_again_gets_a_new_grace(tmp_path: Path) -> None:
    """The grace begins with the news of the end, not with an earlier false alarm."""
    now = [0.0]
    silence = Silence(10.0, clock=lambda: now[0])
    handle = JobHandle(executor="slurm", job_id="12", trial_dir=str(tmp_path), token="t")
    silence.is_final(handle)
    now[0] = 9.0
    silence.still_there(handle)
    now[0] = 20.0
    assert not silence.is_final(handle)
    now[0] = 30.0
    assert silence.is_final(handle)
