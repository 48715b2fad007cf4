"""One name, one job: whatever happens to sbatch's answer."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

from engine.errors import InfrastructureError, TaskFileError
from engine.schema.job import SchedulerFacts
from slurm.scheduler.command import CommandResult, SlurmCommands
from slurm.scheduler.source import SchedulerUnavailable, StateSource
from slurm.scheduler.submission import NoAnswerError, enclosing_job, submit
from slurm.scheduler.submission import test_only as ask_only
from tests.slurm.batch.fake_slurm import FakeSlurm

NAME = "infrarsi-0123456789ab"


@dataclasses.dataclass
class Site:
    """A fake Slurm, its queue as a state source, and the pauses that a submission made."""

    slurm: FakeSlurm
    commands: SlurmCommands
    source: StateSource
    script: Path
    pauses: list[float]
    appears_in: dict[int, str] = dataclasses.field(default_factory=dict)

    def submit(self) -> str:
        """Submit without waiting in real time."""
        return submit(
            self.commands, self.source, self.script, NAME, pauses_s=(1.0, 2.0, 3.0), sleep=self._sleep
        )

    def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        late = self.appears_in.get(len(self.pauses))
        if late is not None:
            with (self.slurm.folder / "queue").open("a") as queue:
                queue.write(f"{late} {NAME}\n")


class QueueOfFile(StateSource):
    """A state source that reads the fake's queue; silent while the file `silent` exists."""

    def __init__(self, commands: SlurmCommands, folder: Path) -> None:
        super().__init__(commands, min_poll_s=1.0)
        self._folder = folder

    def find(self, name: str, since: float) -> list[SchedulerFacts]:
        """Jobs by name."""
        if (self._folder / "silent").exists():
            raise SchedulerUnavailable("squeue: timed out")
        now = time.time()
        lines = [line.split() for line in (self._folder / "queue").read_text().splitlines()]
        return [
            SchedulerFacts(job_id=job_id, state="PENDING", name=named, source="squeue", as_of=now)
            for job_id, named in lines
            if named == name
        ]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A fake Slurm with an empty queue and a script to submit."""
    slurm = FakeSlurm(tmp_path / "bin", monkeypatch)
    slurm.program("scancel", '#!/bin/sh\necho "$*" >> "$FOLDER/cancelled"\n')
    commands = SlurmCommands(timeout_s=1.0)
    script = tmp_path / "submission.sh"
    script.write_text(f"#!/bin/bash\n#SBATCH --job-name={NAME}\n")
    return Site(slurm, commands, QueueOfFile(commands, slurm.folder), script, [])


def test_an_answer_is_taken(site: Site) -> None:
    """The usual case: one call, no look-up, no pause."""
    site.slurm.answers("queue say")
    assert site.submit() == "101"
    assert (site.slurm.calls, site.pauses) == (1, [])


@pytest.mark.parametrize("answer", ["queue hang", "queue timeout", "queue garbage"])
def test_a_queued_job_without_an_answer_is_found(site: Site, answer: str) -> None:
    """The job is found by its name; sbatch is not called again."""
    site.slurm.answers(answer, "queue say")
    assert site.submit() == "101"
    assert site.slurm.calls == 1
    assert len(site.slurm.queue) == 1


def test_a_job_that_turns_up_in_the_pause_is_found(site: Site) -> None:
    """A controller that was busy may queue the job after the first look."""
    site.slurm.answers("timeout", "queue say")
    site.appears_in[1] = "77"
    assert site.submit() == "77"
    assert site.slurm.calls == 1


def test_a_job_that_was_never_queued_is_submitted_again(site: Site) -> None:
    """After two looks without the job the script is submitted again, once."""
    site.slurm.answers("timeout", "queue say")
    assert site.submit() == "102"
    assert site.slurm.queue == {"102": NAME}
    assert site.pauses == [1.0]


def test_nothing_is_submitted_again_while_nobody_can_be_asked(site: Site) -> None:
    """With a lost answer and a silent queue a second job might be the second one: the error says so."""
    (site.slurm.folder / "silent").touch()
    site.slurm.answers("timeout", "queue say")
    with pytest.raises(NoAnswerError) as caught:
        site.submit()
    assert site.slurm.calls == 1
    assert "Socket timed out" in str(caught.value)
    assert "resume" in str(caught.value.hint)


def test_an_unreachable_controller_is_tried_again_with_growing_pauses(site: Site) -> None:
    """Nothing can have been queued, so no look-up is needed before the next attempt."""
    (site.slurm.folder / "silent").touch()
    site.slurm.answers("contact", "contact", "queue say")
    assert site.submit() == "103"
    assert site.pauses == [1.0, 2.0]


def test_a_lost_answer_is_remembered_over_an_unreachable_controller(site: Site) -> None:
    """Once a job may be queued, a later "cannot connect" does not make that untrue."""
    site.slurm.answers("timeout", "contact", "queue say")
    (site.slurm.folder / "queue").write_text("")

    def fail_then_hide(seconds: float) -> None:
        site.pauses.append(seconds)
        if len(site.pauses) == 2:
            (site.slurm.folder / "silent").touch()

    with pytest.raises(NoAnswerError):
        submit(site.commands, site.source, site.script, NAME, pauses_s=(1.0, 2.0, 3.0), sleep=fail_then_hide)
    assert site.slurm.calls == 2


def test_a_second_job_of_the_name_is_cancelled(site: Site) -> None:
    """When the first one turns up after the second was queued, the older one stays."""
    site.slurm.answers("timeout", "queue say")
    site.slurm.program(
        "sbatch",
        (site.slurm.folder / "sbatch")
        .read_text()
        .replace("  *say*)", f'  *say*) echo "7 {NAME}" >> $FOLDER/queue;'),
    )
    assert site.submit() == "7"
    assert (site.slurm.folder / "cancelled").read_text() == f"--name {NAME} 102\n"


def test_a_refusal_is_not_tried_again(site: Site) -> None:
    """Slurm's words and the key of the task file; one call."""
    site.slurm.answers("no")
    with pytest.raises(TaskFileError) as caught:
        site.submit()
    assert caught.value.key == "slurm.qos"
    assert "Invalid qos specification" in caught.value.message
    assert site.slurm.calls == 1


def test_a_missing_sbatch_is_explained(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Slurm on PATH is an infrastructure error with a next step, at once."""
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(InfrastructureError, match="not on PATH"):
        site.submit()
    assert site.pauses == []


def test_test_only_keeps_slurms_words(site: Site) -> None:
    """Start estimate when accepted, hint when refused, never a submission."""
    said = "sbatch: Job 7 to start at 2026-11-30T14:00:00 using 8 processors on nodes n1"
    site.slurm.program("sbatch", f"#!/bin/sh\necho '{said}' >&2\n")
    accepted = ask_only(site.commands, site.script)
    assert accepted.ok
    assert accepted.text == said
    assert accepted.start_estimate == time.mktime((2026, 11, 30, 14, 0, 0, 0, 0, -1))
    site.slurm.program(
        "sbatch", "#!/bin/sh\necho 'allocation failure: Invalid qos specification' >&2\nexit 1\n"
    )
    refused = ask_only(site.commands, site.script)
    assert (refused.ok, refused.text) == (False, "allocation failure: Invalid qos specification")
    assert "sacctmgr" in str(refused.hint)


def test_enclosing_job_is_seen() -> None:
    """Inside a job its id is known, outside there is none."""
    assert enclosing_job({"SLURM_JOB_ID": "12"}) == "12"
    assert enclosing_job({}) is None


def test_result_of_a_call_without_answer_is_no_success() -> None:
    """A call that timed out is never ok, whatever it printed before."""
    assert not CommandResult(("sbatch",), None, "101\n", "", 1.0, "timed out after 1 s").ok
