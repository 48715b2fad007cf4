"""Which nodes may be the cause where infrastructure broke a trial."""

from __future__ import annotations

import re

from engine.schema.evidence import HostReading, RunEvidence
from engine.schema.job import Loss
from engine.schema.trial import Attribution, FailureKind
from engine.trial.attribution.endings import lost_hosts
from engine.trial.attribution.infrastructure import may_be_the_nodes
from engine.trial.attribution.interruptions import hosts_that_stood_still

_OF_A_NODE = frozenset({Loss.NODE_FAILED, Loss.NEVER_STARTED, Loss.AGENT_DIED})


def suspects_of_loss(loss: Loss | None, reason: str | None, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """The nodes of a job without a result that may have failed it: those its reason names, else all.

    A requeue, a preemption, a person and a time limit are no node's fault.
    """
    if loss not in _OF_A_NODE:
        return ()
    named = [node for node in nodes if re.search(rf"(?<![\w-]){re.escape(node)}(?![\w-])", reason or "")]
    return tuple(named) or nodes


def suspects_of_run(evidence: RunEvidence, why: Attribution) -> tuple[str, ...]:
    """The nodes that may have broken a run with a result; empty where none can be told from the others."""
    if why.kind is not FailureKind.INFRA or evidence.ended == "cancelled":
        return ()
    if evidence.slurm is not None and evidence.slurm.restarts:
        return ()
    if evidence.ended == "node_lost":
        return _names(evidence, lost_hosts(evidence))
    if evidence.ended == "preflight_failed":
        return _names(evidence, [host for host in evidence.hosts if host.problem]) or evidence.node_names
    still = hosts_that_stood_still(evidence)
    if still:
        # A suspended job stands still everywhere; one machine alone is another matter.
        return _names(evidence, still) if len(still) < len(evidence.hosts) else ()
    if evidence.ended in ("launch_failed", "no_result"):
        return evidence.node_names
    if not may_be_the_nodes(why):
        return ()
    rank = evidence.rank(why.rank) if why.rank is not None else None
    name = evidence.node_name(rank.node) if rank is not None else None
    if name is not None:
        return (name,)
    return evidence.node_names if evidence.nodes == 1 else ()


def _names(evidence: RunEvidence, hosts: tuple[HostReading, ...] | list[HostReading]) -> tuple[str, ...]:
    found = (evidence.node_name(host.node_rank) for host in hosts)
    return tuple(name for name in found if name is not None)
