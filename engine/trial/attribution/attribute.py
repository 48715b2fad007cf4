"""From the evidence of one run to the one reason why it failed.

order of trust    the agent's own word (cancelled, never launched, a node lost, restarted)
                  the earliest exception of a rank that is no victim, at the root of its chain
                  the end of the allocation, by the agent's word
                  a signal that ended a rank
                  what the scheduler or the script's argument parser printed
                  a timeout of the agent
                  victims only: the connection between the ranks was lost
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from engine.schema.evidence import RunEvidence
from engine.schema.job import Loss
from engine.schema.trial import Attribution, EvidenceLine, FailureKind
from engine.trial.attribution.conflicts import attribute_arguments, attribute_exception
from engine.trial.attribution.context import AttributionContext
from engine.trial.attribution.deaths import first_death
from engine.trial.attribution.endings import attribute_cut_short, attribute_outside, attribute_timeout
from engine.trial.attribution.faults import Fault, collect_faults
from engine.trial.attribution.infrastructure import attribute_infrastructure, attribute_scheduler
from engine.trial.attribution.interruptions import attribute_restart, attribute_standstill
from engine.trial.attribution.logs import LogLine, read_log
from engine.trial.attribution.losses import attribute_loss
from engine.trial.attribution.memory import attribute_memory
from engine.trial.attribution.numerics import attribute_numerics
from engine.trial.attribution.scheduler_words import loss_of
from engine.trial.attribution.signalled import attribute_death
from engine.trial.attribution.stalls import attribute_stall
from engine.trial.attribution.victims import first_failing, is_interrupt


def attribute(evidence: RunEvidence, context: AttributionContext) -> Attribution | None:
    """Why the run failed.

    Args:
        evidence: Everything that is known about the run.
        context: How its candidate differs from the baseline.

    Returns:
        The attribution, or None where the run did not fail. `blame_candidate` None means open: run it once
        more before believing.
    """
    outside = _killed_with_its_node(evidence, context) or attribute_outside(evidence)
    if outside is not None:
        return outside
    restarted = attribute_restart(evidence)
    if restarted is not None:
        return restarted
    why = _inside(evidence, context)
    # Whatever is plainly the candidate's stays so; times and waiting mean nothing after a standstill.
    standstill = attribute_standstill(evidence)
    return why if standstill is None or (why is not None and why.blame_candidate) else standstill


def _killed_with_its_node(evidence: RunEvidence, context: AttributionContext) -> Attribution | None:
    """The attribution of an agent that was killed for the host memory of its candidate, else None."""
    if evidence.ended != "node_lost" or loss_of(context.scheduler) is not Loss.HOST_OOM:
        return None
    return attribute_loss(Loss.HOST_OOM, None, context.scheduler)


def _inside(evidence: RunEvidence, context: AttributionContext) -> Attribution | None:
    """Why the run failed, by what its ranks, its log and its agent say."""
    if _ended_well(evidence):
        return attribute_numerics(None, evidence, context)
    lines = read_log(evidence.log_tail, context.first_log_line)
    faults = collect_faults(evidence, lines)
    root = first_failing(faults)
    death = first_death(evidence, lines)
    killed = death is not None and death.signal == signal.SIGKILL
    # A process that was killed had survived whatever it printed before.
    if root is not None and (root.is_recorded or not killed):
        return attribute_fault(root, evidence, context)
    cut = attribute_cut_short(evidence, context.own_limit_s)
    if cut is not None:
        return cut
    if death is not None:
        return attribute_death(death, lines, context)
    return _without_exception(evidence, context, lines, faults)


def attribute_fault(fault: Fault, evidence: RunEvidence, context: AttributionContext) -> Attribution:
    """Why one exception was raised; the specific reasons are asked before the general one."""
    return (
        attribute_memory(fault, evidence)
        or attribute_infrastructure(fault)
        or attribute_stall(fault)
        or attribute_numerics(fault, evidence, context)
        or attribute_exception(fault, context)
    )


def _ended_well(evidence: RunEvidence) -> bool:
    """Every rank reached its end: what was raised or printed on the way was caught or harmless."""
    if evidence.ended != "exited" or evidence.exit_code != 0:
        return False
    ended = [rank for rank in evidence.ranks if rank.end is not None]
    return len(ended) == evidence.world_size and all(
        len(rank.updates) >= evidence.total_updates for rank in ended
    )


def _without_exception(
    evidence: RunEvidence, context: AttributionContext, lines: Sequence[LogLine], faults: Sequence[Fault]
) -> Attribution:
    said = (
        attribute_scheduler(lines, evidence, context)
        or attribute_arguments(lines, context)
        or attribute_timeout(evidence)
    )
    if said is not None:
        return said
    interrupt = next((fault for fault in faults if is_interrupt(fault)), None)
    if interrupt is not None:
        cause = f"{interrupt.where()} was told to stop: {interrupt.words()}"
        return Attribution(
            kind=FailureKind.NONE, blame_candidate=False, cause=cause, evidence=interrupt.evidence
        )
    broken = attribute_numerics(None, evidence, context)
    if broken is not None:
        return broken
    victim = next(iter(faults), None)
    if victim is not None:
        cause = f"ranks lost each other and none says why: {victim.words()}"
        return Attribution(
            kind=FailureKind.INFRA,
            blame_candidate=None,
            cause=cause,
            rank=victim.rank,
            evidence=victim.evidence,
        )
    return _unexplained(evidence, context)


def _unexplained(evidence: RunEvidence, context: AttributionContext) -> Attribution:
    done = min((len(rank.updates) for rank in evidence.ranks), default=0)
    if evidence.exit_code == 0:
        cause = f"the script ended by itself after {done} of {evidence.total_updates} updates"
    else:
        cause = f"the run ended with exit code {evidence.exit_code} after {done} updates and left no reason"
    silent = [rank.rank for rank in evidence.ranks if rank.hello is None]
    if silent:
        cause += f"; the probe of rank {silent[0]} never reported"
    suspects = bool(context.changes) or context.had_patch
    kind = FailureKind.UNKNOWN if suspects else FailureKind.USER_ERROR
    quoted = (EvidenceLine(line=None, text=f"agent: exit code {evidence.exit_code}, {done} updates"),)
    return Attribution(
        kind=kind, blame_candidate=None, cause=cause, evidence=quoted, implicated=context.implicated
    )
