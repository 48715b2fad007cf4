"""Which failed verdicts have to come again before they count."""

from __future__ import annotations

from engine.invariants.check import check_invariants, worth_repeating
from engine.invariants.context import InvariantContext
from engine.schema.evidence import RankEvidence, RunEvidence
from tests.invariants import builders as b

CONTEXT = InvariantContext(scope_findings=())
BASELINE = b.healthy_run()


def seen_by_the_agent(run: RunEvidence, factor: float) -> RunEvidence:
    """A run whose windows last longer by a factor on the agent's clock than on the ranks'."""

    def stretched(rank: RankEvidence) -> RankEvidence:
        assert rank.agent is not None
        window = rank.agent.window
        assert window is not None
        assert window.elapsed_ns is not None
        longer = window.model_copy(update={"elapsed_ns": int(window.elapsed_ns * factor)})
        return rank.model_copy(update={"agent": rank.agent.model_copy(update={"window": longer})})

    return b.with_ranks(run, stretched)


def test_a_rank_kept_from_sending_is_measured_again() -> None:
    """A window that differs a little on the agent's clock may be the machine's doing, a forged one is not."""
    assert worth_repeating(check_invariants(BASELINE, seen_by_the_agent(BASELINE, 1.10), CONTEXT))
    assert not worth_repeating(check_invariants(BASELINE, seen_by_the_agent(BASELINE, 2.0), CONTEXT))
    assert not worth_repeating(check_invariants(BASELINE, BASELINE, CONTEXT))
