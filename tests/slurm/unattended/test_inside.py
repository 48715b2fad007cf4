"""Engine and trials in one allocation: what sbatch and scancel mean there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from slurm.held.holder.ledger import append
from slurm.held.holder.plan import EVENTS
from slurm.held.holding import Holding, HoldingRecord
from slurm.unattended.folder import EngineFolder
from slurm.unattended.inside import (
    VARIABLE,
    InsideCommands,
    close_left_holders,
    inside_commands,
    inside_variables,
)
from tests.slurm.trial_folder import wait_for
from tests.slurm.unattended.engine_jobs import calls, quiet_slurm

HELD = "infrarsi-held-0123456789ab"
OURS = "infrarsi-engine-0123456789ab"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = quiet_slurm(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def _commands(tmp_path: Path, *, driver: int = 0) -> InsideCommands:
    folder = EngineFolder.of(tmp_path / "study")
    folder.root.mkdir(exist_ok=True)
    since = round(time.time(), 3)
    return InsideCommands(None, folder, job_id="71", job_name=OURS, driver=driver, since=since)


def _holder_script(tmp_path: Path, number: int, body: str) -> Path:
    folder = tmp_path / "study" / "held" / str(number)
    Holding.create(folder, HoldingRecord(name=HELD, intended_at=1.0, gpus=8, limit_s=600.0))
    script = folder / "holder.sh"
    script.write_text(f"#!/bin/bash\n#SBATCH --job-name={HELD}\n{body}\n")
    return script


def test_submitting_starts_the_holder_here(
    tmp_path: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder runs in this job, with the job's variables, and its id is the job's."""
    monkeypatch.setenv("SLURM_JOB_ID", "71")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    script = _holder_script(tmp_path, 1, "echo $SLURM_JOB_ID$SLURM_RESTART_COUNT; touch done")
    result = _commands(tmp_path).run("sbatch", "--parsable", str(script))
    assert (result.ok, result.stdout) == (True, "71\n")
    wait_for((script.parent / "done").exists, "the holder has run")
    assert (script.parent / "holder.log").read_text() == "71\n"
    assert calls(slurm, "sbatch") == []


def test_one_holder_after_another(tmp_path: Path, slurm: Path) -> None:
    """A second holder waits until the first has left: nodes are never shared."""
    commands = _commands(tmp_path)
    first = _holder_script(tmp_path, 1, "while [ ! -e leave ]; do sleep 0.05; done; touch left")
    second = _holder_script(tmp_path, 2, "ls ../1 > seen")
    commands.run("sbatch", "--parsable", str(first))
    assert commands.run("sbatch", "--parsable", str(second)).ok
    (first.parent / "leave").touch()
    wait_for(lambda: (second.parent / "seen").exists() and _lines(second.parent / "seen"), "the second runs")
    assert "left" in _lines(second.parent / "seen")


def test_cancelling_ends_the_holder_alone(tmp_path: Path, slurm: Path) -> None:
    """The executor's scancel must not end the engine's own job."""
    commands = _commands(tmp_path)
    script = _holder_script(
        tmp_path, 1, "trap 'touch told; exit' TERM; touch up; while :; do sleep 0.05; done"
    )
    commands.run("sbatch", "--parsable", str(script))
    wait_for((script.parent / "up").exists, "the holder runs")
    assert commands.run("scancel", "--name", HELD, "71").ok
    wait_for((script.parent / "told").exists, "the holder is told to leave")
    assert calls(slurm, "scancel") == []
    assert commands.run("scancel", "70").ok
    assert calls(slurm, "scancel") == ["70"]


def test_the_job_answers_to_the_holders_name(tmp_path: Path, slurm: Path) -> None:
    """Slurm knows the job by one name, the executor by another; questions and answers are translated."""
    quiet_slurm(slurm, squeue=f"echo '71|RUNNING|{OURS}'")
    commands = _commands(tmp_path)
    commands.run("sbatch", "--parsable", str(_holder_script(tmp_path, 1, "true")))
    assert commands.run("squeue", "--name", HELD).stdout == f"71|RUNNING|{HELD}\n"
    assert calls(slurm, "squeue") == [f"--name {OURS}"]


@pytest.mark.parametrize("reason", ["too_little_time", "497 s are left, trials may need 4260 s"])
def test_a_used_up_allocation_is_exchanged(tmp_path: Path, slurm: Path, reason: str) -> None:
    """Where a holder left for want of time another makes no sense: the driver is asked for a fresh turn."""
    driver = subprocess.Popen(["sleep", "60"])
    commands = _commands(tmp_path, driver=driver.pid)
    assert commands.run("sbatch", "--parsable", str(_holder_script(tmp_path, 1, "true"))).ok
    append(tmp_path / "study" / "held" / "1" / EVENTS, "leaving", reason=reason, orders=0)
    result = commands.run("sbatch", "--parsable", str(_holder_script(tmp_path, 2, "true")))
    assert not result.ok
    assert driver.wait(timeout=10) == -signal.SIGUSR1


def test_holders_of_an_earlier_turn_are_closed(tmp_path: Path) -> None:
    """After a requeue an allocation without a last word gets one; one that left in order keeps its own."""
    study = tmp_path / "study"
    for number, reason in ((1, None), (2, "released"), (3, "told_to_end")):
        _holder_script(tmp_path, number, "true")
        if reason is not None:
            append(study / "held" / str(number) / EVENTS, "leaving", reason=reason, orders=0)
    close_left_holders(study)
    reasons = []
    for number in (1, 2, 3):
        holding = Holding.load(study / "held" / str(number))
        assert holding is not None
        assert holding.progress.leaving is not None
        reasons.append(holding.progress.leaving.reason)
    assert reasons == ["restarted", "released", "restarted"]


def test_only_an_engine_inside_is_inside(tmp_path: Path) -> None:
    """The driver's variable and a job make the difference; an ordinary engine talks to Slurm itself."""
    folder = EngineFolder.of(tmp_path / "study")
    variables = inside_variables(folder)
    assert json.loads(variables[VARIABLE])["driver"] == os.getpid()
    assert inside_commands(tmp_path / "log", {}) is None
    assert inside_commands(tmp_path / "log", variables) is None
    assert inside_commands(tmp_path / "log", {**variables, "SLURM_JOB_ID": "71"}) is not None


def _lines(path: Path) -> list[str]:
    return path.read_text().split()
