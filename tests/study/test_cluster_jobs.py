"""What a cluster does to jobs: lost, cut, moved, queued, held; one trial each, in virtual time."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.journal.session import Detached, StopRequested
from engine.journal.state import StudyState
from engine.journal.summary import gpu_hours, summarise
from engine.schema.job import AllocationUse, Loss, SchedulerFacts
from engine.schema.study import Stage
from engine.schema.trial import FailureKind, Outcome, OutcomeKind
from tests.study import wire
from tests.study.studies import Cluster, engine, propose, read
from tests.study.surface import RANKS, task_text

LONG_S = 1e6
"""Longer than any trial may run."""


def facts(**changes: Any) -> SchedulerFacts:
    """A scheduler's reading of job 7."""
    values = {"job_id": "7", "state": "COMPLETED", "source": "sacct", "as_of": 0.0, "nodes": ("n1",)}
    return SchedulerFacts.model_validate({**values, **changes})


def run_one(cluster: Cluster) -> Outcome:
    """The outcome of one baseline trial."""
    with engine(cluster.root, cluster.executor, cluster.clock) as study:
        return study.runner.run(propose(study, "b001"))


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """A started study."""
    made = Cluster(tmp_path)
    made.start()
    return made


@pytest.mark.parametrize(
    ("loss", "kind", "failure", "blame"),
    [
        (Loss.NODE_FAILED, OutcomeKind.VOID, FailureKind.INFRA, False),
        (Loss.RESTARTED, OutcomeKind.VOID, FailureKind.INFRA, False),
        (Loss.CANCELLED_OUTSIDE, OutcomeKind.VOID, FailureKind.INFRA, False),
        (Loss.NEVER_STARTED, OutcomeKind.VOID, FailureKind.INFRA, False),
        (Loss.AGENT_DIED, OutcomeKind.VOID, FailureKind.INFRA, False),
        (Loss.VANISHED, OutcomeKind.VOID, FailureKind.INFRA, False),
        (Loss.PREEMPTED, OutcomeKind.VOID, FailureKind.PREEMPTED, False),
        (Loss.HOST_OOM, OutcomeKind.FAILED, FailureKind.OOM_HOST, True),
    ],
)
def test_why_a_job_is_lost_decides_whose_it_is(
    cluster: Cluster, loss: Loss, kind: OutcomeKind, failure: FailureKind, blame: bool
) -> None:
    """Only host memory is the candidate's; the scheduler's words are the evidence, the job stays known."""
    cluster.executor.losses = lambda trial_id: loss
    cluster.executor.facts = lambda trial_id, submitted, ends: facts(state="WHATEVER", reason="SomeReason")
    outcome = run_one(cluster)
    why = outcome.attribution
    assert why is not None
    assert (outcome.kind, outcome.loss, outcome.allocation) == (kind, loss, "7")
    assert (why.kind, why.blame_candidate) == (failure, blame)
    assert "the node went away" in why.cause
    assert "sacct: job 7: WHATEVER, reason SomeReason, nodes n1" in [line.text for line in why.evidence]
    assert (why.required_bytes, why.limit_bytes) == (None, None)
    assert outcome.nodes == ("n1",)


@pytest.mark.parametrize(
    ("ran_s", "kind", "blame"), [(30.0, OutcomeKind.VOID, False), (LONG_S, OutcomeKind.FAILED, None)]
)
def test_a_time_limit_is_the_trials_only_if_it_had_its_time(
    cluster: Cluster, ran_s: float, kind: OutcomeKind, blame: bool | None
) -> None:
    """Cut by the end of an allocation: void. After all the time it asked for: failed, with open blame."""
    cluster.executor.losses = lambda trial_id: Loss.TIME_LIMIT
    cluster.executor.facts = lambda trial_id, submitted, ends: facts(
        state="TIMEOUT", started_at=submitted, ended_at=submitted + ran_s
    )
    outcome = run_one(cluster)
    assert outcome.attribution is not None
    assert (outcome.kind, outcome.attribution.blame_candidate) == (kind, blame)
    expected = FailureKind.INFRA if blame is False else FailureKind.TIMEOUT
    assert outcome.attribution.kind is expected


def bent(**changes: Any) -> Callable[[str, wire.Run], wire.Run]:
    """Every run with these changes."""
    return lambda trial_id, run: dataclasses.replace(run, **changes)


@pytest.mark.parametrize(
    ("changes", "said", "suspects"),
    [
        ({"ended": "node_lost", "lost": (1,)}, "the agent of n2 was lost", ("n2",)),
        ({"ended": "preflight_failed"}, "checks before the launch failed", ("n1", "n2")),
        ({"slurm": {"job_id": 7, "step_id": 0, "restarts": 1}}, "suspended or restarted", ()),
        ({"gaps_s": (12.0, 12.0)}, "stood still for 12.0 s", ()),
        ({"gaps_s": (0.2, 12.0)}, "n2 stood still for 12.0 s", ("n2",)),
    ],
    ids=["node_lost", "preflight", "restarted", "suspended", "stopped_machine"],
)
def test_a_result_that_is_no_clean_measurement_is_void(
    tmp_path: Path, changes: dict[str, Any], said: str, suspects: tuple[str, ...]
) -> None:
    """Nobody's candidate, whatever was measured; a node that may be the cause is named."""
    cluster = Cluster(tmp_path, task=task_text().replace("nodes = 1", "nodes = 2"))
    cluster.start()
    cluster.executor.shapes = bent(nodes=("n1", "n2"), **changes)
    outcome = run_one(cluster)
    assert outcome.attribution is not None
    assert (outcome.kind, outcome.attribution.kind) == (OutcomeKind.VOID, FailureKind.INFRA)
    assert outcome.attribution.blame_candidate is False
    assert said in outcome.attribution.cause
    assert outcome.nodes == ("n1", "n2")
    assert outcome.suspect_nodes == suspects
    assert outcome.measurement is None


def test_a_clean_run_on_two_nodes_counts(tmp_path: Path) -> None:
    """Names of the nodes and short pauses of their agents void nothing."""
    cluster = Cluster(tmp_path, task=task_text().replace("nodes = 1", "nodes = 2"))
    cluster.start()
    cluster.executor.shapes = bent(
        nodes=("n1", "n2"), gaps_s=(0.2, 4.0), slurm={"job_id": "7", "step_id": "0", "restarts": 0}
    )
    outcome = run_one(cluster)
    assert outcome.kind is OutcomeKind.COMPLETED
    assert (outcome.nodes, outcome.suspect_nodes, outcome.allocation) == (("n1", "n2"), (), "7")


@pytest.mark.parametrize(
    ("state", "kind", "failure"),
    [
        ("PREEMPTED", OutcomeKind.VOID, FailureKind.PREEMPTED),
        ("CANCELLED by 1000", OutcomeKind.VOID, FailureKind.INFRA),
        ("OUT_OF_MEMORY", OutcomeKind.FAILED, FailureKind.OOM_HOST),
    ],
)
def test_who_ended_a_run_is_the_schedulers_to_say(
    cluster: Cluster, state: str, kind: OutcomeKind, failure: FailureKind
) -> None:
    """A run that was told to stop, and not by this engine, is judged by the state of its job."""
    cluster.executor.endings = lambda trial_id: "cancelled"
    cluster.executor.facts = lambda trial_id, submitted, ends: facts(state=state)
    outcome = run_one(cluster)
    assert outcome.attribution is not None
    assert (outcome.kind, outcome.attribution.kind) == (kind, failure)


def test_the_schedulers_clock_is_the_price(cluster: Cluster) -> None:
    """GPU-hours are elapsed time of the job; the wait in the queue is no part of them, but is known."""
    cluster.executor.facts = lambda trial_id, submitted, ends: facts(
        submitted_at=submitted, started_at=submitted + 50.0, ended_at=submitted + 410.0
    )
    outcome = run_one(cluster)
    assert outcome.gpu_hours == pytest.approx(360.0 * RANKS / 3600.0)
    assert outcome.queue_wait_s == 50.0
    state = read(cluster.root)
    assert state.predicted_queue_wait() == 50.0
    assert summarise(state, "study")["trials"][0]["queue_wait_s"] == 50.0


def test_without_a_scheduler_the_agents_clock_is_the_price(cluster: Cluster) -> None:
    """What the agent measured is charged; waiting is from our submission to its start."""
    cluster.executor.queue_s = 40.0
    outcome = run_one(cluster)
    assert outcome.gpu_hours == pytest.approx(outcome.wall_s * RANKS / 3600.0)
    assert outcome.queue_wait_s == pytest.approx(40.0, abs=2.0)


def use(**changes: Any) -> AllocationUse:
    """Allocation 7, held by this study."""
    values = {"job_id": "7", "gpus": RANKS, "nodes": ("n1",), "source": "squeue"}
    return AllocationUse.model_validate({**values, **changes})


def test_what_is_held_between_trials_is_idle(cluster: Cluster) -> None:
    """Held time minus the trials inside is idle and part of the total; it is never less than nothing."""
    begun = cluster.clock.now() - 1000.0
    cluster.executor.uses = [use(started_at=begun)]
    cluster.executor.facts = lambda trial_id, submitted, ends: facts(started_at=begun, ended_at=ends)
    outcome = run_one(cluster)
    assert outcome.gpu_hours == pytest.approx(outcome.wall_s * RANKS / 3600.0)
    spent = gpu_hours(read(cluster.root))
    assert spent["idle"] >= 1000.0 * RANKS / 3600.0
    assert spent["total"] == pytest.approx(spent["idle"] + outcome.gpu_hours)
    cluster.executor.uses = [use(started_at=begun, ended_at=begun + 1.0)]
    with engine(cluster.root, cluster.executor, cluster.clock) as study:
        study.runner.record_usage()
    spent = gpu_hours(read(cluster.root))
    assert spent["idle"] == 0.0
    assert spent["total"] == pytest.approx(outcome.gpu_hours)


def test_usage_is_recorded_when_it_changed(cluster: Cluster) -> None:
    """The same answer leaves no second record; the last one of an allocation counts."""
    cluster.executor.uses = [use()]
    with engine(cluster.root, cluster.executor, cluster.clock) as study:
        study.runner.record_usage()
        journal = (study.session.folder.journal / f"{study.session.epoch:06d}.jsonl").read_bytes()
        study.runner.record_usage()
        assert (study.session.folder.journal / f"{study.session.epoch:06d}.jsonl").read_bytes() == journal
        cluster.executor.uses = [use(started_at=5.0), use(job_id="8")]
        study.runner.record_usage()
    allocations = read(cluster.root).allocations
    assert set(allocations) == {"7", "8"}
    assert allocations["7"].started_at == 5.0


def test_a_job_cancelled_in_the_queue_costs_nothing(cluster: Cluster) -> None:
    """Waiting is free: a trial that a person ends before it started is charged with nothing."""
    cluster.executor.queue_s = 500.0
    with engine(cluster.root, cluster.executor, cluster.clock) as study:
        trial = propose(study, "b001")
        study.runner.start(trial)
        assert trial.handle is not None
        trial.handle = trial.handle.model_copy(update={"executor": "slurm"})
        study.runner._follow(trial, trial.handle)
        assert study.runner.settle(trial) is None
        cluster.clock.sleep(100.0)
        outcome = study.runner.cancel(trial)
    assert (outcome.kind, outcome.gpu_hours) == (OutcomeKind.CANCELLED, 0.0)


def test_a_node_that_fails_again_and_again_is_avoided(cluster: Cluster) -> None:
    """After two failures in a row the next request excludes the node, as long as others are known."""
    cluster.executor.shapes = lambda trial_id, run: dataclasses.replace(
        run,
        nodes=("good",) if trial_id == "b001" else ("bad",),
        ended="exited" if trial_id == "b001" else "node_lost",
        lost=() if trial_id == "b001" else (0,),
    )
    with engine(cluster.root, cluster.executor, cluster.clock) as study:
        for number in range(1, 5):
            study.runner.run(propose(study, f"b{number:03d}"))
    assert [request.exclude for request in cluster.executor.requests] == [(), (), (), ("bad",)]


def test_trials_run_side_by_side(cluster: Cluster) -> None:
    """Started trials are settled one by one, each once, without waiting in between."""
    with engine(cluster.root, cluster.executor, cluster.clock) as study:
        trials = []
        for name in ("b001", "b002"):
            trials.append(propose(study, name))
            assert study.runner.start(trials[-1]) is None
        before = cluster.clock.now()
        assert [study.runner.settle(trial) for trial in trials] == [None, None]
        assert cluster.clock.now() == before
        left = list(trials)
        while left:
            for trial in study.runner.wait_for_any(left):
                left.remove(trial)
        assert all(trial.outcome and trial.outcome.kind is OutcomeKind.COMPLETED for trial in trials)
    assert cluster.executor.submitted == ["b001", "b002"]


def test_an_interrupt_ends_all_that_run(cluster: Cluster) -> None:
    """A stop while several trials run cancels every one of them."""
    with engine(cluster.root, cluster.executor, cluster.clock) as study:
        for name in ("b001", "b002"):
            study.runner.start(propose(study, name))

        def stop(call: str, trial_id: str) -> None:
            if call == "poll":
                raise StopRequested("enough")

        cluster.executor.hook = stop
        with pytest.raises(StopRequested):
            study.runner.wait_for_any(list(study.state.trials.values()))
    kinds = [trial.outcome.kind for trial in read(cluster.root).trials.values() if trial.outcome]
    assert kinds == [OutcomeKind.CANCELLED, OutcomeKind.CANCELLED]
    assert cluster.executor.cancelled == ["b001", "b002"]


def test_a_detached_engine_leaves_its_job_to_the_next(cluster: Cluster) -> None:
    """Nothing is cancelled or recorded; the next engine adopts the job and submits none."""
    with engine(cluster.root, cluster.executor, cluster.clock) as study:
        trial = propose(study, "b001")

        def leave(call: str, trial_id: str) -> None:
            if call == "poll":
                study.session.detach()

        cluster.executor.hook = leave
        with pytest.raises(Detached):
            study.runner.run(trial)
    cluster.executor.hook = lambda call, trial_id: None
    left = read(cluster.root)
    assert left.stage is Stage.INITIALIZATION
    assert left.trials["b001"].outcome is None
    assert cluster.executor.cancelled == []
    after = _resumed(cluster)
    assert cluster.executor.submitted == ["b001"]
    outcome = after.trials["b001"].outcome
    assert outcome is not None
    assert outcome.kind is OutcomeKind.COMPLETED


def _resumed(cluster: Cluster) -> StudyState:
    with engine(cluster.root, cluster.executor, cluster.clock) as study:
        study.runner.settle_open_trials()
        return study.state


def test_what_an_agent_left_tells_where_and_how_long_it_ran(cluster: Cluster) -> None:
    """Without a result and without a scheduler, job.json and the heartbeat are the price and the place."""
    cluster.executor.losses = lambda trial_id: Loss.AGENT_DIED

    def leave_a_trace(call: str, trial_id: str) -> None:
        folder = cluster.root / "trials" / trial_id
        token = json.loads((folder / "spec.json").read_text())["token"]
        job = {"token": token, "started_at": 1000.0, "node": "n7", "host": "n7.of.nobody"}
        (folder / "job.json").write_text(json.dumps(job))
        (folder / "heartbeat").write_text(json.dumps({"at": 1036.0}))

    cluster.executor.hook = leave_a_trace
    outcome = run_one(cluster)
    assert (outcome.kind, outcome.nodes, outcome.suspect_nodes) == (OutcomeKind.VOID, ("n7",), ("n7",))
    assert outcome.gpu_hours == pytest.approx(36.0 * RANKS / 3600.0)
