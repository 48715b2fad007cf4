"""Slurm's refusals, as they were seen, and the key of the task file that each leads to."""

from __future__ import annotations

import pytest

from slurm.scheduler.hints import hint_for, may_have_arrived, never_arrived, words_of

REFUSALS = [
    ("Invalid generic resource (gres) specification", "slurm.gpu_type"),
    ("Invalid Trespec", "slurm.gpu_type"),
    ("--gpus is not supported here, use --gres", "slurm.gpu_request"),
    ("invalid partition specified: nope", "slurm.partition"),
    ("Invalid partition name specified", "slurm.partition"),
    ("Invalid account or account/partition combination specified", "slurm.account"),
    ("Invalid qos specification", "slurm.qos"),
    ("Invalid wckey specification", "slurm.extra.wckey"),
    ("Requested reservation is invalid", "slurm.reservation"),
    ("Invalid feature specification", "slurm.constraint"),
    ("Memory specification can not be satisfied", "slurm.mem"),
    ("Requested time limit is invalid (missing or exceeds some limit)", "slurm.time_limit_min"),
    ("Node count specification invalid", "allocation"),
    ("More processors requested than permitted", "allocation"),
    ("Requested node configuration is not available", "allocation"),
    ("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", "allocation"),
    ("User's group not permitted to use this partition", "slurm.partition"),
    ("sbatch: unrecognized option '--spread'", "slurm.extra"),
    ("Job submit limit per user reached: MaxSubmitJobsPerUser", None),
    ("Something nobody has seen", None),
]


@pytest.mark.parametrize(("words", "key"), REFUSALS, ids=lambda value: str(value)[:30])
def test_refusal_leads_to_its_key(words: str, key: str | None) -> None:
    """The first hint that fits names the right key and a next step."""
    hint = hint_for(f"sbatch: error: Batch job submission failed: {words}\n")
    assert hint.key == key
    assert len(hint.advice) > 20


def test_words_are_kept_without_the_program_names() -> None:
    """What Slurm said stays verbatim, in one line."""
    said = (
        "sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed: Invalid\n"
    )
    assert words_of(said) == "invalid partition specified: x; Batch job submission failed: Invalid"


@pytest.mark.parametrize(
    ("said", "never", "maybe"),
    [
        ("Batch job submission failed: Unable to contact slurm controller (connect failure)", True, False),
        ("Batch job submission failed: Socket timed out on send/recv operation", False, True),
        ("Batch job submission failed: Zero Bytes were transmitted or received", False, True),
        ("Batch job submission failed: Transport endpoint is not connected", False, True),
        ("Batch job submission failed: Invalid qos specification", False, False),
    ],
)
def test_a_lost_answer_is_no_refusal(said: str, never: bool, maybe: bool) -> None:
    """Nothing reached, nothing heard, and a clear no are three cases."""
    assert (never_arrived(said), may_have_arrived(said)) == (never, maybe)
