from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.schema.job import Loss, SchedulerFacts
from slurm.scheduler.losses import loss_of
from slurm.scheduler.states import SLURM_STATES, parse_state


@pytest.mark.parametrize(
    ("text", "word", "phase"),
    [
        ("PENDING", "PENDING", "waiting"),
        ("PD", "PENDING", "waiting"),
        ("CONFIGURING", "CONFIGURING", "waiting"),
        ("REQUEUE_HOLD", "REQUEUE_HOLD", "waiting"),
        ("RUNNING", "RUNNING", "live"),
        ("COMPLETING", "COMPLETING", "live"),
        ("SUSPENDED", "SUSPENDED", "live"),
        ("CANCELLED by 1000", "CANCELLED", "final"),
        ("CANCELLED+", "CANCELLED", "final"),
        ("OUT_OF_ME+", "OUT_OF_MEMORY", "final"),
        ("completed ", "COMPLETED", "final"),
        ("NF", "NODE_FAIL", "final"),
    ],
)
def test_states_are_understood_as_every_program_prints_them(text: str, word: str, phase: str) -> None:
    """Full words, short codes, words cut with a plus and additions after the word mean the same."""
    state = parse_state(text)
    assert (state.word, state.phase, state.note) == (word, phase, None)


@given(st.text(max_size=30))
def test_an_unknown_word_is_live_with_a_note(text: str) -> None:
    """No text makes the reader fail, and only known final words declare a job ended."""
    state = parse_state(text)
    assert state.phase == "live" or state.word in SLURM_STATES
    assert (state.note is None) == (state.word in SLURM_STATES)


@pytest.mark.parametrize("text", ["", "+", "RE+", "R+", "HIBERNATING"])
def test_words_that_fit_nothing_or_several_states_end_no_job(text: str) -> None:
    """A cut word that could be two states is not guessed."""
    state = parse_state(text)
    assert state.phase == "live"
    assert state.note is not None


def test_who_cancelled_is_kept() -> None:
    """The user number of a cancelled job is read."""
    assert parse_state("CANCELLED by 1000").by_uid == 1000
    assert parse_state("CANCELLED").by_uid is None


def test_standing_still_voids_a_measurement() -> None:
    """Suspended and stopped jobs live on, but their times are worth nothing."""
    still = {word for word, state in SLURM_STATES.items() if state.suspended}
    assert still == {"SUSPENDED", "STOPPED"}
    assert all(SLURM_STATES[word].measurement_void and not SLURM_STATES[word].is_final for word in still)


def _facts(state: str, **said: object) -> SchedulerFacts:
    values = {"job_id": "7", "state": state, "source": "squeue", "as_of": 1.0, "started_at": 1.0, **said}
    return SchedulerFacts.model_validate(values)


@pytest.mark.parametrize(
    ("facts", "loss"),
    [
        (None, Loss.VANISHED),
        (_facts("RUNNING"), Loss.VANISHED),
        (_facts("NODE_FAIL"), Loss.NODE_FAILED),
        (_facts("NODE_FAIL", restarts=1), Loss.RESTARTED),
        (_facts("PREEMPTED"), Loss.PREEMPTED),
        (_facts("TIMEOUT"), Loss.TIME_LIMIT),
        (_facts("CANCELLED by 0"), Loss.CANCELLED_OUTSIDE),
        (_facts("OUT_OF_MEMORY", exit_code=0, signal=125), Loss.HOST_OOM),
        (_facts("FAILED", exit_code=0, signal=125), Loss.HOST_OOM),
        (_facts("FAILED", reason="OutOfMemory"), Loss.HOST_OOM),
        (_facts("FAILED", exit_code=137), Loss.AGENT_DIED),
        (_facts("FAILED", exit_code=0, signal=9), Loss.AGENT_DIED),
        (_facts("COMPLETED", exit_code=0), Loss.AGENT_DIED),
        (_facts("FAILED", started_at=None), Loss.NEVER_STARTED),
        (_facts("LAUNCH_FAILED"), Loss.NEVER_STARTED),
    ],
)
def test_a_loss_names_the_cause_the_scheduler_gives(facts: SchedulerFacts | None, loss: Loss) -> None:
    """Memory needs a sign of memory (exit code 137 is none), and a restart is no clean measurement."""
    assert loss_of(facts) is loss
