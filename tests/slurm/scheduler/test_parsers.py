from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm.scheduler import fields
from slurm.scheduler.command import CommandResult
from slurm.scheduler.sacct import history_argv, parse_history, says_disabled
from slurm.scheduler.scontrol import parse_job, says_unknown
from slurm.scheduler.squeue import parse_queue, queue_argv, queue_problem
from tests.slurm.scheduler.fake_slurm import history_line, queue_line

# As printed by Slurm 22.05 (one line; names of the site replaced).
RUNNING = (
    "JobId=42 JobName=infrarsi-0123456789ab UserId=mira(1000) GroupId=mira(1000) MCS_label=N/A "
    "Priority=4294901757 Nice=0 Account=(null) QOS=(null) JobState=RUNNING Reason=None "
    "Dependency=(null) Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 RunTime=00:00:07 "
    "TimeLimit=00:10:00 TimeMin=N/A SubmitTime=1800000000 EligibleTime=1800000000 "
    "AccrueTime=1800000000 StartTime=1800000010 EndTime=1800000610 Deadline=N/A SuspendTime=None "
    "SecsPreSuspend=0 LastSchedEval=1800000010 Scheduler=Main Partition=gpu AllocNode:Sid=login1:4242 "
    "ReqNodeList=(null) ExcNodeList=n7 NodeList=n[1-2] BatchHost=n1 NumNodes=2 NumCPUs=32 NumTasks=2 "
    "CPUs/Task=16 ReqB:S:C:T=0:0:*:* TRES=cpu=32,mem=40000M,node=2,billing=32,gres/gpu=16 "
    "Socks/Node=* NtasksPerN:B:S:C=1:0:*:* CoreSpec=* MinCPUsNode=16 MinMemoryNode=0 MinTmpDiskNode=0 "
    "Features=(null) DelayBoot=00:00:00 OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null) "
    "Command=/home/mira/job.sh WorkDir=/home/mira StdErr=/home/mira/log StdIn=/dev/null "
    "StdOut=/home/mira/log Power= TresPerNode=gres:gpu:8"
)


def test_a_running_job_is_read_from_squeue() -> None:
    """All facts come out typed: nodes written out, times in unix seconds, no end and no exit code yet."""
    (job,) = parse_queue(
        queue_line("42", "RUNNING", nodes="n[1-2]", end="1800000610", restarts=1) + "\n", 5.0
    )
    facts = job.facts
    assert (facts.job_id, facts.state, facts.reason, facts.nodes) == ("42", "RUNNING", None, ("n1", "n2"))
    assert (facts.restarts, facts.exit_code, facts.signal, facts.ended_at) == (1, None, None, None)
    assert (facts.submitted_at, facts.started_at, facts.time_limit_s) == (1.8e9, 1.8e9 + 10, 600.0)
    assert (facts.name, facts.source, facts.as_of) == ("infrarsi-0123456789ab", "squeue", 5.0)


def test_the_expected_start_of_a_waiting_job_is_no_start() -> None:
    """For a pending job Slurm's start and end are estimates."""
    (job,) = parse_queue(queue_line("42", "PENDING", reason="Resources", nodes="", end="1800000999"), 5.0)
    assert (job.facts.started_at, job.facts.ended_at, job.facts.nodes) == (None, None, ())
    assert (job.start_estimate, job.facts.reason) == (1.8e9 + 10, "Resources")


@pytest.mark.parametrize(
    ("said", "code", "signal"),
    [("0", 0, None), ("256", 1, None), ("9", 0, 9), ("0:9", 0, 9), ("137:0", 137, None), ("", None, None)],
)
def test_exit_codes_are_read_in_both_spellings(said: str, code: int | None, signal: int | None) -> None:
    """A raw wait status and `code:signal` give the same numbers."""
    (job,) = parse_queue(queue_line("42", "FAILED", exit_code=said, end="1800000020"), 5.0)
    assert (job.facts.exit_code, job.facts.signal, job.facts.ended_at) == (code, signal, 1.8e9 + 20)


def test_odd_lines_of_squeue_are_survived() -> None:
    """Reasons with spaces and names with separators are kept; banners and torn lines are skipped."""
    text = "\n".join(
        (
            "*** maintenance on Monday ***",
            "CLUSTER: alpha",
            queue_line("1", "PENDING", reason="(ReqNodeNotAvail, Reserved for maintenance)", name="a|b c"),
            queue_line("2", "DREAMING", nodes="n[1-"),
            queue_line("3_[4-9%2]", "PENDING", submit="2026-11-30T10:00:00"),
            queue_line("4", "RUNNING")[:25],
        )
    )
    first, second, third = parse_queue(text, 5.0)
    assert first.facts.reason == "(ReqNodeNotAvail, Reserved for maintenance)"
    assert first.facts.name == "a|b c"
    assert (second.facts.state, second.facts.nodes) == ("DREAMING", ("n[1-",))
    expected = time.mktime(time.strptime("2026-11-30T10:00:00", "%Y-%m-%dT%H:%M:%S"))
    assert third.facts.submitted_at == expected


def test_only_wanted_jobs_are_read() -> None:
    """A user's thousands of other jobs cost next to nothing."""
    text = (
        "\n".join(queue_line(str(number), "RUNNING") for number in range(100))
        + "\n"
        + queue_line("7_1", "FAILED")
    )
    assert [job.facts.job_id for job in parse_queue(text, 5.0, only={"7", "98"})] == ["7", "98", "7_1"]


def test_ids_of_arrays_are_recognised() -> None:
    """A waiting element is found in the collapsed line of its array, and in no other."""
    assert fields.names_job("7", "7")
    assert fields.names_job("7_2", "7_2")
    assert fields.names_job("7_[0-3,8%2]", "7_8")
    assert fields.names_job("7_[1,5-...]", "7_1")
    assert not fields.names_job("7_[0-3,8%2]", "7_5")
    assert not fields.names_job("17_[0-3]", "7_1")
    assert not fields.names_job("7_2", "7")
    assert not fields.names_job("77", "7")


def test_the_question_covers_every_state_and_hidden_partitions() -> None:
    """Squeue is asked for all states: by default it leaves out what failed."""
    argv = queue_argv()
    assert argv[:6] == ("squeue", "-h", "-a", "-t", "all", "-u")
    assert "JobArrayID:|" in argv[-1]


def _result(program: str, returncode: int, stdout: str = "", stderr: str = "") -> CommandResult:
    return CommandResult((program,), returncode, stdout, stderr, 0.01)


def test_an_empty_queue_is_an_answer_and_a_garbled_one_is_not() -> None:
    """Silence with exit code 0 means no jobs; words that are no jobs, or a swallowed error, mean nothing."""
    assert queue_problem(_result("squeue", 0)) is None
    assert queue_problem(_result("squeue", 0, "CLUSTER: alpha\n")) is None
    assert queue_problem(_result("squeue", 0, queue_line("1", "RUNNING"))) is None
    assert "not understood" in (queue_problem(_result("squeue", 0, "JOBID PARTITION NAME\n1 gpu x\n")) or "")
    assert "timed out" in (
        queue_problem(_result("squeue", 0, "", "slurm_load_jobs error: Socket timed out")) or ""
    )
    assert queue_problem(_result("squeue", 1, "", "slurm_load_jobs error: Unable to contact")) is not None


def test_a_job_is_read_from_scontrol() -> None:
    """Keys are found in free text, and the excluded nodes are not taken for its nodes."""
    (job,) = parse_job(RUNNING + "\n", 5.0)
    facts = job.facts
    assert (facts.job_id, facts.state, facts.nodes, facts.name) == (
        "42",
        "RUNNING",
        ("n1", "n2"),
        "infrarsi-0123456789ab",
    )
    assert (facts.submitted_at, facts.started_at, facts.ended_at) == (1.8e9, 1.8e9 + 10, None)
    assert (facts.time_limit_s, facts.source, job.was_suspended) == (600.0, "scontrol", False)


def test_values_with_spaces_and_unknown_keys_are_survived() -> None:
    """A reason of several words stays whole, and keys of newer versions do not disturb their neighbours."""
    line = (
        RUNNING.replace("JobState=RUNNING Reason=None", "JobState=NODE_FAIL Reason=node n2 not responding")
        .replace("Restarts=0", "Restarts=2 FancyNewKey=some words here")
        .replace("ExitCode=0:0", "ExitCode=1:9")
        .replace("SuspendTime=None", "SuspendTime=1800000300")
    )
    (job,) = parse_job(line, 5.0)
    assert (job.facts.reason, job.facts.restarts) == ("node n2 not responding", 0)
    assert (job.facts.exit_code, job.facts.signal, job.facts.ended_at) == (1, 9, 1.8e9 + 610)
    assert job.was_suspended


def test_an_element_of_an_array_keeps_its_two_part_id() -> None:
    """Scontrol prints the element's own number as JobId; the id that was submitted is base and index."""
    line = RUNNING.replace("JobId=42", "JobId=44 ArrayJobId=42 ArrayTaskId=2")
    assert parse_job(line, 5.0)[0].facts.job_id == "42_2"


def test_only_a_clear_answer_says_that_a_job_is_unknown() -> None:
    """A controller that cannot be reached has not denied the job."""
    denied = _result("scontrol", 1, "", "slurm_load_jobs error: Invalid job id specified")
    assert says_unknown(denied)
    assert not says_unknown(
        _result("scontrol", 1, "", "slurm_load_jobs error: Unable to contact slurm controller")
    )
    assert not says_unknown(CommandResult(("scontrol",), None, "", "", 20.0, "timed out after 20 s"))


def test_the_last_run_of_a_requeued_job_counts() -> None:
    """Earlier runs of the same id are restarts, whatever the order of the records."""
    lines = [
        history_line("42", "COMPLETED", submit="1800000200", nodes="n2"),
        history_line("42", "NODE_FAIL", submit="1800000000", suspended="00:01:00"),
        history_line("43", "CANCELLED by 1000", exit_code="0:15"),
    ]
    first, second = parse_history("\n".join(lines), 5.0)
    assert (first.facts.state, first.facts.restarts, first.facts.nodes) == ("COMPLETED", 1, ("n2",))
    assert first.was_suspended
    assert (second.facts.state, second.facts.signal, second.facts.restarts) == ("CANCELLED by 1000", 15, 0)


def test_records_of_another_job_with_a_reused_id_are_no_restarts() -> None:
    """Ids begin anew when a cluster is set up again; the name tells the jobs apart."""
    lines = [history_line("42", "FAILED", submit="1700000000", name="other"), history_line("42", "COMPLETED")]
    (job,) = parse_history("\n".join(lines), 5.0)
    assert (job.facts.state, job.facts.restarts) == ("COMPLETED", 0)


def test_a_record_that_lost_its_name_is_still_of_the_job() -> None:
    """Slurm records some requeued runs under the name "allocation"."""
    lines = [
        history_line("42", "NODE_FAIL"),
        history_line("42", "COMPLETED", submit="1800000200", name="allocation"),
    ]
    (job,) = parse_history("\n".join(lines), 5.0)
    assert (job.facts.state, job.facts.restarts, job.facts.name) == ("COMPLETED", 1, None)


def test_accounting_that_is_off_is_not_accounting_that_fails() -> None:
    """Only Slurm's own words, or a missing program, say that there are no records."""
    assert says_disabled(_result("sacct", 1, "", "Slurm accounting storage is disabled"))
    assert says_disabled(CommandResult(("sacct",), None, "", "", 0.0, "not found"))
    refused = "sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection"
    assert not says_disabled(
        _result("sacct", 1, "", f"{refused}\nsacct: error: Problem talking to the database")
    )
    assert not says_disabled(CommandResult(("sacct",), None, "", "", 20.0, "timed out after 20 s"))


def test_accounting_is_asked_with_a_beginning() -> None:
    """Without a start sacct looks back to midnight only and misses yesterday's jobs."""
    argv = history_argv(1.8e9, job_ids=["42", "43"])
    assert "--duplicates" in argv
    assert argv[argv.index("-S") + 1] == time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(1.8e9))
    assert argv[argv.index("-j") + 1] == "42,43"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10:00", 600.0),
        ("1:00:00", 3600.0),
        ("1-02:03:04", 93784.0),
        ("2-00", 172800.0),
        ("UNLIMITED", None),
        ("Partition_Limit", None),
        ("soon", None),
        ("00:00:00", 0.0),
    ],
)
def test_durations_are_read(text: str, expected: float | None) -> None:
    """Every spelling of a duration gives seconds, no limit gives None."""
    assert fields.seconds(text) == expected


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=300))
def test_no_text_makes_a_parser_fail(text: str) -> None:
    """Whatever a program prints, the parsers return."""
    parse_queue(text, 0.0)
    parse_history(text, 0.0)
    parse_job(f"JobId={text} JobState={text}", 0.0)
    parse_queue("1" + "|".join([text.replace("\n", " ").replace("|", " ")] * 11), 0.0)
    parse_history("1" + "|".join([text.replace("\n", " ").replace("|", " ")] * 11), 0.0)
