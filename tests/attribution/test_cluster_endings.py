"""Endings that only a cluster knows: nodes that go away, jobs that stand still, schedulers that speak."""

from __future__ import annotations

import pytest

from engine.schema.evidence import HostReading, RunEvidence, SlurmIdentity, TorchRecord
from engine.schema.job import Loss, SchedulerFacts
from engine.schema.trial import FailureKind
from engine.trial.attribution.attribute import attribute
from engine.trial.attribution.bound import censored_bound_gib
from engine.trial.attribution.context import AttributionContext
from engine.trial.attribution.interruptions import LONGEST_GAP_S
from engine.trial.attribution.losses import attribute_loss
from engine.trial.attribution.other_gpus import attribute_other_gpus
from engine.trial.suspects import suspects_of_loss, suspects_of_run
from tests.attribution.runs import blank, exception, rank, run

OUT_OF_MEMORY = SchedulerFacts(job_id="7", state="OUT_OF_MEMORY", source="sacct", as_of=0.0)
REFUSED = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 33554432 bytes"


def host(number: int, **given: object) -> HostReading:
    """Node n<number>."""
    return blank(HostReading, node_rank=number, name=f"n{number}", **{"reported": True, **given})


def well(**changes: object) -> RunEvidence:
    """Two ranks that did everything, one on each of two nodes."""
    ranks = [rank(number, updates=8, end=True).model_copy(update={"node": number}) for number in range(2)]
    values = {"exit_code": 0, "nodes": 2, "ranks_per_node": 1, "hosts": (host(0), host(1))}
    return run(*ranks, **{**values, **changes})


def test_a_clean_run_has_no_attribution() -> None:
    """Readings of the nodes alone accuse nobody."""
    assert attribute(well(), AttributionContext()) is None


@pytest.mark.parametrize(("gap_s", "is_void"), [(LONGEST_GAP_S, False), (LONGEST_GAP_S + 0.1, True)])
def test_a_standstill_voids_what_was_measured(gap_s: float, is_void: bool) -> None:
    """Beyond the limit the run is infrastructure's, although every rank ended well."""
    found = attribute(well(hosts=(host(0), host(1, longest_gap_s=gap_s))), AttributionContext())
    assert (found is not None) is is_void
    if found is not None:
        assert (found.kind, found.blame_candidate) == (FailureKind.INFRA, False)
        assert "n1 stood still" in found.cause


def test_a_standstill_does_not_clear_the_candidate() -> None:
    """An allocator's refusal is as true in a run that stood still; a hang is not."""
    oom = rank(0, error=exception("RuntimeError", REFUSED, vm_data=1 << 30))
    still = (host(0, longest_gap_s=60.0),)
    found = attribute(run(oom, rank(1), hosts=still), AttributionContext())
    assert found is not None
    assert (found.kind, found.blame_candidate) == (FailureKind.OOM_HOST, True)
    hang = attribute(run(rank(0), rank(1), hosts=still, ended="update_timeout"), AttributionContext())
    assert hang is not None
    assert (hang.kind, hang.blame_candidate) == (FailureKind.INFRA, False)


def test_a_restarted_job_says_nothing_about_its_candidate() -> None:
    """Two runs in one folder: not even an exception is to be believed."""
    error = rank(0, error=exception("ValueError", "no"))
    slurm = SlurmIdentity(job_id="7", step_id="0", restarts=2)
    found = attribute(
        run(error, rank(1), slurm=slurm), AttributionContext(changes={"compile_scope": "model"})
    )
    assert found is not None
    assert (found.kind, found.blame_candidate) == (FailureKind.INFRA, False)
    assert "2 restarts" in found.cause


def test_a_lost_node_is_named_unless_memory_took_it() -> None:
    """The node that was missed is named; where the scheduler killed it for memory, that is the reason."""
    gone = well(ended="node_lost", hosts=(host(0), host(1, reported=False)))
    found = attribute(gone, AttributionContext())
    assert found is not None
    assert (found.kind, found.blame_candidate) == (FailureKind.INFRA, False)
    assert "the agent of n1 was lost" in found.cause
    assert suspects_of_run(gone, found) == ("n1",)
    killed = attribute(gone, AttributionContext(scheduler=OUT_OF_MEMORY))
    assert killed is not None
    assert (killed.kind, killed.blame_candidate) == (FailureKind.OOM_HOST, True)


def test_the_scheduler_may_say_why_a_rank_was_killed() -> None:
    """A bare SIGKILL is open; with the scheduler's OUT_OF_MEMORY it is the candidate's, without a bound."""
    killed = run(rank(0, exit_code=-9), rank(1))
    bare = attribute(killed, AttributionContext())
    told = attribute(killed, AttributionContext(scheduler=OUT_OF_MEMORY))
    assert bare is not None
    assert told is not None
    assert (bare.blame_candidate, told.blame_candidate) == (None, True)
    assert censored_bound_gib(told) is None
    assert any("OUT_OF_MEMORY" in line.text for line in told.evidence)


@pytest.mark.parametrize(("own_limit_s", "kind"), [(60.0, FailureKind.INFRA), (9.0, FailureKind.TIMEOUT)])
def test_a_time_limit_in_the_log_counts_after_the_trials_own_time(
    own_limit_s: float, kind: FailureKind
) -> None:
    """A run of 10 s that may take 60 s was cut by the end of its allocation."""
    said = "slurmstepd: error: *** STEP 7.0 ON n0 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n"
    found = attribute(run(rank(0), rank(1), log_tail=said), AttributionContext(own_limit_s=own_limit_s))
    assert found is not None
    assert found.kind is kind


@pytest.mark.parametrize(("own_limit_s", "kind"), [(60.0, FailureKind.INFRA), (9.0, FailureKind.TIMEOUT)])
def test_the_end_of_an_allocation_is_nobodys_fault(own_limit_s: float, kind: FailureKind) -> None:
    """The agent was warned after 10 s: what its signal did to the ranks is no crash."""
    log = "launcher: failed (exitcode: -12) local_rank: 0 (pid: 7)\n"
    warned = run(rank(0, exit_code=-12), rank(1, exit_code=-9), ended="total_timeout", log_tail=log)
    context = AttributionContext(changes={"compile_scope": "model"}, own_limit_s=own_limit_s)
    found = attribute(warned, context)
    assert found is not None
    assert (found.kind, found.blame_candidate is False) == (kind, kind is FailureKind.INFRA)


@pytest.mark.parametrize("loss", list(Loss))
def test_no_loss_is_ever_a_point_of_the_memory_model(loss: Loss) -> None:
    """Nobody knows at how many bytes a job was killed."""
    why = attribute_loss(loss, "said so", OUT_OF_MEMORY, ran_s=1e9, own_limit_s=1.0)
    assert censored_bound_gib(why) is None
    assert "said so" in why.cause
    assert why.evidence


@pytest.mark.parametrize(
    ("loss", "reason", "expected"),
    [
        (Loss.NODE_FAILED, "node n1 does not respond", ("n1",)),
        (Loss.NODE_FAILED, "n10 and others", ("n0", "n1")),
        (Loss.NEVER_STARTED, None, ("n0", "n1")),
        (Loss.PREEMPTED, "n1", ()),
        (Loss.CANCELLED_OUTSIDE, "n1", ()),
        (None, "n1", ()),
    ],
)
def test_suspect_nodes_of_a_lost_job(
    loss: Loss | None, reason: str | None, expected: tuple[str, ...]
) -> None:
    """Those that the reason names, else all; none where no node can be at fault."""
    assert suspects_of_loss(loss, reason, ("n0", "n1")) == expected


def test_a_fault_of_one_rank_is_its_nodes() -> None:
    """An Xid on rank 1 makes the node of rank 1 suspect, not the other one."""
    broken = rank(1, error=exception("RuntimeError", "CUDA error: uncorrectable ECC error encountered"))
    evidence = well(exit_code=1).model_copy(
        update={"ranks": (rank(0, updates=3), broken.model_copy(update={"node": 1}))}
    )
    found = attribute(evidence, AttributionContext())
    assert found is not None
    assert found.kind is FailureKind.INFRA
    assert suspects_of_run(evidence, found) == ("n1",)


def on(node: str, model: str) -> RunEvidence:
    """A run on one node with one GPU model."""
    torch = blank(TorchRecord, device_name=model, hooks=())
    ranks = tuple(rank(number).model_copy(update={"torch": torch}) for number in range(2))
    return run(*ranks, hosts=(host(0).model_copy(update={"name": node}),), device="cuda")


def test_other_gpus_on_other_nodes_are_the_schedulers_doing() -> None:
    """Another model on another node is nobody's; on the baseline's own node the checks decide."""
    found = attribute_other_gpus(on("n1", "A100"), on("n2", "H100"))
    assert found is not None
    assert (found.kind, found.blame_candidate) == (FailureKind.INFRA, False)
    assert attribute_other_gpus(on("n1", "A100"), on("n1", "H100")) is None
    assert attribute_other_gpus(on("n1", "A100"), on("n2", "A100")) is None


def test_a_full_disk_is_no_nodes_fault() -> None:
    """What all machines share makes none of them suspect."""
    broken = rank(1, error=exception("OSError", "[Errno 28] No space left on device"))
    evidence = well(exit_code=1).model_copy(update={"ranks": (rank(0, updates=3), broken)})
    found = attribute(evidence, AttributionContext())
    assert found is not None
    assert found.kind is FailureKind.INFRA
    assert suspects_of_run(evidence, found) == ()
