"""Held allocations on a real Slurm: the contract, and everything that happens to allocations."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.ports import JobExecutor
from engine.schema.job import JobHandle, JobRequest, JobState, Loss
from slurm.trial_files import UNRECORDED
from tests.slurm.executor_contract import JobExecutorContract, Requests, TrialKind
from tests.slurm.held.held_study import HeldStudy, gap_s
from tests.slurm.trial_folder import no_process_left, read_json, request_of, wait_for
from tests.slurm_cluster.cluster import SlurmCluster

MODES: dict[TrialKind, str] = {"short": "normal", "endless": "describe", "failing": "crash"}
Studies = Callable[..., HeldStudy]


@pytest.fixture
def study_on(tmp_path: Path) -> Iterator[Studies]:
    """Makes studies that are given back with the test."""
    made: list[HeldStudy] = []

    def make(cluster: SlurmCluster, **settings: Any) -> HeldStudy:
        made.append(HeldStudy(tmp_path / f"study{len(made)}", cluster, **settings))
        return made[-1]

    yield make
    for study in made:
        study.close()


class TestHeldExecutorContract(JobExecutorContract):
    """The contract, over steps of a held allocation."""

    limit_s = 60.0

    @pytest.fixture(autouse=True)
    def _study(self, plain_cluster: SlurmCluster, study_on: Studies) -> None:
        self.study = study_on(plain_cluster)

    def make_executor(self) -> JobExecutor:
        """Each finds the allocation of the others."""
        return self.study.executor()

    @pytest.fixture
    def request_for(self, tmp_path: Path) -> Iterator[Requests]:
        """Trials of the payload; ended after the test in any case."""
        handles: list[JobHandle] = []

        def prepare(kind: TrialKind) -> JobRequest:
            request = request_of(self.study.trial(kind, MODES[kind]))
            handles.append(
                JobHandle(executor="slurm", job_id="-", trial_dir=request.trial_dir, token=request.token)
            )
            return request

        yield prepare
        for handle in handles:
            self.study.executor().cancel(handle)


def _started_training(study: HeldStudy, plan: Any) -> None:
    wait_for((Path(plan.output_dir) / "facts.json").exists, "training started", 60.0)


def test_next_trial_starts_within_two_seconds(cluster: SlurmCluster, study_on: Studies) -> None:
    """Trials follow each other in one allocation without a queue between them."""
    study = study_on(cluster)
    executor = study.executor()
    plans = [study.trial(name) for name in ("a", "b", "c")]
    for plan in plans:
        assert study.run(executor, plan).state is JobState.FINISHED
    assert len(study.all_events()) == 1
    gaps = [gap_s(first, second) for first, second in itertools.pairwise(plans)]
    assert max(gaps) < 2.0, gaps
    assert [event["devices_clean"] for event in study.wait_for_ends("a", "b", "c")] == [True] * 3


def test_idle_allocation_gives_itself_back(plain_cluster: SlurmCluster, study_on: Studies) -> None:
    """Without an order the job ends by itself; the next trial gets another allocation; both are accounted."""
    study = study_on(plain_cluster, idle_s=1.0)
    executor = study.executor()
    assert study.run(executor, study.trial("a")).state is JobState.FINISHED
    wait_for(lambda: not study.jobs(), "the allocation is given back", 30.0)
    assert study.event("leaving")["reason"] == "idle"
    assert study.run(executor, study.trial("b")).state is JobState.FINISHED
    wait_for(lambda: not study.jobs(), "the second one too", 30.0)

    def settled() -> bool:
        return all(use.ended_at is not None for use in executor.usage())

    wait_for(settled, "the uses are known", 30.0)
    uses = executor.usage()
    assert len({use.job_id for use in uses}) == 2
    assert all(use.gpus == 1 and use.nodes and use.started_at is not None for use in uses)
    again = study.executor().usage()
    assert [use.job_id for use in again] == [use.job_id for use in uses]
    assert all(use.started_at is not None and use.ended_at is not None for use in again)


def test_release_gives_back(plain_cluster: SlurmCluster, study_on: Studies) -> None:
    """After release no job of the study is left, and a released executor can go on."""
    study = study_on(plain_cluster)
    executor = study.executor()
    assert study.run(executor, study.trial("a")).state is JobState.FINISHED
    executor.release()
    wait_for(lambda: not study.jobs(), "the allocation is given back", 30.0)
    assert study.event("leaving")["reason"] == "released"
    executor.release()
    assert study.run(executor, study.trial("b")).state is JobState.FINISHED


@pytest.mark.slow
def test_holder_that_does_not_react_is_cancelled(plain_cluster: SlurmCluster, study_on: Studies) -> None:
    """A stopped holder cannot keep its allocation."""
    study = study_on(plain_cluster)
    executor = study.executor()
    assert study.run(executor, study.trial("a")).state is JobState.FINISHED
    os.kill(study.event("allocated")["pid"], signal.SIGSTOP)
    executor.release()
    wait_for(lambda: not study.jobs(), "the allocation is ended", 60.0)


@pytest.mark.slow
def test_hand_over_when_the_time_is_short(plain_cluster: SlurmCluster, study_on: Studies) -> None:
    """A trial that may not finish in what is left goes to a new allocation; the old one is given back."""
    study = study_on(plain_cluster, time_limit_min=1)
    executor = study.executor()
    long = study.trial("a", "normal", total_updates=400)
    assert study.run(executor, long).state is JobState.FINISHED
    wait_for(lambda: study.event("allocated")["end_time"] - time.time() < 52.0, "time passes", 20.0)
    handle = study.submit(executor, study.trial("b"))
    assert study.wait_for_end(executor, handle).state is JobState.FINISHED
    assert "are left" in study.event("leaving")["reason"]
    study.wait_for_ends("b", number=2)


@pytest.mark.slow
def test_trial_at_the_time_limit_is_lost_not_failed(plain_cluster: SlurmCluster, study_on: Studies) -> None:
    """The end of the allocation ends the trial in it, and is blamed for that."""
    study = study_on(plain_cluster, time_limit_min=1)
    executor = study.executor()
    plan = study.trial("a", "describe", total_timeout_s=600.0, start_timeout_s=600.0, update_timeout_s=600.0)
    handle = study.submit(executor, plan)
    status = study.wait_for_end(executor, handle, 90.0)
    assert (status.state, status.loss) == (JobState.LOST, Loss.TIME_LIMIT)
    assert read_json(Path(plan.trial_dir) / "result.json")["ended"] == "total_timeout"
    assert no_process_left(plan)
    executor.cancel(handle)
    assert executor.poll(handle).loss is Loss.TIME_LIMIT


def test_new_engine_goes_on_with_the_allocation(plain_cluster: SlurmCluster, study_on: Studies) -> None:
    """An engine that comes after a crash adopts the running trial and orders the next in the same job."""
    study = study_on(plain_cluster)
    plan = study.trial("a", "describe")
    handle = study.submit(study.executor(), plan)
    second = study.executor()
    unrecorded = handle.model_copy(update={"job_id": UNRECORDED})
    study.wait_for_state(second, unrecorded, JobState.RUNNING)
    _started_training(study, plan)
    waiting = study.submit(second, study.trial("b"))
    assert "another trial" in (second.poll(waiting).reason or "")
    second.cancel(unrecorded)
    assert second.poll(unrecorded).state is JobState.CANCELLED
    assert study.wait_for_end(second, waiting).state is JobState.FINISHED
    assert len(study.all_events()) == 1


def test_allocation_whose_submission_was_not_recorded_is_found(
    plain_cluster: SlurmCluster, study_on: Studies
) -> None:
    """An engine that died between sbatch and its record left a job: it is found by name, not queued again."""
    study = study_on(plain_cluster)
    handle = study.submit(study.executor(), study.trial("a", "describe"))
    path = study.folder / "held" / "1" / "allocation.json"
    record = read_json(path)
    job_id = record["job_id"]
    path.write_text(path.read_text().replace(f'"{job_id}"', "null"))
    second = study.executor()
    study.wait_for_state(second, handle, JobState.RUNNING)
    study.submit(second, study.trial("b"))
    assert [use.job_id for use in second.usage()] == [job_id]
    second.cancel(handle)


def test_idle_leave_and_order_cross(plain_cluster: SlurmCluster, study_on: Studies) -> None:
    """A trial that was ordered just when the holder left is ordered again, in another allocation, once."""
    study = study_on(plain_cluster, idle_s=1.0)
    executor = study.executor()
    assert study.run(executor, study.trial("a")).state is JobState.FINISHED
    study.event("leaving")
    plan = study.trial("b")
    (Path(plan.trial_dir) / "submitit").mkdir()
    # What `submit` leaves behind when the holder's last word came right after its look at the events.
    record = {"token": plan.token, "allocation": 1, "submitted_at": 1.0}
    submission = {**record, "request": request_of(plan).model_dump(mode="json")}
    (Path(plan.trial_dir) / "submitit" / "submission.json").write_text(json.dumps(submission))
    handle = JobHandle(executor="slurm", job_id=UNRECORDED, trial_dir=plan.trial_dir, token=plan.token)
    assert study.wait_for_end(executor, handle).state is JobState.FINISHED
    assert [event["kind"] for event in study.events(2)].count("started") == 1


def test_killed_holder(cluster: SlurmCluster, study_on: Studies) -> None:
    """With its holder the allocation ends: the trial in it is lost, one that waited is moved."""
    study = study_on(cluster)
    executor = study.executor()
    plan = study.trial("a", "describe")
    handle = study.submit(executor, plan)
    _started_training(study, plan)
    waiting = study.submit(executor, study.trial("b"))
    os.kill(study.event("allocated")["pid"], signal.SIGKILL)
    status = study.wait_for_end(executor, handle)
    assert (status.state, status.loss) == (JobState.LOST, Loss.AGENT_DIED)
    wait_for(lambda: no_process_left(plan), "nothing of the trial is left", 30.0)
    assert study.run(executor, study.trial("c")).state is JobState.FINISHED
    assert study.wait_for_end(executor, waiting).state is JobState.FINISHED
    assert len(study.all_events()) == 2
    assert "started" in [event["kind"] for event in study.events(2) if event.get("trial_id") == "b"]


@pytest.mark.slow
def test_holder_that_cannot_start(plain_cluster: SlurmCluster, study_on: Studies) -> None:
    """An allocation whose holder fails at once is not asked for again and again: its words are the reason."""
    for node in plain_cluster.shape.node_names:
        plain_cluster.node_down(node)
    study = study_on(plain_cluster)
    executor = study.executor()
    handle = study.submit(executor, study.trial("a"))
    (study.folder / "held" / "1" / "holder.json").write_text("{}")
    plain_cluster.node_up(plain_cluster.shape.node_names[0])
    status = study.wait_for_end(executor, handle)
    assert (status.state, status.loss) == (JobState.LOST, Loss.NEVER_STARTED)
    assert "holder.json" in (status.reason or "")
    assert len(study.all_events()) == 1


def test_killed_agent_is_lost_and_the_allocation_goes_on(
    plain_cluster: SlurmCluster, study_on: Studies
) -> None:
    """An agent that is killed takes its trial along, not the allocation."""
    study = study_on(plain_cluster)
    executor = study.executor()
    plan = study.trial("a", "describe")
    handle = study.submit(executor, plan)
    _started_training(study, plan)
    os.kill(read_json(Path(plan.trial_dir) / "job.json")["pid"], signal.SIGKILL)
    status = study.wait_for_end(executor, handle)
    assert (status.state, status.loss) == (JobState.LOST, Loss.AGENT_DIED)
    assert study.run(executor, study.trial("b")).state is JobState.FINISHED
    assert len(study.all_events()) == 1


@pytest.mark.slow
def test_agent_that_does_not_obey_is_ended_by_force(plain_cluster: SlurmCluster, study_on: Studies) -> None:
    """A stopped agent does not keep its trial alive when it is cancelled; the allocation goes on."""
    study = study_on(plain_cluster)
    executor = study.executor()
    plan = study.trial("a", "describe")
    handle = study.submit(executor, plan)
    _started_training(study, plan)
    os.kill(read_json(Path(plan.trial_dir) / "job.json")["pid"], signal.SIGSTOP)
    executor.cancel(handle)
    assert study.wait_for_end(executor, handle).state is JobState.CANCELLED
    assert no_process_left(plan)
    assert study.run(executor, study.trial("b")).state is JobState.FINISHED
    assert len(study.all_events()) == 1


def test_cancelled_from_outside(cluster: SlurmCluster, study_on: Studies) -> None:
    """Somebody else's scancel is neither the candidate's failure nor our cancellation."""
    study = study_on(cluster)
    executor = study.executor()
    plan = study.trial("a", "describe")
    handle = study.submit(executor, plan)
    _started_training(study, plan)
    cluster.run("scancel", study.jobs()[0]["id"])
    status = study.wait_for_end(executor, handle)
    assert (status.state, status.loss) == (JobState.LOST, Loss.CANCELLED_OUTSIDE)
    wait_for(lambda: no_process_left(plan), "nothing of the trial is left", 30.0)


def test_node_down(cluster: SlurmCluster, study_on: Studies) -> None:
    """A node that fails is to blame; the next trial is run elsewhere."""
    study = study_on(cluster)
    executor = study.executor()
    plan = study.trial("a", "describe")
    handle = study.submit(executor, plan)
    _started_training(study, plan)
    node = study.jobs()[0]["nodes"]
    cluster.node_down(node)
    status = study.wait_for_end(executor, handle)
    assert (status.state, status.loss) == (JobState.LOST, Loss.NODE_FAILED)
    following = study.trial("b")
    assert study.run(executor, following, exclude=(node,)).state is JobState.FINISHED
    assert study.event("allocated", 2)["nodelist"] != node


def test_excluded_node_changes_the_allocation(plain_cluster: SlurmCluster, study_on: Studies) -> None:
    """A trial that must not run on a node of the allocation gets another one; one that may does not."""
    study = study_on(plain_cluster)
    executor = study.executor()
    assert study.run(executor, study.trial("a")).state is JobState.FINISHED
    node = study.event("allocated")["nodelist"]
    assert study.run(executor, study.trial("b"), exclude=(node,)).state is JobState.FINISHED
    assert study.run(executor, study.trial("c"), exclude=(node,)).state is JobState.FINISHED
    assert len(study.all_events()) == 2
    assert study.event("allocated", 2)["nodelist"] != node
    wait_for(lambda: len(study.jobs()) == 1, "the first one is given back", 30.0)


@pytest.mark.slow
def test_controller_restart_between_and_during_trials(plain_cluster: SlurmCluster, study_on: Studies) -> None:
    """Without a controller a running trial finishes, and the next one waits for its step until it is back."""
    study = study_on(plain_cluster)
    executor = study.executor()
    plan = study.trial("a", "normal", total_updates=100)
    handle = study.submit(executor, plan)
    wait_for((Path(plan.trial_dir) / "job.json").exists, "the trial runs", 60.0)
    plain_cluster.kill_controller()
    assert study.wait_for_end(executor, handle).state is JobState.FINISHED
    following = study.submit(executor, study.trial("b"))
    began = time.monotonic()
    wait_for(lambda: time.monotonic() - began > 5.0, "some seconds without a controller")
    assert executor.poll(following).state is JobState.PENDING
    plain_cluster.start_controller()
    assert study.wait_for_end(executor, following, 120.0).state is JobState.FINISHED
    assert len(study.all_events()) == 1


def test_waiting_allocation(plain_cluster: SlurmCluster, study_on: Studies) -> None:
    """A trial whose allocation is queued says why; cancelled it never starts; release ends the job."""
    for node in plain_cluster.shape.node_names:
        plain_cluster.node_down(node)
    study = study_on(plain_cluster)
    executor = study.executor()
    handle = study.submit(executor, study.trial("a"))
    status = study.wait_for(executor, handle, lambda status: "waits" in (status.reason or ""))
    assert status.state is JobState.PENDING
    assert status.scheduler is not None
    executor.cancel(handle)
    assert executor.poll(handle).state is JobState.CANCELLED
    executor.release()
    wait_for(lambda: not study.jobs(), "the queued job is cancelled", 30.0)


def test_two_nodes(plain_cluster: SlurmCluster, study_on: Studies) -> None:
    """A trial over two nodes is one step with an agent on each, and the next one follows in the same job."""
    study = study_on(plain_cluster, nodes=2)
    executor = study.executor()
    plans = [study.trial(name, "normal") for name in ("a", "b")]
    for plan in plans:
        assert study.run(executor, plan).state is JobState.FINISHED
        assert len(read_json(Path(plan.trial_dir) / "result.json")["nodes"]) == 2
    assert gap_s(*plans) < 3.0
    assert len(study.all_events()) == 1
