"""Peak memory of a run: what the headroom of a verified candidate is counted against."""

from __future__ import annotations

from engine.schema.evidence import RankEvidence, RunEvidence


def peak_memory_bytes(run: RunEvidence) -> int | None:
    """Highest peak of any rank: private data on cpu (probe or agent, the larger), the allocator's on cuda."""
    peaks = [peak for rank in run.ranks for peak in _peaks(rank, run.device)]
    return max(peaks, default=None)


def _peaks(rank: RankEvidence, device: str) -> list[int]:
    if device == "cuda":
        readings = [update.memory.cuda_allocated_peak_bytes for update in rank.updates]
    else:
        readings = [update.memory.vm_data_bytes for update in rank.updates]
        readings.append(None if rank.agent is None else rank.agent.peak_vm_data_bytes)
    return [value for value in readings if value is not None]
