"""The state source against a real Slurm with two nodes, with and without accounting."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.schema.job import Loss, SchedulerFacts
from slurm.scheduler.capabilities import probe
from slurm.scheduler.command import SlurmCommands
from slurm.scheduler.losses import loss_of
from slurm.scheduler.records import Reading
from slurm.scheduler.source import SchedulerUnavailable, StateSource
from slurm.scheduler.states import parse_state
from tests.slurm.scheduler.fake_slurm import FakeSlurm
from tests.slurm.trial_folder import wait_for
from tests.slurm_cluster.cluster import SlurmCluster

pytestmark = pytest.mark.slurm

_SPEED = 60.0


class FastClock:
    """Unix time that runs sixty times as fast, so that pauses of half a minute take half a second."""

    def __init__(self) -> None:
        self._real = time.monotonic()
        self._start = time.time()

    def __call__(self) -> float:
        return self._start + (time.monotonic() - self._real) * _SPEED


def _source(timeout_s: float = 20.0) -> StateSource:
    clock = FastClock()
    return StateSource(SlurmCommands(timeout_s=timeout_s, clock=clock), min_poll_s=10.0, clock=clock)


def _submit(cluster: SlurmCluster, command: str, *options: str) -> str:
    answer = cluster.run("sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap={command}")
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


def _facts_when(
    source: StateSource, job_id: str, condition: Callable[[SchedulerFacts], bool], limit_s: float = 60.0
) -> SchedulerFacts:
    """The facts as soon as they fit; fails with the last reading at the deadline."""
    found: list[Reading] = []

    def fits() -> bool:
        found[:] = [source.reading(job_id)]
        facts = found[0].facts
        return facts is not None and condition(facts)

    try:
        wait_for(fits, f"job {job_id}", limit_s)
    except TimeoutError:
        raise AssertionError(found) from None
    facts = found[0].facts
    assert facts is not None
    return facts


def _is(word: str) -> Callable[[SchedulerFacts], bool]:
    return lambda facts: parse_state(facts.state).word == word


def _is_requeued(facts: SchedulerFacts) -> bool:
    return _is("PENDING")(facts) and facts.restarts == 1


def _hurried(cluster: SlurmCluster) -> Callable[[SchedulerFacts], bool]:
    """Whether a requeued job runs again; until then Slurm is told not to let it pause."""

    def runs_again(facts: SchedulerFacts) -> bool:
        if _is("RUNNING")(facts):
            return True
        cluster.hurry_requeued()
        return False

    return runs_again


def test_ends_are_told_with_codes_times_and_nodes(cluster: SlurmCluster) -> None:
    """Success, exit code 3, a signal and a cancel come out as what they were, times in our own seconds."""
    before = time.time()
    source = _source()
    good = _submit(cluster, "true", "--job-name=infrarsi-good", "--time=5")
    bad = _submit(cluster, "exit 3")
    killed = _submit(cluster, "kill -9 $$")
    endless = _submit(cluster, "sleep 600", "--no-requeue", "--nodes=2")
    for job_id in (good, bad, killed, endless):
        source.watch(job_id)
    completed = _facts_when(source, good, _is("COMPLETED"))
    assert (completed.exit_code, completed.signal, completed.name) == (0, None, "infrarsi-good")
    assert len(completed.nodes) == 1
    assert set(completed.nodes) <= {"n1", "n2"}
    assert completed.time_limit_s == 300.0
    moments = (completed.submitted_at, completed.started_at, completed.ended_at)
    assert all(moment is not None and before - 2 <= moment <= time.time() + 2 for moment in moments)
    failed = _facts_when(source, bad, _is("FAILED"))
    assert (failed.exit_code, failed.signal) == (3, None)
    signalled = _facts_when(source, killed, _is("FAILED"))
    assert (signalled.exit_code, signalled.signal) == (0, 9)
    running = _facts_when(source, endless, _is("RUNNING"))
    assert (running.nodes, running.ended_at, running.restarts) == (("n1", "n2"), None, 0)
    cluster.run("scancel", endless)
    cancelled = _facts_when(source, endless, _is("CANCELLED"))
    assert loss_of(cancelled) is Loss.CANCELLED_OUTSIDE


def test_a_waiting_job_has_a_reason_and_no_start(plain_cluster: SlurmCluster) -> None:
    """A job that is held, one that asks for too much, and one whose turn has not come say why they wait."""
    source = _source()
    held = _submit(plain_cluster, "true", "--hold")
    full = _submit(plain_cluster, "sleep 600", "--nodes=2", "--exclusive")
    waits = _submit(plain_cluster, "true", "--nodes=2", "--exclusive", "--time=1")
    _facts_when(source, full, _is("RUNNING"))
    assert _facts_when(source, held, lambda facts: facts.reason == "JobHeldUser").started_at is None
    resources = _facts_when(source, waits, lambda facts: facts.reason in ("Resources", "Priority"))
    assert (resources.started_at, resources.nodes) == (None, ())


def test_elements_of_an_array_are_told_apart(plain_cluster: SlurmCluster) -> None:
    """Each element of an array is found, running as well as still collapsed with the others."""
    source = _source()
    base = _submit(plain_cluster, "exit $SLURM_ARRAY_TASK_ID", "--array=1-3%1")
    assert _facts_when(source, f"{base}_3", lambda facts: True, 5.0).job_id.startswith(base)
    assert _facts_when(source, f"{base}_1", _is("FAILED")).exit_code == 1
    assert _facts_when(source, f"{base}_3", _is("FAILED")).exit_code == 3


def test_a_failed_node_ends_a_job_that_must_not_restart(cluster: SlurmCluster) -> None:
    """With --no-requeue the job ends as NODE_FAIL and the loss is the node's."""
    source = _source()
    job_id = _submit(cluster, "sleep 600", "--no-requeue", "--nodelist=n2")
    _facts_when(source, job_id, _is("RUNNING"))
    cluster.node_down("n2")
    facts = _facts_when(source, job_id, _is("NODE_FAIL"))
    assert (facts.nodes, loss_of(facts)) == (("n2",), Loss.NODE_FAILED)


def test_a_requeue_under_the_same_id_is_a_restart(cluster: SlurmCluster) -> None:
    """A job that Slurm starts again shows how often, waiting and running."""
    source = _source()
    job_id = _submit(cluster, "sleep 600", "--requeue", "--nodelist=n2")
    _facts_when(source, job_id, _is("RUNNING"))
    cluster.node_down("n2")
    waiting = _facts_when(source, job_id, _is_requeued)
    assert waiting.started_at is None
    cluster.node_up("n2")
    again = _facts_when(source, job_id, _hurried(cluster))
    assert again.restarts == 1


def test_a_suspension_is_remembered(plain_cluster: SlurmCluster) -> None:
    """A job that stood still is known to have done so after it runs again."""
    source = _source()
    job_id = _submit(plain_cluster, "sleep 600")
    _facts_when(source, job_id, _is("RUNNING"))
    assert plain_cluster.run("scontrol", "suspend", job_id).returncode == 0
    _facts_when(source, job_id, _is("SUSPENDED"))
    assert plain_cluster.run("scontrol", "resume", job_id).returncode == 0
    _facts_when(source, job_id, _is("RUNNING"))
    assert source.reading(job_id).was_suspended


def test_a_controller_that_hangs_makes_the_answer_old_and_nothing_else(cluster: SlurmCluster) -> None:
    """With slurmctld stopped for what seems half an hour the job stays present, older and older."""
    source = _source(timeout_s=1.0)
    job_id = _submit(cluster, "sleep 600")
    _facts_when(source, job_id, _is("RUNNING"))
    cluster.pause_controller()
    ages = []

    def is_old() -> bool:
        reading = source.reading(job_id)
        assert reading.presence == "present"
        ages.append(reading.age_s or 0.0)
        return ages[-1] > 600.0 and reading.problem is not None

    wait_for(is_old, "an old answer", 60.0)
    assert ages == sorted(ages)
    assert source.health().failures >= 1
    with pytest.raises(SchedulerUnavailable):
        source.find("infrarsi-nobody", since=time.time())
    cluster.continue_controller()
    wait_for(lambda: source.reading(job_id).problem is None, "an answer", 60.0)
    assert _facts_when(source, job_id, _is("RUNNING")).restarts == 0


def test_a_controller_that_is_gone_loses_no_job(cluster: SlurmCluster) -> None:
    """Without slurmctld every question fails at once; the job is found as before when it is back."""
    source = _source()
    job_id = _submit(cluster, "sleep 600")
    _facts_when(source, job_id, _is("RUNNING"))
    cluster.kill_controller()
    wait_for(lambda: source.reading(job_id).problem, "a problem", 60.0)
    assert source.reading(job_id).presence == "present"
    cluster.start_controller()
    wait_for(lambda: source.reading(job_id).problem is None, "an answer", 60.0)
    assert _facts_when(source, job_id, _is("RUNNING")).job_id == job_id


def test_an_id_that_no_job_has_is_absent(cluster: SlurmCluster) -> None:
    """Every program denies it: after two rounds and a minute it counts as gone, with one notice at most."""
    source = _source()
    source.watch("999999")
    wait_for(lambda: source.reading("999999").presence == "absent", "absence", 30.0)
    assert source.reading("999999").facts is None
    assert source.health().accounting is cluster.accounting
    assert len(source.take_notices()) == (0 if cluster.accounting else 1)


def test_accounting_remembers_what_the_controller_forgot(
    accounting_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With squeue and scontrol denying the job (stand-ins), sacct tells its end, its restart and its name."""
    job_id = _submit(
        accounting_cluster, "sleep 600", "--requeue", "--job-name=infrarsi-past", "--nodelist=n2"
    )
    live = _source()
    _facts_when(live, job_id, _is("RUNNING"))
    accounting_cluster.node_down("n2")
    _facts_when(live, job_id, _is_requeued)
    accounting_cluster.node_up("n2")
    _facts_when(live, job_id, _hurried(accounting_cluster))
    accounting_cluster.run("scancel", job_id)
    _facts_when(live, job_id, _is("CANCELLED"))
    path = os.environ["PATH"]
    forgetful = FakeSlurm(tmp_path / "programs", monkeypatch)
    forgetful.remove("sacct")
    monkeypatch.setenv("PATH", f"{tmp_path}/programs:{path}")
    source = _source()
    source.watch(job_id, name="infrarsi-past")
    facts = _facts_when(source, job_id, _is("CANCELLED"))
    assert (facts.source, facts.nodes) == ("sacct", ("n2",))
    assert facts.name in ("infrarsi-past", None)
    assert (facts.restarts, parse_state(facts.state).by_uid) == (1, os.getuid())
    assert facts.ended_at is not None
    assert abs(facts.ended_at - time.time()) < 120
    found = source.find("infrarsi-past", since=time.time() - 600)
    assert [(entry.job_id, entry.source) for entry in found] == [(job_id, "sacct")]


def test_accounting_that_is_down_is_not_accounting_that_is_off(accounting_cluster: SlurmCluster) -> None:
    """With slurmdbd dead a vanished id is not given up at once, and no notice says there is no accounting."""
    source = StateSource(SlurmCommands(timeout_s=5.0), min_poll_s=1.0)
    source.watch("999999")
    accounting_cluster.kill_accounting()
    wait_for(lambda: "sacct" in (source.reading("999999").problem or ""), "sacct's failure", 60.0)
    assert source.reading("999999").presence == "unknown"
    assert (source.health().accounting, source.take_notices()) == (None, ())


def test_jobs_are_found_by_name(cluster: SlurmCluster) -> None:
    """Waiting and ended jobs of exactly this name are found, others are not."""
    source = _source()
    waiting = _submit(cluster, "true", "--hold", "--job-name=infrarsi-0123")
    _submit(cluster, "true", "--hold", "--job-name=infrarsi-01234")
    ended = _submit(cluster, "true", "--job-name=infrarsi-0123")
    _facts_when(source, ended, _is("COMPLETED"))
    found = source.find("infrarsi-0123", since=time.time() - 60)
    assert sorted(facts.job_id for facts in found) == sorted([waiting, ended])
    assert source.find("infrarsi-none", since=time.time() - 60) == []


def test_the_clusters_abilities_are_read(cluster: SlurmCluster) -> None:
    """One call names version, cluster, accounting and for how long jobs are remembered."""
    commands = SlurmCommands()
    found = probe(commands)
    assert found.version is not None
    assert found.version >= (22, 5)
    assert (found.cluster, found.accounting) == (cluster.name, cluster.accounting)
    assert found.min_job_age_s == cluster.shape.min_job_age_s
    assert (found.gres_types, found.select_type, found.problem) == (("gpu",), "select/cons_tres", None)
    assert commands.recent_calls() == 1


@pytest.mark.drill
def test_a_time_limit_is_told_as_such(cluster: SlurmCluster) -> None:
    """A job that reaches its limit of a minute ends as TIMEOUT."""
    source = _source()
    job_id = _submit(cluster, "sleep 600", "--time=1", "--no-requeue")
    facts = _facts_when(source, job_id, _is("TIMEOUT"), 200.0)
    assert (loss_of(facts), facts.time_limit_s) == (Loss.TIME_LIMIT, 60.0)


@pytest.mark.drill
def test_a_job_the_controller_has_really_forgotten(cluster: SlurmCluster) -> None:
    """After MinJobAge accounting tells the end; without accounting the job counts as gone."""
    job_id = _submit(cluster, "exit 3")
    _facts_when(_source(), job_id, _is("FAILED"))
    wait_for(lambda: all(job["id"] != job_id for job in cluster.jobs()), "the job is forgotten", 240.0)
    source = _source()
    if cluster.accounting:
        facts = _facts_when(source, job_id, _is("FAILED"))
        assert (facts.source, facts.exit_code) == ("sacct", 3)
    else:
        wait_for(lambda: source.reading(job_id).presence == "absent", "absence", 30.0)
