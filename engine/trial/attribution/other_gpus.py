"""Runs that the scheduler put on other hardware than the baseline's."""

from __future__ import annotations

from engine.schema.evidence import RunEvidence
from engine.schema.trial import Attribution, EvidenceLine, FailureKind


def attribute_other_gpus(baseline: RunEvidence, candidate: RunEvidence) -> Attribution | None:
    """The attribution of a run on other nodes with another GPU model, else None.

    No candidate chooses its nodes: such a run is nobody's, and its times mean nothing beside the baseline's.
    On the baseline's own nodes a change of the model stays a matter of the invariants.
    """
    old, new = _models(baseline), _models(candidate)
    if not old or not new or old == new:
        return None
    before, after = set(baseline.node_names), set(candidate.node_names)
    if not before or not after or after <= before:
        return None
    cause = (
        f"the scheduler gave it {', '.join(sorted(new))} where the baseline ran on {', '.join(sorted(old))}: "
        "ask for one GPU model in [slurm] (gpu_type or constraint)"
    )
    lines = tuple(EvidenceLine(line=None, text=f"ranks on {name}") for name in sorted(after - before))
    return Attribution(kind=FailureKind.INFRA, blame_candidate=False, cause=cause, evidence=lines)


def _models(run: RunEvidence) -> set[str]:
    return {rank.torch.device_name for rank in run.ranks if rank.torch and rank.torch.device_name}
