"""Runs that stood still or were started again: their times are not one clean measurement."""

from __future__ import annotations

from engine.schema.evidence import HostReading, RunEvidence
from engine.schema.trial import Attribution, EvidenceLine, FailureKind

LONGEST_GAP_S = 5.0
"""An agent's loop ticks many times a second; whatever stops it for longer stops the training too."""


def attribute_restart(evidence: RunEvidence) -> Attribution | None:
    """The attribution of a run inside a job that Slurm had requeued, else None: two runs share one folder."""
    restarts = None if evidence.slurm is None else evidence.slurm.restarts
    if not restarts:
        return None
    return _void(f"the job was restarted by Slurm ({restarts} restarts)", f"agent: {restarts} restarts")


def attribute_standstill(evidence: RunEvidence) -> Attribution | None:
    """The attribution of a run during which a node stood still, else None."""
    still = hosts_that_stood_still(evidence)
    if not still:
        return None
    longest = max(still, key=lambda host: host.longest_gap_s or 0.0)
    name = evidence.node_name(longest.node_rank) or f"node {longest.node_rank}"
    gap = longest.longest_gap_s or 0.0
    return _void(
        f"{name} stood still for {gap:.1f} s during the run (a suspended job or a stopped machine)",
        f"agent of {name}: {gap:.1f} s between two ticks",
    )


def hosts_that_stood_still(evidence: RunEvidence) -> tuple[HostReading, ...]:
    """Nodes whose agent did not tick for longer than LONGEST_GAP_S while the launcher ran."""
    return tuple(host for host in evidence.hosts if (host.longest_gap_s or 0.0) > LONGEST_GAP_S)


def _void(what: str, quoted: str) -> Attribution:
    return Attribution(
        kind=FailureKind.INFRA,
        blame_candidate=False,
        cause=f"suspended or restarted: {what}; not one clean measurement",
        evidence=(EvidenceLine(line=None, text=quoted),),
    )
