"""Endings that the agent reports itself: cancelled, never started, silent, too slow."""

from __future__ import annotations

from engine.schema.evidence import HostReading, RunEvidence
from engine.schema.trial import Attribution, EvidenceLine, FailureKind


def attribute_outside(evidence: RunEvidence) -> Attribution | None:
    """Endings that need no look inside the run: stopped, never launched, node or result lost; else None."""
    if evidence.ended == "cancelled":
        return _ending(FailureKind.NONE, False, "the run was cancelled", evidence)
    if evidence.ended == "launch_failed":
        why = evidence.launch_error or "the agent gave no reason"
        return _ending(FailureKind.INFRA, False, f"the launcher could not be started: {why}", evidence)
    if evidence.ended == "preflight_failed":
        found = [f"{_name(evidence, host)}: {host.problem}" for host in evidence.hosts if host.problem]
        why = evidence.launch_error or "; ".join(found) or "the agent gave no reason"
        return _ending(FailureKind.INFRA, False, f"the checks before the launch failed: {why}", evidence)
    if evidence.ended == "node_lost":
        return _node_lost(evidence)
    if evidence.ended == "no_result":
        why = "; ".join(evidence.notes) or "result.json is missing"
        return _ending(
            FailureKind.INFRA, False, f"the run ended without a result of its agent: {why}", evidence
        )
    return None


def attribute_cut_short(evidence: RunEvidence, own_limit_s: float | None) -> Attribution | None:
    """The attribution of a run that the end of its allocation cut short, else None: nobody's fault.

    Args:
        evidence: Everything that is known about the run.
        own_limit_s: Seconds that the run was given; None where that is not known.
    """
    if evidence.ended != "total_timeout" or own_limit_s is None or evidence.wall_s is None:
        return None
    if evidence.wall_s >= own_limit_s:
        return None
    done = min((len(rank.updates) for rank in evidence.ranks), default=0)
    cause = (
        f"the end of the allocation cut the run short after {evidence.wall_s:.0f} s and {done} of "
        f"{evidence.total_updates} updates: ask for more by slurm.time_limit_min"
    )
    return _ending(FailureKind.INFRA, False, cause, evidence)


def attribute_timeout(evidence: RunEvidence) -> Attribution | None:
    """Runs that the agent ended because nothing came, where no rank says why; else None."""
    if evidence.ended == "total_timeout":
        done = min((len(rank.updates) for rank in evidence.ranks), default=0)
        cause = f"the run was stopped at its time limit after {done} of {evidence.total_updates} updates"
        return _ending(FailureKind.TIMEOUT, None, cause, evidence)
    if evidence.ended == "update_timeout":
        rank = _first_silent(evidence)
        who = "no rank" if rank is None else f"rank {rank}"
        done = min((len(each.updates) for each in evidence.ranks), default=0)
        cause = f"updates stopped coming after {done} of {evidence.total_updates}; {who} was silent first"
        return _ending(FailureKind.HANG, None, cause, evidence, rank)
    if evidence.ended == "start_timeout":
        return _no_start(evidence)
    return None


def lost_hosts(evidence: RunEvidence) -> tuple[HostReading, ...]:
    """The nodes whose agents were missed; empty where result.json does not say which."""
    return tuple(host for host in evidence.hosts if host.reported is False)


def _node_lost(evidence: RunEvidence) -> Attribution:
    lost = lost_hosts(evidence)
    named = ", ".join(_name(evidence, host) for host in lost) or "a node"
    why = evidence.launch_error or "; ".join(host.problem for host in lost if host.problem)
    cause = f"the agent of {named} was lost during the run" + (f": {why}" if why else "")
    return _ending(FailureKind.INFRA, False, cause, evidence)


def _name(evidence: RunEvidence, host: HostReading) -> str:
    return evidence.node_name(host.node_rank) or f"node {host.node_rank}"


def _no_start(evidence: RunEvidence) -> Attribution:
    present = {rank.rank for rank in evidence.ranks if rank.hello is not None}
    missing = sorted(set(range(evidence.world_size)) - present)
    if missing:
        named = ", ".join(str(rank) for rank in missing[:8])
        cause = f"{len(missing)} of {evidence.world_size} ranks never started: {named}"
        return _ending(FailureKind.INFRA, False, cause, evidence, missing[0])
    waiting = next((rank.rank for rank in evidence.ranks if not rank.updates), None)
    cause = "every rank started, but the first update did not end in time"
    if waiting is not None:
        cause += f"; rank {waiting} was still in it"
    return _ending(FailureKind.HANG, None, cause, evidence, waiting)


def _first_silent(evidence: RunEvidence) -> int | None:
    """The rank with the fewest updates, the one that has been silent longest among equals."""
    keys = [(len(rank.updates), evidence.last_update_ns(rank) or 0, rank.rank) for rank in evidence.ranks]
    return min(keys)[2] if keys else None


def _ending(
    kind: FailureKind, blame: bool | None, cause: str, evidence: RunEvidence, rank: int | None = None
) -> Attribution:
    text = f"agent: the run ended as {evidence.ended}"
    quoted = (EvidenceLine(line=None, text=text),)
    return Attribution(kind=kind, blame_candidate=blame, cause=cause, rank=rank, evidence=quoted)
