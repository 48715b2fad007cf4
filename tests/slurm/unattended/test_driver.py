"""The driver of an engine job: what it starts, how it ends, how it goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from engine.journal.folder import StudyFolder
from slurm.unattended.driver import belongs_to
from slurm.unattended.engine_process import Alarms, watch
from slurm.unattended.folder import EngineFolder, job_name
from slurm.unattended.handover import with_options
from slurm.unattended.records import EngineState, Phase, Submission, read_record, write_record
from tests.slurm.trial_folder import wait_for
from tests.slurm.unattended.engine_jobs import (
    JOB,
    begin_study,
    calls,
    drive,
    prepare,
    quiet_slurm,
    start_driver,
    state_of,
)

# An engine that says when it runs, and leaves in order when it is asked to.
PATIENT = """trap 'echo left >> engine; echo "{\\"error\\": {\\"kind\\": \\"detached\\"}}"; exit 130' TERM
echo runs >> engine; while :; do sleep 0.05; done"""


@pytest.fixture
def slurm(tmp_path: Path) -> Path:
    return quiet_slurm(tmp_path / "bin")


@pytest.mark.parametrize("code", [0, 1, 2, 4, 5])
def test_exit_codes_of_results_are_passed_on(tmp_path: Path, slurm: Path, code: int) -> None:
    """A study that ended ends the job with the same code, which state.json keeps."""
    folder = prepare(tmp_path, f"echo '{{}}'; exit {code}")
    assert drive(folder, slurm) == code
    state = state_of(folder)
    assert (state.phase, state.exit_code, state.job_id) == (Phase.ENDED, code, JOB)
    assert json.loads(folder.result.read_text()) == {}


def test_a_study_that_exists_is_resumed(tmp_path: Path, slurm: Path) -> None:
    """`run` begins a study once; afterwards the job resumes it."""
    folder = prepare(tmp_path, "echo run > how", "echo resume > how")
    begin_study(folder)
    assert drive(folder, slurm) == 0
    assert (tmp_path / "how").read_text() == "resume\n"


def test_a_study_that_never_began_is_begun_again(tmp_path: Path, slurm: Path) -> None:
    """A folder without the first event, which `resume` refuses, is put aside."""
    folder = prepare(tmp_path, "echo run > how", "echo resume > how")
    StudyFolder.create(folder.study)
    assert drive(folder, slurm) == 0
    assert (tmp_path / "how").read_text() == "run\n"
    assert not folder.study.exists()
    assert len(list(folder.root.glob("unborn-*"))) == 1


def test_crashes_are_counted_across_jobs(tmp_path: Path, slurm: Path) -> None:
    """A crash of the engine is waited out in `waiting`; the count survives a new start of the job."""
    folder = prepare(tmp_path, "exit 70")
    process = start_driver(folder, slurm)
    wait_for(lambda: _phase(folder) is Phase.WAITING, "the pause after a crash")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert len(state_of(folder).crashes) == 1
    write_record(folder.state, state_of(folder).model_copy(update={"crashes": (state_of(folder).at,) * 3}))
    assert drive(folder, slurm) == 70
    assert "4th time" in state_of(folder).words


def test_the_time_limit_requeues_the_job(tmp_path: Path, slurm: Path) -> None:
    """Before the time limit the engine is asked to detach, then Slurm is asked to start the job again."""
    folder = prepare(tmp_path, PATIENT)
    process = start_driver(folder, slurm)
    wait_for((tmp_path / "engine").exists, "the engine runs")
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert (tmp_path / "engine").read_text() == "runs\nleft\n"
    assert f"requeue {JOB}" in calls(slurm, "scontrol")
    assert state_of(folder).phase is Phase.HANDING_OVER


def test_where_requeueing_is_refused_a_successor_is_submitted(tmp_path: Path) -> None:
    """The successor has a name of its own, starts after this job and is the recorded one."""
    bin_folder = quiet_slurm(
        tmp_path / "bin", scontrol="echo 'Requested operation is presently disabled' >&2; exit 1"
    )
    folder = prepare(tmp_path, PATIENT)
    process = start_driver(folder, bin_folder)
    wait_for((tmp_path / "engine").exists, "the engine runs")
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=30)
    assert process.returncode == 0
    script = folder.root / "engine-2.sh"
    assert calls(bin_folder, "sbatch")[-1] == f"--parsable {script}"
    assert f"#SBATCH --dependency=afterany:{JOB}\n" in script.read_text()
    assert script.read_text().count("--job-name=") == 1
    submission = read_record(folder.submission, Submission)
    assert submission is not None
    assert (submission.number, submission.job_id) == (2, "72")
    assert submission.name == job_name(folder.study, 2)


def test_where_everything_is_refused_it_says_so(tmp_path: Path) -> None:
    """Without requeueing and without a successor the job ends with 3 and the next step."""
    bin_folder = quiet_slurm(
        tmp_path / "bin",
        scontrol="echo disabled >&2; exit 1",
        sbatch='case "$*" in *--test-only*) exit 0;; esac; echo "error: Invalid account" >&2; exit 1',
    )
    folder = prepare(tmp_path, PATIENT)
    process = start_driver(folder, bin_folder)
    wait_for((tmp_path / "engine").exists, "the engine runs")
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=30)
    assert process.returncode == 3
    assert "infrarsi submit" in state_of(folder).words
    submission = read_record(folder.submission, Submission)
    assert submission is not None
    assert submission.job_id == JOB


def test_what_is_cancelled_stays_cancelled(tmp_path: Path, slurm: Path) -> None:
    """SIGTERM, which scancel sends to all processes, ends engine and driver; nothing is requeued."""
    folder = prepare(tmp_path, PATIENT)
    process = start_driver(folder, slurm)
    wait_for((tmp_path / "engine").exists, "the engine runs")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143
    assert (tmp_path / "engine").read_text() == "runs\nleft\n"
    assert state_of(folder).phase is Phase.LEFT
    assert not any(call.startswith("requeue") for call in calls(slurm, "scontrol"))
    assert all("--test-only" in call for call in calls(slurm, "sbatch"))


@pytest.mark.parametrize(("restarts", "code"), [(0, 0), (1, 143)])
def test_what_is_preempted_for_good_is_submitted_again(tmp_path: Path, restarts: int, code: int) -> None:
    """Where preemption cancels jobs the driver submits a successor; where it requeues them Slurm goes on."""
    said = f"JobId=71 JobState=COMPLETING Restarts={restarts} PreemptTime=1796050680"
    bin_folder = quiet_slurm(tmp_path / "bin", scontrol=f"echo {said}")
    folder = prepare(tmp_path, PATIENT)
    process = start_driver(folder, bin_folder)
    wait_for((tmp_path / "engine").exists, "the engine runs")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == code
    assert ("job 72" in state_of(folder).words) == (code == 0)


def test_nodes_that_may_not_submit_are_named(tmp_path: Path) -> None:
    """Where jobs from compute nodes are refused, nothing is begun, and the way out is named."""
    bin_folder = quiet_slurm(
        tmp_path / "bin",
        sbatch="echo 'sbatch: error: Batch job submission failed: Access/permission denied' >&2; exit 1",
    )
    folder = prepare(tmp_path, "echo run > how")
    assert drive(folder, bin_folder) == 3
    assert not (tmp_path / "how").exists()
    assert "--inside" in state_of(folder).words
    assert "Access/permission denied" in state_of(folder).words


def test_other_refusals_are_left_to_the_engine(tmp_path: Path) -> None:
    """A refusal that has nothing to do with the node does not stop the engine."""
    bin_folder = quiet_slurm(tmp_path / "bin", sbatch="echo 'error: Invalid qos' >&2; exit 1")
    folder = prepare(tmp_path, "exit 1")
    assert drive(folder, bin_folder) == 1


def test_a_job_that_was_replaced_does_nothing(tmp_path: Path, slurm: Path) -> None:
    """Of two jobs of one engine only the recorded one works, and the other leaves its state alone."""
    folder = prepare(tmp_path, "echo run > how")
    assert drive(folder, slurm, {"SLURM_JOB_ID": "70"}) == 3
    assert not (tmp_path / "how").exists()
    assert not folder.state.exists()


def test_a_job_that_starts_before_its_id_is_written_down(tmp_path: Path) -> None:
    """Between sbatch's answer and its record the name tells whose job it is."""
    folder = prepare(tmp_path, "true")
    name = job_name(folder.study, 2)
    write_record(folder.submission, Submission(number=2, name=name, intended_at=1.0))
    assert belongs_to(folder, {"SLURM_JOB_ID": "80", "SLURM_JOB_NAME": name})
    assert not belongs_to(folder, {"SLURM_JOB_ID": JOB, "SLURM_JOB_NAME": job_name(folder.study, 1)})


def test_an_engine_that_cannot_be_started_is_a_crash(tmp_path: Path, slurm: Path) -> None:
    """A missing interpreter or folder is no result: the job waits and says so."""
    folder = prepare(tmp_path, "true")
    order = json.loads(folder.order.read_text())
    folder.order.write_text(json.dumps({**order, "run": [str(tmp_path / "missing")]}))
    process = start_driver(folder, slurm)
    wait_for(lambda: _phase(folder) is Phase.WAITING, "the pause after a crash")
    process.send_signal(signal.SIGTERM)
    _, words = process.communicate(timeout=30)
    assert "cannot start" in words


def test_a_stubborn_engine_is_killed() -> None:
    """An engine that ignores SIGTERM is ended before the time limit ends the job."""
    process = subprocess.Popen(["bash", "-c", "trap '' TERM; while :; do sleep 0.05; done"])
    alarms = Alarms()
    with alarms.heard():
        os.kill(os.getpid(), signal.SIGUSR1)
        assert watch(process, alarms, detach_s=0.5) == -signal.SIGKILL


def test_options_of_a_script_are_replaced() -> None:
    """A successor's script differs in name and dependency alone."""
    script = (
        "#!/bin/bash\n#SBATCH --dependency=afterany:1\n#SBATCH --job-name=a\n#SBATCH --mem=2G\n\nexec x\n"
    )
    changed = with_options(script, {"job-name": "b", "dependency": "afterany:2"})
    assert changed == (
        "#!/bin/bash\n#SBATCH --job-name=b\n#SBATCH --dependency=afterany:2\n#SBATCH --mem=2G\n\nexec x\n"
    )


def _phase(folder: EngineFolder) -> Phase | None:
    state = read_record(folder.state, EngineState)
    return None if state is None else state.phase
