from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from slurm.scheduler.command import SlurmCommands, caller_environment
from tests.slurm.scheduler.fake_slurm import FakeSlurm, MovedClock


def test_a_hanging_program_is_ended_with_everything_it_started(slurm: FakeSlurm) -> None:
    """A program that never answers costs its time limit and leaves no process behind."""
    slurm.hang("squeue")
    started = time.monotonic()
    result = SlurmCommands(timeout_s=0.5).run("squeue")
    assert time.monotonic() - started < 5.0
    assert (result.ok, result.returncode, result.problem) == (False, None, "timed out after 0.5 s")
    assert result.complaint == "squeue: timed out after 0.5 s"
    sleepers = [path for path in Path("/proc").glob("[0-9]*/environ") if _belongs_to(path, slurm)]
    assert sleepers == []


def _belongs_to(path: Path, slurm: FakeSlurm) -> bool:
    try:
        path_of_process = next(v for v in path.read_bytes().split(b"\0") if v.startswith(b"PATH="))
    except (OSError, StopIteration):
        return False
    return int(path.parts[2]) != os.getpid() and path_of_process == f"PATH={os.environ['PATH']}".encode()


def test_a_missing_program_is_a_value(slurm: FakeSlurm) -> None:
    """A program that is not installed is reported as such and raises nothing."""
    slurm.remove("sacct")
    result = SlurmCommands().run("sacct-that-nobody-has")
    assert (result.returncode, result.problem) == (None, "not found")


def test_a_failure_keeps_the_programs_own_words(slurm: FakeSlurm) -> None:
    """The last line of stderr is the complaint, without the program's name twice."""
    slurm.fail("squeue", "\nsqueue: error: Unable to contact slurm controller (connect failure)")
    result = SlurmCommands().run("squeue")
    assert result.returncode == 1
    assert result.complaint == "squeue: error: Unable to contact slurm controller (connect failure)"


def test_bytes_that_are_no_text_are_survived(slurm: FakeSlurm) -> None:
    """Output in another encoding is read with replacement characters."""
    slurm.fail("squeue", "x", returncode=0)
    folder = Path(os.environ["PATH"].split(":")[0])
    (folder / "squeue.out").write_bytes(b"caf\xe9\n")
    assert SlurmCommands().run("squeue").stdout == "caf\ufffd\n"


def test_e16_variables_of_the_callers_job_and_defaults_do_not_reach_slurm(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside a job step, with personal squeue defaults, the programs see only what finds the cluster."""
    for name in (
        "SLURM_CPU_BIND",
        "SLURM_JOB_ID",
        "SBATCH_PARTITION",
        "SQUEUE_PARTITION",
        "SQUEUE_SORT",
        "SACCT_FORMAT",
        "SCANCEL_INTERACTIVE",
        "SLURMD_NODENAME",
        "PMI_RANK",
        "CUDA_VISIBLE_DEVICES",
        "HF_TOKEN",
    ):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("SLURM_CONF", "/etc/other/slurm.conf")
    monkeypatch.setenv("SLURM_CLUSTERS", "a")
    SlurmCommands().run("squeue")
    seen = slurm.environment("squeue")
    assert {name: value for name, value in seen.items() if name.startswith(("SLURM", "SQUEUE"))} == {
        "SLURM_CONF": "/etc/other/slurm.conf",
        "SLURM_CLUSTERS": "a",
        "SLURM_TIME_FORMAT": "%s",
    }
    assert not {"HF_TOKEN", "PMI_RANK", "SBATCH_PARTITION", "SACCT_FORMAT", "SCANCEL_INTERACTIVE"} & set(seen)
    assert "CUDA_VISIBLE_DEVICES" not in seen
    # A job would inherit it: only questions get the time format.
    assert "SLURM_TIME_FORMAT" not in caller_environment()


def test_every_call_is_on_record(slurm: FakeSlurm, tmp_path: Path) -> None:
    """The log has one JSON line a call with the exact arguments, the answer and the time it took."""
    log = tmp_path / "commands.jsonl"
    commands = SlurmCommands(log, timeout_s=0.3)
    slurm.fail("squeue", "x" * 1000)
    commands.run("squeue", "-n", "a b")
    slurm.hang("squeue")
    commands.run("squeue")
    first, second = (json.loads(line) for line in log.read_text().splitlines())
    assert first["argv"] == ["squeue", "-n", "a b"]
    assert (first["returncode"], first["problem"], len(first["stderr"])) == (1, None, 300)
    assert (second["returncode"], second["problem"]) == (None, "timed out after 0.3 s")
    assert second["duration_s"] >= 0.3
    assert abs(first["at"] - time.time()) < 60


def test_a_log_that_cannot_be_written_stops_nothing(slurm: FakeSlurm, tmp_path: Path) -> None:
    """Looking after jobs goes on with a full disk."""
    assert SlurmCommands(tmp_path / "missing" / "log").run("squeue").ok


def test_calls_are_counted_over_the_last_minute(slurm: FakeSlurm, clock: MovedClock) -> None:
    """Calls that began more than a minute ago do not count."""
    commands = SlurmCommands(clock=clock)
    commands.run("squeue")
    clock.move(40)
    commands.run("squeue")
    assert commands.recent_calls() == 2
    clock.move(30)
    assert commands.recent_calls() == 1
    assert commands.recent_calls(10) == 0
