"""Which nodes are slow or failing, from journals whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from engine.diagnosis.nodes import LEVEL, MOST_EXCLUDED, NodeReport, excluded_nodes, node_reports, node_values
from engine.journal.state import StudyState, TrialState
from engine.schema.study import TrialProposed
from engine.schema.trial import Candidate, Measurement, Outcome, OutcomeKind, Phases, TrialKind

PHASES = Phases(forward=None, backward=None, optimizer=None, communication=None, data=None)


def measured(step_time_s: float) -> Measurement:
    """A measurement of this step time."""
    return Measurement(
        step_time_s=step_time_s,
        step_times_s=(step_time_s,),
        cpu_s_per_update=1.0,
        tokens_per_update=None,
        tokens_per_s=None,
        peak_memory_gib=None,
        memory_metric=None,
        phases=PHASES,
        losses=(),
        start_s=None,
        warmup_updates=1,
        probe_share=0.0,
    )


class Journal:
    """A study's trials, added in the order in which they end."""

    def __init__(self) -> None:
        self.state = StudyState()

    def add(self, outcome: Outcome, micro_batch: int, kind: TrialKind) -> None:
        """One more trial."""
        number = len(self.state.trials) + 1
        proposed = TrialProposed(
            trial_id=f"t{number:03d}",
            kind=kind,
            origin="test",
            reason="test",
            candidate=Candidate(configuration={"micro_batch_size": micro_batch}),
            total_updates=7,
            measured_updates=5,
        )
        trial = TrialState(proposed, float(number), outcome=outcome, finished_at=float(number))
        self.state.trials[proposed.trial_id] = trial

    def ran(
        self, *nodes: str, step_s: float = 1.0, micro_batch: int = 1, kind: TrialKind = TrialKind.BASELINE
    ) -> None:
        """A completed run."""
        outcome = Outcome(
            kind=OutcomeKind.COMPLETED, measurement=measured(step_s), wall_s=1.0, gpu_hours=0.1, nodes=nodes
        )
        self.add(outcome, micro_batch, kind)

    def broke(self, *nodes: str, suspects: tuple[str, ...]) -> None:
        """A void run."""
        outcome = Outcome(
            kind=OutcomeKind.VOID, wall_s=1.0, gpu_hours=0.1, nodes=nodes, suspect_nodes=suspects
        )
        self.add(outcome, 1, TrialKind.SEARCH)

    def report(self, name: str) -> NodeReport:
        """The report on one node."""
        return next(report for report in node_reports(self.state) if report.name == name)


def noisy(journal: Journal, slowdown: float, runs: int, seed: int, sd: float = 0.01) -> None:
    """Runs of two configurations on three nodes; n1 is slower by so much."""
    rng = np.random.default_rng(seed)
    for index in range(runs):
        for node in ("n1", "n2", "n3"):
            factor = 1.0 + slowdown if node == "n1" else 1.0
            configuration = 1 + index % 2
            step_s = configuration * factor * float(np.exp(sd * rng.standard_normal()))
            journal.ran(node, step_s=step_s, micro_batch=configuration)


def test_a_slow_node_is_found_and_the_others_are_not() -> None:
    """A tenth slower is told from a percent of noise within four runs; the interval covers the truth."""
    journal = Journal()
    noisy(journal, 0.10, 4, seed=1)
    report = journal.report("n1")
    assert (report.verdict, report.excluded) == ("slow", True)
    assert report.slowdown is not None
    assert report.slowdown.low < 0.10 < report.slowdown.high
    assert [journal.report(name).verdict for name in ("n2", "n3")] == ["ok", "ok"]
    assert excluded_nodes(journal.state) == ("n1",)


def test_the_interval_covers_as_often_as_it_says() -> None:
    """Over many journals of equal nodes nearly all intervals hold zero, and hardly a node is called slow."""
    covered, slow = [], 0
    for seed in range(300):
        journal = Journal()
        noisy(journal, 0.0, 3, seed=seed, sd=0.02)
        report = journal.report("n1")
        assert report.slowdown is not None
        covered.append(report.slowdown.low < 0.0 < report.slowdown.high)
        slow += report.verdict == "slow"
    assert np.mean(covered) >= LEVEL - 0.02
    assert slow <= 2


@pytest.mark.parametrize("runs", [1, 2])
def test_two_runs_are_no_comparison(runs: int) -> None:
    """However far apart, fewer than three runs on a node say nothing."""
    journal = Journal()
    for _ in range(3):
        journal.ran("n2")
    for _ in range(runs):
        journal.ran("n1", step_s=2.0)
    assert journal.report("n1").slowdown is None
    assert journal.report("n1").verdict == "ok"


def test_only_runs_of_the_same_configuration_are_compared() -> None:
    """A node that happened to get the slow configurations is not slow; short retests do not count."""
    journal = Journal()
    for _ in range(4):
        journal.ran("n1", step_s=2.0, micro_batch=2)
        journal.ran("n2", step_s=1.0, micro_batch=1)
        journal.ran("n1", step_s=3.0, micro_batch=1, kind=TrialKind.RETEST)
    assert journal.report("n1").slowdown is None


def test_two_failures_in_a_row_make_a_node_failing() -> None:
    """A success in between takes the suspicion away; a failure that is another node's adds none."""
    journal = Journal()
    journal.ran("n1")
    journal.ran("n2")
    journal.broke("n1", suspects=("n1",))
    assert journal.report("n1").verdict == "ok"
    journal.ran("n1")
    journal.broke("n1", suspects=("n1",))
    journal.broke("n1", suspects=())
    assert (journal.report("n1").verdict, journal.report("n1").failures_in_a_row) == ("ok", 1)
    journal.broke("n1", suspects=("n1",))
    assert (journal.report("n1").verdict, journal.report("n1").voids) == ("failing", 4)
    assert excluded_nodes(journal.state) == ("n1",)


def test_a_trial_always_keeps_enough_nodes() -> None:
    """Of two known nodes that every trial needs, none is excluded, and the report says why."""
    journal = Journal()
    journal.ran("n1", "n2")
    for _ in range(2):
        journal.broke("n1", "n2", suspects=("n1",))
    report = journal.report("n1")
    assert (report.verdict, report.excluded) == ("failing", False)
    assert report.note is not None
    assert excluded_nodes(journal.state) == ()
    journal.ran("n2", "n3")
    assert excluded_nodes(journal.state) == ("n1",)


def test_no_more_than_two_nodes_are_excluded() -> None:
    """The two that failed most often; the third is told about."""
    journal = Journal()
    for name in ("n1", "n2", "n3", "n4", "n5"):
        journal.ran(name)
    for name, failures in (("n1", 2), ("n2", 4), ("n3", 3)):
        for _ in range(failures):
            journal.broke(name, suspects=(name,))
    assert excluded_nodes(journal.state) == ("n2", "n3")
    assert len(excluded_nodes(journal.state)) == MOST_EXCLUDED
    assert journal.report("n1").note is not None


def test_reports_are_json() -> None:
    """Every node with its keys, in the order of first use."""
    journal = Journal()
    noisy(journal, 0.0, 3, seed=0)
    values = node_values(journal.state)
    assert [value["name"] for value in values] == ["n1", "n2", "n3"]
    assert set(values[0]["slowdown"]) == {"share", "low", "high", "runs"}
    assert values[0]["verdict"] == "ok"
