from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm.scheduler.reasons import never_starts, sentence
from slurm.scheduler.states import SLURM_STATES


@pytest.mark.parametrize(
    ("reason", "words", "never"),
    [
        ("Priority", "higher priority", False),
        ("Resources", "enough nodes", False),
        ("(ReqNodeNotAvail, UnavailableNodes:n[1-4])", "n[1-4]", False),
        ("ReqNodeNotAvail, Reserved for maintenance", "Reserved for maintenance", False),
        ("PartitionTimeLimit", "more time than the partition allows", True),
        ("BeginTime", "requeued", False),
        ("DependencyNeverSatisfied", "failed", True),
        ("Dependency", "another job", False),
        ("JobHeldUser", "scontrol release", True),
        ("launch_failed_requeued_held", "scontrol release", True),
        ("QOSMaxGRESPerUser", "limit of its QOS on GPUs is reached", False),
        ("QOSMaxNodePerJobLimit", "more nodes than its QOS allows", True),
        ("AssocMaxJobsLimit", "limit of its account on jobs at once is reached", False),
        ("AssocMaxWallDurationPerJobLimit", "more time than its account allows", True),
        ("AssocGrpGRES", "running jobs use up the limit of its account on GPUs", False),
        ("AssocGrpCPUMinutesLimit", "budget of computing time is used up", True),
        ("None", "has not looked at it yet", False),
        ("SomethingNew", "SomethingNew", False),
    ],
)
def test_reasons_are_said_in_plain_words(reason: str, words: str, never: bool) -> None:
    """Each reason becomes a sentence that says what it waits for and whether waiting helps."""
    assert words in sentence("PENDING", reason, None)
    assert never_starts(reason) is never


def test_the_expected_start_is_part_of_the_sentence() -> None:
    """An estimate is a clock time today and a date on another day."""
    soon = time.time() + 1.0
    assert time.strftime("expected to start at %H:%M", time.localtime(soon)) in sentence(
        "PD", "Priority", soon
    )
    assert "expected to start on 2001-09-0" in sentence("PENDING", "Priority", 1e9)


def test_ended_jobs_say_how_and_by_whom() -> None:
    """The end is said in words, with Slurm's reason and who cancelled it."""
    assert sentence("TIMEOUT", "TimeLimit", None) == "was ended at its time limit (Slurm's reason: TimeLimit)"
    assert sentence("CANCELLED by 1000", None, None).endswith("by the user with the number 1000")
    assert "host memory" in sentence("OUT_OF_MEMORY", "None", None)
    assert "stands still" in sentence("SUSPENDED", None, None)


@given(st.sampled_from([*SLURM_STATES, "NEW_STATE", ""]), st.none() | st.text(max_size=40))
def test_every_state_has_a_sentence(state: str, reason: str | None) -> None:
    """No combination is left without words."""
    assert len(sentence(state, reason, None)) > 3
