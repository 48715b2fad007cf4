"""Submitting the engine job: what is asked for, and that there is never a second one."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from engine.errors import InfrastructureError, StudyBusyError, UsageError
from engine.schema.task import AllocationSection, SlurmSection, TaskFile, TaskSection
from slurm.scheduler.command import SlurmCommands
from slurm.scheduler.source import StateSource
from slurm.unattended.folder import EngineFolder, job_name
from slurm.unattended.records import EngineOrder, Submission, read_record
from slurm.unattended.start import EngineJob, EnginePlace, engine_time_min, start_engine
from tests.slurm.unattended.engine_jobs import calls, quiet_slurm

SETTINGS = SlurmSection(
    partition="gpu",
    account="lab",
    qos="high",
    constraint="h100",
    reservation="mine",
    exclusive=True,
    mem="900G",
    gpu_type="h100",
    time_limit_min=45,
)
TASK = TaskFile(
    task=TaskSection(name="t", command=["train.py"]), slurm=SETTINGS, allocation=AllocationSection(nodes=2)
)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = quiet_slurm(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def _start(study: Path, place: EnginePlace | None = None) -> EngineJob:
    commands = SlurmCommands()
    order = EngineOrder(study=str(study), run=("true",), resume=("true",), cwd=str(study.parent))
    source = StateSource(commands, min_poll_s=1.0)
    return start_engine(order, TASK, place or EnginePlace(), commands, source)


def _options(job: EngineJob) -> dict[str, str | bool]:
    lines = [line for line in job.folder.script.read_text().splitlines() if line.startswith("#SBATCH")]
    words = [shlex.split(line)[1].removeprefix("--").partition("=") for line in lines]
    return {name: value if sign else True for name, sign, value in words}


def test_a_small_job_without_gpus(tmp_path: Path, slurm: Path) -> None:
    """The engine asks for two CPUs, takes the account, and nothing that describes the trials' nodes."""
    options = _options(_start(tmp_path / "study"))
    assert options["job-name"] == job_name(tmp_path / "study", 1)
    assert (options["nodes"], options["cpus-per-task"], options["mem"]) == ("1", "2", "2G")
    assert (options["partition"], options["account"], options["qos"]) == ("gpu", "lab", "high")
    assert options["requeue"] is True
    assert (options["signal"], options["open-mode"]) == ("B:USR1@120", "append")
    assert not {"gres", "gpus-per-node", "constraint", "reservation", "exclusive"} & set(options)


def test_another_partition_has_another_qos(tmp_path: Path, slurm: Path) -> None:
    """A QOS of the GPU partition is not taken along to another one."""
    options = _options(_start(tmp_path / "study", EnginePlace("cpu", 90)))
    assert (options["partition"], options["time"]) == ("cpu", "90")
    assert "qos" not in options


def test_inside_asks_for_what_the_trials_need(tmp_path: Path, slurm: Path) -> None:
    """With `inside` the job is the trials' allocation, and still one that may be requeued."""
    options = _options(_start(tmp_path / "study", EnginePlace(inside=True)))
    assert (options["nodes"], options["gres"], options["time"]) == ("2", "gpu:h100:8", "45")
    assert options["requeue"] is True
    assert "no-requeue" not in options
    assert options["signal"] == "B:USR1@120"


def test_the_script_becomes_the_driver(tmp_path: Path, slurm: Path) -> None:
    """The batch script is replaced by the driver: Slurm signals the script's process alone."""
    job = _start(tmp_path / "a study")
    last = job.folder.script.read_text().strip().splitlines()[-1]
    assert shlex.split(last) == [
        *("exec", sys.executable, "-P", "-m", "slurm.unattended.driver"),
        str(tmp_path / "a study.engine"),
    ]


def test_the_job_is_written_down(tmp_path: Path, slurm: Path) -> None:
    """Name and id are kept; a later job of the same study has another name."""
    job = _start(tmp_path / "study")
    assert job.job_id == "72"
    submission = read_record(job.folder.submission, Submission)
    assert submission is not None
    assert (submission.name, submission.job_id) == (job.name, "72")
    assert _start(tmp_path / "study").name == f"{job.name}-2"


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "COMPLETING", "SUSPENDED"])
def test_a_second_engine_is_refused(tmp_path: Path, slurm: Path, state: str) -> None:
    """While the recorded job waits or runs nothing is submitted, and the error says how to go on."""
    job = _start(tmp_path / "study")
    line = f"72|{state}|None|n1|0|0:0|1800000000|1800000001|N/A|1440:00|{job.name}"
    quiet_slurm(slurm, squeue=f"echo '{line}'")
    with pytest.raises(StudyBusyError) as refused:
        _start(tmp_path / "study")
    assert "72" in refused.value.message
    assert len(calls(slurm, "sbatch")) == 1


def test_nobody_knows_nothing_is_submitted(tmp_path: Path, slurm: Path) -> None:
    """Where Slurm does not say whether an engine is alive, no second one is submitted."""
    _start(tmp_path / "study")
    quiet_slurm(slurm, squeue="echo 'slurm_load_jobs error: Unable to contact' >&2; exit 1")
    with pytest.raises(InfrastructureError):
        _start(tmp_path / "study")
    assert len(calls(slurm, "sbatch")) == 1


def test_limits_that_make_no_sense(tmp_path: Path, slurm: Path) -> None:
    """A limit within the warning, and a place of its own with `inside`, are refused at once."""
    for place in (
        EnginePlace(time_min=3),
        EnginePlace("cpu", inside=True),
        EnginePlace(time_min=9, inside=True),
    ):
        with pytest.raises(UsageError):
            _start(tmp_path / "study", place)
    assert not EngineFolder.of(tmp_path / "study").root.exists()


@pytest.mark.parametrize(
    ("answer", "minutes"),
    [
        ("gpu*|infinite", 1440),
        ("gpu*|4:00:00", 240),
        ("gpu*|7-00:00:00", 1440),
        ("gpu*|30:00", 30),
        ("", 1440),
    ],
)
def test_the_default_limit_fits_the_partition(tmp_path: Path, slurm: Path, answer: str, minutes: int) -> None:
    """A day, or what the partition allows: a job beyond its limit would wait for ever."""
    quiet_slurm(slurm, sinfo=f"echo '{answer}'")
    assert engine_time_min(SETTINGS, EnginePlace(), SlurmCommands()) == minutes
