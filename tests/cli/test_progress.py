"""The time left: known after the first run, never negative, smaller as the study goes on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.schema.study import Event, SearchEnded, VerificationDone, VerificationPlanned
from engine.schema.trial import Candidate, TrialKind
from infrarsi_tui.display.progress import in_words, seconds_left
from tests.cli.stories import CREATED, DIAGNOSED, completed, finished, proposed, submitted, told, verdict

Story = list[tuple[float, Event]]
FINALIST = Candidate(configuration={"micro_batch_size": 2})


def _trial(trial_id: str, kind: TrialKind, start: float, end: float) -> Story:
    return [
        (start, proposed(trial_id, kind)),
        (start, submitted(trial_id)),
        (end, finished(trial_id, completed(0.5, 1.0))),
    ]


def _diagnosed() -> Story:
    story: Story = [(0.0, CREATED)]
    for number in range(3):
        story += _trial(f"b{number}", TrialKind.BASELINE, 20.0 * number, 20.0 * number + 20.0)
    story += _trial("p0", TrialKind.PERTURBATION, 60.0, 80.0)
    return [*story, (80.0, DIAGNOSED)]


def test_nothing_is_known_before_the_first_run() -> None:
    """Without a finished baseline there is no estimate, and the words say so."""
    state, _ = told([(0.0, CREATED), (1.0, proposed("b0", TrialKind.BASELINE))])
    assert seconds_left(state, 1.0) is None
    assert in_words(None) == "time left: known after the first run"


def test_search_and_verification_are_charged() -> None:
    """Four search trials of 20 s, then six pairs of two runs: 80 + 240 s."""
    state, _ = told(_diagnosed())
    assert seconds_left(state, 80.0) == pytest.approx(4 * 20.0 + 6 * (20.0 + 20.0))


def test_search_trials_are_charged_what_search_trials_took() -> None:
    """A candidate that takes half as long halves the expectation for the rest."""
    state, _ = told(_diagnosed() + _trial("t1", TrialKind.SEARCH, 80.0, 90.0))
    assert seconds_left(state, 90.0) == pytest.approx(3 * 10.0 + 6 * (20.0 + 10.0))


def test_a_running_trial_counts_for_what_it_has_done() -> None:
    """Half way through a run the estimate is half a run shorter."""
    story = [*_diagnosed(), (80.0, proposed("t1")), (80.0, submitted("t1"))]
    state, _ = told(story)
    whole = seconds_left(state, 80.0)
    half = seconds_left(state, 90.0)
    assert whole is not None
    assert half == pytest.approx(whole - 10.0)


def test_the_plan_of_the_verification_replaces_the_guess() -> None:
    """Once the pairs are fixed, exactly they are charged."""
    story = [
        *_diagnosed(),
        (80.0, SearchEnded(reason="done")),
        (80.0, VerificationPlanned(finalists=(FINALIST, FINALIST), pairs=4, threshold=1.03)),
    ]
    state, _ = told(story)
    assert seconds_left(state, 80.0) == pytest.approx(4 * 3 * 20.0)


def test_nothing_is_left_at_the_end() -> None:
    """With the verdicts written, no second is left."""
    story = [*_diagnosed(), (80.0, SearchEnded(reason="done"))]
    story += [(80.0, VerificationPlanned(finalists=(FINALIST,), pairs=1, threshold=1.03))]
    for number in range(2):
        story += _trial(f"v{number}", TrialKind.VERIFICATION, 80.0, 100.0)
    state, _ = told([*story, (101.0, VerificationDone(verdicts=(verdict(verified=True),)))])
    assert seconds_left(state, 101.0) == 0.0


@given(done=st.integers(0, 6), duration=st.floats(0.1, 1e5), now=st.floats(0.0, 1e7))
def test_the_estimate_is_never_negative(done: int, duration: float, now: float) -> None:
    """Whatever the clock says, and though more trials ran than planned, the rest is at least zero."""
    story, at = _diagnosed(), 80.0
    for number in range(done):
        story += _trial(f"t{number}", TrialKind.SEARCH, at, at + duration)
        at += duration
    state, _ = told([*story, (at, proposed("open")), (at, submitted("open"))])
    left = seconds_left(state, now)
    assert left is not None
    assert left >= 0.0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "about 5 s left"),
        (42.0, "about 40 s left"),
        (89.0, "about 90 s left"),
        (90.0, "about 2 min left"),
        (3600.0, "about 60 min left"),
        (5400.0, "about 1.5 h left"),
        (86400.0, "about 24.0 h left"),
    ],
)
def test_durations_are_rounded_for_people(seconds: float, words: str) -> None:
    """Seconds by fives, then minutes, then hours."""
    assert in_words(seconds) == words
