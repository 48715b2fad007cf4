"""What the engine job runs on its node: start the engine, judge how it ends, go on or end.

`python -P -m slurm.unattended.driver FOLDER`, where FOLDER is the study's `.engine` folder.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from engine.errors import ExitCode, InfraError
from engine.journal import lease
from engine.journal.log import read_entries
from engine.journal.state import replay
from slurm.scheduler.command import SlurmCommands
from slurm.scheduler.source import StateSource
from slurm.unattended.engine_process import Alarms, error_kind, run_engine
from slurm.unattended.folder import EngineFolder
from slurm.unattended.handover import is_preempted_for_good, requeue, submission_problem, succeed
from slurm.unattended.inside import close_left_holders, inside_variables
from slurm.unattended.records import EngineOrder, EngineState, Phase, Submission, read_record, write_record
from slurm.unattended.verdict import Asked, Ending, Next, Verdict, judge

MIN_POLL_S = 10.0


class Driver:
    """One life of an engine job.

    Args:
        folder: The engine's folder.
        order: What to run.
        commands: Slurm's commands.
        alarms: Signals of Slurm, already listened to.
    """

    def __init__(
        self, folder: EngineFolder, order: EngineOrder, commands: SlurmCommands, alarms: Alarms
    ) -> None:
        self.folder = folder
        self.order = order
        self.commands = commands
        self.alarms = alarms
        self.job_id = os.environ.get("SLURM_JOB_ID", "none")
        self.restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
        before = read_record(folder.state, EngineState)
        self.crashes = before.crashes if before else ()
        self.exit_code = before.exit_code if before else None
        self.busy_since: float | None = None

    def drive(self) -> int:
        """Run the engine until nothing more is to be done in this job.

        Returns:
            The exit code of the job: the engine's own where it ended.
        """
        problem = self._problem()
        if problem is not None:
            return self._end(ExitCode.INFRASTRUCTURE, problem)
        if self.order.inside:
            close_left_holders(self.folder.study)
        while True:
            returncode = self._run()
            verdict = self._judge(returncode)
            _say(verdict.words)
            if verdict.is_crash:
                self.crashes = (*self.crashes, time.time())[-10:]
            if verdict.next is Next.END:
                return self._end(returncode if returncode >= 0 else ExitCode.INTERNAL, verdict.words)
            if verdict.next is Next.AGAIN:
                self._tell(Phase.WAITING, verdict.words)
                if self.alarms.wait(verdict.pause_s):
                    continue
            return self._leave()

    def _problem(self) -> str | None:
        """Why the engine cannot work in this job, None where it can."""
        if self.order.inside:
            return None
        problem = submission_problem(self.commands, self.folder.script, self.order.partition)
        return None if problem is None else f"{problem}; `infrarsi submit --inside` needs no further job"

    def _run(self) -> int:
        begun = has_begun(self.folder)
        self._tell(Phase.RUNNING, "goes on with the study" if begun else "begins the study")
        command = self.order.resume if begun else self.order.run
        variables = inside_variables(self.folder) if self.order.inside else {}
        return run_engine(command, self.order.cwd, self.folder.result, self.alarms, variables)

    def _judge(self, returncode: int) -> Verdict:
        self.exit_code = returncode if returncode >= 0 else None
        kind = error_kind(self.folder.result)
        now = time.time()
        self.busy_since = (self.busy_since or now) if kind == "study_busy" else None
        busy_s = now - self.busy_since if self.busy_since else 0.0
        return judge(Ending(returncode, kind, self.alarms.asked, now, busy_s), self.crashes)

    def _leave(self) -> int:
        """The job is about to end while the study is not done."""
        if self.alarms.asked is Asked.OUTSIDE:
            self._tell(Phase.LEFT, "ended from outside; trial jobs go on; submit again to go on")
            # Slurm starts a requeued job by itself; one that was preempted for good it does not.
            if is_preempted_for_good(self.commands, self.job_id, self.restarts):
                return self._succeed("preempted")
            return 128 + 15
        self._tell(Phase.HANDING_OVER, "the time limit is near: Slurm is asked to start this job again")
        refusal = requeue(self.commands, self.job_id)
        if refusal is None:
            return ExitCode.DONE
        return self._succeed(f"requeueing was refused ({refusal})")

    def _succeed(self, why: str) -> int:
        source = StateSource(self.commands, min_poll_s=MIN_POLL_S)
        try:
            successor = succeed(self.folder, self.commands, source, self.job_id)
        except InfraError as error:
            hint = "run `infrarsi submit` again to go on"
            return self._end(
                ExitCode.INFRASTRUCTURE, f"{why}, and so was a new job: {error.statement}; {hint}"
            )
        self._tell(Phase.HANDING_OVER, f"{why}: goes on as job {successor}")
        return ExitCode.DONE

    def _end(self, code: int, words: str) -> int:
        self.exit_code = code
        self._tell(Phase.ENDED, words)
        return code

    def _tell(self, phase: Phase, words: str) -> None:
        state = EngineState(
            phase=phase,
            words=words,
            job_id=self.job_id,
            host=socket.gethostname(),
            restarts=self.restarts,
            at=time.time(),
            exit_code=self.exit_code,
            crashes=self.crashes,
        )
        try:
            write_record(self.folder.state, state)
        except InfraError as error:
            # A full disk must not end a job that may still free it; the log says it as well.
            _say(f"cannot write {self.folder.state}: {error.message}")


def has_begun(folder: EngineFolder) -> bool:
    """Whether the study can be resumed; one that died before its first event is put aside.

    Such a folder holds nothing but a copy of the project, and neither `run` nor `resume` would take it.
    """
    study = folder.study
    if not study.exists():
        return False
    journal = study / "journal"
    try:
        if not journal.is_dir() or replay(read_entries(journal)).created is not None:
            return True
        epoch = lease.latest_epoch(journal)
        if epoch is not None and lease.live_owner(journal, epoch) is not None:
            return True
    except InfraError:
        return True  # the engine explains what is wrong with it
    study.rename(folder.root / f"unborn-{time.time_ns()}")
    return False


def belongs_to(folder: EngineFolder, environ: Mapping[str, str]) -> bool:
    """Whether this job is the one that was submitted last; its id may be written down after its start."""
    submission = read_record(folder.submission, Submission)
    if submission is None:
        return True
    if submission.job_id is None:
        return submission.name == environ.get("SLURM_JOB_NAME")
    return submission.job_id == environ.get("SLURM_JOB_ID")


def _say(words: str) -> None:
    sys.stderr.write(f"[engine job] {words}\n")
    sys.stderr.flush()


def main(argv: list[str]) -> int:
    """Run the engine of the study whose `.engine` folder is given."""
    folder = EngineFolder(Path(argv[0]))
    with Alarms().heard() as alarms:
        order = read_record(folder.order, EngineOrder)
        if order is None:
            _say(f"{folder.order} is missing or damaged")
            return ExitCode.INTEGRITY
        if not belongs_to(folder, os.environ):
            _say("a newer job runs this engine")
            return ExitCode.INFRASTRUCTURE
        return Driver(folder, order, SlurmCommands(folder.commands), alarms).drive()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
