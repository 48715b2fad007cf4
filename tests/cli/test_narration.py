"""What a person reads while a study runs; pure functions of the journal."""

from __future__ import annotations

import pytest

from engine.schema.study import (
    Deployed,
    EpochStarted,
    Event,
    Prediction,
    SearchEnded,
    StageEntered,
    VerificationDone,
    VerificationPlanned,
)
from engine.schema.trial import (
    Candidate,
    FailureKind,
    InvariantResult,
    InvariantStatus,
    Outcome,
    OutcomeKind,
    TrialKind,
)
from infrarsi_tui.display.narration import narration, outcome_words
from tests.cli.stories import (
    BASELINE,
    CREATED,
    FAST,
    PROPOSED,
    completed,
    failed,
    finished,
    measurement,
    proposed,
    told,
    verdict,
)

PREDICTION = Prediction(
    speedup=1.5,
    speedup_low=1.2,
    speedup_high=1.8,
    p_fits=0.875,
    memory_gib=2.0,
    p_compatible=1.0,
    cost_gpu_hours=0.01,
)


def _say(*events: Event) -> str:
    state, entry = told([(1000.0 + 10.0 * n, event) for n, event in enumerate((CREATED, *events))])
    return narration(entry, state)


def test_a_stage_is_announced_with_its_note() -> None:
    """A stage line names the stage, and why it was entered where that is known."""
    assert _say(StageEntered.model_validate({"stage": "search"})) == "── search"
    assert _say(StageEntered.model_validate({"stage": "stopped", "note": "enough"})) == "── stopped: enough"


def test_a_search_trial_says_what_is_tried_and_expected() -> None:
    """Number, of how many, who proposed it, why, and the models' promise."""
    line = _say(*BASELINE, proposed("t001", predicted=PREDICTION))
    assert line == "   trial 1/4 [advisor] Larger matrix products.; expected 1.50×, fits 88 %"


def test_a_repeated_trial_is_no_new_one() -> None:
    """A trial that is run again keeps its number, so that no line says 2 of 1."""
    retry = proposed("t002").model_copy(update={"retry_of": "t001"})
    assert _say(*BASELINE, PROPOSED, FAST, retry).startswith("   trial 1/4 again [advisor]")


def test_without_a_prediction_nothing_is_promised() -> None:
    """No number is made up where the models said none."""
    assert "expected" not in _say(*BASELINE, PROPOSED)
    blind = PREDICTION.model_copy(update={"p_fits": None})
    assert "fits" not in _say(*BASELINE, proposed("t001", predicted=blind))


def test_other_kinds_of_trials_are_not_counted_as_search() -> None:
    """A baseline's proposal is silent; its end is named with its kind."""
    assert _say(proposed("b001", TrialKind.BASELINE)) == ""
    assert "b001 baseline" in _say(*BASELINE[:3])


def test_an_outcome_has_numbers_and_the_time_left() -> None:
    """A finished trial shows step time, speed-up, memory and how long the study still takes."""
    line = _say(*BASELINE, PROPOSED, FAST)
    for part in ("t001", "0.400 s/update", "1.25×", "1.50 GiB", "left)"):
        assert part in line


def test_what_was_not_measured_is_not_shown() -> None:
    """None is silent, never a zero."""
    assert outcome_words(completed(0.25), TrialKind.SEARCH) == "0.250 s/update"


def test_a_rejected_trial_names_the_broken_invariants() -> None:
    """Only failed invariants are listed, and no speed-up is praised."""
    results = tuple(
        InvariantResult(layer="workload", name=name, status=status, reason="because")
        for name, status in (
            ("model_identity", InvariantStatus.PASSED),
            ("tokens_per_update", InvariantStatus.FAILED),
            ("work_performed", InvariantStatus.FAILED),
        )
    )
    outcome = Outcome(
        kind=OutcomeKind.REJECTED,
        measurement=measurement(0.1),
        speedup=5.0,
        invariants=results,
        wall_s=1.0,
        gpu_hours=0.0,
    )
    assert outcome_words(outcome, TrialKind.SEARCH) == "rejected: tokens_per_update, work_performed"


def test_a_failure_says_kind_and_cause() -> None:
    """A dead trial tells why in one line."""
    dead = failed(FailureKind.OOM_GPU, "2.00 GiB were asked for, 1.00 GiB was free")
    words = outcome_words(dead, TrialKind.SEARCH)
    assert words == "failed (oom_gpu): 2.00 GiB were asked for, 1.00 GiB was free"
    cancelled = Outcome(kind=OutcomeKind.CANCELLED, wall_s=1.0, gpu_hours=0.0)
    assert outcome_words(cancelled, TrialKind.SEARCH) == "cancelled: no cause known"


def test_the_diagnosis_is_summed_up() -> None:
    """Step time, noise, smallest tellable effect and bottleneck, in per cent where they are shares."""
    line = _say(*BASELINE)
    for part in ("0.500 s/update", "2.0 %", "3.0 %", "compute"):
        assert part in line


@pytest.mark.parametrize(("verified", "word"), [(True, "VERIFIED"), (False, "not verified")])
def test_a_verdict_gives_its_interval(verified: bool, word: str) -> None:
    """The claim comes with its interval and in one of two words."""
    line = _say(VerificationDone(verdicts=(verdict(verified=verified),)))
    assert line == f"   finalist 1: 1.250× [1.200, 1.300] (99 %)  {word}"


def test_a_finalist_that_could_not_be_measured_has_no_number() -> None:
    """A verdict without pairs shows no speed-up."""
    line = _say(VerificationDone(verdicts=(verdict(verified=False, speedup=None),)))
    assert "could not be measured again" in line
    assert "×" not in line


def test_the_rest_of_the_story() -> None:
    """The end of the search, the plan of the verification and the deployment have their line."""
    plan = VerificationPlanned(
        finalists=(Candidate(configuration={"micro_batch_size": 2}),), pairs=6, threshold=1.03
    )
    assert _say(SearchEnded(reason="all 4 trials are done")) == "   search ended: all 4 trials are done"
    assert _say(plan) == "   verifying 1 finalist(s) with 6 interleaved pairs each"
    deployed = Deployed(target="/copy", branch="infrarsi/tiny", commits=("a", "b"))
    assert "/copy" in _say(deployed)
    assert "2 commit(s)" in _say(deployed)


def test_bookkeeping_is_silent() -> None:
    """Events that tell a person nothing give no line."""
    assert _say(EpochStarted(epoch=1, host="node", pid=7)) == ""
    assert _say() == ""


def test_a_failed_first_run_does_not_break_the_line() -> None:
    """Before any run has succeeded the time left is unknown or a guess, and is shown as text."""
    assert "left" in _say(
        proposed("b001", TrialKind.BASELINE), finished("b001", failed(FailureKind.UNKNOWN, "x"))
    )
